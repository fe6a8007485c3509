//! Which processor cores the client runs on.

use std::io;
use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Keeps the calling thread away from a core, or lets it run wherever it could at first. With a single core it stays there.
pub fn avoid(core: Option<usize>) -> io::Result<()> {
    static AT_FIRST: OnceLock<CpuSet> = OnceLock::new();
    let at_first = match AT_FIRST.get() {
        Some(set) => *set,
        None => *AT_FIRST.get_or_init({
            let set = sched_getaffinity(None)?;
            move || set
        }),
    };
    let mut wanted = at_first;
    if let Some(core) = core {
        wanted.unset(core);
    }
    if wanted.count() == 0 {
        wanted = at_first;
    }
    Ok(sched_setaffinity(None, &wanted)?)
}
