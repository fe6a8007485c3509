//! Why a device cannot be served: what was expected, and what to do.

use std::io;
use std::path::PathBuf;

use haversack_nbd::{ClientError, UriError};

use crate::abi::ControlCommand;

/// See the module documentation.
#[derive(Debug, thiserror::Error)]
pub enum UblkError {
    #[error(transparent)]
    Uri(#[from] UriError),
    #[error("{uri}: expected nbd+unix:///EXPORT?socket=PATH, a Unix socket of the daemon without TLS")]
    NotLocal { uri: String },
    #[error(
        "{path}: {source}; expected the ublk driver: modprobe ublk_drv, Linux {} or later with CONFIG_BLK_DEV_UBLK",
        crate::control::OLDEST_KERNEL
    )]
    NoDriver { path: &'static str, source: io::Error },
    #[error("{path}: {source}; run as root, with CAP_SYS_ADMIN")]
    NotAllowed { path: &'static str, source: io::Error },
    #[error(
        "the ublk driver does not have {missing}; expected that of Linux {} or later",
        crate::control::OLDEST_KERNEL
    )]
    OldDriver { missing: &'static str },
    #[error("{}{}: {source}", .command.name(), of_device(*.device))]
    Command { command: ControlCommand, device: u32, source: io::Error },
    #[error("/dev/ublkb{device} is in use by process {pid}; choose another --id, or end that process")]
    InUse { device: u32, pid: i32 },
    #[error(
        "/dev/ublkb{device} waits for the server of another disk; choose another --id, or name the URI that it was made with, or \
         remove it with haversack-ublk --id {device} --remove"
    )]
    OtherDisk { device: u32 },
    #[error(
        "this disk is /dev/ublkb{found} already, not /dev/ublkb{asked}; leave out --id, or remove that one first"
    )]
    OtherDevice { found: u32, asked: u32 },
    #[error("/dev/ublkb{device} is writable; leave out --read-only, or stop its program and start again")]
    Writable { device: u32 },
    #[error(
        "{path} is mounted or in use by the kernel, so it was not removed: its requests wait for the next program with this URI. \
         Unmount it, start that one, and stop it"
    )]
    Mounted { path: PathBuf },
    #[error("there is no ublk device {device}")]
    NoDevice { device: u32 },
    #[error("{path}: {source}")]
    Device { path: PathBuf, source: io::Error },
    #[error("{what}: {source}")]
    System { what: &'static str, source: io::Error },
    #[error(
        "{socket}: {source}; expected the daemon there within {wait_s} s: systemctl status haversackd, or a longer --wait"
    )]
    Away { socket: String, wait_s: u64, source: UpstreamError },
    #[error("{0}; haversack disk list shows the disks that the daemon has")]
    Export(ClientError),
    #[error("export {export:?} has {found}, expected {expected}")]
    Unfit { export: String, found: String, expected: &'static str },
    #[error("another program has removed the device")]
    Removed,
    #[error("a thread of the program has ended unexpectedly; this is a bug")]
    Thread,
}

/// Why there is no connection to the daemon.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Nbd(#[from] ClientError),
    /// The daemon is stopping or starting.
    #[error("it closed the connection during negotiation")]
    Closed,
    #[error("the server asks for TLS, which was not offered")]
    Tls,
}

impl UblkError {
    /// Wraps an error of the operating system.
    pub fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}

fn of_device(device: u32) -> String {
    if device == crate::abi::ANY_DEVICE { String::new() } else { format!(" of ublk device {device}") }
}
