//! Why the loop does not do what it is asked to.

use haversack_policy::PolicyError;
use thiserror::Error;

/// What was found, what was expected, what to do.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum ControlError {
    /// A decision, an event or a configuration is refused. The plan before goes on holding.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A line of a log is none.
    #[error("line {line} of the log is no entry: {reason}; a log has one JSON object a line")]
    BadLine {
        /// Its number, from 1 on.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A decision comes before the configuration that it was made by.
    #[error(
        "line {line} of the log has a decision, but no configuration comes before it; begin with the start of the log"
    )]
    NoConfig {
        /// Its number, from 1 on.
        line: usize,
    },
    /// Nothing was decided of a disk.
    #[error("nothing was decided of disk '{disk}'; the last decision was of {known}")]
    NotDecided {
        /// The disk.
        disk: String,
        /// The disks that there are.
        known: String,
    },
}
