//! A disk's life cycle in its pool: its states, the events that lead from one to the next, and who owns its
//! origin.
//!
//! The table of states and events is in ARCHITECTURE.md, and a test compares it with this file. After a crash
//! or a stop a disk is as the record says: detached if this host owns it; otherwise a peer or a replica if blocks
//! are kept here for another host, and released if not.
//!
//! Invariants
//! - This host owns a disk's origin from an attach to the next release, under an epoch that never decreases.
//!   After a release it is owned again only under a higher epoch.
//! - An origin is written only while its disk is active or detaching.
//! - A state changes only by an event that the table has for it.

use crate::bugs::{Bug, planted};
use crate::format::record::Moved;

/// The state of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// Known to the pool. Its clean blocks are kept; dirty ones were left by a crash.
    Detached,
    /// Its epoch and its marks are being written to the devices.
    Attaching,
    /// Takes requests.
    Active,
    /// Finishes its requests and is cleaned.
    Detaching,
    /// Finishes what is in flight; the record that says "not owned" is being written to the devices.
    Releasing,
    /// Another host may write the origin.
    Released,
    /// Owned, and about to be handed over: nothing is in flight or will be started.
    Frozen,
    /// The record that says that another host owns it is being written to the devices.
    HandingOver,
    /// Another host owns it, and reads dirty blocks from here until it has them all.
    Peer,
    /// Another host owns it, and sends copies of blocks that count when this host takes over.
    Incoming,
    /// Another host owns it, and a copy of each of its dirty blocks is kept here.
    Replica,
    /// Its blocks and its number are being given up.
    Forgetting,
}

/// What changes a disk's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// It is about to be attached.
    Attach,
    /// Its epoch and its marks are durable.
    Attached,
    /// It is about to be detached.
    Detach,
    /// Detaching was cancelled or cannot be finished.
    DetachFailed,
    /// It is clean, and the record says so durably.
    Detached,
    /// Ownership is given up.
    Release,
    /// Nothing is in flight, and the record says durably that it is not owned.
    Released,
    /// It is to leave the pool permanently.
    Forget,
    /// It is about to be handed over.
    Freeze,
    /// The handover is called off.
    Thaw,
    /// Another host will own it.
    HandOver,
    /// The record says durably that another host owns it, which needs dirty blocks from here.
    HandedOver,
    /// No other host needs what is kept here: the new owner has all dirty blocks of a peer, or a replica is dropped or
    /// does not count any more.
    Drained,
    /// Copies of its blocks will be stored.
    Expect,
    /// No copies will come.
    Dismiss,
    /// Copies of its dirty blocks will be kept.
    Replicate,
}

impl State {
    /// Returns the state after an event, if the event is valid in this one.
    fn after(self, event: Event) -> Option<State> {
        match (self, event) {
            (State::Detached | State::Released, Event::Attach) => Some(State::Attaching),
            (State::Detached | State::Released | State::Replica, Event::Forget) => Some(State::Forgetting),
            (State::Attaching, Event::Attached) => Some(State::Active),
            (State::Active, Event::Detach) => Some(State::Detaching),
            (State::Active | State::Detached, Event::Release) => Some(State::Releasing),
            (State::Detaching, Event::DetachFailed) => Some(State::Active),
            (State::Detaching, Event::Detached) => Some(State::Detached),
            (State::Releasing | State::HandingOver, Event::Released) => Some(State::Released),
            (State::Active, Event::Freeze) => Some(State::Frozen),
            (State::Frozen, Event::Thaw) => Some(State::Active),
            (State::Frozen | State::Detached, Event::HandOver) => Some(State::HandingOver),
            (State::HandingOver, Event::HandedOver) => Some(State::Peer),
            (State::Peer | State::Replica, Event::Drained) => Some(State::Released),
            (State::Peer | State::Incoming | State::Replica, Event::Attach) => Some(State::Attaching),
            (State::Released, Event::Expect) => Some(State::Incoming),
            (State::Incoming, Event::Dismiss) => Some(State::Released),
            (State::Released, Event::Replicate) => Some(State::Replica),
            _ => None,
        }
    }
}

/// A disk's state, and the epoch under which this host owns its origin or last owned it.
pub(crate) struct Life {
    state: State,
    epoch: u64,
}

impl Life {
    /// Returns the life of a disk as the record has it.
    pub fn recorded(is_owned: bool, moved: Moved, epoch: u64) -> Life {
        let state = match (is_owned, moved) {
            (true, _) => State::Detached,
            (false, Moved::Peer { .. }) => State::Peer,
            (false, Moved::Replica { .. }) => State::Replica,
            (false, _) => State::Released,
        };
        Life { state, epoch }
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether this host owns the origin, as the record says or is about to say.
    pub fn is_owned(&self) -> bool {
        matches!(
            self.state,
            State::Detached | State::Attaching | State::Active | State::Detaching | State::Frozen
        )
    }

    /// Whether the origin may be written.
    pub fn writes_origin(&self) -> bool {
        matches!(self.state, State::Active | State::Detaching)
    }

    /// Whether new requests, settings and jobs are taken.
    pub fn is_active(&self) -> bool {
        self.state == State::Active
    }

    pub fn is_detached(&self) -> bool {
        self.state == State::Detached
    }

    pub fn is_detaching(&self) -> bool {
        self.state == State::Detaching
    }

    /// Whether it was released, or is about to be.
    pub fn is_released(&self) -> bool {
        matches!(
            self.state,
            State::Releasing
                | State::Released
                | State::HandingOver
                | State::Peer
                | State::Incoming
                | State::Replica
        )
    }

    /// Whether it is about to be handed over, and could still be kept.
    pub fn is_frozen(&self) -> bool {
        self.state == State::Frozen
    }

    /// Whether another host reads dirty blocks from here, or is about to.
    pub fn is_peer(&self) -> bool {
        matches!(self.state, State::HandingOver | State::Peer)
    }

    /// Whether copies of another host's dirty blocks are kept here.
    pub fn is_replica(&self) -> bool {
        self.state == State::Replica
    }

    /// Whether dirty blocks are here that another host, the owner, may need, or the next owner if that one dies.
    pub fn holds_for_another(&self) -> bool {
        self.is_peer() || self.is_replica()
    }

    /// Whether copies of its blocks are taken in.
    pub fn is_incoming(&self) -> bool {
        self.state == State::Incoming
    }

    /// Whether its cached blocks are not in use through this pool.
    pub fn is_dormant(&self) -> bool {
        matches!(
            self.state,
            State::Detached
                | State::Releasing
                | State::Released
                | State::Forgetting
                | State::HandingOver
                | State::Peer
        )
    }

    /// Whether it is leaving the pool permanently.
    pub fn is_forgotten(&self) -> bool {
        self.state == State::Forgetting
    }

    /// Whether the event may happen now.
    pub fn allows(&self, event: Event) -> bool {
        self.state.after(event).is_some()
    }

    /// Whether ownership may be taken under an epoch: the current one while it is owned, otherwise a higher one.
    pub fn allows_epoch(&self, epoch: u64) -> bool {
        epoch > self.epoch || epoch == self.epoch && (self.is_owned() || planted(Bug::ReuseEpoch))
    }

    /// Applies an event.
    pub fn happened(&mut self, event: Event) {
        let next = self.state.after(event);
        self.state = next.unwrap_or_else(|| panic!("{event:?} does not happen while {:?}", self.state));
    }

    /// Takes ownership under an epoch.
    pub fn attach(&mut self, epoch: u64) {
        assert!(self.allows_epoch(epoch), "epochs never fall");
        self.happened(Event::Attach);
        self.epoch = epoch;
    }

    /// Hands the disk over to another host, which will own it under `epoch`. Until the release is recorded, the
    /// hand-over can be cancelled.
    pub fn hand_over(&mut self, epoch: u64) {
        assert!(epoch > self.epoch, "each epoch belongs to one host");
        self.happened(Event::HandOver);
        self.epoch = epoch;
    }

    /// Continues to own the disk, under a higher epoch.
    pub fn renew(&mut self, epoch: u64) {
        assert!(self.is_owned() && epoch > self.epoch, "epochs never fall");
        self.epoch = epoch;
    }

    /// Called when another host has the disk under this epoch.
    pub fn passed_on(&mut self, epoch: u64) {
        assert!(!self.is_owned() && epoch >= self.epoch, "epochs never fall");
        self.epoch = epoch;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [State; 12] = [
        State::Detached,
        State::Attaching,
        State::Active,
        State::Detaching,
        State::Releasing,
        State::Released,
        State::Forgetting,
        State::Frozen,
        State::HandingOver,
        State::Peer,
        State::Incoming,
        State::Replica,
    ];
    const EVENTS: [Event; 16] = [
        Event::Attach,
        Event::Attached,
        Event::Detach,
        Event::DetachFailed,
        Event::Detached,
        Event::Release,
        Event::Released,
        Event::Forget,
        Event::Freeze,
        Event::Thaw,
        Event::HandOver,
        Event::HandedOver,
        Event::Drained,
        Event::Expect,
        Event::Dismiss,
        Event::Replicate,
    ];

    /// The table as in ARCHITECTURE.md.
    fn table() -> String {
        let head = "| state | owned | origin written | takes requests | dormant | event: next state |\n";
        let yes = |is: bool| if is { "yes" } else { "no" };
        let row = |state: State| {
            let life = Life { state, epoch: 1 };
            let next = |event: Event| Some(format!("{event:?}: {:?}", state.after(event)?));
            let events: Vec<String> = EVENTS.into_iter().filter_map(next).collect();
            let (owned, writes) = (yes(life.is_owned()), yes(life.writes_origin()));
            let (active, dormant) = (yes(life.is_active()), yes(life.is_dormant()));
            let events = if events.is_empty() { "none".to_string() } else { events.join(", ") };
            format!("| {state:?} | {owned} | {writes} | {active} | {dormant} | {events} |\n")
        };
        STATES
            .into_iter()
            .fold(format!("{head}|---|---|---|---|---|---|\n"), |table, state| table + &row(state))
    }

    #[test]
    fn the_table_is_as_documented() {
        let document = include_str!("../../../ARCHITECTURE.md");
        assert!(document.contains(&table()), "ARCHITECTURE.md must have this table:\n{}", table());
    }

    #[test]
    fn a_disk_that_is_not_owned_is_not_written() {
        for life in STATES.map(|state| Life { state, epoch: 1 }) {
            let takes_copies = life.is_incoming() || life.is_replica();
            assert!(life.is_owned() || !life.writes_origin() && (life.is_dormant() || takes_copies));
            assert!(life.writes_origin() || !life.is_active());
        }
    }

    #[test]
    fn a_released_disk_needs_a_higher_epoch() {
        let mut life = Life::recorded(true, Moved::No, 3);
        assert!(life.allows_epoch(3) && !life.allows_epoch(2));
        life.attach(3);
        for event in [Event::Attached, Event::Release, Event::Released] {
            life.happened(event);
        }
        assert!(!life.allows_epoch(3) && life.allows_epoch(4));
        life.attach(4);
        assert!(life.is_owned() && life.epoch() == 4);
        assert!(!Life::recorded(false, Moved::No, 4).allows_epoch(4));
    }
}
