//! LRU or ARC as used by the papers' authors: one cache for each disk with its own part, and one for all
//! disks that share the pool. Targets are soft: a disk below its target takes a block from the disk that is
//! furthest above its target; any other disk uses free space, unless it is capped, or else replaces its own
//! blocks.
//!
//! Invariants
//! - The blocks of all parts together never exceed the pool.
//! - With one part the cache is exactly the policy of that size.

use haversack_admission::{Access as Touch, Admission, Op as TouchOp};
use haversack_core::{AdmissionConfig, Target};
use haversack_model::{BLOCK_BYTES, BlockNo, WriteMode};
use haversack_trace::{Access, Op, VolumeNo};

use super::Policy;
use crate::key::Key;

/// A policy whose size changes while it runs.
pub trait Resizable: Policy {
    /// Returns the blocks that are cached.
    fn cached_blocks(&self) -> usize;

    /// Sets the maximum number of blocks, at least the current number.
    fn set_capacity(&mut self, blocks: usize);

    /// Evicts the next block, which is added to `evicted`.
    fn evict(&mut self, evicted: &mut Vec<Key>);

    /// Returns the cached blocks, in any order.
    fn keys(&self) -> Box<dyn Iterator<Item = Key> + '_>;
}

/// A cache and its target.
struct Part<R> {
    cache: R,
    target_blocks: usize,
    capped: bool,
}

/// A disk.
struct Disk {
    /// Its own part; the common one if it has none.
    target: Target,
    mode: WriteMode,
    admission: Box<dyn Admission>,
    admission_config: AdmissionConfig,
    blocks: u64,
}

/// See the module.
pub struct Partitions<R> {
    capacity_blocks: usize,
    /// A part for each disk, and the common one at the end.
    parts: Vec<Part<R>>,
    disks: Vec<Disk>,
    used_blocks: usize,
    /// The request of the next accesses, as filters see it.
    touch: Touch,
    /// Whether the block of the last access is cached now.
    entered: bool,
}

impl<R: Resizable> Partitions<R> {
    /// A pool of this capacity for disks of these sizes in blocks, which share it at first.
    pub fn new(
        capacity_blocks: usize,
        disk_blocks: &[u64],
        mode: WriteMode,
        make: impl Fn(usize) -> R,
    ) -> Self {
        let part = |_| Part { cache: make(1), target_blocks: 0, capped: false };
        let disk = |blocks: &u64| Disk {
            target: Target::Shared { at_least_blocks: 0, at_most_blocks: u64::MAX },
            mode,
            admission: AdmissionConfig::Always.build(*blocks),
            admission_config: AdmissionConfig::Always,
            blocks: *blocks,
        };
        let mut partitions = Partitions {
            capacity_blocks,
            parts: (0..=disk_blocks.len()).map(part).collect(),
            disks: disk_blocks.iter().map(disk).collect(),
            used_blocks: 0,
            touch: TouchOp::Read.into(),
            entered: true,
        };
        partitions.divide();
        partitions
    }

    /// Sets a disk's share, admission and write mode.
    pub fn set(&mut self, disk: usize, target: Target, admission: AdmissionConfig, mode: WriteMode) {
        self.set_admission(disk, admission);
        self.set_mode(disk, mode);
        self.set_target(disk, target);
    }

    /// Sets which blocks of a disk may enter.
    pub fn set_admission(&mut self, disk: usize, admission: AdmissionConfig) {
        let d = &mut self.disks[disk];
        if admission.is_like(&d.admission_config) {
            // No data is staged here, so none must be dropped.
            d.admission.resize(&admission, &mut |_| {});
        } else {
            d.admission = admission.build(d.blocks);
        }
        d.admission_config = admission;
    }

    /// Sets a disk's write mode.
    pub fn set_mode(&mut self, disk: usize, mode: WriteMode) {
        self.disks[disk].mode = mode;
    }

    /// Sets the share of a disk. It takes effect when blocks are inserted.
    pub fn set_target(&mut self, disk: usize, target: Target) {
        self.disks[disk].target = target;
        self.divide();
    }

    /// Computes the target of each part: space that no disk has for itself is common.
    fn divide(&mut self) {
        let own = |disk: &Disk| match disk.target {
            Target::Blocks(blocks) | Target::Capped(blocks) => Some(blocks as usize),
            Target::Equal | Target::Shared { .. } => None,
        };
        let mut left = self.capacity_blocks;
        for (part, disk) in self.parts.iter_mut().zip(&self.disks) {
            part.target_blocks = own(disk).unwrap_or(0);
            part.capped = matches!(disk.target, Target::Capped(_));
            left = left.saturating_sub(part.target_blocks);
        }
        let common = self.parts.last_mut().expect("there is the common one");
        common.target_blocks = left;
    }

    fn part_of(&self, volume: VolumeNo) -> usize {
        let disk = volume.0 as usize;
        match self.disks[disk].target {
            Target::Blocks(_) | Target::Capped(_) => disk,
            Target::Equal | Target::Shared { .. } => self.disks.len(),
        }
    }

    /// The target of a disk.
    pub fn target_blocks(&self, disk: usize) -> u64 {
        let part = self.part_of(VolumeNo(disk as u32));
        self.parts[part].target_blocks as u64
    }

    /// The usage of a disk.
    pub fn usage_blocks(&self, disk: usize) -> u64 {
        let common = &self.parts[self.disks.len()].cache;
        let of_disk = |key: &Key| key.volume().0 as usize == disk;
        (self.parts[disk].cache.cached_blocks() + common.keys().filter(of_disk).count()) as u64
    }

    /// A disk's write mode.
    pub fn mode_of(&self, disk: usize) -> WriteMode {
        self.disks[disk].mode
    }

    /// Makes space for one more block in a part, if necessary by replacing one of its own. Returns false if the part
    /// has no space at all.
    fn make_room(&mut self, at: usize, evicted: &mut Vec<Key>) -> bool {
        let part = &mut self.parts[at];
        let (before, target) = (part.cache.cached_blocks(), part.target_blocks);
        while part.capped && part.cache.cached_blocks() > target {
            part.cache.evict(evicted);
        }
        let len = part.cache.cached_blocks();
        self.used_blocks -= before - len;
        let full = self.used_blocks >= self.capacity_blocks;
        let grows = if len < target {
            !full || self.take_from_another(at, evicted)
        } else {
            !full && !self.parts[at].capped
        };
        let capacity = if !grows { len } else { target.max(len + 1) };
        if capacity > 0 {
            self.parts[at].cache.set_capacity(capacity);
        }
        capacity > 0
    }

    /// Takes a block from the part that is furthest above its target. Returns false if none is above.
    fn take_from_another(&mut self, asker: usize, evicted: &mut Vec<Key>) -> bool {
        let excess = |part: &Part<R>| part.cache.cached_blocks().saturating_sub(part.target_blocks);
        let others = (0..self.parts.len()).filter(|at| *at != asker);
        let Some(victim) = others.max_by_key(|at| excess(&self.parts[*at])) else { return false };
        if excess(&self.parts[victim]) == 0 {
            return false;
        }
        self.parts[victim].cache.evict(evicted);
        self.used_blocks -= 1;
        true
    }
}

impl<R: Resizable> Policy for Partitions<R> {
    fn access(&mut self, key: Key, evicted: &mut Vec<Key>) -> bool {
        let (at, disk) = (self.part_of(key.volume()), key.volume().0 as usize);
        let (block, touch) = (BlockNo(key.block()), self.touch);
        let filters = !self.disks[disk].admission_config.is_always();
        if self.parts[at].cache.contains(key) {
            if filters {
                self.disks[disk].admission.hit(block, touch);
            }
            self.entered = true;
            return self.parts[at].cache.access(key, evicted);
        }
        self.entered = !filters || self.disks[disk].admission.miss(block, touch).admit;
        self.entered = self.entered && self.make_room(at, evicted);
        if self.entered {
            let cache = &mut self.parts[at].cache;
            let before = cache.cached_blocks();
            cache.access(key, evicted);
            self.used_blocks = self.used_blocks + cache.cached_blocks() - before;
        }
        debug_assert!(self.used_blocks <= self.capacity_blocks, "parts are within the pool");
        false
    }

    fn contains(&self, key: Key) -> bool {
        self.parts[self.part_of(key.volume())].cache.contains(key)
    }

    fn remove(&mut self, key: Key) {
        let at = self.part_of(key.volume());
        let before = self.parts[at].cache.cached_blocks();
        self.parts[at].cache.remove(key);
        self.used_blocks -= before - self.parts[at].cache.cached_blocks();
    }

    fn begin(&mut self, access: &Access) {
        let op = if access.op == Op::Write { TouchOp::Write } else { TouchOp::Read };
        let blocks = access.length_bytes.div_ceil(BLOCK_BYTES as u32);
        self.touch = Touch { blocks, ..op.into() };
    }

    fn entered(&self) -> bool {
        self.entered
    }

    fn mode(&self, volume: VolumeNo) -> Option<WriteMode> {
        Some(self.mode_of(volume.0 as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::lru::Lru;

    fn key(disk: u32, block: u64) -> Key {
        Key::new(VolumeNo(disk), block)
    }

    fn pool(targets: [Target; 2]) -> Partitions<Lru> {
        let mut pool = Partitions::new(10, &[100, 100], WriteMode::WriteBack, Lru::new);
        for (disk, target) in targets.into_iter().enumerate() {
            pool.set(disk, target, AdmissionConfig::Always, WriteMode::WriteBack);
        }
        pool
    }

    fn fill(pool: &mut Partitions<Lru>, disk: u32, blocks: std::ops::Range<u64>) {
        blocks.for_each(|block| {
            pool.access(key(disk, block), &mut Vec::new());
        });
    }

    fn used(pool: &Partitions<Lru>) -> [u64; 2] {
        [0, 1].map(|disk| pool.usage_blocks(disk))
    }

    #[test]
    fn a_disk_below_its_target_takes_from_one_above() {
        let mut pool = pool([Target::Blocks(4), Target::Blocks(6)]);
        fill(&mut pool, 0, 0..20);
        assert_eq!(used(&pool), [10, 0]);
        fill(&mut pool, 1, 0..20);
        assert_eq!(used(&pool), [4, 6]);
        assert!((16..20).all(|block| pool.contains(key(0, block))));
        pool.set(0, Target::Blocks(7), AdmissionConfig::Always, WriteMode::WriteBack);
        pool.set(1, Target::Blocks(3), AdmissionConfig::Always, WriteMode::WriteBack);
        assert_eq!(used(&pool), [4, 6]);
        fill(&mut pool, 0, 20..22);
        assert_eq!(used(&pool), [6, 4]);
    }

    #[test]
    fn a_capped_disk_leaves_free_space_alone() {
        let mut pool = pool([Target::Capped(4), Target::Capped(0)]);
        fill(&mut pool, 0, 0..20);
        fill(&mut pool, 1, 0..20);
        assert_eq!(used(&pool), [4, 0]);
        pool.set(0, Target::Capped(2), AdmissionConfig::Always, WriteMode::WriteBack);
        fill(&mut pool, 0, 20..21);
        assert_eq!(used(&pool), [2, 0]);
    }

    #[test]
    fn what_admission_keeps_out_does_not_enter() {
        let mut pool = pool([Target::Blocks(4), Target::Blocks(6)]);
        pool.set(0, Target::Blocks(4), AdmissionConfig::reuse(1, 100), WriteMode::WriteBack);
        let mut evicted = Vec::new();
        assert!(!pool.access(key(0, 1), &mut evicted) && !pool.entered() && !pool.contains(key(0, 1)));
        assert!(!pool.access(key(0, 1), &mut evicted) && pool.entered() && pool.contains(key(0, 1)));
        assert!(pool.access(key(0, 1), &mut evicted) && pool.entered());
    }
}
