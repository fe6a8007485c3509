//! Limits on connections, in total and per peer.
//!
//! Invariants
//! - A [`Place`] counts as long as it exists, whatever happens to its connection.
//! - One peer cannot take more than its limit, so the rest is left for others.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use crate::locked::Locked;

/// The peer of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Peer {
    /// An IPv4 address, or the 64-bit network of an IPv6 one: a client that has one of its 2^64 addresses has
    /// them all.
    Address(IpAddr),
    /// A process of this host.
    Process(i32),
}

impl Peer {
    /// Returns the peer of a TCP connection.
    pub fn of_address(address: IpAddr) -> Peer {
        Peer::Address(match address.to_canonical() {
            IpAddr::V6(v6) if !v6.is_loopback() => IpAddr::V6((v6.to_bits() >> 64 << 64).into()),
            other => other,
        })
    }

    /// Returns the process that connected over a Unix socket.
    pub fn of_stream(stream: &impl AsFd) -> Peer {
        // All peers without credentials share one set of places.
        Peer::Process(getsockopt(stream, PeerCredentials).map_or(0, |credentials| credentials.pid()))
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Address(address) => write!(f, "{address}"),
            Peer::Process(id) => write!(f, "process {id}"),
        }
    }
}

/// Why no place is free.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Full {
    /// All are taken.
    #[error("the maximum of {most} {what} is reached")]
    All {
        /// What is counted.
        what: &'static str,
        /// The limit.
        most: usize,
    },
    /// The peer's limit is reached.
    #[error("{peer} already has {most} {what}, the maximum")]
    Peer {
        /// The peer.
        peer: Peer,
        /// What is counted.
        what: &'static str,
        /// The limit for one peer.
        most: usize,
    },
}

/// Places for connections.
#[derive(Debug)]
pub struct Places {
    what: &'static str,
    most: usize,
    most_per_peer: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    of: HashMap<Peer, usize>,
}

impl Places {
    /// Makes places for `what`, with a total limit and one per peer.
    pub fn new(what: &'static str, most: usize, most_per_peer: usize) -> Arc<Places> {
        Arc::new(Places { what, most, most_per_peer, taken: Mutex::default() })
    }

    /// Takes `count` places for a peer.
    ///
    /// # Errors
    /// The limit is reached, in all or for this peer.
    pub fn take(self: &Arc<Places>, peer: Peer, count: usize) -> Result<Place, Full> {
        let mut taken = self.taken.locked();
        if taken.all + count > self.most {
            return Err(Full::All { what: self.what, most: self.most });
        }
        let of_peer = taken.of.get(&peer).copied().unwrap_or(0) + count;
        if of_peer > self.most_per_peer {
            return Err(Full::Peer { peer, what: self.what, most: self.most_per_peer });
        }
        taken.of.insert(peer, of_peer);
        taken.all += count;
        Ok(Place { places: self.clone(), peer, count })
    }
}

/// A taken place; dropping it frees the place.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    peer: Peer,
    count: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.locked();
        taken.all -= self.count;
        if let Some(of_peer) = taken.of.get_mut(&self.peer) {
            *of_peer -= self.count;
            if *of_peer == 0 {
                taken.of.remove(&self.peer);
            }
        }
    }
}

/// How often a listener logs that it turns connections away.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// Counts connections turned away, so that thousands of them do not fill the log.
#[derive(Debug, Default)]
pub struct TurnedAway {
    told: Option<Instant>,
    untold: u64,
}

impl TurnedAway {
    /// Counts one. If a message is due, returns how many it must report.
    pub fn count(&mut self) -> Option<u64> {
        self.untold += 1;
        if self.told.is_some_and(|told| told.elapsed() < TELL_EVERY) {
            return None;
        }
        self.told = Some(Instant::now());
        Some(std::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(id: i32) -> Peer {
        Peer::Process(id)
    }

    #[test]
    fn a_peer_leaves_others_the_rest() {
        let places = Places::new("connections", 5, 3);
        let mut held: Vec<Place> = (0..3).map(|_| places.take(peer(1), 1).unwrap()).collect();
        assert_eq!(
            places.take(peer(1), 1).unwrap_err(),
            Full::Peer { peer: peer(1), what: "connections", most: 3 }
        );
        held.push(places.take(peer(2), 2).unwrap());
        assert_eq!(places.take(peer(3), 1).unwrap_err(), Full::All { what: "connections", most: 5 });
        drop(held);
        assert!(places.take(peer(1), 3).is_ok());
        assert!(places.taken.locked().of.is_empty());
    }

    #[test]
    fn addresses_of_one_network_are_one_peer() {
        let peer = |text: &str| Peer::of_address(text.parse().unwrap());
        assert_eq!(peer("2001:db8::1"), peer("2001:db8::ffff:1"));
        assert_ne!(peer("2001:db8::1"), peer("2001:db8:0:1::1"));
        assert_ne!(peer("10.0.0.1"), peer("10.0.0.2"));
        assert_eq!(peer("10.0.0.1"), peer("::ffff:10.0.0.1"));
    }

    #[test]
    fn a_flood_is_logged_once() {
        let mut turned_away = TurnedAway::default();
        assert_eq!(turned_away.count(), Some(1));
        assert_eq!((0..100).filter_map(|_| turned_away.count()).count(), 0);
    }
}
