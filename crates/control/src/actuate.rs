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

/// A filter as the core takes it: it stages addresses, not data, so what staged data would have served is read from the
/// origin. A share without room for staging has one address.
pub fn admission(admit: Admit) -> AdmissionConfig {
    match admit.without_data() {
        Admit::Staging { reuses, .. } if admit.check().is_err() => Admit::reuse(reuses, 1),
        admission => admission,
    }
}
