//! A disk as the core knows it: settings, life cycle, and the state of its background work.

use std::collections::VecDeque;

use haversack_admission::Admission;
use haversack_model::{BlockNo, DiskId, Micros, SECTORS_PER_BLOCK, SectorNo, WriteMode, WriteThroughAck};

use crate::MAX_DISK_SECTORS;
use crate::base::Base;
use crate::checksum;
use crate::config::{AdmissionConfig, DiskConfig, Persistence, Target, Tuning};
use crate::damaged::DamagedBlocks;
use crate::durability::record::RecordVersion;
use crate::flow::clean::cleaner::Cleaner;
use crate::flow::flush::groups::DiskFlush;
use crate::flow::intent::map::IntentMap;
use crate::flow::moving::Moving;
use crate::format::record::{Damage, DiskRecord, Moved};
use crate::jobs::Job;
use crate::lifecycle::Life;
use crate::lost::LostBlocks;
use crate::monitor::Monitor;
use crate::origin_gate::permit::OriginAccount;
use crate::origin_latency::OriginLatency;
use crate::sequential::Sequential;
use crate::stats::DiskStats;
use crate::store::segment::SegmentNo;
use crate::store::slot::SlotNo;

/// A disk. See the module.
pub(crate) struct Disk {
    pub id: DiskId,
    /// Hash of its identity, for checksums.
    pub seed: u64,
    /// Its size.
    pub sectors: u64,
    /// The size that the record is about to hold.
    pub next_sectors: Option<u64>,
    /// Where on the disk a block of the grid starts, in sectors, 0 to 7.
    pub phase: u8,
    /// The write mode in use: that of the settings, or `wt` while the disk has to write through.
    pub mode: WriteMode,
    /// The write mode of the settings.
    pub set_mode: WriteMode,
    /// The disk has to write through, whatever its settings say.
    pub writes_through: bool,
    pub persistence: Persistence,
    pub target: Target,
    /// Which filter `admission` is.
    pub admission_config: AdmissionConfig,
    pub admission: Box<dyn Admission>,
    pub sequential: Sequential,
    pub tuning: Tuning,
    pub life: Life,
    /// The record says, or will say, that blocks may be dirty on flash.
    pub may_be_dirty: bool,
    /// Whether dirty blocks were lost.
    pub damage: Damage,
    /// The version of the record that says so, if it is awaited.
    pub loss_version: Option<RecordVersion>,
    /// Commits with lower sequence numbers are void for this disk.
    pub since_seq: u64,
    /// Blocks of commits up to this sequence number are clean, whatever their pages say.
    pub clean_seq: u64,
    /// Blocks with lost dirty sectors that no cache entry shows. See [`crate::lost`].
    pub lost: LostBlocks,
    /// Runs of lost sectors that a detach gave up since the disk was last attached.
    pub given_up: Vec<(SectorNo, u64)>,
    /// Blocks that are damaged on flash, and some that no longer are. See [`crate::damaged`].
    pub damaged: DamagedBlocks,
    pub stats: DiskStats,
    /// Records of the guest's requests, if they are wanted.
    pub monitor: Option<Monitor>,
    pub flush: DiskFlush,
    pub cleaner: Cleaner,
    pub intents: IntentMap,
    /// The job that is running.
    pub job: Option<Job>,
    /// Slots whose blocks are to be staged again.
    pub restage: VecDeque<SlotNo>,
    /// Blocks that are being read to be staged again.
    pub restaging: u32,
    /// What remains to be done of its last migration.
    pub moved: Moved,
    /// The state of a migration. Boxed because few disks have one: the others pay only for a null check.
    pub moving: Option<Box<Moving>>,
    /// What it shares with its base.
    pub base: Option<Box<Base>>,
    /// Other disks may share its blocks.
    pub is_base: bool,
    /// What was sent to the origin, and how much of it may be volatile.
    pub origin: OriginAccount,
    /// How long the origin takes.
    pub origin_latency: OriginLatency,
    /// Requests in flight.
    pub requests: u32,
    /// When the last request was submitted, or when it was attached.
    pub last_request_us: Micros,
    /// Sequence number of its last commit or page.
    pub last_commit_seq: u64,
    /// Segments whose pages must be rewritten.
    pub rewriting: VecDeque<SegmentNo>,
    /// Requests that wait for the lock of a block.
    pub lock_waiters: Vec<u32>,
    /// Requests that wait for the cleaner, oldest first.
    pub dirty_waiters: VecDeque<u32>,
    /// Requests that wait for the conditions of a write past the cache.
    pub around_waiters: Vec<u32>,
}

impl Disk {
    pub fn new(record: &DiskRecord) -> Disk {
        let defaults = DiskConfig::new(record.id, record.sectors);
        Disk {
            id: record.id,
            seed: checksum::disk_seed(record.id),
            sectors: record.sectors,
            next_sectors: None,
            phase: record.phase,
            mode: defaults.mode,
            set_mode: defaults.mode,
            writes_through: false,
            persistence: record.persistence,
            target: Target::Blocks(0),
            admission_config: defaults.admission,
            admission: defaults.admission.build(0),
            sequential: Sequential::default(),
            tuning: defaults.tuning(),
            life: Life::recorded(record.owned, record.moved, record.epoch),
            may_be_dirty: record.may_be_dirty,
            damage: record.damage,
            loss_version: None,
            since_seq: record.since_seq,
            clean_seq: record.clean_seq,
            lost: LostBlocks::default(),
            given_up: Vec::new(),
            damaged: DamagedBlocks::default(),
            stats: DiskStats::default(),
            monitor: None,
            flush: DiskFlush::default(),
            cleaner: Cleaner::default(),
            intents: IntentMap::new(record.sectors),
            job: None,
            restage: VecDeque::new(),
            restaging: 0,
            moved: record.moved,
            moving: None,
            base: None,
            is_base: false,
            origin: OriginAccount::new(record.origin_volatile),
            origin_latency: OriginLatency::default(),
            requests: 0,
            last_request_us: 0,
            last_commit_seq: 0,
            rewriting: VecDeque::new(),
            lock_waiters: Vec::new(),
            dirty_waiters: VecDeque::new(),
            around_waiters: Vec::new(),
        }
    }

    /// Returns the sectors that a new request may touch: those of the smaller size while the disk is being
    /// resized.
    pub fn open_sectors(&self) -> u64 {
        self.job.as_ref().and_then(Job::resizes_to).map_or(self.sectors, |to| self.sectors.min(to))
    }

    pub fn record(&self) -> DiskRecord {
        DiskRecord {
            id: self.id,
            sectors: self.next_sectors.unwrap_or(self.sectors),
            phase: self.phase,
            owned: self.life.is_owned(),
            epoch: self.life.epoch(),
            may_be_dirty: self.may_be_dirty,
            origin_volatile: self.origin.is_unmarked(),
            damage: self.damage,
            persistence: self.persistence,
            since_seq: self.since_seq,
            clean_seq: self.clean_seq,
            moved: self.moved,
        }
    }

    /// Changes the mode of the settings, and whether the disk has to write through.
    pub fn change_mode(&mut self, mode: WriteMode, writes_through: bool) {
        (self.set_mode, self.writes_through) = (mode, writes_through);
        let through = WriteMode::WriteThrough(WriteThroughAck::Origin);
        self.mode = if writes_through && mode.defers_origin() { through } else { mode };
    }

    /// Returns the bytes of memory for admission, monitor, and what is shared with a base.
    pub fn side_bytes(&self) -> usize {
        let base_bytes = self.base.as_ref().map_or(0, |base| base.bytes());
        self.admission.bytes() + self.monitor.as_ref().map_or(0, Monitor::bytes) + base_bytes
    }

    /// Whether everything staged is to be committed now. Writes that wait for the cleaner need that: staged
    /// blocks count as dirty, and only blocks on flash are cleaned.
    pub fn commit_all(&self) -> bool {
        self.commits_eagerly()
            || !self.dirty_waiters.is_empty()
            || self.job.as_ref().is_some_and(Job::commits)
            || self.moving.as_ref().is_some_and(|moving| moving.waits_for_commits())
    }

    /// Whether dirty blocks are staged that the cleaner should write as soon as possible. Clean staged blocks are not
    /// urgent.
    pub fn commits_eagerly(&self) -> bool {
        self.flush.staged_dirty() > 0 && self.cleaner.wants_commit(self.mode)
    }

    /// Returns how many sectors before sector 0 of the disk block 0 starts.
    fn shift(&self) -> u64 {
        shift(self.phase)
    }

    /// Returns the first and the last block that sectors touch.
    pub fn blocks(&self, sector: u64, sectors: u32) -> (BlockNo, BlockNo) {
        let first = sector + self.shift();
        let last = first + u64::from(sectors) - 1;
        (BlockNo(first / SECTORS_PER_BLOCK), BlockNo(last / SECTORS_PER_BLOCK))
    }

    /// Returns the part of a block that sectors touch: mask, and the first sector of that part.
    #[inline]
    pub fn part(&self, block: BlockNo, sector: u64, sectors: u32) -> (u8, u64) {
        let start = sector + self.shift();
        let end = start + u64::from(sectors);
        let (block_start, block_end) = (block.0 * SECTORS_PER_BLOCK, (block.0 + 1) * SECTORS_PER_BLOCK);
        let (from, to) = (start.max(block_start), end.min(block_end));
        assert!(from < to, "the sectors touch the block");
        (mask_of((from - block_start) as u32, (to - from) as u32), from - self.shift())
    }

    /// Returns the disk's sector at index `at` of a block. Only for sectors inside the disk.
    pub fn sector(&self, block: BlockNo, at: u32) -> u64 {
        block.0 * SECTORS_PER_BLOCK + u64::from(at) - self.shift()
    }

    /// Returns the sectors of a block that are inside the disk, as a mask.
    pub fn inside(&self, block: BlockNo) -> u8 {
        inside(block, self.phase, self.sectors)
    }

    /// Like [`Disk::inside`], for a block number from another host, which may be out of range.
    pub fn inside_checked(&self, block: BlockNo) -> u8 {
        if block.0 > MAX_DISK_SECTORS / SECTORS_PER_BLOCK { 0 } else { self.inside(block) }
    }

    /// Whether the mask has all sectors of a block that are inside the disk. A block that a shrink cuts off entirely is
    /// never whole: it may be damaged, and stays damaged until it is dropped.
    pub fn is_whole(&self, block: BlockNo, mask: u8) -> bool {
        let inside = self.inside(block);
        inside != 0 && mask == inside
    }
}

/// Returns how many sectors before its disk a grid of this phase starts.
fn shift(phase: u8) -> u64 {
    (SECTORS_PER_BLOCK - u64::from(phase)) % SECTORS_PER_BLOCK
}

/// Returns the sectors of a block that are inside a disk of this size, as a mask.
pub(crate) fn inside(block: BlockNo, phase: u8, sectors: u64) -> u8 {
    let (shift, first) = (shift(phase), block.0 * SECTORS_PER_BLOCK);
    // The sectors of the block that lie before the start of the disk, and before its end.
    let [start, end] = [shift, shift + sectors].map(|at| at.saturating_sub(first).min(SECTORS_PER_BLOCK));
    let before = |sectors: u64| (1u16 << sectors) - 1;
    (before(end) & !before(start)) as u8
}

/// Returns the mask of `count` sectors from `first` on.
pub(crate) fn mask_of(first: u32, count: u32) -> u8 {
    (((1u32 << count) - 1) << first) as u8
}

/// Returns the runs of ones in a mask: first sector and count.
pub(crate) fn runs(mask: u8) -> impl Iterator<Item = (u32, u32)> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let first = rest.trailing_zeros();
        let count = (rest >> first).trailing_ones();
        rest &= !mask_of(first, count);
        Some((first, count))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_cover_the_mask() {
        for mask in 0..=255u8 {
            let joined = runs(mask).fold(0, |m, (first, count)| m | mask_of(first, count));
            assert_eq!(joined, mask);
        }
        assert_eq!(runs(0b0110_0001).collect::<Vec<_>>(), [(0, 1), (5, 2)]);
    }

    #[test]
    fn the_sectors_inside_a_disk_are_those_between_its_start_and_its_end() {
        for (phase, sectors) in (0..8).flat_map(|phase| (0..40).map(move |sectors| (phase, sectors))) {
            let shift = shift(phase);
            for block in 0..7 {
                let is_inside = |at: &u64| (shift..shift + sectors).contains(&(block * 8 + at));
                let expected = (0..8).filter(is_inside).fold(0, |mask, at| mask | 1 << at);
                let found = inside(BlockNo(block), phase, sectors);
                assert_eq!(found, expected, "block {block}, phase {phase}, {sectors} sectors");
            }
        }
    }

    fn disk(phase: u8) -> Disk {
        let config = DiskConfig::new(DiskId([1; 16]), 1000);
        let record = DiskRecord {
            id: config.id,
            sectors: config.sectors,
            phase,
            owned: true,
            epoch: 1,
            may_be_dirty: false,
            origin_volatile: false,
            damage: Damage::None,
            persistence: Persistence::All,
            since_seq: 0,
            clean_seq: 0,
            moved: Moved::No,
        };
        Disk::new(&record)
    }

    #[test]
    fn the_grid_follows_the_phase() {
        let disk = disk(7);
        assert_eq!(disk.blocks(63, 8), (BlockNo(8), BlockNo(8)));
        assert_eq!(disk.part(BlockNo(8), 63, 8), (0xff, 63));
        assert_eq!(disk.blocks(0, 8), (BlockNo(0), BlockNo(1)));
        assert_eq!(disk.part(BlockNo(0), 0, 8), (0b1111_1110, 0));
        assert_eq!(disk.inside(BlockNo(0)), 0b1111_1110);
        assert_eq!(disk.sector(BlockNo(8), 0), 63);
    }
}
