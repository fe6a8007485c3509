//! What hosts ask each other apart from the protocol between them: what they have on record of disks, so that a host
//! that was cut off, or was down, learns that a disk was taken over from it. It can learn that from the directory, too.
//!
//! Who is asked when is as in the daemon, where threads and frames carry it; what follows from an answer is the same
//! code.

use std::collections::{BTreeMap, BTreeSet};

use haversack_core::DiskInfo;
use haversack_directory::View;
use haversack_migrate::{
    HostRecord, KnownOwner, complete_replica, has_complete_replica, heed, is_void_under_any, may_yield,
};
use haversack_model::Micros;
use haversack_model::random::Random;
use haversack_ownership::Record;

use super::daemon::host_named;
use super::own::{Own, is_taking};
use crate::hosts::host::host_id;
use crate::hosts::machines::Machines;
use crate::plan::disk_id;
use crate::run::tell;
use crate::world::Flow;

/// How often the host of a disk that waits here is asked for its state.
const ASK_EVERY_US: Micros = 40_000;

/// Whether two hosts are connected.
pub fn is_connected(machines: &Machines, a: usize, b: usize) -> bool {
    let runs = |at: usize| machines.hosts[at].running.is_some();
    runs(a) && runs(b) && !machines.network.is_cut(a, b, machines.shared.now)
}

/// Returns what a running host's pool has of a disk, and how many dirty blocks.
pub fn recorded(machines: &Machines, at: usize, of: usize) -> Option<(DiskInfo, u64)> {
    let disk = machines.hosts[at].disk(of)?;
    let core = &machines.hosts[at].running.as_ref()?.core;
    let dirty_blocks = core.disk_usage(disk).map_or(0, |usage| usage.dirty_blocks);
    Some((core.disk_info(disk)?, dirty_blocks))
}

fn has_losses(machines: &Machines, at: usize, of: usize) -> bool {
    let host = &machines.hosts[at];
    host.disk(of).zip(host.running.as_ref()).is_some_and(|(disk, running)| running.core.has_losses(disk))
}

/// Returns what a running host says that it has on record of a disk.
pub fn record_of(machines: &Machines, owns: &[Own], at: usize, of: usize) -> HostRecord {
    let known = recorded(machines, at, of);
    HostRecord {
        owner: known.map_or(KnownOwner::Unknown, |(info, _)| KnownOwner::of(&info)),
        dirty_blocks: known.map_or(0, |(_, dirty_blocks)| dirty_blocks),
        mode: None,
        is_taking: is_taking(owns, at, of),
        has_complete_replica: known.and_then(|(info, _)| has_complete_replica(&info)),
        replica: known.and_then(|(info, _)| complete_replica(&info)),
        has_losses: has_losses(machines, at, of),
        before: machines.hosts[at].known_before(of),
        write_cache: None,
    }
}

/// Has a host note that another one takes a disk over. Returns whether the host has recorded it; an error if it has the
/// disk itself.
pub fn yield_to(
    machines: &mut Machines,
    at: usize,
    of: usize,
    by: usize,
    epoch: u64,
) -> Flow<Result<bool, ()>> {
    let theirs = recorded(machines, by, of).and_then(|(info, _)| complete_replica(&info));
    let may = |(info, dirty_blocks): (DiskInfo, u64)| may_yield(&info, dirty_blocks, theirs);
    if !recorded(machines, at, of).is_none_or(may) {
        return Ok(Err(()));
    }
    machines.hosts[at].remember(of, 0);
    Ok(Ok(is_overtaken(machines, at, of, by, epoch)?))
}

/// Tells host `at` that host `by` has taken disk `of` over. Returns true once host `at` has recorded it.
fn is_overtaken(machines: &mut Machines, at: usize, of: usize, by: usize, epoch: u64) -> Flow<bool> {
    let Machines { hosts, shared, .. } = machines;
    let is_known = hosts[at]
        .with(shared, of, |migration, call, now| migration.overtaken(call, now, host_id(by), epoch))?;
    machines.post();
    Ok(is_known == Some(true))
}

/// Returns which other host had a disk according to a host's view of the directory, and under which epoch.
pub fn witnessed(view: &View, me: usize, of: usize) -> Option<(usize, u64)> {
    let (host, epoch) = view.owner_of(&disk_id(of).to_string())?;
    Some((host_named(host)?, epoch)).filter(|(host, _)| *host != me)
}

/// A host's questions to others.
#[derive(Default)]
pub struct Watch {
    /// The daemons that it is connected to, by host.
    connected: BTreeMap<usize, u64>,
    /// Whom it asks for which disk.
    questions: Vec<(usize, usize)>,
    /// Takeovers that this host has not recorded yet: the disk, the host that took it over, and the epoch.
    overtaken: Vec<(usize, usize, u64)>,
    /// Hosts to ask about disks: another host has answered that they have the disk, or had it later than that host.
    leads: BTreeSet<(usize, usize)>,
    next_ask: Micros,
    /// The revision of the directory that it looked at last.
    seen: i64,
}

impl Watch {
    /// Does what is due on host `me`. `instances` are the daemons of all hosts, `view` is what this one knows of the
    /// directory.
    pub fn look(
        &mut self,
        me: usize,
        machines: &mut Machines,
        (instances, view): (&[Option<u64>], &View),
        owns: &[Own],
        rng: &mut Random,
    ) -> Flow {
        self.look_at_connections(me, machines, instances);
        self.look_at_directory(me, machines, view)?;
        for (other, of) in std::mem::take(&mut self.questions) {
            let record = record_of(machines, owns, other, of);
            // A host that is taking the disk over is asked again until the takeover has succeeded or failed.
            if rng.one_in(3) && !record.is_taking {
                self.hear(me, machines, other, of, &record)?;
            } else {
                self.questions.push((other, of));
            }
        }
        for (of, by, epoch) in std::mem::take(&mut self.overtaken) {
            let is_here = recorded(machines, me, of).is_some();
            if is_here && !is_overtaken(machines, me, of, by, epoch)? {
                self.overtaken.push((of, by, epoch));
            }
        }
        Ok(())
    }

    fn look_at_connections(&mut self, me: usize, machines: &Machines, instances: &[Option<u64>]) {
        let others = (0..instances.len()).filter(|other| *other != me && is_connected(machines, me, *other));
        let connected: BTreeMap<usize, u64> =
            others.filter_map(|other| Some((other, instances[other]?))).collect();
        let is_same = |other: &usize| connected.get(other) == self.connected.get(other);
        self.questions.retain(|(other, _)| connected.contains_key(other) && is_same(other));
        let disks = 0..machines.guests.len();
        for other in connected.keys().filter(|other| !is_same(other)) {
            self.questions.extend(disks.clone().map(|of| (*other, of)));
        }
        if machines.shared.now >= self.next_ask {
            self.next_ask = machines.shared.now + ASK_EVERY_US;
            for of in disks {
                let owner = owner_elsewhere(machines, me, of).filter(|host| connected.contains_key(host));
                self.questions.extend(owner.map(|host| (host, of)));
                if owner_elsewhere(machines, me, of).is_some() && machines.guests[of].host == me {
                    self.leads.extend(connected.keys().map(|host| (*host, of)));
                }
            }
            let leads = std::mem::take(&mut self.leads).into_iter();
            self.questions.extend(leads.filter(|(host, _)| connected.contains_key(host)));
        }
        self.connected = connected;
    }

    /// Notes which disks other hosts have taken over according to the directory.
    fn look_at_directory(&mut self, me: usize, machines: &mut Machines, view: &View) -> Flow {
        if std::mem::replace(&mut self.seen, view.revision) == view.revision {
            return Ok(());
        }
        for of in 0..machines.guests.len() {
            let Some((by, epoch)) = witnessed(view, me, of) else { continue };
            let info = recorded(machines, me, of).map(|(info, _)| info);
            let heeded = heed(epoch, machines.hosts[me].known_before(of), info.map(|info| info.epoch));
            if heeded.floor.is_some() || heeded.is_overtaken {
                tell(|| {
                    let now = machines.shared.now;
                    format!(
                        "{now:>10} host {me} reads that host {by} has had disk {of} under {epoch}: {heeded:?}"
                    )
                });
            }
            if let Some(floor) = heeded.floor {
                let Machines { hosts, shared, .. } = machines;
                hosts[me].remember(of, floor.epoch);
                hosts[me].with(shared, of, |migration, _, _| migration.has_forgotten(floor.epoch))?;
                machines.post();
            }
            if heeded.is_overtaken {
                self.overtaken.push((of, by, epoch));
            }
        }
        Ok(())
    }

    fn hear(
        &mut self,
        me: usize,
        machines: &mut Machines,
        by: usize,
        of: usize,
        record: &HostRecord,
    ) -> Flow {
        let Some((info, dirty_blocks)) = recorded(machines, me, of) else { return Ok(()) };
        let news = record.news(is_void_under_any(&info, dirty_blocks), info.epoch);
        if let Some(epoch) = news {
            tell(|| {
                format!("{:>10} host {me} hears that host {by} has taken disk {of} over", machines.shared.now)
            });
            machines.hosts[me].remember(of, epoch);
            self.overtaken.push((of, by, epoch));
        }
        if info.owned {
            return Ok(());
        }
        let lead = record.owner.lead(info.epoch).map(|lead| lead.0 as usize - 1);
        self.leads.extend(lead.filter(|lead| *lead != me && *lead != by).map(|lead| (lead, of)));
        if let (KnownOwner::Me { epoch }, None) = (record.owner, news) {
            let Machines { hosts, shared, .. } = machines;
            hosts[me].with(shared, of, |migration, call, now| {
                migration.heard_of_owner(call, now, host_id(by), epoch);
            })?;
            machines.post();
        }
        Ok(())
    }
}

/// Returns the host of a disk that waits on another one.
fn owner_elsewhere(machines: &Machines, at: usize, of: usize) -> Option<usize> {
    match machines.hosts[at].record(of)? {
        Record::Released { to, .. } | Record::Overtaken { by: to, .. } => Some(to.0 as usize - 1),
        Record::Owner { .. } | Record::Unknown => None,
    }
}
