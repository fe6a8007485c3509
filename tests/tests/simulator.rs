//! The simulator against the daemon: the same trace, the same counters.

use haversack_core::{AdmissionConfig, CleanerConfig, DiskStats, DiskUsage};
use haversack_e2e::connection::Connection;
use haversack_e2e::control::Control;
use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::replay::{Replay, SteppedClock};
use haversack_e2e::{Error, MIB, Place, Result, image, test};
use haversack_model::{BLOCK_BYTES, WriteMode};
use haversack_sim::cell::{CellResult, ProductionResult};
use haversack_sim::counts::Counts;
use haversack_sim::meter::MeterSettings;
use haversack_sim::production::Production;
use haversack_sim::tape::Tape;
use haversack_sim::{Pool, SimError};
use haversack_trace::generate::{Generator, Mix, Pattern};
use haversack_trace::{Access, MemorySource, Op, Source, VolumeNo};
use serde_json::{Value, json};

/// Bytes of a block.
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Bytes of each disk.
const DISK_MIB: u64 = 48;
/// Bytes of each cache device.
const CACHE_MIB: u64 = 12;
/// From a request to the next one.
const INTERVAL_NS: u64 = 2_000_000;
const SECTOR: u64 = 512;

/// What is compared.
struct Case {
    name: &'static str,
    mode: &'static str,
    disks: u32,
    devices: u32,
    redundancy: bool,
    requests: u64,
}

impl Case {
    const fn of_mode(mode: &'static str) -> Self {
        Case { name: mode, mode, disks: 1, devices: 1, redundancy: false, requests: 2500 }
    }

    /// Reads, writes, discards and flushes of all sizes and alignments, more often to some places than to others.
    fn trace(&self) -> Result<Vec<Access>> {
        let sizes = [(512, 1.0), (3584, 1.0), (4096, 4.0), (12_288, 2.0), (65_536, 1.0), (262_144, 0.1)];
        let generator = Generator {
            pattern: Pattern::Zipf { theta: 0.8 },
            blocks: DISK_MIB * MIB / BLOCK,
            mix: Mix { read: 0.55, sizes: sizes.to_vec() },
            volumes: self.disks,
            requests: self.requests,
            rate: 500.0,
            seed: 7,
        };
        let refused = |error: &dyn std::fmt::Display| Error::Check(format!("no trace: {error}"));
        let mut source = generator.source().map_err(|error| refused(&error))?;
        let mut accesses = Vec::new();
        while source.read(&mut accesses).map_err(|error| refused(&error))? > 0 {}
        for (access, number) in accesses.iter_mut().zip(0..) {
            vary(access, number);
        }
        // The simulator's disks end with their last access, and the daemon's are to be as large.
        let whole = |volume| Access { volume: VolumeNo(volume), length_bytes: BLOCK as u32, ..last_block() };
        accesses.extend((0..self.disks).map(whole));
        accesses
            .iter_mut()
            .zip(1..)
            .for_each(|(access, number): (_, u64)| access.time_ns = number * INTERVAL_NS);
        Ok(accesses)
    }
}

fn last_block() -> Access {
    Access { offset_bytes: DISK_MIB * MIB - BLOCK, ..Access::default() }
}

/// Makes an access what generators do not make: one off the grid, a discard, a flush.
fn vary(access: &mut Access, number: u64) {
    let room = DISK_MIB * MIB - access.offset_bytes - u64::from(access.length_bytes);
    if number.is_multiple_of(3) {
        access.offset_bytes += room.min(number % 8 * SECTOR);
    }
    match number % 40 {
        11 | 27 => access.op = Op::Discard,
        31 => (access.op, access.length_bytes) = (Op::Flush, 0),
        _ => {}
    }
}

/// The cleaner goes by the clock as well as by watermarks.
fn cleaner() -> (CleanerConfig, &'static str) {
    let config = CleanerConfig { age_us: 800_000, idle_us: 40_000, ..CleanerConfig::default() };
    (config, "cleaner = { age = \"800ms\", idle = \"40ms\" }")
}

fn name(volume: u32) -> String {
    format!("vol{volume}")
}

/// What the daemon tells of the pool and of its disks.
struct Told {
    pool: Value,
    disks: Vec<Value>,
}

fn play_to_daemon(place: &Place, case: &Case, trace: &[Access]) -> Result<Told> {
    let clock = SteppedClock::new(place)?;
    let mut disks = Vec::new();
    for volume in 0..case.disks {
        let file = image::zeroes(place, &format!("{}.img", name(volume)), DISK_MIB)?;
        let disk = Disk { mode: case.mode.into(), ..Disk::new(&name(volume), file.display().to_string()) };
        disks.push(disk.with(cleaner().1));
    }
    let mut settings = Settings::new(CACHE_MIB, disks);
    settings.staging_mib = 1;
    settings.redundancy = case.redundancy;
    settings.devices = (0..case.devices).map(|device| format!("cache{device}.img")).collect();
    settings.pool = format!("clock_file = \"{}\"\n", clock.path().display());
    let daemon = Haversack::start_in_order(place, settings)?;
    let open = |volume| Connection::open(&daemon.socket("nbd.sock"), &name(volume));
    let connections = (0..case.disks).map(open).collect::<Result<Vec<_>>>()?;
    let control = Control::open(&daemon.socket("control.sock"))?;
    let mut replay = Replay::new(clock, control, daemon.pool(), connections);
    replay.play(trace)?;
    let disks = (0..case.disks).map(|volume| replay.disk(&name(volume))).collect::<Result<_>>()?;
    Ok(Told { pool: replay.pool()?, disks })
}

fn play_to_simulator(
    case: &Case,
    trace: &[Access],
    blocks: u64,
) -> std::result::Result<CellResult, SimError> {
    let mut settings = haversack_sim::Settings {
        mode: case.mode.parse::<WriteMode>().expect("a mode"),
        pool: Pool {
            devices: case.devices,
            redundancy: case.redundancy,
            staging_blocks: Some((MIB / BLOCK) as u32),
            cleaner: cleaner().0,
            admission: AdmissionConfig::Learned,
            ..Pool::default()
        },
        ..haversack_sim::Settings::default()
    };
    // Times are played as they are, and not moved to begin at 0.
    settings.traffic.interval_ns = None;
    let names: Vec<String> = (0..case.disks).map(name).collect();
    let opener = || -> std::result::Result<Box<dyn Source>, SimError> {
        Ok(Box::new(MemorySource::new(trace.to_vec(), names.clone())))
    };
    let tape = Tape::new(&opener, &settings.traffic, BLOCK, &|_| {})?;
    let mut cell = Production::cell(&settings, &tape.survey, blocks, MeterSettings::default())?;
    cell.play(trace)?;
    Ok(cell.end()?.remove(0))
}

/// A disk's figures in the words of the API.
fn disk_in_api_words(stats: &DiskStats, usage: &DiskUsage, counts: &Counts) -> Value {
    let best = (0..8).rev().max_by_key(|phase| stats.start_phases[*phase]);
    json!({
        "usage": {
            "target_bytes": usage.target_blocks * BLOCK,
            "usage_bytes": usage.usage_blocks * BLOCK,
            "dirty_bytes": usage.dirty_blocks * BLOCK,
            "mirrored_bytes": usage.mirrored_blocks * BLOCK,
            "oldest_dirty_us": usage.oldest_dirty_us,
            "segments": usage.segments,
        },
        "requests": {
            "reads": stats.reads, "writes": stats.writes, "flushes": stats.flushes, "zeroes": stats.zeroes,
            "read_hits": stats.read_hits, "data_stage_hits": stats.data_stage_hits, "read_misses": stats.read_misses,
            "write_hits": stats.write_hits, "write_misses": stats.write_misses,
            "not_admitted": stats.not_admitted, "overflowed": stats.overflowed_blocks, "fills_skipped": stats.fills_skipped,
            "best_phase": best,
        },
        "blocks": {
            "read_bytes": stats.read_bytes, "written_bytes": stats.written_bytes,
            "origin_read_bytes": stats.origin_read_bytes, "origin_written_bytes": stats.origin_written_bytes,
            "cleaned_bytes": stats.cleaned_bytes, "cleaned_blocks": stats.cleaned_blocks,
            "flash": {
                "write_bytes": stats.flash_write_blocks * BLOCK,
                "fill_bytes": stats.flash_fill_blocks * BLOCK,
                "mirror_bytes": stats.flash_mirror_blocks * BLOCK,
                "batch_page_bytes": stats.flash_batch_pages * BLOCK,
                "rewrite_page_bytes": stats.flash_rewrite_pages * BLOCK,
                "intent_page_bytes": stats.flash_intent_pages * BLOCK,
            },
        },
        "errors": {
            "failed_requests": 0, "origin_errors": 0, "corrupt_blocks": 0, "lost_blocks": 0,
            "crash_dropped_blocks": stats.crash_dropped_blocks,
        },
        "origin_reads": counts.origin_reads,
        "origin_writes": counts.origin_writes,
    })
}

/// The same as the daemon tells it.
fn disk_as_told(told: &Value) -> Value {
    json!({
        "usage": told["usage"], "requests": told["requests"], "blocks": told["blocks"], "errors": told["errors"],
        "origin_reads": told["origin_latency"]["read"]["count"],
        "origin_writes": told["origin_latency"]["write"]["count"],
    })
}

fn pool_in_api_words(result: &ProductionResult) -> Value {
    let stats = &result.pool_stats;
    json!({
        "capacity_bytes": stats.capacity_blocks * BLOCK,
        "usage_bytes": stats.usage_blocks * BLOCK,
        "dirty_bytes": stats.dirty_blocks * BLOCK,
        "free_segments": stats.free_segments,
        "flushes": stats.flushes,
        "record_pages": stats.record_pages,
        "state": "ok",
    })
}

fn pool_as_told(told: &Value, words: &Value) -> Value {
    let keys = words.as_object().expect("an object").keys();
    keys.map(|key| (key.clone(), told[key].clone())).collect::<serde_json::Map<_, _>>().into()
}

/// Collects every figure that differs.
fn differing(what: &str, daemon: &Value, simulator: &Value, into: &mut Vec<String>) {
    match (daemon.as_object(), simulator.as_object()) {
        (Some(left), Some(right)) if left.len() == right.len() => {
            for (key, value) in left {
                differing(
                    &format!("{what}.{key}"),
                    value,
                    &right.get(key).cloned().unwrap_or_default(),
                    into,
                );
            }
        }
        _ if daemon == simulator => {}
        _ => into.push(format!("  {what}: {daemon} and {simulator}")),
    }
}

fn compare(case: &Case) {
    test(case.name, |place| {
        let trace = case.trace()?;
        let told = play_to_daemon(place, case, &trace)?;
        place.say("played to the daemon");
        let blocks = told.pool["capacity_bytes"].as_u64().unwrap_or(0) / BLOCK;
        let simulated = play_to_simulator(case, &trace, blocks);
        let simulated = simulated.map_err(|error| Error::Check(error.to_string()))?;
        let production = simulated.production.expect("the production cache tells more");
        let simulated_pool = pool_in_api_words(&production);
        let mut differences = Vec::new();
        for (volume, told) in told.disks.iter().enumerate() {
            let (stats, usage) = (&production.disk_stats[volume], &production.disk_usages[volume]);
            check(
                stats.read_hits > 100 && stats.flash_batch_pages > 0 || case.mode == "pt",
                "the cache was used",
            )?;
            let simulated = disk_in_api_words(stats, usage, &simulated.volumes[volume]);
            differing(&name(volume as u32), &disk_as_told(told), &simulated, &mut differences);
        }
        differing("pool", &pool_as_told(&told.pool, &simulated_pool), &simulated_pool, &mut differences);
        check(differences.is_empty(), format!("daemon and simulator differ:\n{}", differences.join("\n")))
    });
}

#[test]
fn write_back() {
    compare(&Case::of_mode("wb"));
}

#[test]
fn write_through() {
    compare(&Case::of_mode("wt"));
}

#[test]
fn write_through_acknowledged_by_the_cache() {
    compare(&Case::of_mode("wt-cache"));
}

#[test]
fn write_around() {
    compare(&Case::of_mode("wa"));
}

#[test]
fn write_invalidate() {
    compare(&Case::of_mode("wi"));
}

#[test]
fn pass_through() {
    compare(&Case::of_mode("pt"));
}

#[test]
fn two_disks_on_two_devices_with_two_copies() {
    compare(&Case { name: "redundancy", disks: 2, devices: 2, redundancy: true, ..Case::of_mode("wb") });
}
