//! Pools that earlier versions of the format left are opened by the present daemon, with everything in them: see
//! `tests/pools/README.md`.

use std::path::PathBuf;

use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::{Error, MIB, Place, Result, clients, image, test, tools};

/// The size of the disk, in MiB.
const DISK_MIB: u64 = 64;
/// What the origin has everywhere, and the cache nowhere.
const OF_ORIGIN: u8 = 0xee;

/// What the pools have of their disk: the byte, where it begins, and for how many bytes.
fn cached() -> Vec<(u8, u64, u64)> {
    let pieces = (0..8).map(|at: u8| (0x50 + at, u64::from(at) * 7 * MIB, 64 << 10));
    // Three sectors of a block; the others were not written.
    pieces.chain([(0x61, 59 * MIB, 1536)]).collect()
}

/// Reads by `qemu-io` that fail unless the disk has what the pools have of it.
fn reads() -> Vec<String> {
    cached().iter().map(|(byte, offset, length)| format!("read -P {byte} {offset} {length}")).collect()
}

fn run(disk: &str, commands: &[String]) -> Result<()> {
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    clients::qemu_io(disk, &commands).map(|_| ())
}

/// Unpacks a device of a pool into the test's place.
fn unpack(place: &Place, version: &str, name: &str) -> Result<()> {
    let packed = tools::workspace().join("tests/pools").join(version).join(format!("{name}.xz"));
    let copy = place.path(format!("{name}.xz"));
    std::fs::copy(&packed, &copy).map_err(Error::io(packed.display().to_string()))?;
    let mut xz = tools::tool("xz")?;
    xz.arg("--decompress").arg(&copy);
    tools::run(xz).map(|_| ())
}

/// An origin that has nothing of what is cached.
fn other_origin(place: &Place) -> Result<PathBuf> {
    let path = place.path("vm1.img");
    let bytes = vec![OF_ORIGIN; (DISK_MIB * MIB) as usize];
    std::fs::write(&path, bytes).map_err(Error::io(path.display().to_string()))?;
    Ok(path)
}

/// Opens a pool, and expects all of its dirty blocks: first from the cache, then at the origin.
fn opens(place: &Place, version: &str, devices: &[&str]) -> Result<()> {
    for device in devices {
        unpack(place, version, device)?;
    }
    let origin = other_origin(place)?.display().to_string();
    let disk = Disk::new("vm1", &origin).with("accept_origin_change = \"vm1\"");
    let settings = Settings {
        devices: devices.iter().map(|device| (*device).to_owned()).collect(),
        redundancy: devices.len() > 1,
        ..Settings::new(0, vec![disk])
    };
    let mut daemon = Haversack::start_on_devices(place, settings)?;
    run(&daemon.uri("vm1"), &reads())?;
    let of_origin = [
        // The rest of the block of which the cache has three sectors.
        format!("read -P {OF_ORIGIN} {} {}", 59 * MIB + 1536, 4096 - 1536),
        format!("read -P {OF_ORIGIN} {} 64k", 2 * MIB),
    ];
    run(&daemon.uri("vm1"), &of_origin)?;
    daemon.command(&["disk", "flush", "vm1"])?;
    daemon.stop()?;
    run(&origin, &[reads(), of_origin.to_vec()].concat())?;
    place.say("every block is there");

    let whole = image::digest(&place.path("vm1.img"))?;
    daemon.start_again()?;
    run(&daemon.uri("vm1"), &reads())?;
    daemon.stop()?;
    check(image::digest(&place.path("vm1.img"))? == whole, "a second start has changed the origin")
}

#[test]
fn a_pool_of_version_5_that_was_stopped_opens() {
    test("version 5, stopped", |place| opens(place, "v5", &["stopped.img"]));
}

#[test]
fn a_pool_of_version_5_that_lost_its_power_opens() {
    test("version 5, killed, without its staging area", |place| opens(place, "v5", &["killed.img"]));
}

#[test]
fn a_pool_of_version_5_with_redundancy_opens() {
    test("version 5, redundancy", |place| opens(place, "v5", &["mirrored-1.img", "mirrored-2.img"]));
}
