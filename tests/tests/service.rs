//! `haversackd` as a service: reload, stop, what systemd hears, privileges.

use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::scenario::{self, Load};
use haversack_e2e::tools::PATIENCE;
use haversack_e2e::{Error, Guest, Place, Result, clients, image, test, tools};

/// Waits until a disk is in a state.
fn wait_for_state(daemon: &Haversack<'_>, disk: &str, state: &str) -> Result<()> {
    tools::wait_until(&format!("{disk} {state}"), PATIENCE, || {
        Ok(daemon.json(&["disk", "show", disk]).is_ok_and(|shown| shown["state"] == state))
    })
}

#[test]
fn a_reload_adds_removes_and_changes_disks() {
    test("SIGHUP", |place| {
        let files = [
            image::pattern(place, "vm1.img", "vm1", 16)?,
            image::zeroes(place, "vm2.img", 16)?,
            image::pattern(place, "vm3.img", "vm3", 16)?,
        ];
        let disk = |at: usize| Disk::new(&format!("vm{}", at + 1), files[at].display().to_string());
        let mut daemon = Haversack::start(place, Settings::new(64, vec![disk(0), disk(1)]))?;
        let first = daemon.configuration();
        clients::qemu_io(&daemon.uri("vm2"), &["write -P 0x42 1M 4M"])?;
        tools::wait_until("the client's end", PATIENCE, || {
            Ok(daemon.json(&["disk", "show", "vm2"])?["clients"] == 0)
        })?;

        daemon.settings().disks = vec![Disk { mode: "wt".to_owned(), ..disk(0) }, disk(2)];
        daemon.settings().daemon = "log = \"debug\"\nremove_disks = [\"vm2\"]\n".to_owned();
        daemon.reload(&daemon.configuration())?;
        wait_for_state(&daemon, "vm3", "attached")?;
        wait_for_state(&daemon, "vm2", "detached")?;
        daemon.wait_for_log(&["[daemon] has changed", "next start"])?;
        tools::wait_until("vm1 in mode wt", PATIENCE, || {
            Ok(daemon.json(&["disk", "show", "vm1"])?["config"]["mode"] == "wt")
        })?;
        clients::compare(&daemon.uri("vm3"), &files[2].display().to_string())?;
        clients::qemu_io(&files[1].display().to_string(), &["read -P 0x42 1M 4M"])?;
        check(clients::nbdinfo(&daemon.uri("vm2")).is_err(), "a disk that was removed is still an export")?;
        place.say("one added, one removed with its data at its origin, one changed");

        let broken = first.replace("name = \"vm2\"", "name = \"vm2\"\ncolour = \"blue\"");
        daemon.reload(&broken)?;
        let line = broken.lines().position(|line| line.starts_with("colour")).map_or(0, |at| at + 1);
        daemon.wait_for_log(&["reload refused", "the old configuration stays"])?;
        let log = daemon.log();
        check(log.contains("colour") && log.contains(&format!("line {line}")), "the line is not named")?;
        wait_for_state(&daemon, "vm3", "attached")?;
        wait_for_state(&daemon, "vm2", "detached")?;

        // What a client has just closed may count as connected for a moment.
        daemon.command(&["disk", "detach", "vm3", "--force"])?;
        daemon.reload(&first)?;
        wait_for_state(&daemon, "vm2", "attached")?;
        wait_for_state(&daemon, "vm3", "detached")?;
        clients::qemu_io(&daemon.uri("vm2"), &["read -P 0x42 1M 4M"]).map(|_| ())
    });
}

#[test]
fn a_clean_stop_under_load_loses_nothing() {
    test("SIGTERM under load", |place| {
        let files = [image::zeroes(place, "vm1.img", 64)?, image::zeroes(place, "vm2.img", 64)?];
        let disks = vec![
            Disk::new("vm1", files[0].display().to_string()),
            Disk::new("vm2", files[1].display().to_string()),
        ];
        let mut daemon = Haversack::start(place, Settings::new(256, disks))?;
        let mut guest = Guest::boot(place, "guest", &[daemon.vhost_user("vm1"), daemon.nbd("vm2")])?;
        guest.ask("open vda vm1 zeroes")?;
        guest.ask("open vdb vm2 zeroes")?;
        let mut load = Load::start(place, &mut guest, &["vda", "vdb"], 1)?;
        for _ in 0..3 {
            load.advance(100)?;
            daemon.stop()?;
            daemon.start_again()?;
        }
        let clean = daemon.log().lines().filter(|line| line.contains("clean_stop=true")).count();
        check(clean == 3, format!("{clean} of 3 starts again found a pool that was stopped cleanly"))?;
        load.advance(100)?;
        load.stop()?;
        guest.off()
    });
}

/// What a daemon tells systemd.
struct Notices {
    words: Receiver<String>,
}

impl Notices {
    /// Takes every notice at once: the socket has room for few, and the daemon waits for room.
    fn listen(path: &Path) -> Result<Self> {
        let socket = UnixDatagram::bind(path).map_err(Error::io("the notification socket"))?;
        socket.set_read_timeout(Some(PATIENCE)).map_err(Error::io("the notification socket"))?;
        let (sender, words) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length) = socket.recv(&mut buffer) {
                let word = String::from_utf8_lossy(&buffer[..length]).trim().to_owned();
                if sender.send(word).is_err() {
                    break;
                }
            }
        });
        Ok(Self { words })
    }

    /// The next notice, except those of a start or stop that takes long.
    fn next(&self) -> Result<String> {
        loop {
            let word = self.words.recv_timeout(PATIENCE);
            let word = word.map_err(|error| Error::Check(format!("no word from the daemon: {error}")))?;
            if !word.starts_with("EXTEND_TIMEOUT_USEC=") {
                return Ok(word);
            }
        }
    }
}

#[test]
fn systemd_hears_of_start_life_and_stop() {
    test("sd-notify", |place| {
        let file = image::zeroes(place, "vm1.img", 16)?;
        let mut settings = Settings::new(64, vec![Disk::new("vm1", file.display().to_string())]);
        let socket = place.path("notify");
        let notices = Notices::listen(&socket)?;
        settings.environment = vec![
            ("NOTIFY_SOCKET".to_owned(), socket.display().to_string()),
            ("WATCHDOG_USEC".to_owned(), "200000".to_owned()),
        ];
        let mut daemon = Haversack::start(place, settings)?;
        check(notices.next()? == "READY=1", "the first word is not READY=1")?;
        for _ in 0..5 {
            check(notices.next()? == "WATCHDOG=1", "no WATCHDOG=1")?;
        }
        daemon.stop()?;
        let last = std::iter::from_fn(|| notices.next().ok()).find(|word| word != "WATCHDOG=1");
        check(last.as_deref() == Some("STOPPING=1"), format!("the last word is {last:?}"))
    });
}

/// A disk that works, and one that is being attached for this long, such as `3s`: the listener accepts and never answers.
fn a_disk_and_a_hung_one(place: &Place, time: &str) -> Result<(TcpListener, Vec<Disk>)> {
    let file = image::zeroes(place, "vm1.img", 16)?;
    let hung = TcpListener::bind(("127.0.0.1", 0)).map_err(Error::io("a hung server"))?;
    let port = hung.local_addr().map_err(Error::io("a hung server"))?.port();
    let vm2 =
        Disk::new("vm2", format!("nbd://127.0.0.1:{port}/vm2")).with(&format!("origin_wait = \"{time}\""));
    Ok((hung, vec![Disk::new("vm1", file.display().to_string()), vm2.unattachable()]))
}

/// A daemon that waits for a disk, and what it tells systemd.
fn start_early<'a>(place: &'a Place, disks: Vec<Disk>) -> Result<(Haversack<'a>, Notices)> {
    let socket = place.path("notify");
    let notices = Notices::listen(&socket)?;
    let mut settings = Settings { early: true, ..Settings::new(64, disks) };
    settings.environment = vec![
        ("NOTIFY_SOCKET".to_owned(), socket.display().to_string()),
        ("WATCHDOG_USEC".to_owned(), "200000".to_owned()),
    ];
    Ok((Haversack::start(place, settings)?, notices))
}

#[test]
fn systemd_hears_ready_after_the_first_attempt_to_attach_each_disk() {
    test("READY", |place| {
        let (_hung, disks) = a_disk_and_a_hung_one(place, "5s")?;
        let (daemon, notices) = start_early(place, disks)?;
        check(daemon.json(&["disk", "show", "vm2"])?["state"] == "attaching", "vm2 is not being attached")?;
        daemon.reload(&daemon.configuration())?;
        check(notices.next()? == "READY=1", "the first word is not READY=1")?;
        check(daemon.json(&["disk", "show", "vm2"])?["state"] == "waiting", "vm2 does not wait")?;
        daemon.wait_for_log(&["reloading"])?;
        let log = daemon.log();
        let place_of = |word| log.lines().position(|line| line.contains(word));
        check(
            place_of(" ready ") < place_of("reloading"),
            format!("a reload before the end of the start: {log}"),
        )?;
        check(notices.next()? == "WATCHDOG=1", "no WATCHDOG=1")
    });
}

#[test]
fn a_stop_during_the_start_is_a_clean_one() {
    test("SIGTERM during the start", |place| {
        let (_hung, disks) = a_disk_and_a_hung_one(place, "60s")?;
        let (mut daemon, notices) = start_early(place, disks)?;
        clients::qemu_io(&daemon.uri("vm1"), &["write -P 0x42 1M 4M"])?;
        check(daemon.json(&["disk", "show", "vm2"])?["state"] == "attaching", "vm2 is not being attached")?;
        let begun = Instant::now();
        daemon.stop()?;
        let waited = begun.elapsed();
        check(waited < Duration::from_secs(15), format!("the stop took {waited:?}"))?;
        check(notices.next()? == "STOPPING=1", "the first word is not STOPPING=1")?;
        daemon.settings().disks.truncate(1);
        daemon.settings().early = false;
        daemon.start_again()?;
        daemon.wait_for_log(&["opened from the checkpoint of a clean stop"])?;
        clients::qemu_io(&daemon.uri("vm1"), &["read -P 0x42 1M 4M"]).map(|_| ())
    });
}

/// The user that the daemon becomes.
const USER: &str = "nobody";

/// The user's number, as the system knows it.
fn number_of_user() -> Result<u32> {
    let mut id = tools::tool("id")?;
    id.args(["-u", USER]);
    let text = tools::run(id)?;
    text.trim().parse().map_err(|_| Error::Check(format!("id says {text}")))
}

/// A place and files that the user may use.
fn open_to_all(place: &Place, files: &[&Path]) -> Result<()> {
    let set = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
            .map_err(Error::io(path.display().to_string()))
    };
    set(&place.path(""), 0o755)?;
    files.iter().try_for_each(|file| set(file, 0o666))
}

/// Fails if a thread of the daemon is another user than this.
fn all_threads_are(daemon: &Haversack<'_>, user: u32) -> Result<()> {
    let threads = format!("/proc/{}/task", daemon.process()?.id());
    for thread in std::fs::read_dir(&threads).map_err(Error::io(threads))?.flatten() {
        // io_uring's workers are the kernel's threads; they take on who submitted a request.
        let name = std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        if name.starts_with("iou-") {
            continue;
        }
        let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        // The thread has just ended.
        if status.is_empty() {
            continue;
        }
        let uids = status.lines().find(|line| line.starts_with("Uid:")).unwrap_or_default();
        let right = uids.split_whitespace().skip(1).all(|uid| uid == user.to_string());
        check(right && !uids.is_empty(), format!("thread {name:?} is {uids}, expected {user}"))?;
    }
    Ok(())
}

#[test]
fn privileges_are_dropped_and_everything_goes_on() {
    test("privileges", |place| {
        let (file, image) = (image::zeroes(place, "vm1.img", 32)?, place.path("vm2.qcow2"));
        let mut create = tools::tool("qemu-img")?;
        create.args(["create", "-q", "-f", "qcow2"]).arg(&image).arg("32M");
        tools::run(create)?;
        open_to_all(place, &[&image])?;
        let disks = vec![
            // Root's own file: it is opened before privileges are dropped.
            Disk::new("vm1", file.display().to_string()),
            Disk::new("vm2", format!("qcow2:{}", image.display())),
        ];
        let mut settings = Settings::new(64, disks);
        settings.daemon = format!("user = \"{USER}\"\n");
        if !rustix::process::geteuid().is_root() {
            let started = Haversack::start(place, settings).map(drop);
            return check(
                started.as_ref().is_err_and(|error| error.to_string().contains(USER)),
                format!("somebody who is not root starts a daemon as {USER}: {started:?}"),
            );
        }
        let user = number_of_user()?;
        let mut daemon = Haversack::start(place, settings)?;
        daemon.wait_for_log(&["privileges dropped", USER])?;
        for round in 0..3 {
            all_threads_are(&daemon, user)?;
            for socket in ["control.sock", "nbd.sock", "vm1.sock", "vm2.sock"] {
                let owner = std::fs::metadata(daemon.socket(socket)).map_err(Error::io(socket))?.uid();
                check(owner == user, format!("{socket} belongs to user {owner}"))?;
            }
            for disk in ["vm1", "vm2"] {
                let write = format!("write -P {} {round}M 1M", round + 1);
                clients::qemu_io(&daemon.uri(disk), &[&write, "flush", "read 8M 1M"])?;
                daemon.command(&["disk", "flush", disk])?;
            }
            if round == 0 {
                daemon.stop()?;
                daemon.start_again()?;
            } else {
                daemon.kill_and_restart(Duration::ZERO)?;
            }
        }
        check(!daemon.log().contains("not attached"), "a disk was not attached at first")?;
        place.say("stopped, killed and restarted as another user");

        let later = image::zeroes(place, "vm3.img", 16)?;
        let attach = |daemon: &Haversack<'_>| {
            daemon.command(&["disk", "attach", "vm3", &later.display().to_string(), "--pool", &daemon.pool()])
        };
        let refusal = attach(&daemon).err().map(|error| error.to_string()).unwrap_or_default();
        check(refusal.contains("vm3.img") && refusal.contains("ermission"), format!("vm3: {refusal}"))?;
        open_to_all(place, &[&later])?;
        attach(&daemon)?;
        clients::qemu_io(&daemon.uri("vm1"), &["write -z 0 32M"])?;
        let mut guest = Guest::boot(place, "guest", &[daemon.vhost_user("vm1")])?;
        scenario::exercise(place, &mut guest, "vda", "vm1", "zeroes")?;
        guest.off()?;
        daemon.stop()
    });
}

/// Checks a unit that is packaged as `packaged` and used as `name`.
fn is_valid_and_a_sandbox(place: &Place, packaged: &str, name: &str, program: &str) -> Result<()> {
    let packaged = tools::workspace().join("packaging").join(packaged);
    let text = std::fs::read_to_string(&packaged).map_err(Error::io("the unit file"))?;
    let built = tools::own(program)?.get_program().to_string_lossy().into_owned();
    let unit = place.path(name);
    std::fs::write(&unit, text.replace(&format!("/usr/bin/{program}"), &built))
        .map_err(Error::io("the unit"))?;
    let mut verify = tools::tool("systemd-analyze")?;
    verify.args(["verify", "--man=no"]).arg(&unit);
    let output = tools::output(verify)?;
    check(output.status.success() && output.stderr.is_empty(), format!("systemd says {output:?}"))?;
    let mut judge = tools::tool("systemd-analyze")?;
    // In tenths.
    judge.args(["security", "--offline=true", "--no-pager", "--threshold=20"]).arg(&unit);
    let output = tools::output(judge)?;
    let exposure = output.stdout.lines().rfind(|line| line.contains("Overall")).unwrap_or_default();
    place.say(exposure);
    check(output.status.success(), format!("systemd says {output:?}"))
}

#[test]
fn the_unit_file_is_valid_and_a_sandbox() {
    test("systemd unit", |place| {
        is_valid_and_a_sandbox(place, "haversackd.service", "haversackd.service", "haversackd")?;
        is_valid_and_a_sandbox(
            place,
            "haversack-ublk@.service",
            "haversack-ublk@vm1.service",
            "haversack-ublk",
        )
    });
}
