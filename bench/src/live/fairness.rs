//! Fairness between disks: what a quiet client waits, alone and beside hostile clients of another disk of the pool.
//!
//! The hostile clients have the lowest priority, so that they take processor time from the quiet one only through the
//! engine.

use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use haversack_nbd::{Command, CommandFlags, Request};

use super::load::{self, Kind, Load, REQUEST_BYTES, Round};
use super::nbd_client::{NbdClient, negotiate};
use super::place::Place;
use super::{BLOCKS, Options, SETTLING, fill, service};
use crate::table::{self, row};
use haversack_model::random::Random;

/// The quiet client's latency beside others, times what it is alone, should not be more.
const GOAL: &str = "3.0";
/// Rounds of each kind; the one in the middle counts.
const ROUNDS: usize = 5;
const MIB: u32 = 1 << 20;

/// What hostile clients do.
struct Hostile {
    what: &'static str,
    clients: usize,
    command: Command,
    length: u32,
    takes_replies: bool,
}

const HOSTILE: [Hostile; 5] = [
    Hostile { what: "4 KiB reads", clients: 8, command: Command::Read, length: 4096, takes_replies: true },
    Hostile { what: "1 MiB reads", clients: 8, command: Command::Read, length: MIB, takes_replies: true },
    Hostile {
        what: "32 MiB reads",
        clients: 8,
        command: Command::Read,
        length: 32 * MIB,
        takes_replies: true,
    },
    Hostile { what: "1 MiB writes", clients: 8, command: Command::Write, length: MIB, takes_replies: true },
    Hostile {
        what: "unread replies",
        clients: 64,
        command: Command::Read,
        length: MIB,
        takes_replies: false,
    },
];

/// Measures and prints.
pub fn run(options: &Options, directory: &Path, place: &Place) -> Result<(), Box<dyn Error>> {
    let image = place.image("fairness-image", BLOCKS)?;
    let engine = service(options, place, "fairness", &image, 2)?;
    let mut server = engine.start()?;
    let socket = engine.nbd_socket();
    let mut quiet = server.patiently(|| NbdClient::connect(&socket, "disk"))?;
    fill(&mut quiet)?;
    std::thread::sleep(SETTLING);
    let mut rows = vec![row(["beside", "p50 us", "p99 us", "times alone", "goal"])];
    let alone = in_the_middle(options, &mut quiet)?;
    rows.push(cells("nobody", &alone, &alone));
    for hostile in &HOSTILE {
        let stop = AtomicBool::new(false);
        let beside = std::thread::scope(|scope| {
            for number in 0..hostile.clients {
                let (socket, stop) = (&socket, &stop);
                scope.spawn(move || {
                    // One that loses its connection is hostile no more; the others are.
                    let _ = attack(socket, hostile, number, stop);
                });
            }
            std::thread::sleep(SETTLING / 4);
            let beside = in_the_middle(options, &mut quiet);
            stop.store(true, Ordering::Relaxed);
            beside
        })?;
        if options.json {
            println!(
                "{{\"benchmark\":\"fairness\",\"beside\":\"{}\",\"alone_p99_us\":{:.1},\"beside_p99_us\":{:.1}}}",
                hostile.what,
                alone.latency_us(0.99),
                beside.latency_us(0.99)
            );
        }
        rows.push(cells(hostile.what, &beside, &alone));
    }
    if !options.json {
        table::print(&format!("fairness on {}: a disk's read hits at depth 1", directory.display()), &rows);
    }
    Ok(())
}

fn cells(what: &str, round: &Round, alone: &Round) -> Vec<String> {
    let (p50, p99) = (round.latency_us(0.5), round.latency_us(0.99));
    let times = p99 / alone.latency_us(0.99);
    row([what, &format!("{p50:.1}"), &format!("{p99:.1}"), &format!("{times:.1}"), GOAL])
}

/// The round whose p99 is in the middle.
fn in_the_middle(options: &Options, quiet: &mut NbdClient) -> io::Result<Round> {
    let load = Load { kind: Kind::Read, depth: 1, blocks: BLOCKS, burst: None };
    let mut rng = Random::new(7);
    let rounds: io::Result<Vec<Round>> =
        (0..ROUNDS).map(|_| load::run(quiet, load, options.round, &mut rng)).collect();
    let mut rounds = rounds?;
    rounds.sort_by(|a, b| a.latency_us(0.99).total_cmp(&b.latency_us(0.99)));
    Ok(rounds.swap_remove(ROUNDS / 2))
}

/// Asks for as much as the engine takes, until told to stop.
fn attack(socket: &Path, hostile: &Hostile, number: usize, stop: &AtomicBool) -> io::Result<()> {
    lowest_priority();
    let mut stream = UnixStream::connect(socket)?;
    negotiate(&mut stream, "disk1")?;
    for set in [UnixStream::set_read_timeout, UnixStream::set_write_timeout] {
        set(&stream, Some(Duration::from_millis(100)))?;
    }
    let mut replies = stream.try_clone()?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            lowest_priority();
            let mut buffer = vec![0; 1 << 20];
            while !stop.load(Ordering::Relaxed) {
                if !hostile.takes_replies {
                    std::thread::sleep(Duration::from_millis(10));
                } else if replies.read(&mut buffer).is_err_and(|error| !waits(&error)) {
                    break;
                }
            }
            // The other thread may be in a write.
            let _ = replies.shutdown(Shutdown::Both);
        });
        let payload = vec![1; if hostile.command == Command::Write { hostile.length as usize } else { 0 }];
        let places = BLOCKS * REQUEST_BYTES as u64 / u64::from(hostile.length);
        let mut rng = Random::new(number as u64);
        while !stop.load(Ordering::Relaxed) {
            let offset = rng.below(places) * u64::from(hostile.length);
            let flags = CommandFlags::NONE;
            let request =
                Request { flags, command: hostile.command, cookie: 1, offset, length: hostile.length };
            send(&mut stream, &request.encode(), stop)?;
            send(&mut stream, &payload, stop)?;
        }
        Ok(())
    })
}

fn waits(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn send(stream: &mut UnixStream, mut bytes: &[u8], stop: &AtomicBool) -> io::Result<()> {
    while !bytes.is_empty() && !stop.load(Ordering::Relaxed) {
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if waits(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// For the calling thread.
fn lowest_priority() {
    // SAFETY: changes nothing but the thread's priority. Where that fails, figures are worse than they could be.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
}
