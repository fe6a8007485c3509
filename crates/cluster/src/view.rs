//! A snapshot with everything looked up: who is where, what is free, and what caches are worth. Planned moves are
//! applied to it, so that each takes the ones before it into account.
//!
//! Hosts and VMs are sorted by name, so nothing depends on their order in the snapshot. What is expensive, the worth of
//! VMs and caches, is computed when it is first asked for.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};

use crate::error::ClusterError;
use crate::snapshot::{Disk, Host, HostState, Snapshot, Vm};
use crate::worth::{Owned, Worth, divided};

pub(crate) struct View<'a> {
    /// Sorted by name.
    pub hosts: Vec<HostView<'a>>,
    /// Sorted by name.
    pub vms: Vec<VmView<'a>>,
}

pub(crate) struct HostView<'a> {
    pub host: &'a Host,
    /// The VMs whose demand counts here.
    pub vms: Vec<u32>,
    pub demand_blocks: u64,
    pub reserved_blocks: u64,
    pub free_memory_bytes: u64,
    pub free_vcpus: u32,
    /// How many VMs of each group of anti-affinity are here, or on their way.
    groups: BTreeMap<u32, u32>,
    /// Moves from and to it that are under way.
    pub moving: u32,
    cache: OnceCell<Cache>,
}

/// What a host's cache is worth.
pub(crate) struct Cache {
    /// The steps of all its VMs, the steepest first.
    pub steps: Vec<Owned>,
    /// What the steps that fit save in a second.
    pub steps_saved: f64,
    /// What a block more would save.
    pub price: f64,
    /// The latency that all accesses have in a second, weighted by priority.
    pub latency: f64,
}

pub(crate) struct VmView<'a> {
    pub vm: &'a Vm,
    /// The host at which its demand counts.
    pub at: usize,
    pub demand_blocks: u64,
    pub reserved_blocks: u64,
    groups: Vec<u32>,
    worth: OnceCell<Worth>,
}

impl<'a> View<'a> {
    /// # Errors
    /// A name appears twice, or a VM is on an unknown host.
    pub fn new(snapshot: &'a Snapshot) -> Result<View<'a>, ClusterError> {
        let mut hosts: Vec<HostView> = snapshot.hosts.iter().map(HostView::new).collect();
        hosts.sort_by(|a, b| a.host.name.cmp(&b.host.name));
        let twice = hosts.windows(2).find(|pair| pair[0].host.name == pair[1].host.name);
        if let Some([first, _]) = twice {
            return Err(ClusterError::TwiceThere { kind: "host", name: first.host.name.to_string() });
        }
        let mut sorted: Vec<&Vm> = snapshot.vms.iter().collect();
        sorted.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some([first, _]) = sorted.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(ClusterError::TwiceThere { kind: "VM", name: first.name.to_string() });
        }
        let mut view = View { hosts, vms: Vec::with_capacity(sorted.len()) };
        view.place(&sorted)?;
        Ok(view)
    }

    fn place(&mut self, sorted: &[&'a Vm]) -> Result<(), ClusterError> {
        let numbers: HashMap<&'a str, usize> =
            self.hosts.iter().enumerate().map(|(number, host)| (host.host.name.0.as_str(), number)).collect();
        let mut groups: HashMap<&'a str, u32> = HashMap::new();
        for &vm in sorted {
            let find = |host: &crate::HostName| {
                numbers.get(host.0.as_str()).copied().ok_or_else(|| ClusterError::UnknownHost {
                    what: format!("VM '{}'", vm.name),
                    host: host.to_string(),
                })
            };
            let on = find(&vm.host)?;
            let at = vm.moving_to.as_ref().map_or(Ok(on), find)?;
            let mut group = |name: &'a String| {
                let next = groups.len() as u32;
                *groups.entry(name).or_insert(next)
            };
            let mut of: Vec<u32> = vm.anti_affinity.iter().map(&mut group).collect();
            of.sort_unstable();
            of.dedup();
            let number = self.vms.len();
            self.vms.push(VmView {
                vm,
                at,
                demand_blocks: vm.demand_blocks(),
                reserved_blocks: vm.reservation_blocks(),
                groups: of,
                worth: OnceCell::new(),
            });
            self.add(number, at);
            if on != at {
                self.hosts[on].take_room(&self.vms[number]);
                self.hosts[on].moving += 1;
                self.hosts[at].moving += 1;
            }
        }
        Ok(())
    }

    fn add(&mut self, vm: usize, to: usize) {
        let (added, host) = (&self.vms[vm], &mut self.hosts[to]);
        host.take_room(added);
        host.vms.push(vm as u32);
        host.demand_blocks = host.demand_blocks.saturating_add(added.demand_blocks);
        host.reserved_blocks = host.reserved_blocks.saturating_add(added.reserved_blocks);
        host.cache = OnceCell::new();
    }

    /// Moves a VM. Its memory, processors and places in groups stay allocated on the host that it leaves: they are free
    /// only when the VM has left, and moves of one plan may run at the same time.
    pub fn apply(&mut self, vm: usize, to: usize) {
        let moved = &self.vms[vm];
        let host = &mut self.hosts[moved.at];
        host.vms.retain(|other| *other as usize != vm);
        host.demand_blocks = host.demand_blocks.saturating_sub(moved.demand_blocks);
        host.reserved_blocks = host.reserved_blocks.saturating_sub(moved.reserved_blocks);
        host.cache = OnceCell::new();
        self.add(vm, to);
        self.vms[vm].at = to;
    }

    /// Returns the least memory and processors of the VMs that may be moved.
    pub fn smallest(&self) -> (u64, u32) {
        let movable =
            self.vms.iter().map(|vm| vm.vm).filter(|vm| vm.pinned.is_none() && vm.moving_to.is_none());
        movable.fold((u64::MAX, u32::MAX), |(memory_bytes, vcpus), vm| {
            (memory_bytes.min(vm.memory_bytes), vcpus.min(vm.vcpus))
        })
    }

    /// Returns whether the VM may be placed on the host, as far as the manager's constraints and reservations go.
    pub fn fits(&self, vm: usize, to: usize) -> bool {
        let (vm, host) = (&self.vms[vm], &self.hosts[to]);
        host.host.state == HostState::Serving
            && vm.at != to
            && host.free_memory_bytes >= vm.vm.memory_bytes
            && host.free_vcpus >= vm.vm.vcpus
            && host.reserved_blocks.saturating_add(vm.reserved_blocks) <= host.host.capacity_blocks
            && !vm.groups.iter().any(|group| host.groups.contains_key(group))
    }

    pub fn worth(&self, vm: usize) -> &Worth {
        self.vms[vm].worth.get_or_init(|| Worth::of(self.vms[vm].vm))
    }

    pub fn cache(&self, host: usize) -> &Cache {
        let of = &self.hosts[host];
        of.cache.get_or_init(|| {
            let mut steps = Vec::new();
            let (mut reserved, mut uncached) = (0.0, 0.0);
            for &vm in &of.vms {
                let worth = self.worth(vm as usize);
                reserved += worth.reserved;
                uncached += self.uncached(vm as usize);
                steps.extend(worth.steps.iter().map(|&step| Owned { step, vm }));
            }
            steps.sort_unstable_by(|a: &Owned, b: &Owned| {
                let by_slope = b.step.slope.total_cmp(&a.step.slope);
                by_slope.then(a.vm.cmp(&b.vm)).then(a.step.blocks.cmp(&b.step.blocks))
            });
            let (steps_saved, price) = divided(of.room(of.host.capacity_blocks), &steps, None, &[]);
            let latency = (uncached - reserved - steps_saved).max(0.0);
            Cache { steps, steps_saved, price, latency }
        })
    }

    /// Returns the VM's accesses per second, weighted by priority.
    pub fn weight_per_s(&self, vm: usize) -> f64 {
        let weight = |disk: &Disk| finite(disk.accesses_per_s * disk.priority);
        self.vms[vm].vm.disks.iter().map(weight).sum()
    }

    /// Returns the latency that all accesses of a VM would have in a second without a cache, weighted by priority.
    pub fn uncached(&self, vm: usize) -> f64 {
        let latency = |disk: &Disk| finite(disk.accesses_per_s * disk.priority * disk.origin_latency_us);
        self.vms[vm].vm.disks.iter().map(latency).sum()
    }
}

/// Returns a figure, or 0 if it is negative or not finite.
fn finite(figure: f64) -> f64 {
    if figure.is_finite() { figure.max(0.0) } else { 0.0 }
}

impl HostView<'_> {
    fn new(host: &Host) -> HostView<'_> {
        HostView {
            host,
            vms: Vec::new(),
            demand_blocks: 0,
            reserved_blocks: 0,
            free_memory_bytes: host.memory_bytes.unwrap_or(u64::MAX),
            free_vcpus: host.vcpus.unwrap_or(u32::MAX),
            groups: BTreeMap::new(),
            moving: 0,
            cache: OnceCell::new(),
        }
    }

    fn take_room(&mut self, vm: &VmView) {
        if self.host.memory_bytes.is_some() {
            self.free_memory_bytes = self.free_memory_bytes.saturating_sub(vm.vm.memory_bytes);
        }
        if self.host.vcpus.is_some() {
            self.free_vcpus = self.free_vcpus.saturating_sub(vm.vm.vcpus);
        }
        for group in &vm.groups {
            *self.groups.entry(*group).or_default() += 1;
        }
    }

    /// Returns the blocks of these that are beyond the reservations.
    pub fn room(&self, blocks: u64) -> u64 {
        blocks.saturating_sub(self.reserved_blocks)
    }

    /// Returns the predicted demand over the cache; 0 without a cache.
    pub fn load(&self) -> f64 {
        self.load_with(self.demand_blocks)
    }

    /// Returns the load with this demand instead.
    pub fn load_with(&self, demand_blocks: u64) -> f64 {
        match self.host.capacity_blocks {
            0 => 0.0,
            capacity => demand_blocks as f64 / capacity as f64,
        }
    }

    pub fn is_serving(&self) -> bool {
        self.host.state == HostState::Serving
    }
}
