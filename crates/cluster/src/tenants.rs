//! Tenants' shares over all hosts: weighted max-min with reservations and limits.

use serde::{Deserialize, Serialize};

use crate::error::ClusterError;
use crate::snapshot::{HostName, Snapshot, TenantName};

/// A tenant's guarantees, which hold over all hosts together.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Tenant {
    /// Its name.
    pub name: TenantName,
    /// Its weight; above 0.
    pub weight: f64,
    /// The blocks that it gets before others get more than their reservations, as far as it demands them.
    #[serde(default)]
    pub reservation_blocks: u64,
    /// The most blocks that it gets; `None` if there is no limit. Not below the reservation.
    #[serde(default)]
    pub limit_blocks: Option<u64>,
}

/// What a tenant demands on a host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Demand {
    /// The tenant.
    pub tenant: TenantName,
    /// The host.
    pub host: HostName,
    /// Blocks.
    pub blocks: u64,
}

/// What a tenant gets on a host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct HostShare {
    /// The host.
    pub host: HostName,
    /// The tenant.
    pub tenant: TenantName,
    /// Blocks; at most the demand.
    pub blocks: u64,
}

/// What a tenant gets in all.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TenantTotal {
    /// The tenant.
    pub tenant: TenantName,
    /// The blocks that it demands on all hosts.
    pub demand_blocks: u64,
    /// The blocks that it gets on all hosts.
    pub blocks: u64,
    /// The part of its reservation that it demands and does not get: the hosts that it demands it on are too small.
    pub missing_blocks: u64,
}

/// Tenants' shares.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Division {
    /// The share of each tenant with a demand on a host, sorted by host, then tenant.
    pub shares: Vec<HostShare>,
    /// All tenants, sorted by name.
    pub totals: Vec<TenantTotal>,
}

/// Returns what the snapshot's VMs demand, summed by tenant and host. Hosts that are away are left out.
pub fn demands(snapshot: &Snapshot) -> Vec<Demand> {
    let _ = snapshot;
    Vec::new()
}

/// Divides the caches of hosts, given with their blocks, among tenants.
///
/// # Errors
/// Names appear twice or are unknown, a weight is not above 0, or a limit is below its reservation.
pub fn divide(
    hosts: &[(HostName, u64)],
    tenants: &[Tenant],
    demands: &[Demand],
    chunk_blocks: u64,
) -> Result<Division, ClusterError> {
    let _ = (hosts, tenants, demands, chunk_blocks);
    Ok(Division::default())
}
