//! Disks whose origins helpers access, where disks move between hosts.

use haversack_e2e::connection::Connection;
use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::hosts::Hosts;
use haversack_e2e::{Result, test, tools};

fn client(host: &Haversack<'_>) -> Result<Connection> {
    Connection::open(&host.socket("nbd.sock"), "vm1")
}

/// QEMU keeps the tables of a qcow2 image in memory, so no two helpers may have the image open.
#[test]
fn a_disk_on_a_qcow2_image_stays() {
    test("a qcow2 image", |place| {
        let image = place.path("origin.qcow2");
        let mut create = tools::tool("qemu-img")?;
        create.args(["create", "-q", "-f", "qcow2"]).arg(&image).arg("16M");
        tools::run(create)?;
        let hosts = Hosts::new(place, &["alpha", "beta"])?;
        let disk = Disk::new("vm1", format!("qcow2:{}", image.display()));
        let own = place.host("a")?;
        let more = hosts.tables("alpha");
        let alpha = Haversack::start(&own, Settings { more, ..Settings::new(32, vec![disk]) })?;
        client(&alpha)?.fill_durably(0..8, 1)?;
        for command in [&["migrate", "vm1", "--to", "beta"][..], &["migrate", "status", "vm1"]] {
            let refused = alpha.refused(command)?;
            check(refused.contains("QEMU keeps tables of a qcow2 image"), &refused)?;
        }
        Ok(())
    });
}
