//! Reuse before admission: a block is admitted at its access number N+1, read or write, if it is still staged.
//! The least recently accessed block is displaced.
//!
//! *Address staging* remembers addresses only. *Data staging* keeps, next to the address, the data that reads
//! brought from the origin and serves reads from it; for writes it keeps only the address. It remembers far
//! fewer blocks in the same memory. *Hybrid staging* gives an eighth of the memory to addresses and seven
//! eighths to data, each with its own order.
//!
//! Invariants
//! - Data is staged only for staged addresses.
//! - A write makes staged data stale, so the data is dropped.
//! - A block that is admitted to the cache is no longer staged.
//!
//! Source: CloudCache (Arteaga), sections 3.4.3 and 3.4.4. The text says "accessed N times", but the definition
//! of RWS_N and the evaluation say reused N times, which is what this does. The paper counts 24 B per address,
//! we use 32 B.

use haversack_model::{BLOCK_BYTES, BlockNo};
use serde::{Deserialize, Serialize};

use crate::lru::Lru;
use crate::{Access, Admission, Admit, Op, Verdict};

/// Size of a staged address, including its place in the table.
pub const ENTRY_BYTES: u64 = 32;
const DATA_BYTES: u64 = BLOCK_BYTES as u64 + ENTRY_BYTES;
/// Hybrid: one part in this many is for addresses.
const PARTS: u64 = 8;

/// What is staged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StagingKind {
    /// Addresses.
    Address,
    /// Addresses, each with room for its data.
    Data,
    /// Many addresses and the data of some.
    #[default]
    Hybrid,
}

impl StagingKind {
    /// Returns the name, for explanations.
    pub fn name(self) -> &'static str {
        match self {
            StagingKind::Address => "address-staging",
            StagingKind::Data => "data-staging",
            StagingKind::Hybrid => "hybrid-staging",
        }
    }

    /// Returns how many addresses fit in this many bytes, besides the data.
    pub fn addresses(self, bytes: u64) -> u32 {
        self.places(bytes).0
    }

    /// Returns the least number of bytes with room for an address.
    pub fn least_bytes(self) -> u64 {
        match self {
            StagingKind::Address => ENTRY_BYTES,
            StagingKind::Data => ENTRY_BYTES + DATA_BYTES,
            StagingKind::Hybrid => PARTS * ENTRY_BYTES,
        }
    }

    /// Returns how many addresses and blocks of data fit in this many bytes.
    fn places(self, bytes: u64) -> (u32, u32) {
        let places = |bytes: u64, each: u64| u32::try_from(bytes / each).unwrap_or(u32::MAX);
        match self {
            StagingKind::Address => (places(bytes, ENTRY_BYTES), 0),
            StagingKind::Data => {
                let both = places(bytes, ENTRY_BYTES + DATA_BYTES);
                (both, both)
            }
            StagingKind::Hybrid => {
                let part = bytes / PARTS;
                (places(part, ENTRY_BYTES), places(bytes - part, DATA_BYTES))
            }
        }
    }
}

/// Divides the memory for staging among disks in proportion to their shares of the cache, or equally if all are
/// zero.
pub fn divide(bytes: u64, shares: &[u64]) -> Vec<u64> {
    let sum: u128 = shares.iter().map(|share| u128::from(*share)).sum();
    let part = |share: &u64| match sum {
        0 => bytes / shares.len() as u64,
        sum => (u128::from(bytes) * u128::from(*share) / sum) as u64,
    };
    shares.iter().map(part).collect()
}

/// The staging area of a disk.
pub struct Staging {
    reuses: u8,
    /// Accesses of each staged block.
    addresses: Lru,
    /// Blocks whose data is staged.
    data: Lru,
}

impl Staging {
    /// Makes a staging area of this many bytes that admits a block at access number `reuses` + 1.
    pub fn new(kind: StagingKind, reuses: u8, bytes: u64) -> Staging {
        let (addresses, data) = kind.places(bytes);
        Staging { reuses, addresses: Lru::new(addresses), data: Lru::new(data) }
    }

    /// Drops a block's address and data.
    fn drop_block(&mut self, block: u64) -> Option<BlockNo> {
        self.addresses.remove(block);
        self.data.remove(block).map(|_| BlockNo(block))
    }

    /// Stages the block's data. Returns the block whose data was displaced, if any.
    fn stage_data(&mut self, block: u64) -> Option<BlockNo> {
        let displaced = self.data.put(block, 0);
        displaced.filter(|displaced| *displaced != block).map(BlockNo)
    }
}

impl Admission for Staging {
    fn hit(&mut self, _: BlockNo, _: Access) {}

    fn miss(&mut self, BlockNo(block): BlockNo, access: Access) -> Verdict {
        let accesses = self.addresses.get(block).unwrap_or(0);
        if accesses >= self.reuses {
            return Verdict { admit: true, forget: self.drop_block(block), ..Verdict::default() };
        }
        let displaced = self.addresses.put(block, accesses + 1);
        if displaced == Some(block) {
            return Verdict::default();
        }
        let forget = displaced.and_then(|block| self.data.remove(block).map(|_| BlockNo(block)));
        // A known block displaces no address, and a block that loses its data leaves room for another's, so
        // there is at most one block to forget.
        let other = match access.op {
            Op::Write => self.data.remove(block).map(|_| BlockNo(block)),
            Op::Read => self.stage_data(block),
        };
        Verdict { forget: forget.or(other), ..Verdict::default() }
    }

    fn stages(&self, BlockNo(block): BlockNo) -> bool {
        self.data.get(block).is_some()
    }

    fn resize(&mut self, to: &Admit, forget: &mut dyn FnMut(BlockNo)) {
        let Admit::Staging { kind, reuses, bytes } = *to else { return };
        let (addresses, data) = kind.places(bytes);
        self.reuses = reuses;
        while self.addresses.len() > addresses {
            let Some(block) = self.addresses.pop_oldest() else { break };
            if self.data.remove(block).is_some() {
                forget(BlockNo(block));
            }
        }
        while self.data.len() > data {
            let Some(block) = self.data.pop_oldest() else { break };
            forget(BlockNo(block));
        }
        if addresses != self.addresses.capacity() {
            self.addresses.resize(addresses);
        }
        if data != self.data.capacity() {
            self.data.resize(data);
        }
    }

    fn bytes(&self) -> usize {
        self.addresses.bytes() + self.data.bytes() + self.data.capacity() as usize * BLOCK_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    const ADMIT: Verdict = Verdict { admit: true, protect: false, forget: None };
    const WAIT: Verdict = Verdict { admit: false, protect: false, forget: None };

    /// Returns the verdict, and whether the block's data is to be staged now.
    fn read(staging: &mut Staging, block: u64) -> (Verdict, bool) {
        let verdict = staging.miss(BlockNo(block), Op::Read.into());
        (verdict, staging.stages(BlockNo(block)))
    }

    fn write(staging: &mut Staging, block: u64) -> (Verdict, bool) {
        let verdict = staging.miss(BlockNo(block), Op::Write.into());
        (verdict, staging.stages(BlockNo(block)))
    }

    fn forgetting(verdict: Verdict, block: u64) -> Verdict {
        Verdict { forget: Some(BlockNo(block)), ..verdict }
    }

    #[test]
    fn address_staging_by_hand() {
        let mut staging = Staging::new(StagingKind::Address, 1, 2 * ENTRY_BYTES);
        let blocks = [1, 2, 1, 2, 1, 3, 4, 1];
        let admitted = blocks.map(|block| read(&mut staging, block).0.admit);
        assert_eq!(admitted, [false, false, true, true, false, false, false, false]);
        let mut twice = Staging::new(StagingKind::Address, 2, 2 * ENTRY_BYTES);
        assert_eq!([1, 1, 1, 1].map(|block| write(&mut twice, block).0.admit), [false, false, true, false]);
    }

    #[test]
    fn data_staging_by_hand() {
        let mut staging = Staging::new(StagingKind::Data, 2, 2 * (ENTRY_BYTES + DATA_BYTES));
        assert_eq!(read(&mut staging, 1), (WAIT, true));
        assert_eq!(read(&mut staging, 1), (WAIT, true));
        assert_eq!(read(&mut staging, 1), (forgetting(ADMIT, 1), false));
        // A write stages only its address and makes data stale.
        assert_eq!(write(&mut staging, 2), (WAIT, false));
        assert_eq!(read(&mut staging, 2), (WAIT, true));
        assert_eq!(read(&mut staging, 3), (WAIT, true));
        assert_eq!(write(&mut staging, 3), (forgetting(WAIT, 3), false));
        // The least recently used address is dropped with its data.
        assert_eq!(read(&mut staging, 4), (forgetting(WAIT, 2), true));
        assert!(!staging.stages(BlockNo(2)));
    }

    #[test]
    fn hybrid_staging_remembers_addresses_longer_than_data() {
        let bytes = PARTS * 4 * ENTRY_BYTES;
        assert_eq!(StagingKind::Hybrid.places(bytes), (4, 0));
        // 37,760 bytes: 147 addresses, 8 blocks of data.
        let mut staging = Staging::new(StagingKind::Hybrid, 1, 37_760);
        assert_eq!(StagingKind::Hybrid.places(37_760), (147, 8));
        (0..8).for_each(|block| assert_eq!(read(&mut staging, block), (WAIT, true)));
        assert_eq!(read(&mut staging, 8), (forgetting(WAIT, 0), true));
        assert_eq!(read(&mut staging, 1), (forgetting(ADMIT, 1), false));
        assert_eq!(read(&mut staging, 0).0, ADMIT, "its address is remembered, its data is not");
    }

    #[test]
    fn memory_follows_shares() {
        assert_eq!(divide(1000, &[1, 3]), [250, 750]);
        assert_eq!(divide(1000, &[0, 0]), [500, 500]);
        assert_eq!(divide(u64::MAX, &[u64::MAX, u64::MAX]), [u64::MAX / 2; 2]);
        assert!(divide(1000, &[]).is_empty());
    }

    proptest! {
        /// A cache that keeps staged data until told to forget it has exactly what is staged, within the memory
        /// limit.
        #[test]
        fn verdicts_agree_with_the_data_kept(
            kind in prop::sample::select(vec![StagingKind::Address, StagingKind::Data, StagingKind::Hybrid]),
            steps in prop::collection::vec((0u64..30, any::<bool>(), 0u8..40), 0..400),
        ) {
            let admit = |bytes| Admit::Staging { kind, reuses: 2, bytes };
            let mut staging = Staging::new(kind, 2, 40_000);
            let mut kept = HashSet::new();
            for (block, write, other) in steps {
                if other == 0 {
                    staging.resize(&admit(20_000 + block * 1000), &mut |block| { kept.remove(&block.0); });
                    prop_assert_eq!(kept.len(), staging.data.len() as usize);
                }
                let verdict = staging.miss(BlockNo(block), if write { Op::Write } else { Op::Read }.into());
                if let Some(BlockNo(forget)) = verdict.forget {
                    prop_assert!(kept.remove(&forget));
                }
                if !write && staging.stages(BlockNo(block)) {
                    kept.insert(block);
                }
                prop_assert!((0..30).all(|block| staging.stages(BlockNo(block)) == kept.contains(&block)));
                prop_assert_eq!(kept.len(), staging.data.len() as usize);
                prop_assert!(kept.iter().all(|block| staging.addresses.get(*block).is_some()));
            }
        }
    }
}
