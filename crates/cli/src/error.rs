//! Errors of commands, and their exit codes.

use std::path::PathBuf;

use haversack_api::{ErrorBody, Span};
use haversack_qmp::{AgentError, QmpError};

use crate::output::counted;

/// An error of a command.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The daemon cannot be reached.
    #[error("{socket}: cannot reach the daemon: {why}. {hint}")]
    Unreachable {
        /// The socket.
        socket: PathBuf,
        /// What is wrong.
        why: String,
        /// What to do.
        hint: String,
    },
    /// The daemon has the request and does not answer, or does not even accept it.
    #[error(
        "{socket}: the daemon has not answered within {waited}; see its log. The request may still be carried out; use --timeout to wait longer"
    )]
    Silent {
        /// The socket.
        socket: PathBuf,
        /// How long the command waited.
        waited: Span,
    },
    /// The daemon refused.
    #[error("{}; {}", .0.error, .0.hint)]
    Refused(ErrorBody),
    /// The daemon's answer is not the expected one.
    #[error(
        "cannot parse the daemon's answer to {path}: {why}; check that daemon and command have the same version"
    )]
    Answer {
        /// The path of the request.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// A job failed.
    #[error("{0}")]
    Job(String),
    /// A job was cancelled.
    #[error("cancelled; completed work is kept")]
    Cancelled,
    /// The user did not want to wait for the end of a job.
    #[error("stopped waiting: job {0} continues in the daemon")]
    Left(u64),
    /// Data would be destroyed, and that was not confirmed.
    #[error("not confirmed: type '{0}', or give --confirm {0}")]
    NotConfirmed(String),
    /// A pool's check found damage.
    #[error("the check found damage: see above")]
    Damaged,
    /// A log was replayed, and a decision had a different result.
    #[error("{}: see above", differing(.0))]
    Different(usize),
    /// A VM was not moved to another host.
    #[error("the VM was not moved and stays where it was: {why}")]
    NotMoved {
        /// The reason.
        why: String,
        /// The user, or a timeout that the user set, cancelled the move.
        is_cancelled: bool,
    },
    /// A VM does not run, or it is not known where.
    #[error("{0}")]
    Attention(String),
    /// QEMU's monitor.
    #[error(transparent)]
    Qmp(#[from] QmpError),
    /// The guest agent.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// Arguments contradict each other.
    #[error("{0}")]
    Usage(String),
    /// Another failure on this host.
    #[error("{0}")]
    Failed(String),
}

/// Counts decisions that differ.
fn differing(count: &usize) -> String {
    let verb = if *count == 1 { "differs" } else { "differ" };
    format!("{} {verb}", counted(*count as u64, "decision"))
}

impl CliError {
    /// Points to the command's help if the daemon refused the request as invalid.
    #[must_use]
    pub fn of_command(self, name: &str) -> CliError {
        match self {
            CliError::Refused(body) if body.code == "bad-request" => {
                CliError::Refused(ErrorBody { hint: format!("see 'haversack {name} --help'"), ..body })
            }
            error => error,
        }
    }

    /// Returns 1 for a failure, 2 for wrong usage, 3 if the daemon is unreachable, 4 if it refused, 5 if a job or a
    /// move was cancelled or left, 6 if not confirmed, 7 if damage or a difference was found, 8 if a VM needs
    /// attention.
    pub fn exit_code(&self) -> u8 {
        match self {
            CliError::Job(_)
            | CliError::Answer { .. }
            | CliError::Failed(_)
            | CliError::Qmp(_)
            | CliError::Agent(_)
            | CliError::NotMoved { is_cancelled: false, .. } => 1,
            CliError::Usage(_) => 2,
            CliError::Unreachable { .. } | CliError::Silent { .. } => 3,
            CliError::Refused(_) => 4,
            CliError::Cancelled | CliError::Left(_) | CliError::NotMoved { is_cancelled: true, .. } => 5,
            CliError::NotConfirmed(_) => 6,
            CliError::Damaged | CliError::Different(_) => 7,
            CliError::Attention(_) => 8,
        }
    }

    /// Returns a code for programs; the daemon's own if it refused.
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
            CliError::NotMoved { .. } => "not-moved",
            CliError::Attention(_) => "attention",
            CliError::Qmp(_) => "qmp",
            CliError::Agent(_) => "agent",
            CliError::Usage(_) => "usage",
            CliError::Failed(_) => "failed",
        }
    }
}

/// A result of a command.
pub type Result<T> = std::result::Result<T, CliError>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_request_refers_to_the_help_of_its_command() {
        let refused = |code: &str| {
            let (code, error, hint) = (code.into(), "no such mode".into(), "correct the request".into());
            CliError::Refused(ErrorBody { code, error, hint }).of_command("disk attach").to_string()
        };
        assert_eq!(refused("bad-request"), "no such mode; see 'haversack disk attach --help'");
        assert_eq!(refused("conflict"), "no such mode; correct the request");
    }

    #[test]
    fn decisions_are_counted() {
        assert_eq!(CliError::Different(1).to_string(), "1 decision differs: see above");
        assert_eq!(CliError::Different(2).to_string(), "2 decisions differ: see above");
    }
}
