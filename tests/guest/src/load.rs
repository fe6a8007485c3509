//! Random requests on a disk from several threads until told to stop.
//!
//! Each thread owns a part of the disk with that part's oracle, so no two requests in flight overlap.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::disk::{Buffer, Disk};
use crate::tally::{Kind, Tally};
use haversack_model::random::Random;

/// Threads, and so requests in flight at most, on a disk.
const THREADS: usize = 4;
/// How long a thread rests after a request that went wrong.
const REST: Duration = Duration::from_millis(10);

/// Which requests a load makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// Every kind, reads and writes most of all.
    Mixed,
    /// Only writes: no request has to wait for data that is not in the cache.
    Writes,
    /// Nine reads for each write, of a few blocks each, everywhere on the disk: all of it is the working set.
    Reads,
}

/// What a load does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Its requests.
    pub mix: Mix,
    /// The most requests a second; none for no limit.
    pub rate: Option<u32>,
}

/// Keeps a thread to its part of the rate.
struct Pace {
    every: Option<Duration>,
    next: Instant,
}

impl Pace {
    fn new(rate: Option<u32>) -> Self {
        let every = rate.map(|rate| Duration::from_secs(1) * THREADS as u32 / rate.max(1));
        Self { every, next: Instant::now() }
    }

    /// Waits until the next request is due. Requests that were missed are not made up for.
    fn wait(&mut self) {
        let Some(every) = self.every else { return };
        thread::sleep(self.next.saturating_duration_since(Instant::now()));
        self.next = self.next.max(Instant::now()) + every;
    }
}

/// A load that runs.
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
    tally: Arc<Mutex<Tally>>,
    threads: Vec<JoinHandle<Disk>>,
}

impl Load {
    /// Starts the threads. The same seed gives each thread the same requests.
    pub fn start(disk: Disk, seed: u64, plan: Plan) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let tally = Arc::new(Mutex::new(Tally::default()));
        let threads = (0..)
            .zip(disk.split(THREADS))
            .map(|(thread, part)| {
                let (stop, tally) = (stop.clone(), tally.clone());
                thread::spawn(move || work(part, plan, Random::new(seed ^ (thread << 56)), &stop, &tally))
            })
            .collect();
        Self { stop, tally, threads }
    }

    /// What was done so far.
    pub fn tally(&self) -> Tally {
        self.tally.lock().expect("no thread panics with the lock").clone()
    }

    /// Waits for the requests in flight and gives the disk back.
    ///
    /// # Panics
    /// If a thread has panicked.
    pub fn stop(self) -> (Disk, Tally) {
        self.stop.store(true, Ordering::Relaxed);
        let parts = self.threads.into_iter().map(|thread| thread.join().expect("a load thread")).collect();
        let tally = self.tally.lock().expect("no thread panics with the lock").clone();
        (Disk::join(parts), tally)
    }
}

fn work(mut disk: Disk, plan: Plan, mut random: Random, stop: &AtomicBool, tally: &Mutex<Tally>) -> Disk {
    let mut buffer = Buffer::new();
    let mut pace = Pace::new(plan.rate);
    while !stop.load(Ordering::Relaxed) {
        let kind = pick(plan.mix, &mut random);
        if !disk.offers(kind) {
            continue;
        }
        let (sector, sectors) = match plan.mix {
            Mix::Reads => disk.blocks(&mut random),
            Mix::Mixed | Mix::Writes => disk.place(&mut random),
        };
        pace.wait();
        let start = Instant::now();
        let result = disk.run(kind, sector, sectors, &mut buffer);
        tally.lock().expect("no thread panics with the lock").count(kind, sectors, start.elapsed(), &result);
        if result.is_err() {
            thread::sleep(REST);
        }
    }
    disk
}

fn pick(mix: Mix, random: &mut Random) -> Kind {
    let of_hundred = random.below(100);
    match (mix, of_hundred) {
        (Mix::Writes, _) | (Mix::Reads, 90..) => Kind::Write,
        (Mix::Reads, _) => Kind::Read,
        (Mix::Mixed, 0..45) => Kind::Read,
        (Mix::Mixed, 45..90) => Kind::Write,
        (Mix::Mixed, 90..94) => Kind::Zeroes,
        (Mix::Mixed, 94..97) => Kind::Discard,
        (Mix::Mixed, _) => Kind::Flush,
    }
}
