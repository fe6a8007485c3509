//! Mapped memory, unmapped when dropped.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

/// Bytes that are mapped readable and writable.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

fn map(start: *mut u8, len: usize, flags: i32, file: i32, offset: u64) -> io::Result<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, or with MAP_FIXED one inside memory that the caller owns and lends mutably.
    let address = unsafe { libc::mmap(start.cast(), len, protection, flags, file, offset as libc::off_t) };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(address.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))
}

impl Mapping {
    /// Maps zeroed, private memory.
    pub fn anonymous(len: usize) -> io::Result<Mapping> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        Ok(Mapping { start: map(std::ptr::null_mut(), len, flags, -1, 0)?, len })
    }

    /// Maps part of a file, which must be at least this long.
    pub fn shared(file: &File, offset_bytes: u64, len: usize) -> io::Result<Mapping> {
        let start = map(std::ptr::null_mut(), len, libc::MAP_SHARED, file.as_raw_fd(), offset_bytes)?;
        Ok(Mapping { start, len })
    }

    /// Replaces the first bytes of the mapping by part of a file.
    pub fn overlay(&mut self, file: &File, offset_bytes: u64, len: usize) -> io::Result<()> {
        assert!(len <= self.len, "the file's part fits");
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        map(self.start.as_ptr(), len, flags, file.as_raw_fd(), offset_bytes)?;
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

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped as long as `self` lives. The kernel changes only frames of I/Os in flight, which the
        // core does not access before completion.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and no longer borrowed.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
