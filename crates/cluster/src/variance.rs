//! CloudCache's rule: the move that leaves the smallest variance of load over hosts, to a host that stays below the
//! threshold.
//!
//! Among hosts with caches of the same size, the one with the lowest load is best for a VM. So one host for
//! each size of cache is tried. With more than [`MOST_SIZES`] sizes, similar ones are grouped and several hosts
//! of each group are tried.
//!
//! Source: CloudCache (Arteaga), section 4.5.

use std::collections::BTreeMap;

use crate::index::{Index, Offer};
use crate::round::{Choice, Chooser, Round};

/// The number of different caches up to which the rule is exact.
const MOST_SIZES: usize = 32;
/// The hosts that are tried of each group of similar caches.
const CANDIDATES: usize = 4;

/// See the module documentation.
pub(crate) struct Variance {
    /// Hosts by load, for each size of cache.
    indices: Vec<Index>,
    /// The index of each host.
    of: Vec<usize>,
    /// How many hosts of an index are tried.
    tried: usize,
    loads: Loads,
}

/// The loads of serving hosts, as far as their variance needs them.
#[derive(Clone, Copy, Default)]
struct Loads {
    count: f64,
    sum: f64,
    squares: f64,
}

impl Loads {
    fn of(round: &Round) -> Loads {
        let mut loads = Loads::default();
        for host in round.view.hosts.iter().filter(|host| host.is_serving() && host.host.capacity_blocks > 0)
        {
            loads.count += 1.0;
            loads.sum += host.load();
            loads.squares += host.load().powi(2);
        }
        loads
    }

    /// Returns by how much the variance falls when a VM moves.
    fn fall(&self, round: &Round, vm: usize, to: usize) -> f64 {
        let of = &round.view.vms[vm];
        let changed = |host: usize, demand: u64| {
            let host = &round.view.hosts[host];
            let counts = host.is_serving() && host.host.capacity_blocks > 0;
            if counts { (host.load(), host.load_with(demand)) } else { (0.0, 0.0) }
        };
        let from = changed(of.at, round.view.hosts[of.at].demand_blocks.saturating_sub(of.demand_blocks));
        let to = changed(to, round.view.hosts[to].demand_blocks.saturating_add(of.demand_blocks));
        let more: f64 = [from, to].iter().map(|(before, after)| after - before).sum();
        let squares: f64 = [from, to].iter().map(|(before, after)| after * after - before * before).sum();
        let count = self.count.max(1.0);
        more * (2.0 * self.sum + more) / (count * count) - squares / count
    }
}

/// Returns a number for the size of a cache: of its own if `is_exact`, otherwise one of eight to a doubling.
fn class(capacity_blocks: u64, is_exact: bool) -> u64 {
    if is_exact { capacity_blocks } else { ((capacity_blocks.max(1) as f64).log2() * 8.0) as u64 }
}

fn by_load(round: &Round, host: usize) -> Offer {
    let of = &round.view.hosts[host];
    round.offer(host, round.settings.threshold * of.host.capacity_blocks as f64, of.load())
}

impl Variance {
    pub fn new(round: &Round) -> Variance {
        let hosts = &round.view.hosts;
        let sizes: std::collections::BTreeSet<u64> =
            hosts.iter().map(|host| host.host.capacity_blocks).collect();
        let is_exact = sizes.len() <= MOST_SIZES;
        let mut classes: BTreeMap<u64, Vec<(u32, Offer)>> = BTreeMap::new();
        for (number, host) in hosts.iter().enumerate() {
            let offers = classes.entry(class(host.host.capacity_blocks, is_exact)).or_default();
            offers.push((number as u32, by_load(round, number)));
        }
        let mut of = vec![0; hosts.len()];
        for (number, offers) in classes.values().enumerate() {
            offers.iter().for_each(|offer| of[offer.0 as usize] = number);
        }
        let indices = classes.into_values().map(|offers| Index::new(hosts.len(), offers)).collect();
        let tried = if is_exact { 1 } else { CANDIDATES };
        Variance { indices, of, tried, loads: Loads::of(round) }
    }

    /// Returns the best host for a VM of those that are accepted.
    fn best(
        &self,
        round: &Round,
        vm: usize,
        is_spare: bool,
        accept: impl Fn(usize) -> bool,
    ) -> Option<Choice> {
        let need = round.need(vm, is_spare);
        let mut best: Option<Choice> = None;
        for index in &self.indices {
            for to in index.best(&need, self.tried, &accept) {
                let score = self.loads.fall(round, vm, to);
                if best.is_none_or(|best| score > best.score) {
                    best = Some(Choice { vm, to, score });
                }
            }
        }
        best
    }
}

impl Chooser for Variance {
    fn relieve(&mut self, round: &Round, from: usize) -> Option<Choice> {
        let mut best: Option<Choice> = None;
        for vm in round.movable(from) {
            let Some(found) = self.best(round, vm, true, |to| round.may_go(vm, to)) else { continue };
            if found.score > 0.0 && best.is_none_or(|best| found.score > best.score) {
                best = Some(found);
            }
        }
        best
    }

    fn place(&mut self, round: &Round, vm: usize) -> Option<Choice> {
        let fits = |to: usize| round.view.fits(vm, to);
        self.best(round, vm, true, fits).or_else(|| self.best(round, vm, false, fits))
    }

    fn moved(&mut self, round: &Round, from: usize, to: usize) {
        for host in [from, to] {
            self.indices[self.of[host]].update(host, by_load(round, host));
        }
        self.loads = Loads::of(round);
    }

    fn takes_turns(&self) -> bool {
        true
    }
}
