//! The reactor's clock: the system's, or for tests a file that says the time.
//!
//! Invariant
//! - Time never goes back.

use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use haversack_model::Micros;

use crate::error::{Result, at};

/// A clock that is read by one thread.
pub(crate) enum Clock {
    /// Microseconds since the machine was started.
    System,
    /// Microseconds that a file says in eight bytes, the lowest first, and what was read last.
    File { file: File, last_us: Cell<Micros> },
}

impl Clock {
    /// The system's clock, or the file's if one is named.
    pub fn open(file: Option<&Path>) -> Result<Clock> {
        let Some(path) = file else { return Ok(Clock::System) };
        let file = File::open(path).map_err(at("open the clock", path))?;
        Ok(Clock::File { file, last_us: Cell::new(0) })
    }

    /// The time.
    pub fn now_us(&self) -> Micros {
        match self {
            Clock::System => system_us(),
            Clock::File { file, last_us } => {
                let mut bytes = [0; 8];
                // A file that cannot be read stands still.
                if file.read_exact_at(&mut bytes, 0).is_ok() {
                    last_us.set(last_us.get().max(Micros::from_le_bytes(bytes)));
                }
                last_us.get()
            }
        }
    }
}

fn system_us() -> Micros {
    // SAFETY: all zero is a valid timespec, and the call fills it.
    let mut time: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: the timespec lives through the call; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as Micros * 1_000_000 + time.tv_nsec as Micros / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_the_time_and_it_never_goes_back() {
        let path = std::env::temp_dir().join(format!("haversack-clock-{}", std::process::id()));
        assert!(Clock::open(Some(&path)).is_err());
        let says = |us: u64| std::fs::write(&path, us.to_le_bytes()).unwrap();
        says(7);
        let clock = Clock::open(Some(&path)).unwrap();
        assert_eq!(clock.now_us(), 7);
        says(5);
        assert_eq!(clock.now_us(), 7);
        std::fs::write(&path, "").unwrap();
        assert_eq!(clock.now_us(), 7);
        says(1 << 40);
        assert_eq!(clock.now_us(), 1 << 40);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn the_systems_clock_runs() {
        let clock = Clock::open(None).unwrap();
        let start_us = clock.now_us();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(clock.now_us() >= start_us + 2_000);
    }
}
