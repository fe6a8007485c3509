//! One round: VMs leave draining hosts, then overloaded ones.

use std::collections::{HashMap, HashSet, VecDeque};

use haversack_model::{BLOCK_BYTES, Micros};

use crate::cost::Cost;
use crate::index::{Need, Offer};
use crate::latency::Latency;
use crate::plan::{Held, Hindrance, Move, Plan, Why};
use crate::queue::Queue;
use crate::settings::{Rule, Settings};
use crate::snapshot::{HostName, HostState};
use crate::variance::Variance;
use crate::view::View;

/// What the balancer remembers of a host.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Memory {
    /// Consecutive windows with too much demand.
    pub windows: u32,
    /// The highest load of the last windows.
    pub peak_load: f64,
}

/// What the balancer remembers of a VM's moves.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Moved {
    /// Whether it was moved too recently to be moved again.
    pub is_recent: bool,
    /// Hosts that it left a short time ago.
    pub left: Vec<usize>,
}

/// The state of a round.
pub(crate) struct Round<'a> {
    pub settings: &'a Settings,
    pub view: View<'a>,
    /// By host.
    pub memory: Vec<Memory>,
    /// VMs that were moved lately.
    pub moved: HashMap<usize, Moved>,
    /// How many more moves are allowed in this hour.
    pub moves_left: u32,
    /// How many more moves each host may take part in.
    pub host_moves_left: Vec<u32>,
    /// The least memory and processors of a VM that may be moved.
    pub smallest: (u64, u32),
    /// Whether draining hosts have been handled; moves off them are not limited.
    pub is_balancing: bool,
    pub plan: Plan,
}

/// A move that a rule has found.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Choice {
    pub vm: usize,
    pub to: usize,
    /// The higher the better; its unit depends on the rule.
    pub score: f64,
}

/// Chooses moves.
pub(crate) trait Chooser {
    /// Returns the best move off an overloaded host, or `None` if none helps.
    fn relieve(&mut self, round: &Round, from: usize) -> Option<Choice>;

    /// Returns where a VM of a draining host is best placed, or `None` if there is no room for it.
    fn place(&mut self, round: &Round, vm: usize) -> Option<Choice>;

    /// Records that a VM was moved.
    fn moved(&mut self, round: &Round, from: usize, to: usize);

    /// Whether hosts take turns, the most loaded first; otherwise the best move of all hosts is next.
    fn takes_turns(&self) -> bool;
}

impl<'a> Round<'a> {
    pub fn run(mut self) -> Plan {
        self.plan.variance_before = self.variance();
        self.drain();
        self.is_balancing = true;
        let mut chooser = self.chooser();
        self.relieve(chooser.as_mut());
        self.plan.variance_after = self.variance();
        self.plan
    }

    fn chooser(&self) -> Box<dyn Chooser> {
        match self.settings.rule {
            Rule::LeastVariance => Box::new(Variance::new(self)),
            Rule::LeastLatency => Box::new(Latency::new(self)),
        }
    }

    /// Returns whether the host has had too much demand for long enough, and still has.
    pub fn is_overloaded(&self, host: usize) -> bool {
        let of = &self.view.hosts[host];
        of.is_serving()
            && self.memory[host].windows >= self.settings.windows
            && of.load() > self.settings.threshold
    }

    /// Returns the VMs of a host that may be moved to balance.
    pub fn movable(&self, host: usize) -> impl Iterator<Item = usize> {
        let vms = self.view.hosts[host].vms.iter().map(|vm| *vm as usize);
        vms.filter(|vm| {
            let of = self.view.vms[*vm].vm;
            of.pinned.is_none()
                && of.moving_to.is_none()
                && self.moved.get(vm).is_none_or(|moved| !moved.is_recent)
        })
    }

    /// Returns whether a VM may be moved to a host to balance, apart from the host's load.
    pub fn may_go(&self, vm: usize, to: usize) -> bool {
        self.host_moves_left[to] > 0
            && self.view.fits(vm, to)
            && self.moved.get(&vm).is_none_or(|moved| !moved.left.contains(&to))
    }

    /// Returns what a host offers to further VMs: `usable` of its blocks at most.
    pub fn offer(&self, host: usize, usable_blocks: f64, key: f64) -> Offer {
        let of = &self.view.hosts[host];
        let is_full = of.free_memory_bytes < self.smallest.0 || of.free_vcpus < self.smallest.1;
        if !of.is_serving() || is_full || (self.is_balancing && self.host_moves_left[host] == 0) {
            return Offer::NONE;
        }
        Offer {
            key,
            spare_blocks: usable_blocks as i64 - i64::try_from(of.demand_blocks).unwrap_or(i64::MAX),
            memory_bytes: of.free_memory_bytes,
            vcpus: of.free_vcpus,
        }
    }

    /// Returns what a VM needs; `is_spare` says whether its demand must be spare.
    pub fn need(&self, vm: usize, is_spare: bool) -> Need {
        let of = &self.view.vms[vm];
        let demand = i64::try_from(of.demand_blocks).unwrap_or(i64::MAX);
        Need {
            spare_blocks: is_spare.then_some(demand),
            memory_bytes: of.vm.memory_bytes,
            vcpus: of.vm.vcpus,
        }
    }

    fn drain(&mut self) {
        let is_leaving =
            |vm: &usize| self.view.hosts[self.view.vms[*vm].at].host.state == HostState::Draining;
        let mut leaving: Vec<usize> = (0..self.view.vms.len()).filter(is_leaving).collect();
        // The largest first, while there is room for them.
        leaving.sort_by_key(|vm| {
            let of = &self.view.vms[*vm];
            std::cmp::Reverse((of.vm.memory_bytes, of.demand_blocks))
        });
        if leaving.is_empty() {
            return;
        }
        let mut chooser = self.chooser();
        for vm in leaving {
            let of = self.view.vms[vm].vm;
            let hindrance = match (&of.moving_to, &of.pinned) {
                (Some(to), _) => Some(Hindrance::Moving(to.clone())),
                (None, Some(reason)) => Some(Hindrance::Pinned(reason.clone())),
                (None, None) => match chooser.place(self, vm) {
                    Some(choice) => {
                        self.make(chooser.as_mut(), choice, Why::Draining);
                        None
                    }
                    None => Some(Hindrance::NoRoom),
                },
            };
            if let Some(hindrance) = hindrance {
                let host = self.view.hosts[self.view.vms[vm].at].host.name.clone();
                self.plan.held.push(Held { host, vm: Some(of.name.clone()), hindrance });
            }
        }
    }

    fn relieve(&mut self, chooser: &mut dyn Chooser) {
        let mut sources: Vec<usize> =
            (0..self.view.hosts.len()).filter(|host| self.is_overloaded(*host)).collect();
        sources.sort_by(|a, b| self.view.hosts[*b].load().total_cmp(&self.view.hosts[*a].load()));
        let moves_before = self.plan.moves.len();
        if chooser.takes_turns() {
            self.in_turns(chooser, &sources);
        } else {
            self.best_first(chooser, &sources);
        }
        let relieved: HashSet<&HostName> =
            self.plan.moves[moves_before..].iter().map(|moved| &moved.from).collect();
        let mut held = Vec::new();
        for host in sources.into_iter().filter(|host| self.is_overloaded(*host)) {
            let name = &self.view.hosts[host].host.name;
            if !relieved.contains(name) {
                held.push(Held { host: name.clone(), vm: None, hindrance: self.hindrance(host) });
            }
        }
        self.plan.held.append(&mut held);
    }

    fn in_turns(&mut self, chooser: &mut dyn Chooser, sources: &[usize]) {
        let mut turns: VecDeque<usize> = sources.iter().copied().collect();
        while self.moves_left > 0
            && let Some(from) = turns.pop_front()
        {
            if let Some(choice) = self.best_from(chooser, from) {
                self.relieve_by(chooser, from, choice);
                turns.push_back(from);
            }
        }
    }

    fn best_first(&mut self, chooser: &mut dyn Chooser, sources: &[usize]) {
        if self.moves_left == 0 {
            return;
        }
        let mut queue = Queue::new(self.view.hosts.len());
        for &from in sources {
            queue.ask(from, self.best_from(chooser, from));
        }
        while self.moves_left > 0
            && let Some((from, choice)) = queue.next()
        {
            if let Some(choice) = choice {
                self.relieve_by(chooser, from, choice);
                queue.made(from, choice.to);
            }
            queue.ask(from, self.best_from(chooser, from));
        }
    }

    fn relieve_by(&mut self, chooser: &mut dyn Chooser, from: usize, choice: Choice) {
        self.moves_left -= 1;
        self.host_moves_left[from] -= 1;
        self.host_moves_left[choice.to] -= 1;
        self.make(chooser, choice, Why::Overload { windows: self.memory[from].windows });
    }

    fn hindrance(&self, host: usize) -> Hindrance {
        if self.moves_left == 0 {
            Hindrance::EnoughThisHour
        } else if self.host_moves_left[host] == 0 {
            Hindrance::EnoughForNow
        } else {
            Hindrance::NothingGained
        }
    }

    fn best_from(&self, chooser: &mut dyn Chooser, from: usize) -> Option<Choice> {
        let may_move = self.is_overloaded(from) && self.host_moves_left[from] > 0;
        if may_move { chooser.relieve(self, from) } else { None }
    }

    /// Adds a move to the plan and applies it to the view.
    fn make(&mut self, chooser: &mut dyn Chooser, choice: Choice, why: Why) {
        let Choice { vm, to, .. } = choice;
        let from = self.view.vms[vm].at;
        let (load, gain_us_per_s) = (|host: usize| self.view.hosts[host].load(), self.gain(vm, to));
        let (from_load, to_load) = (load(from), load(to));
        let cost = Cost::of(self, vm, to);
        self.view.apply(vm, to);
        chooser.moved(self, from, to);
        let load = |host: usize| self.view.hosts[host].load();
        let name = |host: usize| self.view.hosts[host].host.name.clone();
        self.plan.moves.push(Move {
            vm: self.view.vms[vm].vm.name.clone(),
            from: name(from),
            to: name(to),
            why,
            from_load: (from_load, load(from)),
            to_load: (to_load, load(to)),
            gain_us_per_s,
            cost_us: cost.total_us(),
            copied_bytes: self.view.vms[vm].vm.copied_blocks().saturating_mul(BLOCK_BYTES as u64),
            copy_us: to_us(cost.copy_s),
            stall_us: self.settings.stall_us,
            warm_up_us: to_us(cost.warm_up_s),
        });
    }

    /// Returns the variance of load over serving hosts with a cache.
    fn variance(&self) -> f64 {
        let hosts = self.view.hosts.iter().filter(|host| host.is_serving() && host.host.capacity_blocks > 0);
        let loads: Vec<f64> = hosts.map(crate::view::HostView::load).collect();
        let count = loads.len().max(1) as f64;
        let mean = loads.iter().sum::<f64>() / count;
        loads.iter().map(|load| (load - mean).powi(2)).sum::<f64>() / count
    }
}

fn to_us(seconds: f64) -> Micros {
    (seconds * 1e6).round() as Micros
}
