//! The policy in the daemon: who gets how much, why, and what was measured.

use std::path::Path;
use std::time::Duration;

use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::hosts::{Hosts, wait_until_moved};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::process::Process;
use haversack_e2e::tools::{PATIENCE, wait_until};
use haversack_e2e::verify::Verifier;
use haversack_e2e::{Error, MIB, Place, Result, clients, image, test, test_alone, tools};
use serde_json::Value;

/// The cache, in MiB.
const CACHE_MIB: u64 = 96;
/// What the local disk's guest reads again and again, in MiB.
const LOCAL_MIB: u64 = 24;
/// What the other disk's guest reads once from end to end, in MiB.
const SCAN_MIB: u64 = 512;
/// What a guest reads once, in MiB.
const ONCE_MIB: u64 = 512;
/// What it reads after a restart: other blocks.
const AFTERWARDS_MIB: u64 = 8;
/// How long the guests read, in seconds.
const LOAD_S: u64 = 16;

/// CloudCache's system, with memory for the addresses of all that the local disk reads.
const RWSS: &str =
    "allocator = \"rwss\"\nwindow = \"2s\"\nadmission = \"address(1)\"\nstaging_share = 0.01\n";

/// A daemon with a local disk and a scanned one under a policy.
fn daemon_with<'a>(place: &'a Place, policy: &str) -> Result<Haversack<'a>> {
    let local = image::zeroes(place, "local.img", 64)?;
    let scan = image::zeroes(place, "scan.img", SCAN_MIB)?;
    let disk = |name: &str, path: &Path| Disk {
        mode: "auto".to_owned(),
        ..Disk::new(name, path.display().to_string())
    };
    let mut settings = Settings::new(CACHE_MIB, vec![disk("local", &local), disk("scan", &scan)]);
    settings.more = format!("\n[policy]\n{policy}");
    Haversack::start(place, settings)
}

/// Random reads of a part beside one pass over the other disk.
fn run_load(daemon: &Haversack<'_>) -> Result<()> {
    let (local, scan) = (daemon.uri("local"), daemon.uri("scan"));
    let again =
        format!("--rw=randread --norandommap --bs=16k --iodepth=4 --rate_iops=4000 --size={LOCAL_MIB}m");
    let once = format!("--rw=read --bs=64k --iodepth=4 --rate=20m --size={SCAN_MIB}m");
    std::thread::scope(|scope| {
        let scanning = scope.spawn(|| clients::fio_for(&scan, &once, LOAD_S));
        let reading = clients::fio_for(&local, &again, LOAD_S);
        let scanned = scanning.join().map_err(|_| Error::Check("the scan panicked".into()))?;
        reading.and(scanned)
    })
}

fn shown(daemon: &Haversack<'_>, disk: &str) -> Result<Value> {
    daemon.json(&["disk", "show", disk])
}

fn target_mib(daemon: &Haversack<'_>, disk: &str) -> Result<u64> {
    let bytes = shown(daemon, disk)?["usage"]["target_bytes"].as_u64();
    bytes.map(|bytes| bytes / MIB).ok_or_else(|| Error::Check(format!("{disk} has no target")))
}

/// Checks how a system divides the cache between a scan and local reads, and that a replay of its log gives the same
/// decisions.
fn keeps_the_local_disk(
    place: &Place,
    daemon: &Haversack<'_>,
    model: &str,
    most_for_scan_mib: u64,
) -> Result<()> {
    let before = shown(daemon, "local")?;
    run_load(daemon)?;
    let (local, scan) = (target_mib(daemon, "local")?, target_mib(daemon, "scan")?);
    place.say(&format!("{model}: local {local} MiB, scan {scan} MiB"));
    check(local >= LOCAL_MIB, format!("local has {local} MiB of {CACHE_MIB}, it reads {LOCAL_MIB}"))?;
    check(scan <= most_for_scan_mib, format!("a scan has {scan} MiB beside {local}"))?;
    let after = shown(daemon, "local")?;
    let count = |shown: &Value, key: &str| shown["requests"][key].as_u64().unwrap_or(0);
    let hits = count(&after, "read_hits") - count(&before, "read_hits");
    let misses = count(&after, "read_misses") - count(&before, "read_misses");
    // Each block is missed once, or twice where it must show first that it is read again.
    let first = 2 * LOCAL_MIB * MIB / 4096;
    check(hits > 0 && misses <= first + first / 50, format!("local: {hits} hits, {misses} misses"))?;

    let why = daemon.command(&["policy", "explain", "local"])?;
    check(why.contains("local is active") && why.contains(model), format!("explained: {why}"))?;
    let log = daemon.command(&["policy", "log", "-n", "20"])?;
    check(log.contains("decided (window)") && log.contains("scan"), format!("the log: {log}"))?;
    replay(daemon)
}

fn replay(daemon: &Haversack<'_>) -> Result<()> {
    let status = daemon.json(&["policy", "show"])?;
    let log = status["pools"][0]["log"].as_str().unwrap_or_default().to_owned();
    let again = daemon.json(&["policy", "replay", &log])?;
    let made = again["decisions"].as_u64().unwrap_or(0);
    let same = again["differences"].as_array().is_some_and(Vec::is_empty);
    check(made >= 5 && same, format!("the replay of {log}: {again}"))
}

#[test]
fn a_scan_does_not_push_out_local_reads() {
    // The measurements of a window depend on how much is read in it, so no other test may run meanwhile.
    test_alone("a scan beside local reads", |place| {
        let daemon = daemon_with(place, RWSS)?;
        keeps_the_local_disk(place, &daemon, "rwss", 0)?;

        let curve = daemon.json(&["disk", "curve", "local"])?;
        let wss_mib = curve["measured"]["wss_bytes"].as_u64().unwrap_or(0) / MIB;
        let about = LOCAL_MIB * 8 / 10..=LOCAL_MIB * 12 / 10;
        check(
            about.contains(&wss_mib),
            format!("a working set of {LOCAL_MIB} MiB is measured as {wss_mib}"),
        )?;
        let least = |points: &Value| points.as_array().and_then(|p| p.last()?["miss_ratio"].as_f64());
        let misses = least(&curve["reads_only"]).unwrap_or(1.0);
        check(misses < 0.1, format!("{misses} of its reads miss with all that it reads in the cache"))?;
        let text = daemon.command(&["disk", "curve", "local"])?;
        check(text.contains("working set") && text.contains("MISSES"), &text)?;
        let raw = daemon.command(&["status", "--raw"])?;
        check(raw.contains("wss_bytes=") && raw.contains("intensity_per_s="), &raw)?;

        daemon.command(&["policy", "set", "utility", "window=2s"])?;
        // No disk demands the spare space, so it is shared.
        keeps_the_local_disk(place, &daemon, "read-only", CACHE_MIB / 2)
    });
}

/// Without a policy, admission learns that blocks that are read once are not worth caching, and remembers that after a
/// restart.
#[test]
fn what_admission_has_learned_outlives_a_restart() {
    test("what is learned outlives a restart", |place| {
        // What is worth its space follows from how long reads take: here about the same, whatever else the machine
        // does.
        let size = format!("{}M", 2 * ONCE_MIB);
        let origin = Nbdkit::start(place, "origin", &["--filter=delay", "null", &size, "rdelay=1ms"])?;
        let settings = Settings::new(24, vec![Disk::new("once", origin.uri())]);
        let mut daemon = Haversack::start(place, settings)?;
        // Each block once. None is read again: what a block that comes back is worth follows from how long others stay.
        let read = |daemon: &Haversack<'_>, from_mib: u64, mebibytes: u64| -> Result<(u64, u64)> {
            let counts = || {
                let requests = &shown(daemon, "once")?["requests"];
                Ok::<_, Error>(["read_misses", "not_admitted"].map(|key| requests[key].as_u64().unwrap_or(0)))
            };
            let before = counts()?;
            let load = format!("--rw=randread --bs=64k --iodepth=4 --offset={from_mib}m --size={mebibytes}m");
            clients::fio(&daemon.uri("once"), &load)?;
            let after = counts()?;
            Ok((after[1] - before[1], after[0] - before[0]))
        };
        read(&daemon, 0, ONCE_MIB)?;
        daemon.stop()?;
        daemon.start_again()?;
        let (kept_out, misses) = read(&daemon, ONCE_MIB, AFTERWARDS_MIB)?;
        let told = format!("after a restart, {kept_out} of {misses} misses are kept out");
        place.say(&told);
        check(kept_out * 2 > misses, &told)?;
        let why = daemon.command(&["policy", "explain", "once"])?;
        check(why.contains("Kept out") && why.contains("used again within a stay"), &why)?;

        daemon.stop()?;
        // With the checkpoint, it would still be known how long blocks stay.
        let state = place.path("run/state");
        let checkpoint = state.join(format!("checkpoint-{}", daemon.pool()));
        std::fs::remove_dir_all(state.join("learned"))
            .and_then(|()| std::fs::remove_file(checkpoint))
            .map_err(|e| Error::Check(format!("{}: {e}", state.display())))?;
        daemon.start_again()?;
        let (kept_out, misses) = read(&daemon, ONCE_MIB + AFTERWARDS_MIB, 1)?;
        check(kept_out == 0, format!("nothing is known, but {kept_out} of {misses} misses are kept out"))?;
        let why = daemon.command(&["policy", "explain", "once"])?;
        check(!why.contains("used again within a stay"), &why)
    });
}

#[test]
fn events_and_the_operator_are_obeyed() {
    test("events", |place| {
        let mut daemon = daemon_with(place, "allocator = \"equal\"\n")?;
        let whole = target_mib(&daemon, "local")? + target_mib(&daemon, "scan")?;
        check(target_mib(&daemon, "local")?.abs_diff(whole / 2) <= 1, "not divided equally")?;
        for (event, state, local_mib) in [
            ("suspended", "suspended", whole),
            ("resumed", "new", whole / 2),
            ("stunned", "stunned", whole / 2),
            ("resumed", "new", whole / 2),
            ("storage-migrating", "storage-migrating", whole / 2),
            ("storage-migrated", "new", whole / 2),
            ("migrating-out", "migrated-out", whole),
            ("migrating-in", "new", whole / 2),
            ("ended", "ended", whole),
            ("new", "new", whole / 2),
        ] {
            let told = daemon.json(&["disk", "event", "scan", event])?;
            check(told["state"] == state, format!("after '{event}': {told}"))?;
            let found = target_mib(&daemon, "local")?;
            check(found.abs_diff(local_mib) <= 1, format!("after '{event}' local has {found} MiB"))?;
        }
        let refused = daemon.command(&["disk", "event", "scan", "storage-migrated"]).map(drop);
        check(
            refused.as_ref().is_err_and(|e| e.to_string().contains("cannot happen")),
            format!("{refused:?}"),
        )?;

        daemon.command(&["disk", "event", "scan", "suspended"])?;
        daemon.kill_and_restart(Duration::from_millis(100))?;
        check(target_mib(&daemon, "local")?.abs_diff(whole) <= 1, "a restart ends a suspension")?;
        let log = daemon.command(&["policy", "log", "-n", "20"])?;
        check(log.contains("scan is suspended as before the restart"), format!("the log: {log}"))?;
        let told = daemon.json(&["disk", "event", "scan", "resumed"])?;
        check(told["state"] == "new", format!("after the restart: {told}"))?;

        daemon.command(&["disk", "set", "scan", "--target", "16MiB", "--mode", "wt"])?;
        check(target_mib(&daemon, "scan")? == 16, "the operator's target does not hold")?;
        check(target_mib(&daemon, "local")?.abs_diff(whole - 16) <= 1, "the rest is not local's")?;
        let why = daemon.command(&["policy", "explain", "scan"])?;
        check(why.contains("16MiB is the operator's"), &why)?;
        replay(&daemon)?;

        daemon.command(&["disk", "detach", "scan"])?;
        check(target_mib(&daemon, "local")?.abs_diff(whole) <= 1, "what a detached disk had is not local's")?;
        daemon.command(&["policy", "set", "off"])?;
        let none = daemon.command(&["policy", "show"])?;
        check(none.contains("no policy"), &none)
    });
}

/// Starts to record a disk, into a file or to the recorder's log.
fn record(place: &Place, daemon: &Haversack<'_>, name: &str, output: &str) -> Result<Process> {
    Process::start(place, name, &daemon.command_line(&["trace", "record", "local", "-o", output])?)
}

/// Ctrl-C for a recorder, which then writes the end of its file.
fn end(mut recorder: Process) -> Result<()> {
    recorder.interrupt()?;
    let status = recorder.wait(PATIENCE)?;
    check(status.success(), format!("haversack trace record ended with {status}"))
}

#[test]
fn a_recorded_trace_has_every_request() {
    test("trace record", |place| {
        let daemon = daemon_with(place, "allocator = \"none\"\n")?;
        let counts = |daemon: &Haversack<'_>| {
            let shown = shown(daemon, "local")?;
            let count = |key: &str| shown["requests"][key].as_u64().unwrap_or(0);
            Ok::<_, Error>(["reads", "writes", "flushes", "zeroes"].map(count))
        };
        let before = counts(&daemon)?;
        let (file, live) = (place.path("local.hvt"), place.path("live.log"));
        let recorders = [
            record(place, &daemon, "file", &file.display().to_string())?,
            record(place, &daemon, "live", "-")?,
        ];
        // A recorder opens its output once the disk is recorded.
        let rows = || std::fs::read_to_string(&live).unwrap_or_default().lines().count();
        tools::wait_until(
            "recorders",
            PATIENCE,
            || Ok(place.path("local.hvt.part").exists() && rows() == 1),
        )?;
        let commands =
            ["write -P 1 0 1M", "read -P 1 4k 64k", "flush", "write -z 2M 1M", "read -P 1 512 512"];
        clients::qemu_io(&daemon.uri("local"), &commands)?;
        let after = counts(&daemon)?;
        let counted: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
        tools::wait_until("a row for each request", PATIENCE, || {
            Ok(rows() as u64 > counted.iter().sum::<u64>())
        })?;
        recorders.into_iter().try_for_each(end)?;
        daemon.command(&["trace", "info", &file.display().to_string()])?;
        let trace = place.path("live.csv").display().to_string();
        std::fs::copy(&live, &trace).map_err(Error::io(trace.clone()))?;
        let info = daemon.json(&["trace", "info", &trace])?;
        let of = |key: &str| info["overall"][key].as_u64().unwrap_or(0);
        let recorded = ["reads", "writes", "flushes", "discards"].map(of);
        place.say(&format!("reads, writes, flushes, discards: {counted:?}"));
        check(recorded[..] == counted[..], format!("recorded {recorded:?}, counted {counted:?}"))?;
        check(counted.iter().all(|count| *count > 0), "not every kind of request was made")?;
        check(of("read_bytes") == 64 * 1024 + 512, format!("{} bytes read", of("read_bytes")))?;

        let unmeasured = daemon.command(&["disk", "curve", "local"]).map(drop);
        check(
            unmeasured.as_ref().is_err_and(|e| e.to_string().contains("--for")),
            format!("{unmeasured:?}"),
        )?;
        let asking = daemon.command_line(&["--json", "disk", "curve", "local", "--for", "4s"])?;
        let asked = std::thread::spawn(move || tools::run(asking));
        let curve = || daemon.json(&["disk", "curve", "local"]);
        tools::wait_until("the measurement", PATIENCE, || Ok(curve().is_ok()))?;
        clients::qemu_io(&daemon.uri("local"), &["read 0 1M", "read 0 1M", "read 0 512k"])?;
        let answer = asked.join().map_err(|_| Error::Check("the question panicked".into()))??;
        let answer: Value = serde_json::from_str(&answer).map_err(|e| Error::Check(e.to_string()))?;
        check(answer["measured"].is_object(), format!("nothing is measured: {answer}"))?;
        // The curve stays available for a minute; on a slow machine, reads may come after the four seconds.
        tools::wait_until("all reads", PATIENCE, || Ok(curve()?["measured"]["reads"].as_u64() >= Some(640)))?;
        let curve = curve()?;
        let measured = &curve["measured"];
        let found = (&measured["reads"], &measured["wss_bytes"], &measured["rwss_bytes"][1]);
        check(found.0 == 640 && found.1 == MIB && found.2 == MIB / 2, format!("measured {found:?}"))
    });
}

#[test]
fn a_policy_that_makes_no_sense_is_refused() {
    test("policies refused", |place| {
        let daemon = daemon_with(place, "allocator = \"equal\"\n")?;
        let good = daemon.configuration();
        for (wrong, word) in [
            ("allocator = \"fair\"\n", "max-min"),
            ("allocator = \"wss\"\nwindow = \"1s\"\nmeasurement = \"2s\"\n", "shorter than its measurement"),
            ("allocator = \"wss\"\ncolour = \"blue\"\n", "colour"),
            ("allocator = \"max-min\"\nbeta = [0.0, 0.0, 0.0, 0.0]\n", "sum to zero"),
        ] {
            daemon.reload(&good.replace("allocator = \"equal\"\n", wrong))?;
            daemon.wait_for_log(&["reload refused", "old configuration stays"])?;
            tools::wait_until(word, PATIENCE, || Ok(daemon.log().contains(word)))?;
        }
        let line = good.lines().position(|line| line == "[policy]").map_or(0, |at| at + 1);
        check(daemon.log().contains(&format!("line {line}")), "the line of [policy] is not named")?;
        for arguments in [
            &["policy", "set", "fair"][..],
            &["policy", "set", "wss", "solver=exact"],
            &["disk", "set", "scan", "--reservation", "32MiB", "--limit", "16MiB"],
        ] {
            let refused = daemon.command(arguments).map(drop);
            check(refused.is_err(), format!("{arguments:?} is taken"))?;
        }
        // The reservations exceed the pool: the previous plan stays in effect, and the reason is reported.
        let before = target_mib(&daemon, "local")?;
        daemon.command(&["disk", "set", "scan", "--reservation", &format!("{}MiB", 2 * CACHE_MIB)])?;
        check(target_mib(&daemon, "local")? == before, "a refused decision changes a target")?;
        let shown = daemon.command(&["policy", "show"])?;
        check(shown.contains("refused: reservations"), &shown)?;

        daemon.reload(&good.replace("allocator = \"equal\"\n", "allocator = \"static\"\n"))?;
        tools::wait_until("the policy of the new file", PATIENCE, || {
            Ok(daemon.json(&["policy", "show"])?["settings"]["allocator"] == "static")
        })
    });
}

/// Blocks that the client of a disk that moves uses.
const USED_BLOCKS: usize = 1_000;

/// What a policy has decided for a disk: its state, and the bytes that it could use.
fn decided(daemon: &Haversack<'_>, disk: &str) -> Result<(String, u64)> {
    let status = daemon.json(&["policy", "show"])?;
    let disks = status["pools"][0]["disks"].as_array().cloned().unwrap_or_default();
    let found = disks.iter().find(|shown| shown["disk"] == disk);
    let text = |key: &str| found.and_then(|shown| shown[key].as_str()).unwrap_or_default().to_owned();
    Ok((text("state"), found.and_then(|shown| shown["demand_bytes"].as_u64()).unwrap_or(0)))
}

/// The measurements of the source decide the disk's share at the destination, before its VM arrives, and long before
/// the first window ends there.
#[test]
fn what_was_measured_of_a_disk_moves_with_it() {
    test("measurements move", |place| {
        let origin = image::zeroes(place, "vm1.img", 64)?;
        let hosts = Hosts::new(place, &["alpha", "beta"])?;
        let places = [place.host("a")?, place.host("b")?];
        let disk = || Disk::new("vm1", origin.display().to_string());
        let settings = |disk, me, window: &str| {
            let policy = format!("\n[policy]\nallocator = \"rwss\"\nwindow = \"{window}\"\n");
            Settings { more: hosts.tables(me) + &policy, ..Settings::new(CACHE_MIB, vec![disk]) }
        };
        let new = disk().with("from = \"none\"");
        // Long enough to use most blocks twice on a slow machine too, and seldom over before the window is made long.
        let [alpha, beta] =
            Haversack::start_both(&places, [settings(new, "alpha", "10s"), settings(disk(), "beta", "1h")])?;
        // It uses each block again and again.
        let mut client = Verifier::new(&alpha.socket("nbd.sock"), "vm1", USED_BLOCKS, 1);
        let least = USED_BLOCKS as u64 * 4096 / 2;
        wait_until("measurements", PATIENCE, || {
            (0..500).try_for_each(|_| client.step())?;
            Ok(decided(&alpha, "vm1")?.1 >= least)
        })?;
        // So that no later window says that it is idle.
        alpha.command(&["policy", "set", "rwss", "window=1h"])?;
        let (_, measured) = decided(&alpha, "vm1")?;
        check(measured >= least, format!("{measured} bytes are wanted at the source"))?;
        let before = decided(&beta, "vm1")?;
        place.say(&format!("wanted at the source: {measured} bytes; at the destination before: {before:?}"));
        client.disconnect();
        alpha.command(&["migrate", "vm1", "--to", "beta"])?;
        let arrives = || Ok(decided(&beta, "vm1")? == ("migrated-in".into(), measured));
        wait_until("the measurements before the disk", PATIENCE, arrives)?;
        let target = || Ok::<_, Error>(shown(&beta, "vm1")?["usage"]["target_bytes"].as_u64().unwrap_or(0));
        check(target()? >= measured, format!("its share is {} bytes before it has come", target()?))?;
        client.move_to(&beta.socket("nbd.sock"));
        client.write_in_order(1)?;
        wait_until_moved(&alpha, &beta, "vm1")?;
        client.verify_all()?;
        check(arrives()?, format!("when it has come: {:?}", decided(&beta, "vm1")?))?;
        beta.wait_for_log(&["the measurements of the policy were read", "alpha"])?;
        let log = beta.command(&["policy", "log", "-n", "20"])?;
        check(log.contains("arriving"), log)
    });
}
