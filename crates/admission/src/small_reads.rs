//! Reads of small requests enter; large ones, and writes, do not.
//!
//! Source: vCacheShare (Meng et al., ATC'14), section 7.1: only reads of at most 64 KiB are cached.

use haversack_model::BlockNo;

use crate::{Access, Admission, Admit, Op, Verdict};

/// See the module documentation.
#[derive(Clone, Copy, Debug)]
pub struct SmallReads {
    most_blocks: u32,
}

impl SmallReads {
    /// Lets in reads of at most this many blocks.
    pub fn new(most_blocks: u32) -> SmallReads {
        SmallReads { most_blocks }
    }
}

impl Admission for SmallReads {
    fn hit(&mut self, _: BlockNo, _: Access) {}

    fn miss(&mut self, _: BlockNo, access: Access) -> Verdict {
        let admit = access.op == Op::Read && access.blocks <= self.most_blocks;
        Verdict { admit, ..Verdict::default() }
    }

    fn resize(&mut self, _: &Admit, _: &mut dyn FnMut(BlockNo)) {}

    fn bytes(&self) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_reads_and_writes_stay_out() {
        let mut filter = SmallReads::new(16);
        let mut admits = |op: Op, blocks| filter.miss(BlockNo(7), Access { blocks, ..op.into() }).admit;
        assert!(admits(Op::Read, 1) && admits(Op::Read, 16));
        assert!(!admits(Op::Read, 17) && !admits(Op::Write, 1));
    }
}
