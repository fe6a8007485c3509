//! Cache devices as the core's start-up and offline work sees them: plain reads and writes, done as direct I/O
//! to and from aligned memory. A batch of reads has many of them in flight, one on each of some threads. What the core
//! does with the pages before is spread over the processors meanwhile.

use std::io::IoSliceMut;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use haversack_core::{IoFailure, Media, PageRead, ReadProgress, Task};
use haversack_model::BLOCK_BYTES;

use crate::device::CacheDevice;
use crate::error::{EngineError, Result};
use crate::mapping::{Mapping, ask_for_large_pages};
use crate::pool::Formatting;

/// Size of the buffer: long writes use all of it at once.
const BUFFER_BYTES: usize = 1 << 20;
/// The most reads in flight. Each uses a part of the buffer.
const READERS: usize = 32;
/// The most neighbouring pages that are read at once.
const PAGES_AT_ONCE: usize = BUFFER_BYTES / READERS / BLOCK_BYTES;
/// How often progress is reported.
const TELL_EVERY: Duration = Duration::from_secs(2);
/// With fewer reads than this, they are done one after the other.
const FEW_READS: usize = 4;

/// The devices of a pool that is not driven by a reactor.
pub(crate) struct Devices {
    pub devices: Vec<CacheDevice>,
    buffer: Mapping,
    /// Receives the progress of reading a pool's metadata, not more often than every [`TELL_EVERY`].
    pub on_progress: OnProgress,
    told: Instant,
    /// On how many threads the tasks of the core run.
    pub workers: usize,
}

/// Receives the progress of reading a pool's metadata.
pub type OnProgress = fn(ReadProgress);

impl Devices {
    pub fn of(devices: Vec<CacheDevice>) -> Result<Devices> {
        let buffer = Mapping::anonymous(BUFFER_BYTES).map_err(|source| EngineError::Io {
            action: "allocate a buffer for",
            path: devices.first().map_or_else(PathBuf::new, |d| d.path.clone()),
            source,
        })?;
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Devices { devices, buffer, on_progress: |_| {}, told: Instant::now(), workers })
    }

    pub fn open(paths: &[PathBuf]) -> Result<Devices> {
        Devices::of(paths.iter().map(|p| CacheDevice::open(p)).collect::<Result<_>>()?)
    }

    /// Opens devices that are to be formatted. If one fails, the files created for the others are removed.
    pub fn create(paths: &[PathBuf], formatting: Formatting) -> Result<Devices> {
        let mut devices = Devices::of(Vec::new())?;
        for path in paths {
            match CacheDevice::create(path, formatting) {
                Ok(device) => devices.devices.push(device),
                Err(error) => {
                    devices.remove_made();
                    return Err(error);
                }
            }
        }
        Ok(devices)
    }

    /// Removes the files that were created for devices, after a failure.
    pub fn remove_made(&self) {
        for device in self.devices.iter().filter(|device| device.is_new) {
            let _ = std::fs::remove_file(&device.path);
        }
    }
}

/// Reads neighbouring pages at once: directly if their memory is aligned, else by way of the buffer.
fn read_run(devices: &[CacheDevice], buffer: &mut [u8], reads: &mut [PageRead<'_>]) -> std::io::Result<()> {
    let (device, offset_bytes) = (&devices[reads[0].device], reads[0].offset_bytes);
    let bytes = &mut buffer[..reads.len() * BLOCK_BYTES];
    if reads.iter().all(|read| read.page.as_ptr().addr().is_multiple_of(BLOCK_BYTES)) {
        let mut pages: Vec<IoSliceMut<'_>> =
            reads.iter_mut().map(|read| IoSliceMut::new(&mut read.page[..])).collect();
        // A read that is cut short is repeated below.
        if device.read_pages_at(&mut pages, offset_bytes)? == bytes.len() {
            return Ok(());
        }
    }
    device.read_at(bytes, offset_bytes)?;
    for (read, page) in reads.iter_mut().zip(bytes.as_chunks::<BLOCK_BYTES>().0) {
        *read.page = *page;
    }
    Ok(())
}

/// Reads runs of neighbouring pages, one after the other.
fn read_runs<'a, 'b: 'a>(
    devices: &[CacheDevice],
    buffer: &mut [u8],
    runs: impl Iterator<Item = &'a mut [PageRead<'b>]>,
) {
    for run in runs {
        if read_run(devices, buffer, run).is_ok() {
            continue;
        }
        // One bad page must not fail its neighbours.
        for at in 0..run.len() {
            run[at].result = read_run(devices, buffer, &mut run[at..=at]).map_err(|e| failed(&e));
        }
    }
}

/// Reads pages, many at the same time.
fn read_all(devices: &[CacheDevice], buffer: &mut [u8], reads: &mut [PageRead<'_>]) {
    let follows = |a: &PageRead<'_>, b: &PageRead<'_>| {
        a.device == b.device && a.offset_bytes + BLOCK_BYTES as u64 == b.offset_bytes
    };
    let count = reads.len();
    let mut runs = reads.chunk_by_mut(follows).flat_map(|run| run.chunks_mut(PAGES_AT_ONCE));
    if count < FEW_READS {
        return read_runs(devices, buffer, runs);
    }
    let runs = Mutex::new(&mut runs);
    let next = || std::iter::from_fn(|| runs.lock().unwrap_or_else(PoisonError::into_inner).next());
    std::thread::scope(|scope| {
        for buffer in buffer.chunks_mut(BUFFER_BYTES / READERS).take(count) {
            scope.spawn(move || read_runs(devices, buffer, next()));
        }
    });
}

/// Converts a system error into a failure of the device.
pub(crate) fn failure(errno: i32) -> IoFailure {
    match errno {
        libc::ENODEV | libc::ENXIO | libc::EBADF | libc::ESHUTDOWN => IoFailure::Gone,
        _ => IoFailure::Error,
    }
}

fn failed(error: &std::io::Error) -> IoFailure {
    failure(error.raw_os_error().unwrap_or(libc::EIO))
}

impl Media for Devices {
    fn devices(&self) -> usize {
        self.devices.len()
    }

    fn name(&self, device: usize) -> String {
        let device = &self.devices[device];
        match device.start_bytes {
            0 => device.path.display().to_string(),
            start => format!("{} (from byte {start} on)", device.path.display()),
        }
    }

    fn capacity_bytes(&self, device: usize) -> u64 {
        self.devices[device].capacity_bytes
    }

    fn read_batch(&mut self, reads: &mut [PageRead<'_>]) {
        read_all(&self.devices, self.buffer.first_mut(BUFFER_BYTES), reads);
    }

    fn read_batch_while(&mut self, reads: &mut [PageRead<'_>], tasks: Vec<Task<'_>>) {
        let workers = self.workers.min(tasks.len());
        let (devices, buffer) = (&self.devices, self.buffer.first_mut(BUFFER_BYTES));
        let tasks = Mutex::new(tasks.into_iter());
        let next = || std::iter::from_fn(|| tasks.lock().unwrap_or_else(PoisonError::into_inner).next());
        std::thread::scope(|scope| {
            if !reads.is_empty() {
                scope.spawn(|| read_all(devices, buffer, reads));
            }
            for _ in 1..workers {
                scope.spawn(|| next().for_each(|task| task()));
            }
            next().for_each(|task| task());
        });
    }

    fn will_fill(&mut self, tables: &[Range<usize>]) {
        tables.iter().for_each(ask_for_large_pages);
    }

    fn progress(&mut self, progress: ReadProgress) {
        if self.told.elapsed() >= TELL_EVERY {
            self.told = Instant::now();
            (self.on_progress)(progress);
        }
    }

    fn write(
        &mut self,
        device: usize,
        offset_bytes: u64,
        pages: &[u8],
    ) -> std::result::Result<(), IoFailure> {
        let mut offset = offset_bytes;
        for part in pages.chunks(BUFFER_BYTES) {
            let bytes = self.buffer.first_mut(part.len());
            bytes.copy_from_slice(part);
            self.devices[device].write_at(bytes, offset).map_err(|e| failed(&e))?;
            offset += part.len() as u64;
        }
        Ok(())
    }

    fn flush(&mut self, device: usize) -> std::result::Result<(), IoFailure> {
        self.devices[device].sync().map_err(|e| failed(&e))
    }
}
