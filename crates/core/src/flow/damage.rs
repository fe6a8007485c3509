//! Damaged blocks (see `damaged.rs`): dirty blocks whose data on flash is bad and has no good mirrored copy.
//! Their slots are poisoned: sectors outside the mask are lost, those inside were written later.
//!
//! The cleaner writes the valid sectors to the origin once. The block stays dirty even then, so that nothing
//! evicts it, supersedes it or uses an older version instead. It is dropped when all of it has been
//! rewritten, when the loss is accepted (`detach.rs`), or when another disk has no space otherwise.
//!
//! Invariant: every poisoned slot that is live, or may become so again, is of a block in the disk's table.

use std::collections::BTreeSet;

use haversack_model::{BlockNo, DiskNo, SectorNo};

use crate::bugs::{Bug, planted};
use crate::core::{Call, Core};
use crate::disk::{Disk, runs};
use crate::format::record::Damage;
use crate::memory::Memory;
use crate::store::slot::{Live, SlotNo};

impl Core {
    fn lost_sectors(&self, disk: DiskNo, block: BlockNo) -> u8 {
        let inside = self.disk(disk).inside(block);
        self.resolve_sectors(disk, block, inside).damaged
    }

    /// Returns the disk's damaged blocks on flash, in order.
    fn damaged_slots(&self, disk: DiskNo) -> impl Iterator<Item = (SlotNo, Live)> + '_ {
        let blocks = self.disk(disk).damaged.blocks();
        blocks.filter_map(move |block| self.store.lookup(disk, block).filter(|(_, slot)| slot.poisoned()))
    }

    /// Whether any dirty data of the disk is lost, as far as is known.
    pub fn has_losses(&self, disk: DiskNo) -> bool {
        let Some(d) = self.disks.get(disk) else { return false };
        d.damage != Damage::None || !d.lost.is_empty() || self.damaged_slots(disk).next().is_some()
    }

    /// Whether all dirty data of the disk is either lost or at the origin.
    pub fn only_lost_left(&self, disk: DiskNo) -> bool {
        let is_staged_clean = self.disks.get(disk).is_some_and(|d| d.flush.staged_dirty() == 0);
        is_staged_clean && self.only_damage_on_flash(disk)
    }

    /// Whether all dirty blocks on flash are damaged, and the origin has their valid sectors.
    fn only_damage_on_flash(&self, disk: DiskNo) -> bool {
        let idle = |(_, slot): &(SlotNo, Live)| slot.dirty() && !self.needs_cleaning(disk, *slot);
        self.store.disks[disk].dirty == self.damaged_slots(disk).filter(idle).count() as u64
    }

    /// Whether dirty sectors of a block are lost, as far as is known.
    pub(crate) fn is_block_lost(&self, disk: DiskNo, block: BlockNo) -> bool {
        let d = self.disk(disk);
        (!d.lost.is_empty() || !d.damaged.is_empty()) && self.lost_sectors(disk, block) != 0
    }

    /// Whether a slot has anything that the cleaner should write to the origin.
    pub(crate) fn needs_cleaning(&self, disk: DiskNo, slot: Live) -> bool {
        slot.dirty() && (!slot.poisoned() || slot.mask() != 0 && !self.disk(disk).damaged.is_cleaned(slot))
    }

    /// Adds a block to the disk's table of damaged blocks: one of its slots is, or is about to be, poisoned.
    pub(crate) fn note_damaged(&mut self, disk: DiskNo, block: BlockNo) {
        self.disk_mut(disk).damaged.note(block);
    }

    /// Returns the runs of sectors that are lost, in order: first sector and number of sectors. Their only
    /// dirty copy is damaged, or was lost with a device. Reads of them fail until they are written.
    pub fn lost_runs(&self, disk: DiskNo) -> Vec<(SectorNo, u64)> {
        let Some(d) = self.disks.get(disk) else { return Vec::new() };
        let mut blocks: Vec<BlockNo> = d.lost.blocks().chain(d.damaged.blocks()).collect();
        blocks.sort_unstable();
        blocks.dedup();
        let mut found: Vec<(SectorNo, u64)> = Vec::new();
        for block in blocks {
            for (first, count) in runs(self.lost_sectors(disk, block)) {
                let sector = d.sector(block, first);
                match found.last_mut() {
                    Some((start, sectors)) if start.0 + *sectors == sector => *sectors += u64::from(count),
                    _ => found.push((SectorNo(sector), u64::from(count))),
                }
            }
        }
        found
    }

    /// Returns the runs of lost sectors that the last detach gave up, in order: first sector and number of
    /// sectors.
    pub fn given_up(&self, disk: DiskNo) -> &[(SectorNo, u64)] {
        self.disks.get(disk).map_or(&[], |d| &d.given_up)
    }

    /// Marks a disk as having no losses any more: the data written over its lost sectors is durable. The next record
    /// says so.
    pub(crate) fn heal(&mut self, disk: DiskNo) {
        let d = self.disk_mut(disk);
        (d.damage, d.loss_version) = (Damage::None, None);
    }

    /// Calls [`Core::heal`] for each attached disk that has no block in `lost` any more and whose origin is durable:
    /// the pool is stopping, and everything staged is durable, too. Disks that are not attached are skipped, since it
    /// is not known which of their sectors are lost. Does nothing while a device is leaving.
    pub(crate) fn heal_stopped(&mut self) {
        if self.devices.leaves_any() {
            return;
        }
        for disk in self.disks.places() {
            let heals = |d: &Disk| {
                d.life.is_active() && d.damage == Damage::Lost && d.lost.is_empty() && d.origin.is_durable()
            };
            if self.disks.get(disk).is_some_and(heals) {
                self.heal(disk);
            }
        }
    }

    /// Makes the record say that the disk has lost something. Returns true when it durably does.
    pub(crate) fn has_recorded_loss(&mut self, disk: DiskNo) -> bool {
        if planted(Bug::LossUnrecorded) {
            return true;
        }
        let d = self.disk_mut(disk);
        if d.damage < Damage::Lost || d.loss_version.is_none() {
            d.damage = d.damage.max(Damage::Lost);
            d.flush.heals = false;
            let version = self.change_record();
            self.disk_mut(disk).loss_version = Some(version);
        }
        self.disk(disk).loss_version.is_some_and(|version| self.durability.is_recorded(version))
    }
}

impl<M: Memory> Call<'_, M> {
    /// Adds the damaged blocks that recovery found to the tables of their disks.
    pub(crate) fn adopt_damaged(&mut self) {
        for segment in self.store.segments.numbers() {
            if self.store.segments[segment].dirty == 0 {
                continue;
            }
            for number in self.store.slots_of(segment) {
                if let Some(slot) = self.store.live(number).filter(|slot| slot.poisoned()) {
                    let disk = self.store.owner_of(number);
                    self.note_damaged(disk, slot.block());
                }
            }
        }
    }

    /// Called when a new version of a block is on flash. If that version is complete, the block is no longer damaged.
    pub(crate) fn forget_repaired(&mut self, disk: DiskNo, block: BlockNo) {
        let poisoned = self.store.lookup(disk, block).is_some_and(|(_, slot)| slot.poisoned());
        if !poisoned {
            self.disk_mut(disk).damaged.remove(block);
        }
    }

    /// Notes that the origin has the valid sectors of a damaged block.
    pub(crate) fn note_valid_cleaned(&mut self, disk: DiskNo, slot: Live) {
        self.disk_mut(disk).damaged.note_cleaned(slot);
    }

    /// Records that dirty sectors of a block are lost, although no entry in the cache shows it.
    pub(crate) fn lose(&mut self, disk: DiskNo, block: BlockNo, sectors: u8) {
        let d = self.disk_mut(disk);
        d.lost.add(block, sectors);
        d.damage = d.damage.max(Damage::Lost);
        d.flush.heals = false;
    }

    /// Drops damaged blocks whose valid sectors are at the origin, once the record says that the disk has
    /// lost something. From then on they count as lost with a device: a restart does not know them.
    pub(crate) fn drop_damaged(&mut self, disk: DiskNo) {
        let is_idle = |(_, slot): &(SlotNo, Live)| !self.needs_cleaning(disk, *slot);
        let slots: Vec<(SlotNo, Live)> = self.damaged_slots(disk).filter(is_idle).collect();
        if slots.is_empty() || !self.has_recorded_loss(disk) {
            return;
        }
        for (_, slot) in slots {
            let block = slot.block();
            let versions = self.resolve(disk, block);
            if self.locks.get(disk, block).is_some() || self.commit_in_flight(versions.commit_seq()) {
                continue;
            }
            if let Some(staged) = versions.staged.filter(|staged| !staged.dirty || staged.mask == 0) {
                self.unstage(staged.frame);
            }
            let staged = versions.staged.filter(|staged| staged.dirty).map_or(0, |staged| staged.mask);
            self.lose(disk, block, self.disk(disk).inside(block) & !slot.mask() & !staged);
            self.store.invalidate(disk, block);
            self.disk_mut(disk).damaged.remove(block);
        }
    }

    /// Forgets losses beyond a disk's last block, which is now `last`.
    pub(crate) fn forget_lost_beyond(&mut self, disk: DiskNo, last: BlockNo) {
        let d = self.disk_mut(disk);
        let inside = d.inside(last);
        d.lost.forget_beyond(last, inside);
        d.damaged.forget_beyond(last);
    }

    /// Drops the damaged blocks of disks that have nothing else dirty on flash. In a pool of few segments,
    /// such blocks may be the only reason why another disk has no segment for its staged blocks.
    pub(crate) fn drop_damaged_for_space(&mut self) {
        for disk in self.disks.places() {
            if self.disks.contains(disk) && !self.is_dormant(disk) && self.only_damage_on_flash(disk) {
                self.drop_damaged(disk);
            }
        }
    }

    /// Drops damaged blocks from the cache, and forgets what was lost with devices. Requests pages that no
    /// longer list these blocks as dirty.
    pub(crate) fn drop_lost(&mut self, disk: DiskNo) {
        let given_up = self.lost_runs(disk);
        let slots: Vec<(SlotNo, Live)> = self.damaged_slots(disk).collect();
        let mut segments = BTreeSet::new();
        for (number, slot) in slots {
            let copies = [Some(number), self.store.mirror_of(number)];
            segments.extend(copies.into_iter().flatten().map(|copy| self.store.segment_of(copy)));
            self.store.invalidate(disk, slot.block());
        }
        for segment in segments {
            self.ask_rewrite(disk, segment);
        }
        let d = self.disk_mut(disk);
        d.damaged.clear();
        d.lost.clear();
        d.given_up = given_up;
    }
}
