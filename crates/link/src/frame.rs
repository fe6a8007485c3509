//! Frames: what goes over a connection once both hosts are known; see docs/host-protocol.md.
//!
//! Invariant
//! - A frame of more than [`MOST_FRAME_BYTES`] is neither sent nor read.

use haversack_migrate::Message;
use haversack_model::{DiskId, SECTOR_BYTES};

use crate::bytes::{Malformed, Put, Reader};
use crate::message;

/// The most bytes of a note.
pub const MOST_NOTE_BYTES: usize = 64 << 10;
/// The most sectors of a read.
const MOST_READ_SECTORS: u32 = 512;
/// The most bytes of a frame's body.
pub(crate) const MOST_FRAME_BYTES: usize = 320 << 10;
/// The bytes before the body: its length and its checksum.
pub(crate) const HEAD_BYTES: usize = 8;

const PING: u8 = 1;
const PONG: u8 = 2;
const PROTOCOL: u8 = 3;
const READ: u8 = 4;
const READ_DONE: u8 = 5;
const NOTE: u8 = 6;

/// What one host sends another. Each is about a disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Frame {
    /// A message of the migration protocol.
    Protocol {
        /// The disk.
        disk: DiskId,
        /// The message.
        message: Message,
    },
    /// A host whose guest has not come yet reads.
    Read {
        /// The disk.
        disk: DiskId,
        /// Names the question.
        question: u64,
        /// First sector.
        sector: u64,
        /// Number of sectors, 1 to 512.
        sectors: u32,
    },
    /// The answer; `None` if the sectors cannot be read there.
    ReadDone {
        /// The disk.
        disk: DiskId,
        /// The question.
        question: u64,
        /// The data, in whole sectors.
        data: Option<Vec<u8>>,
    },
    /// A note of a daemon.
    Note {
        /// The disk.
        disk: DiskId,
        /// Its text, at most [`MOST_NOTE_BYTES`].
        text: Vec<u8>,
    },
}

impl Frame {
    /// Whether it carries a copy that is sent ahead, which yields to everything else.
    pub(crate) fn is_ahead(&self) -> bool {
        matches!(self, Frame::Protocol { message: Message::Copy { .. }, .. })
    }
}

/// What the connection itself sends, and what it carries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Sent {
    /// Are you there?
    Ping(u64),
    /// The answer.
    Pong(u64),
    /// A frame.
    Frame(Frame),
}

/// Encodes a frame with its head.
pub(crate) fn encode(sent: &Sent) -> Vec<u8> {
    let mut bytes = vec![0; HEAD_BYTES];
    match sent {
        Sent::Ping(number) => {
            bytes.put_u8(PING);
            bytes.put_u64(*number);
        }
        Sent::Pong(number) => {
            bytes.put_u8(PONG);
            bytes.put_u64(*number);
        }
        Sent::Frame(Frame::Protocol { disk, message }) => {
            bytes.put_u8(PROTOCOL);
            bytes.put(&disk.0);
            message::encode(message, &mut bytes);
        }
        Sent::Frame(Frame::Read { disk, question, sector, sectors }) => {
            bytes.put_u8(READ);
            bytes.put(&disk.0);
            bytes.put_u64(*question);
            bytes.put_u64(*sector);
            bytes.put_u32(*sectors);
        }
        Sent::Frame(Frame::ReadDone { disk, question, data }) => {
            bytes.put_u8(READ_DONE);
            bytes.put(&disk.0);
            bytes.put_u64(*question);
            bytes.put_u8(data.is_some().into());
            bytes.put(data.as_deref().unwrap_or_default());
        }
        Sent::Frame(Frame::Note { disk, text }) => {
            bytes.put_u8(NOTE);
            bytes.put(&disk.0);
            bytes.put(text);
        }
    }
    let (head, body) = bytes.split_at_mut(HEAD_BYTES);
    head[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
    head[4..].copy_from_slice(&checksum(body).to_le_bytes());
    bytes
}

/// Reads a frame's head: the length of its body, and its checksum.
pub(crate) fn head(bytes: [u8; HEAD_BYTES]) -> Result<(usize, u32), Malformed> {
    let mut reader = Reader(&bytes);
    Ok((reader.count("length", MOST_FRAME_BYTES)?, reader.u32()?))
}

/// Returns the CRC-32C of a body.
pub(crate) fn checksum(body: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, body) as u32
}

/// Reads a frame's body, whose checksum is right.
pub(crate) fn decode(body: &[u8]) -> Result<Sent, Malformed> {
    let mut from = Reader(body);
    let kind = from.u8()?;
    let sent = match kind {
        PING => Sent::Ping(from.u64()?),
        PONG => Sent::Pong(from.u64()?),
        PROTOCOL => {
            Sent::Frame(Frame::Protocol { disk: DiskId(from.id()?), message: message::decode(&mut from)? })
        }
        READ => {
            let (disk, question, sector) = (DiskId(from.id()?), from.u64()?, from.u64()?);
            let sectors = from.count("number of sectors", MOST_READ_SECTORS as usize)? as u32;
            Sent::Frame(Frame::Read { disk, question, sector, sectors })
        }
        READ_DONE => {
            let (disk, question) = (DiskId(from.id()?), from.u64()?);
            let data = match from.flag("a mark of data")? {
                true => Some(sectors(from.take(from.0.len())?)?),
                false => None,
            };
            Sent::Frame(Frame::ReadDone { disk, question, data })
        }
        NOTE => {
            let disk = DiskId(from.id()?);
            if from.0.len() > MOST_NOTE_BYTES {
                return Err(Malformed::Value { field: "length of a note", value: from.0.len() as u64 });
            }
            Sent::Frame(Frame::Note { disk, text: from.take(from.0.len())?.to_vec() })
        }
        kind => return Err(Malformed::Value { field: "kind", value: kind.into() }),
    };
    from.end()?;
    Ok(sent)
}

fn sectors(data: &[u8]) -> Result<Vec<u8>, Malformed> {
    if !data.len().is_multiple_of(SECTOR_BYTES) || data.len() / SECTOR_BYTES > MOST_READ_SECTORS as usize {
        return Err(Malformed::Value { field: "length of the data", value: data.len() as u64 });
    }
    Ok(data.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use haversack_migrate::{Part, Position, Question, Session};
    use haversack_model::{BLOCK_BYTES, BlockNo, HostId};
    use haversack_ownership::{Grant, Message as Ownership};
    use proptest::prelude::*;

    fn session() -> impl Strategy<Value = Session> {
        any::<(u64, u64)>().prop_map(|(incarnation, count)| Session { incarnation, count })
    }

    fn question() -> impl Strategy<Value = Question> {
        any::<(u64, u64)>().prop_map(|(incarnation, count)| Question { incarnation, count })
    }

    fn position() -> impl Strategy<Value = Position> {
        any::<(u64, u64)>().prop_map(|(round, next)| Position { round, next })
    }

    fn part() -> impl Strategy<Value = Part> {
        any::<(bool, u64)>().prop_map(|(held, at)| match held {
            true => Part::Held(BlockNo(at)),
            false => Part::Outdated(BlockNo(at)),
        })
    }

    fn grant() -> impl Strategy<Value = Grant> {
        let holders = proptest::collection::btree_set(any::<u64>().prop_map(HostId), 0..16);
        (any::<u64>(), holders).prop_map(|(epoch, holders)| Grant { epoch, holders })
    }

    fn ownership() -> impl Strategy<Value = Ownership> {
        prop_oneof![
            proptest::option::of(grant()).prop_map(|granted| Ownership::Ask { granted }),
            grant().prop_map(Ownership::Granted),
            (any::<u64>(), grant()).prop_map(|(to, grant)| Ownership::GoTo { to: HostId(to), grant }),
            Just(Ownership::NotYet),
        ]
    }

    fn block() -> impl Strategy<Value = Vec<u8>> {
        any::<u8>().prop_map(|byte| vec![byte; BLOCK_BYTES])
    }

    fn numbers() -> impl Strategy<Value = Vec<BlockNo>> {
        proptest::collection::vec(any::<u64>().prop_map(BlockNo), 0..64)
    }

    fn message() -> impl Strategy<Value = Message> {
        let held = proptest::collection::vec((any::<u64>().prop_map(BlockNo), any::<u8>()), 0..64);
        let list = (question(), any::<u64>(), proptest::option::of(session()), part());
        let listed = (question(), any::<bool>(), part(), held, proptest::option::of(part()));
        let copy = (session(), any::<u64>(), position(), any::<u64>(), any::<u8>(), block());
        prop_oneof![
            ownership().prop_map(Message::Ownership),
            (session(), position()).prop_map(|(session, from)| Message::Offer { session, from }),
            (session(), any::<u64>(), position()).prop_map(|(session, taker, until)| Message::Arrived {
                session,
                taker,
                until
            }),
            copy.prop_map(|(session, taker, at, block, mask, data)| {
                Message::Copy { session, taker, at, block: BlockNo(block), mask, data }
            }),
            session().prop_map(|session| Message::Withdraw { session }),
            list.prop_map(|(question, epoch, session, part)| Message::List {
                question,
                epoch,
                session,
                part
            }),
            listed.prop_map(|(question, knows_session, part, blocks, next)| {
                Message::Listed { question, knows_session, part, blocks, next }
            }),
            (question(), any::<(u64, u64)>()).prop_map(|(question, (epoch, block))| Message::Fetch {
                question,
                epoch,
                block: BlockNo(block)
            }),
            (question(), any::<u8>(), block()).prop_map(|(question, mask, data)| Message::Fetched {
                question,
                mask,
                data
            }),
            (any::<u64>(), numbers()).prop_map(|(epoch, blocks)| Message::Forget { epoch, blocks }),
            (any::<u64>(), numbers()).prop_map(|(epoch, blocks)| Message::Forgotten { epoch, blocks }),
        ]
    }

    fn sent() -> impl Strategy<Value = Sent> {
        let disk = || any::<[u8; 16]>().prop_map(DiskId);
        let data = proptest::option::of((1usize..4).prop_map(|sectors| vec![7; sectors * SECTOR_BYTES]));
        prop_oneof![
            any::<u64>().prop_map(Sent::Ping),
            any::<u64>().prop_map(Sent::Pong),
            (disk(), message()).prop_map(|(disk, message)| Sent::Frame(Frame::Protocol { disk, message })),
            (disk(), any::<(u64, u64)>(), 1u32..=512).prop_map(|(disk, (question, sector), sectors)| {
                Sent::Frame(Frame::Read { disk, question, sector, sectors })
            }),
            (disk(), any::<u64>(), data).prop_map(|(disk, question, data)| Sent::Frame(Frame::ReadDone {
                disk,
                question,
                data
            })),
            (disk(), proptest::collection::vec(any::<u8>(), 0..200))
                .prop_map(|(disk, text)| Sent::Frame(Frame::Note { disk, text })),
        ]
    }

    proptest! {
        #[test]
        fn what_is_sent_is_what_arrives(sent in sent()) {
            let bytes = encode(&sent);
            let (length, crc) = head(bytes[..HEAD_BYTES].try_into().unwrap()).unwrap();
            let body = &bytes[HEAD_BYTES..];
            prop_assert_eq!((length, crc), (body.len(), checksum(body)));
            prop_assert_eq!(decode(body).unwrap(), sent);
        }

        #[test]
        fn a_frame_that_ends_early_or_late_is_refused(sent in sent(), cut in any::<proptest::sample::Index>()) {
            let bytes = encode(&sent);
            let body = &bytes[HEAD_BYTES..];
            let short = &body[..cut.index(body.len())];
            // The text of a note and the data of a read end where the frame ends.
            if !matches!(sent, Sent::Frame(Frame::Note { .. } | Frame::ReadDone { .. })) {
                prop_assert!(decode(short).is_err());
                prop_assert!(decode(&[body, &[0]].concat()).is_err());
            }
        }

        #[test]
        fn no_bytes_are_too_much_for_it(body in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&body);
        }

        #[test]
        fn a_bit_that_flips_is_noticed(sent in sent(), at in any::<proptest::sample::Index>(), bit in 0u8..8) {
            let bytes = encode(&sent);
            let crc = head(bytes[..HEAD_BYTES].try_into().unwrap()).unwrap().1;
            let mut body = bytes[HEAD_BYTES..].to_vec();
            let at = at.index(body.len());
            body[at] ^= 1 << bit;
            prop_assert_ne!(checksum(&body), crc);
        }
    }

    #[test]
    fn lengths_beyond_the_limits_are_refused() {
        let mut long = [0xff; HEAD_BYTES];
        assert!(head(long).is_err());
        long[..4].copy_from_slice(&(MOST_FRAME_BYTES as u32).to_le_bytes());
        assert!(head(long).is_ok());
        let blocks = vec![(BlockNo(1), 1); message::MOST_BLOCKS + 1];
        let question = Question { incarnation: 1, count: 1 };
        let part = Part::Held(BlockNo(0));
        let message = Message::Listed { question, knows_session: false, part, blocks, next: None };
        let bytes = encode(&Sent::Frame(Frame::Protocol { disk: DiskId([0; 16]), message }));
        assert!(decode(&bytes[HEAD_BYTES..]).unwrap_err().to_string().contains("number of blocks"));
    }
}
