//! Messages between the arenas of a pool: a device that fails for one of them fails for all.

use haversack_model::{ArenaNo, DeviceNo};

use crate::mailbox::Mailbox;

/// An arena's view of its pool.
pub(crate) struct Siblings {
    arena: ArenaNo,
    /// By arena, its own included.
    mailboxes: Vec<Mailbox>,
}

impl Siblings {
    /// Returns the view of an arena, given the mailboxes of all reactors.
    pub fn of(arena: ArenaNo, mailboxes: &[Mailbox]) -> Siblings {
        Siblings { arena, mailboxes: mailboxes.to_vec() }
    }

    /// Returns the number of the arena.
    pub fn arena(&self) -> ArenaNo {
        self.arena
    }

    /// Returns the number of arenas of the pool.
    pub fn arenas(&self) -> usize {
        self.mailboxes.len()
    }

    /// Makes the other arenas stop using a device too. A device that gets this number later is not affected: it can
    /// join only after this arena has released the failed one, so the others read this first.
    pub fn device_failed(&self, device: DeviceNo) {
        for (at, mailbox) in self.mailboxes.iter().enumerate() {
            if at != usize::from(self.arena.0) {
                mailbox.post(Box::new(move |reactor| {
                    reactor.core_call(|core, now| core.fail_device(now, device));
                }));
            }
        }
    }
}
