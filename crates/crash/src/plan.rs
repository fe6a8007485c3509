//! The parameters of a run, derived from its seed: pool, disks, sizes, faults.

use haversack_core::{
    AdmissionConfig, CleanOrder, CleanerConfig, CoreConfig, DiskConfig, Persistence, StagingKind, Target,
};
use haversack_model::{DiskId, WriteMode, WriteThroughAck};

use crate::remains::Remains;
use haversack_model::random::Random;

/// The modes in which the origin has a write before it is acknowledged.
const SYNCHRONOUS: [WriteMode; 4] = [
    WriteMode::WriteThrough(WriteThroughAck::Origin),
    WriteMode::WriteAround,
    WriteMode::WriteInvalidate,
    WriteMode::PassThrough,
];

/// What may go wrong in a run besides crashes.
#[derive(Clone, Copy, Default, Debug)]
pub struct Faults {
    /// Damage at rest on cache devices.
    pub rot: bool,
    /// Damage at rest in segments' metadata.
    pub page_rot: bool,
    /// A cache device disappears.
    pub loss: bool,
    /// Single reads of cache devices fail.
    pub read_errors: bool,
    /// Origins fail for a while.
    pub outages: bool,
}

impl Faults {
    /// Returns whether cache devices are at risk.
    pub fn of_devices(&self) -> bool {
        self.rot || self.page_rot || self.loss || self.read_errors
    }

    /// Returns whether data is lost only with a device, so that the core can tell which sectors.
    pub fn name_what_is_lost(&self) -> bool {
        !(self.rot || self.page_rot || self.read_errors)
    }
}

/// Disks that were made from another one, their base.
#[derive(Clone, Debug)]
pub struct Made {
    /// The base.
    pub from: usize,
    /// The disks.
    pub disks: Vec<usize>,
    /// Sectors that their origins store together.
    pub cluster_sectors: u64,
    /// When they share blocks with it.
    pub seed: u64,
}

/// Everything that is decided before a run starts.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Segments of each device.
    pub devices: Vec<u32>,
    /// Dirty blocks on two devices.
    pub redundancy: bool,
    /// What is on devices before they are formatted.
    pub remains: Remains,
    /// Segments of each device that are prepared when it is formatted.
    pub prepared: u32,
    /// The disks.
    pub disks: Vec<DiskConfig>,
    /// Every admission filter is the learning one.
    pub learned: bool,
    /// Which disks start with zeroes instead of data.
    pub blank: Vec<bool>,
    /// Disks that begin with the content of another one.
    pub made: Option<Made>,
    /// Staging frames.
    pub staging_frames: u32,
    /// Transfer frames.
    pub transfer_frames: u32,
    /// The core's settings.
    pub core: CoreConfig,
    /// Maximum number of requests in flight.
    pub depth: usize,
    /// Sectors that a power cut keeps or loses together.
    pub tear_unit: u64,
    /// Maximum time of a device I/O in virtual microseconds.
    pub device_latency: u64,
    /// Maximum time of an origin I/O in virtual microseconds.
    pub origin_latency: u64,
    /// Faults of this run.
    pub faults: Faults,
    /// Management calls per thousand steps.
    pub manage_permille: u64,
    /// Blocks of some disks are cleaned in the order of their guests' flushes.
    pub ordered: bool,
    /// Nothing happens that would suspend or break that order: no device comes, goes or fails.
    pub undisturbed: bool,
}

/// Returns the identity of the simulator's disk with that index.
pub fn disk_id(disk: usize) -> DiskId {
    let mut id = [0xD1; 16];
    id[15] = disk as u8;
    DiskId(id)
}

/// Returns a cleaner configuration whose limits a short run reaches.
pub fn cleaner(rng: &mut Random) -> CleanerConfig {
    let mut shares = [rng.below(100) as f32 / 100.0, rng.below(100) as f32 / 100.0];
    shares.sort_by(f32::total_cmp);
    let slack = rng.below(50);
    // A quarter of the disks have a limit that some ten blocks reach.
    let scale = if slack.is_multiple_of(4) { 0.05 } else { 1.0 };
    let limit = (shares[1] + slack as f32 / 100.0).clamp(0.05, 1.0).max(shares[1]);
    CleanerConfig {
        low_watermark: scale * shares[0],
        high_watermark: scale * shares[1],
        dirty_limit: scale * limit,
        age_us: rng.pick(&[2_000, 50_000, 1_000_000, 30_000_000]),
        idle_us: rng.pick(&[5_000, 200_000, 5_000_000]),
        rate_limit_blocks: rng.pick(&[0, 0, 0, 2_000, 50_000]),
        order: CleanOrder::Age,
    }
}

/// Returns an admission configuration whose limits a short run reaches.
pub fn admission(rng: &mut Random) -> AdmissionConfig {
    if rng.percent(75) {
        return AdmissionConfig::Always;
    }
    let (reuses, size) = (rng.range(1, 2), rng.range(1, 500));
    match size % 4 {
        0 => AdmissionConfig::Hec { region_blocks: 8 * reuses, run_blocks: size / 4 },
        1 => AdmissionConfig::Larc { cache_blocks: size },
        2 => AdmissionConfig::Staging {
            kind: if size % 8 == 2 { StagingKind::Data } else { StagingKind::Hybrid },
            reuses: reuses as u8,
            bytes: 5000 * size,
        },
        _ => AdmissionConfig::reuse(reuses as u8, size as u32),
    }
}

/// Returns a share of the pool that affects a short run.
pub fn target(rng: &mut Random, least_blocks: u64) -> Target {
    if rng.one_in(2) {
        return Target::Equal;
    }
    let blocks = rng.range(least_blocks, 1500);
    match blocks % 4 {
        0 => Target::Shared { at_least_blocks: blocks / 8, at_most_blocks: blocks },
        1 => Target::Capped(blocks),
        _ => Target::Blocks(blocks),
    }
}

/// Returns the settings of one disk.
pub fn disk(rng: &mut Random, place: usize, max_blocks: u64) -> DiskConfig {
    let largest = rng.pick(&[128, 256, 512, max_blocks]).clamp(64, max_blocks);
    let blocks = rng.range(64, largest);
    let mut config = DiskConfig::new(disk_id(place), blocks * 8 + rng.pick(&[0, 0, 1, 7]));
    config.phase = if rng.one_in(2) { 0 } else { rng.below(8) as u8 };
    config.mode = if rng.percent(45) { WriteMode::WriteBack } else { rng.pick(&WriteMode::ALL) };
    config.persistence = match rng.below(10) {
        0 => Persistence::None,
        1 | 2 => Persistence::Dirty,
        _ => Persistence::All,
    };
    if config.persistence == Persistence::None && config.mode.defers_origin() {
        config.mode = rng.pick(&SYNCHRONOUS);
    }
    config.target = target(rng, 16);
    config.admission = admission(rng);
    config.sequential_cutoff_bytes = rng.pick(&[0, 0, 0, 32_768, 131_072]);
    config.cleaner = cleaner(rng);
    config
}

/// Chooses the length of steps after a flush without a random number, so that earlier seeds stay the same.
pub fn flush_step_pages(config: &CoreConfig) -> usize {
    match config.commit_blocks {
        4 | 16 => 1,
        8 => 2,
        _ => CoreConfig::default().flush_step_pages,
    }
}

fn core_config(rng: &mut Random) -> CoreConfig {
    let mut config = CoreConfig {
        max_requests: rng.pick(&[4, 8, 16, 64]),
        commit_blocks: rng.pick(&[4, 8, 16, 32, 64]),
        flush_after_blocks: rng.pick(&[16, 64, 256, 4096]),
        flush_mark_us: rng.pick(&[1_000, 20_000, 1_000_000]),
        share_spare: rng.one_in(2),
        intent_clear_us: rng.pick(&[3_000, 50_000, 1_000_000, 60_000_000]),
        clean_retry_us: rng.pick(&[2_000, 20_000, 200_000]),
        device_read_errors: rng.pick(&[1, 3, 5]),
        ..CoreConfig::default()
    };
    config.flush_step_pages = flush_step_pages(&config);
    config.device_error_window_us = 50 * config.clean_retry_us;
    config.leave_wait_us = 200 * config.clean_retry_us;
    config
}

impl Plan {
    /// Returns a random plan for a long run.
    pub fn random(rng: &mut Random) -> Plan {
        let devices = rng.pick(&[1, 1, 2, 2, 2, 3]);
        let disks = rng.pick(&[1, 1, 2, 2, 3, 4]);
        let max_segments = rng.pick(&[3, 6, 12]);
        let max_blocks = rng.pick(&[256, 512, 1024, 4096]);
        let mut faults = Faults::default();
        if rng.percent(40) {
            match rng.below(5) {
                0 => faults.rot = true,
                1 => faults.loss = devices > 1,
                2 => faults.read_errors = true,
                3 => faults.page_rot = true,
                _ => {}
            }
            faults.outages = rng.one_in(2);
        }
        Plan {
            devices: (0..devices).map(|_| rng.range(2, max_segments) as u32).collect(),
            redundancy: rng.percent(75),
            remains: Remains::Nothing,
            prepared: u32::MAX,
            disks: (0..disks).map(|i| disk(rng, i, max_blocks)).collect(),
            learned: false,
            blank: (0..disks).map(|_| rng.one_in(4)).collect(),
            made: None,
            staging_frames: rng.range(64, 256) as u32,
            transfer_frames: rng.range(64, 256) as u32,
            core: core_config(rng),
            depth: rng.pick(&[1, 2, 4, 8, 16, 32]),
            tear_unit: rng.pick(&[1, 1, 8]),
            device_latency: rng.pick(&[30, 100, 400]),
            origin_latency: rng.pick(&[100, 1_000, 5_000]),
            faults,
            manage_permille: rng.pick(&[0, 5, 20, 60]),
            ordered: false,
            undisturbed: false,
        }
    }

    /// The device at risk may be lost with dirty blocks that no other device has: the newest versions of some blocks,
    /// of which other devices list older ones. Small commits that are rarely flushed leave many versions.
    pub fn without_second_copies(&mut self, rng: &mut Random) {
        self.redundancy = false;
        self.devices = vec![rng.range(2, 8) as u32; self.devices.len().max(2)];
        self.faults = Faults { loss: true, outages: self.faults.outages, ..Faults::default() };
        (self.core.commit_blocks, self.core.flush_after_blocks) = (rng.pick(&[1, 2, 4, 8]), 4096);
    }

    /// Any device may be lost while the pool is whole, and others replace it. There is room for many versions.
    pub fn losing_any(&mut self, rng: &mut Random) {
        let segments = rng.range(4, 24) as u32;
        self.redundancy = true;
        self.devices = vec![segments; rng.range(2, 4) as usize];
        self.faults = Faults { loss: true, outages: self.faults.outages, ..Faults::default() };
        (self.core.commit_blocks, self.core.flush_after_blocks) = (rng.pick(&[1, 2, 4, 8]), 4096);
    }

    /// All disks share one pool, as in a daemon with default settings; there may be fewer segments than disks.
    pub fn sharing(&mut self, rng: &mut Random) {
        if rng.one_in(3) {
            let devices = rng.range(1, 2).max(u64::from(self.faults.loss) * 2);
            self.devices = vec![rng.range(2, 3) as u32; devices as usize];
        }
        while self.disks.len() < 6 && rng.one_in(2) {
            self.disks.push(disk(rng, self.disks.len(), 512));
            self.blank.push(rng.one_in(4));
        }
        for disk in &mut self.disks {
            let at_least_blocks = rng.pick(&[0, 0, 0, 100, 400]);
            disk.target = Target::Shared { at_least_blocks, at_most_blocks: u64::MAX };
        }
    }

    /// The devices are not blank before they are formatted, and few of their segments are prepared ahead of use.
    pub fn preparing(&mut self, rng: &mut Random) {
        self.remains = rng.pick(&[Remains::Nothing, Remains::Garbage, Remains::OldPool, Remains::OldPool]);
        self.prepared = rng.pick(&[0, 1, 2, 4]);
        self.core.prepare_segments = rng.pick(&[1, 1, 2, 3, 8]);
    }

    /// Some disks were made from another one. Most have its size.
    pub fn basing(&mut self, rng: &mut Random) {
        while self.disks.len() < 2 || self.disks.len() < 4 && rng.one_in(3) {
            self.disks.push(disk(rng, self.disks.len(), 512));
            self.blank.push(false);
        }
        let from = rng.below(self.disks.len() as u64) as usize;
        let mut disks: Vec<usize> = (0..self.disks.len()).filter(|disk| *disk != from).collect();
        rng.shuffle(&mut disks);
        disks.truncate(rng.range(1, 3) as usize);
        self.blank[from] = rng.one_in(8);
        let base = self.disks[from].clone();
        for disk in &disks {
            let made = &mut self.disks[*disk];
            made.phase = base.phase;
            made.sectors = if rng.percent(60) { base.sectors } else { made.sectors };
        }
        self.made = Some(Made { from, disks, cluster_sectors: rng.pick(&[1, 8, 16, 128]), seed: rng.bits() });
    }

    /// Blocks of most disks are cleaned in the order of their guests' flushes, in half of the runs without faults of
    /// devices.
    pub fn ordering(&mut self, may_be_undisturbed: bool, rng: &mut Random) {
        self.ordered = true;
        self.undisturbed = may_be_undisturbed && rng.one_in(2);
        if self.undisturbed {
            self.faults = Faults { outages: self.faults.outages, ..Faults::default() };
        }
        for disk in &mut self.disks {
            if rng.percent(80) {
                disk.cleaner.order = CleanOrder::Flush;
            }
            if disk.persistence != Persistence::None && rng.percent(70) {
                disk.mode = WriteMode::WriteBack;
            }
        }
    }

    /// Every admission filter is the learning one. Draws nothing.
    pub fn learning(&mut self) {
        self.learned = true;
        self.disks.iter_mut().for_each(|disk| disk.admission = AdmissionConfig::Learned);
    }

    /// Flash rots under dirty blocks that have one copy, in a pool that occasionally gets or loses a device. The
    /// cleaner leaves them there for a while.
    pub fn damaging(&mut self, rng: &mut Random) {
        self.redundancy = rng.one_in(2);
        let devices = if self.redundancy { 1 } else { rng.range(1, 3) as usize };
        self.devices = vec![rng.range(2, 6) as u32; devices];
        self.faults = Faults { rot: true, outages: rng.one_in(4), ..Faults::default() };
        self.core.flush_mark_us = 1_000;
        self.manage_permille = rng.pick(&[20, 60]);
        for disk in &mut self.disks {
            disk.mode = WriteMode::WriteBack;
            (disk.admission, disk.persistence) = (AdmissionConfig::Always, Persistence::All);
            let cleaner = &mut disk.cleaner;
            (cleaner.low_watermark, cleaner.high_watermark, cleaner.dirty_limit) = (0.8, 0.9, 1.0);
            (cleaner.age_us, cleaner.idle_us) = (30_000_000, 5_000_000);
        }
    }

    /// Returns a plan for a script: a tiny pool, little background work, few faults.
    pub fn script(rng: &mut Random) -> Plan {
        let devices = rng.pick(&[1, 2]);
        let disks = 2;
        let mut plan = Plan {
            devices: (0..devices).map(|_| 2).collect(),
            redundancy: true,
            remains: Remains::Nothing,
            prepared: u32::MAX,
            disks: (0..disks).map(|i| disk(rng, i, 128)).collect(),
            learned: false,
            blank: vec![false; disks],
            made: None,
            staging_frames: 64,
            transfer_frames: 64,
            core: core_config(rng),
            depth: 8,
            tear_unit: rng.pick(&[1, 8]),
            device_latency: 100,
            origin_latency: 500,
            faults: Faults {
                loss: devices > 1 && rng.one_in(2),
                page_rot: rng.one_in(4),
                ..Faults::default()
            },
            manage_permille: 0,
            ordered: false,
            undisturbed: false,
        };
        for disk in &mut plan.disks {
            disk.sectors = 1024;
            disk.target = Target::Equal;
            disk.sequential_cutoff_bytes = 0;
        }
        plan
    }

    /// Returns the disk that a disk was made from.
    pub fn base_of(&self, disk: usize) -> Option<usize> {
        self.made.as_ref().filter(|made| made.disks.contains(&disk)).map(|made| made.from)
    }

    /// Returns whether every dirty block should have a mirrored copy.
    pub fn mirrored(&self) -> bool {
        self.redundancy && self.devices.len() > 1
    }
}
