//! What the balancer learns of the cluster, from what the hosts' control loops know.

use haversack_cluster::{Disk, Host, HostName, HostState, Snapshot, Vm, VmName, outline};
use haversack_model::DiskNo;
use haversack_policy::DiskWindow;

use super::world::World;
use crate::error::SimError;

/// Points of a curve that a host reports; more add nothing but bytes.
const POINTS: usize = 32;

/// A host's name.
pub fn host_name(host: usize) -> HostName {
    HostName(format!("host-{}", host + 1))
}

fn host_of(name: &HostName) -> Option<usize> {
    name.0.strip_prefix("host-")?.parse::<usize>().ok()?.checked_sub(1)
}

impl World<'_> {
    /// The predicted demand of a host's VMs, as a part of its cache.
    pub(super) fn load(&self, host: usize) -> f64 {
        let demands = (0..self.vms.len()).filter(|volume| self.vms[*volume].host == host);
        let blocks: u64 = demands.map(|volume| self.governors[host].demand_blocks(volume)).sum();
        blocks as f64 / self.pool_blocks.max(1) as f64
    }

    fn snapshot(&self) -> Snapshot {
        let host = |number: usize| Host {
            name: host_name(number),
            state: HostState::Serving,
            capacity_blocks: self.pool_blocks,
            link_bytes_per_s: (self.link.speed.0 / 8.0) as u64,
            ..Host::default()
        };
        Snapshot {
            hosts: (0..self.hosts.len()).map(host).collect(),
            vms: (0..self.vms.len()).map(|volume| self.vm(volume)).collect(),
        }
    }

    fn vm(&self, volume: usize) -> Vm {
        let vm = &self.vms[volume];
        let governor = &self.governors[vm.host];
        let usage = self.hosts[vm.host].core.disk_usage(DiskNo(volume as u16)).unwrap_or_default();
        let nothing = DiskWindow::default();
        let window = governor.window(volume).unwrap_or(&nothing);
        let reused = window.rwss_blocks.first().copied().unwrap_or(0);
        let disk = Disk {
            name: vm.name.as_str().into(),
            demand_blocks: governor.demand_blocks(volume),
            priority: 1.0,
            cached_blocks: usage.usage_blocks,
            dirty_blocks: usage.dirty_blocks,
            reused_blocks: reused.max(usage.dirty_blocks).min(usage.usage_blocks),
            accesses_per_s: window.accesses() as f64 / (window.length_us.max(1) as f64 / 1e6),
            curve: outline(&window.trd, POINTS),
            origin_latency_us: window.origin_latency_us.unwrap_or(governor.config().origin_latency_us),
            cache_latency_us: window.cache_latency_us.unwrap_or(governor.config().cache_latency_us),
            ..Disk::default()
        };
        Vm {
            name: VmName(vm.name.clone()),
            host: host_name(vm.host),
            moving_to: vm.moving.map(|moving| host_name(moving.destination())),
            disks: vec![disk],
            ..Vm::default()
        }
    }

    /// Asks the balancer, and begins what it proposes.
    ///
    /// # Errors
    /// A move goes wrong.
    pub(super) fn balance(&mut self) -> Result<(), SimError> {
        let Some(mut balance) = self.balance.take() else { return Ok(()) };
        let (now, snapshot) = (self.now_us(), self.snapshot());
        let plan = balance.round(now, &snapshot)?;
        for moved in &plan.moves {
            let volume = self.vms.iter().position(|vm| vm.name == moved.vm.0);
            let (Some(volume), Some(to)) = (volume, host_of(&moved.to)) else { continue };
            if self.begin(volume, to)? {
                balance.begun(now, moved);
            }
        }
        self.balance = Some(balance);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_its_host() {
        assert_eq!(host_of(&host_name(41)), Some(41));
    }
}
