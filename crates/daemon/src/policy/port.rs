//! A pool of the daemon, as the control loop sees it: see [`Port`].

use std::collections::BTreeMap;
use std::convert::Infallible;

use haversack_api::DiskConfig;
use haversack_control::{DiskReport, Entry, Port};
use haversack_engine::{DiskSnapshot, Snapshot};
use haversack_policy::{Config, DiskPlan};

use super::actuate::{self, Applied};
use super::events::Order;
use super::reports::{self, Latencies};
use crate::backend::Backend;
use crate::line_log::LineLog;

/// See the module documentation.
pub struct PoolPort<'a> {
    pub backend: &'a dyn Backend,
    /// The settings of the disks that take part.
    pub disks: &'a BTreeMap<String, DiskConfig>,
    /// What the daemon is to do.
    pub orders: &'a mut Vec<Order>,
    pub latencies: &'a Latencies,
    /// The heading of a new log file.
    pub config: Config,
    pub log: &'a mut LineLog,
    /// What the last plans have set, by disk.
    pub applied: &'a mut BTreeMap<String, Applied>,
    /// The parts of the last plan that were skipped, by disk.
    pub kept: &'a mut BTreeMap<String, Vec<String>>,
    /// What the pool showed when the reports were made.
    pub snapshot: Option<Snapshot>,
}

impl Port for PoolPort<'_> {
    type Error = Infallible;

    fn reports(&mut self) -> Option<(u64, Vec<DiskReport>)> {
        // A stopped pool is reported elsewhere.
        let snapshot = self.backend.snapshot().ok()?;
        let report = |(disk, config): (&DiskSnapshot, &DiskConfig)| {
            reports::report(&snapshot, disk, config, self.latencies)
        };
        let reports = attached(self.disks, &snapshot).map(report).collect();
        let pool_blocks = snapshot.pool.capacity_blocks;
        self.snapshot = Some(snapshot);
        Some((pool_blocks, reports))
    }

    fn write_log(&mut self, entries: &[Entry]) {
        write_log(self.log, &self.config, entries);
    }

    /// A failure is only logged: the other disks get their shares.
    fn carry_out(&mut self, name: &str, plan: &DiskPlan) -> Result<(), Infallible> {
        let shown = self.snapshot.iter().flat_map(|snapshot| &snapshot.disks).find(|disk| disk.name == name);
        // A disk that is gone in the meantime, or that another host has, needs no plan.
        let shown = shown.filter(|disk| disk.is_served);
        let (Some(shown), Some(config)) = (shown, self.disks.get(name)) else { return Ok(()) };
        let applied = self.applied.entry(name.into()).or_default();
        match actuate::apply(self.backend, shown, config, plan, applied, self.orders) {
            Ok(kept) => {
                self.kept.insert(name.into(), kept);
            }
            Err(error) => tracing::error!(disk = name, "cannot apply the plan: {error}"),
        }
        Ok(())
    }
}

/// Appends entries to the log of a loop with this configuration.
pub fn write_log(log: &mut LineLog, config: &Config, entries: &[Entry]) {
    for entry in entries {
        let time_us = match entry {
            Entry::Started { time_us, .. }
            | Entry::Event { time_us, .. }
            | Entry::Restored { time_us, .. }
            | Entry::Refused { time_us, .. } => *time_us,
            Entry::Decision(decision) => decision.inputs.time_us,
        };
        let line = entry.line();
        let heading = match entry {
            Entry::Started { .. } => line.clone(),
            _ => Entry::Started { time_us, config: Box::new(config.clone()) }.line(),
        };
        if let Err(error) = log.append(&line, &heading) {
            tracing::error!("cannot log a decision: {error}");
        }
    }
}

/// Returns the disks that take part, by name, as far as the pool shows them.
pub fn attached<'a>(
    disks: &'a BTreeMap<String, DiskConfig>,
    snapshot: &'a Snapshot,
) -> impl Iterator<Item = (&'a DiskSnapshot, &'a DiskConfig)> {
    disks
        .iter()
        .filter_map(|(name, config)| Some((snapshot.disks.iter().find(|shown| shown.name == *name)?, config)))
}
