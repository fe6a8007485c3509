//! Input and output of the core: requests, actions, completions, events.

use haversack_model::{BlockNo, DeviceNo, DiskNo, SectorNo};

use crate::memory::{FrameNo, RequestTag};
use crate::origin_gate::permit::Passed;

/// What a guest asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Read sectors.
    Read,
    /// Write sectors; with `fua` the data is durable before the acknowledgement.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// Make all acknowledged writes durable.
    Flush,
    /// The guest no longer needs the range: it reads as zeroes from now on.
    Discard,
    /// The range becomes zeroes.
    WriteZeroes,
}

/// A request of a guest. Its buffer is identified by `tag` in the core's [`crate::Memory`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The caller's name for the request, given back on completion.
    pub tag: RequestTag,
    /// The disk.
    pub disk: DiskNo,
    /// What to do.
    pub op: Op,
    /// First sector.
    pub sector: SectorNo,
    /// Number of sectors, at most [`crate::config::MAX_REQUEST_SECTORS`]; 0 for a flush.
    pub sectors: u32,
}

/// Why a request failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RequestError {
    /// The origin failed the I/O after the engine's retries.
    #[error("the origin failed the I/O")]
    Origin,
    /// The block's only dirty copy is damaged or its device is lost.
    #[error("the newest data of a block in this range is lost (its cache device failed or is damaged)")]
    DataLost,
    /// This host no longer owns the disk.
    #[error("this host does not own the disk")]
    NotOwner,
    /// The newest data is on the host that owned the disk before, and cannot be read from there.
    #[error(
        "the newest data of a block in this range is on the disk's earlier host, which cannot be reached"
    )]
    PeerLost,
    /// The disk is being detached.
    #[error("the disk is being detached")]
    Detached,
    /// The data to be written could not be read from the client.
    #[error("the client has lost the data to be written")]
    PayloadLost,
}

/// Why a request was not taken. Nothing was started; the request gets no completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Rejected {
    /// The maximum number of requests is in flight: submit again after a completion.
    #[error("too many requests in flight; submit again after a completion")]
    Busy,
    /// No such disk is attached.
    #[error("disk {0} is not attached")]
    NoSuchDisk(DiskNo),
    /// The range is not inside the disk, is empty or is too long.
    #[error(
        "sectors {sector}+{sectors} are outside the disk's {disk_sectors} sectors, empty, or more than 32 MiB"
    )]
    OutOfRange {
        /// First sector asked for.
        sector: u64,
        /// Number of sectors asked for.
        sectors: u32,
        /// Sectors of the disk.
        disk_sectors: u64,
    },
    /// This host no longer owns the disk.
    #[error("this host does not own the disk")]
    NotOwner,
}

/// Names an I/O between its action and its completion.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct IoId(pub u32);

/// Names a management job between its call and its [`Event`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct JobId(pub u32);

/// What the driver must do. Each action with an `io` is answered by one [`crate::Call::complete`];
/// [`crate::Core::pieces`] returns its memory. Actions may be carried out in any order and concurrently.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Read from a cache device, whole blocks.
    ReadDevice {
        /// Name of the I/O.
        io: IoId,
        /// The cache device.
        device: DeviceNo,
        /// Byte offset, a multiple of 4,096.
        offset_bytes: u64,
    },
    /// Write to a cache device, whole blocks.
    WriteDevice {
        /// Name of the I/O.
        io: IoId,
        /// The cache device.
        device: DeviceNo,
        /// Byte offset, a multiple of 4,096.
        offset_bytes: u64,
    },
    /// Make all completed writes of a cache device durable.
    FlushDevice {
        /// Name of the I/O.
        io: IoId,
        /// The cache device.
        device: DeviceNo,
    },
    /// Read sectors of the origin.
    ReadOrigin {
        /// Name of the I/O.
        io: IoId,
        /// The disk.
        disk: DiskNo,
        /// First sector.
        sector: SectorNo,
        /// Number of sectors.
        sectors: u32,
    },
    /// Write sectors of the origin.
    WriteOrigin {
        /// Name of the I/O.
        io: IoId,
        /// The disk.
        disk: DiskNo,
        /// First sector.
        sector: SectorNo,
        /// Number of sectors.
        sectors: u32,
        /// It must be durable at the origin when it is answered. The core can stage the data instead, so an
        /// origin that is known to be unreachable should refuse it without waiting.
        durable: bool,
        /// The gate let it through.
        passed: Passed,
    },
    /// Make sectors of the origin read as zeroes; the origin may free them.
    ZeroOrigin {
        /// Name of the I/O.
        io: IoId,
        /// The disk.
        disk: DiskNo,
        /// First sector.
        sector: SectorNo,
        /// Number of sectors.
        sectors: u32,
        /// The guest discards: space should be freed.
        discard: bool,
        /// As in [`Action::WriteOrigin`].
        durable: bool,
        /// The gate let it through.
        passed: Passed,
    },
    /// Make all completed writes of the origin durable.
    FlushOrigin {
        /// Name of the I/O.
        io: IoId,
        /// The disk.
        disk: DiskNo,
    },
    /// Read a block of a disk from the host that owned it before: [`crate::Call::read_copy`] there, with the sectors at
    /// their places in a frame. Every sector of the mask is needed. While that host cannot be reached, the driver
    /// decides how long to wait before it reports a failure. For a late copy it should report the failure soon, since
    /// the origin has the block, too.
    ReadPeer {
        /// Name of the I/O.
        io: IoId,
        /// The disk.
        disk: DiskNo,
        /// The block.
        block: BlockNo,
        /// The sectors.
        mask: u8,
        /// It is a late copy, which that host may not have any more.
        is_late: bool,
    },
    /// A request is done.
    Complete {
        /// The request's tag.
        tag: RequestTag,
        /// The outcome.
        result: Result<(), RequestError>,
    },
    /// An event for the operator or the control plane.
    Event(Event),
}

/// Part of an I/O's memory, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The frame.
    pub frame: FrameNo,
    /// First byte in the frame.
    pub at: usize,
    /// Number of bytes.
    pub len: usize,
}

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A management job ended.
    JobDone {
        /// The job.
        job: JobId,
        /// The outcome.
        result: Result<(), JobError>,
    },
    /// A cache device is no longer used. Dirty data with a mirrored copy is safe.
    DeviceFailed {
        /// The device.
        device: DeviceNo,
        /// Dirty blocks that had no other copy.
        lost_blocks: u64,
    },
    /// No cache device is left. The contents of the failed devices become void as soon as the origins are written
    /// without them, and no device is left to record that. So writes wait until the caller has durably recorded the
    /// loss outside the pool and called [`crate::Call::loss_recorded`]. From then on the pool is opened with
    /// `contents_void`.
    PoolLost,
    /// A block read from flash failed its checksum, and no crash explains it (see
    /// [`crate::DiskStats::crash_dropped_blocks`]).
    Corruption {
        /// The disk.
        disk: DiskNo,
        /// The disk's first sector in the block.
        sector: SectorNo,
        /// The device.
        device: DeviceNo,
        /// Byte offset of the block on the device.
        offset_bytes: u64,
        /// Whether the block was dirty and had no good mirrored copy: its data is lost.
        lost: bool,
    },
    /// Cleaning a disk is blocked by its origin, or by a cache device that cannot be read.
    CleanFailed {
        /// The disk.
        disk: DiskNo,
    },
}

/// Why a management job failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum JobError {
    /// The origin failed; dirty data stays in the cache.
    #[error("the origin failed; the dirty data stays in the cache, try again when the origin is back")]
    Origin,
    /// A cache device failed to read dirty data that has no other copy; the data stays in the cache.
    #[error(
        "a cache device cannot be read; the dirty data stays in the cache, try again or replace the device"
    )]
    DeviceRead,
    /// The job was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// The last cache device failed.
    #[error("no cache device is left; add one")]
    NoDevice,
    /// Dirty data in the range or on the device is lost.
    #[error("some dirty data is damaged or was lost with a cache device, and cannot be cleaned")]
    DataLost,
}
