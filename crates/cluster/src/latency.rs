//! Our rule: the move that lowers the cluster's expected latency most, less what the move costs.
//!
//! A host's best move is found without trying all pairs. A VM cannot save more elsewhere than in a cache of its own,
//! which bounds what its move gains; VMs are tried by this bound, until none can be better. The hosts that are tried
//! for a VM are those with the most spare cache; where none has enough, those whose caches' last block is worth the
//! least.

use crate::cost::Cost;
use crate::index::{Index, Offer};
use crate::round::{Choice, Chooser, Round};

/// The hosts that are tried for a VM, by each order.
const CANDIDATES: usize = 4;
/// Scores that differ by a smaller part are equal: sums of numbers in another order differ by less.
const EQUAL: f64 = 1e-9;

/// See the module documentation.
pub(crate) struct Latency {
    /// Hosts by spare blocks.
    spare: Index,
    /// Hosts by what a block more is worth; made when first needed.
    price: Option<Index>,
}

/// The blocks of a host that other VMs may use. The part of the cache above the threshold stays a buffer for surges. If
/// the host's demand was higher recently, the difference is reserved too, since the demand may rise again.
fn usable_blocks(round: &Round, host: usize) -> f64 {
    let of = &round.view.hosts[host];
    let dip = (round.memory[host].peak_load - of.load()).max(0.0);
    (round.settings.threshold - dip).max(0.0) * of.host.capacity_blocks as f64
}

impl Latency {
    pub fn new(round: &Round) -> Latency {
        let hosts = 0..round.view.hosts.len();
        let offers = hosts.map(|host| (host as u32, by_spare(round, host))).collect();
        Latency { spare: Index::new(round.view.hosts.len(), offers), price: None }
    }

    fn price(&mut self, round: &Round) -> &Index {
        self.price.get_or_insert_with(|| {
            let hosts = 0..round.view.hosts.len();
            let offers = hosts.map(|host| (host as u32, by_price(round, host))).collect();
            Index::new(round.view.hosts.len(), offers)
        })
    }

    /// Returns hosts to try for a VM.
    fn candidates(&mut self, round: &Round, vm: usize, accept: impl Fn(usize) -> bool) -> Vec<usize> {
        let spacious = self.spare.best(&round.need(vm, true), CANDIDATES, &accept);
        if !spacious.is_empty() {
            return spacious;
        }
        let need = round.need(vm, false);
        let mut hosts = self.spare.best(&need, CANDIDATES, &accept);
        hosts.extend(self.price(round).best(&need, CANDIDATES, &accept));
        hosts.sort_unstable();
        hosts.dedup();
        hosts
    }

    /// Returns the best of these hosts for a VM, with what it saves there less what the move costs, over the horizon.
    fn best(round: &Round, vm: usize, hosts: Vec<usize>) -> Option<Choice> {
        let mut best: Option<Choice> = None;
        for to in hosts {
            let profit = round.profit(vm, to, usable_blocks(round, to) as u64);
            let score = profit * horizon_s(round) - Cost::of(round, vm, to).total_us();
            // Of equal ones the first, which has the most spare blocks.
            if best.is_none_or(|best| score > best.score + EQUAL * best.score.abs()) {
                best = Some(Choice { vm, to, score });
            }
        }
        best
    }
}

fn horizon_s(round: &Round) -> f64 {
    round.settings.horizon_us as f64 / 1e6
}

fn by_spare(round: &Round, host: usize) -> Offer {
    let usable_blocks = usable_blocks(round, host);
    round.offer(host, usable_blocks, round.view.hosts[host].demand_blocks as f64 - usable_blocks)
}

fn by_price(round: &Round, host: usize) -> Offer {
    if !round.view.hosts[host].is_serving() {
        return Offer::NONE;
    }
    round.offer(host, usable_blocks(round, host), round.view.cache(host).price)
}

impl Chooser for Latency {
    fn relieve(&mut self, round: &Round, from: usize) -> Option<Choice> {
        let horizon_s = horizon_s(round);
        let mut vms: Vec<(f64, f64, usize)> = round
            .movable(from)
            .map(|vm| {
                let loss = round.loss(vm);
                let most = (round.view.worth(vm).alone(u64::MAX) - loss) * horizon_s;
                (most - Cost::least(round, vm).total_us(), loss, vm)
            })
            .collect();
        vms.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.2.cmp(&b.2)));
        let mut best: Option<Choice> = None;
        for (most, loss, vm) in vms {
            if best.is_some_and(|best| most <= best.score) || most <= 0.0 {
                break;
            }
            let hosts = self.candidates(round, vm, |to| round.may_go(vm, to));
            let Some(found) = Self::best(round, vm, hosts) else { continue };
            let score = found.score - loss * horizon_s;
            let least = (round.settings.hysteresis - 1.0) * Cost::of(round, vm, found.to).total_us();
            if score > least.max(0.0) && best.is_none_or(|best| score > best.score) {
                best = Some(Choice { score, ..found });
            }
        }
        best
    }

    fn place(&mut self, round: &Round, vm: usize) -> Option<Choice> {
        let hosts = self.candidates(round, vm, |to| round.view.fits(vm, to));
        Self::best(round, vm, hosts)
    }

    fn moved(&mut self, round: &Round, from: usize, to: usize) {
        for host in [from, to] {
            self.spare.update(host, by_spare(round, host));
            if let Some(price) = &mut self.price {
                price.update(host, by_price(round, host));
            }
        }
    }

    fn takes_turns(&self) -> bool {
        false
    }
}
