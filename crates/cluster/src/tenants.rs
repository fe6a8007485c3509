//! Tenants' shares over all hosts: weighted max-min with reservations and limits.
//!
//! A tenant's space on a host is at most what it demands there, and all tenants' together at most the host's cache.
//! Weighted max-min fairness means: no tenant could have more unless another one gave up space that has no more per
//! weight. Which tenants limit each other depends on where they demand space; [`Network`] determines it.
//!
//! First, reservations are met, as far as they are demanded; if hosts are too small for that, in proportion to the
//! reservations. Then all tenants rise from there, in proportion to their weights, up to demand or limit. The totals
//! are exact except for rounding to blocks.
//!
//! Then shares become whole chunks, except those that end at a demand, and those of tenants that would fall below their
//! reservation. That changes a share by less than a chunk.
//!
//! Source: Liu, Ge, Du and Huang, "SSD as a Cloud Cache? Carefully Design about It", 2015, section 4.2, for weights and
//! chunks.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::error::ClusterError;
use crate::flow::{Bounds, Edge, Network};
use crate::snapshot::{HostName, HostState, Snapshot, TenantName};

/// The least number of chunks that a cache has for each of its tenants.
const CHUNKS_A_TENANT: u64 = 4;

/// The weights that a tenant may have.
pub const WEIGHTS: RangeInclusive<f64> = 1e-6..=1e6;

/// A tenant's guarantees, which hold over all hosts together.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Tenant {
    /// Its name.
    pub name: TenantName,
    /// Its weight, one of [`WEIGHTS`].
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
pub struct HostShare {
    /// The host.
    pub host: HostName,
    /// The tenant.
    pub tenant: TenantName,
    /// Blocks; at most the demand.
    pub blocks: u64,
}

/// What a tenant gets in total.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
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
pub struct Division {
    /// The share of each tenant with a demand on a host, sorted by host, then tenant.
    pub shares: Vec<HostShare>,
    /// All tenants, sorted by name.
    pub totals: Vec<TenantTotal>,
}

/// Returns what the snapshot's VMs demand, summed by tenant and host, sorted. A VM that is being moved demands it where
/// it goes. Hosts that are away are left out.
pub fn demands(snapshot: &Snapshot) -> Vec<Demand> {
    let is_away = |host: &crate::Host| host.state == HostState::Away;
    let away: BTreeSet<&HostName> =
        snapshot.hosts.iter().filter(|host| is_away(host)).map(|host| &host.name).collect();
    let mut sums: BTreeMap<(&TenantName, &HostName), u64> = BTreeMap::new();
    for vm in &snapshot.vms {
        let host = vm.moving_to.as_ref().unwrap_or(&vm.host);
        if !away.contains(host) {
            let sum = sums.entry((&vm.tenant, host)).or_default();
            *sum = sum.saturating_add(vm.demand_blocks());
        }
    }
    let demand = |((tenant, host), blocks): ((&TenantName, &HostName), u64)| Demand {
        tenant: tenant.clone(),
        host: host.clone(),
        blocks,
    };
    sums.into_iter().map(demand).collect()
}

/// Divides the caches of hosts, given with their blocks, among tenants. Space that is not demanded is left. The order
/// of hosts, tenants and demands does not matter.
///
/// # Errors
/// Names appear twice or are unknown, a weight is not above 0, or a limit is below its reservation.
pub fn divide(
    hosts: &[(HostName, u64)],
    tenants: &[Tenant],
    demands: &[Demand],
    chunk_blocks: u64,
) -> Result<Division, ClusterError> {
    let mut hosts: Vec<&(HostName, u64)> = hosts.iter().collect();
    hosts.sort();
    let mut tenants: Vec<&Tenant> = tenants.iter().collect();
    tenants.sort_by(|a, b| a.name.cmp(&b.name));
    check(&hosts, &tenants)?;
    let edges = edges(&hosts, &tenants, demands)?;
    let mut wanted = vec![0u64; tenants.len()];
    edges.iter().for_each(|edge| wanted[edge.tenant] = wanted[edge.tenant].saturating_add(edge.demand));
    let capacities = hosts.iter().map(|host| host.1).collect();
    let mut network = Network::new(tenants.len(), capacities, edges);

    let reservations = tenants.iter().zip(&wanted).map(|(tenant, wanted)| Bounds {
        weight: tenant.reservation_blocks as f64,
        least: 0,
        most: tenant.reservation_blocks.min(*wanted),
    });
    let reservations: Vec<Bounds> = reservations.collect();
    let reserved = network.divide(&reservations);
    let missing: Vec<u64> =
        reservations.iter().zip(&reserved).map(|(bounds, reserved)| bounds.most - reserved).collect();
    let bounds = tenants.iter().zip(&wanted).zip(reserved).map(|((tenant, wanted), reserved)| Bounds {
        weight: tenant.weight,
        least: reserved,
        most: tenant.limit_blocks.unwrap_or(u64::MAX).min(*wanted),
    });
    let mut got = network.divide(&bounds.collect::<Vec<_>>());
    to_chunks(&mut network.edges, &mut got, &hosts, &tenants, chunk_blocks);

    let share = |edge: &Edge| HostShare {
        host: hosts[edge.host].0.clone(),
        tenant: tenants[edge.tenant].name.clone(),
        blocks: edge.got,
    };
    let total = |(at, tenant): (usize, &&Tenant)| TenantTotal {
        tenant: tenant.name.clone(),
        demand_blocks: wanted[at],
        blocks: got[at],
        missing_blocks: missing[at],
    };
    let shares = network.edges.iter().map(share).collect();
    Ok(Division { shares, totals: tenants.iter().enumerate().map(total).collect() })
}

fn check(hosts: &[&(HostName, u64)], tenants: &[&Tenant]) -> Result<(), ClusterError> {
    if let Some([first, _]) = hosts.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(ClusterError::TwiceThere { kind: "host", name: first.0.to_string() });
    }
    if let Some([first, _]) = tenants.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(ClusterError::TwiceThere { kind: "tenant", name: first.name.to_string() });
    }
    for tenant in tenants {
        let bad = |what, found: String, expected: String| ClusterError::BadTenant {
            tenant: tenant.name.to_string(),
            what,
            found,
            expected,
        };
        if !WEIGHTS.contains(&tenant.weight) {
            return Err(bad(
                "its weight",
                tenant.weight.to_string(),
                "a number from 0.000001 to a million".into(),
            ));
        }
        if let Some(limit) = tenant.limit_blocks
            && limit < tenant.reservation_blocks
        {
            let expected = format!("at least its reservation of {} blocks", tenant.reservation_blocks);
            return Err(bad("its limit", format!("{limit} blocks"), expected));
        }
    }
    Ok(())
}

/// Returns the demands, sorted by host, then tenant.
fn edges(
    hosts: &[&(HostName, u64)],
    tenants: &[&Tenant],
    demands: &[Demand],
) -> Result<Vec<Edge>, ClusterError> {
    let numbers: HashMap<&HostName, usize> =
        hosts.iter().enumerate().map(|(number, host)| (&host.0, number)).collect();
    let mut edges = Vec::with_capacity(demands.len());
    for demand in demands {
        let host = *numbers.get(&demand.host).ok_or_else(|| ClusterError::UnknownHost {
            what: format!("a demand of tenant '{}'", demand.tenant),
            host: demand.host.to_string(),
        })?;
        let tenant = tenants.binary_search_by(|tenant| tenant.name.cmp(&demand.tenant)).map_err(|_| {
            ClusterError::UnknownTenant { tenant: demand.tenant.to_string(), host: demand.host.to_string() }
        })?;
        edges.push(Edge { tenant, host, demand: demand.blocks, got: 0 });
    }
    edges.sort_by_key(|edge| (edge.host, edge.tenant));
    let same = |pair: &&[Edge]| (pair[0].host, pair[0].tenant) == (pair[1].host, pair[1].tenant);
    if let Some([first, _]) = edges.windows(2).find(same) {
        let name = format!("{} on {}", tenants[first.tenant].name, hosts[first.host].0);
        return Err(ClusterError::TwiceThere { kind: "demand", name });
    }
    Ok(edges)
}

/// Rounds shares to whole chunks. The blocks that this frees on a host go, chunk by chunk, to the tenants of the host
/// that have lost the most on all hosts so far. In a cache of few chunks, the chunks are smaller, so that no share is
/// rounded to zero.
fn to_chunks(
    all: &mut [Edge],
    got: &mut [u64],
    hosts: &[&(HostName, u64)],
    tenants: &[&Tenant],
    chunk_blocks: u64,
) {
    let mut chunks = vec![chunk_blocks.max(1); hosts.len()];
    for edges in all.chunk_by(|a, b| a.host == b.host) {
        let host = edges[0].host;
        let smallest = hosts[host].1 / (CHUNKS_A_TENANT * edges.len() as u64);
        chunks[host] = chunks[host].min(smallest).max(1);
    }
    let lost = |edge: &Edge| if edge.got < edge.demand { edge.got % chunks[edge.host] } else { 0 };
    let mut after = got.to_vec();
    all.iter().for_each(|edge| after[edge.tenant] -= lost(edge));
    let is_rounded: Vec<bool> =
        tenants.iter().zip(&after).map(|(tenant, after)| *after >= tenant.reservation_blocks).collect();
    // What each tenant has lost so far; below 0 if it has gained.
    let mut debts = vec![0i64; tenants.len()];
    let limited: Vec<bool> = tenants
        .iter()
        .zip(got.iter())
        .map(|(tenant, got)| tenant.limit_blocks.is_some_and(|limit| *got >= limit))
        .collect();
    for edges in all.chunk_by_mut(|a, b| a.host == b.host) {
        let chunk = chunks[edges[0].host];
        let mut freed = 0;
        for edge in edges.iter_mut().filter(|edge| is_rounded[edge.tenant]) {
            let lost = if edge.got < edge.demand { edge.got % chunk } else { 0 };
            edge.got -= lost;
            debts[edge.tenant] += lost as i64;
            freed += lost;
        }
        let mut order: Vec<&mut Edge> = edges.iter_mut().filter(|edge| is_rounded[edge.tenant]).collect();
        order.sort_by_key(|edge| (std::cmp::Reverse(debts[edge.tenant]), edge.tenant));
        for edge in order {
            let debt = &mut debts[edge.tenant];
            let least = if limited[edge.tenant] { chunk as i64 } else { 1 };
            if freed >= chunk && *debt >= least && edge.demand - edge.got >= chunk {
                edge.got += chunk;
                *debt -= chunk as i64;
                freed -= chunk;
            }
        }
    }
    for (got, debt) in got.iter_mut().zip(debts) {
        *got = got.saturating_add_signed(-debt);
    }
}
