//! File descriptors: how many the daemon may have, how many of them are for clients, and a spare one for when
//! none are left.
//!
//! Invariant
//! - Clients always leave enough descriptors for pools, origins, helpers and the control socket.

use std::fs::File;
use std::io;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::limits::Places;

/// Descriptors for everything except clients; half of all if that is less.
const RESERVED: usize = 512;

/// Raises the process's limit as far as possible, and returns the places for clients' descriptors.
pub fn places_for_clients() -> Arc<Places> {
    let most = clients_may_have(raise_limit());
    Places::new("file descriptors of clients", most, most)
}

fn raise_limit() -> usize {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 2 * RESERVED };
    match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard as usize,
        Err(error) => {
            tracing::warn!("cannot raise the limit of file descriptors above {soft}: {error}");
            soft as usize
        }
    }
}

fn clients_may_have(limit: usize) -> usize {
    limit.saturating_sub(RESERVED).max(limit / 2)
}

/// A spare descriptor, released when none are left so that a connection can be accepted and closed. A
/// connection that is not accepted stays in the queue and keeps waking the listener.
#[derive(Debug)]
pub struct Spare(Option<File>);

impl Spare {
    /// Takes a descriptor.
    pub fn take() -> Spare {
        Spare(File::open("/dev/null").ok())
    }

    /// Returns whether an error means that no descriptors are left.
    pub fn is_wanted(error: &io::Error) -> bool {
        let none = [Errno::EMFILE as i32, Errno::ENFILE as i32];
        error.raw_os_error().is_some_and(|errno| none.contains(&errno))
    }

    /// Releases the descriptor.
    pub fn give(&mut self) {
        self.0 = None;
    }

    /// Takes a descriptor again.
    pub fn take_back(&mut self) {
        *self = Spare::take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_leave_the_reserve_or_half() {
        assert_eq!(clients_may_have(65_536), 65_024);
        assert_eq!(clients_may_have(1024), 512);
        assert_eq!(clients_may_have(200), 100);
    }
}
