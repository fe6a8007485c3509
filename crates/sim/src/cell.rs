//! One simulated cache of those that a sweep runs side by side.

use std::time::Duration;

use haversack_control::budget::Account;
use haversack_core::{DiskStats, DiskUsage, PoolStats};
use haversack_trace::Access;

use crate::counts::Counts;
use crate::error::SimError;
use crate::governor::Outcome as Governed;
use crate::latency::Latencies;
use crate::latency::histogram::Histogram;
use crate::meter::{Measured, Sample};
use crate::reference::PolicyName;

/// A cache being simulated. Accesses come in batches, in order of time; their times are those of the simulation.
pub trait Cell: Send {
    /// Plays the next accesses.
    ///
    /// # Errors
    /// The simulation cannot continue.
    fn play(&mut self, accesses: &[Access]) -> Result<(), SimError>;

    /// Completes the remaining work and returns the results: one for most policies, one per size for MIN.
    ///
    /// # Errors
    /// The result cannot be computed.
    fn end(self: Box<Self>) -> Result<Vec<CellResult>, SimError>;
}

/// Additional results of the production cache.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ProductionResult {
    /// The pool's segments, all devices together.
    pub segments: u64,
    /// Slots in them.
    pub capacity_blocks: u64,
    /// Blocks of the staging area.
    pub staging_blocks: u32,
    /// Number of restarts.
    pub restarts: u64,
    /// The core's own counters of each volume, the warm-up included, since the last restart.
    pub disk_stats: Vec<DiskStats>,
    /// Each volume's share at the end.
    pub disk_usages: Vec<DiskUsage>,
    /// The pool at the end.
    pub pool_stats: PoolStats,
    /// Flushes of the cache devices.
    pub device_flushes: u64,
    /// The results of the control loop, if there was one.
    pub governed: Option<Governed>,
    /// The account of its budget of flash writes, if it had one.
    pub flash_account: Option<Account>,
}

/// The results of a cell.
pub struct CellResult {
    /// The policy.
    pub policy: PolicyName,
    /// Blocks of the cache; `None` for one without limit.
    pub blocks: Option<u64>,
    /// Counts of each volume.
    pub volumes: Vec<Counts>,
    /// Simulated time from which on it was counted.
    pub warm_ns: u64,
    /// Samples over time.
    pub series: Vec<Sample>,
    /// Latencies of requests; empty without a model of time.
    pub latencies: Latencies,
    /// Latencies of the reads and writes of each volume that had any.
    pub of_volumes: Vec<Histogram>,
    /// Details of the production cache.
    pub production: Option<ProductionResult>,
    /// Processor time of the simulation.
    pub elapsed: Duration,
}

impl CellResult {
    /// The measurements of a cache.
    pub fn new(policy: PolicyName, blocks: Option<u64>, measured: Measured) -> Self {
        CellResult {
            policy,
            blocks,
            volumes: measured.volumes,
            warm_ns: measured.warm_ns,
            series: measured.series,
            latencies: measured.latencies,
            of_volumes: measured.of_volumes,
            production: None,
            elapsed: Duration::ZERO,
        }
    }
}
