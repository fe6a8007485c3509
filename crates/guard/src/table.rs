//! The guarded mappings, readable by a signal handler: a fixed table of atomics, without locks.
//!
//! Invariants
//! - Only the holder of `FREE` changes the use of an entry. The entry's version is odd while it changes, so
//!   that a handler in another thread skips it; the entry of the mapping that this thread accesses does not
//!   change, since it is borrowed.
//! - An entry is marked as lost before other memory replaces the mapping: a thread that reads that memory sees
//!   the mark.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, PoisonError};

/// The most mappings at a time. The kernel allows a process 65,530, and the allocator needs some of them.
const PLACES: usize = 16_384;

static TABLE: [Entry; PLACES] = [const { Entry::new() }; PLACES];
/// Entries from here on have never been used.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Used entries that are free again.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());
pub(crate) static ANY_LOST: AtomicBool = AtomicBool::new(false);

struct Entry {
    version: AtomicUsize,
    start: AtomicUsize,
    /// Zero if the entry is free.
    bytes: AtomicUsize,
    message: AtomicPtr<u8>,
    message_bytes: AtomicUsize,
    lost: AtomicBool,
}

/// A mapping that a handler finds at an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    place: usize,
    pub start: usize,
    pub bytes: usize,
    /// The message to write if the process must end.
    pub message: Option<(*const u8, usize)>,
}

impl Entry {
    const fn new() -> Self {
        Self {
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            message: AtomicPtr::new(std::ptr::null_mut()),
            message_bytes: AtomicUsize::new(0),
            lost: AtomicBool::new(false),
        }
    }

    /// Fills the entry. Called with `FREE` held.
    fn set(&self, start: usize, bytes: usize, message: Option<&str>) {
        self.version.fetch_add(1, Ordering::Acquire);
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        let said = message.unwrap_or_default();
        let address = if message.is_some() { said.as_ptr().cast_mut() } else { std::ptr::null_mut() };
        self.message.store(address, Ordering::Relaxed);
        self.message_bytes.store(said.len(), Ordering::Relaxed);
        self.lost.store(false, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Returns the mapping if the address is in it.
    fn at(&self, place: usize, address: usize) -> Option<Found> {
        let version = self.version.load(Ordering::Acquire);
        let (start, bytes) = (self.start.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
        let (message, len) =
            (self.message.load(Ordering::Relaxed), self.message_bytes.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let is_stable = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        let message = (!message.is_null()).then_some((message.cast_const(), len));
        let is_in = address.checked_sub(start).is_some_and(|at| at < bytes);
        (is_stable && is_in).then_some(Found { place, start, bytes, message })
    }
}

/// Returns the mapping at an address. For a signal handler: takes no locks and allocates nothing.
pub(crate) fn find(address: usize) -> Option<Found> {
    let used = USED.load(Ordering::Acquire);
    TABLE[..used].iter().enumerate().find_map(|(place, entry)| entry.at(place, address))
}

impl Found {
    /// Marks the mapping as lost.
    pub fn mark(self) {
        ANY_LOST.store(true, Ordering::SeqCst);
        TABLE[self.place].lost.store(true, Ordering::SeqCst);
    }
}

/// An entry of the table.
#[derive(Debug)]
pub(crate) struct Place(usize);

impl Place {
    pub fn take(start: usize, bytes: usize, message: Option<&str>) -> io::Result<Self> {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let place = free.pop().unwrap_or_else(|| USED.load(Ordering::Relaxed));
        let full = || io::Error::other(format!("more than {PLACES} mappings of shared memory"));
        TABLE.get(place).ok_or_else(full)?.set(start, bytes, message);
        USED.fetch_max(place + 1, Ordering::Release);
        Ok(Self(place))
    }

    pub fn is_lost(&self) -> bool {
        TABLE[self.0].lost.load(Ordering::SeqCst)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        TABLE[self.0].set(0, 0, None);
        free.push(self.0);
    }
}
