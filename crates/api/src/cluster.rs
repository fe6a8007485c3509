//! The cluster: its hosts, pools and disks as the directory has them, and what the balancer proposes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::units::Size;

/// The state of this host's access to the directory.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct DirectoryStatus {
    /// This host's name in it.
    pub name: String,
    /// The member of etcd that is connected; missing while etcd cannot be reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// For how long it has been connected, or away, in seconds.
    pub since_s: f64,
    /// The age of the data shown, in seconds; missing if nothing was read yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_s: Option<f64>,
    /// For how many more seconds this host counts as alive if etcd does not hear from it; missing if it does
    /// not count as alive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_left_s: Option<f64>,
    /// The last report of this host is in the directory.
    pub is_reported: bool,
    /// What is wrong, for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// The cluster.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ClusterStatus {
    /// The state of this host's access to the directory.
    pub directory: DirectoryStatus,
    /// The host that balances, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// The hosts.
    pub hosts: Vec<ClusterHost>,
    /// The disks.
    pub disks: Vec<ClusterDisk>,
    /// The moves that are planned or under way.
    pub moves: Vec<ClusterMove>,
}

/// The state of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum HostState {
    /// It is alive.
    Alive,
    /// It is alive and draining.
    Draining,
    /// Its lease has ended. It still owns its disks.
    Away,
}

impl HostState {
    /// All states.
    pub const ALL: &[HostState] = &[HostState::Alive, HostState::Draining, HostState::Away];
}

/// As in JSON.
impl std::fmt::Display for HostState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            HostState::Alive => "alive",
            HostState::Draining => "draining",
            HostState::Away => "away",
        })
    }
}

/// A host of the cluster.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ClusterHost {
    /// Its name.
    pub name: String,
    /// Whether it is there.
    pub state: HostState,
    /// Whether it is marked as draining, whatever its state.
    pub is_drained: bool,
    /// Seconds since its last report, or since its lease ended; missing if it ended before this daemon looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_s: Option<f64>,
    /// Its daemon's version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Disks that it owns.
    pub disks: u64,
    /// Its pools.
    pub pools: Vec<ClusterPool>,
}

/// A pool of the cluster.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ClusterPool {
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: String,
    /// Capacity in bytes.
    pub capacity_bytes: u64,
    /// What its disks could use, in bytes.
    pub demand_bytes: u64,
    /// Cached bytes.
    pub usage_bytes: u64,
    /// Dirty bytes.
    pub dirty_bytes: u64,
    /// Requests a second.
    pub requests_per_s: f64,
    /// Bytes that clients read and write, a second.
    pub bytes_per_s: f64,
    /// Their mean latency in microseconds.
    pub latency_us: f64,
}

/// A disk of the cluster.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ClusterDisk {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub id: String,
    /// Its owner.
    pub host: String,
    /// That host is alive.
    pub is_host_alive: bool,
    /// The epoch of its ownership.
    pub epoch: u64,
    /// Its pool there.
    pub pool: String,
    /// `attached`, `detached`, ...
    pub state: String,
    /// The VM that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
    /// The tenant that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// It can move.
    pub can_move: bool,
    /// The host that its cache is being sent to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving_to: Option<String>,
    /// Size in bytes.
    pub size_bytes: u64,
    /// What it could use, in bytes.
    pub demand_bytes: u64,
    /// Cached bytes.
    pub usage_bytes: u64,
    /// Dirty bytes.
    pub dirty_bytes: u64,
    /// The host that has a replica of its dirty blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica_at: Option<String>,
    /// That replica had everything that was flushed, when the entry was written.
    #[serde(default)]
    pub is_replicated: bool,
    /// Requests a second.
    pub requests_per_s: f64,
    /// Seconds since its entry has changed.
    pub age_s: f64,
}

/// A move that is planned or under way.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ClusterMove {
    /// The disk's name.
    pub disk: String,
    /// Its identity.
    pub id: String,
    /// The host that it leaves.
    pub from: String,
    /// The host that it goes to.
    pub to: String,
    /// The host whose daemon has begun it.
    pub by: String,
    /// Why.
    pub reason: String,
    /// `planned`, `sending`; or `arrived`, `elsewhere`, `abandoned`: over, and about to be removed.
    pub state: String,
    /// Seconds since it was begun, as far as this daemon knows.
    pub age_s: f64,
}

/// What the balancer proposes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ClusterPlan {
    /// The state of this host's access to the directory, which shows how old the figures behind the plan are.
    pub directory: DirectoryStatus,
    /// Number of windows in a row that this host has observed. Hosts count as overloaded only after several.
    pub windows: u64,
    /// The moves, the most urgent first.
    pub moves: Vec<PlannedMove>,
    /// The VMs that should move but do not, and why.
    pub held: Vec<String>,
    /// The hosts that borrow flash from others, or should, because no VM is moved off them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loans: Vec<PlannedLoan>,
    /// Variance of the hosts' load (demand over capacity) now.
    pub variance_before: f64,
    /// The same after the moves.
    pub variance_after: f64,
}

/// A proposed move of a VM.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct PlannedMove {
    /// The VM.
    pub vm: String,
    /// Its disks.
    pub disks: Vec<String>,
    /// The host that it leaves.
    pub from: String,
    /// The host that it goes to.
    pub to: String,
    /// Why, and what it costs and brings.
    pub reason: String,
    /// Bytes to copy.
    pub copied_bytes: u64,
    /// How long that is expected to take, in seconds.
    pub copy_s: f64,
}

/// A host that borrows flash from another one, or should.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct PlannedLoan {
    /// The host that borrows.
    pub borrower: String,
    /// The host that lends.
    pub lender: String,
    /// Bytes that it has borrowed there, or about how many it should borrow.
    pub size_bytes: u64,
    /// It borrows there already.
    pub is_begun: bool,
    /// Why, in words.
    pub reason: String,
}

/// Forgets a permanently dead host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForgetHost {
    /// The host's name, repeated.
    pub confirm: String,
}

/// What a tenant may use.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantSettings {
    /// Weight against other tenants when caches are divided.
    #[serde(default = "one")]
    pub weight: f64,
    /// What its disks get on all hosts together before others get more than their reservations.
    #[serde(default)]
    pub reservation: Size,
    /// The most that its disks get on all hosts together; no limit if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Size>,
}

fn one() -> f64 {
    1.0
}

/// A tenant, and what it would get.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct TenantStatus {
    /// Its name.
    pub name: String,
    /// What it may use; missing if it is only named by disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<TenantSettings>,
    /// Its disks.
    pub disks: u64,
    /// What they could use, in bytes.
    pub demand_bytes: u64,
    /// What they use, in bytes.
    pub usage_bytes: u64,
    /// Its share of all caches by weight, reservation and limit, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_bytes: Option<u64>,
    /// The part of its reservation that it demands but does not get, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_bytes: Option<u64>,
}
