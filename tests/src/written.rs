//! An NBD client that knows what it has flushed. Flushed data must survive the loss of the host; data written later may
//! survive.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use haversack_model::random::Random;

use crate::connection::{Command, Connection};
use crate::error::check;
use crate::{Error, Result};

const BLOCK: u64 = 4096;
/// Writes between two flushes.
const WRITES_A_FLUSH: usize = 16;

/// What a client has written of the first blocks of a disk, and what of that was flushed. Each write fills a block with
/// the next value.
#[derive(Clone, Debug)]
pub struct Written {
    disk: String,
    last: Vec<u8>,
    flushed: Vec<u8>,
    /// The longest that a flush took.
    pub longest: Duration,
    /// How many flushes have succeeded.
    pub flushes: u32,
}

impl Written {
    /// Nothing was written yet of the first `blocks` blocks, which are zeroes.
    pub fn new(disk: &str, blocks: u64) -> Self {
        let blank = vec![0; blocks as usize];
        Self {
            disk: disk.to_owned(),
            last: blank.clone(),
            flushed: blank,
            longest: Duration::ZERO,
            flushes: 0,
        }
    }

    /// Writes, reads and flushes until told to end.
    ///
    /// # Errors
    /// The server refuses something, is gone, or returns other bytes than were written.
    pub fn go_on(&mut self, socket: &Path, ends: &AtomicBool) -> Result<()> {
        let mut guest = Connection::open(socket, &self.disk)?;
        let mut random = Random::new(u64::from(self.flushes) + 1);
        while !ends.load(Ordering::Relaxed) {
            self.flush_some(&mut guest, &mut random)?;
        }
        Ok(())
    }

    /// Writes some blocks, reads one, and flushes.
    fn flush_some(&mut self, guest: &mut Connection, random: &mut Random) -> Result<()> {
        for _ in 0..WRITES_A_FLUSH {
            let block = random.below(self.last.len() as u64);
            let value = self.last[block as usize].wrapping_add(1).max(1);
            // Noted before the write: its answer may be lost.
            self.last[block as usize] = value;
            guest.ask(Command::Write, block * BLOCK, BLOCK as u32, &mut [value; BLOCK as usize])?;
        }
        let block = random.below(self.last.len() as u64);
        guest.check_filled(block..block + 1, self.last[block as usize])?;
        let (last, begin) = (self.last.clone(), Instant::now());
        guest.ask(Command::Flush, 0, 0, &mut [])?;
        self.longest = self.longest.max(begin.elapsed());
        (self.flushed, self.flushes) = (last, self.flushes + 1);
        Ok(())
    }

    /// Runs the load while `act` is carried out. The load must survive that.
    ///
    /// # Errors
    /// As [`Written::go_on`], or `act` fails.
    pub fn during<T>(&mut self, socket: &Path, act: impl FnOnce() -> Result<T>) -> Result<T> {
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let load = scope.spawn(|| self.go_on(socket, &ends));
            let acted = act();
            ends.store(true, Ordering::Relaxed);
            let ended = load.join().map_err(|_| Error::Check("the load panicked".into()))?;
            let acted = acted?;
            ended.map(|()| acted)
        })
    }

    /// Runs the load until `kill` has ended its server.
    ///
    /// # Errors
    /// The load survives that, or `kill` fails.
    pub fn until_death(&mut self, socket: &Path, kill: impl FnOnce() -> Result<()>) -> Result<()> {
        // On a slow machine, the server may be killed before the load has flushed anything.
        let mut random = Random::new(u64::from(self.flushes) + 1);
        self.flush_some(&mut Connection::open(socket, &self.disk)?, &mut random)?;
        std::thread::scope(|scope| {
            let load = scope.spawn(|| self.go_on(socket, &AtomicBool::new(false)));
            kill()?;
            let ended = load.join().map_err(|_| Error::Check("the load panicked".into()))?;
            check(ended.is_err(), "the load outlives its server")
        })?;
        check(self.flushes > 0, "nothing was flushed")
    }

    /// Checks that each block has the value of its last flush or a later one. The value that is read now becomes the
    /// expected one.
    ///
    /// # Errors
    /// A block is otherwise, or cannot be read.
    pub fn check(&mut self, socket: &Path) -> Result<()> {
        let mut guest = Connection::open(socket, &self.disk)?;
        for block in 0..self.last.len() {
            let mut data = [0; BLOCK as usize];
            guest.ask(Command::Read, block as u64 * BLOCK, BLOCK as u32, &mut data)?;
            check(data.iter().all(|byte| *byte == data[0]), format!("block {block} is of several versions"))?;
            let (flushed, last, found) = (self.flushed[block], self.last[block], data[0]);
            // Values wrap around.
            let is_good = found.wrapping_sub(flushed) <= last.wrapping_sub(flushed);
            check(is_good, format!("block {block}: {found}; flushed {flushed}, written {last}"))?;
            self.last[block] = found;
        }
        Ok(())
    }

    /// Checks that an image has all that was written last, and zeroes behind that.
    ///
    /// # Errors
    /// It has something else, or cannot be read.
    pub fn check_image(&self, image: &Path) -> Result<()> {
        let bytes = std::fs::read(image).map_err(Error::io(image.display().to_string()))?;
        let blocks = bytes.chunks(BLOCK as usize).enumerate();
        let values = self.last.iter().copied().chain(std::iter::repeat(0));
        for ((block, data), value) in blocks.zip(values) {
            let is_filled = data.iter().all(|byte| *byte == value);
            check(is_filled, format!("block {block} of the image: {}, not {value}", data[0]))?;
        }
        check(bytes.len() >= self.last.len() * BLOCK as usize, "the image is too short")
    }
}
