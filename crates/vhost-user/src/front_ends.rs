//! The front ends connected to a disk, and the one whose queues run.
//!
//! A live migration within a host connects two: the destination negotiates while the guest still runs at the source,
//! and starts its queues once the source has stopped its own. A connection without running queues does not occupy the
//! disk.
//!
//! Invariant: at most one front end's queues run at a time. Others that want to start theirs wait.

use std::os::unix::net::UnixStream;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::SendFlags;

use crate::connection;
use crate::message;
use crate::peer::peer;

/// Connections at a time: the two of a migration, and some for clients that try the wrong socket.
const MAX_FRONT_ENDS: usize = 8;
/// How often a front end that waits for its turn is checked: it may have given up.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A connection, numbered in the order of acceptance.
pub(crate) type FrontEndId = u64;

#[derive(Debug)]
struct FrontEnd {
    id: FrontEndId,
    /// The process at the other end.
    peer: String,
    /// To be shut down when the service ends.
    socket: UnixStream,
    /// For messages to the front end.
    channel: Option<UnixStream>,
}

#[derive(Debug, Default)]
struct State {
    connected: Vec<FrontEnd>,
    next: FrontEndId,
    /// The front end whose queues run.
    holder: Option<FrontEndId>,
    /// How many callers currently want no front end to be admitted.
    closed: usize,
    stopping: bool,
}

impl State {
    fn of(&mut self, id: FrontEndId) -> Option<&mut FrontEnd> {
        self.connected.iter_mut().find(|front_end| front_end.id == id)
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct FrontEnds {
    state: Mutex<State>,
    changed: Condvar,
}

impl FrontEnds {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, LOOK_EVERY).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits until there is room for another front end; returns `false` once the service ends.
    pub fn has_room(&self) -> bool {
        let mut state = self.state();
        while !state.stopping && (state.closed > 0 || state.connected.len() >= MAX_FRONT_ENDS) {
            state = self.wait(state);
        }
        !state.stopping
    }

    /// Admits no front end until [`FrontEnds::reopen`] if none is connected; else returns the connected ones. Those
    /// that connect in the meantime wait.
    pub fn close_if_unused(&self) -> Result<(), Vec<String>> {
        let mut state = self.state();
        if !state.connected.is_empty() {
            return Err(peers(&state));
        }
        state.closed += 1;
        Ok(())
    }

    /// Undoes [`FrontEnds::close_if_unused`].
    pub fn reopen(&self) {
        self.state().closed -= 1;
        self.changed.notify_all();
    }

    /// Admits a front end, once front ends are admitted; `None` if the service ends.
    pub fn admit(&self, socket: UnixStream) -> Option<FrontEndId> {
        let peer = peer(&socket);
        let mut state = self.state();
        while !state.stopping && state.closed > 0 {
            state = self.wait(state);
        }
        if state.stopping {
            return None;
        }
        let id = state.next;
        state.next += 1;
        state.connected.push(FrontEnd { id, peer, socket, channel: None });
        Some(id)
    }

    /// Removes a front end that has disconnected.
    pub fn leave(&self, id: FrontEndId) {
        self.state().connected.retain(|front_end| front_end.id != id);
        self.release(id);
    }

    /// Returns the processes that are connected.
    pub fn peers(&self) -> Vec<String> {
        peers(&self.state())
    }

    /// Waits until no other front end's queues run. `waits` is called if some do. Returns `false` if the service ends
    /// or the front end leaves before.
    pub fn acquire(&self, id: FrontEndId, waits: impl FnOnce()) -> bool {
        let mut waits = Some(waits);
        let mut state = self.state();
        while state.holder.is_some_and(|holder| holder != id) {
            let gone = state.of(id).is_none_or(|front_end| has_hung_up(&front_end.socket));
            if state.stopping || gone {
                return false;
            }
            if let Some(waits) = waits.take() {
                waits();
            }
            state = self.wait(state);
        }
        state.holder = Some(id);
        true
    }

    /// Records that none of a front end's queues runs any more.
    pub fn release(&self, id: FrontEndId) {
        let mut state = self.state();
        if state.holder == Some(id) {
            state.holder = None;
        }
        self.changed.notify_all();
    }

    /// Sets the channel for notifications to a front end.
    pub fn set_channel(&self, id: FrontEndId, channel: Option<UnixStream>) {
        if let Some(front_end) = self.state().of(id) {
            front_end.channel = channel;
        }
    }

    /// Notifies all front ends that the configuration space has changed.
    pub fn tell_config_change(&self) {
        let notice = message::encode_config_change();
        for channel in self.state().connected.iter().filter_map(|front_end| front_end.channel.as_ref()) {
            // A front end that does not read the channel gets the new size when it connects again.
            let _ = connection::send(channel, &notice, None, SendFlags::DONTWAIT);
        }
    }

    /// Returns whether the service ends.
    pub fn is_stopping(&self) -> bool {
        self.state().stopping
    }

    /// Ends all connections and admits no more.
    pub fn stop(&self) {
        let mut state = self.state();
        state.stopping = true;
        for front_end in &state.connected {
            // An error means that it has already disconnected.
            let _ = front_end.socket.shutdown(std::net::Shutdown::Both);
        }
        self.changed.notify_all();
    }
}

fn peers(state: &State) -> Vec<String> {
    state.connected.iter().map(|front_end| front_end.peer.clone()).collect()
}

fn has_hung_up(socket: &UnixStream) -> bool {
    let mut polled = [PollFd::new(socket, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut polled, Some(&now)).is_ok()
        && polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}
