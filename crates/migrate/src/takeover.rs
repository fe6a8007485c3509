//! Taking a disk over from permanently dead hosts, and handling a takeover by another host.
//!
//! Invariants
//! - Nothing that a dead host has sent is used when the disk is taken over: neither its list of blocks nor its copies.
//! - A host that still depends on a dead one and has no list of its blocks keeps everything that it has itself.

use haversack_core::{Call, JobId, ManageError, Memory, PeerLoss};
use haversack_model::{HostId, Micros};
use haversack_ownership::{Record, Step};

use crate::migration::{Migration, Task};
use crate::output::Output;

/// A takeover that waits until the disk is attached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    epoch: u64,
    loss: PeerLoss,
}

impl Migration {
    /// Makes this host the owner under an epoch that [`haversack_ownership::forced_epoch`] made, or ends its dependence
    /// on a dead host. **The hosts that may own the disk must be fenced first.** The takeover is complete when the
    /// record says so. A replica that is here is dropped unless [`Migration::trust_replica`] was called just before.
    ///
    /// # Errors
    /// This host needs no other one, something is being recorded, or an error of the core's calls. Nothing has
    /// changed then.
    pub fn take_over<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        epoch: u64,
        loss: PeerLoss,
    ) -> Result<(), ManageError> {
        // The replica is trusted only once: its owner may be back and continue without it.
        let trusts_replica = std::mem::take(&mut self.trusts_replica);
        self.stop_listing();
        if self.task != Task::Idle || self.recorded.is_some() {
            return Err(ManageError::Busy);
        }
        let uses_replica = self.uses_replica(call, now, trusts_replica);
        let depends = self.ownership.record().is_owner();
        let recorded = self.ownership.known_epoch();
        let Some(Step::Write { record: Record::Owner { epoch, .. }, drops_dirty }) =
            self.ownership.take_over(epoch)
        else {
            return Err(ManageError::OldEpoch { given: epoch, recorded });
        };
        self.borrowing = None;
        if let Some(disk) = self.disk {
            call.end_late_copies(disk);
        }
        self.problem = None;
        let begun = if depends {
            self.give_up_peer(call, now, Pending { epoch, loss })
        } else {
            self.claim_by_force(call, now, epoch, loss, drops_dirty || !uses_replica)
        };
        if begun.is_err() {
            self.ownership.abandoned();
        }
        begun
    }

    /// A dead host does not answer.
    fn stop_listing(&mut self) {
        if let Task::Listing(listing) = &self.task {
            if listing.claims {
                self.ownership.abandoned();
            }
            self.task = Task::Idle;
        }
    }

    fn claim_by_force<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        epoch: u64,
        loss: PeerLoss,
        drops_dirty: bool,
    ) -> Result<(), ManageError> {
        if drops_dirty {
            self.discard_held(call, now)?;
        }
        if self.holds_blocks(call) {
            let (disk, job) = call.retake(now, &self.config, epoch, loss)?;
            (self.keeping, self.receiving) = (None, None);
            (self.disk, self.task) = (Some(disk), Task::Recording(job));
            return Ok(());
        }
        self.expect(call, now)?;
        self.keeping = None;
        self.claim(call, now, epoch)
    }

    fn give_up_peer<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        pending: Pending,
    ) -> Result<(), ManageError> {
        let Some(disk) = self.disk else { return Err(ManageError::NotKnown(self.config.id)) };
        if self.is_attached_here(call) {
            let job = call.give_up_peer(now, disk, pending.epoch, pending.loss)?;
            self.drop_fetches();
            self.task = Task::Recording(job);
            return Ok(());
        }
        call.assume_peer_list(now, disk)?;
        self.pending = Some(pending);
        self.attach(call, now, self.ownership.record().epoch(), pending.loss == PeerLoss::Accepted);
        match self.problem.clone() {
            Some(error) if self.task == Task::Idle => {
                self.pending = None;
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// Continues a takeover that has waited until the disk was attached.
    pub(crate) fn go_on_taking_over<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) {
        if self.task != Task::Idle {
            return;
        }
        let Some(pending) = self.pending.take() else { return };
        if let Err(error) = self.give_up_peer(call, now, pending) {
            self.problem = Some(error);
            self.ownership.abandoned();
        }
    }

    /// Ends fetches in progress: they will not be answered.
    fn drop_fetches(&mut self) {
        let fetches = std::mem::take(&mut self.fetches);
        self.outputs.extend(fetches.into_keys().map(|io| Output::FetchFailed { io }));
    }

    /// Another host has taken the disk over under this epoch, or is about to. Returns whether that is recorded, or
    /// was known before; until then, call it again.
    pub fn overtaken<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        by: HostId,
        epoch: u64,
    ) -> bool {
        if epoch <= self.ownership.record().epoch() {
            return true;
        }
        self.stop_listing();
        if let Task::Freezing { .. } = self.task
            && let Some(disk) = self.disk
            && call.thaw(now, disk).is_ok()
        {
            self.ownership.abandoned();
            self.task = Task::Idle;
        }
        if let Some(job) = self.cleaning.take() {
            call.cancel(now, job);
        }
        if self.task != Task::Idle || self.pending.is_some() {
            return false;
        }
        let Some(Step::Write { .. }) = self.ownership.overtaken(by, epoch) else { return false };
        match self.yield_disk(call, now, by, epoch) {
            Ok(job) => {
                (self.sending, self.receiving, self.passes) = (None, None, None);
                (self.asker, self.lending, self.borrowing) = (None, None, None);
                (self.replicating, self.keeping) = (None, None);
                self.drop_fetches();
                self.task = Task::Recording(job);
            }
            Err(error) => {
                self.problem = Some(error);
                self.ownership.abandoned();
            }
        }
        false
    }

    fn yield_disk<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        by: HostId,
        epoch: u64,
    ) -> Result<JobId, ManageError> {
        let disk = match self.disk {
            Some(disk) => disk,
            None => call.expect_disk(now, &self.config)?,
        };
        self.disk = Some(disk);
        call.overtaken(now, disk, epoch, by)
    }
}
