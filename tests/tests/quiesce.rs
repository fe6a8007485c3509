//! Snapshots of a disk's origin while its guest writes: they contain what was dirty in the cache, and the guest is
//! never left frozen.

use std::path::Path;
use std::time::{Duration, Instant};

use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::process::Process;
use haversack_e2e::tools::{self, PATIENCE};
use haversack_e2e::{Attachment, Error, Guest, Place, Result, clients, image, test};

/// How long the command takes, in seconds, and the minimum pause in the writes of a frozen guest that results.
const SECONDS: &str = "2";
const FROZEN_MS: u64 = 1_800;
/// The longest pause in the writes of a guest that is not frozen, on a busy machine.
const AWAKE_MS: u64 = 1_500;

fn started<'a>(place: &'a Place, mode: &str) -> Result<Haversack<'a>> {
    let mut disk = Disk::new("vm1", image::zeroes(place, "vm1.img", 256)?.display().to_string());
    mode.clone_into(&mut disk.mode);
    // Dirty blocks stay in the cache for as long as a test takes.
    let settings = Settings::new(256, vec![disk.with("cleaner = { idle = \"10000h\", age = \"10000h\" }")]);
    Haversack::start(place, settings)
}

/// Boots a guest that writes to a file system on vm1.
fn scribbling(place: &Place, daemon: &Haversack) -> Result<(Guest, String)> {
    let (mut guest, agent) = Guest::boot_with_agent(place, "guest", &[daemon.vhost_user("vm1")])?;
    for command in ["mkfs vda ext4", "mount vda ext4", "fill 1 16", "scribble"] {
        guest.ask(command)?;
    }
    Ok((guest, agent.display().to_string()))
}

/// Fails unless the disk has this configured mode.
fn has_mode(daemon: &Haversack, mode: &str) -> Result<()> {
    let disk = daemon.json(&["disk", "show", "vm1"])?;
    check(disk["config"]["mode"] == *mode, format!("the disk is not in mode {mode}: {}", disk["config"]))
}

fn has_dirty_data(daemon: &Haversack) -> Result<bool> {
    Ok(daemon.json(&["disk", "show", "vm1"])?["usage"]["dirty_bytes"].as_u64() != Some(0))
}

/// Returns the number of blocks written since the last call, and the longest pause between two of them. The guest keeps
/// writing.
fn gap(guest: &mut Guest) -> Result<(u64, u64)> {
    let scribbled = guest.ask("scribbled")?;
    guest.ask("scribble")?;
    Ok((scribbled.number("blocks")?, scribbled.number("gap_ms")?))
}

/// A command that takes a snapshot and then sleeps.
fn snapshot(place: &Place) -> [String; 3] {
    let [from, to] = ["vm1.img", "snapshot.img"].map(|name| place.path(name).display().to_string());
    ["sh", "-c", &format!("cp {from} {to} && sleep {SECONDS}")].map(str::to_owned)
}

/// Boots a guest on the snapshot and checks its files: the synced ones, and if the guest was frozen, also the one that
/// is written without a sync. Returns the number of blocks in the latter.
fn found(place: &Place, is_frozen: bool) -> Result<u64> {
    let mut check_it = tools::tool("e2fsck")?;
    check_it.args(["-f", "-n"]).arg(place.path("snapshot.img"));
    let checked = tools::output(check_it)?;
    // Without a freeze, the journal must be replayed first.
    check(!is_frozen || checked.status.success(), format!("the snapshot is not clean: {checked:?}"))?;
    let mut served = tools::tool("qemu-storage-daemon")?;
    let socket = place.path("snapshot.sock");
    served
        .args(["--blockdev", &format!("file,node-name=s,filename={}", place.path("snapshot.img").display())]);
    served.args(["--nbd-server", &format!("addr.type=unix,addr.path={}", socket.display())]);
    served.args(["--export", "nbd,id=s,node-name=s,name=s,writable=on"]);
    let ready = place.path("snapshot.pid");
    served.arg("--pidfile").arg(&ready);
    let mut server = Process::start(place, "snapshot", &served)?;
    server.wait_for_file(&ready)?;
    let disk = Attachment::Nbd { socket, export: "s".into(), reconnect_s: 0 };
    let mut guest = Guest::boot(place, "second", &[disk])?;
    guest.ask("mount vda ext4")?;
    guest.ask("files 1 16")?;
    let blocks = if is_frozen { guest.ask("scribbles")?.number("blocks")? } else { 0 };
    guest.ask("umount")?;
    guest.ask("fsck vda ext4")?;
    guest.off()?;
    Ok(blocks)
}

#[test]
fn a_snapshot_of_a_frozen_guest_is_like_a_clean_unmount() {
    test("quiesce with a guest agent", |place| {
        let daemon = started(place, "wb")?;
        let (mut guest, agent) = scribbling(place, &daemon)?;
        check(has_dirty_data(&daemon)?, "nothing is dirty")?;
        let command = snapshot(place);
        let arguments = ["--json", "disk", "quiesce", "vm1", "--guest-agent", &agent, "--"];
        let report = daemon.json(&[&arguments[1..], &[&command[0], &command[1], &command[2]]].concat())?;
        check(report["frozen_file_systems"] == 1, format!("not frozen: {report}"))?;
        let (blocks, gap_ms) = gap(&mut guest)?;
        check(gap_ms >= FROZEN_MS, format!("the guest has written while it was frozen: {gap_ms} ms"))?;
        has_mode(&daemon, "wb")?;
        place.say(&format!("frozen for {gap_ms} ms"));
        let second = place.path("second.img").display().to_string();
        let origin = place.path("vm1.img").display().to_string();
        let copy = ["--", "cp", "--sparse=always", &origin, &second];
        let arguments = [&["disk", "quiesce", "vm1", "--guest-agent", &agent], &copy[..]].concat();
        place.say(&daemon.command(&arguments)?);
        guest.ask("scribbled")?;
        guest.ask("umount")?;
        guest.ask("fsck vda ext4")?;
        guest.no_complaints()?;
        guest.off()?;
        let found = found(place, true)?;
        check(found > 0 && found <= blocks, format!("{found} of {blocks} blocks are in the snapshot"))
    });
}

#[test]
fn a_snapshot_without_an_agent_has_what_was_acknowledged() {
    test("quiesce without a guest agent", |place| {
        let daemon = started(place, "auto")?;
        let (mut guest, _) = scribbling(place, &daemon)?;
        let command = snapshot(place);
        daemon.command(&["disk", "quiesce", "vm1", "--", &command[0], &command[1], &command[2]])?;
        let (_, gap_ms) = gap(&mut guest)?;
        place.say(&format!("the guest could not write for {gap_ms} ms at most"));
        has_mode(&daemon, "auto")?;
        guest.ask("scribbled")?;
        guest.off()?;
        found(place, false).map(|_| ())
    });
}

/// The command fails, takes too long or cannot be run, or the guest agent cannot be reached: the guest is not left
/// frozen.
#[test]
fn a_guest_is_thawed_whatever_becomes_of_the_command() {
    test("quiesce that fails", |place| {
        let daemon = started(place, "wb")?;
        let (mut guest, agent) = scribbling(place, &daemon)?;
        for (more, words) in [
            (&["--", "false"][..], "false: exit status: 1"),
            (&["--", "/no/such/program"], "cannot run"),
            // The limit includes the time of the freeze.
            (&["--limit", "10s", "--", "sleep", "1000"], "the command did not finish within 10s"),
        ] {
            let arguments = [&["disk", "quiesce", "vm1", "--guest-agent", &agent], more].concat();
            let refused = daemon.refused(&arguments)?;
            check(refused.contains(words), format!("{words:?} is not in: {refused}"))?;
            has_mode(&daemon, "wb")?;
            gap(&mut guest)?;
            // A busy machine or disk may hold the guest up now and then.
            tools::wait_until("writes without a pause", PATIENCE, || {
                std::thread::sleep(Duration::from_millis(200));
                let (blocks, gap_ms) = gap(&mut guest)?;
                Ok(blocks > 0 && gap_ms < AWAKE_MS)
            })?;
        }
        for (path, words) in [
            ("/no/such/socket", "cannot be reached"),
            (&guest.qemu().monitor().display().to_string(), "unexpected data from the guest agent"),
        ] {
            let refused = daemon.refused(&["disk", "quiesce", "vm1", "--guest-agent", path, "--", "true"])?;
            check(refused.contains(words), format!("{words:?} is not in: {refused}"))?;
            has_mode(&daemon, "wb")?;
        }
        guest.ask("scribbled")?;
        guest.off()
    });
}

/// The command line is killed, the second time together with the daemon: the guard thaws the guest and waits for the
/// daemon.
#[test]
fn a_guest_is_thawed_when_who_has_frozen_it_is_killed() {
    test("quiesce that is killed", |place| {
        let mut daemon = started(place, "wb")?;
        let (mut guest, agent) = scribbling(place, &daemon)?;
        let marker = place.path("quiesced");
        let touch = format!("touch {} && exec sleep 50", marker.display());
        let quiesce = daemon.command_line(&[
            "disk",
            "quiesce",
            "vm1",
            "--guest-agent",
            &agent,
            "--",
            "sh",
            "-c",
            &touch,
        ])?;
        for daemon_dies in [false, true] {
            let mut process = Process::start(place, "quiesce", &quiesce)?;
            process.wait_for_file(&marker)?;
            has_mode(&daemon, "wt")?;
            if daemon_dies {
                daemon.kill()?;
            }
            process.kill()?;
            if daemon_dies {
                daemon.start_again()?;
            }
            is_awake(&mut guest)?;
            let start = Instant::now();
            while has_mode(&daemon, "wb").is_err() {
                check(start.elapsed() < PATIENCE, "the disk stays in write-through mode")?;
                std::thread::sleep(Duration::from_millis(100));
            }
            remove(&marker)?;
        }
        guest.ask("scribbled")?;
        guest.ask("umount")?;
        guest.ask("fsck vda ext4")?;
        guest.off()
    });
}

/// A second run, a restart of the daemon, a change of the mode, a signal: `quiesce` fails if the result may be
/// incomplete, and the mode is restored. This needs no guest.
#[test]
fn what_happens_beside_the_command_is_noticed() {
    test("quiesce and what happens beside it", |place| {
        let mut daemon = started(place, "wb")?;
        clients::qemu_io(&daemon.uri("vm1"), &["write -P 7 0 4M"])?;
        let marker = place.path("quiesced");
        // The command ends when it is told to.
        let end = place.path("end");
        let wait =
            format!("touch {} && until [ -e {} ]; do sleep 0.1; done", marker.display(), end.display());
        let quiesce = daemon.command_line(&["disk", "quiesce", "vm1", "--", "sh", "-c", &wait])?;
        for (number, (what, is_success)) in
            [("a second run", true), ("a restart", false), ("a change", false), ("a signal", false)]
                .into_iter()
                .enumerate()
        {
            let name = format!("quiesce-{number}");
            let mut process = Process::start(place, &name, &quiesce)?;
            process.wait_for_file(&marker)?;
            has_mode(&daemon, "wt")?;
            match what {
                "a second run" => {
                    let refused = daemon.refused(&["disk", "quiesce", "vm1", "--", "true"])?;
                    check(refused.contains("already being quiesced"), format!("the second one: {refused}"))?;
                    has_mode(&daemon, "wt")?;
                }
                "a restart" => {
                    daemon.kill()?;
                    daemon.start_again()?;
                }
                "a change" => drop(daemon.command(&["disk", "set", "vm1", "--mode", "wb"])?),
                _ => {}
            }
            let status = if what == "a signal" {
                process.terminate(PATIENCE)?
            } else {
                std::fs::write(&end, "").map_err(Error::io("the end"))?;
                let status = process.wait(PATIENCE)?;
                remove(&end)?;
                status
            };
            check(status.success() == is_success, format!("{what}: {status}"))?;
            has_mode(&daemon, "wb")?;
            remove(&marker)?;
        }
        let found = image::digest(&place.path("vm1.img"))?;
        daemon.command(&["disk", "flush", "vm1"])?;
        check(found == image::digest(&place.path("vm1.img"))?, "the first one has left something dirty")
    });
}

/// Fails unless the guest writes.
fn is_awake(guest: &mut Guest) -> Result<()> {
    gap(guest)?;
    tools::wait_until("the guest's writes", PATIENCE, || {
        std::thread::sleep(Duration::from_millis(500));
        Ok(gap(guest)?.0 > 0)
    })
}

fn remove(path: &Path) -> Result<()> {
    std::fs::remove_file(path).map_err(Error::io(path.display().to_string()))
}
