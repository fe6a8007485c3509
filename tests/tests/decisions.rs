//! The policy in the daemon and in the simulator: the same requests at the same times, the same decisions, whatever the
//! system, with priorities, reservations and limits, events of VMs, and changes of settings on the way. Each system
//! decides twice: with I/Os that take no time, and with I/Os that take it by one model, whose latencies both measure.

use std::fmt::Write;
use std::path::Path;

use haversack_control::{Decision, Entry};
use haversack_e2e::connection::Connection;
use haversack_e2e::control::Control;
use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::replay::{Order, Replay, SteppedClock};
use haversack_e2e::{Error, MIB, Place, Result, image, test, tools};
use haversack_model::BLOCK_BYTES;
use haversack_policy::{DiskPlan, DiskWindow, Intensity};
use haversack_trace::generate::{Generator, Mix, Pattern};
use haversack_trace::{Access, Op, VolumeNo};
use serde_json::{Value, json};

/// Bytes of a block.
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Size of each disk.
const DISK_MIB: u64 = 48;
/// Size of the cache device.
const CACHE_MIB: u64 = 16;
/// From a request to the next one.
const INTERVAL_NS: u64 = 2_000_000;
/// Requests to all disks.
const REQUESTS: usize = 3000;
/// No whole milliseconds, see [`Replay::in_windows`].
const WINDOW_US: u64 = 500_030;
/// Windows that end within the trace at least.
const WINDOWS: usize = (REQUESTS as u64 * INTERVAL_NS / 1000 / WINDOW_US) as usize;
/// When dirty blocks are cleaned: soon, so that it happens.
const CLEANER: &str = "cleaner = { age = \"800ms\", idle = \"40ms\" }";
/// Windows before anything but the requests happens.
const QUIET_WINDOWS: usize = 4;
/// A disk may exceed its cap by about a segment.
const SEGMENT_BLOCKS: u64 = 256;

/// When the first request comes if I/Os take time, in nanoseconds: the disks are attached before. The simulator moves a
/// trace to begin at 0, so that it begins with an access to nothing.
const START_NS: u64 = 20_000_000;

/// What I/Os take, in microseconds, and how many are done in parallel: few, so that they wait for each other.
const TIMES: [(&str, u32); 8] = [
    ("device-read", 87),
    ("device-write", 41),
    ("device-flush", 311),
    ("device-servers", 2),
    ("origin-read", 713),
    ("origin-write", 467),
    ("origin-flush", 1009),
    ("origin-servers", 2),
];
/// A rate, in bytes per second, at which transfers take no time.
const AT_ONCE: &str = "1048576TiB";

fn io_time_us(name: &str) -> f64 {
    TIMES.iter().find(|(io, _)| *io == name).map_or(f64::INFINITY, |(_, us)| f64::from(*us))
}

/// The times as the daemon's pool is told them.
fn io_times() -> String {
    let key = |name: &str| match name.strip_suffix("servers") {
        Some(_) => name.replace('-', "_"),
        None => format!("{}_us", name.replace('-', "_")),
    };
    let keys: Vec<_> = TIMES.iter().map(|(name, value)| format!("{} = {value}", key(name))).collect();
    format!("io_times = {{ {} }}\n", keys.join(", "))
}

/// The times as the simulator is told them.
fn latency_arguments() -> Vec<String> {
    let mut arguments: Vec<_> =
        TIMES.iter().flat_map(|(name, value)| [format!("--{name}"), value.to_string()]).collect();
    for speed in ["--device-speed", "--origin-speed", "--network-speed"] {
        arguments.extend([speed.to_owned(), AT_ONCE.to_owned()]);
    }
    arguments.extend(["--round-trip".to_owned(), "0us".to_owned()]);
    arguments
}

fn name(disk: usize) -> String {
    format!("vol{disk}")
}

/// One disk that mostly re-reads some places, one that is read up to a block and then again from its start, and one
/// that mostly overwrites what it has written.
fn generators(scan_blocks: u64) -> [Generator; 3] {
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
        of(Pattern::Scan { stride: None }, scan_blocks, 1.0, 2),
        of(Pattern::Zipf { theta: 0.6 }, 400, 0.2, 3),
    ]
}

/// What all disks do, by turns. The simulator's disks end with their last access, and the daemon's are to be as large.
fn trace(scan_blocks: u64) -> Result<Vec<Access>> {
    let refused = |error: &dyn std::fmt::Display| Error::Check(format!("no trace: {error}"));
    let mut of_disks = Vec::new();
    for generator in generators(scan_blocks) {
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

/// What each disk is given beside its load.
const DISKS: [&str; 3] = [
    "priority = 2.0\nvm = \"vm0\"\ntenant = \"shop\"\n",
    "limit = \"2MiB\"\nvm = \"vm1\"\ntenant = \"shop\"\n",
    "reservation = \"1MiB\"\nvm = \"vm2\"\ntenant = \"bank\"\n",
];

/// An event of a disk, or a change of its settings: its time, the disk, and its JSON for the API.
type OnTheWay = (u64, usize, Value);

/// Everything that can happen to a disk that stays on its host, at times that are neither whole milliseconds nor ends
/// of windows. The last disk comes back with what was measured elsewhere: its origin is far slower than is assumed of
/// others.
fn on_the_way() -> Vec<OnTheWay> {
    let event = |name: &str| json!({ "event": name });
    let window = DiskWindow {
        length_us: WINDOW_US,
        reads: 900,
        writes: 100,
        wss_blocks: 300,
        rwss_blocks: vec![200, 100, 0, 0],
        intensity: Intensity { length_us: WINDOW_US / 2, read_blocks: 400, unique_read_blocks: 200 },
        origin_latency_us: Some(40_000.0),
        ..DiskWindow::default()
    };
    let came =
        json!({ "event": "migrating-in", "figures": serde_json::to_value(window).unwrap_or_default() });
    vec![
        (2_050_010, 0, json!({ "priority": 5.0 })),
        (2_200_010, 1, event("stunned")),
        (2_300_010, 2, event("storage-migrating")),
        (2_750_010, 1, event("resumed")),
        (3_150_010, 2, event("storage-migrated")),
        (3_250_010, 0, event("suspended")),
        (3_600_010, 0, event("resumed")),
        (3_700_010, 1, json!({ "limit": MIB, "reservation": MIB / 2, "window": "1s" })),
        (4_100_010, 2, event("ended")),
        (4_350_010, 1, event("migrating-out")),
        (4_650_010, 2, came),
        (5_100_010, 1, event("new")),
    ]
}

fn is_event(what: &Value) -> bool {
    what.get("event").is_some()
}

fn order((at_us, disk, body): &OnTheWay) -> Order {
    let (method, end) = if is_event(body) { ("POST", "/event") } else { ("PATCH", "") };
    Order { at_us: *at_us, method, path: format!("/v1/disks/{}{end}", name(*disk)), body: body.clone() }
}

/// The same as a table of a mix.
fn timed((at_us, disk, body): &OnTheWay) -> Value {
    let mut timed = if is_event(body) { body.clone() } else { json!({ "set": body }) };
    timed["at"] = format!("{at_us}us").into();
    timed["disk"] = name(*disk).into();
    timed
}

/// A value of JSON as one of TOML.
fn toml(value: &Value) -> String {
    match value {
        Value::Object(keys) => {
            let keys = keys.iter().filter(|(_, value)| !value.is_null());
            let keys: Vec<_> = keys.map(|(key, value)| format!("{key} = {}", toml(value))).collect();
            format!("{{ {} }}", keys.join(", "))
        }
        Value::Array(values) => format!("[{}]", values.iter().map(toml).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

/// A policy and what happens under it.
struct Scenario {
    /// Lines of `[policy]`, the window left out.
    policy: String,
    /// Lines of each disk's table.
    disks: [&'static str; 3],
    on_the_way: Vec<OnTheWay>,
    /// Time between two decisions.
    window_us: u64,
    /// Blocks that the second disk reads from end to end.
    scan_blocks: u64,
    /// Whether I/Os take time.
    timed: bool,
}

impl Scenario {
    fn new(policy: String, disks: [&'static str; 3], on_the_way: Vec<OnTheWay>) -> Scenario {
        let scan_blocks = DISK_MIB * MIB / BLOCK;
        Scenario { policy, disks, on_the_way, window_us: WINDOW_US, scan_blocks, timed: false }
    }

    fn timed(self) -> Scenario {
        Scenario { timed: true, ..self }
    }

    /// When the first request comes.
    fn start_ns(&self) -> u64 {
        if self.timed { START_NS } else { 0 }
    }

    /// Where it is played.
    fn place(&self, place: &Place) -> Result<Place> {
        place.host(if self.timed { "timed" } else { "timeless" })
    }

    fn policy(&self) -> String {
        format!("\n[policy]\nwindow = \"{}us\"\n{}\n", self.window_us, self.policy)
    }

    fn disk(&self, disk: usize) -> String {
        format!("{}{CLEANER}\n", self.disks[disk])
    }
}

/// The decisions of the daemon or the simulator, and the number of blocks that each disk has at the end.
struct Outcome {
    log: Vec<Entry>,
    usage_blocks: Vec<u64>,
}

/// Plays the trace to a daemon under a policy. What came of it, and the blocks of its pool.
fn live(place: &Place, scenario: &Scenario, trace: &[Access]) -> Result<(Outcome, u64)> {
    let clock = SteppedClock::new(place)?;
    let mut settings = Settings::new(CACHE_MIB, Vec::new());
    settings.staging_mib = 1;
    settings.pool = format!("clock_file = \"{}\"\n", clock.path().display());
    if scenario.timed {
        settings.pool += &io_times();
    }
    for number in 0..DISKS.len() {
        let file = image::zeroes(place, &format!("{}.img", name(number)), DISK_MIB)?;
        let disk = Disk { mode: "auto".into(), ..Disk::new(&name(number), file.display().to_string()) };
        settings.disks.push(disk.with(&scenario.disk(number)));
    }
    settings.more = scenario.policy();
    let daemon = Haversack::start_in_order(place, settings)?;
    let open = |disk| Connection::open(&daemon.socket("nbd.sock"), &name(disk));
    let connections = (0..DISKS.len()).map(open).collect::<Result<Vec<_>>>()?;
    let control = Control::open(&daemon.socket("control.sock"))?;
    let replay = Replay::new(clock, control, daemon.pool(), connections).in_windows(scenario.window_us);
    let mut replay = replay.with_orders(scenario.on_the_way.iter().map(order).collect());
    if scenario.timed {
        replay = replay.timed();
    }
    replay.play(trace)?;
    let blocks = |value: &Value| value.as_u64().unwrap_or(0) / BLOCK;
    let capacity_blocks = blocks(&replay.pool()?["capacity_bytes"]);
    let usage = |disk| Ok(blocks(&replay.disk(&name(disk))?["usage"]["usage_bytes"]));
    let usage_blocks = (0..DISKS.len()).map(usage).collect::<Result<_>>()?;
    let log = daemon.json(&["policy", "show"])?["pools"][0]["log"].as_str().unwrap_or_default().to_owned();
    Ok((Outcome { log: entries(&read(Path::new(&log))?)?, usage_blocks }, capacity_blocks))
}

/// The trace's requests to one disk in the common form.
fn text(trace: &[Access], disk: usize) -> String {
    let mut text = "timestamp_ns,volume,op,offset_bytes,length_bytes\n".to_owned();
    let of_disk = trace.iter().filter(|access| access.volume.0 as usize == disk);
    for Access { time_ns, op, offset_bytes, length_bytes, .. } in of_disk {
        // Writing into a string does not fail.
        let _ = writeln!(text, "{time_ns},{},{},{offset_bytes},{length_bytes}", name(disk), op.letter());
    }
    text
}

/// Plays it to the simulator. What came of it.
fn simulated(place: &Place, scenario: &Scenario, trace: &[Access], blocks: u64) -> Result<Outcome> {
    let mut mix = format!("title = \"decisions\"\n{}", scenario.policy());
    for disk in 0..DISKS.len() {
        let file = place.path(format!("{}.csv", name(disk)));
        std::fs::write(&file, text(trace, disk)).map_err(Error::io("the trace"))?;
        let start_ns =
            trace.iter().find(|access| access.volume.0 as usize == disk).map_or(0, |access| access.time_ns);
        mix += &format!(
            "\n[[disk]]\nname = \"{}\"\nmode = \"auto\"\ntrace = \"{}\"\nstart = \"{}us\"\n{}",
            name(disk),
            file.display(),
            start_ns / 1000,
            scenario.disk(disk)
        );
    }
    let events: Vec<Value> = scenario.on_the_way.iter().map(timed).collect();
    if !events.is_empty() {
        // Keys of the whole mix come before its tables.
        mix = format!("event = {}\n{mix}", toml(&events.into()));
    }
    let (file, log) = (place.path("mix.toml"), place.path("simulated.jsonl"));
    std::fs::write(&file, mix).map_err(Error::io("the mix"))?;
    let mut simulation = tools::own("haversack")?;
    simulation.arg("sim").arg("--mix").arg(&file).arg("--decisions").arg(&log).arg("--json");
    simulation.args(["--blocks", &blocks.to_string(), "--staging", "1MiB"]);
    if scenario.timed {
        simulation.args(latency_arguments());
    }
    let report: Value = serde_json::from_str(&tools::run(simulation)?)
        .map_err(|error| Error::Check(format!("the report: {error}")))?;
    let rows = report["results"].as_array().cloned().unwrap_or_default();
    let usages = rows.iter().map(|row| &row["production"]["usage_blocks"]).find(|usages| usages.is_array());
    let usages = usages.and_then(Value::as_array).cloned().unwrap_or_default();
    let usage_blocks = usages.iter().filter_map(Value::as_u64).collect();
    Ok(Outcome { log: entries(&read(&log)?)?, usage_blocks })
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(Error::io(path.display().to_string()))
}

/// A log without the time before the first request: the daemon attaches one disk after the other.
fn entries(log: &str) -> Result<Vec<Entry>> {
    let lines = log.lines().enumerate().map(|(number, line)| {
        Entry::parse(line, number + 1).map_err(|error| Error::Check(error.to_string()))
    });
    let is_later = |entry: &Entry| match entry {
        Entry::Started { time_us, .. }
        | Entry::Event { time_us, .. }
        | Entry::Restored { time_us, .. }
        | Entry::Refused { time_us, .. } => *time_us > 0,
        Entry::Decision(decision) => decision.inputs.time_us > 0,
    };
    let all = lines.collect::<Result<Vec<_>>>()?;
    Ok(all.into_iter().filter(is_later).collect())
}

/// The decisions at the ends of windows.
fn decisions(log: &[Entry]) -> Vec<&Decision> {
    let decisions = log.iter().filter_map(|entry| match entry {
        Entry::Decision(decision) => Some(decision.as_ref()),
        _ => None,
    });
    decisions.filter(|decision| decision.cause == "window").collect()
}

/// Returns whether the measurements, if there are any, include latencies: reads take as long as the model says, or
/// longer if they wait for each other.
fn measures_latencies(log: &[Entry]) -> bool {
    let disks = decisions(log).into_iter().map(|decision| &decision.inputs.disks[0]);
    let windows: Vec<_> = disks.filter_map(|disk| disk.window.as_ref()).collect();
    let origin_us: Vec<_> = windows.iter().filter_map(|window| window.origin_latency_us).collect();
    let device_us: Vec<_> = windows.iter().filter_map(|window| window.cache_latency_us).collect();
    let are_measured =
        |all: &[f64], read: &str| !all.is_empty() && all.iter().all(|us| *us >= io_time_us(read));
    windows.is_empty() || are_measured(&origin_us, "origin-read") && are_measured(&device_us, "device-read")
}

/// Checks that the daemon and the simulator do the same: every event, measurement, demand, target, mode, filter and
/// refusal, and the number of blocks of each disk at the end. Returns the outcomes of both.
fn play_both(place: &Place, scenario: &Scenario) -> Result<(Outcome, Outcome)> {
    let mut trace = trace(scenario.scan_blocks)?;
    trace.iter_mut().for_each(|access| access.time_ns += scenario.start_ns());
    if scenario.timed {
        trace.insert(0, Access { op: Op::Discard, ..Access::default() });
    }
    let (live, blocks) = live(place, scenario, &trace)?;
    place.say("played to the daemon");
    let simulated = simulated(place, scenario, &trace, blocks)?;
    for (number, (live, simulated)) in live.log.iter().zip(&simulated.log).enumerate() {
        let say = || format!("entry {number} is\n{live:?}\nlive and\n{simulated:?}\nsimulated");
        check(live == simulated, say())?;
    }
    let counts = (live.log.len(), simulated.log.len());
    check(counts.0 == counts.1 && decisions(&live.log).len() >= WINDOWS, format!("{counts:?} entries"))?;
    let usages = (&live.usage_blocks, &simulated.usage_blocks);
    check(usages.0 == usages.1, format!("{usages:?} blocks live and simulated"))?;
    check(!scenario.timed || measures_latencies(&live.log), "latencies are not measured")?;
    Ok((live, simulated))
}

/// Checks that both decide the same. `decided` selects the part of a plan that must differ between windows before
/// anything happens to the disks; otherwise there would be nothing worth comparing.
fn decide_the_same<T: PartialEq>(policy: &str, decided: impl Fn(&DiskPlan) -> T) {
    follow(policy, DISKS, |log| {
        let windows = decisions(log);
        let plans = |number: usize| windows[number].plan.disks.values().map(&decided).collect::<Vec<_>>();
        check((1..QUIET_WINDOWS).any(|number| plans(number) != plans(0)), "every window decides the same")
    });
}

/// Allocators that assume the configured latencies where none are measured: they decide in I/Os that take no time as
/// well.
const ASSUME_LATENCIES: [&str; 6] = ["centaur", "eci-cache", "trd", "urd", "utility", "vcacheshare"];

/// The same for a policy whose plans do not change before something happens to the disks.
fn follow_the_same(policy: &str) {
    follow(policy, DISKS, |_| Ok(()));
}

fn follow(policy: &str, disks: [&'static str; 3], decides: impl Fn(&[Entry]) -> Result<()>) {
    follow_changed(policy, disks, |scenario| scenario, decides);
}

/// The same with another load or other windows.
fn follow_changed(
    policy: &str,
    disks: [&'static str; 3],
    changed: impl Fn(Scenario) -> Scenario,
    decides: impl Fn(&[Entry]) -> Result<()>,
) {
    let (allocator, more) = policy.split_once('\n').unwrap_or((policy, ""));
    test(allocator, |place| {
        let latencies = "origin_latency = \"3ms\"\ncache_latency = \"250us\"";
        let policy = format!("allocator = \"{allocator}\"\n{latencies}\n{more}");
        let timeless = || changed(Scenario::new(policy.clone(), disks, on_the_way()));
        let assumes = ASSUME_LATENCIES.contains(&allocator).then(timeless);
        for scenario in assumes.into_iter().chain([timeless().timed()]) {
            let (live, _) = play_both(&scenario.place(place)?, &scenario)?;
            let events = live.log.iter().filter(|entry| matches!(entry, Entry::Event { .. })).count();
            let ordered = scenario.on_the_way.iter().filter(|(_, _, what)| is_event(what)).count();
            check(events == ordered, format!("{events} events of {ordered}"))?;
            decides(&live.log)?;
        }
        Ok(())
    });
}

#[test]
fn trd() {
    decide_the_same("trd", |plan| (plan.demand_blocks, plan.target));
}

#[test]
fn urd() {
    decide_the_same("urd", |plan| (plan.demand_blocks, plan.write_mode));
}

#[test]
fn wss() {
    decide_the_same("wss", |plan| (plan.demand_blocks, plan.target));
}

#[test]
fn rwss() {
    decide_the_same("rwss", |plan| (plan.target, plan.admission));
}

#[test]
fn utility() {
    decide_the_same("utility", |plan| plan.target);
}

#[test]
fn max_min() {
    decide_the_same("max-min\nchunk = \"256KiB\"", |plan| (plan.demand_blocks, plan.target));
}

/// Write-around, reads of at most 64 KiB, annealing, the printed reading of its equation.
#[test]
fn vcacheshare() {
    let policy = "vcacheshare\nmeasurement = \"100ms\"\ndisk_window = \"1500090us\"\nreading = \"as-printed\"\n\
                  solver = \"annealing(3, 2000)\"";
    decide_the_same(policy, |plan| plan.demand_blocks);
}

/// Intensity moves shares while the curves stay those of the last sampling window.
#[test]
fn intensity_between_windows() {
    follow("vcacheshare\nmeasurement = \"100ms\"\ndisk_window = \"1s\"", DISKS, |log| {
        let windows = decisions(log);
        let quiet = &windows[..QUIET_WINDOWS];
        let of = |decision: &Decision| decision.inputs.disks[0].window.clone().unwrap_or_default();
        let (ended, goes_on) = (of(quiet[1]), of(quiet[2]));
        let is_same_curve = ended.read_only == goes_on.read_only && ended.length_us == goes_on.length_us;
        check(is_same_curve && ended.intensity != goes_on.intensity, format!("{ended:?}\nand\n{goes_on:?}"))
    });
}

/// The system's own initial and minimum sizes, and no hysteresis.
#[test]
fn eci_cache() {
    let policy = "eci-cache\nfirst = \"2MiB\"\nleast = \"512KiB\"\nwrite_threshold = 0.3";
    decide_the_same(policy, |plan| (plan.target, plan.write_mode));
}

#[test]
fn centaur() {
    let policy = "centaur\nfirst = \"2MiB\"\nleast = \"512KiB\"\nspare = \"shared\"";
    decide_the_same(policy, |plan| plan.target);
}

/// A history that slides.
#[test]
fn liu() {
    decide_the_same("liu\nhistory = 3\nchunk = \"256KiB\"", |plan| (plan.demand_blocks, plan.target));
}

/// Disks with their own windows: one of three windows of the pool, and one of less than two, which is rounded up to
/// two.
#[test]
fn own_windows() {
    let disks = [
        DISKS[0],
        "limit = \"2MiB\"\nvm = \"vm1\"\nwindow = \"1500090us\"\n",
        "reservation = \"1MiB\"\nvm = \"vm2\"\nwindow = \"900ms\"\n",
    ];
    follow("cloudcache", disks, |log| {
        let windows = decisions(log);
        let length_us = |number: usize, disk: usize| {
            windows[number].inputs.disks[disk].window.as_ref().map_or(0, |window| window.length_us)
        };
        let lengths: Vec<_> =
            (0..QUIET_WINDOWS).map(|number| [0, 1, 2].map(|disk| length_us(number, disk))).collect();
        let expected =
            [[1, 1, 1], [1, 2, 2], [1, 3, 2], [1, 3, 2]].map(|windows| windows.map(|n| n * WINDOW_US));
        check(lengths == expected, format!("windows of {lengths:?}, expected {expected:?}"))
    });
}

/// Windows that are chosen while the disks run, until the operator sets one. The second disk reads the same 24 blocks,
/// a little less than in a window of the pool: in two of them it reads them all again.
#[test]
fn own_windows_at_the_knee() {
    /// The first choice in which a length that is not the longest holds a round.
    const CHOICE: usize = 16;
    let short = |scenario| Scenario { window_us: 100_006, scan_blocks: 24, ..scenario };
    let disks = [DISKS[0], "limit = \"2MiB\"\nvm = \"vm1\"\nwindow = \"knee\"\n", DISKS[2]];
    follow_changed("cloudcache\ndisk_window = \"knee\"", disks, short, |log| {
        let windows = decisions(log);
        let chosen = |number: usize, disk: usize| {
            windows[number].inputs.disks[disk].knee.as_ref().map(|knee| knee.length_us / 100_006)
        };
        let quiet: Vec<_> = (0..=CHOICE + 1).map(|number| chosen(number, 1)).collect();
        let expected = |number: usize| match number {
            // Before, there is too little to count.
            ..8 => None,
            8..CHOICE => Some(1),
            _ => Some(2),
        };
        check(quiet.iter().enumerate().all(|(number, n)| *n == expected(number)), format!("{quiet:?}"))?;
        check(windows.iter().any(|w| w.inputs.disks[0].knee.is_some()), "the policy's knee is not used")?;
        let last = windows.len() - 1;
        check(chosen(last, 1).is_none(), format!("{:?} although a length is set", chosen(last, 1)))
    });
}

/// Distances of all blocks.
#[test]
fn exact_distances() {
    decide_the_same("urd\nsample_blocks = 0", |plan| (plan.demand_blocks, plan.target));
}

/// HEC's demand and admission, and the forecast that is best at the time.
#[test]
fn hec() {
    let policy = "rwss\ndemand = \"touch-count\"\nadmission = \"hec\"\nforecast = \"best\"";
    follow(policy, DISKS, |log| {
        // All regions of these small disks are touched again in the first window.
        let demands = |decision: &&Decision| decision.plan.disks.values().any(|plan| plan.demand_blocks > 0);
        check(decisions(log).iter().take(QUIET_WINDOWS).all(demands), "nothing is demanded")
    });
}

/// The demand and admission that CloudCache gave LARC.
#[test]
fn larc() {
    let policy = "rwss\ndemand = \"reused-addresses\"\nadmission = \"larc\"";
    decide_the_same(policy, |plan| (plan.demand_blocks, plan.target));
}

#[test]
fn one_pool() {
    follow_the_same("none");
}

#[test]
fn auto() {
    follow_the_same("auto");
}

#[test]
fn equal() {
    follow_the_same("equal");
}

#[test]
fn fixed_parts() {
    let disks = ["target = \"2MiB\"\n", "target = \"1MiB\"\n", "target = \"3MiB\"\n"];
    follow("static", disks, |_| Ok(()));
}

/// A policy that leaves space idle, and the same one that shares it: live as simulated, a disk keeps within its cap,
/// and fills the space if it may.
#[test]
fn caps() {
    test("caps", |place| {
        let used = |spare: &str| -> Result<(Vec<u64>, Vec<u64>)> {
            let place = place.host(spare)?;
            let policy = format!("allocator = \"urd\"\nwrite_mode = \"wb\"\nspare = \"{spare}\"");
            let scenario = Scenario::new(policy, [""; 3], Vec::new());
            let (live, _) = play_both(&place, &scenario)?;
            let last = decisions(&live.log).last().map(|decision| decision.plan.clone());
            let targets =
                last.iter().flat_map(|plan| plan.disks.values()).map(|plan| plan.target.promised_blocks());
            Ok((live.usage_blocks, targets.collect()))
        };
        let ((idle, targets), (shared, _)) = (used("idle")?, used("shared")?);
        let say = || format!("{idle:?} idle, capped at {targets:?}; {shared:?} shared");
        check(idle.iter().zip(&targets).all(|(used, target)| *used <= target + SEGMENT_BLOCKS), say())?;
        // The scan gains nothing from space, and fills the space that is left to it.
        check(shared[1] > idle[1] + SEGMENT_BLOCKS, say())
    });
}
