//! Settings for starting a shard and for attaching a disk.

use std::path::{Path, PathBuf};
use std::time::Duration;

use haversack_core::{CoreConfig, DiskConfig, OpenOptions};

use crate::media::OnProgress;

/// Settings of a shard: one pool of cache devices, one reactor thread.
#[derive(Clone, Debug)]
pub struct ShardConfig {
    /// The pool's name, for messages and the thread.
    pub name: String,
    /// The cache devices: block devices or files made by [`crate::pool::create`], in any order.
    pub devices: Vec<PathBuf>,
    /// The shared-memory file of the staging area, normally under `/dev/shm`. It survives the process: after a
    /// kill, every acknowledged write is still in it.
    pub staging_path: PathBuf,
    /// Size of the staging area in blocks.
    pub staging_blocks: u32,
    /// Blocks of memory for data in transit between devices, origins and the staging area.
    pub transfer_blocks: u32,
    /// Memory for the payloads of NBD requests, in bytes. A disk may use no more than it leaves free.
    /// Regardless of that, a disk without requests may have one, and a client without requests a small one.
    pub client_bytes: usize,
    /// Settings of the cache core.
    pub core: CoreConfig,
    /// How to open the pool.
    pub open: OpenOptions,
    /// How long the reactor polls for new work before it sleeps, in microseconds.
    pub poll_us: u32,
    /// For tests: a file whose first eight bytes are the time in microseconds, little-endian. I/Os are then
    /// done one at a time, so that the outcome depends on requests and times alone. `None` for the system's
    /// clock.
    pub clock_file: Option<PathBuf>,
    /// Called every two seconds while the pool's metadata is read.
    pub on_progress: OnProgress,
}

impl ShardConfig {
    /// Returns the path of the shared-memory file of a pool's staging area.
    pub fn staging_path_of(pool: &str) -> PathBuf {
        Path::new("/dev/shm").join(format!("{}{pool}", ShardConfig::STAGING_PREFIX))
    }

    /// The prefix of staging files in `/dev/shm`.
    pub const STAGING_PREFIX: &str = "haversack-";

    /// Returns the default settings: 64 MiB of staging under `/dev/shm`, 32 MiB of transfer memory, 256 MiB for
    /// NBD clients.
    pub fn new(name: &str, devices: Vec<PathBuf>) -> ShardConfig {
        ShardConfig {
            name: name.to_string(),
            devices,
            staging_path: ShardConfig::staging_path_of(name),
            staging_blocks: 16_384,
            transfer_blocks: 8_192,
            client_bytes: 256 << 20,
            core: CoreConfig::default(),
            open: OpenOptions::default(),
            poll_us: 50,
            clock_file: None,
            on_progress: |_| {},
        }
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
    /// Where its data is stored.
    pub origin: OriginSpec,
    /// The origin may carry a pool's superblock, because a guest made a pool on its disk.
    pub origin_holds_pool: bool,
    /// How long requests wait for an unreachable origin before they fail.
    pub origin_wait: Duration,
    /// NBD clients may not write to it.
    pub read_only: bool,
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
