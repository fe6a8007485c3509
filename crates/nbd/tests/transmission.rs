//! Transmission: what a client takes from a server, and the two sides against each other in pieces of any size.

use haversack_nbd::constants as c;
use haversack_nbd::*;
use proptest::prelude::*;

const SIZE_BYTES: u64 = 1 << 20;
const FEATURES: TransmissionFlags = TransmissionFlags::from_bits(0b1110_1101);

fn connected(structured_replies: bool) -> Connected {
    let flags = if structured_replies { FEATURES } else { FEATURES.without(TransmissionFlags::SEND_DF) };
    let block_size = BlockSize::new(512, 4096, 1 << 17).unwrap();
    Connected { size_bytes: SIZE_BYTES, flags, block_size, structured_replies, context_id: None, tls: false }
}

fn chunk(kind: u16, done: bool, cookie: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = c::STRUCTURED_REPLY_MAGIC.to_be_bytes().to_vec();
    bytes.extend(u16::from(done).to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend((payload.len() as u32).to_be_bytes());
    bytes.extend(payload);
    bytes
}

fn simple(error: u32, cookie: u64) -> Vec<u8> {
    let mut bytes = c::SIMPLE_REPLY_MAGIC.to_be_bytes().to_vec();
    bytes.extend(error.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes
}

fn data(offset: u64, bytes: &[u8]) -> Vec<u8> {
    [&offset.to_be_bytes(), bytes].concat()
}

fn hole(offset: u64, length: u32) -> Vec<u8> {
    [&offset.to_be_bytes()[..], &length.to_be_bytes()].concat()
}

fn error(errno: u32, text_bytes: u16, rest: &[u8]) -> Vec<u8> {
    [&errno.to_be_bytes()[..], &text_bytes.to_be_bytes(), rest].concat()
}

/// All events of a stream; data is taken and not shown.
fn events(session: &mut ClientSession, mut input: &[u8]) -> Result<Vec<Event>, ClientError> {
    let mut events = Vec::new();
    while let Some(event) = session.receive(&mut input)? {
        events.push(event);
        if let Event::Data { length, .. } = event {
            assert!(input.len() >= length as usize, "the data follows");
            input = &input[length as usize..];
            session.data_taken(length);
        }
    }
    Ok(events)
}

/// A session with a read of 1,024 bytes at 4,096 (cookie 0) and a write of as much (cookie 1).
fn session(structured: bool) -> (ClientSession, Cookie, Cookie) {
    let mut session = ClientSession::new(&connected(structured), 2);
    let (read, _) = session.start(Command::Read, CommandFlags::NONE, 4096, 1024).unwrap();
    let (write, bytes) = session.start(Command::Write, CommandFlags::FUA, 4096, 1024).unwrap();
    assert_eq!((read.number(), write.number(), write.slot()), (0, 1, 1));
    let request = Request::parse(&bytes).unwrap();
    assert_eq!(
        (request.command, request.payload_bytes(), request.flags),
        (Command::Write, 1024, CommandFlags::FUA)
    );
    (session, read, write)
}

#[test]
fn chunks_come_in_any_order() {
    let (mut session, read, write) = session(true);
    let stream = [
        chunk(c::REPLY_TYPE_OFFSET_HOLE, false, 0, &hole(4608, 512)),
        simple(0, 1),
        chunk(c::REPLY_TYPE_OFFSET_DATA, true, 0, &data(4096, &[9; 512])),
    ];
    let expected = [
        Event::Zero { cookie: read, offset: 4608, length: 512 },
        Event::Done { cookie: write, result: Ok(()) },
        Event::Data { cookie: read, offset: 4096, length: 512 },
        Event::Done { cookie: read, result: Ok(()) },
    ];
    assert_eq!(events(&mut session, &stream.concat()).unwrap(), expected);
    assert_eq!((session.free_slots(), session.in_flight().count()), (2, 0));
}

#[test]
fn data_is_announced_until_it_is_taken() {
    let (mut session, read, _) = session(true);
    let stream = chunk(c::REPLY_TYPE_OFFSET_DATA, true, 0, &data(4096, &[9; 1024]));
    let mut input = &stream[..28];
    let event = |offset, length| Ok(Some(Event::Data { cookie: read, offset, length }));
    assert_eq!(session.receive(&mut input), event(4096, 1024));
    assert_eq!(session.receive(&mut input), event(4096, 1024));
    session.data_taken(1000);
    assert_eq!(session.receive(&mut input), event(5096, 24));
    session.data_taken(24);
    assert_eq!(session.receive(&mut input), Ok(Some(Event::Done { cookie: read, result: Ok(()) })));
    assert_eq!(session.receive(&mut input), Ok(None));
}

#[test]
fn errors_are_told_with_their_words() {
    let (mut session, read, write) = session(true);
    let far = [&b"offset"[..], &4096_u64.to_be_bytes()].concat();
    let stream = [
        chunk(c::REPLY_TYPE_ERROR_OFFSET, false, 0, &error(5, 6, &far)),
        chunk(c::REPLY_TYPE_ERROR, false, 0, &error(22, 0, b"")),
        chunk(c::REPLY_TYPE_NONE, true, 0, b""),
        chunk(c::REPLY_TYPE_ERROR_BIT + 77, true, 1, &error(28, 4, b"fullmore")),
    ];
    let told = |cookie, errno| Event::Error { cookie, errno };
    let expected = [
        told(read, Errno::EIO),
        told(read, Errno::EINVAL),
        Event::Done { cookie: read, result: Err(Errno::EIO) },
        told(write, Errno::ENOSPC),
        Event::Done { cookie: write, result: Err(Errno::ENOSPC) },
    ];
    assert_eq!(events(&mut session, &stream.concat()).unwrap(), expected);
    assert_eq!(session.message(), "full");
}

#[test]
fn simple_replies_carry_the_data_of_reads() {
    let (mut session, read, write) = session(false);
    let stream = [simple(1, 1), simple(0, 0), vec![7; 1024]].concat();
    let expected = [
        Event::Done { cookie: write, result: Err(Errno::EPERM) },
        Event::Data { cookie: read, offset: 4096, length: 1024 },
        Event::Done { cookie: read, result: Ok(()) },
    ];
    assert_eq!(events(&mut session, &stream).unwrap(), expected);
}

#[test]
fn a_server_that_breaks_the_protocol_is_found_out() {
    let (hole_kind, data_kind) = (c::REPLY_TYPE_OFFSET_HOLE, c::REPLY_TYPE_OFFSET_DATA);
    let cases = [
        (vec![0; 4], "begins with 0x00000000"),
        (simple(0, 0), "simple reply to read 0x0"),
        (simple(0, 2), "request 0x2, which is not in flight"),
        (simple(0, 1 << 32), "request 0x100000000, which is not in flight"),
        ([simple(0, 1), simple(0, 1)].concat(), "request 0x1, which is not in flight"),
        (chunk(c::REPLY_TYPE_NONE, true, 9, b""), "request 0x9"),
        (chunk(c::REPLY_TYPE_NONE, true, 0, b""), "1024 bytes missing"),
        (chunk(c::REPLY_TYPE_NONE, true, 1, b"x"), "it has no payload"),
        (chunk(c::REPLY_TYPE_NONE, false, 1, b""), "it ends a reply"),
        (chunk(data_kind, true, 1, &data(4096, &[0; 8])), "it answers reads only"),
        (chunk(data_kind, true, 0, &data(4096, b"")), "at least 9"),
        (chunk(data_kind, true, 0, &data(4096, &[0; 512])), "512 bytes missing"),
        (chunk(data_kind, true, 0, &data(4095, &[0; 512])), "outside the request"),
        (chunk(data_kind, true, 0, &data(4096, &[0; 1025])), "outside the request"),
        (chunk(data_kind, true, 0, &data(5120, &[0; 1])), "outside the request"),
        (chunk(data_kind, true, 0, &data(u64::MAX, &[0; 1])), "outside the request"),
        (chunk(hole_kind, true, 0, &hole(4096, 0)), "outside the request"),
        (chunk(hole_kind, true, 0, &hole(4096, u32::MAX)), "outside the request"),
        (chunk(hole_kind, true, 0, &hole(4096, 1)[..11]), "it has 12 bytes"),
        (
            [chunk(hole_kind, false, 0, &hole(4096, 600)), chunk(hole_kind, true, 0, &hole(4608, 512))]
                .concat(),
            "part of which was received before",
        ),
        (chunk(c::REPLY_TYPE_BLOCK_STATUS, true, 0, &[0; 12]), "it answers BLOCK_STATUS only"),
        (chunk(77, true, 0, b""), "unknown or was not asked for"),
        (chunk(c::REPLY_TYPE_ERROR, true, 0, &[0; 5]), "at least 6"),
        (chunk(c::REPLY_TYPE_ERROR, true, 0, &[0; 8193]), "at most 8192"),
        (chunk(c::REPLY_TYPE_ERROR, true, 0, &error(0, 0, b"")), "error number is 0"),
        (chunk(c::REPLY_TYPE_ERROR, true, 0, &error(5, 3, b"ab")), "longer than the chunk"),
        (chunk(c::REPLY_TYPE_ERROR_OFFSET, true, 0, &error(5, 3, &[0; 9])), "longer than the chunk"),
        (chunk(c::REPLY_TYPE_ERROR_OFFSET, true, 0, &error(5, 0, &[0; 7])), "at least 14"),
    ];
    for (stream, expected) in cases {
        let (mut session, ..) = session(true);
        let found = events(&mut session, &stream).unwrap_err().to_string();
        assert!(found.contains(expected), "{found}, expected {expected}");
    }
    let scattered: Vec<u8> =
        (0..65).flat_map(|i| chunk(hole_kind, false, 0, &hole(4096 + i * 2, 1))).collect();
    let found = events(&mut session(true).0, &scattered).unwrap_err();
    assert_eq!(found, ClientError::TooFragmented { cookie: 0, limit: 64 });
    let found = events(&mut session(false).0, &chunk(c::REPLY_TYPE_NONE, true, 1, b"")).unwrap_err();
    assert_eq!(found, ClientError::UnexpectedChunk { cookie: 1 });
}

/// A session with a BLOCK_STATUS in flight. The context's number is 7.
fn status_session() -> (ClientSession, Cookie) {
    let mut session = ClientSession::new(&Connected { context_id: Some(7), ..connected(true) }, 1);
    let (status, _) = session.start(Command::BlockStatus, CommandFlags::NONE, 0, 4096).unwrap();
    (session, status)
}

fn extents(context_id: u32, extents: &[(u32, u32)]) -> Vec<u8> {
    let words = extents.iter().flat_map(|(length, flags)| [*length, *flags]);
    std::iter::once(context_id).chain(words).flat_map(u32::to_be_bytes).collect()
}

#[test]
fn extents_are_events() {
    let (mut session, cookie) = status_session();
    let stream = chunk(c::REPLY_TYPE_BLOCK_STATUS, true, 0, &extents(7, &[(512, 1), (65536, 3)]));
    let expected = [
        Event::Extent { cookie, length: 512, flags: 1 },
        Event::Extent { cookie, length: 65536, flags: 3 },
        Event::Done { cookie, result: Ok(()) },
    ];
    assert_eq!(events(&mut session, &stream).unwrap(), expected);
}

#[test]
fn malformed_extents_are_reported() {
    let kind = c::REPLY_TYPE_BLOCK_STATUS;
    let none_empty =
        [chunk(kind, false, 0, &extents(7, &[(512, 1)])), chunk(kind, true, 0, &extents(7, &[(0, 1)]))];
    let cases = [
        (chunk(kind, true, 0, &extents(8, &[(512, 1)])), "was not requested"),
        (chunk(kind, true, 0, &extents(7, &[])), "8 for each of 1 to"),
        (chunk(kind, true, 0, &extents(7, &[(512, 1)])[..11]), "8 for each of 1 to"),
        (chunk(c::REPLY_TYPE_OFFSET_DATA, true, 0, &data(0, &[0; 512])), "it answers reads only"),
        (none_empty.concat(), "an extent is not empty"),
    ];
    for (stream, expected) in cases {
        let found = events(&mut status_session().0, &stream).unwrap_err().to_string();
        assert!(found.contains(expected), "{found}, expected {expected}");
    }
}

#[test]
fn only_requests_that_the_export_serves_are_started() {
    let mut session = ClientSession::new(&connected(true), 1);
    let none = CommandFlags::NONE;
    for (command, flags, offset, length, expected) in [
        (Command::Read, none, SIZE_BYTES, 512, "beyond the export"),
        (Command::Read, none, 1, 512, "not aligned"),
        (Command::Write, none, 0, 1 << 18, "maximum payload"),
        (Command::Write, none, 0, 1 << 31, "maximum payload"),
        (Command::Write, CommandFlags::NO_HOLE, 0, 512, "not offered"),
        (Command::Cache, none, 0, 512, "not offer"),
        (Command::BlockStatus, none, 0, 512, "no metadata context"),
        (Command::Trim, none, 0, 0, "empty"),
        (Command::Disconnect, none, 0, 0, "farewell"),
    ] {
        let error = session.start(command, flags, offset, length).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    session.start(Command::Flush, none, 0, 0).unwrap();
    let full = session.start(Command::Flush, none, 0, 0);
    assert_eq!(full.unwrap_err(), StartError::Full { capacity: 1 });
}

#[test]
fn a_slot_is_used_again_under_another_cookie() {
    let (mut session, ..) = session(true);
    events(&mut session, &simple(0, 1)).unwrap();
    let (again, _) = session.start(Command::Flush, CommandFlags::NONE, 0, 0).unwrap();
    assert_eq!((again.slot(), again.number()), (1, 1 << 32 | 1));
    assert!(
        session.in_flight().any(|(cookie, request)| cookie == again && request.command == Command::Flush)
    );
    assert_eq!(events(&mut session, &simple(0, 1)), Err(ClientError::UnknownCookie { cookie: 1 }));
}

/// What a test asks for: the command, and its range in sectors.
type Wish = (u8, u16, u16);

/// An export in memory that answers each request at once, its reads cut into chunks by `seed`.
struct MemoryServer {
    disk: Vec<u8>,
    reader: RequestReader,
    rules: RequestRules,
    replier: Replier,
    write: Option<(Request, Vec<u8>)>,
    seed: u64,
}

impl MemoryServer {
    fn receive(&mut self, mut input: &[u8], output: &mut Vec<u8>) {
        loop {
            if let Some((request, payload)) = &mut self.write {
                let here = input.len().min(self.reader.payload_left() as usize);
                payload.extend_from_slice(&input[..here]);
                input = &input[here..];
                self.reader.payload_taken(here as u32);
                if self.reader.payload_left() > 0 {
                    return;
                }
                let at = request.offset as usize;
                self.disk[at..at + payload.len()].copy_from_slice(payload);
                output.extend_from_slice(&self.replier.success(request));
                self.write = None;
            }
            let Some(request) = self.reader.read(&mut input).unwrap() else {
                return;
            };
            match self.rules.check(&request).unwrap() {
                Verdict::Serve if request.command == Command::Write => {
                    self.write = Some((request, Vec::new()));
                }
                Verdict::Serve => self.serve(&request, output),
                other => panic!("{other:?}: clients do not send {request:?}"),
            }
        }
    }

    fn serve(&mut self, request: &Request, output: &mut Vec<u8>) {
        let range = request.offset as usize..request.offset as usize + request.length as usize;
        match request.command {
            Command::Read if self.replier.structured => self.read_in_chunks(request, output),
            Command::Read => {
                output.extend_from_slice(&self.replier.read_data(request));
                output.extend_from_slice(&self.disk[range]);
            }
            _ => {
                self.disk[range].fill(0);
                output.extend_from_slice(&self.replier.success(request));
            }
        }
    }

    /// Sends sectors one by one in a scattered order, zeroes as holes; now and then fails at the end.
    fn read_in_chunks(&mut self, request: &Request, output: &mut Vec<u8>) {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let sectors = u64::from(request.length / 512);
        let first = (self.seed >> 33) % sectors;
        for i in 0..sectors {
            let offset = request.offset + (first + i) % sectors * 512;
            let sector = &self.disk[offset as usize..][..512];
            if sector.iter().all(|byte| *byte == 0) {
                output.extend_from_slice(&self.replier.hole_chunk(request.cookie, offset, 512, false));
            } else {
                output.extend_from_slice(&self.replier.data_chunk(request.cookie, offset, 512, false));
                output.extend_from_slice(sector);
            }
        }
        if self.seed >> 61 == 0 {
            output.extend_from_slice(&self.replier.error(request, Errno::EIO, "bad luck"));
        } else {
            output.extend_from_slice(&self.replier.done(request.cookie));
        }
    }
}

/// Carries out wishes, four in flight, and compares each read with the disk as it was when the server answered.
fn run(structured: bool, wishes: &[Wish], pieces: &[usize], seed: u64) {
    let connected = connected(structured);
    let mut session = ClientSession::new(&connected, 4);
    let mut server = MemoryServer {
        disk: vec![0; SIZE_BYTES as usize],
        reader: RequestReader::new(),
        rules: connected.rules(),
        replier: Replier { structured },
        write: None,
        seed,
    };
    let mut model = server.disk.clone();
    let mut expected = vec![Vec::new(); 4];
    let mut memory = vec![Vec::new(); 4];
    let mut starts = [0; 4];
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    let (mut wishes, mut pieces) = (wishes.iter(), pieces.iter().cycle());
    let (mut started, mut done) = (0, 0);
    loop {
        while session.free_slots() > 0 {
            let Some(&(command, sector, sectors)) = wishes.next() else {
                break;
            };
            let command = [Command::Read, Command::Write, Command::WriteZeroes][usize::from(command) % 3];
            let (offset, length) = (u64::from(sector) * 512, u32::from(sectors) * 512);
            let (cookie, head) = session.start(command, CommandFlags::NONE, offset, length).unwrap();
            to_server.extend_from_slice(&head);
            started += 1;
            // The server answers in order, so the model may run ahead.
            let range = &mut model[offset as usize..][..length as usize];
            match command {
                Command::Read => expected[cookie.slot()] = range.to_vec(),
                Command::Write => {
                    range.fill(started as u8);
                    to_server.extend_from_slice(range);
                }
                _ => range.fill(0),
            }
            if command != Command::Read {
                expected[cookie.slot()].clear();
            }
            starts[cookie.slot()] = offset;
            memory[cookie.slot()] = vec![0xee; expected[cookie.slot()].len()];
        }
        let piece = *pieces.next().unwrap();
        let bytes: Vec<u8> = to_server.drain(..to_server.len().min(piece)).collect();
        server.receive(&bytes, &mut to_client);
        let bytes: Vec<u8> = to_client.drain(..to_client.len().min(piece)).collect();
        let mut input = &bytes[..];
        while let Some(event) = session.receive(&mut input).unwrap() {
            match event {
                Event::Data { cookie, offset, length } => {
                    let here = input.len().min(length as usize);
                    let at = (offset - starts[cookie.slot()]) as usize;
                    memory[cookie.slot()][at..at + here].copy_from_slice(&input[..here]);
                    input = &input[here..];
                    session.data_taken(here as u32);
                    if here < length as usize {
                        break;
                    }
                }
                Event::Zero { cookie, offset, length } => {
                    let at = (offset - starts[cookie.slot()]) as usize;
                    memory[cookie.slot()][at..at + length as usize].fill(0);
                }
                Event::Extent { .. } => panic!("nothing asks for extents"),
                Event::Error { errno, .. } => {
                    assert_eq!((errno, session.message()), (Errno::EIO, "bad luck"));
                }
                Event::Done { cookie, result } => {
                    assert!(memory[cookie.slot()] == expected[cookie.slot()], "wrong data");
                    assert!(result.is_ok() || structured);
                    done += 1;
                }
            }
        }
        if done == started && wishes.len() == 0 {
            assert!(to_server.is_empty() && to_client.is_empty());
            assert!(server.disk == model);
            return;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn both_sides_agree_in_any_pieces(
        structured: bool,
        wishes in prop::collection::vec((0_u8..3, 0_u16..60, 1_u16..9), 1..30),
        pieces in prop::collection::vec(1_usize..3000, 1..40),
        seed: u64,
    ) {
        run(structured, &wishes, &pieces, seed);
    }
}

#[test]
fn both_sides_agree_byte_by_byte() {
    let wishes = [(1, 0, 2), (0, 0, 4), (2, 1, 1), (0, 0, 3), (1, 2, 1), (0, 1, 8)];
    for structured in [false, true] {
        run(structured, &wishes, &[1], 3);
    }
}
