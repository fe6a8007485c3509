//! Disks whose origins helpers access, between hosts: those on iSCSI LUNs move, those on qcow2 images do not.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use haversack_e2e::connection::Connection;
use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::hosts::{Hosts, state, wait_until_moved};
use haversack_e2e::tgt::Tgt;
use haversack_e2e::tools::{self, PATIENCE, wait_until};
use haversack_e2e::{Result, image, test};

const MIB: u64 = 16;
const BLOCK: u64 = 4096;
const BLOCKS: u64 = 256;
const MOMENT: Duration = Duration::from_millis(10);

/// What is written stays dirty until it is flushed.
const DIRTY: &str = "cleaner = { age = \"1h\", idle = \"1h\" }";

fn client(host: &Haversack<'_>) -> Result<Connection> {
    Connection::open(&host.socket("nbd.sock"), "vm1")
}

/// Checks blocks of the file behind the LUN.
fn check_lun(file: &Path, blocks: Range<u64>, value: u8) -> Result<()> {
    for block in blocks {
        let data = image::take(file, block * BLOCK, BLOCK as usize)?;
        let is_filled = data.iter().all(|byte| *byte == value);
        check(is_filled, format!("block {block} of the LUN: {}, not {value}", data[0]))?;
    }
    Ok(())
}

/// Both hosts have the LUN open all the time. Daemons and helpers are killed on the way.
#[test]
fn a_disk_on_a_lun_moves_there_and_back() {
    test("a LUN of two hosts", |place| {
        let file = image::zeroes(place, "lun.img", MIB)?;
        let target = Tgt::start(place, "tgt", &file, None)?;
        let hosts = Hosts::new(place, &["alpha", "beta"])?;
        let places = [place.host("a")?, place.host("b")?];
        let old = Disk::new("vm1", target.uri()).with(DIRTY);
        let new = old.clone().with("from = \"none\"");
        let settings = |disk, me| Settings { more: hosts.tables(me), ..Settings::new(64, vec![disk]) };
        let [mut alpha, mut beta] =
            Haversack::start_both(&places, [settings(new, "alpha"), settings(old, "beta")])?;
        wait_until("the disk at both hosts", PATIENCE, || {
            Ok(state(&beta, "vm1").is_ok_and(|state| state == "waiting"))
        })?;

        let mut guest = client(&alpha)?;
        guest.fill_durably(0..BLOCKS, 1)?;
        alpha.command(&["migrate", "vm1", "--to", "beta"])?;
        drop(guest);
        let mut guest = client(&beta)?;
        guest.fill_durably(0..BLOCKS / 2, 2)?;
        alpha.kill_and_restart(MOMENT)?;
        guest.check_filled(BLOCKS / 2..BLOCKS, 1)?;
        wait_until_moved(&alpha, &beta, "vm1")?;
        place.say("moved, with alpha killed");
        check(beta.kill_helpers()? == 1, "beta has no helper")?;
        beta.command(&["disk", "flush", "vm1"])?;
        check_lun(&file, 0..BLOCKS / 2, 2)?;
        check_lun(&file, BLOCKS / 2..BLOCKS, 1)?;
        drop(guest);
        beta.kill_and_restart(MOMENT)?;
        let mut guest = client(&alpha)?;
        guest.fill_durably(0..8, 3)?;
        guest.check_filled(0..8, 3)?;
        guest.check_filled(8..BLOCKS / 2, 2)?;
        guest.check_filled(BLOCKS / 2..BLOCKS, 1)?;
        wait_until_moved(&beta, &alpha, "vm1")?;
        place.say("moved back, with beta killed");
        drop(guest);
        alpha.detach("vm1")?;
        check_lun(&file, 0..8, 3)?;
        check_lun(&file, 8..BLOCKS / 2, 2)?;
        check_lun(&file, BLOCKS / 2..BLOCKS, 1)
    });
}

/// Its tables are in QEMU's memory, so no two helpers may have it open.
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
