//! The flushes of a disk's guest: the groups of staged blocks, and the requests that wait for them.
//!
//! Invariants
//! - Each dirty staged frame counts in exactly one group: the open one or the closing one.

/// The progress of the origin's flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum OriginFlush {
    #[default]
    NotStarted,
    InFlight,
    Done,
    Failed,
}

/// The flushes of a disk's guest.
#[derive(Default)]
pub(crate) struct DiskFlush {
    /// The group that newly staged blocks join.
    pub(super) open: u64,
    /// Dirty staged blocks in the open group.
    pub(super) open_count: u64,
    /// The group that the flushes in `waiting` need durable.
    pub(super) closing: Option<u64>,
    /// Dirty blocks of closed groups that are still staged.
    pub(super) closing_count: u64,
    /// When the group was closed, no lost sectors were left, and none were lost since: once it is durable, the record
    /// need not say any more that the disk has lost something.
    pub heals: bool,
    /// The progress of the origin's flush for `waiting`.
    pub(super) origin: OriginFlush,
    /// The last commit found no space on flash, and none is about to become free.
    pub no_space: bool,
    /// Numbers of the requests that wait for the closing group.
    pub(super) waiting: Vec<u32>,
    /// Numbers of the requests that will close the next group.
    pub(super) later: Vec<u32>,
    /// The change that the replica must have for `waiting`.
    pub(super) replicated_until: u64,
    /// Seals of a replica, by number: the last one that was requested, that the closing group is for, and that is done.
    pub(super) seals: Seals,
}

/// A *seal* makes what a replica has so far durable. See [`DiskFlush::seals`].
#[derive(Clone, Copy, Default)]
pub(super) struct Seals {
    pub requested: u64,
    pub closing: u64,
    pub done: u64,
}

impl DiskFlush {
    pub fn open_group(&self) -> u64 {
        self.open
    }

    pub fn closing_group(&self) -> Option<u64> {
        self.closing.filter(|_| self.closing_count > 0)
    }

    /// Returns the change that the replica must have for the flushes in progress.
    pub fn replicated_until(&self) -> u64 {
        self.replicated_until
    }

    /// Requests a seal; returns its number.
    pub fn request_seal(&mut self, is_done: bool) -> u64 {
        self.seals.requested += 1;
        if is_done {
            self.seals.done = self.seals.requested;
        }
        self.seals.requested
    }

    /// Returns the number of the last seal that is done.
    pub fn sealed(&self) -> u64 {
        self.seals.done
    }

    /// Whether a seal is not done yet.
    pub fn is_sealing(&self) -> bool {
        self.seals.done < self.seals.requested
    }

    /// Whether a flush waits for blocks that are still staged.
    pub fn must_commit(&self) -> bool {
        self.closing_count > 0
    }

    /// Returns the number of dirty staged frames.
    pub fn staged_dirty(&self) -> u64 {
        self.open_count + self.closing_count
    }

    pub fn staged(&mut self, group: u64) {
        *self.count(group) += 1;
    }

    /// Returns true when no block of the group that flushes wait for is staged any more.
    pub fn unstaged(&mut self, group: u64) -> bool {
        *self.count(group) -= 1;
        self.closing == Some(group) && self.closing_count == 0
    }

    fn count(&mut self, group: u64) -> &mut u64 {
        if group == self.open { &mut self.open_count } else { &mut self.closing_count }
    }
}
