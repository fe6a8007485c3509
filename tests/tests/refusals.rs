//! What `haversackd` refuses, and how it says so.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;

use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::tools::PATIENCE;
use haversack_e2e::{Error, Place, Result, clients, image, test, tools};

/// Checks that a daemon with these settings does not start, and that its error contains all of `words`.
fn refused(place: &Place, settings: Settings, words: &[&str]) -> Result<()> {
    match Haversack::start(place, settings) {
        Ok(_) => Err(Error::Check(format!("haversackd has started; it was to complain of {words:?}"))),
        Err(error) => {
            let text = error.to_string();
            let missing = words.iter().find(|word| !text.contains(**word));
            missing.map_or(Ok(()), |word| Err(Error::Check(format!("{word:?} is not in: {text}"))))
        }
    }
}

#[test]
fn an_unknown_key_is_refused_with_its_line() {
    test("unknown key", |place| {
        let file = image::zeroes(place, "vm1.img", 16)?;
        let mut settings = Settings::new(64, vec![Disk::new("vm1", file.display().to_string())]);
        settings.more = "colour = \"blue\"\n".to_owned();
        let line = settings
            .text(place, "run")
            .lines()
            .position(|line| line.starts_with("colour"))
            .map_or(0, |at| at + 1);
        refused(place, settings, &["colour", &line.to_string()])
    });
}

#[test]
fn a_pool_in_use_is_refused() {
    test("pool in use", |place| {
        let file = image::zeroes(place, "vm1.img", 16)?;
        let settings = Settings::new(64, vec![Disk::new("vm1", file.display().to_string())]);
        let first = Haversack::start(place, settings)?;
        let complaint = first.second_daemon()?;
        let told = complaint.contains("cache.img") && complaint.contains("(haversackd)");
        check(told, format!("the device and its user are not named: {complaint}"))?;
        first.command(&["disk", "show", "vm1"]).map(|_| ())
    });
}

#[test]
fn a_pool_that_cannot_be_opened_leaves_the_others_alone_and_is_tried_again() {
    test("a broken pool", |place| {
        let (file, other) = (image::zeroes(place, "vm1.img", 16)?, image::zeroes(place, "vm2.img", 16)?);
        let device = place.path("late.img").display().to_string();
        let broken = format!("{}-late", haversack_e2e::haversack::pool_of(place));
        let mut settings = Settings::new(64, vec![Disk::new("vm1", file.display().to_string())]);
        settings.more = format!(
            "\n[[pool]]\nname = \"{broken}\"\ndevices = [{device:?}]\nstaging = \"1MiB\"\n\
             \n[[disk]]\nname = \"vm2\"\npool = \"{broken}\"\norigin = {:?}\n\
             \n[policy]\nallocator = \"equal\"\n",
            other.display()
        );
        let mut daemon = Haversack::start(place, settings)?;
        works(&daemon)?;
        let pool = daemon.json(&["pool", "status", &broken])?;
        let said = pool["error"].as_str().unwrap_or_default();
        check(pool["state"] == "failed" && said.contains("late.img"), format!("the pool: {pool}"))?;
        let disk = daemon.json(&["disk", "show", "vm2"])?;
        let said = disk["error"].as_str().unwrap_or_default();
        check(disk["state"] == "waiting" && said.contains("late.img"), format!("its disk: {disk}"))?;
        let status = daemon.command(&["status"])?;
        check(status.contains("failed") && status.contains("not open: "), format!("the status: {status}"))?;

        let mut create = tools::own("haversack")?;
        create.args(["pool", "create", &broken, &device, "--size", "64M"]);
        tools::run(create)?;
        tools::wait_until("vm2 attached", PATIENCE, || {
            Ok(daemon.json(&["disk", "show", "vm2"])?["state"] == "attached")
        })?;
        check(daemon.json(&["pool", "status", &broken])?["state"] == "ok", "the pool is not open")?;
        clients::qemu_io(&daemon.uri("vm2"), &["write -P 5 1M 1M", "flush"])?;
        tools::wait_until("vm2 under the policy", PATIENCE, || {
            Ok(daemon.json(&["disk", "show", "vm2"])?["policy"]["disk"] == "vm2")
        })?;
        daemon.stop()?;
        let log = daemon.log();
        let clean = log.lines().filter(|line| line.contains("stopped cleanly")).count();
        check(clean == 2, format!("{clean} of 2 pools stopped cleanly"))
    });
}

/// What a client of `vm1` sees, while others are in trouble.
fn works(daemon: &Haversack<'_>) -> Result<()> {
    clients::qemu_io(&daemon.uri("vm1"), &["write -P 7 1M 1M", "flush", "read -P 7 1M 1M"]).map(|_| ())
}

#[test]
fn the_staging_area_is_resized_only_after_a_clean_stop() {
    test("staging area", |place| {
        let file = image::zeroes(place, "vm1.img", 16)?;
        let settings = Settings::new(64, vec![Disk::new("vm1", file.display().to_string())]);
        let mut daemon = Haversack::start(place, settings)?;
        works(&daemon)?;
        daemon.kill()?;
        daemon.settings().staging_mib = 8;
        let error = daemon.start_again().err().map(|error| error.to_string()).unwrap_or_default();
        check(error.contains("set the configured size back"), format!("the start: {error:?}"))?;
        daemon.settings().staging_mib = 16;
        daemon.start_again()?;
        daemon.stop()?;
        daemon.settings().staging_mib = 8;
        daemon.start_again()?;
        clients::qemu_io(&daemon.uri("vm1"), &["read -P 7 1M 1M"]).map(|_| ())
    });
}

#[test]
fn an_origin_that_is_too_small_waits_until_it_is_not() {
    test("small origins", |place| {
        let files = ["vm1", "vm2", "vm3"].map(|name| image::zeroes(place, &format!("{name}.img"), 16));
        let [file, small, remote] = files;
        let (small, remote) = (small?, remote?);
        let server = Nbdkit::file(place, "origin", &remote)?;
        let disks = vec![
            Disk::new("vm1", file?.display().to_string()),
            Disk::new("vm2", small.display().to_string()).with("size = \"32MiB\"").unattachable(),
            Disk::new("vm3", server.uri()).with("size = \"32MiB\"").unattachable(),
        ];
        let daemon = Haversack::start(place, Settings::new(64, disks))?;
        for disk in ["vm2", "vm3"] {
            daemon.wait_for_log(&[
                "not attached",
                disk,
                "16777216 bytes, the disk needs 33554432",
                "enlarge",
            ])?;
            check(
                daemon.json(&["disk", "show", disk])?["state"] == "waiting",
                format!("{disk} does not wait"),
            )?;
        }
        works(&daemon)?;
        let larger = std::fs::OpenOptions::new().write(true).open(&small);
        larger.and_then(|file| file.set_len(32 << 20)).map_err(Error::io("vm2.img"))?;
        tools::wait_until("vm2 attached", PATIENCE, || {
            Ok(daemon.json(&["disk", "show", "vm2"])?["state"] == "attached")
        })?;
        clients::qemu_io(&daemon.uri("vm2"), &["read -P 0 31M 1M"]).map(|_| ())
    });
}

#[test]
fn nonsense_on_a_socket_ends_that_connection_alone() {
    test("nonsense", |place| {
        let file = image::zeroes(place, "vm1.img", 16)?;
        let disks = vec![
            Disk::new("vm1", file.display().to_string()),
            Disk::new("vm2", image::zeroes(place, "vm2.img", 16)?.display().to_string()),
        ];
        let daemon = Haversack::start(place, Settings::new(64, disks))?;
        for socket in ["nbd.sock", "vm2.sock", "control.sock"] {
            for nonsense in [vec![0xff; 4096], vec![0; 4096], b"GET / HTTP/1.1\r\n\r\n".to_vec()] {
                let mut stream = UnixStream::connect(daemon.socket(socket)).map_err(Error::io(socket))?;
                // The daemon may hang up before it has taken everything.
                let _ = stream.write_all(&nonsense);
            }
        }
        works(&daemon)?;
        check(daemon.json(&["disk", "show", "vm2"])?["state"] == "attached", "vm2 is gone")
    });
}

#[test]
fn a_full_file_system_is_reported() {
    test("full file systems", |place| {
        let file = image::zeroes(place, "vm1.img", 16)?;
        let small = place.path("small");
        std::fs::create_dir(&small).map_err(Error::io("a directory"))?;
        let mut create = tools::own("haversack")?;
        create.args(["pool", "create", "main", "--size", "64M"]).arg(small.join("cache.img"));
        let output = tools::output(tools::with_small_file_system(&create, &small, "16m")?)?;
        let told = output.stderr.contains("small/cache.img") && output.stderr.contains("No space left");
        check(output.status.code() == Some(1) && told, format!("a pool that does not fit: {output:?}"))?;

        let mut settings = Settings::new(64, vec![Disk::new("vm1", file.display().to_string())]);
        settings.small = Some((Path::new("/dev/shm").to_owned(), "4m".to_owned()));
        refused(place, settings, &["/dev/shm/haversack-", "No space left"])
    });
}

#[test]
fn a_state_file_that_cannot_be_written_is_reported() {
    test("full state directory", |place| {
        let file = image::zeroes(place, "vm1.img", 16)?;
        let other = image::zeroes(place, "vm2.img", 16)?.display().to_string();
        let mut settings = Settings::new(64, vec![Disk::new("vm1", file.display().to_string())]);
        let state = place.path("run/state");
        std::fs::create_dir_all(&state).map_err(Error::io("a directory"))?;
        // A page for each of two files: what is there cannot be replaced.
        settings.small = Some((state, "8k".to_owned()));
        let daemon = Haversack::start(place, settings)?;
        works(&daemon)?;
        let attach = daemon.command(&["disk", "attach", "vm2", &other, "--pool", &daemon.pool()]);
        let told = attach.err().map(|error| error.to_string()).unwrap_or_default();
        check(
            told.contains("state.json") && told.contains("No space left"),
            format!("the attach: {told:?}"),
        )?;
        check(daemon.command(&["disk", "show", "vm2"]).is_err(), "vm2 is there all the same")?;
        works(&daemon)
    });
}

#[test]
fn a_store_without_space_loses_nothing() {
    test("full store", |place| {
        let file = image::zeroes(place, "vm2.img", 16)?;
        let (path, full) = (file.display().to_string(), place.path("full"));
        let trigger = format!("error-file={}", full.display());
        let store = [
            "--filter=error",
            "file",
            &path,
            "error=ENOSPC",
            "error-pwrite-rate=100%",
            "error-zero-rate=100%",
            &trigger,
        ];
        let origin = Nbdkit::start(place, "origin", &store)?;
        let disks = vec![
            Disk::new("vm1", image::zeroes(place, "vm1.img", 16)?.display().to_string()),
            Disk::new("vm2", origin.uri()),
        ];
        let daemon = Haversack::start(place, Settings::new(64, disks))?;
        std::fs::write(&full, "").map_err(Error::io("the trigger"))?;
        clients::qemu_io(&daemon.uri("vm2"), &["write -P 9 0 8M", "flush"])?;
        let flush = daemon.command(&["disk", "flush", "vm2"]).err().map(|error| error.to_string());
        check(flush.as_ref().is_some_and(|text| text.contains("origin")), format!("the flush: {flush:?}"))?;
        works(&daemon)?;
        clients::qemu_io(&daemon.uri("vm2"), &["read -P 9 0 8M"])?;
        std::fs::remove_file(&full).map_err(Error::io("the trigger"))?;
        daemon.command(&["disk", "flush", "vm2"])?;
        clients::qemu_io(&path, &["read -P 9 0 8M"]).map(|_| ())
    });
}
