//! Cache devices of `haversackd` that fail under guests, and what is left of a pool then.

use std::path::PathBuf;

use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::scenario::Load;
use haversack_e2e::tools::PATIENCE;
use haversack_e2e::{Error, Guest, Place, Result, clients, image, scenario, test, tools};

/// Has the device `faulty:FILE` fail from now on as `how` says.
fn fail(place: &Place, file: &str, how: &str) -> Result<()> {
    let path = place.path(format!("{file}.fault"));
    std::fs::write(&path, how).map_err(Error::io(path.display().to_string()))
}

/// Makes a device work again.
fn mend(place: &Place, file: &str) -> Result<()> {
    let path = place.path(format!("{file}.fault"));
    std::fs::remove_file(&path).map_err(Error::io(path.display().to_string()))
}

fn wait_for_pool(daemon: &Haversack<'_>, state: &str) -> Result<()> {
    let pool = daemon.pool();
    tools::wait_until(&format!("a pool that is {state}"), PATIENCE, || {
        Ok(daemon.json(&["pool", "status", &pool])?["state"] == state)
    })
}

fn disk(place: &Place, name: &str, mode: &str) -> Result<(Disk, PathBuf)> {
    let file = image::zeroes(place, &format!("{name}.img"), 32)?;
    let disk = Disk { mode: mode.to_owned(), ..Disk::new(name, file.display().to_string()) };
    Ok((disk, file))
}

#[test]
fn with_two_copies_guests_do_not_notice_that_devices_fail() {
    test("two devices", |place| {
        let ((first, file), (second, _)) = (disk(place, "vm1", "wb")?, disk(place, "vm2", "wt")?);
        let mut settings = Settings::new(128, vec![first, second]);
        settings.devices = vec!["faulty:a.img".to_owned(), "faulty:b.img".to_owned()];
        (settings.redundancy, settings.arenas) = (true, 2);
        let daemon = Haversack::start(place, settings)?;
        let mut guest = Guest::boot(place, "guest", &[daemon.vhost_user("vm1"), daemon.nbd("vm2")])?;
        guest.ask("open vda vm1 zeroes")?;
        guest.ask("open vdb vm2 zeroes")?;
        let mut load = Load::start(place, &mut guest, &["vda", "vdb"], 1)?;
        load.advance(200)?;
        fail(place, "a.img", "read")?;
        load.advance(200)?;
        fail(place, "a.img", "gone")?;
        wait_for_pool(&daemon, "degraded")?;
        load.advance(200)?;
        place.say("one device is gone");

        let third = place.path("c.img").display().to_string();
        daemon.command(&["pool", "add", &daemon.pool(), &third, "--size", "128M"])?;
        wait_for_pool(&daemon, "ok")?;
        place.say("another one has taken its place");
        fail(place, "b.img", "write flush")?;
        wait_for_pool(&daemon, "degraded")?;
        load.advance(200)?;
        load.stop()?;
        let digest = scenario::verify(place, &mut guest, "vda")?;
        guest.off()?;
        daemon.command(&["disk", "flush", "vm1"])?;
        scenario::same_digest(&file, &digest)
    });
}

#[test]
fn guests_continue_without_wrong_bytes_when_the_last_device_is_lost() {
    test("the last device", |place| {
        let ((through, file), (back, _)) = (disk(place, "vm1", "wt")?, disk(place, "vm2", "wb")?);
        let mut settings = Settings::new(128, vec![through, back]);
        settings.devices = vec!["faulty:cache.img".to_owned()];
        settings.arenas = 2;
        let mut daemon = Haversack::start(place, settings)?;
        let mut guest = Guest::boot(place, "guest", &[daemon.vhost_user("vm1"), daemon.vhost_user("vm2")])?;
        guest.ask("open vda vm1 zeroes")?;
        guest.ask("open vdb vm2 zeroes")?;
        for disk in ["vda", "vdb"] {
            guest.ask(&format!("start {disk} 1 mixed"))?;
        }
        let requests = |guest: &mut Guest, disk| guest.ask(&format!("progress {disk}"))?.number("requests");
        tools::wait_until("dirty blocks", PATIENCE, || {
            let shown = daemon.json(&["disk", "show", "vm2"])?;
            Ok(shown["usage"]["dirty_bytes"].as_u64() > Some(0) && requests(&mut guest, "vda")? > 200)
        })?;
        fail(place, "cache.img", "gone")?;
        wait_for_pool(&daemon, "lost")?;
        place.say("the only device is gone");
        let before = [requests(&mut guest, "vda")?, requests(&mut guest, "vdb")?];
        tools::wait_until("requests without a device", PATIENCE, || {
            let now = [requests(&mut guest, "vda")?, requests(&mut guest, "vdb")?];
            Ok((0..2).all(|disk| now[disk] > before[disk] + 100))
        })?;
        guest.ask("stop vda")?.clean()?;
        let written_back = guest.ask("stop vdb")?;
        place.say(&format!("written back: {written_back}"));
        check(written_back.number("wrong")? == 0, "wrong bytes where only errors may be")?;
        let digest = scenario::verify(place, &mut guest, "vda")?;
        let shown = daemon.json(&["disk", "show", "vm2"])?;
        check(shown["errors"]["lost_blocks"].as_u64() > Some(0), format!("nothing dirty was lost: {shown}"))?;
        guest.off()?;
        scenario::same_digest(&file, &digest)?;

        // The device is back, with what it had before the origins went on.
        mend(place, "cache.img")?;
        daemon.kill()?;
        daemon.settings().disks[1].attachable = false;
        daemon.start_again()?;
        daemon.wait_for_log(&["all cache devices were lost"])?;
        daemon.wait_for_log(&["not attached", "vm2"])?;
        clients::compare(&daemon.uri("vm1"), &file.display().to_string())?;
        place.say("the device that is back counts no more");
        let vm2 = daemon.json(&["disk", "show", "vm2"])?;
        let said = vm2["error"].as_str().unwrap_or_default();
        check(said.contains("accept"), format!("nothing says how to go on with vm2: {vm2}"))?;
        accept_loss(place, &mut daemon)
    });
}

/// Starts the daemon with the loss of `vm2` accepted, and reads all of the disk.
fn accept_loss(place: &Place, daemon: &mut Haversack<'_>) -> Result<()> {
    daemon.stop()?;
    let disk = &mut daemon.settings().disks[1];
    (disk.more, disk.attachable) = ("accept_loss = \"vm2\"\n".to_owned(), true);
    daemon.start_again()?;
    clients::download(&daemon.uri("vm2"), &place.path("vm2-copy.img"))?;
    clients::compare(&daemon.uri("vm2"), &place.path("vm2.img").display().to_string())
}

#[test]
fn without_redundancy_a_lost_device_takes_only_what_was_on_it() {
    test("one copy", |place| {
        let (disk, file) = disk(place, "vm1", "wb")?;
        let disk = Disk { more: "cleaner = { age = \"10000h\", idle = \"10000h\" }\n".to_owned(), ..disk };
        let mut settings = Settings::new(128, vec![disk]);
        settings.devices = vec!["faulty:a.img".to_owned(), "faulty:b.img".to_owned()];
        let mut daemon = Haversack::start(place, settings)?;
        clients::qemu_io(&daemon.uri("vm1"), &["write -P 0x11 0 8M", "flush"])?;
        fail(place, "b.img", "gone")?;
        clients::qemu_io(&daemon.uri("vm1"), &["write -P 0x22 8M 4M", "flush"])?;
        daemon.wait_for_log(&["data-lost", "vm1"])?;
        let events = daemon.command(&["events", "vm1"])?;
        place.say(&events);
        daemon.kill()?;
        daemon.settings().disks[0].attachable = false;
        daemon.start_again()?;
        daemon.wait_for_log(&["not attached", "vm1", "lost with a cache device"])?;
        daemon.stop()?;
        let disk = &mut daemon.settings().disks[0];
        (disk.more, disk.attachable) = ("accept_loss = \"vm1\"\n".to_owned(), true);
        daemon.start_again()?;
        let copy = place.path("vm1-copy.img");
        clients::download(&daemon.uri("vm1"), &copy)?;
        let count = |value: u8| -> Result<usize> {
            let bytes = image::take(&copy, 0, 12 << 20)?;
            Ok(bytes.chunks(4096).filter(|block| block.iter().all(|byte| *byte == value)).count())
        };
        let (old, new, lost) = (count(0x11)?, count(0x22)?, count(0)?);
        place.say(&format!("{old} blocks were on the device that is left, {lost} were on the other"));
        check(new == 1024 && old > 0 && lost > 0 && old + lost == 2048, "blocks are neither kept nor lost")?;
        let told = events.contains(&format!("data-lost  vm1: {} bytes", lost * 4096));
        check(told, "it is not told what is lost")?;
        daemon.command(&["disk", "flush", "vm1"])?;
        clients::compare(&copy.display().to_string(), &file.display().to_string())
    });
}

#[test]
fn reads_that_fail_are_read_from_the_origin() {
    test("failing reads", |place| {
        let (through, _) = disk(place, "vm1", "wt")?;
        let mut settings = Settings::new(128, vec![through]);
        settings.devices = vec!["faulty:cache.img".to_owned()];
        let daemon = Haversack::start(place, settings)?;
        clients::fio_verify(&daemon.uri("vm1"), 8)?;
        fail(place, "cache.img", "read")?;
        clients::fio_verify(&daemon.uri("vm1"), 8)?;
        let metrics = daemon.json(&["status"])?;
        let pool = &metrics["pools"][0];
        let noticed = pool["state"] == "lost" || pool["devices"][0]["errors"].as_u64() > Some(0);
        check(noticed, format!("errors are not counted: {pool}"))
    });
}
