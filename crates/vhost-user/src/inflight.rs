//! The in-flight region: requests that a killed back end had taken and not completed.
//!
//! The front end keeps this memory alive across reconnects. Its layout and the order of its updates are specified in
//! "Inflight I/O tracking" in QEMU's `docs/interop/vhost-user.rst`, split virtqueues, version 1:
//!
//! - A descriptor is marked before the next one is taken from the available ring, so the taken descriptors are always
//!   those used plus those marked.
//! - The head of a used descriptor is in `last_batch_head` before the used index passes it, so after a kill between
//!   the two stores around the used index, exactly the marks of that batch have to be cleared.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, SealFlags};

use crate::fault::Fault;
use crate::mapping::{Mapping, Window};
use crate::queue::MAX_QUEUE_SIZE;
use crate::quota::Quota;

const VERSION: u16 = 1;
/// Queue regions start at multiples of this, as in QEMU's libvhost-user.
const ALIGNMENT_BYTES: usize = 64;
const HEADER_BYTES: usize = 16;
const ENTRY_BYTES: usize = 16;

// Offsets in the header.
const FEATURES: usize = 0;
const VERSION_AT: usize = 8;
const ENTRIES: usize = 10;
const LAST_BATCH_HEAD: usize = 12;
const USED_INDEX: usize = 14;

// Offsets in an entry.
const IN_FLIGHT: usize = 0;
const NEXT: usize = 6;
const COUNTER: usize = 8;

/// Shape of an in-flight region, as exchanged with the front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InflightShape {
    /// Size in bytes.
    pub size_bytes: u64,
    /// First byte in the file.
    pub file_offset: u64,
    /// Number of queues.
    pub queues: u16,
    /// Descriptors per queue.
    pub queue_size: u16,
}

/// The mapped region of all queues of a disk.
#[derive(Clone, Debug)]
pub(crate) struct InflightRegion {
    mapping: Arc<Mapping>,
    queues: u16,
    queue_size: u16,
}

impl InflightRegion {
    /// Creates a zeroed region in its own memory file, for the front end to keep. Nobody can truncate it.
    ///
    /// # Errors
    /// `InvalidInput` if the numbers are invalid; else the kernel's error.
    pub fn create(queues: u16, queue_size: u16) -> io::Result<(InflightShape, OwnedFd)> {
        if queues == 0 || !(1..=MAX_QUEUE_SIZE).contains(&queue_size) {
            let what = format!("{queues} queues of {queue_size} descriptors cannot be tracked");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let size_bytes = usize::from(queues) * queue_bytes(queue_size);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("haversack-inflight", flags)?;
        rustix::fs::ftruncate(&file, size_bytes as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((InflightShape { size_bytes: size_bytes as u64, file_offset: 0, queues, queue_size }, file))
    }

    /// Maps the region that the front end kept.
    ///
    /// # Errors
    /// `InvalidInput` if the shape is invalid or exceeds the file; else the kernel's error.
    pub fn map(shape: InflightShape, file: impl AsFd, quota: &Quota) -> io::Result<Self> {
        let InflightShape { size_bytes, file_offset, queues, queue_size } = shape;
        let needed = usize::from(queues) * queue_bytes(queue_size);
        if queue_size > MAX_QUEUE_SIZE || size_bytes < needed as u64 || !file_offset.is_multiple_of(8) {
            let what = format!(
                "an in-flight region of {size_bytes} bytes at byte {file_offset} for {queues} queues of {queue_size} \
                 descriptors: at most {MAX_QUEUE_SIZE} descriptors, {needed} bytes and an offset in whole 8 bytes are needed"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let mapping = Arc::new(Mapping::new(file, file_offset, size_bytes, quota)?);
        Ok(Self { mapping, queues, queue_size })
    }

    /// Returns the part of one queue; `None` if the region has no such queue.
    pub fn queue(&self, index: u16) -> Option<InflightQueue> {
        let bytes = queue_bytes(self.queue_size);
        let window = Window::new(&self.mapping, usize::from(index) * bytes, bytes)?;
        (index < self.queues).then_some(InflightQueue { window, size: self.queue_size, next_counter: 0 })
    }
}

fn queue_bytes(queue_size: u16) -> usize {
    (HEADER_BYTES + usize::from(queue_size) * ENTRY_BYTES).next_multiple_of(ALIGNMENT_BYTES)
}

/// A queue's in-flight requests, in memory that survives the process.
#[derive(Debug)]
pub struct InflightQueue {
    window: Window,
    size: u16,
    next_counter: u64,
}

/// What a reconnect finds if the region was in use before.
pub(crate) struct Recovered {
    /// Heads in flight, in the order in which they were taken.
    pub heads: Vec<u16>,
}

impl InflightQueue {
    /// Starts using the region for a ring of `ring_size` whose used index is `used_index`.
    ///
    /// Returns `None` if the region is new, otherwise what was in flight.
    pub(crate) fn recover(&mut self, ring_size: u16, used_index: u16) -> Result<Option<Recovered>, Fault> {
        let wrong =
            |what, found, expected: u16| Fault::InflightRegion { what, found, expected: expected.into() };
        if ring_size > self.size {
            return Err(wrong("queue size", ring_size.into(), self.size));
        }
        match self.load(VERSION_AT) {
            0 => {
                self.store(ENTRIES, self.size);
                self.store(USED_INDEX, used_index);
                self.store(VERSION_AT, VERSION);
                return Ok(None);
            }
            VERSION => {}
            other => return Err(wrong("version", other.into(), VERSION)),
        }
        let features = self.window.load_u64(FEATURES, Ordering::Relaxed);
        if features != 0 {
            return Err(wrong("features", features, 0));
        }
        if self.load(ENTRIES) != self.size {
            return Err(wrong("descriptor count", self.load(ENTRIES).into(), self.size));
        }
        self.finish_last_batch(ring_size, used_index)?;
        let mut marked = Vec::new();
        for head in 0..self.size {
            if self.flag(head).load(Ordering::Relaxed) != 0 {
                if head >= ring_size {
                    return Err(wrong("descriptor in flight", head.into(), ring_size - 1));
                }
                marked.push((self.window.load_u64(entry(head) + COUNTER, Ordering::Relaxed), head));
            }
        }
        marked.sort_unstable();
        self.next_counter = marked.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        Ok(Some(Recovered { heads: marked.into_iter().map(|(_, head)| head).collect() }))
    }

    /// Clears the marks of descriptors that are already in the used ring.
    fn finish_last_batch(&mut self, ring_size: u16, used_index: u16) -> Result<(), Fault> {
        let batch = used_index.wrapping_sub(self.load(USED_INDEX));
        if batch > ring_size {
            let expected = ring_size.into();
            return Err(Fault::InflightRegion { what: "last batch", found: batch.into(), expected });
        }
        let mut head = self.load(LAST_BATCH_HEAD);
        for _ in 0..batch {
            if head >= ring_size {
                let expected = u64::from(ring_size) - 1;
                return Err(Fault::InflightRegion {
                    what: "last batch's head",
                    found: head.into(),
                    expected,
                });
            }
            self.flag(head).store(0, Ordering::Relaxed);
            head = self.load(entry(head) + NEXT);
        }
        self.store(USED_INDEX, used_index);
        Ok(())
    }

    /// Marks a head that was taken from the available ring.
    pub(crate) fn taken(&mut self, head: u16) {
        self.window.store_u64(entry(head) + COUNTER, self.next_counter, Ordering::Relaxed);
        self.next_counter = self.next_counter.wrapping_add(1);
        self.flag(head).store(1, Ordering::Release);
    }

    /// Records that a head is about to be published in the used ring.
    pub(crate) fn before_used(&mut self, head: u16) {
        self.store(entry(head) + NEXT, self.load(LAST_BATCH_HEAD));
        self.store(LAST_BATCH_HEAD, head);
    }

    /// Records that the head was published: the used ring's index is now `used_index`.
    pub(crate) fn after_used(&mut self, head: u16, used_index: u16) {
        self.flag(head).store(0, Ordering::Release);
        self.store(USED_INDEX, used_index);
    }

    /// Returns whether a part of the region was lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.window.is_lost()
    }

    fn flag(&self, head: u16) -> &std::sync::atomic::AtomicU8 {
        self.window.u8(entry(head) + IN_FLIGHT)
    }

    fn load(&self, at: usize) -> u16 {
        self.window.load_u16(at, Ordering::Relaxed)
    }

    /// Release: stores reach memory in program order, and a kill preserves that order.
    fn store(&self, at: usize, value: u16) {
        self.window.store_u16(at, value, Ordering::Release);
    }
}

fn entry(head: u16) -> usize {
    HEADER_BYTES + usize::from(head) * ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u16 = 8;

    /// A region after some heads were taken, in its second session or later; and the file behind it.
    struct Life {
        shape: InflightShape,
        file: OwnedFd,
    }

    impl Life {
        fn new() -> Self {
            let (shape, file) = InflightRegion::create(2, SIZE).unwrap();
            Self { shape, file }
        }

        fn queue(&self) -> InflightQueue {
            InflightRegion::map(self.shape, &self.file, &Quota::default()).unwrap().queue(1).unwrap()
        }

        /// Returns the heads that a back end finds if its ring's used index is `used_index`.
        fn recovered(&self, used_index: u16) -> Vec<u16> {
            self.queue().recover(SIZE, used_index).unwrap().expect("the region was in use").heads
        }
    }

    #[test]
    fn a_new_region_remembers_nothing_and_starts_at_the_rings_index() {
        let life = Life::new();
        assert!(life.queue().recover(SIZE, 65530).unwrap().is_none());
        // Killed before the first completion: the index of the ring is not mistaken for a batch.
        assert!(life.recovered(65530).is_empty());
    }

    #[test]
    fn a_region_of_ours_cannot_be_cut_short() {
        let Life { shape, file } = Life::new();
        for bytes in [0, shape.size_bytes - 1, shape.size_bytes + 1] {
            assert_eq!(rustix::fs::ftruncate(&file, bytes), Err(rustix::io::Errno::PERM), "{bytes}");
        }
    }

    #[test]
    fn what_was_taken_is_found_in_its_order() {
        let life = Life::new();
        let mut queue = life.queue();
        queue.recover(SIZE, 0).unwrap();
        for head in [5, 2, 7] {
            queue.taken(head);
        }
        queue.before_used(2);
        queue.after_used(2, 1);
        queue.taken(2);
        assert_eq!(life.recovered(1), [5, 7, 2]);
        // The order survives another session.
        let mut queue = life.queue();
        queue.recover(SIZE, 1).unwrap();
        queue.taken(0);
        assert_eq!(life.recovered(1), [5, 7, 2, 0]);
    }

    #[test]
    fn a_kill_around_the_used_index_neither_loses_nor_repeats() {
        let life = Life::new();
        let mut queue = life.queue();
        queue.recover(SIZE, 65535).unwrap();
        queue.taken(3);
        queue.taken(4);
        queue.before_used(3);
        assert_eq!(life.recovered(65535), [3, 4], "killed before the used index moved");
        let mut queue = life.queue();
        queue.recover(SIZE, 65535).unwrap();
        queue.before_used(3);
        assert_eq!(life.recovered(0), [4], "killed after the used index moved (and wrapped)");
        assert_eq!(life.recovered(0), [4], "and killed again");
    }

    #[test]
    fn a_batch_of_another_back_end_is_finished_by_its_list() {
        let life = Life::new();
        let mut queue = life.queue();
        queue.recover(SIZE, 0).unwrap();
        for head in [6, 1, 0] {
            queue.taken(head);
        }
        queue.before_used(1);
        queue.before_used(6);
        assert_eq!(life.recovered(2), [0]);
    }

    #[test]
    fn regions_that_do_not_fit_are_refused() {
        let life = Life::new();
        let mut queue = life.queue();
        queue.recover(SIZE, 0).unwrap();
        let refused = |queue: &mut InflightQueue, size, used| queue.recover(size, used).err().unwrap();
        let what = |fault| match fault {
            Fault::InflightRegion { what, .. } => what,
            other => panic!("{other}"),
        };
        assert_eq!(what(refused(&mut queue, 2 * SIZE, 0)), "queue size");
        assert_eq!(what(refused(&mut queue, SIZE, SIZE + 1)), "last batch");
        queue.taken(7);
        assert_eq!(what(refused(&mut queue, 4, 0)), "descriptor in flight");
        queue.store(LAST_BATCH_HEAD, SIZE);
        assert_eq!(what(refused(&mut queue, SIZE, 1)), "last batch's head");
        queue.store(ENTRIES, 4);
        assert_eq!(what(refused(&mut queue, SIZE, 0)), "descriptor count");
        queue.store(FEATURES, 1);
        assert_eq!(what(refused(&mut queue, SIZE, 0)), "features");
        queue.store(VERSION_AT, 2);
        assert_eq!(what(refused(&mut queue, SIZE, 0)), "version");

        assert!(InflightRegion::create(0, SIZE).is_err());
        assert!(InflightRegion::create(1, MAX_QUEUE_SIZE + 1).is_err());
        let shape = InflightShape { queues: 3, ..life.shape };
        assert!(InflightRegion::map(shape, &life.file, &Quota::default()).is_err());
        let shape = InflightShape { size_bytes: u64::MAX, ..life.shape };
        assert!(InflightRegion::map(shape, &life.file, &Quota::default()).is_err());
    }
}
