//! A plan in the core's terms.

use haversack_admission::Admit;
use haversack_core::{AdmissionConfig, Target as CoreTarget};
use haversack_policy::allocate::Target;

/// A target as the core takes it.
pub fn target(target: Target) -> CoreTarget {
    match target {
        Target::Blocks(blocks) => CoreTarget::Blocks(blocks),
        Target::Shared { at_least_blocks, at_most_blocks } => {
            CoreTarget::Shared { at_least_blocks, at_most_blocks }
        }
    }
}

/// A filter as the core takes it.
pub fn admission(admit: Admit) -> AdmissionConfig {
    admit
}
