//! Guests move between hosts with their caches: two daemons, one origin, real guests that check every byte.

use std::time::Duration;

use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::hosts::Hosts;
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::scenario::{self, Load};
use haversack_e2e::tools::{PATIENCE, wait_until};
use haversack_e2e::{Guest, Result, image, test};

/// How often the guest moves, each time to the other host.
const MOVES: usize = 6;

fn state(host: &Haversack<'_>, disk: &str) -> Result<String> {
    Ok(host.json(&["migrate", "status", disk])?["state"].as_str().unwrap_or_default().to_owned())
}

/// Waits until nothing of a disk is on the host that it came from.
fn wait_until_moved(from: &Haversack<'_>, to: &Haversack<'_>, disk: &str) -> Result<()> {
    wait_until("the end of the move", PATIENCE, || {
        Ok(state(to, disk)? == "here" && matches!(state(from, disk)?.as_str(), "away" | "waiting"))
    })
}

#[test]
fn a_guest_moves_between_hosts_with_its_cache() {
    test("moves between hosts", |place| {
        let file = image::pattern(place, "vm1.img", "vm1", 64)?;
        let small = image::zeroes(place, "vm2.img", 32)?;
        let origins = [Nbdkit::file(place, "origin1", &file)?, Nbdkit::file(place, "origin2", &small)?];
        let disks = || vec![Disk::new("vm1", origins[0].uri()), Disk::new("vm2", origins[1].uri())];
        let hosts = Hosts::new(place, &["alpha", "beta"])?;
        let places = [place.host("a")?, place.host("b")?];
        let new = disks().into_iter().map(|disk| disk.with("from = \"none\"")).collect();
        let settings = |disks, me| Settings { more: hosts.tables(me), ..Settings::new(256, disks) };
        let mut daemons = [
            Haversack::start(&places[0], settings(new, "alpha"))?,
            Haversack::start(&places[1], settings(disks(), "beta"))?,
        ];
        check(state(&daemons[1], "vm1")? == "waiting", "the disk is at the other host")?;
        let attachments = |host: &Haversack<'_>| [host.vhost_user("vm1"), host.nbd("vm2")];
        let mut guest = Guest::boot(place, "guest0", &attachments(&daemons[0]))?;
        guest.ask("open vda vm1 pattern")?;
        guest.ask("open vdb vm2 zeroes")?;
        let mut load = Load::start(place, &mut guest, &["vda", "vdb"], 1)?;
        for number in 1..=MOVES {
            let (from, to) = ((number - 1) % 2, number % 2);
            load.advance(200)?;
            let name = ["alpha", "beta"][to];
            daemons[from].command(&["migrate", "vm1", "vm2", "--to", name])?;
            load.guest().migrate(place, &format!("guest{number}"), &attachments(&daemons[to]))?;
            if number == 3 {
                // While blocks are still at the host that the guest has left.
                daemons[from].kill_and_restart(Duration::from_millis(100))?;
            }
            load.advance(100)?;
            for disk in ["vm1", "vm2"] {
                wait_until_moved(&daemons[from], &daemons[to], disk)?;
            }
        }
        load.stop()?;
        let digest = scenario::verify(place, &mut guest, "vda")?;
        guest.off()?;
        daemons[MOVES % 2].command(&["disk", "flush", "vm1"])?;
        scenario::same_digest(&file, &digest)
    });
}
