//! The owner of a disk dies permanently under load, and the host that has a replica of its dirty blocks takes the disk
//! over.
//!
//! The oracle treats that as a power cut of the owner: what was flushed must be there, everything else may be older.
//! Only if the replica was not complete, what only the dead host had is lost.

use haversack_core::PeerLoss;
use haversack_model::random::Random;
use haversack_ownership::Record;

use super::force::FORCED;
use super::run::Twin;
use crate::hosts::host::Running;
use crate::hosts::machines::{MOST_STEPS, Machines};
use crate::run::tell;
use crate::world::{Flow, violation};

impl Twin {
    /// A whole run.
    pub(super) fn live_with_replica(&mut self, points: u64, apart: &mut Random) -> Flow {
        self.live_until(points)?;
        self.machines.shared.plan.lossy_percent[0] = 0;
        if apart.one_in(3) {
            self.settle()?;
            return self.machines.read_everything(0);
        }
        // Otherwise the owner dies with the replica in any state, more often in a complete one.
        if apart.one_in(2) {
            self.heal();
            self.wait_for_replica(apart)?;
        }
        match apart.below(4) {
            0 => self.go_on_alone(apart)?,
            1 => self.pre_copy()?,
            _ => {}
        }
        for _ in 0..apart.skewed(150) {
            self.step(true)?;
        }
        let dead = self.machines.guests[0].host;
        let is_up = self.machines.hosts.iter().all(|host| host.running.is_some());
        if !is_up || !self.machines.is_served(0) {
            self.settle()?;
            return self.machines.read_everything(0);
        }
        self.lose_owner(dead, apart)
    }

    /// Waits, if that does not take long, until the guest is served and the replica is complete.
    fn wait_for_replica(&mut self, apart: &mut Random) -> Flow {
        let at = self.guest().host;
        if self.guest().is_stopped {
            self.machines.arrive(0, at)?;
        }
        let Machines { hosts, shared, .. } = &mut self.machines;
        hosts[at].with(shared, 0, |migration, call, now| migration.end(call, now))?;
        for _ in 0..20_000 {
            let heir = 1 - self.machines.guests[0].host;
            if self.machines.is_served(0) && self.is_replica_complete(heir) {
                return Ok(());
            }
            self.step(apart.one_in(4))?;
        }
        Ok(())
    }

    /// Cuts the hosts off from each other for longer than a lease, while the guest works.
    fn go_on_alone(&mut self, apart: &mut Random) -> Flow {
        let lease_us = self.machines.shared.plan.timing.lease_us;
        let now = self.machines.shared.now;
        self.machines.network.cut(0, 1, now + 4 * lease_us);
        let until = now + apart.range(1, 3 * lease_us);
        while self.machines.shared.now < until {
            self.step(true)?;
        }
        Ok(())
    }

    fn is_replica_complete(&mut self, at: usize) -> bool {
        let Machines { hosts, shared, .. } = &mut self.machines;
        hosts[at].replica(shared, 0).is_some_and(|replica| replica.is_complete)
    }

    fn lose_owner(&mut self, dead: usize, apart: &mut Random) -> Flow {
        let heir = 1 - dead;
        let guards = self.machines.hosts[dead].guards(0);
        // A request to drop it may be on its way: the owner does without it.
        let is_kept = |running: &Running| !running.disks[0].migration.may_have_dropped_replica();
        let is_kept = self.machines.hosts[dead].running.as_ref().is_some_and(is_kept);
        let is_complete = self.is_replica_complete(heir) && is_kept;
        let only_there = self.sectors_of(dead, |state| state.dirty);
        tell(|| {
            format!(
                "{:>10} flushes wait for the replica: {guards}, it is complete: {is_complete}",
                self.machines.shared.now
            )
        });
        self.die_for_good(dead, apart);
        self.guest().die();
        self.guest().oracle.crash(true);
        self.machines.report.counts.replicas += u64::from(guards && is_complete);
        if !(guards && is_complete) {
            only_there.iter().for_each(|sector| self.guest().oracle.forgive(0, *sector, &[]));
        }
        for _ in 0..apart.skewed(400) {
            self.step(false)?;
        }
        if apart.one_in(3) {
            self.crash(heir)?;
        }
        // The operator knows whether the owner had continued without its replica.
        self.take_over_replica(heir, guards, apart)?;
        self.machines.arrive(0, heir)?;
        self.wait_until_retaken(heir)?;
        self.read_each_block()?;
        self.live_on(heir, apart)?;
        self.come_back(dead, heir, apart)?;
        self.read_each_block()
    }

    fn take_over_replica(&mut self, heir: usize, is_trusted: bool, apart: &mut Random) -> Flow {
        // The owner is dead by now. So the replica may become uncertain before the takeover is repeated.
        let (mut crashes, decides_once) = (apart.one_in(3), apart.one_in(2));
        let mut was_certain = false;
        for _ in 0..MOST_STEPS {
            let epoch = match self.record(heir) {
                Some(Record::Owner { epoch, .. }) if epoch >= FORCED => return Ok(()),
                record => record.map_or(0, |record| record.epoch()) + FORCED,
            };
            // An error says that another operation is in progress; it is retried.
            let Machines { hosts, shared, .. } = &mut self.machines;
            let begun = hosts[heir].with(shared, 0, |migration, call, now| {
                let is_certain = migration.replica(call, now).is_some_and(|replica| replica.is_certain);
                was_certain = is_certain || was_certain && decides_once;
                if is_trusted || was_certain {
                    migration.trust_replica();
                }
                migration.take_over(call, now, epoch, PeerLoss::Accepted).is_ok()
            })?;
            self.machines.post();
            if begun == Some(true) {
                for _ in 0..apart.skewed(60) {
                    self.step(false)?;
                }
                if std::mem::take(&mut crashes) {
                    self.crash(heir)?;
                }
            }
            self.step(false)?;
        }
        violation!("hang: host {heir} does not take the disk over: {:?}", self.record(heir))
    }
}
