//! The reactor's time slice. Where other threads want its processor, the scheduler (EEVDF, since Linux 6.12) lets a
//! thread with a short slice run soon after it wakes up, for as long as it keeps within its share. So a guest's request
//! does not wait until whatever else runs on the host has used up its own slice of some milliseconds. It needs no
//! privilege, and takes no processor time from others: a reactor that works for long is interrupted more often.
//!
//! An older kernel ignores the slice.

use std::io;

/// The shortest slice that the kernel accepts.
const SLICE_NS: u64 = 100_000;

/// Gives the calling thread a short time slice. Real-time and idle threads are not changed; the nice value stays.
///
/// # Errors
/// The kernel refuses, or a filter of system calls does.
pub(crate) fn shorten() -> io::Result<()> {
    let mut attributes = attributes()?;
    if ![libc::SCHED_OTHER, libc::SCHED_BATCH].contains(&(attributes.sched_policy as i32)) {
        return Ok(());
    }
    attributes.sched_runtime = SLICE_NS;
    // SAFETY: the kernel reads as many bytes as the structure says that it has, and 0 is the calling thread.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns how the calling thread is scheduled.
fn attributes() -> io::Result<libc::sched_attr> {
    // SAFETY: the structure has only integers, for which all zeroes are valid.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>();
    // SAFETY: the kernel writes at most `size` bytes, and 0 is the calling thread.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    if result == 0 { Ok(attributes) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy_and_nice() -> (u32, i32) {
        let attributes = attributes().unwrap();
        (attributes.sched_policy, attributes.sched_nice)
    }

    /// A kernel that has slices returns them, and others return 0.
    #[test]
    fn the_slice_is_short_and_the_policy_and_the_nice_value_are_kept() {
        // SAFETY: it has no memory to keep valid; on Linux it concerns the calling thread only.
        assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) }, 0);
        let before = policy_and_nice();
        shorten().unwrap();
        assert_eq!(policy_and_nice(), before);
        let slice_ns = attributes().unwrap().sched_runtime;
        assert!([0, SLICE_NS].contains(&slice_ns), "{slice_ns}");
    }

    #[test]
    fn an_idle_thread_stays_idle() {
        // SAFETY: all zeroes are valid parameters of this policy.
        let parameters: libc::sched_param = unsafe { std::mem::zeroed() };
        // SAFETY: the parameters live through the call, and 0 is the calling thread.
        assert_eq!(unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) }, 0);
        shorten().unwrap();
        assert_eq!(policy_and_nice().0, libc::SCHED_IDLE as u32);
    }
}
