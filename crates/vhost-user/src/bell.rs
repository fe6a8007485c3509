//! A front end's eventfd, signalled without ever blocking.
//!
//! A write to an eventfd blocks while the counter is full, unless the descriptor is non-blocking. The front end has
//! the same descriptor: it can fill the counter and change the flag at any time, also between a check and the write.
//! The kernel's own signals never block. So the eventfd is registered with an io_uring of its own, and a completion
//! there signals it.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};

use io_uring::{IoUring, opcode};

/// See the module.
pub struct Bell(Mutex<IoUring>);

impl Bell {
    /// Takes an eventfd; the descriptor itself is not needed afterwards.
    ///
    /// # Errors
    /// It is not an eventfd, or the kernel refuses.
    pub fn new(eventfd: BorrowedFd<'_>) -> io::Result<Self> {
        let ring = IoUring::new(1)?;
        ring.submitter().register_eventfd(eventfd.as_raw_fd())?;
        Ok(Self(Mutex::new(ring)))
    }

    /// Adds to the eventfd, unless it is full: then its reader has already been notified.
    pub fn ring(&self) {
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ring.completion().for_each(drop);
        // SAFETY: a no-op refers to no memory. The queue has room: earlier entries have been submitted, or are
        // submitted now.
        let _ = unsafe { ring.submission().push(&opcode::Nop::new().build()) };
        // An error can only mean that the kernel is out of memory. The next signal covers this one too.
        let _ = ring.submit();
    }
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bell")
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::event::EventfdFlags;

    use super::*;

    #[test]
    fn a_full_and_blocking_eventfd_keeps_nobody_waiting() {
        let eventfd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let bell = Bell::new(eventfd.as_fd()).unwrap();
        let count = || {
            let mut bytes = [0; 8];
            rustix::io::read(&eventfd, &mut bytes).unwrap();
            u64::from_ne_bytes(bytes)
        };
        bell.ring();
        assert_eq!(count(), 1);
        (0..5).for_each(|_| bell.ring());
        assert_eq!(count(), 5);
        rustix::io::write(&eventfd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        (0..5).for_each(|_| bell.ring());
        assert_eq!(count(), u64::MAX);
    }

    #[test]
    fn what_is_no_eventfd_is_refused() {
        assert!(Bell::new(std::io::pipe().unwrap().1.as_fd()).is_err());
    }
}
