//! Why the loop refuses a request.

use haversack_policy::PolicyError;
use thiserror::Error;

/// Each message says what was found, what was expected, and what to do.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum ControlError {
    /// A decision, an event or a configuration is refused. The previous plan stays in effect.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A line of a log is invalid.
    #[error("line {line} of the log is not an entry: {reason}; a log has one JSON object per line")]
    BadLine {
        /// Its number, counted from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A decision precedes the configuration with which it was made.
    #[error(
        "line {line} of the log has a decision with no configuration before it; start from the beginning of the log"
    )]
    NoConfig {
        /// Its number, counted from 1.
        line: usize,
    },
    /// Nothing was decided for a disk.
    #[error("no decision concerns disk '{disk}'; the last one was about {known}")]
    NotDecided {
        /// The disk.
        disk: String,
        /// The disks of the last decision.
        known: String,
    },
    /// A budget that cannot be kept.
    #[error(
        "a budget of {bytes_per_day} bytes a day cannot be kept: give at least a byte, for example \"500 GB/day\""
    )]
    BadBudget {
        /// What was asked for.
        bytes_per_day: f64,
    },
}
