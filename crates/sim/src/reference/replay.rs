//! Plays a trace to a reference policy: one cache for all volumes, with the rules of the write mode.
//!
//! | mode | read miss | write |
//! |---|---|---|
//! | wb, wt | fills | inserts the block |
//! | wa | fills | updates a cached block, leaves others out |
//! | wi | fills | drops the block |
//! | pt | passes | passes |
//!
//! A write that the cache takes is acknowledged before the origin has it in modes wb and wt-cache: with wb the origin
//! is written when the block is evicted, one I/O for each block, with wt-cache at once. No request waits for either,
//! but both keep the origin busy. In all other modes, and if a filter keeps a block out, a write waits for the origin.
//! A discard is also sent to the origin, and so is a flush if the origin was written since the last one: as with the
//! production cache they keep it busy, and a discard counts as a write.
//!
//! Invariant
//! - Stations are given I/Os in the order in which these begin: one that begins later delays none that began before.

use std::collections::BTreeSet;

use haversack_model::{WriteMode, WriteThroughAck};
use haversack_trace::{Access, Op, VolumeNo};

use super::reads::Reads;
use super::{Policy, PolicyName};
use crate::agenda::Agenda;
use crate::cell::{Cell, CellResult};
use crate::error::SimError;
use crate::grid::Grids;
use crate::key::{self, Key, KeySet};
use crate::latency::{IoKind, Stations};
use crate::meter::{Meter, MeterSettings};
use crate::settings::Settings;

/// See the module.
pub struct Replay<P> {
    name: PolicyName,
    /// Blocks; `None` for no limit.
    blocks: Option<u64>,
    /// The policy.
    pub policy: P,
    /// The blocks of an access.
    pub grids: Grids,
    block_bytes: u64,
    /// The rules for writes.
    mode: WriteMode,
    /// The counters.
    pub meter: Meter,
    /// The model of time.
    stations: Option<Stations>,
    /// What begins when other I/Os are done.
    deferred: Agenda<Deferred>,
    /// Cached blocks that the origin does not have.
    dirty: KeySet,
    /// Volumes whose origin was written since it was last flushed.
    unflushed: BTreeSet<VolumeNo>,
    /// The blocks that the last access has replaced.
    evicted: Vec<Key>,
    /// Recent latencies of reads.
    pub reads: Reads,
}

/// An I/O that no request waits for.
enum Deferred {
    /// A write of this many bytes to the cache device.
    Fill(u64),
    /// A write of an evicted block to the origin.
    WriteBack,
}

/// The I/Os of a request, for the model of time.
#[derive(Default)]
struct Parts {
    hits: u64,
    misses: u64,
    /// Runs of neighbouring blocks that missed: one I/O to the origin each.
    miss_runs: u64,
    guest_blocks: u64,
    fills: u64,
    origin_bytes: u64,
    /// The request does not wait for the origin.
    answered_early: bool,
}

impl<P: Policy> Replay<P> {
    /// A cache of this policy, empty.
    pub fn new(
        settings: &Settings,
        grids: &Grids,
        name: PolicyName,
        blocks: Option<u64>,
        meter: MeterSettings,
        policy: P,
    ) -> Self {
        Replay {
            name,
            blocks,
            policy,
            grids: grids.clone(),
            block_bytes: settings.block_bytes,
            mode: settings.mode,
            meter: Meter::new(meter),
            stations: settings.latency.as_ref().map(|model| Stations::new(model, 1, settings.seed)),
            deferred: Agenda::new(),
            dirty: KeySet::default(),
            unflushed: BTreeSet::new(),
            evicted: Vec::new(),
            reads: Reads::default(),
        }
    }

    /// Processes a request.
    ///
    /// # Errors
    /// It is beyond the largest volume.
    pub fn request(&mut self, access: &Access) -> Result<(), SimError> {
        self.policy.begin(access);
        self.pass(access.time_ns);
        if self.meter.sample_due(access.time_ns) {
            self.meter.sample(access.time_ns, Vec::new(), 0);
        }
        if self.meter.request() {
            self.meter.end_warm_up(access.time_ns);
        }
        match access.op {
            Op::Read => self.read(access),
            Op::Write => self.write(access),
            Op::Discard => self.discard(access),
            Op::Flush => {
                self.flush(access);
                Ok(())
            }
        }
    }

    /// Begins the deferred I/Os that are due by now, and counts the reads that have ended.
    fn pass(&mut self, now_ns: u64) {
        let Some(stations) = &mut self.stations else { return };
        while let Some((start_ns, io)) = self.deferred.pop_due(now_ns) {
            match io {
                Deferred::Fill(bytes) => stations.device(start_ns, 0, IoKind::Write, bytes),
                Deferred::WriteBack => stations.origin(start_ns, IoKind::Write, self.block_bytes),
            };
        }
        self.reads.pass(now_ns);
    }

    /// A volume's own rules for writes, or the common ones.
    fn mode_of(&self, access: &Access) -> WriteMode {
        self.policy.mode(access.volume).unwrap_or(self.mode)
    }

    fn keys(&self, access: &Access) -> Result<impl Iterator<Item = Key> + use<P>, SimError> {
        let (volume, blocks) = (access.volume, self.grids.blocks(access));
        key::check(volume, *blocks.end(), self.block_bytes)?;
        Ok(blocks.map(move |block| Key::new(volume, block)))
    }

    fn read(&mut self, access: &Access) -> Result<(), SimError> {
        let mut parts = Parts::default();
        let (mut after_miss, mut kept_out) = (false, 0);
        let passes = self.mode_of(access) == WriteMode::PassThrough;
        for key in self.keys(access)? {
            let hit = !passes && self.access(access.time_ns, key);
            kept_out += u64::from(!hit && !passes && !self.policy.entered());
            parts.hits += u64::from(hit);
            parts.misses += u64::from(!hit);
            parts.miss_runs += u64::from(!hit && !after_miss);
            after_miss = !hit;
        }
        parts.fills = if passes { 0 } else { parts.misses - kept_out };
        parts.origin_bytes =
            if passes { u64::from(access.length_bytes) } else { parts.misses * self.block_bytes };
        let counts = self.meter.volume(access.volume);
        counts.read_requests += 1;
        counts.read_hits += parts.hits;
        counts.read_misses += parts.misses;
        counts.flash_fill_blocks += parts.fills;
        counts.not_admitted += kept_out;
        counts.origin_reads += parts.miss_runs;
        counts.origin_read_bytes += parts.origin_bytes;
        self.take_time(access, IoKind::Read, &parts);
        Ok(())
    }

    fn write(&mut self, access: &Access) -> Result<(), SimError> {
        let mut parts = Parts::default();
        let mut kept_out = 0;
        let mode = self.mode_of(access);
        let enters = mode.caches_write(false);
        for key in self.keys(access)? {
            let hit = if mode.caches_write(false) {
                self.access(access.time_ns, key)
            } else if mode.caches_write(true) {
                self.policy.contains(key) && self.access(access.time_ns, key)
            } else {
                let hit = self.policy.contains(key);
                self.policy.remove(key);
                self.dirty.remove(key);
                hit
            };
            parts.hits += u64::from(hit);
            parts.misses += u64::from(!hit);
            let out = enters && !hit && !self.policy.entered();
            kept_out += u64::from(out);
            if mode == WriteMode::WriteBack && !out {
                self.dirty.insert(key);
            }
        }
        parts.guest_blocks = u64::from(mode.caches_write(true)) * parts.hits
            + u64::from(mode.caches_write(false)) * (parts.misses - kept_out);
        // A block that the filter keeps out of a write-back cache is written to the origin immediately.
        let through = mode != WriteMode::WriteBack || kept_out > 0;
        parts.origin_bytes = match mode {
            WriteMode::WriteBack => kept_out * self.block_bytes,
            _ => u64::from(access.length_bytes),
        };
        parts.answered_early = mode == WriteMode::WriteThrough(WriteThroughAck::Cache) && kept_out == 0;
        let counts = self.meter.volume(access.volume);
        counts.write_requests += 1;
        counts.write_hits += parts.hits;
        counts.write_misses += parts.misses;
        counts.flash_guest_blocks += parts.guest_blocks;
        counts.not_admitted += kept_out;
        counts.origin_writes += u64::from(through);
        counts.origin_written_bytes += parts.origin_bytes;
        if through {
            self.unflushed.insert(access.volume);
        }
        self.take_time(access, IoKind::Write, &parts);
        Ok(())
    }

    /// Accesses a block. What it replaces is written back if it is dirty. Returns whether it was cached.
    fn access(&mut self, now_ns: u64, key: Key) -> bool {
        let hit = self.policy.access(key, &mut self.evicted);
        for evicted in self.evicted.drain(..) {
            if !self.dirty.remove(evicted) {
                continue;
            }
            let counts = self.meter.volume(evicted.volume());
            counts.origin_writes += 1;
            counts.origin_written_bytes += self.block_bytes;
            self.unflushed.insert(evicted.volume());
            if let Some(stations) = &mut self.stations {
                let read_ns = stations.device(now_ns, 0, IoKind::Read, self.block_bytes);
                self.deferred.plan(read_ns, Deferred::WriteBack);
            }
        }
        hit
    }

    fn flush(&mut self, access: &Access) {
        self.meter.volume(access.volume).flush_requests += 1;
        if self.unflushed.remove(&access.volume)
            && let Some(stations) = &mut self.stations
        {
            stations.origin(access.time_ns, IoKind::Flush, 0);
        }
    }

    /// Blocks that are discarded completely have no content any more.
    fn discard(&mut self, access: &Access) -> Result<(), SimError> {
        if access.length_bytes == 0 {
            return Ok(());
        }
        let counts = self.meter.volume(access.volume);
        counts.discard_requests += 1;
        counts.origin_writes += 1;
        self.unflushed.insert(access.volume);
        if let Some(stations) = &mut self.stations {
            stations.origin(access.time_ns, IoKind::Write, 0);
        }
        let whole = self.grids.whole_blocks(access);
        key::check(access.volume, whole.end, self.block_bytes)?;
        for block in whole {
            let key = Key::new(access.volume, block);
            self.policy.remove(key);
            self.dirty.remove(key);
        }
        Ok(())
    }

    /// Hits and misses proceed in parallel; fills and deferred writes load the device, but no request waits
    /// for them.
    fn take_time(&mut self, access: &Access, kind: IoKind, parts: &Parts) {
        let (now_ns, volume) = (access.time_ns, access.volume);
        let Some(stations) = &mut self.stations else { return };
        let block_bytes = self.block_bytes;
        let mut done_ns = now_ns;
        if kind == IoKind::Read && parts.hits > 0 {
            let hits_ns = stations.device(now_ns, 0, IoKind::Read, parts.hits * block_bytes);
            self.reads.begin(now_ns, hits_ns, None);
            done_ns = done_ns.max(hits_ns);
        }
        if parts.origin_bytes > 0 {
            let ios = parts.miss_runs.max(1);
            for _ in 0..ios {
                let io_ns = stations.origin(now_ns, kind, parts.origin_bytes / ios);
                if kind == IoKind::Read {
                    self.reads.begin(now_ns, io_ns, Some(volume));
                }
                if !parts.answered_early {
                    done_ns = done_ns.max(io_ns);
                }
            }
        }
        let flash_blocks = parts.fills + parts.guest_blocks;
        if flash_blocks > 0 {
            self.deferred.plan(done_ns, Deferred::Fill(flash_blocks * block_bytes));
        }
        let latency_ns = done_ns - now_ns + stations.host_ns();
        self.meter.latency(volume, kind, latency_ns);
    }
}

impl<P: Policy> Cell for Replay<P> {
    fn play(&mut self, accesses: &[Access]) -> Result<(), SimError> {
        accesses.iter().try_for_each(|access| self.request(access))
    }

    fn end(self: Box<Self>) -> Result<Vec<CellResult>, SimError> {
        Ok(vec![CellResult::new(self.name, self.blocks, self.meter.end())])
    }
}
