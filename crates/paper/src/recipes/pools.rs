//! Systems that divide a pool: each is simulated on the figure's load, with each size of the pool.

use std::collections::BTreeMap;
use std::path::Path;

use haversack_api::{Persistence, Span};
use haversack_control::counted_writes::{Counted, counted_writes};
use haversack_control::{forecasts, predictions};
use haversack_model::BLOCK_BYTES;
use haversack_policy::AllocatorRule;
use haversack_sim::counts::{Counts, ratio};
use haversack_sim::governor::TargetSample;
use haversack_sim::latency::LatencyModel;
use haversack_sim::meter::VolumeSample;
use haversack_sim::mix::Mix;
use haversack_sim::tape::{Survey, Tape};
use haversack_sim::{Pool, Progress, RestartKind, Restarts, Row, Settings, SimError, Sizes, Stage, Traffic};
use haversack_trace::Source;

use crate::error::Failure;
use crate::measure::Quantity;
use crate::outcome::{Course, CourseOf, Outcome, Played, Point};
use crate::recipe::{Phase, Pools, System};

const GIB: f64 = (1u64 << 30) as f64;
/// Samples over the time of the load.
const SAMPLES: u32 = 120;
/// A predicted hit ratio is good within this (vCacheShare, figure 6).
const GOOD: f64 = 0.1;
/// Pools simulated side by side per thread.
const POOLS_A_THREAD: usize = 4;

/// Simulates.
pub(crate) fn run(recipe: &Pools, mix: &Mix, progress: &Progress<'_>) -> Result<Outcome, Failure> {
    let fractions = if recipe.fractions.is_empty() { &mix.fractions } else { &recipe.fractions };
    let mut cases = Vec::new();
    for fraction in fractions {
        for system in &recipe.systems {
            cases.push(Case::new(recipe, mix, system, *fraction, fractions.len() > 1)?);
        }
    }
    let opener = || -> Result<Box<dyn Source>, SimError> { mix.open(Path::new(".")) };
    let Some(first) = cases.first() else { return Err(Failure::Recipe("it has no systems".into())) };
    let seen = |part| progress(Stage::Survey, part);
    let tape = Tape::of(&opener, &first.settings, &seen)?;
    let mut outcome =
        Outcome { played: Some(Played::of(&tape.survey, BLOCK_BYTES as u64)), ..Outcome::default() };
    let together = POOLS_A_THREAD * haversack_sim::threads(&first.settings);
    for (number, some) in cases.chunks(together).enumerate() {
        let part = |stage: Stage, part: f64| {
            let part = if stage == Stage::Play { part } else { 1.0 };
            let done = number * together;
            progress(Stage::Play, (done as f64 + part * some.len() as f64) / cases.len() as f64);
        };
        let settings: Vec<&Settings> = some.iter().map(|case| &case.settings).collect();
        for (case, row) in some.iter().zip(haversack_sim::pools(&tape, &settings, &part)?) {
            case.add(&row, &tape.survey, &recipe.phases, &mut outcome)?;
        }
    }
    Ok(outcome)
}

/// A system with a pool of one size.
struct Case<'a> {
    system: &'a System,
    x: Option<f64>,
    settings: Settings,
}

impl<'a> Case<'a> {
    fn new(
        recipe: &Pools,
        mix: &Mix,
        system: &'a System,
        fraction: f64,
        several: bool,
    ) -> Result<Case<'a>, Failure> {
        let mut of_mix = mix.settings(Some(mix.config(&system.policy)?))?;
        for (disk, priority) in &system.priorities {
            let found = of_mix.pool.disks.iter_mut().find(|config| config.name == *disk);
            let no_disk = || Failure::Recipe(format!("priorities: there is no disk '{disk}'"));
            found.ok_or_else(no_disk)?.priority = *priority;
        }
        if !system.keeps_clean {
            of_mix.pool.disks.iter_mut().for_each(|config| config.persistence = Persistence::Dirty);
        }
        let restarts = system
            .restart_every
            .map(|every| Restarts { every_ns: nanoseconds(every), kind: RestartKind::Stop });
        let pool = Pool {
            devices: system.devices.unwrap_or(1),
            redundancy: system.redundancy,
            mirrored: system.mirrored,
            restarts,
            ..of_mix.pool
        };
        let replacement = match &system.replacement {
            Some(name) => name.parse().map_err(Failure::Recipe)?,
            None => of_mix.replacement,
        };
        let settings = Settings {
            sizes: Sizes::Fractions(vec![fraction * system.scale]),
            mode: system.mode,
            traffic: Traffic { samples: SAMPLES, ..of_mix.traffic },
            pool,
            replacement,
            latency: Some(recipe.latency.over(LatencyModel::default())),
            ..of_mix
        };
        settings.check()?;
        Ok(Case { system, x: system.x.or(several.then_some(fraction)), settings })
    }

    /// Whether disks have targets of their own.
    fn divides(&self) -> bool {
        let allocator = self.settings.control.as_ref().map(|config| config.allocator);
        allocator.is_some_and(|allocator| allocator != AllocatorRule::None)
    }

    /// Adds what came of it.
    fn add(
        &self,
        row: &Row,
        survey: &Survey,
        phases: &[Phase],
        outcome: &mut Outcome,
    ) -> Result<(), Failure> {
        let pool_bytes = bytes(row.blocks.unwrap_or(0));
        let mut point = Point::new(&self.system.name, self.x);
        add_counts(&mut point, row);
        let control = row.production.as_ref().and_then(|production| production.control.as_ref());
        let names: Vec<&str> = survey.volumes.iter().map(|volume| volume.name.as_str()).collect();
        if let Some(control) = control {
            add_shares(&mut point, &names, &control.targets, pool_bytes, self.divides());
            let lines = || control.log.iter().map(String::as_str);
            let predicted = predictions::predictions(lines())?;
            point.set(Quantity::PredictionError, predictions::errors(&predicted).map(|errors| errors.0));
            let good = predicted.iter().filter(|one| (one.predicted - one.real).abs() <= GOOD).count();
            let share = (!predicted.is_empty()).then(|| good as f64 / predicted.len() as f64);
            point.set(Quantity::PredictionsWithinATenth, share);
            point.set(Quantity::ForecastError, forecasts::mean_error(&forecasts::forecasts(lines())?));
            add_counted(&mut point, counted_writes(lines())?);
        }
        let used_last = row.production.as_ref().map(|production| &production.usage_blocks);
        if control.is_none_or(|control| control.targets.is_empty()) {
            point.set(Quantity::Usage, used_last.map(|blocks| bytes(blocks.iter().sum())));
        }
        add_cost(&mut point, row);
        point.add_medians();
        outcome.points.push(point);
        let targets = control.map(|control| control.targets.as_slice()).unwrap_or_default();
        for phase in phases {
            outcome.points.push(self.in_phase(phase, row, &names, targets, pool_bytes));
        }
        outcome.courses.extend(self.courses(row, &names, targets));
        Ok(())
    }

    fn in_phase(
        &self,
        phase: &Phase,
        row: &Row,
        names: &[&str],
        targets: &[TargetSample],
        pool_bytes: f64,
    ) -> Point {
        let (from, to) = (seconds(phase.from), seconds(phase.to));
        let within = |time: f64| from < time && time <= to;
        let mut point = Point::new(&format!("{}, {}", self.system.name, phase.name), self.x);
        let some: Vec<TargetSample> =
            targets.iter().filter(|sample| within(sample.time_seconds)).cloned().collect();
        add_shares(&mut point, names, &some, pool_bytes, self.divides());
        let series = || row.series.iter().filter(|sample| within(sample.time_seconds));
        let sum = |samples: &mut dyn Iterator<Item = &VolumeSample>| {
            samples.fold(VolumeSample::default(), |sum, one| sum.and(one))
        };
        let all = sum(&mut series().flat_map(|sample| &sample.volumes));
        let known = |hits, accesses| (accesses > 0).then(|| ratio(hits, accesses));
        point.set(Quantity::Hits, known(all.hits(), all.accesses()));
        point.set(Quantity::ReadHits, known(all.read_hits, all.reads));
        for (disk, name) in names.iter().enumerate() {
            let own = sum(&mut series().filter_map(|sample| sample.volumes.get(disk)));
            point.set_of(name, Quantity::Hits, known(own.hits(), own.accesses()));
            point.set_of(name, Quantity::ReadHits, known(own.read_hits, own.reads));
        }
        point
    }

    fn courses(&self, row: &Row, names: &[&str], targets: &[TargetSample]) -> Vec<Course> {
        let of = |of, times_s, parts| Course { system: self.system.name.clone(), of, times_s, parts };
        let parts = |blocks: fn(&TargetSample) -> &Vec<u64>| {
            let of_disk = |disk: usize| {
                targets.iter().map(|sample| bytes(blocks(sample).get(disk).copied().unwrap_or(0))).collect()
            };
            names.iter().enumerate().map(|(disk, name)| ((*name).to_string(), of_disk(disk))).collect()
        };
        let times: Vec<f64> = targets.iter().map(|sample| sample.time_seconds).collect();
        let hits = row.series.iter().map(|sample| ratio(sample.hits, sample.accesses)).collect();
        let sampled = row.series.iter().map(|sample| sample.time_seconds).collect();
        let mut courses = vec![of(CourseOf::Hits, sampled, vec![(String::new(), hits)])];
        if !targets.is_empty() && self.divides() {
            courses.push(of(CourseOf::Targets, times.clone(), parts(|sample| &sample.target_blocks)));
        }
        if !targets.is_empty() {
            courses.push(of(CourseOf::Usage, times, parts(|sample| &sample.usage_blocks)));
        }
        courses
    }
}

fn bytes(blocks: u64) -> f64 {
    blocks as f64 * BLOCK_BYTES as f64
}

fn nanoseconds(span: Span) -> u64 {
    span.as_micros().saturating_mul(1000)
}

fn seconds(span: Span) -> f64 {
    span.as_micros() as f64 / 1e6
}

fn hit_ratios(counts: &Counts) -> (f64, f64) {
    let accesses = counts.blocks_read() + counts.blocks_written();
    let hits = ratio(counts.read_hits + counts.write_hits, accesses);
    (hits, ratio(counts.read_hits, counts.blocks_read()))
}

/// Hits, flash writes and latencies, of all disks and of each.
fn add_counts(point: &mut Point, row: &Row) {
    let seconds = |us: f64| us / 1e6;
    let (hits, read_hits) = hit_ratios(&row.counts);
    point.set(Quantity::Hits, hits);
    point.set(Quantity::ReadHits, read_hits);
    point.set(Quantity::FlashWrites, row.flash_write_ratio);
    point.set(Quantity::OriginRequests, (row.counts.origin_reads + row.counts.origin_writes) as f64);
    if let Some(latency) = row.latency {
        point.set(Quantity::MeanLatency, seconds(latency.all.mean_us));
        point.set(Quantity::P90Latency, seconds(latency.all.p90_us));
        point.set(Quantity::P95Latency, seconds(latency.all.p95_us));
    }
    for volume in &row.volumes {
        let counts = &volume.counts;
        let (hits, read_hits) = hit_ratios(counts);
        point.set_of(&volume.name, Quantity::Hits, hits);
        point.set_of(&volume.name, Quantity::ReadHits, read_hits);
        let accesses = counts.blocks_read() + counts.blocks_written();
        point.set_of(&volume.name, Quantity::FlashWrites, ratio(counts.flash_writes(), accesses));
        if let Some(latency) = volume.latency {
            point.set_of(&volume.name, Quantity::MeanLatency, seconds(latency.mean_us));
            point.set_of(&volume.name, Quantity::P95Latency, seconds(latency.p95_us));
        }
    }
}

/// Flash writes by equation 3, of all disks and of each.
fn add_counted(point: &mut Point, counted: BTreeMap<String, Counted>) {
    let share = |counted: Counted| (counted.accesses > 0.0).then(|| counted.flash_writes / counted.accesses);
    point.set(
        Quantity::CountedWrites,
        share(counted.values().copied().fold(Counted::default(), Counted::and)),
    );
    for (disk, counted) in counted {
        point.set_of(&disk, Quantity::CountedWrites, share(counted));
    }
}

/// Targets and usage: means over the decisions. Disks that share the pool have all of it.
fn add_shares(point: &mut Point, names: &[&str], samples: &[TargetSample], pool_bytes: f64, divides: bool) {
    if samples.is_empty() {
        return;
    }
    let count = samples.len() as f64;
    let mean = |blocks: &dyn Fn(&TargetSample) -> u64| {
        samples.iter().map(|sample| bytes(blocks(sample))).sum::<f64>() / count
    };
    point.set(Quantity::Usage, mean(&|sample| sample.usage_blocks.iter().sum()));
    let targets = mean(&|sample| sample.target_blocks.iter().sum());
    let allocated = if divides { targets.min(pool_bytes) } else { pool_bytes };
    point.set(Quantity::Allocated, allocated);
    let demand = mean(&|sample| sample.demand_blocks.iter().copied().fold(0, u64::saturating_add));
    point.set(Quantity::Demand, divides.then_some(demand));
    let last = samples.last().filter(|_| divides);
    point.set(Quantity::AllocatedAtEnd, last.map(|sample| bytes(sample.target_blocks.iter().sum())));
    let read_only = |sample: &TargetSample| {
        sample.write_modes.iter().filter(|mode| matches!(mode.as_str(), "wi" | "ro")).count() as f64
    };
    point.set(Quantity::ReadOnly, samples.iter().map(read_only).sum::<f64>() / count);
    for (disk, name) in names.iter().enumerate() {
        let at = |values: &Vec<u64>| values.get(disk).copied().unwrap_or(0);
        point.set_of(name, Quantity::Usage, mean(&|sample| at(&sample.usage_blocks)));
        if !divides {
            continue;
        }
        let target = mean(&|sample| at(&sample.target_blocks));
        point.set_of(name, Quantity::Allocated, target);
        point.set_of(name, Quantity::Demand, mean(&|sample| at(&sample.demand_blocks)));
        point.set_of(name, Quantity::AllocatedAtEnd, last.map(|sample| bytes(at(&sample.target_blocks))));
        point.set_of(name, Quantity::Share, (targets > 0.0).then(|| target / targets));
    }
}

/// Performance per cost: requests per second of a client that waits for each, for each GiB allocated (ECI-Cache, 6.5:
/// "performance per allocated cache space").
fn add_cost(point: &mut Point, row: &Row) {
    let allocated = point.values.get(&crate::measure::Measure::of_all(Quantity::Allocated)).copied();
    let mean_s = row.latency.map(|latency| latency.all.mean_us / 1e6).filter(|mean| *mean > 0.0);
    let value = mean_s.zip(allocated.filter(|bytes| *bytes > 0.0));
    point.set(Quantity::PerformancePerCost, value.map(|(mean_s, bytes)| 1.0 / mean_s / (bytes / GIB)));
}
