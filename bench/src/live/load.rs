//! Closed loops of requests, the same for every kind of client: n requests in flight, and another one for each
//! that is done. Each block of a disk carries its number, and each read is checked for it.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use haversack_model::random::Random;

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 4096;
/// Most requests in flight on one disk.
pub const MOST_DEPTH: usize = 32;
/// A client that hears nothing for so long gives up.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Most blocks of a request: 128 KiB.
pub const MOST_BLOCKS: usize = 32;

/// What requests do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Read blocks.
    Read,
    /// Write blocks.
    Write,
    /// Make what was written durable.
    Flush,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// What it does.
    pub kind: Kind,
    /// Its first block.
    pub block: u64,
    /// How many blocks it has, at most [`MOST_BLOCKS`]; 0 for a flush.
    pub blocks: usize,
}

impl Request {
    /// A request of one block.
    pub fn one(kind: Kind, block: u64) -> Request {
        Request { kind, block, blocks: 1 }
    }

    /// A flush.
    pub const FLUSH: Request = Request { kind: Kind::Flush, block: 0, blocks: 0 };

    /// Bytes of its data.
    pub fn bytes(self) -> usize {
        self.blocks * BLOCK_BYTES
    }

    /// Where its data begins on the disk, in bytes.
    pub fn offset(self) -> u64 {
        self.block * BLOCK_BYTES as u64
    }
}

/// Something that requests go to.
pub trait Client {
    /// Starts a request under a number that is not in use, below [`MOST_DEPTH`] for a single disk. The client may send the
    /// request only in `wait`.
    fn start(&mut self, number: usize, request: Request) -> io::Result<()>;
    /// Waits until requests are done, and adds their numbers.
    fn wait(&mut self, done: &mut Vec<usize>) -> io::Result<()>;
}

/// In which order blocks are accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// At random.
    Random,
    /// One request after the other, from a random block on.
    Sequential,
}

/// How requests come.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The share of reads, in percent; the other requests write.
    pub reads_percent: u8,
    /// Whether each write is followed by a flush, and done only when the flush is.
    pub flushes: bool,
    /// How many are in flight.
    pub depth: usize,
    /// Blocks below this one are accessed.
    pub blocks: u64,
    /// Their order.
    pub order: Order,
    /// Blocks of a request.
    pub request_blocks: usize,
    /// A pause after n requests, so that what is due in the background gets done.
    pub burst: Option<(u64, Duration)>,
}

impl Load {
    /// Random requests of one block.
    pub fn random(kind: Kind, depth: usize, blocks: u64) -> Load {
        Load {
            reads_percent: if kind == Kind::Read { 100 } else { 0 },
            flushes: false,
            depth,
            blocks,
            order: Order::Random,
            request_blocks: 1,
            burst: None,
        }
    }
}

/// What came of a load.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// Requests done.
    pub requests: u64,
    /// Time under load: without pauses.
    pub busy: Duration,
    /// Each request's latency in nanoseconds, sorted.
    pub latencies_ns: Vec<u32>,
}

impl Round {
    /// Requests a second.
    pub fn iops(&self) -> f64 {
        self.requests as f64 / self.busy.as_secs_f64()
    }

    /// The latency that a share of the requests does not exceed, in microseconds.
    pub fn latency_us(&self, share: f64) -> f64 {
        let last = self.latencies_ns.len().saturating_sub(1);
        let at = (last as f64 * share) as usize;
        self.latencies_ns.get(at).map_or(f64::NAN, |ns| f64::from(*ns) / 1e3)
    }
}

/// A block's content: its number, then what compresses badly. Writes keep to the number.
pub fn fill_block(block: u64, bytes: &mut [u8]) {
    let mut rng = Random::new(block.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    for word in bytes.as_chunks_mut::<8>().0 {
        *word = rng.bits().to_le_bytes();
    }
    bytes[..8].copy_from_slice(&block.to_le_bytes());
}

/// Checks that the bytes begin the block.
pub fn check_block(block: u64, bytes: &[u8]) -> io::Result<()> {
    let found = bytes.first_chunk().map(|first| u64::from_le_bytes(*first));
    if found == Some(block) {
        return Ok(());
    }
    Err(io::Error::other(format!("block {block} was read as block {found:?}")))
}

/// Puts a client under load for a time.
pub fn run(client: &mut dyn Client, load: Load, time: Duration, rng: &mut Random) -> io::Result<Round> {
    let mut round = Round::default();
    let begin = Instant::now();
    while begin.elapsed() < time {
        let (most, pause) = load.burst.unwrap_or((u64::MAX, Duration::ZERO));
        burst(client, load, time.saturating_sub(begin.elapsed()), most, rng, &mut round)?;
        std::thread::sleep(pause);
    }
    round.latencies_ns.sort_unstable();
    Ok(round)
}

/// Does the same to every block of a range once, in their order.
pub fn pass(client: &mut dyn Client, kind: Kind, blocks: Range<u64>) -> io::Result<()> {
    let mut done = Vec::new();
    let mut next = blocks.start;
    let mut idle: Vec<usize> = (0..MOST_DEPTH).collect();
    while next < blocks.end || idle.len() < MOST_DEPTH {
        while next < blocks.end
            && let Some(number) = idle.pop()
        {
            client.start(number, Request::one(kind, next))?;
            next += 1;
        }
        client.wait(&mut done)?;
        idle.append(&mut done);
    }
    Ok(())
}

/// Chooses the requests of a load.
struct Choice<'a> {
    load: Load,
    rng: &'a mut Random,
    next: u64,
}

impl Choice<'_> {
    fn new(load: Load, rng: &mut Random) -> Choice<'_> {
        let places = load.blocks / load.request_blocks as u64;
        let next = rng.below(places);
        Choice { load, rng, next }
    }

    fn request(&mut self) -> Request {
        let Load { reads_percent, blocks, order, request_blocks, .. } = self.load;
        let places = blocks / request_blocks as u64;
        let place = match order {
            Order::Random => self.rng.below(places),
            Order::Sequential => {
                self.next = (self.next + 1) % places;
                self.next
            }
        };
        let reads = match reads_percent {
            0 => false,
            100 => true,
            share => self.rng.below(100) < u64::from(share),
        };
        let kind = if reads { Kind::Read } else { Kind::Write };
        Request { kind, block: place * request_blocks as u64, blocks: request_blocks }
    }
}

fn burst(
    client: &mut dyn Client,
    load: Load,
    time: Duration,
    most: u64,
    rng: &mut Random,
    round: &mut Round,
) -> io::Result<()> {
    let begin = Instant::now();
    let mut choice = Choice::new(load, rng);
    let mut in_flight: Vec<(Instant, Kind)> = Vec::with_capacity(load.depth);
    for number in 0..load.depth {
        let request = choice.request();
        in_flight.push((Instant::now(), request.kind));
        client.start(number, request)?;
    }
    let (mut left, mut asked) = (load.depth, load.depth as u64);
    let mut done = Vec::with_capacity(load.depth);
    while left > 0 {
        client.wait(&mut done)?;
        let now = Instant::now();
        let goes_on = now - begin < time;
        for number in done.drain(..) {
            let (started, kind) = &mut in_flight[number];
            if load.flushes && *kind == Kind::Write {
                *kind = Kind::Flush;
                client.start(number, Request::FLUSH)?;
                continue;
            }
            round.latencies_ns.push(u32::try_from((now - *started).as_nanos()).unwrap_or(u32::MAX));
            round.requests += 1;
            if goes_on && asked < most {
                let request = choice.request();
                in_flight[number] = (Instant::now(), request.kind);
                client.start(number, request)?;
                asked += 1;
            } else {
                left -= 1;
            }
        }
    }
    round.busy += begin.elapsed();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers all that was started, last one first.
    #[derive(Default)]
    struct Echo {
        started: Vec<usize>,
        most: usize,
        requests: Vec<Request>,
    }

    impl Client for Echo {
        fn start(&mut self, number: usize, request: Request) -> io::Result<()> {
            assert!(request.block + request.blocks as u64 <= 100, "{request:?}");
            assert!(!self.started.contains(&number), "request {number} is in use");
            self.started.push(number);
            self.most = self.most.max(self.started.len());
            self.requests.push(request);
            Ok(())
        }

        fn wait(&mut self, done: &mut Vec<usize>) -> io::Result<()> {
            done.extend(self.started.drain(..).rev());
            Ok(())
        }
    }

    #[test]
    fn as_many_are_in_flight_as_asked_for() {
        let burst = Some((21, Duration::from_millis(1)));
        let load = Load { burst, ..Load::random(Kind::Read, 7, 100) };
        let mut echo = Echo::default();
        let round = run(&mut echo, load, Duration::from_millis(20), &mut Random::new(1)).unwrap();
        assert_eq!((echo.most, round.requests % 7), (7, 0));
        assert_eq!(round.latencies_ns.len() as u64, round.requests);
        assert!(round.latencies_ns.is_sorted() && round.busy < Duration::from_millis(20));
    }

    #[test]
    fn a_write_with_a_flush_counts_once() {
        let burst = Some((10, Duration::from_secs(1)));
        let load = Load { burst, flushes: true, ..Load::random(Kind::Write, 2, 100) };
        let mut echo = Echo::default();
        let round = run(&mut echo, load, Duration::from_millis(1), &mut Random::new(1)).unwrap();
        let flushes = echo.requests.iter().filter(|request| request.kind == Kind::Flush).count();
        assert_eq!((round.requests, flushes), (10, 10));
        assert_eq!(echo.requests.len(), 20);
    }

    #[test]
    fn sequential_requests_follow_each_other() {
        let load = Load {
            burst: Some((10, Duration::from_secs(1))),
            order: Order::Sequential,
            request_blocks: 8,
            ..Load::random(Kind::Read, 1, 100)
        };
        let mut echo = Echo::default();
        run(&mut echo, load, Duration::from_millis(1), &mut Random::new(1)).unwrap();
        for pair in echo.requests.windows(2) {
            assert_eq!(pair[1].block, (pair[0].block + 8) % 96);
        }
    }

    #[test]
    fn a_wrong_block_is_noticed() {
        let mut bytes = [0; BLOCK_BYTES];
        fill_block(77, &mut bytes);
        assert!(check_block(77, &bytes).is_ok());
        assert!(check_block(78, &bytes).unwrap_err().to_string().contains("was read as block Some(77)"));
    }
}
