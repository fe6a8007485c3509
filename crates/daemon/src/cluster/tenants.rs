//! The tenants' parts of this host's pools: computed from the view, as on every other host, and passed to the policy.
//!
//! Invariants
//! - Nothing is computed while etcd is away: the bounds that the policy was last given stay in effect, even after a
//!   restart.
//! - This host never takes more of a tenant's limit than the other hosts leave, according to their reports. So a limit
//!   holds while hosts change their parts one after the other.
//! - If operators have set no tenants, the policy gets no bounds.

use std::collections::BTreeMap;

use haversack_cluster::{Bounds, ClusterError, HostName, Parts, TenantName, Users, parts};
use haversack_control::NO_TENANT;
use haversack_directory::{TenantRecord, View};
use haversack_model::BLOCK_BYTES;
use haversack_moves::snapshot;
use haversack_policy::TenantBounds;

use super::Cluster;
use crate::daemon::Daemon;
use crate::pool::Pool;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// The unit in which caches are divided among tenants: 1 MiB.
const CHUNK_BLOCKS: u64 = (1 << 20) / BLOCK;

/// The name of a pool in the division, with its host: hosts may have several pools.
fn cache_name(host: &str, pool: &str) -> HostName {
    HostName(format!("{host}/{pool}"))
}

/// Returns each tenant's part of each pool of the hosts that are alive.
///
/// # Errors
/// No view causes an error.
pub fn parts_of(view: &View) -> Result<Parts, ClusterError> {
    let is_there = |host: &str| view.hosts.contains_key(host);
    let there = view.pools.iter().filter(|((host, _), _)| is_there(host));
    let caches: Vec<_> = there
        .map(|((host, pool), seen)| (cache_name(host, pool), seen.record.capacity_bytes / BLOCK))
        .collect();
    let mut users: BTreeMap<(HostName, TenantName), Users> = BTreeMap::new();
    let mut held: BTreeMap<TenantName, u64> = BTreeMap::new();
    for seen in view.disks.values() {
        let disk = &seen.record;
        let tenant = TenantName(disk.tenant.clone().unwrap_or_default());
        let pool = view.pools.get(&(disk.host.clone(), disk.pool.clone()));
        if pool.is_some() && is_there(&disk.host) {
            let users = users.entry((cache_name(&disk.host, &disk.pool), tenant)).or_default();
            users.disks += 1;
            users.demand_blocks = users.demand_blocks.saturating_add(disk.demand_bytes / BLOCK);
        } else if pool.is_none_or(|pool| !pool.record.tenant_limits.contains_key(&tenant.0)) {
            let blocks = held.entry(tenant).or_default();
            *blocks = blocks.saturating_add(disk.usage_bytes / BLOCK);
        }
    }
    for (_, seen) in view.pools.iter().filter(|((host, _), _)| !is_there(host)) {
        for (tenant, bytes) in &seen.record.tenant_limits {
            let blocks = held.entry(TenantName(tenant.clone())).or_default();
            *blocks = blocks.saturating_add(bytes / BLOCK);
        }
    }
    parts(&caches, &snapshot::tenants(view), &users, &held, CHUNK_BLOCKS)
}

/// The bounds in this host's pools, by pool and tenant.
type Here = BTreeMap<String, BTreeMap<String, Bounds>>;

/// See the module.
#[derive(Default)]
pub struct Tenants {
    is_due: bool,
    /// What was computed last.
    computed: Here,
    /// The settings and the users of this host's pools from which `computed` was made.
    settings: BTreeMap<String, TenantRecord>,
    users: BTreeMap<(String, String), u64>,
    /// What the policy was given last; `None` if this daemon has not given it anything.
    told: Option<Here>,
}

impl Tenants {
    /// A window has ended: everything is to be computed again.
    pub fn end_window(&mut self) {
        self.is_due = true;
    }

    /// Computes the tenants' bounds if a window has ended or settings or users have changed, and tells the policy.
    pub fn look(&mut self, daemon: &Daemon, cluster: &Cluster) {
        let (view, me) = (cluster.directory.view(), cluster.directory.name());
        // A host that the others do not know yet has no part.
        if !cluster.is_current() || !view.hosts.contains_key(me) {
            return;
        }
        let settings: BTreeMap<_, _> =
            view.tenants.iter().map(|(name, seen)| (name.clone(), seen.record.clone())).collect();
        let users = users_of(&view, me);
        let is_due = std::mem::take(&mut self.is_due);
        if is_due || self.told.is_none() || settings != self.settings || users != self.users {
            self.computed = if settings.is_empty() { Here::new() } else { here(&view, me) };
            (self.settings, self.users) = (settings, users);
        }
        let mut now = self.computed.clone();
        clip(&mut now, &view, me);
        // Tell the policy each time: a pool that was opened later still has the bounds of its decision log.
        // Unchanged bounds cost nothing.
        tell(daemon, &now);
        self.told = Some(now);
    }

    /// Returns the tenants' maximums in bytes, by pool and tenant. Until this daemon has passed bounds to the
    /// policy, these are the ones from before the restart.
    pub fn limits(&self, daemon: &Daemon) -> BTreeMap<String, BTreeMap<String, u64>> {
        let limit = |tenant: &str, most_blocks: Option<u64>| {
            Some((tenant.to_owned(), most_blocks?.saturating_mul(BLOCK)))
        };
        if let Some(told) = &self.told {
            let limits = |tenants: &BTreeMap<String, Bounds>| {
                tenants.iter().filter_map(|(tenant, bounds)| limit(tenant, bounds.most_blocks)).collect()
            };
            return told.iter().map(|(pool, tenants)| (pool.clone(), limits(tenants))).collect();
        }
        let known = |pool: &Pool| {
            let tenants = daemon.with_policy(|policy| policy.tenants(&pool.name)).unwrap_or_default();
            tenants.iter().filter_map(|bounds| limit(tenant_of(bounds), bounds.most_blocks)).collect()
        };
        daemon.pools().map(|pool| (pool.name.clone(), known(pool))).collect()
    }
}

/// Returns how many disks of each tenant each of a host's pools has.
fn users_of(view: &View, me: &str) -> BTreeMap<(String, String), u64> {
    let mut users = BTreeMap::new();
    for disk in view.disks.values().map(|seen| &seen.record).filter(|disk| disk.host == me) {
        *users.entry((disk.pool.clone(), disk.tenant.clone().unwrap_or_default())).or_default() += 1;
    }
    users
}

fn here(view: &View, me: &str) -> Here {
    let parts = match parts_of(view) {
        Ok(parts) => parts,
        Err(error) => {
            tracing::warn!("the caches cannot be divided among tenants: {error}");
            return Here::new();
        }
    };
    let mut here = Here::new();
    for (_, pool) in view.pools.keys().filter(|(host, _)| host == me) {
        let cache = cache_name(me, pool);
        let of_cache = parts.bounds.range((cache.clone(), TenantName::default())..);
        let of_cache = of_cache.take_while(|((name, _), _)| *name == cache);
        here.insert(
            pool.clone(),
            of_cache.map(|((_, tenant), bounds)| (tenant.0.clone(), *bounds)).collect(),
        );
    }
    here
}

/// Lowers each tenant's limit on this host to the tenant's limit in the cluster minus the limits that other hosts have
/// reported. Hosts that are away count, too.
fn clip(here: &mut Here, view: &View, me: &str) {
    let mut left: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, seen) in &view.tenants {
        if let Some(limit) = seen.record.limit_bytes {
            left.insert(name, limit / BLOCK);
        }
    }
    let others = view.pools.iter().filter(|((host, _), _)| host != me);
    for (tenant, bytes) in others.flat_map(|(_, seen)| &seen.record.tenant_limits) {
        if let Some(blocks) = left.get_mut(tenant.as_str()) {
            *blocks = blocks.saturating_sub(bytes / BLOCK);
        }
    }
    for (tenant, bounds) in here.values_mut().flatten() {
        if let (Some(most), Some(left)) = (bounds.most_blocks.as_mut(), left.get_mut(tenant.as_str())) {
            *most = (*most).min(*left);
            *left -= *most;
            bounds.least_blocks = bounds.least_blocks.min(*most);
        }
    }
}

/// Returns the tenant's name in the directory: disks without a tenant belong to one with an empty name.
fn tenant_of(bounds: &TenantBounds) -> &str {
    if bounds.tenant == NO_TENANT { "" } else { &bounds.tenant }
}

fn tell(daemon: &Daemon, here: &Here) {
    for pool in daemon.pools() {
        let tenants = here.get(&pool.name);
        let bounds = |(tenant, bounds): (&String, &Bounds)| TenantBounds {
            tenant: if tenant.is_empty() { NO_TENANT.into() } else { tenant.clone() },
            least_blocks: bounds.least_blocks,
            most_blocks: bounds.most_blocks,
        };
        let mut bounds: Vec<TenantBounds> = tenants.into_iter().flatten().map(bounds).collect();
        // A tenant may have the same name as the policy's group of disks without one: the tenant gets its part, and
        // those disks get the rest.
        bounds.sort_by(|a, b| (&a.tenant, b.most_blocks).cmp(&(&b.tenant, a.most_blocks)));
        bounds.dedup_by(|later, first| later.tenant == first.tenant);
        if let Err(error) = daemon.with_policy(|policy| policy.set_tenants(&pool.name, &bounds)) {
            tracing::debug!(pool = pool.name, "the policy did not get the tenants' parts: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use haversack_directory::{Seen, TenantRecord};

    use super::*;
    use haversack_moves::samples::{add_disk, add_host, seen};

    /// A view of two hosts: each has a disk of `shop` that demands 10 blocks, and alpha also has one of `lab`.
    fn view(limit_bytes: Option<u64>) -> View {
        let mut view = View::default();
        add_host(&mut view, "alpha", true);
        add_host(&mut view, "beta", true);
        add_disk(&mut view, "1", "vm1", None, "alpha");
        add_disk(&mut view, "2", "vm2", None, "beta");
        add_disk(&mut view, "3", "vm3", None, "alpha");
        view.disks.get_mut("3").unwrap().record.tenant = Some("lab".into());
        let record = TenantRecord { weight: 1.0, reservation_bytes: 0, limit_bytes };
        view.tenants.insert("shop".into(), seen(record));
        view
    }

    fn most(view: &View, host: &str) -> Option<u64> {
        here(view, host)["a"]["shop"].most_blocks
    }

    #[test]
    fn a_tenants_limit_is_divided_over_hosts_and_those_away_keep_theirs() {
        let mut view = view(Some(12 * BLOCK));
        assert_eq!((most(&view, "alpha"), most(&view, "beta")), (Some(6), Some(6)));
        assert_eq!(here(&view, "alpha")["a"]["lab"], Bounds { least_blocks: 10, most_blocks: None });
        let of_beta = ("beta".to_string(), "a".to_string());
        view.pools.get_mut(&of_beta).unwrap().record.tenant_limits =
            BTreeMap::from([("shop".into(), 7 * BLOCK)]);
        view.hosts.remove("beta");
        assert_eq!(most(&view, "alpha"), Some(5));
        // If its host reports no limits, the usage of its disk counts.
        view.pools.get_mut(&of_beta).unwrap().record.tenant_limits.clear();
        assert_eq!(most(&view, "alpha"), Some(12 - 8));
    }

    #[test]
    fn nobody_takes_of_a_limit_what_others_have_not_given_up_yet() {
        let mut view = view(Some(12 * BLOCK));
        let pool: &mut Seen<_> = view.pools.get_mut(&("beta".into(), "a".into())).unwrap();
        pool.record.tenant_limits = BTreeMap::from([("shop".into(), 10 * BLOCK)]);
        let mut now = here(&view, "alpha");
        clip(&mut now, &view, "alpha");
        let Bounds { least_blocks, most_blocks } = now["a"]["shop"];
        assert!(most_blocks == Some(2) && least_blocks <= 2, "{now:?}");
        // Beta gives up the part that is now alpha's.
        let mut now = here(&view, "beta");
        clip(&mut now, &view, "beta");
        assert_eq!(now["a"]["shop"].most_blocks, Some(6));
    }

    #[test]
    fn odd_settings_and_figures_are_no_reason_to_divide_nothing() {
        let mut view = view(Some(0));
        view.disks.get_mut("1").unwrap().record.demand_bytes = u64::MAX;
        view.disks.get_mut("2").unwrap().record.pool = "gone".into();
        let odd = TenantRecord { weight: f64::NAN, reservation_bytes: u64::MAX, limit_bytes: Some(3) };
        view.tenants.insert("lab".into(), seen(odd));
        let here = here(&view, "alpha");
        assert_eq!(here["a"]["shop"], Bounds { least_blocks: 0, most_blocks: Some(0) });
        assert_eq!(here["a"]["lab"], Bounds { least_blocks: 0, most_blocks: Some(0) });
    }
}
