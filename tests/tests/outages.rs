//! Origins of `haversackd` that are gone for a while.

use std::time::Duration;

use haversack_e2e::connection::{Command, Connection};
use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::scenario::{self, Load};
use haversack_e2e::tools::PATIENCE;
use haversack_e2e::{Guest, image, test};

/// How long an origin is gone.
const OUTAGE: Duration = Duration::from_secs(30);

#[test]
fn origins_are_gone_for_30_seconds_and_come_back() {
    test("origins gone", |place| {
        let files =
            [image::pattern(place, "vm1.img", "vm1", 64)?, image::pattern(place, "vm2.img", "vm2", 64)?];
        let killed = Nbdkit::file(place, "killed", &files[0])?;
        let paused = Nbdkit::file(place, "paused", &files[1])?;
        let disks = vec![Disk::new("vm1", killed.uri()), Disk::new("vm2", paused.uri())];
        let daemon = Haversack::start(place, Settings::new(256, disks))?;
        let mut guest = Guest::boot(place, "guest", &[daemon.vhost_user("vm1"), daemon.nbd("vm2")])?;
        guest.ask("open vda vm1 pattern")?;
        guest.ask("open vdb vm2 pattern")?;
        let mut load = Load::start(place, &mut guest, &["vda", "vdb"], 1)?;
        load.advance(50)?;
        killed.kill()?;
        paused.process().pause()?;
        place.say("one origin killed, the other stopped");
        std::thread::sleep(OUTAGE);
        let before = load.requests()?;
        let _back = Nbdkit::file(place, "killed", &files[0])?;
        paused.process().resume()?;
        place.say(&format!("origins back; requests so far: {before:?}"));
        load.advance(200)?;
        let answers = load.stop()?;
        for answer in answers {
            check(answer.number("longest_ms")? > 10_000, "no request has waited for its origin")?;
        }
        guest.off()
    });
}

#[test]
fn a_full_cache_before_a_dead_origin_makes_writes_wait() {
    test("full cache, dead origin", |place| {
        let file = image::zeroes(place, "vm1.img", 256)?;
        let origin = Nbdkit::file(place, "origin", &file)?;
        let disk = Disk::new("vm1", origin.uri()).with("origin_wait = \"10min\"");
        let daemon = Haversack::start(place, Settings::new(32, vec![disk]))?;
        let mut guest = Guest::boot(place, "guest", &[daemon.vhost_user("vm1")])?;
        guest.ask("open vda vm1 zeroes")?;
        origin.kill()?;
        place.say("origin killed");
        let mut load = Load::start_writes(place, &mut guest, &["vda"], 1)?;
        load.advance(20)?;
        load.wait_for_stall(Duration::from_secs(5), PATIENCE)?;
        place.say(&format!("the cache is full after {:?} writes", load.requests()?));
        let _back = Nbdkit::file(place, "origin", &file)?;
        load.advance(300)?;
        load.stop()?;
        let digest = scenario::verify(place, &mut guest, "vda")?;
        guest.off()?;
        daemon.command(&["disk", "flush", "vm1"])?;
        scenario::same_digest(&file, &digest)
    });
}

#[test]
fn a_flush_after_overflow_outlives_the_connection() {
    test("flush after overflow", |place| {
        let file = image::zeroes(place, "vm1.img", 256)?;
        let path = file.display().to_string();
        let slow = ["--filter=delay", "file", &path, "wdelay=20ms"];
        let origin = Nbdkit::start(place, "origin", &slow)?;
        let limit = "cleaner = { low_watermark = 0.01, high_watermark = 0.02, dirty_limit = 0.02 }";
        let disk = Disk::new("vm1", origin.uri()).with(limit);
        let daemon = Haversack::start(place, Settings::new(32, vec![disk]))?;
        let mut guest = Connection::open(&daemon.socket("nbd.sock"), "vm1")?;
        let mut data = [7; 1 << 16];
        let mut write = |at: u64| guest.ask(Command::Write, at << 16, 1 << 16, &mut data);
        let overflowed = || -> haversack_e2e::Result<Option<u64>> {
            Ok(daemon.json(&["disk", "show", "vm1"])?["requests"]["overflowed"].as_u64())
        };
        let mut next = 0;
        while overflowed()? == Some(0) {
            (next..next + 16).try_for_each(&mut write)?;
            next += 16;
            check(next < 2048, "nothing overflows")?;
        }
        (next..next + 16).try_for_each(&mut write)?;
        origin.kill()?;
        place.say(&format!("origin killed after {} blocks past the cache", overflowed()?.unwrap_or(0)));
        let _back = Nbdkit::start(place, "origin", &slow)?;
        guest.ask(Command::Flush, 0, 0, &mut [])
    });
}
