//! A client that knows what each read may return, and checks it, whatever else happens to the daemon.
//!
//! A block that was written and acknowledged reads as its last version, even if the daemon was killed in between. A
//! write or zeroing without an answer may or may not have happened, until a read has shown which.

use haversack_model::random::Random;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::connection::{Command, Connection};
use crate::error::check;
use crate::{Error, Result};

const BLOCK_BYTES: usize = 4096;
/// `NBD_ESHUTDOWN`.
const SHUTDOWN: u32 = 108;

/// What a block may read as: one of these versions, or anything if there is none. Version 0 is zeroes.
type Versions = Vec<u64>;

/// See the module. The verifier uses a range of blocks, by default the first ones of the disk. Nothing else writes
/// these blocks, and they read as zeroes at first.
#[derive(Debug)]
pub struct Verifier {
    socket: PathBuf,
    disk: String,
    connection: Option<Connection>,
    first: usize,
    blocks: Vec<Versions>,
    next_version: u64,
    random: Random,
    may_be_detached: bool,
    /// How long each request took.
    pub times: Vec<Duration>,
}

impl Verifier {
    /// A client of a disk's first `blocks` blocks. Connects when it is first needed.
    pub fn new(socket: &Path, disk: &str, blocks: usize, seed: u64) -> Self {
        Self {
            socket: socket.to_owned(),
            disk: disk.to_owned(),
            connection: None,
            first: 0,
            blocks: vec![vec![0]; blocks],
            next_version: 1,
            random: Random::new(seed),
            may_be_detached: true,
            times: Vec::new(),
        }
    }

    /// The same for blocks from `first` on.
    #[must_use]
    pub fn from_block(self, first: usize) -> Self {
        Self { first, ..self }
    }

    /// The same for a disk that nobody detaches: an error that says so is a failure.
    #[must_use]
    pub fn never_detached(self) -> Self {
        Self { may_be_detached: false, ..self }
    }

    /// Goes on at another server of the same disk.
    pub fn move_to(&mut self, socket: &Path) {
        self.disconnect();
        self.socket = socket.to_owned();
    }

    /// Ends the connection, if there is one.
    pub fn disconnect(&mut self) {
        self.connection = None;
    }

    /// Returns whether the last request was answered.
    pub fn is_answered(&self) -> bool {
        self.connection.is_some()
    }

    /// Writes a number of blocks in their order, from a random one on.
    ///
    /// # Errors
    /// The server refuses one.
    pub fn write_in_order(&mut self, blocks: usize) -> Result<()> {
        let first = self.draw((self.blocks.len() - blocks) as u64) as usize;
        (first..first + blocks).try_for_each(|block| self.change(block, Command::Write))
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random.below(below)
    }

    /// One random request. A lost connection is no failure: the next request connects again.
    ///
    /// # Errors
    /// A read returns other bytes than it may.
    pub fn step(&mut self) -> Result<()> {
        let block = self.draw(self.blocks.len() as u64) as usize;
        let what = self.draw(100);
        let start = Instant::now();
        let result = match what {
            0..40 => self.read(block).map(|_| ()),
            40..92 => self.change(block, Command::Write),
            92..96 => self.change(block, Command::Zeroes),
            _ => self.ask(Command::Flush, block, &mut []).map(|_| ()),
        };
        self.times.push(start.elapsed());
        result
    }

    /// Reads every block.
    ///
    /// # Errors
    /// One returns other bytes than it may, or the disk cannot be reached.
    pub fn verify_all(&mut self) -> Result<()> {
        for block in 0..self.blocks.len() {
            // The first attempt may use an earlier connection, which was lost.
            let answered = self.read(block)? || self.read(block)?;
            check(answered, format!("disk '{}' does not answer", self.disk))?;
        }
        Ok(())
    }

    /// False if there was no answer.
    fn read(&mut self, block: usize) -> Result<bool> {
        let mut data = [0; BLOCK_BYTES];
        if !self.ask(Command::Read, block, &mut data)? {
            return Ok(false);
        }
        if self.blocks[block].is_empty() {
            return Ok(true);
        }
        let matches = |version: &u64| data == content(block, *version);
        let Some(version) = self.blocks[block].iter().copied().find(matches) else {
            let versions = &self.blocks[block];
            let found = u64::from_le_bytes(data[8..16].try_into().unwrap_or_default());
            return Err(Error::Check(format!(
                "disk '{}' block {block}: wrong bytes (version {found}?), allowed are versions {versions:?}",
                self.disk
            )));
        };
        self.blocks[block] = vec![version];
        Ok(true)
    }

    fn change(&mut self, block: usize, command: Command) -> Result<()> {
        let version = if command == Command::Zeroes { 0 } else { self.next_version };
        self.next_version += 1;
        if self.ask(command, block, &mut content(block, version))? {
            self.blocks[block] = vec![version];
        } else if !self.blocks[block].is_empty() && !self.blocks[block].contains(&version) {
            self.blocks[block].push(version);
        }
        Ok(())
    }

    /// False if there was no answer.
    fn ask(&mut self, command: Command, block: usize, data: &mut [u8]) -> Result<bool> {
        if self.connection.is_none() {
            self.connection = Connection::open(&self.socket, &self.disk).ok();
        }
        let Some(connection) = self.connection.as_mut() else { return Ok(false) };
        let length = if command == Command::Flush { 0 } else { BLOCK_BYTES as u32 };
        let offset = if command == Command::Flush { 0 } else { ((self.first + block) * BLOCK_BYTES) as u64 };
        match connection.ask(command, offset, length, data) {
            Ok(()) => Ok(true),
            Err(Error::Io { .. }) => {
                self.connection = None;
                Ok(false)
            }
            Err(Error::Refused { errno: SHUTDOWN, .. }) if self.may_be_detached => {
                self.connection = None;
                Ok(false)
            }
            Err(error) => Err(Error::Check(format!("disk '{}': {error}", self.disk))),
        }
    }
}

/// A version of a block.
fn content(block: usize, version: u64) -> [u8; BLOCK_BYTES] {
    if version == 0 {
        return [0; BLOCK_BYTES];
    }
    let mut bytes = [(block as u64 ^ version) as u8; BLOCK_BYTES];
    bytes[..8].copy_from_slice(&(block as u64).to_le_bytes());
    bytes[8..16].copy_from_slice(&version.to_le_bytes());
    bytes
}

/// A verifier at work in the background, beside others who attack.
#[derive(Debug)]
pub struct Bystander {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Verifier>>,
}

/// How long requests took, the shortest first.
#[derive(Debug)]
pub struct Times(Vec<Duration>);

impl Times {
    /// How many requests there were.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The time that 99 of 100 requests took at most.
    pub fn p99(&self) -> Duration {
        self.0.get(self.0.len() * 99 / 100).or(self.0.last()).copied().unwrap_or_default()
    }
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let worst = self.0.last().copied().unwrap_or_default();
        write!(f, "{} requests, p99 {:?}, worst {worst:?}", self.0.len(), self.p99())
    }
}

impl Bystander {
    /// Begins on a disk that nobody else uses, whatever is on it.
    ///
    /// # Errors
    /// The disk cannot be reached.
    pub fn begin(socket: &Path, disk: &str) -> Result<Self> {
        let mut verifier = Verifier::new(socket, disk, 1024, 1);
        verifier.blocks.fill(Vec::new());
        verifier.connection = Some(Connection::open(socket, disk)?);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) || verifier.times.is_empty() {
                verifier.step()?;
                if verifier.connection.is_none() {
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
            Ok(verifier)
        });
        Ok(Self { stop, thread })
    }

    /// Stops it and checks all that it wrote. Returns how long its requests took.
    ///
    /// # Errors
    /// A read returned wrong bytes.
    pub fn end(self) -> Result<Times> {
        self.stop.store(true, Ordering::Relaxed);
        let mut verifier =
            self.thread.join().map_err(|_| Error::Check("the bystander panicked".into()))??;
        let mut times = std::mem::take(&mut verifier.times);
        verifier.verify_all()?;
        times.sort_unstable();
        let times = Times(times);
        println!("the bystander: {times}");
        Ok(times)
    }
}
