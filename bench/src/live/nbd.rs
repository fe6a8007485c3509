//! NBD: read hits of 4 KiB, by the same client on each server.

use std::error::Error;
use std::io;
use std::path::Path;

use super::contest::{self, Contender, Event, Outcome};
use super::load::{Kind, Load, MOST_DEPTH};
use super::nbd_client::NbdClient;
use super::place::Place;
use super::process::Process;
use super::raw::RawClient;
use super::{BLOCKS, Options, SETTLING, figures, fill, peers, report, service};

fn contender(name: &'static str, mut server: Process, socket: &Path, forgets: bool) -> io::Result<Contender> {
    let mut client = server
        .patiently(|| NbdClient::connect(socket, "disk"))
        .map_err(|e| io::Error::other(format!("{name}: {e}")))?;
    fill(&mut client, BLOCKS).map_err(|e| io::Error::other(format!("filling {name}: {e}")))?;
    let mut contender = Contender::new(name, Box::new(client), Some(server));
    contender.forgets = forgets;
    Ok(contender)
}

/// Measures and prints.
pub fn run(options: &Options, directory: &Path, place: &Place) -> Result<Outcome, Box<dyn Error>> {
    let image = place.image("image", BLOCKS)?;
    let engine = service(options, place, "engine", &image, 1)?;
    let sockets = ["nbdkit", "nbdkit-cold", "storage-daemon"].map(|name| place.path(name));
    let cache = place.path("");
    let mut contenders = vec![
        contender("haversack, hit", engine.start()?, &engine.nbd_socket(), false)?,
        contender(
            "nbdkit cache filter, hit, in page cache",
            peers::nbdkit(&image, &sockets[0], &cache)?,
            &sockets[0],
            false,
        )?,
        contender(
            "nbdkit cache filter, hit, page cache dropped",
            peers::nbdkit(&image, &sockets[1], &cache)?,
            &sockets[1],
            true,
        )?,
        contender(
            "qemu-storage-daemon, direct I/O",
            peers::storage_daemon_nbd(&image, &sockets[2])?,
            &sockets[2],
            false,
        )?,
        Contender::new("the device itself, io_uring", Box::new(RawClient::open(&image, true)?), None),
    ];
    if let Some(program) = &options.other {
        let image = place.image("other-image", BLOCKS)?;
        let other = service(options, place, "other", &image, 1)?;
        contenders.push(contender(
            "haversack, the other build",
            other.start_with(program)?,
            &other.nbd_socket(),
            false,
        )?);
    }
    std::thread::sleep(SETTLING);
    let reads = |depth| Load::random(Kind::Read, depth, BLOCKS);
    let events = [Event::new("read QD1", reads(1)), Event::new("read QD32", reads(MOST_DEPTH))];
    let before = figures(&mut contenders[0])?;
    let title = format!("NBD on {}", directory.display());
    let outcome = contest::hold(&title, &mut contenders, &events, options.round)?;
    report(options, &outcome, before, figures(&mut contenders[0])?);
    Ok(outcome)
}
