//! One queue of a device: a thread with a ring, which passes requests from the kernel to the daemon, and answers back.
//!
//! Invariants
//! - Each request is answered to the kernel once. Without a connection, requests wait, unless the program is about to
//!   end: then they fail, so that the device can be removed.
//! - Memory is dropped only when the kernel has no I/O on it: after an error it stays until the program ends.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::abi::RESULT_OK;
use crate::error::{UblkError, UpstreamError};
use crate::link::Link;
use crate::memory::{Buffers, Descriptors};
use crate::report;
use crate::request::BlockRequest;
use crate::ring::{QueueRing, Source};
use crate::slots::Slots;
use crate::stop::Stop;
use crate::upstream::{Connection, Pauses, Upstream, takes_several};

/// How long the daemon may take to answer when the program is about to end.
const GRACE: Duration = Duration::from_secs(10);

/// What all queues of a device have in common.
#[derive(Debug)]
pub struct Shared {
    pub upstream: Upstream,
    /// `/dev/ublkcN`
    pub device: File,
    pub queues: u16,
    pub depth: u16,
    pub max_io_bytes: u32,
    /// Size of the block device, which does not change.
    pub size_bytes: u64,
    pub stop: Arc<Stop>,
}

/// See the module documentation.
pub struct Queue {
    number: u16,
    shared: Arc<Shared>,
    ring: QueueRing,
    slots: Slots,
    buffers: Buffers,
    descriptors: Descriptors,
    link: Link,
    /// They grow until the daemon has executed a request, so one that drops each connection is not asked all the time.
    pauses: Pauses,
    stopping_since: Option<Instant>,
}

impl Queue {
    /// Creates a queue and asks for requests. The caller's thread must be the one that runs it.
    pub fn start(number: u16, shared: Arc<Shared>) -> Result<Self, UblkError> {
        let (device, depth) = (shared.device.as_fd(), shared.depth);
        let mut ring = QueueRing::new(device, number, depth).map_err(UblkError::system("io_uring"))?;
        let buffers = Buffers::new(depth, shared.max_io_bytes as usize)
            .map_err(UblkError::system("memory for requests"))?;
        let descriptors = Descriptors::new(device, number, depth)
            .map_err(UblkError::system("memory that is shared with the ublk driver"))?;
        let ask = (0..depth).try_for_each(|tag| ring.fetch(tag, buffers.address(tag)));
        ask.and_then(|()| ring.listen(shared.stop.bell()))
            .and_then(|()| ring.submit())
            .map_err(UblkError::system("io_uring"))?;
        let mut queue = Self {
            number,
            ring,
            slots: Slots::new(depth),
            buffers,
            descriptors,
            link: Link::new(depth),
            pauses: Pauses::new(),
            stopping_since: None,
            shared,
        };
        // Nothing else can have completed: there is no block device yet.
        queue.complete()?;
        Ok(queue)
    }

    /// Serves requests until the kernel gives no more. `connection` is used first, if there is one.
    pub fn run(mut self, connection: Option<Connection>) -> Result<(), UblkError> {
        if let Some(connection) = connection {
            self.note_size(&connection);
            self.link.begin(connection);
        }
        let end = self.serve().and_then(|()| self.finish());
        if end.is_err() {
            std::mem::forget(self);
        }
        end
    }

    /// Ends the connection and waits for its I/O.
    fn finish(&mut self) -> Result<(), UblkError> {
        self.link.hang_up("the queue ends");
        while !self.link.is_quiet() {
            self.wait(None)?;
            self.complete()?;
        }
        Ok(())
    }

    fn serve(&mut self) -> Result<(), UblkError> {
        while !self.slots.are_closed() {
            self.keep_connected();
            self.exchange().map_err(UblkError::system("io_uring"))?;
            self.wait(self.time_left())?;
            self.complete()?;
        }
        Ok(())
    }

    fn wait(&mut self, time: Option<Duration>) -> Result<(), UblkError> {
        self.ring.wait(time).map_err(UblkError::system("io_uring"))
    }

    /// Starts what can be sent, received and answered.
    fn exchange(&mut self) -> io::Result<()> {
        if self.stopping_since.is_some_and(|since| since.elapsed() >= GRACE) {
            self.link.hang_up("the daemon does not answer");
        }
        if let Some((socket, message)) = self.link.outgoing(&mut self.slots, &self.buffers) {
            self.ring.send(socket, message)?;
        }
        if let Some((socket, into)) = self.link.incoming(&self.buffers) {
            self.ring.receive(socket, into)?;
        }
        if self.stopping_since.is_some() && self.link.is_down() && self.link.is_quiet() {
            self.link.fail_waiting(&mut self.slots);
        }
        while let Some((tag, result)) = self.link.next_result() {
            if result >= 0 {
                self.pauses = Pauses::new();
            }
            self.ring.commit(tag, result, self.buffers.address(tag))?;
        }
        Ok(())
    }

    /// Returns how long to wait at most.
    fn time_left(&self) -> Option<Duration> {
        self.stopping_since.map(|since| GRACE.saturating_sub(since.elapsed()).max(Duration::from_millis(10)))
    }

    fn complete(&mut self) -> Result<(), UblkError> {
        while let Some((source, result)) = self.ring.completed() {
            match source {
                Source::Command { tag } => self.commanded(tag, result)?,
                Source::Send => self.link.sent(result),
                Source::Receive => self.link.received(result, &mut self.slots, &self.buffers),
                Source::Bell if self.shared.stop.is_requested() => self.stopping_since = Some(Instant::now()),
                Source::Bell => {
                    self.ring.listen(self.shared.stop.bell()).map_err(UblkError::system("io_uring"))?;
                }
            }
        }
        Ok(())
    }

    /// The driver has completed a command: there is a request, or there will be none.
    fn commanded(&mut self, tag: u16, result: i32) -> Result<(), UblkError> {
        match result {
            RESULT_OK => {
                self.slots.fetched(tag, BlockRequest::from_descriptor(&self.descriptors.get(tag)));
                Ok(())
            }
            _ if result == -libc::ENODEV => {
                self.slots.close(tag);
                Ok(())
            }
            _ => Err(UblkError::System {
                what: "a command to the ublk driver",
                source: io::Error::from_raw_os_error(-result),
            }),
        }
    }

    /// Opens a new connection when the old one has ended, however long it takes; none if the program is about to end.
    fn keep_connected(&mut self) {
        if !self.link.is_down() || !self.link.is_quiet() {
            return;
        }
        let lost = self.link.take_over();
        let sent = self.slots.connection_lost();
        if self.stopping_since.is_some() {
            return;
        }
        if let Some(why) = &lost {
            self.say(&format!("the connection to the daemon has ended: {why}; requests wait for it"));
        }
        if let Some(connection) = self.connect() {
            if lost.is_some() {
                self.say(&format!("connected again; requests sent again: {sent}"));
            }
            self.note_size(&connection);
            self.link.begin(connection);
        }
    }

    fn connect(&mut self) -> Option<Connection> {
        let mut told = String::new();
        while !self.shared.stop.wait(self.pauses.next()) {
            match self.shared.upstream.connect() {
                Ok(connection) if self.shared.queues == 1 || takes_several(&connection.connected) => {
                    return Some(connection);
                }
                Ok(_) => self.say_once(&mut told, "it no longer takes several connections"),
                Err(UpstreamError::Io(_) | UpstreamError::Closed) => {}
                Err(error) => self.say_once(&mut told, &error.to_string()),
            }
        }
        None
    }

    fn note_size(&self, connection: &Connection) {
        let (now, device) = (connection.connected.size_bytes, self.shared.size_bytes);
        if self.number == 0 && now < device {
            self.say(&format!(
                "the disk has {now} bytes now; requests beyond them fail, up to the device's {device}"
            ));
        } else if self.number == 0 && now / 4096 > device / 4096 {
            self.say(&format!(
                "the disk has {now} bytes now; the device keeps {device} until it is removed and created again"
            ));
        }
    }

    fn say(&self, text: &str) {
        report::say(format_args!("queue {}: {text}", self.number));
    }

    fn say_once(&self, told: &mut String, text: &str) {
        if told != text {
            self.say(text);
            text.clone_into(told);
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // I/O may be in flight. The device stays, and its requests wait for the next server.
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}
