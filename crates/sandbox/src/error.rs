//! Why something is outside of the sandbox, or why there is none.

use std::io;
use std::path::{Path, PathBuf};

use landlock::RulesetError;

/// What to do about a path that is outside.
const REMEDY: &str = "add its directory to [sandbox] paths of haversackd.toml, and restart haversackd";

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The kernel cannot confine.
    #[error(
        "[sandbox] needs Landlock, which this kernel lacks or has not enabled: use Linux 5.13 or newer, with 'landlock' among the \
         kernel's parameters lsm=..., or set required = false in [sandbox] of haversackd.toml to start without"
    )]
    Unsupported,
    /// The kernel, or a filter of system calls, refused.
    #[error("cannot confine the process: {source}; [sandbox] of haversackd.toml asks for it")]
    Refused {
        /// What went wrong.
        source: RulesetError,
    },
    /// Only the calling thread would be confined.
    #[error(
        "cannot confine the process: it has {threads} threads already, and only one of them would be confined"
    )]
    Threads {
        /// Their number.
        threads: usize,
    },
    /// A path that is to be inside does not exist.
    #[error(
        "{}: {source}; what is to be inside of the sandbox must be there, and mounted, when haversackd starts: create it, or name \
         the directory above it in [sandbox] paths",
        .path.display()
    )]
    NotThere {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// No rule allows it.
    #[error("{} is outside of the sandbox; {REMEDY}", named(.path, .real))]
    Outside {
        /// The path.
        path: PathBuf,
        /// The path without symbolic links.
        real: PathBuf,
    },
    /// A rule allows what was there when the process was confined.
    #[error(
        "{} was replaced, or something was mounted on it, after haversackd had started, and is outside of the sandbox now; restart \
         haversackd, or add the directory above it to [sandbox] paths of haversackd.toml first",
        named(.path, .place)
    )]
    Replaced {
        /// The path.
        path: PathBuf,
        /// The file or directory that the rule is of.
        place: PathBuf,
    },
    /// A program that is confined was refused something.
    #[error("{what}; if a file that it names, or one behind it, is outside of the sandbox, {REMEDY}")]
    Denied {
        /// What the program says.
        what: String,
    },
}

impl From<RulesetError> for SandboxError {
    fn from(source: RulesetError) -> SandboxError {
        SandboxError::Refused { source }
    }
}

/// Returns a path as it was given, and what it leads to if that is something else.
fn named(path: &Path, real: &Path) -> String {
    if path == real { path.display().to_string() } else { format!("{} ({})", path.display(), real.display()) }
}
