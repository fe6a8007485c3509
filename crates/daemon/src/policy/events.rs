//! What daemon and policy tell each other.

use haversack_api::DiskConfig;
use haversack_model::WriteMode;

/// What the daemon reports about a disk.
#[derive(Clone, Debug)]
pub enum News {
    /// It was attached, with these settings.
    Attached(Box<DiskConfig>),
    /// It is being detached and takes no part any more.
    Detaching,
    /// It was not detached after all.
    DetachFailed(Box<DiskConfig>),
    /// It was detached.
    Detached,
    /// It has a new size.
    Resized {
        /// In sectors.
        sectors: u64,
    },
    /// The operator has changed its settings to these.
    Changed(Box<DiskConfig>),
}

/// What the policy requests from the daemon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Order {
    /// Change a disk's write mode, in the background: it takes as long as writing the pool's record.
    ChangeMode {
        /// Its name.
        disk: String,
        /// The new mode.
        mode: WriteMode,
    },
    /// Resize the filters of a pool's disks: their shares have changed.
    SizeFilters {
        /// Its name.
        pool: String,
    },
    /// Report that an event of a disk's VM was accepted.
    ReportEvent {
        /// The disk's name.
        disk: String,
        /// The event's name.
        event: &'static str,
    },
    /// Report that a decision was refused.
    ReportRefusal {
        /// The pool's name.
        pool: String,
        /// The reason.
        why: String,
    },
}
