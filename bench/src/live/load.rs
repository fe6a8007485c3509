//! Closed loops of 4 KiB requests, the same for every kind of client: n requests in flight, and another one for each
//! that is done. Each block of a disk carries its number, and each read is checked for it.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use haversack_model::random::Random;

/// Bytes of a request.
pub const REQUEST_BYTES: usize = 4096;
/// Most requests in flight.
pub const MOST_DEPTH: usize = 32;
/// A client that hears nothing for so long gives up.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// What requests do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Read a block.
    Read,
    /// Write a block.
    Write,
}

/// Something that requests go to.
pub trait Client {
    /// Starts a request under a number below [`MOST_DEPTH`] that is not in use. The client may send the request only in
    /// `wait`.
    fn start(&mut self, number: usize, kind: Kind, block: u64) -> io::Result<()>;
    /// Waits until requests are done, and adds their numbers.
    fn wait(&mut self, done: &mut Vec<usize>) -> io::Result<()>;
}

/// How requests come.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// What they do.
    pub kind: Kind,
    /// How many are in flight.
    pub depth: usize,
    /// Random blocks below this one.
    pub blocks: u64,
    /// A pause after n requests, so that what is due in the background gets done.
    pub burst: Option<(u64, Duration)>,
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
            client.start(number, kind, next)?;
            next += 1;
        }
        client.wait(&mut done)?;
        idle.append(&mut done);
    }
    Ok(())
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
    let mut started = [begin; MOST_DEPTH];
    for (number, started) in started.iter_mut().enumerate().take(load.depth) {
        *started = Instant::now();
        client.start(number, load.kind, rng.below(load.blocks))?;
    }
    let (mut in_flight, mut asked) = (load.depth, load.depth as u64);
    let mut done = Vec::with_capacity(MOST_DEPTH);
    while in_flight > 0 {
        client.wait(&mut done)?;
        let now = Instant::now();
        let goes_on = now - begin < time;
        for number in done.drain(..) {
            let took = now - started[number];
            round.latencies_ns.push(u32::try_from(took.as_nanos()).unwrap_or(u32::MAX));
            round.requests += 1;
            if goes_on && asked < most {
                started[number] = Instant::now();
                client.start(number, load.kind, rng.below(load.blocks))?;
                asked += 1;
            } else {
                in_flight -= 1;
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
    struct Echo(Vec<usize>, usize);

    impl Client for Echo {
        fn start(&mut self, number: usize, _: Kind, block: u64) -> io::Result<()> {
            assert!(block < 100 && !self.0.contains(&number), "request {number} for block {block}");
            self.0.push(number);
            self.1 = self.1.max(self.0.len());
            Ok(())
        }

        fn wait(&mut self, done: &mut Vec<usize>) -> io::Result<()> {
            done.extend(self.0.drain(..).rev());
            Ok(())
        }
    }

    #[test]
    fn as_many_are_in_flight_as_asked_for() {
        let load =
            Load { kind: Kind::Read, depth: 7, blocks: 100, burst: Some((21, Duration::from_millis(1))) };
        let mut echo = Echo(Vec::new(), 0);
        let round = run(&mut echo, load, Duration::from_millis(20), &mut Random::new(1)).unwrap();
        assert_eq!((echo.1, round.requests % 7), (7, 0));
        assert_eq!(round.latencies_ns.len() as u64, round.requests);
        assert!(round.latencies_ns.is_sorted() && round.busy < Duration::from_millis(20));
    }

    #[test]
    fn a_wrong_block_is_noticed() {
        let mut bytes = [0; REQUEST_BYTES];
        fill_block(77, &mut bytes);
        assert!(check_block(77, &bytes).is_ok());
        assert!(check_block(78, &bytes).unwrap_err().to_string().contains("was read as block Some(77)"));
    }
}
