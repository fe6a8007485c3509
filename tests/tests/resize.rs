//! Disks that grow under their guests.

use std::path::Path;
use std::time::Duration;

use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::scenario::{self, Load};
use haversack_e2e::tools::{PATIENCE, wait_until};
use haversack_e2e::{Error, Guest, MIB, Result, clients, image, test};

const OLD_MIB: u64 = 32;
const NEW_MIB: u64 = 48;

fn grow(file: &Path) -> Result<()> {
    let what = file.display().to_string();
    let open = std::fs::File::options().write(true).open(file).map_err(Error::io(what.clone()))?;
    open.set_len(NEW_MIB * MIB).map_err(Error::io(what))
}

fn size_of(daemon: &Haversack<'_>, disk: &str) -> Result<u64> {
    let info = clients::nbdinfo(&daemon.uri(disk))?;
    info["exports"][0]["export-size"].as_u64().ok_or_else(|| Error::Check(format!("nbdinfo says {info}")))
}

#[test]
fn a_disk_grows_under_a_guest() {
    test("resize", |place| {
        let files = [image::zeroes(place, "vm1.img", OLD_MIB)?, image::zeroes(place, "vm2.img", OLD_MIB)?];
        let origin = Nbdkit::file(place, "origin", &files[1])?;
        let disks = vec![Disk::new("vm1", files[0].display().to_string()), Disk::new("vm2", origin.uri())];
        let mut daemon = Haversack::start(place, Settings::new(256, disks))?;
        let mut guest = Guest::boot(place, "guest", &[daemon.vhost_user("vm1"), daemon.vhost_user("vm2")])?;
        guest.ask("open vda vm1 zeroes")?;
        guest.ask("open vdb vm2 zeroes")?;
        let mut load = Load::start(place, &mut guest, &["vda", "vdb"], 1)?;
        load.advance(100)?;

        let size = format!("{NEW_MIB}MiB");
        for disk in ["vm1", "vm2"] {
            let refusal = daemon.command(&["disk", "resize", disk, &size]);
            let why = refusal.err().map(|error| error.to_string()).unwrap_or_default();
            check(why.contains("enlarge the origin"), format!("{disk} grew beyond its origin: {why}"))?;
        }
        for (disk, file) in ["vm1", "vm2"].iter().zip(&files) {
            grow(file)?;
            daemon.command(&["disk", "resize", disk, &size])?;
            check(size_of(&daemon, disk)? == NEW_MIB * MIB, "the next NBD client sees the old size")?;
        }
        let sectors = NEW_MIB * MIB / 512;
        wait_until("the guest's notice", PATIENCE, || {
            let sizes = load.guest().ask("disks")?;
            Ok(sizes.number("vda")? == sectors && sizes.number("vdb")? == sectors)
        })?;
        load.advance(100)?;
        load.stop()?;
        for disk in ["vda", "vdb"] {
            guest.ask(&format!("grow {disk}"))?;
        }
        let mut load = Load::start(place, &mut guest, &["vda", "vdb"], 2)?;
        load.advance(300)?;
        daemon.kill_and_restart(Duration::from_millis(100))?;
        load.advance(300)?;
        load.stop()?;
        for (disk, file) in [("vda", &files[0]), ("vdb", &files[1])] {
            let digest = scenario::verify(place, &mut guest, disk)?;
            daemon.command(&["disk", "flush", &disk.replace("vda", "vm1").replace("vdb", "vm2")])?;
            scenario::same_digest(file, &digest)?;
        }
        guest.off()
    });
}
