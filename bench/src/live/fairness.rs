//! Fairness between disks: the latency of a quiet client, alone and beside hostile clients of another disk of the pool;
//! and the latency of a quiet reader of the cache device itself, alone and beside threads that access the device in the
//! same way, without the engine.
//!
//! Rounds alternate between the four. The hostile clients have the lowest priority, so that they take processor time
//! from the quiet one only through the engine. The origins are in memory: a store of their own.

use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use haversack_nbd::{Command, CommandFlags, Request};

use super::load::{self, BLOCK_BYTES, Client, Kind, Load, Round};
use super::nbd_client::{NbdClient, negotiate};
use super::place::Place;
use super::process::Process;
use super::raw::{self, RawClient};
use super::serve::{self, STAGES, Times};
use super::{BLOCKS, Options, SETTLING, fill, service};
use crate::output::say;
use crate::table::{self, row};
use haversack_model::random::Random;

/// The goal: the most that the quiet client's latency beside others may be, as a multiple of its latency alone.
const GOAL: &str = "3.0";
/// Rounds of each kind; the median counts.
const ROUNDS: usize = 3;
/// How long hostile clients are at work before a round begins.
const WARMING: Duration = Duration::from_millis(300);
/// How long the engine must read nothing from the cache device before a round alone: until then it cleans what hostile
/// clients have left behind.
const REST: Duration = Duration::from_millis(500);
/// Maximum number of such waits.
const RESTS: usize = 60;
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

/// A quiet client and those that it is measured beside.
struct Scene<'a> {
    options: &'a Options,
    quiet: NbdClient,
    socket: PathBuf,
    server: Process,
    raw: RawClient,
    raw_hostile: PathBuf,
    rng: Random,
}

/// Rounds of a quiet client, alone and beside others.
#[derive(Default)]
struct Rounds {
    alone: Vec<Round>,
    beside: Vec<Round>,
}

impl Rounds {
    /// Returns the p50 beside others, the p99 beside others, and the p99 alone, in microseconds, each from the round
    /// with the median p99.
    fn in_the_middle_us(&mut self) -> [f64; 3] {
        let [alone, beside] = [&mut self.alone, &mut self.beside].map(|rounds| {
            rounds.sort_by(|a, b| a.latency_us(0.99).total_cmp(&b.latency_us(0.99)));
            &rounds[rounds.len() / 2]
        });
        [beside.latency_us(0.5), beside.latency_us(0.99), alone.latency_us(0.99)]
    }
}

/// Measures and prints.
pub fn run(options: &Options, directory: &Path, place: &Place) -> Result<(), Box<dyn Error>> {
    let origins = Place::new(Path::new("/dev/shm"))?;
    let image = origins.image("fairness-origin", BLOCKS)?;
    let engine = service(options, place, "fairness", &image, 2)?;
    let mut server = engine.start()?;
    let socket = engine.nbd_socket();
    let mut quiet = server.patiently(|| NbdClient::connect(&socket, "disk"))?;
    fill(&mut quiet, BLOCKS)?;
    let raw = RawClient::open(&place.image("fairness-raw", BLOCKS)?, true)?;
    let raw_hostile = place.image("fairness-raw-hostile", BLOCKS)?;
    std::thread::sleep(SETTLING);
    let mut scene = Scene { options, quiet, socket, server, raw, raw_hostile, rng: Random::new(7) };
    let mut rows =
        vec![row(["beside", "p50 us", "p99 us", "alone", "times", "goal", "device", "alone", "times"])];
    let mut stages = vec![[&["beside"], &STAGES[..]].concat().into_iter().map(String::from).collect()];
    for hostile in &HOSTILE {
        scene.measure(hostile, &mut rows, &mut stages)?;
    }
    if !options.json {
        table::print(&format!("fairness on {}: a disk's read hits at depth 1", directory.display()), &rows);
        say!(
            "  alone: p99; device: p99 of the same reads of the device itself, beside threads that read or write as much"
        );
        table::print("where the time goes: p50 and p99 in us", &stages);
    }
    Ok(())
}

impl Scene<'_> {
    fn measure(
        &mut self,
        hostile: &Hostile,
        rows: &mut Vec<Vec<String>>,
        stages: &mut Vec<Vec<String>>,
    ) -> io::Result<()> {
        let (mut engine, mut device) = (Rounds::default(), Rounds::default());
        let mut figures = Vec::new();
        for _ in 0..ROUNDS {
            rest(&mut self.server)?;
            engine.alone.push(quiet_round(self.options, &mut self.quiet, &mut self.rng)?);
            let socket = &self.socket;
            let attack = |number, stop: &_| attack(socket, hostile, number, stop);
            let (server, options, rng) = (&mut self.server, self.options, &mut self.rng);
            let quiet = &mut self.quiet;
            engine.beside.push(beside(hostile.clients, attack, || {
                serve::figures(server)?;
                let round = quiet_round(options, quiet, rng)?;
                figures.push(serve::figures(server)?);
                Ok(round)
            })?);
            let Some(kind) = hostile.on_device() else { continue };
            rest(&mut self.server)?;
            device.alone.push(quiet_round(options, &mut self.raw, rng)?);
            let path = &self.raw_hostile;
            let attack = |number, stop: &_| {
                raw::attack(path, kind, hostile.length as usize, &mut Random::new(number as u64), stop)
            };
            let raw = &mut self.raw;
            device.beside.push(beside(hostile.clients, attack, || quiet_round(options, raw, rng))?);
        }
        let [p50, p99, alone] = engine.in_the_middle_us();
        let on_device = hostile.on_device().map(|_| device.in_the_middle_us());
        if self.options.json {
            let device = on_device.map_or(String::new(), |[_, p99, alone]| {
                format!(",\"device_alone_p99_us\":{alone:.1},\"device_beside_p99_us\":{p99:.1}")
            });
            say!(
                "{{\"benchmark\":\"fairness\",\"beside\":\"{}\",\"alone_p99_us\":{alone:.1},\"beside_p99_us\":{p99:.1}{device}}}",
                hostile.what
            );
        }
        let us = |figure: f64| format!("{figure:.1}");
        let [device_p99, device_alone, device_times] = match on_device {
            Some([_, p99, alone]) => [us(p99), us(alone), us(p99 / alone)],
            None => ["", "", ""].map(String::from),
        };
        rows.push(vec![
            hostile.what.into(),
            us(p50),
            us(p99),
            us(alone),
            us(p99 / alone),
            GOAL.into(),
            device_p99,
            device_alone,
            device_times,
        ]);
        let stage = |at: usize| {
            figures.sort_by_key(|figures| figures.times[at].p99_us);
            let Times { p50_us, p99_us } = figures[figures.len() / 2].times[at];
            format!("{p50_us} {p99_us}")
        };
        stages.push([hostile.what.to_string()].into_iter().chain((0..STAGES.len()).map(stage)).collect());
        Ok(())
    }
}

impl Hostile {
    /// Returns the I/Os with which a thread imitates this load on the device itself; `None` if there is no equivalent.
    fn on_device(&self) -> Option<Kind> {
        let kind = if self.command == Command::Write { Kind::Write } else { Kind::Read };
        self.takes_replies.then_some(kind)
    }
}

/// Waits until the engine has nothing left to do.
fn rest(server: &mut Process) -> io::Result<()> {
    let mut read_bytes = serve::figures(server)?.device_bytes;
    for _ in 0..RESTS {
        std::thread::sleep(REST);
        let before_bytes = std::mem::replace(&mut read_bytes, serve::figures(server)?.device_bytes);
        if read_bytes == before_bytes {
            return Ok(());
        }
    }
    Err(io::Error::other("the engine does not come to rest"))
}

fn quiet_round(options: &Options, quiet: &mut dyn Client, rng: &mut Random) -> io::Result<Round> {
    load::run(quiet, Load::random(Kind::Read, 1, BLOCKS), options.round, rng)
}

/// Measures while hostile clients are at work.
fn beside<T>(
    clients: usize,
    attack: impl Fn(usize, &AtomicBool) -> io::Result<()> + Sync,
    measure: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..clients {
            let (attack, stop) = (&attack, &stop);
            scope.spawn(move || {
                lowest_priority();
                // A client that loses its connection stops being hostile; the others continue.
                let _ = attack(number, stop);
            });
        }
        std::thread::sleep(WARMING);
        let measured = measure();
        stop.store(true, Ordering::Relaxed);
        measured
    })
}

/// Asks for as much as the engine takes, until told to stop.
fn attack(socket: &Path, hostile: &Hostile, number: usize, stop: &AtomicBool) -> io::Result<()> {
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
        let places = BLOCKS * BLOCK_BYTES as u64 / u64::from(hostile.length);
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

/// Makes the calling thread run only when no other has something to do.
fn lowest_priority() {
    // SAFETY: all zeroes is a valid parameter, the one that this policy requires.
    let parameter: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: changes nothing but the thread's policy. Where that fails, figures are worse than they could be.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameter) };
}
