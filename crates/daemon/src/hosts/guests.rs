//! Guests that are about to arrive: a hypervisor opens a disk here while another host has it. This indicates a
//! migration that was not announced, so the other host is asked to send the cache ahead until the hypervisor closes the
//! disk again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use haversack_model::{DiskId, HostId};

use super::talk::Question;
use super::{Hosts, LOOK_EVERY};
use crate::daemon::{Daemon, Disk};
use crate::pool::Pool;

/// How often a host is asked again: it may have been away.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// Looks for such disks until the daemon ends.
///
/// # Errors
/// The thread cannot be started.
pub fn watch(daemon: &Arc<Daemon>) -> std::io::Result<()> {
    let mut watch = Watch::default();
    super::watch(
        daemon,
        ("guests", "looking for guests that are about to come"),
        LOOK_EVERY,
        move |daemon, hosts| {
            watch.look(daemon, hosts);
            daemon.measure_paces(hosts);
        },
    )
}

#[derive(Default)]
struct Watch {
    /// The hosts that were asked to send disks, and when.
    asked: HashMap<DiskId, (HostId, Instant)>,
    /// Disks that were served here when they were last looked at.
    served: HashSet<DiskId>,
    /// Disks whose guests have moved away, and whose hypervisors have not closed them yet.
    left: HashSet<DiskId>,
}

impl Watch {
    /// Requests the disks that a hypervisor has opened since the last call, and cancels the requests for those that it
    /// has closed.
    fn look(&mut self, daemon: &Daemon, hosts: &Hosts) {
        let mut expected = HashSet::new();
        let mut served = HashSet::new();
        let mut opened = HashSet::new();
        for pool in daemon.pools() {
            let Ok(snapshot) = pool.backend.snapshot() else { continue };
            let front_ends = front_ends(daemon);
            served.extend(snapshot.disks.iter().filter(|disk| disk.is_served).map(|disk| disk.id));
            let elsewhere = snapshot.disks.iter().filter(|disk| !disk.is_served);
            let in_use = elsewhere.filter(|disk| disk.clients > 0 || front_ends.contains(&disk.id));
            for disk in in_use.map(|disk| disk.id) {
                opened.insert(disk);
                if self.served.contains(&disk) {
                    self.left.insert(disk);
                }
                let owner = if self.left.contains(&disk) { None } else { owner(pool, disk) };
                let Some(owner) = owner else { continue };
                expected.insert(disk);
                let due = |(of, at): &(HostId, Instant)| *of != owner || at.elapsed() >= ASK_EVERY;
                if self.asked.get(&disk).is_none_or(due) {
                    self.asked.insert(disk, (owner, Instant::now()));
                    // The answer does not matter: what is not sent ahead is fetched later.
                    drop(hosts.ask_now(&[owner], disk, &Question::Send));
                }
            }
        }
        self.left.retain(|disk| opened.contains(disk));
        self.served = served;
        let gone: Vec<DiskId> = self.asked.keys().copied().filter(|disk| !expected.contains(disk)).collect();
        for disk in gone {
            if let Some((owner, _)) = self.asked.remove(&disk) {
                // The owner knows whether the disk has left it.
                drop(hosts.ask_now(&[owner], disk, &Question::Stop));
            }
        }
    }
}

/// Returns the host that has a disk, if it is another one.
fn owner(pool: &Pool, disk: DiskId) -> Option<HostId> {
    pool.backend.migration_status(disk).ok().flatten()?.owner_elsewhere()
}

/// Returns the disks with a vhost-user front end.
fn front_ends(daemon: &Daemon) -> HashSet<DiskId> {
    let disks = daemon.disks();
    let has_one = |disk: &Disk| {
        disk.with(|inner| inner.vhost_user.as_ref().is_some_and(|server| !server.connected().is_empty()))
    };
    disks.values().filter(|disk| has_one(disk)).map(|disk| disk.id).collect()
}
