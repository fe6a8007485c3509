//! What a move gains and what it costs, in microseconds of latency.

use haversack_model::BLOCK_BYTES;

use crate::round::Round;
use crate::worth::divided;

/// What the move of a VM costs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Cost {
    /// Seconds of copying.
    pub copy_s: f64,
    /// Seconds after the switch until all copied blocks are there.
    pub warm_up_s: f64,
    /// What accesses on both hosts wait longer during the copy.
    neighbours_us: f64,
    /// What accesses of the VM wait at the switch.
    stall_us: f64,
    /// What hits of the VM lose until all blocks are there.
    warm_up_us: f64,
}

impl Cost {
    /// - Copy: dirty and reused blocks over the slower of the two links.
    /// - Neighbours: the slowdown, times the latency that all accesses of both hosts have in a second, times the copy's
    ///   seconds.
    /// - Stall: accesses that come during it wait for half of it on average.
    /// - Warm-up: the blocks that are missing at the switch arrive at a constant rate. So on average half of them are
    ///   missing, and the VM loses that part of what its hits save.
    pub fn of(round: &Round, vm: usize, to: usize) -> Cost {
        let other = &round.view.hosts[to].host;
        Cost::with(round, vm, other.link_bytes_per_s, round.view.cache(to).latency)
    }

    /// Returns what it costs at least, wherever the VM goes.
    pub fn least(round: &Round, vm: usize) -> Cost {
        Cost::with(round, vm, u64::MAX, 0.0)
    }

    fn with(round: &Round, vm: usize, link_bytes_per_s: u64, latency: f64) -> Cost {
        let (settings, view) = (round.settings, &round.view);
        let of = &view.vms[vm];
        let rate = view.hosts[of.at].host.link_bytes_per_s.min(link_bytes_per_s).max(1);
        let copy_s = of.vm.copied_blocks() as f64 * BLOCK_BYTES as f64 / rate as f64;
        let missing = 1.0 - settings.warm_ratio;
        let warm_up_s = missing * copy_s;
        let stall_s = settings.stall_us as f64 / 1e6;
        let worth = view.worth(vm).alone(of.demand_blocks.saturating_sub(of.reserved_blocks));
        Cost {
            copy_s,
            warm_up_s,
            neighbours_us: settings.neighbour_slowdown * copy_s * (view.cache(of.at).latency + latency),
            stall_us: view.weight_per_s(vm) * stall_s * settings.stall_us as f64 / 2.0,
            warm_up_us: worth * missing / 2.0 * warm_up_s,
        }
    }

    /// Returns the sum.
    pub fn total_us(&self) -> f64 {
        self.neighbours_us + self.stall_us + self.warm_up_us
    }
}

impl Round<'_> {
    /// Returns what a VM saves where it is: the difference between what its host's cache saves with and without the VM.
    pub fn loss(&self, vm: usize) -> f64 {
        let from = self.view.vms[vm].at;
        let (host, cache) = (&self.view.hosts[from], self.view.cache(from));
        let reserved = host.reserved_blocks - self.view.vms[vm].reserved_blocks.min(host.reserved_blocks);
        let room = host.host.capacity_blocks.saturating_sub(reserved);
        let without = divided(room, &cache.steps, Some(vm as u32), &[]).0;
        cache.steps_saved - without + self.view.worth(vm).reserved
    }

    /// Returns what a VM would save on another host with this many blocks of its cache.
    pub fn profit(&self, vm: usize, to: usize, usable_blocks: u64) -> f64 {
        let (host, cache, worth) = (&self.view.hosts[to], self.view.cache(to), self.view.worth(vm));
        let room = host.room(usable_blocks);
        let room_with = room.saturating_sub(self.view.vms[vm].reserved_blocks);
        let with = divided(room_with, &cache.steps, None, &worth.steps).0;
        with - divided(room, &cache.steps, None, &[]).0 + worth.reserved
    }

    /// Returns what a move gains in a second, with all of both caches.
    pub fn gain(&self, vm: usize, to: usize) -> f64 {
        self.profit(vm, to, self.view.hosts[to].host.capacity_blocks) - self.loss(vm)
    }
}
