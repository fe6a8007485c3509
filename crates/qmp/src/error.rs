//! Errors of a monitor.

use std::io;
use std::time::Duration;

/// An error of a monitor.
#[derive(Debug, thiserror::Error)]
pub enum QmpError {
    /// Nothing can be reached at the address.
    #[error("{address}: QEMU's monitor cannot be reached: {source}; check the address, and that QEMU runs")]
    Unreachable {
        /// The address.
        address: String,
        /// The reason.
        source: io::Error,
    },
    /// It does not accept a connection, or does not send anything.
    #[error(
        "{address}: QEMU's monitor has not answered {command} within {waited:?}; QEMU may be waiting for a disk, or serve another client: a monitor has one client at a time"
    )]
    Silent {
        /// The address.
        address: String,
        /// The command, or `the connection`.
        command: String,
        /// The time waited.
        waited: Duration,
    },
    /// The connection has ended because QEMU has.
    #[error("{address}: QEMU has closed the connection of its monitor: {why}")]
    Gone {
        /// The address.
        address: String,
        /// The reason.
        why: String,
    },
    /// QEMU refuses a command.
    #[error("{address}: QEMU refuses {command}: {why}")]
    Refused {
        /// The address.
        address: String,
        /// The command.
        command: String,
        /// QEMU's message.
        why: String,
    },
    /// The data received is not from a monitor.
    #[error("{address}: this is not what QEMU's monitor sends: {what}; is it a QMP socket (-qmp)?")]
    NotQmp {
        /// The address.
        address: String,
        /// The data.
        what: String,
    },
}

impl QmpError {
    /// Returns whether the monitor is gone, and its QEMU with it: false for a failure of the network or a missing
    /// permission.
    pub fn is_gone(&self) -> bool {
        match self {
            QmpError::Gone { .. } => true,
            QmpError::Unreachable { source, .. } => {
                matches!(source.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
            }
            QmpError::Silent { .. } | QmpError::Refused { .. } | QmpError::NotQmp { .. } => false,
        }
    }
}
