//! Migrations over all seeds.

use haversack_migrate::Method;
use serde::Serialize;

use super::{MigrationComparison, Move};
use crate::compare::Estimate;
use crate::migration::link::Speed;
use crate::migration::{Outcome, VmOutcome};

/// A method over a link, with pools of one size, over all seeds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CaseSummary {
    /// The method.
    pub method: Method,
    /// The link.
    pub link: Speed,
    /// Size of each pool as a part of the footprint.
    pub fraction: f64,
    /// Seeds.
    pub seeds: usize,
    /// Hits of the VM that moves, before anything travels.
    pub hits_before: Estimate,
    /// From its stop on.
    pub hits_after: Estimate,
    /// Seconds until its hit ratio was 90 % of what it was; none if that was not seen with every seed.
    pub recovered_seconds: Option<Estimate>,
    /// Requests done in the window from its stop on, over those with `none`, less 1; none without `none`.
    pub iops_over_none: Option<Estimate>,
    /// The same from what it did before: requests while copies are sent ahead.
    pub iops_ahead: Option<Estimate>,
    /// Mean latency from its stop on.
    pub mean_us: Estimate,
    /// 90th percentile of that.
    pub p90_us: Estimate,
    /// 99th percentile.
    pub p99_us: Estimate,
    /// What the cache adds to the hypervisor's downtime.
    pub stall_ms: Estimate,
    /// The longest of these.
    pub longest_stall_ms: f64,
    /// Bytes on the wire.
    pub wire_bytes: Estimate,
    /// These, over what had been used more than once and what was written meanwhile.
    pub wire_over_needed: Estimate,
    /// Bytes read from the origin from the stop on, by all VMs.
    pub origin_read_bytes: Estimate,
    /// Seconds until the source was needed no more; none if that was not seen with every seed.
    pub alone_seconds: Option<Estimate>,
    /// The worst neighbour's 99th percentile while copies are sent ahead, over that before, less 1: on the source, on
    /// the destination.
    pub neighbours_ahead: [Option<Estimate>; 2],
    /// The worst neighbour's 99th percentile from the stop on, over that with `none`, less 1.
    pub neighbours_after: [Option<Estimate>; 2],
    /// Copies for which the destination had no room.
    pub refused_copies: Estimate,
}

/// One less than a quotient; none of nothing.
fn more(now: f64, before: f64) -> Option<f64> {
    (before > 0.0).then(|| now / before - 1.0)
}

/// An estimate, if all values are known.
fn all(values: impl Iterator<Item = Option<f64>>) -> Option<Estimate> {
    let values: Option<Vec<f64>> = values.collect();
    values.filter(|values| !values.is_empty()).map(|values| Estimate::of(&values))
}

const HOSTS: [char; 2] = ['a', 'b'];

/// The greatest rise among a host's neighbours.
fn worst(outcome: &Outcome, host: char, rise: impl Fn(&VmOutcome) -> Option<f64>) -> Option<f64> {
    outcome.neighbours(host).filter_map(rise).max_by(f64::total_cmp)
}

impl CaseSummary {
    fn of(moves: &[&Move], none: &[&Move]) -> CaseSummary {
        let first = moves[0];
        let estimate = |figure: &dyn Fn(&Outcome) -> f64| {
            Estimate::of(&moves.iter().map(|m| figure(&m.outcome)).collect::<Vec<_>>())
        };
        let of_all = |figure: &dyn Fn(&Outcome) -> Option<f64>| all(moves.iter().map(|m| figure(&m.outcome)));
        let without =
            |outcome: &Outcome| none.iter().map(|m| &m.outcome).find(|other| other.seed == outcome.seed);
        let over_none =
            |outcome: &Outcome| more(outcome.moving().after.iops, without(outcome)?.moving().after.iops);
        let ahead = |vm: &VmOutcome| {
            let is_measured = vm.ahead.latency.count > 0;
            more(vm.ahead.latency.p99_us, vm.before.latency.p99_us).filter(|_| is_measured)
        };
        let after = |outcome: &Outcome, host| {
            let other = without(outcome)?;
            worst(outcome, host, |vm| {
                let same = other.vms.iter().find(|other| other.name == vm.name)?;
                more(vm.after.latency.p99_us, same.after.latency.p99_us)
            })
        };
        CaseSummary {
            method: first.outcome.method,
            link: first.outcome.link.speed,
            fraction: first.fraction,
            seeds: moves.len(),
            hits_before: estimate(&|o| o.moving().before.hit_ratio),
            hits_after: estimate(&|o| o.moving().after.hit_ratio),
            recovered_seconds: of_all(&|o| o.recovered_seconds),
            iops_over_none: of_all(&over_none),
            iops_ahead: of_all(&|o| more(o.moving().ahead.iops, o.moving().before.iops)),
            mean_us: estimate(&|o| o.moving().after.latency.mean_us),
            p90_us: estimate(&|o| o.moving().after.latency.p90_us),
            p99_us: estimate(&|o| o.moving().after.latency.p99_us),
            stall_ms: estimate(&|o| o.stall_us as f64 / 1e3),
            longest_stall_ms: moves.iter().map(|m| m.outcome.stall_us as f64 / 1e3).fold(0.0, f64::max),
            wire_bytes: estimate(&|o| o.wire_bytes() as f64),
            wire_over_needed: estimate(&|o| o.wire_bytes() as f64 / o.needed_bytes().max(1) as f64),
            origin_read_bytes: estimate(&|o| o.origin_after.read_bytes as f64),
            alone_seconds: of_all(&|o| o.alone_seconds),
            neighbours_ahead: HOSTS.map(|host| of_all(&|o| worst(o, host, ahead))),
            neighbours_after: HOSTS.map(|host| of_all(&|o| after(o, host))),
            refused_copies: estimate(&|o| o.refused_copies as f64),
        }
    }
}

/// The migrations of a mix over all seeds, in the order in which they were simulated.
pub fn summaries(comparison: &MigrationComparison) -> Vec<CaseSummary> {
    let is_alike = |a: &Move, b: &Move| a.fraction == b.fraction && a.outcome.link == b.outcome.link;
    let mut groups: Vec<Vec<&Move>> = Vec::new();
    for one in &comparison.moves {
        let same = groups
            .iter_mut()
            .find(|group| is_alike(group[0], one) && group[0].outcome.method == one.outcome.method);
        match same {
            Some(group) => group.push(one),
            None => groups.push(vec![one]),
        }
    }
    let none = |first: &Move| {
        let of_case =
            groups.iter().find(|group| is_alike(group[0], first) && group[0].outcome.method == Method::None);
        of_case.map_or(&[][..], Vec::as_slice)
    };
    groups.iter().map(|moves| CaseSummary::of(moves, none(moves[0]))).collect()
}
