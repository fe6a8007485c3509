//! The memory that a queue shares with the kernel: one buffer for the data of each tag, and the descriptors of its
//! requests.
//!
//! Invariants
//! - No reference into either memory ever exists; both are accessed only through copies.
//! - Positions are checked against the memory's size before they become addresses.

use std::io;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags};

use crate::abi::{Descriptor, MAX_DEPTH};

/// A part of the address space, unmapped when dropped.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    fn new(start: *mut libc::c_void, bytes: usize) -> io::Result<Self> {
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { start, bytes })
    }

    /// Returns the address of a part.
    fn part(&self, at: usize, bytes: usize) -> *mut u8 {
        assert!(at <= self.bytes && bytes <= self.bytes - at, "{bytes} bytes at {at} of {}", self.bytes);
        // SAFETY: inside the mapping or one past its end, as just checked.
        unsafe { self.start.as_ptr().add(at) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping, and its owner is being dropped; a queue drops its memory only when no I/O
        // on it is in flight. A failure would only leave the memory mapped.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// The buffers of a queue, of equal size, on whole pages. A page uses memory from its first use on.
#[derive(Debug)]
pub struct Buffers {
    mapping: Mapping,
    bytes_each: usize,
}

impl Buffers {
    /// Makes buffers of `bytes_each`, a multiple of the page size.
    pub fn new(depth: u16, bytes_each: usize) -> io::Result<Self> {
        let bytes = usize::from(depth) * bytes_each;
        // SAFETY: new memory at an address that the kernel chooses.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        Ok(Self { mapping: Mapping::new(start, bytes)?, bytes_each })
    }

    fn part(&self, tag: u16, at: usize, bytes: usize) -> *mut u8 {
        assert!(at <= self.bytes_each && bytes <= self.bytes_each - at, "{bytes} bytes at {at}");
        self.mapping.part(usize::from(tag) * self.bytes_each + at, bytes)
    }

    /// Returns the address of a tag's buffer, for the kernel.
    pub fn address(&self, tag: u16) -> u64 {
        self.part(tag, 0, self.bytes_each) as u64
    }

    /// Describes part of a tag's buffer, for a transfer by the kernel.
    pub fn iovec(&self, tag: u16, at: usize, bytes: usize) -> libc::iovec {
        libc::iovec { iov_base: self.part(tag, at, bytes).cast(), iov_len: bytes }
    }

    /// Copies bytes into a tag's buffer.
    pub fn fill(&self, tag: u16, at: usize, bytes: &[u8]) {
        let target = self.part(tag, at, bytes.len());
        // SAFETY: `part` has checked the range, and `bytes` is no part of a buffer, to which there are no references.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
    }

    /// Fills part of a tag's buffer with zeroes.
    pub fn zero(&self, tag: u16, at: usize, bytes: usize) {
        let target = self.part(tag, at, bytes);
        // SAFETY: `part` has checked the range.
        unsafe { ptr::write_bytes(target, 0, bytes) };
    }
}

/// The kernel's descriptions of a queue's requests.
#[derive(Debug)]
pub struct Descriptors {
    mapping: Mapping,
    depth: u16,
}

impl Descriptors {
    /// Maps the descriptors of a queue of a device.
    pub fn new(device: impl AsFd, queue: u16, depth: u16) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let space = |count: usize| (count * size_of::<Descriptor>()).next_multiple_of(page);
        let bytes = space(usize::from(depth));
        let offset = u64::from(queue) * space(MAX_DEPTH) as u64;
        // SAFETY: new memory at an address that the kernel chooses.
        let start = unsafe {
            let flags = MapFlags::SHARED | MapFlags::POPULATE;
            rustix::mm::mmap(ptr::null_mut(), bytes, ProtFlags::READ, flags, device, offset)?
        };
        Ok(Self { mapping: Mapping::new(start, bytes)?, depth })
    }

    /// Returns the description of a tag's request. It stays the same until the request is answered.
    pub fn get(&self, tag: u16) -> Descriptor {
        assert!(tag < self.depth, "tag {tag} of {}", self.depth);
        let source = self.mapping.part(usize::from(tag) * size_of::<Descriptor>(), size_of::<Descriptor>());
        // SAFETY: `part` has checked the range; the mapping begins on a page, so that descriptors are aligned; any
        // bytes are valid integers; volatile, because the kernel writes the memory.
        unsafe { source.cast::<Descriptor>().read_volatile() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(buffers: &Buffers, tag: u16, at: usize, count: usize) -> Vec<u8> {
        let part = buffers.part(tag, at, count);
        // SAFETY: `part` has checked the range.
        (0..count).map(|offset| unsafe { part.add(offset).read() }).collect()
    }

    #[test]
    fn buffers_lie_side_by_side() {
        let buffers = Buffers::new(3, 8192).unwrap();
        assert_eq!(buffers.address(2) - buffers.address(0), 16384);
        assert!(buffers.address(0).is_multiple_of(4096));
        buffers.fill(1, 4096, &[7; 4096]);
        buffers.zero(1, 8190, 2);
        assert_eq!(bytes(&buffers, 1, 4095, 2), [0, 7]);
        assert_eq!(bytes(&buffers, 1, 8189, 3), [7, 0, 0]);
        assert_eq!(bytes(&buffers, 2, 0, 1), [0]);
    }

    #[test]
    #[should_panic(expected = "2 bytes at 4095")]
    fn nothing_is_copied_beyond_a_buffer() {
        Buffers::new(2, 4096).unwrap().fill(0, 4095, &[1, 2]);
    }
}
