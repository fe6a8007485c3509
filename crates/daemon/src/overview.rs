//! The short status that the dashboard shows.

use haversack_api::{DiskOverview, DiskState, DiskStatus, Overview, PoolState};

use crate::daemon::Daemon;
use crate::policy::Policy;

impl Daemon {
    /// Returns a summary of the daemon's state.
    pub fn overview(&self) -> Overview {
        let status = self.status();
        let policy = self.with_policy(Policy::status).settings.map(|settings| settings.allocator);
        let host = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned());
        Overview {
            host: host.unwrap_or_default(),
            version: status.version,
            uptime_s: status.uptime_s,
            policy,
            can_migrate: self.hosts().is_some(),
            is_in_cluster: self.cluster().is_some(),
            shares_flash: self.hosts().is_some_and(|hosts| hosts.shares_flash()),
            pools: status.pools,
            disks: status.disks.into_iter().map(disk).collect(),
        }
    }
}

impl Daemon {
    /// Returns the pools and disks that do not take requests and should, with a line for each, and before them whether
    /// the start goes on.
    pub fn not_ready(&self) -> Vec<String> {
        let status = self.status();
        let pools =
            status.pools.iter().filter(|pool| matches!(pool.state, PoolState::Stopped | PoolState::Failed));
        let pools = pools.map(|pool| format!("pool {} is {}", pool.name, pool.state));
        let waits = |disk: &&DiskStatus| matches!(disk.state, DiskState::Waiting | DiskState::Attaching);
        let disks = status.disks.iter().filter(waits);
        let disks = disks.map(|disk| format!("disk {} is {}", disk.name, disk.state));
        status.starting.then(|| "starting".to_owned()).into_iter().chain(pools).chain(disks).collect()
    }
}

impl Daemon {
    /// Returns a line about the directory of the cluster if it is away.
    pub fn directory_away(&self) -> Option<String> {
        let directory = self.directory_status().filter(|directory| directory.endpoint.is_none())?;
        let why = directory.problems.first().map_or("", String::as_str);
        Some(format!("the directory of the cluster has been away for {:.0} s: {why}", directory.since_s))
    }
}

fn disk(status: DiskStatus) -> DiskOverview {
    let (requests, latency_us) = [status.vhost_user_latency, status.nbd_latency]
        .into_iter()
        .flat_map(|kinds| [kinds.read, kinds.write, kinds.flush])
        .fold((0, 0.0), |(count, sum), kind| (count + kind.count, sum + kind.mean_us * kind.count as f64));
    DiskOverview {
        name: status.name,
        pool: status.pool,
        state: status.state,
        size_bytes: status.size_bytes,
        mode: status.mode,
        origin_up: status.origin_up,
        usage_bytes: status.usage.usage_bytes,
        target_bytes: status.usage.target_bytes,
        dirty_bytes: status.usage.dirty_bytes,
        read_hits: status.requests.read_hits,
        read_misses: status.requests.read_misses,
        requests,
        latency_us: latency_us as u64,
        flash_bytes: status.blocks.flash.total_bytes(),
        errors: status.errors.failed_requests + status.errors.corrupt_blocks + status.errors.lost_blocks,
        reason: status.policy.map(|policy| policy.reason),
    }
}
