//! What may enter the cache: one filter a file, each a state machine over the block accesses of one disk.
//!
//! A filter is told of every access, hit or miss, and says of a miss whether the block may enter now. It keeps bounded
//! memory, allocates nothing while accesses come, and is deterministic. The cache runs filters, the control loop chooses
//! them: both name them as [`Admit`].

mod always;
mod hec;
mod larc;
pub mod lru;
mod staging;

pub use always::Always;
pub use hec::Hec;
pub use larc::Larc;
pub use staging::{ENTRY_BYTES, Staging, StagingKind, divide};

use haversack_model::BlockNo;
use serde::{Deserialize, Serialize};

/// What an access does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// It reads the block.
    Read,
    /// It writes the block.
    Write,
}

/// What is to be done with a block that the cache does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Verdict {
    /// It enters the cache now.
    pub admit: bool,
    /// The block whose staged data is to be forgotten.
    pub forget: Option<BlockNo>,
}

/// A filter of one disk.
pub trait Admission: Send {
    /// The cache has the block.
    fn hit(&mut self, block: BlockNo, op: Op);

    /// The cache does not have the block.
    fn miss(&mut self, block: BlockNo, op: Op) -> Verdict;

    /// Whether the data of a block that reads bring is to be staged, or is.
    fn stages(&self, block: BlockNo) -> bool {
        let _ = block;
        false
    }

    /// The disk's share of the cache has changed, and with it perhaps what the filter may use. Tells of each block whose
    /// staged data is to be forgotten. This may allocate.
    fn resize(&mut self, to: &Admit, forget: &mut dyn FnMut(BlockNo));

    /// Bytes of memory that it takes, staged data among them.
    fn bytes(&self) -> usize;
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
        /// N.
        reuses: u8,
        /// Memory for it.
        bytes: u64,
    },
    /// A block of a region that was touched before, not in a long run.
    Hec {
        /// Blocks of a region.
        region_blocks: u64,
        /// Longest run that is let in, in blocks.
        run_blocks: u64,
    },
    /// A block that was missed before, within an adaptive memory.
    Larc {
        /// The disk's share of the cache.
        cache_blocks: u64,
    },
}

impl Admit {
    /// The name, for reasons.
    pub fn name(&self) -> &'static str {
        match self {
            Admit::Always => "always",
            Admit::Staging { kind, .. } => kind.name(),
            Admit::Hec { .. } => "hec",
            Admit::Larc { .. } => "larc",
        }
    }

    /// Reuse before admission by address: so many reuses within so many addresses.
    pub const fn reuse(reuses: u8, addresses: u32) -> Admit {
        Admit::Staging { kind: StagingKind::Address, reuses, bytes: addresses as u64 * ENTRY_BYTES }
    }

    /// Whether it lets anything in at once, so that nobody needs to be asked.
    pub fn is_always(&self) -> bool {
        matches!(self, Admit::Always)
    }

    /// Whether it is a filter like the other, but for its size: what it remembers can stay.
    pub fn is_like(&self, other: &Admit) -> bool {
        match (self, other) {
            (Admit::Staging { kind, .. }, Admit::Staging { kind: other, .. }) => kind == other,
            (Admit::Larc { .. }, Admit::Larc { .. }) => true,
            _ => self == other,
        }
    }

    /// Checks the sizes.
    ///
    /// # Errors
    /// What is wrong, what was expected.
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

    /// The filter for a disk of so many blocks.
    pub fn build(&self, disk_blocks: u64) -> Box<dyn Admission> {
        match *self {
            Admit::Always => Box::new(Always),
            Admit::Staging { kind, reuses, bytes } => Box::new(Staging::new(kind, reuses, bytes)),
            Admit::Hec { region_blocks, run_blocks } => {
                Box::new(Hec::new(disk_blocks, region_blocks, run_blocks))
            }
            Admit::Larc { cache_blocks } => Box::new(Larc::new(cache_blocks)),
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
