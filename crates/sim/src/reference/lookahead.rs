//! MIN with a trace: first the whole trace is read, then each size is played.
//!
//! Only accesses that can bring a block into the cache are accesses of MIN. In modes in which writes do, both reads and
//! writes are; in the others only reads are. There a write updates the block if it is cached (wa), or drops it, so that
//! it can no longer be hit (wi). What passes the cache (pt) misses. A block that MIN bypasses is not written to flash.

use haversack_model::WriteMode;
use haversack_trace::{Access, Op};

use super::PolicyName;
use super::min::{Future, MinStep, replay};
use crate::cell::{Cell, CellResult};
use crate::counts::Counts;
use crate::error::SimError;
use crate::grid::Grids;
use crate::key::{self, Key};
use crate::meter::{Meter, MeterSettings};

/// See the module.
pub struct Lookahead {
    sizes: Vec<u64>,
    grids: Grids,
    mode: WriteMode,
    warm_up_requests: u64,
    requests: u64,
    /// Accesses and looks of the warm-up, and the simulated time at which it ended.
    warm_up: usize,
    warm_up_looks: usize,
    warm_ns: u64,
    /// What counts after the warm-up whatever the size.
    beside: Counts,
    future: Future,
    /// Which accesses are writes, as bits.
    writes: Vec<u64>,
}

impl Lookahead {
    /// MIN with these sizes.
    pub fn new(sizes: Vec<u64>, grids: Grids, mode: WriteMode, meter: MeterSettings) -> Self {
        Lookahead {
            sizes,
            grids,
            mode,
            warm_up_requests: meter.warm_up_requests,
            requests: 0,
            warm_up: 0,
            warm_up_looks: 0,
            beside: Counts::default(),
            warm_ns: 0,
            future: Future::default(),
            writes: Vec::new(),
        }
    }

    fn request(&mut self, access: &Access) -> Result<(), SimError> {
        if self.requests == self.warm_up_requests {
            (self.warm_up, self.warm_up_looks) = (self.future.len(), self.future.looks());
            self.beside = Counts::default();
            self.warm_ns = access.time_ns;
        }
        self.requests += 1;
        let blocks = match access.op {
            Op::Flush => return Ok(()),
            Op::Discard => self.grids.whole_blocks(access),
            Op::Read | Op::Write => {
                let (first, last) = self.grids.blocks(access).into_inner();
                first..last + 1
            }
        };
        key::check(access.volume, blocks.end, self.grids.block_bytes())?;
        for block in blocks {
            let key = Key::new(access.volume, block);
            match access.op {
                Op::Read => self.read(key)?,
                Op::Write => self.write(key)?,
                Op::Discard | Op::Flush => self.future.remove(key),
            }
        }
        Ok(())
    }

    fn read(&mut self, key: Key) -> Result<(), SimError> {
        if self.mode == WriteMode::PassThrough {
            self.beside.read_misses += 1;
            return Ok(());
        }
        self.note(false);
        self.future.access(key)
    }

    fn write(&mut self, key: Key) -> Result<(), SimError> {
        if self.mode.caches_write(false) {
            self.note(true);
            return self.future.access(key);
        }
        let updates = self.mode.caches_write(true);
        if !updates {
            self.future.remove(key);
        }
        if !(updates && self.future.look(key)) {
            self.beside.write_misses += 1;
        }
        Ok(())
    }

    fn note(&mut self, write: bool) {
        let place = self.future.len();
        if place.is_multiple_of(64) {
            self.writes.push(0);
        }
        self.writes[place / 64] |= u64::from(write) << (place % 64);
    }

    fn play_size(&self, blocks: u64) -> CellResult {
        let (mut counts, mut updates) = (self.beside, 0);
        let each = |place: usize, step: MinStep| {
            if place < self.warm_up {
                return;
            }
            if self.writes[place / 64] & (1 << (place % 64)) != 0 {
                counts.write_hits += u64::from(step.hit);
                counts.write_misses += u64::from(!step.hit);
                counts.flash_guest_blocks += u64::from(step.kept);
            } else {
                counts.read_hits += u64::from(step.hit);
                counts.read_misses += u64::from(!step.hit);
                counts.flash_fill_blocks += u64::from(step.kept && !step.hit);
            }
        };
        replay(&self.future, blocks as usize, each, |look, is_cached| {
            updates += u64::from(is_cached && look >= self.warm_up_looks);
        });
        counts.write_hits += updates;
        counts.write_misses += (self.future.looks() - self.warm_up_looks) as u64 - updates;
        counts.flash_guest_blocks += updates;
        counts.origin_read_bytes = counts.read_misses * self.grids.block_bytes();
        let mut measured = Meter::new(MeterSettings::default()).end();
        measured.volumes = vec![counts];
        measured.warm_ns = self.warm_ns;
        CellResult::new(PolicyName::Min, Some(blocks), measured)
    }
}

impl Cell for Lookahead {
    fn play(&mut self, accesses: &[Access]) -> Result<(), SimError> {
        accesses.iter().try_for_each(|access| self.request(access))
    }

    fn end(mut self: Box<Self>) -> Result<Vec<CellResult>, SimError> {
        self.future.end();
        Ok(self.sizes.iter().map(|blocks| self.play_size(*blocks)).collect())
    }
}
