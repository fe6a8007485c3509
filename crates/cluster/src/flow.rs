//! Weighted max-min shares of tenants in a network: from tenants, over what each demands on a host, to the hosts'
//! caches.
//!
//! The totals of tenants that are possible form a polymatroid. All tenants together first get as much as a maximum flow
//! carries, divided by weight as if hosts did not matter. If a flow carries that, it is the answer. Otherwise a minimum
//! cut shows a set of tenants that demand more than their hosts have, however the hosts are divided. These tenants
//! divide their hosts among themselves, the other tenants divide the other hosts, and both parts are divided in the
//! same way. Each part is smaller, and no space moves between parts any more, so this ends after at most as many flows
//! as there are tenants.
//!
//! Sources: Fujishige, "Lexicographically optimal base of a polymatroid with respect to a weight vector", 1980, for the
//! decomposition; Megiddo, "Optimal flows in networks with multiple sources and sinks", 1974; Dinic, 1970, for flows.

use std::collections::VecDeque;

use haversack_policy::allocate::{Share, share};

/// What a tenant demands and gets on a host, in blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Edge {
    pub tenant: usize,
    pub host: usize,
    pub demand: u64,
    pub got: u64,
}

/// A tenant's bounds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Bounds {
    pub weight: f64,
    /// What it gets at least. All of these must be possible together.
    pub least: u64,
    /// What it gets at most; not more than it demands.
    pub most: u64,
}

/// See the module documentation.
pub(crate) struct Network {
    pub edges: Vec<Edge>,
    of_tenant: Vec<Vec<u32>>,
    of_host: Vec<Vec<u32>>,
    /// The blocks of each host that no tenant has.
    free: Vec<u64>,
    /// What each tenant has, and should have, of hosts in its part.
    has: Vec<u64>,
    target: Vec<u64>,
    /// What each tenant has of hosts outside its part.
    outside: Vec<u64>,
    /// The parts of tenants and hosts. Only edges within a part are in use; the others are settled.
    tenant_part: Vec<u32>,
    host_part: Vec<u32>,
    layers: Layers,
}

/// Distances in the residual network from the tenants that lack something, and the edges not yet tried.
#[derive(Default)]
struct Layers {
    tenants: Vec<u32>,
    hosts: Vec<u32>,
    next_of_tenant: Vec<u32>,
    next_of_host: Vec<u32>,
}

const FAR: u32 = u32::MAX;

/// Tenants that are divided on their own.
struct Part {
    number: u32,
    tenants: Vec<usize>,
    hosts: Vec<usize>,
    /// What they get of their hosts together.
    blocks: u64,
}

impl Network {
    /// Makes a network in which no tenant has anything.
    pub fn new(tenants: usize, capacities: Vec<u64>, edges: Vec<Edge>) -> Network {
        let hosts = capacities.len();
        let (mut of_tenant, mut of_host) = (vec![Vec::new(); tenants], vec![Vec::new(); hosts]);
        for (number, edge) in edges.iter().enumerate() {
            of_tenant[edge.tenant].push(number as u32);
            of_host[edge.host].push(number as u32);
        }
        Network {
            edges,
            of_tenant,
            of_host,
            free: capacities,
            has: vec![0; tenants],
            target: vec![0; tenants],
            outside: vec![0; tenants],
            tenant_part: vec![0; tenants],
            host_part: vec![0; hosts],
            layers: Layers::default(),
        }
    }

    /// Divides all hosts, and returns what each tenant has then.
    pub fn divide(&mut self, bounds: &[Bounds]) -> Vec<u64> {
        let (tenants, hosts) = (self.has.len(), self.free.len());
        self.tenant_part = vec![0; tenants];
        self.host_part = vec![0; hosts];
        self.outside = vec![0; tenants];
        let mut part =
            Part { number: 0, tenants: (0..tenants).collect(), hosts: (0..hosts).collect(), blocks: 0 };
        self.clear(&part);
        self.target = bounds.iter().map(|bound| bound.most).collect();
        self.fill(&part);
        part.blocks = self.has.iter().sum();
        let mut parts = vec![part];
        let mut next = 1;
        while let Some(part) = parts.pop() {
            self.clear(&part);
            self.set_targets(&part, bounds);
            self.fill(&part);
            if part.tenants.iter().any(|at| self.has[*at] < self.target[*at]) {
                parts.extend(self.split(&part, &mut next).into_iter().flatten());
            }
        }
        self.has.iter().zip(&self.outside).map(|(has, outside)| has + outside).collect()
    }

    fn is_inside(&self, edge: u32) -> bool {
        let edge = &self.edges[edge as usize];
        self.tenant_part[edge.tenant] == self.host_part[edge.host]
    }

    /// Takes back what the tenants of a part have of its hosts.
    fn clear(&mut self, part: &Part) {
        for &tenant in &part.tenants {
            for at in 0..self.of_tenant[tenant].len() {
                let edge = self.of_tenant[tenant][at];
                if self.is_inside(edge) {
                    let edge = &mut self.edges[edge as usize];
                    self.free[edge.host] += std::mem::take(&mut edge.got);
                }
            }
            self.has[tenant] = 0;
        }
    }

    /// Divides what a part gets by weight, as if all of its hosts were one.
    fn set_targets(&mut self, part: &Part, bounds: &[Bounds]) {
        let all: Vec<Share> = part
            .tenants
            .iter()
            .map(|at| {
                let Bounds { weight, least, most } = bounds[*at];
                let least = least.max(self.outside[*at]);
                Share { weight, least, most: most.max(least) }
            })
            .collect();
        let outside: u64 = part.tenants.iter().map(|at| self.outside[*at]).sum();
        for (at, blocks) in part.tenants.iter().zip(share(part.blocks + outside, 1, &all)) {
            self.target[*at] = blocks - self.outside[*at];
        }
    }

    /// Makes a maximum flow with at most its target for each tenant.
    fn fill(&mut self, part: &Part) {
        self.spread(part);
        while self.measure(part) {
            for at in 0..part.tenants.len() {
                let tenant = part.tenants[at];
                while self.has[tenant] < self.target[tenant] && self.augment(tenant) {}
            }
        }
    }

    /// Makes a flow to begin with, in which each tenant has the same part of its demand on all hosts as far as
    /// possible.
    fn spread(&mut self, part: &Part) {
        for &tenant in &part.tenants {
            let inside = |edge: &&u32| self.is_inside(**edge);
            let edges: Vec<u32> = self.of_tenant[tenant].iter().filter(inside).copied().collect();
            let demand: u128 = edges.iter().map(|edge| u128::from(self.edges[*edge as usize].demand)).sum();
            for edge in edges {
                let edge = &mut self.edges[edge as usize];
                let wanted = u128::from(edge.demand) * u128::from(self.target[tenant]) / demand.max(1);
                edge.got = edge.demand.min(wanted as u64);
            }
        }
        for &host in &part.hosts {
            let inside = |edge: &&u32| self.is_inside(**edge);
            let edges: Vec<u32> = self.of_host[host].iter().filter(inside).copied().collect();
            let wanted: u128 = edges.iter().map(|edge| u128::from(self.edges[*edge as usize].got)).sum();
            let room = u128::from(self.free[host]);
            for edge in edges {
                let edge = &mut self.edges[edge as usize];
                if wanted > room {
                    edge.got = (u128::from(edge.got) * room / wanted) as u64;
                }
                self.free[host] -= edge.got;
                self.has[edge.tenant] += edge.got;
            }
        }
    }

    /// Measures distances. Returns whether a host with free space is reached.
    fn measure(&mut self, part: &Part) -> bool {
        self.layers = Layers {
            tenants: vec![FAR; self.has.len()],
            hosts: vec![FAR; self.free.len()],
            next_of_tenant: vec![0; self.has.len()],
            next_of_host: vec![0; self.free.len()],
        };
        let lacks = |at: &&usize| self.has[**at] < self.target[**at];
        let mut queue: VecDeque<usize> = part.tenants.iter().filter(lacks).copied().collect();
        queue.iter().for_each(|at| self.layers.tenants[*at] = 0);
        let mut nearest = FAR;
        while let Some(tenant) = queue.pop_front() {
            let distance = self.layers.tenants[tenant] + 1;
            if distance > nearest {
                break;
            }
            for &edge in &self.of_tenant[tenant] {
                let Edge { host, demand, got, .. } = self.edges[edge as usize];
                if got == demand || self.layers.hosts[host] != FAR || !self.is_inside(edge) {
                    continue;
                }
                self.layers.hosts[host] = distance;
                if self.free[host] > 0 {
                    nearest = distance;
                    continue;
                }
                for &edge in &self.of_host[host] {
                    let Edge { tenant, got, .. } = self.edges[edge as usize];
                    if got > 0 && self.layers.tenants[tenant] == FAR && self.is_inside(edge) {
                        self.layers.tenants[tenant] = distance + 1;
                        queue.push_back(tenant);
                    }
                }
            }
        }
        nearest != FAR
    }

    /// Raises a tenant along a shortest path. Returns whether there is one left.
    fn augment(&mut self, tenant: usize) -> bool {
        // Alternates between edges whose flow increases and edges whose flow decreases.
        let mut path: Vec<u32> = Vec::new();
        loop {
            let at = path.last().map_or(tenant, |edge| self.edges[*edge as usize].tenant);
            if path.len().is_multiple_of(2) {
                match self.next_of_tenant(at) {
                    Some(edge) => path.push(edge),
                    None => match path.pop() {
                        // The host's edge to this tenant leads nowhere.
                        Some(edge) => self.layers.next_of_host[self.edges[edge as usize].host] += 1,
                        None => return false,
                    },
                }
                continue;
            }
            let edge = path[path.len() - 1];
            let host = self.edges[edge as usize].host;
            if self.free[host] > 0 {
                self.push(tenant, &path, host);
                return true;
            }
            match self.next_of_host(host) {
                Some(edge) => path.push(edge),
                None => {
                    path.pop();
                    self.layers.next_of_tenant[at] += 1;
                }
            }
        }
    }

    fn next_of_tenant(&mut self, tenant: usize) -> Option<u32> {
        let edges = &self.of_tenant[tenant];
        let next = &mut self.layers.next_of_tenant[tenant];
        while let Some(&edge) = edges.get(*next as usize) {
            let Edge { host, demand, got, .. } = self.edges[edge as usize];
            let is_next = self.layers.hosts[host] == self.layers.tenants[tenant] + 1;
            if is_next && got < demand && self.tenant_part[tenant] == self.host_part[host] {
                return Some(edge);
            }
            *next += 1;
        }
        None
    }

    fn next_of_host(&mut self, host: usize) -> Option<u32> {
        let edges = &self.of_host[host];
        let next = &mut self.layers.next_of_host[host];
        while let Some(&edge) = edges.get(*next as usize) {
            let Edge { tenant, got, .. } = self.edges[edge as usize];
            let is_next = self.layers.tenants[tenant] == self.layers.hosts[host] + 1;
            if is_next && got > 0 && self.tenant_part[tenant] == self.host_part[host] {
                return Some(edge);
            }
            *next += 1;
        }
        None
    }

    fn push(&mut self, tenant: usize, path: &[u32], host: usize) {
        let mut blocks = self.free[host].min(self.target[tenant] - self.has[tenant]);
        for (place, edge) in path.iter().enumerate() {
            let Edge { demand, got, .. } = self.edges[*edge as usize];
            blocks = blocks.min(if place.is_multiple_of(2) { demand - got } else { got });
        }
        for (place, edge) in path.iter().enumerate() {
            let got = &mut self.edges[*edge as usize].got;
            *got = if place.is_multiple_of(2) { *got + blocks } else { *got - blocks };
        }
        self.free[host] -= blocks;
        self.has[tenant] += blocks;
    }

    /// Splits a part by the minimum cut that the last measurement has found.
    fn split(&mut self, part: &Part, next: &mut u32) -> Option<[Part; 2]> {
        let is_reached = |of: &[u32], at: &usize| of[*at] != FAR;
        let (poor, rest): (Vec<usize>, Vec<usize>) =
            part.tenants.iter().partition(|at| is_reached(&self.layers.tenants, at));
        let (full, others): (Vec<usize>, Vec<usize>) =
            part.hosts.iter().partition(|at| is_reached(&self.layers.hosts, at));
        if rest.is_empty() {
            return None;
        }
        let number = *next;
        *next += 1;
        poor.iter().for_each(|at| self.tenant_part[*at] = number);
        full.iter().for_each(|at| self.host_part[*at] = number);
        let all: u64 = poor.iter().map(|at| self.has[*at]).sum();
        for &tenant in &poor {
            // On hosts of the other part they have all that they demand there.
            let mut inside = 0;
            for &edge in &self.of_tenant[tenant] {
                if self.is_inside(edge) {
                    inside += self.edges[edge as usize].got;
                }
            }
            self.outside[tenant] += self.has[tenant] - inside;
            self.has[tenant] = inside;
        }
        let blocks = poor.iter().map(|at| self.has[*at]).sum();
        let left = part.blocks - all;
        Some([
            Part { number, tenants: poor, hosts: full, blocks },
            Part { number: part.number, tenants: rest, hosts: others, blocks: left },
        ])
    }
}
