//! Entry points of the fuzz targets: one side gets arbitrary bytes.

mod management;

pub use management::{Handed, nbd_management_bytes};

use crate::constants::MAX_OPTION_BYTES;
use crate::{
    BlockSize, ClientNegotiation, ClientSession, ClientStep, Command, CommandFlags, Connected, Event,
    ExportInfo, Exports, Extent, ExtentWriter, MetaContext, Negotiated, RequestReader, ServerNegotiation,
    ServerStep, TlsPolicy, TransmissionFlags, Verdict,
};

const SIZE_BYTES: u64 = 1 << 20;
const ALL_FEATURES: TransmissionFlags = TransmissionFlags::from_bits(!2);

struct OneExport;

impl Exports for OneExport {
    fn names(&mut self) -> Vec<String> {
        vec!["disk".to_owned()]
    }

    fn lookup(&mut self, name: &str) -> Option<ExportInfo> {
        matches!(name, "" | "disk").then(|| ExportInfo {
            name: "disk".to_owned(),
            description: "a disk".to_owned(),
            size_bytes: SIZE_BYTES,
            read_only: false,
            block_size: BlockSize::SERVER_DEFAULT,
            features: ALL_FEATURES,
        })
    }
}

/// Returns how a target's first byte splits the rest into pieces, and which TLS policy it selects.
fn plan(choice: u8) -> (usize, TlsPolicy) {
    let policy = match choice & 3 {
        0 | 1 => TlsPolicy::Off,
        2 => TlsPolicy::Allowed,
        _ => TlsPolicy::Required,
    };
    (usize::from(choice >> 2) * 7 + 1, policy)
}

/// Feeds the bytes of a client to a server, after a first byte that selects how they are split. Returns whether the
/// transmission phase was reached.
///
/// # Panics
/// An invariant is broken.
pub fn nbd_server_bytes(data: &[u8]) -> bool {
    let Some((choice, data)) = data.split_first() else {
        return false;
    };
    let (piece, policy) = plan(*choice);
    let mut output = Vec::new();
    let mut negotiation = ServerNegotiation::new(policy, &mut output);
    let mut negotiated: Option<Box<Negotiated>> = None;
    let mut reader = RequestReader::new();
    for mut input in data.chunks(piece) {
        while negotiated.is_none() && !input.is_empty() {
            let before = input.len();
            output.clear();
            match negotiation.receive(&mut input, &mut OneExport, &mut output) {
                Ok(ServerStep::Continue | ServerStep::StartTls) => {}
                Ok(ServerStep::Transmission(agreed)) => negotiated = Some(agreed),
                Ok(ServerStep::Aborted) | Err(_) => return false,
            }
            assert!(input.len() < before, "negotiation takes input");
            assert!(output.len() < 2 * MAX_OPTION_BYTES as usize, "output is bounded");
            assert!(negotiation.wanted_bytes() <= MAX_OPTION_BYTES as usize);
        }
        if negotiated.as_ref().is_some_and(|agreed| !serve(agreed, &mut reader, input)) {
            return true;
        }
    }
    negotiated.is_some()
}

/// Returns whether the connection continues.
fn serve(agreed: &Negotiated, reader: &mut RequestReader, mut input: &[u8]) -> bool {
    let rules = agreed.rules();
    let replier = agreed.replier();
    loop {
        let payload = input.len().min(reader.payload_left() as usize);
        input = &input[payload..];
        reader.payload_taken(payload as u32);
        let Ok(read) = reader.read(&mut input) else {
            return false;
        };
        let Some(request) = read else {
            assert!(input.is_empty(), "the reader takes what it can");
            return true;
        };
        match rules.check(&request) {
            Ok(Verdict::Serve) => {
                assert!(request.offset + u64::from(request.length) <= SIZE_BYTES, "{request:?}");
                assert!(request.command == Command::Flush || request.length > 0);
                let mut memory = [0; 64];
                let mut writer = ExtentWriter::new(&mut memory, &request, MetaContext::Cache).expect("room");
                writer.push(Extent { length: 1000, flags: 1 });
                writer.push(Extent { length: u32::MAX, flags: 0 });
                assert_eq!(writer.finish(true).is_some(), request.length > 0);
                assert!(replier.read_data(&request).len() <= 28);
            }
            Ok(Verdict::Nothing) => assert!(replier.success(&request).len() <= 20),
            Ok(Verdict::Refuse(refusal)) => {
                assert!(replier.error(&request, refusal.errno, refusal.reason).len() <= 128);
                reader.skip_payload();
            }
            Ok(Verdict::Disconnect) | Err(_) => return false,
        }
    }
}

/// Feeds the bytes of a server to a client, after a first byte that selects how they are split: first while
/// negotiating, then with three requests in flight. Returns whether any request was done.
///
/// # Panics
/// An invariant is broken.
pub fn nbd_client_bytes(data: &[u8]) -> bool {
    let Some((choice, data)) = data.split_first() else {
        return false;
    };
    let (piece, policy) = plan(*choice);
    let negotiation = ClientNegotiation::new("disk", policy);
    let mut negotiation = negotiation.and_then(|n| n.with_context("base:allocation")).expect("short names");
    let mut output = Vec::new();
    'negotiate: for mut input in data.chunks(piece) {
        while !input.is_empty() {
            let before = input.len();
            match negotiation.receive(&mut input, &mut output) {
                Ok(ClientStep::Continue) => {}
                Ok(ClientStep::StartTls) => negotiation.tls_started(&mut output),
                Ok(ClientStep::Connected(_)) | Err(_) => break 'negotiate,
            }
            assert!(input.len() < before, "negotiation takes input");
            assert!(negotiation.wanted_bytes() <= MAX_OPTION_BYTES as usize);
        }
    }
    let connected = Connected {
        size_bytes: SIZE_BYTES,
        flags: ALL_FEATURES,
        block_size: BlockSize::CLIENT_DEFAULT,
        structured_replies: choice & 1 == 0,
        context_id: Some(7),
        tls: false,
    };
    replies(&connected, data, piece)
}

fn replies(connected: &Connected, data: &[u8], piece: usize) -> bool {
    let mut session = ClientSession::new(connected, 4);
    let ranges = [(0, 4096), (4096, 512), (8192, 65536), (0, 1 << 20)];
    let commands = [Command::Read, Command::Write, Command::Read, Command::BlockStatus];
    for ((offset, length), command) in ranges.into_iter().zip(commands) {
        session.start(command, CommandFlags::NONE, offset, length).expect("a free slot");
    }
    let mut came = [0; 4];
    for mut input in data.chunks(piece) {
        loop {
            let before = input.len();
            let event = match session.receive(&mut input) {
                Ok(Some(event)) => event,
                Ok(None) => break assert!(input.is_empty(), "the session takes what it can"),
                Err(_) => return session.free_slots() > 0,
            };
            match event {
                Event::Data { cookie, offset, length } => {
                    let taken = input.len().min(length as usize);
                    check_range(ranges[cookie.slot()], offset, length);
                    input = &input[taken..];
                    session.data_taken(taken as u32);
                    came[cookie.slot()] += taken as u32;
                    if input.is_empty() {
                        break;
                    }
                }
                Event::Zero { cookie, offset, length } => {
                    check_range(ranges[cookie.slot()], offset, length);
                    came[cookie.slot()] += length;
                }
                Event::Extent { cookie, length, .. } => assert!(cookie.slot() == 3 && length > 0),
                Event::Error { .. } => assert!(session.message().len() <= 256),
                Event::Done { cookie, result } => {
                    let (_, length) = ranges[cookie.slot()];
                    assert!(result.is_err() || cookie.slot() % 2 == 1 || came[cookie.slot()] == length);
                }
            }
            assert!(input.len() < before || !matches!(event, Event::Data { .. }));
        }
    }
    session.free_slots() > 0
}

fn check_range((start, all): (u64, u32), offset: u64, length: u32) {
    assert!(offset >= start && offset + u64::from(length) <= start + u64::from(all) && length > 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A client's negotiation and requests that all succeed, as a base for mutations.
    fn client_bytes() -> Vec<u8> {
        let mut bytes = vec![0, 0, 0, 0, 3];
        let options: [(u32, &[u8]); 5] = [
            (3, b""),
            (8, b""),
            (10, b"\0\0\0\0\0\0\0\x02\0\0\0\x0fbase:allocation\0\0\0\x0fhaversack:cache"),
            (9, b"\0\0\0\x04disk\0\0\0\x01\0\0\0\x05base:"),
            (7, b"\0\0\0\x04disk\0\x03\0\x01\0\x02\0\x03"),
        ];
        for (option, data) in options {
            bytes.extend_from_slice(b"IHAVEOPT");
            bytes.extend_from_slice(&option.to_be_bytes());
            bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
            bytes.extend_from_slice(data);
        }
        for (command, length) in
            [(0, 512), (1, 40), (3, 0), (4, 4096), (6, 512), (7, 9000), (5, 1), (1, 1 << 21)]
        {
            let command = Command::from_wire(command);
            let offset = if length == 0 { 0 } else { 512 };
            let request = crate::Request { flags: CommandFlags::NONE, command, cookie: 3, offset, length };
            bytes.extend_from_slice(&request.encode());
            bytes.resize(bytes.len() + request.payload_bytes().min(100) as usize, 0x25);
        }
        bytes
    }

    /// A server's replies without errors.
    fn server_bytes() -> Vec<u8> {
        let replier = crate::Replier { structured: true };
        let of = |cookie, command| crate::Request {
            flags: CommandFlags::NONE,
            command,
            cookie,
            offset: 0,
            length: 4096,
        };
        let mut bytes = vec![0];
        bytes.extend_from_slice(&replier.success(&of(1, Command::Write)));
        bytes.extend_from_slice(&replier.hole_chunk(0, 1024, 3072, false));
        bytes.extend_from_slice(&replier.error(&of(2, Command::Read), crate::Errno::EIO, "a reason"));
        bytes.extend_from_slice(&replier.data_chunk(0, 0, 1024, false));
        bytes.resize(bytes.len() + 1024, 7);
        bytes.extend_from_slice(&replier.done(0));
        bytes
    }

    #[test]
    fn the_bases_reach_the_end() {
        assert!(nbd_server_bytes(&client_bytes()));
        assert!(nbd_client_bytes(&server_bytes()));
    }

    fn damage() -> impl Strategy<Value = Vec<(prop::sample::Index, u8)>> {
        prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn damaged_sessions_break_nothing(first: u8, damage in damage()) {
            for mut bytes in [client_bytes(), server_bytes()] {
                for (at, byte) in &damage {
                    let at = at.index(bytes.len());
                    bytes[at] = *byte;
                }
                bytes[0] = first;
                nbd_server_bytes(&bytes);
                nbd_client_bytes(&bytes);
            }
        }

        #[test]
        fn arbitrary_bytes_break_nothing(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            nbd_server_bytes(&bytes);
            nbd_client_bytes(&bytes);
        }
    }
}
