//! A boot storm: virtual machines of one image that start within a short time.
//!
//! Each reads the same parts of its copy of the image in the same order, as runs of neighbouring blocks, and writes a
//! few blocks of its own: logs and swap. Every volume has a copy of the image, so a host that deduplicates blocks has
//! an advantage.

use super::pattern::{Pattern, Step};
use super::profile::BLOCK_BYTES;
use super::random::Random;
use crate::access::Op;

/// The share of requests that write.
const WRITES: f64 = 0.1;
/// The last part of each volume is its own: one in n blocks.
const OWN: u64 = 16;
/// The longest run of the image read with one request, in blocks.
const LONGEST: u64 = 32;

pub(super) struct Boot {
    /// First blocks and lengths, the same for all.
    sequence: Vec<(u64, u32)>,
    /// The progress of each machine.
    at: Vec<usize>,
    blocks: u64,
    /// The share of the trace within which machines start.
    storm: f64,
}

impl Boot {
    /// Makes machines with volumes of n blocks, of which a boot reads a share.
    pub fn new(volumes: u32, blocks: u64, read: f64, storm: f64, seed: u64) -> Self {
        let image = (blocks - blocks / OWN).max(1);
        let mut random = Random::new(seed, u64::MAX);
        let (mut sequence, mut left) = (Vec::new(), ((image as f64 * read) as u64).max(1));
        while left > 0 {
            let length = (1 + random.below(LONGEST)).min(left).min(image);
            sequence.push((random.below(image - length + 1), length as u32));
            left -= length;
        }
        Boot { sequence, at: vec![0; volumes as usize], blocks, storm }
    }
}

impl Pattern for Boot {
    fn next(&mut self, share: f64, random: &mut Random) -> Step {
        let volumes = self.at.len();
        let started = if self.storm > 0.0 { share / self.storm } else { 1.0 };
        let started = ((started * volumes as f64) as usize + 1).min(volumes);
        let volume = random.below(started as u64) as usize;
        let own = self.blocks / OWN;
        if own > 0 && random.chance(WRITES) {
            let offset_bytes = (self.blocks - 1 - random.below(own)) * BLOCK_BYTES;
            return Step {
                volume: volume as u32,
                offset_bytes,
                length_bytes: BLOCK_BYTES as u32,
                op: Op::Write,
            };
        }
        let (block, length) = self.sequence[self.at[volume]];
        // A machine that has booted boots again.
        self.at[volume] = (self.at[volume] + 1) % self.sequence.len();
        Step {
            volume: volume as u32,
            offset_bytes: block * BLOCK_BYTES,
            length_bytes: length * BLOCK_BYTES as u32,
            op: Op::Read,
        }
    }
}
