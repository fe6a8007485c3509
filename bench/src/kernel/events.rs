//! The loads, and running the contenders under them in turn.

use std::fmt::Write;
use std::time::Duration;

use haversack_e2e::Guest;
use haversack_e2e::error::check;

use super::contenders::{Contender, Hosts};
use super::counters::{Counters, Log};
use super::report::{Figures, Outcome, Result as Measured};
use super::{DISK_MIB, Failure, Options};

const BLOCKS_OF_A_MIB: u64 = 256;
/// All blocks of the disk.
const ALL: u64 = DISK_MIB * BLOCKS_OF_A_MIB;
/// Blocks that fit in every cache, and that dm-writecache keeps: it begins to write back when it is half full.
const FITTING: u64 = 48 * BLOCKS_OF_A_MIB;
/// Blocks of 64 KiB.
const EXTENT: u64 = 16;
/// How long everything rests before and after the rounds of a load. bcache adds to its counters every 14 seconds.
const REST: Duration = Duration::from_secs(15);
/// How long the guest may take for a load.
const LIMIT: Duration = Duration::from_secs(900);
/// Requests in flight of the loads that have several.
const DEEP: u64 = 8;

/// Seeds of a load: more than there are rounds.
const SEEDS: u64 = 1 << 32;

/// A load and what comes before it.
pub struct Event {
    /// What it is called.
    pub name: &'static str,
    warming: Warming,
    load: Load,
}

#[derive(Clone, Copy)]
enum Warming {
    /// Writes all of the blocks once, 64 KiB at a time, in random order: every cache keeps what is written.
    Writes,
    /// The load itself, with the requests of this many rounds.
    Rounds(u64),
}

#[derive(Clone, Copy)]
struct Load {
    depth: u64,
    /// Of 100 requests.
    reads: u64,
    /// Writes after which there is a flush; 0 for none.
    flush: u64,
    blocks: u64,
    extent: u64,
    zipf: f64,
}

const HITS: Load = Load { depth: 1, reads: 100, flush: 0, blocks: FITTING, extent: 1, zipf: 0.0 };
const WRITES: Load = Load { reads: 0, ..HITS };
const MIXED: Load = Load { depth: 1, reads: 70, flush: 0, blocks: ALL, extent: EXTENT, zipf: 0.9 };
/// Rounds that fill the caches and show them what is hot.
const LEARNING: Warming = Warming::Rounds(50);
/// A round for the emulator, which translates code when it runs for the first time.
const SHORT: Warming = Warming::Rounds(1);

/// The loads, in their order.
pub const EVENTS: [Event; 8] = [
    Event { name: "read hits, QD1", warming: Warming::Writes, load: HITS },
    Event { name: "read hits, QD8", warming: SHORT, load: Load { depth: DEEP, ..HITS } },
    Event { name: "writes, QD1", warming: SHORT, load: WRITES },
    Event { name: "writes, QD8", warming: SHORT, load: Load { depth: DEEP, ..WRITES } },
    Event {
        name: "writes, QD1, a flush after every eighth",
        warming: SHORT,
        load: Load { flush: 8, ..WRITES },
    },
    Event {
        name: "70 % reads, hot extents of 64 KiB, QD8",
        warming: LEARNING,
        load: Load { depth: DEEP, ..MIXED },
    },
    Event { name: "70 % reads, hot extents of 64 KiB, QD1", warming: SHORT, load: MIXED },
    Event {
        name: "70 % reads, hot blocks of 4 KiB, QD8",
        warming: LEARNING,
        load: Load { depth: DEEP, extent: 1, ..MIXED },
    },
];

impl Load {
    /// The guest's command.
    fn command(&self, device: &str, seed: u64, requests: u64) -> String {
        let Load { depth, reads, flush, blocks, extent, zipf } = self;
        let mut command = format!("measure {device} seed={seed} depth={depth} reads={reads} flush={flush} ");
        let _ = write!(command, "blocks={blocks} extent={extent} zipf={zipf} requests={requests}");
        command
    }
}

/// Has the guest do a load; what was read must be right.
fn measure(guest: &mut Guest, command: &str) -> Result<Figures, Failure> {
    guest.begin(command)?;
    let answer = guest.finish(command, LIMIT)?;
    let wrong = answer.number("wrong")?;
    check(wrong == 0, format!("{wrong} reads returned wrong data: {command}"))?;
    let seconds = answer.number("elapsed_us")?.max(1) as f64 / 1e6;
    Ok(Figures {
        iops: answer.number("requests")? as f64 / seconds,
        median_us: answer.number("median_us")? as f64,
        p99_us: answer.number("p99_us")? as f64,
    })
}

fn warm(
    event: &Event,
    seed: u64,
    options: &Options,
    guest: &mut Guest,
    contenders: &[Contender],
) -> Result<(), Failure> {
    for Contender { device, .. } in contenders {
        let command = match event.warming {
            Warming::Rounds(rounds) => event.load.command(device, seed, rounds * options.requests),
            Warming::Writes => {
                format!(
                    "measure {device} seed={seed} depth={DEEP} reads=0 flush=0 blocks={FITTING} extent={EXTENT}"
                )
            }
        };
        measure(guest, &command)?;
    }
    Ok(())
}

/// Runs all contenders under a load, the `number`th one. Each round has every contender once, and all do the same
/// requests; no two rounds do, of whatever load.
pub fn hold(
    event: &Event,
    number: u64,
    options: &Options,
    hosts: &Hosts,
    guest: &mut Guest,
    contenders: &[Contender],
) -> Result<Outcome, Failure> {
    let first_seed = number * SEEDS;
    warm(event, first_seed, options, guest, contenders)?;
    std::thread::sleep(REST);
    let mut logs: Vec<Log> = contenders.iter().map(|_| Log::default()).collect();
    let mut count = |guest: &mut Guest| -> Result<Vec<Counters>, Failure> {
        let each = contenders.iter().zip(&mut logs);
        each.map(|(contender, log)| Counters::of(hosts, guest, contender, log)).collect()
    };
    let before = count(guest)?;
    let mut rounds = vec![Vec::new(); contenders.len()];
    for round in 0..options.rounds {
        // A cache may go on in the background while the next one is measured, so they do not always follow each other.
        for turn in 0..contenders.len() {
            let at = (turn + round) % contenders.len();
            let seed = first_seed + 1 + round as u64;
            let command = event.load.command(&contenders[at].device, seed, options.requests);
            rounds[at].push(measure(guest, &command)?);
        }
    }
    std::thread::sleep(REST);
    let after = count(guest)?;
    let results = (contenders.iter().zip(rounds)).zip(after.iter().zip(&before));
    let results = results.map(|((contender, rounds), (after, before))| Measured {
        kind: contender.kind,
        rounds,
        counted: after.since(before),
    });
    Ok(Outcome::new(event.name, options, event.load.reads, results.collect()))
}
