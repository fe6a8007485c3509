//! The file with the checkpoint of an arena: written when the arena has stopped cleanly, read and removed when it is
//! opened.
//!
//! It is not made durable. While the host stays up, the next process reads it from the page cache; when the host shuts
//! down in order, the file system is written back. After a power loss it may contain anything, which its checksums
//! detect: then the metadata pages are read, as without it.
//!
//! Invariants
//! - The file is removed only when the pool's record durably says that it is obsolete, or when it is incomplete.
//! - Writing it takes no longer than it saves: guests wait for the next process. It takes at most half of the space
//!   that is free on its file system. A failure is only reported: the pool is stopped cleanly anyway.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use haversack_core::format::checkpoint::{HEADER_BYTES, MOST_PAYLOAD_BYTES, piece_bytes};
use haversack_core::{CheckpointSource, Core, Unsaved};
use rustix::fs::{Advice, OFlags};

/// The minimum write rate in bytes per second. At 150 MB/s, writing and reading a checkpoint takes about as long as
/// reading all metadata (docs/benchmarks.md). Reading takes part of that time, so writing must be faster.
const LEAST_PACE: u64 = 250_000_000;
/// How long it may take to reach that pace.
const START_TIME: Duration = Duration::from_secs(1);
/// How often its progress is reported.
const TELL_EVERY: Duration = Duration::from_secs(2);
/// At least this many bytes must stay free on the file system, or as many as the file has, if that is more.
const LEFT_FREE_BYTES: u64 = 256 << 20;
/// How often the free space is checked: others may write there as well.
const LOOK_EVERY_BYTES: u64 = 64 << 20;
/// How long reading one piece may take. If the store does not answer within this time, reading all metadata is faster.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pieces that are read ahead.
const READ_AHEAD: usize = 8;
/// Bytes that the system is told to read ahead of that.
const WANTED_AHEAD_BYTES: u64 = 64 << 20;

/// Receives the progress of writing a checkpoint: bytes written, and bytes in all, at most.
pub type OnSaving = fn(done_bytes: u64, total_bytes: u64);

/// Why a checkpoint could not be written.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{free_bytes} bytes are free, and {needed_bytes} are needed")]
    Space { free_bytes: u64, needed_bytes: u64 },
    #[error("writing it is too slow to save time: {written_bytes} bytes in {seconds:.1} s")]
    Slow { written_bytes: u64, seconds: f64 },
}

/// Writes the checkpoint of a core that has stopped. Nothing remains of it if that fails.
pub(crate) fn save(core: Core, path: &Path, on_saving: OnSaving) {
    let begin = Instant::now();
    match write(core, path, begin, on_saving) {
        Ok(bytes) => {
            let ms = begin.elapsed().as_millis();
            tracing::info!(path = %path.display(), "checkpoint of {bytes} bytes written in {ms} ms");
        }
        Err(error) => {
            remove(path);
            tracing::info!(path = %path.display(), "no checkpoint, the next start reads all metadata: {error}");
        }
    }
}

fn write(core: Core, path: &Path, begin: Instant, on_saving: OnSaving) -> Result<u64, Unsaved<Failed>> {
    let stats = core.pool_stats();
    // A slot takes two bytes more in the file than in memory.
    let total_bytes = stats.memory_bytes + 2 * stats.capacity_blocks;
    let mut file = create(path, total_bytes).map_err(Unsaved::Sink)?;
    let (mut bytes, mut told, mut looked_bytes) = (0, begin, 0);
    core.checkpoint(&mut |piece| {
        file.write_all(piece)?;
        bytes += piece.len() as u64;
        check_pace(bytes, begin.elapsed())?;
        if bytes >= looked_bytes + LOOK_EVERY_BYTES {
            looked_bytes = bytes;
            check_space(free_bytes(&file)?, total_bytes.saturating_sub(bytes), total_bytes)?;
        }
        if told.elapsed() >= TELL_EVERY {
            told = Instant::now();
            on_saving(bytes, total_bytes);
        }
        Ok(())
    })?;
    Ok(bytes)
}

/// Checks that writing is fast enough to be worth it.
fn check_pace(written_bytes: u64, elapsed: Duration) -> Result<(), Failed> {
    let allowed = START_TIME + Duration::from_millis(written_bytes * 1000 / LEAST_PACE);
    if elapsed <= allowed {
        return Ok(());
    }
    Err(Failed::Slow { written_bytes, seconds: elapsed.as_secs_f64() })
}

/// Creates the file if there is space for it.
fn create(path: &Path, bytes: u64) -> Result<File, Failed> {
    let file = File::options().write(true).create(true).truncate(true).mode(0o640).open(path)?;
    check_space(free_bytes(&file)?, bytes, bytes)?;
    Ok(file)
}

/// Returns the bytes that are free on a file's file system.
fn free_bytes(file: &File) -> io::Result<u64> {
    let system = rustix::fs::fstatvfs(file)?;
    Ok(system.f_bavail * system.f_frsize)
}

/// Checks that the rest of a file of `bytes` can be written.
fn check_space(free_bytes: u64, rest_bytes: u64, bytes: u64) -> Result<(), Failed> {
    let needed_bytes = rest_bytes + bytes.max(LEFT_FREE_BYTES);
    if free_bytes < needed_bytes { Err(Failed::Space { free_bytes, needed_bytes }) } else { Ok(()) }
}

/// Removes the file, if it exists.
pub(crate) fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), "cannot remove the checkpoint, which is no longer valid: {error}");
        }
        _ => {}
    }
}

/// Reads a checkpoint ahead of its consumer, on a thread of its own.
pub(crate) struct Source {
    /// `None` if there is no file.
    pieces: Option<Receiver<Vec<u8>>>,
    spare: Option<Sender<Vec<u8>>>,
    piece: Vec<u8>,
    path: PathBuf,
}

/// Opens a file of any kind without waiting.
fn open_file(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"));
    }
    Ok(file)
}

impl Source {
    /// Starts to read a file, which need not exist.
    pub fn open(path: &Path) -> Source {
        let mut source = Source { pieces: None, spare: None, piece: Vec::new(), path: PathBuf::new() };
        let file = match open_file(path) {
            Ok(file) => file,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(path = %path.display(), "cannot read the checkpoint: {error}");
                }
                return source;
            }
        };
        source.path = path.to_path_buf();
        let ((full, pieces), (spare, empty)) = (mpsc::sync_channel(READ_AHEAD), mpsc::channel());
        let reader = Reader { file, path: path.to_path_buf(), offset_bytes: 0, wanted_bytes: 0 };
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(move || {
            let mut reader = reader;
            while let Some(piece) = reader.next(empty.try_recv().unwrap_or_default()) {
                if full.send(piece).is_err() {
                    return;
                }
            }
        });
        // Nothing waits for the thread: it ends when the consumer is gone, or with the process if a read never
        // ends.
        if thread.is_ok() {
            (source.pieces, source.spare) = (Some(pieces), Some(spare));
        }
        source
    }
}

impl CheckpointSource for Source {
    fn next(&mut self) -> Option<&[u8]> {
        let next = match self.pieces.as_ref()?.recv_timeout(PATIENCE) {
            Ok(next) => next,
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => {
                let seconds = PATIENCE.as_secs();
                tracing::warn!(path = %self.path.display(), "the checkpoint cannot be read in {seconds} s");
                self.pieces = None;
                return None;
            }
        };
        let last = std::mem::replace(&mut self.piece, next);
        if let Some(spare) = &self.spare {
            // The thread may have read everything.
            let _ = spare.send(last);
        }
        Some(&self.piece)
    }
}

struct Reader {
    file: File,
    path: PathBuf,
    offset_bytes: u64,
    /// The system was told to read up to here.
    wanted_bytes: u64,
}

impl Reader {
    /// Reads the next piece into a buffer. Returns `None` at the end, and where there is no piece.
    fn next(&mut self, mut buffer: Vec<u8>) -> Option<Vec<u8>> {
        match self.read(&mut buffer) {
            Ok(true) => Some(buffer),
            Ok(false) => None,
            Err(error) => {
                // The consumer of the pieces reports a truncated file.
                if error.kind() != io::ErrorKind::UnexpectedEof {
                    tracing::warn!(path = %self.path.display(), "cannot read the checkpoint: {error}");
                }
                None
            }
        }
    }

    fn read(&mut self, buffer: &mut Vec<u8>) -> io::Result<bool> {
        if self.offset_bytes + WANTED_AHEAD_BYTES / 2 >= self.wanted_bytes {
            let ahead = std::num::NonZeroU64::new(WANTED_AHEAD_BYTES);
            // An error is ignored: this only makes reading faster.
            let _ = rustix::fs::fadvise(&self.file, self.wanted_bytes, ahead, Advice::WillNeed);
            self.wanted_bytes += WANTED_AHEAD_BYTES;
        }
        let mut header = [0; HEADER_BYTES];
        self.file.read_exact(&mut header)?;
        let Some(bytes) = piece_bytes(&header) else { return Ok(false) };
        if buffer.capacity() == 0 {
            buffer.reserve_exact(HEADER_BYTES + MOST_PAYLOAD_BYTES);
        }
        buffer.resize(bytes, 0);
        buffer[..HEADER_BYTES].copy_from_slice(&header);
        self.file.read_exact(&mut buffer[HEADER_BYTES..])?;
        self.offset_bytes += bytes as u64;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_that_takes_longer_than_it_saves_is_given_up() {
        let is_enough =
            |written_bytes: u64, ms: u64| check_pace(written_bytes, Duration::from_millis(ms)).is_ok();
        assert!(is_enough(0, 1000) && !is_enough(0, 1001), "a store that does not answer costs a second");
        assert!(is_enough(LEAST_PACE, 1999) && !is_enough(LEAST_PACE, 2001));
        assert!(is_enough(10 * LEAST_PACE, 10_999) && !is_enough(10 * LEAST_PACE, 11_001));
    }

    #[test]
    fn a_file_that_others_take_the_space_of_is_given_up() {
        const GIB: u64 = 1 << 30;
        let fits = |free_bytes, rest_bytes| check_space(free_bytes, rest_bytes, 4 * GIB).is_ok();
        assert!(fits(8 * GIB, 4 * GIB) && fits(6 * GIB, 2 * GIB));
        assert!(!fits(8 * GIB - 1, 4 * GIB) && !fits(4 * GIB, 2 * GIB), "another one is written beside it");
    }

    #[test]
    fn what_is_no_file_is_no_checkpoint() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("checkpoint");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .expect("made");
        assert!(Source::open(&path).next().is_none(), "nobody writes to it");
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("/dev/zero", &link).expect("made");
        assert!(Source::open(&link).next().is_none());
    }
}
