//! Everything at the same time: two disks with verified reads, while the daemon is killed, disks are attached, detached
//! and resized, their modes change, the configuration is reloaded, and invalid data is sent to every socket.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::verify::Verifier;
use haversack_e2e::{Result, image, test};
use haversack_model::random::Random;

use crate::{rounds, seed};

/// Blocks of each disk that are written.
const BLOCKS: usize = 1024;
/// Requests of each disk between two incidents.
const REQUESTS: usize = 150;

#[test]
fn no_byte_is_wrong_whatever_happens_at_once() {
    test("a storm", |place| {
        let mut random = Random::new(seed("a storm"));
        let files = [image::zeroes(place, "vm1.img", 96)?, image::zeroes(place, "vm2.img", 96)?];
        let [first, second] = files.map(|file| file.display().to_string());
        let disks = vec![
            Disk::new("vm1", first).with("size = \"64MiB\""),
            Disk::new("vm2", &second).with("size = \"64MiB\""),
        ];
        let mut daemon = Haversack::start(place, Settings::new(64, disks))?;
        let socket = daemon.socket("nbd.sock");
        let mut clients =
            ["vm1", "vm2"].map(|disk| Verifier::new(&socket, disk, BLOCKS, random.below(1 << 30)));
        rounds(|_| {
            for _ in 0..REQUESTS {
                clients.iter_mut().try_for_each(Verifier::step)?;
            }
            let incident = random.below(7);
            happen(&mut daemon, &mut random, incident)?;
            clients.iter_mut().try_for_each(Verifier::step)
        })?;
        daemon.kill_and_restart(Duration::ZERO)?;
        for client in &mut clients {
            client.verify_all()?;
        }
        daemon.detach_forced("vm2")?;
        daemon.stop()
    });
}

/// Something that an operator or an attacker does, or an accident.
fn happen(daemon: &mut Haversack, random: &mut Random, incident: u64) -> Result<()> {
    match incident {
        0 => daemon.kill_and_restart(Duration::from_millis(random.below(200)))?,
        1 => {
            daemon.detach_forced("vm2")?;
            daemon.attach("vm2")?;
        }
        2 => {
            daemon.command(&["disk", "resize", "vm1", "96MiB"])?;
            let shrink = ["disk", "resize", "vm1", "64MiB", "--shrink", "--confirm", "vm1"];
            // Refused while the client is connected, which costs nothing.
            let _ = daemon.command(&shrink);
        }
        3 => {
            let mode = ["wb", "wt", "wa", "wi", "pt"][random.below(5) as usize];
            daemon.command(&["disk", "set", "vm1", "--mode", mode])?;
        }
        4 => daemon.reload(&daemon.configuration())?,
        5 => {
            // Not a byte of a configuration: nothing may change.
            daemon.reload("")?;
            daemon.reload(&daemon.configuration())?;
        }
        _ => {
            for name in ["nbd.sock", "control.sock", "vm1.sock", "vm2.sock"] {
                talk_nonsense(&daemon.socket(name), random);
            }
        }
    }
    Ok(())
}

/// Sends random bytes to a socket. It does not matter whether anyone listens there or disconnects.
fn talk_nonsense(socket: &Path, random: &mut Random) {
    for _ in 0..5 {
        let Ok(mut stranger) = UnixStream::connect(socket) else { return };
        let bytes: Vec<u8> = (0..random.below(4096)).map(|_| random.below(256) as u8).collect();
        let _ = stranger.set_write_timeout(Some(Duration::from_millis(100)));
        let _ = stranger.write_all(&bytes);
    }
}
