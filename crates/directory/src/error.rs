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
        /// What an address looks like.
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
    /// Somebody else has changed a key meanwhile.
    #[error("{key} has been changed by somebody else meanwhile: look again, then decide")]
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
    pub(crate) fn ends_session(&self) -> bool {
        match self {
            DirectoryError::Call { is_connection, .. } => *is_connection,
            DirectoryError::Changed { .. } | DirectoryError::Busy => false,
            _ => true,
        }
    }

    /// Makes the error of a call.
    pub(crate) fn call(endpoint: &str, what: &str, error: &etcd_client::Error) -> DirectoryError {
        DirectoryError::Call {
            endpoint: endpoint.into(),
            what: what.into(),
            why: text(error),
            is_connection: is_connection(error),
        }
    }
}

/// Returns an error of the library with its causes: its own text leaves them out.
pub(crate) fn text(error: &etcd_client::Error) -> String {
    match error {
        etcd_client::Error::GRpcStatus(status) => with_causes(status.message().to_string(), status),
        etcd_client::Error::TransportError(error) => with_causes(error.to_string(), error),
        other => other.to_string(),
    }
}

fn with_causes(mut text: String, error: &dyn std::error::Error) -> String {
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.contains(&words) {
            text = if text.is_empty() { words } else { format!("{text}: {words}") };
        }
        cause = error.source();
    }
    if text.is_empty() { error.to_string() } else { text }
}

/// Returns whether another connection may do better: it was the connection or the member that failed, and not the request.
fn is_connection(error: &etcd_client::Error) -> bool {
    // gRPC: invalid argument, not found, permission denied, resource exhausted, failed precondition.
    const OF_THE_REQUEST: [i32; 5] = [3, 5, 7, 8, 9];
    match error {
        etcd_client::Error::GRpcStatus(status) => !OF_THE_REQUEST.contains(&(status.code() as i32)),
        _ => true,
    }
}
