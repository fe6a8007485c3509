//! Any sequence of requests, management calls and completions in any order, against a plain model of each disk. Nothing
//! fails and nothing crashes here: the crash simulator tests failures and crashes.

use std::collections::HashMap;

use crate::common::sectors::{self, ORIGINAL, Sectors, Stamp, ZERO};
use crate::common::{Origin, Rig, Shelf, disk_id, memory};
use haversack_core::{
    AdmissionConfig, CleanerConfig, CoreConfig, DiskConfig, JobId, ManageError, Op, Persistence, Rejected,
    RequestTag, StagingKind, Target,
};
use haversack_model::{DiskNo, SECTOR_BYTES, SECTORS_PER_BLOCK, WriteMode, WriteThroughAck};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::FileFailurePersistence;

/// Seeds of runs that once failed; they run first.
const REGRESSIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proptest-regressions/model.txt");

const DISKS: usize = 3;
const MODES: [WriteMode; 6] = [
    WriteMode::WriteBack,
    WriteMode::WriteThrough(WriteThroughAck::Origin),
    WriteMode::WriteThrough(WriteThroughAck::Cache),
    WriteMode::WriteAround,
    WriteMode::WriteInvalidate,
    WriteMode::PassThrough,
];

#[derive(Clone, Debug)]
enum Step {
    Read {
        disk: usize,
        at: Index,
        sectors: u32,
    },
    Write {
        disk: usize,
        at: Index,
        sectors: u32,
        fua: bool,
    },
    Zero {
        disk: usize,
        at: Index,
        sectors: u32,
        discard: bool,
    },
    Flush {
        disk: usize,
    },
    /// Ends some of the I/Os in flight, in any order.
    End {
        picks: Vec<Index>,
    },
    Drain,
    Wait {
        micros: u64,
    },
    Mode {
        disk: usize,
        mode: WriteMode,
    },
    Target {
        disk: usize,
        target: Target,
    },
    Admission {
        disk: usize,
        admission: AdmissionConfig,
    },
    Cutoff {
        disk: usize,
        bytes: u64,
    },
    Clean {
        disk: usize,
    },
    /// Cleans, waits, and compares the origin.
    CleanAndCompare {
        disk: usize,
    },
    Detach {
        disk: usize,
        higher_epoch: bool,
    },
    Resize {
        disk: usize,
        sectors: u64,
    },
    Restart,
}

fn length() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 1..24u32, 2 => 8..120u32, 1 => 200..1200u32]
}

fn step() -> impl Strategy<Value = Step> {
    let disk = || 0..DISKS;
    let at = any::<Index>;
    let admission = prop_oneof![
        Just(AdmissionConfig::Always),
        (1..3u8, 1..600u32).prop_map(|(n, addresses)| match addresses {
            // Derived from another choice instead of drawn, so that saved cases still draw the same values.
            500.. => AdmissionConfig::Learned,
            _ => AdmissionConfig::reuse(n, addresses),
        }),
        (1..3u8, 1..600u64, prop::sample::select(vec![StagingKind::Data, StagingKind::Hybrid]))
            .prop_map(|(reuses, n, kind)| AdmissionConfig::Staging { kind, reuses, bytes: 5000 * n }),
    ];
    let target = prop_oneof![Just(Target::Equal), (0..1200u64).prop_map(Target::Blocks)];
    prop_oneof![
        12 => (disk(), at(), length()).prop_map(|(disk, at, sectors)| Step::Read { disk, at, sectors }),
        16 => (disk(), at(), length(), prop::bool::weighted(0.1))
            .prop_map(|(disk, at, sectors, fua)| Step::Write { disk, at, sectors, fua }),
        3 => (disk(), at(), length(), any::<bool>())
            .prop_map(|(disk, at, sectors, discard)| Step::Zero { disk, at, sectors, discard }),
        2 => disk().prop_map(|disk| Step::Flush { disk }),
        12 => prop::collection::vec(at(), 1..24).prop_map(|picks| Step::End { picks }),
        3 => Just(Step::Drain),
        2 => prop_oneof![1..2_000u64, 1_000..3_000_000u64].prop_map(|micros| Step::Wait { micros }),
        2 => (disk(), prop::sample::select(&MODES[..])).prop_map(|(disk, mode)| Step::Mode { disk, mode }),
        1 => (disk(), target).prop_map(|(disk, target)| Step::Target { disk, target }),
        1 => (disk(), admission).prop_map(|(disk, admission)| Step::Admission { disk, admission }),
        1 => (disk(), prop_oneof![Just(0), 4096..200_000u64])
            .prop_map(|(disk, bytes)| Step::Cutoff { disk, bytes }),
        1 => disk().prop_map(|disk| Step::Clean { disk }),
        1 => disk().prop_map(|disk| Step::CleanAndCompare { disk }),
        1 => (disk(), any::<bool>()).prop_map(|(disk, higher_epoch)| Step::Detach { disk, higher_epoch }),
        1 => (disk(), 1..6000u64).prop_map(|(disk, sectors)| Step::Resize { disk, sectors }),
        1 => Just(Step::Restart),
    ]
}

#[derive(Clone, Debug)]
struct Setup {
    segments: Vec<u32>,
    redundancy: bool,
    share_spare: bool,
    commit_blocks: u32,
    disks: [(u64, u8, WriteMode, Persistence); DISKS],
}

fn setup() -> impl Strategy<Value = Setup> {
    let persistence = prop_oneof![4 => Just(Persistence::All), 1 => Just(Persistence::Dirty)];
    let disk = (1..6000u64, 0..8u8, prop::sample::select(&MODES[..]), persistence);
    let segments = prop::collection::vec(4..7u32, 1..3);
    let disks = prop::array::uniform3(disk);
    (segments, any::<bool>(), any::<bool>(), 1..128u32, disks).prop_map(
        |(segments, redundancy, share_spare, commit_blocks, disks)| Setup {
            segments,
            redundancy,
            share_spare,
            commit_blocks,
            disks,
        },
    )
}

/// What a request does, and what its answer is checked against.
enum Flight {
    Read { disk: usize, sector: u64, allowed: Vec<Vec<Stamp>>, writes_seen: bool },
    Write { disk: usize, sector: u64, sectors: u32, stamp: Stamp },
    Flush,
}

/// What the core should have counted of a disk.
#[derive(Default, Clone, Copy)]
struct Counts {
    reads: u64,
    writes: u64,
    flushes: u64,
    zeroes: u64,
    read_sectors: u64,
    written_sectors: u64,
    read_blocks: u64,
    written_blocks: u64,
}

struct Guest {
    no: DiskNo,
    config: DiskConfig,
    epoch: u64,
    sectors: Sectors,
    counts: Counts,
}

impl Guest {
    fn blocks(&self, sector: u64, sectors: u32) -> u64 {
        let first = sector + (8 - u64::from(self.config.phase)) % 8;
        (first + u64::from(sectors) - 1) / SECTORS_PER_BLOCK - first / SECTORS_PER_BLOCK + 1
    }
}

struct Model {
    rig: Rig,
    core_config: CoreConfig,
    guests: Vec<Guest>,
    flights: HashMap<RequestTag, Flight>,
    jobs: Vec<JobId>,
    next_stamp: Stamp,
}

impl Model {
    fn new(setup: &Setup) -> Model {
        let core_config = CoreConfig {
            share_spare: setup.share_spare,
            commit_blocks: setup.commit_blocks,
            intent_clear_us: 1_000_000,
            max_requests: 24,
            ..CoreConfig::default()
        };
        let shelf = Shelf::pool(&setup.segments, setup.redundancy);
        let mut model = Model {
            rig: Rig::open(shelf, memory(), core_config),
            core_config,
            guests: Vec::new(),
            flights: HashMap::new(),
            jobs: Vec::new(),
            next_stamp: ORIGINAL + 1,
        };
        for (number, (sectors, phase, mode, persistence)) in setup.disks.into_iter().enumerate() {
            let cleaner = CleanerConfig { age_us: 2_000_000, idle_us: 1_000_000, ..CleanerConfig::default() };
            let id = disk_id(number as u8);
            let config = DiskConfig { phase, mode, persistence, cleaner, ..DiskConfig::new(id, sectors) };
            let origin = Origin::new(sectors::contents(number, 0, sectors as u32, ORIGINAL));
            model.rig.origins.insert(DiskNo(number as u16), origin);
            let no = model.rig.attach(&config, 1);
            let sectors = Sectors::new(number, sectors, ORIGINAL);
            model.guests.push(Guest { no, config, epoch: 1, sectors, counts: Counts::default() });
        }
        model
    }

    fn place(&self, disk: usize, at: Index, sectors: u32) -> (u64, u32) {
        let size = self.guests[disk].sectors.len();
        let sectors = u64::from(sectors).min(size);
        (at.index((size - sectors + 1) as usize) as u64, sectors as u32)
    }

    fn submit(&mut self, disk: usize, op: Op, sector: u64, sectors: u32, payload: Vec<u8>, flight: Flight) {
        let no = self.guests[disk].no;
        let tag = match self.rig.submit_sized(no, op, sector, sectors, payload) {
            Ok(tag) => tag,
            Err(Rejected::Busy) => return,
            Err(other) => panic!("{op:?} of {sectors} sectors at {sector} of disk {disk}: {other}"),
        };
        if let Flight::Write { stamp, .. } = flight {
            self.guests[disk].sectors.begin(sector, sectors, stamp);
            self.show_to_readers(disk, sector, sectors, stamp);
        }
        self.flights.insert(tag, flight);
        let blocks = if sectors == 0 { 0 } else { self.guests[disk].blocks(sector, sectors) };
        let counts = &mut self.guests[disk].counts;
        match op {
            Op::Read => {
                counts.reads += 1;
                counts.read_sectors += u64::from(sectors);
                counts.read_blocks += blocks;
            }
            Op::Write { .. } => {
                counts.writes += 1;
                counts.written_sectors += u64::from(sectors);
                counts.written_blocks += blocks;
            }
            Op::Flush => counts.flushes += 1,
            Op::Discard | Op::WriteZeroes => counts.zeroes += 1,
        }
        self.answers();
    }

    /// Records that readers in flight may see a write that begins now.
    fn show_to_readers(&mut self, disk: usize, sector: u64, sectors: u32, stamp: Stamp) {
        for flight in self.flights.values_mut() {
            let Flight::Read { disk: d, sector: first, allowed, writes_seen } = flight else { continue };
            for (at, allowed) in (*first..).zip(allowed) {
                if *d == disk && (sector..sector + u64::from(sectors)).contains(&at) {
                    allowed.push(stamp);
                    *writes_seen = true;
                }
            }
        }
    }

    fn read(&mut self, disk: usize, sector: u64, sectors: u32) {
        let model = &self.guests[disk].sectors;
        let allowed: Vec<_> = (sector..sector + u64::from(sectors)).map(|at| model.possible(at)).collect();
        let flight = Flight::Read { disk, sector, allowed, writes_seen: !self.nobody_writes(disk) };
        self.submit(disk, Op::Read, sector, sectors, vec![0xee; sectors as usize * SECTOR_BYTES], flight);
    }

    fn change(&mut self, disk: usize, op: Op, sector: u64, sectors: u32) {
        let (stamp, payload) = match op {
            Op::Write { .. } => {
                self.next_stamp += 1;
                (self.next_stamp, sectors::contents(disk, sector, sectors, self.next_stamp))
            }
            _ => (ZERO, Vec::new()),
        };
        self.submit(disk, op, sector, sectors, payload, Flight::Write { disk, sector, sectors, stamp });
    }

    /// Checks the requests that were answered.
    fn answers(&mut self) {
        let answered: Vec<RequestTag> = self.rig.answers.keys().copied().collect();
        for tag in answered {
            let result = self.rig.answers.remove(&tag).expect("it is answered");
            assert_eq!(result, Ok(()), "{tag:?}");
            let bytes = self.rig.buffer(tag);
            match self.flights.remove(&tag).expect("a request in flight is answered") {
                Flight::Flush => {}
                Flight::Write { disk, sector, sectors, stamp } => {
                    self.guests[disk].sectors.end(sector, sectors, stamp);
                }
                Flight::Read { disk, sector, writes_seen: false, .. } if self.nobody_writes(disk) => {
                    self.guests[disk].sectors.settle(sector, &bytes, "read");
                }
                Flight::Read { disk, sector, allowed, .. } => {
                    for ((at, bytes), allowed) in (sector..).zip(bytes.chunks(SECTOR_BYTES)).zip(allowed) {
                        let shown = sectors::stamp(disk, at, bytes);
                        assert!(
                            allowed.contains(&shown),
                            "disk {disk} sector {at} shows {shown}, it may show {allowed:?}"
                        );
                    }
                }
            }
        }
        self.jobs.retain(|job| match self.rig.jobs.get(job) {
            Some(result) => {
                assert_eq!(*result, Ok(()), "{job:?}");
                false
            }
            None => true,
        });
    }

    fn nobody_writes(&self, disk: usize) -> bool {
        !self.flights.values().any(|f| matches!(f, Flight::Write { disk: d, .. } if *d == disk))
    }

    /// Runs until nothing is in flight.
    fn drain(&mut self) {
        for _ in 0..64 {
            self.rig.run();
            self.answers();
            if self.flights.is_empty() && self.jobs.is_empty() {
                return;
            }
            self.rig.wait(1_000_000);
            self.answers();
        }
        let usages: Vec<_> = self.guests.iter().map(|g| self.rig.usage(g.no)).collect();
        panic!(
            "{} requests and {} jobs do not end; {usages:?}, {:?}",
            self.flights.len(),
            self.jobs.len(),
            self.rig.running().pool_stats()
        );
    }

    fn job(&mut self, started: Result<JobId, ManageError>) {
        match started {
            Ok(job) => self.jobs.push(job),
            Err(ManageError::Busy) => {}
            Err(other) => panic!("{other}"),
        }
        self.rig.collect();
        self.answers();
    }

    fn compare_origin(&mut self, disk: usize) {
        let guest = &mut self.guests[disk];
        let bytes = &self.rig.origins[&guest.no].bytes[..guest.sectors.len() as usize * SECTOR_BYTES];
        guest.sectors.settle(0, bytes, "origin");
    }

    fn clean(&mut self, disk: usize) {
        self.drain();
        let (no, now) = (self.guests[disk].no, self.rig.now);
        let job = self.rig.core().clean(now, no);
        self.job(job);
        self.drain();
        assert_eq!(self.rig.usage(no).dirty_blocks, 0);
        self.compare_origin(disk);
    }

    fn attach(&mut self, disk: usize) {
        let guest = &self.guests[disk];
        let no = self.rig.attach(&guest.config, guest.epoch);
        self.guests[disk].no = no;
    }

    fn detach(&mut self, disk: usize, higher_epoch: bool) {
        self.drain();
        let (no, now) = (self.guests[disk].no, self.rig.now);
        let job = self.rig.core().detach(now, no);
        self.job(job);
        self.drain();
        self.compare_origin(disk);
        if higher_epoch {
            self.guests[disk].epoch += 1;
            self.write_elsewhere(disk);
        }
        self.attach(disk);
    }

    /// Another host owns the disk for a while and writes all of it.
    fn write_elsewhere(&mut self, disk: usize) {
        self.next_stamp += 1;
        let guest = &mut self.guests[disk];
        let size = guest.sectors.len();
        guest.sectors = Sectors::new(disk, size, self.next_stamp);
        let bytes = sectors::contents(disk, 0, size as u32, self.next_stamp);
        self.rig.origins.get_mut(&guest.no).expect("the disk has an origin").bytes = bytes;
    }

    fn resize(&mut self, disk: usize, sectors: u64) {
        self.drain();
        let (no, now) = (self.guests[disk].no, self.rig.now);
        let bytes = sectors as usize * SECTOR_BYTES;
        let guest = &mut self.guests[disk];
        let grows = sectors > guest.sectors.len();
        let origin = self.rig.origins.get_mut(&no).expect("the disk has an origin");
        if grows {
            origin.bytes.resize(bytes, 0);
        }
        let job = self.rig.core().resize(now, no, sectors);
        self.job(job);
        self.drain();
        let guest = &mut self.guests[disk];
        guest.sectors.resize(sectors, ZERO);
        guest.config.sectors = sectors;
        self.rig.origins.get_mut(&no).expect("the disk has an origin").bytes.truncate(bytes);
    }

    /// Stops cleanly and opens again, as after a reboot.
    fn restart(&mut self) {
        self.drain();
        let shelf = self.rig.shutdown();
        let origins = std::mem::take(&mut self.rig.origins);
        self.rig = Rig::open(shelf, memory(), self.core_config);
        self.rig.origins = origins;
        assert!(self.rig.report.clean_stop, "the stop was clean");
        for disk in 0..DISKS {
            self.guests[disk].counts = Counts::default();
            self.attach(disk);
        }
    }

    fn step(&mut self, step: &Step) {
        let now = self.rig.now;
        match step {
            Step::Read { disk, at, sectors } => {
                let (sector, sectors) = self.place(*disk, *at, *sectors);
                self.read(*disk, sector, sectors);
            }
            Step::Write { disk, at, sectors, fua } => {
                let (sector, sectors) = self.place(*disk, *at, *sectors);
                self.change(*disk, Op::Write { fua: *fua }, sector, sectors);
            }
            Step::Zero { disk, at, sectors, discard } => {
                let (sector, sectors) = self.place(*disk, *at, *sectors);
                let op = if *discard { Op::Discard } else { Op::WriteZeroes };
                self.change(*disk, op, sector, sectors);
            }
            Step::Flush { disk } => self.submit(*disk, Op::Flush, 0, 0, Vec::new(), Flight::Flush),
            Step::End { picks } => {
                for pick in picks {
                    if !self.rig.pending.is_empty() {
                        let at = pick.index(self.rig.pending.len());
                        self.rig.end(at, Ok(()));
                        self.answers();
                    }
                }
            }
            Step::Drain => self.drain(),
            Step::Wait { micros } => {
                self.rig.now += micros;
                let now = self.rig.now;
                self.rig.core().tick(now);
                self.rig.collect();
                self.answers();
            }
            Step::Mode { disk, mode } => {
                let no = self.guests[*disk].no;
                let job = self.rig.core().set_mode(now, no, *mode);
                if job.is_ok() {
                    self.guests[*disk].config.mode = *mode;
                }
                self.job(job);
            }
            Step::Target { disk, target } => {
                let no = self.guests[*disk].no;
                self.rig.core().set_target(now, no, *target).expect("the disk is attached");
                self.guests[*disk].config.target = *target;
            }
            Step::Admission { disk, admission } => {
                let no = self.guests[*disk].no;
                self.rig.core().set_admission(now, no, *admission).expect("the disk is attached");
                self.guests[*disk].config.admission = *admission;
            }
            Step::Cutoff { disk, bytes } => {
                let no = self.guests[*disk].no;
                self.rig.core().set_sequential_cutoff(now, no, *bytes).expect("the disk is attached");
                self.guests[*disk].config.sequential_cutoff_bytes = *bytes;
            }
            Step::Clean { disk } => {
                let no = self.guests[*disk].no;
                let job = self.rig.core().clean(now, no);
                self.job(job);
            }
            Step::CleanAndCompare { disk } => self.clean(*disk),
            Step::Detach { disk, higher_epoch } => self.detach(*disk, *higher_epoch),
            Step::Resize { disk, sectors } => self.resize(*disk, *sectors),
            Step::Restart => self.restart(),
        }
    }

    /// Checks that the counters match the requests, and that the parts of each sum add up to it.
    fn check_counts(&self) {
        self.rig.running().check();
        let pool = self.rig.running().pool_stats();
        let (mut usage, mut dirty, mut segments) = (0, 0, 0);
        for guest in &self.guests {
            let (stats, counts, used) = (self.rig.stats(guest.no), guest.counts, self.rig.usage(guest.no));
            assert_eq!(
                [stats.reads, stats.writes, stats.flushes, stats.zeroes, stats.failed_requests],
                [counts.reads, counts.writes, counts.flushes, counts.zeroes, 0]
            );
            assert_eq!(stats.read_bytes, counts.read_sectors * SECTOR_BYTES as u64);
            assert_eq!(stats.written_bytes, counts.written_sectors * SECTOR_BYTES as u64);
            assert_eq!(stats.read_hits + stats.read_misses, counts.read_blocks);
            assert_eq!(stats.write_hits + stats.write_misses, counts.written_blocks);
            assert_eq!(stats.start_phases.iter().sum::<u64>(), counts.reads + counts.writes + counts.zeroes);
            assert_eq!([stats.corrupt_blocks, stats.lost_blocks], [0, 0]);
            assert!(used.dirty_blocks <= used.usage_blocks && used.mirrored_blocks <= used.dirty_blocks);
            usage += used.usage_blocks;
            dirty += used.dirty_blocks;
            segments += used.segments;
        }
        assert_eq!(dirty, pool.dirty_blocks);
        assert!(pool.usage_blocks <= usage && pool.usage_blocks <= pool.capacity_blocks);
        assert_eq!((segments + pool.free_segments) * 253, pool.capacity_blocks);
    }

    /// Ends all requests and jobs, and checks the content of every disk and, after cleaning, of its origin.
    fn end(&mut self) {
        self.drain();
        self.check_counts();
        for disk in 0..DISKS {
            let size = self.guests[disk].sectors.len() as u32;
            self.read(disk, 0, size);
            self.drain();
        }
        for disk in 0..DISKS {
            self.clean(disk);
        }
        self.check_counts();
        assert_eq!(self.rig.running().pool_stats().dirty_blocks, 0);
        assert!(self.rig.pending.is_empty(), "the core is idle");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 128,
        max_shrink_iters: 20_000,
        max_shrink_time: 60_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(REGRESSIONS))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_read_returns_the_last_write(
        setup in setup(),
        steps in prop::collection::vec(step(), 1..160),
    ) {
        let mut model = Model::new(&setup);
        for step in &steps {
            model.step(step);
        }
        model.end();
    }
}
