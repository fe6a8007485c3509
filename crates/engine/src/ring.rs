//! The io_uring of a reactor. Every I/O is an [`InflightIo`] with an owner, and its completion is one [`Completion`].
//!
//! Invariants
//! - The memory that the kernel reads or writes for an I/O in flight stays in place until the I/O has
//!   completed: frames belong to the core's I/O, iovecs and message headers to the boxed [`InflightIo`], other
//!   buffers to their owner.
//! - A transfer that the kernel cut short is continued here; callers see only end of file and errors.
//! - Only the thread that created the ring uses it.
//! - Completions that are taken early, to make room for submissions, are reported before later ones.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::time::Duration;

use haversack_core::IoId;
use haversack_model::{DeviceNo, DiskHandle};
use io_uring::types::{CancelBuilder, Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

use crate::pacing::{PIECE_BYTES, Pacing};

const ENTRIES: u32 = 1024;
/// How long I/O in flight may take to finish when a reactor stops.
const QUIESCE: Duration = Duration::from_secs(10);
/// Marks completions that are not waited for.
const NOBODY: u64 = u64::MAX;

/// The owner of an I/O in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// The reactor's mailbox was rung.
    Mailbox,
    /// The core's I/O on a cache device.
    Device { io: IoId, device: DeviceNo },
    /// An origin's I/O; `token` is the origin's own.
    Origin { disk: DiskHandle, token: u64 },
    /// A client's I/O; `part` is the client's own number for it.
    Client { client: u32, part: u8 },
}

/// When the data of a read or write may be moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// Now.
    AtOnce,
    /// Now, or while pacing is on, when it is its turn; see [`Pacing`].
    InLine,
}

/// The completion of an I/O.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub owner: Owner,
    /// Bytes moved, or the system's error number.
    pub result: Result<usize, i32>,
    /// When the I/O was started.
    pub started_us: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Read,
    Write,
    Flush,
    Allocate,
    Receive,
    Send,
    Bell,
}

struct InflightIo {
    owner: Owner,
    kind: Kind,
    fd: RawFd,
    offset_bytes: u64,
    iovecs: Vec<libc::iovec>,
    /// The first iovec with bytes left.
    next: usize,
    left: usize,
    done: usize,
    /// The most bytes to move at a time.
    most_bytes: usize,
    /// Paced: the I/O takes turns with others on its device.
    is_paced: bool,
    mode: i32,
    message: libc::msghdr,
    started_us: u64,
}

impl InflightIo {
    fn blank() -> Box<InflightIo> {
        Box::new(InflightIo {
            owner: Owner::Mailbox,
            kind: Kind::Bell,
            fd: -1,
            offset_bytes: 0,
            iovecs: Vec::new(),
            next: 0,
            left: 0,
            done: 0,
            most_bytes: 0,
            is_paced: false,
            mode: 0,
            // SAFETY: all zeroes is a valid empty header.
            message: unsafe { std::mem::zeroed() },
            started_us: 0,
        })
    }

    /// Skips `bytes` that have been moved.
    fn advance(&mut self, bytes: usize) {
        self.done += bytes;
        self.left -= bytes;
        self.offset_bytes += bytes as u64;
        let mut moved = bytes;
        while moved > 0 {
            let iovec = &mut self.iovecs[self.next];
            let part = moved.min(iovec.iov_len);
            // SAFETY: still inside, or one past the end of, the memory that the iovec describes.
            iovec.iov_base = unsafe { iovec.iov_base.cast::<u8>().add(part) }.cast();
            iovec.iov_len -= part;
            moved -= part;
            if iovec.iov_len == 0 {
                self.next += 1;
            }
        }
    }

    /// Returns the iovecs to move next: no more than the kernel takes in one call, and no more bytes than may
    /// be moved at a time.
    fn window(&self) -> &[libc::iovec] {
        let iovecs = &self.iovecs[self.next..];
        let mut bytes = 0;
        let fits = |piece: &&libc::iovec| {
            bytes += piece.iov_len;
            bytes <= self.most_bytes
        };
        let count = iovecs.iter().take(libc::UIO_MAXIOV as usize).take_while(fits).count();
        &iovecs[..count.max(1).min(iovecs.len())]
    }

    /// Builds the submission entry. `fixed` is the address range of the memory registered with the kernel.
    fn entry(&mut self, number: u32, fixed: &Range<usize>) -> squeue::Entry {
        let fd = Fd(self.fd);
        let iovecs = self.window();
        let (start, count) = (iovecs.as_ptr(), iovecs.len());
        let most_bytes = self.most_bytes;
        let len = |piece: &libc::iovec| piece.iov_len.min(most_bytes) as u32;
        let is_fixed =
            |piece: &libc::iovec| fixed.contains(&(piece.iov_base as usize)) && end_of(piece) <= fixed.end;
        let entry = match (self.kind, iovecs) {
            (Kind::Read, [into]) if is_fixed(into) => {
                opcode::ReadFixed::new(fd, into.iov_base.cast(), len(into), 0)
                    .offset(self.offset_bytes)
                    .build()
            }
            (Kind::Write, [from]) if is_fixed(from) => {
                opcode::WriteFixed::new(fd, from.iov_base.cast(), len(from), 0)
                    .offset(self.offset_bytes)
                    .build()
            }
            // A single piece of memory needs no iovec table.
            (Kind::Read, [into]) => {
                opcode::Read::new(fd, into.iov_base.cast(), len(into)).offset(self.offset_bytes).build()
            }
            (Kind::Write, [from]) => {
                opcode::Write::new(fd, from.iov_base.cast(), len(from)).offset(self.offset_bytes).build()
            }
            (Kind::Read, _) => opcode::Readv::new(fd, start, count as u32).offset(self.offset_bytes).build(),
            (Kind::Write, _) => {
                opcode::Writev::new(fd, start, count as u32).offset(self.offset_bytes).build()
            }
            (Kind::Flush, _) => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
            (Kind::Allocate, _) => {
                opcode::Fallocate::new(fd, self.left as u64).offset(self.offset_bytes).mode(self.mode).build()
            }
            (Kind::Receive, _) => {
                let into = &self.iovecs[0];
                opcode::Recv::new(fd, into.iov_base.cast(), into.iov_len as u32).build()
            }
            (Kind::Send, _) => {
                self.message.msg_iov = start.cast_mut();
                self.message.msg_iovlen = count;
                opcode::SendMsg::new(fd, &raw const self.message).flags(libc::MSG_NOSIGNAL as u32).build()
            }
            // A read would return immediately, because guests make their eventfds non-blocking.
            (Kind::Bell, _) => opcode::PollAdd::new(fd, libc::POLLIN as u32).build(),
        };
        entry.user_data(u64::from(number))
    }
}

/// See the module documentation.
pub(crate) struct Ring {
    uring: IoUring,
    /// Completions taken from the kernel to make room, before those that it still has.
    reaped: VecDeque<cqueue::Entry>,
    /// Boxed: the kernel keeps addresses inside of them while the table grows.
    #[allow(clippy::vec_box)]
    inflight: Vec<Box<InflightIo>>,
    free: Vec<u32>,
    in_flight: usize,
    /// The kernel sets flags in shared memory if it has to be called for completions.
    tells: bool,
    /// Addresses of the memory registered with the kernel.
    fixed: Range<usize>,
    /// See [`Ring::pace`].
    pacing: Pacing,
}

impl Ring {
    pub fn new() -> io::Result<Ring> {
        let hinted = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .setup_cqsize(4 * ENTRIES)
            .build(ENTRIES);
        let tells = hinted.is_ok();
        // Kernels before 6.0 do not have these flags.
        let uring = hinted.or_else(|_| IoUring::builder().setup_cqsize(4 * ENTRIES).build(ENTRIES))?;
        Ok(Ring {
            uring,
            reaped: VecDeque::new(),
            inflight: Vec::new(),
            free: Vec::new(),
            in_flight: 0,
            tells,
            fixed: 0..0,
            pacing: Pacing::default(),
        })
    }

    /// Registers memory with the kernel, which then need not look up and pin its pages for each I/O; that is a
    /// twelfth of the cost of an I/O. The pages stay pinned as long as the ring lives.
    ///
    /// # Errors
    /// The process may not lock this much memory, or there is not enough. I/O works without registration, too.
    pub fn register(&mut self, (start, len): (*mut u8, usize)) -> io::Result<()> {
        let piece = libc::iovec { iov_base: start.cast(), iov_len: len };
        // SAFETY: the kernel pins the pages and accesses them only for I/Os, whose memory stays in place; see
        // the module's invariants.
        unsafe { self.uring.submitter().register_buffers(&[piece])? };
        self.fixed = start as usize..start as usize + len;
        Ok(())
    }

    fn take(&mut self, owner: Owner, kind: Kind, fd: RawFd, started_us: u64) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.inflight.push(InflightIo::blank());
            self.inflight.len() as u32 - 1
        });
        let io = &mut self.inflight[number as usize];
        io.iovecs.clear();
        (io.owner, io.kind, io.fd, io.started_us) = (owner, kind, fd, started_us);
        (io.offset_bytes, io.next, io.left, io.done) = (0, 0, 0, 0);
        (io.most_bytes, io.is_paced) = (usize::MAX, false);
        number
    }

    fn launch(&mut self, number: u32) {
        let entry = self.inflight[number as usize].entry(number, &self.fixed);
        self.in_flight += 1;
        self.push(&entry);
    }

    fn push(&mut self, entry: &squeue::Entry) {
        self.push_by(entry, |uring| uring.submit());
    }

    /// Queues an entry; if there is no room, `submit` passes the queued ones to the kernel. Kernels before 5.19 refuse
    /// that with EBUSY while completions wait for room in their queue, so completions are set aside first.
    fn push_by(&mut self, entry: &squeue::Entry, mut submit: impl FnMut(&IoUring) -> io::Result<usize>) {
        // SAFETY: what the entry points to lives until the I/O has completed; see the module's invariants.
        while unsafe { self.uring.submission().push(entry) }.is_err() {
            let Err(error) = submit(&self.uring) else { continue };
            assert!(is_passing(&error), "io_uring takes submissions: {error}");
            self.reaped.extend(self.uring.completion());
        }
    }

    fn next_entry(&mut self) -> Option<cqueue::Entry> {
        self.reaped.pop_front().or_else(|| self.uring.completion().next())
    }

    fn transfer(
        &mut self,
        number: u32,
        offset_bytes: u64,
        iovecs: impl Iterator<Item = libc::iovec>,
        order: Order,
    ) {
        let io = &mut self.inflight[number as usize];
        io.offset_bytes = offset_bytes;
        for iovec in iovecs {
            io.left += iovec.iov_len;
            match io.iovecs.last_mut() {
                Some(last) if end_of(last) == iovec.iov_base as usize => last.iov_len += iovec.iov_len,
                _ => io.iovecs.push(iovec),
            }
        }
        if order == Order::AtOnce || !self.pacing.is_on() {
            return self.launch(number);
        }
        (io.most_bytes, io.is_paced) = (PIECE_BYTES, true);
        self.pacing.wait(io.fd, number, io.left);
        self.launch_next(self.inflight[number as usize].fd);
    }

    /// Reads from a file. The memory must stay in place until the I/O has completed.
    pub fn read(
        &mut self,
        owner: Owner,
        fd: RawFd,
        offset_bytes: u64,
        iovecs: impl Iterator<Item = libc::iovec>,
        order: Order,
        now: u64,
    ) {
        let number = self.take(owner, Kind::Read, fd, now);
        self.transfer(number, offset_bytes, iovecs, order);
    }

    /// Writes to a file. The memory must stay in place until the I/O has completed.
    pub fn write(
        &mut self,
        owner: Owner,
        fd: RawFd,
        offset_bytes: u64,
        iovecs: impl Iterator<Item = libc::iovec>,
        order: Order,
        now: u64,
    ) {
        let number = self.take(owner, Kind::Write, fd, now);
        self.transfer(number, offset_bytes, iovecs, order);
    }

    /// Starts or ends pacing: while it is on, I/Os that wait in line are moved in pieces, few at a time.
    pub fn pace(&mut self, is_on: bool) {
        for number in self.pacing.switch(is_on) {
            self.launch(number);
        }
    }

    fn launch_next(&mut self, fd: RawFd) {
        while let Some(number) = self.pacing.next(fd) {
            self.launch(number);
        }
    }

    /// Makes the data of a file durable.
    pub fn flush(&mut self, owner: Owner, fd: RawFd, now: u64) {
        let number = self.take(owner, Kind::Flush, fd, now);
        self.launch(number);
    }

    /// Changes the allocation of part of a file, like fallocate(2).
    pub fn allocate(&mut self, owner: Owner, fd: RawFd, mode: i32, offset_bytes: u64, bytes: u64, now: u64) {
        let number = self.take(owner, Kind::Allocate, fd, now);
        let io = &mut self.inflight[number as usize];
        (io.mode, io.offset_bytes, io.left) = (mode, offset_bytes, bytes as usize);
        self.launch(number);
    }

    /// Receives some bytes from a socket; 0 bytes at the end of the stream.
    pub fn receive(&mut self, owner: Owner, fd: RawFd, into: libc::iovec, now: u64) {
        let number = self.take(owner, Kind::Receive, fd, now);
        self.transfer(number, 0, std::iter::once(into), Order::AtOnce);
    }

    /// Sends all bytes to a socket.
    pub fn send(&mut self, owner: Owner, fd: RawFd, iovecs: impl Iterator<Item = libc::iovec>, now: u64) {
        let number = self.take(owner, Kind::Send, fd, now);
        self.transfer(number, 0, iovecs, Order::AtOnce);
    }

    /// Waits for an eventfd to be rung, then resets it.
    pub fn listen(&mut self, owner: Owner, fd: RawFd, now: u64) {
        let number = self.take(owner, Kind::Bell, fd, now);
        self.launch(number);
    }

    /// Cancels all I/O on a descriptor; it completes with an error.
    pub fn cancel(&mut self, fd: RawFd) {
        let entry = opcode::AsyncCancel2::new(CancelBuilder::fd(Fd(fd)).all()).build().user_data(NOBODY);
        self.push(&entry);
    }

    /// Cancels all I/O in flight and waits until it has completed. Returns false if some did not in time: its
    /// memory must stay in place.
    pub fn quiesce(&mut self) -> bool {
        let entry = opcode::AsyncCancel2::new(CancelBuilder::any()).build().user_data(NOBODY);
        self.push(&entry);
        let begin = std::time::Instant::now();
        while self.in_flight > 0 && begin.elapsed() < QUIESCE {
            self.wait(Some(Duration::from_millis(10)));
            while let Some(completion) = self.next_entry() {
                self.in_flight -= usize::from(completion.user_data() != NOBODY);
            }
        }
        self.in_flight == 0
    }

    /// Submits queued I/O to the kernel and lets it report completions. Makes no system call if there is
    /// neither.
    pub fn submit(&mut self) {
        let queue = self.uring.submission();
        let is_due = !queue.is_empty() || queue.taskrun() || queue.cq_overflow();
        drop(queue);
        if self.tells && !is_due {
            return;
        }
        if let Err(error) = self.uring.submit() {
            assert!(is_passing(&error), "io_uring takes submissions: {error}");
        }
    }

    /// Submits, then sleeps until an I/O completes or the timeout expires.
    pub fn wait(&mut self, time: Option<Duration>) {
        if !self.reaped.is_empty() {
            return self.submit();
        }
        let submitter = self.uring.submitter();
        let result = match time {
            None => submitter.submit_and_wait(1),
            Some(time) => {
                let time = Timespec::from(time);
                submitter.submit_with_args(1, &SubmitArgs::new().timespec(&time))
            }
        };
        if let Err(error) = result {
            assert!(
                is_passing(&error) || error.raw_os_error() == Some(libc::ETIME),
                "io_uring waits: {error}"
            );
        }
    }

    /// Returns the next completion.
    pub fn completed(&mut self) -> Option<Completion> {
        loop {
            let completion = self.next_entry()?;
            if completion.user_data() == NOBODY {
                continue;
            }
            let number = completion.user_data() as u32;
            self.in_flight -= 1;
            if let Some(completion) = self.advance(number, completion.result()) {
                self.free.push(number);
                return Some(completion);
            }
        }
    }

    fn advance(&mut self, number: u32, result: i32) -> Option<Completion> {
        let io = &mut self.inflight[number as usize];
        let outcome = match io.kind {
            _ if result == -libc::EINTR || result == -libc::EAGAIN => {
                self.launch(number);
                return None;
            }
            _ if result < 0 => Err(-result),
            Kind::Read | Kind::Write | Kind::Send => {
                io.advance(result as usize);
                if io.left > 0 && result > 0 {
                    self.moved(number, true);
                    return None;
                }
                // The file ends before the transfer does.
                if io.left > 0 { Err(libc::EIO) } else { Ok(io.done) }
            }
            Kind::Bell => {
                reset(io.fd);
                Ok(0)
            }
            Kind::Flush | Kind::Allocate | Kind::Receive => Ok(result as usize),
        };
        let completion = Completion { owner: io.owner, result: outcome, started_us: io.started_us };
        self.moved(number, false);
        Some(completion)
    }

    /// Continues after a part of an I/O has been moved: with the rest of the I/O if `goes_on`, and with the I/Os that
    /// waited for it.
    fn moved(&mut self, number: u32, goes_on: bool) {
        let io = &self.inflight[number as usize];
        if !io.is_paced {
            if goes_on {
                self.launch(number);
            }
            return;
        }
        let (fd, left) = (io.fd, io.left);
        self.pacing.moved(fd, number);
        if goes_on {
            self.pacing.wait(fd, number, left);
        }
        self.launch_next(fd);
    }
}

/// Resets an eventfd that was rung. Another process that shares it may have reset it already, and may have made
/// it blocking, so it is read without waiting.
fn reset(bell: RawFd) {
    let mut value = 0u64;
    let into = libc::iovec { iov_base: (&raw mut value).cast(), iov_len: 8 };
    // SAFETY: reads eight bytes into a value that lives through the call.
    unsafe { libc::preadv2(bell, &raw const into, 1, -1, libc::RWF_NOWAIT) };
}

/// Returns the address after a piece of memory.
fn end_of(iovec: &libc::iovec) -> usize {
    iovec.iov_base as usize + iovec.iov_len
}

/// Returns whether the same call may succeed when repeated.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use haversack_core::IoId;
    use haversack_model::DeviceNo;

    use super::*;

    /// Starts to read or write all of `memory` at byte 4096 of a file, as a device I/O.
    fn start(ring: &mut Ring, kind: Kind, io: u32, order: Order, fd: RawFd, memory: &mut [u8]) {
        let owner = Owner::Device { io: IoId(io), device: DeviceNo(0) };
        // Every second piece, then the others: no piece continues the one before it.
        let mut iovecs: Vec<libc::iovec> = memory
            .chunks_mut(4096)
            .map(|piece| libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() })
            .collect();
        let (even, odd): (Vec<_>, Vec<_>) = iovecs.drain(..).enumerate().partition(|(at, _)| at % 2 == 0);
        let pieces = even.into_iter().chain(odd).map(|(_, piece)| piece);
        match kind {
            Kind::Read => ring.read(owner, fd, 4096, pieces, order, 0),
            _ => ring.write(owner, fd, 4096, pieces, order, 0),
        }
    }

    /// Waits for an I/O; returns its number and how much was in flight at most meanwhile.
    fn end(ring: &mut Ring) -> (Completion, usize) {
        let mut most = 0;
        loop {
            most = most.max(ring.in_flight);
            ring.wait(None);
            if let Some(completion) = ring.completed() {
                return (completion, most);
            }
        }
    }

    #[test]
    fn paced_ios_are_moved_in_pieces_one_at_a_time_and_others_pass_them() {
        const IOS: u32 = 4;
        let file = tempfile::tempfile().unwrap();
        let fd = file.as_raw_fd();
        let mut ring = Ring::new().unwrap();
        let data: Vec<u8> = (0..512 * 1024u32).map(|at| (at / 4096) as u8 ^ at as u8).collect();
        for paced in [true, false] {
            ring.pace(paced);
            let mut memory = vec![data.clone(); IOS as usize];
            start(&mut ring, Kind::Write, 0, Order::InLine, fd, &mut memory[0]);
            assert_eq!(end(&mut ring).0.result, Ok(data.len()));
            for (io, memory) in (0..).zip(&mut memory) {
                memory.fill(0);
                start(&mut ring, Kind::Read, io, Order::InLine, fd, memory);
            }
            assert_eq!(ring.in_flight, if paced { 1 } else { IOS as usize });
            let mut short = [0; 4096];
            start(&mut ring, Kind::Read, IOS, Order::AtOnce, fd, &mut short);
            let mut completed = Vec::new();
            for _ in 0..=IOS {
                let (completion, most) = end(&mut ring);
                assert!(!paced || most <= 2, "{most} are in flight");
                completed.push(completion.owner);
                assert!(completion.result.is_ok());
            }
            let is_short = |owner: &Owner| matches!(owner, Owner::Device { io: IoId(IOS), .. });
            assert!(!paced || completed.iter().position(is_short) < Some(IOS as usize));
            assert!(memory.iter().all(|memory| *memory == data) && short == data[..4096]);
        }
    }

    /// Waits for the completions of device I/Os numbered from 0, each once.
    fn end_all(ring: &mut Ring, ios: u32) {
        let mut left: Vec<u32> = (0..ios).collect();
        while !left.is_empty() {
            let Owner::Device { io, .. } = end(ring).0.owner else { unreachable!("nobody else") };
            let at = left.iter().position(|left| *left == io.0);
            left.swap_remove(at.expect("an I/O completes once"));
        }
        assert_eq!(ring.in_flight, 0);
    }

    /// As kernels before 5.19 do, submitting fails until some completions have been taken.
    #[test]
    fn a_kernel_that_wants_completions_to_be_taken_first_does_not_stop_the_ring() {
        const DONE: u32 = 8;
        let file = tempfile::tempfile().unwrap();
        let mut ring = Ring::new().unwrap();
        let flush = |ring: &mut Ring, io| {
            ring.flush(Owner::Device { io: IoId(io), device: DeviceNo(0) }, file.as_raw_fd(), 0);
        };
        (0..DONE).for_each(|io| flush(&mut ring, io));
        ring.uring.submit_and_wait(DONE as usize).unwrap();
        (DONE..DONE + ENTRIES).for_each(|io| flush(&mut ring, io));

        let last = DONE + ENTRIES;
        let number = ring.take(
            Owner::Device { io: IoId(last), device: DeviceNo(0) },
            Kind::Flush,
            file.as_raw_fd(),
            0,
        );
        let entry = ring.inflight[number as usize].entry(number, &ring.fixed);
        ring.in_flight += 1;
        let mut refused = 0;
        ring.push_by(&entry, |uring| {
            // SAFETY: the test has no other view of the completions.
            if unsafe { uring.completion_shared() }.is_empty() {
                return uring.submit();
            }
            refused += 1;
            assert!(refused < 10, "it spins");
            Err(io::Error::from_raw_os_error(libc::EBUSY))
        });
        assert_eq!((refused, ring.reaped.len()), (1, DONE as usize));
        end_all(&mut ring, last + 1);
    }

    #[test]
    fn nothing_is_left_behind_when_pacing_ends_in_between() {
        let file = tempfile::tempfile().unwrap();
        let mut ring = Ring::new().unwrap();
        let mut memory = vec![vec![7; 512 << 10]; 8];
        ring.pace(true);
        for (io, memory) in (0..).zip(&mut memory) {
            start(&mut ring, Kind::Write, io, Order::InLine, file.as_raw_fd(), memory);
        }
        for round in 0..8 {
            ring.pace(round % 2 == 1);
            assert_eq!(end(&mut ring).0.result, Ok(512 << 10));
        }
        assert_eq!(ring.in_flight, 0);
    }
}
