//! A clean stop of `haversackd` leaves a checkpoint, and the next start opens the pool from it: once, and only if it is
//! whole.

use std::path::PathBuf;

use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::{Error, Place, Result, clients, image, test, tools};

/// What the log says if the tables of a pool came from its checkpoint.
const OPENED: &str = "opened from the checkpoint of a clean stop in";
const PLACES: u64 = 16;

/// Commands for 64 KiB at some places of a disk.
fn at_places(command: &str) -> Vec<String> {
    (0..PLACES).map(|at| format!("{command} {} 64k", at * (1 << 20) + (at << 16))).collect()
}

fn run(daemon: &Haversack<'_>, command: &str) -> Result<()> {
    let commands = at_places(command);
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    clients::qemu_io(&daemon.uri("vm1"), &commands).map(|_| ())
}

/// The files of the checkpoint of a stopped daemon, one for each arena.
fn files(place: &Place, daemon: &Haversack<'_>) -> Result<Vec<PathBuf>> {
    let state = place.path("run").join("state");
    let entries = std::fs::read_dir(&state).map_err(Error::io(state.display().to_string()))?;
    let prefix = format!("checkpoint-{}", daemon.pool());
    let paths = entries.flatten().map(|entry| entry.path());
    Ok(paths
        .filter(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&prefix)))
        .collect())
}

/// How often the daemon has given a checkpoint up because it could not be written fast enough.
fn given_up(daemon: &Haversack<'_>) -> usize {
    daemon.log().matches("writing it is too slow to save time").count()
}

/// Stops the daemon cleanly, and returns the files of its checkpoint. If it has given the checkpoint up, it is started
/// and stopped again.
fn stop(place: &Place, daemon: &mut Haversack<'_>) -> Result<Vec<PathBuf>> {
    loop {
        let before = given_up(daemon);
        daemon.stop()?;
        if given_up(daemon) == before {
            return files(place, daemon);
        }
        place.say("the checkpoint was given up, because writing it was too slow");
        daemon.start_again()?;
    }
}

fn opened(daemon: &Haversack<'_>) -> usize {
    daemon.log().lines().filter(|line| line.contains(OPENED)).count()
}

#[test]
fn a_pool_opens_from_the_checkpoint_of_its_clean_stop() {
    test("checkpoint", |place| {
        let file = image::pattern(place, "vm1.img", "vm1", 64)?;
        let origin = Nbdkit::file(place, "origin", &file)?;
        let settings = Settings { arenas: 2, ..Settings::new(256, vec![Disk::new("vm1", origin.uri())]) };
        let mut daemon = Haversack::start(place, settings)?;
        run(&daemon, "write -P 0x42")?;

        check(stop(place, &mut daemon)?.len() == 2, "a clean stop leaves a file for each arena")?;
        let count = opened(&daemon);
        daemon.start_again()?;
        check(opened(&daemon) == count + 1, "the pool was not opened from its checkpoint")?;
        check(files(place, &daemon)?.is_empty(), "a checkpoint that was used is still there")?;
        let before = origin.bytes_read()?;
        run(&daemon, "read -P 0x42")?;
        check(origin.bytes_read()? == before, "what was written is not a hit after the start")?;
        place.say("opened from the checkpoint, and warm");

        run(&daemon, "write -P 0x43")?;
        daemon.kill()?;
        check(files(place, &daemon)?.is_empty(), "a kill leaves a checkpoint")?;
        daemon.start_again()?;
        check(opened(&daemon) == count + 1, "a killed daemon left a checkpoint that counts")?;
        run(&daemon, "read -P 0x43")?;
        place.say("nothing of it after a kill");

        let kept = stop(place, &mut daemon)?;
        check(kept.len() == 2, "a clean stop leaves a file for each arena")?;
        let count = opened(&daemon);
        let path = &kept[0];
        let length = std::fs::metadata(path).map_err(Error::io("the checkpoint"))?.len();
        let byte = image::take(path, length / 2, 1)?[0];
        image::put(path, length / 2, &[byte ^ 1])?;
        daemon.start_again()?;
        check(opened(&daemon) == count, "a damaged checkpoint was used")?;
        daemon.wait_for_log(&["the checkpoint of the clean stop is not used", "is damaged"])?;
        let events = daemon.command(&["events"])?;
        check(events.contains("checkpoint-refused"), "no event says why all metadata was read")?;
        run(&daemon, "read -P 0x43")?;
        place.say("a damaged one is refused, and everything is there");

        stop(place, &mut daemon)?;
        let count = opened(&daemon);
        let mut command = tools::own("haversack")?;
        command.args(["pool", "check"]).args(daemon.settings().device_files(place));
        tools::run(command)?;
        daemon.start_again()?;
        check(opened(&daemon) == count + 1, "a check of the stopped pool made its checkpoint void")?;
        run(&daemon, "read -P 0x43")
    });
}
