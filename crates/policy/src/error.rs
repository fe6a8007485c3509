//! Why a decision is refused. The previous plan stays in effect.

use thiserror::Error;

/// Each message says what was found, what was expected, and what to do.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum PolicyError {
    /// A disk's limit is below its reservation.
    #[error(
        "disk '{disk}': its limit of {limit_blocks} blocks is below its reservation of {reservation_blocks} blocks; \
         raise the limit or lower the reservation"
    )]
    LimitBelowReservation {
        /// The disk.
        disk: String,
        /// Its limit.
        limit_blocks: u64,
        /// Its reservation.
        reservation_blocks: u64,
    },
    /// More is promised than the pool has.
    #[error(
        "reservations and locked shares come to {promised_blocks} blocks, but the pool has {pool_blocks}; \
         lower a reservation or detach a disk"
    )]
    Oversubscribed {
        /// The sum of reservations and locked shares.
        promised_blocks: u64,
        /// The size of the pool.
        pool_blocks: u64,
    },
    /// There are no weights to divide by.
    #[error("the {what} of all {count} {whose} sum to zero; give at least one of them more than zero")]
    NoWeight {
        /// What was summed.
        what: &'static str,
        /// Their number.
        count: usize,
        /// The kind of their owners.
        whose: &'static str,
    },
    /// A window is shorter than its measurement.
    #[error(
        "a window of {window_us} us is shorter than its measurement of {measurement_us} us; \
         lengthen the window or measure for less time"
    )]
    WindowTooShort {
        /// The length of the window.
        window_us: u64,
        /// The length of the measurement.
        measurement_us: u64,
    },
    /// A number is outside its range.
    #[error("{what} is {found}; expected {expected}")]
    BadFigure {
        /// The number, and the disk if it belongs to one.
        what: String,
        /// Its value.
        found: String,
        /// The expected range.
        expected: &'static str,
    },
    /// Two disks have the same name.
    #[error("disk '{disk}' appears twice; a window has one record per disk")]
    TwiceThere {
        /// The disk.
        disk: String,
    },
    /// An event of an unknown disk.
    #[error("disk '{disk}' is unknown; send an event 'new' or 'migrating-in' for it first")]
    UnknownDisk {
        /// The disk.
        disk: String,
    },
    /// An event that is not possible in a disk's state.
    #[error("disk '{disk}' is {state}: '{event}' cannot happen to it now")]
    WrongState {
        /// The disk.
        disk: String,
        /// The state.
        state: &'static str,
        /// The event.
        event: &'static str,
    },
    /// An unknown name.
    #[error("unknown {what} '{found}'; expected {expected}")]
    UnknownName {
        /// The kind of name.
        what: &'static str,
        /// The name.
        found: String,
        /// The valid names.
        expected: &'static str,
    },
}

/// Refuses a number that is not finite or is outside a range.
pub(crate) fn check_range(
    what: impl FnOnce() -> String,
    found: f64,
    range: std::ops::RangeInclusive<f64>,
    expected: &'static str,
) -> Result<(), PolicyError> {
    if range.contains(&found) && found.is_finite() {
        Ok(())
    } else {
        Err(PolicyError::BadFigure { what: what(), found: found.to_string(), expected })
    }
}
