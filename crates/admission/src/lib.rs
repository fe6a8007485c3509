//! Admission filters: each file has one filter, a state machine over the block accesses of one disk.
//!
//! A filter is notified of every access, hit or miss, and decides for each miss whether the block may be
//! admitted now. It uses bounded memory, does not allocate while accesses arrive, and is deterministic. The
//! cache runs the filters and the control loop chooses them; both name them with [`Admit`].

mod always;
mod hec;
mod larc;
mod learned;
pub mod lru;
mod prices;
mod small_reads;
mod staging;

pub use always::Always;
pub use hec::Hec;
pub use larc::Larc;
pub use learned::{Learned, Malformed};
pub use prices::{CategoryFigures, Figures, Prices, WRITE_PRICE_US};
pub use small_reads::SmallReads;
pub use staging::{ENTRY_BYTES, Staging, StagingKind, divide};

use haversack_model::BlockNo;
use serde::{Deserialize, Serialize};

/// The kind of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// It reads the block.
    Read,
    /// It writes the block.
    Write,
}

/// An access to a block.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Access {
    /// Its kind.
    pub op: Op,
    /// The number of blocks of its request.
    pub blocks: u32,
    /// Whether its request continues an earlier one.
    pub continues: bool,
    /// The time, in accesses of the pool.
    pub now: u64,
    /// How long a block stays in the cache after its last use, in accesses of the pool, if any was evicted yet.
    pub stay: Option<u64>,
    /// What is currently saved and paid.
    pub prices: Prices,
    /// How much longer a rejected write takes than an admitted one, in microseconds, if measured: a rejected write
    /// waits for the origin. 0 for a read, and in modes in which every write waits.
    pub waits_us: f32,
}

impl Access {
    /// Returns what it saves if the cache has the block.
    #[inline]
    pub fn saved_us(&self) -> f32 {
        self.prices.saved_us(self.op)
    }
}

impl From<Op> for Access {
    /// Returns an access of one block of which nothing else is known.
    fn from(op: Op) -> Access {
        Access {
            op,
            blocks: 1,
            continues: false,
            now: 0,
            stay: None,
            prices: Prices::default(),
            waits_us: 0.0,
        }
    }
}

/// What to do with a block that is not in the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Verdict {
    /// Whether it is admitted now.
    pub admit: bool,
    /// Whether it is worth so much that it needs no probation.
    pub protect: bool,
    /// The block whose staged data must be dropped.
    pub forget: Option<BlockNo>,
}

/// The filter of one disk.
pub trait Admission: Send {
    /// Notes an access to a block that is in the cache.
    fn hit(&mut self, block: BlockNo, access: Access);

    /// Notes an access to a block that is not in the cache.
    fn miss(&mut self, block: BlockNo, access: Access) -> Verdict;

    /// Returns whether data of the block that a read brings is, or is to be, staged.
    fn stages(&self, block: BlockNo) -> bool {
        let _ = block;
        false
    }

    /// Adapts to a changed share of the cache, which may change the memory of the filter. Calls `forget` for
    /// each block whose staged data must be dropped. This may allocate.
    fn resize(&mut self, to: &Admit, forget: &mut dyn FnMut(BlockNo));

    /// Returns its memory in bytes, including staged data.
    fn bytes(&self) -> usize;

    /// Returns what it has learned up to this time, in accesses of the pool, if it learns: some kilobytes, and with the
    /// last accesses that it remembers up to 774 KiB. This allocates.
    fn saved(&self, now: u64, with_accesses: bool) -> Option<Vec<u8>> {
        let _ = (now, with_accesses);
        None
    }

    /// Continues at this time, in accesses of the pool, from what a filter had learned. Returns false if it does not
    /// learn.
    ///
    /// # Errors
    /// The bytes are not what [`Admission::saved`] returned; nothing was changed.
    fn resume(&mut self, saved: &[u8], now: u64) -> Result<bool, Malformed> {
        let _ = (saved, now);
        Ok(false)
    }

    /// Returns the figures that it uses, if it learns. This may allocate.
    fn figures(&self) -> Option<Figures> {
        None
    }
}

/// A filter as a plan names it, with its sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Admit {
    /// Every block at its first access.
    Always,
    /// A block at its access number `reuses` + 1 while it is still staged.
    Staging {
        /// What is staged.
        kind: StagingKind,
        /// N, the number of reuses.
        reuses: u8,
        /// Memory for staging.
        bytes: u64,
    },
    /// A block of a region that was touched before, not in a long run.
    Hec {
        /// Size of a region in blocks.
        region_blocks: u64,
        /// The longest run that is admitted, in blocks.
        run_blocks: u64,
    },
    /// A block that was missed before, within an adaptive memory.
    Larc {
        /// The disk's share of the cache.
        cache_blocks: u64,
    },
    /// A block of a kind that is mostly used again while it would stay.
    Learned,
    /// A block that a small request reads.
    SmallReads {
        /// Blocks of the largest such request.
        most_blocks: u32,
    },
}

impl Admit {
    /// Returns the name, for explanations.
    pub fn name(&self) -> &'static str {
        match self {
            Admit::Always => "always",
            Admit::Staging { kind, .. } => kind.name(),
            Admit::Hec { .. } => "hec",
            Admit::Larc { .. } => "larc",
            Admit::Learned => "learned",
            Admit::SmallReads { .. } => "small-reads",
        }
    }

    /// Returns reuse before admission by address: this many reuses within this many addresses.
    pub const fn reuse(reuses: u8, addresses: u32) -> Admit {
        Admit::Staging { kind: StagingKind::Address, reuses, bytes: addresses as u64 * ENTRY_BYTES }
    }

    /// Returns whether it admits everything at once, so that no filter needs to be run.
    pub fn is_always(&self) -> bool {
        matches!(self, Admit::Always)
    }

    /// Returns whether it is the same filter apart from the size, so that its state can be kept.
    pub fn is_like(&self, other: &Admit) -> bool {
        match (self, other) {
            (Admit::Staging { kind, .. }, Admit::Staging { kind: other, .. }) => kind == other,
            (Admit::Larc { .. }, Admit::Larc { .. }) => true,
            _ => self == other,
        }
    }

    /// Returns whether it needs to know how long blocks stay.
    pub fn needs_stay(&self) -> bool {
        matches!(self, Admit::Learned)
    }

    /// Checks the sizes.
    ///
    /// # Errors
    /// A size is invalid; the text says what was expected.
    pub fn check(&self) -> Result<(), String> {
        match *self {
            Admit::Staging { reuses: 0, .. } => {
                Err("reuse admission needs at least 1 reuse; use 'always' otherwise".into())
            }
            Admit::Staging { kind, bytes, .. } if kind.addresses(bytes) == 0 => Err(format!(
                "{} needs memory for at least one address, {} bytes, not {bytes}; use 'always' for no staging",
                kind.name(),
                kind.least_bytes()
            )),
            Admit::Hec { region_blocks: 0, .. } => {
                Err("touch counting needs regions of at least 1 block; use 'always' to let everything in"
                    .into())
            }
            _ => Ok(()),
        }
    }

    /// Makes the filter for a disk of this many blocks.
    pub fn build(&self, disk_blocks: u64) -> Box<dyn Admission> {
        match *self {
            Admit::Always => Box::new(Always),
            Admit::Staging { kind, reuses, bytes } => Box::new(Staging::new(kind, reuses, bytes)),
            Admit::Hec { region_blocks, run_blocks } => {
                Box::new(Hec::new(disk_blocks, region_blocks, run_blocks))
            }
            Admit::Larc { cache_blocks } => Box::new(Larc::new(cache_blocks)),
            Admit::Learned => Box::new(Learned::new(disk_blocks)),
            Admit::SmallReads { most_blocks } => Box::new(SmallReads::new(most_blocks)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_that_could_let_nothing_in_are_refused() {
        assert!(Admit::reuse(0, 8).check().unwrap_err().contains("use 'always'"));
        assert!(Admit::reuse(1, 0).check().unwrap_err().contains("32 bytes, not 0"));
        assert!(Admit::Hec { region_blocks: 0, run_blocks: 1 }.check().is_err());
        for kind in [StagingKind::Address, StagingKind::Data, StagingKind::Hybrid] {
            let least = Admit::Staging { kind, reuses: 1, bytes: kind.least_bytes() };
            assert_eq!(least.check(), Ok(()), "{}", kind.name());
            let less = Admit::Staging { kind, reuses: 1, bytes: kind.least_bytes() - 1 };
            assert!(less.check().is_err(), "{}", kind.name());
        }
    }

    #[test]
    fn filters_of_a_kind_can_be_resized() {
        assert!(Admit::reuse(1, 8).is_like(&Admit::reuse(2, 9)));
        assert!(!Admit::reuse(1, 8).is_like(&Admit::Larc { cache_blocks: 8 }));
        assert!(Admit::Larc { cache_blocks: 9 }.is_like(&Admit::Larc { cache_blocks: 8 }));
    }
}
