//! What can be typed.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use haversack_api::{DiskChange, DiskEventKind, Size, Span};

/// Manage Haversack, the flash cache for the disks of virtual machines.
///
/// Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the daemon cannot be reached, 4 the daemon refuses, 5 cancelled,
/// 6 not confirmed, 7 a check found damage, or a replay a difference.
#[derive(Parser)]
#[command(name = "haversack", version)]
pub struct Arguments {
    /// The daemon's control socket.
    #[arg(long, global = true, env = "HAVERSACK_SOCKET", default_value = "/run/haversack/control.sock")]
    pub socket: PathBuf,
    /// How long the daemon may take to answer. Jobs may take as long as they like.
    #[arg(long, global = true, env = "HAVERSACK_TIMEOUT", default_value = "60s")]
    pub timeout: Span,
    /// Print JSON.
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// See the fields' help texts.
#[derive(Subcommand)]
pub enum Command {
    /// Pools of cache devices.
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Disks.
    #[command(subcommand)]
    Disk(DiskCommand),
    /// Who divides the pools among their disks, what was decided and why.
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Everything at a glance, with counters.
    Status {
        /// One line per disk, key=value, for scripts.
        #[arg(long)]
        raw: bool,
    },
    /// The disks' load, refreshed.
    Top {
        /// Time between two looks.
        #[arg(long, default_value = "1s")]
        interval: Span,
        /// Stop after so many.
        #[arg(long)]
        count: Option<u64>,
    },
    /// What happened lately: disks that came and went, devices that failed, data that was lost, origins that were away.
    Events {
        /// Only those of this pool or disk.
        subject: Option<String>,
        /// So many of the newest.
        #[arg(long, default_value_t = 20)]
        last: usize,
        /// Go on with those that come, until Ctrl-C.
        #[arg(long, short)]
        follow: bool,
    },
    /// Tell what a trace says about caches for it. Works without the daemon.
    Analyze(Box<crate::analyze::Analyze>),
    /// Block traces: what they hold, converting, cutting, merging.
    #[command(subcommand)]
    Trace(crate::trace::TraceCommand),
    /// Write a disk's dirty blocks to its origin from the devices of a dead host. No daemon may use them.
    FlushOffline(FlushOffline),
    /// Simulate caches under a trace. Works without the daemon.
    Sim(Box<crate::sim::Sim>),
    /// Compare all ways to divide a pool on a mix of loads. Works without the daemon.
    Compare(Box<crate::compare::Compare>),
    /// Tell how much flash to buy for a trace. Works without the daemon.
    Advise(Box<crate::advise::Advise>),
    /// Stop the daemon cleanly.
    Stop,
    /// Print a shell's completions.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write the manual pages.
    Man {
        /// The directory.
        directory: PathBuf,
    },
}

/// Commands for pools.
#[derive(Subcommand)]
pub enum PoolCommand {
    /// Make a pool of block devices or files, which must be blank. Works without the daemon.
    Create {
        /// The pool's name in the daemon's configuration.
        name: String,
        /// The cache devices.
        #[arg(required = true)]
        devices: Vec<PathBuf>,
        /// Make files that do not exist with this size.
        #[arg(long)]
        size: Option<Size>,
        /// Keep dirty blocks on two devices.
        #[arg(long)]
        redundancy: bool,
        /// Overwrite what is on the devices. A pool is never overwritten: wipe it first.
        #[arg(long)]
        force: bool,
    },
    /// Take a device into a pool in use. It must be blank.
    Add {
        /// The pool.
        pool: String,
        /// The device.
        device: PathBuf,
        /// Make a file that does not exist with this size.
        #[arg(long)]
        size: Option<Size>,
        /// Overwrite what is on the device. A pool is never overwritten: wipe it first.
        #[arg(long)]
        force: bool,
    },
    /// Make a device blank that carries a pool and that no daemon uses. What is cached on it is lost, dirty data too.
    Wipe {
        /// The device.
        device: PathBuf,
        /// The device's path, repeated: wipe it without being asked.
        #[arg(long, value_name = "DEVICE")]
        confirm: Option<PathBuf>,
    },
    /// Empty a device and take it out of its pool.
    Remove {
        /// The pool.
        pool: String,
        /// The device's path or number.
        device: String,
    },
    /// Show pools.
    Status {
        /// Only this one.
        pool: Option<String>,
    },
    /// Check the devices of a pool that no daemon uses. Writes nothing.
    Check {
        /// The devices.
        #[arg(required = true)]
        devices: Vec<PathBuf>,
        /// Read and verify the data of every block, not only the metadata.
        #[arg(long)]
        thorough: bool,
    },
}

/// Commands for disks.
#[derive(Subcommand)]
pub enum DiskCommand {
    /// Attach a disk, now and at every start of the daemon.
    Attach(Box<Attach>),
    /// Clean a disk and detach it. Its clean blocks stay in the cache. Ctrl-C cancels.
    Detach {
        /// The disk.
        name: String,
        /// Even if clients are connected, whose requests fail then; or if it waits to be attached and its dirty data stays
        /// in the cache.
        #[arg(long)]
        force: bool,
    },
    /// List the disks.
    List,
    /// Show a disk.
    Show {
        /// The disk.
        name: String,
    },
    /// Change settings of an attached disk.
    Set {
        /// The disk.
        name: String,
        #[command(flatten)]
        settings: DiskChange,
    },
    /// Write all that is dirty now to the origin. Ctrl-C cancels.
    Flush {
        /// The disk.
        name: String,
    },
    /// Change a disk's size. The origin must have it already.
    Resize {
        /// The disk.
        name: String,
        /// The new size.
        size: Size,
        /// Make it smaller: what the disk has beyond its new size is lost. Its name must be typed, and no client connected.
        #[arg(long)]
        shrink: bool,
        /// With --shrink: the disk's name, repeated.
        #[arg(long, value_name = "NAME", requires = "shrink")]
        confirm: Option<String>,
    },
    /// Tell the policy what has happened to a disk.
    Event {
        /// The disk.
        name: String,
        /// What: new, ended, suspended, resumed, stunned, migrating-in, migrating-out, storage-migrating,
        /// storage-migrated.
        #[arg(value_parser = event)]
        event: DiskEventKind,
        /// With migrating-in: what 'disk curve --json' printed where the disk comes from.
        #[arg(long, value_name = "FILE")]
        curve: Option<PathBuf>,
    },
    /// Show a disk's curve of misses by cache size, its working set and its intensity.
    Curve {
        /// The disk.
        name: String,
        /// Measure for so long first.
        #[arg(long = "for")]
        time: Option<Span>,
    },
    /// Forget a detached disk: its cached blocks are dropped. Dirty data is destroyed only if its name is typed.
    Forget {
        /// The disk.
        name: String,
        /// The disk's name, repeated: destroy its dirty data.
        #[arg(long, value_name = "NAME")]
        confirm: Option<String>,
    },
}

/// Commands for the policy.
#[derive(Subcommand)]
pub enum PolicyCommand {
    /// Show the policy and what it has decided.
    Show,
    /// Set the policy, until the next start of the daemon.
    Set {
        /// The system: none, equal, static, wss, rwss, utility, trd, urd, max-min; or off for no policy.
        allocator: String,
        /// More keys of the policy section, such as window=5min or spare=idle.
        #[arg(value_name = "KEY=VALUE")]
        settings: Vec<String>,
    },
    /// Show decisions, oldest first.
    Log {
        /// Only of this pool.
        #[arg(long)]
        pool: Option<String>,
        /// The newest so many.
        #[arg(short = 'n', long, default_value_t = 10)]
        count: u32,
    },
    /// Tell why a disk has what it has.
    Explain {
        /// The disk.
        disk: String,
    },
    /// Decide again from a log and tell whether the same comes out. Works without the daemon.
    Replay {
        /// The log of decisions.
        log: PathBuf,
    },
}

/// A disk to attach.
#[derive(Args)]
pub struct Attach {
    /// Its name.
    pub name: String,
    /// Its origin: a path or URI.
    pub origin: String,
    /// The pool.
    #[arg(long)]
    pub pool: String,
    #[command(flatten)]
    pub tls: OriginTls,
    /// Take an origin that carries a pool's superblock: a guest has made a pool on its disk.
    #[arg(long)]
    pub origin_holds_pool: bool,
    /// Its size; that on record or the origin's if not given.
    #[arg(long)]
    pub size: Option<Size>,
    /// Its identity, a UUID; derived from the name if not given.
    #[arg(long)]
    pub id: Option<String>,
    /// Serve it on this vhost-user-blk socket.
    #[arg(long)]
    pub vhost_user: Option<PathBuf>,
    /// Queues of the vhost-user-blk device.
    #[arg(long)]
    pub queues: Option<u16>,
    /// Ownership epoch.
    #[arg(long)]
    pub epoch: Option<u64>,
    /// How long requests wait for an origin that is away.
    #[arg(long)]
    pub origin_wait: Option<Span>,
    /// First sector of the guest's partition modulo 8.
    #[arg(long)]
    pub phase: Option<u8>,
    /// Clients may not write.
    #[arg(long)]
    pub read_only: bool,
    /// No NBD export.
    #[arg(long)]
    pub no_nbd: bool,
    /// The disk's name, repeated: accept that dirty data was lost with a cache device. If it is not certain what, all that
    /// the origin does not have is given up.
    #[arg(long, value_name = "NAME")]
    pub accept_loss: Option<String>,
    /// The disk's name, repeated: what is cached of it belongs to this origin too, though it was attached with another one
    /// (the image was moved or restored). Dirty data is written to this one.
    #[arg(long, value_name = "NAME")]
    pub accept_origin_change: Option<String>,
    #[command(flatten)]
    pub settings: DiskChange,
}

/// Files for TLS with an origin.
#[derive(Args)]
pub struct OriginTls {
    /// PEM file of the authorities that an nbds: origin is trusted by; the system's if not given.
    #[arg(long, value_name = "FILE")]
    pub origin_ca: Option<PathBuf>,
    /// PEM file of the certificate that is shown to an nbds: origin.
    #[arg(long, value_name = "FILE", requires = "origin_key")]
    pub origin_certificate: Option<PathBuf>,
    /// PEM file of the certificate's private key.
    #[arg(long, value_name = "FILE", requires = "origin_certificate")]
    pub origin_key: Option<PathBuf>,
}

/// What to flush without a daemon.
#[derive(Args)]
pub struct FlushOffline {
    /// The disk's name or identity, and then the pool's devices; with --list only the devices.
    #[arg(required = true, value_name = "DISK|DEVICE")]
    pub disk_and_devices: Vec<String>,
    /// List the pool's disks, their origins and what is dirty. Writes nothing.
    #[arg(long)]
    pub list: bool,
    /// Say what would be written, and where. Writes nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Its origin, a path or NBD URI; the one that it was attached with if not given.
    #[arg(long)]
    pub origin: Option<String>,
    #[command(flatten)]
    pub tls: OriginTls,
    /// The disk's name, repeated: write to its origin without being asked.
    #[arg(long, value_name = "NAME")]
    pub confirm: Option<String>,
    /// The disk's name, repeated: write to an origin that it was not attached with.
    #[arg(long, value_name = "NAME")]
    pub different_origin: Option<String>,
}

/// An event by its name.
fn event(name: &str) -> Result<DiskEventKind, String> {
    serde_json::from_value(name.into()).map_err(|error| error.to_string())
}
