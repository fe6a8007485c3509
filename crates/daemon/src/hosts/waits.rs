//! Finds the owner of a disk for which a guest waits here.
//!
//! This host's record names the host to which the disk was released. That host may be dead and may have passed the disk
//! on before it died. Or another host has taken the disk over since, and this host was not told. So while a guest
//! waits, this host asks all connected hosts what they have on record. If a host answers that it owns the disk under a
//! higher epoch, this host requests the disk from it. If an answer names a third host as a later owner, that host is a
//! *lead*. Leads are asked even if no guest waits.
//!
//! Invariants
//! - An answer makes this host request the disk only from the host that answered.
//! - A lead is followed in the next round, so two hosts that know nothing newer than each other do not multiply
//!   questions.
//! - If neither the host on record nor a host that says that it owns the disk is connected, the operator is told once
//!   per wait.

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
    /// The host that says that it owns the disk.
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
    /// Returns which hosts to ask now, and about which disks. Some of these hosts may not be connected.
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

    /// Reports a disk for which a guest waits here and which no connected host can provide.
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
            "the guest waits for host '{}', which is not connected, and no connected host has the disk",
            hosts.name_of(wait.owner.unwrap_or(disk.host))
        );
        let hint = format!("if that host is permanently dead, run 'haversack disk own {}'", disk.name);
        let message = format!("{what}; {hint}");
        // Before the event: who reads the event and then asks for the status finds the reason there.
        hosts.stranded.locked().insert(disk.name.clone(), message.clone());
        if !std::mem::replace(&mut wait.is_told, true) {
            tracing::warn!(disk = disk.name, "{message}");
            daemon.events.add("owner-missing", &disk.name, message);
        }
    }

    /// Remembers which other host may have a disk, according to a host's record of it. `disk` is the record here.
    pub fn follow(
        &mut self,
        hosts: &Hosts,
        (host, id, record): (HostId, DiskId, &HostRecord),
        disk: Option<&RecordedDisk>,
    ) {
        let known = disk.map_or(0, |disk| disk.info.epoch);
        let is_owned = disk.is_some_and(|disk| disk.info.owned);
        let lead = record.owner.lead(known).filter(|lead| *lead != hosts.me && *lead != host && !is_owned);
        self.leads.extend(lead.map(|lead| (lead, id)));
    }

    /// Asks a host for the disk that a guest waits for, if the host says that it owns the disk. A takeover must be
    /// recorded instead: blocks here may be obsolete then.
    pub fn hear(
        &mut self,
        daemon: &Daemon,
        (host, id, record): (HostId, DiskId, &HostRecord),
        disk: Option<&RecordedDisk>,
    ) {
        let known = disk.map_or(0, |disk| disk.info.epoch);
        let KnownOwner::Me { epoch } = record.owner else { return };
        if epoch <= known || disk.is_some_and(|disk| disk.info.owned) {
            return;
        }
        let Some(wait) = self.waits.get_mut(&id) else { return };
        wait.owner = Some(host);
        if let Some((pool, _)) = daemon.pool_with(id)
            && let Err(error) = pool.backend.heard_of_owner(id, host, epoch)
        {
            tracing::debug!(%id, "the pool was not told which host has the disk: {error}");
        }
    }
}
