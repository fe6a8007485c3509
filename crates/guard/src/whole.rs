//! Fully allocated files on memory file systems: a missing page means that it was removed.
//!
//! A file that is truncated and extended again has pages of zeroes, which cause no fault. userfaultfd(2)
//! detects that: if set up so, the kernel answers access to a missing page with SIGBUS, or with EFAULT in a
//! system call.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};

/// Watches a mapping whose pages are all present for pages that disappear, until it is dropped.
#[derive(Debug)]
pub struct Whole {
    _watch: File,
}

/// Constants of `linux/userfaultfd.h`.
const API: u64 = 0xAA;
const FEATURE_MISSING_SHMEM: u64 = 1 << 5;
const FEATURE_SIGBUS: u64 = 1 << 7;
const MODE_MISSING: u64 = 1;
const IOCTL_API: u32 = 0xC018_AA3F;
const IOCTL_REGISTER: u32 = 0xC020_AA00;
/// The process does not handle faults in system calls; they fail. So no privilege is needed.
const USER_MODE_ONLY: libc::c_int = 1;

impl Whole {
    /// Watches a shared mapping of a file on a memory file system. The mapping must consist of whole pages.
    ///
    /// # Errors
    /// The kernel does not support or not allow it, or the file is on another kind of file system.
    pub fn watch(start: *const u8, bytes: usize) -> io::Result<Self> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
        // SAFETY: returns a new descriptor or an error.
        let descriptor = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and owned by nobody else.
        let watch = unsafe { File::from_raw_fd(descriptor as i32) };
        control(&watch, IOCTL_API, &mut [API, FEATURE_MISSING_SHMEM | FEATURE_SIGBUS, 0])?;
        control(&watch, IOCTL_REGISTER, &mut [start as u64, bytes as u64, MODE_MISSING, 0])?;
        Ok(Self { _watch: watch })
    }
}

fn control<const N: usize>(watch: &File, request: u32, argument: &mut [u64; N]) -> io::Result<()> {
    // SAFETY: the request's number encodes the size of its argument, which is the size of `argument`; no other
    // memory is changed.
    let done = unsafe { libc::ioctl(watch.as_raw_fd(), request.into(), argument.as_mut_ptr()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
