//! Errors.

use std::io;
use std::path::PathBuf;

use crate::key::Key;

/// The directory cannot be used, or a call was refused.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// No member of etcd is configured.
    #[error("no endpoint of etcd is given: give at least one, such as https://10.0.0.1:2379")]
    NoEndpoint,
    /// An address with an invalid form.
    #[error("'{endpoint}' is not an address of etcd: expected {expected}")]
    Endpoint {
        /// The address.
        endpoint: String,
        /// The form of an address.
        expected: &'static str,
    },
    /// A name that cannot be part of a key.
    #[error("'{0}' cannot be the name of a host in the directory: it is empty, or has a '/'")]
    Name(String),
    /// A file cannot be read.
    #[error("{path}: cannot read the {what}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// `authority`, `certificate`, `private key` or `password`.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A file without a password.
    #[error("{0}: expected the password of etcd's user in the first line")]
    Password(PathBuf),
    /// The thread cannot be started.
    #[error("cannot start the thread of the directory: {0}")]
    Thread(io::Error),
    /// There is no connection, so the call was not tried.
    #[error("etcd cannot be reached: {why}")]
    Away {
        /// The last error.
        why: String,
    },
    /// Too many calls wait.
    #[error("too many calls to etcd wait already: try again")]
    Busy,
    /// A member of etcd refused a call or could not carry it out.
    #[error("etcd at {endpoint}: {what}: {why}")]
    Call {
        /// The member.
        endpoint: String,
        /// The call, with its key.
        what: String,
        /// Why.
        why: String,
        /// Another member, or a new connection, may do better.
        is_connection: bool,
    },
    /// A member of etcd did not answer in time.
    #[error("etcd at {endpoint}: {what}: no answer within {seconds} s")]
    Time {
        /// The member.
        endpoint: String,
        /// The call, with its key.
        what: String,
        /// How long it had.
        seconds: f64,
    },
    /// The watch ended.
    #[error("etcd at {endpoint}: the watch of {} ended: {why}", crate::PREFIX)]
    Watch {
        /// The member.
        endpoint: String,
        /// Why.
        why: String,
    },
    /// Another client has changed a key in the meantime.
    #[error("{key} was changed by another client meanwhile: check it again before you retry")]
    Changed {
        /// The key.
        key: Key,
    },
    /// The directory was stopped while the call waited.
    #[error("the connection to etcd was stopped")]
    Stopped,
}

impl DirectoryError {
    /// Returns whether the connection is of no use any more.
    pub fn ends_session(&self) -> bool {
        match self {
            DirectoryError::Call { is_connection, .. } => *is_connection,
            DirectoryError::Changed { .. } | DirectoryError::Busy => false,
            _ => true,
        }
    }
}
