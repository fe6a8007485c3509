//! What admission weighs: what a hit saves, and what a flash write must save to be worth it.

use crate::Op;

/// The price of a flash write by default, in microseconds of latency that a block written to flash must save. If a hit
/// saves half a millisecond or more, a block that is worth its space is also worth its write. With a faster origin,
/// fewer blocks are worth their write.
pub const WRITE_PRICE_US: f32 = 500.0;

/// The assumed latency of an origin while nothing was measured, in microseconds.
const UNKNOWN_US: f32 = 1000.0;

/// Prices at the time of an access, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Prices {
    /// What a hit by a read saves: the mean latency of reads of the origin.
    pub read_us: f32,
    /// What a hit by a write saves: the mean latency of writes to the origin.
    pub write_us: f32,
    /// What a block written to flash must save.
    pub flash_write_us: f32,
    /// What a block would have to save to be worth staying for as long as blocks currently do: what evicted blocks
    /// would have saved. It is reported and not used.
    pub space_us: f32,
    /// The factor for the bounds of what is worth its space.
    pub strictness: f32,
}

impl Default for Prices {
    /// Nothing was measured.
    fn default() -> Prices {
        Prices {
            read_us: UNKNOWN_US,
            write_us: UNKNOWN_US,
            flash_write_us: WRITE_PRICE_US,
            space_us: 0.0,
            strictness: 1.0,
        }
    }
}

impl Prices {
    /// Returns what a hit by such an access saves.
    #[inline]
    pub fn saved_us(&self, op: Op) -> f32 {
        match op {
            Op::Read => self.read_us,
            Op::Write => self.write_us,
        }
    }
}

/// The figures that a learning filter currently uses.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Figures {
    /// The prices at the last access.
    pub prices: Prices,
    /// How long a block stays after its last use, in block accesses of the pool; none while the pool is not full.
    pub stay: Option<u64>,
    /// Every category that was seen.
    pub categories: Vec<CategoryFigures>,
}

/// What is known of one category of accesses.
#[derive(Clone, PartialEq, Debug)]
pub struct CategoryFigures {
    /// The kind of access.
    pub op: Op,
    /// How long ago the block was accessed before, as a range in units of the time in which it must be used again;
    /// none if no earlier access is remembered.
    pub age: Option<(f32, f32)>,
    /// Earlier accesses that are remembered: 0, 1, or 2 for more.
    pub earlier: u8,
    /// The most blocks of its requests: 1, 4, 16, or more.
    pub most_blocks: u32,
    /// Whether its requests continue earlier ones.
    pub continues: bool,
    /// Samples that currently count.
    pub samples: f32,
    /// The share of its blocks that is used again in time.
    pub ratio: f32,
    /// What a block of it saves in that time, in microseconds.
    pub value_us: f32,
    /// Whether a block of it may enter.
    pub admitted: bool,
}
