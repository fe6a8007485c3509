//! The configuration file.
//!
//! Invariants
//! - An unknown key, a wrong value or a contradiction is an error with the file's path and the line; the daemon
//!   then does not start.
//! - A file that does not end with a newline has been truncated, and is an error. So is one with nothing in it.
//! - The result of [`Config::load`] is consistent: names are unique, every disk's pool exists, paths are not
//!   used twice. Two paths of one file are noticed when a disk is attached.

mod check;
mod nbd;
mod pool;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use haversack_api::{DiskConfig, PolicySettings, Size, Span};
use serde::Deserialize;
use serde::de::IgnoredAny;

use self::check::Places;
pub use self::nbd::{NbdConfig, NbdListen};
pub use self::pool::PoolConfig;
use crate::cluster::config::ClusterConfig;
use crate::control::config::{AccessConfig, ApiConfig};
use crate::hosts::config::{HostConfig, MigrationConfig};
use crate::hosts::lending::{BorrowConfig, LendConfig};
use crate::sandbox::SandboxConfig;

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

/// How files that the configuration names are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Files {
    /// By their names.
    ByName,
    /// By what they are, which may wait for their file systems.
    LookedUp,
}

/// The keys of the disks' tables.
#[derive(Deserialize)]
struct Keys {
    #[serde(default)]
    disk: Vec<BTreeMap<String, IgnoredAny>>,
}

impl Config {
    /// Reads a configuration file. No other file is looked at.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        Config::load_with(path, Files::ByName)
    }

    /// Reads a configuration file, and also refuses different names of one origin. This takes as long as it takes to
    /// look all origins up.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn load_thoroughly(path: &Path) -> Result<Config, ConfigError> {
        Config::load_with(path, Files::LookedUp)
    }

    fn load_with(path: &Path, files: Files) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_path_buf(), source })?;
        Config::parse_with(path, &text, files)
    }

    /// Parses the text of a configuration file; the path is for messages.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn parse(path: &Path, text: &str) -> Result<Config, ConfigError> {
        Config::parse_with(path, text, Files::ByName)
    }

    fn parse_with(path: &Path, text: &str, files: Files) -> Result<Config, ConfigError> {
        let syntax = |source| ConfigError::Syntax { path: path.to_path_buf(), source: Box::new(source) };
        let wrong = |(line, what)| ConfigError::Contradiction { path: path.to_path_buf(), line, what };
        check_whole(text).map_err(wrong)?;
        let mut config: Config = toml::from_str(text).map_err(syntax)?;
        let places: Places = toml::from_str(text).map_err(syntax)?;
        let keys: Keys = toml::from_str(text).map_err(syntax)?;
        config.last = config.disks.last().map(|disk| disk.name.clone()).filter(|_| places.ends_with_disk());
        let names = config.disks.iter().map(|disk| disk.name.clone());
        config.keys = names.zip(keys.disk.into_iter().map(|disk| disk.into_keys().collect())).collect();
        config.check(&places, files).map_err(|(at_byte, what)| {
            let line = text[..at_byte.min(text.len())].matches('\n').count() + 1;
            ConfigError::Contradiction { path: path.to_path_buf(), line, what }
        })?;
        Ok(config)
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
