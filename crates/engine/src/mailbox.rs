//! The reactor's mailbox: closures from other threads, and an eventfd that wakes the reactor.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use rustix::event::{EventfdFlags, eventfd};

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
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let (sender, receiver) = mpsc::channel();
        Ok((Mailbox { sender, bell: bell.clone() }, Letters { receiver, bell }))
    }

    /// Posts work. It is dropped if the reactor has ended.
    pub fn post(&self, letter: Letter) {
        if self.sender.send(letter).is_ok() {
            // It can neither block nor fail: the counter never gets near its limit, since every read resets it.
            let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
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
