//! The share of the blocks that may be filled. It limits flash writes to a budget where the admission filter does not
//! weigh prices.
//!
//! Invariants
//! - Only clean copies of the origin's data are kept out. A guest's write is never refused, delayed or redirected.
//! - A block that belongs to a share belongs to every larger share. So a change of the share affects as few blocks as
//!   possible.

use haversack_model::{BlockNo, DiskNo, place};

/// Makes the choice of blocks independent of other samples that use the same hash.
const SALT: u64 = 0x5bf0_3635_d1e5_a3c7;

/// See the module documentation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct FillShare(f64);

impl FillShare {
    /// Makes a share from 0 to 1; anything else counts as the nearest.
    pub fn new(share: f64) -> FillShare {
        FillShare(if share.is_nan() { 1.0 } else { share.clamp(0.0, 1.0) })
    }

    /// Returns whether the block belongs to the share.
    #[inline]
    pub fn lets_in(self, disk: DiskNo, block: BlockNo) -> bool {
        if self.0 >= 1.0 {
            return true;
        }
        let hash = place::mix(SALT ^ block.0 ^ u64::from(disk.0) << 48);
        ((hash >> 11) as f64) < self.0 * (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_lets_in_so_many_blocks_and_a_larger_one_these_as_well() {
        let let_in = |share: f64| -> Vec<u64> {
            let share = FillShare::new(share);
            (0..10_000).filter(|block| share.lets_in(DiskNo(3), BlockNo(*block))).collect()
        };
        assert_eq!((let_in(0.0).len(), let_in(1.0).len(), let_in(f64::NAN).len()), (0, 10_000, 10_000));
        let (some, more) = (let_in(0.3), let_in(0.5));
        assert!((2800..3200).contains(&some.len()) && (4800..5200).contains(&more.len()));
        assert!(some.iter().all(|block| more.contains(block)));
    }
}
