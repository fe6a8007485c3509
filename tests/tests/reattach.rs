//! Disks of `haversackd` that leave and come back, and find their cache warm.

use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::{Answer, Guest, MIB, Place, Result, image, scenario, test};

/// The reads that make up the working set.
const WORKING_SET: &str = "read vda 5 300";

/// Boots a guest, has it read its working set `times` times, and powers it off. Returns the last answer.
fn read_working_set(place: &Place, daemon: &Haversack<'_>, name: &str, times: u32) -> Result<Answer> {
    let mut guest = Guest::boot(place, name, &[daemon.vhost_user("vm1")])?;
    guest.ask("open vda vm1 pattern")?;
    let mut answer = guest.ask(WORKING_SET)?.clean()?;
    for _ in 1..times {
        answer = guest.ask(WORKING_SET)?.clean()?;
    }
    guest.off()?;
    Ok(answer)
}

#[test]
fn a_disk_comes_back_warm() {
    test("re-attach", |place| {
        let file = image::pattern(place, "vm1.img", "vm1", 64)?;
        let origin = Nbdkit::file(place, "origin", &file)?;
        let disk = Disk::new("vm1", origin.uri());
        let mut daemon = Haversack::start(place, Settings::new(256, vec![disk]))?;
        read_working_set(place, &daemon, "cold", 4)?;
        let cold_bytes = origin.bytes_read()?;
        place.say(&format!("cold: {} MiB read from the origin", cold_bytes / MIB));

        daemon.detach("vm1")?;
        let shown = daemon.command(&["--json", "disk", "show", "vm1"])?;
        check(shown.contains("\"detached\""), "a detached disk is still attached")?;
        daemon.attach("vm1")?;
        let read = read_working_set(place, &daemon, "warm", 1)?.number("sectors")? * 512;
        let warm_bytes = origin.bytes_read()? - cold_bytes;
        place.say(&format!("re-attached: {} of {} KiB read from the origin", warm_bytes >> 10, read >> 10));
        check(warm_bytes * 10 < read, "the cache was cold after the re-attach")?;

        daemon.stop()?;
        daemon.start_again()?;
        let before = origin.bytes_read()?;
        read_working_set(place, &daemon, "restarted", 1)?;
        let warm_bytes = origin.bytes_read()? - before;
        place.say(&format!("restarted: {} of {} KiB read from the origin", warm_bytes >> 10, read >> 10));
        check(warm_bytes * 10 < read, "the cache was cold after a restart")
    });
}

#[test]
fn a_detached_disk_is_whole_at_its_origin() {
    test("detach", |place| {
        let file = image::zeroes(place, "vm1.img", 64)?;
        let origin = Nbdkit::file(place, "origin", &file)?;
        let daemon = Haversack::start(place, Settings::new(256, vec![Disk::new("vm1", origin.uri())]))?;
        let mut guest = Guest::boot(place, "guest", &[daemon.vhost_user("vm1")])?;
        let digest = scenario::exercise(place, &mut guest, "vda", "vm1", "zeroes")?;
        guest.off()?;
        daemon.detach("vm1")?;
        scenario::same_digest(&file, &digest)
    });
}
