//! A pool as the daemon sees it: its data path, and the disks that it knows.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use haversack_api::DiskState;
use haversack_core::{CheckpointUse, DiskSummary, NoCheckpoint, OpenReport};
use haversack_engine::EngineEvent;
use haversack_model::{ArenaId, ArenaNo, BLOCK_BYTES, DiskId, Micros, SECTOR_BYTES, SectorNo, Uuid};

use crate::backend::Backend;
use crate::daemon::{Daemon, Disk, DiskInner};
use crate::error::Result;
use crate::helper::Helper;
use crate::hosts::learned::Whose;
use crate::locked::Locked;

/// A disk that a pool knows, attached or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KnownDisk {
    /// Its recorded size in sectors.
    pub sectors: u64,
    /// Bytes cached when it was last seen detached.
    pub cached_bytes: u64,
    /// The part of these that the origin does not have.
    pub dirty_bytes: u64,
}

impl KnownDisk {
    fn of(summary: &DiskSummary) -> KnownDisk {
        KnownDisk {
            sectors: summary.sectors,
            cached_bytes: summary.cached_blocks * BLOCK_BYTES as u64,
            dirty_bytes: summary.dirty_blocks * BLOCK_BYTES as u64,
        }
    }

    /// Returns the message for a disk that is dirty and that nothing attaches.
    pub fn left_dirty(&self) -> String {
        format!(
            "{} dirty bytes are only in the cache, and the disk is not attached: attach it, or forget it to destroy them",
            self.dirty_bytes
        )
    }
}

/// See the module documentation.
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub id: Uuid,
    /// Its data path.
    pub backend: Arc<dyn Backend>,
    /// The disks that it knows.
    pub known: Mutex<HashMap<DiskId, KnownDisk>>,
    /// Why the checkpoint of its last clean stop was not used, if it should have been.
    pub refused_checkpoint: Option<NoCheckpoint>,
    /// Devices that were missing when it was opened.
    pub missing_devices: usize,
    /// No cache device is left.
    pub is_lost: AtomicBool,
}

impl Pool {
    /// Makes a pool that was just opened.
    pub fn new(name: &str, backend: Arc<dyn Backend>, report: &OpenReport) -> Pool {
        if report.damaged_segments > 0 {
            tracing::warn!(
                pool = name,
                segments = report.damaged_segments,
                "metadata of segments is damaged"
            );
        }
        tracing::info!(
            pool = name,
            devices = report.devices.len(),
            disks = report.disks.len(),
            staging_survived = report.staging_survived,
            clean_stop = report.clean_stop,
            "pool opened"
        );
        Pool {
            name: name.to_string(),
            id: report.arena.pool,
            backend,
            known: Mutex::new(report.disks.iter().map(|d| (d.id, KnownDisk::of(d))).collect()),
            refused_checkpoint: refused(report),
            missing_devices: report.missing.len(),
            is_lost: AtomicBool::new(false),
        }
    }

    /// Returns the pool's current time.
    pub fn now_us(&self) -> Micros {
        self.backend.now_us()
    }

    /// Returns a disk that the pool knows.
    pub fn known(&self, id: DiskId) -> Option<KnownDisk> {
        self.known.locked().get(&id).copied()
    }
}

/// Returns why a checkpoint was not used although the pool was stopped cleanly.
fn refused(report: &OpenReport) -> Option<NoCheckpoint> {
    match report.checkpoint {
        // The pool was stopped by a program, or with settings, that write no checkpoint.
        CheckpointUse::Refused(NoCheckpoint::NotStopped) => None,
        CheckpointUse::Refused(why) => Some(why).filter(|_| report.clean_stop),
        CheckpointUse::Loaded | CheckpointUse::NotOffered => None,
    }
}

/// Logs why all metadata of a pool had to be read although it was stopped cleanly.
pub fn tell_refused(daemon: &Daemon, pool: &Pool) {
    if let Some(why) = pool.refused_checkpoint {
        let message = format!("the checkpoint of the clean stop is not used, all metadata was read: {why}");
        tracing::warn!(pool = pool.name, "{message}");
        daemon.events.add("checkpoint-refused", &pool.name, message);
    }
}

/// Returns the disks that are dirty and that nothing attaches, with a message for each.
pub fn left_dirty(daemon: &Daemon, pool: &Pool) -> Vec<(String, String)> {
    let disks = daemon.disks();
    let is_of_pool = |disk: &Disk| disk.config().pool == pool.name;
    let named: HashMap<DiskId, (&String, DiskState)> = disks
        .iter()
        .filter(|(_, disk)| is_of_pool(disk))
        .map(|(name, disk)| (disk.id, (name, disk.with(|inner| inner.state))))
        .collect();
    let mut left = Vec::new();
    for (id, known) in pool.known.locked().iter().filter(|(_, known)| known.dirty_bytes > 0) {
        let name = match named.get(id) {
            None => id.to_string(),
            Some((name, DiskState::Detached)) => (*name).clone(),
            Some(_) => continue,
        };
        let what = known.left_dirty();
        left.push((name, what));
    }
    left.sort();
    left
}

/// Logs dirty data that nothing will write back, once the disks are known at the start.
pub fn tell_left_dirty(daemon: &Daemon, pool: &Pool) {
    for (name, what) in left_dirty(daemon, pool) {
        tracing::warn!(pool = pool.name, disk = name, "{what}");
        daemon.events.add("left-dirty", &name, what);
    }
}

/// Connects a pool with the other hosts and subscribes to its events, for [`watch`]. This comes before the daemon has
/// the pool and attaches disks there.
///
/// # Errors
/// The pool has stopped.
pub fn join(daemon: &Daemon, pool: &Pool) -> Result<mpsc::Receiver<EngineEvent>> {
    let events = pool.backend.events()?;
    daemon.join_hosts(pool);
    Ok(events)
}

/// Forwards the events of a pool that the daemon has to the log and to [`crate::events::EventLog`], and records the
/// loss of a pool before its writes continue.
pub fn watch(daemon: &Arc<Daemon>, pool: &str, events: mpsc::Receiver<EngineEvent>) {
    let (daemon, pool) = (Arc::downgrade(daemon), pool.to_string());
    std::thread::spawn(move || {
        for event in events {
            let Some(daemon) = daemon.upgrade() else { return };
            take(&daemon, &pool, &event);
        }
    });
}

fn take(daemon: &Arc<Daemon>, pool: &str, event: &EngineEvent) {
    let disk_name = |disk: DiskId| daemon.name_of(pool, disk);
    let (kind, subject, message) = match event {
        EngineEvent::PoolLost { arena } => {
            note_loss(daemon, pool, *arena);
            ("pool-lost", pool.to_string(), "no cache device is left: requests go to the origins".to_string())
        }
        EngineEvent::DeviceFailed { device, lost_blocks } => {
            let message = format!(
                "cache device {} is no longer used; {lost_blocks} dirty blocks had no other copy",
                device.0
            );
            ("device-failed", pool.to_string(), message)
        }
        EngineEvent::Corruption { disk, sector, device, offset_bytes, lost } => {
            let end = if *lost { "its data is lost" } else { "it is fetched again" };
            let message = format!(
                "cache device {} at byte {offset_bytes}: the disk's block at byte {} fails its checksum; {end}",
                device.0,
                sector.0 * SECTOR_BYTES as u64
            );
            ("corruption", disk_name(*disk), message)
        }
        EngineEvent::CleanFailed { disk } => {
            ("clean-failed", disk_name(*disk), "writing dirty blocks back fails, and is retried".into())
        }
        EngineEvent::OriginAway { disk, why } => {
            ("origin-away", disk_name(*disk), format!("the origin cannot be reached, requests wait: {why}"))
        }
        EngineEvent::OriginShutsDown { disk } => {
            // The daemon can restart only its own helpers, not other NBD servers.
            let name = disk_name(*disk);
            let helper = |inner: &mut DiskInner| inner.helper.as_ref().is_some_and(Helper::replace);
            if !daemon.disk(&name).is_ok_and(|disk| disk.with(helper)) {
                return;
            }
            let message =
                "the store has cut off its helper, which is replaced if this host still owns the disk";
            ("helper-cut-off", name, message.into())
        }
        EngineEvent::OriginBack { disk } => ("origin-back", disk_name(*disk), "the origin is back".into()),
        EngineEvent::DataLost { disk, runs } => {
            let meaning = "they read as errors until they are written again";
            ("data-lost", disk_name(*disk), losses(runs, meaning))
        }
        EngineEvent::LossAccepted { disk, runs } => {
            let meaning = "their loss is accepted, and they read as the origin has them";
            ("loss-accepted", disk_name(*disk), losses(runs, meaning))
        }
        EngineEvent::MovedAway { disk, to, holds_blocks } => {
            let blocks = if *holds_blocks { ", and blocks that it needs are still here" } else { "" };
            ("moved-away", disk_name(*disk), format!("host '{}' has the disk{blocks}", daemon.host_name(*to)))
        }
        EngineEvent::MovedHere { disk, from } => {
            daemon.take_over_learned(*disk);
            daemon.take_over_measured(*disk, Whose::Ours);
            let blocks =
                from.map(|from| format!("; dirty blocks are still on host '{}'", daemon.host_name(from)));
            ("moved-here", disk_name(*disk), format!("this host has the disk{}", blocks.unwrap_or_default()))
        }
        EngineEvent::Overtaken { disk, by, dirty_blocks } => {
            let host = daemon.host_name(*by);
            let kept = match dirty_blocks {
                0 => String::new(),
                blocks => format!(
                    "; {} dirty bytes that are here and not there are kept until the disk is forgotten",
                    blocks * haversack_model::BLOCK_BYTES as u64
                ),
            };
            ("overtaken", disk_name(*disk), format!("host '{host}' has taken the disk over by force{kept}"))
        }
        EngineEvent::MoveEnded { disk } => {
            ("move-ended", disk_name(*disk), "no other host has blocks of the disk any longer".into())
        }
        EngineEvent::DeviceError { path, offset_bytes, errno } => {
            let error = std::io::Error::from_raw_os_error(*errno);
            ("device-error", pool.to_string(), format!("{} at byte {offset_bytes}: {error}", path.display()))
        }
    };
    match kind {
        "origin-back" | "moved-away" | "moved-here" | "move-ended" => {
            tracing::info!(kind, subject, "{message}");
        }
        "pool-lost" | "corruption" | "data-lost" | "overtaken" => tracing::error!(kind, subject, "{message}"),
        _ => tracing::warn!(kind, subject, "{message}"),
    }
    daemon.events.add(kind, &subject, message);
}

/// Describes where lost data was, as byte ranges, and what reads return there.
fn losses(runs: &[(SectorNo, u64)], meaning: &str) -> String {
    const MOST: usize = 64;
    let byte = |sectors: u64| sectors * SECTOR_BYTES as u64;
    let bytes: u64 = runs.iter().map(|run| byte(run.1)).sum();
    let shown: Vec<String> = runs
        .iter()
        .take(MOST)
        .map(|(first, sectors)| format!("{}-{}", byte(first.0), byte(first.0 + sectors) - 1))
        .collect();
    let more = runs.len().saturating_sub(MOST);
    let more = if more > 0 { format!(" and {more} more ranges") } else { String::new() };
    format!("{bytes} bytes were only on the cache device; {meaning}: bytes {}{more}", shown.join(", "))
}

/// Records a loss durably. Writes wait until that is done; if it cannot be recorded they keep waiting, which
/// loses nothing.
fn note_loss(daemon: &Daemon, name: &str, arena: ArenaNo) {
    let Ok(pool) = daemon.pool(name) else { return };
    pool.is_lost.store(true, Ordering::Relaxed);
    while let Err(error) = daemon.state.add_lost(ArenaId { pool: pool.id, number: arena }) {
        tracing::error!(pool = name, "cannot record the loss of the pool, its writes wait: {error}");
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
    if let Err(error) = pool.backend.loss_recorded(arena) {
        tracing::error!(pool = name, "{error}");
    }
}
