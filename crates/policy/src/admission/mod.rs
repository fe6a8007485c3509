//! What may enter the cache: one filter a file, each a state machine over the block accesses of one disk.
//!
//! A filter is told of every access, hit or miss, and says of a miss whether the block may enter now. It keeps bounded
//! memory, allocates nothing while accesses come, and is deterministic.

mod always;
mod hec;
mod larc;
mod staging;

pub use always::Always;
pub use hec::Hec;
pub use larc::Larc;
pub use staging::{ENTRY_BYTES, Staging, StagingKind, divide};

use haversack_model::BlockNo;
use serde::{Deserialize, Serialize};

use crate::error::PolicyError;

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
    /// Its data is staged: the read is served from there.
    pub serve: bool,
    /// The data of this read is to be staged.
    pub stage: bool,
    /// The block whose staged data is to be forgotten.
    pub forget: Option<BlockNo>,
}

/// A filter of one disk.
pub trait Admission: Send {
    /// The cache has the block.
    fn hit(&mut self, block: BlockNo, op: Op);

    /// The cache does not have the block.
    fn miss(&mut self, block: BlockNo, op: Op) -> Verdict;

    /// The block was discarded, or enters the cache in another way: what is staged of it is stale. The block whose staged
    /// data is to be forgotten.
    fn discard(&mut self, block: BlockNo) -> Option<BlockNo> {
        let _ = block;
        None
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

    /// The filter for a disk of so many blocks.
    ///
    /// # Errors
    /// `BadFigure` for reuses or regions of 0.
    pub fn build(&self, disk_blocks: u64) -> Result<Box<dyn Admission>, PolicyError> {
        let zero = |what: &str| PolicyError::BadFigure {
            what: what.into(),
            found: "0".into(),
            expected: "at least 1; use 'always' to let everything in",
        };
        Ok(match *self {
            Admit::Always => Box::new(Always),
            Admit::Staging { reuses: 0, .. } => return Err(zero("the reuses that admission asks for")),
            Admit::Staging { kind, reuses, bytes } => Box::new(Staging::new(kind, reuses, bytes)),
            Admit::Hec { region_blocks: 0, .. } => return Err(zero("the blocks of a region")),
            Admit::Hec { region_blocks, run_blocks } => {
                Box::new(Hec::new(disk_blocks, region_blocks, run_blocks))
            }
            Admit::Larc { cache_blocks } => Box::new(Larc::new(cache_blocks)),
        })
    }
}
