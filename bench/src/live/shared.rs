//! Memory in a file of its own, mapped: buffers for direct I/O, and the memory of a guest that a back end maps as well.
//!
//! The other side may change any byte at any time, so no reference to the bytes is ever formed but to atomics.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU16;

/// See the module.
pub struct Shared {
    file: File,
    start: NonNull<u8>,
    bytes: usize,
}

impl Shared {
    /// Makes n bytes, all zero and all present.
    pub fn new(bytes: usize) -> io::Result<Shared> {
        // SAFETY: the name is a C string, and the call makes a new descriptor.
        let fd = unsafe { libc::memfd_create(c"haversack-bench".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made, and nobody else's.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(bytes as u64)?;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::Error::other("mapped at address 0"))?;
        Ok(Shared { file, start, bytes })
    }

    /// The file's descriptor.
    pub fn raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Where `len` bytes from `at` on lie in this process.
    pub fn address(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at + len <= self.bytes, "{len} bytes at {at} of {}", self.bytes);
        // SAFETY: inside the mapping.
        unsafe { self.start.as_ptr().add(at) }
    }

    /// A number that both sides change.
    pub fn u16(&self, at: usize) -> &AtomicU16 {
        assert!(at.is_multiple_of(2), "{at} is even");
        // SAFETY: inside the mapping, aligned, and mapped as long as `self` is borrowed.
        unsafe { AtomicU16::from_ptr(self.address(at, 2).cast()) }
    }

    /// Copies bytes in.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        let to = self.address(at, bytes.len());
        // SAFETY: the target is inside the mapping; the source is not.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies bytes out.
    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        let from = self.address(at, bytes.len());
        // SAFETY: the source is inside the mapping; the target is not.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and nobody borrows it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
