//! A split virtqueue's three parts in guest memory (virtio 1.2, section 2.7).
//!
//! Only offsets and orders of access are handled here; `queue` interprets the values. Every index is taken modulo the
//! queue's size, so no value in guest memory leads outside the parts.

use std::sync::atomic::{Ordering, fence};

use crate::dirty_log::DirtyLog;
use crate::fault::Fault;
use crate::mapping::Window;
use crate::memory::GuestMemory;

pub(crate) const DESCRIPTOR_BYTES: usize = 16;
const USED_ENTRY_BYTES: usize = 8;
/// Bytes before the entries of the available and of the used ring: flags and index.
const RING_HEAD_BYTES: usize = 4;
/// Bytes after the entries: the other side's event index.
const RING_TAIL_BYTES: usize = 2;

const AVAILABLE_NO_INTERRUPT: u16 = 1;
const USED_NO_NOTIFY: u16 = 1;

/// Addresses of a queue's parts, in the front end's own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAddresses {
    /// The descriptor table.
    pub descriptors: u64,
    /// The available ring.
    pub available: u64,
    /// The used ring.
    pub used: u64,
    /// The used ring's guest address, if writes to it are to be logged as dirty.
    pub used_log: Option<u64>,
}

/// One descriptor, as read once from a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor {
    pub address: u64,
    pub len: u32,
    pub flags: u16,
    pub next: u16,
}

impl Descriptor {
    pub const NEXT: u16 = 1;
    pub const WRITE: u16 = 2;
    pub const INDIRECT: u16 = 4;

    /// Reads entry `index` of the table at `start`, which must have it.
    pub fn read(memory: &Window, start: usize, index: u16) -> Self {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        memory.read(start + usize::from(index) * DESCRIPTOR_BYTES, &mut bytes);
        let [a, b, c, d, e, f, g, h, l0, l1, l2, l3, f0, f1, n0, n1] = bytes;
        Self {
            address: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            len: u32::from_le_bytes([l0, l1, l2, l3]),
            flags: u16::from_le_bytes([f0, f1]),
            next: u16::from_le_bytes([n0, n1]),
        }
    }

    pub fn has(self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// The mapped parts of one queue.
#[derive(Debug)]
pub(crate) struct Ring {
    pub descriptors: Window,
    available: Window,
    used: Window,
    used_log: Option<u64>,
    pub size: u16,
}

impl Ring {
    /// Finds the parts in guest memory; `size` must be a power of two.
    pub fn new(memory: &GuestMemory, size: u16, at: &RingAddresses) -> Result<Self, Fault> {
        let find = |part, address, entry_bytes: usize, frame_bytes, alignment| {
            let window = memory.at_user_address(address, usize::from(size) * entry_bytes + frame_bytes);
            window.filter(|w| w.is_aligned(alignment)).ok_or(Fault::RingAddress { part, address })
        };
        let frame_bytes = RING_HEAD_BYTES + RING_TAIL_BYTES;
        Ok(Self {
            descriptors: find("descriptor table", at.descriptors, DESCRIPTOR_BYTES, 0, 16)?,
            available: find("available ring", at.available, 2, frame_bytes, 2)?,
            used: find("used ring", at.used, USED_ENTRY_BYTES, frame_bytes, 4)?,
            used_log: at.used_log,
            size,
        })
    }

    /// Returns whether a part was lost.
    pub fn is_lost(&self) -> bool {
        self.descriptors.is_lost() || self.available.is_lost() || self.used.is_lost()
    }

    /// Returns the driver's index; what it published before is visible afterwards.
    pub fn available_index(&self) -> u16 {
        self.available.load_u16(2, Ordering::Acquire)
    }

    /// Returns the head that the driver put at `index`.
    pub fn available_head(&self, index: u16) -> u16 {
        self.available.load_u16(RING_HEAD_BYTES + self.slot(index) * 2, Ordering::Relaxed)
    }

    /// Returns whether the driver wants no interrupts at all (without event index).
    pub fn interrupts_suppressed(&self) -> bool {
        self.available.load_u16(0, Ordering::Relaxed) & AVAILABLE_NO_INTERRUPT != 0
    }

    /// Returns the used index after which the driver wants an interrupt (with event index).
    pub fn used_event(&self) -> u16 {
        let at = RING_HEAD_BYTES + usize::from(self.size) * 2;
        self.available.load_u16(at, Ordering::Relaxed)
    }

    pub fn used_index(&self) -> u16 {
        self.used.load_u16(2, Ordering::Relaxed)
    }

    /// Fills the used entry at `index`; the driver sees it once the used index passes it.
    pub fn put_used(&self, index: u16, head: u16, len: u32, log: Option<&DirtyLog>) {
        let mut entry = [0; USED_ENTRY_BYTES];
        entry[..4].copy_from_slice(&u32::from(head).to_le_bytes());
        entry[4..].copy_from_slice(&len.to_le_bytes());
        let at = RING_HEAD_BYTES + self.slot(index) * USED_ENTRY_BYTES;
        self.used.write(at, &entry);
        self.mark(at, USED_ENTRY_BYTES, log);
    }

    /// Publishes everything written before, up to `index`.
    pub fn set_used_index(&self, index: u16, log: Option<&DirtyLog>) {
        self.used.store_u16(2, index, Ordering::Release);
        self.mark(2, 2, log);
    }

    /// Enables or disables kicks when buffers become available (without event index).
    pub fn set_no_notify(&self, none: bool, log: Option<&DirtyLog>) {
        self.used.store_u16(0, if none { USED_NO_NOTIFY } else { 0 }, Ordering::Relaxed);
        self.mark(0, 2, log);
        fence(Ordering::SeqCst);
    }

    /// Requests a kick when the available index passes `index` (with event index).
    pub fn set_available_event(&self, index: u16, log: Option<&DirtyLog>) {
        let at = RING_HEAD_BYTES + usize::from(self.size) * USED_ENTRY_BYTES;
        self.used.store_u16(at, index, Ordering::Relaxed);
        self.mark(at, 2, log);
        fence(Ordering::SeqCst);
    }

    fn slot(&self, index: u16) -> usize {
        usize::from(index & (self.size - 1))
    }

    fn mark(&self, at: usize, len: usize, log: Option<&DirtyLog>) {
        if let (Some(log), Some(base)) = (log, self.used_log) {
            log.mark(base.saturating_add(at as u64), len as u64);
        }
    }
}
