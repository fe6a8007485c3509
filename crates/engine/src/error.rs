//! What can go wrong when shards, devices and origins are set up. Errors of single I/Os go to the client.

use std::io;
use std::path::PathBuf;

use haversack_core::{JobError, ManageError, PoolError};
use haversack_model::{DiskId, Uuid};

/// Why the engine refused something.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A file or device could not be used.
    #[error("{path}: cannot {action}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or device.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Another process uses the device.
    #[error("{path}: in use by {by}; stop that, or give another device")]
    InUse {
        /// The device.
        path: PathBuf,
        /// Who uses it, as far as is known.
        by: String,
    },
    /// There is data on a device that was to become a cache device.
    #[error("{path}: {what} is on it, and would be lost; give another device, or --force to overwrite it")]
    NotBlank {
        /// The device.
        path: PathBuf,
        /// What is on it.
        what: String,
    },
    /// A device that carries no pool was to be wiped.
    #[error("{path}: carries no Haversack pool: nothing to wipe")]
    NothingToWipe {
        /// The device.
        path: PathBuf,
    },
    /// None of the devices that are listed is of a pool.
    #[error(
        "no device of pool '{pool}' is found: {why}; check the paths, or make the pool if there was none"
    )]
    NoDevices {
        /// The pool's name.
        pool: String,
        /// What each of the listed devices is.
        why: String,
    },
    /// The devices that are listed are of several pools.
    #[error("pool '{pool}': the listed devices are of several pools, list those of one: {devices}")]
    SeveralPools {
        /// The pool's name.
        pool: String,
        /// Which is of which pool.
        devices: String,
    },
    /// A device is missing that the pool cannot do without.
    #[error(
        "{device} is missing, and may hold the only copy of data that no origin has: bring it back, under any name, or \
         accept the loss with accept_missing = \"{pool}\"{seen}"
    )]
    DeviceMissing {
        /// The pool's name.
        pool: String,
        /// The device, and where it was.
        device: String,
        /// What else was seen.
        seen: String,
    },
    /// Another process uses the origin.
    #[error(
        "origin {path}: in use by {by}; an image has one writer: stop that, or give the disk its own image"
    )]
    OriginInUse {
        /// The file or device.
        path: PathBuf,
        /// Who uses it, as far as is known.
        by: String,
    },
    /// The origin is a cache device.
    #[error(
        "origin {path}: a cache device of pool {pool}; name the disk's own image (if a guest has made a pool on its \
         disk, set origin_holds_pool = true)"
    )]
    OriginIsCacheDevice {
        /// The file or device.
        path: PathBuf,
        /// The pool whose superblock it carries.
        pool: Uuid,
    },
    /// Not a block device or a regular file.
    #[error("{path}: neither a block device nor a regular file")]
    WrongKind {
        /// The path.
        path: PathBuf,
    },
    /// The staging file is whole, and of another size than configured.
    #[error(
        "{path}: a staging area of {found_bytes} bytes that was not emptied by a clean stop; the configured size makes \
         {expected_bytes}: set the configured size back, start, and stop cleanly before changing it"
    )]
    StagingSize {
        /// The file.
        path: PathBuf,
        /// Its size.
        found_bytes: u64,
        /// The size that the configuration asks for.
        expected_bytes: u64,
    },
    /// The staging file is not as large as it was made.
    #[error(
        "{path}: the staging area was cut from {made_bytes} to {found_bytes} bytes: what was written and not flushed may \
         be lost; what was flushed is on the cache devices: remove the file to go on with that"
    )]
    StagingTruncated {
        /// The file.
        path: PathBuf,
        /// Its size.
        found_bytes: u64,
        /// The size that it was made with.
        made_bytes: u64,
    },
    /// The staging file is of another size than configured, and has no header that tells why.
    #[error(
        "{path}: {found_bytes} bytes, {expected_bytes} expected, and not the header of a staging area: it was cut or \
         written over, and what was written and not flushed may be lost; what was flushed is on the cache devices: remove \
         the file to go on with that"
    )]
    StagingWithoutHeader {
        /// The file.
        path: PathBuf,
        /// Its size.
        found_bytes: u64,
        /// The size that the configuration asks for.
        expected_bytes: u64,
    },
    /// The origin is smaller than the disk.
    #[error(
        "origin {origin}: {found_bytes} bytes, the disk needs {needed_bytes}; enlarge the origin or shrink the disk"
    )]
    OriginTooSmall {
        /// The origin.
        origin: String,
        /// Its bytes.
        found_bytes: u64,
        /// The disk's bytes.
        needed_bytes: u64,
    },
    /// The origin cannot be used.
    #[error("origin {origin}: {why}")]
    Origin {
        /// The origin.
        origin: String,
        /// What is wrong and what to do.
        why: String,
    },
    /// The pool cannot be created, opened or checked.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The core refused a management call.
    #[error(transparent)]
    Manage(#[from] ManageError),
    /// The disk that was named is not there any more.
    #[error("no such disk (it was detached)")]
    Detached,
    /// The pool has nothing of a disk.
    #[error("disk {0} is not known to the pool")]
    Unknown(DiskId),
    /// An export is not what was agreed on with an NBD client.
    #[error(
        "disk '{disk}' has another size, or may not be written any more, than was agreed on with the client"
    )]
    ExportChanged {
        /// The disk's name.
        disk: String,
    },
    /// An export has as many NBD connections as it may.
    #[error("disk '{disk}' has {most} NBD connections, as many as it may: close some or allow more")]
    TooManyConnections {
        /// The disk's name.
        disk: String,
        /// How many it may have.
        most: u32,
    },
    /// A management job failed.
    #[error(transparent)]
    Job(#[from] JobError),
    /// The kernel does not let io_uring be used.
    #[error(
        "cannot set up io_uring: {0}; Linux 5.15 or later is needed, and kernel.io_uring_disabled must be 0"
    )]
    Ring(io::Error),
    /// A connection cannot be used.
    #[error("cannot use the connection: {0}")]
    Socket(io::Error),
    /// A disk cannot be served to guests.
    #[error(transparent)]
    Serve(#[from] haversack_vhost_user::ServeError),
    /// Clients of a disk would lose what they use.
    #[error("disk '{disk}' is in use by {}", .clients.join(", "))]
    Connected {
        /// The disk's name.
        disk: String,
        /// Who is connected.
        clients: Vec<String>,
    },
    /// A disk is larger than it was to become, and nobody said that it may shrink.
    #[error("disk '{disk}' has {present_bytes} bytes: at {new_bytes} bytes, what it has beyond is lost")]
    Shrinks {
        /// The disk's name.
        disk: String,
        /// Its bytes.
        present_bytes: u64,
        /// The bytes that were asked for.
        new_bytes: u64,
    },
    /// The shard's thread has ended.
    #[error("the shard of pool '{0}' has stopped")]
    Stopped(String),
}

/// A result of the engine.
pub type Result<T> = std::result::Result<T, EngineError>;

/// Adds path and action to a system error.
pub(crate) fn at(action: &'static str, path: &std::path::Path) -> impl FnOnce(io::Error) -> EngineError {
    let path = path.to_path_buf();
    move |source| EngineError::Io { action, path, source }
}
