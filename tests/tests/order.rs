//! Disks with `order = "flush"`: their origins can be used at any moment, without the cache.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use haversack_e2e::connection::{Command, Connection};
use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::{Error, Guest, MIB, Place, Result, image, test, tools};
use haversack_model::random::Random;

/// Soon, so that the cleaner always has something in progress.
const CLEANER: &str = "cleaner = { order = \"flush\", age = \"100ms\", idle = \"100ms\" }";
/// How long the origin takes for a write: long enough to be met in the middle of many.
const ORIGIN_WRITE: &str = "wdelay=2ms";
const BLOCK: u64 = 4096;
/// How long I/O of a daemon that was paused may take to end.
const IN_FLIGHT: Duration = Duration::from_millis(50);

/// A daemon with one disk, its origin's server, and its image.
fn started(place: &Place, mebibytes: u64) -> Result<(Haversack<'_>, Nbdkit, PathBuf)> {
    let image = image::zeroes(place, "vm1.img", mebibytes)?;
    let path = image.display().to_string();
    let origin = Nbdkit::start(place, "origin", &["--filter=delay", "file", &path, ORIGIN_WRITE])?;
    let disk = Disk::new("vm1", origin.uri()).with(CLEANER);
    Ok((Haversack::start(place, Settings::new(128, vec![disk]))?, origin, image))
}

/// Numbered writes to random blocks, each with a flush.
#[derive(Default)]
struct Journal {
    /// The numbers of the writes of each block, ascending.
    of_blocks: HashMap<u64, Vec<u64>>,
    last: u64,
}

impl Journal {
    fn write(&mut self, connection: &mut Connection, block: u64) -> Result<()> {
        self.last += 1;
        let mut data = self.last.to_le_bytes().repeat(BLOCK as usize / 8);
        connection.ask(Command::Write, block * BLOCK, BLOCK as u32, &mut data)?;
        self.of_blocks.entry(block).or_default().push(self.last);
        connection.ask(Command::Flush, 0, 0, &mut [])
    }

    /// Fails unless the image is as after one of the writes. Returns which.
    fn find(&self, image: &Path) -> Result<u64> {
        let mut held = HashMap::new();
        for block in self.of_blocks.keys() {
            let bytes = image::take(image, block * BLOCK, BLOCK as usize)?;
            let number = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
            held.insert(*block, number);
        }
        let newest = held.values().copied().max().unwrap_or(0);
        for (block, numbers) in &self.of_blocks {
            let expected = numbers.iter().copied().filter(|number| *number <= newest).max().unwrap_or(0);
            let what =
                format!("block {block} has write {}, not {expected}; the newest is {newest}", held[block]);
            check(held[block] == expected, what)?;
        }
        Ok(newest)
    }
}

#[test]
fn an_origin_is_at_any_moment_as_a_flush_left_it() {
    test("order of flushes", |place| {
        let (mut daemon, _server, origin) = started(place, 64)?;
        let mut journal = Journal::default();
        let mut random = Random::new(11);
        let mut seen = Vec::new();
        for _ in 0..2 {
            let mut connection = Connection::open(&daemon.socket("nbd.sock"), "vm1")?;
            for _ in 0..8 {
                for _ in 0..random.range(20, 80) {
                    // Some blocks are written again and again, as those of a journal are.
                    let block =
                        if random.one_in(3) { random.below(4) } else { random.below(64 * MIB / BLOCK) };
                    journal.write(&mut connection, block)?;
                }
                daemon.process()?.pause()?;
                std::thread::sleep(IN_FLIGHT);
                seen.push(journal.find(&origin)?);
                daemon.process()?.resume()?;
            }
            daemon.kill()?;
            seen.push(journal.find(&origin)?);
            daemon.start_again()?;
        }
        place.say(&format!("the origin was as after writes {seen:?} of {}", journal.last));
        check(seen.is_sorted() && seen[2] > 0, "the origin goes back, or nothing is written to it")?;
        daemon.command(&["disk", "flush", "vm1"])?;
        check(journal.find(&origin)? == journal.last, "not everything is at the origin")?;
        let disk = daemon.json(&["disk", "show", "vm1"])?;
        check(disk["usage"]["origin_in_order"] == true, format!("not in order: {}", disk["usage"]))
    });
}

/// Has e2fsck replay the journal of a copy of the origin, and fails if anything else is wrong with it.
fn is_sound(place: &Place, origin: &Path) -> Result<()> {
    let copy = place.path("copy.img");
    std::fs::copy(origin, &copy).map_err(Error::io(copy.display().to_string()))?;
    let mut replay = tools::tool("e2fsck")?;
    replay.args(["-p", "-E", "journal_only"]).arg(&copy);
    tools::output(replay)?;
    let mut checked = tools::tool("e2fsck")?;
    checked.args(["-f", "-n"]).arg(&copy);
    let checked = tools::output(checked)?;
    check(checked.status.success(), format!("the file system at the origin is damaged: {checked:?}"))
}

#[test]
fn a_file_system_at_the_origin_needs_nothing_but_its_journal() {
    test("a file system in order", |place| {
        let (mut daemon, _server, origin) = started(place, 256)?;
        let mut guest = Guest::boot(place, "guest", &[daemon.vhost_user("vm1")])?;
        guest.ask("mkfs vda ext4")?;
        guest.ask("mount vda ext4")?;
        daemon.command(&["disk", "flush", "vm1"])?;
        for seed in 1..6 {
            guest.ask(&format!("fill {seed} 8"))?;
            daemon.process()?.pause()?;
            std::thread::sleep(IN_FLIGHT);
            is_sound(place, &origin)?;
            daemon.process()?.resume()?;
        }
        guest.ask("scribble")?;
        std::thread::sleep(Duration::from_secs(2));
        daemon.kill()?;
        is_sound(place, &origin)?;
        daemon.start_again()?;
        guest.ask("scribbled")?;
        guest.ask("umount")?;
        guest.ask("fsck vda ext4")?;
        guest.off()
    });
}
