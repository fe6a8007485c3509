//! Why a snapshot or settings are refused.

use thiserror::Error;

/// Each message says what was found, what was expected, and what to do.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum ClusterError {
    /// A setting is outside its range.
    #[error("balancing: '{key}' is {found}; expected {expected}")]
    BadSetting {
        /// The key.
        key: &'static str,
        /// Its value.
        found: String,
        /// The expected values.
        expected: &'static str,
    },
    /// A name occurs twice.
    #[error("{kind} '{name}' appears twice in the cluster; rename one of the two")]
    TwiceThere {
        /// The kind of thing.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// A VM or a demand names a host that is not in the snapshot.
    #[error(
        "{what} is on host '{host}', which is not in the cluster; register the host, or correct the name"
    )]
    UnknownHost {
        /// Who names it.
        what: String,
        /// The host.
        host: String,
    },
    /// A demand of a tenant without settings.
    #[error("tenant '{tenant}' demands space on host '{host}', but has no entry; add it with its weight")]
    UnknownTenant {
        /// The tenant.
        tenant: String,
        /// The host.
        host: String,
    },
    /// A tenant's settings contradict each other.
    #[error("tenant '{tenant}': {what} is {found}; expected {expected}")]
    BadTenant {
        /// The tenant.
        tenant: String,
        /// The setting.
        what: &'static str,
        /// Its value.
        found: String,
        /// The expected values.
        expected: String,
    },
}
