//! The command-line arguments.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueHint};
use clap_complete::Shell;
use clap_complete::engine::ArgValueCompleter;
use haversack_api::{DiskChange, DiskEventKind, Size, Span};
use haversack_engine::pool::MOST_ARENAS;

use crate::complete::{self, Complete, Names};
use crate::configure::DEFAULT_FILE;

/// Headings of the options of a disk.
const ORIGIN: &str = "Origin";
const IDENTITY: &str = "Identity and contents";
const CLIENTS: &str = "Clients";

/// Manage Haversack, the flash cache for the disks of virtual machines.
///
/// Exit codes: 0 success, 1 failure, 2 invalid usage, 3 daemon unreachable, 4 refused by the daemon, 5 cancelled, 6 not
/// confirmed, 7 damage found by a check or a difference found by a replay, 8 a VM that was moved does not run, or a
/// guest may still be frozen.
#[derive(Parser)]
#[command(name = "haversack", version)]
pub struct Arguments {
    /// Control socket of the daemon.
    #[arg(long, global = true, env = "HAVERSACK_SOCKET", default_value = "/run/haversack/control.sock")]
    pub socket: PathBuf,
    /// Timeout for an answer from the daemon. Jobs have no timeout.
    #[arg(long, global = true, env = "HAVERSACK_TIMEOUT", default_value = "60s")]
    pub timeout: Span,
    /// Print JSON.
    #[arg(long, global = true)]
    pub json: bool,
    /// Print nothing when a command that changes something succeeds, except for the JSON of --json.
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// Command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// See the fields' help texts.
#[derive(Subcommand)]
pub enum Command {
    /// Manage pools of cache devices.
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Manage disks.
    #[command(subcommand)]
    Disk(DiskCommand),
    /// Send the cache of disks to another host, for VMs that are about to move there.
    Migrate(crate::migrate::Migrate),
    /// Show the other hosts; drain or forget a host of the cluster.
    #[command(subcommand)]
    Host(crate::migrate::HostCommand),
    /// Show the cluster that this host is in, and the moves that would balance it.
    #[command(subcommand)]
    Cluster(crate::cluster::ClusterCommand),
    /// Show the flash that this host lends to other hosts, and borrows from them.
    #[command(subcommand)]
    Loan(crate::loans::LoanCommand),
    /// Manage what tenants may use of the caches of all hosts.
    #[command(subcommand)]
    Tenant(crate::cluster::TenantCommand),
    /// Manage the policy that divides pools among disks, and explain its decisions.
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Show the state and counters of all pools and disks.
    Status {
        /// Print one line of key=value pairs per disk, for scripts.
        #[arg(long)]
        raw: bool,
    },
    /// Show the load of all disks, refreshed periodically.
    Top {
        /// Time between updates.
        #[arg(long, default_value = "1s")]
        interval: Span,
        /// Stop after this many updates.
        #[arg(long)]
        count: Option<u64>,
    },
    /// Show recent events: disks attached and detached, failed devices, lost data, unreachable origins.
    Events {
        /// Show only events of this pool or disk.
        #[arg(add = Names::PoolsAndDisks)]
        subject: Option<String>,
        /// Number of events to show.
        #[arg(long, default_value_t = 20)]
        last: usize,
        /// Keep printing new events until Ctrl-C.
        #[arg(long, short)]
        follow: bool,
    },
    /// Analyze a trace: reuse distances, miss-ratio curves, working sets. Does not need the daemon.
    Analyze(Box<crate::analyze::Analyze>),
    /// Inspect, convert, cut, merge, record and generate block traces.
    #[command(subcommand)]
    Trace(crate::trace::TraceCommand),
    /// Write a disk's dirty blocks to its origin, using the cache devices of a dead host. No daemon may be using them.
    FlushOffline(FlushOffline),
    /// Simulate caches on a trace. Does not need the daemon.
    Sim(Box<crate::sim::Sim>),
    /// Compare policies for dividing a pool on a mix of workloads. Does not need the daemon.
    Compare(Box<crate::compare::Compare>),
    /// Compare methods of moving a VM's cache to another host, on a mix of workloads. Does not need the daemon.
    CompareMigration(Box<crate::compare_migration::CompareMigration>),
    /// Compare rules for moving VMs between the hosts of a cluster to balance their caches. Does not need the
    /// daemon.
    CompareCluster(Box<crate::compare_cluster::CompareCluster>),
    /// Reproduce the figures and tables of the papers that the policies come from. Does not need the daemon.
    #[command(subcommand)]
    Paper(crate::paper::PaperCommand),
    /// Recommend a cache size for a trace. Does not need the daemon.
    Advise(Box<crate::advise::Advise>),
    /// Collect diagnostic information for remote support: state, events, decisions, logs, configuration without
    /// secrets.
    SupportBundle(crate::support::SupportBundle),
    /// Stop the daemon cleanly.
    Stop,
    /// Print shell completions. In bash, zsh and fish, they also complete the names of disks, pools and hosts.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Internal.
    #[command(hide = true)]
    Complete(Complete),
    /// Write the manual pages to a directory.
    Man {
        /// The directory.
        directory: PathBuf,
    },
}

/// Commands for pools.
#[derive(Subcommand)]
pub enum PoolCommand {
    /// Create a pool on blank block devices or files. Does not need the daemon.
    Create {
        /// Name of the pool in the daemon's configuration.
        name: String,
        /// The cache devices.
        #[arg(required = true)]
        devices: Vec<PathBuf>,
        /// Create files that do not exist, with this size. Those that root creates belong to the owner and group of
        /// their directory.
        #[arg(long)]
        size: Option<Size>,
        /// Keep dirty blocks on two devices.
        #[arg(long)]
        redundancy: bool,
        /// Divide the pool into this many arenas, each of which can keep one processor core busy. A disk belongs to one
        /// arena. It cannot be changed later.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=i64::from(MOST_ARENAS)))]
        arenas: u8,
        /// Append the pool to the daemon's configuration file. The daemon opens the pool at its next start. The default
        /// is /etc/haversack/haversackd.toml.
        #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = DEFAULT_FILE)]
        configure: Option<PathBuf>,
        /// Overwrite existing data on the devices. A pool is never overwritten: wipe it first.
        #[arg(long)]
        force: bool,
    },
    /// Add a blank device to a pool in use.
    #[command(override_usage = "haversack pool add [OPTIONS] [POOL] <DEVICE>")]
    Add {
        /// Pool; not needed if the daemon has only one.
        #[arg(value_name = "POOL", value_hint = ValueHint::AnyPath, add = Names::Pools)]
        pool_or_device: String,
        /// The device.
        #[arg(value_hint = ValueHint::AnyPath)]
        device: Option<String>,
        /// Create the file if it does not exist, with this size.
        #[arg(long)]
        size: Option<Size>,
        /// Overwrite existing data on the device. A pool is never overwritten: wipe it first.
        #[arg(long)]
        force: bool,
    },
    /// Erase a pool's device that no daemon uses. Everything cached on it is lost, including dirty data.
    Wipe {
        /// The device.
        device: PathBuf,
        /// Repeat the device's path to wipe it without a prompt.
        #[arg(long, value_name = "DEVICE")]
        confirm: Option<PathBuf>,
    },
    /// Empty a device and remove it from its pool.
    #[command(override_usage = "haversack pool remove [OPTIONS] [POOL] <DEVICE>")]
    Remove {
        /// Pool; not needed if the daemon has only one.
        #[arg(value_name = "POOL", add = Names::PoolsAndDevices)]
        pool_or_device: String,
        /// Path or number of the device.
        #[arg(add = Names::Devices)]
        device: Option<String>,
    },
    /// List the pools.
    List,
    /// Show pools and their devices.
    Status {
        /// Show only this pool.
        #[arg(add = Names::Pools)]
        pool: Option<String>,
    },
    /// Check the devices of a pool that no daemon uses. Read-only.
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
    /// Attach a disk now and whenever the daemon starts.
    Attach(Box<Attach>),
    /// Write back a disk's dirty blocks and detach it. Clean blocks stay in the cache. Ctrl-C cancels.
    Detach {
        /// The disk.
        #[arg(add = Names::AttachedDisks)]
        name: String,
        /// Detach even if clients are connected (their requests fail), or if the disk is waiting to be attached (its
        /// dirty data stays in the cache).
        #[arg(long)]
        force: bool,
        /// Give up lost data once everything else is at the origin: the disk's name, repeated. Reads of that
        /// data then return what the origin has.
        #[arg(long, value_name = "NAME")]
        accept_loss: Option<String>,
    },
    /// Show where data of an attached disk is lost: reads fail there until it is written again.
    Lost {
        /// The disk.
        #[arg(add = Names::AttachedDisks)]
        name: String,
    },
    /// List the disks.
    List,
    /// Show a disk.
    Show {
        /// The disk.
        #[arg(add = Names::Disks)]
        name: String,
    },
    /// Change settings of an attached disk.
    Set {
        /// The disk.
        #[arg(add = Names::AttachedDisks)]
        name: String,
        #[command(flatten)]
        settings: DiskChange,
    },
    /// Write all currently dirty blocks to the origin. Ctrl-C cancels.
    Flush {
        /// The disk.
        #[arg(add = Names::AttachedDisks)]
        name: String,
    },
    /// Run a command, for example to take a snapshot, while the disks' origins contain everything that the guest has
    /// written. With a guest agent, the guest's file systems are frozen meanwhile.
    Quiesce(crate::quiesce::Quiesce),
    /// Internal.
    #[command(hide = true)]
    Guard(crate::quiesce::GuardArguments),
    /// Change a disk's size. The origin must already have the new size.
    Resize {
        /// The disk.
        #[arg(add = Names::AttachedDisks)]
        name: String,
        /// The new size.
        size: Size,
        /// Allow the disk to shrink. Data beyond the new size is lost. Requires typing the disk's name, and that no
        /// client is connected.
        #[arg(long)]
        shrink: bool,
        /// With --shrink: repeat the disk's name instead of typing it at the prompt.
        #[arg(long, value_name = "NAME", requires = "shrink")]
        confirm: Option<String>,
    },
    /// Report an event of a disk's VM to the policy.
    Event {
        /// The disk.
        #[arg(add = Names::AttachedDisks)]
        name: String,
        /// Event: new, ended, suspended, resumed, stunned, migrating-in, migrating-out, storage-migrating or
        /// storage-migrated.
        #[arg(value_parser = event)]
        event: DiskEventKind,
        /// With migrating-in: output of 'disk curve --json' on the source host.
        #[arg(long, value_name = "FILE")]
        curve: Option<PathBuf>,
    },
    /// Show a disk's miss-ratio curve, working set and reuse intensity.
    Curve {
        /// The disk.
        #[arg(add = Names::AttachedDisks)]
        name: String,
        /// Measure for this long first.
        #[arg(long = "for")]
        time: Option<Span>,
    },
    /// Take a disk over from a host that is permanently dead. Requires typing the disk's name.
    Own(Own),
    /// Forget a detached disk and drop its cached blocks. Destroying dirty data requires typing the disk's name.
    Forget {
        /// The disk.
        #[arg(add = Names::DetachedDisks)]
        name: String,
        /// Repeat the disk's name to destroy its dirty data without a prompt.
        #[arg(long, value_name = "NAME")]
        confirm: Option<String>,
    },
}

/// `haversack disk own`.
#[derive(Args)]
pub struct Own {
    /// The disk.
    #[arg(add = Names::Disks)]
    pub name: String,
    /// Repeat the disk's name instead of typing it at the prompt.
    #[arg(long, value_name = "NAME")]
    pub confirm: Option<String>,
    /// Repeat the disk's name to accept the loss of data that only the dead host has: reads then return the origin's
    /// data. Without this, reads of those blocks fail until they are written again. Required if it is not known which
    /// they are.
    #[arg(long, value_name = "NAME")]
    pub accept_loss: Option<String>,
    /// Do not fence these hosts, because they are off and stay off. Hosts that are not named are still fenced.
    #[arg(long, value_name = "HOST", value_delimiter = ',', add = Names::Hosts)]
    pub without_fence: Vec<String>,
    /// Use this host's replica even though it is not certain to have everything that was flushed. Only valid if
    /// the owner died, or was fenced, within five seconds after it was last heard from.
    #[arg(long)]
    pub owner_stopped: bool,
    /// Only show what would be lost.
    #[arg(long, conflicts_with = "confirm")]
    pub dry_run: bool,
}

/// Commands for the policy.
#[derive(Subcommand)]
pub enum PolicyCommand {
    /// Show the policy and its decisions.
    Show,
    /// Set the policy until the daemon is restarted.
    Set {
        /// Allocator: auto, none, equal, static, wss, rwss, utility, trd, urd or max-min, or a paper's whole system:
        /// cloudcache, vcacheshare, eci-cache, centaur or liu; off for no policy.
        allocator: String,
        /// Other keys of the policy section, such as window=5min or spare=idle.
        #[arg(value_name = "KEY=VALUE")]
        settings: Vec<String>,
    },
    /// Show decisions, oldest first.
    Log {
        /// Show only decisions about this pool.
        #[arg(long, add = Names::Pools)]
        pool: Option<String>,
        /// Number of decisions to show.
        #[arg(short = 'n', long, default_value_t = 10)]
        count: u32,
    },
    /// Explain a disk's share, write mode and admission filter.
    Explain {
        /// The disk.
        #[arg(add = Names::Disks)]
        disk: String,
    },
    /// Compare the hit ratios and the demands that the decisions of a log expected with those of the windows that
    /// followed. Does not need the daemon.
    Accuracy {
        /// Decision log, of the daemon or of `haversack sim --decisions`.
        log: PathBuf,
    },
    /// Repeat the decisions of a log and report differences. Does not need the daemon.
    Replay {
        /// Decision log.
        log: PathBuf,
    },
}

/// A disk to attach.
#[derive(Args)]
pub struct Attach {
    /// Name of the disk.
    #[arg(add = Names::DetachedDisks)]
    pub name: String,
    /// Origin: a path or URI.
    #[arg(add = ArgValueCompleter::new(complete::origin))]
    pub origin: String,
    /// Pool [default: the daemon's only pool].
    #[arg(long, add = Names::Pools)]
    pub pool: Option<String>,
    #[command(flatten)]
    pub tls: OriginTls,
    /// Accept an origin that contains a pool's superblock, because a guest created a pool on its disk.
    #[arg(long, help_heading = ORIGIN)]
    pub origin_holds_pool: bool,
    /// Size of the disk [default: the recorded size, or the origin's size for a new disk].
    #[arg(long, help_heading = IDENTITY)]
    pub size: Option<Size>,
    /// Identity of the disk, a UUID [default: derived from the name].
    #[arg(long, help_heading = IDENTITY)]
    pub id: Option<String>,
    /// Path of a vhost-user-blk socket to serve the disk on.
    #[arg(long, help_heading = CLIENTS)]
    pub vhost_user: Option<PathBuf>,
    /// Maximum number of queues of the vhost-user-blk device.
    #[arg(long, help_heading = CLIENTS)]
    pub queues: Option<u16>,
    /// Host that has the disk, if it moves here, or `none` if no host has had it [default: all hosts are asked].
    #[arg(long, value_name = "HOST", help_heading = IDENTITY, add = Names::Hosts)]
    pub from: Option<String>,
    /// Ownership epoch.
    #[arg(long, help_heading = IDENTITY)]
    pub epoch: Option<u64>,
    /// How long requests wait for an unreachable origin before they fail.
    #[arg(long, help_heading = ORIGIN)]
    pub origin_wait: Option<Span>,
    /// First sector of the guest's partition, modulo 8.
    #[arg(long, help_heading = IDENTITY)]
    pub phase: Option<u8>,
    /// Refuse writes from clients.
    #[arg(long, help_heading = CLIENTS)]
    pub read_only: bool,
    /// Read-only disk of the image that the disk was made from, whose cached blocks it shares.
    #[arg(long, value_name = "DISK", help_heading = IDENTITY, add = Names::AttachedDisks)]
    pub base: Option<String>,
    /// Do not export the disk over NBD.
    #[arg(long, help_heading = CLIENTS)]
    pub no_nbd: bool,
    /// Repeat the disk's name to accept that dirty data was lost with a cache device. If it is unknown which blocks
    /// were lost, all dirty blocks are discarded.
    #[arg(long, value_name = "NAME", help_heading = IDENTITY)]
    pub accept_loss: Option<String>,
    /// Repeat the disk's name to attach it with a different origin than before, for example after the image was moved
    /// or restored. The cached blocks are kept, and dirty blocks are written to the new origin.
    #[arg(long, value_name = "NAME", help_heading = ORIGIN)]
    pub accept_origin_change: Option<String>,
    #[command(flatten)]
    pub settings: DiskChange,
}

/// Files for TLS with an origin.
#[derive(Args)]
pub struct OriginTls {
    /// PEM file of the certificate authorities for an nbds: origin [default: those of the system].
    #[arg(long, value_name = "FILE", help_heading = ORIGIN)]
    pub origin_ca: Option<PathBuf>,
    /// PEM file of the client certificate for an nbds: origin.
    #[arg(long, value_name = "FILE", requires = "origin_key", help_heading = ORIGIN)]
    pub origin_certificate: Option<PathBuf>,
    /// PEM file of the client certificate's private key.
    #[arg(long, value_name = "FILE", requires = "origin_certificate", help_heading = ORIGIN)]
    pub origin_key: Option<PathBuf>,
}

/// What to flush without a daemon.
#[derive(Args)]
pub struct FlushOffline {
    /// Name or identity of the disk, followed by the devices of the pool; with --list only the devices.
    #[arg(required = true, value_name = "DISK|DEVICE", value_hint = ValueHint::AnyPath)]
    pub disk_and_devices: Vec<String>,
    /// List the pool's disks, their origins and dirty data. Read-only.
    #[arg(long)]
    pub list: bool,
    /// Show what would be written, and where. Read-only.
    #[arg(long)]
    pub dry_run: bool,
    /// Origin: a path or NBD URI [default: the one that the disk was attached with].
    #[arg(long, add = ArgValueCompleter::new(complete::origin))]
    pub origin: Option<String>,
    #[command(flatten)]
    pub tls: OriginTls,
    /// Repeat the disk's name to write to its origin without a prompt.
    #[arg(long, value_name = "NAME")]
    pub confirm: Option<String>,
    /// Repeat the disk's name to write to an origin that it was not attached with.
    #[arg(long, value_name = "NAME")]
    pub different_origin: Option<String>,
}

/// An event by its name.
fn event(name: &str) -> Result<DiskEventKind, String> {
    serde_json::from_value(name.into()).map_err(|error| error.to_string())
}
