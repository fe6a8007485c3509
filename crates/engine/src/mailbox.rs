//! The reactor's mailbox: closures from other threads, and an eventfd that wakes the reactor.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use crate::reactor::Reactor;

/// Work for the reactor.
pub(crate) type Letter = Box<dyn FnOnce(&mut Reactor) + Send>;

/// The senders' side.
#[derive(Clone)]
pub(crate) struct Mailbox {
    sender: Sender<Letter>,
    bell: Arc<OwnedFd>,
}

/// The reactor's side.
pub(crate) struct Letters {
    receiver: Receiver<Letter>,
    bell: Arc<OwnedFd>,
}

impl Mailbox {
    pub fn new() -> io::Result<(Mailbox, Letters)> {
        // SAFETY: creates a new descriptor.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just created, and owned by nobody else.
        let bell = Arc::new(unsafe { OwnedFd::from_raw_fd(fd) });
        let (sender, receiver) = mpsc::channel();
        Ok((Mailbox { sender, bell: bell.clone() }, Letters { receiver, bell }))
    }

    /// Posts work. It is dropped if the reactor has ended.
    pub fn post(&self, letter: Letter) {
        if self.sender.send(letter).is_ok() {
            let one = 1u64;
            // SAFETY: writes eight bytes that live through the call. It cannot block: the counter never gets
            // near its limit, since every read resets it.
            unsafe { libc::write(self.bell.as_raw_fd(), (&raw const one).cast(), 8) };
        }
    }
}

impl Letters {
    pub fn next(&self) -> Option<Letter> {
        self.receiver.try_recv().ok()
    }

    pub fn bell(&self) -> RawFd {
        self.bell.as_raw_fd()
    }
}
