//! The owner of a disk dies permanently under load, and the host that has a replica of its dirty blocks takes the disk over.
//!
//! The oracle treats that as a power cut of the owner: what was flushed must be there, everything else may be older. Only if
//! the replica was not complete, what only the dead host had is lost.

use haversack_core::PeerLoss;
use haversack_model::random::Random;
use haversack_ownership::Record;

use super::force::FORCED;
use super::host::Running;
use super::run::{MOST_STEPS, Twin};
use crate::run::tell;
use crate::world::{Flow, violation};

impl Twin {
    /// A whole run.
    pub(super) fn live_with_replica(&mut self, points: u64, apart: &mut Random) -> Flow {
        self.live_until(points)?;
        self.shared.plan.lossy_percent = [0, 0];
        if apart.one_in(3) {
            self.network.cut_until = 0;
            self.settle()?;
            return self.read_everything();
        }
        // Otherwise the owner dies in whatever state the replica is, more often in a good one.
        if apart.one_in(2) {
            self.network.cut_until = 0;
            self.wait_for_replica(apart)?;
        }
        for _ in 0..apart.skewed(150) {
            self.step(true)?;
        }
        let dead = self.guest.host;
        let is_up = self.hosts.iter().all(|host| host.running.is_some());
        if !is_up || !self.is_served() {
            self.network.cut_until = 0;
            self.settle()?;
            return self.read_everything();
        }
        self.lose_owner(dead, apart)
    }

    /// Waits, if that does not take long, until the guest is served and the replica is complete.
    fn wait_for_replica(&mut self, apart: &mut Random) -> Flow {
        if self.guest.is_stopped {
            self.arrive(self.guest.host, 1 - self.guest.host)?;
        }
        let at = self.guest.host;
        self.hosts[at].with(&mut self.shared, |migration, call, now| migration.end(call, now))?;
        for _ in 0..20_000 {
            let heir = 1 - self.guest.host;
            if self.is_served() && self.is_replica_complete(heir) {
                return Ok(());
            }
            self.step(apart.one_in(4))?;
        }
        Ok(())
    }

    fn is_replica_complete(&mut self, at: usize) -> bool {
        let now = self.shared.now;
        let Some(running) = &mut self.hosts[at].running else { return false };
        let replica = running.migration.replica(&running.core.with(&mut running.memory), now);
        replica.is_some_and(|replica| replica.is_complete)
    }

    /// Whether flushes on this host wait for a replica.
    fn guards(&self, at: usize) -> bool {
        let Some(running) = &self.hosts[at].running else { return false };
        let replication = running.migration.disk().and_then(|disk| running.core.replication(disk));
        replication.is_some_and(|replication| replication.guards)
    }

    fn lose_owner(&mut self, dead: usize, apart: &mut Random) -> Flow {
        let heir = 1 - dead;
        let guards = self.guards(dead);
        // A request to drop it may be on its way: the owner does without it.
        let is_kept = |running: &Running| !running.migration.may_have_dropped_replica();
        let is_kept = self.hosts[dead].running.as_ref().is_some_and(is_kept);
        let is_complete = self.is_replica_complete(heir) && is_kept;
        let only_there = self.sectors_of(dead, |state| state.dirty);
        tell(|| {
            format!(
                "{:>10} flushes wait for the replica: {guards}, it is complete: {is_complete}",
                self.shared.now
            )
        });
        self.die_for_good(dead, apart);
        self.guest.die();
        self.guest.oracle.crash(true);
        self.report.counts.replicas += u64::from(guards && is_complete);
        if !(guards && is_complete) {
            only_there.iter().for_each(|sector| self.guest.oracle.forgive(0, *sector, None));
        }
        for _ in 0..apart.skewed(400) {
            self.step(false)?;
        }
        if apart.one_in(3) {
            self.crash(heir)?;
        }
        // The operator knows that the owner had not gone on without its replica, if that is so.
        self.take_over_replica(heir, guards, apart)?;
        self.arrive(heir, dead)?;
        self.wait_for_guest()?;
        self.read_each_block()?;
        self.live_on(heir, apart)?;
        self.come_back(dead, heir, apart)?;
        self.read_each_block()
    }

    fn take_over_replica(&mut self, heir: usize, is_trusted: bool, apart: &mut Random) -> Flow {
        let (mut crashes, needs_no_word) = (apart.one_in(3), apart.one_in(2));
        for _ in 0..MOST_STEPS {
            let epoch = match self.record(heir) {
                Some(Record::Owner { epoch, .. }) if epoch >= FORCED => return Ok(()),
                record => record.map_or(0, |record| record.epoch()) + FORCED,
            };
            // An error says that another operation is in progress; it is retried.
            let begun = self.hosts[heir].with(&mut self.shared, |migration, call, now| {
                let is_certain = migration.replica(call, now).is_some_and(|replica| replica.is_certain);
                if is_trusted && !(is_certain && needs_no_word) {
                    migration.trust_replica();
                }
                migration.take_over(call, now, epoch, PeerLoss::Accepted).is_ok()
            })?;
            self.post();
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

    fn wait_for_guest(&mut self) -> Flow {
        for _ in 0..MOST_STEPS {
            if self.is_served() {
                return Ok(());
            }
            self.step(false)?;
        }
        violation!("hang: the guest is not served after a take-over")
    }
}
