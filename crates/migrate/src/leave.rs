//! A disk that is about to leave this host: what its method requires of the source before it releases the disk.
//!
//! Invariants
//! - A release is held back only while the guest is absent: when the guest is back, it is served immediately.
//! - A disk of which data is known to be lost here does not leave, and [`Migration::problem`] says so.
//! - Only the last message of an asking host is answered, and only if it is recent: otherwise the host must ask again.

use haversack_core::{Call, JobError, JobId, ManageError, Memory, RelistCursor};
use haversack_model::{HostId, Micros};
use haversack_ownership::{self as ownership, Grant};

use crate::message::Message;
use crate::method::{Ahead, Method};
use crate::migration::{Migration, Task};
use crate::passes::Passes;

/// A host that waits for the disk until it may be released.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Asker {
    host: HostId,
    granted: Option<Grant>,
    asked_us: Micros,
}

impl Migration {
    /// Sets the method, unless [`Migration::begin`] names another.
    pub fn set_method(&mut self, method: Method) {
        self.usual_method = method;
    }

    /// Returns the method.
    pub fn method(&self) -> Method {
        self.method.unwrap_or(self.usual_method)
    }

    /// Returns the method of the current migration: of the one to this host, as long as anything is on its way here,
    /// otherwise of the one from here.
    pub fn method_of_move(&self) -> Method {
        let comes = self.borrowing.is_some() || !self.ownership.peers().is_empty();
        if comes { self.inherited } else { self.method() }
    }

    /// Starts to send the disk to a host: what the method sends ahead is sent from now on.
    ///
    /// # Errors
    /// The disk is not attached here, or data of it is lost.
    pub fn begin<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        to: HostId,
        method: Method,
    ) -> Result<(), ManageError> {
        if self.destination == Some(to) && self.method() == method {
            return Ok(());
        }
        self.end(call, now);
        self.skips_copies = false;
        if !self.is_attached_here(call) {
            return Err(ManageError::NotAttached(self.config.id));
        }
        if self.has_losses(call) {
            return Err(ManageError::StaysWithLosses(self.config.id));
        }
        (self.destination, self.method) = (Some(to), Some(method));
        if method.plan().ahead == Ahead::Running { self.send_passes(call, now, to) } else { Ok(()) }
    }

    fn send_passes<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        to: HostId,
    ) -> Result<(), ManageError> {
        self.start_sending(call, now, to)?;
        self.passes = Some(Passes::new());
        Ok(())
    }

    /// Aborts the move that [`Migration::begin`] started, or the copying for a host whose guest waits for the disk.
    /// Returns false if there was neither. That host gets the disk without the copies: its guest runs there.
    pub fn end<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) -> bool {
        self.skips_copies |= self.asker.is_some() && self.method().plan().ahead == Ahead::Stopped;
        self.stop_sending(call, now);
        self.may_stay();
        (self.passes, self.asker) = (None, None);
        if self.ownership.record().is_owner() {
            self.method = None;
        }
        self.destination.take().is_some()
    }

    /// The guest is back: ends everything that is allowed only while it is stopped.
    pub(crate) fn stay<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) {
        (self.asker, self.skips_copies) = (None, false);
        self.may_stay();
        if let Some(disk) = self.disk {
            call.end_settling(disk);
        }
        if self.method().plan().ahead == Ahead::Stopped {
            self.stop_sending(call, now);
            self.passes = None;
            // Nobody has asked this process for the move: the destination alone did, by asking for the disk.
            self.destination.take_if(|_| self.method.is_none());
        }
    }

    /// Nobody waits for the disk any more: it does not matter that it cannot leave.
    fn may_stay(&mut self) {
        self.problem.take_if(|problem| matches!(problem, ManageError::StaysWithLosses(_)));
    }

    /// Returns the host that the disk is being sent to.
    pub fn sends_to(&self) -> Option<HostId> {
        self.destination.or(self.sending.as_ref().map(|sending| sending.to))
    }

    /// Returns the host that the disk is about to move to, as requested.
    pub fn destination(&self) -> Option<HostId> {
        self.destination
    }

    /// Returns how often all cached blocks were listed to find those to send ahead.
    pub fn passes(&self) -> u32 {
        self.passes.as_ref().map_or(0, Passes::count)
    }

    /// Whether a switchover now would leave little to do, or as much as any later one.
    pub fn is_ready(&self) -> bool {
        let needs_passes = self.method().plan().ahead == Ahead::Running;
        self.destination.is_some() && (!needs_passes || self.passes.as_ref().is_some_and(Passes::is_ready))
    }

    /// Returns how many dirty blocks have to be at the origin before the disk leaves.
    pub(crate) fn blocks_to_clean<M: Memory>(&self, call: &Call<'_, M>) -> u64 {
        let waits = self.method().plan().cleans && (self.destination.is_some() || self.asker.is_some());
        let usage = self.disk.filter(|_| waits).and_then(|disk| call.disk_usage(disk));
        usage.map_or(0, |usage| usage.dirty_blocks)
    }

    /// Whether blocks are being listed, so that [`Migration::tick`] should be called often.
    pub(crate) fn lists_blocks(&self) -> bool {
        self.passes.as_ref().is_some_and(Passes::is_listing)
    }

    /// Finds blocks to send ahead.
    pub(crate) fn tick_passes<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) {
        let left = self.copies_under_way();
        if self.sending.is_none() {
            self.passes = None;
        }
        let (Some(passes), Some(disk)) = (&mut self.passes, self.disk) else { return };
        let blocks = passes.go_on(now, left, |from, each| {
            call.list_cached(disk, from, |block| {
                if !call.is_copy_good(disk, block.block) {
                    each(block);
                }
            })
        });
        let is_listing = passes.is_listing();
        self.send_blocks(blocks);
        let Some(sending) = &mut self.sending else { return };
        sending.relist = if is_listing {
            Some(RelistCursor::default())
        } else {
            sending.relist.and_then(|from| call.relist_ahead(now, disk, from))
        };
    }

    /// Handles a message about who owns the disk.
    pub(crate) fn heard_of_ownership<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        from: HostId,
        message: ownership::Message,
    ) {
        if matches!(message, ownership::Message::Ask { .. }) && self.has_replica_of(call, from) {
            // The owner has lost its record. It has released the disk to no one, so there is nothing to grant; only an
            // operator can say whether the replica counts.
            return self.send(from, Message::Ownership(ownership::Message::NotYet));
        }
        if let ownership::Message::Ask { granted } = &message {
            // While this host needs something from another one, it does not release the disk.
            self.fetch_rest();
            if self.ownership.would_release(granted.as_ref()) && !self.may_leave(call, now, from) {
                self.asker = Some(Asker { host: from, granted: granted.clone(), asked_us: now });
                return self.send(from, Message::Ownership(ownership::Message::NotYet));
            }
        }
        if let ownership::Message::Granted(grant) = &message
            && self.guest.is_some()
            && *self.ownership.record() == ownership::Record::Unknown
            && grant.epoch <= self.ownership.known_epoch()
        {
            let recorded = self.ownership.known_epoch();
            self.problem = Some(ManageError::OldEpoch { given: grant.epoch, recorded });
        }
        let step = self.ownership.message(from, message);
        self.step(call, now, step);
    }

    /// Whether everything is done that the method requires before the disk is released to that host. If not, starts it.
    fn may_leave<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros, to: HostId) -> bool {
        let plan = self.method().plan();
        if self.is_attached_here(call) && self.has_losses(call) {
            self.problem = Some(ManageError::StaysWithLosses(self.config.id));
            return false;
        }
        if !self.end_replica(call, now) {
            return false;
        }
        let Some(disk) = self.disk.filter(|_| self.is_attached_here(call)) else { return true };
        if plan.ahead == Ahead::Stopped && !self.skips_copies {
            let is_sent_there = self.sending.as_ref().is_some_and(|sending| sending.to == to);
            if !is_sent_there || self.passes.is_none() {
                self.stop_sending(call, now);
                // An error means that the disk is not attached: then it cannot be released either.
                let _ = self.send_passes(call, now, to);
                return false;
            }
            return self.passes.as_ref().is_some_and(Passes::has_listed) && self.copies_left() == 0;
        }
        if !plan.cleans || call.disk_usage(disk).is_none_or(|usage| usage.dirty_blocks == 0) {
            return true;
        }
        if self.cleaning.is_none() {
            // An error means that the disk has a job: this is retried.
            self.cleaning = call.clean(now, disk).ok();
        }
        false
    }

    /// Makes the guest's last writes durable while the next host is being told to start the guest.
    pub(crate) fn tick_settling<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) {
        if let Some(disk) = self.disk
            && self.guest.is_none()
            && self.sending.is_some()
            && self.task == Task::Idle
        {
            call.settle_ahead(now, disk);
        }
    }

    /// Releases the disk to the host that has asked for it, once it may leave.
    pub(crate) fn tick_leaving<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) {
        let Some(asker) = self.asker.clone().filter(|_| self.task == Task::Idle) else { return };
        if now > asker.asked_us + 3 * self.timing.repeat_us {
            self.asker = None;
            return;
        }
        if self.may_leave(call, now, asker.host) {
            self.asker = None;
            let step = self.ownership.message(asker.host, ownership::Message::Ask { granted: asker.granted });
            self.step(call, now, step);
        }
    }

    /// Handles the end of a job, if it is the cleaning before a release.
    pub(crate) fn cleaned<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        job: JobId,
        result: Result<(), JobError>,
    ) {
        if self.cleaning == Some(job) {
            self.cleaning = None;
            if result.is_ok() {
                self.tick_leaving(call, now);
            }
        }
    }
}
