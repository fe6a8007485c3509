//! NBD clients of `haversackd`: a guest through QEMU's, and those that people use.

use std::time::Duration;

use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::scenario::{self, Load};
use haversack_e2e::{Guest, MIB, clients, image, test};

/// How often the daemon is killed under load.
const KILLS: u32 = 20;

#[test]
fn a_guest_survives_kill_9_over_nbd() {
    test("kill -9 over NBD", |place| {
        let file = image::pattern(place, "origin.img", "vm1", 64)?;
        let origin = Nbdkit::file(place, "origin", &file)?;
        let mut daemon = Haversack::start(place, Settings::new(256, vec![Disk::new("vm1", origin.uri())]))?;
        let mut guest = Guest::boot(place, "guest", &[daemon.nbd("vm1")])?;
        scenario::exercise(place, &mut guest, "vda", "vm1", "pattern")?;
        let mut load = Load::start(place, &mut guest, &["vda"], 1)?;
        for kill in 0..KILLS {
            load.advance(100)?;
            daemon.kill_and_restart(Duration::from_millis(u64::from(kill % 4) * 50))?;
        }
        place.say(&format!("killed and restarted {KILLS} times"));
        load.advance(100)?;
        load.stop()?;
        let digest = scenario::verify(place, &mut guest, "vda")?;
        guest.off()?;
        daemon.command(&["disk", "flush", "vm1"])?;
        scenario::same_digest(&file, &digest)
    });
}

#[test]
fn clients_agree() {
    test("NBD clients", |place| {
        let file = image::pattern(place, "vm1.img", "vm1", 64)?;
        let empty = image::zeroes(place, "vm2.img", 32)?;
        let path = file.display().to_string();
        let disks = vec![Disk::new("vm1", &path), Disk::new("vm2", empty.display().to_string())];
        let daemon = Haversack::start(place, Settings::new(256, disks))?;
        let (pattern, scratch) = (daemon.uri("vm1"), daemon.uri("vm2"));

        let info = clients::nbdinfo(&pattern)?;
        check(info["exports"][0]["export-size"] == 64 * MIB, format!("nbdinfo says {info}"))?;
        for ability in ["can_flush", "can_fua", "can_multi_conn", "can_trim", "can_zero"] {
            check(info["exports"][0][ability] == true, format!("no {ability}: nbdinfo says {info}"))?;
        }
        clients::compare(&pattern, &path)?;
        let copy = place.path("copy.img");
        clients::download(&pattern, &copy)?;
        scenario::same_digest(&copy, &image::digest(&file)?)?;
        place.say("downloaded and compared");

        clients::fio_verify(&scratch, 32)?;
        clients::qemu_io(
            &scratch,
            &[
                "write -P 0x42 1000k 9k",
                "write -f -P 0x43 3000k 512",
                "write -z 1004k 1k",
                "flush",
                "read -P 0x42 1000k 4k",
                "read -P 0 1004k 1k",
                "read -P 0x42 1005k 4k",
                "read -P 0x43 3000k 512",
            ],
        )?;
        place.say("fio and qemu-io read what they wrote");

        let source = image::pattern(place, "source.img", "vm3", 32)?;
        clients::nbdcopy(&source.display().to_string(), &scratch)?;
        clients::compare(&scratch, &source.display().to_string())?;
        daemon.command(&["disk", "flush", "vm2"])?;
        scenario::same_digest(&empty, &image::digest(&source)?)
    });
}
