//! Guests on `haversackd` over vhost-user-blk.

use std::time::Duration;

use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::scenario::{self, Load};
use haversack_e2e::{Guest, image, test};

/// How often the daemon is killed under load.
const KILLS: u32 = 20;

#[test]
fn every_request_works_and_reaches_the_origin() {
    test("vhost-user", |place| {
        let file = image::pattern(place, "origin.img", "vm1", 64)?;
        let origin = Nbdkit::file(place, "origin", &file)?;
        let daemon = Haversack::start(place, Settings::new(256, vec![Disk::new("vm1", origin.uri())]))?;
        let mut guest = Guest::boot(place, "guest", &[daemon.vhost_user("vm1")])?;
        let digest = scenario::exercise(place, &mut guest, "vda", "vm1", "pattern")?;
        guest.off()?;
        daemon.command(&["disk", "flush", "vm1"])?;
        scenario::same_digest(&file, &digest)
    });
}

#[test]
fn a_load_on_two_disks_survives_kill_9() {
    test("kill -9 over vhost-user", |place| {
        let file = image::pattern(place, "vm1.img", "vm1", 64)?;
        let small = image::zeroes(place, "vm2.img", 32)?;
        let origin = Nbdkit::file(place, "origin", &file)?;
        let disks = vec![Disk::new("vm1", origin.uri()), Disk::new("vm2", small.display().to_string())];
        let settings = Settings { arenas: 2, ..Settings::new(256, disks) };
        let mut daemon = Haversack::start(place, settings)?;
        let mut guest = Guest::boot(place, "guest", &[daemon.vhost_user("vm1"), daemon.vhost_user("vm2")])?;
        guest.ask("open vda vm1 pattern")?;
        guest.ask("open vdb vm2 zeroes")?;
        let mut load = Load::start(place, &mut guest, &["vda", "vdb"], 1)?;
        for kill in 0..KILLS {
            load.advance(100)?;
            daemon.kill_and_restart(Duration::from_millis(u64::from(kill % 4) * 50))?;
        }
        place.say(&format!("killed and restarted {KILLS} times"));
        load.advance(100)?;
        load.stop()?;
        guest.off()
    });
}
