//! What the control API tells of the cluster, and what it changes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use haversack_api::{
    ClusterDisk, ClusterHost, ClusterMove, ClusterPlan, ClusterPool, ClusterStatus, DirectoryStatus,
    ForgetHost, HostState, PlannedMove, Size, TenantSettings, TenantStatus,
};
use haversack_cluster::{FlashLoan, Move, Plan, TenantTotal, WEIGHTS};
use haversack_directory::{Conflict, DirectoryError, DrainRecord, Key, Progress, TenantRecord, View};
use haversack_model::BLOCK_BYTES;
use haversack_moves::snapshot;

use super::{Cluster, loans, tenants};
use crate::daemon::Daemon;
use crate::error::{DaemonError, Result};
use crate::locked::Locked;
use crate::settings::check_name;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// The maximum number of disks that an event names, and of keys that a status names.
const MOST_NAMED: usize = 20;

/// Describes a conflict: another host has a better claim to a disk, or this host had a better claim before the disk was
/// attached as a new one.
pub fn conflict(conflict: &Conflict) -> String {
    let Conflict { epoch, host, directory_epoch, .. } = conflict;
    format!(
        "this host owns it under epoch {epoch}, and the directory has it at host '{host}' under epoch {directory_epoch}: see 'haversack \
         migrate status' there; if the disk was attached as a new one since, detach it, and attach it with a higher epoch"
    )
}

impl Daemon {
    /// Returns the state of this host's connection to the directory; none without `[cluster]`.
    pub fn directory_status(&self) -> Option<DirectoryStatus> {
        let cluster = self.cluster()?;
        Some(directory(cluster))
    }

    /// Returns the cluster as this host knows it. It does not wait for etcd.
    ///
    /// # Errors
    /// This host is in no cluster.
    pub fn cluster_status(&self) -> Result<ClusterStatus> {
        let cluster = self.cluster_or_error()?;
        let view = cluster.directory.view();
        let now = Instant::now();
        Ok(ClusterStatus {
            directory: directory(cluster),
            leader: view.leader.as_ref().map(|leader| leader.record.host.clone()),
            hosts: hosts(&view, now),
            disks: disks(&view, now),
            moves: moves(&view, now),
        })
    }

    /// Returns what the balancer proposes.
    ///
    /// # Errors
    /// This host is in no cluster, or what the directory has contradicts itself.
    pub fn cluster_plan(&self) -> Result<ClusterPlan> {
        let cluster = self.cluster_or_error()?;
        let view = cluster.directory.view();
        let (plan, borrowed): (Plan, Vec<FlashLoan>) = cluster
            .plan_with_loans(&view)
            .map_err(|error| DaemonError::conflict(error.to_string(), "see 'haversack cluster status'"))?;
        let vms = plan.moves.iter().map(|moved| (moved.vm.0.as_str(), moved.from.0.as_str()));
        let disks = snapshot::disks_of(&view, vms);
        Ok(ClusterPlan {
            directory: directory(cluster),
            windows: cluster.observed.locked().windows(),
            moves: plan.moves.iter().map(|moved| planned(moved, &disks)).collect(),
            held: plan.held.iter().map(ToString::to_string).collect(),
            loans: borrowed.iter().map(loans::planned).collect(),
            variance_before: plan.variance_before,
            variance_after: plan.variance_after,
        })
    }

    /// Marks a host as draining, or removes the mark.
    ///
    /// # Errors
    /// This host is in no cluster, nobody knows the other one, or etcd cannot be reached.
    pub fn drain_host(&self, host: &str, is_drained: bool) -> Result<()> {
        let cluster = self.cluster_or_error()?;
        check_name(host).map_err(DaemonError::Bad)?;
        let host = host.to_ascii_lowercase();
        let view = cluster.directory.view();
        let is_known = view.hosts.contains_key(&host) || view.away().contains(host.as_str());
        if !is_known && !view.drains.contains_key(&host) {
            return Err(DaemonError::NoSuch { what: "host", name: host });
        }
        let record = DrainRecord { by: cluster.directory.name().into() };
        cluster.directory.set_drain(&host, is_drained.then_some(&record))?;
        let (kind, what) = if is_drained {
            ("host-draining", format!("host '{host}' is draining"))
        } else {
            ("host-serving", format!("host '{host}' accepts VMs again"))
        };
        self.events.add(kind, "daemon", what);
        Ok(())
    }

    /// Removes a permanently dead host, and what it owned, from the directory. Its disks stay where they are: this
    /// gives them to no other host.
    ///
    /// # Errors
    /// It is not confirmed, nobody knows the host, it is alive, or etcd cannot be reached.
    pub fn forget_host(&self, host: &str, forget: &ForgetHost) -> Result<()> {
        let cluster = self.cluster_or_error()?;
        check_name(host).map_err(DaemonError::Bad)?;
        let is_confirmed = forget.confirm == host;
        let host = host.to_ascii_lowercase();
        let is_alive = || {
            DaemonError::conflict(
                format!("host '{host}' is alive"),
                "only a permanently dead host can be forgotten: stop its daemon first",
            )
        };
        let view = cluster.directory.view();
        if view.hosts.contains_key(&host) {
            return Err(is_alive());
        }
        if !view.away().contains(host.as_str()) {
            return Err(DaemonError::NoSuch { what: "host", name: host });
        }
        if !is_confirmed {
            return Err(DaemonError::Bad(format!("confirm must repeat the host's name, '{host}'")));
        }
        let of_it = view.disks.values().filter(|disk| disk.record.host == host);
        let mut disks: Vec<String> = of_it.map(|disk| disk.record.name.clone()).collect();
        drop(view);
        match cluster.directory.forget_host(&host) {
            Err(DirectoryError::Changed { key: Key::Host(_) }) => return Err(is_alive()),
            result => result?,
        }
        let count = disks.len();
        disks.truncate(MOST_NAMED);
        let more = if count > MOST_NAMED { ", ..." } else { "" };
        let what = format!("host '{host}' is forgotten, with {count} disks: {}{more}", disks.join(", "));
        self.events.add(
            "host-forgotten",
            "daemon",
            if count == 0 { format!("host '{host}' is forgotten") } else { what },
        );
        Ok(())
    }

    /// Returns the tenants, and what each would get.
    ///
    /// # Errors
    /// This host is in no cluster.
    pub fn tenants(&self) -> Result<Vec<TenantStatus>> {
        Ok(tenants(&self.cluster_or_error()?.directory.view()))
    }

    /// Sets what a tenant may use.
    ///
    /// # Errors
    /// This host is in no cluster, a setting is invalid, or etcd cannot be reached.
    pub fn set_tenant(&self, name: &str, settings: &TenantSettings) -> Result<()> {
        let cluster = self.cluster_or_error()?;
        check_name(name).map_err(DaemonError::Bad)?;
        if !WEIGHTS.contains(&settings.weight) {
            let (least, most) = (WEIGHTS.start(), WEIGHTS.end());
            return Err(DaemonError::Bad(format!(
                "weight {}: expected a number from {least} to {most}",
                settings.weight
            )));
        }
        if settings.limit.is_some_and(|limit| limit < settings.reservation) {
            return Err(DaemonError::Bad(
                "the limit is below the reservation: raise it, or lower the other".into(),
            ));
        }
        let record = TenantRecord {
            weight: settings.weight,
            reservation_bytes: settings.reservation.0,
            limit_bytes: settings.limit.map(|limit| limit.0),
        };
        Ok(cluster.directory.set_tenant(name, Some(&record))?)
    }

    /// Removes what was set for a tenant.
    ///
    /// # Errors
    /// This host is in no cluster, nothing was set, or etcd cannot be reached.
    pub fn remove_tenant(&self, name: &str) -> Result<()> {
        let cluster = self.cluster_or_error()?;
        check_name(name).map_err(DaemonError::Bad)?;
        if !cluster.directory.view().tenants.contains_key(name) {
            return Err(DaemonError::NoSuch { what: "tenant", name: name.into() });
        }
        Ok(cluster.directory.set_tenant(name, None)?)
    }
}

fn seconds(since: Instant, now: Instant) -> f64 {
    now.saturating_duration_since(since).as_secs_f64()
}

fn directory(cluster: &Cluster) -> DirectoryStatus {
    let (name, status) = (cluster.directory.name(), cluster.directory.status());
    let mut problems = Vec::new();
    if let Some(error) = &status.error {
        problems.push(error.clone());
    }
    if status.is_name_taken {
        problems
            .push(format!("another daemon is in the directory as '{name}': every host needs a unique name"));
    }
    problems.extend(status.conflicts.iter().map(|one| format!("disk '{}': {}", one.disk, conflict(one))));
    problems.extend(unreadable(&cluster.directory.view()));
    DirectoryStatus {
        name: name.into(),
        endpoint: status.endpoint.clone(),
        since_s: status.since.as_secs_f64(),
        age_s: status.age.map(|age| age.as_secs_f64()),
        lease_left_s: status.lease_left.as_ref().map(Duration::as_secs_f64),
        is_reported: status.is_reported,
        problems,
    }
}

/// Returns messages that name keys of the directory that cannot be read, and the number of those not named.
fn unreadable(view: &View) -> impl Iterator<Item = String> {
    let named = view.unreadable.iter().take(MOST_NAMED);
    let named = named.map(|(key, one)| format!("{key} in etcd is ignored: {}", one.why));
    let more = view.unreadable.len().saturating_sub(MOST_NAMED);
    let more = (more > 0).then(|| format!("{more} more keys in etcd are ignored for such reasons"));
    named.chain(more)
}

pub(super) fn hosts(view: &View, now: Instant) -> Vec<ClusterHost> {
    let away = view.away();
    let names = view.hosts.keys().map(String::as_str).chain(away.iter().copied());
    let mut disks: BTreeMap<&str, u64> = BTreeMap::new();
    for disk in view.disks.values() {
        *disks.entry(&disk.record.host).or_default() += 1;
    }
    let of_host = |name: &str| disks.get(name).copied().unwrap_or_default();
    let mut hosts: Vec<_> = names.map(|name| host(view, name, of_host(name), now)).collect();
    hosts.sort_by(|a, b| a.name.cmp(&b.name));
    hosts
}

fn host(view: &View, name: &str, disks: u64, now: Instant) -> ClusterHost {
    let seen = view.hosts.get(name);
    let is_drained = view.drains.contains_key(name);
    ClusterHost {
        name: name.into(),
        state: match (seen, is_drained) {
            (None, _) => HostState::Away,
            (Some(_), true) => HostState::Draining,
            (Some(_), false) => HostState::Alive,
        },
        is_drained,
        age_s: seen.map(|seen| seen.at).or(view.gone.get(name).copied()).map(|at| seconds(at, now)),
        version: seen.map(|seen| seen.record.software.clone()),
        disks,
        pools: view
            .pools_of(name)
            .map(|((_, pool), seen)| {
                let record = &seen.record;
                ClusterPool {
                    name: pool.clone(),
                    state: record.state.clone(),
                    capacity_bytes: record.capacity_bytes,
                    demand_bytes: record.demand_bytes,
                    usage_bytes: record.usage_bytes,
                    dirty_bytes: record.dirty_bytes,
                    requests_per_s: record.load.requests_per_s,
                    bytes_per_s: record.load.bytes_per_s,
                    latency_us: record.load.latency_us,
                }
            })
            .collect(),
    }
}

fn disks(view: &View, now: Instant) -> Vec<ClusterDisk> {
    let disk = |(id, seen): (&String, &haversack_directory::Seen<haversack_directory::DiskRecord>)| {
        let record = seen.record.clone();
        ClusterDisk {
            id: id.clone(),
            is_host_alive: view.hosts.contains_key(&record.host),
            name: record.name,
            host: record.host,
            epoch: record.epoch,
            pool: record.pool,
            state: record.state,
            vm: record.vm,
            tenant: record.tenant,
            can_move: record.can_move,
            moving_to: record.moving_to,
            size_bytes: record.size_bytes,
            demand_bytes: record.demand_bytes,
            usage_bytes: record.usage_bytes,
            dirty_bytes: record.dirty_bytes,
            replica_at: record.replica_at,
            is_replicated: record.is_replicated,
            requests_per_s: record.load.requests_per_s,
            age_s: seconds(seen.at, now),
        }
    };
    let mut disks: Vec<_> = view.disks.iter().map(disk).collect();
    disks.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
    disks
}

fn moves(view: &View, now: Instant) -> Vec<ClusterMove> {
    let moved = |(id, seen): (&String, &haversack_directory::Seen<haversack_directory::IntentRecord>)| {
        let record = seen.record.clone();
        ClusterMove {
            state: progress(view.progress(id, &record)).into(),
            id: id.clone(),
            disk: record.name,
            from: record.from,
            to: record.to,
            by: record.by,
            reason: record.reason,
            age_s: seconds(seen.at, now),
        }
    };
    view.intents.iter().map(moved).collect()
}

fn progress(progress: Progress) -> &'static str {
    match progress {
        Progress::Planned => "planned",
        Progress::Sending => "sending",
        Progress::Arrived => "arrived",
        Progress::Elsewhere => "elsewhere",
        Progress::Abandoned => "abandoned",
    }
}

fn planned(moved: &Move, disks: &BTreeMap<(&str, &str), Vec<snapshot::Named>>) -> PlannedMove {
    let disks = disks.get(&(moved.vm.0.as_str(), moved.from.0.as_str()));
    PlannedMove {
        vm: moved.vm.to_string(),
        disks: disks.into_iter().flatten().map(|(_, name)| name.clone()).collect(),
        from: moved.from.to_string(),
        to: moved.to.to_string(),
        reason: moved.to_string(),
        copied_bytes: moved.copied_bytes,
        copy_s: moved.copy_us as f64 / 1e6,
    }
}

/// A tenant's disks in the view.
#[derive(Default)]
struct Disks {
    count: u64,
    demand_bytes: u64,
    usage_bytes: u64,
}

/// Returns the tenants that operators have set or that disks name. Disks without a tenant count as one without a name.
fn tenants(view: &View) -> Vec<TenantStatus> {
    let mut all: BTreeMap<&str, Disks> =
        view.tenants.keys().map(|name| (name.as_str(), Disks::default())).collect();
    for seen in view.disks.values() {
        let record = &seen.record;
        let disks = all.entry(record.tenant.as_deref().unwrap_or_default()).or_default();
        disks.count += 1;
        // Figures in etcd may be anything.
        disks.demand_bytes = disks.demand_bytes.saturating_add(record.demand_bytes);
        disks.usage_bytes = disks.usage_bytes.saturating_add(record.usage_bytes);
    }
    let parts = tenants::parts_of(view);
    if let Err(error) = &parts {
        tracing::warn!("the caches cannot be divided among tenants: {error}");
    }
    let totals: BTreeMap<String, TenantTotal> = parts
        .map(|parts| parts.division.totals.into_iter().map(|total| (total.tenant.0.clone(), total)).collect())
        .unwrap_or_default();
    let status = |(name, disks): (&str, Disks)| {
        let total = totals.get(name);
        TenantStatus {
            name: name.into(),
            settings: view.tenants.get(name).map(|seen| TenantSettings {
                weight: seen.record.weight,
                reservation: Size(seen.record.reservation_bytes),
                limit: seen.record.limit_bytes.map(Size),
            }),
            disks: disks.count,
            demand_bytes: disks.demand_bytes,
            usage_bytes: disks.usage_bytes,
            share_bytes: total.map(|total| total.blocks.saturating_mul(BLOCK)),
            missing_bytes: total.map(|total| total.missing_blocks.saturating_mul(BLOCK)),
        }
    };
    all.into_iter().map(status).collect()
}

impl Cluster {
    /// Returns the directory's figures for metrics.
    pub(crate) fn figures(&self) -> (haversack_etcd::Status, std::sync::Arc<View>) {
        (self.directory.status(), self.directory.view())
    }
}

#[cfg(test)]
mod tests {
    use haversack_directory::Write;

    use super::*;

    #[test]
    fn of_many_unreadable_keys_some_are_named() {
        let mut view = View::default();
        let mut add = |keys: std::ops::Range<usize>| {
            for key in keys {
                view.note(&Write::put(Key::Tenant(format!("t{key}")), b"nonsense".into()), 1, Instant::now());
            }
            unreadable(&view).collect::<Vec<_>>()
        };
        assert!(add(0..0).is_empty());
        assert_eq!(add(0..MOST_NAMED).len(), MOST_NAMED);
        let many = add(MOST_NAMED..1000);
        assert_eq!(many.len(), MOST_NAMED + 1);
        assert!(
            many[0].contains("/tenants/t0 in etcd is ignored") && many[MOST_NAMED].starts_with("980 more")
        );
    }
}
