//! How the queues learn that the program is about to end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// Whether the program is about to end, and a bell that rings from then on.
#[derive(Debug)]
pub struct Stop {
    is_requested: AtomicBool,
    bell: OwnedFd,
}

impl Stop {
    pub fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { is_requested: AtomicBool::new(false), bell })
    }

    pub fn request(&self) {
        self.is_requested.store(true, Ordering::Release);
        // It fails only if the bell rings already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    pub fn is_requested(&self) -> bool {
        self.is_requested.load(Ordering::Acquire)
    }

    /// Returns a descriptor that can be read from when the program is about to end. Nobody reads from it.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Waits for some time. Returns whether the program is about to end.
    pub fn wait(&self, time: Duration) -> bool {
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
        // An interrupted wait is a short one.
        let _ = poll(&mut [PollFd::new(&self.bell, PollFlags::IN)], Some(&time));
        self.is_requested()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_requested_stop_ends_all_waits() {
        let stop = Stop::new().unwrap();
        assert!(!stop.wait(Duration::from_millis(1)));
        stop.request();
        stop.request();
        assert!(stop.wait(Duration::from_secs(1000)) && stop.wait(Duration::from_secs(1000)));
    }
}
