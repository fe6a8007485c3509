//! What a pool's arenas report to those who have subscribed.

use std::path::PathBuf;

use haversack_model::{ArenaNo, DeviceNo, DiskId, HostId, SectorNo};

/// An event of a pool. Disks are named by their permanent identity: by the time an event is read, a disk's
/// number may belong to another disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EngineEvent {
    /// See [`haversack_core::Event::DeviceFailed`].
    DeviceFailed {
        /// The device.
        device: DeviceNo,
        /// Dirty blocks that had no other copy.
        lost_blocks: u64,
    },
    /// An arena has lost its last device; see [`haversack_core::Event::PoolLost`].
    PoolLost {
        /// The arena.
        arena: ArenaNo,
    },
    /// See [`haversack_core::Event::Corruption`].
    Corruption {
        /// The disk.
        disk: DiskId,
        /// The disk's first sector in the block.
        sector: SectorNo,
        /// The device.
        device: DeviceNo,
        /// Byte offset of the block on the device.
        offset_bytes: u64,
        /// Whether the data is lost.
        lost: bool,
    },
    /// See [`haversack_core::Event::CleanFailed`].
    CleanFailed {
        /// The disk.
        disk: DiskId,
    },
    /// An origin is unreachable; its requests wait.
    OriginAway {
        /// The disk.
        disk: DiskId,
        /// What went wrong.
        why: String,
    },
    /// An origin is reachable again.
    OriginBack {
        /// The disk.
        disk: DiskId,
    },
    /// An origin's server has answered that it is shutting down, so the engine connects again. Reported each time.
    OriginShutsDown {
        /// The disk.
        disk: DiskId,
    },
    /// Dirty sectors of a disk were lost with a cache device. Reading them fails until they are written again.
    DataLost {
        /// The disk.
        disk: DiskId,
        /// All lost ranges of the disk: first sector and number of sectors, in order.
        runs: Vec<(SectorNo, u64)>,
    },
    /// Lost sectors of a disk were given up with a detach: reads of them return the origin's data.
    LossAccepted {
        /// The disk.
        disk: DiskId,
        /// First sector and number of sectors, in order.
        runs: Vec<(SectorNo, u64)>,
    },
    /// A cache device returned an error.
    DeviceError {
        /// The device.
        path: PathBuf,
        /// Byte offset of the I/O.
        offset_bytes: u64,
        /// The system's error number.
        errno: i32,
    },
    /// This host has released a disk: another one owns it.
    MovedAway {
        /// The disk.
        disk: DiskId,
        /// The host.
        to: HostId,
        /// It still needs dirty blocks that are here.
        holds_blocks: bool,
    },
    /// This host owns a disk from now on.
    MovedHere {
        /// The disk.
        disk: DiskId,
        /// The host that has dirty blocks of it.
        from: Option<HostId>,
    },
    /// Another host has taken a disk over by force while this one was away.
    Overtaken {
        /// The disk.
        disk: DiskId,
        /// The host.
        by: HostId,
        /// Dirty blocks that are here, and that the other host does not have.
        dirty_blocks: u64,
    },
    /// A disk of this host no longer needs anything from another one.
    MoveEnded {
        /// The disk.
        disk: DiskId,
    },
}
