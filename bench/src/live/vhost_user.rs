//! vhost-user-blk: read hits and write-back writes of 4 KiB, by the same guest on each back end.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use super::contest::{self, Contender};
use super::guest::{Guest, Waiting};
use super::load::MOST_DEPTH;
use super::place::Place;
use super::process::Process;
use super::raw::RawClient;
use super::{BLOCKS, Options, SETTLING, figures, fill, peers, report, service};

/// Blocks that are written: 16 MiB, so that little is dirty and the cleaner has no reason to work.
const WRITTEN_BLOCKS: u64 = 4096;
/// Writes that the staging area takes at once, and time to bring them to flash.
const BURST: (u64, Duration) = (4096, Duration::from_millis(200));

/// Measures and prints.
pub fn run(options: &Options, directory: &Path, place: &Place) -> Result<(), Box<dyn Error>> {
    let image = place.image("image", BLOCKS)?;
    let service = service(place, &image, 2);
    let mut engine = service.start()?;
    let guest = |server: &mut Process, socket: &Path, waiting| -> std::io::Result<Guest> {
        let mut guest = server.patiently(|| Guest::boot(socket, waiting))?;
        fill(&mut guest)?;
        Ok(guest)
    };
    let interrupted = guest(&mut engine, &service.vhost_user_socket(0), Waiting::Interrupt)?;
    let polling = guest(&mut engine, &service.vhost_user_socket(1), Waiting::Polling)?;
    let socket = place.path("storage-daemon");
    let mut storage_daemon = peers::storage_daemon_vhost_user(&image, &socket)?;
    let other = guest(&mut storage_daemon, &socket, Waiting::Interrupt)?;
    let mut contenders = vec![
        Contender {
            name: "haversack, guest interrupted",
            client: Box::new(interrupted),
            server: Some(engine),
            forgets: false,
        },
        Contender {
            name: "the device itself, io_uring",
            client: Box::new(RawClient::open(&image)?),
            server: None,
            forgets: false,
        },
        Contender {
            name: "qemu-storage-daemon, direct I/O, guest interrupted",
            client: Box::new(other),
            server: Some(storage_daemon),
            forgets: false,
        },
        // Its server is the first one's: no processor time of its own is shown.
        Contender {
            name: "haversack, guest polling",
            client: Box::new(polling),
            server: None,
            forgets: false,
        },
    ];
    std::thread::sleep(SETTLING);
    let events = [
        contest::reads("read QD1", 1, BLOCKS),
        contest::reads("read QD32", MOST_DEPTH, BLOCKS),
        contest::writes("write QD1 in bursts of 16 MiB", 1, WRITTEN_BLOCKS, Some(BURST)),
        contest::writes("write QD1 without pause", 1, WRITTEN_BLOCKS, None),
    ];
    let before = figures(&mut contenders[0])?;
    let title = format!("vhost-user-blk on {}", directory.display());
    let outcome = contest::hold(&title, &mut contenders, &events, options.round)?;
    report(options, &outcome, before, figures(&mut contenders[0])?);
    Ok(())
}
