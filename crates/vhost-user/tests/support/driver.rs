//! The guest's side of a split virtqueue.

use std::collections::HashMap;

use haversack_vhost_user::RingAddresses;

use super::{Ram, user_address};

pub const READ: u32 = 0;
pub const WRITE: u32 = 1;
pub const FLUSH: u32 = 4;
pub const GET_ID: u32 = 8;
pub const DISCARD: u32 = 11;
pub const WRITE_ZEROES: u32 = 13;

pub const NEXT: u16 = 1;
pub const DEVICE_WRITES: u16 = 2;
pub const INDIRECT: u16 = 4;

/// Guest memory that a queue of up to 256 descriptors uses for its parts and tables.
pub const QUEUE_BYTES: u64 = 256 << 10;
/// Where buffers are put by the helpers: behind the parts of four queues.
pub const BUFFERS: u64 = 4 * QUEUE_BYTES;

const TABLE_BYTES: u64 = 512;
/// A status that no device writes.
const NO_STATUS: u8 = 0xaa;

/// A guest buffer: address, length, and whether the device writes it.
pub type Buffer = (u64, u32, bool);

#[derive(Clone, Debug)]
pub struct Driver {
    pub ram: Ram,
    pub base: u64,
    pub size: u16,
    pub event_index: bool,
    pub indirect: bool,
    pub available: u16,
    pub used: u16,
    pub free: Vec<u16>,
    /// Descriptors of the chains in flight, and where their status byte is.
    pub chains: HashMap<u16, (Vec<u16>, u64)>,
}

impl Driver {
    pub fn new(ram: &Ram, index: u16, size: u16) -> Self {
        Self {
            ram: ram.clone(),
            base: u64::from(index) * QUEUE_BYTES,
            size,
            event_index: false,
            indirect: false,
            available: 0,
            used: 0,
            free: (0..size).rev().collect(),
            chains: HashMap::new(),
        }
    }

    pub fn available_at(&self) -> u64 {
        self.base + 0x4000
    }

    pub fn used_at(&self) -> u64 {
        self.base + 0x8000
    }

    fn table_at(&self, head: u16) -> u64 {
        self.base + 0x10000 + u64::from(head) * TABLE_BYTES
    }

    /// Header and status of the request at `head`.
    fn frame_at(&self, head: u16) -> u64 {
        self.base + 0x30000 + u64::from(head) * 32
    }

    pub fn addresses(&self) -> RingAddresses {
        RingAddresses {
            descriptors: user_address(self.base),
            available: user_address(self.available_at()),
            used: user_address(self.used_at()),
            used_log: None,
        }
    }

    pub fn put_descriptor(&self, table: u64, index: u16, buffer: (u64, u32), flags: u16, next: u16) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&buffer.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&buffer.1.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        self.ram.write(table + u64::from(index) * 16, &bytes);
    }

    fn put_chain(&self, table: u64, indices: &[u16], buffers: &[Buffer]) {
        for (i, (&index, &(address, len, device_writes))) in indices.iter().zip(buffers).enumerate() {
            let next = indices.get(i + 1).copied();
            let flags = if device_writes { DEVICE_WRITES } else { 0 } | if next.is_some() { NEXT } else { 0 };
            self.put_descriptor(table, index, (address, len), flags, next.unwrap_or(0));
        }
    }

    /// Puts a chain of buffers in place and makes it available.
    pub fn submit_chain(&mut self, buffers: &[Buffer], status_at: u64) -> Option<u16> {
        let count = if self.indirect { 1 } else { buffers.len() };
        if self.free.len() < count {
            return None;
        }
        let indices = self.free.split_off(self.free.len() - count);
        let head = indices[0];
        if self.indirect {
            let table = self.table_at(head);
            let all: Vec<u16> = (0..buffers.len() as u16).collect();
            self.put_chain(table, &all, buffers);
            self.put_descriptor(self.base, head, (table, buffers.len() as u32 * 16), INDIRECT, 0);
        } else {
            self.put_chain(self.base, &indices, buffers);
        }
        self.chains.insert(head, (indices, status_at));
        self.make_available(head);
        Some(head)
    }

    pub fn make_available(&mut self, head: u16) {
        let slot = u64::from(self.available % self.size);
        self.ram.set_u16(self.available_at() + 4 + slot * 2, head);
        self.available = self.available.wrapping_add(1);
        self.ram.set_u16(self.available_at() + 2, self.available);
    }

    /// Makes a request available whose frame is in this queue's own area.
    pub fn submit(&mut self, kind: u32, sector: u64, data: &[(u64, u32)]) -> Option<u16> {
        let head = *self.free.last()?;
        let needed = if self.indirect { 1 } else { data.len() + 2 };
        if self.free.len() < needed {
            return None;
        }
        // The first of the chain's descriptors is its head.
        let head = if self.indirect { head } else { self.free[self.free.len() - needed] };
        let frame = self.frame_at(head);
        let mut header = [0; 16];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&sector.to_le_bytes());
        self.ram.write(frame, &header);
        self.ram.write(frame + 16, &[NO_STATUS]);
        let device_writes = matches!(kind, READ | GET_ID);
        let mut buffers = vec![(frame, 16, false)];
        buffers.extend(data.iter().map(|(address, len)| (*address, *len, device_writes)));
        buffers.push((frame + 16, 1, true));
        let submitted = self.submit_chain(&buffers, frame + 16);
        assert_eq!(submitted, Some(head));
        submitted
    }

    /// Whether the device asked to be kicked for what was added since `before`.
    pub fn must_kick(&self, before: u16) -> bool {
        if self.event_index {
            let event = self.ram.u16(self.used_at() + 4 + u64::from(self.size) * 8);
            let since = self.available.wrapping_sub(event).wrapping_sub(1);
            since < self.available.wrapping_sub(before)
        } else {
            self.ram.u16(self.used_at()) & 1 == 0
        }
    }

    pub fn used_index(&self) -> u16 {
        self.ram.u16(self.used_at() + 2)
    }

    /// Interrupt me when the used index passes `index`.
    pub fn set_used_event(&self, index: u16) {
        self.ram.set_u16(self.available_at() + 4 + u64::from(self.size) * 2, index);
    }

    pub fn suppress_interrupts(&self, suppressed: bool) {
        self.ram.set_u16(self.available_at(), u16::from(suppressed));
    }

    /// The next completion: head, length, status.
    ///
    /// # Panics
    /// The device completed what is not in flight, or wrote no status.
    pub fn completed(&mut self) -> Option<(u16, u32, u8)> {
        if self.used == self.used_index() {
            return None;
        }
        let entry = self.used_at() + 4 + u64::from(self.used % self.size) * 8;
        self.used = self.used.wrapping_add(1);
        if self.event_index {
            self.set_used_event(self.used);
        }
        let head = self.ram.u32(entry) as u16;
        let (indices, status_at) = self.chains.remove(&head).expect("completed what is not in flight");
        self.free.extend(indices.iter().rev());
        let status = self.ram.bytes(status_at, 1)[0];
        assert_ne!(status, NO_STATUS, "no status for descriptor {head}");
        Some((head, self.ram.u32(entry + 4), status))
    }

    pub fn in_flight(&self) -> usize {
        self.chains.len()
    }
}
