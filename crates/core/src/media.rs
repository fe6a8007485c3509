//! Storage as start-up and offline work use it: synchronous reads and writes.
//!
//! Creating, opening, checking and flushing a pool are sequences during which no guest waits, so they take
//! storage as a trait instead of exchanging actions. The engine implements it for its cache devices, the
//! crash simulator for its simulated ones, where it can stop at any I/O.

use std::fmt;
use std::ops::Range;

use haversack_model::BLOCK_BYTES;

/// Why a read, write or flush of a device or origin failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoFailure {
    /// This I/O failed; others may succeed.
    Error,
    /// The device is gone, or must not be used any more.
    Gone,
}

impl fmt::Display for IoFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IoFailure::Error => "I/O error",
            IoFailure::Gone => "device gone",
        })
    }
}

/// A page at an address that direct I/O can read to.
#[derive(Clone)]
#[repr(C, align(4096))]
pub(crate) struct AlignedPage(pub [u8; BLOCK_BYTES]);

impl AlignedPage {
    /// A page of zeroes.
    pub const BLANK: AlignedPage = AlignedPage([0; BLOCK_BYTES]);
}

/// One 4 KiB page to read.
pub struct PageRead<'a> {
    /// The device's index in the list that was opened.
    pub device: usize,
    /// Byte offset on the device, a multiple of 4,096.
    pub offset_bytes: u64,
    /// The buffer for the page.
    pub page: &'a mut [u8; BLOCK_BYTES],
    /// The outcome, filled in by [`Media::read_batch`].
    pub result: Result<(), IoFailure>,
}

/// Work that may be done on any thread.
pub type Task<'a> = Box<dyn FnOnce() + Send + 'a>;

/// The progress of reading a pool's metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadProgress {
    /// Segments whose metadata pages were read.
    pub done_segments: u64,
    /// Segments whose metadata pages must be read.
    pub total_segments: u64,
}

/// The cache devices of a pool, by their index in a list.
pub trait Media {
    /// Returns the number of devices in the list.
    fn devices(&self) -> usize;
    /// Returns the name of a device for messages: its path.
    fn name(&self, device: usize) -> String;
    /// Returns the size of a device in bytes.
    fn capacity_bytes(&self, device: usize) -> u64;
    /// Reads many pages, in any order and with any number in flight.
    fn read_batch(&mut self, reads: &mut [PageRead<'_>]);
    /// Like [`Media::read_batch`], but also runs all tasks. If possible, they run while the pages are being read, on
    /// several threads. They share no data, so the result does not depend on when and where they run.
    fn read_batch_while(&mut self, reads: &mut [PageRead<'_>], tasks: Vec<Task<'_>>) {
        tasks.into_iter().for_each(|task| task());
        self.read_batch(reads);
    }

    /// Writes whole pages at a byte offset that is a multiple of 4,096.
    ///
    /// # Errors
    /// The device's failure.
    fn write(&mut self, device: usize, offset_bytes: u64, pages: &[u8]) -> Result<(), IoFailure>;
    /// Makes all completed writes of a device durable.
    ///
    /// # Errors
    /// The device's failure.
    fn flush(&mut self, device: usize) -> Result<(), IoFailure>;

    /// Receives the addresses of memory of tables that are blank, and about to be filled for the most part. A driver
    /// may ask the system for large pages there.
    fn will_fill(&mut self, _tables: &[Range<usize>]) {}

    /// Receives the progress of reading the pool's metadata from time to time.
    fn progress(&mut self, _progress: ReadProgress) {}

    /// Reads one page.
    ///
    /// # Errors
    /// The device's failure.
    fn read(
        &mut self,
        device: usize,
        offset_bytes: u64,
        page: &mut [u8; BLOCK_BYTES],
    ) -> Result<(), IoFailure> {
        let mut reads = [PageRead { device, offset_bytes, page, result: Ok(()) }];
        self.read_batch(&mut reads);
        let [read] = reads;
        read.result
    }
}

/// A disk's origin, for the offline flush.
pub trait OriginMedia {
    /// Returns the number of its sectors.
    fn capacity_sectors(&self) -> u64;
    /// Writes whole sectors.
    ///
    /// # Errors
    /// The origin's failure.
    fn write(&mut self, sector: u64, bytes: &[u8]) -> Result<(), IoFailure>;
    /// Makes all completed writes durable.
    ///
    /// # Errors
    /// The origin's failure.
    fn flush(&mut self) -> Result<(), IoFailure>;
}
