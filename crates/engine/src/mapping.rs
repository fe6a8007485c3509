//! Mapped memory, unmapped when dropped.
//!
//! Invariant
//! - The kernel reads and writes parts of it for I/Os in flight. A reference covers only the bytes that its caller asks
//!   for, and no caller asks for bytes of an I/O in flight.

use std::fs::File;
use std::io;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// Bytes that are mapped readable and writable.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

impl Mapping {
    /// Maps zeroed, private memory.
    pub fn anonymous(len: usize) -> io::Result<Mapping> {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, READ_WRITE, MapFlags::PRIVATE)? };
        Mapping::at(start, len)
    }

    /// Maps part of a file, which must be at least this long.
    pub fn shared(file: &File, offset_bytes: u64, len: usize) -> io::Result<Mapping> {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start =
            unsafe { mmap(std::ptr::null_mut(), len, READ_WRITE, MapFlags::SHARED, file, offset_bytes)? };
        Mapping::at(start, len)
    }

    fn at(start: *mut std::ffi::c_void, len: usize) -> io::Result<Mapping> {
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Mapping { start, len })
    }

    /// Replaces the first bytes of the mapping by part of a file.
    pub fn overlay(&mut self, file: &File, offset_bytes: u64, len: usize) -> io::Result<()> {
        assert!(len <= self.len, "the file's part fits");
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: inside the mapping, which is borrowed mutably.
        unsafe { mmap(self.start.as_ptr().cast(), len, READ_WRITE, flags, file, offset_bytes)? };
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn address(&self, at: usize) -> *mut u8 {
        assert!(at < self.len, "inside the mapping");
        // SAFETY: inside the mapping.
        unsafe { self.start.as_ptr().add(at) }
    }

    /// Returns `N` bytes from number `index * N` on.
    pub fn array<const N: usize>(&self, index: usize) -> &[u8; N] {
        // SAFETY: mapped as long as `self` lives, and no I/O in flight changes these bytes.
        unsafe { &*self.array_address(index) }
    }

    /// As [`Mapping::array`].
    pub fn array_mut<const N: usize>(&mut self, index: usize) -> &mut [u8; N] {
        // SAFETY: as for `array`, and `self` is borrowed mutably.
        unsafe { &mut *self.array_address(index) }
    }

    /// As [`Mapping::array`], to copy from one to another.
    pub fn two_arrays<const N: usize>(&mut self, from: usize, to: usize) -> (&[u8; N], &mut [u8; N]) {
        assert_ne!(from, to, "a copy is between two different places");
        // SAFETY: as for `array`, `self` is borrowed mutably, and the two do not overlap.
        unsafe { (&*self.array_address(from), &mut *self.array_address(to)) }
    }

    fn array_address<const N: usize>(&self, index: usize) -> *mut [u8; N] {
        assert!(index < self.len / N, "inside the mapping");
        self.address(index * N).cast()
    }

    /// Returns the first bytes.
    pub fn first_mut(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= self.len, "inside the mapping");
        // SAFETY: as for `array_mut`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and no longer borrowed. That cannot fail.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
