//! Opening a pool: finding its devices, then opening all its arenas at the same time, each on the thread that will run
//! it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use haversack_core::OpenReport;
use haversack_model::{ArenaId, ArenaNo, DiskId};

use crate::arena::{Arena, ArenaHandle, ArenaOpening, Starting};
use crate::assembly::{self, Assembly};
use crate::config::PoolSettings;
use crate::error::{EngineError, Result};
use crate::extents;
use crate::mailbox::Mailbox;
use crate::pool_clock::PoolClock;
use crate::pool_handle::PoolHandle;
use crate::siblings::Siblings;

/// An open pool. Dropping it stops its threads immediately, like a kill: nothing acknowledged is lost, and the
/// next start finds the staging area. For a clean stop call [`PoolHandle::shutdown`] first.
pub struct OpenPool {
    handle: PoolHandle,
    arenas: Vec<Arena>,
}

impl OpenPool {
    /// Opens a pool and starts its reactors. Takes as long as it takes to read the pool's metadata.
    ///
    /// # Errors
    /// A device or an arena cannot be opened. No thread runs then.
    pub fn start(settings: &PoolSettings) -> Result<(OpenPool, OpenReport)> {
        let clock = Arc::new(PoolClock::open(settings.clock_file.as_deref())?);
        let mut assembly = assembly::assemble(&settings.name, &settings.devices)?;
        // All of them must have ended before an error is returned: they hold locks.
        let started = start_arenas(settings, &mut assembly, &clock)?;
        let opened: Vec<Result<(Arena, OpenReport)>> = started.into_iter().map(Starting::wait).collect();
        let opened: Vec<(Arena, OpenReport)> =
            opened.into_iter().collect::<Result<_>>().map_err(|error| assembly.explain(error))?;
        assembly.tell();
        assembly.label();
        tell_partial(&settings.name, opened.iter().map(|(_, report)| report));
        let (arenas, reports): (Vec<Arena>, Vec<OpenReport>) = opened.into_iter().unzip();
        let handles: Vec<ArenaHandle> = arenas.iter().map(Arena::handle).collect();
        let handle = PoolHandle::new(handles, homes(&settings.name, &reports), assembly.missing);
        let mut reports = reports.into_iter();
        let mut report = reports.next().expect("a pool has an arena");
        reports.for_each(|other| report.add(other));
        Ok((OpenPool { handle, arenas }, report))
    }

    /// Tells all threads to stop, without waiting for them. Dropping the pool afterwards waits.
    pub fn end(&self) {
        self.arenas.iter().for_each(Arena::end);
    }

    /// Returns a handle to the pool.
    pub fn handle(&self) -> PoolHandle {
        self.handle.clone()
    }
}

fn start_arenas(
    settings: &PoolSettings,
    assembly: &mut Assembly,
    clock: &Arc<PoolClock>,
) -> Result<Vec<Starting>> {
    let extents = extents::of_whole_pool(&mut assembly.devices)?;
    let arenas = extents.len() as u8;
    settings.check_memory(arenas)?;
    let mailboxes: Vec<_> =
        extents.iter().map(|_| Mailbox::new()).collect::<std::io::Result<_>>().map_err(EngineError::Ring)?;
    let senders: Vec<Mailbox> = mailboxes.iter().map(|(mailbox, _)| mailbox.clone()).collect();
    let pool = assembly.pool;
    let start = |(number, (extents, mailbox)): (u8, (crate::media::Devices, _))| {
        let siblings = Siblings::of(ArenaNo(number), &senders);
        let settings = settings.of_arena(ArenaId { pool, number: ArenaNo(number) }, arenas);
        let opening = ArenaOpening { settings, extents: extents.devices, siblings };
        Arena::start(opening, clock.clone(), mailbox)
    };
    (0..).zip(extents.into_iter().zip(mailboxes)).map(start).collect()
}

/// Returns the arena of each disk that the pool knows.
fn homes(pool: &str, reports: &[OpenReport]) -> HashMap<DiskId, ArenaNo> {
    let mut homes = HashMap::new();
    for report in reports {
        for disk in &report.disks {
            if let Some(other) = homes.insert(disk.id, report.arena.number) {
                tracing::error!(pool, disk = %disk.id, "two arenas know the disk, {other} and {}", report.arena.number);
            }
        }
    }
    homes
}

/// Warns of devices that only some of the arenas use, because a crash cut short their joining or leaving.
fn tell_partial<'a>(pool: &str, reports: impl Iterator<Item = &'a OpenReport>) {
    let (mut arenas, mut users) = (0, BTreeMap::new());
    for report in reports {
        arenas += 1;
        for (device, _) in &report.devices {
            *users.entry(*device).or_insert(0) += 1;
        }
    }
    for (device, count) in users.into_iter().filter(|(_, count)| *count < arenas) {
        tracing::warn!(
            pool,
            "device {device} is used by {count} of {arenas} arenas: remove it with `haversack pool remove`, and add it again to use all of it"
        );
    }
}

impl Drop for OpenPool {
    fn drop(&mut self) {
        // Arenas that leave a checkpoint write it at the same time.
        self.end();
    }
}
