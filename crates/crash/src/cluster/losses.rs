//! Takeovers in which a loss is recorded instead of accepted: reads of sectors that only the dead host had fail until
//! the sectors are written again.
//!
//! After a restart, the host no longer knows most of the lost sectors: its record only says that blocks of the disk are
//! lost, and it attaches the disk only when an operator accepts the loss.

use std::collections::BTreeSet;

use haversack_core::{Op, PeerLoss};

use super::own::{Own, Plan};
use super::plan::{DISKS, HOSTS};
use super::run::Cluster;
use crate::hosts::guest::block_around;
use crate::run::tell;
use crate::world::{Flow, violation};

/// One loss in this many is accepted although it could be recorded.
const LOSSES_ACCEPTED: u64 = 4;
/// One host in this many dies as soon as it has recorded a loss.
const HOSTS_THAT_DIE: u64 = 3;
/// The operator checks a disk this many times, on average, before accepting its loss.
const LOOKS_BEFORE_ACCEPTING: u64 = 4;
/// The most sectors that a guest writes at a time when it rewrites lost sectors.
const MOST_REWRITTEN: u64 = 64;

impl Cluster {
    /// Decides whether a loss is recorded or accepted. It can be recorded only if the host still has the list of what
    /// it needs from the dead one.
    pub(super) fn decide_loss(&mut self, own: &Own, plan: &Plan) -> PeerLoss {
        let is_recorded = own.is_listed(&self.machines) && !self.operator.losses.one_in(LOSSES_ACCEPTED);
        if is_recorded { PeerLoss::Recorded } else { plan.loss }
    }

    /// Returns the sectors that only a dead host has of a disk that another host owns. Only these may count as lost.
    pub(super) fn only_at(&self, dead: usize, own: &Own) -> BTreeSet<u64> {
        let Cluster { machines, .. } = self;
        let here = machines.hosts[own.at].sectors_of(&machines.shared, own.of, |state| state.cached);
        let mut there = machines.hosts[dead].remains_of(&machines.shared, own.of).dirty;
        there.retain(|sector| !here.contains(sector));
        there
    }

    /// The takeover is on record, and perhaps a loss with it.
    pub(super) fn note_loss(&mut self, own: &mut Own) -> Flow {
        let Some(only_there) = own.only_there.take() else { return Ok(()) };
        let lost = self.machines.hosts[own.at].lost_sectors(own.of);
        if let Some(sector) = lost.difference(&only_there).next() {
            return violation!(
                "sector {sector} of disk {} counts as lost, and the dead host did not have it",
                own.of
            );
        }
        if !lost.is_empty() {
            tell(|| {
                format!("{:>10} {} sectors of disk {} are lost", self.machines.shared.now, lost.len(), own.of)
            });
            self.machines.report.counts.losses += 1;
        }
        self.forgive(own.of, &lost);
        self.operator.recorded_losses.insert(own.of);
        self.machines.guests[own.of].lose(&lost);
        let dies = !lost.is_empty() && self.operator.losses.one_in(HOSTS_THAT_DIE);
        if dies { self.crash(own.at) } else { Ok(()) }
    }

    /// The takeover has failed, or its host has died: it is not known whether a loss is on record.
    pub(super) fn suspect_loss(&mut self, own: &mut Own) {
        let Some(only_there) = own.only_there.take() else { return };
        self.forgive(own.of, &only_there);
        self.operator.recorded_losses.insert(own.of);
        self.machines.guests[own.of].lost.suspect(&only_there);
    }

    /// Sometimes accepts the loss of a disk that is not attached until its loss is accepted.
    pub(super) fn accept_losses(&mut self) -> Flow {
        let is_whole =
            |of: usize| (0..HOSTS).any(|at| self.owns(at, of) && self.machines.hosts[at].is_whole(of));
        let whole: Vec<usize> = (0..DISKS).filter(|of| is_whole(*of)).collect();
        self.operator.recorded_losses.retain(|of| !whole.contains(of));
        for (at, of) in (0..HOSTS).flat_map(|at| (0..DISKS).map(move |of| (at, of))) {
            if !self.machines.hosts[at].is_damaged(of) || !self.operator.losses.one_in(LOOKS_BEFORE_ACCEPTING)
            {
                continue;
            }
            let is_known = self.operator.is_busy_with(of)
                || !self.machines.guests[of].lost.is_empty()
                || self.operator.recorded_losses.contains(&of);
            if self.owns(at, of) && !is_known {
                return violation!("host {at} has lost blocks of disk {of}");
            }
            tell(|| {
                format!("{:>10} the loss of disk {of} is accepted on host {at}", self.machines.shared.now)
            });
            let shared = &mut self.machines.shared;
            self.machines.hosts[at].with(shared, of, |migration, _, _| migration.accept_loss())?;
        }
        Ok(())
    }

    /// Learns from owners that have attached their disks again which sectors are lost.
    pub(super) fn hear_of_losses(&mut self) -> Flow {
        for of in 0..DISKS {
            if self.machines.guests[of].lost.is_empty() || self.operator.is_busy_with(of) {
                continue;
            }
            let Some(at) = (0..HOSTS).find(|at| self.owns(*at, of)) else { continue };
            if !self.machines.hosts[at].has_attached(of) {
                continue;
            }
            let lost = self.machines.hosts[at].lost_sectors(of);
            if let Err(sector) = self.machines.guests[of].lost.found(&lost) {
                return violation!("host {at} has lost sector {sector} of disk {of}");
            }
        }
        Ok(())
    }

    /// Makes a guest that is served rewrite lost sectors, if there are any.
    pub(super) fn rewrite_lost(&mut self, of: usize) -> Flow {
        let Some(lost) = self.machines.guests[of].lost.first() else { return Ok(()) };
        let config = &self.machines.shared.plan.disks[of];
        let first = block_around(config, lost).start;
        // A block with lost sectors is only written as a whole.
        let end = block_around(config, (first + MOST_REWRITTEN).min(config.sectors) - 1).end;
        let guest = &mut self.machines.guests[of];
        let host = &mut self.machines.hosts[guest.host];
        if guest.in_flight() == 0
            && !guest.is_stopped
            && host.may_serve(of)
            && let Some(disk) = host.disk(of)
        {
            let sectors = (end - first) as u32;
            guest.submit(&mut self.machines.shared, host, disk, Op::Write { fua: false }, first, sectors)?;
            self.machines.post();
        }
        Ok(())
    }
}
