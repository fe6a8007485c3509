//! The state of another host.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Instant, SystemTime};

use haversack_model::HostId;
use tokio::sync::{Notify, watch};

use crate::config::HostConfig;
use crate::error::SendError;
use crate::inbox::Inbox;
use crate::queue::Queue;
use crate::wire::Frame;

/// The state of the connection to a host.
#[derive(Clone, Debug)]
pub struct HostState {
    /// Its name, in lower case.
    pub name: String,
    /// Its number.
    pub id: HostId,
    /// Its configured address.
    pub address: String,
    /// Whether this host makes the connection, or waits for the other one.
    pub connects: bool,
    /// Since when it is connected.
    pub connected_since: Option<SystemTime>,
    /// The round-trip time of the last keep-alive, in microseconds.
    pub round_trip_us: Option<u64>,
    /// Connections since the start.
    pub connections: u64,
    /// Bytes waiting to be sent.
    pub queued_bytes: usize,
    /// Frames sent, without keep-alive.
    pub sent_frames: u64,
    /// Bytes sent, after compression and before encryption.
    pub sent_bytes: u64,
    /// Bytes that were not sent, thanks to compression.
    pub saved_bytes: u64,
    /// Frames received, without keep-alive.
    pub received_frames: u64,
    /// Bytes received, after decryption and before decompression.
    pub received_bytes: u64,
    /// Frames that were not sent: no connection, or a full queue.
    pub dropped_frames: u64,
    /// The last error, if there was any. It is kept when the host is connected again.
    pub last_error: Option<String>,
}

/// Counters since the start.
#[derive(Default, Debug)]
pub(crate) struct Counters {
    pub connections: AtomicU64,
    pub sent_frames: AtomicU64,
    pub sent_bytes: AtomicU64,
    pub saved_bytes: AtomicU64,
    pub received_frames: AtomicU64,
    pub received_bytes: AtomicU64,
    pub dropped_frames: AtomicU64,
}

#[derive(Default, Debug)]
struct Condition {
    connected_since: Option<SystemTime>,
    round_trip_us: Option<u64>,
    last_error: Option<String>,
}

/// Another host, shared between the thread of the connections and the senders.
#[derive(Debug)]
pub(crate) struct Host {
    pub id: HostId,
    pub name: String,
    pub address: String,
    /// Whether this side connects.
    pub connects: bool,
    pub counters: Counters,
    /// Something was queued.
    pub queued: Notify,
    /// Counts the connections that the peer has made: only the newest stays alive.
    pub newest: watch::Sender<u64>,
    /// Held by the connection that is alive.
    pub turn: tokio::sync::Mutex<()>,
    /// Room for what it sends.
    pub inbox: Inbox,
    queue: Mutex<Queue>,
    condition: Mutex<Condition>,
}

impl Host {
    pub fn new(id: HostId, config: &HostConfig, me: &str) -> Host {
        let name = config.name.to_ascii_lowercase();
        Host {
            id,
            connects: me < name.as_str(),
            name,
            address: config.address.clone(),
            counters: Counters::default(),
            queued: Notify::new(),
            newest: watch::Sender::new(0),
            turn: tokio::sync::Mutex::new(()),
            inbox: Inbox::default(),
            queue: Mutex::new(Queue::new(config.copy_bytes_per_second, Instant::now())),
            condition: Mutex::new(Condition::default()),
        }
    }

    /// Calls `with` with the queue, for a few instructions only.
    pub fn queue<T>(&self, with: impl FnOnce(&mut Queue) -> T) -> T {
        with(&mut self.queue.lock().expect("nothing panics with it"))
    }

    fn condition<T>(&self, with: impl FnOnce(&mut Condition) -> T) -> T {
        with(&mut self.condition.lock().expect("nothing panics with it"))
    }

    /// Queues a frame.
    pub fn send(&self, frame: Frame) -> Result<(), SendError> {
        let result =
            frame.check().map_err(SendError::from).and_then(|()| self.queue(|queue| queue.push(frame)));
        match result {
            Ok(()) => self.queued.notify_one(),
            Err(_) => self.dropped(1),
        }
        result
    }

    fn dropped(&self, frames: usize) {
        self.counters.dropped_frames.fetch_add(frames as u64, Relaxed);
    }

    pub fn connected(&self) {
        self.counters.connections.fetch_add(1, Relaxed);
        self.queue(Queue::open);
        self.condition(|condition| condition.connected_since = Some(SystemTime::now()));
    }

    pub fn lost(&self) {
        let dropped = self.queue(Queue::close);
        self.dropped(dropped);
        self.condition(|condition| (condition.connected_since, condition.round_trip_us) = (None, None));
    }

    /// Returns the number of connections since the start.
    pub fn connections(&self) -> u64 {
        self.counters.connections.load(Relaxed)
    }

    /// Keeps an error, and returns whether it differs from the previous one.
    pub fn failed(&self, error: String) -> bool {
        self.condition(|condition| {
            let is_new = condition.last_error.as_ref() != Some(&error);
            condition.last_error = Some(error);
            is_new
        })
    }

    pub fn round_trip(&self, us: u64) {
        self.condition(|condition| condition.round_trip_us = Some(us));
    }

    pub fn state(&self) -> HostState {
        let counters = &self.counters;
        let queued_bytes = self.queue(|queue| queue.bytes());
        self.condition(|condition| HostState {
            name: self.name.clone(),
            id: self.id,
            address: self.address.clone(),
            connects: self.connects,
            connected_since: condition.connected_since,
            round_trip_us: condition.round_trip_us,
            connections: counters.connections.load(Relaxed),
            queued_bytes,
            sent_frames: counters.sent_frames.load(Relaxed),
            sent_bytes: counters.sent_bytes.load(Relaxed),
            saved_bytes: counters.saved_bytes.load(Relaxed),
            received_frames: counters.received_frames.load(Relaxed),
            received_bytes: counters.received_bytes.load(Relaxed),
            dropped_frames: counters.dropped_frames.load(Relaxed),
            last_error: condition.last_error.clone(),
        })
    }
}
