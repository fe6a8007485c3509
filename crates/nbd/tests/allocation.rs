//! The transmission phase allocates nothing per request, on either side.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use haversack_nbd::*;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; only a counter is kept beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`, which is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from the system's allocator with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const PAYLOAD: [u8; 4096] = [7; 4096];

/// Sends one request of each kind through both sides.
fn round(
    session: &mut ClientSession,
    reader: &mut RequestReader,
    rules: &RequestRules,
    stream: &mut Vec<u8>,
) {
    let replier = Replier { structured: true };
    for command in [Command::Read, Command::Write, Command::Trim, Command::Cache, Command::Other(99)] {
        let sent = session.start(command, CommandFlags::NONE, 4096, 4096);
        let Ok((_, head)) = sent else {
            assert_eq!(command, Command::Other(99));
            continue;
        };
        let request = reader.read(&mut &head[..]).unwrap().unwrap();
        assert_eq!(rules.check(&request), Ok(Verdict::Serve));
        reader.payload_taken(request.payload_bytes());
        stream.clear();
        match command {
            Command::Read => {
                stream.extend_from_slice(&replier.data_chunk(request.cookie, 6144, 2048, false));
                stream.extend_from_slice(&PAYLOAD[..2048]);
                stream.extend_from_slice(&replier.hole_chunk(request.cookie, 4096, 2048, true));
            }
            Command::Trim => stream.extend_from_slice(&replier.error(&request, Errno::EIO, "a reason")),
            _ => stream.extend_from_slice(&replier.success(&request)),
        }
        let mut memory = [0; 256];
        let mut writer = ExtentWriter::new(&mut memory, &request, MetaContext::Cache).unwrap();
        writer.push(Extent { length: 512, flags: 1 });
        assert_eq!(writer.finish(true), Some(32));
        let mut input = &stream[..];
        while let Some(event) = session.receive(&mut input).unwrap() {
            if let Event::Data { length, .. } = event {
                input = &input[length as usize..];
                session.data_taken(length);
            }
        }
    }
}

#[test]
fn requests_allocate_nothing() {
    let flags = TransmissionFlags::SEND_TRIM | TransmissionFlags::SEND_CACHE;
    let connected = Connected {
        size_bytes: 1 << 20,
        flags,
        block_size: BlockSize::CLIENT_DEFAULT,
        structured_replies: true,
        context_id: None,
        tls: false,
    };
    let mut session = ClientSession::new(&connected, 4);
    let (mut reader, rules) = (RequestReader::new(), connected.rules());
    let mut stream = Vec::with_capacity(8192);
    let before = COUNT.get();
    assert!(before > 0, "the session itself was allocated");
    for _ in 0..100 {
        round(&mut session, &mut reader, &rules, &mut stream);
    }
    assert_eq!(COUNT.get(), before);
}
