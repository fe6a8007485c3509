//! `haversack migrate --qmp`: real guests under verified load, moved between two daemons by one command; and every process
//! of a move killed in its midst.

use std::time::Duration;

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
use haversack_qmp::{Capability, Monitor, Phase};
use serde_json::json;

const NAMES: [&str; 2] = ["alpha", "beta"];
/// So slow that a cache is not sent within a test, in bytes a second.
const SLOW: &str = "rate = \"256KiB\"\n";
/// With that rate, so much cannot be sent before a test has done what it does meanwhile.
const MUCH_BYTES: u64 = 4 * MIB;
/// A hold that ends only by what the test does.
const LONG: &str = "300s";

/// Two hosts with two disks, one over vhost-user and one over NBD.
struct Pair<'a> {
    place: &'a Place,
    daemons: [Haversack<'a>; 2],
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
        let daemons = [
            Haversack::start(&places[0], settings(new, NAMES[0]))?,
            Haversack::start(&places[1], settings(disks(), NAMES[1]))?,
        ];
        Ok(Self { place, daemons, count: 0 })
    }

    /// Calls off what is sent because the disks were attached at the other host, when nothing was cached.
    fn call_off(&self) -> Result<()> {
        for disk in ["vm1", "vm2"] {
            wait_until("the sending", PATIENCE, || Ok(state(&self.daemons[0], disk)? == "sending"))?;
            self.daemons[0].command(&["migrate", "abort", disk])?;
        }
        Ok(())
    }

    /// Waits until much is cached that the other host does not have.
    fn wait_for_dirty_blocks(&self, host: usize) -> Result<()> {
        wait_until("dirty blocks", PATIENCE, || {
            let shown = self.daemons[host].json(&["disk", "show", "vm1"])?;
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

    /// Starts a QEMU on a host that waits for the guest.
    fn expect(&mut self, host: usize, more: &[&str]) -> Result<Qemu> {
        self.count += 1;
        Qemu::expect(self.place, &format!("guest{}", self.count), &self.attachments(host), more)
    }

    /// The command that moves the guest away from a host.
    fn command(&self, from: usize, source: &Qemu, to: &Qemu, more: &[&str]) -> Result<std::process::Command> {
        let mut command =
            self.daemons[from].command_line(&["migrate", "vm1", "vm2", "--to", NAMES[1 - from]])?;
        command.arg("--qmp").arg(source.monitor()).arg("--qmp-destination").arg(to.monitor());
        command.args(more);
        Ok(command)
    }

    /// Waits until nothing of the disks is on the host that they came from.
    fn wait_until_moved(&self, from: usize) -> Result<()> {
        let (here, there) = (&self.daemons[from], &self.daemons[1 - from]);
        ["vm1", "vm2"].into_iter().try_for_each(|disk| wait_until_moved(here, there, disk))
    }
}

fn origins(place: &Place) -> Result<(std::path::PathBuf, [Nbdkit; 2])> {
    let file = image::pattern(place, "vm1.img", "vm1", 64)?;
    let small = image::zeroes(place, "vm2.img", 32)?;
    let origins = [Nbdkit::file(place, "origin1", &file)?, Nbdkit::file(place, "origin2", &small)?];
    Ok((file, origins))
}

/// Fails unless the command ended with this exit code and said this. Returns what it printed.
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
        // One after the other, at once, and a QEMU that is to be told to run its guest.
        for (number, more) in [(0, &[][..]), (1, &["--at-once"])] {
            load.advance(200)?;
            let (from, to) = (number, 1 - number);
            let there = pair.expect(to, if number == 0 { &["-S"] } else { &[] })?;
            let source = load.guest().qemu();
            let output = tools::output(pair.command(from, source, &there, more)?)?;
            place.say(&ended(&output, 0, &format!("The VM runs on host '{}'", NAMES[to]))?);
            check(source.watch()?.run_state()? == "postmigrate", "the source is not stopped")?;
            // A second run finds that all is done.
            let again = tools::output(pair.command(from, source, &there, &[])?)?;
            ended(&again, 0, "The VM runs on host")?;
            load.guest().runs_in(there).kill()?;
            load.advance(200)?;
            pair.wait_until_moved(from)?;
        }
        load.stop()?;
        let digest = scenario::verify(place, &mut guest, "vda")?;
        guest.off()?;
        pair.daemons[0].command(&["disk", "flush", "vm1"])?;
        scenario::same_digest(&file, &digest)
    });
}

/// While the switchover is held, and with what cannot be moved.
#[test]
fn a_move_that_cannot_end_leaves_the_vm_where_it_is() {
    test("moves that fail", |place| {
        let (_file, origins) = origins(place)?;
        let places = [place.host("a")?, place.host("b")?];
        let mut pair = Pair::start(place, &places, &origins, SLOW)?;
        pair.call_off()?;
        let mut guest = pair.boot()?;
        let mut load = Load::start(place, &mut guest, &["vda", "vdb"], 1)?;
        load.advance(200)?;
        pair.wait_for_dirty_blocks(0)?;
        let held = ["--at-once", "--hold", LONG];

        // The destination dies while the source waits for its cache: it gives no event at the source.
        let there = pair.expect(1, &[])?;
        let command = pair.command(0, load.guest().qemu(), &there, &held)?;
        let mut process = Process::start(place, "destination-dies", &command)?;
        wait_for_phase(load.guest().qemu(), &Phase::PreSwitchover)?;
        wait_until("a measured rate", PATIENCE, || {
            let status = pair.daemons[0].json(&["migrate", "status", "vm1"])?;
            let is_positive = |key: &str| status[key].as_f64().is_some_and(|value| value > 0.0);
            Ok(["sent_bytes_per_s", "eta_s", "expected_stall_s"].into_iter().all(is_positive))
        })?;
        place.say(&pair.daemons[0].command(&["migrate", "status"])?);
        there.kill()?;
        check(process.wait(PATIENCE)?.code() == Some(1), "the end of a move whose destination died")?;
        load.advance(100)?;
        place.say("the destination was killed, and the guest goes on");

        // The user gives up; then the time does.
        let there = pair.expect(1, &[])?;
        let command = pair.command(0, load.guest().qemu(), &there, &held)?;
        let mut process = Process::start(place, "given-up", &command)?;
        wait_for_phase(load.guest().qemu(), &Phase::PreSwitchover)?;
        process.interrupt()?;
        check(process.wait(PATIENCE)?.code() == Some(5), "the end of a move that was given up")?;
        load.advance(100)?;
        for limit in [&["--fill-within", "100ms"][..], &["--at-once", "--hold", "100ms"]] {
            let there = pair.expect(1, &[])?;
            let more = [limit, &["--on-timeout", "cancel"]].concat();
            let output = tools::output(pair.command(0, load.guest().qemu(), &there, &more)?)?;
            ended(&output, 5, "time is over")?;
            load.advance(100)?;
        }
        check(state(&pair.daemons[0], "vm1")? == "here", "the disk is still being sent")?;
        place.say("given up, and the guest goes on");

        // What somebody else has begun is taken up, and can be given up as well.
        let there = pair.expect(1, &[])?;
        let uri = json!({ "uri": format!("unix:{}", place.path("memory.sock").display()) });
        there.watch()?.execute("migrate-incoming", &uri)?;
        let source = load.guest().qemu();
        source.watch()?.set(Capability::PauseBeforeSwitchover, true)?;
        source.watch()?.execute("migrate", &uri)?;
        let mut process = Process::start(place, "taken-up", &pair.command(0, source, &there, &held)?)?;
        process.wait_for_text("taking it up")?;
        wait_until("the sending", PATIENCE, || Ok(state(&pair.daemons[0], "vm1")? == "sending"))?;
        process.interrupt()?;
        check(process.wait(PATIENCE)?.code() == Some(5), "the end of a move that was taken up")?;
        check(state(&pair.daemons[0], "vm1")? == "here", "the disk is still being sent")?;
        load.advance(100)?;
        drop(there);

        // What is refused is refused before anything is done.
        let there = pair.expect(1, &[])?;
        let source = load.guest().qemu();
        let exchanged = pair.command(0, &there, source, &[])?;
        ended(&tools::output(exchanged)?, 2, "exchanged")?;
        source.watch()?.set(Capability::PostCopy, true)?;
        ended(&tools::output(pair.command(0, source, &there, &[])?)?, 2, "post-copy is on")?;
        source.watch()?.set(Capability::PostCopy, false)?;
        let nowhere = ["--at-once", "--uri", "unix:/nowhere/vm1.sock"];
        let refused = tools::output(pair.command(0, source, &there, &nowhere)?)?;
        ended(&refused, 1, "QEMU refuses migrate-incoming")?;
        check(state(&pair.daemons[0], "vm1")? == "here", "the disk of a refused move is still being sent")?;
        drop(there);

        // And it can still be moved.
        let there = pair.expect(1, &[])?;
        let output = tools::output(pair.command(
            0,
            load.guest().qemu(),
            &there,
            &["--at-once", "--hold", "100ms"],
        )?)?;
        ended(&output, 0, "The VM runs on host 'beta'")?;
        load.guest().runs_in(there).kill()?;
        load.advance(200)?;
        load.stop()?;
        guest.off()
    });
}

/// A QEMU whose main thread waits for a disk does not answer its monitor, and nobody takes it for dead.
#[test]
fn a_source_that_does_not_answer_is_waited_for() {
    test("a silent source", |place| {
        let (_file, origins) = origins(place)?;
        let places = [place.host("a")?, place.host("b")?];
        let mut pair = Pair::start(place, &places, &origins, SLOW)?;
        pair.call_off()?;
        let mut guest = pair.boot()?;
        let mut load = Load::start(place, &mut guest, &["vda", "vdb"], 1)?;
        load.advance(200)?;
        pair.wait_for_dirty_blocks(0)?;
        let silent = "has not answered";

        // The command is killed meanwhile: its guard waits, and then has the VM go on.
        let there = pair.expect(1, &[])?;
        let source = load.guest().qemu();
        let command = pair.command(0, source, &there, &["--at-once", "--hold", LONG])?;
        let process = Process::start(place, "killed", &command)?;
        let mut watch = source.watch()?;
        watch_for_phase(&mut watch, &Phase::PreSwitchover)?;
        source.process().pause()?;
        process.kill()?;
        let log = place.path("killed.log");
        wait_until("the guard", PATIENCE, || {
            Ok(std::fs::read_to_string(&log).is_ok_and(|text| text.contains(silent)))
        })?;
        source.process().resume()?;
        wait_for_status(&mut watch, "running", PATIENCE)?;
        wait_until("the end of the guard's work", PATIENCE, || {
            Ok(!watch.has(Capability::PauseBeforeSwitchover)?)
        })?;
        drop(watch);
        load.advance(100)?;
        drop(there);

        // The command gives up: so it does then.
        let there = pair.expect(1, &[])?;
        let source = load.guest().qemu();
        let command = pair.command(0, source, &there, &["--at-once", "--hold", "2s"])?;
        let mut process = Process::start(place, "given-up", &command)?;
        wait_for_phase(source, &Phase::PreSwitchover)?;
        source.process().pause()?;
        process.wait_for_text(silent)?;
        process.interrupt()?;
        check(process.wait(PATIENCE)?.code() == Some(8), "the end of a move that was given up")?;
        source.process().resume()?;
        wait_until("the guest's running somewhere", PATIENCE, || {
            Ok(is_running(source) || is_running(&there))
        })?;
        let mut from = 0;
        if is_running(&there) {
            drop(load.guest().runs_in(there));
            load.advance(100)?;
            pair.wait_until_moved(0)?;
            from = 1;
        }

        // The command waits.
        let there = pair.expect(1 - from, &[])?;
        let source = load.guest().qemu();
        let command = pair.command(from, source, &there, &["--at-once", "--hold", "2s"])?;
        let mut process = Process::start(place, "waits", &command)?;
        wait_for_phase(source, &Phase::PreSwitchover)?;
        source.process().pause()?;
        process.wait_for_text(silent)?;
        source.process().resume()?;
        check(process.wait(PATIENCE)?.code() == Some(0), "the end of a move whose source was silent")?;
        drop(load.guest().runs_in(there));
        load.advance(100)?;
        load.stop()?;
        guest.off()
    });
}

/// A daemon that does not answer does not keep the VM stopped; one that has died does not make a move fail that is done.
#[test]
fn a_daemon_that_is_away_keeps_no_vm_from_moving() {
    test("a silent daemon", |place| {
        let (_file, origins) = origins(place)?;
        let places = [place.host("a")?, place.host("b")?];
        let mut pair = Pair::start(place, &places, &origins, SLOW)?;
        pair.call_off()?;
        let mut guest = pair.boot()?;
        let mut load = Load::start(place, &mut guest, &["vda", "vdb"], 1)?;
        load.advance(200)?;
        pair.wait_for_dirty_blocks(0)?;

        // Ctrl-C is heard while the daemon is asked. QEMU needs the daemon to go on.
        let there = pair.expect(1, &[])?;
        let patient = ["--timeout", "1h", "--at-once", "--hold"];
        let command = pair.command(0, load.guest().qemu(), &there, &[&patient[..], &[LONG]].concat())?;
        let mut process = Process::start(place, "interrupted", &command)?;
        let mut watch = load.guest().qemu().watch()?;
        watch_for_phase(&mut watch, &Phase::PreSwitchover)?;
        pair.daemons[0].process()?.pause()?;
        process.interrupt()?;
        loop {
            let event = watch.next_event(PATIENCE)?;
            let event = event.ok_or_else(|| Error::Check("Ctrl-C is not heard".into()))?;
            if event.name == "MIGRATION" && event.data["status"] == "cancelling" {
                break;
            }
        }
        drop(watch);
        pair.daemons[0].process()?.resume()?;
        check(process.wait(PATIENCE)?.code() == Some(5), "the end of a move that was given up")?;
        load.advance(100)?;
        drop(there);

        // So is the end of the time that the VM may wait. The VM moves, and its disks cannot.
        let there = pair.expect(1, &[])?;
        let more = [&patient[..], &["2s", "--wait"]].concat();
        let command = pair.command(0, load.guest().qemu(), &there, &more)?;
        let mut process = Process::start(place, "held", &command)?;
        wait_for_phase(load.guest().qemu(), &Phase::PreSwitchover)?;
        pair.daemons[0].process()?.pause()?;
        process.wait_for_text("time is over")?;
        pair.daemons[0].kill()?;
        check(process.wait(PATIENCE)?.code() == Some(0), "the end of a move after which a daemon was dead")?;
        process.wait_for_text("its disks could not be followed")?;
        pair.daemons[0].start_again()?;
        drop(load.guest().runs_in(there));
        load.advance(100)?;
        pair.wait_until_moved(0)?;
        load.stop()?;
        guest.off()
    });
}

/// Where the controller is killed.
#[derive(Clone, Copy, Debug)]
enum Step {
    Filling,
    Memory,
    Held,
    Sent,
}

/// The VM never stays stopped, and a second run of the command moves it.
#[test]
fn a_controller_may_be_killed_at_any_step() {
    test("killed controllers", |place| {
        let seed = number_from("HAVERSACK_SEED", 1)?;
        place.say(&format!("HAVERSACK_SEED={seed}"));
        let mut random = Random::new(seed);
        let (file, origins) = origins(place)?;
        let places = [place.host("a")?, place.host("b")?];
        let mut pair = Pair::start(place, &places, &origins, SLOW)?;
        pair.call_off()?;
        let mut guest = pair.boot()?;
        let mut load = Load::start(place, &mut guest, &["vda", "vdb"], seed)?;
        let mut steps = vec![Step::Filling, Step::Memory, Step::Held, Step::Sent];
        let mut from = 0;
        while !steps.is_empty() {
            let step = steps.swap_remove(random.below(steps.len() as u64) as usize);
            let moment = Duration::from_millis(random.below(30));
            load.advance(100)?;
            pair.wait_for_dirty_blocks(from)?;
            let there = kill_at(&mut pair, load.guest(), from, step, moment)?;
            let here = load.guest().qemu();
            wait_until("the guest's running somewhere", PATIENCE, || {
                Ok(is_running(here) || is_running(&there))
            })?;
            if is_running(&there) {
                place.say(&format!("killed at {step:?}: the guest runs at the destination"));
                drop(load.guest().runs_in(there));
            } else {
                place.say(&format!("killed at {step:?}: the guest runs at the source"));
                load.advance(50)?;
                // A QEMU that has been cancelled ends.
                drop(there);
                let there = pair.expect(1 - from, &[])?;
                let more = ["--at-once", "--hold", "100ms"];
                let output = tools::output(pair.command(from, load.guest().qemu(), &there, &more)?)?;
                ended(&output, 0, "The VM runs on host")?;
                drop(load.guest().runs_in(there));
            }
            load.advance(100)?;
            pair.wait_until_moved(from)?;
            from = 1 - from;
        }
        load.stop()?;
        let digest = scenario::verify(place, &mut guest, "vda")?;
        guest.off()?;
        pair.daemons[from].command(&["disk", "flush", "vm1"])?;
        scenario::same_digest(&file, &digest)
    });
}

/// Starts to move the guest, and kills the controller a moment after it has come to a step. Returns the destination.
fn kill_at(pair: &mut Pair<'_>, guest: &Guest, from: usize, step: Step, moment: Duration) -> Result<Qemu> {
    let there = pair.expect(1 - from, &[])?;
    let more = match step {
        Step::Filling => &[][..],
        Step::Memory | Step::Held => &["--at-once", "--hold", LONG],
        Step::Sent => &["--at-once", "--hold", "50ms"],
    };
    let command = pair.command(from, guest.qemu(), &there, more)?;
    let process = Process::start(pair.place, &format!("controller-{step:?}"), &command)?;
    match step {
        Step::Filling => {
            wait_until("the filling", PATIENCE, || Ok(state(&pair.daemons[from], "vm1")? == "sending"))?;
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
