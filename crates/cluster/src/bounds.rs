//! The minimum and maximum that each tenant has of each cache of the cluster. The hosts' policies enforce them.
//!
//! The minimum is the tenant's max-min share ([`divide`]), given weights and reservations; it is never above
//! the demand. A tenant with a limit also has a maximum: its share, plus a part of what the limit leaves beyond
//! all its shares. That rest is divided by the number of its disks, so that a disk whose demand is not known
//! yet is not left without space.
//!
//! A host that is away keeps what it had last: that is taken from the limits before the others are divided.
//!
//! Invariants
//! - Settings may have any values: they never prevent the division.
//! - The maximums of a tenant's caches, plus what it holds elsewhere, never exceed its limit, unless it already
//!   holds more.
//! - The minimums of all tenants of a cache never exceed the cache.

use std::collections::BTreeMap;

use crate::error::ClusterError;
use crate::snapshot::{HostName, TenantName};
use crate::tenants::{Demand, Division, Tenant, WEIGHTS, divide};

/// Larger reported sizes of a cache are cut to this number of blocks, so that sums never overflow.
const MOST_BLOCKS: u64 = 1 << 44;

/// What a tenant has of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bounds {
    /// The blocks that it gets before others get more than theirs, as far as it demands them.
    pub least_blocks: u64,
    /// The most blocks that it gets; none without a limit.
    pub most_blocks: Option<u64>,
}

/// The tenants' parts of all caches.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Parts {
    /// By cache and tenant, for all tenants with disks there.
    pub bounds: BTreeMap<(HostName, TenantName), Bounds>,
    /// The shares that they come from.
    pub division: Division,
}

/// A tenant's disks at a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Users {
    /// How many there are.
    pub disks: u64,
    /// What they demand together.
    pub demand_blocks: u64,
}

impl Tenant {
    /// Returns settings that make sense: a weight within [`WEIGHTS`], and a reservation within the limit.
    #[must_use]
    pub fn sound(self) -> Tenant {
        let weight = if self.weight.is_finite() { self.weight } else { 1.0 };
        let weight = weight.clamp(*WEIGHTS.start(), *WEIGHTS.end());
        let most = self.limit_blocks.unwrap_or(u64::MAX);
        Tenant { weight, reservation_blocks: self.reservation_blocks.min(most), ..self }
    }
}

/// Divides caches, given with their blocks, among tenants. `users` describes the disks at these caches. `held` lists
/// the blocks that tenants have in caches of absent hosts. A tenant without settings has weight 1.
///
/// # Errors
/// Two caches or two tenants have one name, or a cache is missing.
pub fn parts(
    caches: &[(HostName, u64)],
    tenants: &[Tenant],
    users: &BTreeMap<(HostName, TenantName), Users>,
    held: &BTreeMap<TenantName, u64>,
    chunk_blocks: u64,
) -> Result<Parts, ClusterError> {
    let left = |tenant: &Tenant| {
        let held = held.get(&tenant.name).copied().unwrap_or_default();
        let limit_blocks = tenant.limit_blocks.map(|limit| limit.saturating_sub(held));
        Tenant { limit_blocks, ..tenant.clone() }.sound()
    };
    let mut all: BTreeMap<&TenantName, Tenant> = BTreeMap::new();
    for (_, name) in users.keys() {
        all.entry(name).or_insert_with(|| Tenant {
            name: name.clone(),
            weight: 1.0,
            reservation_blocks: 0,
            limit_blocks: None,
        });
    }
    all.extend(tenants.iter().map(|tenant| (&tenant.name, left(tenant))));
    let all: Vec<Tenant> = all.into_values().collect();
    let caches: Vec<_> =
        caches.iter().map(|(name, blocks)| (name.clone(), *blocks.min(&MOST_BLOCKS))).collect();
    let sizes: BTreeMap<&HostName, u64> = caches.iter().map(|(name, blocks)| (name, *blocks)).collect();
    // Nobody can have more of a cache than there is.
    let demand = |((cache, tenant), users): (&(HostName, TenantName), &Users)| Demand {
        tenant: tenant.clone(),
        host: cache.clone(),
        blocks: users.demand_blocks.min(sizes.get(cache).copied().unwrap_or(MOST_BLOCKS)),
    };
    let division = divide(&caches, &all, &users.iter().map(demand).collect::<Vec<_>>(), chunk_blocks)?;
    let mut bounds: BTreeMap<(HostName, TenantName), Bounds> = BTreeMap::new();
    for share in &division.shares {
        let least = Bounds { least_blocks: share.blocks, most_blocks: None };
        bounds.insert((share.host.clone(), share.tenant.clone()), least);
    }
    limit(&mut bounds, &all, users);
    Ok(Parts { bounds, division })
}

/// Divides what limits leave beyond the shares.
fn limit(
    bounds: &mut BTreeMap<(HostName, TenantName), Bounds>,
    tenants: &[Tenant],
    users: &BTreeMap<(HostName, TenantName), Users>,
) {
    let limits: BTreeMap<&TenantName, u64> =
        tenants.iter().filter_map(|tenant| Some((&tenant.name, tenant.limit_blocks?))).collect();
    let mut sums: BTreeMap<&TenantName, (u128, u64)> = BTreeMap::new();
    for ((cache, tenant), users) in users {
        let (disks, blocks) = sums.entry(tenant).or_default();
        *disks += u128::from(users.disks);
        let share = bounds.get(&(cache.clone(), tenant.clone())).map_or(0, |bounds| bounds.least_blocks);
        *blocks = blocks.saturating_add(share);
    }
    for (key, bounds) in bounds.iter_mut() {
        let (Some(limit), Some((disks, blocks)), Some(here)) =
            (limits.get(&key.1), sums.get(&key.1), users.get(key))
        else {
            continue;
        };
        let left = u128::from(limit.saturating_sub(*blocks));
        // At most what is left, which is 64 bits.
        let part = (left * u128::from(here.disks) / (*disks).max(1)) as u64;
        bounds.most_blocks = Some(bounds.least_blocks + part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str, weight: f64, reservation_blocks: u64, limit_blocks: Option<u64>) -> Tenant {
        Tenant { name: name.into(), weight, reservation_blocks, limit_blocks }
    }

    fn caches(blocks: &[u64]) -> Vec<(HostName, u64)> {
        blocks.iter().enumerate().map(|(at, blocks)| (HostName(format!("h{at}")), *blocks)).collect()
    }

    fn users(all: &[(&str, &str, u64, u64)]) -> BTreeMap<(HostName, TenantName), Users> {
        let of = |(cache, tenant, disks, demand_blocks): &(&str, &str, u64, u64)| {
            (((*cache).into(), (*tenant).into()), Users { disks: *disks, demand_blocks: *demand_blocks })
        };
        all.iter().map(of).collect()
    }

    fn at(parts: &Parts, cache: &str, tenant: &str) -> (u64, Option<u64>) {
        let bounds = parts.bounds[&(cache.into(), tenant.into())];
        (bounds.least_blocks, bounds.most_blocks)
    }

    #[test]
    fn a_limit_holds_over_all_caches_and_goes_where_it_is_demanded() {
        let (caches, none) = (caches(&[1000, 1000]), BTreeMap::new());
        let shop = [tenant("shop", 1.0, 0, Some(600))];
        let both = users(&[("h0", "shop", 1, 900), ("h1", "shop", 1, 900)]);
        let halves = parts(&caches, &shop, &both, &none, 1).unwrap();
        assert_eq!([at(&halves, "h0", "shop"), at(&halves, "h1", "shop")], [(300, Some(300)); 2]);
        // In proportion to the demand on each.
        let one = users(&[("h0", "shop", 1, 900), ("h1", "shop", 1, 50)]);
        let one = parts(&caches, &shop, &one, &none, 1).unwrap();
        assert_eq!([at(&one, "h0", "shop"), at(&one, "h1", "shop")], [(569, Some(569)), (31, Some(31))]);
        // What is left goes to all disks: one of which nothing is known yet gets a part.
        let new = users(&[("h0", "shop", 3, 100), ("h1", "shop", 1, 0)]);
        let new = parts(&caches, &shop, &new, &none, 1).unwrap();
        assert_eq!([at(&new, "h0", "shop"), at(&new, "h1", "shop")], [(100, Some(475)), (0, Some(125))]);
    }

    #[test]
    fn weights_and_reservations_become_the_least() {
        let (caches, none) = (caches(&[1000]), BTreeMap::new());
        let both = users(&[("h0", "a", 1, 5000), ("h0", "b", 9, 5000)]);
        let of = |tenants: &[Tenant]| {
            let parts = parts(&caches, tenants, &both, &none, 1).unwrap();
            [at(&parts, "h0", "a"), at(&parts, "h0", "b")]
        };
        assert_eq!(of(&[tenant("a", 3.0, 0, None)]), [(750, None), (250, None)]);
        assert_eq!(of(&[tenant("a", 1.0, 800, None)]).map(|found| found.0), [800, 200]);
        // What is not demanded is free for others.
        let idle = users(&[("h0", "a", 1, 10), ("h0", "b", 9, 5000)]);
        let idle = parts(&caches, &[tenant("a", 1.0, 800, None)], &idle, &none, 1).unwrap();
        assert_eq!([at(&idle, "h0", "a"), at(&idle, "h0", "b")], [(10, None), (990, None)]);
    }

    #[test]
    fn what_is_held_elsewhere_counts() {
        let shop = [tenant("shop", 1.0, 500, Some(600))];
        let here = users(&[("h0", "shop", 1, 900)]);
        let with = |held: u64| {
            let held = BTreeMap::from([("shop".into(), held)]);
            at(&parts(&caches(&[1000]), &shop, &here, &held, 1).unwrap(), "h0", "shop")
        };
        assert_eq!([with(0), with(200), with(u64::MAX)], [(600, Some(600)), (400, Some(400)), (0, Some(0))]);
    }

    #[test]
    fn odd_settings_divide_all_the_same() {
        let here = users(&[("h0", "a", 1, 900), ("h0", "b", u64::MAX, u64::MAX), ("h0", "", 0, 0)]);
        for weight in [f64::NAN, f64::INFINITY, -1.0, 0.0, 1e300] {
            let odd = [
                tenant("a", weight, u64::MAX, Some(10)),
                tenant("b", weight, u64::MAX, None),
                tenant("gone", weight, 7, Some(u64::MAX)),
            ];
            let parts = parts(&caches(&[1000]), &odd, &here, &BTreeMap::new(), 256).unwrap();
            assert!(at(&parts, "h0", "a").1.is_some_and(|most| most <= 10), "{parts:?}");
            let least: u64 = parts.bounds.values().map(|bounds| bounds.least_blocks).sum();
            assert!(least <= 1000, "{parts:?}");
        }
    }
}
