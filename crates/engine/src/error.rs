//! Errors of setting up pools, devices and origins. Errors of single I/Os go to the client.

use std::io;
use std::path::PathBuf;

use haversack_core::{JobError, ManageError, PoolError};
use haversack_model::{DiskId, Uuid};

/// Why the engine refused a call.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A file or device could not be used.
    #[error("{path}: cannot {action}: {source}")]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The file or device.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another process uses the device.
    #[error("{path}: in use by {by}; stop it, or name another device")]
    InUse {
        /// The device.
        path: PathBuf,
        /// The process that uses it, as far as known.
        by: String,
    },
    /// A device that was to become a cache device holds data.
    #[error("{path}: {what} is on it and would be lost; name another device, or use --force to overwrite it")]
    NotBlank {
        /// The device.
        path: PathBuf,
        /// What is on it.
        what: String,
    },
    /// A device to be wiped carries no pool.
    #[error("{path}: no Haversack pool on it; nothing to wipe")]
    NothingToWipe {
        /// The device.
        path: PathBuf,
    },
    /// A pool cannot have this many arenas.
    #[error("a pool cannot have {arenas} arenas; expected 1 to {most}")]
    Arenas {
        /// The number asked for.
        arenas: u8,
        /// The largest number allowed.
        most: u8,
    },
    /// No device has the part of an arena.
    #[error(
        "none of {devices} has an intact superblock of arena {arena}; list the pool's other devices, or restore them"
    )]
    NoExtent {
        /// The arena's number.
        arena: usize,
        /// The devices found.
        devices: String,
    },
    /// What is left of a pool's memory, or of what it lends, for each of its arenas is too little.
    #[error(
        "{setting} of {found_bytes} bytes is too little for the {arenas} arenas of pool '{pool}': set at least {needed_bytes} bytes"
    )]
    ArenaMemory {
        /// The pool's name.
        pool: String,
        /// The setting.
        setting: &'static str,
        /// The number of arenas.
        arenas: u8,
        /// Its value.
        found_bytes: u64,
        /// The least value allowed.
        needed_bytes: u64,
    },
    /// None of the listed devices belongs to a pool.
    #[error(
        "no device of pool '{pool}' was found: {why}; check the paths, or create the pool if it does not exist yet"
    )]
    NoDevices {
        /// The pool's name.
        pool: String,
        /// What each listed device is.
        why: String,
    },
    /// The listed devices belong to several pools.
    #[error(
        "pool '{pool}': the listed devices belong to several pools; list the devices of one pool: {devices}"
    )]
    SeveralPools {
        /// The pool's name.
        pool: String,
        /// Which device belongs to which pool.
        devices: String,
    },
    /// What was learned for a disk's admission is malformed.
    #[error("what was learned for admission cannot be used: {0}")]
    Admission(#[from] haversack_core::MalformedAdmission),
    /// A device that the pool needs is missing.
    #[error(
        "{device} is missing, and may hold the only copy of data that no origin has: bring it back, under any name, or \
         accept the loss with accept_missing = \"{pool}\"{seen}"
    )]
    DeviceMissing {
        /// The pool's name.
        pool: String,
        /// The device, and where it was.
        device: String,
        /// Other devices that were found.
        seen: String,
    },
    /// A disk that does not move may have a replica from when it did.
    #[error(
        "disk {disk}: another host may have a replica of its dirty blocks, from when it could move between hosts; configure \
         [migration] and restart the daemon, which drops the replica within seconds, then attach the disk again"
    )]
    HasReplica {
        /// The disk's name.
        disk: String,
    },
    /// Another process uses the origin.
    #[error(
        "origin {path}: in use by {by}; an image has one writer; stop it, or give the disk its own image"
    )]
    OriginInUse {
        /// The file or device.
        path: PathBuf,
        /// The process that uses it, as far as known.
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
    /// An origin cannot be accessed past the page cache.
    #[error(
        "{path}: direct I/O in sectors of 512 bytes is not possible ({source}), and without it a disk that moves between hosts \
         could read old data; use an origin with 512-byte sectors, or a file system that has direct I/O"
    )]
    NoDirectIo {
        /// The file or device.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Not a block device or a regular file.
    #[error("{path}: neither a block device nor a regular file")]
    WrongKind {
        /// The path.
        path: PathBuf,
    },
    /// Another user made the staging file or can write to it, or it is not a file.
    #[error(
        "{path}: found {found}, expected a file of user {expected_uid} that nobody else can write, or none: if a daemon of \
         this host made it, stop that one, chown the file to {expected_uid} and set its mode to 0600; otherwise remove it"
    )]
    StagingNotOurs {
        /// The path of the staging file.
        path: PathBuf,
        /// What is there, and whose it is.
        found: String,
        /// The user of this process.
        expected_uid: u32,
    },
    /// The staging file is intact, but its size is not the configured one.
    #[error(
        "{path}: a staging area of {found_bytes} bytes that was not emptied by a clean stop; the configured size makes \
         {expected_bytes}: set the configured size back, start, and stop cleanly before changing it"
    )]
    StagingSize {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        found_bytes: u64,
        /// The configured size in bytes.
        expected_bytes: u64,
    },
    /// The staging file has been truncated since it was created.
    #[error(
        "{path}: the staging area was cut from {made_bytes} to {found_bytes} bytes: what was written and not flushed may \
         be lost; what was flushed is on the cache devices: remove the file to continue with that"
    )]
    StagingTruncated {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        found_bytes: u64,
        /// The size it was created with.
        made_bytes: u64,
    },
    /// The staging file's size is not the configured one, and it has no header that says why.
    #[error(
        "{path}: {found_bytes} bytes, {expected_bytes} expected, and not the header of a staging area: it was cut or \
         written over, and what was written and not flushed may be lost; what was flushed is on the cache devices: remove \
         the file to continue with that"
    )]
    StagingWithoutHeader {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        found_bytes: u64,
        /// The configured size in bytes.
        expected_bytes: u64,
    },
    /// The origin is smaller than the disk.
    #[error(
        "origin {origin}: {found_bytes} bytes, the disk needs {needed_bytes}; enlarge the origin or shrink the disk"
    )]
    OriginTooSmall {
        /// The origin.
        origin: String,
        /// Its size in bytes.
        found_bytes: u64,
        /// The disk's size in bytes.
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
    /// The disk no longer exists.
    #[error("no such disk (it was detached)")]
    Detached,
    /// A disk was made from another image than its base's.
    #[error(
        "origin {origin}: its data at byte {offset_bytes} comes from the image behind it, but differs from that of the base; name the disk of the image that it was made from"
    )]
    OtherBase {
        /// The disk's origin.
        origin: String,
        /// Where the data that differs begins.
        offset_bytes: u64,
        /// How much was compared there.
        length_bytes: u64,
    },
    /// A disk and its base belong to different arenas.
    #[error(
        "the disk and its base are in different arenas of the pool: forget the disk, and attach it after its base"
    )]
    BaseElsewhere,
    /// The disk was attached without other hosts that it could move to.
    #[error("the disk does not move between hosts: it was attached when no other host was configured")]
    DoesNotMove,
    /// A takeover was to use a replica.
    #[error("there is no complete replica of the disk's dirty blocks here")]
    NoReplica,
    /// The pool holds nothing of the disk.
    #[error("disk {0} is not known to the pool")]
    Unknown(DiskId),
    /// An export differs from what was negotiated with an NBD client.
    #[error("disk '{disk}' has a different size than was agreed with the client, or is no longer writable")]
    ExportChanged {
        /// The disk's name.
        disk: String,
    },
    /// An export already has the most NBD connections allowed.
    #[error("disk '{disk}' has {most} NBD connections, the maximum; close some, or raise the limit")]
    TooManyConnections {
        /// The disk's name.
        disk: String,
        /// The most it may have.
        most: u32,
    },
    /// A management job failed.
    #[error(transparent)]
    Job(#[from] JobError),
    /// The kernel does not allow io_uring.
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
    /// The disk still has clients that would lose it.
    #[error("disk '{disk}' is in use by {}", .clients.join(", "))]
    Connected {
        /// The disk's name.
        disk: String,
        /// The clients.
        clients: Vec<String>,
    },
    /// The new size is smaller than the disk, and shrinking was not allowed.
    #[error(
        "disk '{disk}' has {present_bytes} bytes; shrinking it to {new_bytes} bytes destroys everything beyond"
    )]
    Shrinks {
        /// The disk's name.
        disk: String,
        /// Its size in bytes.
        present_bytes: u64,
        /// The requested size in bytes.
        new_bytes: u64,
    },
    /// The pool's threads have ended.
    #[error("pool '{0}' has stopped")]
    Stopped(String),
}

/// A result of the engine.
pub type Result<T> = std::result::Result<T, EngineError>;

/// Adds path and action to a system error.
pub(crate) fn at(action: &'static str, path: &std::path::Path) -> impl FnOnce(io::Error) -> EngineError {
    let path = path.to_path_buf();
    move |source| EngineError::Io { action, path, source }
}
