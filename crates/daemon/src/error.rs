//! Why a request to the daemon failed, in a form that the control API passes on: status, code, hint.

use haversack_api::ErrorBody;
use haversack_control::ControlError;
use haversack_core::{JobError, ManageError};
use haversack_directory::DirectoryError;
use haversack_engine::error::EngineError;
use haversack_policy::PolicyError;

use crate::helper::HelperError;
use crate::rbd::lock::LockError;
use crate::rbd::watchers::WatchError;
use crate::sandbox::SandboxError;
use crate::state::StateError;
use crate::system::SystemError;

/// See the module documentation.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// There is no such object.
    #[error("no {what} '{name}'")]
    NoSuch {
        /// `pool`, `disk`, `job` or `device`.
        what: &'static str,
        /// The requested name.
        name: String,
    },
    /// There is no pool at all.
    #[error("no pool is configured")]
    NoPool,
    /// The request is invalid.
    #[error("{0}")]
    Bad(String),
    /// The request does not fit the state of the disk or pool.
    #[error("{what}")]
    Conflict {
        /// The conflicting state.
        what: String,
        /// What to do.
        hint: &'static str,
    },
    /// Dirty data would be destroyed.
    #[error("disk '{disk}' has {dirty_bytes} dirty bytes that its origin does not have")]
    Dirty {
        /// The disk.
        disk: String,
        /// Bytes that would be lost.
        dirty_bytes: u64,
    },
    /// The disk still has clients that would lose it.
    #[error("disk '{disk}' is in use by {}", .clients.join(", "))]
    InUse {
        /// The disk.
        disk: String,
        /// The clients.
        clients: Vec<String>,
    },
    /// A disk that waits to be attached would be given up although it has dirty data.
    #[error(
        "disk '{disk}' is not attached; its {dirty_bytes} dirty bytes would exist only in the cache, not at its origin"
    )]
    LeftDirty {
        /// The disk.
        disk: String,
        /// Bytes that its origin does not have.
        dirty_bytes: u64,
    },
    /// A disk cannot be detached because some of its dirty data is lost.
    #[error(
        "dirty data of disk '{disk}' is lost, the rest is at the origin: 'disk lost {disk}' lists it, 'disk detach {disk} \
         --accept-loss {disk}' gives it up"
    )]
    DataLost {
        /// The disk.
        disk: String,
    },
    /// The engine refused or failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The policy refused.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A pool is not open.
    #[error("pool '{pool}' is not open: {why}")]
    PoolClosed {
        /// The pool.
        pool: String,
        /// Why it could not be opened.
        why: String,
    },
    /// The helper of an origin is not available.
    #[error(transparent)]
    Helper(#[from] HelperError),
    /// Another client may write the origin.
    #[error(transparent)]
    Watched(#[from] WatchError),
    /// The origin cannot be locked.
    #[error(transparent)]
    Locked(#[from] LockError),
    /// A path is outside of the sandbox.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The state directory cannot be written.
    #[error(transparent)]
    State(#[from] StateError),
    /// The history cannot be read.
    #[error("the history cannot be read: {0}")]
    History(std::io::Error),
    /// The operating system refused.
    #[error(transparent)]
    System(#[from] SystemError),
    /// The directory of the cluster cannot be changed.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The daemon has no policy yet.
    #[error("the daemon is starting: disks are being attached, and there is no policy yet")]
    Starting,
    /// The daemon is stopping.
    #[error("the daemon is stopping")]
    Stopping,
}

/// A result of the daemon.
pub type Result<T> = std::result::Result<T, DaemonError>;

impl DaemonError {
    /// Makes a conflict.
    pub fn conflict(what: impl Into<String>, hint: &'static str) -> DaemonError {
        DaemonError::Conflict { what: what.into(), hint }
    }

    /// Returns whether the error is that the job was cancelled, which is not a failure.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, DaemonError::Engine(EngineError::Job(JobError::Cancelled)))
    }

    /// Returns the HTTP status, a code for programs, and a hint.
    pub fn class(&self) -> (u16, &'static str, &'static str) {
        match self {
            DaemonError::NoSuch { .. } => (404, "not-found", "see 'haversack status' for what exists"),
            DaemonError::NoPool => (
                404,
                "not-found",
                "create one with 'haversack pool create', add it to haversackd.toml, and restart haversackd",
            ),
            DaemonError::Bad(_) => (400, "bad-request", "correct the request"),
            DaemonError::Conflict { hint, .. } => (409, "conflict", hint),
            DaemonError::Dirty { .. } => {
                (409, "dirty", "attach and flush it first, or repeat its name to destroy the data")
            }
            DaemonError::InUse { .. } => {
                (409, "in-use", "disconnect them first, or detach it with --force: their requests fail then")
            }
            DaemonError::LeftDirty { .. } => {
                (409, "dirty", "make its origin available and wait until it is attached, or give --force")
            }
            DaemonError::DataLost { .. } => (409, "dirty", "repeat its name as accept_loss to give it up"),
            DaemonError::Engine(error) => engine_class(error),
            DaemonError::Control(ControlError::Policy(PolicyError::BadFigure { .. })) => {
                (400, "bad-request", "correct the value")
            }
            DaemonError::Control(_) => (409, "conflict", "see 'haversack policy show'"),
            DaemonError::PoolClosed { .. } => {
                (503, "pool-failed", "fix what the message names; the daemon retries by itself")
            }
            DaemonError::Helper(_) => {
                (502, "origin", "check the origin's URI and that its store can be reached")
            }
            DaemonError::Watched(WatchError::InUse { .. }) => (
                409,
                "in-use",
                "close it there first; a client that died is forgotten after 30 s, or immediately with 'ceph osd blocklist add'",
            ),
            DaemonError::Locked(LockError::Held { .. } | LockError::Shared { .. }) => {
                (409, "in-use", "detach it there first")
            }
            DaemonError::Locked(LockError::Lost { .. }) => {
                (409, "conflict", "see 'haversack disk show' on the other hosts")
            }
            DaemonError::Locked(LockError::Failed { .. })
            | DaemonError::Watched(WatchError::Unknown { .. }) => {
                (502, "origin", "check the cluster and the user's capabilities with 'rbd status IMAGE'")
            }
            DaemonError::Sandbox(_) => (422, "sandbox", "or give another path"),
            DaemonError::State(_) => (500, "state", "check the state directory and its filesystem"),
            DaemonError::History(_) => {
                (500, "state", "remove the file 'history' from the state directory, and restart")
            }
            DaemonError::System(_) => (500, "system", "see the daemon's log"),
            DaemonError::Directory(DirectoryError::Changed { .. }) => {
                (409, "conflict", "see 'haversack cluster status', then try again")
            }
            DaemonError::Directory(_) => {
                (503, "directory", "guests and disks continue without etcd; try again when it is back")
            }
            DaemonError::Starting => {
                (503, "starting", "try again in a minute, or when /readyz no longer says 'starting'")
            }
            DaemonError::Stopping => (503, "stopping", "try again when it is back"),
        }
    }

    /// Returns the body of the control API's answer.
    pub fn body(&self) -> ErrorBody {
        let (_, code, hint) = self.class();
        ErrorBody { code: code.into(), error: self.to_string(), hint: hint.into() }
    }
}

fn engine_class(error: &EngineError) -> (u16, &'static str, &'static str) {
    match error {
        EngineError::Manage(ManageError::Busy) => (409, "busy", "wait for the other job or cancel it"),
        EngineError::Manage(ManageError::Dirty { .. }) => {
            (409, "dirty", "flush it first, or repeat its name to accept the loss")
        }
        EngineError::Manage(ManageError::Lost(_) | ManageError::LostHere(_) | ManageError::Damaged(_)) => {
            (409, "dirty", "repeat its name to accept the loss")
        }
        EngineError::Manage(ManageError::StaysWithLosses(_)) => {
            (409, "dirty", "see 'haversack disk lost', and write that data again")
        }
        EngineError::Manage(ManageError::Stopping) | EngineError::Stopped(_) => {
            (503, "stopping", "the pool has stopped: see the daemon's log, then start it again")
        }
        EngineError::Connected { .. } => (409, "in-use", "disconnect them first"),
        EngineError::Shrinks { .. } => {
            (409, "shrinks", "to confirm, use --shrink and the disk's name (--confirm NAME)")
        }
        EngineError::Serve(_) => (422, "socket", "give the disk's vhost_user socket another path"),
        EngineError::Detached | EngineError::Unknown(_) => {
            (404, "not-found", "see 'haversack status' for what exists")
        }
        EngineError::Manage(ManageError::BadConfig(_)) => (400, "bad-request", "correct the setting"),
        EngineError::OriginInUse { .. } | EngineError::OriginIsCacheDevice { .. } => {
            (409, "conflict", "give the disk its own image")
        }
        EngineError::Manage(_) | EngineError::InUse { .. } | EngineError::Pool(_) => {
            (409, "conflict", "see 'haversack status'")
        }
        EngineError::Origin { .. } | EngineError::OriginTooSmall { .. } => {
            (502, "origin", "check the origin's URI, that its store can be reached, and its size")
        }
        EngineError::Job(JobError::Origin) => (502, "origin", "try again when the origin is back"),
        EngineError::Job(_) => (409, "job-failed", "see the daemon's log"),
        EngineError::Io { .. }
        | EngineError::WrongKind { .. }
        | EngineError::NoDirectIo { .. }
        | EngineError::StagingSize { .. }
        | EngineError::StagingTruncated { .. }
        | EngineError::StagingWithoutHeader { .. } => (422, "device", "check the path and its permissions"),
        EngineError::Ring(_) => (500, "system", "see the daemon's log"),
        _ => (500, "engine", "see the daemon's log"),
    }
}
