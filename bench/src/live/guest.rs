//! A guest with one virtio-blk queue on a vhost-user socket: what QEMU tells the back end, and a driver of the split
//! virtqueue, with event index if the back end has it, as Linux has it.
//!
//! Request `n` has the descriptors `3n` (header), `3n + 1` (data) and `3n + 2` (status).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserInflight};
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures as P};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::load::{BLOCK_BYTES, Client, Kind, MOST_BLOCKS, MOST_DEPTH, PATIENCE, Request, check_block};
use super::shared::Shared;

const QUEUE_SIZE: u16 = 128;
const DESCRIPTORS: usize = 0;
const AVAILABLE: usize = 0x1000;
const USED: usize = 0x2000;
const HEADERS: usize = 0x3000;
const STATUSES: usize = 0x4000;
const BUFFERS: usize = 0x10000;
const BUFFER_BYTES: usize = MOST_BLOCKS * BLOCK_BYTES;
const RAM_BYTES: usize = (BUFFERS + MOST_DEPTH * BUFFER_BYTES).next_multiple_of(LARGE_PAGE_BYTES);
/// SPDK takes only memory of whole large pages.
const LARGE_PAGE_BYTES: usize = 2 << 20;
const HEADER_BYTES: usize = 16;
const EVENT_OF_DRIVER: usize = AVAILABLE + 4 + 2 * QUEUE_SIZE as usize;
const EVENT_OF_DEVICE: usize = USED + 4 + 8 * QUEUE_SIZE as usize;

const NEXT: u16 = 1;
const DEVICE_WRITES: u16 = 2;
/// Flag of either ring when there is no event index: do not interrupt, or do not kick.
const DO_NOT_NOTIFY: u16 = 1;
/// Flushes, and a write cache that can be switched. Without them every write would have to be durable at once.
const FLUSH: u64 = 1 << 9;
const CONFIG_WCE: u64 = 1 << 11;
const VERSION_1: u64 = 1 << 32;
const EVENT_INDEX: u64 = 1 << 29;
const PROTOCOL_FEATURES: u64 = 1 << 30;
const FEATURES: u64 = FLUSH | CONFIG_WCE | VERSION_1 | EVENT_INDEX | PROTOCOL_FEATURES;

/// How the guest learns that requests are done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waiting {
    /// By an interrupt.
    Interrupt,
    /// By polling.
    Polling,
}

/// A connection to a back end.
struct Connection {
    _frontend: Frontend,
    _inflight: Option<File>,
    /// Whether both sides say with event indexes when they are to be notified, rather than with flags.
    event_index: bool,
}

/// A guest.
pub struct Guest {
    connection: Connection,
    ram: Shared,
    kick: EventFd,
    call: EventFd,
    waiting: Waiting,
    available: u16,
    kicked: u16,
    used: u16,
    requests: [Request; MOST_DEPTH],
    checks: bool,
}

fn lay_out(ram: &Shared) {
    let base = ram.address(0, 0) as usize;
    let put = |index: usize, at: usize, len: usize, flags: u16, next: u16| {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&((base + at) as u64).to_le_bytes());
        bytes[8..12].copy_from_slice(&(len as u32).to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        ram.write(DESCRIPTORS + index * 16, &bytes);
    };
    for number in 0..MOST_DEPTH {
        let head = 3 * number;
        put(head, HEADERS + number * HEADER_BYTES, HEADER_BYTES, NEXT, head as u16 + 1);
        put(head + 1, BUFFERS + number * BUFFER_BYTES, BLOCK_BYTES, NEXT, head as u16 + 2);
        put(head + 2, STATUSES + number, 1, DEVICE_WRITES, 0);
    }
}

/// Sends the back end what QEMU sends it. Guest addresses are those of this process.
fn introduce(path: &Path, ram: &Shared, kick: &EventFd, call: &EventFd) -> Result<Connection, vhost::Error> {
    let mut frontend = Frontend::connect(path, 1)?;
    let features = frontend.get_features()? & FEATURES;
    let wanted = P::MQ | P::REPLY_ACK | P::CONFIG | P::INFLIGHT_SHMFD;
    let protocol = frontend.get_protocol_features()? & wanted;
    frontend.set_protocol_features(protocol)?;
    if protocol.contains(P::REPLY_ACK) {
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    }
    frontend.set_owner()?;
    let mut inflight = None;
    if protocol.contains(P::INFLIGHT_SHMFD) {
        let asked = VhostUserInflight::new(0, 0, 1, QUEUE_SIZE);
        let (shape, file) = frontend.get_inflight_fd(&asked)?;
        frontend.set_inflight_fd(&shape, file.as_raw_fd())?;
        inflight = Some(file);
    }
    frontend.set_features(features)?;
    let base = ram.address(0, 0) as u64;
    frontend.set_mem_table(&[VhostUserMemoryRegionInfo {
        guest_phys_addr: base,
        memory_size: ram.len() as u64,
        userspace_addr: base,
        mmap_offset: 0,
        mmap_handle: ram.raw_fd(),
    }])?;
    frontend.set_vring_num(0, QUEUE_SIZE)?;
    frontend.set_vring_base(0, 0)?;
    let addresses = VringConfigData {
        queue_max_size: QUEUE_SIZE,
        queue_size: QUEUE_SIZE,
        flags: 0,
        desc_table_addr: base + DESCRIPTORS as u64,
        used_ring_addr: base + USED as u64,
        avail_ring_addr: base + AVAILABLE as u64,
        log_addr: None,
    };
    frontend.set_vring_addr(0, &addresses)?;
    frontend.set_vring_call(0, call)?;
    frontend.set_vring_kick(0, kick)?;
    frontend.set_vring_enable(0, true)?;
    let event_index = features & EVENT_INDEX != 0;
    Ok(Connection { _frontend: frontend, _inflight: inflight, event_index })
}

impl Guest {
    /// Boots: connects to the back end and starts the queue. `checks` says whether blocks that are read must have their
    /// numbers in them.
    pub fn boot(path: &Path, waiting: Waiting, checks: bool) -> io::Result<Guest> {
        let ram = Shared::new(RAM_BYTES)?;
        lay_out(&ram);
        let (kick, call) = (EventFd::new(EFD_NONBLOCK)?, EventFd::new(EFD_NONBLOCK)?);
        let connection = introduce(path, &ram, &kick, &call)
            .map_err(|e| io::Error::other(format!("{}: {e}", path.display())))?;
        let requests = [Request::FLUSH; MOST_DEPTH];
        let mut guest = Guest {
            connection,
            ram,
            kick,
            call,
            waiting,
            available: 0,
            kicked: 0,
            used: 0,
            requests,
            checks,
        };
        guest.expect_interrupt(false);
        Ok(guest)
    }

    /// Asks for an interrupt at the next completion, or for none.
    fn expect_interrupt(&mut self, expected: bool) {
        if self.connection.event_index {
            let event = if expected { self.used } else { self.used.wrapping_sub(1) };
            self.ram.u16(EVENT_OF_DRIVER).store(event, Ordering::Relaxed);
        } else {
            let flags = if expected { 0 } else { DO_NOT_NOTIFY };
            self.ram.u16(AVAILABLE).store(flags, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// Whether the back end wants to be kicked for the requests since the last kick.
    fn is_kick_wanted(&self) -> bool {
        if !self.connection.event_index {
            return self.ram.u16(USED).load(Ordering::Relaxed) & DO_NOT_NOTIFY == 0;
        }
        let event = self.ram.u16(EVENT_OF_DEVICE).load(Ordering::Relaxed);
        let since = self.available.wrapping_sub(event).wrapping_sub(1);
        since < self.available.wrapping_sub(self.kicked)
    }

    /// Makes what was started known to the back end.
    fn publish(&mut self) -> io::Result<()> {
        if self.kicked == self.available {
            return Ok(());
        }
        self.ram.u16(AVAILABLE + 2).store(self.available, Ordering::Release);
        fence(Ordering::SeqCst);
        let wanted = self.is_kick_wanted();
        self.kicked = self.available;
        if wanted { self.kick.write(1) } else { Ok(()) }
    }

    /// Makes what was started known, and takes what is done without waiting for it.
    pub fn poll(&mut self, done: &mut Vec<usize>) -> io::Result<()> {
        self.publish()?;
        self.collect(done)
    }

    fn has_news(&self) -> bool {
        self.ram.u16(USED + 2).load(Ordering::Acquire) != self.used
    }

    fn sleep(&mut self) -> io::Result<()> {
        let begin = Instant::now();
        while !self.has_news() {
            if self.waiting == Waiting::Polling {
                std::hint::spin_loop();
            } else {
                self.expect_interrupt(true);
                if !self.has_news() {
                    self.await_call()?;
                }
                self.expect_interrupt(false);
            }
            if begin.elapsed() > PATIENCE {
                return Err(io::Error::other("the back end does not answer"));
            }
        }
        Ok(())
    }

    fn await_call(&self) -> io::Result<()> {
        let mut wanted = libc::pollfd { fd: self.call.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let time_ms = Duration::as_millis(&PATIENCE) as i32;
        // SAFETY: one entry, that lives through the call.
        if unsafe { libc::poll(&raw mut wanted, 1, time_ms) } < 0 {
            return Err(io::Error::last_os_error());
        }
        match self.call.read() {
            Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(e),
            _ => Ok(()),
        }
    }

    fn collect(&mut self, done: &mut Vec<usize>) -> io::Result<()> {
        while self.has_news() {
            let mut entry = [0; 4];
            self.ram.read(USED + 4 + usize::from(self.used % QUEUE_SIZE) * 8, &mut entry);
            self.used = self.used.wrapping_add(1);
            let number = u32::from_le_bytes(entry) as usize / 3;
            let mut status = [0];
            self.ram.read(STATUSES + number, &mut status);
            if status != [0] {
                return Err(io::Error::other(format!("the device answers {}", status[0])));
            }
            let request = self.requests[number];
            if self.checks && request.kind == Kind::Read {
                let mut first = [0; 8];
                self.ram.read(BUFFERS + number * BUFFER_BYTES, &mut first);
                check_block(request.block, &first)?;
            }
            done.push(number);
        }
        Ok(())
    }
}

impl Client for Guest {
    fn start(&mut self, number: usize, request: Request) -> io::Result<()> {
        let mut header = [0; HEADER_BYTES];
        header[0] = match request.kind {
            Kind::Read => 0,
            Kind::Write => 1,
            Kind::Flush => 4,
        };
        header[8..].copy_from_slice(&(request.offset() / 512).to_le_bytes());
        self.ram.write(HEADERS + number * HEADER_BYTES, &header);
        self.ram.write(STATUSES + number, &[0xff]);
        let [head, data] = [3 * number, 3 * number + 1].map(|index| DESCRIPTORS + index * 16);
        let has_data = request.kind != Kind::Flush;
        let second = 3 * number as u16 + if has_data { 1 } else { 2 };
        self.ram.write(head + 14, &second.to_le_bytes());
        let data_flags = if request.kind == Kind::Read { NEXT | DEVICE_WRITES } else { NEXT };
        self.ram.write(data + 8, &(request.bytes() as u32).to_le_bytes());
        self.ram.write(data + 12, &data_flags.to_le_bytes());
        if request.kind == Kind::Write {
            for at in 0..request.blocks {
                let block = request.block + at as u64;
                self.ram.write(BUFFERS + number * BUFFER_BYTES + at * BLOCK_BYTES, &block.to_le_bytes());
            }
        }
        self.requests[number] = request;
        let slot = usize::from(self.available % QUEUE_SIZE);
        self.ram.write(AVAILABLE + 4 + slot * 2, &(3 * number as u16).to_le_bytes());
        self.available = self.available.wrapping_add(1);
        Ok(())
    }

    fn wait(&mut self, done: &mut Vec<usize>) -> io::Result<()> {
        self.publish()?;
        self.sleep()?;
        self.collect(done)
    }
}
