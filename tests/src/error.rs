//! What stops a test.

use std::time::Duration;

/// The result of most of the harness.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a test cannot go on, or has failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program that the test needs is not installed.
    #[error("{tool} is missing: install the Debian package {package} (scripts/setup does)")]
    MissingTool {
        /// The program.
        tool: String,
        /// Debian's package of it.
        package: String,
    },
    /// A program ended with an error.
    #[error("{command}\n  failed ({status}):\n{output}")]
    Failed {
        /// The command line.
        command: String,
        /// How it ended.
        status: String,
        /// What it printed.
        output: String,
    },
    /// Something took too long.
    #[error("{what} took longer than {} s", limit.as_secs())]
    TimedOut {
        /// What was awaited.
        what: String,
        /// The limit.
        limit: Duration,
    },
    /// An NBD server answered a request with an error.
    #[error("{what}: the server answers with error {errno}")]
    Refused {
        /// The request.
        what: String,
        /// The error's number.
        errno: u32,
    },
    /// The guest answered a command with an error.
    #[error("guest: {command}: {answer}")]
    Guest {
        /// The command.
        command: String,
        /// The answer.
        answer: String,
    },
    /// QEMU's monitor refused something or is gone.
    #[error(transparent)]
    Qmp(#[from] haversack_qmp::QmpError),
    /// A check of the test itself did not hold.
    #[error("{0}")]
    Check(String),
    /// The operating system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The reason.
        source: std::io::Error,
    },
}

impl Error {
    /// Says what was tried when the operating system refused.
    pub fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

/// Fails the test unless `holds`.
///
/// # Errors
/// [`Error::Check`] with the message.
pub fn check(holds: bool, message: impl Into<String>) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::Check(message.into())) }
}
