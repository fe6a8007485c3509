//! The configuration of a disk: in the daemon's file, in a request to attach a disk, and in a change of one.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use haversack_admission::StagingKind;
use haversack_model::WriteMode;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use utoipa::openapi::{RefOr, schema::Schema};
use utoipa::{PartialSchema, ToSchema};
use uuid::Uuid;

use crate::units::{Size, Span, WindowSetting};

/// The namespace of identities derived from names. `uuidgen --sha1 --namespace 7a0c2b0e-6c1f-5d0e-9a55-1f9be2a3c4d1
/// --name vm1` prints the identity of disk `vm1`.
pub const DISK_NAMESPACE: Uuid = Uuid::from_u128(0x7a0c_2b0e_6c1f_5d0e_9a55_1f9b_e2a3_c4d1);

/// Serialises a type as the string that it prints and parses.
macro_rules! as_string {
    ($name:ty) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            }
        }

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                String::schema()
            }
        }

        impl ToSchema for $name {}
    };
}

/// A write mode by its name: `wb`, `wt`, `wt-cache`, `wa`, `wi` or `pt`; or `auto`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// Write-back, unless the policy chooses another.
    #[default]
    Auto,
    /// This mode, whatever the policy would choose.
    Fixed(WriteMode),
}

as_string!(Mode);

impl Mode {
    /// Returns the mode with which a disk is attached.
    pub fn at_first(self) -> WriteMode {
        match self {
            Mode::Auto => WriteMode::WriteBack,
            Mode::Fixed(mode) => mode,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Auto => f.write_str("auto"),
            Mode::Fixed(mode) => mode.fmt(f),
        }
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(name: &str) -> Result<Mode, String> {
        match name {
            "auto" => Ok(Mode::Auto),
            name => name.parse().map(Mode::Fixed).map_err(|e: String| format!("{e}, or auto")),
        }
    }
}

/// Blocks that survive a restart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Persistence {
    /// Every block.
    #[default]
    All,
    /// Dirty blocks only.
    Dirty,
    /// Nothing; not for modes that defer origin writes.
    None,
}

/// Share of the pool: `auto`, `equal` or a size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Target {
    /// What the policy assigns; if there is no policy, a place in one pool with all other disks of this target,
    /// between the disk's reservation and its limit.
    #[default]
    Auto,
    /// What the policy assigns; if there is no policy, a part as large as that of every other disk without a size.
    Equal,
    /// This many bytes, whatever the policy would assign.
    Bytes(Size),
}

as_string!(Target);

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Auto => f.write_str("auto"),
            Target::Equal => f.write_str("equal"),
            Target::Bytes(size) => size.fmt(f),
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
        match text {
            "auto" => Ok(Target::Auto),
            "equal" => Ok(Target::Equal),
            size => size.parse().map(Target::Bytes).map_err(|e| format!("{e}; or 'auto' or 'equal'")),
        }
    }
}

/// Which blocks may enter the cache: `auto`, `always`, `learned`, `hec`, `larc`, `reuse(N)`, `reuse(N, ADDRESSES)`,
/// `address(N)`, `data(N)` or `hybrid(N)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Admission {
    /// What the policy chooses; a filter that learns if there is no policy.
    #[default]
    Auto,
    /// Every block at its first access.
    Always,
    /// A block at its access number `n + 1`, while its address is remembered.
    Reuse {
        /// Reuses needed.
        n: u8,
        /// Addresses remembered.
        addresses: u32,
    },
    /// A block of a kind that is usually used again within the time that it would stay in the cache.
    Learned,
    /// A block in a 4 MiB region that was accessed before, outside long runs.
    Hec,
    /// A block that misses again while it is in an adaptive list, sized by the disk's share.
    Larc,
    /// A block at its access number `n + 1` while it is staged, in memory sized by the disk's share.
    Staging {
        /// What is staged.
        kind: StagingKind,
        /// Reuses needed.
        n: u8,
    },
}

impl Admission {
    /// Returns whether its size depends on the disk's share of its pool.
    pub fn goes_by_share(self) -> bool {
        matches!(self, Admission::Larc | Admission::Staging { .. })
    }
}

/// The number of addresses that `reuse(N)` remembers if none is given: 1 GiB of blocks.
const REUSE_ADDRESSES: u32 = 1 << 18;

as_string!(Admission);

impl fmt::Display for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Admission::Auto => f.write_str("auto"),
            Admission::Always => f.write_str("always"),
            Admission::Learned => f.write_str("learned"),
            Admission::Hec => f.write_str("hec"),
            Admission::Larc => f.write_str("larc"),
            Admission::Reuse { n, addresses: REUSE_ADDRESSES } => write!(f, "reuse({n})"),
            Admission::Reuse { n, addresses } => write!(f, "reuse({n}, {addresses})"),
            Admission::Staging { kind: StagingKind::Address, n } => write!(f, "address({n})"),
            Admission::Staging { kind: StagingKind::Data, n } => write!(f, "data({n})"),
            Admission::Staging { kind: StagingKind::Hybrid, n } => write!(f, "hybrid({n})"),
        }
    }
}

impl FromStr for Admission {
    type Err = String;

    fn from_str(text: &str) -> Result<Admission, String> {
        let wrong = || {
            format!(
                "'{text}' is not an admission: expected auto, always, learned, hec, larc, reuse(N), \
                 reuse(N, ADDRESSES), address(N), data(N) or hybrid(N)"
            )
        };
        let (name, arguments) = match text.strip_suffix(')').and_then(|open| open.split_once('(')) {
            Some((name, arguments)) => (name, arguments.split(',').map(str::trim).collect()),
            None => (text, Vec::new()),
        };
        let count = |n: &str| n.parse().map_err(|_| wrong());
        let staging = |kind, n| Ok(Admission::Staging { kind, n: count(n)? });
        match (name, &arguments[..]) {
            ("auto", []) => Ok(Admission::Auto),
            ("always", []) => Ok(Admission::Always),
            ("learned", []) => Ok(Admission::Learned),
            ("hec", []) => Ok(Admission::Hec),
            ("larc", []) => Ok(Admission::Larc),
            ("reuse", [n]) => Ok(Admission::Reuse { n: count(n)?, addresses: REUSE_ADDRESSES }),
            ("reuse", [n, addresses]) => {
                let addresses = addresses.parse().map_err(|_| wrong())?;
                Ok(Admission::Reuse { n: count(n)?, addresses })
            }
            ("address", [n]) => staging(StagingKind::Address, n),
            ("data", [n]) => staging(StagingKind::Data, n),
            ("hybrid", [n]) => staging(StagingKind::Hybrid, n),
            _ => Err(wrong()),
        }
    }
}

/// The order in which dirty blocks are written back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "arguments", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum CleanOrder {
    /// The oldest first, in long runs of neighbours.
    #[default]
    Age,
    /// The order of the guest's flushes: at any moment, the origin has the state of some flush, plus some later writes.
    Flush,
}

/// When dirty blocks are written back. Settings that are not given have their defaults, or in a change stay as they
/// are.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "arguments", derive(clap::Args))]
#[serde(deny_unknown_fields)]
pub struct CleanerSettings {
    /// Dirty share of the target (0 to 1) at which cleaning for the high watermark stops.
    #[cfg_attr(feature = "arguments", arg(long, help_heading = "Cleaning"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low_watermark: Option<f32>,
    /// Dirty share of the target (0 to 1) above which blocks are cleaned whatever their age.
    #[cfg_attr(feature = "arguments", arg(long, help_heading = "Cleaning"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high_watermark: Option<f32>,
    /// Dirty share of the target (0 to 1) above which new writes bypass the cache.
    #[cfg_attr(feature = "arguments", arg(long, help_heading = "Cleaning"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dirty_limit: Option<f32>,
    /// Clean blocks that have been dirty for this long.
    #[cfg_attr(feature = "arguments", arg(long = "clean-age", help_heading = "Cleaning"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age: Option<Span>,
    /// Clean all blocks when the disk has had no request for this long.
    #[cfg_attr(feature = "arguments", arg(long = "clean-idle", help_heading = "Cleaning"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<Span>,
    /// Clean at most this many bytes per second; 0 for no limit.
    #[cfg_attr(feature = "arguments", arg(long = "clean-rate", help_heading = "Cleaning"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<Size>,
    /// The order in which blocks are cleaned.
    #[cfg_attr(feature = "arguments", arg(long = "clean-order", help_heading = "Cleaning"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<CleanOrder>,
}

impl CleanerSettings {
    /// What holds for settings that are not given.
    pub const DEFAULTS: CleanerSettings = CleanerSettings {
        low_watermark: Some(0.10),
        high_watermark: Some(0.15),
        dirty_limit: Some(0.75),
        age: Some(Span(Duration::from_secs(30))),
        idle: Some(Span(Duration::from_secs(5))),
        rate_limit: Some(Size(0)),
        order: Some(CleanOrder::Age),
    };

    /// Returns the change that leads from these settings to `new`. What `new` no longer gives gets its default.
    fn change_to(self, new: CleanerSettings) -> CleanerSettings {
        let removed = CleanerSettings {
            low_watermark: self.low_watermark.and(Self::DEFAULTS.low_watermark),
            high_watermark: self.high_watermark.and(Self::DEFAULTS.high_watermark),
            dirty_limit: self.dirty_limit.and(Self::DEFAULTS.dirty_limit),
            age: self.age.and(Self::DEFAULTS.age),
            idle: self.idle.and(Self::DEFAULTS.idle),
            rate_limit: self.rate_limit.and(Self::DEFAULTS.rate_limit),
            order: self.order.and(Self::DEFAULTS.order),
        };
        removed.changed_by(new)
    }

    /// Returns these settings with those of `change` applied.
    #[must_use]
    pub fn changed_by(self, change: CleanerSettings) -> CleanerSettings {
        CleanerSettings {
            low_watermark: change.low_watermark.or(self.low_watermark),
            high_watermark: change.high_watermark.or(self.high_watermark),
            dirty_limit: change.dirty_limit.or(self.dirty_limit),
            age: change.age.or(self.age),
            idle: change.idle.or(self.idle),
            rate_limit: change.rate_limit.or(self.rate_limit),
            order: change.order.or(self.order),
        }
    }
}

/// What a flush guarantees while a disk with `replicate` has no complete replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "arguments", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum WithoutReplica {
    /// The data is on the origin: the disk writes through.
    #[default]
    WriteThrough,
    /// The data is on this host's flash only.
    Continue,
}

/// TLS to an origin (`nbds://`, `nbds+unix://`): PEM files on the daemon's host, read for every connection.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OriginTls {
    /// Certificate authorities to trust; those of the system if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub ca: Option<PathBuf>,
    /// Client certificate; none if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub certificate: Option<PathBuf>,
    /// Private key of the client certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub key: Option<PathBuf>,
}

/// A disk to attach.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskConfig {
    /// Name: 1 to 64 letters, digits, `.`, `_` and `-`; the first is not `.` or `-`.
    pub name: String,
    /// Pool that caches the disk.
    pub pool: String,
    /// Origin: a path or URI.
    pub origin: String,
    /// TLS to the origin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin_tls: Option<OriginTls>,
    /// Accept an origin that contains a pool's superblock, because a guest created a pool on its disk.
    #[serde(default)]
    pub origin_holds_pool: bool,
    /// Size; if not given the recorded size, or the origin's size for a new disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// Permanent identity, a UUID, the same on every host; derived from the name if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The write mode.
    #[serde(default)]
    pub mode: Mode,
    /// Blocks that survive a restart.
    #[serde(default)]
    pub persistence: Persistence,
    /// Share of the pool.
    #[serde(default)]
    pub target: Target,
    /// Which blocks may enter the cache.
    #[serde(default)]
    pub admission: Admission,
    /// VM that the disk belongs to, for the policy; its own VM if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
    /// Tenant that the VM belongs to, for the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Weight of the disk in the policy, 0 to 1000000.
    #[serde(default = "priority")]
    pub priority: f64,
    /// Smallest share that the policy may assign, and what the disk keeps of one pool without a policy.
    #[serde(default)]
    pub reservation: Size,
    /// Largest share that the policy may assign or, without a policy, that the disk may have while others need the
    /// space; the whole pool if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Size>,
    /// Time over which the policy measures the disk, rounded up to whole windows of the policy; `knee` for one that is
    /// chosen while the disk runs; the policy's if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<WindowSetting>,
    /// Sequential runs longer than this many bytes bypass the cache; 0 for never.
    #[serde(default)]
    pub sequential_cutoff: Size,
    /// When dirty blocks are written back.
    #[serde(default)]
    pub cleaner: CleanerSettings,
    /// Sector at which a block of the grid starts, 0 to 7: the first sector of the guest's partition modulo 8.
    #[serde(default)]
    pub phase: u8,
    /// Path of a vhost-user-blk socket to serve the disk on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub vhost_user: Option<PathBuf>,
    /// Maximum number of queues of the vhost-user-blk device; 64 by default, enough for a guest with 64 processors.
    #[serde(default = "queues")]
    pub queues: u16,
    /// Host that has the disk, if it moves here, or `none` if no host has had it; found by asking all hosts if not
    /// given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Ownership epoch to attach with.
    #[serde(default = "first_epoch")]
    pub epoch: u64,
    /// How long requests wait for an unreachable origin before they fail.
    #[serde(default = "origin_wait")]
    pub origin_wait: Span,
    /// Number of connections to an NBD origin, if its server supports several.
    #[serde(default = "connections")]
    pub connections: u8,
    /// Refuse writes from clients.
    #[serde(default)]
    pub read_only: bool,
    /// Read-only disk of the image that this disk was made from. Blocks that are unchanged since then are read from
    /// that disk, and cached once for all disks that were made from it. The origin must report which blocks these are,
    /// as qcow2: does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// Another host that keeps a replica of the disk's dirty blocks, or `auto` for a reachable one; none if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicate: Option<String>,
    /// What a flush guarantees while there is no complete replica.
    #[serde(default, skip_serializing_if = "is_default")]
    pub without_replica: WithoutReplica,
    /// Read its origin through flash of other hosts, if this host borrows from any.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub borrow: bool,
    /// Export the disk over NBD under its name.
    #[serde(default = "yes")]
    pub nbd: bool,
    /// Attach although dirty data was lost with a cache device: the disk's name, repeated. If it is unknown which
    /// blocks were lost, all dirty blocks are discarded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accept_loss: Option<String>,
    /// Attach with another origin than before: the disk's name, repeated. Cached blocks are kept, and dirty blocks are
    /// written to the new origin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accept_origin_change: Option<String>,
}

/// By default QEMU uses as many queues as the guest has processors, and refuses a device with fewer.
fn queues() -> u16 {
    64
}

fn first_epoch() -> u64 {
    1
}

fn origin_wait() -> Span {
    Span(Duration::from_secs(60))
}

fn connections() -> u8 {
    4
}

fn is_default(value: &WithoutReplica) -> bool {
    *value == WithoutReplica::default()
}

fn yes() -> bool {
    true
}

fn is_true(value: &bool) -> bool {
    *value
}

fn priority() -> f64 {
    1.0
}

impl DiskConfig {
    /// Returns a disk with default settings.
    pub fn new(name: &str, pool: &str, origin: &str) -> DiskConfig {
        DiskConfig {
            name: name.into(),
            pool: pool.into(),
            origin: origin.into(),
            origin_tls: None,
            origin_holds_pool: false,
            size: None,
            id: None,
            mode: Mode::default(),
            persistence: Persistence::default(),
            target: Target::default(),
            admission: Admission::default(),
            vm: None,
            tenant: None,
            priority: priority(),
            reservation: Size::default(),
            limit: None,
            window: None,
            sequential_cutoff: Size::default(),
            cleaner: CleanerSettings::default(),
            phase: 0,
            vhost_user: None,
            queues: queues(),
            from: None,
            epoch: first_epoch(),
            origin_wait: origin_wait(),
            connections: connections(),
            read_only: false,
            base: None,
            replicate: None,
            without_replica: WithoutReplica::default(),
            borrow: true,
            nbd: true,
            accept_loss: None,
            accept_origin_change: None,
        }
    }
}

impl DiskConfig {
    /// Removes what the user accepted for a single attach.
    pub fn forget_acceptances(&mut self) {
        (self.accept_loss, self.accept_origin_change) = (None, None);
    }

    /// Returns the host that should keep a replica of the disk's dirty blocks, or [`ANY_HOST`]; `None` for no
    /// replica.
    pub fn replica_host(&self) -> Option<&str> {
        self.replicate.as_deref().filter(|host| *host != NO_REPLICA)
    }
}

/// Stands for the host of a replica that the daemon chooses.
pub const ANY_HOST: &str = "auto";
/// Says that a disk has no replica.
const NO_REPLICA: &str = "none";

/// Settings that can be changed while a disk is attached. Settings that are not given stay as they are.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "arguments", derive(clap::Args))]
#[serde(deny_unknown_fields)]
pub struct DiskChange {
    /// Write mode: wb, wt, wt-cache, wa, wi or pt; auto for wb or what the policy chooses.
    #[cfg_attr(feature = "arguments", arg(long, help_heading = "Caching"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Share of the pool: a size; auto to share one pool with other disks; equal for an equal part; or as assigned
    /// by the policy.
    #[cfg_attr(feature = "arguments", arg(long, help_heading = "Caching"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    /// Which blocks may enter the cache: always, learned, hec, larc, reuse(N), address(N), data(N) or hybrid(N); auto
    /// for learned, or what the policy chooses.
    #[cfg_attr(feature = "arguments", arg(long, help_heading = "Caching"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission: Option<Admission>,
    /// VM that the disk belongs to, for the policy.
    #[cfg_attr(feature = "arguments", arg(long, help_heading = "Policy"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
    /// Tenant that the VM belongs to, for the policy.
    #[cfg_attr(feature = "arguments", arg(long, help_heading = "Policy"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Weight of the disk in the policy, 0 to 1000000 [default: 1].
    #[cfg_attr(feature = "arguments", arg(long, help_heading = "Policy"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<f64>,
    /// Smallest share that the policy may assign.
    #[cfg_attr(feature = "arguments", arg(long, help_heading = "Policy"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation: Option<Size>,
    /// Largest share that the policy may assign.
    #[cfg_attr(feature = "arguments", arg(long, help_heading = "Policy"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Size>,
    /// Time over which the policy measures the disk, rounded up to whole windows of the policy; `knee` for one that is
    /// chosen while the disk runs; 0s for the policy's.
    #[cfg_attr(feature = "arguments", arg(long, help_heading = "Policy"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<WindowSetting>,
    /// Sequential runs longer than this bypass the cache; 0 for never.
    #[cfg_attr(feature = "arguments", arg(long, help_heading = "Caching"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequential_cutoff: Option<Size>,
    /// When dirty blocks are written back.
    #[cfg_attr(feature = "arguments", command(flatten))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cleaner: Option<CleanerSettings>,
    /// Host that keeps a replica of the disk's dirty blocks; auto for a reachable one; none for no replica.
    #[cfg_attr(feature = "arguments", arg(long, value_name = "HOST", help_heading = "Replica"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicate: Option<String>,
    /// What a flush guarantees while there is no complete replica: that the data is on the origin, or only on this
    /// host's flash.
    #[cfg_attr(feature = "arguments", arg(long, help_heading = "Replica"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without_replica: Option<WithoutReplica>,
    /// Whether the disk is an NBD export. Existing connections stay.
    #[cfg_attr(feature = "arguments", arg(skip))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nbd: Option<bool>,
}

/// The value of `window` that removes a disk's own window.
const NO_WINDOW: WindowSetting = WindowSetting::Length(Span(Duration::ZERO));

impl DiskChange {
    /// Returns a disk's settings with this change applied. An empty name of a VM or tenant removes it; the largest
    /// limit means none, and so do a window of 0 and `none` as the host of a replica.
    #[must_use]
    pub fn applied_to(&self, old: &DiskConfig) -> DiskConfig {
        let named = |new: &Option<String>, old: &Option<String>| {
            new.as_ref().or(old.as_ref()).filter(|name| !name.is_empty()).cloned()
        };
        DiskConfig {
            mode: self.mode.unwrap_or(old.mode),
            target: self.target.unwrap_or(old.target),
            admission: self.admission.unwrap_or(old.admission),
            vm: named(&self.vm, &old.vm),
            tenant: named(&self.tenant, &old.tenant),
            priority: self.priority.unwrap_or(old.priority),
            reservation: self.reservation.unwrap_or(old.reservation),
            limit: self.limit.or(old.limit).filter(|limit| *limit != Size(u64::MAX)),
            window: self.window.or(old.window).filter(|window| *window != NO_WINDOW),
            sequential_cutoff: self.sequential_cutoff.unwrap_or(old.sequential_cutoff),
            cleaner: self.cleaner.map_or(old.cleaner, |cleaner| old.cleaner.changed_by(cleaner)),
            replicate: self
                .replicate
                .as_ref()
                .or(old.replicate.as_ref())
                .filter(|host| *host != NO_REPLICA)
                .cloned(),
            without_replica: self.without_replica.unwrap_or(old.without_replica),
            nbd: self.nbd.unwrap_or(old.nbd),
            ..old.clone()
        }
    }

    /// Returns the change that leads from one disk's settings to another's, as far as they can be changed in use.
    #[must_use]
    pub fn between(old: &DiskConfig, new: &DiskConfig) -> DiskChange {
        DiskChange {
            mode: (old.mode != new.mode).then_some(new.mode),
            target: (old.target != new.target).then_some(new.target),
            admission: (old.admission != new.admission).then_some(new.admission),
            vm: (old.vm != new.vm).then(|| new.vm.clone().unwrap_or_default()),
            tenant: (old.tenant != new.tenant).then(|| new.tenant.clone().unwrap_or_default()),
            priority: (old.priority != new.priority).then_some(new.priority),
            reservation: (old.reservation != new.reservation).then_some(new.reservation),
            limit: (old.limit != new.limit).then(|| new.limit.unwrap_or(Size(u64::MAX))),
            window: (old.window != new.window).then(|| new.window.unwrap_or(NO_WINDOW)),
            sequential_cutoff: (old.sequential_cutoff != new.sequential_cutoff)
                .then_some(new.sequential_cutoff),
            cleaner: (old.cleaner != new.cleaner).then(|| old.cleaner.change_to(new.cleaner)),
            replicate: (old.replicate != new.replicate)
                .then(|| new.replicate.clone().unwrap_or_else(|| NO_REPLICA.into())),
            without_replica: (old.without_replica != new.without_replica).then_some(new.without_replica),
            nbd: (old.nbd != new.nbd).then_some(new.nbd),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_the_documented_defaults() {
        let minimal = r#"{"name": "vm1", "pool": "main", "origin": "/dev/sdx"}"#;
        assert_eq!(
            serde_json::from_str::<DiskConfig>(minimal).unwrap(),
            DiskConfig::new("vm1", "main", "/dev/sdx")
        );
        let unknown = r#"{"name": "vm1", "pool": "main", "origin": "/dev/sdx", "colour": 1}"#;
        assert!(serde_json::from_str::<DiskConfig>(unknown).unwrap_err().to_string().contains("colour"));
    }

    #[test]
    fn what_an_older_host_does_not_know_is_not_sent_unless_it_is_used() {
        let sent = serde_json::to_value(DiskConfig::new("vm1", "main", "/dev/sdx")).unwrap();
        for key in ["borrow", "replicate", "without_replica"] {
            assert!(sent.get(key).is_none(), "{key} is in {sent}");
        }
    }

    #[test]
    fn words_round_trip() {
        for text in [
            "auto",
            "always",
            "learned",
            "hec",
            "larc",
            "reuse(2)",
            "reuse(1, 5000)",
            "address(1)",
            "data(2)",
            "hybrid(3)",
        ] {
            assert_eq!(text.parse::<Admission>().unwrap().to_string(), text);
        }
        for text in [
            "reuse",
            "reuse()",
            "reuse(999)",
            "hec(1)",
            "larc()",
            "LARC",
            "never",
            "data",
            "data(1, 2)",
            "hybrid()",
        ] {
            assert!(
                text.parse::<Admission>().unwrap_err().contains("expected auto, always, learned, hec, larc")
            );
        }
        for text in ["auto", "wb", "pt"] {
            assert_eq!(text.parse::<Mode>().unwrap().to_string(), text);
        }
        assert!("writeback".parse::<Mode>().unwrap_err().contains("or auto"));
        for text in ["auto", "equal", "5GiB"] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
        assert!("most".parse::<Target>().unwrap_err().contains("'auto' or 'equal'"));
    }

    #[test]
    fn a_change_leads_from_one_disk_s_settings_to_another_s() {
        let plain = DiskConfig::new("vm1", "main", "/dev/sdx");
        let window = Some("12h".parse().unwrap());
        let set = DiskConfig {
            limit: Some(Size(4096)),
            tenant: Some("shop".into()),
            window,
            replicate: Some("beta".into()),
            without_replica: WithoutReplica::Continue,
            ..plain.clone()
        };
        for (old, new) in [(&plain, &set), (&set, &plain), (&set, &set)] {
            assert_eq!(DiskChange::between(old, new).applied_to(old), *new);
        }
        assert_eq!(DiskChange::between(&set, &set), DiskChange::default());
        assert_eq!(DiskChange::default().applied_to(&set), set);
    }

    #[test]
    fn a_cleaner_setting_that_is_no_longer_given_gets_its_default() {
        let disk = |cleaner| DiskConfig { cleaner, ..DiskConfig::new("vm1", "main", "/dev/sdx") };
        let rate_limit = Some(Size(1 << 20));
        let old = disk(CleanerSettings { rate_limit, dirty_limit: Some(0.9), ..CleanerSettings::default() });
        let new = disk(CleanerSettings { dirty_limit: Some(0.5), ..CleanerSettings::default() });
        let cleaner = DiskChange::between(&old, &new).applied_to(&old).cleaner;
        assert_eq!(cleaner, CleanerSettings { rate_limit: Some(Size(0)), ..new.cleaner });
        // A setting that the file has never given stays as it was set otherwise.
        let order = Some(CleanOrder::Flush);
        let set = disk(CleanerSettings { order, ..old.cleaner });
        assert_eq!(DiskChange::between(&old, &new).applied_to(&set).cleaner.order, order);
    }

    #[test]
    fn a_change_leaves_the_rest() {
        let old = CleanerSettings { low_watermark: Some(0.2), dirty_limit: Some(0.9), ..Default::default() };
        let new = old.changed_by(CleanerSettings { dirty_limit: Some(0.5), ..Default::default() });
        assert_eq!((new.low_watermark, new.dirty_limit, new.age), (Some(0.2), Some(0.5), None));
    }
}
