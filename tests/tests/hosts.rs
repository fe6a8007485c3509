//! Guests move between hosts with their caches: two daemons, one origin, real guests that check every byte.

use std::time::{Duration, Instant};

use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::hosts::{Hosts, state, wait_until_moved};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::process::Process;
use haversack_e2e::scenario::{self, Load};
use haversack_e2e::tools::{self, PATIENCE, wait_until};
use haversack_e2e::{Guest, Place, Result, image, test};

/// How often the guest moves, each time to the other host. A daemon is killed at most of the moves.
const MOVES: usize = 6;
/// A query about a disk contains the disk's settings, and is longer than this. All other messages that hosts exchange
/// within seconds are shorter, if no disk moves.
const QUESTION_BYTES: u64 = 300;

#[test]
fn a_guest_moves_between_hosts_with_its_cache() {
    test("moves between hosts", |place| {
        let file = image::pattern(place, "vm1.img", "vm1", 64)?;
        let small = image::zeroes(place, "vm2.img", 32)?;
        let origins = [Nbdkit::file(place, "origin1", &file)?, Nbdkit::file(place, "origin2", &small)?];
        let disks = || vec![Disk::new("vm1", origins[0].uri()), Disk::new("vm2", origins[1].uri())];
        let hosts = Hosts::new(place, &["alpha", "beta"])?;
        let places = [place.host("a")?, place.host("b")?];
        let new = disks().into_iter().map(|disk| disk.with("from = \"none\"")).collect();
        let settings = |disks, me| Settings { more: hosts.tables(me), ..Settings::new(256, disks) };
        let mut daemons =
            Haversack::start_both(&places, [settings(new, "alpha"), settings(disks(), "beta")])?;
        check(state(&daemons[1], "vm1")? == "waiting", "the disk is at the other host")?;
        let attachments = |host: &Haversack<'_>| [host.vhost_user("vm1"), host.nbd("vm2")];
        let mut guest = Guest::boot(place, "guest0", &attachments(&daemons[0]))?;
        guest.ask("open vda vm1 pattern")?;
        guest.ask("open vdb vm2 zeroes")?;
        let mut load = Load::start(place, &mut guest, &["vda", "vdb"], 1)?;
        for number in 1..=MOVES {
            let (from, to) = ((number - 1) % 2, number % 2);
            load.advance(200)?;
            let name = ["alpha", "beta"][to];
            daemons[from].command(&["migrate", "vm1", "vm2", "--to", name])?;
            let moment = Duration::from_millis(100);
            // Before the guest moves: what was sent ahead is gone.
            match number {
                4 => daemons[from].kill_and_restart(moment)?,
                5 => daemons[to].kill_and_restart(moment)?,
                _ => {}
            }
            load.guest().migrate(place, &format!("guest{number}"), &attachments(&daemons[to]))?;
            // While blocks are still at the host that the guest has left.
            match number {
                2 => daemons[to].kill_and_restart(moment)?,
                3 => daemons[from].kill_and_restart(moment)?,
                6 => {
                    daemons[from].kill()?;
                    daemons[to].kill_and_restart(moment)?;
                    daemons[from].start_again()?;
                }
                _ => {}
            }
            load.advance(100)?;
            if number == 1 {
                daemons[to].wait_for_log(&[
                    "the saved state of admission was read",
                    "alpha",
                    "resumed=true",
                ])?;
            }
            for disk in ["vm1", "vm2"] {
                wait_until_moved(&daemons[from], &daemons[to], disk)?;
            }
        }
        load.stop()?;
        let digest = scenario::verify(place, &mut guest, "vda")?;
        guest.off()?;
        daemons[MOVES % 2].command(&["disk", "flush", "vm1"])?;
        scenario::same_digest(&file, &digest)
    });
}

/// Starts a host that has a disk, and a second one that has attached it as well. This makes the first one send the
/// disk, which is cancelled.
fn start_apart<'a>(
    place: &Place,
    places: &'a [Place; 2],
    origin: &Nbdkit,
    cache_mib: u64,
) -> Result<[Haversack<'a>; 2]> {
    let hosts = Hosts::new(place, &["alpha", "beta"])?;
    let settings = |disk, me| Settings { more: hosts.tables(me), ..Settings::new(cache_mib, vec![disk]) };
    let new = Disk::new("vm1", origin.uri()).with("from = \"none\"");
    let old = Disk::new("vm1", origin.uri());
    let [alpha, beta] = Haversack::start_both(places, [settings(new, "alpha"), settings(old, "beta")])?;
    wait_until("the beginning", PATIENCE, || Ok(state(&alpha, "vm1")? == "sending"))?;
    alpha.command(&["migrate", "abort", "vm1"])?;
    Ok([alpha, beta])
}

/// No program announces the migration to the daemons. It is sufficient that the destination's hypervisor opens the
/// disk.
#[test]
fn a_guest_moves_between_hosts_although_nobody_has_told_us() {
    test("moves between hosts by itself", |place| {
        let file = image::pattern(place, "vm1.img", "vm1", 64)?;
        let origin = Nbdkit::file(place, "origin1", &file)?;
        let places = [place.host("a")?, place.host("b")?];
        let [alpha, beta] = start_apart(place, &places, &origin, 256)?;
        let mut guest = Guest::boot(place, "guest0", &[alpha.vhost_user("vm1")])?;
        guest.ask("open vda vm1 pattern")?;
        let mut load = Load::start(place, &mut guest, &["vda"], 1)?;
        load.advance(200)?;
        load.guest().migrate(place, "guest1", &[beta.vhost_user("vm1")])?;
        load.advance(200)?;
        wait_until_moved(&alpha, &beta, "vm1")?;
        // And back.
        load.guest().migrate(place, "guest2", &[alpha.vhost_user("vm1")])?;
        load.advance(200)?;
        wait_until_moved(&beta, &alpha, "vm1")?;
        load.stop()?;
        let events = alpha.command(&["events", "vm1", "--last", "100"])?;
        check(events.contains("which asked"), format!("alpha was not asked to send the disk: {events}"))?;
        let digest = scenario::verify(place, &mut guest, "vda")?;
        guest.off()?;
        alpha.command(&["disk", "flush", "vm1"])?;
        scenario::same_digest(&file, &digest)
    });
}

/// A destination that is restarted before it has answered is asked again.
#[test]
fn a_destination_that_was_killed_is_told_again() {
    test("told again", |place| {
        let origin = Nbdkit::file(place, "origin1", &image::zeroes(place, "vm1.img", 32)?)?;
        let places = [place.host("a")?, place.host("b")?];
        let [alpha, mut beta] = start_apart(place, &places, &origin, 64)?;
        let sent =
            || -> Result<u64> { Ok(alpha.json(&["host", "list"])?[0]["sent_bytes"].as_u64().unwrap_or(0)) };
        let migrate = alpha.command_line(&["migrate", "vm1", "--to", "beta"])?;
        let before = sent()?;
        // After five seconds without a word, alpha takes beta for dead, and asks nothing.
        beta.process()?.pause()?;
        let mut migrate = Process::start(place, "migrate", &migrate)?;
        // It asks the destination, which does not answer.
        wait_until("the question", PATIENCE, || Ok(sent()? > before + QUESTION_BYTES))?;
        beta.kill_and_restart(Duration::from_millis(100))?;
        let status = migrate.wait(PATIENCE)?;
        check(status.success(), "the destination was not told again")
    });
}

/// The program that drives a migration with a `keep` time is gone: the migration is cancelled, and the disk stays where
/// it is.
#[test]
fn a_migration_that_nobody_keeps_is_called_off() {
    test("a migration that nobody keeps", |place| {
        const KEEP: Duration = Duration::from_secs(10);
        let origin = Nbdkit::file(place, "origin1", &image::zeroes(place, "vm1.img", 32)?)?;
        let places = [place.host("a")?, place.host("b")?];
        let [alpha, _beta] = start_apart(place, &places, &origin, 64)?;
        let send = |method: &str, body: String| -> Result<String> {
            let mut curl = tools::tool("curl")?;
            curl.args(["--silent", "--show-error", "--fail-with-body", "--request", method, "--data", &body]);
            curl.args(["--header", "content-type: application/json", "--unix-socket"]);
            curl.arg(alpha.socket("control.sock")).arg("http://daemon/v1/disks/vm1/migration");
            tools::run(curl)
        };
        let keep = format!("\"keep\": \"{}s\"", KEEP.as_secs());
        send("POST", format!("{{\"to\": \"beta\", {keep}}}"))?;
        wait_until("the sending", PATIENCE, || Ok(state(&alpha, "vm1")? == "sending"))?;
        let mut kept = Instant::now();
        for _ in 0..15 {
            std::thread::sleep(KEEP / 10);
            // The daemon counts from the moment at which it gets the request, which is before curl ends.
            kept = Instant::now();
            send("PUT", format!("{{{keep}}}"))?;
        }
        check(state(&alpha, "vm1")? == "sending", "called off although it is kept")?;
        wait_until("the end", PATIENCE, || Ok(state(&alpha, "vm1")? == "here"))?;
        check(kept.elapsed() >= KEEP - Duration::from_millis(500), "called off too early")?;
        let events = alpha.command(&["events", "vm1", "--last", "100"])?;
        check(events.contains("has not been heard of"), format!("alpha does not say why: {events}"))?;

        // Without a limit it goes on, also one that had a limit.
        send("POST", format!("{{\"to\": \"beta\", {keep}}}"))?;
        send("PUT", "{}".into())?;
        std::thread::sleep(KEEP * 3 / 2);
        check(state(&alpha, "vm1")? == "sending", "called off without a limit")?;
        alpha.command(&["migrate", "abort", "vm1"])?;
        check(state(&alpha, "vm1")? == "here", "not called off")
    });
}

/// The guest's acknowledged writes survive whichever host dies, and a disk that another host has is not attached as a
/// new one.
#[test]
fn a_disk_has_one_owner() {
    test("one owner", |place| {
        let file = image::zeroes(place, "vm1.img", 32)?;
        let origin = Nbdkit::file(place, "origin1", &file)?;
        let hosts = Hosts::new(place, &["alpha", "beta"])?;
        let places = [place.host("a")?, place.host("b")?];
        let settings = |disk, me| Settings { more: hosts.tables(me), ..Settings::new(256, vec![disk]) };
        let disk = || Disk::new("vm1", origin.uri());
        // Without the other host nobody knows whether the disk is new.
        let mut alpha = Haversack::start(&places[0], settings(disk().unattachable(), "alpha"))?;
        let shown = alpha.json(&["disk", "show", "vm1"])?;
        let error = shown["error"].as_str().unwrap_or_default();
        check(
            error.contains("host 'beta' does not answer"),
            format!("a new disk is attached alone: {shown}"),
        )?;
        let beta = Haversack::start(&places[1], settings(disk(), "beta"))?;
        wait_until("the disk at both hosts", PATIENCE, || {
            let states = [state(&alpha, "vm1"), state(&beta, "vm1")].map(Result::unwrap_or_default);
            Ok(states.iter().filter(|state| *state == "waiting").count() == 1
                && states.iter().all(|state| !state.is_empty()))
        })?;
        let owner_is_beta = state(&alpha, "vm1")? == "waiting";
        let refused = alpha
            .command(&["migrate", "vm1", "--to", "gamma"])
            .map_or_else(|e| e.to_string(), |_| String::new());
        check(refused.contains("no host 'gamma'"), format!("a host that is not configured: {refused}"))?;
        // A record from a time when the disk did not move does not override the record of the host that has it.
        let (owner, other) = if owner_is_beta { (&beta, &alpha) } else { (&alpha, &beta) };
        let attach = |host: &Haversack<'_>, more: &[&str]| {
            let (pool, uri) = (host.pool(), origin.uri());
            host.command(&[&["disk", "attach", "vm1", &uri, "--pool", &pool], more].concat())
        };
        other.detach("vm1")?;
        attach(other, &["--read-only"])?;
        other.detach("vm1")?;
        let refused = attach(other, &[]).map_or_else(|error| error.to_string(), |_| String::new());
        check(refused.contains("did not move"), format!("attached beside its owner: {refused}"))?;
        check(state(owner, "vm1")? != "waiting", "the owner has it")?;
        other.command(&["disk", "forget", "vm1"])?;
        attach(other, &[])?;
        check(state(other, "vm1")? == "waiting", "it waits for the disk again")?;
        alpha.kill_and_restart(Duration::from_millis(10))?;
        wait_until("the disk after the restart", PATIENCE, || {
            let expected = if owner_is_beta { "waiting" } else { "here" };
            Ok(matches!(state(&alpha, "vm1"), Ok(state) if state == expected || state == "sending"))
        })
    });
}
