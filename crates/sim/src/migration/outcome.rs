//! What a simulated migration gave.

use haversack_migrate::Method;
use serde::Serialize;

use super::link::{LinkModel, Traffic};
use super::measure::{Figures, Sample};
use super::vm::{Role, Vm};

/// A VM.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct VmOutcome {
    /// Its name.
    pub name: String,
    /// The host on which it is at first: `a`, the source, or `b`, the destination.
    pub host: char,
    /// It moves.
    pub moves: bool,
    /// Requests that it keeps in flight; none if they come at the times of its load, however it is served.
    pub depth: Option<u32>,
    /// Before anything travels.
    pub before: Figures,
    /// While its memory is copied.
    pub ahead: Figures,
    /// From its stop at the source on.
    pub after: Figures,
    /// Over time.
    pub samples: Vec<Sample>,
}

impl VmOutcome {
    pub(super) fn new(vm: &Vm<'_>, figures: [Figures; 3], samples: Vec<Sample>) -> VmOutcome {
        let [before, ahead, after] = figures;
        let host = if vm.role.host() == 0 { 'a' } else { 'b' };
        let moves = vm.role == Role::Moves;
        VmOutcome { name: vm.name.clone(), host, moves, depth: vm.depth, before, ahead, after, samples }
    }
}

/// Bytes that the hosts read from the origin and wrote to it in a stretch of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct OriginTraffic {
    /// Read.
    pub read_bytes: u64,
    /// Written.
    pub written_bytes: u64,
}

impl OriginTraffic {
    pub(super) fn since(self, earlier: OriginTraffic) -> OriginTraffic {
        OriginTraffic {
            read_bytes: self.read_bytes - earlier.read_bytes,
            written_bytes: self.written_bytes - earlier.written_bytes,
        }
    }
}

/// What the link and the origin carried in a short time.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct LoadSample {
    /// Its end, in seconds from the time at which the VM stops at the source.
    pub time_seconds: f64,
    /// Bytes a second on the link, both directions.
    pub link_bytes_per_second: f64,
    /// Bytes a second read from the origin and written to it.
    pub origin_bytes_per_second: f64,
}

/// See the module.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Outcome {
    /// What travelled.
    pub method: Method,
    /// Seed of all random numbers.
    pub seed: u64,
    /// The link.
    pub link: LinkModel,
    /// Blocks of each host's pool.
    pub pool_blocks: u64,
    /// All VMs.
    pub vms: Vec<VmOutcome>,
    /// From the stop of the VM until its last request was answered.
    pub drain_us: u64,
    /// How long the VM was stopped for its memory.
    pub downtime_us: u64,
    /// From its start at the destination until its disks were served there: what its cache adds.
    pub stall_us: u64,
    /// From its stop until the source had nothing left that it needs; none if that was not seen.
    pub alone_seconds: Option<f64>,
    /// From its stop until its hit ratio was 90 % of what it was; none if that was not seen.
    pub recovered_seconds: Option<f64>,
    /// Before the stop, a switchover would have left little to do.
    pub was_ready: bool,
    /// Bytes from the source to the destination.
    pub there: Traffic,
    /// Bytes back.
    pub back: Traffic,
    /// Copies for which the destination had no room.
    pub refused_copies: u64,
    /// What was cached when the VM stopped.
    pub cached_bytes: u64,
    /// Of that, what had been used more than once.
    pub reused_bytes: u64,
    /// What was dirty then.
    pub dirty_bytes: u64,
    /// What was dirty or used more than once, each block once: the least that has to travel for a warm and complete cache.
    pub needed_bytes: u64,
    /// The origin before anything travels.
    pub origin_before: OriginTraffic,
    /// While memory is copied.
    pub origin_ahead: OriginTraffic,
    /// From the stop on.
    pub origin_after: OriginTraffic,
    /// The link and the origin over time.
    pub samples: Vec<LoadSample>,
    /// Sectors read that were compared with what was written, all right.
    pub checked_sectors: u64,
}

impl Outcome {
    /// The VM that moves.
    ///
    /// # Panics
    /// Never: a simulation has one.
    pub fn moving(&self) -> &VmOutcome {
        self.vms.iter().find(|vm| vm.moves).expect("a VM moves")
    }

    /// The VMs that stay on a host.
    pub fn neighbours(&self, host: char) -> impl Iterator<Item = &VmOutcome> {
        self.vms.iter().filter(move |vm| !vm.moves && vm.host == host)
    }

    /// Bytes on the wire, there and back.
    pub fn wire_bytes(&self) -> u64 {
        self.there.plus(self.back).bytes()
    }
}
