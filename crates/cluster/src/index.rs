//! Finds hosts with enough space: the best by a key, among those with enough spare cache, memory and processors.
//!
//! A binary tree over the hosts. Each node has the smallest key and the most of each resource below it. A search looks
//! at nodes in the order of their keys, and passes over those without room, so it costs about the logarithm of the
//! number of hosts for each host found. Needs that no host meets are remembered, so that they are not searched for
//! again.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// What a host offers, or the best of what several hosts offer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Offer {
    /// The order of preference, the smallest first.
    pub key: f64,
    /// Blocks of cache that are not in demand; below 0 if too much is.
    pub spare_blocks: i64,
    /// Free memory.
    pub memory_bytes: u64,
    /// Free processors.
    pub vcpus: u32,
}

/// What a VM needs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Need {
    /// Spare blocks; `None` if they do not matter.
    pub spare_blocks: Option<i64>,
    /// Memory.
    pub memory_bytes: u64,
    /// Processors.
    pub vcpus: u32,
}

impl Need {
    /// Returns whether it asks for at least as much of everything.
    fn covers(&self, other: &Need) -> bool {
        self.spare_blocks.unwrap_or(i64::MIN) >= other.spare_blocks.unwrap_or(i64::MIN)
            && self.memory_bytes >= other.memory_bytes
            && self.vcpus >= other.vcpus
    }
}

impl Offer {
    /// That of no host.
    pub const NONE: Offer = Offer { key: f64::INFINITY, spare_blocks: i64::MIN, memory_bytes: 0, vcpus: 0 };

    fn or(self, other: Offer) -> Offer {
        Offer {
            key: self.key.min(other.key),
            spare_blocks: self.spare_blocks.max(other.spare_blocks),
            memory_bytes: self.memory_bytes.max(other.memory_bytes),
            vcpus: self.vcpus.max(other.vcpus),
        }
    }

    fn meets(&self, need: &Need) -> bool {
        self.key < f64::INFINITY
            && need.spare_blocks.is_none_or(|blocks| self.spare_blocks >= blocks)
            && self.memory_bytes >= need.memory_bytes
            && self.vcpus >= need.vcpus
    }
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    /// Hosts by leaf.
    hosts: Vec<u32>,
    /// Leaves by host; `u32::MAX` if it has none.
    leaves: Vec<u32>,
    /// The root is at 1, the children of a node at twice its place, the leaves from `width` on.
    nodes: Vec<Offer>,
    width: usize,
    /// Needs that no host meets.
    unmet: RefCell<Vec<Need>>,
}

/// How many needs that no host meets are remembered.
const MOST_UNMET: usize = 16;

/// A node to look at: the smallest key first, then the deepest.
#[derive(PartialEq)]
struct Next(f64, usize);

impl Eq for Next {}

impl Ord for Next {
    fn cmp(&self, other: &Next) -> Ordering {
        other.0.total_cmp(&self.0).then(self.1.cmp(&other.1))
    }
}

impl PartialOrd for Next {
    fn partial_cmp(&self, other: &Next) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Index {
    /// Makes the index of some of this many hosts.
    pub fn new(count: usize, mut offers: Vec<(u32, Offer)>) -> Index {
        // Neighbours in the tree have similar room and similar keys, so that few nodes are looked at.
        let room = |offer: &Offer| (offer.memory_bytes.checked_ilog2(), offer.vcpus.checked_ilog2());
        offers.sort_by(|a, b| {
            room(&a.1).cmp(&room(&b.1)).then(a.1.key.total_cmp(&b.1.key)).then(b.0.cmp(&a.0))
        });
        let width = offers.len().next_power_of_two();
        let mut index = Index {
            hosts: offers.iter().map(|offer| offer.0).collect(),
            leaves: vec![u32::MAX; count],
            nodes: vec![Offer::NONE; 2 * width],
            width,
            unmet: RefCell::default(),
        };
        for (leaf, (host, offer)) in offers.into_iter().enumerate() {
            index.leaves[host as usize] = leaf as u32;
            index.nodes[width + leaf] = offer;
        }
        for node in (1..width).rev() {
            index.nodes[node] = index.nodes[2 * node].or(index.nodes[2 * node + 1]);
        }
        index
    }

    /// Replaces a host's offer, if the host is in the index.
    pub fn update(&mut self, host: usize, offer: Offer) {
        if self.leaves[host] == u32::MAX {
            return;
        }
        self.unmet.borrow_mut().retain(|need| !offer.meets(need));
        let mut node = self.width + self.leaves[host] as usize;
        self.nodes[node] = offer;
        while node > 1 {
            node /= 2;
            self.nodes[node] = self.nodes[2 * node].or(self.nodes[2 * node + 1]);
        }
    }

    /// Returns up to `most` hosts that meet the need and are accepted, those with the smallest keys, in the order of
    /// keys.
    pub fn best(&self, need: &Need, most: usize, accept: impl Fn(usize) -> bool) -> Vec<usize> {
        let mut found = Vec::new();
        if self.unmet.borrow().iter().any(|unmet| need.covers(unmet)) {
            return found;
        }
        let mut is_met = false;
        let mut next = BinaryHeap::from([Next(self.nodes[1].key, 1)]);
        while let Some(Next(_, node)) = next.pop() {
            if !self.nodes[node].meets(need) {
                continue;
            }
            if node < self.width {
                next.extend([2 * node, 2 * node + 1].map(|child| Next(self.nodes[child].key, child)));
                continue;
            }
            is_met = true;
            let host = self.hosts[node - self.width] as usize;
            if accept(host) {
                found.push(host);
                if found.len() == most {
                    break;
                }
            }
        }
        if !is_met {
            let mut unmet = self.unmet.borrow_mut();
            unmet.retain(|other| !other.covers(need));
            unmet.truncate(MOST_UNMET - 1);
            unmet.push(*need);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use haversack_model::random::Random;

    use super::*;

    fn offer(random: &mut Random) -> Offer {
        Offer {
            key: random.below(20) as f64,
            spare_blocks: random.below(50) as i64 - 10,
            memory_bytes: random.below(50),
            vcpus: random.below(8) as u32,
        }
    }

    #[test]
    fn it_finds_what_a_look_at_all_hosts_finds() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let count = random.below(40) as usize;
            let mut offers: Vec<Offer> = (0..count).map(|_| offer(&mut random)).collect();
            let mut index = Index::new(
                count,
                offers.iter().enumerate().map(|(host, offer)| (host as u32, *offer)).collect(),
            );
            for _ in 0..20 {
                if count > 0 {
                    let host = random.below(count as u64) as usize;
                    offers[host] = offer(&mut random);
                    index.update(host, offers[host]);
                }
                let need = Need {
                    spare_blocks: (random.below(2) == 0).then(|| random.below(40) as i64),
                    memory_bytes: random.below(40),
                    vcpus: random.below(8) as u32,
                };
                let accept = |host: usize| host & 3 != 0;
                let mut expected: Vec<f64> = (0..count)
                    .filter(|host| accept(*host) && offers[*host].meets(&need))
                    .map(|host| offers[host].key)
                    .collect();
                expected.sort_by(f64::total_cmp);
                expected.truncate(4);
                let found = index.best(&need, 4, accept);
                assert!(found.iter().all(|host| accept(*host) && offers[*host].meets(&need)), "seed {seed}");
                let keys: Vec<f64> = found.iter().map(|host| offers[*host].key).collect();
                assert_eq!(keys, expected, "seed {seed}");
            }
        }
    }
}
