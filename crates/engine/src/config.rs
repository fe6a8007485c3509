//! What a shard is started with, and what a disk is attached with.

use std::path::{Path, PathBuf};
use std::time::Duration;

use haversack_core::{CoreConfig, DiskConfig, OpenOptions};

/// Settings of a shard: one pool of cache devices, one reactor thread.
#[derive(Clone, Debug)]
pub struct ShardConfig {
    /// The pool's name, for messages and the thread.
    pub name: String,
    /// The cache devices: block devices or files made by [`crate::pool::create`], in any order.
    pub devices: Vec<PathBuf>,
    /// The shared-memory file of the staging area, normally under `/dev/shm`. It survives the process: a daemon
    /// that was killed finds every acknowledged write in it.
    pub staging_path: PathBuf,
    /// Blocks of the staging area.
    pub staging_blocks: u32,
    /// Blocks of memory for data on its way between devices, origins and the staging area.
    pub transfer_blocks: u32,
    /// Memory for the payloads of NBD clients' requests. A disk may take as much as it leaves free; each disk may have
    /// one request besides, and each client a small one.
    pub client_bytes: usize,
    /// Settings of the cache core.
    pub core: CoreConfig,
    /// How to open the pool.
    pub open: OpenOptions,
    /// How long the reactor looks for new work without sleeping after it had some, in microseconds.
    pub poll_us: u32,
    /// For tests: a file whose first eight bytes say the time in microseconds, the lowest byte first. I/Os are then done
    /// one at a time, so that what happens follows from requests and times alone. The system's clock if not given.
    pub clock_file: Option<PathBuf>,
}

impl ShardConfig {
    /// The shared-memory file of a pool's staging area.
    pub fn staging_path_of(pool: &str) -> PathBuf {
        Path::new("/dev/shm").join(format!("{}{pool}", ShardConfig::STAGING_PREFIX))
    }

    /// How the names of staging areas in `/dev/shm` begin.
    pub const STAGING_PREFIX: &str = "haversack-";

    /// A shard with the defaults: 64 MiB of staging under `/dev/shm`, 32 MiB of transfer memory, 256 MiB for NBD clients.
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
    /// The ownership epoch to attach under.
    pub epoch: u64,
    /// Attach although dirty data may be lost: the operator named the disk.
    pub accept_loss: bool,
    /// Where its data is.
    pub origin: OriginSpec,
    /// The origin may carry a pool's superblock: a guest has made a pool on its disk.
    pub origin_holds_pool: bool,
    /// How long requests wait for an origin that is away before they fail.
    pub origin_wait: Duration,
    /// NBD clients may not write it.
    pub read_only: bool,
}

/// A backing store that the engine speaks to itself.
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
        /// Connections, if the server lets several be used.
        connections: u8,
        /// For `nbds://` and `nbds+unix://`: whom to trust, and what to show.
        tls: TlsFiles,
    },
}

/// PEM files of a TLS client.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TlsFiles {
    /// Certificates of the authorities to trust; the system's if not given.
    pub ca: Option<PathBuf>,
    /// The certificate to show, with its chain; none is shown if not given.
    pub certificate: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
}
