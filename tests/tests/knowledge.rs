//! What hosts know of disks that other hosts have. A host finds a disk's owner even if the host in its record is dead.
//! A host that was told to forget a disk does not answer as if it had never known the disk.

use haversack_e2e::connection::{Command, Connection};
use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::hosts::{Hosts, state};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::tools::{PATIENCE, wait_until};
use haversack_e2e::{Place, Result, image, test};

const MIB: u64 = 32;
const BLOCK: usize = 4096;
const NAMES: [&str; 3] = ["alpha", "beta", "gamma"];

fn client(host: &Haversack<'_>) -> Result<Connection> {
    Connection::open(&host.socket("nbd.sock"), "vm1")
}

fn event(host: &Haversack<'_>, words: &str) -> Result<bool> {
    Ok(host.command(&["events", "vm1", "--last", "100"])?.contains(words))
}

/// Starts hosts that know each other, with the disk on the first one.
fn start<'a>(
    place: &Place,
    places: &'a [Place],
    origin: &Nbdkit,
    names: &[&str],
) -> Result<Vec<Haversack<'a>>> {
    let hosts = Hosts::new(place, names)?;
    let disk = |from: &str| vec![Disk::new("vm1", origin.uri()).with(&format!("from = \"{from}\""))];
    let froms = ["none"].iter().chain(names);
    let all = names.iter().zip(froms).zip(places).map(|((name, from), place)| {
        Haversack::start(place, Settings { more: hosts.tables(name), ..Settings::new(128, disk(from)) })
    });
    let all = all.collect::<Result<Vec<_>>>()?;
    wait_until("the hosts", PATIENCE, || {
        let knows_all = |host: &Haversack<'_>| {
            let listed = host.json(&["host", "list"]).unwrap_or_default();
            listed.as_array().is_some_and(|hosts| hosts.iter().all(|host| host["is_connected"] == true))
        };
        Ok(all.iter().all(knows_all))
    })?;
    Ok(all)
}

/// Connects a guest to a host, writes, and disconnects the guest.
fn visit(host: &Haversack<'_>, value: u8) -> Result<()> {
    client(host)?.fill_durably(0..16, value)?;
    // A host that waits for the disk may have its cache sent.
    wait_until("the disk", PATIENCE, || Ok(matches!(state(host, "vm1")?.as_str(), "here" | "sending")))
}

#[test]
fn a_guest_gets_its_disk_although_the_host_that_it_was_released_to_is_dead() {
    test("a chain with a dead host", |place| {
        let origin = Nbdkit::file(place, "origin1", &image::zeroes(place, "vm1.img", MIB)?)?;
        let places = [place.host("a")?, place.host("b")?, place.host("c")?];
        let mut hosts = start(place, &places, &origin, &NAMES)?;
        for (at, value) in [(0, 1), (1, 2), (2, 3)] {
            visit(&hosts[at], value)?;
        }
        // Alpha's record names beta as the owner. Of the living hosts, only gamma knows better.
        hosts[1].kill()?;
        let mut guest = client(&hosts[0])?;
        guest.wait_at_most(PATIENCE)?;
        guest.fill(0..1, 4)?;
        guest.check_filled(0..1, 4)?;
        guest.check_filled(1..16, 3)?;
        check(!event(&hosts[0], "no connected host has the disk")?, "its owner was found")?;
        drop(guest);
        visit(&hosts[2], 5)?;
        // Now no living host has the disk.
        hosts[2].kill()?;
        let mut guest = client(&hosts[0])?;
        guest.send(Command::Write, 0, BLOCK as u32, &[6; BLOCK])?;
        wait_until("the advice", PATIENCE, || event(&hosts[0], "haversack disk own vm1"))?;
        // The event comes a moment earlier.
        wait_until("the status that says it", PATIENCE, || {
            let status = hosts[0].json(&["migrate", "status", "vm1"])?;
            Ok(status["error"].as_str().unwrap_or_default().contains("'gamma', which is not connected"))
        })?;
        let own = ["disk", "own", "vm1", "--confirm", "vm1", "--accept-loss", "vm1"];
        hosts[0].command(&[&own[..], &["--without-fence", "beta,gamma"]].concat())?;
        guest.answer(|_| 0)?;
        guest.check_filled(0..1, 6)?;
        wait_until("the end of the advice", PATIENCE, || {
            Ok(hosts[0].json(&["migrate", "status", "vm1"])?["error"].is_null())
        })
    });
}

#[test]
fn a_host_that_has_forgotten_a_disk_still_tells_that_it_has_taken_it_over() {
    test("a disk that was forgotten", |place| {
        let origin = Nbdkit::file(place, "origin1", &image::zeroes(place, "vm1.img", MIB)?)?;
        let places = [place.host("a")?, place.host("b")?];
        let mut hosts = start(place, &places, &origin, &NAMES[..2])?;
        client(&hosts[0])?.fill_durably(0..16, 1)?;
        hosts[0].kill()?;
        let own = ["disk", "own", "vm1", "--confirm", "vm1", "--accept-loss", "vm1"];
        hosts[1].command(&[&own[..], &["--without-fence", "alpha"]].concat())?;
        client(&hosts[1])?.fill_durably(0..16, 2)?;
        hosts[1].detach("vm1")?;
        hosts[1].command(&["disk", "forget", "vm1"])?;
        // What alpha has of it is older than the origin.
        let disks = std::mem::take(&mut hosts[0].settings().disks);
        hosts[0].settings().disks = disks.into_iter().map(Disk::unattachable).collect();
        hosts[0].start_again()?;
        wait_until("the refusal", PATIENCE, || {
            let shown = hosts[0].json(&["disk", "show", "vm1"])?;
            Ok(shown["error"].as_str().unwrap_or_default().contains("taken over by another host"))
        })?;
        hosts[0].command(&["disk", "forget", "vm1", "--confirm", "vm1"])?;
        // Attached as a new disk, it gets an epoch above all that were ever known, and can move as before.
        let (uri, pool) = (origin.uri(), hosts[1].pool());
        hosts[1].command(&["disk", "attach", "vm1", &uri, "--pool", &pool, "--from", "none"])?;
        let mut guest = client(&hosts[1])?;
        guest.check_filled(0..16, 2)?;
        guest.fill_durably(0..1, 3)?;
        drop(guest);
        let pool = hosts[0].pool();
        hosts[0].command(&["disk", "attach", "vm1", &uri, "--pool", &pool])?;
        let mut guest = client(&hosts[0])?;
        guest.fill_durably(1..2, 4)?;
        guest.check_filled(0..1, 3)?;
        guest.check_filled(2..16, 2)
    });
}
