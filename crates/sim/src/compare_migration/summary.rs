//! Migrations over all seeds.

use haversack_migrate::Method;
use serde::Serialize;

use super::{MigrationComparison, Move, grouped};
use crate::compare::Estimate;
use crate::migration::link::Speed;
use crate::migration::measure::Figures;
use crate::migration::{Outcome, VmOutcome};

/// A method over a link, with pools of one size, over all seeds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CaseSummary {
    /// The method.
    pub method: Method,
    /// The link.
    pub link: Speed,
    /// Size of each pool as a fraction of the footprint.
    pub fraction: f64,
    /// Seeds.
    pub seeds: usize,
    /// Hits of the VM that moves, before anything is sent.
    pub hits_before: Estimate,
    /// From its stop on.
    pub hits_after: Estimate,
    /// Seconds from its stop on for which it was measured.
    pub window_seconds: f64,
    /// Seconds until its hit ratio was back at 90 % of the earlier one; `None` if that did not happen with
    /// every seed.
    pub recovered_seconds: Option<Estimate>,
    /// Requests completed in the window from its stop on, relative to `none`, minus 1; `None` without `none`,
    /// and for a VM whose requests arrive at fixed times, however it is served.
    pub iops_over_none: Option<Estimate>,
    /// The same for requests completed while copies are sent ahead.
    pub iops_ahead: Option<Estimate>,
    /// Mean latency from its stop on.
    pub mean_us: Estimate,
    /// 90th percentile of latency.
    pub p90_us: Estimate,
    /// 99th percentile.
    pub p99_us: Estimate,
    /// The time that the cache adds to the hypervisor's downtime.
    pub stall_ms: Estimate,
    /// The longest of these.
    pub longest_stall_ms: f64,
    /// Bytes on the wire.
    pub wire_bytes: Estimate,
    /// These bytes, relative to the bytes that were dirty or had been used more than once when it stopped.
    pub wire_over_needed: Estimate,
    /// Bytes read from the origin from the stop on, by all VMs.
    pub origin_read_bytes: Estimate,
    /// Seconds until the source was no longer needed; `None` if that did not happen with every seed.
    pub alone_seconds: Option<Estimate>,
    /// The worst neighbour's 99th percentile while copies are sent ahead, relative to `none`, minus 1: on the
    /// source, on the destination.
    pub neighbours_ahead: [Option<Estimate>; 2],
    /// The same from the stop on.
    pub neighbours_after: [Option<Estimate>; 2],
    /// Copies for which the destination had no space.
    pub refused_copies: Estimate,
}

/// A quotient minus one; `None` if a value is missing.
fn more(now: f64, before: f64) -> Option<f64> {
    (before > 0.0).then(|| now / before - 1.0)
}

/// An estimate, if all values are known.
fn all(values: impl Iterator<Item = Option<f64>>) -> Option<Estimate> {
    let values: Option<Vec<f64>> = values.collect();
    values.filter(|values| !values.is_empty()).map(|values| Estimate::of(&values))
}

const HOSTS: [char; 2] = ['a', 'b'];

impl CaseSummary {
    /// Whether another one differs only in the method.
    pub fn is_alike(&self, other: &CaseSummary) -> bool {
        self.fraction == other.fraction && self.link == other.link
    }

    fn of(moves: &[&Move], none: &[&Move]) -> CaseSummary {
        let first = moves[0];
        let estimate = |figure: &dyn Fn(&Outcome) -> f64| {
            Estimate::of(&moves.iter().map(|m| figure(&m.outcome)).collect::<Vec<_>>())
        };
        let of_all = |figure: &dyn Fn(&Outcome) -> Option<f64>| all(moves.iter().map(|m| figure(&m.outcome)));
        let without =
            |outcome: &Outcome| none.iter().map(|m| &m.outcome).find(|other| other.seed == outcome.seed);
        let iops = |stretch: fn(&VmOutcome) -> &Figures| {
            of_all(&|outcome| {
                let (moving, other) = (outcome.moving(), without(outcome)?.moving());
                moving.depth.and_then(|_| more(stretch(moving).iops, stretch(other).iops))
            })
        };
        let neighbours = |stretch: fn(&VmOutcome) -> &Figures| {
            let p99_us = |vm: &VmOutcome| stretch(vm).latency.p99_us;
            let worst = |outcome: &Outcome, host| {
                let other = without(outcome)?;
                let rise = |vm: &VmOutcome| {
                    let same = other.vms.iter().find(|other| other.name == vm.name)?;
                    more(p99_us(vm), p99_us(same))
                };
                outcome.neighbours(host).filter_map(rise).max_by(f64::total_cmp)
            };
            HOSTS.map(|host| of_all(&|outcome| worst(outcome, host)))
        };
        CaseSummary {
            method: first.outcome.method,
            link: first.outcome.link.speed,
            fraction: first.fraction,
            seeds: moves.len(),
            hits_before: estimate(&|o| o.moving().before.hit_ratio),
            hits_after: estimate(&|o| o.moving().after.hit_ratio),
            window_seconds: first.outcome.moving().after.seconds,
            recovered_seconds: of_all(&|o| o.recovered_seconds),
            iops_over_none: iops(|vm| &vm.after),
            iops_ahead: iops(|vm| &vm.ahead),
            mean_us: estimate(&|o| o.moving().after.latency.mean_us),
            p90_us: estimate(&|o| o.moving().after.latency.p90_us),
            p99_us: estimate(&|o| o.moving().after.latency.p99_us),
            stall_ms: estimate(&|o| o.stall_us as f64 / 1e3),
            longest_stall_ms: moves.iter().map(|m| m.outcome.stall_us as f64 / 1e3).fold(0.0, f64::max),
            wire_bytes: estimate(&|o| o.wire_bytes() as f64),
            wire_over_needed: estimate(&|o| o.wire_bytes() as f64 / o.needed_bytes.max(1) as f64),
            origin_read_bytes: estimate(&|o| o.origin_after.read_bytes as f64),
            alone_seconds: of_all(&|o| o.alone_seconds),
            neighbours_ahead: neighbours(|vm| &vm.ahead),
            neighbours_after: neighbours(|vm| &vm.after),
            refused_copies: estimate(&|o| o.refused_copies as f64),
        }
    }
}

/// The migrations of a mix over all seeds, in the order in which they were simulated.
pub fn summaries(comparison: &MigrationComparison) -> Vec<CaseSummary> {
    summaries_of(comparison.moves.iter())
}

/// The same for some migrations.
pub(super) fn summaries_of<'a>(moves: impl Iterator<Item = &'a Move>) -> Vec<CaseSummary> {
    let is_same = |a: &Move, b: &Move| a.is_alike(b) && a.outcome.method == b.outcome.method;
    let groups = grouped(moves, is_same);
    let none = |first: &Move| {
        let is_none = |group: &&Vec<&Move>| group[0].outcome.method == Method::None;
        let of_case = groups.iter().filter(is_none).find(|group| group[0].is_alike(first));
        of_case.map_or(&[][..], Vec::as_slice)
    };
    groups.iter().map(|moves| CaseSummary::of(moves, none(moves[0]))).collect()
}
