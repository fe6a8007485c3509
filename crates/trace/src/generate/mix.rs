//! Reads and writes of given sizes, at places chosen by a pattern.

use serde::{Deserialize, Serialize};

use super::error::{GenerateError, require};
use super::pattern::{Pattern, Step};
use super::profile::BLOCK_BYTES;
use super::random::Random;
use super::stack::Extent;
use crate::access::Op;

/// The kinds and sizes of requests, wherever they go.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Mix {
    /// The share of reads; the others are writes. 0 to 1.
    pub read: f64,
    /// Sizes in bytes, with weights.
    pub sizes: Vec<(u32, f64)>,
}

impl Default for Mix {
    fn default() -> Self {
        Mix { read: 0.7, sizes: vec![(BLOCK_BYTES as u32, 1.0)] }
    }
}

impl Mix {
    pub(super) fn check(&self, blocks: u64) -> Result<(), GenerateError> {
        check_blocks(blocks)?;
        require((0.0..=1.0).contains(&self.read), "share of reads", &self.read, "0 to 1")?;
        let weights = || self.sizes.iter().map(|size| size.1);
        let sum: f64 = weights().sum();
        let shown = || format!("{:?}", self.sizes);
        require(weights().all(|weight| weight >= 0.0), "weights of sizes", &shown(), "none below 0")?;
        require(sum.is_finite() && sum > 0.0, "weights of sizes", &shown(), "a sum above 0")?;
        let fits = |bytes: u32| bytes > 0 && u64::from(bytes) <= blocks * BLOCK_BYTES;
        require(
            self.sizes.iter().all(|size| fits(size.0)),
            "sizes",
            &shown(),
            "from 1 byte to the volume's size",
        )
    }

    /// Draws whether the next request is a read.
    pub(super) fn op(&self, random: &mut Random) -> Op {
        if random.chance(self.read) { Op::Read } else { Op::Write }
    }

    fn size(&self, sum: f64, random: &mut Random) -> u32 {
        if let [(bytes, _)] = self.sizes[..] {
            return bytes;
        }
        let mut at = random.unit() * sum;
        let found = self.sizes.iter().find(|(_, weight)| {
            at -= weight;
            at < 0.0
        });
        found.map_or(self.sizes[0].0, |size| size.0)
    }
}

/// Refuses volumes without blocks and those with more than can be addressed.
pub(super) fn check_blocks(blocks: u64) -> Result<(), GenerateError> {
    require((1..=Extent::VOLUME_LIMIT).contains(&blocks), "blocks", &blocks, "1 to 2^46")
}

/// Where requests go.
pub(super) trait Place: Send {
    /// Returns the block at which the next request, of n blocks, begins. `share` is the part of the trace generated
    /// so far.
    fn place(&mut self, bytes: u32, share: f64, random: &mut Random) -> u64;
}

/// A mix of requests at places.
pub(super) struct Mixed<P> {
    place: P,
    mix: Mix,
    sum: f64,
    end_bytes: u64,
}

impl<P: Place> Mixed<P> {
    /// Makes requests to a volume of n blocks; the mix has been checked.
    pub fn new(place: P, mix: Mix, blocks: u64) -> Self {
        let sum = mix.sizes.iter().map(|size| size.1).sum();
        Mixed { place, mix, sum, end_bytes: blocks * BLOCK_BYTES }
    }
}

impl<P: Place> Pattern for Mixed<P> {
    fn next(&mut self, share: f64, random: &mut Random) -> Step {
        let op = self.mix.op(random);
        let length_bytes = self.mix.size(self.sum, random);
        let offset_bytes = self.place.place(length_bytes, share, random) * BLOCK_BYTES;
        // A request that would exceed the volume is moved to its end.
        let offset_bytes = offset_bytes.min(self.end_bytes - u64::from(length_bytes));
        Step { volume: 0, offset_bytes, length_bytes, op }
    }
}
