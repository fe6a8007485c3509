//! The mappings that are looked after, as a signal handler can read them: a fixed table of atomics, no lock.
//!
//! Invariants
//! - Only the holder of `FREE` changes what a place is for. Its version is odd meanwhile, so that a handler in another
//!   thread skips it; the place of the mapping that this thread touches does not change, since it is borrowed.
//! - A place is marked as lost before other memory takes the mapping's place: who reads that sees the mark.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, PoisonError};

/// Mappings at a time. The kernel allows a process 65,530, and the allocator needs some.
const PLACES: usize = 16_384;

static TABLE: [Entry; PLACES] = [const { Entry::new() }; PLACES];
/// Places from here on were never used.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Used places that are free again.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());
pub(crate) static ANY_LOST: AtomicBool = AtomicBool::new(false);

struct Entry {
    version: AtomicUsize,
    start: AtomicUsize,
    /// Zero: nobody's.
    bytes: AtomicUsize,
    message: AtomicPtr<u8>,
    message_bytes: AtomicUsize,
    lost: AtomicBool,
}

/// What a handler finds at an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    place: usize,
    pub start: usize,
    pub bytes: usize,
    /// What to say before the process ends, if it has to.
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

    /// Called with `FREE` held.
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

    /// The mapping, if the address is in it.
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

/// Finds the mapping at an address. For a signal handler: takes no lock and no memory.
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

/// A place in the table.
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
