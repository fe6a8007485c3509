//! Settings of a pool, a disk and the core, with their defaults and checks.

pub use haversack_admission::{Admit as AdmissionConfig, StagingKind};
use haversack_model::{ArenaId, DiskId, Micros, Uuid, WriteMode};

/// Maximum number of sectors of a request: 32 MiB.
pub const MAX_REQUEST_SECTORS: u32 = 65_536;
/// Maximum number of disks that a pool knows.
pub const MAX_DISKS: usize = 1024;
/// Maximum number of cache devices of a pool.
pub const MAX_DEVICES: usize = 16;
/// Sectors of the largest disk: 2^38 blocks, 1 PiB.
pub const MAX_DISK_SECTORS: u64 = 1 << 41;

/// Blocks that survive a restart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Persistence {
    /// Every block.
    All,
    /// Dirty blocks only.
    Dirty,
    /// Nothing. Refused for modes that defer origin writes.
    None,
}

/// Settings that are fixed when a pool is created.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolConfig {
    /// The pool's identity, and which of its arenas is created.
    pub arena: ArenaId,
    /// The number of arenas of the pool.
    pub arenas: u8,
    /// One identity per device, in the order of the devices.
    pub device_ids: Vec<Uuid>,
    /// Write dirty blocks to two devices when there are two or more.
    pub redundancy: bool,
    /// Segments of each device that are prepared when the pool is created. The others are prepared later, before they
    /// are used.
    pub prepared_segments: u32,
}

/// Segments of a device that are prepared when it is formatted, unless a caller has a reason to choose another
/// number: 256 MiB.
pub const PREPARED_AT_FORMAT: u32 = 256;

/// The order in which dirty blocks are cleaned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CleanOrder {
    /// Those that have been dirty for longest come first, but in large runs of neighbours.
    #[default]
    Age,
    /// Writes that the guest made after a flush reach the origin only after all writes that it made before the flush.
    /// See `flow/order.rs`.
    Flush,
}

/// When dirty blocks are cleaned.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CleanerConfig {
    /// Once the dirty blocks have exceeded the high watermark, clean until they are at most this share of the disk's
    /// target. A target of less than a segment counts as one segment.
    pub low_watermark: f32,
    /// Above this share, start to clean regardless of age and idleness.
    pub high_watermark: f32,
    /// Above this share, writes to blocks that are not dirty go past the cache, or wait if the origin refuses
    /// them. One batch of dirty blocks is always allowed.
    pub dirty_limit: f32,
    /// Clean blocks that have been dirty for this long.
    pub age_us: Micros,
    /// Clean everything when the disk has had no request for this long.
    pub idle_us: Micros,
    /// Maximum blocks per second, in portions of a tenth of a second; 0 for no limit. The limit applies to
    /// all cleaning that can wait, including requested cleaning. It does not apply where something waits: a
    /// guest that is held back, a need for space, a detach, or a disk when no cache device is left.
    pub rate_limit_blocks: u32,
    /// In which order.
    pub order: CleanOrder,
}

impl Default for CleanerConfig {
    fn default() -> Self {
        CleanerConfig {
            low_watermark: 0.10,
            high_watermark: 0.15,
            dirty_limit: 0.75,
            age_us: 30_000_000,
            idle_us: 5_000_000,
            rate_limit_blocks: 0,
            order: CleanOrder::Age,
        }
    }
}

/// How much of the pool a disk should have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// An equal part, for each attached disk with this target or `Shared`, of what other targets leave.
    Equal,
    /// This many blocks, and more while no other disk needs the space.
    Blocks(u64),
    /// This many blocks, and no more even while space is free, to reduce flash wear. With 0, no block enters the cache.
    Capped(u64),
    /// A place in one pool shared by all disks with this target: the coldest blocks of all of them make room.
    Shared {
        /// This many blocks of the disk are never evicted to make room for other disks.
        at_least_blocks: u64,
        /// Never more than this many, unless no other disk needs them.
        at_most_blocks: u64,
    },
}

/// Settings of a disk.
#[derive(Clone, PartialEq, Debug)]
pub struct DiskConfig {
    /// The disk's identity.
    pub id: DiskId,
    /// Sectors of the disk, 1 to [`MAX_DISK_SECTORS`].
    pub sectors: u64,
    /// Where on the disk a block of the grid starts, in sectors (0 to 7): 7 for a partition that starts at
    /// sector 63. Fixed while the pool holds blocks of the disk.
    pub phase: u8,
    /// The write mode.
    pub mode: WriteMode,
    /// Blocks that survive a restart.
    pub persistence: Persistence,
    /// The share of the pool.
    pub target: Target,
    /// Which blocks may enter.
    pub admission: AdmissionConfig,
    /// Requests that continue a sequential run of more than this many bytes go past the cache; 0 for never.
    pub sequential_cutoff_bytes: u64,
    /// When dirty blocks are cleaned.
    pub cleaner: CleanerConfig,
}

/// Settings of a disk that its operator alone changes, also while it is attached.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tuning {
    /// See [`DiskConfig::sequential_cutoff_bytes`].
    pub sequential_cutoff_bytes: u64,
    /// See [`DiskConfig::cleaner`].
    pub cleaner: CleanerConfig,
}

impl DiskConfig {
    /// Returns the part that [`crate::Call::tune`] takes over.
    pub fn tuning(&self) -> Tuning {
        Tuning { sequential_cutoff_bytes: self.sequential_cutoff_bytes, cleaner: self.cleaner }
    }

    /// Returns a write-back disk with the defaults.
    pub fn new(id: DiskId, sectors: u64) -> Self {
        DiskConfig {
            id,
            sectors,
            phase: 0,
            mode: WriteMode::WriteBack,
            persistence: Persistence::All,
            target: Target::Equal,
            admission: AdmissionConfig::Always,
            sequential_cutoff_bytes: 0,
            cleaner: CleanerConfig::default(),
        }
    }

    /// Checks the settings against each other.
    ///
    /// # Errors
    /// What is invalid, and what was expected.
    pub fn check(&self) -> Result<(), String> {
        if self.sectors == 0 || self.sectors > MAX_DISK_SECTORS {
            return Err(format!("a disk has 1 to {MAX_DISK_SECTORS} sectors, not {}", self.sectors));
        }
        if self.phase > 7 {
            return Err(format!("the grid phase is 0 to 7 sectors, not {}", self.phase));
        }
        if self.persistence == Persistence::None && self.mode.defers_origin() {
            return Err(format!(
                "persistence 'none' would lose acknowledged writes in mode {}: use 'dirty' or 'all', or mode wt, wa, wi or pt",
                self.mode
            ));
        }
        let c = &self.cleaner;
        let ordered = 0.0 <= c.low_watermark
            && c.low_watermark <= c.high_watermark
            && c.high_watermark <= c.dirty_limit
            && c.dirty_limit <= 1.0;
        if !ordered {
            return Err(format!(
                "cleaner shares must be ordered 0 <= low ({}) <= high ({}) <= limit ({}) <= 1",
                c.low_watermark, c.high_watermark, c.dirty_limit
            ));
        }
        self.admission.check()
    }
}

/// Settings of a running core.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CoreConfig {
    /// Maximum requests in flight; one more is rejected as busy.
    pub max_requests: u32,
    /// Staged blocks of a disk that start a commit.
    pub commit_blocks: u32,
    /// Unflushed blocks after which the devices are flushed without a request.
    pub flush_after_blocks: u32,
    /// The most written pages that come into effect in one call of [`Call::tick`] or [`Call::go_on`] after a flush of the
    /// devices; at least 1. In other calls only one does, since a request of a guest waits.
    ///
    /// [`Call::tick`]: crate::Call::tick
    /// [`Call::go_on`]: crate::Call::go_on
    pub flush_step_pages: usize,
    /// How long after a flush its mark may be missing from the devices. Until the mark is on a device, damage at rest
    /// is mistaken for a write that a power loss has torn.
    pub flush_mark_us: Micros,
    /// Whether a disk with a target in blocks may exceed it while no other disk needs the space. If not, all such
    /// targets are caps.
    pub share_spare: bool,
    /// How often the write-intent bitmap of a disk is cleared.
    pub intent_clear_us: Micros,
    /// How long the cleaner waits after a failure of its origin or of a read from a cache device.
    pub clean_retry_us: Micros,
    /// A cache device counts as failed when reads failed at this many places of it within
    /// `device_error_window_us`.
    pub device_read_errors: u32,
    /// How long a failed read of a cache device is remembered.
    pub device_error_window_us: Micros,
    /// How long a failed cache device stays on record while blocks are still staged of which only that device has an
    /// older version. After this time the device is given up. Until a flush of their disk has made these blocks
    /// durable, the record says that the disk may have lost something.
    pub leave_wait_us: Micros,
    /// The latency, in microseconds, that a block must be expected to save so that a learning filter admits it to
    /// flash. [`crate::Core::set_write_price`] changes it.
    pub write_price_us: f32,
    /// The share of the blocks, from 0 to 1, whose clean copies may be written to flash. Learning filters ignore this:
    /// they weigh the price of a write instead. [`crate::Core::set_fill_share`] changes it.
    pub fill_share: f64,
    /// Free segments of a device that are kept prepared for use; at least 1.
    pub prepare_segments: u32,
}

impl Default for CoreConfig {
    fn default() -> Self {
        CoreConfig {
            max_requests: 4096,
            commit_blocks: 128,
            flush_after_blocks: 16_384,
            flush_step_pages: 16,
            flush_mark_us: 1_000_000,
            share_spare: true,
            intent_clear_us: 60_000_000,
            clean_retry_us: 1_000_000,
            device_read_errors: 5,
            device_error_window_us: 3_600_000_000,
            leave_wait_us: 5_000_000,
            write_price_us: haversack_admission::WRITE_PRICE_US,
            fill_share: 1.0,
            prepare_segments: 512,
        }
    }
}
