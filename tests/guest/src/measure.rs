//! A measured load on a block device: a given number of requests of whole blocks from several threads, past the page
//! cache. The same plan makes the same requests on every device, so that devices can be compared.
//!
//! A block's first word is its number plus one. Reads are checked for it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use haversack_model::random::Random;
use rustix::fs::OFlags;

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 4096;
/// The longest request: 128 KiB.
const LONGEST_BLOCKS: u64 = 32;
/// Most threads.
const MOST_THREADS: u64 = 32;
/// Which extents are hot depends on this alone, so that they stay hot from one load to the next.
const HOT_SEED: u64 = 0x0b10_c0de;

/// How a load chooses blocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Choice {
    /// Each extent once, as one request, in random order.
    Each,
    /// Extents by Zipf's law with this exponent, and any block of the extent; exponent 0 makes all blocks alike.
    Zipf(f64),
}

/// A load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// Determines the requests.
    pub seed: u64,
    /// Requests of all threads.
    pub requests: u64,
    /// Threads, each of which waits for its request.
    pub depth: u64,
    /// How many of 100 requests are reads.
    pub reads: u64,
    /// A thread flushes after this many writes; 0 for never.
    pub flush: u64,
    /// Blocks of the device that are used, from its first one on.
    pub blocks: u64,
    /// Blocks of an extent: neighbours that are hot or cold together.
    pub extent: u64,
    /// How blocks are chosen.
    pub choice: Choice,
}

/// One request: its first block, its blocks, and whether it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Request {
    block: u64,
    blocks: u64,
    is_read: bool,
}

/// What was measured.
#[derive(Debug, Default)]
pub struct Measured {
    elapsed: Duration,
    reads: u64,
    latencies_us: Vec<u64>,
    wrong: u64,
}

impl Plan {
    /// Parses words `key=value`: seed, requests, depth, reads, flush, blocks, extent, zipf. Without `zipf` the load uses
    /// each extent once.
    ///
    /// # Errors
    /// What is missing, unknown or out of range.
    pub fn parse(words: &[&str]) -> Result<Self, String> {
        let pair =
            |word: &&'_ str| word.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
        let mut pairs: BTreeMap<String, String> = words.iter().filter_map(pair).collect();
        let mut text = |key: &str| pairs.remove(key).ok_or_else(|| format!("{key}=NUMBER is missing"));
        let mut number = |key: &str, least: u64, most: u64| -> Result<u64, String> {
            let parsed = text(key)?.parse().ok().filter(|n| (least..=most).contains(n));
            parsed.ok_or_else(|| format!("{key} must be a number from {least} to {most}"))
        };
        let seed = number("seed", 0, u64::MAX)?;
        let depth = number("depth", 1, MOST_THREADS)?;
        let (reads, flush) = (number("reads", 0, 100)?, number("flush", 0, u64::MAX)?);
        let extent = number("extent", 1, LONGEST_BLOCKS)?;
        let blocks = number("blocks", extent, u64::MAX / BLOCK_BYTES as u64)?;
        let (choice, requests) = match text("zipf") {
            Ok(exponent) => {
                let exponent = exponent.parse().ok().filter(|n| (0.0..=2.0).contains(n));
                let exponent = exponent.ok_or("zipf must be a number from 0 to 2")?;
                let requests = text("requests")?.parse().map_err(|_| "requests must be a number")?;
                (Choice::Zipf(exponent), requests)
            }
            Err(_) => (Choice::Each, blocks / extent),
        };
        match pairs.keys().next() {
            Some(key) => Err(format!("a load has no {key}")),
            None => Ok(Self { seed, requests, depth, reads, flush, blocks, extent, choice }),
        }
    }

    /// The requests of every thread.
    fn sequences(&self) -> Vec<Vec<Request>> {
        let extents = self.blocks / self.extent;
        let mut order: Vec<u64> = (0..extents).collect();
        let mut random = Random::new(self.seed);
        let picked: Vec<Request> = match self.choice {
            Choice::Each => {
                random.shuffle(&mut order);
                let whole = |extent: &u64| Request {
                    block: extent * self.extent,
                    blocks: self.extent,
                    is_read: random.percent(self.reads),
                };
                order.iter().map(whole).collect()
            }
            Choice::Zipf(exponent) => {
                Random::new(HOT_SEED).shuffle(&mut order);
                let sums = sums(extents, exponent);
                let total = sums.last().copied().unwrap_or(0.0);
                let mut one = |_| {
                    let wanted = random.unit() * total;
                    let rank = sums.partition_point(|sum| *sum <= wanted).min(order.len() - 1);
                    let block = order[rank] * self.extent + random.below(self.extent);
                    Request { block, blocks: 1, is_read: random.percent(self.reads) }
                };
                (0..self.requests).map(&mut one).collect()
            }
        };
        let mut sequences = vec![Vec::new(); self.depth as usize];
        for (at, request) in picked.into_iter().enumerate() {
            sequences[at % self.depth as usize].push(request);
        }
        sequences
    }
}

/// The running sums of Zipf's weights, hottest first.
fn sums(count: u64, exponent: f64) -> Vec<f64> {
    let mut sum = 0.0;
    let next = |rank: u64| {
        sum += (rank as f64).powf(-exponent);
        sum
    };
    (1..=count).map(next).collect()
}

/// Runs a load on `/dev/NAME`.
///
/// # Errors
/// The first error of the kernel.
pub fn run(name: &str, plan: &Plan) -> io::Result<Measured> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(OFlags::DIRECT.bits().cast_signed())
        .open(Path::new("/dev").join(name))?;
    let sequences = plan.sequences();
    let start_line = Barrier::new(sequences.len() + 1);
    let (file, line) = (&file, &start_line);
    thread::scope(|scope| {
        let spawn = |requests: Vec<Request>| scope.spawn(move || work(file, plan.flush, &requests, line));
        let threads: Vec<_> = sequences.into_iter().map(spawn).collect();
        line.wait();
        let start = Instant::now();
        let mut all = Measured::default();
        for thread in threads {
            let part = thread.join().map_err(|_| io::Error::other("a thread of the load has panicked"))??;
            all.reads += part.reads;
            all.wrong += part.wrong;
            all.latencies_us.extend(part.latencies_us);
        }
        all.elapsed = start.elapsed();
        all.latencies_us.sort_unstable();
        Ok(all)
    })
}

/// One thread's part.
fn work(file: &File, flush: u64, requests: &[Request], line: &Barrier) -> io::Result<Measured> {
    let mut memory = vec![0x5a; (LONGEST_BLOCKS as usize + 1) * BLOCK_BYTES];
    let start = memory.as_ptr().align_offset(BLOCK_BYTES);
    let memory = &mut memory[start..];
    let mut part = Measured::default();
    let mut unflushed = 0;
    line.wait();
    for request in requests {
        let bytes = &mut memory[..request.blocks as usize * BLOCK_BYTES];
        let offset = request.block * BLOCK_BYTES as u64;
        if !request.is_read {
            mark(bytes, request.block);
        }
        let begin = Instant::now();
        if request.is_read {
            file.read_exact_at(bytes, offset)?;
        } else {
            file.write_all_at(bytes, offset)?;
            unflushed += 1;
            if unflushed == flush {
                file.sync_data()?;
                unflushed = 0;
            }
        }
        part.latencies_us.push(begin.elapsed().as_micros() as u64);
        if request.is_read {
            part.reads += 1;
            part.wrong += u64::from(!is_marked(bytes, request.block));
        }
    }
    Ok(part)
}

/// Numbers blocks, the first one `block`.
pub fn mark(bytes: &mut [u8], block: u64) {
    for (block, bytes) in (block..).zip(bytes.chunks_exact_mut(BLOCK_BYTES)) {
        bytes[..8].copy_from_slice(&(block + 1).to_le_bytes());
    }
}

fn is_marked(bytes: &[u8], block: u64) -> bool {
    (block..)
        .zip(bytes.chunks_exact(BLOCK_BYTES))
        .all(|(block, bytes)| bytes[..8] == (block + 1).to_le_bytes())
}

impl fmt::Display for Measured {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { elapsed, reads, latencies_us, wrong } = self;
        let quantile = |share: f64| {
            let at = (latencies_us.len() as f64 * share) as usize;
            latencies_us.get(at.min(latencies_us.len().saturating_sub(1))).copied().unwrap_or(0)
        };
        let (requests, elapsed_us) = (latencies_us.len(), elapsed.as_micros());
        write!(out, "requests={requests} reads={reads} elapsed_us={elapsed_us} wrong={wrong} ")?;
        write!(out, "median_us={} p99_us={}", quantile(0.5), quantile(0.99))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "seed=1 requests=1000 depth=3 reads=70 flush=0 blocks=4096 extent=16";

    fn plan(line: &str) -> Result<Plan, String> {
        Plan::parse(&line.split(' ').collect::<Vec<_>>())
    }

    #[test]
    fn the_same_seed_makes_the_same_requests() {
        let parsed = plan(&format!("{LINE} zipf=0.9")).unwrap();
        assert_eq!(parsed.sequences(), parsed.sequences());
        assert_ne!(parsed.sequences(), Plan { seed: 2, ..parsed }.sequences());
    }

    #[test]
    fn some_extents_are_hot() {
        let parsed = plan(&format!("{LINE} zipf=0.9")).unwrap();
        let mut counts = vec![0; 256];
        for request in parsed.sequences().concat() {
            counts[request.block as usize / 16] += 1;
        }
        counts.sort_unstable();
        assert!(counts[192..].iter().sum::<u32>() > 500, "the hottest quarter has most of 1000 requests");
        assert!(counts[..64].iter().sum::<u32>() > 0, "the coldest has some");
    }

    #[test]
    fn a_pass_uses_each_extent_once() {
        let parsed = plan("seed=1 depth=3 reads=0 flush=0 blocks=4096 extent=16").unwrap();
        let mut firsts: Vec<u64> = parsed.sequences().concat().iter().map(|r| r.block).collect();
        firsts.sort_unstable();
        assert_eq!(firsts, (0..4096).step_by(16).collect::<Vec<u64>>());
    }

    #[test]
    fn wrong_plans_are_refused() {
        for (line, complaint) in [
            ("seed=1", "depth=NUMBER is missing"),
            ("seed=1 depth=0", "depth must be a number from 1 to 32"),
            (&format!("{LINE} zipf=9"), "zipf must be a number from 0 to 2"),
            (&format!("{LINE} zipf=1 size=2"), "a load has no size"),
        ] {
            assert_eq!(plan(line), Err(complaint.to_owned()), "{line}");
        }
    }

    #[test]
    fn blocks_are_known_by_their_numbers() {
        let mut bytes = vec![0; 2 * BLOCK_BYTES];
        mark(&mut bytes, 7);
        assert!(is_marked(&bytes, 7) && !is_marked(&bytes, 8));
        bytes[BLOCK_BYTES] ^= 1;
        assert!(!is_marked(&bytes, 7));
    }
}
