//! What this host reports of itself.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Instant;

use haversack_api::{DiskState, DiskStatus, JobKind, Latency, PoolState, ReplicaState};
use haversack_cluster::outline;
use haversack_directory::{DiskRecord, HostRecord, Load, PoolRecord, Report, VmNeeds, Worth};
use haversack_engine::MoveStatus;
use haversack_model::{BLOCK_BYTES, DiskId, HostId};
use haversack_policy::Curve;

use super::config::ClusterConfig;
use super::loans;
use crate::daemon::{Daemon, Disk};
use crate::error::Result;
use crate::hosts::Hosts;
use crate::settings;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Points of a curve that are reported.
const MOST_POINTS: usize = 16;

/// Makes reports. It remembers what disks had counted at the last one.
pub struct Reporter {
    instance: u64,
    name: String,
    every_s: f64,
    link_bytes_per_s: Option<u64>,
    memory_bytes: Option<u64>,
    processors: Option<u32>,
    /// What VMs need, by name.
    needs: HashMap<String, VmNeeds>,
    reports: u64,
    at: Instant,
    counted: HashMap<String, Counted>,
}

impl Reporter {
    /// Makes a reporter of a host.
    pub fn new(name: &str, instance: u64, config: &ClusterConfig, link_bytes_per_s: Option<u64>) -> Reporter {
        Reporter {
            instance,
            name: name.into(),
            every_s: config.report_every.0.as_secs_f64(),
            link_bytes_per_s,
            memory_bytes: config.memory.map(|memory| memory.0),
            processors: config.processors,
            needs: config.needs(),
            reports: 0,
            at: Instant::now(),
            counted: HashMap::new(),
        }
    }

    /// Returns this host's report; `limits` are the tenants' maximums in its pools, by pool.
    pub fn report(&mut self, daemon: &Daemon, limits: &BTreeMap<String, BTreeMap<String, u64>>) -> Report {
        let passed_s = self.at.elapsed().as_secs_f64().max(1e-3);
        self.at = Instant::now();
        self.reports += 1;
        let hosts = daemon.hosts();
        let status = daemon.status();
        let (mut disks, mut other_disks) = (BTreeMap::new(), BTreeSet::new());
        let mut counted = HashMap::new();
        for disk in &status.disks {
            // Disks that only a pool knows have no name to be found by.
            let Some(config) = &disk.config else { continue };
            let Ok(id) = settings::disk_id(config) else { continue };
            let now = Counted::of(disk);
            let before = self.counted.get(&disk.id).copied();
            counted.insert(disk.id.clone(), now);
            let load = before.map_or_else(Load::default, |before| now.since(before, passed_s));
            match place(daemon, hosts.as_deref(), disk, id) {
                Some(place) => {
                    let record = self.record(daemon, disk, place, load);
                    disks.insert(disk.id.clone(), record);
                }
                None => drop(other_disks.insert(disk.id.clone())),
            }
        }
        self.counted = counted;
        let (mut pools, mut closed_pools) = (BTreeMap::new(), BTreeSet::new());
        for pool in &status.pools {
            if matches!(pool.state, PoolState::Failed | PoolState::Stopped) {
                closed_pools.insert(pool.name.clone());
            }
            let there = || disks.values().filter(|disk| disk.pool == pool.name);
            let record = PoolRecord {
                state: pool.state.to_string(),
                capacity_bytes: pool.capacity_bytes,
                demand_bytes: there().map(|disk| disk.demand_bytes).sum(),
                usage_bytes: pool.usage_bytes,
                dirty_bytes: pool.dirty_bytes,
                load: sum(there().map(|disk| &disk.load)),
                tenant_limits: limits.get(&pool.name).cloned().unwrap_or_default(),
            };
            pools.insert(pool.name.clone(), record);
        }
        let host = HostRecord {
            instance: self.instance,
            reports: self.reports,
            report_every_s: self.every_s,
            software: env!("CARGO_PKG_VERSION").into(),
            reaches: hosts.iter().flat_map(|hosts| hosts.reachable()).collect(),
            moves_disks: hosts.is_some(),
            link_bytes_per_s: self.link_bytes_per_s,
            memory_bytes: self.memory_bytes,
            processors: self.processors,
            lends: hosts.as_deref().and_then(|hosts| loans::lends(daemon, hosts)),
            borrows: hosts.as_deref().and_then(|hosts| loans::borrows(daemon, hosts)),
        };
        Report { host, pools, closed_pools, disks, other_disks }
    }

    fn record(&self, daemon: &Daemon, disk: &DiskStatus, place: Place, load: Load) -> DiskRecord {
        let config = disk.config.as_ref();
        let usage = disk.usage.usage_bytes;
        let vm = config.and_then(|config| config.vm.as_ref());
        DiskRecord {
            name: disk.name.clone(),
            vm: vm.cloned(),
            tenant: config.and_then(|config| config.tenant.clone()),
            host: self.name.clone(),
            epoch: place.epoch,
            pool: disk.pool.clone(),
            state: disk.state.to_string(),
            can_move: place.can_move,
            vm_needs: self.needs.get(vm.unwrap_or(&disk.name)).cloned().unwrap_or_default(),
            size_bytes: disk.size_bytes,
            demand_bytes: match (&disk.policy, &disk.measured) {
                (Some(policy), Some(_)) => policy.demand_bytes.min(disk.size_bytes),
                // No window has ended yet: the disk can use at least what it uses now.
                _ => usage,
            },
            usage_bytes: usage,
            dirty_bytes: disk.usage.dirty_bytes,
            clients: disk.clients,
            moving_to: place.moving_to,
            replica_at: disk.replica.as_ref().map(|replica| replica.host.clone()),
            is_replicated: disk
                .replica
                .as_ref()
                .is_some_and(|replica| replica.state == ReplicaState::Complete),
            load,
            worth: worth(daemon, disk),
        }
    }
}

/// What is on record of a disk that this host owns.
struct Place {
    epoch: u64,
    can_move: bool,
    moving_to: Option<String>,
}

/// Returns none if this host does not own the disk, or does not know.
fn place(daemon: &Daemon, hosts: Option<&Hosts>, disk: &DiskStatus, id: DiskId) -> Option<Place> {
    let stays = Place { epoch: 0, can_move: false, moving_to: None };
    // Disks of a host that knows no others are its own.
    let Some(hosts) = hosts else { return Some(stays) };
    if matches!(disk.state, DiskState::Attaching | DiskState::Waiting) {
        return None;
    }
    let backend = &daemon.pool(&disk.pool).ok()?.backend;
    let status: Option<MoveStatus> = backend.migration_status(id).ok()?;
    match (daemon.owned_epoch(id), status) {
        (Some(epoch), Some(status)) => Some(Place {
            epoch,
            can_move: true,
            moving_to: moving_to(daemon, hosts, &disk.name, id, &status),
        }),
        // The disk is detached, and this host still owns it.
        (Some(epoch), None) => Some(Place { epoch, ..stays }),
        // The disk does not move.
        (None, None) if disk.state == DiskState::Attached => Some(stays),
        (None, _) => None,
    }
}

/// Returns the host to which a disk of this host is moving. A disk that has been sent completely, and that neither a
/// migration nor the balancer is moving, is not on its way: it only waits at the other host, unless a hypervisor has opened
/// it there. Then its VM may run there, idle.
fn moving_to(daemon: &Daemon, hosts: &Hosts, name: &str, id: DiskId, status: &MoveStatus) -> Option<String> {
    let to_host = status.to?;
    let to = hosts.name_of(to_host);
    let is_moved = hosts.may_be_at(id, to_host)
        || daemon.jobs.is_running(JobKind::Migrate, name)
        || daemon.cluster().is_some_and(|cluster| cluster.proposed.is_moved_to(id, &to));
    Some(to).filter(|_| !status.is_ready || is_moved)
}

/// Returns the host to which this host sends a disk, even if all of the cache has been sent and only changes follow.
///
/// # Errors
/// The pool does not answer.
pub(super) fn sent_to(daemon: &Daemon, disk: &Disk) -> Result<Option<HostId>> {
    if daemon.owned_epoch(disk.id).is_none() {
        return Ok(None);
    }
    let status = daemon.pool(&disk.config().pool)?.backend.migration_status(disk.id)?;
    Ok(status.and_then(|status: MoveStatus| status.to))
}

fn worth(daemon: &Daemon, disk: &DiskStatus) -> Worth {
    let config = disk.config.as_ref();
    let window = daemon.with_policy(|policy| policy.last_window(&disk.pool, &disk.name)).unwrap_or_default();
    let window = window.as_ref();
    let measured_us = |latency: Latency| (latency.count > 0).then_some(latency.mean_us);
    let origin_us = window.and_then(|window| window.origin_latency_us);
    Worth {
        reservation_bytes: config.map_or(0, |config| config.reservation.0),
        limit_bytes: config.and_then(|config| config.limit).map(|limit| limit.0),
        priority: config.map_or(1.0, |config| config.priority),
        reused_bytes: window.map_or(0, |window| window.reused_blocks * BLOCK).min(disk.usage.usage_bytes),
        curve: window.map(|window| corners(&window.trd)).unwrap_or_default(),
        origin_latency_us: origin_us.or(measured_us(disk.origin_latency.read)).unwrap_or(0.0).round(),
        cache_latency_us: window.and_then(|window| window.cache_latency_us).unwrap_or(0.0).round(),
    }
}

/// Returns the corners of a curve that matter to the balancer.
fn corners(curve: &Curve) -> Vec<(u64, f64)> {
    let few = outline(curve, MOST_POINTS);
    few.points().iter().map(|(blocks, ratio)| (blocks * BLOCK, *ratio)).collect()
}

/// What a disk has counted since it was attached.
#[derive(Clone, Copy, Default)]
struct Counted {
    requests: u64,
    bytes: u64,
    origin_bytes: u64,
    flash_bytes: u64,
    read_hits: u64,
    read_misses: u64,
    latency_us: f64,
}

impl Counted {
    fn of(disk: &DiskStatus) -> Counted {
        let (requests, blocks) = (&disk.requests, &disk.blocks);
        let latencies = [disk.vhost_user_latency, disk.nbd_latency];
        let latencies = latencies.iter().flat_map(|kinds| [kinds.read, kinds.write, kinds.flush]);
        Counted {
            requests: requests.reads + requests.writes + requests.flushes + requests.zeroes,
            bytes: blocks.read_bytes + blocks.written_bytes,
            origin_bytes: blocks.origin_read_bytes + blocks.origin_written_bytes + blocks.cleaned_bytes,
            flash_bytes: blocks.flash.total_bytes(),
            read_hits: requests.read_hits,
            read_misses: requests.read_misses,
            latency_us: latencies.map(|latency| latency.count as f64 * latency.mean_us).sum(),
        }
    }

    /// Returns the rates since `before`. The counters of a disk that was attached again have restarted at 0.
    fn since(self, before: Counted, passed_s: f64) -> Load {
        let before = if self.requests < before.requests { Counted::default() } else { before };
        let rate = |now: u64, before: u64| (now.saturating_sub(before) as f64 / passed_s).round();
        let requests = self.requests.saturating_sub(before.requests);
        let latency_us = (self.latency_us - before.latency_us).max(0.0) / requests.max(1) as f64;
        Load {
            requests_per_s: rate(self.requests, before.requests),
            bytes_per_s: rate(self.bytes, before.bytes),
            origin_bytes_per_s: rate(self.origin_bytes, before.origin_bytes),
            flash_bytes_per_s: rate(self.flash_bytes, before.flash_bytes),
            read_hits_per_s: rate(self.read_hits, before.read_hits),
            read_misses_per_s: rate(self.read_misses, before.read_misses),
            latency_us: latency_us.round(),
        }
    }
}

fn sum<'a>(loads: impl Iterator<Item = &'a Load>) -> Load {
    let mut all = loads.fold(Load::default(), |sum, load| Load {
        requests_per_s: sum.requests_per_s + load.requests_per_s,
        bytes_per_s: sum.bytes_per_s + load.bytes_per_s,
        origin_bytes_per_s: sum.origin_bytes_per_s + load.origin_bytes_per_s,
        flash_bytes_per_s: sum.flash_bytes_per_s + load.flash_bytes_per_s,
        read_hits_per_s: sum.read_hits_per_s + load.read_hits_per_s,
        read_misses_per_s: sum.read_misses_per_s + load.read_misses_per_s,
        latency_us: sum.latency_us + load.latency_us * load.requests_per_s,
    });
    all.latency_us = (all.latency_us / all.requests_per_s.max(1.0)).round();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_what_was_counted_since() {
        let before = Counted { requests: 100, bytes: 1000, latency_us: 500.0, ..Counted::default() };
        let now = Counted { requests: 300, bytes: 5000, latency_us: 20_500.0, ..Counted::default() };
        let load = now.since(before, 2.0);
        assert_eq!((load.requests_per_s, load.bytes_per_s, load.latency_us), (100.0, 2000.0, 100.0));
        // The disk was attached again.
        let load = Counted { requests: 50, bytes: 100, ..Counted::default() }.since(before, 2.0);
        assert_eq!((load.requests_per_s, load.bytes_per_s), (25.0, 50.0));
        assert_eq!(before.since(before, 2.0), Load::default());
    }

    #[test]
    fn a_pools_latency_is_the_mean_of_its_requests() {
        let load = |requests_per_s, latency_us| Load { requests_per_s, latency_us, ..Load::default() };
        let all = sum([load(90.0, 100.0), load(10.0, 1100.0), load(0.0, 0.0)].iter());
        assert_eq!((all.requests_per_s, all.latency_us), (100.0, 200.0));
        assert_eq!(sum([].iter()), Load::default());
    }

    #[test]
    fn a_reported_curve_has_few_points_in_bytes() {
        let curve = Curve::estimated((1..=100).map(|block| (block, (block as f64 / 100.0).sqrt())));
        let chosen = corners(&curve);
        assert!(chosen.len() <= MOST_POINTS && chosen.is_sorted_by(|a, b| a.0 < b.0), "{chosen:?}");
        assert_eq!(chosen.last(), Some(&(100 * BLOCK, 1.0)));
        assert!(corners(&Curve::default()).is_empty());
    }
}
