//! Flash that the hosts of a model lend each other, according to the production plan:
//! [`Balancer::loans`](haversack_cluster::Balancer).
//!
//! Simplifications: lenders have the blocks that are worth most after those in the borrower's own cache. A loan fills
//! with half of the blocks that the borrower's VMs miss, since a block is sent when it is read for the second time. A
//! lender's own VMs come first, and take loans back immediately. Each host is connected to the next [`NEIGHBOURS`]
//! hosts.
//!
//! Invariant
//! - After [`Lending::take_back`] no host has lent more than it has room for.

use std::collections::BTreeMap;

use haversack_cluster::{Borrows, FlashLoan, HostName, Lends, Offers};

use super::world::{host_name, number_of};

/// The hosts that a host is connected to.
const NEIGHBOURS: usize = 100;
/// The part of a cache that is not lent.
const KEPT: f64 = 1.0 / 32.0;
/// The part of the missed blocks that are sent to a lender.
const SENT: f64 = 0.5;

/// See the module.
pub struct Lending {
    /// What each host borrows: blocks by lender.
    from: Vec<BTreeMap<usize, f64>>,
    /// What each host has lent.
    lent: Vec<f64>,
    /// What each host has room to lend.
    room: Vec<f64>,
}

impl Lending {
    /// Nothing is lent yet.
    pub fn new(hosts: usize) -> Lending {
        Lending { from: vec![BTreeMap::new(); hosts], lent: vec![0.0; hosts], room: vec![0.0; hosts] }
    }

    /// Returns how much of a cache is free to be lent while its own VMs need this much.
    pub fn room(cache_blocks: f64, needed_blocks: f64, most_part: f64) -> f64 {
        (cache_blocks * (1.0 - KEPT) - needed_blocks).clamp(0.0, cache_blocks * most_part)
    }

    /// Takes back what lenders have no room for any more.
    pub fn take_back(&mut self, room: Vec<f64>) {
        self.room = room;
        let keeps = |lender: usize| (self.room[lender] / self.lent[lender].max(1.0)).min(1.0);
        let kept: Vec<f64> = (0..self.room.len()).map(keeps).collect();
        for (lender, blocks) in self.from.iter_mut().flatten() {
            *blocks *= kept[*lender];
        }
        self.count();
    }

    fn count(&mut self) {
        self.lent.fill(0.0);
        for (lender, blocks) in self.from.iter().flatten() {
            self.lent[*lender] += blocks;
        }
    }

    /// Returns the blocks that a host has at others.
    pub fn borrowed(&self, host: usize) -> f64 {
        self.from[host].values().sum()
    }

    /// Returns the blocks that all hosts have at others, and the hosts that borrow.
    pub fn totals(&self) -> (f64, usize) {
        (self.lent.iter().sum(), self.from.iter().filter(|from| !from.is_empty()).count())
    }

    /// Called when a VM has left a host: the host loses this part of its blocks at lenders.
    pub fn lost(&mut self, host: usize, part: f64) {
        for blocks in self.from[host].values_mut() {
            *blocks *= 1.0 - part.clamp(0.0, 1.0);
        }
        self.count();
    }

    /// Fills the loans of a host that wants this many blocks more, with what its VMs have missed.
    pub fn fill(&mut self, host: usize, wanted: f64, missed: f64) {
        let lenders = self.from[host].len().max(1) as f64;
        for (lender, blocks) in &mut self.from[host] {
            let free = (self.room[*lender] - self.lent[*lender]).max(0.0);
            let more = (missed * SENT / lenders).min(wanted / lenders).min(free).max(0.0);
            *blocks += more;
            self.lent[*lender] += more;
        }
    }

    /// Returns the hosts' offers for loans. `serves` tells whether a host serves, `may_borrow` whether a host may
    /// borrow, given whether it already borrows.
    pub fn offers(&self, serves: impl Fn(usize) -> bool, may_borrow: impl Fn(usize, bool) -> bool) -> Offers {
        let count = self.from.len();
        let mut offers = Offers { moves_are_made: true, ..Offers::default() };
        for host in (0..count).filter(|host| serves(*host)) {
            let spare_blocks = (self.room[host] - self.lent[host]).max(0.0) as u64;
            offers.lenders.insert(host_name(host), Lends { spare_blocks, to: None });
            if may_borrow(host, !self.from[host].is_empty()) {
                let reaches = (1..=NEIGHBOURS.min(count - 1)).map(|step| host_name((host + step) % count));
                let from =
                    self.from[host].iter().map(|(lender, blocks)| (host_name(*lender), *blocks as u64));
                let borrows = Borrows { from: from.collect(), reaches: reaches.collect() };
                offers.borrowers.insert(host_name(host), borrows);
            }
        }
        offers
    }

    /// Borrows as planned. Loans from all other lenders are returned.
    pub fn choose(&mut self, loans: &[FlashLoan]) {
        let mut before = std::mem::replace(&mut self.from, vec![BTreeMap::new(); self.lent.len()]);
        let number = |name: &HostName| number_of(&name.0);
        for loan in loans {
            let (Some(host), Some(lender)) = (number(&loan.borrower), number(&loan.lender)) else { continue };
            let blocks = before[host].remove(&lender).unwrap_or(0.0);
            self.from[host].insert(lender, blocks);
        }
        self.count();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loan(borrower: usize, lender: usize) -> FlashLoan {
        let (borrower, lender) = (host_name(borrower), host_name(lender));
        FlashLoan { borrower, lender, blocks: 0, is_begun: false, load: 1.2 }
    }

    #[test]
    fn loans_fill_with_what_is_missed_and_are_taken_back_when_the_lender_needs_the_space() {
        let mut lending = Lending::new(3);
        lending.take_back(vec![0.0, 1000.0, 400.0]);
        lending.choose(&[loan(0, 1), loan(0, 2)]);
        lending.fill(0, 5000.0, 1600.0);
        assert_eq!((lending.borrowed(0), lending.totals()), (800.0, (800.0, 1)));
        lending.fill(0, 5000.0, 1e6);
        assert_eq!(lending.borrowed(0), 1400.0, "no more than there is room for");
        lending.take_back(vec![0.0, 500.0, 400.0]);
        assert_eq!(lending.borrowed(0), 900.0);
        lending.lost(0, 0.5);
        assert_eq!(lending.borrowed(0), 450.0);
        lending.choose(&[loan(0, 2)]);
        assert_eq!(lending.borrowed(0), 200.0, "the rest is given back");
        lending.fill(0, 10.0, 1e6);
        assert_eq!(lending.borrowed(0), 210.0, "no more than is wanted");
        lending.choose(&[]);
        assert_eq!(lending.totals(), (0.0, 0));
    }

    #[test]
    fn what_a_host_needs_itself_and_a_part_that_stays_free_are_not_lent() {
        assert_eq!(Lending::room(3200.0, 1000.0, 1.0), 2100.0);
        assert_eq!(Lending::room(3200.0, 1000.0, 0.5), 1600.0);
        assert_eq!(Lending::room(3200.0, 3150.0, 1.0), 0.0);
        let mut lending = Lending::new(2);
        lending.take_back(vec![50.0, 70.0]);
        let offers = lending.offers(|host| host == 1, |_, borrows| !borrows);
        assert_eq!(offers.lenders.len(), 1);
        assert_eq!(offers.lenders[&host_name(1)].spare_blocks, 70);
        assert!(offers.borrowers[&host_name(1)].reaches.contains(&host_name(0)));
    }
}
