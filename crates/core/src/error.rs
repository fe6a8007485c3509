//! Errors of opening and managing a pool. Each says what was found, what was expected and what to do.

use haversack_model::{DeviceNo, DiskId, DiskNo, Uuid};

use crate::media::IoFailure;

/// Why a pool could not be created, opened, checked or flushed. Nothing was written unless stated otherwise.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PoolError {
    /// A device's I/O failed.
    #[error("{device}: {failure} at byte {offset_bytes}; check the device and its cabling")]
    Io {
        /// The device's name.
        device: String,
        /// Byte offset.
        offset_bytes: u64,
        /// The failure.
        failure: IoFailure,
    },
    /// The device is not a Haversack cache device.
    #[error("{device}: no Haversack superblock; is this the right device? create a pool on it first")]
    NotACacheDevice {
        /// The device's name.
        device: String,
    },
    /// The superblock is damaged beyond use.
    #[error(
        "{device}: both superblocks are damaged; leave the device out to open the pool degraded, then replace it"
    )]
    DamagedSuperblock {
        /// The device's name.
        device: String,
    },
    /// The format version is unknown.
    #[error(
        "{device}: pool format version {found}, this program reads version {expected}; use the program that wrote it"
    )]
    Version {
        /// The device's name.
        device: String,
        /// The version on the device.
        found: u32,
        /// The version of this program.
        expected: u32,
    },
    /// The device belongs to another pool.
    #[error("{device}: belongs to pool {found}, not to {expected}; give only the devices of one pool")]
    OtherPool {
        /// The device's name.
        device: String,
        /// The pool on the device.
        found: Uuid,
        /// The pool of the first device.
        expected: Uuid,
    },
    /// Two devices claim the same identity.
    #[error("{device}: has the same identity {id} as {other}; one is a copy, leave it out")]
    Duplicate {
        /// The device's name.
        device: String,
        /// The other device's name.
        other: String,
        /// The identity.
        id: Uuid,
    },
    /// The device is smaller than a pool needs.
    #[error("{device}: {found_bytes} bytes; a cache device needs at least {needed_bytes}")]
    TooSmall {
        /// The device's name.
        device: String,
        /// Bytes it has.
        found_bytes: u64,
        /// Bytes it needs.
        needed_bytes: u64,
    },
    /// The device is smaller than when the pool was made.
    #[error(
        "{device}: truncated to {found_bytes} bytes, {expected_bytes} were formatted; restore its size or leave it out"
    )]
    Truncated {
        /// The device's name.
        device: String,
        /// Bytes it has.
        found_bytes: u64,
        /// Bytes it had.
        expected_bytes: u64,
    },
    /// The other devices of the arena have all the segments that it can have.
    #[error(
        "{device}: an arena uses at most {most_bytes} bytes of all devices together, and none are left for this one; create the pool with more arenas, leave the device out, or, if devices were removed from the pool since it was opened, open it again first"
    )]
    ArenaFull {
        /// The device's name.
        device: String,
        /// Bytes that an arena can use.
        most_bytes: u64,
    },
    /// The device already carries a pool.
    #[error("{device}: already carries pool {pool}; wipe it first if its contents are not needed")]
    InUse {
        /// The device's name.
        device: String,
        /// The pool on it.
        pool: Uuid,
    },
    /// A device of the pool is missing, and it may hold the only copy of dirty data.
    #[error(
        "cache device {device} ({id}) of pool {pool} is missing and may hold the only copy of dirty data; bring it back, or accept the loss by name"
    )]
    MissingDevice {
        /// The pool.
        pool: Uuid,
        /// The device's number.
        device: DeviceNo,
        /// The device's identity.
        id: Uuid,
    },
    /// No copy of the pool record is readable.
    #[error("{device}: no valid pool record; the pool cannot be opened")]
    NoRecord {
        /// The first device's name.
        device: String,
    },
    /// The list of devices is empty, too long, or does not match the identities.
    #[error(
        "a pool has 1 to 16 cache devices and one identity for each, got {devices} devices and {ids} identities"
    )]
    DeviceCount {
        /// Devices given.
        devices: usize,
        /// Identities given.
        ids: usize,
    },
    /// The memory is too small to work with.
    #[error("staging needs at least {needed} frames and transfers as many, got {staging} and {transfer}")]
    Memory {
        /// Frames needed for each.
        needed: u32,
        /// Staging frames given.
        staging: u32,
        /// Transfer frames given.
        transfer: u32,
    },
}

/// Why a management call was refused. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ManageError {
    /// A setting is invalid.
    #[error("{0}")]
    BadConfig(String),
    /// No such disk.
    #[error("disk {0} is not known to the pool")]
    NoSuchDisk(DiskNo),
    /// The disk is already attached.
    #[error("disk {0} is already attached")]
    Attached(DiskId),
    /// The disk is not attached.
    #[error("disk {0} is not attached")]
    NotAttached(DiskId),
    /// The disk table is full.
    #[error("the pool's disk table is full; forget a disk first")]
    DiskTableFull,
    /// A job of the disk or device is running.
    #[error("another management job is running on it; wait for it or cancel it")]
    Busy,
    /// The pool is being stopped, or was.
    #[error("the pool is stopping or has stopped; open it again first")]
    Stopping,
    /// The pool has never had the disk.
    #[error("disk {0} is not known to the pool")]
    NotKnown(DiskId),
    /// The disk is moving between hosts, and its state does not allow the operation.
    #[error("disk {0} is moving between hosts; wait until the move is done, or abort it if possible")]
    Migrating(DiskId),
    /// Another host may have a replica of the disk's dirty blocks.
    #[error("disk {0} has a replica of its dirty blocks on another host; end the replica first")]
    Replicated(DiskId),
    /// The disk would shrink, and still needs dirty blocks of the host that owned it before.
    #[error(
        "disk {0} still needs dirty blocks of the host that owned it before: shrink it when 'haversack migrate status' shows none left"
    )]
    ShrinksDependent(DiskId),
    /// Dirty blocks of the disk are on the host that owned it before, and are not all listed.
    #[error(
        "disk {0} has dirty blocks on the host that owned it before; it can be attached when that host has listed them"
    )]
    PeerUnlisted(DiskId),
    /// Another host has taken the disk over, and dirty blocks are left that it does not have.
    #[error(
        "disk {disk} was taken over by another host without the {dirty_blocks} dirty blocks that are here; look at them with 'haversack flush-offline --list', then forget the disk by name"
    )]
    Overtaken {
        /// The disk.
        disk: DiskId,
        /// Its dirty blocks here.
        dirty_blocks: u64,
    },
    /// Another host has the disk, and needs dirty blocks that only this host has.
    #[error(
        "another host has disk {disk}, and still needs the {dirty_blocks} dirty blocks that are here: wait until it has them or, if it is permanently dead, take the disk over here"
    )]
    KeptForOwner {
        /// The disk.
        disk: DiskId,
        /// Its dirty blocks here.
        dirty_blocks: u64,
    },
    /// The epoch is older than the one on record.
    #[error("ownership epoch {given} is older than the recorded epoch {recorded}")]
    OldEpoch {
        /// Epoch given.
        given: u64,
        /// Epoch on record.
        recorded: u64,
    },
    /// The operation would destroy dirty data.
    #[error(
        "disk {disk} has {dirty_blocks} dirty blocks; clean them first, or name the disk to destroy them"
    )]
    Dirty {
        /// The disk.
        disk: DiskId,
        /// Its dirty blocks.
        dirty_blocks: u64,
    },
    /// The disk was recorded with another size.
    #[error(
        "disk {disk} was {recorded_sectors} sectors when it was last attached; attach it with that size, then resize it"
    )]
    Size {
        /// The disk.
        disk: DiskId,
        /// Sectors on record.
        recorded_sectors: u64,
    },
    /// Dirty blocks of the disk were lost with a cache device. The remaining ones are kept.
    #[error(
        "dirty blocks of disk {0} were lost with a cache device: the guest will read the origin's data there; accept the loss by naming the disk"
    )]
    Lost(DiskId),
    /// Dirty blocks of the disk were lost here, and another host may have a replica of them.
    #[error(
        "dirty blocks of disk {0} were lost here, and another host may have a replica of them: stop haversackd on this host and take the disk over on the other one, or accept the loss by naming the disk"
    )]
    LostHere(DiskId),
    /// Dirty blocks of the disk are damaged or lost here: the next host would read older data from the origin.
    #[error(
        "data of disk {0} is lost here, so the disk does not move: the next host would read older data from its origin; write the data that 'haversack disk lost' lists again, or detach the disk and accept the loss"
    )]
    StaysWithLosses(DiskId),
    /// The earlier owner cannot read dirty blocks of the disk that this host needs.
    #[error(
        "the host that had disk {0} before cannot read all of the blocks that this host needs, and reads of those fail: wait until the others have arrived, see 'haversack migrate status'; then give up the rest with 'haversack disk own'"
    )]
    PeerHasLosses(DiskId),
    /// A cache device is missing, or metadata is damaged, that may have listed dirty blocks of the disk. It
    /// is unknown which of the remaining blocks are the newest.
    #[error(
        "disk {0} is missing a cache device or metadata that may have named dirty blocks: bring the device back, or accept the loss of all data that its origin does not have by naming the disk"
    )]
    Damaged(DiskId),
    /// No such device, or not in a state for this.
    #[error("cache device {0} is not in use")]
    NoSuchDevice(DeviceNo),
    /// The pool has no device left.
    #[error(
        "disk {0}: its pool has no cache device left, so nothing can be recorded: add one, or open the pool again"
    )]
    NoDevice(DiskId),
    /// The last device cannot be removed.
    #[error("cache device {0} is the only one; add another first")]
    LastDevice(DeviceNo),
    /// All numbers of devices are in use, or were since the pool was opened.
    #[error(
        "the pool has, or has had since it was opened, the maximum of 16 cache devices; if some of them have left, open it again to use their numbers, otherwise remove one first"
    )]
    DeviceTableFull,
    /// The new device is not fit.
    #[error(transparent)]
    Pool(#[from] PoolError),
}
