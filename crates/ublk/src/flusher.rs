//! Telling the kernel that this program is needed to write memory back to disks.

use std::io;

/// From Linux' include/uapi/linux/prctl.h.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// Marks the calling thread, and those that it starts: the kernel then does not make them wait for the write-back of
/// dirty memory to the block device, which only they can do.
pub fn become_flusher() -> io::Result<()> {
    // SAFETY: takes no addresses.
    match unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
