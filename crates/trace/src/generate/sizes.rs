//! Sizes of requests: a mix of a given shape, scaled to a given mean; and how the number of requests is kept as
//! planned.

use super::profile::{BLOCK_BYTES, Kind};
use super::random::Random;
use super::stack::Extent;

const SECTOR_BYTES: u64 = 512;
/// The fraction of the remaining requests that may be reserved for later small visits.
const SAVED: f64 = 0.3;
const NOT_SAVED: f64 = 100.0;
/// Points at which the shape is stored.
const POINTS: usize = 256;

/// Sizes of reads, or of writes.
pub(super) struct Sizes {
    /// Blocks, at equal steps of the distribution.
    points: Vec<f64>,
    keep_mix: bool,
    /// Mean blocks per request.
    mean_blocks: f64,
    /// Mean bytes of its blocks that a request leaves out.
    slack_bytes: f64,
    /// Requests due for the blocks so far, minus those made.
    due: f64,
    /// Bytes that should have been left out so far, minus those left out.
    slack: f64,
    /// The surplus or deficit of requests at which sizes change.
    gentle: f64,
    /// Remaining requests.
    left: f64,
}

impl Sizes {
    /// `growth` is how much larger requests for new data are than the mean: it compensates for small ones for
    /// recently used data. Without it the mix is kept.
    pub fn new(kind: &Kind, growth: Option<f64>) -> Self {
        let mean_blocks = kind.mean_blocks().max(1.0);
        let bytes = kind.bytes.unwrap_or(kind.refs * BLOCK_BYTES);
        let slack_bytes =
            (kind.refs * BLOCK_BYTES).saturating_sub(bytes) as f64 / kind.requests.max(1) as f64;
        let points = to_mean(&shape(kind), mean_blocks * growth.unwrap_or(1.0));
        let gentle = 1.0 + kind.requests as f64 / 400.0;
        let keep_mix = growth.is_none();
        Sizes {
            points,
            keep_mix,
            mean_blocks,
            slack_bytes,
            due: 0.0,
            slack: 0.0,
            gentle,
            left: kind.requests as f64,
        }
    }

    /// Returns the blocks of a request for new data; more after requests were too small, unless the mix is kept.
    pub fn draw(&self, random: &mut Random) -> u32 {
        let size = self.points[random.below(POINTS as u64) as usize];
        let growth = if self.keep_mix { 1.0 } else { 1.0 + (-self.due / self.gentle).clamp(0.0, 15.0) };
        random.round(size * growth).clamp(1, u64::from(Extent::LIMIT)) as u32
    }

    /// Returns the smallest size, in blocks.
    pub fn smallest(&self) -> f64 {
        self.points.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// Returns whether there are too many requests already, so that none should be small.
    pub fn too_many(&self) -> bool {
        -self.due > 2.0 * self.gentle
    }

    /// Returns whether a visit of n blocks should wait because there are too many requests already.
    pub fn unwelcome(&self, blocks: u32, splits: bool) -> bool {
        (self.due < 0.0 && splits) || (self.too_many() && f64::from(blocks) < self.mean_blocks)
    }

    /// Returns the blocks of a typical request.
    pub fn typical(&self) -> u64 {
        self.mean_blocks as u64
    }

    /// Returns the shortest distance that the number of requests allows, in blocks.
    pub fn shortest(&self) -> u64 {
        if self.too_many() { self.typical() } else { 0 }
    }

    /// Returns the number of requests for n consecutive blocks.
    pub fn requests(&mut self, blocks: u32) -> u32 {
        self.due += f64::from(blocks) / self.mean_blocks;
        // Sizes vary: more than one only if many are due, with some reserved for later small visits.
        let saved = SAVED * (self.left - NOT_SAVED).max(0.0);
        let requests = ((self.due - self.gentle - saved) as u32).clamp(1, blocks);
        self.due -= f64::from(requests);
        self.left = (self.left - f64::from(requests)).max(0.0);
        requests
    }

    /// Returns the bytes left out at the beginning and at the end of a request for n blocks; it still touches each of
    /// them.
    pub fn slack(&mut self, blocks: u32) -> (u64, u64) {
        self.slack += self.slack_bytes;
        let ends = if blocks == 1 { 1 } else { 2 };
        let most = ends * (BLOCK_BYTES - SECTOR_BYTES);
        let sectors = (self.slack.max(0.0) as u64).min(most) / SECTOR_BYTES;
        self.slack -= (sectors * SECTOR_BYTES) as f64;
        let head = sectors / 2;
        (head * SECTOR_BYTES, (sectors - head) * SECTOR_BYTES)
    }
}

/// Returns the given mix at equal steps; without one, a geometric distribution.
fn shape(kind: &Kind) -> Vec<f64> {
    let quantiles = (0..POINTS).map(|at| (at as f64 + 0.5) / POINTS as f64);
    let sum: f64 = kind.sizes.iter().map(|size| size.1).sum();
    if sum <= 0.0 {
        return quantiles.map(|q| -(1.0 - q).ln()).collect();
    }
    let size = |q: f64| {
        let mut left = q * sum;
        let found = kind.sizes.iter().find(|(_, weight)| {
            left -= weight;
            left < 0.0
        });
        found.or(kind.sizes.last()).map_or(1.0, |size| size.0)
    };
    quantiles.map(size).collect()
}

/// Returns the shape times a factor, nothing below 1 block, so that it has the given mean.
fn to_mean(shape: &[f64], mean: f64) -> Vec<f64> {
    let scaled =
        |factor: f64| shape.iter().map(move |size| (size * factor).clamp(1.0, f64::from(Extent::LIMIT)));
    let (mut low, mut high) = (1e-9, 1e9);
    for _ in 0..100 {
        let middle = f64::sqrt(low * high);
        let found = scaled(middle).sum::<f64>() / shape.len() as f64;
        if found < mean { low = middle } else { high = middle }
    }
    scaled(high).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_kept_whatever_the_shape() {
        for (requests, refs, sizes) in [
            (1000, 1000, vec![]),
            (1000, 8000, vec![]),
            (1000, 4000, vec![(0.125, 1.0), (1.0, 1.0), (16.0, 1.0)]),
            (1000, 40_000, vec![(1.0, 1.0), (1.0, 1.0)]),
        ] {
            let bytes = Some(refs * BLOCK_BYTES - requests * 2048);
            let mut sizes = Sizes::new(&Kind { requests, refs, bytes, sizes }, Some(1.0));
            let mut random = Random::new(1, 0);
            let (mut blocks, mut asked, mut left_out) = (0, 0, 0);
            for _ in 0..100_000 {
                let extent = sizes.draw(&mut random);
                let pieces = sizes.requests(extent);
                blocks += u64::from(extent);
                asked += u64::from(pieces);
                for _ in 0..pieces {
                    let (head, tail) = sizes.slack(extent / pieces);
                    assert!(head < BLOCK_BYTES && tail < BLOCK_BYTES);
                    left_out += head + tail;
                }
            }
            let mean = blocks as f64 / asked as f64;
            assert!((mean / (refs as f64 / requests as f64) - 1.0).abs() < 0.01, "{mean}");
            assert!((left_out as f64 / asked as f64 / 2048.0 - 1.0).abs() < 0.01);
        }
    }
}
