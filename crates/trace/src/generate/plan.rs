//! The reuse distances that are due.
//!
//! Each range of distances, and new data, is due a share of the references so far. The next one is drawn in
//! proportion to what is due, so the shares come out exactly although single draws deviate, and the order stays
//! random.

use super::profile::Distances;
use super::random::Random;

/// References are drawn as if this number more had already been made: one in n of all. Larger values stay random for
/// longer, smaller ones are more exact at the end.
const HORIZON: u64 = 1000;

/// The most by which requests are enlarged to make room for small ones.
const MOST_GROWTH: f64 = 16.0;
/// Iterations to find this factor; each makes fewer distances long enough.
const ROUNDS: usize = 8;

/// A range of reuse distances and the references that it is due.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    /// The shortest distance, in blocks.
    pub from: u64,
    /// The longest.
    pub upto: u64,
    share: f64,
    done: u64,
}

/// The references due.
pub(super) struct Plan {
    ranges: Vec<Range>,
    new_share: f64,
    new_done: u64,
    unique: u64,
    done: u64,
    horizon: f64,
}

impl Plan {
    /// Plans `refs` references, `unique` of them to new blocks, the others with distances as given.
    pub fn new(distances: &[Distances], refs: u64, unique: u64) -> Self {
        let new_share = unique as f64 / refs as f64;
        let sum: f64 = distances.iter().map(|range| range.share).sum();
        let mut ranges: Vec<Range> = Vec::new();
        for distance in distances {
            let upto = distance.upto.min(unique.saturating_sub(1));
            let share = distance.share / sum * (1.0 - new_share);
            let from = ranges.last().map_or(0, |last| last.upto + 1);
            match ranges.last_mut().filter(|last| last.upto == upto) {
                Some(last) => last.share += share,
                None => ranges.push(Range { from, upto, share, done: 0 }),
            }
        }
        let horizon = (refs / HORIZON).max(64) as f64;
        Plan { ranges, new_share, new_done: 0, unique, done: 0, horizon }
    }

    /// Returns how much larger than the mean of `mean_blocks` requests must be, if the distances are not too short
    /// for them: a visit at a short distance can only be for few blocks. `known` is the share of their blocks that
    /// are known.
    pub fn growth(&self, mean_blocks: f64, known: f64) -> f64 {
        let known = known / (1.0 - self.new_share).max(f64::MIN_POSITIVE);
        let mut blocks = mean_blocks;
        for _ in 0..ROUNDS {
            let (mut refs, mut requests) = (0.0, 0.0);
            for range in self.ranges.iter().filter(|range| ((range.from + 1) as f64) < blocks) {
                let (from, to) = ((range.from + 1) as f64, (range.upto + 2) as f64);
                let short = to.min(blocks + 1.0);
                let share = known * range.share * (short / from).ln() / (to / from).ln();
                refs += share;
                // The mean of a logarithmic distribution, minus half a block because it is rounded down.
                requests += share / ((short - from) / (short / from).ln() - 0.5).max(1.0);
            }
            let left = (1.0 / mean_blocks - requests).max(1.0 / mean_blocks / MOST_GROWTH);
            blocks = ((1.0 - refs) / left).clamp(mean_blocks, mean_blocks * MOST_GROWTH);
        }
        blocks / mean_blocks
    }

    /// Draws what comes next while `known` blocks are known: a range of distances, or `None` for new data, which also
    /// replaces distances that do not exist yet. Ranges that end below `shortest` are skipped.
    pub fn draw(&self, known: u64, shortest: u64, random: &mut Random) -> Option<Range> {
        let reached = self.done as f64 + self.horizon;
        let owed = |share: f64, done: u64| (share * reached - done as f64).max(0.0);
        // Separate from the others: even if distances cannot come out as planned, footprints must.
        let new = owed(self.new_share, self.new_done).min((self.unique - self.new_done) as f64);
        if random.chance(new / self.horizon) {
            return None;
        }
        let ranges = &self.ranges[self.ranges.partition_point(|range| range.upto < shortest)..];
        let all: f64 = ranges.iter().map(|range| owed(range.share, range.done)).sum();
        let mut at = random.unit() * all;
        for range in ranges {
            at -= owed(range.share, range.done);
            if at < 0.0 {
                return Some(*range).filter(|range| range.from < known);
            }
        }
        None
    }

    /// Counts blocks referenced at a distance, or for the first time.
    pub fn count(&mut self, distance: Option<u64>, blocks: u32) {
        let blocks = u64::from(blocks);
        self.done += blocks;
        match distance {
            None => self.new_done += blocks,
            Some(distance) => {
                let at = self.ranges.partition_point(|range| range.upto < distance);
                // Distances longer than planned belong to no range.
                if let Some(range) = self.ranges.get_mut(at) {
                    range.done += blocks;
                }
            }
        }
    }
}

impl Range {
    /// Returns whether it is a distance of the range.
    pub fn holds(&self, distance: u64) -> bool {
        (self.from..=self.upto).contains(&distance)
    }

    /// Returns a range of only the longest distance that exists while `known` blocks are known.
    pub fn deepest(known: u64) -> Self {
        Range { from: known - 1, upto: known - 1, share: 0.0, done: 0 }
    }

    /// Draws a distance of the range that exists while `known` blocks are known, with a logarithmic distribution.
    pub fn distance(&self, known: u64, random: &mut Random) -> u64 {
        let upto = self.upto.min(known - 1);
        let (from, to) = (self.from as f64 + 1.0, upto as f64 + 2.0);
        let distance = from * (to / from).powf(random.unit());
        (distance as u64 - 1).clamp(self.from.min(upto), upto)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_come_out_though_draws_stray() {
        let distances = [(0, 1.0), (9, 2.0), (99, 3.0), (99, 2.0), (999, 2.0)];
        let distances = distances.map(|(upto, share)| Distances { upto, share });
        let mut plan = Plan::new(&distances, 100_000, 20_000);
        let mut random = Random::new(1, 0);
        while plan.done < 100_000 {
            match plan.draw(plan.new_done, 0, &mut random) {
                // Every fourth one becomes longer than it should be.
                Some(range) => {
                    let distance = range.distance(plan.new_done, &mut random);
                    assert!((range.from..=range.upto).contains(&distance));
                    plan.count(Some(if random.chance(0.25) { (distance * 3).min(999) } else { distance }), 1);
                }
                None => plan.count(None, 1),
            }
        }
        let done: Vec<u64> = plan.ranges.iter().map(|range| range.done).collect();
        let wanted = [8_000, 16_000, 40_000, 16_000];
        assert_eq!(done.len(), wanted.len());
        for (done, wanted) in done.iter().zip(wanted) {
            assert!(done.abs_diff(wanted) < 200, "{done} {wanted}");
        }
        assert!(plan.new_done.abs_diff(20_000) < 200, "{}", plan.new_done);
    }
}
