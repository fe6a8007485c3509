//! A host dies permanently, is fenced, and the other one takes the disk over by force. Then the dead one comes back.
//!
//! The oracle knows which sectors only the dead host had. All other sectors must have what was acknowledged
//! last, and so must the dead host's sectors that do not count as lost.

use std::collections::BTreeSet;

use haversack_core::{CacheState, Damage, Op, PeerLoss};
use haversack_model::random::Random;
use haversack_model::{Micros, SECTOR_BYTES, SECTORS_PER_BLOCK};
use haversack_ownership::Record;

use super::run::Twin;
use crate::hosts::host::host_id;
use crate::hosts::machines::MOST_STEPS;
use crate::pattern;
use crate::run::tell;
use crate::world::{CrashKind, Flow, violation};

/// The epoch that is taken by force: higher than any that the hosts reach by agreement.
pub(super) const FORCED: u64 = 1_000;
/// Steps within which both hosts must reach a state that an operator can act on.
const PATIENCE: u32 = 20_000;

/// A takeover that has been carried out.
struct Forced {
    /// The sectors that may count as lost although the loss was accepted. `None` if no loss was accepted.
    recorded: Option<BTreeSet<u64>>,
    /// The sectors that the heir had cached before the takeover, and that must not be lost.
    kept: BTreeSet<u64>,
}

impl Twin {
    /// Lets one of the hosts die permanently, if the other one then needs to take anything over.
    pub(super) fn take_over(&mut self, apart: &mut Random, soon: &mut Random) -> Flow {
        let dead = if soon.one_in(2) { self.move_until_claimed()? } else { apart.below(2) as usize };
        let heir = 1 - dead;
        for _ in 0..PATIENCE {
            let is_quiet = self.machines.guests[0].in_flight() == 0
                && self.machines.hosts.iter().all(|host| host.running.is_some());
            if is_quiet {
                break;
            }
            self.step(false)?;
        }
        let needs_nothing = match self.record(heir) {
            Some(Record::Owner { peers, .. }) => peers.is_empty(),
            record => record.is_none(),
        };
        if needs_nothing
            || self.machines.guests[0].in_flight() > 0
            || self.machines.hosts[dead].running.is_none()
        {
            return Ok(());
        }
        let mut only_there = self.sectors_of(dead, |state| state.dirty);
        self.die_for_good(dead, apart);
        // A host that starts again while the other one is dead no longer knows what it needs from there.
        let depends = self.record(heir).is_some_and(|record| record.is_owner());
        if depends && soon.one_in(2) {
            self.crash(heir)?;
        }
        let is_listed = self.is_attached(heir);
        let loss = if is_listed && apart.one_in(2) { PeerLoss::Recorded } else { PeerLoss::Accepted };
        let Some(Forced { recorded, kept }) = self.force(heir, loss, apart)? else {
            // All had been moved by then.
            self.machines.arrive(0, heir)?;
            self.settle()?;
            return self.machines.read_everything(0);
        };
        self.check_kept(heir, &kept)?;
        only_there.retain(|sector| !kept.contains(sector));
        let lost = self.lost_sectors(heir);
        if let Some(sector) = lost.iter().find(|sector| !only_there.contains(sector)) {
            return violation!("sector {sector} counts as lost, and not only the dead host had it");
        }
        if let Some(recorded) = recorded {
            if let Some(sector) = lost.iter().find(|sector| !recorded.contains(sector)) {
                return violation!("sector {sector} counts as lost although that was accepted");
            }
            only_there.iter().for_each(|sector| self.machines.guests[0].oracle.forgive(0, *sector, &[]));
        }
        self.machines.guests[0].lost.clear();
        self.machines.guests[0].lost.add(&lost);
        self.machines.arrive(0, heir)?;
        self.wait_until_retaken(heir)?;
        self.read_each_block()?;
        if self.machines.guests[0].lost.is_empty() {
            self.live_on(heir, apart)?;
        }
        self.come_back(dead, heir, apart)?;
        self.read_each_block()
    }

    /// Moves the guest, up to the moment when its new host owns the disk and still needs the old one. Returns the old
    /// one.
    fn move_until_claimed(&mut self) -> Flow<usize> {
        self.pre_copy()?;
        let from = self.machines.guests[0].host;
        self.stop_guest()?;
        let to = 1 - from;
        self.machines.arrive(0, to)?;
        for _ in 0..PATIENCE {
            let depends = matches!(self.record(to), Some(Record::Owner { peers, .. }) if !peers.is_empty());
            if depends || self.machines.guests[0].host != to {
                break;
            }
            self.step(false)?;
        }
        Ok(from)
    }

    /// Checks that every sector that the heir had and that the origin lacks is dirty after a takeover: otherwise the
    /// heir's cache could drop it.
    fn check_kept(&self, heir: usize, kept: &BTreeSet<u64>) -> Flow {
        let dirty = self.sectors_of(heir, |state| state.dirty);
        let oracle = &self.machines.guests[0].oracle;
        for sector in kept.difference(&dirty) {
            let mut bytes = [0; SECTOR_BYTES];
            self.machines.shared.origins[0].read(*sector, &mut bytes);
            let content = pattern::recognise(&bytes);
            if !oracle.is_current(0, *sector, content) {
                return violation!(
                    "sector {sector} is not dirty after a takeover, and the origin has {content}"
                );
            }
        }
        Ok(())
    }

    pub(super) fn record(&self, at: usize) -> Option<Record> {
        self.machines.hosts[at].running.as_ref().map(|running| running.disks[0].migration.record().clone())
    }

    fn is_attached(&self, at: usize) -> bool {
        let running = self.machines.hosts[at].running.as_ref();
        let info = running.and_then(|r| r.core.disk_info(r.disks[0].migration.disk()?));
        info.is_some_and(|info| info.attached)
    }

    /// Returns the sectors that a host has cached and that are in such a state.
    pub(super) fn sectors_of(&self, at: usize, wanted: impl Fn(CacheState) -> bool) -> BTreeSet<u64> {
        self.machines.hosts[at].sectors_of(&self.machines.shared, 0, wanted)
    }

    fn lost_sectors(&self, at: usize) -> BTreeSet<u64> {
        self.machines.hosts[at].lost_sectors(0)
    }

    /// Returns the sectors that stay lost on a host that has just started again, when the operator accepts the loss:
    /// the rest of blocks that are partly newer. The host has forgotten all other lost sectors with its process.
    fn lost_beside_newer(&self, at: usize) -> BTreeSet<u64> {
        let before =
            (SECTORS_PER_BLOCK - u64::from(self.machines.shared.plan.disks[0].phase)) % SECTORS_PER_BLOCK;
        let block = |sector: &u64| (sector + before) / SECTORS_PER_BLOCK;
        let newer: BTreeSet<u64> = self.sectors_of(at, |state| state.dirty).iter().map(block).collect();
        let mut lost = self.lost_sectors(at);
        lost.retain(|sector| newer.contains(&block(sector)));
        lost
    }

    pub(super) fn die_for_good(&mut self, dead: usize, apart: &mut Random) {
        let kind = apart.pick(&[CrashKind::Kill, CrashKind::Power]);
        let power = kind == CrashKind::Power;
        self.machines.points += 1;
        self.machines.report.counts.kills += u64::from(!power);
        self.machines.report.counts.cuts += u64::from(power);
        let was_owner = self.machines.hosts[dead].owns(0);
        self.machines.shared.mail.clear();
        self.machines.hosts[dead].crash(&mut self.machines.shared, kind, Micros::MAX);
        self.machines.hosts[dead].fenced = true;
        if self.machines.guests[0].host == dead {
            self.machines.guests[0].die();
        }
        if was_owner || self.machines.guests[0].host == dead {
            self.machines.guests[0].oracle.crash(power && was_owner);
        }
        tell(|| format!("{:>10} host {dead} is permanently dead", self.machines.shared.now));
    }

    /// Takes the disk over. The heir may die meanwhile; then the operator accepts all losses. Returns `None` if there
    /// was nothing left to take over.
    fn force(&mut self, heir: usize, mut loss: PeerLoss, apart: &mut Random) -> Flow<Option<Forced>> {
        let mut crashes = apart.one_in(3);
        let mut kept = BTreeSet::new();
        let mut recorded = (loss == PeerLoss::Accepted).then(BTreeSet::new);
        for _ in 0..MOST_STEPS {
            let runs = self.machines.hosts[heir].running.is_some();
            if runs && loss == PeerLoss::Accepted && recorded.is_none() {
                recorded = Some(self.lost_beside_newer(heir));
            }
            if let Some(Record::Owner { epoch, peers }) = self.record(heir)
                && peers.is_empty()
            {
                if loss == PeerLoss::Accepted {
                    self.attach_damaged(heir)?;
                }
                return Ok((epoch >= FORCED).then_some(Forced { recorded, kept }));
            }
            // The heir may have answered a late question of the dead host with a release: the disk is then taken over
            // once more.
            let epoch = self.record(heir).map_or(0, |record| record.epoch()) + FORCED;
            let depends = self.record(heir).is_some_and(|record| record.is_owner());
            let here = if depends { self.sectors_of(heir, |state| state.cached) } else { BTreeSet::new() };
            // An error says that another operation is in progress; it is retried.
            let begun =
                self.machines.hosts[heir].with(&mut self.machines.shared, 0, |migration, call, now| {
                    migration.take_over(call, now, epoch, loss).is_ok()
                })?;
            self.machines.post();
            if begun == Some(true) {
                kept = here;
                for _ in 0..apart.skewed(60) {
                    self.step(false)?;
                }
                if std::mem::take(&mut crashes) {
                    self.crash(heir)?;
                    loss = PeerLoss::Accepted;
                }
            }
            self.step(false)?;
        }
        violation!("hang: host {heir} does not take the disk over: {:?}", self.record(heir))
    }

    /// After a restart of a host whose record says that something was lost, the operator accepts that.
    fn attach_damaged(&mut self, heir: usize) -> Flow {
        let config = self.machines.shared.plan.disks[0].clone();
        self.machines.hosts[heir].with(&mut self.machines.shared, 0, |migration, call, now| {
            let info = migration.disk().and_then(|disk| call.disk_info(disk));
            if let Some(info) = info.filter(|info| !info.attached && info.damage != Damage::None) {
                // An error says that it is being attached.
                let _ = call.attach(now, &config, info.epoch, true);
            }
        })?;
        Ok(())
    }

    /// Waits until the guest is served. Before the guest arrives, the heir may still answer an old question of the dead
    /// host with a release. The operator sees that, and takes the disk over once more: nothing has changed on the heir
    /// since.
    pub(super) fn wait_until_retaken(&mut self, heir: usize) -> Flow {
        for _ in 0..MOST_STEPS {
            if self.machines.is_served(0) {
                return Ok(());
            }
            if let Some(Record::Released { grant, .. }) = self.record(heir) {
                // An error says that another operation is in progress; it is retried.
                let epoch = grant.epoch + FORCED;
                self.machines.hosts[heir].with(&mut self.machines.shared, 0, |migration, call, now| {
                    let _ = migration.take_over(call, now, epoch, PeerLoss::Accepted);
                })?;
                self.machines.post();
            }
            self.step(false)?;
        }
        violation!("hang: the guest is not served after a takeover")
    }

    fn wait_until_served(&mut self) -> Flow {
        for _ in 0..MOST_STEPS {
            if self.machines.is_served(0) {
                return Ok(());
            }
            self.step(false)?;
        }
        violation!("hang: the guest is not served after a takeover")
    }

    pub(super) fn read_each_block(&mut self) -> Flow {
        let size = self.machines.shared.plan.disks[0].sectors;
        for first in 0..size {
            self.wait_until_served()?;
            let host = &mut self.machines.hosts[self.machines.guests[0].host];
            let Some(disk) = host.running.as_ref().and_then(|r| r.disks[0].migration.disk()) else {
                continue;
            };
            self.machines.guests[0].submit(&mut self.machines.shared, host, disk, Op::Read, first, 1)?;
            self.machines.wait_for_answers(0)?;
        }
        Ok(())
    }

    /// The guest works, and its host dies once more.
    pub(super) fn live_on(&mut self, heir: usize, apart: &mut Random) -> Flow {
        for _ in 0..apart.skewed(200) {
            self.step(true)?;
        }
        self.machines.wait_for_answers(0)?;
        self.crash(heir)?;
        self.machines.arrive(0, heir)?;
        self.wait_until_served()?;
        self.read_each_block()
    }

    /// The dead host starts again. Until it knows about the takeover, the fence blocks its writes; after that, it
    /// does nothing.
    pub(super) fn come_back(&mut self, dead: usize, heir: usize, apart: &mut Random) -> Flow {
        if let Some((until, _)) = &mut self.machines.hosts[dead].down {
            *until = self.machines.shared.now;
        }
        for _ in 0..apart.skewed(300) {
            self.step(false)?;
        }
        let before = self.sectors_of(dead, |state| state.dirty).len();
        let by = host_id(heir);
        for _ in 0..MOST_STEPS {
            let Some(Record::Owner { epoch, .. }) = self.record(heir) else {
                self.step(false)?;
                continue;
            };
            let knows =
                self.machines.hosts[dead].with(&mut self.machines.shared, 0, |migration, call, now| {
                    migration.overtaken(call, now, by, epoch)
                })?;
            self.machines.post();
            if knows == Some(true) {
                break;
            }
            self.step(false)?;
        }
        // It may also have learned of the epoch when it became the host of the heir's replica.
        let newest = self.record(heir).map_or(0, |record| record.epoch());
        if !self.record(dead).is_some_and(|record| !record.is_owner() && record.epoch() >= newest) {
            return violation!("hang: host {dead} does not learn of the takeover: {:?}", self.record(dead));
        }
        self.machines.hosts[dead].fenced = false;
        for _ in 0..apart.skewed(300) {
            self.step(false)?;
        }
        let after = self.sectors_of(dead, |state| state.dirty).len();
        if before > 0 && after == 0 {
            return violation!("host {dead} has dropped {before} dirty sectors that nobody has given up");
        }
        Ok(())
    }
}
