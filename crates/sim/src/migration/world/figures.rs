//! The measurements: the cache that moves, the VMs, the link and the origin.

use haversack_core::ListCursor;
use haversack_model::{SECTORS_PER_BLOCK, SectorNo};
use haversack_trace::{Access, Op};

use super::event::What;
use super::{SOURCE, World};
use crate::key::{Key, KeySet};
use crate::migration::content::SECTORS;
use crate::migration::measure::Reads;
use crate::migration::outcome::LoadSample;
use crate::migration::vm::Role;

/// The cache of the moving VM when it stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cached {
    /// Blocks.
    pub blocks: u64,
    /// Of these, used more than once.
    pub reused_blocks: u64,
    /// Of these, dirty: the VM's last write to them has not reached the origin.
    pub dirty_blocks: u64,
    /// Of these, used more than once, or dirty, or both.
    pub needed_blocks: u64,
}

impl World<'_> {
    /// Records which blocks the moving VM uses more than once before it stops.
    pub(super) fn note_use(&mut self, vm: usize, access: &Access) {
        let is_counted = self.vms[vm].role == Role::Moves
            && self.moments.stopped_ns.is_none()
            && matches!(access.op, Op::Read | Op::Write);
        for block in self.grids.blocks(access).filter(|_| is_counted) {
            let key = Key::new(access.volume, block);
            if self.seen.insert(key) {
                self.reused.insert(key);
            }
        }
    }

    /// Counts the cached blocks of the moving VM. The core lists the blocks on flash; blocks that are staged,
    /// only or also, are found by comparison with the origin, so that each counts once.
    pub(super) fn count_cached(&mut self) {
        let host = &self.hosts[SOURCE];
        for mover in &host.movers {
            let Some(disk) = mover.migration.disk() else { continue };
            let (mut cached, mut dirty) = (KeySet::default(), KeySet::default());
            let mut from = Some(ListCursor::default());
            while let Some(at) = from {
                from = host.core.list_cached(disk, at, |block| {
                    cached.insert(Key::new(mover.volume, block.block.0));
                });
            }
            for (block, answered) in self.checker.answered(mover.volume) {
                let first = SectorNo(block * SECTORS_PER_BLOCK);
                let at_origin = self.origin.read(mover.volume, first, SECTORS);
                for (sector, (has, answered)) in (first.0..).zip(at_origin.iter().zip(answered)) {
                    if *has < answered {
                        let key = self.grids.key(mover.volume, sector);
                        cached.insert(key);
                        dirty.insert(key);
                    }
                }
            }
            for key in cached.iter() {
                let (is_reused, is_dirty) = (self.reused.contains(key), dirty.contains(key));
                self.cached.blocks += 1;
                self.cached.reused_blocks += u64::from(is_reused);
                self.cached.dirty_blocks += u64::from(is_dirty);
                self.cached.needed_blocks += u64::from(is_reused || is_dirty);
            }
        }
    }

    /// Blocks that a VM has read so far, on both hosts.
    fn reads(&self, vm: usize) -> Reads {
        let mut reads = Reads::default();
        for host in &self.hosts {
            for volume in &self.vms[vm].volumes {
                if let Some(stats) = host.disk(*volume).and_then(|disk| host.core.disk_stats(disk)) {
                    reads.hits += stats.read_hits;
                    reads.all += stats.read_hits + stats.read_misses;
                    reads.written += stats.write_hits + stats.write_misses;
                }
            }
        }
        reads
    }

    pub(super) fn mark(&mut self) {
        self.marks += 1;
        self.origin_marks.push(self.origin_traffic);
        for vm in 0..self.vms.len() {
            let reads = self.reads(vm);
            self.meters[vm].mark(reads);
        }
    }

    pub(super) fn sample(&mut self) {
        let marks_ns = self.plan.marks_ns();
        let seconds = self.sample_ns as f64 / 1e9;
        let time_seconds = (self.now_ns - self.zero_ns) as f64 / 1e9 - marks_ns[2] as f64 / 1e9;
        for vm in 0..self.vms.len() {
            let reads = self.reads(vm);
            self.meters[vm].sample(time_seconds, seconds, reads);
        }
        let link_bytes = self.links.iter().map(|link| link.sent.bytes()).sum();
        if let Some((earlier_bytes, earlier_origin)) = self.sampled.replace((link_bytes, self.origin_traffic))
        {
            let origin = self.origin_traffic.since(earlier_origin);
            self.samples.push(LoadSample {
                time_seconds,
                link_bytes_per_second: (link_bytes - earlier_bytes) as f64 / seconds,
                origin_bytes_per_second: (origin.read_bytes + origin.written_bytes) as f64 / seconds,
            });
        }
        if self.now_ns + self.sample_ns <= self.zero_ns + marks_ns[3] {
            self.plan_at(self.now_ns + self.sample_ns, What::Sample);
        }
    }
}
