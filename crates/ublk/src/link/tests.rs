use std::io::{Read, Write};
use std::os::fd::AsRawFd;

use haversack_nbd::{BlockSize, Command, Connected, Replier, Request, RequestReader, TransmissionFlags as F};

use super::*;
use crate::request::BlockRequest;

const DEPTH: u16 = 8;
const BUFFER_BYTES: usize = 64 << 10;

/// A link, its queue's state, and the daemon's end of the connection.
struct Scene {
    link: Link,
    slots: Slots,
    buffers: Buffers,
    daemon: UnixStream,
    reader: RequestReader,
}

impl Scene {
    fn new() -> Self {
        let (link, slots) = (Link::new(DEPTH), Slots::new(DEPTH));
        let buffers = Buffers::new(DEPTH, BUFFER_BYTES).unwrap();
        let (daemon, _) = UnixStream::pair().unwrap();
        let mut scene = Self { link, slots, buffers, daemon, reader: RequestReader::new() };
        scene.connect();
        scene
    }

    fn connect(&mut self) {
        let (socket, daemon) = UnixStream::pair().unwrap();
        let connected = Connected {
            size_bytes: 1 << 20,
            flags: F::SEND_FLUSH | F::SEND_FUA,
            block_size: BlockSize::new(512, 4096, 1 << 20).unwrap(),
            structured_replies: true,
            context_id: None,
            tls: false,
        };
        self.link.begin(Connection { socket, connected });
        (self.daemon, self.reader) = (daemon, RequestReader::new());
    }

    fn fetch(&mut self, tag: u16, operation: Operation, offset_bytes: u64, bytes: u32) {
        let request = BlockRequest { operation, offset_bytes, bytes, ..BlockRequest::default() };
        self.slots.fetched(tag, request);
    }

    /// Sends what is due.
    fn send(&mut self) -> bool {
        let Some((socket, message)) = self.link.outgoing(&mut self.slots, &self.buffers) else {
            return false;
        };
        // SAFETY: the message and what it points to are the link's and the buffers'.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), message, 0) };
        self.link.sent(sent as i32);
        true
    }

    /// Returns the requests that the daemon has got, and the data of the writes.
    fn requests(&mut self) -> (Vec<Request>, Vec<u8>) {
        let (mut bytes, mut requests, mut data) = (vec![0; 256 << 10], Vec::new(), Vec::new());
        let count = self.daemon.read(&mut bytes).unwrap();
        let mut input = &bytes[..count];
        while let Some(request) = self.reader.read(&mut input).unwrap() {
            let payload = self.reader.payload_left() as usize;
            data.extend_from_slice(&input[..payload]);
            input = &input[payload..];
            self.reader.payload_taken(payload as u32);
            requests.push(request);
        }
        (requests, data)
    }

    /// Receives some bytes; none at the end of the stream.
    fn receive(&mut self) -> usize {
        let (socket, into) = self.link.incoming(&self.buffers).unwrap();
        // SAFETY: the memory is the link's or the buffers'.
        let count = unsafe { libc::recv(socket.as_raw_fd(), into.iov_base, into.iov_len, 0) };
        self.link.received(count as i32, &mut self.slots, &self.buffers);
        count as usize
    }

    fn data(&self, tag: u16, at: usize, bytes: usize) -> Vec<u8> {
        let iovec = self.buffers.iovec(tag, at, bytes);
        // SAFETY: inside of a buffer, which nobody changes meanwhile.
        unsafe { std::slice::from_raw_parts(iovec.iov_base.cast::<u8>(), bytes) }.to_vec()
    }
}

const REPLIER: Replier = Replier { structured: true };

#[test]
fn a_write_goes_out_with_its_data_and_is_answered() {
    let mut scene = Scene::new();
    scene.buffers.fill(3, 0, &[7; 1024]);
    scene.fetch(3, Operation::Write, 4096, 1024);
    scene.fetch(0, Operation::Flush, 0, 0);
    assert!(scene.send() && !scene.send());
    let (requests, data) = scene.requests();
    assert_eq!(
        requests.iter().map(|r| (r.command, r.offset, r.length)).collect::<Vec<_>>(),
        [(Command::Write, 4096, 1024), (Command::Flush, 0, 0)]
    );
    assert_eq!(data, [7; 1024]);
    scene.daemon.write_all(&REPLIER.error(&requests[1], Errno::ENOSPC, "full")).unwrap();
    scene.daemon.write_all(&REPLIER.success(&requests[0])).unwrap();
    scene.receive();
    let mut results: Vec<_> = std::iter::from_fn(|| scene.link.next_result()).collect();
    results.sort_unstable();
    assert_eq!(results, [(0, -libc::ENOSPC), (3, 1024)]);
}

/// In pieces of any size: through the input, and directly into the buffer.
#[test]
fn a_read_gets_its_data_however_it_comes() {
    let data: Vec<u8> = (0..BUFFER_BYTES).map(|at| (at % 251) as u8).collect();
    for pieces in
        [vec![BUFFER_BYTES], vec![1; 300], vec![20_000, 20_000, 3], vec![60_000, 100], vec![1, 9_000]]
    {
        let mut scene = Scene::new();
        scene.fetch(5, Operation::Read, 8192, BUFFER_BYTES as u32);
        scene.send();
        let (requests, _) = scene.requests();
        let mut reply = REPLIER.read_data(&requests[0]).to_vec();
        reply.extend_from_slice(&data);
        let mut left = &reply[..];
        for bytes in pieces.into_iter().chain(std::iter::repeat(30_000)) {
            let (now, later) = left.split_at(bytes.min(left.len()));
            scene.daemon.write_all(now).unwrap();
            let mut got = 0;
            while got < now.len() {
                got += scene.receive();
            }
            left = later;
            if left.is_empty() {
                break;
            }
        }
        assert_eq!(scene.link.next_result(), Some((5, BUFFER_BYTES as i32)));
        assert_eq!(scene.data(5, 0, BUFFER_BYTES), data);
    }
}

#[test]
fn what_was_not_answered_is_sent_again_on_the_next_connection() {
    let mut scene = Scene::new();
    scene.buffers.fill(1, 0, &[1; 512]);
    scene.buffers.fill(2, 0, &[2; 512]);
    scene.fetch(1, Operation::Write, 0, 512);
    scene.fetch(2, Operation::Write, 512, 512);
    scene.fetch(3, Operation::Read, 0, BUFFER_BYTES as u32);
    scene.send();
    let (requests, _) = scene.requests();
    scene.daemon.write_all(&REPLIER.success(&requests[0])).unwrap();
    // Half of the read has come when the daemon dies.
    scene.daemon.write_all(&REPLIER.read_data(&requests[2])).unwrap();
    scene.daemon.write_all(&[9; BUFFER_BYTES / 2]).unwrap();
    scene.daemon.shutdown(Shutdown::Both).unwrap();
    while scene.receive() > 0 {}
    assert_eq!(scene.link.next_result(), Some((1, 512)));
    assert_eq!(scene.link.next_result(), None);
    assert!(scene.link.is_down() && scene.link.is_quiet());
    assert_eq!(scene.link.take_over().as_deref(), Some("the daemon closed it"));
    assert_eq!(scene.slots.connection_lost(), 2);

    scene.connect();
    scene.send();
    let (requests, data) = scene.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(data, [2; 512]);
    let read = requests.iter().find(|request| request.command == Command::Read).unwrap();
    scene.daemon.write_all(&REPLIER.hole_chunk(read.cookie, 0, BUFFER_BYTES as u32, true)).unwrap();
    scene.receive();
    assert_eq!(scene.link.next_result(), Some((3, BUFFER_BYTES as i32)));
    assert_eq!(scene.data(3, 0, BUFFER_BYTES), [0; BUFFER_BYTES]);
}

#[test]
fn a_daemon_that_gives_the_disk_up_is_asked_again() {
    let mut scene = Scene::new();
    scene.fetch(1, Operation::Read, 0, 512);
    scene.send();
    let (requests, _) = scene.requests();
    scene.daemon.write_all(&REPLIER.error(&requests[0], Errno::ESHUTDOWN, "detached")).unwrap();
    scene.receive();
    assert_eq!(scene.link.next_result(), None);
    assert!(scene.link.take_over().is_some());
    assert_eq!(scene.slots.connection_lost(), 1);
}

#[test]
fn what_the_disk_cannot_do_is_refused_here() {
    let mut scene = Scene::new();
    // Beyond the end of a disk that has become smaller.
    scene.fetch(1, Operation::Write, 1 << 20, 512);
    scene.fetch(2, Operation::Read, 1 << 20, 512);
    scene.fetch(3, Operation::Discard, 0, 512);
    scene.fetch(4, Operation::Unknown, 0, 512);
    assert!(!scene.send());
    let results: Vec<_> = std::iter::from_fn(|| scene.link.next_result()).collect();
    assert_eq!(results, [(4, -libc::EOPNOTSUPP), (3, -libc::EIO), (2, -libc::EIO), (1, -libc::ENOSPC)]);
}

#[test]
fn without_a_connection_all_fail_when_the_program_ends() {
    let mut scene = Scene::new();
    scene.fetch(1, Operation::Write, 0, 512);
    scene.send();
    scene.fetch(2, Operation::Read, 0, 512);
    scene.link.hang_up("the end");
    assert!(scene.link.take_over().is_some());
    scene.slots.connection_lost();
    scene.link.fail_waiting(&mut scene.slots);
    let results: Vec<_> = std::iter::from_fn(|| scene.link.next_result()).collect();
    assert_eq!(results, [(2, -libc::EIO), (1, -libc::EIO)]);
}
