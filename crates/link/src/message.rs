//! Messages of the migration protocol as bytes; see docs/host-protocol.md.

use haversack_migrate::{Message, Part, Position, Question, Session};
use haversack_model::{BLOCK_BYTES, BlockNo, HostId};
use haversack_ownership::{Grant, Message as Ownership};

use crate::bytes::{Malformed, Put, Reader};

/// The most blocks in a list.
pub const MOST_BLOCKS: usize = 4096;
/// The most hosts that have blocks of a disk.
const MOST_HOLDERS: usize = 16;

const OWNERSHIP: u8 = 1;
const OFFER: u8 = 2;
const ARRIVED: u8 = 3;
const COPY: u8 = 4;
const WITHDRAW: u8 = 5;
const LIST: u8 = 6;
const LISTED: u8 = 7;
const FETCH: u8 = 8;
const FETCHED: u8 = 9;
const FORGET: u8 = 10;
const FORGOTTEN: u8 = 11;

const ASK: u8 = 1;
const GRANTED: u8 = 2;
const GO_TO: u8 = 3;
const NOT_YET: u8 = 4;

const HELD: u8 = 1;
const OUTDATED: u8 = 2;

/// Appends a message.
pub fn encode(message: &Message, to: &mut Vec<u8>) {
    match message {
        Message::Ownership(message) => {
            to.put_u8(OWNERSHIP);
            put_ownership(message, to);
        }
        Message::Offer { session, from } => {
            to.put_u8(OFFER);
            put_session(*session, to);
            put_position(*from, to);
        }
        Message::Arrived { session, taker, until } => {
            to.put_u8(ARRIVED);
            put_session(*session, to);
            to.put_u64(*taker);
            put_position(*until, to);
        }
        Message::Copy { session, taker, at, block, mask, data } => {
            to.put_u8(COPY);
            put_session(*session, to);
            to.put_u64(*taker);
            put_position(*at, to);
            to.put_u64(block.0);
            put_data(*mask, data, to);
        }
        Message::Withdraw { session } => {
            to.put_u8(WITHDRAW);
            put_session(*session, to);
        }
        Message::List { question, epoch, session, part } => {
            to.put_u8(LIST);
            put_question(*question, to);
            to.put_u64(*epoch);
            to.put_u8(session.is_some().into());
            if let Some(session) = session {
                put_session(*session, to);
            }
            put_part(*part, to);
        }
        Message::Listed { question, knows_session, part, blocks, next } => {
            to.put_u8(LISTED);
            put_question(*question, to);
            to.put_u8((*knows_session).into());
            put_part(*part, to);
            to.put_u8(next.is_some().into());
            if let Some(next) = next {
                put_part(*next, to);
            }
            to.put_u32(blocks.len() as u32);
            for (block, mask) in blocks {
                to.put_u64(block.0);
                to.put_u8(*mask);
            }
        }
        Message::Fetch { question, epoch, block } => {
            to.put_u8(FETCH);
            put_question(*question, to);
            to.put_u64(*epoch);
            to.put_u64(block.0);
        }
        Message::Fetched { question, mask, data } => {
            to.put_u8(FETCHED);
            put_question(*question, to);
            put_data(*mask, data, to);
        }
        Message::Forget { epoch, blocks } => {
            to.put_u8(FORGET);
            put_blocks(*epoch, blocks, to);
        }
        Message::Forgotten { epoch, blocks } => {
            to.put_u8(FORGOTTEN);
            put_blocks(*epoch, blocks, to);
        }
    }
}

/// Reads a message.
pub fn decode(from: &mut Reader<'_>) -> Result<Message, Malformed> {
    Ok(match from.u8()? {
        OWNERSHIP => Message::Ownership(ownership(from)?),
        OFFER => Message::Offer { session: session(from)?, from: position(from)? },
        ARRIVED => Message::Arrived { session: session(from)?, taker: from.u64()?, until: position(from)? },
        COPY => Message::Copy {
            session: session(from)?,
            taker: from.u64()?,
            at: position(from)?,
            block: BlockNo(from.u64()?),
            mask: from.u8()?,
            data: data(from)?,
        },
        WITHDRAW => Message::Withdraw { session: session(from)? },
        LIST => {
            let (question, epoch) = (question(from)?, from.u64()?);
            let session = from.flag("a mark of copies")?.then(|| session(from)).transpose()?;
            Message::List { question, epoch, session, part: part(from)? }
        }
        LISTED => {
            let (question, knows_session) = (question(from)?, from.flag("a mark of known copies")?);
            let this = part(from)?;
            let next = from.flag("a mark of more")?.then(|| part(from)).transpose()?;
            let count = from.count("number of blocks", MOST_BLOCKS)?;
            let blocks = (0..count).map(|_| Ok((BlockNo(from.u64()?), from.u8()?)));
            let blocks = blocks.collect::<Result<_, Malformed>>()?;
            Message::Listed { question, knows_session, part: this, blocks, next }
        }
        FETCH => {
            Message::Fetch { question: question(from)?, epoch: from.u64()?, block: BlockNo(from.u64()?) }
        }
        FETCHED => Message::Fetched { question: question(from)?, mask: from.u8()?, data: data(from)? },
        FORGET => {
            let (epoch, blocks) = blocks(from)?;
            Message::Forget { epoch, blocks }
        }
        FORGOTTEN => {
            let (epoch, blocks) = blocks(from)?;
            Message::Forgotten { epoch, blocks }
        }
        kind => return Err(Malformed::Value { field: "kind of message", value: kind.into() }),
    })
}

fn put_ownership(message: &Ownership, to: &mut Vec<u8>) {
    match message {
        Ownership::Ask { granted } => {
            to.put_u8(ASK);
            to.put_u8(granted.is_some().into());
            if let Some(grant) = granted {
                put_grant(grant, to);
            }
        }
        Ownership::Granted(grant) => {
            to.put_u8(GRANTED);
            put_grant(grant, to);
        }
        Ownership::GoTo { to: host, grant } => {
            to.put_u8(GO_TO);
            to.put_u64(host.0);
            put_grant(grant, to);
        }
        Ownership::NotYet => to.put_u8(NOT_YET),
    }
}

fn ownership(from: &mut Reader<'_>) -> Result<Ownership, Malformed> {
    Ok(match from.u8()? {
        ASK => Ownership::Ask { granted: from.flag("a mark of a grant")?.then(|| grant(from)).transpose()? },
        GRANTED => Ownership::Granted(grant(from)?),
        GO_TO => Ownership::GoTo { to: HostId(from.u64()?), grant: grant(from)? },
        NOT_YET => Ownership::NotYet,
        kind => return Err(Malformed::Value { field: "kind of ownership message", value: kind.into() }),
    })
}

fn put_grant(grant: &Grant, to: &mut Vec<u8>) {
    to.put_u64(grant.epoch);
    to.put_u32(grant.holders.len() as u32);
    grant.holders.iter().for_each(|host| to.put_u64(host.0));
}

fn grant(from: &mut Reader<'_>) -> Result<Grant, Malformed> {
    let epoch = from.u64()?;
    let count = from.count("number of hosts", MOST_HOLDERS)?;
    let holders = (0..count).map(|_| from.u64().map(HostId)).collect::<Result<_, Malformed>>()?;
    Ok(Grant { epoch, holders })
}

fn put_session(session: Session, to: &mut Vec<u8>) {
    to.put_u64(session.incarnation);
    to.put_u64(session.count);
}

fn session(from: &mut Reader<'_>) -> Result<Session, Malformed> {
    Ok(Session { incarnation: from.u64()?, count: from.u64()? })
}

fn put_question(question: Question, to: &mut Vec<u8>) {
    to.put_u64(question.incarnation);
    to.put_u64(question.count);
}

fn question(from: &mut Reader<'_>) -> Result<Question, Malformed> {
    Ok(Question { incarnation: from.u64()?, count: from.u64()? })
}

fn put_position(position: Position, to: &mut Vec<u8>) {
    to.put_u64(position.round);
    to.put_u64(position.next);
}

fn position(from: &mut Reader<'_>) -> Result<Position, Malformed> {
    Ok(Position { round: from.u64()?, next: from.u64()? })
}

fn put_part(part: Part, to: &mut Vec<u8>) {
    let (kind, at) = match part {
        Part::Held(at) => (HELD, at),
        Part::Outdated(at) => (OUTDATED, at),
    };
    to.put_u8(kind);
    to.put_u64(at.0);
}

fn part(from: &mut Reader<'_>) -> Result<Part, Malformed> {
    let kind = from.u8()?;
    let at = BlockNo(from.u64()?);
    match kind {
        HELD => Ok(Part::Held(at)),
        OUTDATED => Ok(Part::Outdated(at)),
        kind => Err(Malformed::Value { field: "kind of list", value: kind.into() }),
    }
}

fn put_data(mask: u8, data: &[u8], to: &mut Vec<u8>) {
    assert_eq!(data.len(), BLOCK_BYTES, "a block's data is whole");
    to.put_u8(mask);
    to.put(data);
}

fn data(from: &mut Reader<'_>) -> Result<Vec<u8>, Malformed> {
    Ok(from.take(BLOCK_BYTES)?.to_vec())
}

fn put_blocks(epoch: u64, blocks: &[BlockNo], to: &mut Vec<u8>) {
    to.put_u64(epoch);
    to.put_u32(blocks.len() as u32);
    blocks.iter().for_each(|block| to.put_u64(block.0));
}

fn blocks(from: &mut Reader<'_>) -> Result<(u64, Vec<BlockNo>), Malformed> {
    let epoch = from.u64()?;
    let count = from.count("number of blocks", MOST_BLOCKS)?;
    let blocks = (0..count).map(|_| from.u64().map(BlockNo)).collect::<Result<_, Malformed>>()?;
    Ok((epoch, blocks))
}
