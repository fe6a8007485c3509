//! Mistakes with the devices of a pool: devices that are not listed, gone, moved, blank, or of another pool.

use std::path::Path;
use std::time::Duration;

use haversack_e2e::connection::{Command, Connection};
use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::process::Process;
use haversack_e2e::tools::PATIENCE;
use haversack_e2e::{Error, Place, Result, image, test, tools};

pub(crate) const BLOCKS: u64 = 2000;

pub(crate) fn start<'a>(place: &'a Place, devices: &[&str], redundancy: bool) -> Result<Haversack<'a>> {
    let origin = image::zeroes(place, "vm1.img", 64)?.display().to_string();
    // Disable automatic cleaning, so that a loss is visible.
    let disk = Disk::new("vm1", origin).with("cleaner = { idle = \"10000h\", age = \"10000h\" }");
    let mut settings = Settings::new(64, vec![disk]);
    settings.devices = devices.iter().map(ToString::to_string).collect();
    settings.redundancy = redundancy;
    Haversack::start(place, settings)
}

pub(crate) fn write(daemon: &Haversack, value: u8) -> Result<()> {
    let mut client = Connection::open(&daemon.socket("nbd.sock"), "vm1")?;
    for block in 0..BLOCKS {
        client.ask(Command::Write, block * 4096, 4096, &mut [value; 4096])?;
    }
    client.ask(Command::Flush, 0, 0, &mut [])
}

pub(crate) fn read_back(daemon: &Haversack, value: u8) -> Result<()> {
    let mut client = Connection::open(&daemon.socket("nbd.sock"), "vm1")?;
    for block in 0..BLOCKS {
        let mut data = [0; 4096];
        client.ask(Command::Read, block * 4096, 4096, &mut data)?;
        check(data == [value; 4096], format!("block {block} is not what was flushed"))?;
    }
    Ok(())
}

fn list(daemon: &mut Haversack, devices: &[&str]) {
    daemon.settings().devices = devices.iter().map(ToString::to_string).collect();
}

fn move_file(place: &Place, from: &str, to: &str) -> Result<()> {
    std::fs::rename(place.path(from), place.path(to)).map_err(Error::io(from.to_string()))
}

/// Starts a daemon that must fail, and returns its error output.
fn complaint(place: &Place, daemon: &Haversack) -> Result<String> {
    let path = place.path("haversackd.toml");
    std::fs::write(&path, daemon.configuration()).map_err(Error::io("the configuration"))?;
    let mut command = tools::own("haversackd")?;
    command.arg("--config").arg(&path);
    let mut process = Process::start(place, "given-up", &command)?;
    match process.wait_for(PATIENCE, || Ok(false)) {
        Err(Error::Failed { output, .. }) => Ok(output),
        Err(error) => Err(error),
        Ok(()) => Err(Error::Check("the daemon runs".into())),
    }
}

fn pool_status(daemon: &Haversack) -> Result<String> {
    daemon.command(&["pool", "status", &daemon.pool()])
}

#[test]
fn a_device_that_was_added_is_found_without_being_listed() {
    test("pool add is remembered", |place| {
        let mut daemon = start(place, &["one.img"], false)?;
        let two = place.path("two.img").display().to_string();
        daemon.command(&["pool", "add", &daemon.pool(), &two, "--size", "64M"])?;
        write(&daemon, 5)?;
        daemon.kill_and_restart(Duration::ZERO)?;
        read_back(&daemon, 5)?;
        check(pool_status(&daemon)?.contains("two.img"), "the device that was added is not in use")?;
        place.say("found where it was; now it is moved");
        daemon.kill()?;
        move_file(place, "two.img", "moved.img")?;
        daemon.start_again()?;
        read_back(&daemon, 5)?;
        check(pool_status(&daemon)?.contains("moved.img"), "a device that was moved is not found")
    });
}

#[test]
fn a_device_that_was_removed_may_stay_listed() {
    test("pool remove is remembered", |place| {
        let mut daemon = start(place, &["one.img", "two.img"], false)?;
        write(&daemon, 6)?;
        let two = place.path("two.img").display().to_string();
        daemon.command(&["pool", "remove", &daemon.pool(), &two])?;
        daemon.kill_and_restart(Duration::ZERO)?;
        read_back(&daemon, 6)?;
        let status = pool_status(&daemon)?;
        check(!status.contains("two.img") && !status.contains("missing"), status)
    });
}

#[test]
fn a_device_that_replaced_the_listed_one_is_found() {
    test("a listed device was replaced", |place| {
        let mut daemon = start(place, &["one.img"], false)?;
        write(&daemon, 7)?;
        let (one, two) =
            (place.path("one.img").display().to_string(), place.path("two.img").display().to_string());
        daemon.command(&["pool", "add", &daemon.pool(), &two, "--size", "64M"])?;
        daemon.command(&["pool", "remove", &daemon.pool(), &one])?;
        write(&daemon, 8)?;
        daemon.kill_and_restart(Duration::ZERO)?;
        read_back(&daemon, 8)
    });
}

#[test]
fn a_pattern_lists_the_devices() {
    test("devices by a pattern", |place| {
        let mut daemon = start(place, &["one.img", "two.img"], false)?;
        write(&daemon, 9)?;
        daemon.kill()?;
        list(&mut daemon, &["*.img"]);
        daemon.start_again()?;
        read_back(&daemon, 9)
    });
}

/// Puts something in the place of a device.
type StandIn<'a> = &'a dyn Fn(&Path) -> std::io::Result<()>;

/// The device is not there, is blank, and is another pool's: each time the pool starts degraded.
#[test]
fn a_redundant_pool_starts_without_one_of_its_devices() {
    test("a redundant pool with one device", |place| {
        let mut daemon = start(place, &["one.img", "two.img"], true)?;
        write(&daemon, 10)?;
        daemon.kill()?;
        let other = place.path("other.img").display().to_string();
        let mut create = tools::own("haversack")?;
        create.args(["pool", "create", "other", &other, "--size", "64M"]);
        tools::run(create)?;
        std::fs::create_dir(place.path("aside")).map_err(Error::io("a directory"))?;
        move_file(place, "one.img", "aside/one.img")?;
        let stand_ins: [(&str, StandIn); 3] = [
            ("nothing", &|_| Ok(())),
            ("a blank file", &|path| std::fs::write(path, vec![0; 64 << 20])),
            ("another pool's device", &|path| std::fs::copy(&other, path).map(|_| ())),
        ];
        for (what, stand_in) in stand_ins {
            place.say(what);
            let path = place.path("one.img");
            let _ = std::fs::remove_file(&path);
            stand_in(&path).map_err(Error::io(what))?;
            daemon.start_again()?;
            read_back(&daemon, 10)?;
            let status = pool_status(&daemon)?;
            check(status.contains("degraded"), &status)?;
            // Once the pool was opened without the device, the device no longer counts as missing.
            let missed = status.contains("missing: device 0")
                && status.contains("one.img when the pool was opened on 2");
            check(missed == (what == "nothing"), status)?;
            daemon.kill()?;
        }
        let log = daemon.log();
        check(
            log.contains("carries no pool") && log.contains("of another pool"),
            "what is listed is not explained",
        )
    });
}

#[test]
fn an_indispensable_device_is_named_by_where_it_was() {
    test("an indispensable device is missing", |place| {
        let mut daemon = start(place, &["one.img", "two.img"], false)?;
        write(&daemon, 11)?;
        daemon.kill()?;
        std::fs::create_dir(place.path("aside")).map_err(Error::io("a directory"))?;
        move_file(place, "two.img", "aside/two.img")?;
        let said = complaint(place, &daemon)?;
        check(
            said.contains("two.img when the pool was opened on 2") && said.contains("bring it back"),
            &said,
        )?;
        check(!said.contains("create"), &said)?;
        std::fs::write(place.path("two.img"), vec![0; 64 << 20]).map_err(Error::io("a blank file"))?;
        let said = complaint(place, &daemon)?;
        check(
            said.contains("is missing") && said.contains("carries no pool") && !said.contains("create"),
            &said,
        )?;
        move_file(place, "aside/two.img", "two.img")?;
        daemon.start_again()?;
        read_back(&daemon, 11)
    });
}

#[test]
fn an_impostor_listed_first_is_named_in_the_error() {
    test("an impostor first", |place| {
        let mut daemon = start(place, &["one.img"], false)?;
        write(&daemon, 12)?;
        daemon.kill()?;
        let other = place.path("other.img").display().to_string();
        let mut create = tools::own("haversack")?;
        create.args(["pool", "create", "other", &other, "--size", "64M"]);
        tools::run(create)?;
        list(&mut daemon, &["other.img", "one.img"]);
        daemon.start_again()?;
        read_back(&daemon, 12)?;
        let log = daemon.log();
        check(
            log.lines().any(|l| l.contains("other.img") && l.contains("of another pool")),
            "no word of the impostor",
        )
    });
}

/// The cache of a disk belongs to the image that it was attached with.
#[test]
fn a_disk_does_not_get_the_cache_of_another_image() {
    test("another image for a cached disk", |place| {
        let mut daemon = start(place, &["one.img"], false)?;
        write(&daemon, 13)?;
        daemon.kill()?;
        let first = daemon.settings().disks[0].clone();
        let other = image::zeroes(place, "other.img", 64)?.display().to_string();
        let attach_other = |daemon: &mut Haversack, origin: &str| -> Result<()> {
            daemon.settings().disks[0] = Disk { origin: origin.into(), ..first.clone() }.unattachable();
            daemon.start_again()?;
            daemon.wait_for_log(&["not attached", "of another origin", "vm1.img"])?;
            daemon.kill()
        };
        attach_other(&mut daemon, &other)?;
        place.say("another path is refused; now another file of the same name");
        move_file(place, "vm1.img", "right.img")?;
        move_file(place, "other.img", "vm1.img")?;
        attach_other(&mut daemon, &first.origin)?;
        let untouched = std::fs::read(place.path("vm1.img")).map_err(Error::io("the other image"))?;
        check(untouched.iter().all(|byte| *byte == 0), "the other image was written to")?;
        move_file(place, "right.img", "vm1.img")?;
        daemon.settings().disks[0] = first;
        daemon.start_again()?;
        read_back(&daemon, 13)
    });
}
