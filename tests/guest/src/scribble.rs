//! A file that grows by numbered blocks without a sync, so that a snapshot shows when it was taken.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::files::MOUNT_POINT;

const NAME: &str = "scribbles";
const BLOCK_BYTES: usize = 4096;
const PAUSE: Duration = Duration::from_millis(2);

/// The blocks written, and the longest time between two of them.
type Written = Result<(u64, Duration), String>;

/// Writes the file.
#[derive(Debug)]
pub struct Scribbler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Written>,
}

impl Scribbler {
    /// Starts to write.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn start() -> Result<Scribbler, String> {
        let path = Path::new(MOUNT_POINT).join(NAME);
        let file = File::create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        Ok(Scribbler { stop, thread: std::thread::spawn(move || write(file, &stopped)) })
    }

    /// Stops.
    ///
    /// # Errors
    /// A write has failed.
    pub fn stop(self) -> Written {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| "the thread that scribbles has panicked".to_owned())?
    }
}

fn write(mut file: File, stop: &AtomicBool) -> Written {
    let (mut blocks, mut gap, mut last) = (0, Duration::ZERO, Instant::now());
    while !stop.load(Ordering::Relaxed) {
        file.write_all(&block(blocks)).map_err(|error| format!("block {blocks}: {error}"))?;
        blocks += 1;
        gap = gap.max(last.elapsed());
        last = Instant::now();
        std::thread::sleep(PAUSE);
    }
    Ok((blocks, gap))
}

fn block(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(BLOCK_BYTES / 8)
}

/// Reads the file. Returns the number of its blocks.
///
/// # Errors
/// It cannot be read, or a block is not the one that belongs there.
pub fn read() -> Result<u64, String> {
    let path = Path::new(MOUNT_POINT).join(NAME);
    let bytes = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let blocks = bytes.chunks(BLOCK_BYTES);
    match blocks.clone().zip(0..).find(|(bytes, number)| *bytes != block(*number)) {
        Some((_, number)) => Err(format!("{}: block {number} is wrong", path.display())),
        None => Ok(blocks.len() as u64),
    }
}
