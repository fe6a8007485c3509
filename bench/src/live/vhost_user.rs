//! vhost-user-blk: read hits and write-back writes of 4 KiB, by the same guest on each back end.

use std::error::Error;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::contest::{self, Contender};
use super::guest::{Guest, Waiting};
use super::load::MOST_DEPTH;
use super::place::Place;
use super::process::Process;
use super::raw::RawClient;
use super::serve::Service;
use super::{BLOCKS, Options, SETTLING, figures, fill, peers, report, service};

/// Disks of the engine that serves many, one of which is busy.
const DISKS: u16 = 100;
/// Blocks that are written: 16 MiB, so that little is dirty and the cleaner has no reason to work.
const WRITTEN_BLOCKS: u64 = 4096;
/// The number of writes that fit in the staging area, and the pause in which they are committed to flash.
const BURST: (u64, Duration) = (4096, Duration::from_millis(200));

fn boot(server: &mut Process, socket: &Path, waiting: Waiting) -> io::Result<Box<Guest>> {
    let mut guest = server.patiently(|| Guest::boot(socket, waiting))?;
    fill(&mut guest)?;
    Ok(Box::new(guest))
}

fn engine(name: &'static str, service: &Service, program: &Path, waiting: Waiting) -> io::Result<Contender> {
    let mut server = service.start_with(program)?;
    let client = boot(&mut server, &service.vhost_user_socket(0), waiting)?;
    Ok(Contender { name, client, server: Some(server), forgets: false })
}

/// Measures and prints.
pub fn run(options: &Options, directory: &Path, place: &Place) -> Result<(), Box<dyn Error>> {
    let image = place.image("image", BLOCKS)?;
    let socket = place.path("storage-daemon");
    let mut storage_daemon = peers::storage_daemon_vhost_user(&image, &socket)?;
    let other = boot(&mut storage_daemon, &socket, Waiting::Interrupt)?;
    let this = std::env::current_exe()?;
    let many = Service { disks: DISKS, ..service(options, place, "many", &image, 1)? };
    let mut contenders = vec![
        engine("haversack", &service(options, place, "engine", &image, 1)?, &this, Waiting::Interrupt)?,
        Contender {
            name: "the device itself, io_uring",
            client: Box::new(RawClient::open(&image)?),
            server: None,
            forgets: false,
        },
        Contender {
            name: "qemu-storage-daemon, direct I/O",
            client: other,
            server: Some(storage_daemon),
            forgets: false,
        },
        engine(
            "haversack, guest polling",
            &service(options, place, "polled", &image, 1)?,
            &this,
            Waiting::Polling,
        )?,
        engine("haversack, one of 100 disks", &many, &this, Waiting::Interrupt)?,
    ];
    let mut idle_guests = Vec::new();
    for disk in 1..DISKS {
        idle_guests.push(Guest::boot(&many.vhost_user_socket(disk), Waiting::Interrupt)?);
    }
    if let Some(program) = &options.other {
        let service = service(options, place, "other", &image, 1)?;
        contenders.push(engine("haversack, the other build", &service, program, Waiting::Interrupt)?);
    }
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
