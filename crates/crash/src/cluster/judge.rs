//! What must never happen in a cluster.
//!
//! - Two hosts own a disk and are not fenced. An epoch belongs to two hosts, or a disk is owned under a lower one than
//!   before.
//! - The directory names a host that never owned the disk under that epoch; or another host's entry is replaced by one
//!   whose epoch is not higher, or deleted.
//! - A host that does not lead begins a move of the balancer.
//! - An intent is removed while the daemon that has begun its move is there and drives it.
//! - The balancer moves a VM to a host that has long been dead.
//! - The balancer moves a VM twice within the residence, or back within `no_return`, unless etcd has lost its data
//!   since and the leader's process has never seen a directory that had the earlier move. Moves off draining hosts are
//!   as urgent as an operator says.

use std::collections::{BTreeSet, HashMap, HashSet};

use haversack_cluster::{MoveRecord, Settings};
use haversack_directory::{DiskRecord, IntentRecord, Key, Value};
use haversack_model::Micros;
use haversack_moves::Order;
use serde::Deserialize;

use super::daemon::{Daemon, host_name};
use super::etcd::{Applied, Etcd, Kept};
use super::plan::{ClusterPlan, DISKS, Times};
use crate::hosts::machines::Machines;
use crate::plan::disk_id;
use crate::world::{Flow, violation};

/// A move that the balancer has begun.
struct Begun {
    vm: String,
    from: String,
    to: String,
    at: Micros,
    /// The etcd that had a record of it.
    cluster: u64,
    /// The daemons that have heard of it.
    known_by: HashSet<u64>,
}

/// Since when a daemon has been in the directory, or not.
#[derive(Clone, Copy)]
struct Presence {
    is_there: bool,
    since: Micros,
}

/// See the module documentation.
pub struct Judge {
    settings: Settings,
    times: Times,
    /// Under which epochs hosts have owned disks.
    owned: BTreeSet<(usize, usize, u64)>,
    /// The highest epoch of each disk, and whose it was.
    newest: Vec<(u64, usize)>,
    begun: Vec<Begun>,
    presence: HashMap<u64, Presence>,
    /// Since when hosts have been absent from the directory.
    away_since: HashMap<String, Micros>,
    /// The record of the balancer that each daemon has seen last.
    seen: HashMap<u64, (u64, i64)>,
}

impl Judge {
    pub fn new(plan: &ClusterPlan) -> Judge {
        Judge {
            settings: plan.settings.clone(),
            times: plan.times,
            owned: BTreeSet::new(),
            newest: vec![(0, 0); DISKS],
            away_since: HashMap::new(),
            begun: Vec::new(),
            presence: HashMap::new(),
            seen: HashMap::new(),
        }
    }

    /// Looks at the hosts' records.
    pub fn look_at_owners(&mut self, machines: &Machines) -> Flow {
        for of in 0..machines.guests.len() {
            let mut owner = None;
            for (at, host) in machines.hosts.iter().enumerate() {
                let Some(record) = host.record(of).filter(|record| record.is_owner()) else { continue };
                let epoch = record.epoch();
                if self.owned.insert((of, at, epoch)) {
                    self.is_newest(of, at, epoch, host.fenced)?;
                }
                if host.fenced {
                    continue;
                }
                if let Some(other) = owner.replace(at) {
                    return violation!("hosts {other} and {at} own disk {of}: {}", machines.describe(of));
                }
            }
        }
        Ok(())
    }

    /// A host owns a disk under an epoch that was not seen there before.
    fn is_newest(&mut self, of: usize, at: usize, epoch: u64, is_fenced: bool) -> Flow {
        let (newest, whose) = self.newest[of];
        if epoch > newest {
            self.newest[of] = (epoch, at);
        } else if !is_fenced || epoch == newest {
            return violation!("host {at} owns disk {of} under {epoch}, and host {whose} under {newest}");
        }
        Ok(())
    }

    /// Returns the highest epoch under which a host has owned a disk.
    pub fn newest_epoch(&self, of: usize) -> u64 {
        self.newest[of].0
    }

    /// Returns which host has owned a disk under that epoch.
    pub fn newest_owner(&self, of: usize) -> usize {
        self.newest[of].1
    }

    /// Looks at what was written to etcd.
    pub fn look_at_etcd(&mut self, etcd: &mut Etcd, daemons: &[Option<Daemon>], now: Micros) -> Flow {
        for applied in std::mem::take(&mut etcd.applied) {
            match &applied.key {
                Key::Disk(id) => self.disk_changed(id, &applied)?,
                Key::Intent(id) if applied.after.is_some() => begun(id, &applied)?,
                Key::Intent(id) => self.intent_removed(id, &applied, etcd, daemons, now)?,
                Key::Host(name) => self.host_changed(name, &applied, now),
                _ => {}
            }
        }
        Ok(())
    }

    /// Etcd has lost its data: no daemon is in the directory.
    pub fn lost(&mut self, now: Micros) {
        self.presence.values_mut().for_each(|one| *one = Presence { is_there: false, since: now });
    }

    fn disk_changed(&self, id: &str, applied: &Applied) -> Flow {
        let Some(by) = applied.by else { return violation!("the entry of disk {id} ends with a lease") };
        let before = applied.before.as_ref().and_then(disk);
        let Some(after) = applied.after.as_ref().and_then(disk) else {
            let name = host_name(by);
            return match before {
                Some(before) if before.host != name => {
                    violation!("host {by} deletes the entry of disk {id}, which is that of {}", before.host)
                }
                _ => Ok(()),
            };
        };
        let has_owned = |of: usize| self.owned.contains(&(of, by, after.epoch));
        let is_its = (0..DISKS).find(|of| disk_id(*of).to_string() == id).is_some_and(has_owned);
        if after.host != host_name(by) || !is_its {
            return violation!(
                "host {by} writes that {} owns disk {id} under epoch {}, which was never so",
                after.host,
                after.epoch
            );
        }
        match before {
            Some(before) if before.host != after.host && before.epoch >= after.epoch => violation!(
                "host {by} replaces the entry of disk {id} of {} under epoch {} by its own under {}",
                before.host,
                before.epoch,
                after.epoch
            ),
            _ => Ok(()),
        }
    }

    fn host_changed(&mut self, name: &str, applied: &Applied, now: Micros) {
        match applied.after {
            Some(_) => drop(self.away_since.remove(name)),
            None => drop(self.away_since.insert(name.into(), now)),
        }
        let [before, after] = [&applied.before, &applied.after].map(|kept| kept.as_ref().and_then(instance));
        if before != after {
            let gone = before.map(|instance| (instance, Presence { is_there: false, since: now }));
            let come = after.map(|instance| (instance, Presence { is_there: true, since: now }));
            self.presence.extend(gone.into_iter().chain(come));
        }
    }

    fn intent_removed(
        &self,
        id: &str,
        applied: &Applied,
        etcd: &Etcd,
        daemons: &[Option<Daemon>],
        now: Micros,
    ) -> Flow {
        let (Some(by), Some(intent)) = (applied.by, applied.before.as_ref().and_then(intent)) else {
            return Ok(());
        };
        let driver = daemons.iter().flatten().find(|daemon| daemon.instance == intent.instance);
        let Some(driver) = driver.filter(|driver| driver.host != by && driver.drives(id)) else {
            return Ok(());
        };
        let Some(Presence { is_there, since }) = self.presence.get(&driver.instance).copied() else {
            return Ok(());
        };
        let for_us = now - since;
        let entry = etcd.get(&Key::Disk(id.into())).and_then(disk);
        let is_planned =
            entry.is_some_and(|entry| (&entry.host, entry.epoch) == (&intent.from, intent.epoch));
        // Views are late, so whoever was away a moment ago may still be.
        let was_there = is_there && for_us > self.times.lease_us * 4;
        let was_just_there = !is_there && is_planned && for_us < self.times.abandoned_us / 4;
        if was_there || was_just_there {
            return violation!(
                "host {by} removes the intent of disk {id}, whose move {} drives: {intent:?}",
                driver.name
            );
        }
        Ok(())
    }

    /// Notes which daemons have heard of which moves.
    pub fn look_at_views(&mut self, daemons: &[Option<Daemon>], now: Micros) {
        for daemon in daemons.iter().flatten().filter(|daemon| daemon.has_looked) {
            let Some(cluster) = daemon.access.cluster else { continue };
            let view = &daemon.access.view;
            let revision = view.balance.as_ref().map_or(0, |seen| seen.revision);
            let seen = self.seen.insert(daemon.instance, (cluster, revision));
            if seen == Some((cluster, revision)) {
                continue;
            }
            let Some(record) = Daemon::balance(view) else { continue };
            let moves = record.state.get("moves").map(Vec::<MoveRecord>::deserialize);
            let Some(Ok(moves)) = moves else { continue };
            for begun in &mut self.begun {
                let is_it = |known: &MoveRecord| {
                    // The record must not belong to an earlier move of the same VM between the same hosts.
                    let age_us = record.clock_us.saturating_sub(known.at_us);
                    let is_no_earlier = begun.at + age_us <= now + self.times.call_us;
                    // In an etcd that may have no record of this move, it must not belong to a later one either.
                    // Records that were handed on may seem somewhat younger.
                    let is_no_later = begun.cluster == cluster || 2 * age_us >= now - begun.at;
                    (&known.vm.0, &known.from.0, &known.to.0) == (&begun.vm, &begun.from, &begun.to)
                        && is_no_earlier
                        && is_no_later
                };
                if moves.iter().any(is_it) {
                    begun.known_by.insert(daemon.instance);
                }
            }
        }
    }

    /// A leader has the program called.
    pub fn called(&mut self, order: &Order, instance: u64, cluster: u64, now: Micros) -> Flow {
        let away = self.away_since.get(&order.to).map(|since| now - since);
        if let Some(for_us) = away.filter(|for_us| *for_us > self.times.lease_us * 4) {
            return violation!("{} is moved to a host that has been away for {for_us} us", order.vm);
        }
        let is_drained = order.reason.contains("is draining");
        // A move is on record a little before the program is called.
        let slack_us = self.times.call_us * 3 + 2_000;
        let counts = |begun: &&Begun| begun.cluster == cluster || begun.known_by.contains(&instance);
        for begun in self.begun.iter().filter(counts).filter(|begun| begun.vm == order.vm && !is_drained) {
            let age_us = now - begun.at + slack_us;
            if age_us < self.settings.min_residence_us {
                return violation!("{} is moved {age_us} us after it was moved: {}", order.vm, order.reason);
            }
            if age_us < self.settings.no_return_us && begun.from == order.to {
                return violation!("{} is moved back {age_us} us after it left: {}", order.vm, order.reason);
            }
        }
        self.begun.push(Begun {
            vm: order.vm.clone(),
            from: order.from.clone(),
            to: order.to.clone(),
            at: now,
            cluster,
            known_by: HashSet::from([instance]),
        });
        Ok(())
    }
}

/// An intent of the balancer is written only by the host that leads.
fn begun(id: &str, applied: &Applied) -> Flow {
    let Some(intent) = applied.after.as_ref().and_then(intent) else { return Ok(()) };
    let leader = applied.leader.as_deref();
    let leads = matches!(leader, Some(Value::Leader(leader)) if leader.instance == intent.instance);
    if leads || intent.is_ordered {
        return Ok(());
    }
    violation!("{} begins a move of disk {id}, and another host leads: {intent:?}", intent.by)
}

/// Returns a disk's entry.
pub fn disk(kept: &Kept) -> Option<&DiskRecord> {
    if let Value::Disk(record) = &*kept.value { Some(record) } else { None }
}

fn intent(kept: &Kept) -> Option<&IntentRecord> {
    if let Value::Intent(record) = &*kept.value { Some(record) } else { None }
}

fn instance(kept: &Kept) -> Option<u64> {
    if let Value::Host(record) = &*kept.value { Some(record.instance) } else { None }
}
