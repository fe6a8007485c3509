//! What the balancer knows of the cluster at the end of a window.
//!
//! The directory and the manager of the VMs fill it in: caches, demands and curves come from the hosts' control loops,
//! memory, processors and anti-affinity from the manager. The order of its lists does not matter.

use std::fmt;

use haversack_policy::Curve;
use serde::{Deserialize, Serialize};

macro_rules! name {
    ($(#[$doc:meta] $name:ident)*) => {$(
        #[$doc]
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub String);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl From<&str> for $name {
            fn from(name: &str) -> $name {
                $name(name.into())
            }
        }
    )*};
}

name! {
    /// A host's name, unique in the cluster.
    HostName
    /// A VM's name, unique in the cluster.
    VmName
    /// A disk's name, unique in the cluster.
    DiskName
    /// A tenant's name.
    TenantName
}

/// The cluster at the end of a window.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Snapshot {
    /// The hosts.
    pub hosts: Vec<Host>,
    /// The VMs with at least one cached disk, each once.
    pub vms: Vec<Vm>,
}

/// Whether a host may get VMs, or must lose them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostState {
    /// It serves its VMs and may get more.
    #[default]
    Serving,
    /// In maintenance (`haversack host drain`): all of its VMs are to leave, and it gets none.
    Draining,
    /// Its lease has ended: nothing is known of it, so nothing moves from or to it.
    Away,
}

/// A host.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Host {
    /// Its name.
    pub name: HostName,
    /// Its state.
    #[serde(default)]
    pub state: HostState,
    /// Blocks of its cache.
    pub capacity_blocks: u64,
    /// Memory for VMs; `None` if the manager has not said: then memory does not limit moves to it.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Virtual processors that it may run, overcommitment included; `None` if the manager has not said.
    #[serde(default)]
    pub vcpus: Option<u32>,
    /// Bytes per second that may be used to copy caches between it and other hosts.
    pub link_bytes_per_s: u64,
}

/// A VM. Its disks move together.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Vm {
    /// Its name.
    pub name: VmName,
    /// The tenant that it belongs to.
    #[serde(default)]
    pub tenant: TenantName,
    /// The host that it runs on.
    pub host: HostName,
    /// The host that it is being moved to, if it is. Its demand counts there; memory and processors count at both. It
    /// is not moved again before this has ended.
    #[serde(default)]
    pub moving_to: Option<HostName>,
    /// Its memory.
    #[serde(default)]
    pub memory_bytes: u64,
    /// Its virtual processors.
    #[serde(default)]
    pub vcpus: u32,
    /// The groups of VMs of which no two may be on one host.
    #[serde(default)]
    pub anti_affinity: Vec<String>,
    /// Why it cannot be moved, in words for the operator; `None` if it can.
    #[serde(default)]
    pub pinned: Option<String>,
    /// Its disks.
    pub disks: Vec<Disk>,
}

/// A disk of a VM.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Disk {
    /// Its name.
    pub name: DiskName,
    /// The forecast of its demand in the next window.
    pub demand_blocks: u64,
    /// Its reservation. A host never gets a VM with which reservations would exceed its cache.
    #[serde(default)]
    pub reservation_blocks: u64,
    /// Its limit; `None` if there is none.
    #[serde(default)]
    pub limit_blocks: Option<u64>,
    /// Its priority, a factor of the worth of its hits.
    #[serde(default = "one")]
    pub priority: f64,
    /// Blocks that it has in the cache now.
    #[serde(default)]
    pub cached_blocks: u64,
    /// Those of them that are dirty, which move in any case.
    #[serde(default)]
    pub dirty_blocks: u64,
    /// Those of them that were used again (RWS) or are dirty: what a move copies.
    #[serde(default)]
    pub reused_blocks: u64,
    /// Accesses per second.
    #[serde(default)]
    pub accesses_per_s: f64,
    /// Hit ratio of its accesses by blocks of cache; a few points suffice ([`outline`](crate::outline())).
    #[serde(default)]
    pub curve: Curve,
    /// Mean latency of an access that misses.
    #[serde(default)]
    pub origin_latency_us: f64,
    /// Mean latency of an access that hits.
    #[serde(default)]
    pub cache_latency_us: f64,
}

fn one() -> f64 {
    1.0
}

impl Disk {
    /// Returns what a hit saves in microseconds, weighted by priority; 0 if the cache is not faster.
    pub fn saved_per_hit_us(&self) -> f64 {
        let saved = (self.origin_latency_us - self.cache_latency_us).max(0.0) * self.priority.max(0.0);
        if saved.is_finite() { saved } else { 0.0 }
    }

    /// Returns the latency in microseconds that this many blocks are expected to save in a second.
    pub fn saved_us_per_s(&self, blocks: u64) -> f64 {
        let blocks = blocks.min(self.limit_blocks.unwrap_or(u64::MAX));
        self.accesses_per_s.max(0.0) * self.saved_per_hit_us() * self.curve.at(blocks)
    }
}

impl Vm {
    /// Returns the blocks that its disks demand.
    pub fn demand_blocks(&self) -> u64 {
        self.disks.iter().map(|disk| disk.demand_blocks).fold(0, u64::saturating_add)
    }

    /// Returns the blocks reserved for its disks.
    pub fn reservation_blocks(&self) -> u64 {
        self.disks.iter().map(|disk| disk.reservation_blocks).fold(0, u64::saturating_add)
    }

    /// Returns the blocks that a move of it copies.
    pub fn copied_blocks(&self) -> u64 {
        let copied = |disk: &Disk| disk.reused_blocks.max(disk.dirty_blocks);
        self.disks.iter().map(copied).fold(0, u64::saturating_add)
    }
}
