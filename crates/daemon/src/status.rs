//! Converts the engine's snapshots into what the control API reports.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use haversack_api::{
    BlockCounters, DeviceStatus, DiskState, DiskStatus, Elsewhere, ErrorCounters, FlashWrites, Latency,
    LatencyByKind, Mode, PoolState, PoolStatus, RequestCounters, Status, SteppedStatus, Usage,
};
use haversack_core::{DiskStats, DiskUsage};
use haversack_engine::histogram::Histogram;
use haversack_engine::snapshot::{DeviceSnapshot, DiskSnapshot, Latencies, Snapshot, Stepped};
use haversack_model::{BLOCK_BYTES, DiskId, SECTOR_BYTES};

use crate::daemon::{Daemon, Disk};
use crate::error::{DaemonError, Result};
use crate::helper::Helper;
use crate::locked::Locked;
use crate::pool::{KnownDisk, Pool, left_dirty};
use crate::sandbox::Sandbox;

const BLOCK: u64 = BLOCK_BYTES as u64;

impl Daemon {
    /// Returns the status of everything.
    pub fn status(&self) -> Status {
        let (mut pools, mut disks) = (Vec::new(), Vec::new());
        for pool in self.pools() {
            let snapshot = pool.backend.snapshot().ok();
            let known = pool.known.locked().clone();
            disks.extend(self.disks_of(&pool.name, known, snapshot.as_ref()));
            pools.push(self.status_of(pool, snapshot.as_ref()));
        }
        for (name, why) in self.closed.closed() {
            disks.extend(self.disks_of(name, HashMap::new(), None));
            pools.push(closed_status(name, why));
        }
        pools.sort_by(|a, b| a.name.cmp(&b.name));
        disks.sort_by(|a, b| a.name.cmp(&b.name));
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            uptime_s: self.started.elapsed().as_secs(),
            starting: self.is_starting(),
            sandbox: self.sandbox().map(Sandbox::status),
            directory: self.directory_status(),
            pools,
            disks,
        }
    }

    /// Returns the status of a pool.
    ///
    /// # Errors
    /// There is no pool of that name.
    pub fn pool_status(&self, name: &str) -> Result<PoolStatus> {
        if let Some((name, why)) = self.closed.closed().find(|(closed, _)| *closed == name) {
            return Ok(closed_status(name, why));
        }
        let pool = self.pool(name)?;
        Ok(self.status_of(pool, pool.backend.snapshot().ok().as_ref()))
    }

    fn status_of(&self, pool: &Pool, snapshot: Option<&Snapshot>) -> PoolStatus {
        let left = left_dirty(self, pool).into_iter();
        let warnings = left.map(|(disk, what)| format!("disk {disk}: {what}")).collect();
        let endurance = self.budgets.status(&pool.name);
        PoolStatus { warnings, endurance, ..pool_status(pool, snapshot) }
    }

    /// Returns the status of a disk.
    ///
    /// # Errors
    /// There is no disk of that name.
    pub fn disk_status(&self, name: &str) -> Result<DiskStatus> {
        let found = self.status().disks.into_iter().find(|disk| disk.name == name);
        found.ok_or_else(|| DaemonError::NoSuch { what: "disk", name: name.to_string() })
    }

    /// Returns the disks of a pool: those that the daemon has by name, and those that only the pool knows.
    fn disks_of(
        &self,
        pool: &str,
        mut known: HashMap<DiskId, KnownDisk>,
        snapshot: Option<&Snapshot>,
    ) -> Vec<DiskStatus> {
        let mut statuses = Vec::new();
        for (name, disk) in self.disks() {
            if disk.config().pool != pool {
                continue;
            }
            let known = known.remove(&disk.id);
            let shown = snapshot.and_then(|s| s.disks.iter().find(|d| d.id == disk.id));
            let mut status = named(&name, &disk, known, shown);
            status.base = shown.and_then(|shown| self.base_status(&disk, shown));
            if let Some(hosts) = self.hosts() {
                (status.replica, status.kept_replica) = hosts.replicas.shown(disk.id);
                let elsewhere = shown.and_then(|shown| shown.elsewhere);
                status.elsewhere = elsewhere.map(|there| Elsewhere {
                    host: hosts.name_of(there.host),
                    needs_blocks: there.needs_blocks,
                    is_by_force: there.is_by_force,
                });
            }
            (status.policy, status.measured) = self.with_policy(|policy| policy.of_disk(pool, &name));
            statuses.push(status);
        }
        statuses.extend(known.into_iter().map(|(id, known)| unnamed(id, pool, known)));
        statuses
    }
}

fn blank(name: String, id: DiskId, pool: &str, state: DiskState) -> DiskStatus {
    DiskStatus {
        name,
        id: id.to_string(),
        pool: pool.to_string(),
        state,
        error: None,
        size_bytes: 0,
        config: None,
        mode: None,
        policy: None,
        measured: None,
        base: None,
        replica: None,
        kept_replica: None,
        elsewhere: None,
        origin_up: false,
        clients: 0,
        usage: Usage::default(),
        requests: RequestCounters::default(),
        blocks: BlockCounters::default(),
        errors: ErrorCounters::default(),
        vhost_user_latency: LatencyByKind::default(),
        nbd_latency: LatencyByKind::default(),
        origin_latency: LatencyByKind::default(),
    }
}

fn add_known(status: &mut DiskStatus, known: KnownDisk) {
    status.size_bytes = known.sectors * SECTOR_BYTES as u64;
    (status.usage.usage_bytes, status.usage.dirty_bytes) = (known.cached_bytes, known.dirty_bytes);
    if status.state == DiskState::Detached && known.dirty_bytes > 0 {
        status.error = Some(known.left_dirty());
    }
}

fn unnamed(id: DiskId, pool: &str, known: KnownDisk) -> DiskStatus {
    let mut status = blank(id.to_string(), id, pool, DiskState::Detached);
    add_known(&mut status, known);
    status
}

fn named(name: &str, disk: &Disk, known: Option<KnownDisk>, shown: Option<&DiskSnapshot>) -> DiskStatus {
    let config = disk.config();
    let mut status = disk.with(|inner| {
        let mut status = blank(name.to_string(), disk.id, &config.pool, inner.state);
        let refusal = || inner.helper.as_ref().and_then(Helper::refusal);
        status.error = inner.error.clone().or_else(refusal);
        status
    });
    if let Some(known) = known {
        add_known(&mut status, known);
    }
    if let Some(shown) = shown {
        status.size_bytes = shown.sectors * SECTOR_BYTES as u64;
        (status.origin_up, status.clients) = (shown.origin_up, shown.clients);
        status.mode = Some(Mode::Fixed(shown.mode));
        status.usage = usage(&shown.usage);
        status.requests = requests(&shown.stats);
        status.blocks = blocks(&shown.stats);
        status.errors = ErrorCounters {
            failed_requests: shown.stats.failed_requests,
            origin_errors: shown.origin_errors,
            corrupt_blocks: shown.stats.corrupt_blocks,
            crash_dropped_blocks: shown.stats.crash_dropped_blocks,
            lost_blocks: shown.stats.lost_blocks,
        };
        status.vhost_user_latency = latencies(&shown.vhost_user_latency);
        status.nbd_latency = latencies(&shown.nbd_latency);
        status.origin_latency = latencies(&shown.origin_latency);
    }
    status.config = Some(config);
    status
}

fn usage(usage: &DiskUsage) -> Usage {
    Usage {
        target_bytes: usage.target_blocks * BLOCK,
        usage_bytes: usage.usage_blocks * BLOCK,
        dirty_bytes: usage.dirty_blocks * BLOCK,
        mirrored_bytes: usage.mirrored_blocks * BLOCK,
        oldest_dirty_us: usage.oldest_dirty_us,
        origin_in_order: usage.origin_in_order,
        segments: usage.segments,
    }
}

fn requests(stats: &DiskStats) -> RequestCounters {
    let best = (0..8u8).max_by_key(|phase| (stats.start_phases[usize::from(*phase)], 7 - phase));
    RequestCounters {
        reads: stats.reads,
        writes: stats.writes,
        flushes: stats.flushes,
        zeroes: stats.zeroes,
        read_hits: stats.read_hits,
        data_stage_hits: stats.data_stage_hits,
        read_misses: stats.read_misses,
        write_hits: stats.write_hits,
        write_misses: stats.write_misses,
        not_admitted: stats.not_admitted,
        overflowed: stats.overflowed_blocks,
        fills_skipped: stats.fills_skipped,
        best_phase: best.unwrap_or_default(),
    }
}

fn blocks(stats: &DiskStats) -> BlockCounters {
    BlockCounters {
        read_bytes: stats.read_bytes,
        written_bytes: stats.written_bytes,
        origin_read_bytes: stats.origin_read_bytes,
        origin_written_bytes: stats.origin_written_bytes,
        cleaned_bytes: stats.cleaned_bytes,
        cleaned_blocks: stats.cleaned_blocks,
        flash: flash_writes(stats),
    }
}

/// Returns flash writes by cause.
pub fn flash_writes(stats: &DiskStats) -> FlashWrites {
    FlashWrites {
        write_bytes: stats.flash_write_blocks * BLOCK,
        fill_bytes: stats.flash_fill_blocks * BLOCK,
        mirror_bytes: stats.flash_mirror_blocks * BLOCK,
        batch_page_bytes: stats.flash_batch_pages * BLOCK,
        rewrite_page_bytes: stats.flash_rewrite_pages * BLOCK,
        intent_page_bytes: stats.flash_intent_pages * BLOCK,
    }
}

fn latency(histogram: &Histogram) -> Latency {
    Latency {
        count: histogram.count(),
        mean_us: histogram.mean_us(),
        p50_us: histogram.quantile_us(0.5),
        p99_us: histogram.quantile_us(0.99),
        p999_us: histogram.quantile_us(0.999),
    }
}

fn latencies(latencies: &Latencies) -> LatencyByKind {
    LatencyByKind {
        read: latency(&latencies.read),
        write: latency(&latencies.write),
        flush: latency(&latencies.flush),
    }
}

/// Returns the state of a pool.
pub fn pool_state(pool: &Pool, snapshot: Option<&Snapshot>) -> PoolState {
    match snapshot {
        None => PoolState::Stopped,
        Some(s) if s.pool.devices == 0 || pool.is_lost.load(Ordering::Relaxed) => PoolState::Lost,
        Some(s) if s.pool.degraded || pool.missing_devices > 0 => PoolState::Degraded,
        Some(_) => PoolState::Ok,
    }
}

fn closed_status(name: &str, why: String) -> PoolStatus {
    PoolStatus {
        name: name.to_string(),
        state: PoolState::Failed,
        error: Some(why),
        warnings: Vec::new(),
        endurance: None,
        capacity_bytes: 0,
        usage_bytes: 0,
        dirty_bytes: 0,
        free_segments: 0,
        memory_bytes: 0,
        time_us: 0,
        ios_in_flight: 0,
        stepped: None,
        flushes: 0,
        record_pages: 0,
        devices: Vec::new(),
        missing: Vec::new(),
    }
}

fn pool_status(pool: &Pool, snapshot: Option<&Snapshot>) -> PoolStatus {
    let state = pool_state(pool, snapshot);
    let stats = snapshot.map(|s| s.pool).unwrap_or_default();
    PoolStatus {
        name: pool.name.clone(),
        state,
        error: None,
        warnings: Vec::new(),
        endurance: None,
        capacity_bytes: stats.capacity_blocks * BLOCK,
        usage_bytes: stats.usage_blocks * BLOCK,
        dirty_bytes: stats.dirty_blocks * BLOCK,
        free_segments: stats.free_segments,
        memory_bytes: stats.memory_bytes,
        time_us: snapshot.map_or(0, |s| s.time_us),
        ios_in_flight: snapshot.map_or(0, |s| s.ios_in_flight),
        stepped: snapshot.and_then(|s| s.stepped).map(stepped),
        flushes: stats.flushes,
        record_pages: stats.record_pages,
        devices: snapshot.map(|s| s.devices.iter().map(device).collect()).unwrap_or_default(),
        missing: pool.backend.missing_devices().iter().map(ToString::to_string).collect(),
    }
}

fn stepped(stepped: Stepped) -> SteppedStatus {
    SteppedStatus { next_us: stepped.next_us, ios: stepped.ios, requests: stepped.requests }
}

fn device(device: &DeviceSnapshot) -> DeviceStatus {
    DeviceStatus {
        number: device.device.0,
        path: device.path.clone(),
        capacity_bytes: device.capacity_bytes,
        errors: device.errors,
        read_bytes: device.read_bytes,
        written_bytes: device.written_bytes,
        latency: latencies(&device.latency),
    }
}
