//! The harness proves itself: what works passes, and wrong bytes and errors are noticed. The disks are served by
//! qemu-storage-daemon and nbdkit.

use std::time::Duration;

use haversack_e2e::error::check;
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::scenario::{self, Load};
use haversack_e2e::storage_daemon::StorageDaemon;
use haversack_e2e::tgt::Tgt;
use haversack_e2e::tools::PATIENCE;
use haversack_e2e::{Attachment, Error, Guest, clients, image, test};

/// Fails unless `result` is an error that mentions `what`.
fn must_notice<T>(result: haversack_e2e::Result<T>, what: &str) -> haversack_e2e::Result<()> {
    match result {
        Ok(_) => Err(Error::Check(format!("the harness has not noticed {what:?}"))),
        Err(error) => check(error.to_string().contains(what), format!("not about {what:?}: {error}")),
    }
}

#[test]
fn a_guest_works_on_vhost_user_and_notices_wrong_bytes() {
    test("wrong bytes", |place| {
        let file = image::pattern(place, "disk.img", "vm1", 32)?;
        let server = StorageDaemon::file(place, "vm1", &file)?;
        let mut guest = Guest::boot(place, "guest", &[server.vhost_user()])?;
        let digest = scenario::exercise(place, &mut guest, "vda", "vm1", "pattern")?;
        scenario::same_digest(&file, &digest)?;

        // A flipped bit, lost data and stale data, behind the server's back.
        let sound = image::take(&file, 1 << 20, 4096)?;
        let mut flipped = sound.clone();
        flipped[1000] ^= 1;
        image::put(&file, 1 << 20, &flipped)?;
        must_notice(scenario::verify(place, &mut guest, "vda"), "wrong=1")?;
        image::put(&file, 1 << 20, &[0; 4096])?;
        must_notice(scenario::verify(place, &mut guest, "vda"), "wrong=1")?;
        image::put(&file, 1 << 20, &sound)?;
        scenario::verify(place, &mut guest, "vda")?;
        let stale = image::take(&file, 0, 16 << 20)?;
        guest.ask("write vda 99 200")?.clean()?;
        image::put(&file, 0, &stale)?;
        must_notice(scenario::verify(place, &mut guest, "vda"), "expected version")?;
        guest.off()
    });
}

#[test]
fn a_load_survives_restarts_over_nbd_and_a_pause() {
    test("restarts over NBD", |place| {
        let file = image::zeroes(place, "disk.img", 32)?;
        let mut server = StorageDaemon::file(place, "vm1", &file)?;
        let mut guest = Guest::boot(place, "guest", &[server.nbd()])?;
        scenario::exercise(place, &mut guest, "vda", "vm1", "zeroes")?;
        let mut load = Load::start(place, &mut guest, &["vda"], 1)?;
        for _ in 0..3 {
            load.advance(200)?;
            server.kill()?;
            std::thread::sleep(Duration::from_millis(200));
            server = StorageDaemon::file(place, "vm1", &file)?;
        }
        place.say("killed and restarted 3 times");
        load.advance(200)?;
        server.process().pause()?;
        load.wait_for_stall(Duration::from_secs(2), Duration::from_secs(10))?;
        server.process().resume()?;
        load.advance(200)?;
        let answers = load.stop()?;
        check(answers[0].number("longest_ms")? >= 1500, "the guest has not noticed the pause")?;
        guest.off()
    });
}

#[test]
fn an_idle_guest_comes_back_over_vhost_user() {
    test("restart over vhost-user", |place| {
        let file = image::zeroes(place, "disk.img", 32)?;
        let mut server = StorageDaemon::file(place, "vm1", &file)?;
        let mut guest = Guest::boot(place, "guest", &[server.vhost_user()])?;
        guest.ask("open vda vm1 zeroes")?;
        for seed in 0..3 {
            guest.ask(&format!("write vda {seed} 100"))?.clean()?;
            server.kill()?;
            guest.begin("verify vda")?;
            server = StorageDaemon::file(place, "vm1", &file)?;
            guest.finish("verify vda", PATIENCE)?.clean()?;
        }
        guest.off()
    });
}

#[test]
fn a_guest_notices_errors_and_damage_in_passing() {
    test("errors", |place| {
        let faulty = Nbdkit::start(
            place,
            "faulty",
            &["--filter=error", "memory", "32M", "error=EIO", "error-pread-rate=5%", "error-pwrite-rate=5%"],
        )?;
        let disk = Attachment::Nbd { socket: faulty.socket().into(), export: String::new(), reconnect_s: 10 };
        // The kernel reads the disk as well when it finds it, and may meet errors there.
        let mut guest = Guest::boot(place, "guest", &[disk])?;
        guest.ask("open vda vm1 zeroes")?;
        let writes = guest.ask("write vda 1 400")?;
        check(writes.number("errors")? > 0, format!("no error in {writes}"))?;
        must_notice(writes.clean(), "errors")?;
        let mut load = Load::start(place, &mut guest, &["vda"], 1)?;
        load.advance(300)?;
        must_notice(load.stop(), "errors")?;
        must_notice(guest.no_complaints(), "I/O error")?;
        guest.off()
    });
}

#[test]
fn file_systems_are_made_filled_and_checked() {
    test("file systems", |place| {
        let files = [image::zeroes(place, "ext4.img", 320)?, image::zeroes(place, "xfs.img", 320)?];
        let ext4 = StorageDaemon::file(place, "ext4", &files[0])?;
        let xfs = StorageDaemon::file(place, "xfs", &files[1])?;
        let mut guest = Guest::boot(place, "guest", &[ext4.vhost_user(), xfs.nbd()])?;
        scenario::file_system(place, &mut guest, "vda", "ext4", 64)?;
        scenario::file_system(place, &mut guest, "vdb", "xfs", 64)?;
        for file in &files {
            image::put(file, 0, &[0x55; 8 << 20])?;
        }
        check(guest.ask("fsck vda ext4").is_err(), "e2fsck finds nothing wrong with a wiped disk")?;
        check(guest.ask("fsck vdb xfs").is_err(), "xfs_repair finds nothing wrong with a wiped disk")?;
        guest.off()
    });
}

#[test]
fn clients_agree_on_nbd_servers() {
    test("clients", |place| {
        let file = image::pattern(place, "disk.img", "vm1", 32)?;
        let name = file.display().to_string();
        let server = StorageDaemon::file(place, "vm1", &file)?;
        let info = clients::nbdinfo(&server.uri())?;
        check(info["exports"][0]["export-size"] == 32 << 20, format!("nbdinfo says {info}"))?;
        let copy = place.path("copy.img");
        clients::download(&server.uri(), &copy)?;
        scenario::same_digest(&copy, &image::digest(&file)?)?;
        clients::compare(&server.uri(), &name)?;
        image::put(&copy, 12345, b"!")?;
        must_notice(clients::compare(&server.uri(), &copy.display().to_string()), "mismatch")?;
        clients::qemu_io(
            &server.uri(),
            &["write -P 0x42 1000k 8k", "discard 0 64k", "flush", "read -P 0x42 1000k 8k"],
        )?;
        must_notice(clients::qemu_io(&server.uri(), &["read -P 0x43 1000k 8k"]), "verification failed")?;
        clients::fio_verify(&server.uri(), 32)?;
        drop(server);

        let forgetful = Nbdkit::start(place, "forgetful", &["null", "8M"])?;
        must_notice(clients::fio_verify(&forgetful.uri(), 8), "verify")?;
        forgetful.stop()?;

        let slow = Nbdkit::start(place, "slow", &["--filter=delay", "memory", "8M", "delay-read=20ms"])?;
        let start = std::time::Instant::now();
        clients::qemu_io(&slow.uri(), &["read 0 4k", "read 4k 4k", "read 8k 4k"])?;
        check(start.elapsed() >= Duration::from_millis(60), "nbdkit's delay has no effect")?;
        slow.stop()?;

        let counting = Nbdkit::file(place, "counting", &file)?;
        clients::qemu_io(&counting.uri(), &["read 0 4k", "read 8k 64k", "write 0 4k"])?;
        check(counting.bytes_read()? == 68 << 10, format!("{} bytes counted", counting.bytes_read()?))?;
        counting.stop()
    });
}

#[test]
fn tgt_serves_an_iscsi_disk() {
    test("iSCSI", |place| {
        let file = image::pattern(place, "disk.img", "vm1", 16)?;
        let target = Tgt::start(place, "tgt", &file, None)?;
        let server = StorageDaemon::start(place, "vm1", target.node())?;
        let mut guest = Guest::boot(place, "guest", &[server.nbd()])?;
        guest.ask("open vda vm1 pattern")?;
        guest.ask("write vda 1 200")?.clean()?;
        guest.ask("flush vda")?.clean()?;
        let digest = scenario::verify(place, &mut guest, "vda")?;
        let port = target.port();
        target.kill()?;
        guest.begin("verify vda")?;
        let _back = Tgt::start(place, "tgt", &file, Some(port))?;
        guest.finish("verify vda", PATIENCE)?.clean()?;
        guest.off()?;
        scenario::same_digest(&file, &digest)
    });
}
