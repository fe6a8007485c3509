//! Another host, as its connection and those who send to it see it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use haversack_model::HostId;
use tokio::sync::Notify;

use crate::config::PeerConfig;
use crate::frame::{Frame, Sent};
use crate::queue::Queue;

/// See the module.
pub struct Peer {
    pub id: HostId,
    pub config: PeerConfig,
    /// Rung when there is something to send.
    pub bell: Notify,
    state: Mutex<State>,
    pub sent_bytes: AtomicU64,
    pub received_bytes: AtomicU64,
    pub dropped_frames: AtomicU64,
}

pub struct State {
    pub queue: Queue,
    /// The number of the present connection, if there is one.
    pub connection: Option<u64>,
    pub connections: u64,
    pub round_trip_us: Option<u64>,
    pub error: Option<String>,
}

impl Peer {
    pub fn new(id: HostId, config: PeerConfig, rate_bytes: u64) -> Peer {
        let state = State {
            queue: Queue::new(rate_bytes, Instant::now()),
            connection: None,
            connections: 0,
            round_trip_us: None,
            error: Some("not connected yet".into()),
        };
        Peer {
            id,
            config,
            bell: Notify::new(),
            state: Mutex::new(state),
            sent_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            dropped_frames: AtomicU64::new(0),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a frame; drops it if the host is not connected or its queue is full.
    pub fn send(&self, frame: Frame) {
        let mut state = self.state();
        if state.connection.is_none() || !state.queue.push(frame) {
            self.dropped_frames.fetch_add(1, Ordering::Relaxed);
            return;
        }
        drop(state);
        self.bell.notify_one();
    }

    pub fn send_own(&self, sent: &Sent) {
        self.state().queue.push_own(sent);
        self.bell.notify_one();
    }

    /// A connection begins, and takes the place of one that there may be.
    pub fn connected(&self) -> u64 {
        let mut state = self.state();
        state.connections += 1;
        state.connection = Some(state.connections);
        state.queue.clear();
        state.error = None;
        let number = state.connections;
        drop(state);
        self.bell.notify_one();
        number
    }

    pub fn is_current(&self, connection: u64) -> bool {
        self.state().connection == Some(connection)
    }

    /// A connection has ended.
    pub fn disconnected(&self, connection: u64, why: String) {
        let mut state = self.state();
        if state.connection == Some(connection) {
            tracing::warn!(host = self.config.name, "disconnected: {why}");
            (state.connection, state.error, state.round_trip_us) = (None, Some(why), None);
            state.queue.clear();
        }
    }

    /// A connection could not be made.
    pub fn failed(&self, why: String) {
        let mut state = self.state();
        if state.connection.is_none() && state.error.as_ref() != Some(&why) {
            tracing::info!(host = self.config.name, "not connected: {why}");
            state.error = Some(why);
        }
    }
}
