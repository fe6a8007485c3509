//! How strict admission is: the blocks that it rejects are compared with the blocks that are evicted.
//!
//! A rejected block would have taken space on probation for a short time. An evicted block would have taken
//! the same space if it had stayed for that time longer. Each block that is used again within that time would
//! have been a hit. If the rejected blocks would have saved more, admission becomes less strict; otherwise
//! stricter. An admitted block costs a flash write, so it must save half as much again as an evicted one.
//! While hardly any blocks are rejected there is nothing to compare, and admission slowly returns to its own
//! bounds.
//!
//! Invariants
//! - Admission requires at least a tenth of its own bounds: it never admits everything.

use crate::format::codec::{Reader, Writer};

/// The time in which a use counts, as a share of the time that blocks stay.
pub(super) const WITHIN: f64 = 0.125;

/// Rejected blocks must save this many times the saving of evicted blocks.
const FLASH_WRITES: f32 = 1.5;

/// The two are compared when this many sampled blocks were rejected; then both counts are halved.
const COMPARED_AT: f32 = 256.0;
/// When this many sampled blocks were evicted and fewer were rejected, the counts are halved.
const MOST_COUNTED: f32 = 16.0 * COMPARED_AT;
const STEP: f32 = 0.05;
const LEAST: f32 = 0.1;
const MOST: f32 = 1.2;

/// Why a block is not in the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Gone {
    KeptOut,
    Evicted,
}

/// See the module.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Strictness {
    factor: f32,
    /// Sampled blocks that were rejected, and that were evicted.
    blocks: [f32; 2],
    /// The savings that those of them that were used again soon would have brought, in microseconds.
    saved_us: [f32; 2],
}

impl Default for Strictness {
    fn default() -> Strictness {
        Strictness::new(1.0)
    }
}

impl Strictness {
    /// Continues with a factor from before a restart.
    pub(super) fn new(factor: f32) -> Strictness {
        Strictness { factor: factor.clamp(LEAST, MOST), blocks: [0.0; 2], saved_us: [0.0; 2] }
    }

    /// Writes it for a checkpoint.
    pub(super) fn put(&self, w: &mut Writer) {
        let ([a, b], [c, d]) = (self.blocks, self.saved_us);
        for value in [self.factor, a, b, c, d] {
            w.u32(value.to_bits());
        }
    }

    /// Reads what [`Strictness::put`] wrote.
    pub(super) fn take(r: &mut Reader<'_>) -> Option<Strictness> {
        let mut value = || r.u32().map(f32::from_bits);
        Some(Strictness { factor: value()?, blocks: [value()?, value()?], saved_us: [value()?, value()?] })
    }

    /// Returns the factor for the bounds of admission.
    pub(super) fn factor(&self) -> f32 {
        self.factor
    }

    /// Notes that a sampled block is not in the cache, or no longer.
    pub(super) fn gone(&mut self, why: Gone) {
        self.blocks[why as usize] += 1.0;
        if self.blocks[Gone::KeptOut as usize] >= COMPARED_AT {
            self.compare();
        } else if self.blocks[Gone::Evicted as usize] >= MOST_COUNTED {
            self.factor += (1.0 - self.factor).clamp(-STEP, STEP);
            self.halve();
        }
    }

    /// Notes that such a block is used again within [`WITHIN`].
    pub(super) fn used_again(&mut self, why: Gone, saved_us: f32) {
        self.saved_us[why as usize] += saved_us;
    }

    fn compare(&mut self) {
        let mean_us = |why: Gone| self.saved_us[why as usize] / self.blocks[why as usize].max(1.0);
        let asks_too_much = mean_us(Gone::KeptOut) > mean_us(Gone::Evicted) * FLASH_WRITES;
        let change = if asks_too_much { -STEP } else { STEP };
        self.factor = (self.factor + change).clamp(LEAST, MOST);
        self.halve();
    }

    fn halve(&mut self) {
        self.blocks = self.blocks.map(|count| count / 2.0);
        self.saved_us = self.saved_us.map(|sum| sum / 2.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates equal numbers of blocks of either kind, of which these shares are used again soon.
    fn after(kept_out: f32, evicted: f32) -> f32 {
        let mut strictness = Strictness::default();
        for _ in 0..10_000 {
            for (why, share) in [(Gone::KeptOut, kept_out), (Gone::Evicted, evicted)] {
                strictness.gone(why);
                strictness.used_again(why, share * 1000.0);
            }
        }
        strictness.factor()
    }

    #[test]
    fn admission_asks_for_less_only_if_what_it_keeps_out_would_save_more() {
        assert_eq!(after(0.2, 0.1), LEAST);
        assert_eq!(after(0.2, 0.15), MOST, "not enough more for the flash writes");
        assert_eq!(after(0.0, 0.1), MOST);
        assert_eq!(after(0.0, 0.0), MOST);
    }

    #[test]
    fn it_returns_to_one_while_nothing_is_kept_out() {
        for factor in [LEAST, 1.0, MOST] {
            let mut strictness = Strictness::new(factor);
            (0..100_000).for_each(|_| strictness.gone(Gone::Evicted));
            assert_eq!(strictness.factor(), 1.0);
            assert!(strictness.blocks[1] <= MOST_COUNTED);
        }
        assert_eq!(Strictness::new(0.0).factor(), LEAST);
    }
}
