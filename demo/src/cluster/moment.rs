//! What is known of the cluster at a moment, and what happened between two.

use std::collections::BTreeMap;
use std::time::Instant;

use haversack_api::{ClusterStatus, DiskStatus, Status};

use super::table::{Figures, HostFigures, VmFigures};

/// See the module.
#[derive(Debug, Clone)]
pub struct Moment {
    /// When.
    pub at: Instant,
    /// What the VMs of each host demand, as a part of its cache.
    pub loads: Vec<f64>,
    /// A move is planned or under way.
    pub is_moving: bool,
    hosts: Vec<String>,
    vms: BTreeMap<String, Counted>,
}

/// What the daemon that has a VM's disk has counted.
#[derive(Debug, Clone, Default, PartialEq)]
struct Counted {
    host: String,
    demand_bytes: u64,
    hits: u64,
    misses: u64,
    requests: u64,
    latency_us: f64,
}

impl Moment {
    /// Takes what the cluster and its daemons say; these are in the order of their `hosts`.
    pub fn new(at: Instant, hosts: &[&str], cluster: &ClusterStatus, daemons: &[Status]) -> Self {
        let load = |name: &&str| {
            let pools = cluster.hosts.iter().filter(|host| host.name == **name).flat_map(|host| &host.pools);
            let (demand, capacity) = pools.fold((0, 0), |(demand, capacity), pool| {
                (demand + pool.demand_bytes, capacity + pool.capacity_bytes)
            });
            demand as f64 / capacity.max(1) as f64
        };
        let vms = cluster.disks.iter().filter_map(|disk| {
            let number = hosts.iter().position(|host| *host == disk.host)?;
            let counted = daemons[number].disks.iter().find(|status| status.name == disk.name)?;
            let counted =
                Counted { host: disk.host.clone(), demand_bytes: disk.demand_bytes, ..Counted::of(counted) };
            Some((disk.name.clone(), counted))
        });
        Self {
            at,
            loads: hosts.iter().map(load).collect(),
            is_moving: !cluster.moves.is_empty(),
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            vms: vms.collect(),
        }
    }

    /// What has happened since an earlier moment.
    pub fn since(&self, before: &Self) -> Figures {
        let seconds = (self.at - before.at).as_secs_f64().max(1e-3);
        let hosts = self.hosts.iter().zip(&self.loads).map(|(host, load)| HostFigures {
            name: host.clone(),
            load: *load,
            vms: self.vms.iter().filter(|(_, vm)| vm.host == *host).map(|(name, _)| name.clone()).collect(),
        });
        let vms = self.vms.iter().map(|(name, now)| {
            // Another daemon has counted before, or one that was started again.
            let then =
                before.vms.get(name).filter(|then| then.host == now.host && then.requests <= now.requests);
            let then = then.cloned().unwrap_or_default();
            let (hits, misses) = (now.hits.saturating_sub(then.hits), now.misses.saturating_sub(then.misses));
            let requests = now.requests - then.requests;
            VmFigures {
                name: name.clone(),
                host: now.host.clone(),
                demand_bytes: now.demand_bytes,
                hits: (hits + misses > 0).then(|| hits as f64 / (hits + misses) as f64),
                latency_us: (requests > 0).then(|| (now.latency_us - then.latency_us) / requests as f64),
                requests_per_s: requests as f64 / seconds,
            }
        });
        Figures { hosts: hosts.collect(), vms: vms.collect() }
    }
}

impl Counted {
    fn of(disk: &DiskStatus) -> Self {
        let latencies = [disk.vhost_user_latency, disk.nbd_latency];
        let answered = latencies.iter().flat_map(|kinds| [kinds.read, kinds.write]);
        Self {
            host: String::new(),
            demand_bytes: 0,
            hits: disk.requests.read_hits,
            misses: disk.requests.read_misses,
            requests: answered.clone().map(|latency| latency.count).sum(),
            latency_us: answered.map(|latency| latency.count as f64 * latency.mean_us).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn counted(host: &str, hits: u64, misses: u64, latency_us: f64) -> Counted {
        let requests = hits + misses;
        Counted { host: host.into(), demand_bytes: 1 << 20, hits, misses, requests, latency_us }
    }

    fn moment(at: Instant, vm1: Counted) -> Moment {
        Moment {
            at,
            loads: vec![1.5, 0.25],
            is_moving: false,
            hosts: vec!["alpha".into(), "beta".into()],
            vms: BTreeMap::from([("vm1".into(), vm1)]),
        }
    }

    #[test]
    fn figures_are_of_what_was_counted_between() {
        let start = Instant::now();
        let before = moment(start, counted("alpha", 100, 100, 400_000.0));
        let now = moment(start + Duration::from_secs(4), counted("alpha", 400, 200, 600_000.0));
        let figures = now.since(&before);
        let [vm] = &figures.vms[..] else { panic!("{figures:?}") };
        assert_eq!((vm.hits, vm.latency_us, vm.requests_per_s), (Some(0.75), Some(500.0), 100.0));
        assert_eq!(figures.hosts[0].vms, ["vm1"]);
        assert!(figures.hosts[1].vms.is_empty());
    }

    #[test]
    fn what_another_daemon_has_counted_does_not_count() {
        let start = Instant::now();
        let before = moment(start, counted("alpha", 100, 100, 400_000.0));
        let now = moment(start + Duration::from_secs(1), counted("beta", 30, 10, 40_000.0));
        let figures = now.since(&before);
        assert_eq!((figures.vms[0].hits, figures.vms[0].latency_us), (Some(0.75), Some(1000.0)));
        assert_eq!(figures.hosts[1].vms, ["vm1"]);
    }
}
