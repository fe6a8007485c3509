//! Live migration of a guest between two QEMUs of one host: over vhost-user-blk with the dirty-page log, and over NBD.

use std::time::Duration;

use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::scenario::{self, Load};
use haversack_e2e::{Guest, image, test};

/// How often the guest moves. At each move reads are under way, whose data only the dirty-page log tells of.
const MOVES: u32 = 6;

#[test]
fn a_guest_under_load_moves_to_another_qemu() {
    test("live migration", |place| {
        let file = image::pattern(place, "vm1.img", "vm1", 64)?;
        let small = [image::zeroes(place, "vm2.img", 32)?, image::zeroes(place, "vm3.img", 32)?];
        let origin = Nbdkit::file(place, "origin", &file)?;
        let disks = vec![
            Disk::new("vm1", origin.uri()),
            Disk::new("vm2", small[0].display().to_string()),
            Disk::new("vm3", small[1].display().to_string()),
        ];
        let mut daemon = Haversack::start(place, Settings::new(256, disks))?;
        let attachments = [daemon.vhost_user("vm1"), daemon.vhost_user("vm2"), daemon.nbd("vm3")];
        let mut guest = Guest::boot(place, "guest0", &attachments)?;
        guest.ask("open vda vm1 pattern")?;
        guest.ask("open vdb vm2 zeroes")?;
        guest.ask("open vdc vm3 zeroes")?;
        let mut load = Load::start(place, &mut guest, &["vda", "vdb", "vdc"], 1)?;
        for number in 1..=MOVES {
            load.advance(200)?;
            load.guest().migrate(place, &format!("guest{number}"), &attachments)?;
        }
        load.advance(200)?;
        // After its moves, the guest survives a kill of the daemon as it does after a boot.
        daemon.kill_and_restart(Duration::from_millis(100))?;
        load.advance(200)?;
        load.stop()?;
        let digest = scenario::verify(place, &mut guest, "vda")?;
        guest.off()?;
        daemon.command(&["disk", "flush", "vm1"])?;
        scenario::same_digest(&file, &digest)
    });
}
