//! What goes wrong, and what operators do meanwhile.

use haversack_directory::{Change, DrainRecord, Key};
use haversack_model::Micros;
use haversack_ownership::Record;

use super::access::Caller;
use super::daemon::host_name;
use super::manager::Manager;
use super::plan::{HOSTS, Unrest, VMS};
use super::run::Cluster;
use crate::run::tell;
use crate::world::Flow;

impl Cluster {
    /// Whether something happens in this millisecond that happens so often in 100,000.
    fn happens(&mut self, often: u64) -> bool {
        self.rng.below(100_000) < often
    }

    fn any_host(&mut self) -> usize {
        self.rng.below(HOSTS as u64) as usize
    }

    /// Lets things go wrong for a tick.
    pub(super) fn unrest(&mut self) -> Flow {
        let unrest: Unrest = self.plan.unrest;
        if self.happens(unrest.crash) {
            let at = self.any_host();
            self.crash(at)?;
        }
        let moving =
            self.daemons.iter().flatten().find(|daemon| daemon.is_moving()).map(|daemon| daemon.host);
        if let Some(leader) = moving
            && self.happens(unrest.leader)
        {
            self.crash(leader)?;
        }
        if self.happens(unrest.crash / 4) {
            let at = self.any_host();
            self.stop(at)?;
        }
        self.network_unrest(&unrest);
        self.etcd_unrest(&unrest);
        self.operators(&unrest);
        self.interfere()?;
        self.deaths()
    }

    fn network_unrest(&mut self, unrest: &Unrest) {
        let now = self.machines.shared.now;
        let lease_us = self.plan.times.lease_us;
        if self.happens(unrest.cut) {
            let (a, b) = (self.any_host(), self.any_host());
            let until = now + self.rng.skewed(4 * lease_us);
            self.machines.network.cut(a, b, until);
            self.fault(|| format!("hosts {a} and {b} are cut off from each other until {until}"));
        }
        if self.happens(unrest.cut / 4) {
            // A host is cut off from all others, and from etcd.
            let at = self.any_host();
            let until = now + self.rng.skewed(4 * lease_us);
            (0..HOSTS).for_each(|other| self.machines.network.cut(at, other, until));
            self.cut_etcd[at] = until;
            self.fault(|| format!("host {at} is alone until {until}"));
        }
        if self.happens(unrest.cut_etcd) {
            let at = self.any_host();
            let until = now + self.rng.skewed(4 * lease_us);
            self.cut_etcd[at] = until;
            self.fault(|| format!("host {at} is cut off from etcd until {until}"));
        }
        if self.happens(unrest.lag) {
            let at = self.any_host();
            let lag_us = self.rng.pick(&[0, 0, 2_000, lease_us]);
            self.lag_us[at] = lag_us;
            self.fault(|| format!("the watch of host {at} is {lag_us} us late"));
        }
    }

    fn etcd_unrest(&mut self, unrest: &Unrest) {
        let now = self.machines.shared.now;
        let [quorum, compacted, lost] = unrest.etcd;
        if self.happens(quorum) {
            self.etcd.away_until = now + self.rng.skewed(3 * self.plan.times.lease_us);
            self.machines.points += 1;
            self.fault(|| "etcd has no quorum".into());
        }
        if self.happens(compacted) {
            self.etcd.compact();
            self.fault(|| "etcd is compacted".into());
        }
        if self.happens(lost) {
            self.etcd.lose();
            self.judge.lost(now);
            self.machines.points += 1;
            self.fault(|| "etcd has lost its data".into());
        }
        if self.happens(unrest.lease) {
            let at = self.any_host();
            let entry = self.etcd.get(&Key::Host(host_name(at))).map(|kept| kept.lease);
            if let Some(lease) = entry {
                self.etcd.revoke(lease, now, None);
                self.fault(|| format!("the lease of host {at} has ended"));
            }
        }
    }

    fn operators(&mut self, unrest: &Unrest) {
        if self.happens(unrest.demand) {
            let of = self.rng.below(self.demands.len() as u64) as usize;
            self.demands[of] = self.rng.range(10, self.plan.capacity_blocks * 9 / 10);
        }
        if self.happens(unrest.operator) {
            let vm = self.rng.below(VMS.len() as u64) as usize;
            let (from, to) = (Manager::host_of(&self.machines, vm), self.any_host());
            let record = self.machines.hosts[from].record(VMS[vm][0]);
            if let Some(Record::Owner { epoch, .. }) = record
                && from != to
                && let (epoch, Some(daemon)) = (*epoch, &mut self.daemons[from])
            {
                daemon.order(vm, to, epoch);
            }
        }
        if self.happens(unrest.drain) {
            let (at, by) = (self.any_host(), self.any_host());
            let record = DrainRecord { by: host_name(by) };
            let drain = if self.rng.one_in(2) { Some(&record) } else { None };
            if let Some(daemon) = &mut self.daemons[by] {
                daemon.access.call(Caller::Nobody, Change::drain(&host_name(at), drain));
            }
        }
    }

    /// Ends everything that goes wrong, and all that makes the balancer move VMs.
    pub(super) fn calm(&mut self) {
        let now: Micros = self.machines.shared.now;
        self.machines.network.heal();
        self.machines.shared.plan.lossy_percent = [0, 0];
        self.cut_etcd.fill(0);
        self.lag_us.fill(0);
        self.etcd.away_until = now;
        self.demands.fill(1);
        self.manager.calm();
        self.machines.hosts.iter_mut().for_each(|host| host.refuses_until = 0);
        self.repair();
    }

    fn fault(&mut self, what: impl FnOnce() -> String) {
        self.machines.report.counts.faults += 1;
        tell(|| format!("{:>10} {}", self.machines.shared.now, what()));
    }
}
