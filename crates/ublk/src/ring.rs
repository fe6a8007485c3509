//! The io_uring of a queue: the driver's commands, and the bytes to and from the daemon.
//!
//! Invariants
//! - The memory that the kernel reads or writes for an I/O in flight stays in place until the I/O has completed: its
//!   owner, the queue, waits for that before it drops anything.
//! - Only the thread that made the ring uses it: the driver knows a queue's server by its thread.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};

use crate::abi::{COMMIT_AND_FETCH, FETCH, IoBody};

const SENT: u64 = 1 << 32;
const RECEIVED: u64 = 2 << 32;
const BELL: u64 = 3 << 32;

/// What has completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The driver has a request with this tag, or will give it no more requests.
    Command { tag: u16 },
    /// Bytes were sent.
    Send,
    /// Bytes were received.
    Receive,
    /// The queue's bell was rung.
    Bell,
}

/// See the module documentation.
pub struct QueueRing {
    uring: IoUring,
    device: RawFd,
    queue: u16,
}

impl QueueRing {
    /// Creates the ring of a queue of a device, whose descriptor must outlive it.
    pub fn new(device: BorrowedFd<'_>, queue: u16, depth: u16) -> io::Result<Self> {
        // Every tag has one command in flight; a send, a receive and the bell come on top.
        let entries = (u32::from(depth) + 4).next_power_of_two();
        let uring = IoUring::builder().setup_single_issuer().setup_coop_taskrun().build(entries)?;
        Ok(Self { uring, device: device.as_raw_fd(), queue })
    }

    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: what the entry points to stays in place until the I/O has completed; see the module's invariants.
        while unsafe { self.uring.submission().push(entry) }.is_err() {
            self.submit()?;
        }
        Ok(())
    }

    fn command(&mut self, number: u32, body: IoBody) -> io::Result<()> {
        let entry = opcode::UringCmd16::new(Fd(self.device), number).cmd(body.bytes()).build();
        self.push(&entry.user_data(u64::from(body.tag)))
    }

    /// Asks for the first request with a tag. The data of a write goes to `addr`.
    pub fn fetch(&mut self, tag: u16, addr: u64) -> io::Result<()> {
        self.command(FETCH, IoBody { queue: self.queue, tag, result: -1, addr })
    }

    /// Answers a request, whose data, if it was a read, is at `addr`, and asks for the next one.
    pub fn commit(&mut self, tag: u16, result: i32, addr: u64) -> io::Result<()> {
        self.command(COMMIT_AND_FETCH, IoBody { queue: self.queue, tag, result, addr })
    }

    /// Sends some of a message.
    pub fn send(&mut self, socket: BorrowedFd<'_>, message: *const libc::msghdr) -> io::Result<()> {
        let entry = opcode::SendMsg::new(Fd(socket.as_raw_fd()), message).flags(libc::MSG_NOSIGNAL as u32);
        self.push(&entry.build().user_data(SENT))
    }

    /// Receives some bytes.
    pub fn receive(&mut self, socket: BorrowedFd<'_>, into: libc::iovec) -> io::Result<()> {
        let length = u32::try_from(into.iov_len).unwrap_or(u32::MAX);
        let entry = opcode::Recv::new(Fd(socket.as_raw_fd()), into.iov_base.cast(), length);
        self.push(&entry.build().user_data(RECEIVED))
    }

    /// Waits for the bell.
    pub fn listen(&mut self, bell: BorrowedFd<'_>) -> io::Result<()> {
        let entry = opcode::PollAdd::new(Fd(bell.as_raw_fd()), libc::POLLIN as u32);
        self.push(&entry.build().user_data(BELL))
    }

    /// Submits the queued entries to the kernel.
    pub fn submit(&mut self) -> io::Result<()> {
        self.uring.submit().map(drop).or_else(passing)
    }

    /// Submits the queued entries and waits for a completion, at most for this time.
    pub fn wait(&mut self, time: Option<Duration>) -> io::Result<()> {
        let submitter = self.uring.submitter();
        match time {
            None => submitter.submit_and_wait(1),
            Some(time) => {
                let time = Timespec::from(time);
                submitter.submit_with_args(1, &SubmitArgs::new().timespec(&time))
            }
        }
        .map(drop)
        .or_else(passing)
    }

    /// Returns what has completed next, and its result: a number of bytes, or the system's error as a negative number.
    pub fn completed(&mut self) -> Option<(Source, i32)> {
        let completion = self.uring.completion().next()?;
        let source = match completion.user_data() {
            SENT => Source::Send,
            RECEIVED => Source::Receive,
            BELL => Source::Bell,
            tag => Source::Command { tag: tag as u16 },
        };
        Some((source, completion.result()))
    }
}

/// Ignores errors after which the same call may succeed.
fn passing(error: io::Error) -> io::Result<()> {
    match error.raw_os_error() {
        Some(libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ETIME) => Ok(()),
        _ => Err(error),
    }
}
