//! LRU or ARC under the control loop: a paper's whole system with the replacement that its authors used.
//!
//! The control loop is the same as for the production cache. Staging of data is not simulated, since there is
//! no staging memory; staging filters simulate only addresses.

use haversack_control::Counters;
use haversack_core::monitor::Kind;
use haversack_core::{AdmissionConfig, DiskUsage, MonitorConfig, Records, Target};
use haversack_model::{DiskNo, SECTOR_BYTES, WriteMode};
use haversack_trace::{Access, Op, VolumeNo};

use super::partitions::{Partitions, Resizable};
use super::replay::Replay;
use crate::cell::{Cell, CellResult, ProductionResult};
use crate::error::SimError;
use crate::governor::{Governable, Governor};
use crate::meter::Meter;

/// See the module.
pub struct Governed<R> {
    cache: Monitored<R>,
    governor: Option<Governor>,
}

/// The caches, and the records of their disks.
pub struct Monitored<R> {
    /// The caches.
    pub replay: Replay<Partitions<R>>,
    records: Vec<Records>,
}

fn volume(disk: DiskNo) -> VolumeNo {
    VolumeNo(disk.0.into())
}

impl<R: Resizable> Monitored<R> {
    /// Caches without records yet.
    pub fn new(replay: Replay<Partitions<R>>, disks: usize) -> Self {
        Monitored { replay, records: vec![Records::default(); disks] }
    }

    fn note(&mut self, access: &Access) {
        let records = &mut self.records[access.volume.0 as usize];
        if records.bytes() == 0 {
            return;
        }
        let kind = match access.op {
            Op::Read => Kind::Read,
            Op::Write => Kind::Write,
            Op::Discard => Kind::Discard,
            Op::Flush => Kind::Flush,
        };
        let (access, sector_bytes) = (self.replay.grids.shifted(access), SECTOR_BYTES as u64);
        let first = access.offset_bytes / sector_bytes;
        let end = (access.offset_bytes + u64::from(access.length_bytes)).div_ceil(sector_bytes);
        records.push(access.time_ns / 1000, kind, first, (end - first) as u32);
    }
}

impl<R: Resizable> Governable for Monitored<R> {
    fn monitor(&mut self, config: MonitorConfig) -> Result<(), SimError> {
        self.records.fill(Records::with_room(config.records));
        Ok(())
    }

    fn records_fill(&self, disk: DiskNo) -> f64 {
        self.records[usize::from(disk.0)].fill()
    }

    fn take_records(&mut self, disk: DiskNo, into: &mut Records) {
        let records = &mut self.records[usize::from(disk.0)];
        if records.bytes() == 0 {
            return into.clear();
        }
        into.clear();
        std::mem::swap(records, into);
    }

    fn counters(&self, disk: DiskNo) -> Counters {
        let counts = self.replay.meter.of(volume(disk));
        let (origin_latency_us, cache_latency_us) = self.replay.reads.means_us(volume(disk));
        Counters {
            read_hits: counts.read_hits,
            read_misses: counts.read_misses,
            writes: counts.blocks_written(),
            origin_latency_us,
            cache_latency_us,
        }
    }

    fn restart_latencies(&mut self, of: Option<DiskNo>) {
        self.replay.reads.restart(of.map(volume));
    }

    fn disk_usage(&self, disk: DiskNo) -> DiskUsage {
        let (parts, disk) = (&self.replay.policy, usize::from(disk.0));
        DiskUsage {
            target_blocks: parts.target_blocks(disk),
            usage_blocks: parts.usage_blocks(disk),
            ..DiskUsage::default()
        }
    }

    fn mode(&self, disk: DiskNo) -> WriteMode {
        self.replay.policy.mode_of(usize::from(disk.0))
    }

    fn set_target(&mut self, disk: DiskNo, target: Target, _: &mut Meter) -> Result<(), SimError> {
        self.replay.policy.set_target(usize::from(disk.0), target);
        Ok(())
    }

    fn set_admission(&mut self, disk: DiskNo, admission: AdmissionConfig) -> Result<(), SimError> {
        self.replay.policy.set_admission(usize::from(disk.0), admission);
        Ok(())
    }

    fn set_mode(&mut self, disk: DiskNo, mode: WriteMode, _: &mut Meter) -> Result<(), SimError> {
        self.replay.policy.set_mode(usize::from(disk.0), mode);
        Ok(())
    }
}

impl<R: Resizable> Governed<R> {
    /// A cell of these caches, with this control loop if there is one.
    pub fn new(cache: Monitored<R>, governor: Option<Governor>) -> Self {
        Governed { cache, governor }
    }
}

impl<R: Resizable> Cell for Governed<R> {
    fn play(&mut self, accesses: &[Access]) -> Result<(), SimError> {
        for access in accesses {
            if let Some(governor) = &mut self.governor {
                // Nothing here is metered by the loop: time passes only with requests.
                let mut unmetered = Meter::new(Default::default());
                while governor.due_ns() <= access.time_ns {
                    self.cache.replay.reads.pass(governor.due_ns());
                    governor.act(&mut self.cache, &mut unmetered)?;
                }
                self.cache.note(access);
                governor.take(DiskNo(access.volume.0 as u16), &mut self.cache);
            }
            self.cache.replay.request(access)?;
        }
        Ok(())
    }

    fn end(self: Box<Self>) -> Result<Vec<CellResult>, SimError> {
        let disks = (0..self.cache.records.len() as u16).map(DiskNo);
        let disk_usages = disks.map(|disk| self.cache.disk_usage(disk)).collect();
        let mut results = Box::new(self.cache.replay).end()?;
        let blocks = results[0].blocks.unwrap_or(0);
        results[0].production = Some(ProductionResult {
            capacity_blocks: blocks,
            disk_usages,
            governed: self.governor.map(Governor::end),
            ..ProductionResult::default()
        });
        Ok(results)
    }
}
