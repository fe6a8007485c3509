//! The settings of a pool.

use std::path::PathBuf;

use haversack_api::Size;
use haversack_control::endurance::Endurance;
use haversack_engine::PoolSettings;
use haversack_latency::WholeTimes;
use serde::Deserialize;

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
    /// The pool's name, repeated: opens the pool even if a missing device may hold the only copy of dirty blocks.
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

impl PoolConfig {
    /// Returns the files and devices that belong to the pool: its cache devices and its staging area.
    pub fn parts(&self) -> impl Iterator<Item = PathBuf> {
        self.devices.iter().cloned().chain([PoolSettings::staging_path_of(&self.name)])
    }
}
