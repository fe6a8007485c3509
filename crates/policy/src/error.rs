//! Why a decision is refused. The plan before it goes on holding.

use thiserror::Error;

/// What was found, what was expected, what to do.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum PolicyError {
    /// A disk may not have what it must have.
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
    /// More is promised than there is.
    #[error(
        "reservations and locked shares come to {promised_blocks} blocks, but the pool has {pool_blocks}; \
         lower a reservation or detach a disk"
    )]
    Oversubscribed {
        /// What reservations and locked shares come to.
        promised_blocks: u64,
        /// What the pool has.
        pool_blocks: u64,
    },
    /// Nothing says who should get more than whom.
    #[error("the {what} of all {count} {whose} sum to zero; give at least one of them more than zero")]
    NoWeight {
        /// What was summed.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// Whose they are.
        whose: &'static str,
    },
    /// A window ends before what it should show is measured.
    #[error(
        "a window of {window_us} us is shorter than its measurement of {measurement_us} us; \
         lengthen the window or measure for less time"
    )]
    WindowTooShort {
        /// The window.
        window_us: u64,
        /// The measurement.
        measurement_us: u64,
    },
    /// A number is not one that it can be.
    #[error("{what} is {found}; expected {expected}")]
    BadFigure {
        /// Which number, and of which disk if of one.
        what: String,
        /// What it is.
        found: String,
        /// What it may be.
        expected: &'static str,
    },
    /// Two disks of one name.
    #[error("disk '{disk}' is there twice; each disk is told of once in a window")]
    TwiceThere {
        /// The disk.
        disk: String,
    },
    /// An event of a disk that nobody told of.
    #[error("disk '{disk}' is not known; tell of it with an event 'new' or 'migrating-in' first")]
    UnknownDisk {
        /// The disk.
        disk: String,
    },
    /// An event that cannot happen to a disk in its state.
    #[error("disk '{disk}' is {state}: '{event}' cannot happen to it now")]
    WrongState {
        /// The disk.
        disk: String,
        /// What state it is in.
        state: &'static str,
        /// What is said to have happened.
        event: &'static str,
    },
    /// No such name.
    #[error("unknown {what} '{found}'; expected {expected}")]
    UnknownName {
        /// What was to be named.
        what: &'static str,
        /// The name.
        found: String,
        /// The names there are.
        expected: &'static str,
    },
}

/// Refuses what is not finite or lies outside a range.
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
