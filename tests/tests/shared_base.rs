//! Guests on disks that were made from one base image: its blocks are cached once for all of them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use haversack_e2e::ceph::Ceph;
use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::scenario::{self, Load};
use haversack_e2e::storage_daemon::StorageDaemon;
use haversack_e2e::tools::PATIENCE;
use haversack_e2e::{Error, Guest, Place, Result, image, test, test_alone, tools};
use serde_json::{Value, json};

/// The size of the base, in MiB.
const MIB: u64 = 16;
const CLONES: [&str; 3] = ["vm1", "vm2", "vm3"];
/// How often the daemon is killed under load.
const KILLS: u32 = 3;

#[test]
fn guests_on_clones_share_one_cached_copy() {
    test("shared base", |place| {
        let golden = image::pattern(place, "golden.img", "golden", MIB)?;
        let images = CLONES.map(|name| overlay(place, name, &golden));
        let mut disks = vec![Disk::new("golden", golden.display().to_string()).with("read_only = true")];
        for (name, image) in CLONES.iter().zip(images) {
            let origin = format!("qcow2:{}", image?.display());
            disks.push(Disk::new(name, origin).with("base = \"golden\""));
        }
        let mut daemon = Haversack::start(place, Settings::new(64, disks))?;
        let mut guests = Vec::new();
        for name in CLONES {
            wait_for_sharing(&daemon, name)?;
            let mut guest = Guest::boot(place, name, &[daemon.vhost_user(name)])?;
            guest.ask("open vda golden pattern")?;
            scenario::verify(place, &mut guest, "vda")?;
            guests.push(guest);
        }
        check_one_copy(&daemon)?;
        for (number, (name, guest)) in CLONES.iter().zip(&mut guests).enumerate() {
            let mut load = Load::start(place, guest, &["vda"], number as u64)?;
            load.advance(300)?;
            for _ in 0..KILLS {
                daemon.kill_and_restart(Duration::from_millis(100))?;
                load.advance(100)?;
            }
            // The helper of a killed daemon may still be ending.
            wait_for_sharing(&daemon, name)?;
            load.advance(100)?;
            load.stop()?;
        }
        // What a guest has written stays its own when it is written back and evicted; after a restart the origin
        // reports it.
        for name in CLONES {
            daemon.command(&["disk", "flush", name])?;
        }
        daemon.kill_and_restart(Duration::from_millis(100))?;
        for (name, guest) in CLONES.iter().zip(&mut guests) {
            wait_for_sharing(&daemon, name)?;
            scenario::verify(place, guest, "vda")?;
        }
        for guest in guests {
            guest.off()?;
        }
        daemon.stop()?;
        let found = image::digest(&golden)?;
        let expected = image::digest(&image::pattern(place, "expected.img", "golden", MIB)?)?;
        check(found == expected, "the base was written")
    });
}

#[test]
fn disks_that_cannot_share_say_why_and_read_their_own_origin() {
    test("unshared base", |place| {
        let golden = image::pattern(place, "golden.img", "golden", MIB)?;
        let other = image::zeroes(place, "other.img", MIB)?;
        let foreign = overlay(place, "foreign", &other)?;
        let mine = overlay(place, "mine", &golden)?;
        let plain = image::zeroes(place, "plain.img", MIB)?;
        let with = |disk: Disk, base: &str| disk.with(&format!("base = \"{base}\""));
        let qcow2 = |path: &Path| format!("qcow2:{}", path.display());
        let disks = vec![
            Disk::new("golden", golden.display().to_string()).with("read_only = true"),
            with(Disk::new("foreign", qcow2(&foreign)), "golden"),
            with(Disk::new("plain", plain.display().to_string()), "golden"),
            with(Disk::new("nobody", qcow2(&mine)), "gone"),
        ];
        let daemon = Haversack::start(place, Settings::new(64, disks))?;
        let expected = [
            ("foreign", "was made from"),
            ("plain", "does not tell which of its data is another image's"),
            ("nobody", "gone"),
        ];
        for (name, words) in expected {
            let mut found = Value::Null;
            tools::wait_until(&format!("why {name} does not share"), PATIENCE, || {
                found = daemon.json(&["disk", "show", name])?["base"]["problem"].clone();
                Ok(found.is_string())
            })?;
            let found = found.as_str().unwrap_or_default();
            check(found.contains(words), format!("{name}: {found}, expected {words}"))?;
            let shown = daemon.command(&["disk", "show", name])?;
            check(shown.contains(words), &shown)?;
        }
        for (name, image) in [("foreign", other), ("nobody", golden), ("plain", plain)] {
            let mut compare = tools::tool("qemu-img")?;
            compare.args(["compare", "-f", "raw", "-F", "raw", &daemon.uri(name)]).arg(image);
            tools::run(compare)?;
        }
        Ok(())
    });
}

#[test]
fn an_image_between_a_disk_and_its_base_is_found_however_little_it_has() {
    test("image in between", |place| {
        let golden = image::pattern(place, "golden.img", "golden", MIB)?;
        let mine = overlay(place, "mine", &golden)?;
        let mut write = tools::tool("qemu-io")?;
        write.args(["-f", "qcow2", "-c", "write -P 7 5M 4k"]).arg(&mine);
        tools::run(write)?;
        let snapshot = place.path("snapshot.qcow2");
        let mut create = tools::tool("qemu-img")?;
        create.args(["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b"]).arg(&mine).arg(&snapshot);
        tools::run(create)?;
        let node = json!({"driver": "qcow2", "file": {"driver": "file", "filename": snapshot}});
        let server = StorageDaemon::start(place, "server", node)?;
        let disks = vec![
            Disk::new("golden", golden.display().to_string()).with("read_only = true"),
            Disk::new("vm1", server.uri()).with("base = \"golden\""),
        ];
        let daemon = Haversack::start(place, Settings::new(64, disks))?;
        let mut found = Value::Null;
        tools::wait_until("whether it shares", PATIENCE, || {
            found = daemon.json(&["disk", "show", "vm1"])?["base"].clone();
            Ok(found["problem"].is_string() || found["shared_bytes"] != 0)
        })?;
        let problem = found["problem"].as_str().unwrap_or_default();
        check(problem.contains("differs from that of the base"), format!("what is shared: {found}"))
    });
}

#[test]
fn clones_of_an_rbd_snapshot_share_it() {
    test_alone("shared RBD base", |place| {
        let ceph = Ceph::start(place)?;
        let image = image::pattern(place, "golden.img", "golden", MIB)?;
        let golden = ceph.base("golden", "v1", &image)?;
        let name = CLONES[0];
        let disks = vec![
            Disk::new("golden", golden).with("read_only = true"),
            Disk::new(name, ceph.clone("golden", "v1", name)?).with("base = \"golden\""),
        ];
        let mut daemon = Haversack::start(place, Settings::new(64, disks))?;
        check(shared_bytes(&daemon, name)? == MIB << 20, "a new clone is all the base's")?;
        let mut guest = Guest::boot(place, name, &[daemon.vhost_user(name)])?;
        guest.ask("open vda golden pattern")?;
        scenario::verify(place, &mut guest, "vda")?;
        guest.ask("write vda 1 1")?.clean()?;
        daemon.command(&["disk", "flush", name])?;
        daemon.kill_and_restart(Duration::from_millis(100))?;
        let object_bytes = 4 << 20;
        let left = shared_bytes(&daemon, name)?;
        check(
            left == (MIB << 20) - object_bytes,
            format!("{left} bytes shared after a write to one object"),
        )?;
        let mut load = Load::start(place, &mut guest, &["vda"], 1)?;
        load.advance(300)?;
        daemon.kill_and_restart(Duration::from_millis(100))?;
        load.advance(100)?;
        load.stop()?;
        guest.off()?;
        daemon.stop()
    });
}

/// Makes a qcow2 image of a base.
fn overlay(place: &Place, name: &str, base: &Path) -> Result<PathBuf> {
    let path = place.path(format!("{name}.qcow2"));
    let mut command = tools::tool("qemu-img")?;
    command.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"]).arg(base).arg(&path);
    tools::run(command)?;
    Ok(path)
}

/// Waits until a disk shares its base. A daemon that has just been started may not have attached it yet.
fn wait_for_sharing(daemon: &Haversack<'_>, disk: &str) -> Result<()> {
    shared_bytes(daemon, disk).map(drop)
}

fn shared_bytes(daemon: &Haversack<'_>, disk: &str) -> Result<u64> {
    let mut bytes = 0;
    tools::wait_until(&format!("{disk} to share its base"), PATIENCE, || {
        let shown = daemon.json(&["disk", "show", disk])?;
        bytes = shown["base"]["shared_bytes"].as_u64().unwrap_or(0);
        Ok(bytes > 0)
    })?;
    Ok(bytes)
}

/// After each guest has read all of its disk: the base was read from its origin once, and nothing else was.
fn check_one_copy(daemon: &Haversack<'_>) -> Result<()> {
    let number = |disk: &Value, keys: [&str; 2]| {
        let [part, key] = keys;
        disk[part][key].as_u64().ok_or_else(|| Error::Check(format!("no {part}.{key} in {disk}")))
    };
    let golden = daemon.json(&["disk", "show", "golden"])?;
    let blocks = MIB << 8;
    let (hits, misses) =
        (number(&golden, ["requests", "read_hits"])?, number(&golden, ["requests", "read_misses"])?);
    // What is read while no frame is free does not enter the cache, and misses again.
    let again = blocks / 4;
    check((blocks..=blocks + again).contains(&misses), format!("{misses} misses of {blocks} blocks"))?;
    check(hits + again >= (CLONES.len() as u64 - 1) * blocks, format!("{hits} hits"))?;
    for name in CLONES {
        let disk = daemon.json(&["disk", "show", name])?;
        check(
            number(&disk, ["base", "read_bytes"])? >= MIB << 20,
            format!("{name} reads past its base: {disk}"),
        )?;
        check(
            number(&disk, ["blocks", "origin_read_bytes"])? == 0,
            format!("{name} reads its origin: {disk}"),
        )?;
        check(number(&disk, ["usage", "usage_bytes"])? == 0, format!("{name} has copies: {disk}"))?;
    }
    Ok(())
}
