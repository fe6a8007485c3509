//! Forgetting: all cached blocks of a disk become void, or the disk itself leaves the pool.
//!
//! Invariants
//! - The caller destroys dirty blocks only by naming the disk.
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
use crate::store::segment::SegmentState;

impl<M: Memory> Call<'_, M> {
    /// Forgets a detached disk and frees its space. Dirty blocks are destroyed only if the disk is named.
    ///
    /// # Errors
    /// The disk is attached, has a job, or has dirty blocks and was not named.
    pub fn forget(
        &mut self,
        now: Micros,
        disk: DiskNo,
        destroy_dirty: Option<DiskId>,
    ) -> Result<JobId, ManageError> {
        self.now = now;
        self.idle(disk)?;
        let d = self.known(disk)?;
        if !d.life.allows(Event::Forget) {
            return Err(ManageError::Attached(d.id));
        }
        let (id, dirty_blocks) = (d.id, self.dirty_blocks(disk));
        if dirty_blocks > 0 && destroy_dirty != Some(id) {
            return Err(ManageError::Dirty { disk: id, dirty_blocks });
        }
        self.disk_mut(disk).life.happened(Event::Forget);
        self.end_sharing_of_base(disk);
        self.void_cache(disk);
        let version = self.change_record();
        Ok(self.start_job(disk, JobKind::Forget, Some(version)))
    }

    pub(crate) fn drive_forget(&mut self, disk: DiskNo) {
        if self.staging.all_of(disk).next().is_some() {
            return;
        }
        for segment in self.store.disks[disk].segments.clone() {
            let s = &self.store.segments[segment];
            let owned = s.state == SegmentState::Owned;
            if owned && s.superseded == 0 && !s.page_writing {
                self.store.reclaim(segment, None);
            } else if owned {
                self.durability.want_completed();
            }
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

    /// Makes everything cached of the disk void, on flash too.
    pub(crate) fn void_cache(&mut self, disk: DiskNo) {
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
        let segments = self.store.disks[disk].segments.clone();
        for segment in segments {
            for number in self.store.slots_of(segment) {
                if let Some(slot) = self.store.live(number) {
                    self.store.invalidate(disk, slot.block());
                }
            }
        }
        let since_seq = self.durability.last() + 1;
        let d = self.disk_mut(disk);
        d.since_seq = since_seq;
        d.lost.clear();
        d.damaged.clear();
    }
}
