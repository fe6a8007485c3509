//! Disks on RBD images that move between hosts: daemons over TLS, one cluster.

use std::ops::Range;
use std::time::Duration;

use haversack_e2e::ceph::Ceph;
use haversack_e2e::connection::Connection;
use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::hosts::{Hosts, state, wait_until_moved};
use haversack_e2e::process::Process;
use haversack_e2e::storage_daemon::StorageDaemon;
use haversack_e2e::tools::{self, PATIENCE, wait_until};
use haversack_e2e::{Error, Place, Result, image, test_alone};

const MIB: u64 = 16;
const BLOCK: u64 = 4096;
const BLOCKS: u64 = 256;
const MOMENT: Duration = Duration::from_millis(10);

/// What is written stays dirty until it is flushed.
const DIRTY: &str = "cleaner = { age = \"10000h\", idle = \"10000h\" }";

fn client(host: &Haversack<'_>) -> Result<Connection> {
    Connection::open(&host.socket("nbd.sock"), "vm1")
}

/// Checks blocks of the image itself.
fn check_image(place: &Place, ceph: &Ceph, blocks: Range<u64>, value: u8) -> Result<()> {
    let copy = place.path("copy.img");
    let _ = std::fs::remove_file(&copy);
    ceph.export("vm1", &copy)?;
    for block in blocks {
        let data = image::take(&copy, block * BLOCK, BLOCK as usize)?;
        let first = data[0];
        let is_filled = data.iter().all(|byte| *byte == value);
        check(is_filled, format!("block {block} of the image: {first}, not {value}"))?;
    }
    Ok(())
}

/// The hosts that have an image locked, in order.
fn lockers(ceph: &Ceph) -> Result<Vec<String>> {
    let host = |[_, description]: [String; 2]| {
        description.rsplit_once(' ').map_or(description.clone(), |(_, host)| host.to_owned())
    };
    let mut hosts: Vec<String> = ceph.lockers("vm1")?.into_iter().map(host).collect();
    hosts.sort_unstable();
    Ok(hosts)
}

fn fence_rbd() -> std::path::PathBuf {
    tools::workspace().join("packaging/fence/fence-rbd")
}

/// Fences a host by hand. Returns whether that was done, and what the program printed.
fn fence(place: &Place, origin: &str, host: &str, by: &str) -> Result<(bool, String)> {
    let input = place.path("input.json");
    std::fs::write(&input, format!("{{\"by\":\"{by}\"}}\n")).map_err(Error::io("input"))?;
    let input = std::fs::File::open(&input).map_err(Error::io("input"))?;
    let mut program = std::process::Command::new(fence_rbd());
    program.args([host, "10.0.0.1:1", "id", origin]);
    let output = tools::output_from(program, input)?;
    Ok((output.status.success(), output.stdout + &output.stderr))
}

fn settings(hosts: &Hosts, me: &str, disks: Vec<Disk>, more: &str) -> Settings {
    let more = hosts.tables(me).replace("[migration]\n", &format!("[migration]\n{more}\n"));
    Settings { more, ..Settings::new(64, disks) }
}

/// Two daemons with the disk, which is alpha's.
fn start<'a>(origin: &str, hosts: &Hosts, places: &'a [Place; 2], more: &str) -> Result<[Haversack<'a>; 2]> {
    let old = Disk::new("vm1", origin).with(DIRTY);
    let new = old.clone().with("from = \"none\"");
    let both = [settings(hosts, "alpha", vec![new], more), settings(hosts, "beta", vec![old], more)];
    let [alpha, beta] = Haversack::start_both(places, both)?;
    wait_until("the disk at both hosts", PATIENCE, || {
        Ok(state(&beta, "vm1").is_ok_and(|state| state == "waiting"))
    })?;
    Ok([alpha, beta])
}

#[test]
fn a_disk_on_an_rbd_image_moves_there_and_back() {
    test_alone("an RBD image of two hosts", |place| {
        let ceph = Ceph::start(place)?;
        let origin = ceph.image("vm1", MIB)?;
        let hosts = Hosts::new(place, &["alpha", "beta"])?;
        let places = [place.host("a")?, place.host("b")?];
        let [mut alpha, mut beta] = start(&origin, &hosts, &places, "")?;
        check(lockers(&ceph)? == ["alpha", "beta"], format!("locked by {:?}", ceph.lockers("vm1")?))?;
        check(ceph.registered("vm1")?.len() == 2, "their clients are not in the register")?;

        place.say("both hosts have it");
        let stranger_place = place.host("c")?;
        let stranger = Haversack::start(&stranger_place, Settings::new(32, vec![]))?;
        wait_until("the stranger", PATIENCE, || Ok(stranger.command(&["disk", "list"]).is_ok()))?;
        let pool = stranger.pool();
        let attach = ["disk", "attach", "vm1", &origin, "--pool", &pool];
        let error = stranger.refused(&attach)?;
        let told = ["between which its disk moves", "on host alpha", "on host beta"];
        check(told.iter().all(|words| error.contains(words)), format!("a stranger is told: {error}"))?;

        place.say("a stranger is refused");
        let mut guest = client(&alpha)?;
        guest.fill_durably(0..BLOCKS, 1)?;
        alpha.command(&["migrate", "vm1", "--to", "beta"])?;
        drop(guest);
        let mut guest = client(&beta)?;
        guest.fill_durably(0..BLOCKS / 2, 2)?;
        place.say("moved");
        // Each daemon is killed, and has its image again when it is restarted.
        alpha.kill_and_restart(MOMENT)?;
        guest.check_filled(BLOCKS / 2..BLOCKS, 1)?;
        wait_until_moved(&alpha, &beta, "vm1")?;
        place.say("nothing is left at alpha, which was killed");
        beta.command(&["disk", "flush", "vm1"])?;
        place.say("flushed");
        check_image(place, &ceph, 0..BLOCKS / 2, 2)?;
        check_image(place, &ceph, BLOCKS / 2..BLOCKS, 1)?;
        drop(guest);
        beta.kill_and_restart(MOMENT)?;
        let mut guest = client(&alpha)?;
        guest.fill_durably(0..8, 3)?;
        guest.check_filled(0..8, 3)?;
        guest.check_filled(8..BLOCKS / 2, 2)?;
        guest.check_filled(BLOCKS / 2..BLOCKS, 1)?;
        wait_until_moved(&beta, &alpha, "vm1")?;
        place.say("moved back, with beta killed");
        check(lockers(&ceph)? == ["alpha", "beta"], format!("locked by {:?}", ceph.lockers("vm1")?))?;
        drop(guest);
        alpha.detach("vm1")?;
        check_image(place, &ceph, 0..8, 3)?;
        check(lockers(&ceph)? == ["beta"], format!("alpha has detached it: {:?}", ceph.lockers("vm1")?))?;
        beta.command(&["disk", "detach", "vm1"])?;
        check(lockers(&ceph)?.is_empty(), "locked by nobody's host")?;
        check(ceph.registered("vm1")?.is_empty(), "a client of nobody is in the register")?;
        stranger.command(&attach).map(drop)
    });
}

/// A daemon that is restarted with other hosts in its configuration, or without them, changes the kind of its lock.
#[test]
fn the_lock_of_an_rbd_image_is_of_the_kind_that_is_configured() {
    test_alone("two kinds of lock", |place| {
        let ceph = Ceph::start(place)?;
        let disk = Disk::new("vm1", ceph.image("vm1", MIB)?).with(DIRTY);
        let hosts = Hosts::new(place, &["alpha"])?;
        let alone = Settings::new(32, vec![disk.clone()]);
        let own = place.host("a")?;
        let mut daemon = Haversack::start(&own, alone.clone())?;
        client(&daemon)?.fill_durably(0..8, 1)?;
        check(!ceph.is_shared("vm1")?, "the lock of one host is shared")?;
        daemon.stop()?;
        *daemon.settings() = Settings { more: hosts.tables("alpha"), ..alone.clone() };
        daemon.start_again()?;
        check(ceph.is_shared("vm1")? && lockers(&ceph)? == ["alpha"], "the lock of a host is not shared")?;
        client(&daemon)?.check_filled(0..8, 1)?;
        daemon.kill()?;
        // A host whose lock was taken away must assume that it was fenced.
        ceph.lock_with_others("vm1", "other", "beta")?;
        *daemon.settings() = Settings { disks: vec![disk.clone().unattachable()], ..alone.clone() };
        daemon.start_again()?;
        let why = |daemon: &Haversack<'_>| {
            let shown = daemon.json(&["disk", "show", "vm1"])?;
            Ok::<_, Error>(shown["error"].as_str().unwrap_or_default().to_owned())
        };
        wait_until("the refusal", PATIENCE, || Ok(why(&daemon)?.contains("on host beta")))?;
        daemon.stop()?;
        ceph.break_lock_of("vm1", " on host alpha")?;
        *daemon.settings() =
            Settings { disks: vec![disk.unattachable()], more: hosts.tables("alpha"), ..alone };
        daemon.start_again()?;
        wait_until("the other refusal", PATIENCE, || Ok(why(&daemon)?.contains("was taken away")))?;
        check(lockers(&ceph)? == ["beta"], "a lock that was taken away is taken again")?;
        daemon.command(&["disk", "detach", "vm1", "--force"])?;
        for _ in 0..2 {
            let error = daemon.attach("vm1").expect_err("beta may have taken it over").to_string();
            check(error.contains("host 'beta' is not connected"), format!("told: {error}"))?;
            check(lockers(&ceph)? == ["beta"], "a lock that was taken away is taken again")?;
        }
        ceph.break_lock("vm1")?;
        daemon.attach("vm1")?;
        check(lockers(&ceph)? == ["alpha"], "the operator has attached it")?;
        client(&daemon)?.check_filled(0..8, 1)
    });
}

fn error_of(daemon: &Haversack<'_>) -> Result<String> {
    let shown = daemon.json(&["disk", "show", "vm1"])?;
    Ok(shown["error"].as_str().unwrap_or_default().to_owned())
}

/// The image's store answers every request with the error that it is shutting down, and the helper keeps running. The
/// lock shows that this host still has the disk: an operator has blocklisted the wrong client.
#[test]
fn a_helper_whose_client_was_blocklisted_is_replaced_while_its_pool_has_the_lock() {
    test_alone("a blocklisted client", |place| {
        let ceph = Ceph::start(place)?;
        let disk = Disk::new("vm1", ceph.image("vm1", MIB)?).with(DIRTY);
        let hosts = Hosts::new(place, &["alpha"])?;
        let alone = Settings::new(32, vec![disk]);
        let own = place.host("a")?;
        let mut daemon = Haversack::start(&own, alone.clone())?;
        for (value, more) in [(1, ""), (2, &hosts.tables("alpha"))] {
            *daemon.settings() = Settings { more: more.to_owned(), ..alone.clone() };
            daemon.stop()?;
            daemon.start_again()?;
            let mut guest = client(&daemon)?;
            guest.fill_durably(0..BLOCKS, value)?;
            ceph.block_clients("vm1")?;
            daemon.command(&["disk", "flush", "vm1"])?;
            check_image(place, &ceph, 0..BLOCKS, value)?;
            check(error_of(&daemon)?.is_empty(), error_of(&daemon)?)?;
            place.say("its successor has written");
        }
        Ok(())
    });
}

/// An operator keeps the helper out to use the image with a program of this host. The host's lock does not show this.
#[test]
fn a_helper_whose_client_was_blocklisted_is_not_replaced_while_a_program_has_the_image_open() {
    test_alone("a blocklisted client and a program", |place| {
        let ceph = Ceph::start(place)?;
        let disk = Disk::new("vm1", ceph.image("vm1", MIB)?).with(DIRTY);
        let own = place.host("a")?;
        let daemon = Haversack::start(&own, Settings::new(32, vec![disk]))?;
        client(&daemon)?.fill_durably(0..BLOCKS, 1)?;
        daemon.command(&["disk", "flush", "vm1"])?;
        client(&daemon)?.fill_durably(0..BLOCKS, 2)?;
        ceph.block_clients("vm1")?;
        let program = StorageDaemon::start(place, "program", ceph.node("vm1"))?;
        let mut flush = Process::start(&own, "flush", &daemon.command_line(&["disk", "flush", "vm1"])?)?;
        daemon.wait_for_log(&["is not used: RBD image vms/vm1 is open on"])?;
        let events = daemon.command(&["events", "vm1", "--last", "100"])?;
        let told = events.lines().filter(|line| line.contains("helper-kept-out")).count();
        check(told == 1, format!("told {told} times that the helper is kept out:\n{events}"))?;
        check_image(place, &ceph, 0..BLOCKS, 1)?;
        drop(program);
        check(flush.wait(PATIENCE)?.success(), "the flush has failed")?;
        check_image(place, &ceph, 0..BLOCKS, 2)
    });
}

/// The host is alive, and its supervisor starts a new helper, whose client is not blocklisted.
#[test]
fn a_host_that_was_fenced_writes_no_rbd_image_although_its_helper_is_started_again() {
    test_alone("a fenced host that lives", |place| {
        let ceph = Ceph::start(place)?;
        let origin = ceph.image("vm1", MIB)?;
        let hosts = Hosts::new(place, &["alpha", "beta"])?;
        let places = [place.host("a")?, place.host("b")?];
        let fence_line = format!("fence = {:?}", fence_rbd().display().to_string());
        let [mut alpha, beta] = start(&origin, &hosts, &places, &fence_line)?;
        let mut guest = client(&alpha)?;
        guest.fill_durably(0..BLOCKS, 1)?;
        alpha.command(&["disk", "flush", "vm1"])?;
        guest.fill_durably(0..BLOCKS / 2, 2)?;
        // It is cut off for so long that the cluster does not list its client any more.
        alpha.pause_helpers(true)?;
        wait_until("the end of alpha's watch", PATIENCE, || Ok(ceph.watchers("vm1")?.len() == 1))?;
        // The host itself is not informed; only the cluster is.
        let (done, said) = fence(place, &origin, "alpha", "gamma")?;
        check(!done && said.contains("has not locked"), format!("fenced by a stranger: {said}"))?;
        let (done, said) = fence(place, &origin, "alpha", "beta")?;
        check(done && said.contains("1 client of vms/vm1 blocklisted"), format!("not fenced: {said}"))?;
        check(lockers(&ceph)? == ["beta"], format!("locked by {:?}", ceph.lockers("vm1")?))?;
        // The client is back, and has something to write.
        alpha.pause_helpers(false)?;
        let mut flush = Process::start(&places[0], "flush", &alpha.command_line(&["disk", "flush", "vm1"])?)?;
        alpha.wait_for_log(&["the origin failed a request"])?;
        check_image(place, &ceph, 0..BLOCKS, 1)?;
        wait_until("the event", PATIENCE, || {
            Ok(alpha.command(&["events", "vm1", "--last", "100"])?.contains("was taken away"))
        })?;
        wait_until("the helper's end", PATIENCE, || Ok(alpha.process()?.children()?.is_empty()))?;
        check_image(place, &ceph, 0..BLOCKS, 1)?;
        check(lockers(&ceph)? == ["beta"], "the fenced host has locked it again")?;
        alpha.kill()?;
        flush.wait(PATIENCE)?;

        // Fenced again, and taken over.
        beta.command(&["disk", "own", "vm1", "--confirm", "vm1", "--accept-loss", "vm1"])?;
        check(state(&beta, "vm1")? == "here", "it is not taken over")?;
        let mut guest = client(&beta)?;
        guest.check_filled(0..BLOCKS, 1)?;
        guest.fill_durably(0..8, 3)?;
        beta.command(&["disk", "flush", "vm1"])?;
        // The fenced host does not readmit itself.
        alpha.settings().disks[0].attachable = false;
        alpha.start_again()?;
        wait_until("the refusal", PATIENCE, || {
            let shown = alpha.json(&["disk", "show", "vm1"])?;
            Ok(shown["error"].as_str().unwrap_or_default().contains("was taken away"))
        })?;
        check(lockers(&ceph)? == ["beta"], "the fenced host has locked it again")?;
        check_image(place, &ceph, 0..8, 3)?;
        check_image(place, &ceph, 8..BLOCKS, 1)?;
        alpha.command(&["disk", "forget", "vm1", "--confirm", "vm1"])?;
        alpha.attach("vm1")?;
        check(state(&alpha, "vm1")? == "waiting", "alpha has it again")?;
        check(lockers(&ceph)? == ["alpha", "beta"], "it is not let in")?;
        drop(guest);
        let mut guest = client(&alpha)?;
        guest.fill_durably(8..16, 4)?;
        guest.check_filled(0..8, 3)?;
        guest.check_filled(16..BLOCKS, 1)
    });
}

/// The fenced host then has neither a lock nor a client that could be taken away.
#[test]
fn a_host_that_was_fenced_after_it_detached_an_rbd_image_locks_it_again_only_if_all_hosts_are_connected() {
    test_alone("a fenced host that had detached", |place| {
        let ceph = Ceph::start(place)?;
        let origin = ceph.image("vm1", MIB)?;
        let hosts = Hosts::new(place, &["alpha", "beta"])?;
        let places = [place.host("a")?, place.host("b")?];
        let [alpha, mut beta] = start(&origin, &hosts, &places, "")?;
        client(&alpha)?.fill_durably(0..8, 1)?;
        alpha.command(&["disk", "flush", "vm1"])?;
        alpha.detach("vm1")?;
        check(lockers(&ceph)? == ["beta"], "alpha is still locked")?;
        let (done, said) = fence(place, &origin, "Alpha", "BETA")?;
        check(done && said.contains("0 clients"), format!("not fenced: {said}"))?;
        beta.kill()?;
        for _ in 0..2 {
            let error = alpha.attach("vm1").expect_err("beta may have taken it over").to_string();
            check(error.contains("host 'beta' is not connected"), format!("told: {error}"))?;
            check(lockers(&ceph)? == ["beta"], "the fenced host has locked it again")?;
        }
        beta.start_again()?;
        wait_until("alpha's attach", PATIENCE, || Ok(alpha.attach("vm1").is_ok()))?;
        check(lockers(&ceph)? == ["alpha", "beta"], "it is not let in")?;
        client(&alpha)?.check_filled(0..8, 1)
    });
}
