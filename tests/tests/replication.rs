//! Dirty blocks on a second host: two daemons over TLS on a network of their own, one origin. The owner dies under
//! load, and the other host serves everything that was flushed.

use std::time::{Duration, Instant};

use haversack_e2e::connection::{Command, Connection};
use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::hosts::{Hosts, state, wait_until_moved};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::network::Network;
use haversack_e2e::tools::{PATIENCE, wait_until};
use haversack_e2e::written::Written;
use haversack_e2e::{Error, Place, Result, image, test, test_alone};
use serde_json::Value;

const MIB: u64 = 32;
const BLOCK: u64 = 4096;
/// The blocks that the load uses.
const BLOCKS: u64 = 1024;
/// What is written stays dirty.
const DIRTY: &str = "cleaner = { age = \"10000h\", idle = \"10000h\" }";
const MBITS: u32 = 1000;
/// How long a flush may wait for a replica that is lost: the lease, an eighth more, and what this machine takes.
const MOST_WAIT: Duration = Duration::from_secs(30);
/// The longest time from the command that takes a disk over until the disk is served, on a busy machine.
const MOST_TO_SERVE: Duration = Duration::from_secs(15);

struct Pair<'a> {
    alpha: Haversack<'a>,
    beta: Haversack<'a>,
    network: Network,
    _origin: Nbdkit,
}

impl<'a> Pair<'a> {
    /// The disk is at alpha, with `more` in its table. Beta names it too, since both cannot have the same socket on one
    /// machine.
    fn new(place: &Place, places: &'a [Place; 2], more: &str) -> Result<Self> {
        Self::start(place, places, more, &["cache.img"])
    }

    fn start(place: &Place, places: &'a [Place; 2], more: &str, devices: &[&str]) -> Result<Self> {
        let origin = Nbdkit::file(place, "origin1", &image::zeroes(place, "vm1.img", MIB)?)?;
        let network = Network::new(place, 2, MBITS)?;
        let hosts = Hosts::on(place, &["alpha", "beta"], &network)?;
        let known = Disk::new("vm1", origin.uri()).with(DIRTY);
        let there = known.clone().with("from = \"alpha\"");
        let disk = known.with("from = \"none\"").with(more);
        let settings = |host: usize, name: &str, disks| Settings {
            more: hosts.tables(name),
            network: Some(network.namespace(host)),
            ..Settings::new(256, disks)
        };
        let devices = devices.iter().map(ToString::to_string).collect();
        let alpha = Settings { devices, ..settings(0, "alpha", vec![disk]) };
        let [beta, alpha] = Haversack::start_both(places, [settings(1, "beta", vec![there]), alpha])?;
        Ok(Self { alpha, beta, network, _origin: origin })
    }

    fn replicated(place: &Place, places: &'a [Place; 2]) -> Result<Self> {
        Self::with_devices(place, places, &["cache.img"])
    }

    /// The same with these cache devices at alpha.
    fn with_devices(place: &Place, places: &'a [Place; 2], devices: &[&str]) -> Result<Self> {
        let pair = Self::start(place, places, "replicate = \"beta\"", devices)?;
        wait_for(&pair.alpha, "complete")?;
        Ok(pair)
    }

    /// Has beta take the disk over, and returns how long it took until it was served.
    fn own(&self, more: &[&str]) -> Result<Duration> {
        let mut words = vec!["disk", "own", "vm1", "--confirm", "vm1", "--without-fence", "alpha"];
        words.extend(more);
        let begin = Instant::now();
        self.beta.command(&words)?;
        let mut guest = client(&self.beta)?;
        guest.ask(Command::Read, 0, BLOCK as u32, &mut [0; BLOCK as usize])?;
        Ok(begin.elapsed())
    }
}

fn client(host: &Haversack<'_>) -> Result<Connection> {
    Connection::open(&host.socket("nbd.sock"), "vm1")
}

fn replica(host: &Haversack<'_>) -> Result<Value> {
    Ok(host.json(&["disk", "show", "vm1"])?["replica"].clone())
}

fn wait_for(host: &Haversack<'_>, wanted: &str) -> Result<()> {
    // Replication begins when a client connects.
    let _guest = client(host)?;
    let mut last = Value::Null;
    let waited = wait_until(&format!("a replica that is {wanted}"), PATIENCE, || {
        last = replica(host)?;
        Ok(last["state"] == wanted)
    });
    waited.map_err(|error| Error::Check(format!("{error}: {last}")))
}

/// Runs the load for a while and kills the owner under it.
fn kill_under_load(pair: &mut Pair<'_>, written: &mut Written, after: Duration) -> Result<()> {
    written.until_death(&pair.alpha.socket("nbd.sock"), || {
        std::thread::sleep(after);
        pair.alpha.kill()
    })
}

#[test]
fn all_that_was_flushed_is_there_when_the_owner_dies_under_load() {
    test("a dead owner and its replica", |place| {
        let places = [place.host("a")?, place.host("b")?];
        let mut pair = Pair::replicated(place, &places)?;
        let mut written = Written::new("vm1", BLOCKS);
        kill_under_load(&mut pair, &mut written, Duration::from_secs(3))?;
        let shown = pair.beta.json(&["disk", "own", "vm1", "--dry-run"])?;
        check(shown["replica"]["is_complete"] == true, format!("{shown}"))?;
        let took = pair.own(&["--owner-stopped"])?;
        place.say(&format!(
            "{} flushes; certain: {}; served {took:?} after the order",
            written.flushes, shown["replica"]["is_certain"]
        ));
        check(took <= MOST_TO_SERVE, format!("it took {took:?}"))?;
        written.check(&pair.beta.socket("nbd.sock"))?;
        let events = pair.beta.command(&["events", "vm1", "--last", "100"])?;
        check(events.contains("nothing that was flushed is lost"), events)?;
        // The old owner is back, and keeps away from the disk.
        let disks = std::mem::take(&mut pair.alpha.settings().disks);
        pair.alpha.settings().disks = disks.into_iter().map(Disk::unattachable).collect();
        pair.alpha.start_again()?;
        wait_until("the refusal", PATIENCE, || {
            let shown = pair.alpha.json(&["disk", "show", "vm1"])?;
            Ok(shown["error"].as_str().unwrap_or_default().contains("taken over by another host"))
        })?;
        written.check(&pair.beta.socket("nbd.sock"))
    });
}

#[test]
fn when_the_lease_is_over_only_the_operator_can_have_the_replica_used() {
    test("a replica that is not certain", |place| {
        let places = [place.host("a")?, place.host("b")?];
        let mut pair = Pair::replicated(place, &places)?;
        let mut written = Written::new("vm1", BLOCKS);
        kill_under_load(&mut pair, &mut written, Duration::from_secs(2))?;
        wait_until("the end of the lease", PATIENCE, || {
            let kept = pair.beta.json(&["disk", "show", "vm1"])?["kept_replica"].clone();
            check(kept["is_complete"] == true, format!("{kept}"))?;
            Ok(kept["is_certain"] == false)
        })?;
        let words = ["disk", "own", "vm1", "--confirm", "vm1", "--without-fence", "alpha"];
        let error = pair.beta.refused(&words)?;
        check(error.contains("may have continued without the replica"), format!("used: {error}"))?;
        check(state(&pair.beta, "vm1")? != "here", "it was taken over")?;
        pair.own(&["--owner-stopped"])?;
        written.check(&pair.beta.socket("nbd.sock"))
    });
}

#[test]
fn a_replica_that_is_cut_off_is_given_up_and_filled_again() {
    test_alone("a replica that is cut off", |place| {
        let places = [place.host("a")?, place.host("b")?];
        let mut pair = Pair::replicated(place, &places)?;
        let socket = pair.alpha.socket("nbd.sock");
        let mut written = Written::new("vm1", BLOCKS);
        written.during(&socket, || {
            std::thread::sleep(Duration::from_secs(1));
            pair.network.cut(1)?;
            wait_for(&pair.alpha, "missing")?;
            let shown = replica(&pair.alpha)?;
            check(shown["writes_through"] == true, format!("{shown}"))?;
            std::thread::sleep(Duration::from_secs(2));
            // Beta has an old replica, which alone does not allow it to take the disk over.
            let words = ["disk", "own", "vm1", "--confirm", "vm1", "--without-fence", "alpha"];
            let error = pair.beta.refused(&words)?;
            check(error.contains("may have continued without the replica"), format!("used: {error}"))?;
            pair.network.heal(1)?;
            wait_for(&pair.alpha, "complete")
        })?;
        place.say(&format!("the longest flush took {:?}", written.longest));
        check(written.longest <= MOST_WAIT, format!("a flush took {:?}", written.longest))?;
        let events = pair.alpha.command(&["events", "vm1", "--last", "100"])?;
        check(events.contains("replica-lost") && events.contains("replicated"), events)?;
        kill_under_load(&mut pair, &mut written, Duration::from_secs(1))?;
        pair.own(&["--owner-stopped"])?;
        written.check(&pair.beta.socket("nbd.sock"))
    });
}

#[test]
fn daemons_that_restart_come_to_a_complete_replica_again() {
    test_alone("restarts on either side of a replica", |place| {
        let places = [place.host("a")?, place.host("b")?];
        let mut pair = Pair::replicated(place, &places)?;
        let socket = pair.alpha.socket("nbd.sock");
        let mut written = Written::new("vm1", BLOCKS);
        let Pair { alpha, beta, .. } = &mut pair;
        written.during(&socket, || {
            std::thread::sleep(Duration::from_secs(1));
            beta.kill_and_restart(Duration::from_secs(1))?;
            wait_for(alpha, "complete")?;
            beta.stop()?;
            beta.start_again()?;
            wait_for(alpha, "complete")
        })?;
        check(written.longest <= MOST_WAIT, format!("a flush took {:?}", written.longest))?;
        alpha.stop()?;
        alpha.start_again()?;
        wait_for(alpha, "complete")?;
        written.check(&alpha.socket("nbd.sock"))?;
        kill_under_load(&mut pair, &mut written, Duration::from_secs(1))?;
        pair.alpha.start_again()?;
        wait_for(&pair.alpha, "complete")?;
        written.check(&pair.alpha.socket("nbd.sock"))?;
        kill_under_load(&mut pair, &mut written, Duration::from_secs(1))?;
        pair.own(&["--owner-stopped"])?;
        written.check(&pair.beta.socket("nbd.sock"))
    });
}

#[test]
fn a_replica_is_set_ended_and_moved_under_load() {
    test("a replica by the setting", |place| {
        let places = [place.host("a")?, place.host("b")?];
        let pair = Pair::new(place, &places, "")?;
        for (host, why) in [("gamma", "host 'gamma' is in no [[host]]"), ("alpha", "this host itself")] {
            let error = pair.alpha.refused(&["disk", "set", "vm1", "--replicate", host])?;
            check(error.contains(why), format!("{host}: {error}"))?;
        }
        let error = pair.alpha.refused(&["disk", "set", "vm1", "--replicate", "beta", "--mode", "wt"])?;
        check(error.contains("nothing is dirty"), error)?;
        let mut written = Written::new("vm1", BLOCKS);
        written.during(&pair.alpha.socket("nbd.sock"), || {
            for _ in 0..3 {
                pair.alpha.command(&["disk", "set", "vm1", "--replicate", "auto"])?;
                wait_for(&pair.alpha, "complete")?;
                std::thread::sleep(Duration::from_millis(300));
                pair.alpha.command(&["disk", "set", "vm1", "--replicate", "none"])?;
                wait_until("the end of the replica", PATIENCE, || Ok(replica(&pair.alpha)?.is_null()))?;
            }
            Ok(())
        })?;
        written.check(&pair.alpha.socket("nbd.sock"))?;
        let dirty = pair.alpha.json(&["disk", "show", "vm1"])?["usage"]["dirty_bytes"].clone();
        check(dirty.as_u64() > Some(0), "the disk does not write through any more")?;
        pair.alpha.command(&["disk", "set", "vm1", "--replicate", "beta"])?;
        wait_for(&pair.alpha, "complete")?;
        // A disk moves to the host of its replica. Its new replica is on the host that it came from.
        pair.alpha.command(&["migrate", "--to", "beta", "vm1"])?;
        written.during(&pair.beta.socket("nbd.sock"), || {
            wait_until("the move", PATIENCE, || Ok(state(&pair.beta, "vm1")? == "here"))
        })?;
        wait_until_moved(&pair.alpha, &pair.beta, "vm1")?;
        pair.beta.command(&["disk", "set", "vm1", "--replicate", "alpha"])?;
        wait_for(&pair.beta, "complete")?;
        check(replica(&pair.beta)?["host"] == "alpha", "it is at the other host")?;
        written.check(&pair.beta.socket("nbd.sock"))?;
        // Resized, detached and attached again.
        wait_until("the last client's end", PATIENCE, || {
            Ok(pair.beta.json(&["disk", "show", "vm1"])?["clients"] == 0)
        })?;
        pair.beta.command(&["disk", "resize", "vm1", "16777216", "--shrink", "--confirm", "vm1"])?;
        let guest = client(&pair.beta)?;
        wait_until("the reason why there is no replica", PATIENCE, || {
            let why = replica(&pair.beta)?["error"].clone();
            Ok(why.as_str().is_some_and(|why| why.contains("33554432 bytes here")))
        })?;
        pair.alpha.detach("vm1")?;
        wait_for(&pair.beta, "complete")?;
        drop(guest);
        // The mode may change while there is a replica, as it does for a snapshot.
        pair.beta.command(&["disk", "set", "vm1", "--mode", "wt"])?;
        pair.beta.command(&["disk", "set", "vm1", "--mode", "wb"])?;
        wait_for(&pair.beta, "complete")?;
        pair.beta.detach("vm1")
    });
}

/// The replica may have what is lost. Until somebody decides, the disk is neither served nor changed.
#[test]
fn an_owner_that_has_lost_blocks_says_what_to_do_instead_of_resizing_the_disk() {
    test("an owner with a loss and its replica", |place| {
        let places = [place.host("a")?, place.host("b")?];
        let mut pair = Pair::with_devices(place, &places, &["faulty:a.img", "faulty:b.img"])?;
        client(&pair.alpha)?.fill_durably(0..BLOCKS, 7)?;
        let fault = places[1].path("b.img.fault");
        std::fs::write(&fault, "gone").map_err(Error::io(fault.display().to_string()))?;
        client(&pair.alpha)?.fill_durably(BLOCKS..2 * BLOCKS, 8)?;
        pair.alpha.wait_for_log(&["data-lost", "vm1"])?;
        pair.alpha.kill()?;
        pair.alpha.start_again()?;
        wait_until("the loss", PATIENCE, || {
            let shown = replica(&pair.alpha)?;
            let why = shown["error"].as_str().unwrap_or_default();
            Ok(shown["state"] == "ending" && why.contains("may have a replica"))
        })?;
        let error = pair.alpha.refused(&["disk", "resize", "vm1", "67108864"])?;
        for words in ["cannot be resized", "lost on this host", "host 'beta'", "disk own", "--accept-loss"] {
            check(error.contains(words), format!("it is not said: {words}: {error}"))?;
        }
        pair.alpha.stop()?;
        pair.own(&["--owner-stopped"])?;
        client(&pair.beta)?.check_filled(0..BLOCKS, 7)
    });
}
