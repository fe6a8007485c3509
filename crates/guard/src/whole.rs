//! Files on memory file systems of which all is allocated: a page that is missing was taken away.
//!
//! A file that is cut short and made as long again has pages of zeroes, which no fault tells of. userfaultfd(2) does:
//! told to, the kernel answers a touch of a page that is not there with SIGBUS, or EFAULT in a system call.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};

/// A mapping whose pages are all there, watched for those that are not any more, until this is dropped.
#[derive(Debug)]
pub struct Whole {
    _watch: File,
}

/// From `linux/userfaultfd.h`.
const API: u64 = 0xAA;
const FEATURE_MISSING_SHMEM: u64 = 1 << 5;
const FEATURE_SIGBUS: u64 = 1 << 7;
const MODE_MISSING: u64 = 1;
const IOCTL_API: u32 = 0xC018_AA3F;
const IOCTL_REGISTER: u32 = 0xC020_AA00;
/// Faults in system calls need no handling by a process: they fail. So no privilege is needed.
const USER_MODE_ONLY: libc::c_int = 1;

impl Whole {
    /// Watches a shared mapping of a file on a memory file system; whole pages.
    ///
    /// # Errors
    /// The kernel does not offer or not allow it, or the file is of another file system.
    pub fn watch(start: *const u8, bytes: usize) -> io::Result<Self> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
        // SAFETY: gives a new descriptor or an error.
        let descriptor = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        let watch = unsafe { File::from_raw_fd(descriptor as i32) };
        control(&watch, IOCTL_API, &mut [API, FEATURE_MISSING_SHMEM | FEATURE_SIGBUS, 0])?;
        control(&watch, IOCTL_REGISTER, &mut [start as u64, bytes as u64, MODE_MISSING, 0])?;
        Ok(Self { _watch: watch })
    }
}

fn control<const N: usize>(watch: &File, request: u32, argument: &mut [u64; N]) -> io::Result<()> {
    // SAFETY: the request's number says how long its argument is, which is what it is called with; no memory but that
    // is changed.
    let done = unsafe { libc::ioctl(watch.as_raw_fd(), request.into(), argument.as_mut_ptr()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
