//! A newcomer next to disks that were measured: it gets its reserve, reclaimed from the others in proportion
//! to their priorities; nothing else changes before its first window has ended.
//!
//! Invariant
//! - The sum of all targets does not exceed the pool, and none is below its reservation, if the reservations fit.
//!
//! Source: vCacheShare (Meng et al., ATC'14), section 6.

use crate::allocate::{Allocation, Claim, Share, Target, check, share};
use crate::error::PolicyError;
use crate::plan::{DiskInput, DiskState};

/// The weight of a disk without priority: it gives space only if the others cannot.
const LEAST_WEIGHT: f64 = 1e-6;

/// Whether some of the disks are new and others are not.
pub(crate) fn is_among(present: &[&DiskInput]) -> bool {
    let new = present.iter().filter(|disk| disk.state == DiskState::New).count();
    (1..present.len()).contains(&new)
}

/// Divides the pool as it was, with a reserve for each newcomer.
///
/// # Errors
/// The same as for every rule: a claim is inconsistent, reservations exceed the pool, or there are no
/// weights.
pub(crate) fn reserve(
    pool_blocks: u64,
    first_blocks: u64,
    claims: &[Claim],
    present: &[&DiskInput],
) -> Result<Allocation, PolicyError> {
    check(pool_blocks, claims)?;
    let is_new = |at: usize| present[at].state == DiskState::New;
    let wanted = |at: usize| {
        let had = if is_new(at) { first_blocks } else { present[at].target_blocks };
        had.clamp(claims[at].reservation_blocks, claims[at].limit_blocks)
    };
    let mut blocks: Vec<u64> = (0..claims.len()).map(wanted).collect();
    // First the other disks give space. If that is not enough, newcomers give up the part above their reservations.
    for newcomers_give in [false, true] {
        let over = blocks.iter().sum::<u64>().saturating_sub(pool_blocks);
        let giver = |at: usize| Share {
            weight: claims[at].priority.max(LEAST_WEIGHT),
            least: 0,
            most: if is_new(at) == newcomers_give { blocks[at] - claims[at].reservation_blocks } else { 0 },
        };
        let given = share(over, 1, &(0..claims.len()).map(giver).collect::<Vec<_>>());
        blocks.iter_mut().zip(given).for_each(|(blocks, given)| *blocks -= given);
    }
    let reason = "a newcomer has its reserve, taken from the others by priority".into();
    Ok(Allocation { targets: blocks.into_iter().map(Target::Blocks).collect(), gap: None, reason })
}
