//! Two hosts on one machine: each has processors of its own, so that what one of them does for a move costs the guests
//! of the other one nothing, as between real hosts.

use std::io;

/// Lets a process, with all its threads and those that they start, run on a host's processors only.
pub fn give_process(host: usize, process: u32) -> io::Result<()> {
    for thread in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let name = thread?.file_name();
        let number = name.to_str().and_then(|name| name.parse().ok());
        give(host, number.ok_or_else(|| io::Error::other(format!("{name:?} is not a thread")))?)?;
    }
    Ok(())
}

/// Lets the calling thread run on a host's processors only.
pub fn give_this_thread(host: usize) -> io::Result<()> {
    give(host, 0)
}

fn give(host: usize, thread: libc::pid_t) -> io::Result<()> {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let half = (all / 2).max(1);
    let processors = if host == 0 || all == 1 { 0..half } else { half..all };
    // SAFETY: all zeroes is the empty set of processors.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for processor in processors {
        // SAFETY: the set is valid, and the macro ignores numbers that it has no room for.
        unsafe { libc::CPU_SET(processor, &mut set) };
    }
    // SAFETY: the set lives through the call, and its size is given.
    let done = unsafe { libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), &raw const set) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
