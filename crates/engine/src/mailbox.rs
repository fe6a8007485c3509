//! The reactor's mailbox: closures from other threads, and an eventfd that wakes the reactor.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};

use rustix::event::{EventfdFlags, eventfd};

use crate::reactor::Reactor;

/// A command for the reactor.
pub(crate) type Command = Box<dyn FnOnce(&mut Reactor) + Send>;

/// The senders' side.
#[derive(Clone)]
pub(crate) struct Mailbox {
    sender: Sender<Command>,
    doorbell: Arc<Doorbell>,
}

/// The reactor's side.
pub(crate) struct Commands {
    receiver: Receiver<Command>,
    doorbell: Arc<Doorbell>,
}

struct Doorbell {
    fd: OwnedFd,
    /// It was rung, and the reactor has not begun to take commands since: there is no need to ring again.
    was_rung: AtomicBool,
}

impl Mailbox {
    pub fn new() -> io::Result<(Mailbox, Commands)> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC)?;
        let doorbell = Arc::new(Doorbell { fd, was_rung: AtomicBool::new(false) });
        let (sender, receiver) = mpsc::channel();
        Ok((Mailbox { sender, doorbell: doorbell.clone() }, Commands { receiver, doorbell }))
    }

    /// Posts a command. It is dropped if the reactor has ended.
    pub fn post(&self, command: Command) {
        if self.sender.send(command).is_ok() && !self.doorbell.was_rung.swap(true, Ordering::AcqRel) {
            // It can neither block nor fail: the counter never gets near its limit, since every read resets it.
            let _ = rustix::io::write(&self.doorbell.fd, &1u64.to_ne_bytes());
        }
    }
}

impl Commands {
    /// Must be called before commands are taken: a command that is posted after this call rings the doorbell again.
    pub fn begin(&self) {
        self.doorbell.was_rung.swap(false, Ordering::AcqRel);
    }

    pub fn next(&self) -> Option<Command> {
        self.receiver.try_recv().ok()
    }

    /// Drops the commands that have not been taken, and all that are posted from now on: the reactor has ended.
    pub fn close(&mut self) {
        self.receiver = mpsc::channel().1;
    }

    pub fn doorbell(&self) -> RawFd {
        self.doorbell.fd.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_the_end_nobody_waits_for_a_command() {
        let (mailbox, mut commands) = Mailbox::new().unwrap();
        let post = || {
            let (sender, answer) = mpsc::channel::<()>();
            mailbox.post(Box::new(move |_| drop(sender)));
            answer
        };
        let before = post();
        assert_eq!(before.try_recv(), Err(mpsc::TryRecvError::Empty));
        commands.close();
        for answer in [before, post()] {
            assert_eq!(answer.try_recv(), Err(mpsc::TryRecvError::Disconnected));
        }
    }
}
