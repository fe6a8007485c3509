//! The result of a simulated migration.

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
    /// The host on which it starts: `a`, the source, or `b`, the destination.
    pub host: char,
    /// It moves.
    pub moves: bool,
    /// Requests that it keeps in flight; `None` if they arrive at the times of its load, however it is
    /// served.
    pub depth: Option<u32>,
    /// Before anything is sent.
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

/// Bytes that the hosts read from the origin and wrote to it in a period.
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

/// The traffic of the link and the origin in a short sample.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct LoadSample {
    /// Its end, in seconds from the time at which the VM stops at the source.
    pub time_seconds: f64,
    /// Bytes per second on the link, both directions.
    pub link_bytes_per_second: f64,
    /// Bytes per second read from the origin and written to it.
    pub origin_bytes_per_second: f64,
}

/// See the module.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Outcome {
    /// The method.
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
    /// From its start at the destination until its disks were served there: the stall that the cache adds.
    pub stall_us: u64,
    /// From its stop until the source had nothing left that it needs; `None` if that did not happen.
    pub alone_seconds: Option<f64>,
    /// From its stop until its hit ratio was back at 90 % of the earlier one; `None` if that did not happen.
    pub recovered_seconds: Option<f64>,
    /// Whether a switchover before the stop would have left little to do.
    pub was_ready: bool,
    /// Bytes from the source to the destination.
    pub there: Traffic,
    /// Bytes back.
    pub back: Traffic,
    /// Copies for which the destination had no space.
    pub refused_copies: u64,
    /// Bytes of blocks cached when the VM stopped.
    pub cached_bytes: u64,
    /// Of these, bytes of blocks used more than once.
    pub reused_bytes: u64,
    /// Of these, bytes of dirty blocks.
    pub dirty_bytes: u64,
    /// Of these, bytes of blocks that were dirty or used more than once, each counted once: the minimum that
    /// has to be sent for a warm and complete cache.
    pub needed_bytes: u64,
    /// The origin before anything is sent.
    pub origin_before: OriginTraffic,
    /// While memory is copied.
    pub origin_ahead: OriginTraffic,
    /// From the stop on.
    pub origin_after: OriginTraffic,
    /// The link and the origin over time.
    pub samples: Vec<LoadSample>,
    /// Sectors read and compared with the written data, all correct.
    pub checked_sectors: u64,
}

impl Outcome {
    /// The VM that moves.
    ///
    /// # Panics
    /// Never: a simulation always has one.
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
