//! Scans: sequential, or with a stride, repeatedly from the volume's beginning to its end.

use super::mix::Place;
use super::profile::BLOCK_BYTES;
use super::random::Random;

/// The next block, and the stride; `None` for sequential scans, which continue where a request ended.
pub(super) struct Scan {
    pub blocks: u64,
    pub next: u64,
    pub stride: Option<u64>,
}

impl Place for Scan {
    fn place(&mut self, bytes: u32, _: f64, _: &mut Random) -> u64 {
        let length = u64::from(bytes).div_ceil(BLOCK_BYTES);
        if self.next + length > self.blocks {
            self.next = 0;
        }
        let at = self.next;
        self.next += self.stride.unwrap_or(length);
        at
    }
}
