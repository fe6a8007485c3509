//! What an operator, an image and a helper can open when the daemon is confined: nothing but what its configuration
//! names.

use std::path::Path;
use std::time::Duration;

use haversack_e2e::connection::Connection;
use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::{Error, Place, Result, image, test, tools};

/// What every refusal says.
const OUTSIDE: [&str; 2] = ["is outside of the sandbox", "[sandbox] paths of haversackd.toml"];

/// The table, with one directory of the place.
fn table(place: &Place, directory: &str) -> String {
    format!("[sandbox]\npaths = [\"{}\"]\n", place.path(directory).display())
}

fn make_directory(place: &Place, name: &str) -> Result<()> {
    std::fs::create_dir(place.path(name)).map_err(Error::io(name.to_owned()))
}

/// A confined daemon, with a disk outside of `paths`, which its configuration names, and the directory `images` inside.
fn start(place: &Place) -> Result<Haversack<'_>> {
    make_directory(place, "images")?;
    let file = image::zeroes(place, "vm1.img", 16)?;
    let mut settings = Settings::new(64, vec![Disk::new("vm1", file.display().to_string())]);
    settings.more = table(place, "images");
    Haversack::start(place, settings)
}

fn attach(daemon: &Haversack<'_>, origin: &str, more: &[&str]) -> Result<String> {
    let pool = daemon.pool();
    daemon.command(&[&["disk", "attach", "vm2", origin, "--pool", &pool], more].concat())
}

/// Attaching a second disk must be refused with these words, and leaves nothing behind.
fn refused(daemon: &Haversack<'_>, origin: &str, more: &[&str], words: &[&str]) -> Result<()> {
    let complaint = match attach(daemon, origin, more) {
        Err(Error::Failed { output, .. }) => output,
        Err(error) => return Err(error),
        Ok(_) => return Err(Error::Check(format!("{origin} {more:?} was accepted"))),
    };
    check(words.iter().all(|word| complaint.contains(word)), format!("{origin}: {complaint}"))?;
    let listed = daemon.command(&["disk", "list"])?;
    check(!listed.contains("vm2"), format!("a refused disk is listed: {listed}"))
}

fn client(daemon: &Haversack<'_>, disk: &str) -> Result<Connection> {
    Connection::open(&daemon.socket("nbd.sock"), disk)
}

/// Makes a qcow2 image, with another file behind it if one is given.
fn qcow2(place: &Place, name: &str, backing: Option<(&Path, &str)>) -> Result<String> {
    let path = place.path(name);
    let mut create = tools::tool("qemu-img")?;
    create.args(["create", "-q", "-f", "qcow2"]);
    if let Some((backing, format)) = backing {
        // With -u, the backing file is not opened for its size, so it may be anything.
        create.arg("-u").arg("-b").arg(backing).args(["-F", format]);
    }
    tools::run({
        create.arg(&path).arg("16M");
        create
    })?;
    Ok(format!("qcow2:{}", path.display()))
}

#[test]
fn an_origin_is_inside_or_refused() {
    test("origins of a confined daemon", |place| {
        let mut daemon = start(place)?;
        client(&daemon, "vm1")?.fill_durably(0..64, 1)?;
        let outside = image::zeroes(place, "outside.img", 16)?;
        let link = place.path("images/link");
        std::os::unix::fs::symlink(&outside, &link).map_err(Error::io("a link"))?;
        place.say("files outside, what the daemon itself has, and a link to outside");
        let own = ["haversackd.toml", "run/state/state.json", "cache.img"].map(|name| place.path(name));
        for path in
            [&outside, &link, Path::new("/etc/hostname")].into_iter().chain(own.iter().map(AsRef::as_ref))
        {
            let origin = path.display().to_string();
            refused(&daemon, &origin, &[], &OUTSIDE)?;
            refused(&daemon, &origin, &["--read-only"], &OUTSIDE)?;
            refused(&daemon, &format!("qcow2:{origin}"), &[], &OUTSIDE)?;
        }
        place.say("an image that is created after the start, inside");
        let inside = image::zeroes(place, "images/vm2.img", 16)?.display().to_string();
        attach(&daemon, &inside, &[])?;
        client(&daemon, "vm2")?.fill_durably(0..64, 2)?;
        let status = daemon.json(&["status"])?;
        check(status["sandbox"]["landlock"].as_u64() >= Some(1), status["sandbox"].to_string())?;
        check(
            daemon.command(&["status"])?.contains("sandbox: configured disks and"),
            "no word in the status",
        )?;
        place.say("both are back after a kill");
        daemon.kill_and_restart(Duration::ZERO)?;
        client(&daemon, "vm1")?.check_filled(0..64, 1)?;
        client(&daemon, "vm2")?.check_filled(0..64, 2)?;
        daemon.command(&["disk", "flush", "vm2"])?;
        check(
            image::take(Path::new(&inside), 0, 4096)? == [2; 4096],
            "the origin does not have what was flushed",
        )?;
        daemon.stop()
    });
}

#[test]
fn nothing_is_created_outside() {
    test("sockets and devices of a confined daemon", |place| {
        let mut daemon = start(place)?;
        make_directory(place, "elsewhere")?;
        let inside = image::zeroes(place, "images/vm2.img", 16)?.display().to_string();
        let socket = place.path("elsewhere/vm2.sock");
        refused(&daemon, &inside, &["--vhost-user", &socket.display().to_string()], &OUTSIDE)?;
        check(!socket.exists(), "a socket was created outside")?;
        let device = place.path("elsewhere/second.img");
        let (pool, path) = (daemon.pool(), device.display().to_string());
        let complaint = daemon.refused(&["pool", "add", &pool, &path, "--size", "64M"])?;
        check(OUTSIDE.iter().all(|word| complaint.contains(word)), &complaint)?;
        check(!device.exists(), "a device was created outside")?;
        place.say("inside it is, and is found again");
        let inside_device = place.path("images/second.img").display().to_string();
        daemon.command(&["pool", "add", &pool, &inside_device, "--size", "64M"])?;
        let socket = place.path("images/vm2.sock").display().to_string();
        attach(&daemon, &inside, &["--vhost-user", &socket])?;
        daemon.kill_and_restart(Duration::ZERO)?;
        let status = daemon.json(&["pool", "status", &pool])?;
        check(status["devices"].as_array().is_some_and(|devices| devices.len() == 2), status.to_string())?;
        check(status["state"] == "ok", status.to_string())
    });
}

#[test]
fn a_helper_opens_what_is_inside_only() {
    test("a helper of a confined daemon", |place| {
        let mut daemon = start(place)?;
        let outside = image::zeroes(place, "outside.img", 16)?;
        place.say("images with a file outside behind them");
        let behind = [
            outside,
            place.path("run/state/state.json"),
            place.path("haversackd.toml"),
            place.path("cache.img"),
        ];
        for (number, path) in behind.iter().enumerate() {
            let origin = qcow2(place, &format!("images/bad{number}.qcow2"), Some((path, "raw")))?;
            refused(&daemon, &origin, &[], &["Permission denied", "[sandbox] paths"])?;
        }
        place.say("an image with another one behind it, both inside");
        qcow2(place, "images/base.qcow2", None)?;
        let origin = qcow2(place, "images/vm2.qcow2", Some((&place.path("images/base.qcow2"), "qcow2")))?;
        attach(&daemon, &origin, &[])?;
        client(&daemon, "vm2")?.fill_durably(0..64, 3)?;
        daemon.command(&["disk", "flush", "vm2"])?;
        place.say("also after a kill of the helper, and of the daemon");
        check(daemon.kill_helpers()? == 1, "there is not one helper")?;
        client(&daemon, "vm2")?.fill_durably(64..128, 4)?;
        daemon.command(&["disk", "flush", "vm2"])?;
        daemon.kill_and_restart(Duration::ZERO)?;
        client(&daemon, "vm2")?.check_filled(0..64, 3)?;
        client(&daemon, "vm2")?.check_filled(64..128, 4)?;
        daemon.stop()
    });
}

#[test]
fn a_sandbox_changes_at_the_next_start_only() {
    test("the table of a confined daemon", |place| {
        let mut daemon = start(place)?;
        make_directory(place, "more")?;
        let origin = image::zeroes(place, "more/vm2.img", 16)?.display().to_string();
        let images = place.path("images");
        let wider =
            format!("[sandbox]\npaths = [\"{}\", \"{}\"]\n", images.display(), place.path("more").display());
        daemon.settings().more = wider;
        daemon.reload(&daemon.configuration())?;
        daemon.wait_for_log(&["[sandbox] has changed", "next start"])?;
        refused(&daemon, &origin, &[], &OUTSIDE)?;
        daemon.stop()?;
        daemon.start_again()?;
        attach(&daemon, &origin, &[])?;
        place.say("a path that is not there");
        daemon.settings().more = table(place, "nowhere");
        let path = place.path("check.toml");
        std::fs::write(&path, daemon.configuration()).map_err(Error::io("a configuration"))?;
        let mut check_config = tools::own("haversackd")?;
        check_config.arg("--check-config").arg("--config").arg(&path);
        match tools::run(check_config) {
            Err(Error::Failed { output, .. }) => check(output.contains("must be there"), output),
            other => Err(Error::Check(format!("it was accepted: {other:?}"))),
        }
    });
}
