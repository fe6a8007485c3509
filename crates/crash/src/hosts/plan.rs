//! The parameters of a run, derived from its seed.

use haversack_core::{CleanOrder, CoreConfig, DiskConfig, Persistence, Target};
use haversack_migrate::{Method, OnLoss, Timing};
use haversack_model::WriteMode;
use haversack_model::random::Random;

use crate::plan::{admission, cleaner, disk_id, flush_step_pages};

/// One run in this many moves disks by the default method in any case.
pub const RUNS_BY_DEFAULT: u64 = 3;

/// Returns the segments of a host's devices.
fn devices(rng: &mut Random) -> Vec<u32> {
    (0..rng.range(1, 2)).map(|_| rng.range(2, 5) as u32).collect()
}

/// Returns a disk with up to this many blocks.
fn disk(of: usize, most_blocks: u64, rng: &mut Random) -> DiskConfig {
    let mut disk = DiskConfig::new(disk_id(of), rng.range(16, most_blocks) * 8 + rng.pick(&[0, 0, 1, 7]));
    disk.phase = if rng.one_in(2) { 0 } else { rng.below(8) as u8 };
    disk.mode = if rng.percent(60) { WriteMode::WriteBack } else { rng.pick(&WriteMode::ALL) };
    disk.persistence = if rng.percent(75) { Persistence::All } else { Persistence::Dirty };
    disk.target = if rng.one_in(3) { Target::Equal } else { Target::Blocks(rng.range(64, 600)) };
    disk.admission = admission(rng);
    disk.sequential_cutoff_bytes = rng.pick(&[0, 0, 0, 32_768]);
    disk.cleaner = cleaner(rng);
    disk
}

/// Everything that is decided before a run starts.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Segments of each cache device, by host.
    pub devices: Vec<Vec<u32>>,
    /// Dirty blocks on two devices, by host.
    pub redundancy: Vec<bool>,
    /// Segments of each device that are prepared when it is formatted.
    pub prepared: u32,
    /// The disks.
    pub disks: Vec<DiskConfig>,
    /// They start with zeroes instead of data.
    pub blank: bool,
    /// Staging and transfer frames of each host.
    pub frames: [u32; 2],
    /// The core's settings.
    pub core: CoreConfig,
    /// The protocol's settings.
    pub timing: Timing,
    /// The migration method.
    pub method: Method,
    /// Each host keeps a replica of the other one's dirty blocks; what happens without it.
    pub replica: Option<OnLoss>,
    /// Maximum number of requests in flight.
    pub depth: usize,
    /// Sectors that a power cut keeps or loses together.
    pub tear_unit: u64,
    /// Maximum time of an I/O.
    pub latency_us: [u64; 2],
    /// Maximum delay of a message.
    pub delay_us: u64,
    /// Percentages of messages that are lost, and that are late or repeated.
    pub lossy_percent: [u64; 2],
    /// Moves and crashes, per thousand steps.
    pub unrest_permille: [u64; 2],
}

impl Plan {
    /// Returns a random plan for two hosts and one disk.
    pub fn random(rng: &mut Random) -> Plan {
        let devices = (0..2).map(|_| devices(rng)).collect();
        let disks = vec![disk(0, 220, rng)];
        let redundancy = (0..2).map(|_| rng.one_in(2)).collect();
        let mut core = CoreConfig {
            max_requests: rng.pick(&[16, 64]),
            commit_blocks: rng.pick(&[4, 8, 16, 64]),
            flush_after_blocks: rng.pick(&[16, 256, 4096]),
            flush_mark_us: rng.pick(&[1_000, 20_000, 1_000_000]),
            intent_clear_us: rng.pick(&[3_000, 50_000, 1_000_000]),
            clean_retry_us: rng.pick(&[2_000, 20_000]),
            ..CoreConfig::default()
        };
        core.flush_step_pages = flush_step_pages(&core);
        let timing = Timing {
            repeat_us: rng.pick(&[3_000, 20_000]),
            copies_in_flight: rng.pick(&[1, 4, 32]),
            blocks_a_message: rng.pick(&[1, 2, 16, 256]),
            fetch_window: rng.pick(&[1, 4, 32]),
            ..Timing::default()
        };
        Plan {
            devices,
            redundancy,
            prepared: u32::MAX,
            disks,
            blank: rng.one_in(4),
            frames: [rng.range(64, 160) as u32, rng.range(64, 160) as u32],
            core,
            timing,
            method: Method::PreCopy,
            replica: None,
            depth: rng.pick(&[1, 4, 12]),
            tear_unit: rng.pick(&[1, 8]),
            latency_us: [rng.pick(&[50, 400]), rng.pick(&[50, 400, 3_000])],
            delay_us: rng.pick(&[20, 500, 6_000]),
            lossy_percent: [rng.pick(&[0, 0, 5, 20]), rng.pick(&[0, 5, 20, 50])],
            unrest_permille: [rng.pick(&[2, 5, 12]), rng.pick(&[1, 3, 8])],
        }
    }

    /// More hosts and disks, and smaller ones.
    pub fn of_cluster(&mut self, hosts: usize, disks: usize, rng: &mut Random) {
        self.devices = (0..hosts).map(|_| devices(rng)).collect();
        self.redundancy = (0..hosts).map(|_| rng.one_in(2)).collect();
        self.disks = (0..disks).map(|of| disk(of, 60, rng)).collect();
    }

    /// Another method than the default, in most of the runs: see [`RUNS_BY_DEFAULT`].
    pub fn moving_by(&mut self, rng: &mut Random) {
        self.method = rng.pick(&Method::ALL);
        self.timing.preload_window = rng.pick(&[1, 8, 128]);
        self.timing.fetched_a_period = rng.pick(&[None, Some(1), Some(16)]);
    }

    /// Dirty blocks have a replica.
    pub fn replicating(&mut self, rng: &mut Random) {
        self.replica = Some(rng.pick(&[OnLoss::WriteThrough, OnLoss::WriteThrough, OnLoss::Continue]));
        self.disks.iter_mut().for_each(|disk| disk.cleaner.order = CleanOrder::Age);
        self.timing.lease_us = rng.pick(&[20_000, 60_000, 200_000]);
        if rng.one_in(2) {
            self.disks.iter_mut().for_each(|disk| disk.mode = WriteMode::WriteBack);
        }
        if rng.one_in(2) {
            self.lossy_percent = [0, 0];
        }
        self.unrest_permille[0] = rng.pick(&[0, 0, 1, 4]);
    }

    /// Few segments are prepared ahead of use.
    pub fn preparing(&mut self, rng: &mut Random) {
        self.prepared = rng.pick(&[0, 1, 2]);
        self.core.prepare_segments = rng.pick(&[1, 1, 2, 8]);
    }
}
