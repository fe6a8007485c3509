//! Mistakes with pools: devices that contain data, are the wrong ones, or no longer exist.

use std::path::Path;
use std::process::Command;

use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::{Error, MIB, Place, Result, image, test, tools};

/// `haversack pool` without a daemon.
fn pool(arguments: &[&str]) -> Result<String> {
    let mut command = tools::own("haversack")?;
    command.arg("pool").args(arguments);
    tools::run(command)
}

/// Returns the error output of a command. It is an error if the command succeeds.
fn complaint(result: Result<String>) -> Result<String> {
    match result {
        Err(Error::Failed { output, .. }) => Ok(output),
        Err(error) => Err(error),
        Ok(output) => Err(Error::Check(format!("it was done: {output}"))),
    }
}

fn refused(result: Result<String>, words: &[&str]) -> Result<()> {
    let complaint = complaint(result)?;
    check(words.iter().all(|word| complaint.contains(word)), complaint)
}

fn bytes_of(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(Error::io(path.display().to_string()))
}

/// A file with a file system.
fn file_system(place: &Place, name: &str) -> Result<String> {
    let path = image::zeroes(place, name, 64)?;
    let mut make = Command::new("mke2fs");
    make.args(["-q", "-L", "precious"]).arg(&path);
    tools::run(make)?;
    Ok(path.display().to_string())
}

#[test]
fn a_pool_is_not_made_over_data() {
    test("pool create over data", |place| {
        let precious = file_system(place, "precious.img")?;
        let before = bytes_of(Path::new(&precious))?;
        refused(pool(&["create", "main", &precious]), &["file system (ext", "precious", "--force"])?;
        let made = place.path("made.img").display().to_string();
        refused(pool(&["create", "main", &made, &precious, "--size", "64M"]), &["file system"])?;
        check(!Path::new(&made).exists(), "a failed create leaves a file")?;
        check(bytes_of(Path::new(&precious))? == before, "a refused device was written to")?;
        pool(&["create", "main", &precious, "--force"])?;
        refused(pool(&["create", "other", &precious, "--force"]), &["already carries pool", "wipe"])
    });
}

#[test]
fn a_pool_is_not_made_of_what_is_too_small() {
    test("pool create of a small file", |place| {
        let made = place.path("made.img").display().to_string();
        refused(pool(&["create", "main", &made, "--size", "1M"]), &["at least"])?;
        check(!Path::new(&made).exists(), "a failed create leaves a file")
    });
}

#[test]
fn a_device_with_data_is_not_added() {
    test("pool add over data", |place| {
        let origin = image::zeroes(place, "vm1.img", 64)?.display().to_string();
        let daemon = Haversack::start(place, Settings::new(64, vec![Disk::new("vm1", &origin)]))?;
        let precious = file_system(place, "precious.img")?;
        let add = |device: &str| daemon.command(&["pool", "add", &daemon.pool(), device]);
        refused(add(&precious), &["file system (ext", "--force"])?;
        refused(add(&origin), &["origin of disk 'vm1'"])?;
        let small = place.path("small.img").display().to_string();
        refused(daemon.command(&["pool", "add", &daemon.pool(), &small, "--size", "1M"]), &["at least"])?;
        check(!Path::new(&small).exists(), "a failed add leaves a file")?;
        daemon.command(&["pool", "add", &daemon.pool(), &precious, "--force"]).map(|_| ())
    });
}

#[test]
fn a_device_is_wiped_only_by_its_name() {
    test("pool wipe", |place| {
        let origin = image::zeroes(place, "vm1.img", 64)?.display().to_string();
        let mut daemon = Haversack::start(place, Settings::new(64, vec![Disk::new("vm1", &origin)]))?;
        let cache = place.path("cache.img").display().to_string();
        refused(pool(&["wipe", &cache, "--confirm", &cache]), &["in use by process"])?;
        daemon.stop()?;
        refused(pool(&["wipe", &origin, "--confirm", &origin]), &["nothing to wipe"])?;
        refused(pool(&["wipe", &cache]), &["not confirmed"])?;
        refused(pool(&["wipe", &cache, "--confirm", "cache"]), &["not confirmed"])?;
        pool(&["check", &cache])?;
        pool(&["wipe", &cache, "--confirm", &cache])?;
        let start = bytes_of(Path::new(&cache))?;
        check(start[..MIB as usize].iter().all(|byte| *byte == 0), "a wiped device is not blank")?;
        pool(&["create", "main", &cache]).map(|_| ())
    });
}
