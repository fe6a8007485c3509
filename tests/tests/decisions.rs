//! The policy in the daemon and in the simulator: the same requests at the same times, the same decisions.

use std::fmt::Write;
use std::path::Path;

use haversack_control::{Decision, Entry};
use haversack_e2e::connection::Connection;
use haversack_e2e::control::Control;
use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::replay::{Replay, SteppedClock};
use haversack_e2e::{Error, MIB, Place, Result, image, test, tools};
use haversack_model::BLOCK_BYTES;
use haversack_policy::DiskPlan;
use haversack_trace::generate::{Generator, Mix, Pattern};
use haversack_trace::{Access, VolumeNo};

/// Bytes of a block.
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Size of each disk.
const DISK_MIB: u64 = 48;
/// Size of the cache device.
const CACHE_MIB: u64 = 12;
/// From a request to the next one.
const INTERVAL_NS: u64 = 2_000_000;
/// Requests to all disks.
const REQUESTS: usize = 3000;
/// No whole milliseconds, see [`Replay::in_windows`].
const WINDOW_US: u64 = 500_030;
/// Windows that end within the trace at least.
const WINDOWS: usize = (REQUESTS as u64 * INTERVAL_NS / 1000 / WINDOW_US) as usize;
/// When dirty blocks are cleaned: soon, so that it happens.
const CLEAN_AGE: &str = "800ms";
const CLEAN_IDLE: &str = "40ms";

fn name(disk: usize) -> String {
    format!("vol{disk}")
}

/// A disk that mostly reads some places again, one that is read from end to end, and one that writes over what it has
/// written.
fn generators() -> [Generator; 3] {
    let of = |pattern, blocks, read, seed| Generator {
        pattern,
        blocks,
        mix: Mix { read, sizes: vec![(4096, 3.0), (16_384, 1.0)] },
        volumes: 1,
        requests: REQUESTS as u64,
        rate: 500.0,
        seed,
    };
    [
        of(Pattern::Zipf { theta: 0.6 }, 1500, 0.8, 1),
        of(Pattern::Scan { stride: None }, DISK_MIB * MIB / BLOCK, 1.0, 2),
        of(Pattern::Zipf { theta: 0.6 }, 400, 0.2, 3),
    ]
}

/// What all disks do, by turns. The simulator's disks end with their last access, and the daemon's are to be as large.
fn trace() -> Result<Vec<Access>> {
    let refused = |error: &dyn std::fmt::Display| Error::Check(format!("no trace: {error}"));
    let mut of_disks = Vec::new();
    for generator in generators() {
        let mut source = generator.source().map_err(|error| refused(&error))?;
        let mut accesses = Vec::new();
        while source.read(&mut accesses).map_err(|error| refused(&error))? > 0 {}
        of_disks.push(accesses);
    }
    let disks = of_disks.len();
    let mut all: Vec<Access> = (0..REQUESTS).map(|number| of_disks[number % disks][number / disks]).collect();
    let last =
        Access { offset_bytes: DISK_MIB * MIB - BLOCK, length_bytes: BLOCK as u32, ..Access::default() };
    all.extend(vec![last; disks]);
    for (access, number) in all.iter_mut().zip(0..) {
        access.volume = VolumeNo((number % disks as u64) as u32);
        access.time_ns = number * INTERVAL_NS;
    }
    Ok(all)
}

/// The trace in the common form.
fn text(trace: &[Access]) -> String {
    let mut text = "timestamp_ns,volume,op,offset_bytes,length_bytes\n".to_owned();
    for Access { time_ns, volume, op, offset_bytes, length_bytes } in trace {
        let (volume, op) = (name(volume.0 as usize), op.letter());
        // Writing into a string does not fail.
        let _ = writeln!(text, "{time_ns},{volume},{op},{offset_bytes},{length_bytes}");
    }
    text
}

/// Plays the trace to a daemon under a policy. What its log says, and the blocks of its pool.
fn decided_live(place: &Place, allocator: &str, trace: &[Access]) -> Result<(String, u64)> {
    let clock = SteppedClock::new(place)?;
    let mut settings = Settings::new(CACHE_MIB, Vec::new());
    settings.staging_mib = 1;
    settings.pool = format!("clock_file = \"{}\"\n", clock.path().display());
    let cleaner = format!("cleaner = {{ age = \"{CLEAN_AGE}\", idle = \"{CLEAN_IDLE}\" }}");
    for disk in 0..generators().len() {
        let file = image::zeroes(place, &format!("{}.img", name(disk)), DISK_MIB)?;
        let disk = Disk { mode: "auto".into(), ..Disk::new(&name(disk), file.display().to_string()) };
        settings.disks.push(disk.with(&cleaner));
    }
    settings.more = format!("\n[policy]\nallocator = \"{allocator}\"\nwindow = \"{WINDOW_US}us\"\n");
    let daemon = Haversack::start_in_order(place, settings)?;
    let open = |disk| Connection::open(&daemon.socket("nbd.sock"), &name(disk));
    let connections = (0..generators().len()).map(open).collect::<Result<Vec<_>>>()?;
    let control = Control::open(&daemon.socket("control.sock"))?;
    let mut replay = Replay::new(clock, control, daemon.pool(), connections).in_windows(WINDOW_US);
    replay.play(trace)?;
    let capacity_bytes = replay.pool()?["capacity_bytes"].as_u64().unwrap_or(0);
    let log = daemon.json(&["policy", "show"])?["pools"][0]["log"].as_str().unwrap_or_default().to_owned();
    Ok((read(Path::new(&log))?, capacity_bytes / BLOCK))
}

/// Plays it to the simulator. What its log says.
fn decided_simulated(place: &Place, allocator: &str, trace: &[Access], blocks: u64) -> Result<String> {
    let (file, log) = (place.path("trace.csv"), place.path("simulated.jsonl"));
    std::fs::write(&file, text(trace)).map_err(Error::io("the trace"))?;
    let mut simulation = tools::own("haversack")?;
    simulation.arg("sim").arg("--trace").arg(&file).arg("--decisions").arg(&log);
    simulation.args(["--allocator", allocator, "--window", &format!("{WINDOW_US}us")]);
    simulation.args(["--blocks", &blocks.to_string(), "--staging", "1MiB"]);
    simulation.args(["--clean-age", CLEAN_AGE, "--clean-idle", CLEAN_IDLE]);
    tools::run(simulation)?;
    read(&log)
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(Error::io(path.display().to_string()))
}

/// The decisions at the ends of windows.
fn decisions(log: &str) -> Result<Vec<Decision>> {
    let mut decisions = Vec::new();
    for (number, line) in log.lines().enumerate() {
        match Entry::parse(line, number + 1).map_err(|error| Error::Check(error.to_string()))? {
            Entry::Decision(decision) if decision.cause == "window" => decisions.push(*decision),
            _ => {}
        }
    }
    Ok(decisions)
}

/// Both decide the same: every figure that was measured, every demand, target, mode and filter. What of the plans must
/// differ from window to window, lest nothing worth comparing is decided, is told by `decided`.
fn decide_the_same<T: PartialEq>(allocator: &str, decided: impl Fn(&DiskPlan) -> T) {
    test(allocator, |place| {
        let trace = trace()?;
        let (live, blocks) = decided_live(place, allocator, &trace)?;
        place.say("played to the daemon");
        let simulated = decided_simulated(place, allocator, &trace, blocks)?;
        let (live, simulated) = (decisions(&live)?, decisions(&simulated)?);
        let counts = (live.len(), simulated.len());
        check(counts.0 == counts.1 && counts.0 >= WINDOWS, format!("{counts:?} decisions"))?;
        for (number, (live, simulated)) in live.iter().zip(&simulated).enumerate() {
            let say = || format!("decision {number} is\n{live:?}\nlive and\n{simulated:?}\nsimulated");
            check(live == simulated, say())?;
        }
        let plans = |number: usize| live[number].plan.disks.values().map(&decided).collect::<Vec<_>>();
        check((1..WINDOWS).any(|number| plans(number) != plans(0)), "every window decides the same")
    });
}

#[test]
fn centaur() {
    decide_the_same("trd", |plan| (plan.demand_blocks, plan.target));
}

#[test]
fn eci_cache() {
    decide_the_same("urd", |plan| (plan.demand_blocks, plan.write_mode));
}

#[test]
fn cloud_cache() {
    decide_the_same("rwss", |plan| plan.admission);
}
