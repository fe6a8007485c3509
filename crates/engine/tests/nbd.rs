//! NBD clients that ask for much and read little.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use haversack_engine::{NbdClient, OpenPool, OriginSpec};
use haversack_model::DiskHandle;
use haversack_nbd::{
    ClientSession, Command, CommandFlags, Connected, Event, MetaContexts, Negotiated, REQUEST_BYTES, Request,
};

const SIZE_BYTES: u64 = 64 * MIB;

/// Connects to a disk of [`SIZE_BYTES`].
fn connect(open: &OpenPool, disk: DiskHandle, negotiated: Negotiated) -> UnixStream {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (socket, peer, held) = (theirs.into(), "a test".into(), Arc::new(()));
    let client = NbdClient { disk, socket, negotiated, max_connections: 64, peer, held };
    open.handle().arena(disk).add_nbd_client(client).unwrap();
    ours.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    ours
}

fn start_with_disk(place: &Place) -> (OpenPool, DiskHandle) {
    let (open, _) = start(&place.pool(&[64], false));
    let origin = OriginSpec::File { path: place.origin("origin", SIZE_BYTES / MIB) };
    let disk = attach(&open, spec(1, SIZE_BYTES / MIB, origin));
    (open, disk)
}

/// Refused requests take no slot, so only the number of unsent replies bounds their memory.
#[test]
fn a_client_that_reads_no_replies_is_not_read_from_and_gets_all_of_them_later() {
    let place = Place::new("unread");
    let (open, disk) = start_with_disk(&place);
    let mut socket = connect(&open, disk, negotiated(SIZE_BYTES));
    socket.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
    let beyond = Request {
        flags: CommandFlags::NONE,
        command: Command::Read,
        cookie: 7,
        offset: SIZE_BYTES,
        length: 512,
    };
    let requests = beyond.encode().repeat(1024);
    let mut sent_bytes = 0;
    loop {
        match socket.write(&requests[sent_bytes % requests.len()..]) {
            Ok(bytes) => sent_bytes += bytes,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
            Err(error) => panic!("{error}"),
        }
        assert!(sent_bytes < 32 << 20, "requests are taken although no reply is read");
    }
    let mut head = [0; 20];
    socket.read_exact(&mut head).unwrap();
    let reply_bytes = head.len() + u32::from_be_bytes(head[16..].try_into().unwrap()) as usize;
    let mut rest = vec![0; sent_bytes / REQUEST_BYTES * reply_bytes - head.len()];
    socket.read_exact(&mut rest).expect("every request has its reply");
}

/// Returns how many bytes the answer to a question about the whole disk covers, in all contexts.
fn covered_bytes(open: &OpenPool, disk: DiskHandle, meta_contexts: MetaContexts, context_id: u32) -> u64 {
    let negotiated = Negotiated { meta_contexts, ..negotiated(SIZE_BYTES) };
    let connected = Connected {
        size_bytes: SIZE_BYTES,
        flags: negotiated.flags,
        block_size: negotiated.export.block_size,
        structured_replies: true,
        context_id: Some(context_id),
        tls: false,
    };
    let mut session = ClientSession::new(&connected, 1);
    let mut socket = connect(open, disk, negotiated);
    let asked = session.start(Command::BlockStatus, CommandFlags::NONE, 0, SIZE_BYTES as u32);
    socket.write_all(&asked.unwrap().1).unwrap();
    let (mut covered, mut buffer) = (0, vec![0; 1 << 16]);
    loop {
        let bytes = socket.read(&mut buffer).unwrap();
        assert!(bytes > 0, "the server closed the connection");
        let mut input = &buffer[..bytes];
        while let Some(event) = session.receive(&mut input).unwrap() {
            match event {
                Event::Extent { length, .. } => covered += u64::from(length),
                Event::Done { result, .. } => {
                    result.unwrap();
                    return covered;
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// The reactor looks up each block, and serves no other disk meanwhile.
#[test]
fn one_answer_about_what_is_cached_covers_a_part_of_a_large_range() {
    let place = Place::new("status");
    let (open, disk) = start_with_disk(&place);
    let cache = MetaContexts { cache: true, ..MetaContexts::default() };
    assert_eq!(covered_bytes(&open, disk, cache, 2), 16 * MIB);
    let allocation = MetaContexts { allocation: true, ..MetaContexts::default() };
    assert_eq!(covered_bytes(&open, disk, allocation, 1), SIZE_BYTES, "nothing is looked up for it");
}
