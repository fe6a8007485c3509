//! Dirty blocks on a second host: two daemons over TLS on a network of their own, one origin. The owner dies under load, and the
//! other host serves everything that was flushed.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use haversack_e2e::connection::{Command, Connection};
use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::hosts::{Hosts, state, wait_until_moved};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::network::Network;
use haversack_e2e::tools::{PATIENCE, wait_until};
use haversack_e2e::{Error, Place, Result, image, test, test_alone};
use haversack_model::random::Random;
use serde_json::Value;

const MIB: u64 = 32;
const BLOCK: u64 = 4096;
/// The blocks that the load uses.
const BLOCKS: u64 = 1024;
/// Writes between two flushes of the load.
const WRITES_A_FLUSH: usize = 16;
/// What is written stays dirty.
const DIRTY: &str = "cleaner = { age = \"1h\", idle = \"1h\" }";
const MBITS: u32 = 1000;
/// How long a flush may wait for a replica that is lost: the lease, an eighth more, and what this machine takes.
const MOST_WAIT: Duration = Duration::from_secs(15);
/// What may pass between the order to take a disk over and its being served.
const MOST_TO_SERVE: Duration = Duration::from_secs(5);

struct Pair<'a> {
    alpha: Haversack<'a>,
    beta: Haversack<'a>,
    network: Network,
    _origin: Nbdkit,
}

impl<'a> Pair<'a> {
    /// The disk is at alpha, with `more` in its table. Beta names it too, since both cannot have the same socket on one machine.
    fn new(place: &Place, places: &'a [Place; 2], more: &str) -> Result<Self> {
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
        let [beta, alpha] = Haversack::start_both(
            places,
            [settings(1, "beta", vec![there]), settings(0, "alpha", vec![disk])],
        )?;
        Ok(Self { alpha, beta, network, _origin: origin })
    }

    fn replicated(place: &Place, places: &'a [Place; 2]) -> Result<Self> {
        let pair = Self::new(place, places, "replicate = \"beta\"")?;
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
    // It begins when a client is there.
    let _guest = client(host)?;
    let mut last = Value::Null;
    let waited = wait_until(&format!("a replica that is {wanted}"), PATIENCE, || {
        last = replica(host)?;
        Ok(last["state"] == wanted)
    });
    waited.map_err(|error| Error::Check(format!("{error}: {last}")))
}

/// What a load has written of each block, and what of that was flushed.
#[derive(Clone)]
struct Written {
    last: Vec<u8>,
    flushed: Vec<u8>,
    /// The longest that a flush took.
    longest: Duration,
    flushes: u32,
}

impl Written {
    fn new() -> Written {
        let blank = vec![0; BLOCKS as usize];
        Written { last: blank.clone(), flushed: blank, longest: Duration::ZERO, flushes: 0 }
    }

    /// Writes and flushes until told to end, or until the daemon is gone.
    fn go_on(&mut self, socket: &Path, ends: &AtomicBool) -> Result<()> {
        let mut guest = Connection::open(socket, "vm1")?;
        let mut random = Random::new(u64::from(self.flushes) + 1);
        while !ends.load(Ordering::Relaxed) {
            for _ in 0..WRITES_A_FLUSH {
                let block = random.below(BLOCKS);
                let value = self.last[block as usize].wrapping_add(1).max(1);
                // Its answer may be lost.
                self.last[block as usize] = value;
                guest.ask(Command::Write, block * BLOCK, BLOCK as u32, &mut [value; BLOCK as usize])?;
            }
            let (last, begin) = (self.last.clone(), Instant::now());
            guest.ask(Command::Flush, 0, 0, &mut [])?;
            self.longest = self.longest.max(begin.elapsed());
            (self.flushed, self.flushes) = (last, self.flushes + 1);
        }
        Ok(())
    }

    /// Runs the load while something happens, which it survives.
    fn during(&mut self, host: &Path, act: impl FnOnce() -> Result<()>) -> Result<()> {
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let load = scope.spawn(|| self.go_on(host, &ends));
            let acted = act();
            ends.store(true, Ordering::Relaxed);
            let ended = load.join().map_err(|_| Error::Check("the load panicked".into()))?;
            acted.and(ended)
        })
    }

    /// Checks that each block is as it was at its last flush, or as it was written after that.
    fn check(&self, host: &Haversack<'_>) -> Result<()> {
        let mut guest = client(host)?;
        for block in 0..BLOCKS {
            let mut data = [0; BLOCK as usize];
            guest.ask(Command::Read, block * BLOCK, BLOCK as u32, &mut data)?;
            let (flushed, last) = (self.flushed[block as usize], self.last[block as usize]);
            check(data.iter().all(|byte| *byte == data[0]), format!("block {block} is of several versions"))?;
            let found = data[0];
            // Values wrap around.
            let is_good = found.wrapping_sub(flushed) <= last.wrapping_sub(flushed);
            check(is_good, format!("block {block}: {found}; flushed {flushed}, written {last}"))?;
        }
        Ok(())
    }
}

/// Runs the load for a while and kills the owner under it.
fn kill_under_load(pair: &mut Pair<'_>, written: &mut Written, after: Duration) -> Result<()> {
    let socket = pair.alpha.socket("nbd.sock");
    std::thread::scope(|scope| {
        let load = scope.spawn(|| written.go_on(&socket, &AtomicBool::new(false)));
        std::thread::sleep(after);
        pair.alpha.kill()?;
        let ended = load.join().map_err(|_| Error::Check("the load panicked".into()))?;
        check(ended.is_err(), "the load outlives the daemon")
    })?;
    check(written.flushes > 0, "nothing was flushed")
}

#[test]
fn all_that_was_flushed_is_there_when_the_owner_dies_under_load() {
    test("a dead owner and its replica", |place| {
        let places = [place.host("a")?, place.host("b")?];
        let mut pair = Pair::replicated(place, &places)?;
        let mut written = Written::new();
        kill_under_load(&mut pair, &mut written, Duration::from_secs(3))?;
        let shown = pair.beta.json(&["disk", "own", "vm1", "--dry-run"])?;
        check(shown["replica"]["is_complete"] == true, format!("{shown}"))?;
        let took = pair.own(&["--owner-stopped"])?;
        place.say(&format!(
            "{} flushes; certain: {}; served {took:?} after the order",
            written.flushes, shown["replica"]["is_certain"]
        ));
        check(took <= MOST_TO_SERVE, format!("it took {took:?}"))?;
        written.check(&pair.beta)?;
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
        written.check(&pair.beta)
    });
}

#[test]
fn when_the_lease_is_over_only_the_operator_can_have_the_replica_used() {
    test("a replica that is not certain", |place| {
        let places = [place.host("a")?, place.host("b")?];
        let mut pair = Pair::replicated(place, &places)?;
        let mut written = Written::new();
        kill_under_load(&mut pair, &mut written, Duration::from_secs(2))?;
        wait_until("the end of the lease", PATIENCE, || {
            let kept = pair.beta.json(&["disk", "show", "vm1"])?["kept_replica"].clone();
            check(kept["is_complete"] == true, format!("{kept}"))?;
            Ok(kept["is_certain"] == false)
        })?;
        let words = ["disk", "own", "vm1", "--confirm", "vm1", "--without-fence", "alpha"];
        let error = pair.beta.refused(&words)?;
        check(error.contains("may have gone on without the replica"), format!("used: {error}"))?;
        check(state(&pair.beta, "vm1")? != "here", "it was taken over")?;
        pair.own(&["--owner-stopped"])?;
        written.check(&pair.beta)
    });
}

#[test]
fn a_replica_that_is_cut_off_is_given_up_and_filled_again() {
    test_alone("a replica that is cut off", |place| {
        let places = [place.host("a")?, place.host("b")?];
        let mut pair = Pair::replicated(place, &places)?;
        let socket = pair.alpha.socket("nbd.sock");
        let mut written = Written::new();
        written.during(&socket, || {
            std::thread::sleep(Duration::from_secs(1));
            pair.network.cut(1)?;
            wait_for(&pair.alpha, "missing")?;
            let shown = replica(&pair.alpha)?;
            check(shown["writes_through"] == true, format!("{shown}"))?;
            std::thread::sleep(Duration::from_secs(2));
            // Beta has an old replica, which alone takes nobody's disk.
            let words = ["disk", "own", "vm1", "--confirm", "vm1", "--without-fence", "alpha"];
            let error = pair.beta.refused(&words)?;
            check(error.contains("may have gone on without the replica"), format!("used: {error}"))?;
            pair.network.heal(1)?;
            wait_for(&pair.alpha, "complete")
        })?;
        place.say(&format!("the longest flush took {:?}", written.longest));
        check(written.longest <= MOST_WAIT, format!("a flush took {:?}", written.longest))?;
        let events = pair.alpha.command(&["events", "vm1", "--last", "100"])?;
        check(events.contains("replica-lost") && events.contains("replicated"), events)?;
        kill_under_load(&mut pair, &mut written, Duration::from_secs(1))?;
        pair.own(&["--owner-stopped"])?;
        written.check(&pair.beta)
    });
}

#[test]
fn daemons_that_restart_come_to_a_complete_replica_again() {
    test_alone("restarts on either side of a replica", |place| {
        let places = [place.host("a")?, place.host("b")?];
        let mut pair = Pair::replicated(place, &places)?;
        let socket = pair.alpha.socket("nbd.sock");
        let mut written = Written::new();
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
        written.check(alpha)?;
        kill_under_load(&mut pair, &mut written, Duration::from_secs(1))?;
        pair.alpha.start_again()?;
        wait_for(&pair.alpha, "complete")?;
        written.check(&pair.alpha)?;
        kill_under_load(&mut pair, &mut written, Duration::from_secs(1))?;
        pair.own(&["--owner-stopped"])?;
        written.check(&pair.beta)
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
        let mut written = Written::new();
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
        written.check(&pair.alpha)?;
        let dirty = pair.alpha.json(&["disk", "show", "vm1"])?["usage"]["dirty_bytes"].clone();
        check(dirty.as_u64() > Some(0), "the disk does not write through any more")?;
        pair.alpha.command(&["disk", "set", "vm1", "--replicate", "beta"])?;
        wait_for(&pair.alpha, "complete")?;
        // A disk with a replica moves to where that is, and has one at the other host then.
        pair.alpha.command(&["migrate", "--to", "beta", "vm1"])?;
        written.during(&pair.beta.socket("nbd.sock"), || {
            wait_until("the move", PATIENCE, || Ok(state(&pair.beta, "vm1")? == "here"))
        })?;
        wait_until_moved(&pair.alpha, &pair.beta, "vm1")?;
        pair.beta.command(&["disk", "set", "vm1", "--replicate", "alpha"])?;
        wait_for(&pair.beta, "complete")?;
        check(replica(&pair.beta)?["host"] == "alpha", "it is at the other host")?;
        written.check(&pair.beta)?;
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
        let error = pair.beta.refused(&["disk", "set", "vm1", "--mode", "wt"])?;
        check(error.contains("nothing is dirty"), error)?;
        pair.beta.detach("vm1")
    });
}
