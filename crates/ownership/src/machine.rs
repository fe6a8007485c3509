//! One host's side of a disk's ownership.
//!
//! The record is what survives a crash. `recording` is the record that is being made durable; everything that depends
//! on it waits.
//!
//! Invariants
//! - The epoch on record never decreases, and each epoch belongs to one host.
//! - The origin is written, and a guest served, only while the record says durably that this host owns the
//!   disk and no release is being written; the origin only when no other host has dirty blocks.
//! - A release is sent only when it is durable. After that this host serves the disk again only under a higher epoch
//!   that the new owner has granted.
//! - A host that depends on another's dirty blocks does not release the disk.
//! - A host that was told to forget the disk neither takes nor passes on a grant of an epoch that it knew before.
//!   Otherwise, a delayed question could make it pass on an epoch that is long over, and two hosts could own the disk.
//!   The same holds for an epoch under which another host is known to have had the disk.

use std::collections::BTreeSet;

use crate::message::{Grant, HostId, Message};

/// A host's durable record about a disk.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Record {
    /// It has never owned it.
    #[default]
    Unknown,
    /// It owns it.
    Owner {
        /// Under this epoch.
        epoch: u64,
        /// The other hosts that still have dirty blocks.
        peers: BTreeSet<HostId>,
    },
    /// It has released it.
    Released {
        /// To this host.
        to: HostId,
        /// With this grant.
        grant: Grant,
    },
    /// Another host has taken it over by force, or is about to: grants of lower epochs that are still on their way
    /// are ignored.
    Overtaken {
        /// That host.
        by: HostId,
        /// Under this epoch.
        epoch: u64,
    },
}

impl Record {
    /// Returns the epoch under which the host owns the disk or has released it.
    pub fn epoch(&self) -> u64 {
        match self {
            Record::Unknown => 0,
            Record::Owner { epoch, .. } | Record::Overtaken { epoch, .. } => *epoch,
            Record::Released { grant, .. } => grant.epoch,
        }
    }

    /// Whether the host owns the disk.
    pub fn is_owner(&self) -> bool {
        matches!(self, Record::Owner { .. })
    }
}

/// Where the guest is, as this host sees it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
enum Guest {
    /// It does not use the disk here: it has stopped its queues, or was never here.
    #[default]
    Absent,
    /// It uses the disk here, or wants to.
    Present,
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Step {
    /// Send a message.
    Send(HostId, Message),
    /// End all writes to the origin, make the record durable, then call [`Ownership::recorded`].
    Write {
        /// The record.
        record: Record,
        /// The dirty blocks that this host has are obsolete: they are dropped in the same transaction.
        drops_dirty: bool,
    },
}

/// See the module documentation.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ownership {
    me: HostId,
    record: Record,
    recording: Option<Record>,
    guest: Guest,
    /// The host that is asked for the disk, and the grant that it has, as far as this host knows.
    asking: Option<(HostId, Option<Grant>)>,
    /// The highest epoch that this host knows of apart from its record; 0 if there is none. The host knew it before an
    /// operator told it to forget the disk, or has learned that another host has had the disk under it.
    forgotten: u64,
    #[cfg(test)]
    pub(crate) flaw: Option<Flaw>,
}

/// A mistake that the tests make, to check that the model finds it.
#[cfg_attr(not(test), allow(dead_code, reason = "only tests plant mistakes"))]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Flaw {
    /// A release is sent before it is durable.
    TellEarly,
    /// A guest is served before the ownership is durable.
    ServeEarly,
    /// A released disk is served when the guest is back.
    ServeReleased,
    /// A host that depends on peers releases the disk to anyone, and does not name them.
    ReleaseUndrained,
    /// A grant of an earlier epoch is accepted.
    OldGrant,
    /// A host that was granted an epoch that it has not taken passes it on without recording that.
    VoidUnrecorded,
    /// The next owner keeps dirty blocks that others have overtaken.
    KeepObsolete,
    /// The next owner drops dirty blocks that are still needed.
    DropNeeded,
    /// The origin is written while peers have dirty blocks.
    CleanUndrained,
    /// A disk is taken over from a host that may continue to write.
    Unfenced,
    /// A host continues to serve a disk although it knows that another one has taken it over.
    ServeOvertaken,
    /// A disk is taken over under the epoch that its next owner would have had.
    NextEpoch,
    /// A host's unconfirmed note of another host's takeover is accepted.
    BelieveRumour,
    /// A host with dirty blocks gives them only to the host that it has released the disk to.
    KnowOnlyTaker,
    /// A host that has forgotten the disk does not know any more which epochs are over.
    ForgetEpoch,
    /// An owner gives up the blocks of a dead host, and no other host notes that.
    GiveUpUnnoted,
    /// A host takes a disk over with its blocks, although another host has noted that these may be obsolete.
    RetakeVoid,
    /// A host reads in the directory that another host has had the disk, and does not remember that.
    MissWitness,
}

impl Ownership {
    /// Returns the state after a start, from the record.
    pub fn new(me: HostId, record: Record) -> Ownership {
        Ownership {
            me,
            record,
            recording: None,
            guest: Guest::Absent,
            asking: None,
            forgotten: 0,
            #[cfg(test)]
            flaw: None,
        }
    }

    /// Sets the highest epoch that this host knew before an operator told it to forget the disk, or under which another
    /// host is known to have had the disk. A lower one than before has no effect.
    pub fn has_forgotten(&mut self, epoch: u64) {
        self.forgotten = self.forgotten.max(epoch);
    }

    /// Returns the highest epoch that this host knows, or knew before it was told to forget the disk.
    pub fn known_epoch(&self) -> u64 {
        let forgotten = if self.has(Flaw::ForgetEpoch) { 0 } else { self.forgotten };
        self.record.epoch().max(forgotten)
    }

    #[cfg(test)]
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    #[cfg(not(test))]
    fn has(&self, _: Flaw) -> bool {
        false
    }

    /// Returns the record.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Whether this host owns the disk, durably and until further notice.
    fn owns(&self) -> bool {
        let takes = self.recording.as_ref().is_some_and(Record::is_owner);
        let leaves = self.recording.is_some() && !takes;
        let is_back = !self.record.is_owner() && self.record != Record::Unknown && self.is_guest_present();
        self.record.is_owner() && !leaves
            || takes && self.has(Flaw::ServeEarly)
            || is_back && self.has(Flaw::ServeReleased)
    }

    /// Whether requests of the guest may be served.
    pub fn may_serve(&self) -> bool {
        self.owns() && self.is_guest_present()
    }

    /// Whether the origin may be written. Not while peers have dirty blocks: one that this host has cleaned
    /// would look older than what a peer still has of it.
    pub fn may_write_origin(&self) -> bool {
        self.owns() && (self.peers().is_empty() || self.has(Flaw::CleanUndrained))
    }

    /// Whether the disk is being released to another host.
    pub fn is_releasing(&self) -> bool {
        self.recording.as_ref().is_some_and(|record| !record.is_owner())
    }

    fn is_guest_present(&self) -> bool {
        self.guest == Guest::Present
    }

    /// Returns the other hosts that have dirty blocks.
    pub fn peers(&self) -> BTreeSet<HostId> {
        match &self.record {
            Record::Owner { peers, .. } => peers.clone(),
            _ => BTreeSet::new(),
        }
    }

    /// Whether this host has released the disk to `host` under this epoch, or a host that never took the disk has
    /// passed it on to `host` under a higher epoch. Then `host` owns the disk, or is about to, and may need the dirty
    /// blocks here.
    pub fn has_released_to(&self, host: HostId, epoch: u64) -> bool {
        let Record::Released { to, grant } = &self.record else { return false };
        let is_passed_on = epoch > grant.epoch && !self.has(Flaw::KnowOnlyTaker);
        is_passed_on || epoch == grant.epoch && *to == host
    }

    /// The guest uses the disk here: a KICK, or the first write. `source` is where it was before, as far as is
    /// known: a hint that counts only if this host has nothing on record. To be called again until
    /// [`Ownership::may_serve`].
    pub fn guest_runs(&mut self, source: HostId) -> Option<Step> {
        self.guest = Guest::Present;
        match &self.record {
            Record::Owner { .. } => self.asking = None,
            // Its own record is newer than what others say.
            Record::Released { to, grant } if self.asking.is_none() => {
                self.asking = Some((*to, Some(grant.clone())));
            }
            Record::Overtaken { by, .. } if self.asking.is_none() => self.asking = Some((*by, None)),
            Record::Unknown if self.asking.is_none() && source != self.me => {
                self.asking = Some((source, None));
            }
            _ => {}
        }
        let (host, granted) = self.asking.clone().filter(|_| self.recording.is_none())?;
        Some(Step::Send(host, Message::Ask { granted }))
    }

    /// Handles another host's statement that it owns the disk under `epoch`. If the guest waits here for an earlier
    /// owner, which may be dead or know nothing newer, this host asks the new owner from now on.
    pub fn heard_of_owner(&mut self, host: HostId, epoch: u64) -> Option<Step> {
        // The owner may have the disk under the very epoch that this host knows of apart from its record.
        let is_newer = epoch > self.record.epoch() && epoch >= self.known_epoch();
        let is_newer = is_newer && host != self.me && self.recording.is_none();
        let asks_another = self.asking.as_ref().is_some_and(|(asked, _)| *asked != host);
        if !is_newer || !asks_another {
            return None;
        }
        self.asking = Some((host, None));
        Some(Step::Send(host, Message::Ask { granted: None }))
    }

    /// The guest has stopped its queues here, and everything acknowledged to it is durable.
    pub fn guest_stopped(&mut self) {
        self.guest = Guest::Absent;
        self.asking = None;
    }

    /// All blocks that the peers had are here or at the origin.
    pub fn drained(&mut self) -> Option<Step> {
        let Record::Owner { epoch, peers } = &self.record else { return None };
        if peers.is_empty() || self.recording.is_some() {
            return None;
        }
        let record = Record::Owner { epoch: *epoch, peers: BTreeSet::new() };
        self.write(record, false)
    }

    fn write(&mut self, record: Record, drops_dirty: bool) -> Option<Step> {
        self.recording = Some(record.clone());
        Some(Step::Write { record, drops_dirty })
    }

    /// The record that was to be written is durable.
    pub fn recorded(&mut self) -> Option<Step> {
        self.record = self.recording.take()?;
        match &self.record {
            Record::Released { to, grant } => {
                // The guest may have come since: its question must be newer than the last one.
                if self.asking.is_some() {
                    self.asking = Some((*to, Some(grant.clone())));
                }
                Some(Step::Send(*to, Message::Granted(grant.clone())))
            }
            _ => {
                self.asking = None;
                None
            }
        }
    }

    /// The pending record was not written and never will be: the operation is abandoned.
    pub fn abandoned(&mut self) {
        self.recording = None;
    }

    /// Handles a message.
    pub fn message(&mut self, from: HostId, message: Message) -> Option<Step> {
        let asks = self.recording.is_none() && self.asking.as_ref().is_some_and(|(host, _)| *host == from);
        match message {
            Message::Ask { granted } => self.asked(from, granted),
            Message::Granted(grant) => self.granted(grant),
            Message::GoTo { to, grant } if asks => {
                if grant.epoch > self.known_epoch() {
                    self.asking = Some((to, Some(grant)));
                } else if grant.epoch == self.known_epoch() && grant.epoch > self.record.epoch() {
                    // That host may have the disk under the very epoch that this host knows of apart from its record.
                    // Such a grant must not be passed on, and without a grant the question passes nothing on.
                    self.asking = Some((to, None));
                }
                None
            }
            Message::GoTo { .. } => None,
            Message::NotYet => None,
        }
    }

    /// Whether the disk can be released. A host that depends on peers does not release it. So no chain of hosts forms,
    /// and if a block is dirty on two hosts, the owner's version is the newer one.
    fn can_release(&self) -> bool {
        let drained = self.peers().is_empty() || self.has(Flaw::ReleaseUndrained);
        self.record.is_owner() && self.recording.is_none() && !self.is_guest_present() && drained
    }

    /// Whether the disk is released to a host in answer to this question.
    pub fn would_release(&self, granted: Option<&Grant>) -> bool {
        self.can_release() && granted.is_none_or(|grant| grant.epoch <= self.record.epoch())
    }

    fn asked(&mut self, from: HostId, granted: Option<Grant>) -> Option<Step> {
        if let Some(grant) = granted.filter(|grant| grant.epoch > self.known_epoch()) {
            return self.void(from, grant);
        }
        let answer = match &self.record {
            Record::Owner { .. } if self.can_release() => return self.release(from),
            Record::Released { to, grant } if self.recording.is_none() && *to == from => {
                Message::Granted(grant.clone())
            }
            Record::Released { to, grant } if self.recording.is_none() => {
                Message::GoTo { to: *to, grant: grant.clone() }
            }
            _ => Message::NotYet,
        };
        Some(Step::Send(from, answer))
    }

    /// Passes on a grant to this host that it has not taken, and now never will.
    fn void(&mut self, from: HostId, grant: Grant) -> Option<Step> {
        if self.asking.is_some() || self.recording.is_some() {
            return Some(Step::Send(from, Message::NotYet));
        }
        let grant = Grant { epoch: grant.epoch.saturating_add(1), ..grant };
        if self.has(Flaw::VoidUnrecorded) {
            return Some(Step::Send(from, Message::Granted(grant)));
        }
        let holds = grant.holders.contains(&self.me);
        self.write(Record::Released { to: from, grant }, !holds)
    }

    fn release(&mut self, to: HostId) -> Option<Step> {
        let mut holders = if self.has(Flaw::ReleaseUndrained) { BTreeSet::new() } else { self.peers() };
        holders.insert(self.me);
        let grant = Grant { epoch: self.record.epoch().saturating_add(1), holders };
        let step = self.write(Record::Released { to, grant: grant.clone() }, false);
        if self.has(Flaw::TellEarly) {
            return Some(Step::Send(to, Message::Granted(grant)));
        }
        step
    }

    /// Takes the disk over from hosts that are permanently dead, or makes this host independent of a dead peer, under
    /// an epoch that [`forced_epoch`](crate::forced_epoch) made. `None` if something is being recorded, or this host
    /// owns the disk and needs no other one. **The hosts that may own the disk must be fenced before.**
    pub fn take_over(&mut self, epoch: u64) -> Option<Step> {
        let is_owner = self.record.is_owner();
        let is_alone = is_owner && self.peers().is_empty();
        if self.recording.is_some() || is_alone || epoch <= self.known_epoch() {
            return None;
        }
        let holds = match &self.record {
            Record::Released { grant, .. } => grant.holders.contains(&self.me),
            record => record.is_owner(),
        };
        self.write(Record::Owner { epoch, peers: BTreeSet::new() }, !holds)
    }

    /// Called when another host has taken the disk over under this epoch, or is about to. What is dirty here is
    /// obsolete, and grants of lower epochs that are still on their way are never taken.
    pub fn overtaken(&mut self, by: HostId, epoch: u64) -> Option<Step> {
        if self.recording.is_some() || epoch <= self.record.epoch() || self.has(Flaw::ServeOvertaken) {
            return None;
        }
        self.write(Record::Overtaken { by, epoch }, false)
    }

    fn granted(&mut self, grant: Grant) -> Option<Step> {
        let is_new = grant.epoch > self.known_epoch() || self.has(Flaw::OldGrant);
        if self.asking.is_none() || self.recording.is_some() || !is_new {
            return None;
        }
        let mut peers = grant.holders;
        let holds = peers.remove(&self.me);
        let drops_dirty = !holds && !self.has(Flaw::KeepObsolete) || self.has(Flaw::DropNeeded);
        self.write(Record::Owner { epoch: grant.epoch, peers }, drops_dirty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMER: HostId = HostId(1);
    const OWNER: HostId = HostId(2);
    const ME: HostId = HostId(3);

    fn goes_to_owner(epoch: u64) -> Message {
        Message::GoTo { to: OWNER, grant: Grant { epoch, holders: BTreeSet::from([FORMER]) } }
    }

    /// The directory, for example, has named the owner and its epoch.
    #[test]
    fn a_host_follows_to_an_owner_whose_epoch_it_knows_already() {
        let mut side = Ownership::new(ME, Record::Unknown);
        side.has_forgotten(7);
        let ask = |to| Some(Step::Send(to, Message::Ask { granted: None }));
        assert_eq!(side.guest_runs(FORMER), ask(FORMER));
        side.message(FORMER, goes_to_owner(6));
        assert_eq!(side.guest_runs(FORMER), ask(FORMER), "that is long over");
        side.message(OWNER, goes_to_owner(7));
        assert_eq!(side.guest_runs(FORMER), ask(FORMER), "that host was not asked");
        side.message(FORMER, goes_to_owner(7));
        assert_eq!(side.guest_runs(FORMER), ask(OWNER), "without the grant, which must not be passed on");

        let mut owner = Ownership::new(OWNER, Record::Owner { epoch: 7, peers: BTreeSet::new() });
        assert!(matches!(
            owner.message(ME, Message::Ask { granted: None }),
            Some(Step::Write { record: Record::Released { to: ME, .. }, .. })
        ));
        let Some(Step::Send(ME, granted)) = owner.recorded() else { panic!("the release is recorded") };
        side.message(OWNER, granted);
        side.recorded();
        assert_eq!((side.may_serve(), side.record().epoch()), (true, 8));
    }

    #[test]
    fn a_host_follows_no_grant_that_is_on_its_record() {
        let grant = Grant { epoch: 7, holders: BTreeSet::new() };
        let mut side = Ownership::new(ME, Record::Released { to: FORMER, grant: grant.clone() });
        let ask = Some(Step::Send(FORMER, Message::Ask { granted: Some(grant) }));
        assert_eq!(side.guest_runs(FORMER), ask);
        side.message(FORMER, goes_to_owner(7));
        assert_eq!(side.guest_runs(FORMER), ask);
    }
}
