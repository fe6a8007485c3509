//! Mistakes with origins: a store that belongs to a pool or to another disk, whatever its name.

use std::path::Path;

use haversack_e2e::connection::{Command, Connection};
use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings, pool_of};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::{Error, Place, Result, image, test, tools};

/// Attaching a second disk to `origin` must be refused with these words.
fn refused(daemon: &Haversack, origin: &str, words: &[&str]) -> Result<()> {
    let attach = daemon.command(&["disk", "attach", "vm2", "--pool", &daemon.pool(), origin]);
    let complaint = match attach {
        Err(Error::Failed { output, .. }) => output,
        Err(error) => return Err(error),
        Ok(_) => return Err(Error::Check(format!("{origin} was taken as an origin"))),
    };
    check(words.iter().all(|word| complaint.contains(word)), format!("{origin}: {complaint}"))?;
    let listed = daemon.command(&["disk", "list"])?;
    check(!listed.contains("vm2"), format!("a refused disk is listed: {listed}"))
}

/// A file's other names: a symbolic link and a hard link.
fn other_names(file: &Path) -> Result<[String; 2]> {
    let (symbolic, hard) = (file.with_extension("symbolic"), file.with_extension("hard"));
    std::os::unix::fs::symlink(file, &symbolic).map_err(Error::io("a symbolic link"))?;
    std::fs::hard_link(file, &hard).map_err(Error::io("a hard link"))?;
    Ok([symbolic, hard].map(|path| path.display().to_string()))
}

fn write_and_flush(daemon: &Haversack, value: u8) -> Result<()> {
    let mut client = Connection::open(&daemon.socket("nbd.sock"), "vm1")?;
    for block in 0..256 {
        client.ask(Command::Write, block * 4096, 4096, &mut [value; 4096])?;
    }
    client.ask(Command::Flush, 0, 0, &mut [])
}

fn read_back(daemon: &Haversack, value: u8) -> Result<()> {
    let mut client = Connection::open(&daemon.socket("nbd.sock"), "vm1")?;
    for block in 0..256 {
        let mut data = [0; 4096];
        client.ask(Command::Read, block * 4096, 4096, &mut data)?;
        check(data == [value; 4096], format!("block {block} is not what was flushed"))?;
    }
    Ok(())
}

fn daemon(place: &Place) -> Result<Haversack<'_>> {
    let file = image::zeroes(place, "vm1.img", 64)?;
    Haversack::start(place, Settings::new(128, vec![Disk::new("vm1", file.display().to_string())]))
}

#[test]
fn parts_of_a_pool_are_no_origins() {
    test("a pool's parts as origins", |place| {
        let mut daemon = daemon(place)?;
        write_and_flush(&daemon, 7)?;
        let cache = place.path("cache.img");
        let staging = format!("/dev/shm/haversack-{}", pool_of(place));
        let json = format!(r#"qemu:{{"driver": "file", "filename": "{}"}}"#, cache.display());
        for origin in [cache.display().to_string(), staging, json].iter().chain(&other_names(&cache)?) {
            refused(&daemon, origin, &["pool"])?;
        }
        daemon.kill_and_restart(std::time::Duration::ZERO)?;
        read_back(&daemon, 7)
    });
}

#[test]
fn a_device_of_a_pool_that_is_not_open_is_no_origin() {
    test("another pool's device as an origin", |place| {
        let daemon = daemon(place)?;
        let other = place.path("other.img").display().to_string();
        daemon.command(&["pool", "create", "other", &other, "--size", "64M"])?;
        refused(&daemon, &other, &["cache device of pool", "origin_holds_pool"])?;
        // A guest that has made a pool on its disk keeps its disk.
        let attach = ["disk", "attach", "vm2", "--pool", &daemon.pool(), &other, "--origin-holds-pool"];
        daemon.command(&attach).map(|_| ())
    });
}

#[test]
fn one_image_is_one_disks() {
    test("one image for two disks", |place| {
        let daemon = daemon(place)?;
        let file = place.path("vm1.img");
        let path = file.display();
        let json = format!(r#"qemu:{{"driver": "raw", "file": {{"driver": "file", "filename": "{path}"}}}}"#);
        let qcow2 = format!("qcow2:{path}");
        for origin in
            [path.to_string(), format!("file:{path}"), json, qcow2].iter().chain(&other_names(&file)?)
        {
            refused(&daemon, origin, &["vm1", "one writer"])?;
        }
        Ok(())
    });
}

#[test]
fn one_export_is_one_disks() {
    test("one export of an NBD server for two disks", |place| {
        let server = Nbdkit::start(place, "server", &["memory", "64M"])?;
        let (socket, uri) = (place.path("server.sock"), server.uri());
        let daemon = Haversack::start(place, Settings::new(128, vec![Disk::new("vm1", uri.clone())]))?;
        let of = |socket: &str| format!("nbd+unix:///disk?socket={socket}");
        let server = format!(r#"{{"type": "unix", "path": "{}"}}"#, socket.display());
        let json = format!(r#"qemu:{{"driver": "nbd", "export": "disk", "server": {server}}}"#);
        for origin in [uri, json].into_iter().chain(other_names(&socket)?.map(|name| of(&name))) {
            refused(&daemon, &origin, &["vm1", "one writer"])?;
        }
        Ok(())
    });
}

#[test]
fn an_image_that_another_process_writes_is_refused() {
    test("an image in use", |place| {
        let daemon = daemon(place)?;
        let file = image::zeroes(place, "vm2.img", 64)?;
        let node = format!("driver=file,node-name=disk,filename={}", file.display());
        let mut qemu = tools::tool("qemu-storage-daemon")?;
        let ready = place.path("qsd.pid");
        qemu.arg("--nbd-server")
            .arg(format!("addr.type=unix,addr.path={}", place.path("qsd.sock").display()));
        qemu.args(["--blockdev", &node, "--export", "nbd,id=e,node-name=disk,writable=on"]);
        qemu.arg("--pidfile").arg(&ready);
        let mut user = haversack_e2e::process::Process::start(place, "qsd", &qemu)?;
        user.wait_for_file(&ready)?;
        refused(&daemon, &file.display().to_string(), &["in use by process", "qemu"])?;
        user.kill()?;
        daemon
            .command(&["disk", "attach", "vm2", "--pool", &daemon.pool(), &file.display().to_string()])
            .map(|_| ())
    });
}

#[test]
fn an_image_is_locked_against_qemu() {
    test("QEMU on an image in use", |place| {
        let _daemon = daemon(place)?;
        let mut convert = tools::tool("qemu-io")?;
        convert.args(["-f", "raw", "-c", "write 0 4096"]).arg(place.path("vm1.img"));
        match tools::run(convert) {
            Err(Error::Failed { output, .. }) => check(output.contains("lock"), output),
            Err(error) => Err(error),
            Ok(output) => Err(Error::Check(format!("QEMU wrote to an image in use: {output}"))),
        }
    });
}

#[test]
fn a_second_daemon_does_not_get_an_image_in_use() {
    test("one image, two daemons", |place| {
        let daemon = daemon(place)?;
        write_and_flush(&daemon, 9)?;
        let origin = place.path("vm1.img").display().to_string();
        let devices = [place.path("second.img").display().to_string()];
        daemon.command(&["pool", "create", "second", &devices[0], "--size", "64M"])?;
        let text = format!(
            "[daemon]\nruntime_dir = {0:?}\nstate_dir = {0:?}\n[[pool]]\nname = \"second-{1}\"\ndevices = {2:?}\n\
             [[disk]]\nname = \"vm1\"\npool = \"second-{1}\"\norigin = {3:?}\n",
            place.path("second"),
            daemon.pool(),
            devices,
            origin
        );
        let path = place.path("second.toml");
        std::fs::write(&path, text).map_err(Error::io("the second configuration"))?;
        let mut command = tools::own("haversackd")?;
        command.arg("--config").arg(&path);
        let process = haversack_e2e::process::Process::start(place, "second", &command)?;
        tools::wait_until("the refusal", tools::PATIENCE, || {
            let log = std::fs::read_to_string(place.path("second.log")).unwrap_or_default();
            Ok(log.contains("not attached") && log.contains("in use by process"))
        })?;
        process.kill()?;
        let _ = std::fs::remove_file(format!("/dev/shm/haversack-second-{}", daemon.pool()));
        Ok(())
    });
}

/// What a check of a configuration complains of.
fn complaint(place: &Place, text: &str) -> Result<String> {
    let path = place.path("check.toml");
    std::fs::write(&path, text).map_err(Error::io("a configuration"))?;
    let mut command = tools::own("haversackd")?;
    command.arg("--check-config").arg("--config").arg(&path);
    match tools::run(command) {
        Err(Error::Failed { output, .. }) => Ok(output),
        Err(error) => Err(error),
        Ok(_) => Err(Error::Check(format!("taken:\n{text}"))),
    }
}

#[test]
fn a_configuration_with_one_store_twice_is_refused() {
    test("--check-config with one store twice", |place| {
        let file = image::zeroes(place, "vm1.img", 64)?;
        let [symbolic, _] = other_names(&file)?;
        let cache = place.path("cache.img");
        std::fs::write(&cache, "").map_err(Error::io("a file"))?;
        let pool = format!("[[pool]]\nname = \"p\"\ndevices = [{cache:?}]\n");
        let disk = |name: &str, origin: &str| {
            format!("[[disk]]\nname = \"{name}\"\npool = \"p\"\norigin = \"{origin}\"\n")
        };
        let file = file.display().to_string();
        let twice = complaint(place, &format!("{pool}{}{}", disk("a", &file), disk("b", &symbolic)))?;
        check(twice.contains("line 8") && twice.contains("'a'"), twice)?;
        let [symbolic, _] = other_names(&cache)?;
        let own = complaint(place, &format!("{pool}{}", disk("a", &symbolic)))?;
        check(own.contains("part of pool 'p'"), own)
    });
}

#[test]
fn a_reload_with_one_store_twice_changes_nothing() {
    test("a reload with one store twice", |place| {
        let daemon = daemon(place)?;
        let origin = place.path("vm1.img").display().to_string();
        let more =
            format!("\n[[disk]]\nname = \"vm2\"\npool = \"{}\"\norigin = \"{origin}\"\n", daemon.pool());
        daemon.reload(&(daemon.configuration() + &more))?;
        daemon.wait_for_log(&["reload refused", "one writer"])?;
        let listed = daemon.command(&["disk", "list"])?;
        check(listed.contains("vm1") && !listed.contains("vm2"), listed)
    });
}

#[test]
fn flush_offline_does_not_write_to_a_cache_device() {
    test("flush-offline to the cache device", |place| {
        let mut daemon = daemon(place)?;
        write_and_flush(&daemon, 3)?;
        daemon.kill()?;
        let cache = place.path("cache.img").display().to_string();
        let [symbolic, _] = other_names(Path::new(&cache))?;
        for origin in [&cache, &symbolic] {
            let mut flush = tools::own("haversack")?;
            flush.args(["flush-offline", "vm1", "--origin", origin, "--confirm", "vm1"]);
            flush.args(["--different-origin", "vm1", &cache]);
            match tools::run(flush) {
                Err(Error::Failed { output, .. }) => check(output.contains("cache device"), output)?,
                Err(error) => return Err(error),
                Ok(_) => return Err(Error::Check("the cache device was taken as the origin".into())),
            }
        }
        daemon.start_again()?;
        read_back(&daemon, 3)
    });
}
