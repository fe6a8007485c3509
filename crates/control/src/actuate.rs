//! Converts a plan into the core's types.

use haversack_admission::Admit;
use haversack_core::{AdmissionConfig, Target as CoreTarget};
use haversack_policy::allocate::Target;

/// Converts a target for the core.
pub fn target(target: Target) -> CoreTarget {
    match target {
        Target::Blocks(blocks) => CoreTarget::Blocks(blocks),
        Target::Capped(blocks) => CoreTarget::Capped(blocks),
        Target::Shared { at_least_blocks, at_most_blocks } => {
            CoreTarget::Shared { at_least_blocks, at_most_blocks }
        }
    }
}

/// Converts a filter for the core. A share without room for staging gets one address.
pub fn admission(admit: Admit) -> AdmissionConfig {
    match admit {
        Admit::Staging { reuses, .. } if admit.check().is_err() => Admit::reuse(reuses, 1),
        admit => admit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use haversack_core::StagingKind;

    #[test]
    fn a_share_without_room_for_staging_is_no_error() {
        let staging = |bytes| Admit::Staging { kind: StagingKind::Hybrid, reuses: 2, bytes };
        assert_eq!(admission(staging(1 << 20)), staging(1 << 20));
        assert_eq!(admission(staging(0)), Admit::reuse(2, 1));
    }
}
