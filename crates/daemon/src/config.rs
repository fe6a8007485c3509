//! The configuration file.
//!
//! Invariants
//! - An unknown key, a wrong value or a contradiction is an error with the file's path and the line; the daemon
//!   then does not start.
//! - A file that does not end with a newline has been truncated, and is an error. So is one with nothing in it.
//! - The result of [`Config::load`] is consistent: names are unique, every disk's pool exists, paths are not
//!   used twice.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use haversack_api::{ANY_HOST, DiskConfig, PolicySettings, Size, Span};
use haversack_control::endurance::Endurance;
use haversack_engine::PoolSettings;
use haversack_latency::WholeTimes;
use haversack_link::host_id;
use serde::Deserialize;
use serde::de::IgnoredAny;
use toml::Spanned;

use crate::cluster::config::ClusterConfig;
use crate::control::config::{AccessConfig, ApiConfig};
use crate::hosts::config::{HostConfig, MigrationConfig};
use crate::hosts::lending::{BorrowConfig, LendConfig};
use crate::sandbox::SandboxConfig;
use crate::{exclusive, settings};

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: cannot read: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is not valid TOML, has an unknown key or a value of the wrong kind.
    #[error("{path}: {source}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The error, with line and column.
        source: Box<toml::de::Error>,
    },
    /// Its parts contradict each other.
    #[error("{path}: line {line}: {what}")]
    Contradiction {
        /// The file.
        path: PathBuf,
        /// The line on which the part begins.
        line: usize,
        /// What is wrong and what to do.
        what: String,
    },
}

/// The configuration.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The daemon itself.
    #[serde(default)]
    pub daemon: DaemonConfig,
    /// The control API over TCP.
    pub api: Option<ApiConfig>,
    /// Who has which role; if not set, anyone who can open the control socket can do everything.
    pub access: Option<AccessConfig>,
    /// What the daemon may open; whatever its user may, if not set.
    pub sandbox: Option<SandboxConfig>,
    /// The pools.
    #[serde(default, rename = "pool")]
    pub pools: Vec<PoolConfig>,
    /// The NBD server.
    pub nbd: Option<NbdConfig>,
    /// How disks move between this host and others; they do not if not set.
    pub migration: Option<MigrationConfig>,
    /// The other hosts.
    #[serde(default, rename = "host")]
    pub hosts: Vec<HostConfig>,
    /// The flash that this host lends to others; none if not set.
    pub lend: Option<LendConfig>,
    /// The flash of others that this host reads through; none if not set.
    pub borrow: Option<BorrowConfig>,
    /// The directory of the cluster that this host is in; none if not set.
    pub cluster: Option<ClusterConfig>,
    /// The policy that divides the pools among their disks; none if not set.
    pub policy: Option<PolicySettings>,
    /// The disks.
    #[serde(default, rename = "disk")]
    pub disks: Vec<DiskConfig>,
    /// The keys that the file has for each disk.
    #[serde(skip)]
    pub keys: BTreeMap<String, BTreeSet<String>>,
    /// The disk whose table is the last thing in the file, if there is one.
    #[serde(skip)]
    pub last: Option<String>,
}

/// The daemon itself.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DaemonConfig {
    /// The directory of the control socket and the private sockets of helpers.
    pub runtime_dir: PathBuf,
    /// The directory in which attached disks and lost pools are remembered.
    pub state_dir: PathBuf,
    /// The user to switch to once everything is open.
    pub user: Option<String>,
    /// Log level, and levels of single modules: `info,haversack_engine=debug`.
    pub log: String,
    /// The format of log lines.
    pub log_format: LogFormat,
    /// The TCP address that serves `/metrics` and nothing else.
    pub metrics_listen: Option<SocketAddr>,
    /// How long a request to the control API or for metrics may take to arrive, and how long its connection may
    /// be idle.
    pub request_time: Span,
    /// The directory of the decision logs, `policy-POOL.log`; `state_dir` if not set.
    pub policy_log_dir: Option<PathBuf>,
    /// The size at which such a log is rotated; three rotated logs are kept.
    pub policy_log_size: Size,
    /// The size of the file with the last day's history, for the dashboard; 0 for no history.
    pub history_size: Size,
    /// Disks that a reload may detach because they are no longer in the file, if nobody uses them. A reload is
    /// refused if any other disk is missing from the file.
    pub remove_disks: Vec<String>,
    /// The program that accesses the stores which the engine does not access itself.
    pub qemu_storage_daemon: PathBuf,
}

impl Default for DaemonConfig {
    fn default() -> Self {
        DaemonConfig {
            runtime_dir: "/run/haversack".into(),
            state_dir: "/var/lib/haversack".into(),
            user: None,
            log: "info".into(),
            log_format: LogFormat::Text,
            metrics_listen: None,
            request_time: Span(Duration::from_secs(30)),
            policy_log_dir: None,
            policy_log_size: Size(16 << 20),
            history_size: Size(32 << 20),
            remove_disks: Vec::new(),
            qemu_storage_daemon: "qemu-storage-daemon".into(),
        }
    }
}

impl DaemonConfig {
    /// Returns the path of the control socket.
    pub fn control_socket(&self) -> PathBuf {
        self.runtime_dir.join("control.sock")
    }

    /// Returns the directory of the decision logs.
    pub fn policy_log_dir(&self) -> &Path {
        self.policy_log_dir.as_deref().unwrap_or(&self.state_dir)
    }
}

/// The format of log lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Plain text.
    Text,
    /// One JSON object per line.
    Json,
}

/// A pool.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolConfig {
    /// Its name.
    pub name: String,
    /// Its cache devices.
    pub devices: Vec<PathBuf>,
    /// Shared memory for staged blocks.
    #[serde(default = "staging")]
    pub staging: Size,
    /// Memory for data in transit.
    #[serde(default = "transfer")]
    pub transfer: Size,
    /// Memory for the payloads of NBD clients.
    #[serde(default = "client_memory")]
    pub client_memory: Size,
    /// How long the reactor polls for new work before it sleeps, in microseconds.
    #[serde(default = "poll_us")]
    pub poll_us: u32,
    /// Whether a disk may exceed its target while no other disk needs the space.
    #[serde(default = "share_spare")]
    pub share_spare: bool,
    /// How much may be written to its cache devices: `"1 DWPD"` or `"500 GB/day"`; unlimited if not set.
    pub endurance: Option<Endurance>,
    /// Open it even if a missing device may hold the only copy of dirty blocks: the pool's name, repeated.
    #[serde(default)]
    pub accept_missing: Option<String>,
    /// For tests: a file that contains the time, see [`haversack_engine::PoolSettings`].
    pub clock_file: Option<PathBuf>,
    /// For tests with a clock file: how long I/Os take, see [`haversack_engine::PoolSettings`].
    pub io_times: Option<WholeTimes>,
}

fn staging() -> Size {
    Size(64 << 20)
}

fn transfer() -> Size {
    Size(32 << 20)
}

fn client_memory() -> Size {
    Size(256 << 20)
}

fn poll_us() -> u32 {
    50
}

fn share_spare() -> bool {
    true
}

/// The NBD server.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NbdConfig {
    /// The addresses to listen on: `unix:/path` or `tcp:address:port`.
    pub listen: Vec<NbdListen>,
    /// Certificate chain for TLS, PEM.
    pub tls_certificate: Option<PathBuf>,
    /// Private key for TLS, PEM.
    pub tls_key: Option<PathBuf>,
    /// Accept TLS only from clients that present a certificate of these authorities, PEM.
    pub tls_client_ca: Option<PathBuf>,
    /// Refuse TCP clients that do not start TLS.
    #[serde(default)]
    pub tls_required: bool,
    /// The most concurrent connections of one export.
    #[serde(default = "max_connections_per_disk")]
    pub max_connections_per_disk: u32,
    /// The most concurrent connections of one listener.
    #[serde(default = "max_connections")]
    pub max_connections: u32,
    /// The most of these connections from one IPv4 address, IPv6 /64 network or process.
    #[serde(default = "max_connections_per_peer")]
    pub max_connections_per_peer: u32,
    /// The most connections of one listener that are still negotiating; a quarter of them from one peer.
    #[serde(default = "max_negotiations")]
    pub max_negotiations: u32,
    /// How long the negotiation may take, including TLS.
    #[serde(default = "negotiation_time")]
    pub negotiation_time: Span,
}

fn max_connections_per_disk() -> u32 {
    64
}

fn max_connections() -> u32 {
    1024
}

fn max_connections_per_peer() -> u32 {
    256
}

fn max_negotiations() -> u32 {
    256
}

fn negotiation_time() -> Span {
    Span(Duration::from_secs(30))
}

/// An address that the NBD server listens on.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Deserialize)]
#[serde(try_from = "String")]
pub enum NbdListen {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
}

impl std::fmt::Display for NbdListen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NbdListen::Unix(path) => write!(f, "unix:{}", path.display()),
            NbdListen::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

impl TryFrom<String> for NbdListen {
    type Error = String;

    fn try_from(text: String) -> Result<NbdListen, String> {
        let wrong =
            || format!("'{text}' is not an address to listen on: expected unix:/PATH or tcp:ADDRESS:PORT");
        match text.split_once(':') {
            Some(("unix", path)) if path.starts_with('/') => Ok(NbdListen::Unix(path.into())),
            Some(("tcp", address)) => address.parse().map(NbdListen::Tcp).map_err(|_| wrong()),
            _ => Err(wrong()),
        }
    }
}

/// The byte offsets at which the parts of the file begin.
#[derive(Default, Deserialize)]
struct Places {
    daemon: Option<Spanned<IgnoredAny>>,
    api: Option<Spanned<IgnoredAny>>,
    access: Option<Spanned<IgnoredAny>>,
    sandbox: Option<Spanned<IgnoredAny>>,
    nbd: Option<Spanned<IgnoredAny>>,
    migration: Option<Spanned<IgnoredAny>>,
    lend: Option<Spanned<IgnoredAny>>,
    borrow: Option<Spanned<IgnoredAny>>,
    cluster: Option<Spanned<IgnoredAny>>,
    policy: Option<Spanned<IgnoredAny>>,
    #[serde(default)]
    pool: Vec<Spanned<IgnoredAny>>,
    #[serde(default)]
    host: Vec<Spanned<IgnoredAny>>,
    #[serde(default)]
    disk: Vec<Spanned<IgnoredAny>>,
}

impl Places {
    fn ends_with_disk(&self) -> bool {
        let tables = [&self.daemon, &self.api, &self.access, &self.sandbox, &self.nbd, &self.migration];
        let others = tables
            .into_iter()
            .chain([&self.policy, &self.cluster, &self.lend, &self.borrow])
            .flatten()
            .chain(&self.pool)
            .chain(&self.host)
            .map(|part| part.span().start)
            .max();
        self.disk.last().map(|disk| disk.span().start) > others
    }
}

/// The keys of the disks' tables.
#[derive(Deserialize)]
struct Keys {
    #[serde(default)]
    disk: Vec<BTreeMap<String, IgnoredAny>>,
}

impl Config {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_path_buf(), source })?;
        Config::parse(path, &text)
    }

    /// Parses the text of a configuration file; the path is for messages.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn parse(path: &Path, text: &str) -> Result<Config, ConfigError> {
        let syntax = |source| ConfigError::Syntax { path: path.to_path_buf(), source: Box::new(source) };
        let wrong = |(line, what)| ConfigError::Contradiction { path: path.to_path_buf(), line, what };
        check_whole(text).map_err(wrong)?;
        let mut config: Config = toml::from_str(text).map_err(syntax)?;
        let places: Places = toml::from_str(text).map_err(syntax)?;
        let keys: Keys = toml::from_str(text).map_err(syntax)?;
        config.last = config.disks.last().map(|disk| disk.name.clone()).filter(|_| places.ends_with_disk());
        let names = config.disks.iter().map(|disk| disk.name.clone());
        config.keys = names.zip(keys.disk.into_iter().map(|disk| disk.into_keys().collect())).collect();
        config.check(&places).map_err(|(at_byte, what)| {
            let line = text[..at_byte.min(text.len())].matches('\n').count() + 1;
            ConfigError::Contradiction { path: path.to_path_buf(), line, what }
        })?;
        Ok(config)
    }

    /// Checks consistency. Returns the first problem and its byte offset in the file.
    fn check(&self, places: &Places) -> Result<(), (usize, String)> {
        let at =
            |places: &[Spanned<IgnoredAny>], index: usize| places.get(index).map_or(0, |p| p.span().start);
        let start = |part: &Option<Spanned<IgnoredAny>>| part.as_ref().map_or(0, |p| p.span().start);
        self.check_removed().map_err(|what| (start(&places.daemon), what))?;
        let mut taken = Taken::new();
        if self.daemon.request_time.0.is_zero() {
            return Err((
                0,
                "request_time = \"0s\" would refuse every request: give a time such as 30s".into(),
            ));
        }
        claim(&mut taken, format!("path {}", self.daemon.control_socket().display()), "[daemon]".into())
            .map_err(|what| (0, what))?;
        for (index, pool) in self.pools.iter().enumerate() {
            self.check_pool(pool, &mut taken).map_err(|what| (at(&places.pool, index), what))?;
        }
        for (index, disk) in self.disks.iter().enumerate() {
            let earlier = &self.disks[..index];
            self.check_disk(disk, &mut taken)
                .and_then(|()| self.check_origin(disk, earlier))
                .map_err(|what| (at(&places.disk, index), what))?;
        }
        if let Some(api) = &self.api {
            api.check().map_err(|what| (start(&places.api), what))?;
        }
        if let Some(access) = &self.access {
            access.check(self.api.as_ref()).map_err(|what| (start(&places.access), what))?;
        }
        if let Some(sandbox) = &self.sandbox {
            sandbox.check().map_err(|what| (start(&places.sandbox), what))?;
        }
        if let Some(nbd) = &self.nbd {
            nbd.check(&mut taken).map_err(|what| (start(&places.nbd), what))?;
        }
        for (index, host) in self.hosts.iter().enumerate() {
            host.check().map_err(|what| (at(&places.host, index), what))?;
        }
        self.check_migration().map_err(|what| {
            let host = places.host.first().map_or(0, |host| host.span().start);
            (places.migration.as_ref().map_or(host, |part| part.span().start), what)
        })?;
        self.check_lend().map_err(|what| (start(&places.lend), what))?;
        self.check_borrow().map_err(|what| (start(&places.borrow), what))?;
        self.check_cluster().map_err(|what| (start(&places.cluster), what))?;
        self.check_policy().map_err(|what| (start(&places.policy), what))
    }

    fn check_removed(&self) -> Result<(), String> {
        match self.disks.iter().find(|disk| self.daemon.remove_disks.contains(&disk.name)) {
            None => Ok(()),
            Some(disk) => Err(format!(
                "disk '{0}' is configured and named in remove_disks: remove it from one of the two",
                disk.name
            )),
        }
    }

    fn check_migration(&self) -> Result<(), String> {
        match &self.migration {
            Some(migration) => migration.check(&self.hosts).map_err(|what| format!("[migration] {what}")),
            None if self.hosts.is_empty() => Ok(()),
            None => Err("[[host]] needs [migration]: give this host's name and certificates there".into()),
        }
    }

    fn check_lend(&self) -> Result<(), String> {
        let Some(lend) = &self.lend else { return Ok(()) };
        if self.migration.is_none() {
            return Err("[lend] needs [migration]: give this host's name and certificates there".into());
        }
        let pools = self.pools.iter().map(|pool| (pool.name.as_str(), pool.share_spare));
        lend.check(&self.hosts, pools).map_err(|what| format!("[lend] {what}"))
    }

    fn check_borrow(&self) -> Result<(), String> {
        let Some(borrow) = &self.borrow else { return Ok(()) };
        if self.migration.is_none() {
            return Err("[borrow] needs [migration]: give this host's name and certificates there".into());
        }
        borrow.check(&self.hosts, self.cluster.is_some()).map_err(|what| format!("[borrow] {what}"))
    }

    fn check_cluster(&self) -> Result<(), String> {
        let Some(cluster) = &self.cluster else { return Ok(()) };
        cluster.check(self.migration.as_ref()).map_err(|what| format!("[cluster] {what}"))
    }

    fn check_policy(&self) -> Result<(), String> {
        if let Some(settings) = &self.policy {
            haversack_control::settings::config(settings).map_err(|what| format!("[policy] {what}"))?;
        } else if self.cluster.is_none() {
            return Ok(());
        }
        self.pools.iter().try_for_each(|pool| {
            let disks = self.disks.iter().filter(|disk| disk.pool == pool.name);
            haversack_control::settings::check_weights(&pool.name, disks)
        })
    }

    fn check_pool(&self, pool: &PoolConfig, taken: &mut Taken) -> Result<(), String> {
        settings::check_name(&pool.name)?;
        claim(taken, format!("pool name '{}'", pool.name), "[[pool]]".into())?;
        if pool.devices.is_empty() {
            return Err(format!("pool '{}' has no devices: list at least one", pool.name));
        }
        for device in &pool.devices {
            claim(taken, format!("path {}", device.display()), format!("pool '{}'", pool.name))?;
        }
        if pool.accept_missing.as_ref().is_some_and(|name| *name != pool.name) {
            return Err(format!("accept_missing must repeat the pool's name, '{}'", pool.name));
        }
        if pool.io_times.is_some() && pool.clock_file.is_none() {
            return Err(format!("io_times of pool '{}' are for tests: they need a clock_file", pool.name));
        }
        for (key, size) in [("staging", pool.staging), ("transfer", pool.transfer)] {
            settings::blocks(size).map_err(|e| format!("{key} of pool '{}': {e}", pool.name))?;
        }
        Ok(())
    }

    /// Checks that the host that is to have a replica of a disk is known, as is any for `auto`.
    fn check_replica_host(&self, disk: &DiskConfig) -> Result<(), String> {
        let Some(wanted) = disk.replica_host() else { return Ok(()) };
        let is_meant = |name: &str| wanted == ANY_HOST || host_id(name) == host_id(wanted);
        if self.hosts.iter().any(|host| is_meant(&host.name)) {
            return Ok(());
        }
        let names: Vec<_> = self.hosts.iter().map(|host| host.name.as_str()).collect();
        let names = if names.is_empty() { "none".to_string() } else { names.join(", ") };
        Err(format!(
            "disk '{}': replicate = \"{wanted}\" needs another host in [[host]] for it; hosts there: {names}",
            disk.name
        ))
    }

    fn check_disk(&self, disk: &DiskConfig, taken: &mut Taken) -> Result<(), String> {
        settings::check_disk(disk)?;
        settings::check_replica(disk)?;
        self.check_replica_host(disk)?;
        claim(taken, format!("disk name '{}'", disk.name), "[[disk]]".into())?;
        let part = format!("disk '{}'", disk.name);
        claim(taken, format!("disk id {}", settings::disk_id(disk)?), part.clone())?;
        if let Some(socket) = &disk.vhost_user {
            claim(taken, format!("path {}", socket.display()), part)?;
        }
        if self.pools.iter().any(|pool| pool.name == disk.pool) {
            return Ok(());
        }
        let names: Vec<_> = self.pools.iter().map(|pool| pool.name.as_str()).collect();
        let names = if names.is_empty() { "none".to_string() } else { names.join(", ") };
        Err(format!(
            "disk '{}' names pool '{}', which is not configured; pools: {names}",
            disk.name, disk.pool
        ))
    }
}

impl Config {
    /// Checks that a disk's origin is not used by an earlier disk or by a pool.
    fn check_origin(&self, disk: &DiskConfig, earlier: &[DiskConfig]) -> Result<(), String> {
        if let Some(what) = earlier.iter().find_map(|other| exclusive::conflict(disk, other)) {
            return Err(what);
        }
        let store = exclusive::Store::of(&disk.origin);
        for pool in &self.pools {
            if let Some(part) = pool.parts().find(|part| store.uses(part)) {
                return Err(format!(
                    "the origin of disk '{}' is {}, which is part of pool '{}': name the disk's own image",
                    disk.name,
                    part.display(),
                    pool.name
                ));
            }
        }
        Ok(())
    }
}

impl PoolConfig {
    /// Returns the files and devices that belong to the pool: its cache devices and its staging area.
    pub fn parts(&self) -> impl Iterator<Item = PathBuf> {
        self.devices.iter().cloned().chain([PoolSettings::staging_path_of(&self.name)])
    }
}

/// Checks that a file seems to be complete. Returns what is wrong, and on which line.
fn check_whole(text: &str) -> Result<(), (usize, String)> {
    if !text.is_empty() && !text.ends_with('\n') {
        let line = text.matches('\n').count() + 1;
        let what = "the file ends in the middle of a line: is it complete? End its last line";
        return Err((line, what.into()));
    }
    let says_nothing = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
    if text.lines().all(says_nothing) {
        return Err((1, "no [[pool]] is configured, nor anything else; is the file complete?".into()));
    }
    Ok(())
}

/// What only one part of the configuration may use, and the part that does.
type Taken = HashMap<String, String>;

/// Claims something for a part of the configuration.
fn claim(taken: &mut Taken, what: String, part: String) -> Result<(), String> {
    match taken.get(&what) {
        Some(other) if *other == part => {
            Err(format!("{what} is used twice in {part}: change one of the two"))
        }
        Some(other) => Err(format!("{what} is used in {other} and in {part}: change one of the two")),
        None => {
            taken.insert(what, part);
            Ok(())
        }
    }
}

impl NbdConfig {
    /// Returns the Unix sockets.
    pub fn sockets(&self) -> impl Iterator<Item = &Path> {
        self.listen.iter().filter_map(|listen| match listen {
            NbdListen::Unix(path) => Some(path.as_path()),
            NbdListen::Tcp(_) => None,
        })
    }

    fn check(&self, taken: &mut Taken) -> Result<(), String> {
        for socket in self.sockets() {
            claim(taken, format!("path {}", socket.display()), "[nbd]".into())?;
        }
        if self.listen.is_empty() {
            return Err("[nbd] listens nowhere: give listen = [\"unix:/PATH\"], or leave [nbd] out".into());
        }
        let limits = [
            ("max_connections_per_disk", self.max_connections_per_disk),
            ("max_connections", self.max_connections),
            ("max_connections_per_peer", self.max_connections_per_peer),
            ("max_negotiations", self.max_negotiations),
        ];
        if let Some((key, _)) = limits.iter().find(|(_, most)| *most == 0) {
            return Err(format!(
                "{key} = 0 would refuse every connection: give at least 1, or leave [nbd] out"
            ));
        }
        if self.negotiation_time.0.is_zero() {
            return Err(
                "negotiation_time = \"0s\" would refuse every connection: give a time such as 30s".into()
            );
        }
        if self.tls_certificate.is_some() != self.tls_key.is_some() {
            return Err("tls_certificate and tls_key belong together: give both or none".into());
        }
        if (self.tls_required || self.tls_client_ca.is_some()) && self.tls_key.is_none() {
            return Err("tls_required and tls_client_ca need tls_certificate and tls_key".into());
        }
        if self.tls_client_ca.is_some() && !self.tls_required {
            return Err(
                "tls_client_ca needs tls_required = true: clients without TLS show no certificate".into()
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(Path::new("/etc/haversack/haversackd.toml"), text).map_err(|e| e.to_string())
    }

    const POOL: &str = "[[pool]]\nname = \"main\"\ndevices = [\"/dev/a\"]\n";

    #[test]
    fn everything_has_a_default_but_names_devices_and_origins() {
        let config =
            parse(&format!("{POOL}[[disk]]\nname = \"vm1\"\npool = \"main\"\norigin = \"/dev/b\"\n"))
                .unwrap();
        assert_eq!(config.daemon.control_socket(), Path::new("/run/haversack/control.sock"));
        assert_eq!(config.pools[0].staging, Size(64 << 20));
        assert_eq!(config.disks, [DiskConfig::new("vm1", "main", "/dev/b")]);
        assert!(config.nbd.is_none() && config.api.is_none());
    }

    #[test]
    fn a_pool_may_have_a_budget_of_flash_writes() {
        assert_eq!(parse(POOL).unwrap().pools[0].endurance, None);
        let with = |value: &str| parse(&format!("{POOL}endurance = \"{value}\"\n"));
        assert_eq!(with("0.5 DWPD").unwrap().pools[0].endurance, Some(Endurance::DriveWritesPerDay(0.5)));
        assert_eq!(with("500 GB/day").unwrap().pools[0].endurance, Some(Endurance::BytesPerDay(500e9)));
        for wrong in ["a lot", "0 DWPD", "500 GB"] {
            let error = with(wrong).unwrap_err();
            assert!(error.contains("line 4") && error.contains("^") && error.contains("DWPD"), "{error}");
        }
    }

    #[test]
    fn the_packaged_example_is_valid() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/haversackd.toml");
        Config::load(&path).unwrap();
    }

    #[test]
    fn the_packages_configuration_is_valid_and_has_no_pool() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/default.toml");
        let config = Config::load(&path).unwrap();
        assert!(config.pools.is_empty() && config.disks.is_empty());
        assert!(config.nbd.is_some() && config.sandbox.is_some());
    }

    #[test]
    fn the_keys_of_disks_and_the_end_of_the_file_are_known() {
        let disk =
            |name: &str| format!("[[disk]]\nname = \"{name}\"\npool = \"main\"\norigin = \"/{name}\"\n");
        let text = format!("{POOL}{}mode = \"wt\"\n{}cleaner.age = \"1s\"\n", disk("vm1"), disk("vm2"));
        let config = parse(&text).unwrap();
        let keys = |name: &str| config.keys[name].iter().map(String::as_str).collect::<Vec<_>>();
        assert_eq!(keys("vm1"), ["mode", "name", "origin", "pool"]);
        assert_eq!(keys("vm2"), ["cleaner", "name", "origin", "pool"]);
        assert_eq!(config.last.as_deref(), Some("vm2"));
        assert_eq!(parse(&format!("{text}[daemon]\n")).unwrap().last, None);
        assert_eq!(parse(POOL).unwrap().last, None);
    }

    /// Each wrong text, the line that the error must name, and a word that it must contain.
    #[test]
    fn errors_name_the_line_and_the_remedy() {
        let disk = |rest: &str| {
            format!("{POOL}\n[[disk]]\nname = \"vm1\"\npool = \"main\"\norigin = \"/b\"\n{rest}\n")
        };
        let lending = |part: &str| {
            format!(
                "{part}\n[migration]\nname = \"a\"\nlisten = [\"127.0.0.1:1\"]\ninsecure = true\n[[host]]\nname = \"b\"\n\
                 address = \"b:1\""
            )
        };
        let cases = [
            (String::new(), 1, "no [[pool]]"),
            ("# nothing\n\n".into(), 1, "complete"),
            ("[[disk]]\nname = \"vm1\"\npool = \"main\"\norigin = \"/b\"\n".into(), 1, "pools: none"),
            (disk("mode = \"wt\"").trim_end().into(), 9, "complete"),
            (format!("\n[daemon]\nremove_disks = [\"vm1\"]\n{}", disk("")), 2, "remove_disks"),
            ("[daemon]\nruntimedir = \"/x\"\n".to_string(), 2, "runtimedir"),
            ("[[pool]]\nname = \"main\"\n".to_string(), 1, "devices"),
            (disk("size = \"10 parsecs\""), 9, "expected bytes"),
            (disk("mode = \"writeback\""), 9, "expected one of wb"),
            (disk("colour = 1"), 9, "colour"),
            (disk("phase = 8"), 5, "0 to 7"),
            (disk("persistence = \"none\""), 5, "lose acknowledged writes"),
            (disk("cleaner = { low_watermark = 0.9 }"), 5, "ordered"),
            (disk("id = \"17\""), 5, "UUID"),
            (disk("size = 1000"), 5, "512"),
            (disk("accept_loss = \"yes\""), 5, "repeat"),
            (
                disk("vhost_user = \"/dev/a\""),
                5,
                "path /dev/a is used in pool 'main' and in disk 'vm1': change",
            ),
            (format!("{POOL}{POOL}"), 4, "pool name 'main' is used twice in [[pool]]: change"),
            (disk("origin_tls = { ca = \"/ca.pem\" }"), 5, "nbds://"),
            (disk("origin_tls = { key = \"/k\" }").replace("/b", "nbds://h/x"), 5, "both or none"),
            (disk("reservation = \"2GiB\"\nlimit = \"1GiB\""), 5, "below its reservation of 2GiB"),
            (disk("replicate = \"b\""), 5, "hosts there: none"),
            (disk("replicate = \"auto\""), 5, "hosts there: none"),
            (disk("priority = -1.0"), 5, "0 to a million"),
            (disk("priority = 0.0\n[policy]\nallocator = \"wss\""), 10, "sum to zero"),
            (disk("[policy]\nallocator = \"best\""), 9, "max-min"),
            (disk("[policy]\nallocator = \"wss\"\nwindows = \"1s\""), 11, "windows"),
            (disk("[policy]\nallocator = \"wss\"\nwindow = \"1s\"\nmeasurement = \"2s\""), 9, "shorter than"),
            (disk("").replace("pool = \"main\"", "pool = \"mian\""), 5, "pools: main"),
            (disk("").replace("vm1", "a/b"), 5, "letters"),
            (disk("").replace("\"/b\"", "\"gopher:x\""), 5, "gopher"),
            (disk("[[host]]\nname = \"b\"\naddress = \"b:1\""), 9, "[migration]"),
            (disk("[[host]]\nname = \"b\"\naddress = \"b\""), 9, "HOST:PORT"),
            (disk("[migration]\nname = \"a\"\nlisten = [\"127.0.0.1:1\"]"), 9, "authority"),
            (disk("[migration]\nname = \"a\"\nlisten = []\ninsecure = true"), 9, "ADDRESS:PORT"),
            (
                disk("[migration]\nname = \"a\"\nlisten = [\"127.0.0.1:1\"]\ninsecure = true\nkey = \"/k\""),
                9,
                "exclude each other",
            ),
            (
                disk(
                    "[migration]\nname = \"a\"\nlisten = [\"127.0.0.1:1\"]\ninsecure = true\n[[host]]\n\
                     name = \"A\"\naddress = \"b:1\"",
                ),
                9,
                "named twice",
            ),
            (disk("[lend]\npool = \"main\"\ncapacity = \"1GiB\""), 9, "needs [migration]"),
            (disk("[borrow]\nfrom = [\"b\"]"), 9, "needs [migration]"),
            (
                disk(
                    "[borrow]\nfrom = [\"b\"]\n[migration]\nname = \"a\"\nlisten = [\"127.0.0.1:1\"]\ninsecure = true",
                ),
                9,
                "from names host 'b', which is not in the configuration",
            ),
            (
                disk(
                    "[borrow]\nfrom = \"auto\"\n[migration]\nname = \"a\"\nlisten = [\"127.0.0.1:1\"]\ninsecure = true",
                ),
                9,
                "needs [cluster]",
            ),
            (disk("[borrow]\nfrom = \"some\""), 10, "expected \"auto\" or a list of hosts"),
            (
                disk(
                    "[lend]\npool = \"other\"\ncapacity = \"1GiB\"\n[migration]\nname = \"a\"\n\
                     listen = [\"127.0.0.1:1\"]\ninsecure = true",
                ),
                9,
                "pool = \"other\": there is no such pool",
            ),
            (
                disk(
                    "[lend]\npool = \"main\"\ncapacity = \"2MiB\"\n[migration]\nname = \"a\"\n\
                     listen = [\"127.0.0.1:1\"]\ninsecure = true",
                ),
                9,
                "capacity = \"2MiB\" is too small to lend anything: give 4MiB",
            ),
            (
                disk(&lending("[lend]\npool = \"main\"\ncapacity = \"1GiB\"\nto = []")),
                9,
                "to = [] names no host",
            ),
            (disk(&lending("[borrow]\nfrom = []")), 9, "from = [] names no host"),
            (disk(&lending("[borrow]\nfrom = [\"b\"]\ndisks = []")), 9, "disks = [] names no disk"),
            (disk(&lending("[borrow]\nfrom = [\"b\"]\ndisks = [\"a/b\"]")), 9, "disks: "),
            (disk("[cluster]\nendpoints = [\"https://e:1\"]\nname = \"a\""), 9, "authority"),
            (disk("[cluster]\nendpoints = [\"http://e:1\"]\ninsecure = true"), 9, "name is missing"),
            (disk("[cluster]\nendpoints = [\"e:1\"]\nname = \"a\"\ninsecure = true"), 9, "endpoints: 'e:1'"),
            (disk("[cluster]\nendpoints = []\nname = \"a\"\ninsecure = true"), 9, "endpoints: no endpoint"),
            (
                disk(
                    "[cluster]\nendpoints = [\"https://e:1\"]\nname = \"a\"\nauthority = \"/ca\"\nkey = \"/k\"",
                ),
                9,
                "both or none",
            ),
            (
                disk(
                    "[cluster]\nendpoints = [\"http://e:1\"]\nname = \"a\"\ninsecure = true\nlease = \"1s\"",
                ),
                9,
                "3s or more",
            ),
            (
                disk(
                    "[cluster]\nendpoints = [\"http://e:1\"]\nname = \"b\"\ninsecure = true\n[migration]\nname = \"a\"\n\
                     listen = [\"127.0.0.1:1\"]\ninsecure = true",
                ),
                9,
                "leave it out here",
            ),
            (disk("[api]\nlisten = \"[::1]:1\"\ncertificate = \"/c\"\nkey = \"/k\""), 9, "authenticate"),
            (disk("[access.reader]\ngroups = []"), 9, "reader"),
            (disk("[access.admins]\ncertificates = [\"ops.example\"]"), 9, "client_ca"),
            (disk("[access.admins]\ncertificates = [\"o ps\"]"), 10, "expected a DNS name"),
            (disk("[sandbox]\npaths = [\"images\"]"), 9, "absolute path"),
            (disk("[sandbox]\npaths = [\"/\"]"), 9, "leave [sandbox] out"),
            (disk("[sandbox]\npath = [\"/a\"]"), 10, "paths"),
            ("[nbd]\nlisten = [\"/tmp/x\"]\n".to_string(), 2, "expected unix:/PATH"),
            ("\n[nbd]\nlisten = []\n".to_string(), 2, "listens nowhere"),
            ("[nbd]\nlisten = [\"tcp:[::1]:1\"]\nmax_negotiations = 0\n".to_string(), 1, "at least 1"),
            ("[nbd]\nlisten = [\"tcp:[::1]:1\"]\ntls_required = true\n".to_string(), 1, "tls_key"),
            ("[nbd]\nlisten = [\"tcp:[::1]:1\"]\ntls_client_ca = \"/ca\"\n".to_string(), 1, "tls_key"),
        ];
        for (text, line, word) in cases {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(&format!("line {line}")) && error.contains(word), "{text}\n{error}");
            assert!(error.starts_with("/etc/haversack/haversackd.toml: "), "{error}");
        }
    }
}
