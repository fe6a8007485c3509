//! Settings for opening a pool and for attaching a disk.

use std::path::{Path, PathBuf};
use std::time::Duration;

use haversack_core::{CoreConfig, DiskConfig, MIN_FRAMES, OpenOptions};
use haversack_latency::WholeTimes;
use haversack_model::{ArenaId, ArenaNo, BLOCK_BYTES, DiskId, Uuid};

use crate::checkpoint::OnSaving;
use crate::error::{EngineError, Result};
use crate::media::OnProgress;
use crate::moving::Moves;

/// An arena whose contents are void, because it lost its last device while its pool ran.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VoidArena {
    /// Its pool; `None` for the one that is opened, whichever that is.
    pub pool: Option<Uuid>,
    /// Its number there.
    pub number: ArenaNo,
}

/// Settings of a pool. Memory is for the whole pool and divided among its arenas.
#[derive(Clone, Debug)]
pub struct PoolSettings {
    /// The pool's name, for messages and threads.
    pub name: String,
    /// The cache devices: block devices or files made by [`crate::pool::create`], in any order.
    pub devices: Vec<PathBuf>,
    /// The shared-memory file of the staging area, normally under `/dev/shm`. It survives the process: after a
    /// kill, every acknowledged write is still in it. Each arena but the first has a file of its own, with the
    /// arena's number appended to the name, after a `#`.
    pub staging_path: PathBuf,
    /// Size of the staging area in blocks.
    pub staging_blocks: u32,
    /// Blocks of memory for data in transit between devices, origins and the staging area.
    pub transfer_blocks: u32,
    /// Memory for the payloads of NBD requests, in bytes. A disk may use at most as much as then remains free.
    /// Regardless of that, a disk without requests may have one, and a client without requests a small one.
    pub client_bytes: usize,
    /// Settings of the cache core.
    pub core: CoreConfig,
    /// Open the pool even if devices with dirty blocks are missing: those blocks are then lost.
    pub accept_missing: bool,
    /// Arenas whose contents are void, of this pool and of others.
    pub void_arenas: Vec<VoidArena>,
    /// How long a reactor polls for new work before it sleeps, in microseconds.
    pub poll_us: u32,
    /// For tests: a file whose first eight bytes are the time in microseconds, little-endian. I/Os are then
    /// done one at a time, so that the outcome depends on requests and times alone. `None` for the system's
    /// clock.
    pub clock_file: Option<PathBuf>,
    /// For tests with a clock file: the modelled durations of I/Os. An I/O is carried out immediately, and the core
    /// receives its completion when the clock reaches the modelled end time. While the clock is at zero, I/Os take no
    /// time. The test must stop the clock at each [`crate::Stepped::next_us`]. `None`: I/Os take no time.
    pub io_times: Option<WholeTimes>,
    /// Called every two seconds while the pool's metadata is read.
    pub on_progress: OnProgress,
    /// The file in which a clean stop leaves the tables of the arena, so that the next start need not read all
    /// metadata. Each arena but the first has a file of its own, named like its staging file. `None` for no such file.
    pub checkpoint_path: Option<PathBuf>,
    /// Called every two seconds while the checkpoint is written.
    pub on_saving: OnSaving,
}

impl PoolSettings {
    /// Returns the path of the shared-memory file of a pool's staging area.
    pub fn staging_path_of(pool: &str) -> PathBuf {
        Path::new("/dev/shm").join(format!("{}{pool}", PoolSettings::STAGING_PREFIX))
    }

    /// The prefix of staging files in `/dev/shm`.
    pub const STAGING_PREFIX: &str = "haversack-";

    /// Returns the default settings: 64 MiB of staging under `/dev/shm`, 32 MiB of transfer memory, 256 MiB for
    /// NBD clients.
    pub fn new(name: &str, devices: Vec<PathBuf>) -> PoolSettings {
        PoolSettings {
            name: name.to_string(),
            devices,
            staging_path: PoolSettings::staging_path_of(name),
            staging_blocks: 16_384,
            transfer_blocks: 8_192,
            client_bytes: 256 << 20,
            core: CoreConfig::default(),
            accept_missing: false,
            void_arenas: Vec::new(),
            poll_us: 50,
            clock_file: None,
            io_times: None,
            on_progress: |_| {},
            checkpoint_path: None,
            on_saving: |_, _| {},
        }
    }

    /// Returns the settings of one of `arenas` arenas: its own staging file, its part of the memory, and whether it is
    /// void.
    pub(crate) fn of_arena(&self, ArenaId { pool, number }: ArenaId, arenas: u8) -> PoolSettings {
        let is_it = |void: &&VoidArena| void.number == number && void.pool.is_none_or(|of| of == pool);
        let of_arena = |path: &PathBuf| {
            let mut path = path.clone();
            if number.0 > 0 {
                let mut name = path.file_name().unwrap_or_default().to_os_string();
                name.push(format!("{}{number}", PoolSettings::ARENA_MARK));
                path.set_file_name(name);
            }
            path
        };
        PoolSettings {
            staging_path: of_arena(&self.staging_path),
            checkpoint_path: self.checkpoint_path.as_ref().map(of_arena),
            staging_blocks: self.staging_blocks / u32::from(arenas),
            transfer_blocks: self.transfer_blocks / u32::from(arenas),
            client_bytes: self.client_bytes / usize::from(arenas),
            void_arenas: self.void_arenas.iter().filter(is_it).copied().collect(),
            ..self.clone()
        }
    }

    /// Checks that each of several arenas gets enough memory. If there is only one, its core checks that.
    pub(crate) fn check_memory(&self, arenas: u8) -> Result<()> {
        let least = MIN_FRAMES * u32::from(arenas);
        for (setting, blocks) in [("staging", self.staging_blocks), ("transfer", self.transfer_blocks)] {
            if arenas > 1 && blocks < least {
                let bytes = |blocks: u32| u64::from(blocks) * BLOCK_BYTES as u64;
                let (found_bytes, needed_bytes) = (bytes(blocks), bytes(least));
                return Err(EngineError::ArenaMemory {
                    pool: self.name.clone(),
                    setting,
                    arenas,
                    found_bytes,
                    needed_bytes,
                });
            }
        }
        Ok(())
    }

    /// Separates the name of a pool's staging file from the number of an arena. No pool's name contains it.
    const ARENA_MARK: char = '#';

    /// Returns how the arena with these settings is opened.
    pub(crate) fn open_options(&self) -> OpenOptions {
        OpenOptions { accept_missing: self.accept_missing, contents_void: !self.void_arenas.is_empty() }
    }
}

/// A disk to attach.
#[derive(Clone, Debug)]
pub struct DiskSpec {
    /// Its name, for messages.
    pub name: String,
    /// Its identity, size and policies. `sectors` must be the disk's size; the origin may be larger.
    pub config: DiskConfig,
    /// The ownership epoch to attach with.
    pub epoch: u64,
    /// Attach even if dirty data may be lost; set only when the operator has named the disk.
    pub accept_loss: bool,
    /// What is cached may be older than the origin: clean blocks are dropped.
    pub is_outdated: bool,
    /// Where its data is stored.
    pub origin: OriginSpec,
    /// The origin may carry a pool's superblock, because a guest made a pool on its disk.
    pub origin_holds_pool: bool,
    /// How long requests wait for an unreachable origin before they fail.
    pub origin_wait: Duration,
    /// NBD clients may not write to it.
    pub read_only: bool,
    /// It may be read through the flash of other hosts.
    pub borrows: bool,
    /// Its cache may move to another host with its VM.
    pub moves: Option<Moves>,
    /// A disk in whose arena it belongs if it is new: its base.
    pub beside: Option<DiskId>,
}

impl DiskSpec {
    /// Raises the disk's epoch above `known_epoch`, unless `known_epoch` is 0.
    pub(crate) fn above(self, known_epoch: u64) -> DiskSpec {
        let least = if known_epoch == 0 { 0 } else { known_epoch.saturating_add(1) };
        DiskSpec { epoch: self.epoch.max(least), ..self }
    }
}

/// A backing store that the engine accesses itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OriginSpec {
    /// A file or block device.
    File {
        /// Its path.
        path: PathBuf,
    },
    /// An NBD server.
    Nbd {
        /// Its NBD URI: `nbd://`, `nbds://`, `nbd+unix://` or `nbds+unix://`.
        uri: String,
        /// Number of connections, if the server allows several.
        connections: u8,
        /// The certificates to trust and to present, for `nbds://` and `nbds+unix://`.
        tls: TlsFiles,
    },
}

/// PEM files of a TLS client.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TlsFiles {
    /// Certificates of the trusted authorities; the system's if not set.
    pub ca: Option<PathBuf>,
    /// The certificate to present, with its chain; none if not set.
    pub certificate: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
}
