//! A backup over a base load: a scan of the whole volume joins a Zipf load for a part of the trace.

use super::mix::Mixed;
use super::pattern::{Pattern, Step};
use super::profile::BLOCK_BYTES;
use super::random::Random;
use super::zipf::Zipf;
use crate::access::Op;

/// Blocks that the backup reads with one request.
const READ: u64 = 64;
/// The backup begins after this share of the trace.
const BEGIN: f64 = 0.3;

pub(super) struct Backup {
    pub base: Mixed<Zipf>,
    pub blocks: u64,
    pub next: u64,
    /// The share of requests that the backup makes while it runs.
    pub share: f64,
}

impl Pattern for Backup {
    fn next(&mut self, share: f64, random: &mut Random) -> Step {
        if share < BEGIN || self.next >= self.blocks || !random.chance(self.share) {
            return self.base.next(share, random);
        }
        let length = READ.min(self.blocks - self.next);
        let offset_bytes = self.next * BLOCK_BYTES;
        self.next += length;
        Step { volume: 0, offset_bytes, length_bytes: (length * BLOCK_BYTES) as u32, op: Op::Read }
    }
}
