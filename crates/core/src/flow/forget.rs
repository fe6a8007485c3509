//! Forgetting: all cached blocks of a disk become void, or the disk itself leaves the pool.
//!
//! Invariants
//! - The caller destroys dirty blocks only by naming the disk.
//! - From the call on, nothing is read from a disk that is being forgotten, and the record no longer lists the disk
//!   before its space is reused. So its blocks on flash need not become void immediately.
//! - A call gives up a bounded number of its segments.
//! - A disk's number is free again only when the disk owns no segment and none of its I/O is in flight.
//! - The next disk with this number continues the generations of the intent pages, so that no new page is
//!   taken for an older one.

use haversack_model::{DiskId, DiskNo, Micros};

use crate::action::JobId;
use crate::core::Call;
use crate::error::ManageError;
use crate::jobs::JobKind;
use crate::lifecycle::Event;
use crate::memory::{DESCRIPTOR_BYTES, FrameNo, Memory};
use crate::store::DiskSpace;
use crate::store::segment::{SegmentNo, SegmentState};

/// Segments of a forgotten disk that a call gives up: about a hundred microseconds.
const SEGMENTS_AT_A_TIME: usize = 2;
/// The most segments that wait for their pages before another one is given up: each of them is looked at in each call.
const MOST_GIVEN_UP: usize = 16;

impl<M: Memory> Call<'_, M> {
    /// Forgets a detached disk and frees its space. Dirty blocks are destroyed only if the disk is named.
    ///
    /// # Errors
    /// The disk is attached, has a job, has dirty blocks and was not named, or another host still needs its blocks.
    pub fn forget(
        &mut self,
        now: Micros,
        disk: DiskNo,
        destroy_dirty: Option<DiskId>,
    ) -> Result<JobId, ManageError> {
        self.now = now;
        self.idle(disk)?;
        let d = self.known(disk)?;
        let (id, dirty_blocks) = (d.id, self.dirty_blocks(disk));
        if !d.life.allows(Event::Forget) {
            return Err(if d.life.is_peer() {
                ManageError::KeptForOwner { disk: id, dirty_blocks }
            } else if d.life.is_incoming() {
                ManageError::Migrating(id)
            } else {
                ManageError::Attached(id)
            });
        }
        if dirty_blocks > 0 && destroy_dirty != Some(id) {
            return Err(ManageError::Dirty { disk: id, dirty_blocks });
        }
        self.disk_mut(disk).life.happened(Event::Forget);
        self.end_sharing_of_base(disk);
        if dirty_blocks > 0 {
            self.void_cache(disk);
        } else {
            self.void_unlisted(disk);
        }
        let version = self.change_record();
        Ok(self.start_job(disk, JobKind::Forget { goes_on: false }, Some(version)))
    }

    pub(crate) fn drive_forget(&mut self, disk: DiskNo) {
        if self.staging.all_of(disk).next().is_some() {
            return;
        }
        let goes_on = self.give_up_some(disk);
        if let Some(job) = self.disk_mut(disk).job.as_mut() {
            job.kind = JobKind::Forget { goes_on };
        }
        let owns = !self.store.disks[disk].segments.is_empty();
        if owns || !self.is_quiet(disk) || self.disk(disk).intents.is_being_written() {
            return;
        }
        self.end_job(disk, Ok(()));
        self.disks.remove(disk);
        self.store.share(disk, None);
        self.store.disks[disk] = DiskSpace::default();
    }

    /// Gives up some segments of a forgotten disk, once per call. Returns whether the next call can give up more
    /// without waiting.
    fn give_up_some(&mut self, disk: DiskNo) -> bool {
        let segments = self.store.disks[disk].segments.iter().rev().copied();
        let mut owned =
            segments.filter(|at| self.store.segments[*at].state == SegmentState::Owned).peekable();
        if owned.peek().is_none() {
            return false;
        }
        let room = MOST_GIVEN_UP.saturating_sub(self.store.reclaiming());
        if room == 0 || self.pool.rests() {
            return false;
        }
        let is_free_to_go = |at: &SegmentNo| {
            let s = &self.store.segments[*at];
            s.superseded == 0 && !s.page_writing
        };
        let ready: Vec<SegmentNo> = owned.filter(is_free_to_go).take(room.min(SEGMENTS_AT_A_TIME)).collect();
        if ready.is_empty() {
            self.durability.want_completed();
            return false;
        }
        if self.schedule.may_step() {
            for segment in ready {
                self.void_segment(disk, segment);
                self.store.reclaim(segment, None);
            }
        }
        true
    }

    /// Makes everything cached of the disk void, on flash too.
    pub(crate) fn void_cache(&mut self, disk: DiskNo) {
        for segment in self.store.disks[disk].segments.clone() {
            self.void_segment(disk, segment);
        }
        self.void_unlisted(disk);
    }

    fn void_segment(&mut self, disk: DiskNo, segment: SegmentNo) {
        for number in self.store.slots_of(segment) {
            if let Some(slot) = self.store.live(number) {
                self.store.invalidate(disk, slot.block());
            }
        }
    }

    /// Makes everything void that is not in segments, and what is in them after a crash.
    fn void_unlisted(&mut self, disk: DiskNo) {
        self.staging.drop_all_data(disk);
        let frames: Vec<FrameNo> = self.staging.all_of(disk).collect();
        for frame in frames {
            if self.staging.get(frame).committing {
                self.memory.store_descriptor(frame.0, &[0; DESCRIPTOR_BYTES]);
                self.staging.abandon(frame);
            } else {
                self.unstage(frame);
            }
        }
        let since_seq = self.durability.last() + 1;
        let d = self.disk_mut(disk);
        d.since_seq = since_seq;
        d.lost.clear();
        d.damaged.clear();
    }
}
