//! What can go wrong, and the exit code that says so.

use std::path::PathBuf;

use haversack_api::{ErrorBody, Span};

/// An error of a command.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The daemon cannot be reached.
    #[error(
        "{socket}: cannot reach the daemon: {why}; does haversackd run? --socket or HAVERSACK_SOCKET names its socket"
    )]
    Unreachable {
        /// The socket.
        socket: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The daemon has the question and does not answer, or does not even take it.
    #[error(
        "{socket}: the daemon has not answered within {waited}; its log may say why. What was asked for may still be done; --timeout waits longer"
    )]
    Silent {
        /// The socket.
        socket: PathBuf,
        /// How long it was waited for.
        waited: Span,
    },
    /// The daemon refuses.
    #[error("{}; {}", .0.error, .0.hint)]
    Refused(ErrorBody),
    /// The daemon answered something else than expected.
    #[error(
        "the daemon's answer to {path} is not understood: {why}; are daemon and command of the same version?"
    )]
    Answer {
        /// What was asked for.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// A job failed.
    #[error("{0}")]
    Job(String),
    /// A job was cancelled.
    #[error("cancelled; what is done stays done")]
    Cancelled,
    /// Somebody did not want to wait for the end of a job.
    #[error("not waited for: job {0} goes on in the daemon")]
    Left(u64),
    /// Data would be destroyed and nobody confirmed it.
    #[error("not confirmed: type '{0}', or give --confirm {0}")]
    NotConfirmed(String),
    /// A pool's check found damage.
    #[error("the check found damage: see above")]
    Damaged,
    /// A log was decided again, and something came out otherwise.
    #[error("{0} decisions come out otherwise: see above")]
    Different(usize),
    /// Arguments contradict each other.
    #[error("{0}")]
    Usage(String),
    /// Something on this host failed.
    #[error("{0}")]
    Failed(String),
}

impl CliError {
    /// 1 failed, 2 usage, 3 daemon unreachable, 4 refused by the daemon, 5 cancelled or left, 6 not confirmed, 7 damage
    /// or a difference found.
    pub fn exit_code(&self) -> u8 {
        match self {
            CliError::Job(_) | CliError::Answer { .. } | CliError::Failed(_) => 1,
            CliError::Usage(_) => 2,
            CliError::Unreachable { .. } | CliError::Silent { .. } => 3,
            CliError::Refused(_) => 4,
            CliError::Cancelled | CliError::Left(_) => 5,
            CliError::NotConfirmed(_) => 6,
            CliError::Damaged | CliError::Different(_) => 7,
        }
    }

    /// A word for programs; the daemon's own if it refuses.
    pub fn code(&self) -> &str {
        match self {
            CliError::Refused(body) => &body.code,
            CliError::Unreachable { .. } => "unreachable",
            CliError::Silent { .. } => "silent",
            CliError::Answer { .. } => "answer",
            CliError::Job(_) => "job-failed",
            CliError::Cancelled => "cancelled",
            CliError::Left(_) => "left",
            CliError::NotConfirmed(_) => "not-confirmed",
            CliError::Damaged => "damaged",
            CliError::Different(_) => "different",
            CliError::Usage(_) => "usage",
            CliError::Failed(_) => "failed",
        }
    }
}

/// A result of a command.
pub type Result<T> = std::result::Result<T, CliError>;
