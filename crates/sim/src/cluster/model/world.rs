//! The hosts of a model and their VMs, window by window.
//!
//! Invariants
//! - Every VM runs on exactly one host, which is not away, and is in that host's list.
//! - Random numbers do not depend on the system, so that all systems see the same VMs and events.

use haversack_cluster::{Disk, Host, HostName, HostState, Move, Plan, Snapshot, Vm, VmName, Why};
use haversack_model::BLOCK_BYTES;
use haversack_model::random::Random;

use super::division::Division;
use super::hosts::ModelHost;
use super::lending::Lending;
use super::measure::{Latencies, Sample};
use super::scenario::{Event, Scenario};
use super::vm::ModelVm;
use crate::cluster::balance::Balance;
use crate::cluster::system::System;
use crate::cluster::variance;
use crate::error::SimError;

/// Memory of a VM. All are alike.
const VM_MEMORY_BYTES: u64 = 8 << 30;
/// The part of a cache that is dirty.
const DIRTY: f64 = 0.1;
/// Hosts at which the hypervisor looks before it takes the one with the fewest VMs.
const LOOKS: usize = 16;
const DAY_US: f64 = 86_400e6;
const HOUR_US: u64 = 3_600_000_000;

/// See the module.
pub struct World<'a> {
    scenario: &'a Scenario,
    system: System,
    /// The VMs' load.
    load_random: Random,
    /// Chooses the hosts that events concern: the same with every rule.
    event_random: Random,
    /// Chooses hosts as a hypervisor does. How often depends on the rule.
    hypervisor_random: Random,
    pub vms: Vec<ModelVm>,
    pub hosts: Vec<ModelHost>,
    snapshot: Snapshot,
    balance: Option<Balance>,
    /// Flash of other hosts, if the system has it.
    lending: Option<Lending>,
    division: Division,
    /// The division of a host's cache as if it included the flash that the host borrows.
    wider: Division,
    latencies: Latencies,
    window: u64,
    /// Groups of hosts that are still to be maintained: how many hosts each has, and how long they are away.
    waves: Vec<(usize, u64)>,
    /// The hosts that are maintained now, and the first that is not yet.
    maintained: std::ops::Range<usize>,
    /// Time in which caches are copied from or to each host in the next window, in microseconds.
    copying_us: Vec<f64>,
    /// Latency that moves add in the next window.
    stall_us: f64,
    /// Moves of VMs that had been moved less than an hour before, other than off draining hosts.
    pub moved_twice: u64,
    /// The longest time that the balancer took for a round.
    pub longest_round: std::time::Duration,
    /// The loads of all hosts in each window.
    pub loads: Vec<Vec<f32>>,
    /// The windows.
    pub samples: Vec<Sample>,
}

pub(super) fn host_name(host: usize) -> HostName {
    HostName(format!("h{host}"))
}

pub(super) fn number_of(name: &str) -> Option<usize> {
    name.get(1..)?.parse().ok()
}

/// Whether a VM cannot move, if the share `part` of all VMs cannot. Consecutive VMs contain about that share.
fn is_pinned(vm: usize, part: f64) -> bool {
    (vm as f64 * 0.618_033_988_749_895).fract() < part
}

impl<'a> World<'a> {
    /// The cluster at the beginning, with warm caches.
    ///
    /// # Errors
    /// A setting of the balancer is invalid.
    pub fn new(scenario: &'a Scenario, system: System, seed: u64) -> Result<World<'a>, SimError> {
        let mut random = Random::scrambled(seed);
        let mean_set = scenario.vms.load * scenario.cache_blocks as f64 / scenario.vms_per_host as f64;
        let (mut vms, mut hosts) = (Vec::new(), Vec::new());
        for host in 0..scenario.hosts {
            let peak = random.unit();
            let first = vms.len() as u32;
            let of_host = (0..scenario.vms_per_host)
                .map(|_| ModelVm::new(host, &scenario.vms, mean_set, peak, &mut random));
            vms.extend(of_host);
            hosts.push(ModelHost::new((first..vms.len() as u32).collect()));
        }
        let settings = scenario.balancing.settings_of(system);
        let mut world = World {
            scenario,
            system,
            load_random: Random::scrambled(seed ^ 0xa5a5),
            event_random: Random::scrambled(seed ^ 0x5a5a),
            hypervisor_random: Random::scrambled(seed ^ 0x3c3c),
            snapshot: Snapshot::default(),
            balance: settings.map(Balance::new).transpose()?,
            lending: (system == System::Lending).then(|| Lending::new(hosts.len())),
            division: Division::default(),
            wider: Division::default(),
            latencies: Latencies::default(),
            window: 0,
            waves: Vec::new(),
            maintained: 0..0,
            copying_us: vec![0.0; hosts.len()],
            stall_us: 0.0,
            moved_twice: 0,
            longest_round: std::time::Duration::ZERO,
            loads: Vec::new(),
            samples: Vec::new(),
            vms,
            hosts,
        };
        world.first_snapshot();
        world.warm_up();
        Ok(world)
    }

    fn first_snapshot(&mut self) {
        let vms = (self.scenario.vms_per_host as f64 * self.scenario.memory) as u64;
        let memory = vms.saturating_mul(VM_MEMORY_BYTES);
        let host = |number: usize| Host {
            name: host_name(number),
            capacity_blocks: self.scenario.cache_blocks,
            memory_bytes: Some(memory),
            link_bytes_per_s: self.scenario.link_bytes_per_s,
            ..Host::default()
        };
        let vm = |(number, vm): (usize, &ModelVm)| Vm {
            name: VmName(format!("v{number}")),
            host: host_name(vm.host),
            memory_bytes: VM_MEMORY_BYTES,
            pinned: is_pinned(number, self.scenario.pinned).then(|| "it has a device of its host".into()),
            disks: vec![Disk {
                name: "disk".into(),
                priority: 1.0,
                origin_latency_us: self.scenario.origin_us,
                cache_latency_us: self.scenario.cache_us,
                ..Disk::default()
            }],
            ..Vm::default()
        };
        self.snapshot.hosts = (0..self.hosts.len()).map(host).collect();
        self.snapshot.vms = self.vms.iter().enumerate().map(vm).collect();
    }

    /// Fills every cache as its VMs would in a long time.
    fn warm_up(&mut self) {
        self.advance_vms();
        for host in 0..self.hosts.len() {
            self.divide(host);
            for (vm, share) in self.hosts[host].here.iter().zip(&self.division.shares) {
                self.vms[*vm as usize].held_blocks = *share;
            }
        }
    }

    fn divide(&mut self, host: usize) {
        let (blocks, here) = (self.scenario.cache_blocks as f64, &self.hosts[host].here);
        match self.system {
            System::Equal => self.division.equal(blocks, here),
            _ => self.division.least_latency(blocks, &self.vms, here),
        }
    }

    fn advance_vms(&mut self) {
        let scenario = self.scenario;
        let window_us = scenario.window.as_micros() as f64;
        let phase_us = scenario.vms.phase.as_micros() as f64;
        let ends = if phase_us > 0.0 { (window_us / phase_us).min(1.0) } else { 0.0 };
        let day = self.window as f64 * window_us / DAY_US;
        for vm in &mut self.vms {
            let phase_ends = ends > 0.0 && self.load_random.unit() < ends;
            vm.advance(&scenario.vms, day, phase_ends, &mut self.load_random);
        }
    }

    /// Plays a window.
    ///
    /// # Errors
    /// The balancer refuses the snapshot.
    pub fn play(&mut self) -> Result<(), SimError> {
        self.happen();
        self.advance_vms();
        let mut sample = self.run();
        let moves = self.move_vms()?;
        (sample.moves, sample.moved_bytes, sample.drained) = moves;
        self.measure_loads(&mut sample);
        self.samples.push(sample);
        self.window += 1;
        Ok(())
    }

    /// Lets all VMs make their accesses.
    fn run(&mut self) -> Sample {
        let seconds = self.scenario.window.as_micros() as f64 / 1e6;
        let slowdown =
            self.scenario.balancing.settings(haversack_cluster::Rule::LeastLatency).neighbour_slowdown;
        self.latencies.clear();
        self.take_loans_back();
        for host in 0..self.hosts.len() {
            if self.hosts[host].here.is_empty() {
                continue;
            }
            self.divide(host);
            let copying = (self.copying_us[host] / 1e6 / seconds).min(1.0);
            self.run_host(host, seconds, 1.0 + copying * slowdown);
        }
        self.copying_us.fill(0.0);
        let stall_us = std::mem::take(&mut self.stall_us);
        let time_hours = (self.window + 1) as f64 * seconds / 3600.0;
        let (lent, borrowers) = self.lending.as_ref().map_or((0.0, 0), Lending::totals);
        let lent_bytes = (lent * BLOCK_BYTES as f64) as u64;
        Sample { lent_bytes, borrowers, ..self.latencies.sample(time_hours, stall_us) }
    }

    /// Lets the VMs of a host make their accesses, as its cache is divided, and through the flash that it borrows.
    fn run_host(&mut self, host: usize, seconds: f64, factor: f64) {
        let (hit_us, miss_us) = (self.scenario.cache_us, self.scenario.origin_us);
        let (cache, here) = (self.scenario.cache_blocks as f64, &self.hosts[host].here);
        let borrowed = self.lending.as_ref().map_or(0.0, |lending| lending.borrowed(host));
        if borrowed > 0.0 {
            self.wider.least_latency(cache + borrowed, &self.vms, here);
        }
        let (mut missed, mut demand) = (0.0, 0.0);
        for (place, number) in here.iter().enumerate() {
            let (vm, share) = (&mut self.vms[*number as usize], self.division.shares[place]);
            let with_lenders = if borrowed > 0.0 { vm.hit_ratio(self.wider.shares[place]) } else { 0.0 };
            let lent = (with_lenders - vm.hit_ratio(share)).max(0.0);
            let hits = vm.run(share, seconds);
            let mean_us =
                (hits * hit_us + lent * self.scenario.lender_us + (1.0 - hits - lent) * miss_us) * factor;
            self.latencies.add(vm.rate * seconds, hits, mean_us);
            self.latencies.add_lent(vm.rate * seconds * lent);
            missed += (1.0 - hits - lent) * vm.rate * seconds;
            demand += vm.working_set;
        }
        if let Some(lending) = &mut self.lending {
            lending.fill(host, (demand - cache - borrowed).max(0.0), missed);
        }
    }

    /// Lets hosts take back what they have lent and need themselves.
    fn take_loans_back(&mut self) {
        let Some(lending) = &mut self.lending else { return };
        let (cache, part) = (self.scenario.cache_blocks as f64, self.scenario.lend);
        let room = |host: &ModelHost| {
            let needed: f64 = host.here.iter().map(|vm| self.vms[*vm as usize].working_set).sum();
            let serves = host.state == HostState::Serving;
            if serves { Lending::room(cache, needed, part) } else { 0.0 }
        };
        lending.take_back(self.hosts.iter().map(room).collect());
    }

    /// Lets hosts that stay overloaded borrow, as the plan of the moves leaves them.
    fn borrow(&mut self, balance: &Balance, plan: &Plan) -> Result<(), SimError> {
        let Some(lending) = &mut self.lending else { return Ok(()) };
        let serves = |host: usize| self.hosts[host].state == HostState::Serving;
        let may_borrow = |host: usize, borrows| balance.may_borrow(&host_name(host), borrows);
        let offers = lending.offers(serves, may_borrow);
        lending.choose(&balance.loans(&self.snapshot, plan, &offers)?);
        Ok(())
    }

    fn measure_loads(&mut self, sample: &mut Sample) {
        let cache = self.scenario.cache_blocks as f64;
        let load = |host: &ModelHost| {
            host.here.iter().map(|vm| self.vms[*vm as usize].working_set).sum::<f64>() / cache
        };
        let loads: Vec<f64> = self.hosts.iter().map(load).collect();
        let threshold = self.scenario.balancing.settings(haversack_cluster::Rule::LeastLatency).threshold;
        let serving = || {
            let all = self.hosts.iter().zip(&loads);
            all.filter(|(host, _)| host.state == HostState::Serving).map(|(_, load)| *load)
        };
        sample.variance = variance(&serving().collect::<Vec<f64>>());
        sample.overloaded = serving().filter(|load| *load > threshold).count();
        sample.away = self.hosts.iter().filter(|host| host.state == HostState::Away).count();
        self.loads.push(loads.into_iter().map(|load| load as f32).collect());
    }

    fn refresh_snapshot(&mut self) {
        for (host, known) in self.hosts.iter().zip(&mut self.snapshot.hosts) {
            known.state = host.state;
        }
        for (vm, known) in self.vms.iter().zip(&mut self.snapshot.vms) {
            if number_of(&known.host.0) != Some(vm.host) {
                known.host = host_name(vm.host);
            }
            let disk = &mut known.disks[0];
            disk.demand_blocks = vm.working_set as u64;
            disk.cached_blocks = vm.held_blocks as u64;
            disk.dirty_blocks = (vm.held_blocks * DIRTY) as u64;
            disk.reused_blocks = disk.cached_blocks;
            disk.accesses_per_s = vm.rate;
            disk.curve = vm.curve();
        }
    }

    /// Moves what the balancer proposes. Returns the moves, their bytes, and the moves off draining hosts among them.
    fn move_vms(&mut self) -> Result<(u64, u64, u64), SimError> {
        if self.balance.is_none() {
            return Ok(self.evacuate());
        }
        self.refresh_snapshot();
        let Some(mut balance) = self.balance.take() else { return Ok((0, 0, 0)) };
        let now_us = (self.window + 1) * self.scenario.window.as_micros();
        let begun = crate::sweep::thread_time();
        let plan = balance.round(now_us, &self.snapshot)?;
        self.longest_round = self.longest_round.max(crate::sweep::thread_time().saturating_sub(begun));
        self.borrow(&balance, &plan)?;
        let (mut moves, mut bytes, mut drained) = (0, 0, 0);
        for moved in &plan.moves {
            let (Some(vm), Some(to)) = (number_of(&moved.vm.0), number_of(&moved.to.0)) else { continue };
            self.carry_out(vm, to, moved);
            balance.begun(now_us, moved);
            moves += 1;
            bytes += moved.copied_bytes;
            drained += u64::from(moved.why == Why::Draining);
        }
        self.balance = Some(balance);
        Ok((moves, bytes, drained))
    }

    fn carry_out(&mut self, number: usize, to: usize, moved: &Move) {
        let from = self.vms[number].host;
        let hour = HOUR_US.div_ceil(self.scenario.window.as_micros());
        let vm = &mut self.vms[number];
        let is_soon = vm.moved_in.is_some_and(|before| self.window - before < hour);
        self.moved_twice += u64::from(is_soon && moved.why != Why::Draining);
        vm.moved_in = Some(self.window);
        // Requests that arrive while the VM stands still wait for half of that time in the mean.
        let stall_s = moved.stall_us as f64 / 1e6;
        self.stall_us += vm.rate * stall_s * moved.stall_us as f64 / 2.0;
        self.copying_us[from] += moved.copy_us as f64;
        self.copying_us[to] += moved.copy_us as f64;
        self.place(number, to);
    }

    /// Moves a VM with its cache. What lenders have of it is not used any more.
    fn place(&mut self, number: usize, to: usize) {
        let from = self.vms[number].host;
        if let Some(lending) = &mut self.lending {
            let demand: f64 = self.hosts[from].here.iter().map(|vm| self.vms[*vm as usize].working_set).sum();
            lending.lost(from, self.vms[number].working_set / demand.max(1.0));
        }
        self.hosts[from].here.retain(|vm| *vm as usize != number);
        self.hosts[to].here.push(number as u32);
        self.vms[number].host = to;
    }

    /// Without a balancer, the hypervisor empties draining hosts: VMs go where there is memory, without their caches.
    fn evacuate(&mut self) -> (u64, u64, u64) {
        let mut moves = 0;
        for host in 0..self.hosts.len() {
            if self.hosts[host].state == HostState::Draining {
                moves += self.empty(host);
            }
        }
        (moves, 0, moves)
    }

    /// Starts all VMs of a host elsewhere, with nothing cached, if any other host serves. Returns how many were moved.
    fn empty(&mut self, host: usize) -> u64 {
        let mut moves = 0;
        for number in self.hosts[host].here.clone() {
            let Some(to) = self.somewhere(host) else { break };
            self.place(number as usize, to);
            self.vms[number as usize].held_blocks = 0.0;
            moves += 1;
        }
        moves
    }

    /// A serving host with memory, as a hypervisor chooses that knows nothing of caches; without one, the serving host
    /// with the fewest VMs; `None` if no other host serves.
    fn somewhere(&mut self, except: usize) -> Option<usize> {
        let most = (self.scenario.vms_per_host as f64 * self.scenario.memory) as usize;
        for _ in 0..LOOKS {
            let host = self.hypervisor_random.below(self.hosts.len() as u64) as usize;
            let at = &self.hosts[host];
            if host != except && at.state == HostState::Serving && at.here.len() < most {
                return Some(host);
            }
        }
        let serving = (0..self.hosts.len())
            .filter(|host| *host != except && self.hosts[*host].state == HostState::Serving);
        serving.min_by_key(|host| self.hosts[*host].here.len())
    }
}

impl World<'_> {
    /// What happens to hosts and VMs at the beginning of a window.
    fn happen(&mut self) {
        let window = self.window;
        for host in &mut self.hosts {
            host.returns(window);
        }
        let scenario = self.scenario;
        for event in scenario.events.iter().filter(|event| scenario.window_of(event.at()) == window) {
            let count = |part: f64| ((self.hosts.len() as f64 * part).round() as usize).max(1);
            match event {
                Event::Step { hosts, factor, .. } => {
                    let count = count(*hosts);
                    // VMs are selected by their first hosts, so that the same VMs change with every rule.
                    let each = scenario.vms_per_host;
                    for host in self.choose(count) {
                        self.vms[host * each..(host + 1) * each].iter_mut().for_each(|vm| vm.step(*factor));
                    }
                }
                Event::Failure { hosts, lasts, .. } => {
                    let (count, until) = (count(*hosts), window + scenario.window_of(*lasts).max(1));
                    let failed = self.choose(count);
                    failed.iter().for_each(|host| self.hosts[*host].leaves(until));
                    failed.iter().for_each(|host| {
                        self.empty(*host);
                    });
                }
                Event::Maintenance { hosts, lasts, waves, .. } => {
                    let (count, lasts) = (count(*hosts), scenario.window_of(*lasts).max(1));
                    self.waves.extend((0..*waves).map(|_| (count, lasts)));
                }
            }
        }
        self.maintain();
    }

    /// Makes draining hosts that are empty go away, and begins with the next group when all hosts of this one are back.
    fn maintain(&mut self) {
        let Some((count, lasts)) = self.waves.first().copied() else { return };
        let current = self.maintained.clone();
        for host in current.clone() {
            if self.hosts[host].state == HostState::Draining && self.hosts[host].here.is_empty() {
                self.hosts[host].leaves(self.window + lasts);
            }
        }
        let is_done = |host: usize| self.hosts[host].state == HostState::Serving;
        if !current.clone().all(is_done) {
            return;
        }
        if !current.is_empty() {
            self.waves.remove(0);
            if self.waves.is_empty() {
                self.maintained = 0..0;
                return;
            }
        }
        let first = if current.end + count > self.hosts.len() { 0 } else { current.end };
        self.maintained = first..(first + count).min(self.hosts.len());
        for host in self.maintained.clone() {
            if self.hosts[host].state == HostState::Serving {
                self.hosts[host].state = HostState::Draining;
            }
        }
    }

    /// Different serving hosts, at random.
    fn choose(&mut self, count: usize) -> Vec<usize> {
        let mut serving: Vec<usize> =
            (0..self.hosts.len()).filter(|host| self.hosts[*host].state == HostState::Serving).collect();
        let count = count.min(serving.len().saturating_sub(1));
        for place in 0..count {
            let other = place + self.event_random.below((serving.len() - place) as u64) as usize;
            serving.swap(place, other);
        }
        serving.truncate(count);
        serving.sort_unstable();
        serving
    }

    /// VMs that are not on exactly one host that is not away.
    pub fn lost(&self) -> usize {
        let mut found = vec![0u32; self.vms.len()];
        for (number, host) in self.hosts.iter().enumerate() {
            for vm in &host.here {
                let is_right = self.vms[*vm as usize].host == number && host.state != HostState::Away;
                found[*vm as usize] += if is_right { 1 } else { 2 };
            }
        }
        found.iter().filter(|count| **count != 1).count()
    }
}
