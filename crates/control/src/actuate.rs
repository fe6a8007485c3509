//! A plan in the core's terms.

use haversack_core::Target as CoreTarget;
use haversack_policy::allocate::Target;

/// A target as the core takes it. Who shares the pool has its reservation as its own part.
pub fn target(target: Target) -> CoreTarget {
    match target {
        Target::Blocks(blocks) => CoreTarget::Blocks(blocks),
        Target::Shared { at_least_blocks, .. } => CoreTarget::Blocks(at_least_blocks),
    }
}
