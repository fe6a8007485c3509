//! `haversack migrate --qmp`: real guests under verified load, moved between two daemons by one command; and every
//! process of a move killed in its midst.

use std::time::Duration;

use haversack_e2e::control::Control;
use haversack_e2e::error::check;
use haversack_e2e::guest::Qemu;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::hosts::{Hosts, state, wait_until_moved};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::process::Process;
use haversack_e2e::qmp::wait_for_status;
use haversack_e2e::scenario::{self, Load};
use haversack_e2e::tools::{self, Output, PATIENCE, number_from, wait_until};
use haversack_e2e::{Attachment, Error, Guest, MIB, Place, Result, image, test};
use haversack_model::random::Random;
use haversack_qmp::{Capability, Monitor, Phase, QmpError};
use serde_json::json;

const NAMES: [&str; 2] = ["alpha", "beta"];
/// So slow that a cache is not sent within a test, in bytes a second.
const SLOW: &str = "rate = \"256KiB\"\n";
/// With that rate, so much cannot be sent before a test has done what it does meanwhile.
const MUCH_BYTES: u64 = 4 * MIB;
/// The switchover is held until the test does something.
const HELD: [&str; 3] = ["--at-once", "--hold", "300s"];

/// Two hosts with two disks, one over vhost-user and one over NBD.
struct Pair<'a> {
    place: &'a Place,
    daemons: [Haversack<'a>; 2],
    /// The host that the guest is on.
    from: usize,
    /// QEMUs started so far.
    count: usize,
}

impl<'a> Pair<'a> {
    fn start(place: &'a Place, places: &'a [Place; 2], origins: &[Nbdkit; 2], more: &str) -> Result<Self> {
        let hosts = Hosts::new(place, &NAMES)?;
        let disks = || vec![Disk::new("vm1", origins[0].uri()), Disk::new("vm2", origins[1].uri())];
        let new = disks().into_iter().map(|disk| disk.with("from = \"none\"")).collect();
        let settings = |disks, me| {
            let tables = hosts.tables(me).replace("[migration]\n", &format!("[migration]\n{more}"));
            Settings { more: tables, ..Settings::new(256, disks) }
        };
        let daemons = Haversack::start_both(places, [settings(new, NAMES[0]), settings(disks(), NAMES[1])])?;
        Ok(Self { place, daemons, from: 0, count: 0 })
    }

    /// Cancels the transfers that started because the disks were attached at the other host, when nothing was cached.
    fn call_off(&self) -> Result<()> {
        for disk in ["vm1", "vm2"] {
            wait_until("the sending", PATIENCE, || Ok(state(&self.daemons[0], disk)? == "sending"))?;
            self.daemons[0].command(&["migrate", "abort", disk])?;
        }
        Ok(())
    }

    /// The daemon of the host that the guest is on.
    fn here(&self) -> &Haversack<'a> {
        &self.daemons[self.from]
    }

    /// Waits until much is cached that the other host does not have.
    fn wait_for_dirty_blocks(&self) -> Result<()> {
        wait_until("dirty blocks", PATIENCE, || {
            let shown = self.here().json(&["disk", "show", "vm1"])?;
            Ok(shown["usage"]["dirty_bytes"].as_u64().is_some_and(|bytes| bytes > MUCH_BYTES))
        })
    }

    fn attachments(&self, host: usize) -> [Attachment; 2] {
        [self.daemons[host].vhost_user("vm1"), self.daemons[host].nbd("vm2")]
    }

    fn boot(&self) -> Result<Guest> {
        let mut guest = Guest::boot(self.place, "guest0", &self.attachments(0))?;
        guest.ask("open vda vm1 pattern")?;
        guest.ask("open vdb vm2 zeroes")?;
        Ok(guest)
    }

    /// Starts a QEMU on the other host that waits for the guest.
    fn expect(&mut self, more: &[&str]) -> Result<Qemu> {
        self.count += 1;
        Qemu::expect(self.place, &format!("guest{}", self.count), &self.attachments(1 - self.from), more)
    }

    /// The command that moves the guest to the other host.
    fn command(&self, source: &Qemu, to: &Qemu, more: &[&str]) -> Result<std::process::Command> {
        let mut command =
            self.here().command_line(&["migrate", "vm1", "vm2", "--to", NAMES[1 - self.from]])?;
        command.arg("--qmp").arg(source.monitor()).arg("--qmp-destination").arg(to.monitor());
        command.args(more);
        Ok(command)
    }

    /// Starts that command.
    fn start_command(&self, name: &str, source: &Qemu, to: &Qemu, more: &[&str]) -> Result<Process> {
        Process::start(self.place, name, &self.command(source, to, more)?)
    }

    /// The guest runs in the other host's QEMU. Waits until nothing of its disks is on the host that it came from.
    fn has_moved(&mut self, load: &mut Load<'_>, there: Qemu) -> Result<()> {
        drop(load.guest().runs_in(there));
        load.advance(100)?;
        let (here, there) = (&self.daemons[self.from], &self.daemons[1 - self.from]);
        ["vm1", "vm2"].into_iter().try_for_each(|disk| wait_until_moved(here, there, disk))?;
        self.from = 1 - self.from;
        Ok(())
    }
}

fn origins(place: &Place) -> Result<(std::path::PathBuf, [Nbdkit; 2])> {
    let file = image::pattern(place, "vm1.img", "vm1", 64)?;
    let small = image::zeroes(place, "vm2.img", 32)?;
    let origins = [Nbdkit::file(place, "origin1", &file)?, Nbdkit::file(place, "origin2", &small)?];
    Ok((file, origins))
}

/// Fails unless the command ended with this exit code and printed this text. Returns its output.
fn ended(output: &Output, code: i32, said: &str) -> Result<String> {
    let text = format!("{}{}", output.stdout, output.stderr);
    let right = output.status.code() == Some(code) && text.contains(said);
    check(right, format!("expected exit code {code} and '{said}', got {output:?}"))?;
    Ok(text)
}

/// Waits until the QEMU that the guest is in is at this phase of its migration.
fn wait_for_phase(qemu: &Qemu, phase: &Phase) -> Result<()> {
    watch_for_phase(&mut qemu.watch()?, phase)
}

fn watch_for_phase(watch: &mut Monitor, phase: &Phase) -> Result<()> {
    wait_until(&format!("the phase {phase:?}"), PATIENCE, || Ok(watch.migration()?.phase == *phase))
}

/// Waits until the guard of a command that was killed, or has given up, has done its work. The VM may run before that,
/// and another command would meet the guard.
fn wait_for_guard(source: &Qemu) -> Result<()> {
    let mut watch = source.watch()?;
    wait_until("the end of the guard's work", PATIENCE, || Ok(!watch.has(Capability::PauseBeforeSwitchover)?))
}

fn is_running(qemu: &Qemu) -> bool {
    qemu.watch().and_then(|mut watch| Ok(watch.run_state()?)).is_ok_and(|state| state == "running")
}

#[test]
fn a_vm_moves_by_one_command_and_back() {
    test("moves by a controller", |place| {
        let (file, origins) = origins(place)?;
        let places = [place.host("a")?, place.host("b")?];
        let mut pair = Pair::start(place, &places, &origins, "")?;
        let mut guest = pair.boot()?;
        let mut load = Load::start(place, &mut guest, &["vda", "vdb"], 1)?;
        // Cache and memory one after the other, with a QEMU that has to be told to run its guest; then both at the same
        // time.
        for (started, more) in [(&["-S"][..], &[][..]), (&[], &["--at-once"])] {
            load.advance(200)?;
            let there = pair.expect(started)?;
            let source = load.guest().qemu();
            let output = tools::output(pair.command(source, &there, more)?)?;
            place.say(&ended(&output, 0, &format!("The VM runs on host '{}'", NAMES[1 - pair.from]))?);
            check(source.watch()?.run_state()? == "postmigrate", "the source is not stopped")?;
            // A second run finds that all is done.
            ended(&tools::output(pair.command(source, &there, &[])?)?, 0, "The VM runs on host")?;
            pair.has_moved(&mut load, there)?;
        }
        load.stop()?;
        let digest = scenario::verify(place, &mut guest, "vda")?;
        guest.off()?;
        pair.here().command(&["disk", "flush", "vm1"])?;
        scenario::same_digest(&file, &digest)
    });
}

/// A daemon is killed while QEMU stops the VM, and is restarted immediately or later. QEMU does not know which requests
/// are completed, so the VM stays at the source. A VM that the destination's QEMU refuses also stays.
#[test]
fn a_vm_that_cannot_be_moved_as_it_is_goes_on_where_it_was() {
    test("moves that must not go on", |place| {
        let (file, origins) = origins(place)?;
        let places = [place.host("a")?, place.host("b")?];
        let mut pair = Pair::start(place, &places, &origins, "")?;
        let mut guest = pair.boot()?;
        // The daemon is down for longer than QEMU's NBD client waits for it, and what a guest does on the NBD disk then
        // fails.
        let mut load = Load::start(place, &mut guest, &["vda"], 1)?;
        for is_back_at_once in [true, false] {
            load.advance(100)?;
            killed_while_the_vm_stops(&mut pair, &mut load, &origins[0], is_back_at_once)?;
        }
        refused_by_the_destination(&mut pair, &mut load)?;
        // The NBD disk belongs to the destination once the guest writes to it there.
        load.guest().ask("start vdb 9 mixed")?;
        let there = pair.expect(&[])?;
        let output = tools::output(pair.command(load.guest().qemu(), &there, &[])?)?;
        ended(&output, 0, "The VM runs on host")?;
        pair.has_moved(&mut load, there)?;
        load.stop()?;
        guest.ask("stop vdb")?.clean()?;
        let digest = scenario::verify(place, &mut guest, "vda")?;
        guest.no_complaints()?;
        guest.off()?;
        pair.here().command(&["disk", "flush", "vm1"])?;
        scenario::same_digest(&file, &digest)
    });
}

fn killed_while_the_vm_stops(
    pair: &mut Pair<'_>,
    load: &mut Load<'_>,
    origin: &Nbdkit,
    is_back_at_once: bool,
) -> Result<()> {
    origin.process().pause()?;
    // Wait until the guest waits for the origin: QEMU stops a queue only when nothing is in flight.
    std::thread::sleep(Duration::from_secs(1));
    let there = pair.expect(&[])?;
    let source = load.guest().qemu();
    let hold = if is_back_at_once { "300s" } else { "2s" };
    let name = format!("stops-{hold}");
    let mut process = pair.start_command(&name, source, &there, &["--at-once", "--hold", hold])?;
    let mut watch = source.watch()?;
    // A QEMU that is only slow answers within this time.
    watch.set_patience(Duration::from_secs(2));
    wait_until("QEMU to wait for the disk", PATIENCE, || {
        Ok(matches!(watch.run_state(), Err(QmpError::Silent { .. })))
    })?;
    drop(watch);
    let from = pair.from;
    pair.daemons[from].kill()?;
    origin.process().resume()?;
    if is_back_at_once {
        pair.daemons[from].start_again()?;
    }
    check(process.wait(PATIENCE)?.code() == Some(1), "the end of a move whose daemon was killed")?;
    if is_back_at_once {
        process.wait_for_text("while QEMU stopped the VM")?;
    } else {
        // QEMU itself may have cancelled the migration, because it cannot flush the other disk.
        pair.daemons[from].start_again()?;
    }
    check(is_running(load.guest().qemu()), "the VM does not run where it was")?;
    drop(there);
    load.advance(100)
}

/// The destination lacks a disk of the VM. The source may notice this while it sends, or consider the VM sent. The
/// latter must happen once.
fn refused_by_the_destination(pair: &mut Pair<'_>, load: &mut Load<'_>) -> Result<()> {
    // It takes several attempts.
    wait_until("a VM that is refused when it has been sent", PATIENCE * 3, || {
        pair.count += 1;
        let (name, disks) = (format!("lacking{}", pair.count), pair.attachments(1 - pair.from));
        let there = Qemu::expect(pair.place, &name, &disks[..1], &[])?;
        let output = tools::output(pair.command(load.guest().qemu(), &there, &[])?)?;
        let text = ended(&output, 1, "stays where it was")?;
        wait_until("the end of a QEMU that is of no use", PATIENCE, || Ok(there.watch().is_err()))?;
        check(state(pair.here(), "vm1")? == "here", "the disk is still being sent")?;
        load.advance(100)?;
        Ok(text.contains("has refused it"))
    })
}

/// The VM never stays stopped, and can be moved by another run of the command. One guest goes through all of it.
#[test]
fn whatever_fails_the_vm_runs_and_can_be_moved() {
    test("moves that fail", |place| {
        let seed = number_from("HAVERSACK_SEED", 1)?;
        place.say(&format!("HAVERSACK_SEED={seed}"));
        let (file, origins) = origins(place)?;
        let places = [place.host("a")?, place.host("b")?];
        let mut pair = Pair::start(place, &places, &origins, SLOW)?;
        pair.call_off()?;
        let mut guest = pair.boot()?;
        let mut load = Load::start(place, &mut guest, &["vda", "vdb"], seed)?;
        for (what, fails) in [
            ("a destination that dies", dying_destination as fn(&mut Pair<'_>, &mut Load<'_>) -> Result<()>),
            ("moves that are given up", given_up),
            ("moves that are refused", refused),
            ("a source that does not answer", silent_source),
            ("a daemon that does not answer", silent_daemon),
            ("a command that is killed and not run again", left_alone),
        ] {
            place.say(what);
            load.advance(100)?;
            pair.wait_for_dirty_blocks()?;
            fails(&mut pair, &mut load)?;
        }
        killed_controllers(&mut pair, &mut load, &mut Random::new(seed))?;
        load.stop()?;
        let digest = scenario::verify(place, &mut guest, "vda")?;
        guest.off()?;
        pair.here().command(&["disk", "flush", "vm1"])?;
        scenario::same_digest(&file, &digest)
    });
}

/// The destination dies while the source waits for its cache. The source gets no event.
fn dying_destination(pair: &mut Pair<'_>, load: &mut Load<'_>) -> Result<()> {
    let there = pair.expect(&[])?;
    let source = load.guest().qemu();
    let mut process = pair.start_command("destination-dies", source, &there, &HELD)?;
    wait_for_phase(source, &Phase::PreSwitchover)?;
    wait_until("a measured rate", PATIENCE, || {
        let status = pair.here().json(&["migrate", "status", "vm1"])?;
        let is_positive = |key: &str| status[key].as_f64().is_some_and(|value| value > 0.0);
        Ok(["sent_bytes_per_s", "eta_s", "expected_stall_s"].into_iter().all(is_positive))
    })?;
    pair.place.say(&pair.here().command(&["migrate", "status"])?);
    there.kill()?;
    check(process.wait(PATIENCE)?.code() == Some(1), "the end of a move whose destination died")?;
    load.advance(100)
}

/// The user cancels the move, or a time limit is reached.
fn given_up(pair: &mut Pair<'_>, load: &mut Load<'_>) -> Result<()> {
    let there = pair.expect(&[])?;
    let source = load.guest().qemu();
    let mut process = pair.start_command("given-up", source, &there, &HELD)?;
    wait_for_phase(source, &Phase::PreSwitchover)?;
    process.interrupt()?;
    check(process.wait(PATIENCE)?.code() == Some(5), "the end of a move that was given up")?;
    load.advance(100)?;
    // The daemon must have answered before the end of the hold.
    for limit in [&["--fill-within", "100ms"][..], &["--at-once", "--hold", "3s"]] {
        let there = pair.expect(&[])?;
        let more = [limit, &["--on-timeout", "cancel"]].concat();
        let output = tools::output(pair.command(load.guest().qemu(), &there, &more)?)?;
        ended(&output, 5, "time limit reached")?;
        load.advance(100)?;
    }
    check(state(pair.here(), "vm1")? == "here", "the disk is still being sent")?;

    // The command continues a migration that another program has begun, and can cancel it as well.
    let there = pair.expect(&[])?;
    let uri = json!({ "uri": format!("unix:{}", pair.place.path("memory.sock").display()) });
    there.watch()?.execute("migrate-incoming", &uri)?;
    let source = load.guest().qemu();
    source.watch()?.set(Capability::PauseBeforeSwitchover, true)?;
    source.watch()?.execute("migrate", &uri)?;
    wait_for_phase(source, &Phase::PreSwitchover)?;
    // It leaves the migration alone while it is not known whether the destination is alive.
    there.process().pause()?;
    ended(&tools::output(pair.command(source, &there, &[])?)?, 8, "was left as it is")?;
    check(source.watch()?.migration()?.phase == Phase::PreSwitchover, "the migration was touched")?;
    there.process().resume()?;
    let mut process = pair.start_command("taken-up", source, &there, &HELD)?;
    process.wait_for_text("following it")?;
    wait_until("the sending", PATIENCE, || Ok(state(pair.here(), "vm1")? == "sending"))?;
    process.interrupt()?;
    check(process.wait(PATIENCE)?.code() == Some(5), "the end of a move that was taken up")?;
    check(state(pair.here(), "vm1")? == "here", "the disk is still being sent")?;
    load.advance(100)
}

/// What is refused is refused before anything is done.
fn refused(pair: &mut Pair<'_>, load: &mut Load<'_>) -> Result<()> {
    let there = pair.expect(&[])?;
    let source = load.guest().qemu();
    let swapped = pair.command(&there, source, &[])?;
    ended(&tools::output(swapped)?, 2, "swapped")?;
    source.watch()?.set(Capability::PostCopy, true)?;
    ended(&tools::output(pair.command(source, &there, &[])?)?, 2, "post-copy is on")?;
    source.watch()?.set(Capability::PostCopy, false)?;
    let nowhere = ["--at-once", "--uri", "unix:/nowhere/vm1.sock"];
    let refused = tools::output(pair.command(source, &there, &nowhere)?)?;
    ended(&refused, 1, "QEMU refuses migrate-incoming")?;
    check(state(pair.here(), "vm1")? == "here", "the disk of a refused move is still being sent")?;
    drop(there);

    // And it can still be moved.
    let there = pair.expect(&[])?;
    let more = ["--at-once", "--hold", "3s"];
    let output = tools::output(pair.command(load.guest().qemu(), &there, &more)?)?;
    ended(&output, 0, &format!("The VM runs on host '{}'", NAMES[1 - pair.from]))?;
    pair.has_moved(load, there)
}

/// A QEMU whose main thread waits for a disk does not answer its monitor, and nobody takes it for dead.
fn silent_source(pair: &mut Pair<'_>, load: &mut Load<'_>) -> Result<()> {
    let silent = "has not answered";

    // The command is killed meanwhile: its guard waits, and then has the VM go on.
    let there = pair.expect(&[])?;
    let source = load.guest().qemu();
    let process = pair.start_command("killed", source, &there, &HELD)?;
    let mut watch = source.watch()?;
    watch_for_phase(&mut watch, &Phase::PreSwitchover)?;
    source.process().pause()?;
    let log = pair.place.path("killed.log");
    process.kill()?;
    wait_until("the guard", PATIENCE, || {
        Ok(std::fs::read_to_string(&log).is_ok_and(|text| text.contains(silent)))
    })?;
    // Another run of the command does not report that the VM was not moved.
    ended(&tools::output(pair.command(source, &there, &[])?)?, 8, "where the VM is running")?;
    source.process().resume()?;
    wait_for_status(&mut watch, "running", PATIENCE)?;
    wait_until("the end of the guard's work", PATIENCE, || {
        Ok(!watch.has(Capability::PauseBeforeSwitchover)?)
    })?;
    drop(watch);
    load.advance(100)?;
    drop(there);

    // The command gives up (Ctrl-C): its guard does the same.
    let there = pair.expect(&[])?;
    let source = load.guest().qemu();
    let mut process = pair.start_command("silent", source, &there, &["--at-once", "--hold", "15s"])?;
    wait_for_phase(source, &Phase::PreSwitchover)?;
    source.process().pause()?;
    process.wait_for_text(silent)?;
    process.interrupt()?;
    check(process.wait(PATIENCE)?.code() == Some(8), "the end of a move that was given up")?;
    source.process().resume()?;
    wait_until("the guest to run somewhere", PATIENCE, || Ok(is_running(source) || is_running(&there)))?;
    if is_running(&there) {
        pair.has_moved(load, there)?;
        pair.wait_for_dirty_blocks()?;
    } else {
        wait_for_guard(source)?;
        drop(there);
    }

    // The command waits.
    let there = pair.expect(&[])?;
    let source = load.guest().qemu();
    let mut process = pair.start_command("waits", source, &there, &["--at-once", "--hold", "15s"])?;
    wait_for_phase(source, &Phase::PreSwitchover)?;
    source.process().pause()?;
    process.wait_for_text(silent)?;
    source.process().resume()?;
    check(process.wait(PATIENCE)?.code() == Some(0), "the end of a move whose source was silent")?;
    pair.has_moved(load, there)
}

/// A daemon that does not answer does not keep the VM stopped; one that has died does not make a move fail that is
/// done.
fn silent_daemon(pair: &mut Pair<'_>, load: &mut Load<'_>) -> Result<()> {
    // Ctrl-C works while the command waits for the daemon. QEMU needs the daemon to continue.
    let there = pair.expect(&[])?;
    let source = load.guest().qemu();
    let patient = ["--timeout", "1h"];
    let mut process = pair.start_command("interrupted", source, &there, &[&patient[..], &HELD].concat())?;
    let mut watch = source.watch()?;
    watch_for_phase(&mut watch, &Phase::PreSwitchover)?;
    pair.here().process()?.pause()?;
    // Until the daemon is asked again.
    std::thread::sleep(Duration::from_millis(300));
    process.interrupt()?;
    loop {
        let event = watch.next_event(PATIENCE)?;
        let event = event.ok_or_else(|| Error::Check("Ctrl-C is not heard".into()))?;
        if event.name == "MIGRATION" && event.data["status"] == "cancelling" {
            break;
        }
    }
    drop(watch);
    pair.here().process()?.resume()?;
    check(process.wait(PATIENCE)?.code() == Some(5), "the end of a move that was given up")?;
    load.advance(100)?;
    drop(there);

    // The time limit of the stopped VM works as well. The VM moves, but its disks cannot.
    let there = pair.expect(&[])?;
    let source = load.guest().qemu();
    let more = [&patient[..], &["--at-once", "--hold", "15s", "--wait"]].concat();
    let mut process = pair.start_command("held", source, &there, &more)?;
    wait_for_phase(source, &Phase::PreSwitchover)?;
    // The VM is not sent before the daemon has said that the queues have stopped. The command keeps asking.
    wait_until("queues that have stopped", PATIENCE, || {
        Ok(pair.here().json(&["migrate", "status", "vm1"])?["vhost_user_queues"] == 0)
    })?;
    std::thread::sleep(Duration::from_secs(3));
    pair.here().process()?.pause()?;
    process.wait_for_text("time limit reached")?;
    let from = pair.from;
    pair.daemons[from].kill()?;
    check(process.wait(PATIENCE)?.code() == Some(0), "the end of a move after which a daemon was dead")?;
    process.wait_for_text("its disks could not be followed")?;
    pair.daemons[from].start_again()?;
    pair.has_moved(load, there)
}

/// The caches are not sent for ever.
fn left_alone(pair: &mut Pair<'_>, load: &mut Load<'_>) -> Result<()> {
    const KEPT: Duration = Duration::from_secs(60);
    let there = pair.expect(&[])?;
    // The other host asks for the disks because a QEMU there has opened them.
    wait_until("the sending on request", PATIENCE, || {
        Ok(state(pair.here(), "vm1")? == "sending" && state(pair.here(), "vm2")? == "sending")
    })?;
    let process = pair.start_command("left-alone", load.guest().qemu(), &there, &["--fill-within", "1h"])?;
    let mut control = Control::open(&pair.here().socket("control.sock"))?;
    wait_until("the jobs that send the disks", PATIENCE, || {
        let jobs = control.get("/v1/jobs")?;
        let jobs = jobs.as_array().into_iter().flatten();
        Ok(jobs.filter(|job| job["kind"] == "migrate" && job["state"] == "running").count() == 2)
    })?;
    process.kill()?;
    load.advance(100)?;
    check(state(pair.here(), "vm1")? == "sending", "called off although the command may be run again")?;
    wait_until("the end of the sending", KEPT + PATIENCE, || {
        Ok(state(pair.here(), "vm1")? == "here" && state(pair.here(), "vm2")? == "here")
    })?;
    drop(there);
    load.advance(100)
}

/// Where the controller is killed.
#[derive(Clone, Copy, Debug)]
enum Step {
    Filling,
    Memory,
    Held,
    Sent,
}

/// Each step once, in the order that is drawn.
fn killed_controllers(pair: &mut Pair<'_>, load: &mut Load<'_>, random: &mut Random) -> Result<()> {
    let mut steps = vec![Step::Filling, Step::Memory, Step::Held, Step::Sent];
    while !steps.is_empty() {
        let step = steps.swap_remove(random.below(steps.len() as u64) as usize);
        let moment = Duration::from_millis(random.below(30));
        load.advance(100)?;
        pair.wait_for_dirty_blocks()?;
        let there = kill_at(pair, load.guest(), step, moment)?;
        let here = load.guest().qemu();
        wait_until("the guest to run somewhere", PATIENCE, || Ok(is_running(here) || is_running(&there)))?;
        let where_it_runs = if is_running(&there) { "destination" } else { "source" };
        pair.place.say(&format!("killed at {step:?}: the guest runs at the {where_it_runs}"));
        if is_running(&there) {
            pair.has_moved(load, there)?;
        } else {
            load.advance(50)?;
            wait_for_guard(load.guest().qemu())?;
            // A QEMU that has been cancelled ends.
            drop(there);
            let there = pair.expect(&[])?;
            let more = ["--at-once", "--hold", "3s"];
            let output = tools::output(pair.command(load.guest().qemu(), &there, &more)?)?;
            ended(&output, 0, "The VM runs on host")?;
            pair.has_moved(load, there)?;
        }
    }
    Ok(())
}

/// Starts to move the guest, and kills the controller a moment after it has come to a step. Returns the destination.
fn kill_at(pair: &mut Pair<'_>, guest: &Guest, step: Step, moment: Duration) -> Result<Qemu> {
    let there = pair.expect(&[])?;
    let more = match step {
        Step::Filling => &[][..],
        Step::Memory | Step::Held => &HELD,
        Step::Sent => &["--at-once", "--hold", "50ms"],
    };
    let process = pair.start_command(&format!("controller-{step:?}"), guest.qemu(), &there, more)?;
    match step {
        Step::Filling => {
            wait_until("the filling", PATIENCE, || Ok(state(pair.here(), "vm1")? == "sending"))?;
        }
        Step::Memory => {
            let mut watch = guest.qemu().watch()?;
            wait_until("the migration", PATIENCE, || {
                Ok(matches!(watch.migration()?.phase, Phase::Setup | Phase::Active | Phase::PreSwitchover))
            })?;
        }
        Step::Held => wait_for_phase(guest.qemu(), &Phase::PreSwitchover)?,
        Step::Sent => wait_for_status(&mut guest.qemu().watch()?, "postmigrate", PATIENCE)?,
    }
    std::thread::sleep(moment);
    // It may have done its work in this moment.
    let _ = process.kill();
    Ok(there)
}
