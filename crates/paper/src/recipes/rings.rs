//! Hit ratios estimated from rings of several sizes: the last accesses of a disk that fit show which reads come back
//! within a distance (vCacheShare, sections 3 to 4.2 and figure 2). Reads of blocks that are not covered as a whole do
//! not count.

use std::path::Path;

use haversack_analyze::{Class, Kind, Sampler};
use haversack_model::BLOCK_BYTES;
use haversack_sim::mix::Mix;
use haversack_sim::{Progress, SimError, Stage};
use haversack_trace::{Access, Op};

use crate::error::Failure;
use crate::measure::Quantity;
use crate::outcome::{Outcome, Point};
use crate::recipe::Rings;

/// Fills the rings.
pub(crate) fn run(recipe: &Rings, mix: &Mix, progress: &Progress<'_>) -> Result<Outcome, Failure> {
    let [_] = &mix.disks[..] else { return Err(Failure::Recipe("rings are of one disk".into())) };
    let sizes: Vec<u64> = recipe.caches.iter().map(|size| size.0 / BLOCK_BYTES as u64).collect();
    let entries = |bytes: u64| bytes / recipe.entry.0.max(1);
    let mut rings: Vec<Ring> = recipe.rings.iter().map(|ring| Ring::new(entries(ring.0), &sizes)).collect();
    let mut source = mix.open(Path::new("."))?;
    let mut batch = Vec::new();
    while source.read(&mut batch).map_err(SimError::from)? > 0 {
        for access in batch.drain(..).filter(|access| matches!(access.op, Op::Read | Op::Write)) {
            rings.iter_mut().for_each(|ring| ring.note(&access));
        }
        progress(Stage::Play, source.progress().unwrap_or(0.0));
    }
    let mut outcome = Outcome::default();
    for (size, ring) in recipe.rings.iter().zip(rings) {
        let (estimates, largest) = ring.end();
        let name = size.to_string();
        let mut whole = Point::new(&name, None);
        whole.set(Quantity::UrdSize, largest.map(|blocks| bytes(blocks + 1)));
        outcome.points.push(whole);
        for (blocks, hits) in sizes.iter().zip(estimates) {
            let mut point = Point::new(&name, Some(bytes(*blocks)));
            point.set(Quantity::ReadsAloneHits, hits);
            outcome.points.push(point);
        }
    }
    Ok(outcome)
}

fn bytes(blocks: u64) -> f64 {
    blocks as f64 * BLOCK_BYTES as f64
}

/// A ring of entries, which is evaluated and emptied whenever it is full.
struct Ring {
    entries: u64,
    held: u64,
    sampler: Sampler,
    sizes: Vec<u64>,
    /// The estimates of the rings so far, summed.
    sums: Vec<f64>,
    fills: u64,
    /// The largest distance so far.
    largest: Option<u64>,
}

impl Ring {
    fn new(entries: u64, sizes: &[u64]) -> Ring {
        Ring {
            entries: entries.max(1),
            held: 0,
            sampler: exact(sizes),
            sizes: sizes.to_vec(),
            sums: vec![0.0; sizes.len()],
            fills: 0,
            largest: None,
        }
    }

    /// Notes an access. Writes take an entry too.
    fn note(&mut self, access: &Access) {
        if access.op == Op::Read {
            let block = BLOCK_BYTES as u64;
            let end = access.offset_bytes.saturating_add(u64::from(access.length_bytes)) / block;
            (access.offset_bytes.div_ceil(block)..end)
                .for_each(|block| self.sampler.access(block, Kind::Read));
        }
        self.held += 1;
        if self.held == self.entries {
            self.evaluate();
        }
    }

    fn evaluate(&mut self) {
        let sampler = std::mem::replace(&mut self.sampler, exact(&self.sizes));
        let profile = sampler.profile();
        self.held = 0;
        if profile.reads() == 0.0 {
            return;
        }
        let again = profile.class(Class::Rar);
        for (sum, size) in self.sums.iter_mut().zip(&self.sizes) {
            *sum += again.below(*size) / profile.reads();
        }
        self.largest = self.largest.max(again.largest());
        self.fills += 1;
    }

    /// Returns the mean estimates at each size, and the largest distance. What a ring that was never full has counts
    /// alone.
    fn end(mut self) -> (Vec<Option<f64>>, Option<u64>) {
        if self.fills == 0 {
            self.evaluate();
        }
        let fills = self.fills;
        let mean = |sum: &f64| (fills > 0).then(|| sum / fills as f64);
        (self.sums.iter().map(mean).collect(), self.largest)
    }
}

/// A sample of all blocks.
fn exact(sizes: &[u64]) -> Sampler {
    Sampler::fixed_size_from(usize::MAX, 1.0).exact_at(sizes)
}

#[cfg(test)]
mod tests {
    use haversack_trace::VolumeNo;

    use super::*;

    /// Reads two blocks in turn, with a write between them now and then.
    fn access(number: u64) -> Access {
        let op = if number % 4 == 3 { Op::Write } else { Op::Read };
        Access {
            time_ns: number,
            volume: VolumeNo(0),
            op,
            offset_bytes: number % 2 * 4096,
            length_bytes: 4096,
        }
    }

    #[test]
    fn a_larger_ring_sees_more_reads_come_back() {
        // Of a thousand reads.
        let estimate = |entries: u64| {
            let mut ring = Ring::new(entries, &[1, 2]);
            (0..64).for_each(|number| ring.note(&access(number)));
            let (found, largest) = ring.end();
            let thousandths = found.into_iter().map(|hits| (hits.unwrap() * 1000.0).round() as u64);
            (thousandths.collect::<Vec<_>>(), largest)
        };
        // Reads of 0, 1, 0, then a write. The second read of block 0 has one other block before it.
        assert_eq!(estimate(4), (vec![0, 333], Some(1)));
        // 0, 1, 0, 0, 1, 0 with two writes: four of six come back, one of them at once.
        assert_eq!(estimate(8), (vec![167, 667], Some(1)));
        // A ring that is never full: 48 reads, of which two are the first of their block.
        assert_eq!(estimate(1000).0[1], 958);
    }

    #[test]
    fn blocks_that_are_not_read_as_a_whole_do_not_count() {
        let mut ring = Ring::new(2, &[8]);
        (0..2).for_each(|_| ring.note(&Access { offset_bytes: 2048, ..access(0) }));
        assert_eq!(ring.end(), (vec![None], None));
    }
}
