//! Flushes: of the pool's devices, and of a guest.
//!
//! The pool has one flush in flight at a time. It makes every commit that was completed when it started
//! durable, no matter which disk asked, so concurrent guests share it. A guest's flush closes the group of
//! blocks staged so far. While one group is being made durable, later flushes wait together for the next one.
//!
//! Invariants
//! - A flush succeeds only when every block that was staged before it is durable, on flash or at the origin,
//!   and no write that was acknowledged to a guest is only in the origin's volatile cache.
//! - While any device is in use, no flush succeeds as long as a device is leaving or the record does not yet
//!   durably say which devices count.
//! - A disk that has lost something, and has no lost sectors any more, is whole again once a flush that began
//!   after that has succeeded: the data written over the lost sectors is durable.
//! - If the disk has a replica, a flush succeeds only when the replica durably has every dirty block in the version at
//!   the start of the flush or a later one, and has no version that the origin has overtaken.
//! - When the origin's flush fails, every flush of the guest that waited for it fails. It is not retried on
//!   their behalf.

pub(crate) mod groups;

use haversack_model::DiskNo;

use crate::action::{Action, IoId, RequestError};
use crate::bugs::{Bug, planted};
use crate::core::Call;
use crate::flow::request::Park;
use crate::format::record::Damage;
use crate::io::{Io, OriginFlushReason, Purpose};
use crate::media::IoFailure;
use crate::memory::Memory;
use groups::OriginFlush;

impl<M: Memory> Call<'_, M> {
    pub(crate) fn drive_pool_flush(&mut self) -> bool {
        if !self.durability.start_flush() {
            return false;
        }
        let devices: Vec<_> = self.alive_devices().collect();
        for device in devices {
            if !self.devices.takes_flush(device) {
                continue;
            }
            self.durability.flush_sent();
            let io = self.new_io(Purpose::Flush);
            self.ios[io].device = Some(device);
            self.emit(Action::FlushDevice { io: IoId(io), device });
        }
        self.pool_flush_answered();
        true
    }

    pub(crate) fn pool_flush_done(&mut self, io: &Io, result: Result<(), IoFailure>) {
        if result.is_err() {
            self.device_failed(io.device.expect("a flush is of a device"));
        }
        self.pool_flush_answered();
    }

    fn pool_flush_answered(&mut self) {
        if self.durability.flush_answered() {
            let pages = self.config.flush_step_pages;
            self.schedule.allow_pages(pages);
        }
    }

    /// Takes the next step after a flush of the pool: some of the pages that it made durable come into effect. Only the
    /// last step wakes the disks: there may be a thousand of them.
    pub(crate) fn drive_flushed(&mut self) -> bool {
        let Some(until) = self.durability.ended_flush() else { return false };
        let pages = self.schedule.take_pages();
        if pages == 0 {
            return false;
        }
        let (seq, mark_due_us) =
            (self.store.flushed_by_pages(pages, until), self.now + self.config.flush_mark_us);
        self.durability.advance(seq, mark_due_us);
        self.store.flushed(seq);
        if self.durability.ended_flush().is_none() {
            self.wake_around_all();
        }
        true
    }

    /// Adds a guest's flush, or a write with FUA whose data is staged or at the origin.
    pub(crate) fn join_flush(&mut self, number: u32) {
        let disk = self.requests[number].disk;
        self.requests[number].park = Park::Flush;
        self.disk_mut(disk).flush.later.push(number);
        self.queue(disk);
    }

    pub(crate) fn drive_flush(&mut self, disk: DiskNo) {
        loop {
            if self.disk(disk).flush.closing.is_none() {
                let flush = &mut self.disk_mut(disk).flush;
                if flush.later.is_empty() && flush.seals.requested == flush.seals.done {
                    return;
                }
                flush.seals.closing = flush.seals.requested;
                std::mem::swap(&mut flush.waiting, &mut flush.later);
                flush.closing = Some(flush.open);
                flush.closing_count = flush.open_count;
                (flush.open, flush.open_count) = (flush.open + 1, 0);
                flush.origin = OriginFlush::NotStarted;
                let d = self.disk_mut(disk);
                let is_whole = d.lost.is_empty() || planted(Bug::HealLost);
                d.flush.heals = d.damage == Damage::Lost && is_whole && !d.life.is_replica();
                d.flush.replicated_until = d.moving.as_ref().map_or(0, |moving| moving.changes());
                self.drive_commit(disk);
            }
            if self.must_stay_staged(disk) {
                self.fail_flushes(disk);
                return;
            }
            if !self.group_durable(disk) || !self.origin_durable(disk) || !self.is_replicated(disk) {
                return;
            }
            self.answer_flush(disk);
        }
    }

    /// Whether blocks that the flushes wait for have no place on a device to go to and no origin that may be written. Those
    /// that were staged since do not count: no commit of them is due, which would find out whether there is space now.
    fn must_stay_staged(&self, disk: DiskNo) -> bool {
        let d = self.disk(disk);
        let nowhere = d.flush.no_space || self.alive_devices().next().is_none();
        !d.life.is_owned() && d.flush.must_commit() && nowhere
    }

    /// Fails the waiting flushes. The group that they closed stays closed.
    fn fail_flushes(&mut self, disk: DiskNo) {
        let flush = &mut self.disk_mut(disk).flush;
        let mut waiting = std::mem::take(&mut flush.waiting);
        waiting.append(&mut flush.later);
        for request in waiting {
            self.fail(request, RequestError::NotOwner);
            self.answer(request);
        }
    }

    fn group_durable(&mut self, disk: DiskNo) -> bool {
        if self.disk(disk).flush.closing_count > 0 {
            return false;
        }
        if self.alive_devices().next().is_none() || planted(Bug::SkipDeviceFlush) {
            return true;
        }
        let seq = self.disk(disk).last_commit_seq;
        if !self.durability.want(seq) {
            return false;
        }
        !self.devices.leaves_any() && !self.durability.record.device_change_pending()
    }

    fn origin_durable(&mut self, disk: DiskNo) -> bool {
        // A seal is not a guest's flush and does not need the origin.
        if self.disk(disk).flush.waiting.is_empty() {
            return true;
        }
        match self.disk(disk).flush.origin {
            OriginFlush::NotStarted
                if !self.disk(disk).origin.is_durable() && !planted(Bug::SkipOriginFlush) =>
            {
                self.disk_mut(disk).flush.origin = OriginFlush::InFlight;
                self.flush_origin(OriginFlushReason::Guest, disk);
                false
            }
            OriginFlush::InFlight => false,
            OriginFlush::NotStarted | OriginFlush::Done | OriginFlush::Failed => true,
        }
    }

    pub(crate) fn guest_flush_done(&mut self, io: &Io, result: Result<(), IoFailure>) {
        let disk = io.disk.expect("the flush is of a disk");
        let d = self.disk_mut(disk);
        d.flush.origin = if result.is_ok() { OriginFlush::Done } else { OriginFlush::Failed };
        self.queue(disk);
    }

    fn answer_flush(&mut self, disk: DiskNo) {
        let flush = &mut self.disk_mut(disk).flush;
        flush.closing = None;
        flush.seals.done = flush.seals.closing;
        let failed = flush.origin == OriginFlush::Failed;
        let heals = std::mem::take(&mut flush.heals) && !failed;
        let mut waiting = std::mem::take(&mut flush.waiting);
        for request in waiting.drain(..) {
            if failed {
                self.fail(request, RequestError::Origin);
            }
            self.answer(request);
        }
        let d = self.disk_mut(disk);
        d.flush.waiting = waiting;
        if !failed {
            self.end_group(disk);
        }
        if heals {
            self.heal(disk);
            self.change_record();
        }
    }
}
