//! Profiles of all accesses and, if volumes are distinguished, of each volume's: one for each order of blocks.

use crate::orders::order_of;
use crate::profile::Profile;
use crate::reference::Kind;
use crate::stack::Outcome;

/// A profile for each order; an access counts in `N` of them.
#[derive(Clone)]
pub(crate) struct Profiles<const N: usize> {
    profiles: Vec<Profile>,
    empty: Profile,
}

impl<const N: usize> Profiles<N> {
    /// Makes this many empty profiles, also exact at the given sizes in blocks.
    pub fn new(sizes: &[u64], orders: usize) -> Profiles<N> {
        let empty = Profile::new(sizes);
        Profiles { profiles: vec![empty.clone(); orders], empty }
    }

    /// Makes a profile for each of n orders, if there is not one yet.
    pub fn know(&mut self, orders: usize) {
        if self.profiles.len() < orders {
            self.profiles.resize(orders, self.empty.clone());
        }
    }

    /// Counts an access to a block, with its result in each of the block's orders.
    #[inline]
    pub fn record(&mut self, key: u64, kind: Kind, outcomes: [Outcome; N]) {
        for (nth, outcome) in outcomes.iter().enumerate() {
            self.profiles[order_of(key, nth)].record(kind, *outcome, 1.0);
        }
    }

    /// Counts a block's version, with its depth in each of its orders.
    pub fn record_version(&mut self, key: u64, deepest: [u32; N]) {
        for (nth, deepest) in deepest.iter().enumerate() {
            self.profiles[order_of(key, nth)].record_version(*deepest, 1.0);
        }
    }

    /// Adds other profiles, which have no more orders.
    pub fn merge(&mut self, other: &Profiles<N>) {
        self.profiles.iter_mut().zip(&other.profiles).for_each(|(to, from)| to.merge(from));
    }

    /// Returns all of them: that of all accesses first.
    pub fn into_vec(self) -> Vec<Profile> {
        self.profiles
    }
}

impl Profiles<1> {
    /// From now on volumes have profiles of their own; the first one has all accesses so far.
    pub fn told_apart(&self) -> Profiles<2> {
        Profiles { profiles: vec![self.profiles[0].clone(); 2], empty: self.empty.clone() }
    }
}
