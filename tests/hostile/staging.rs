//! A staging file that root cuts short under the daemon: the process ends and says why; what is left is never data.

use std::fs::OpenOptions;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;

use haversack_e2e::connection::{Command, Connection};
use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings, pool_of};
use haversack_e2e::{Error, Place, Result, image, test};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 200;
/// The descriptors of 4096 frames and of the area itself, in whole pages; the frames follow.
const DESCRIPTORS_BYTES: u64 = 65 * 4096;

/// The staging file of the test's pool.
pub fn staging_file(place: &Place) -> Result<PathBuf> {
    let pool = pool_of(place);
    let entries = std::fs::read_dir("/dev/shm").map_err(Error::io("/dev/shm"))?.flatten();
    let mut found = entries.map(|entry| entry.path()).filter(|path| path.to_string_lossy().contains(&pool));
    found.next().ok_or_else(|| Error::Check(format!("no staging file of {pool} in /dev/shm")))
}

/// Writes, cuts the staging file to `keeps` bytes, perhaps makes it as long again, and reads.
fn cut_short(place: &Place, keeps: u64, grows_again: bool) -> Result<()> {
    let origin = image::zeroes(place, "vm1.img", 64)?;
    let settings = Settings::new(128, vec![Disk::new("vm1", origin.display().to_string())]);
    let mut daemon = Haversack::start(place, settings)?;
    let mut client = Connection::open(&daemon.socket("nbd.sock"), "vm1")?;
    for block in 0..BLOCKS {
        client.ask(Command::Write, block * BLOCK, BLOCK as u32, &mut [7; BLOCK as usize])?;
    }
    let path = staging_file(place)?;
    let file = OpenOptions::new().write(true).open(&path).map_err(Error::io(path.display().to_string()))?;
    let resize = |bytes| file.set_len(bytes).map_err(Error::io(path.display().to_string()));
    let bytes = file.metadata().map_err(Error::io("metadata"))?.len();
    resize(keeps)?;
    if grows_again {
        resize(bytes)?;
    }
    for block in 0..BLOCKS {
        let mut data = [1; BLOCK as usize];
        if client.ask(Command::Read, block * BLOCK, BLOCK as u32, &mut data).is_err() {
            break;
        }
        check(data == [7; BLOCK as usize], format!("block {block} is not what was written"))?;
        let written = client.ask(Command::Write, block * BLOCK, BLOCK as u32, &mut [7; BLOCK as usize]);
        if written.is_err() || client.ask(Command::Flush, 0, 0, &mut []).is_err() {
            break;
        }
    }
    let status = daemon.ended()?;
    check(status.signal().is_some(), format!("haversackd ended with {status}"))?;
    let words = ["the staging area", path.to_str().unwrap_or_default(), "lost pages"];
    daemon.wait_for_log(&words)
}

#[test]
fn a_staging_file_that_is_cut_short_ends_the_daemon_with_a_message() {
    test("a staging file that is cut short", |place| cut_short(place, 0, false));
}

#[test]
fn a_staging_file_without_its_frames_ends_the_daemon_with_a_message() {
    test("a staging file without frames", |place| cut_short(place, DESCRIPTORS_BYTES, false));
}

#[test]
fn a_staging_file_that_is_cut_short_and_made_long_again_is_never_zeroes() {
    test("a staging file that is cut short for a moment", |place| cut_short(place, 0, true));
}
