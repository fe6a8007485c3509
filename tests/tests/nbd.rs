//! NBD clients of `haversackd`: a guest through QEMU's, and those that people use.

use std::time::Duration;

use haversack_e2e::connection::{Command, Connection};
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

/// A client that loses its connection asks for everything again on the next one, and then for something else: nothing
/// that it asked for on the first may happen after that.
#[test]
fn nothing_is_done_any_more_for_a_client_that_has_gone() {
    const DISK_MIB: u64 = 256;
    /// In the part of the disk that is discarded last.
    const WRITTEN_AT: u64 = 250 * MIB;
    /// The origin discards 8 MiB at a time, and the daemon 32 MiB.
    const DELAY: Duration = Duration::from_millis(100);
    test("a client that has gone", |place| {
        let file = image::zeroes(place, "origin.img", DISK_MIB)?;
        let delay = format!("delay-zero={}ms", DELAY.as_millis());
        let words = ["--filter=delay", "file", &file.display().to_string(), &delay];
        let origin = Nbdkit::start(place, "origin", &words)?;
        let disk = Disk { mode: "wt".into(), ..Disk::new("vm1", origin.uri()) };
        let daemon = Haversack::start(place, Settings::new(64, vec![disk]))?;
        let socket = daemon.socket("nbd.sock");

        let mut first = Connection::open(&socket, "vm1")?;
        first.send(Command::Trim, 0, (DISK_MIB * MIB) as u32, &[])?;
        std::thread::sleep(DELAY / 2);
        drop(first);

        let mut second = Connection::open(&socket, "vm1")?;
        let (mut written, mut read) = ([0x5a; 4096], [0; 4096]);
        second.ask(Command::Write, WRITTEN_AT, 4096, &mut written)?;
        std::thread::sleep(DELAY * (DISK_MIB / 8 + 8) as u32);
        second.ask(Command::Read, WRITTEN_AT, 4096, &mut read)?;
        check(read == written, "the write is gone: the discard of the first client went on after it")
    });
}
