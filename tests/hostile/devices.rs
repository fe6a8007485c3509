//! Cache devices that are files and are truncated under a running daemon: an error for that device, and never wrong
//! bytes.

use std::fs::OpenOptions;
use std::path::Path;

use haversack_e2e::connection::{Command, Connection};
use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::{Error, MIB, Place, Result, image, test};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 3000;
const CACHE_MIB: u64 = 64;
/// Disables automatic cleaning.
const LAZY: &str = "cleaner = { low_watermark = 0.9, high_watermark = 0.95, dirty_limit = 1.0, age = \"10000h\", idle = \"10000h\" }";

/// What is done to the file.
#[derive(Clone, Copy, Debug)]
enum Truncation {
    Emptied,
    /// Cut off in the middle of what was written.
    Shortened,
    /// Emptied and made as long again: nothing but zeroes.
    Zeroed,
}

const TRUNCATIONS: [Truncation; 3] = [Truncation::Emptied, Truncation::Shortened, Truncation::Zeroed];

impl Truncation {
    fn damage(self, path: &Path) -> Result<()> {
        let file = OpenOptions::new().write(true).open(path);
        let file = file.map_err(Error::io(path.display().to_string()))?;
        let resize = |bytes| file.set_len(bytes).map_err(Error::io(path.display().to_string()));
        match self {
            Truncation::Emptied => resize(0),
            Truncation::Shortened => resize(CACHE_MIB * MIB / 4),
            Truncation::Zeroed => resize(0).and_then(|()| resize(CACHE_MIB * MIB)),
        }
    }

    /// Returns what the daemon's log must say.
    fn expected_log(self) -> &'static str {
        match self {
            Truncation::Emptied | Truncation::Shortened => "the file was truncated",
            Truncation::Zeroed => "fails its checksum",
        }
    }
}

fn daemon<'a>(place: &'a Place, devices: &[&str]) -> Result<Haversack<'a>> {
    let mut disks = Vec::new();
    for (name, mode) in [("dirty", "wb"), ("clean", "wt")] {
        let file = image::zeroes(place, &format!("{name}.img"), 64)?;
        disks.push(Disk { mode: mode.into(), ..Disk::new(name, file.display().to_string()).with(LAZY) });
    }
    let mut settings = Settings::new(CACHE_MIB, disks);
    settings.devices = devices.iter().map(|device| (*device).to_owned()).collect();
    settings.redundancy = devices.len() > 1;
    Haversack::start(place, settings)
}

fn content(block: u64, version: u8) -> [u8; BLOCK] {
    let mut bytes = [version; BLOCK];
    bytes[..8].copy_from_slice(&block.to_le_bytes());
    bytes
}

fn connect(daemon: &Haversack, disk: &str) -> Result<Connection> {
    Connection::open(&daemon.socket("nbd.sock"), disk)
}

fn write(client: &mut Connection, block: u64, version: u8) -> Result<()> {
    client.ask(Command::Write, block * BLOCK as u64, BLOCK as u32, &mut content(block, version))
}

/// Reads all blocks. Returns how many answered with an error; the others are as they were written.
fn errors(client: &mut Connection, version: u8) -> Result<usize> {
    let mut errors = 0;
    for block in 0..BLOCKS {
        let mut data = [0; BLOCK];
        match client.ask(Command::Read, block * BLOCK as u64, BLOCK as u32, &mut data) {
            Ok(()) => {
                check(data == content(block, version), format!("block {block} is not what was written"))?;
            }
            Err(Error::Refused { .. }) => errors += 1,
            Err(error) => return Err(error),
        }
    }
    Ok(errors)
}

fn fill(daemon: &Haversack, disk: &str) -> Result<Connection> {
    let mut client = connect(daemon, disk)?;
    (0..BLOCKS).try_for_each(|block| write(&mut client, block, 1))?;
    client.ask(Command::Flush, 0, 0, &mut [])?;
    Ok(client)
}

#[test]
fn a_device_that_is_cut_short_is_an_error_and_never_wrong_bytes() {
    for truncation in TRUNCATIONS {
        test(&format!("the only device is {truncation:?}"), |place| {
            let daemon = daemon(place, &["cache.img"])?;
            let [mut dirty, mut clean] = [fill(&daemon, "dirty")?, fill(&daemon, "clean")?];
            truncation.damage(&place.path("cache.img"))?;
            let lost = errors(&mut dirty, 1)?;
            place.say(&format!("{lost} of {BLOCKS} dirty blocks are lost"));
            check(lost > 0, "nothing is lost, so nothing was tried")?;
            check(errors(&mut clean, 1)? == 0, "what the origin has cannot be read")?;
            daemon.wait_for_log(&[truncation.expected_log()])?;
            // Whatever is left of the cache, what is written now is there.
            for client in [&mut dirty, &mut clean] {
                (0..BLOCKS).try_for_each(|block| write(client, block, 2))?;
                client.ask(Command::Flush, 0, 0, &mut [])?;
                check(errors(client, 2)? == 0, "what was written afterwards cannot be read")?;
            }
            daemon.command(&["disk", "list"]).map(|_| ())
        });
    }
}

#[test]
fn one_of_two_devices_that_is_cut_short_costs_nothing() {
    for truncation in TRUNCATIONS {
        test(&format!("one of two devices is {truncation:?}"), |place| {
            let daemon = daemon(place, &["one.img", "two.img"])?;
            let [mut dirty, mut clean] = [fill(&daemon, "dirty")?, fill(&daemon, "clean")?];
            truncation.damage(&place.path("one.img"))?;
            for client in [&mut dirty, &mut clean] {
                check(errors(client, 1)? == 0, "something is lost")?;
                (0..BLOCKS).try_for_each(|block| write(client, block, 2))?;
                client.ask(Command::Flush, 0, 0, &mut [])?;
                check(errors(client, 2)? == 0, "something is lost that was written afterwards")?;
            }
            daemon.wait_for_log(&[truncation.expected_log()])
        });
    }
}
