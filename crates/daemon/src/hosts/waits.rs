//! Guests that wait here for a disk whose host, according to the record, may not have it any more.
//!
//! The record says which host the disk was released to. That host may be dead, and may have passed the disk on before; or another
//! one has taken the disk over since, and this host was not told. So all hosts that are connected are asked what they have on record
//! as long as a guest waits. One that says that it owns the disk under a higher epoch is asked for it from then on. What a host
//! says of a third one is a lead: that one is asked as well, also if no guest waits.
//!
//! Invariants
//! - Only what a host says of itself makes this host ask it for the disk.
//! - A lead is followed in the next round: two hosts that know nothing newer than each other do not make the questions multiply.
//! - If no host that is connected has the disk, the operator is told once per wait.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use haversack_engine::RecordedDisk;
use haversack_migrate::{HostRecord, KnownOwner};
use haversack_model::{DiskId, HostId};

use super::Hosts;
use crate::daemon::{Daemon, Disk};
use crate::locked::Locked;

/// How long a guest waits before the operator is told: hosts have been asked twice by then.
const TOLD_AFTER: Duration = Duration::from_secs(12);

/// A guest that waits for its disk.
struct Wait {
    since: Instant,
    is_told: bool,
    /// The host that says that it has the disk.
    owner: Option<HostId>,
}

/// A disk whose guest waits here.
struct Waiting {
    name: String,
    id: DiskId,
    /// The host that has it, according to the record.
    host: HostId,
}

/// See the module.
#[derive(Default)]
pub(super) struct Waits {
    waits: HashMap<DiskId, Wait>,
    leads: BTreeSet<(HostId, DiskId)>,
}

impl Daemon {
    fn waiting_disks(&self) -> Vec<Waiting> {
        let waiting = |(name, disk): (String, Arc<Disk>)| {
            let pool = self.pool(&disk.config().pool).ok()?;
            let status = pool.backend.migration_status(disk.id).ok().flatten()?;
            let host = status.owner_elsewhere().filter(|_| status.is_guest_here)?;
            Some(Waiting { name, id: disk.id, host })
        };
        self.disks().into_iter().filter_map(waiting).collect()
    }
}

impl Waits {
    /// Returns which hosts are to be asked for which disks now, whether they are connected or not.
    pub fn whom_to_ask(&mut self, daemon: &Daemon, hosts: &Hosts) -> BTreeSet<(HostId, DiskId)> {
        let waiting = daemon.waiting_disks();
        self.waits.retain(|id, _| waiting.iter().any(|disk| disk.id == *id));
        hosts.stranded.locked().retain(|name, _| waiting.iter().any(|disk| disk.name == *name));
        let mut asked = std::mem::take(&mut self.leads);
        for disk in waiting {
            self.tell_if_stranded(daemon, hosts, &disk);
            asked.extend(hosts.others().into_iter().map(|host| (host, disk.id)));
        }
        asked
    }

    /// Tells the operator if no host has a disk that could give it to the guest that waits here.
    fn tell_if_stranded(&mut self, daemon: &Daemon, hosts: &Hosts, disk: &Waiting) {
        let wait = self.waits.entry(disk.id).or_insert_with(|| Wait {
            since: Instant::now(),
            is_told: false,
            owner: None,
        });
        let has_owner =
            hosts.is_connected(disk.host) || wait.owner.is_some_and(|host| hosts.is_connected(host));
        if has_owner || wait.since.elapsed() < TOLD_AFTER {
            hosts.stranded.locked().remove(&disk.name);
            return;
        }
        let what = format!(
            "the guest waits for host '{}', which is not connected, and no host that is connected has the disk",
            hosts.name_of(wait.owner.unwrap_or(disk.host))
        );
        let hint = format!("if that host is permanently dead: 'haversack disk own {}'", disk.name);
        let message = format!("{what}; {hint}");
        if !std::mem::replace(&mut wait.is_told, true) {
            tracing::warn!(disk = disk.name, "{message}");
            daemon.events.add("owner-missing", &disk.name, message.clone());
        }
        hosts.stranded.locked().insert(disk.name.clone(), message);
    }

    /// Takes in what a host has on record of a disk, which is on record here as `disk`.
    pub fn hear(
        &mut self,
        daemon: &Daemon,
        hosts: &Hosts,
        (host, id, record): (HostId, DiskId, &HostRecord),
        disk: Option<&RecordedDisk>,
    ) {
        if disk.is_some_and(|disk| disk.info.owned) {
            return;
        }
        let known = disk.map_or(0, |disk| disk.info.epoch);
        let lead = record.owner.lead(known).filter(|lead| *lead != hosts.me && *lead != host);
        self.leads.extend(lead.map(|lead| (lead, id)));
        let KnownOwner::Me { epoch } = record.owner else { return };
        let Some(wait) = self.waits.get_mut(&id).filter(|_| epoch > known) else { return };
        wait.owner = Some(host);
        if let Some((pool, _)) = daemon.pool_with(id)
            && let Err(error) = pool.backend.heard_of_owner(id, host, epoch)
        {
            tracing::debug!(%id, "the pool is not told who has the disk: {error}");
        }
    }
}
