//! A client of another disk, who writes and reads while others attack, and knows what each read must return.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use haversack_e2e::connection::{Command, Connection};
use haversack_e2e::error::check;
use haversack_e2e::{Error, Result};

const BLOCK: usize = 4096;
/// Blocks that it uses, from the first on.
const BLOCKS: u64 = 1024;
/// No request of a bystander may take longer, whatever others do.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// A client at work. It fails the test if a read returns other bytes than were written, or a request takes too long.
pub struct Bystander {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Times>>,
}

/// How long its requests took.
#[derive(Debug)]
pub struct Times(Vec<Duration>);

impl Times {
    /// The time that 99 of 100 requests took at most.
    pub fn p99(&self) -> Duration {
        self.0[(self.0.len() * 99 / 100).min(self.0.len() - 1)]
    }
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let worst = self.0[self.0.len() - 1];
        write!(f, "{} requests, p99 {:?}, worst {worst:?}", self.0.len(), self.p99())
    }
}

impl Bystander {
    /// Connects to a disk that nobody else uses, and begins.
    pub fn begin(socket: &Path, disk: &str) -> Result<Bystander> {
        let connection = Connection::open(socket, disk)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || work(connection, &stopped));
        Ok(Bystander { stop, thread })
    }

    /// Lets it end. Tells how long its requests took.
    pub fn end(self) -> Result<Times> {
        self.stop.store(true, Ordering::Relaxed);
        let times = self.thread.join().map_err(|_| Error::Check("the bystander panicked".into()))??;
        println!("the bystander: {times}");
        Ok(times)
    }
}

fn work(mut connection: Connection, stopped: &AtomicBool) -> Result<Times> {
    let mut versions = vec![0u64; BLOCKS as usize];
    let mut times = Vec::new();
    let mut random = 1u64;
    while !stopped.load(Ordering::Relaxed) || times.is_empty() {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let block = (random >> 33) % BLOCKS;
        let version = &mut versions[block as usize];
        let offset = block * BLOCK as u64;
        let start = Instant::now();
        if random >> 63 == 0 || *version == 0 {
            *version += 1;
            connection.ask(Command::Write, offset, BLOCK as u32, &mut content(block, *version))?;
        } else {
            let mut data = [0; BLOCK];
            connection.ask(Command::Read, offset, BLOCK as u32, &mut data)?;
            check(data == content(block, *version), format!("the bystander's block {block}: wrong bytes"))?;
        }
        let taken = start.elapsed();
        check(taken < PATIENCE, format!("a request of the bystander took {taken:?}"))?;
        times.push(taken);
    }
    times.sort_unstable();
    Ok(Times(times))
}

fn content(block: u64, version: u64) -> [u8; BLOCK] {
    let mut bytes = [(block ^ version) as u8; BLOCK];
    bytes[..8].copy_from_slice(&block.to_le_bytes());
    bytes[8..16].copy_from_slice(&version.to_le_bytes());
    bytes
}
