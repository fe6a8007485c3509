//! From a chain of descriptors to the pieces of guest memory that it refers to.
//!
//! Each descriptor is read once, so the guest cannot change it between check and use. The walk ends after as many
//! descriptors as the table has, whatever the links say.

use crate::fault::Fault;
use crate::mapping::Window;
use crate::memory::{GuestMemory, Segment};
use crate::ring::{DESCRIPTOR_BYTES, Descriptor, Ring};

/// How many pieces a request may have, frame included; QEMU allows as many descriptors.
pub(crate) const MAX_SEGMENTS: usize = 1024;

/// Walks the chain from `head`, fills `segments` with its pieces, readable ones first, and returns the number of
/// readable ones.
pub(crate) fn walk(
    ring: &Ring,
    memory: &GuestMemory,
    head: u16,
    indirect_allowed: bool,
    segments: &mut Vec<Segment>,
) -> Result<usize, Fault> {
    segments.clear();
    let mut readable = 0;
    let mut writing = false;
    let (mut table, mut start, mut entries) = (&ring.descriptors, 0, ring.size);
    let mut left = entries;
    let mut index = head;
    let mut in_indirect = false;
    loop {
        if index >= entries {
            return Err(Fault::DescriptorIndex { index, table: entries });
        }
        left = left.checked_sub(1).ok_or(Fault::Loop(head))?;
        let descriptor = Descriptor::read(table, start, index);
        if descriptor.has(Descriptor::INDIRECT) {
            if !indirect_allowed || in_indirect {
                return Err(Fault::Indirect { head, len: descriptor.len });
            }
            (table, start, entries) = indirect_table(memory, head, descriptor)?;
            (left, index, in_indirect) = (entries, 0, true);
            continue;
        }
        match (descriptor.has(Descriptor::WRITE), writing) {
            (false, true) => return Err(Fault::Order(head)),
            (write, _) => writing = write,
        }
        push(memory, head, descriptor, segments)?;
        if !writing {
            readable = segments.len();
        }
        if !descriptor.has(Descriptor::NEXT) {
            return Ok(readable);
        }
        index = descriptor.next;
    }
}

/// Returns the table that an indirect descriptor refers to: its memory, the offset in it, and the number of its
/// entries.
fn indirect_table(
    memory: &GuestMemory,
    head: u16,
    descriptor: Descriptor,
) -> Result<(&Window, usize, u16), Fault> {
    let Descriptor { address, len, .. } = descriptor;
    let entries = len as usize / DESCRIPTOR_BYTES;
    let whole = (len as usize).is_multiple_of(DESCRIPTOR_BYTES);
    if descriptor.has(Descriptor::NEXT) || !whole || !(1..=MAX_SEGMENTS).contains(&entries) {
        return Err(Fault::Indirect { head, len });
    }
    let found = memory.at_guest_address(address, len as usize);
    let (window, offset) = found.ok_or(Fault::Unmapped { address, len })?;
    Ok((window, offset, entries as u16))
}

/// Adds a descriptor's buffer: one piece, or more where it crosses from one memory region into the next.
fn push(
    memory: &GuestMemory,
    head: u16,
    descriptor: Descriptor,
    segments: &mut Vec<Segment>,
) -> Result<(), Fault> {
    let Descriptor { mut address, mut len, .. } = descriptor;
    if len == 0 {
        return Err(Fault::ZeroLength(head));
    }
    while len > 0 {
        let unmapped = Fault::Unmapped { address: descriptor.address, len: descriptor.len };
        let segment = memory.segment(address, len).ok_or(unmapped)?;
        if segments.len() == MAX_SEGMENTS {
            return Err(Fault::TooLong(head));
        }
        segments.push(segment);
        len -= segment.len_bytes;
        // No overflow: a region ends within the address space.
        address += u64::from(segment.len_bytes);
    }
    Ok(())
}
