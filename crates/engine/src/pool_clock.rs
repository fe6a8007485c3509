//! A pool's clock: the system's monotonic clock, or for tests a file that contains the time.
//!
//! Invariant
//! - Time never goes back.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use haversack_model::Micros;

use crate::clock;
use crate::error::{Result, at};

/// A clock, read by its reactor and by other threads that need the reactor's time.
pub(crate) enum PoolClock {
    /// Microseconds since the machine was started.
    System,
    /// Microseconds in a file of eight bytes, little-endian, and the last value read.
    File { file: File, last_us: AtomicU64 },
}

impl PoolClock {
    /// Returns the system's clock, or the file's if one is named.
    pub fn open(file: Option<&Path>) -> Result<PoolClock> {
        let Some(path) = file else { return Ok(PoolClock::System) };
        let file = File::open(path).map_err(at("open the clock", path))?;
        Ok(PoolClock::File { file, last_us: AtomicU64::new(0) })
    }

    /// Returns whether the clock runs by itself. Durations by any other clock are not measurements.
    pub fn runs(&self) -> bool {
        matches!(self, PoolClock::System)
    }

    /// Returns the current time.
    pub fn now_us(&self) -> Micros {
        match self {
            PoolClock::System => clock::now_us(),
            PoolClock::File { file, last_us } => {
                let mut bytes = [0; 8];
                // A clock file that cannot be read counts as standing still.
                let read = file.read_exact_at(&mut bytes, 0).is_ok();
                let says_us = if read { Micros::from_le_bytes(bytes) } else { 0 };
                last_us.fetch_max(says_us, Ordering::Relaxed).max(says_us)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_the_time_and_it_never_goes_back() {
        let path = std::env::temp_dir().join(format!("haversack-clock-{}", std::process::id()));
        assert!(PoolClock::open(Some(&path)).is_err());
        let says = |us: u64| std::fs::write(&path, us.to_le_bytes()).unwrap();
        says(7);
        let clock = PoolClock::open(Some(&path)).unwrap();
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
        let clock = PoolClock::open(None).unwrap();
        let start_us = clock.now_us();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(clock.now_us() >= start_us + 2_000);
    }
}
