//! Frames: they arrive as they were sent, and anything that is not a frame is refused.

use haversack_lend as lend;
use haversack_link::wire::{
    Frame, HEADER_BYTES, Header, MOST_BODY_BYTES, MOST_ENTRIES, MOST_NOTE_BYTES, MOST_OBSERVED_SECTORS,
    ObserveError, Packet, WireError,
};
use haversack_migrate::{Message, Method, Part, Position, Question, ReplicaState, Session};
use haversack_model::{BLOCK_BYTES, BlockNo, DiskId, HostId, SECTOR_BYTES, SectorNo};
use haversack_ownership as ownership;
use proptest::collection::{btree_set, vec};
use proptest::option;
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
    (0..3, any::<u64>()).prop_map(|(which, at)| match which {
        0 => Part::Held(BlockNo(at)),
        1 => Part::Outdated(BlockNo(at)),
        _ => Part::Clean(at),
    })
}

fn block() -> impl Strategy<Value = BlockNo> {
    any::<u64>().prop_map(BlockNo)
}

fn data() -> impl Strategy<Value = Vec<u8>> {
    any::<[u8; 32]>().prop_map(|seed| seed.iter().copied().cycle().take(BLOCK_BYTES).collect())
}

fn grant() -> impl Strategy<Value = ownership::Grant> {
    let holders = btree_set(any::<u64>().prop_map(HostId), 0..5);
    (any::<u64>(), holders).prop_map(|(epoch, holders)| ownership::Grant { epoch, holders })
}

fn ownership() -> impl Strategy<Value = ownership::Message> {
    prop_oneof![
        option::of(grant()).prop_map(|granted| ownership::Message::Ask { granted }),
        grant().prop_map(ownership::Message::Granted),
        (any::<u64>(), grant()).prop_map(|(to, grant)| ownership::Message::GoTo { to: HostId(to), grant }),
        Just(ownership::Message::NotYet),
    ]
}

fn method() -> impl Strategy<Value = Method> {
    (0..Method::ALL.len()).prop_map(|place| Method::ALL[place])
}

fn message() -> impl Strategy<Value = Message> {
    let listed =
        (question(), any::<bool>(), method(), part(), vec((block(), any::<u8>()), 0..50), option::of(part()));
    let copy = (session(), any::<u64>(), position(), block(), any::<(u8, bool)>(), data());
    prop_oneof![
        ownership().prop_map(Message::Ownership),
        (session(), position()).prop_map(|(session, from)| Message::Offer { session, from }),
        (session(), any::<u64>(), position(), any::<bool>()).prop_map(|(session, taker, until, is_busy)| {
            Message::Arrived { session, taker, until, is_busy }
        }),
        copy.prop_map(|(session, taker, at, block, (mask, reused), data)| Message::Copy {
            session,
            taker,
            at,
            block,
            mask,
            reused,
            data
        }),
        session().prop_map(|session| Message::Withdraw { session }),
        (question(), any::<u64>(), option::of(session()), part())
            .prop_map(|(question, epoch, session, part)| Message::List { question, epoch, session, part }),
        listed.prop_map(|(question, knows_session, method, part, blocks, next)| Message::Listed {
            question,
            knows_session,
            method,
            part,
            blocks,
            next
        }),
        (question(), any::<u64>(), block()).prop_map(|(question, epoch, block)| Message::Fetch {
            question,
            epoch,
            block
        }),
        (question(), any::<u8>(), data()).prop_map(|(question, mask, data)| Message::Fetched {
            question,
            mask,
            data
        }),
        (any::<u64>(), vec(block(), 0..50)).prop_map(|(epoch, blocks)| Message::Forget { epoch, blocks }),
        (any::<u64>(), vec(block(), 0..50)).prop_map(|(epoch, blocks)| Message::Forgotten { epoch, blocks }),
        any::<u64>().prop_map(|epoch| Message::Enough { epoch }),
        of_replica(),
    ]
}

fn of_replica() -> impl Strategy<Value = Message> {
    let has = (session(), any::<(u64, bool)>(), position(), any::<(u64, u64, bool)>());
    let copy = (session(), any::<(u64, u64)>(), position(), block(), any::<u8>(), data());
    prop_oneof![
        (session(), any::<(Option<u64>, u64, u64)>(), position()).prop_map(
            |(session, (taker, epoch, sectors), from)| Message::ReplicaOpen {
                session,
                taker,
                epoch,
                sectors,
                from
            }
        ),
        copy.prop_map(|(session, (taker, echo), at, block, mask, data)| Message::ReplicaCopy {
            session,
            taker,
            echo,
            at,
            block,
            mask,
            data
        }),
        (session(), any::<(u64, u64, u64)>(), vec(block(), 0..50)).prop_map(
            |(session, (taker, echo, number), blocks)| Message::ReplicaRemove {
                session,
                taker,
                echo,
                number,
                blocks
            }
        ),
        (session(), any::<(u64, u64, bool)>()).prop_map(|(session, (taker, echo, completes))| {
            Message::ReplicaBeat { session, taker, echo, completes }
        }),
        (session(), any::<Option<u64>>()).prop_map(|(session, taker)| Message::ReplicaEnd { session, taker }),
        has.prop_map(|(session, (taker, is_known), until, (removed, beat, is_complete))| {
            let state = ReplicaState { session, taker, is_known, until, removed, beat, is_complete };
            Message::ReplicaHas(state)
        }),
        session().prop_map(|session| Message::ReplicaDropped { session }),
    ]
}

fn observed() -> impl Strategy<Value = Result<Vec<u8>, ObserveError>> {
    prop_oneof![
        (1..20usize, any::<u8>()).prop_map(|(sectors, byte)| Ok(vec![byte; sectors * SECTOR_BYTES])),
        Just(Err(ObserveError::NotOwner)),
        Just(Err(ObserveError::OutOfRange)),
        Just(Err(ObserveError::Failed)),
        Just(Err(ObserveError::Busy)),
    ]
}

fn lent() -> impl Strategy<Value = lend::Message> {
    let data = || any::<u8>().prop_map(|byte| vec![byte; BLOCK_BYTES]);
    (any::<[u64; 4]>(), any::<u32>(), data(), 0..8u8).prop_map(
        |([epoch, number, block, question], crc, data, kind)| {
            let loan = lend::Loan { epoch, number };
            match kind {
                0 => lend::Message::Open { loan, blocks: crc, disk_blocks: block },
                1 => lend::Message::Opened { loan },
                2 => lend::Message::Ended { loan },
                3 => lend::Message::Close { loan },
                4 => lend::Message::Put { loan, block, crc, data },
                5 => lend::Message::Get { loan, block, question },
                6 => lend::Message::Got { loan, block, question, found: Some((crc, data)) },
                _ => lend::Message::Got { loan, block, question, found: None },
            }
        },
    )
}

fn disk() -> impl Strategy<Value = DiskId> {
    any::<[u8; 16]>().prop_map(DiskId)
}

fn frame() -> impl Strategy<Value = Frame> {
    prop_oneof![
        12 => (disk(), message()).prop_map(|(disk, message)| Frame::Migrate { disk, message }),
        1 => (any::<u64>(), disk(), any::<u64>(), 1..=MOST_OBSERVED_SECTORS).prop_map(
            |(question, disk, sector, sectors)| Frame::ObserveRead {
                question,
                disk,
                sector: SectorNo(sector),
                sectors
            }
        ),
        1 => (any::<u64>(), disk(), observed())
            .prop_map(|(question, disk, result)| Frame::Observed { question, disk, result }),
        1 => (disk(), vec(any::<u8>(), 0..300)).prop_map(|(disk, text)| Frame::Note { disk, text }),
        3 => (disk(), lent()).prop_map(|(disk, message)| Frame::Lend { disk, message }),
    ]
}

fn packet() -> impl Strategy<Value = Packet> {
    prop_oneof![
        1 => any::<u64>().prop_map(Packet::Ping),
        1 => any::<u64>().prop_map(Packet::Pong),
        15 => frame().prop_map(Packet::Frame),
    ]
}

fn encode(packet: &Packet) -> Vec<u8> {
    let mut bytes = Vec::new();
    packet.encode(&mut bytes).unwrap();
    bytes
}

/// Puts a length and a checksum before an arbitrary body.
fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(&[kind, 0, 0, 0]);
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &[&bytes, body].concat()) as u32;
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes.extend_from_slice(body);
    bytes
}

proptest! {
    #[test]
    fn packets_round_trip(packet in packet()) {
        let bytes = encode(&packet);
        prop_assert!(bytes.len() <= HEADER_BYTES + MOST_BODY_BYTES);
        prop_assert_eq!(Packet::decode_whole(&bytes), Ok(packet));
    }

    #[test]
    fn a_shorter_or_longer_packet_is_refused(packet in packet(), more in vec(any::<u8>(), 1..20)) {
        let bytes = encode(&packet);
        for length in [0, HEADER_BYTES - 1, HEADER_BYTES, bytes.len() - 1] {
            prop_assert!(Packet::decode_whole(&bytes[..length]).is_err());
        }
        prop_assert!(Packet::decode_whole(&[bytes, more].concat()).is_err());
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in vec(any::<u8>(), 0..5_000)) {
        let _ = Packet::decode_whole(&bytes);
    }

    /// The checksum is valid, so every field is read. What decodes has no other encoding.
    #[test]
    fn any_body_of_any_kind_is_decoded_or_refused(kind in 0..60u8, body in vec(prop_oneof![Just(0), Just(1), any::<u8>()], 0..5_000)) {
        let bytes = framed(kind, &body);
        if let Ok(packet) = Packet::decode_whole(&bytes) {
            prop_assert_eq!(encode(&packet), bytes);
        }
    }

    /// A valid body with one byte changed, under a valid checksum.
    #[test]
    fn a_changed_body_is_decoded_or_refused(packet in packet(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let bytes = encode(&packet);
        let mut body = bytes[HEADER_BYTES..].to_vec();
        let at = at.index(body.len());
        body[at] = byte;
        let bytes = framed(bytes[4], &body);
        if let Ok(packet) = Packet::decode_whole(&bytes) {
            prop_assert_eq!(encode(&packet), bytes);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn every_flipped_bit_is_noticed(packet in packet()) {
        let bytes = encode(&packet);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Packet::decode_whole(&damaged).is_err(), "bit {bit}");
        }
    }
}

const DISK: DiskId = DiskId([7; 16]);

#[test]
fn limits_hold_when_sending_and_receiving() {
    let fits = |frame: Frame| {
        let bytes = encode(&Packet::Frame(frame.clone()));
        assert_eq!(Packet::decode_whole(&bytes), Ok(Packet::Frame(frame)));
    };
    let refused = |frame: Frame| {
        let mut bytes = Vec::new();
        assert_eq!(Packet::Frame(frame.clone()).encode(&mut bytes), Err(frame.check().unwrap_err()));
        assert!(bytes.is_empty());
    };
    let forget = |blocks| Message::Forget { epoch: 1, blocks: vec![BlockNo(1); blocks] };
    fits(Frame::Migrate { disk: DISK, message: forget(MOST_ENTRIES) });
    refused(Frame::Migrate { disk: DISK, message: forget(MOST_ENTRIES + 1) });
    let fetched = |bytes| Message::Fetched {
        question: Question { incarnation: 1, count: 1 },
        mask: 0xff,
        data: vec![0; bytes],
    };
    for bytes in [0, BLOCK_BYTES - 1, BLOCK_BYTES + 1] {
        refused(Frame::Migrate { disk: DISK, message: fetched(bytes) });
    }
    let observed = |bytes| Frame::Observed { question: 1, disk: DISK, result: Ok(vec![1; bytes]) };
    fits(observed(256 << 10));
    for bytes in [0, 1, (256 << 10) + SECTOR_BYTES] {
        refused(observed(bytes));
    }
    let read = |sectors| Frame::ObserveRead { question: 1, disk: DISK, sector: SectorNo(0), sectors };
    fits(read(MOST_OBSERVED_SECTORS));
    for sectors in [0, MOST_OBSERVED_SECTORS + 1] {
        refused(read(sectors));
    }
    fits(Frame::Note { disk: DISK, text: vec![b' '; MOST_NOTE_BYTES] });
    refused(Frame::Note { disk: DISK, text: vec![b' '; MOST_NOTE_BYTES + 1] });
}

#[test]
fn a_header_that_promises_too_much_is_refused_before_its_body() {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..4].copy_from_slice(&(MOST_BODY_BYTES as u32).to_le_bytes());
    assert_eq!(Header::read(bytes).unwrap().body_bytes(), MOST_BODY_BYTES);
    bytes[..4].copy_from_slice(&(MOST_BODY_BYTES as u32 + 1).to_le_bytes());
    assert_eq!(Header::read(bytes), Err(WireError::TooLong(MOST_BODY_BYTES + 1)));
    bytes[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(Header::read(bytes), Err(WireError::TooLong(u32::MAX as usize)));
}

#[test]
fn malformed_fields_have_typed_errors() {
    let body = |fields: &[&[u8]]| [&[&DISK.0[..]], fields].concat().concat();
    let decode = |kind, body: &[u8]| Packet::decode_whole(&framed(kind, body)).unwrap_err();
    let one = 1u64.to_le_bytes();
    assert_eq!(decode(0, &[]), WireError::Short);
    assert_eq!(decode(200, &body(&[])), WireError::Kind(200));
    assert_eq!(decode(19, &body(&[&[1]])), WireError::Trailing(1));
    assert_eq!(decode(16, &body(&[&[2]])), WireError::Value { field: "granted", value: 2 });
    let many = (MOST_ENTRIES as u32 + 1).to_le_bytes();
    assert_eq!(decode(40, &body(&[&one, &many])), WireError::Entries(MOST_ENTRIES + 1));
    assert_eq!(decode(40, &body(&[&one, &[4, 0, 0, 0], &one])), WireError::Short);
    let twice = body(&[&one, &[2, 0, 0, 0], &one, &one]);
    assert_eq!(decode(17, &twice), WireError::Order);
    assert_eq!(decode(49, &body(&[&one, &[5]])), WireError::Value { field: "error", value: 5 });
    for kind in [58, 63, 71] {
        assert_eq!(decode(kind, &body(&[])), WireError::Kind(kind));
    }
    assert_eq!(decode(70, &body(&[&[0; 32], &[2]])), WireError::Value { field: "found", value: 2 });
    assert_eq!(decode(69, &body(&[&[0; 24]])), WireError::Short);
    let listed = |method: u8, part: u8| body(&[&one, &one, &[1, method, part], &one, &[0; 5]]);
    assert!(Packet::decode_whole(&framed(37, &listed(7, 2))).is_ok());
    assert_eq!(decode(37, &listed(8, 2)), WireError::Value { field: "method", value: 8 });
    assert_eq!(decode(37, &listed(7, 3)), WireError::Value { field: "part", value: 3 });
}

/// The example in `docs/host-protocol.md`.
#[test]
fn a_frames_bytes_are_those_of_the_documentation() {
    let session = Session { incarnation: 0x1122, count: 3 };
    let frame = Frame::Migrate { disk: DiskId([0xab; 16]), message: Message::Withdraw { session } };
    let bytes = encode(&Packet::Frame(frame));
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        hex,
        "200000002300000099742b27abababababababababababababababab22110000000000000300000000000000"
    );
}

#[test]
fn a_peer_with_an_older_version_is_not_told_that_this_host_is_busy() {
    let (session, until) = (Session { incarnation: 1, count: 1 }, Position { round: 1, next: 2 });
    let arrived = |is_busy| {
        let message = Message::Arrived { session, taker: 1, until, is_busy };
        Packet::Frame(Frame::Migrate { disk: DISK, message })
    };
    for (version, is_told) in [(2, false), (3, false), (4, true)] {
        let mut packet = arrived(true);
        packet.adapt(version);
        assert_eq!(packet, arrived(is_told), "version {version}");
    }
    assert_eq!((encode(&arrived(false))[4], encode(&arrived(true))[4]), (33, 44));
}

proptest! {
    #[test]
    fn what_is_about_a_replica_is_told_from_the_rest(message in of_replica(), epoch in any::<u64>()) {
        let disk = DISK;
        let of_replica = Frame::Migrate { disk, message };
        let others = [
            Frame::Migrate { disk, message: Message::Enough { epoch } },
            Frame::Note { disk, text: Vec::new() },
        ];
        prop_assert!(of_replica.is_of_replica());
        prop_assert!(!others.iter().any(Frame::is_of_replica));
    }
}
