//! What goes wrong with a monitor.

use std::io;
use std::time::Duration;

/// An error of a monitor.
#[derive(Debug, thiserror::Error)]
pub enum QmpError {
    /// Nobody can be reached at the address.
    #[error("{address}: QEMU's monitor cannot be reached: {source}; check the address, and that QEMU runs")]
    Unreachable {
        /// The address.
        address: String,
        /// The reason.
        source: io::Error,
    },
    /// It does not accept a connection, or does not say anything.
    #[error(
        "{address}: QEMU's monitor has not answered {command} within {waited:?}; QEMU may be waiting for a disk, or serve another client: a monitor has one client at a time"
    )]
    Silent {
        /// The address.
        address: String,
        /// The command, or `the connection`.
        command: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The connection has ended: QEMU has.
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
        /// What QEMU says.
        why: String,
    },
    /// What came is not what a monitor sends.
    #[error("{address}: this is not what QEMU's monitor sends: {what}; is it a QMP socket (-qmp)?")]
    NotQmp {
        /// The address.
        address: String,
        /// What came.
        what: String,
    },
}

impl QmpError {
    /// Returns whether the monitor is gone, and its QEMU with it: not if it is the network that fails, or permission that
    /// is missing.
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
