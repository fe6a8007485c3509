//! Checks the methods against the goals of migration.

use haversack_migrate::Method;
use serde::Serialize;

use super::MigrationComparison;
use super::summary::{CaseSummary, summaries_of};
use crate::compare::Estimate;

/// A goal, and the results over all sizes, links and seeds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Goal {
    /// What is measured.
    pub measure: &'static str,
    /// The target.
    pub goal: &'static str,
    /// The best figure.
    pub best: String,
    /// The worst figure.
    pub worst: String,
    /// Whether the worst figure reaches the goal; `None` if the simulation cannot measure it.
    pub reached: Option<bool>,
}

const MOST_SECONDS: f64 = 5.0;
const MOST_OVER_NEEDED: f64 = 1.1;
const MOST_STALL_MS: f64 = 50.0;
const LEAST_IOPS_AHEAD: f64 = -0.05;
const MOST_RISE: f64 = 0.1;
/// FirepanIF's own method relative to `none` in the first 400 s with a cache of 10 GB, from its table 1.
const PAPER_OVER_NONE: f64 = 0.1668;

/// The format of a figure.
type Text = fn(f64) -> String;

fn percent(part: f64) -> String {
    format!("{:+.1} %", part * 100.0)
}

fn seconds(seconds: f64) -> String {
    if seconds.is_finite() { format!("{seconds:.2} s") } else { "not in the window".into() }
}

/// A goal that figures must not exceed.
fn at_most(measure: &'static str, goal: &'static str, most: f64, text: Text, found: &[f64]) -> Goal {
    let best = found.iter().copied().min_by(f64::total_cmp);
    let worst = found.iter().copied().max_by(f64::total_cmp);
    let [best_text, worst_text] = [best, worst].map(|figure| figure.map_or_else(|| "-".into(), text));
    Goal { measure, goal, best: best_text, worst: worst_text, reached: worst.map(|worst| worst <= most) }
}

/// A goal that figures must reach.
fn at_least(measure: &'static str, goal: &'static str, least: f64, text: Text, found: &[f64]) -> Goal {
    let reached = found.iter().copied().min_by(f64::total_cmp).map(|worst| worst >= least);
    let Goal { best, worst, .. } = at_most(measure, goal, least, text, found);
    Goal { measure, goal, best: worst, worst: best, reached }
}

fn mean(estimate: &Estimate) -> f64 {
    estimate.mean
}

/// The goals that a simulation can judge, for the default method.
pub fn goals(comparison: &MigrationComparison) -> Vec<Goal> {
    let mut seeds: Vec<u64> = comparison.moves.iter().map(|one| one.outcome.seed).collect();
    seeds.dedup();
    let of_seed = |seed: u64| summaries_of(comparison.moves.iter().filter(|one| one.outcome.seed == seed));
    judge(&seeds.into_iter().map(of_seed).collect::<Vec<_>>())
}

/// Judges the summaries of each seed.
fn judge(seeds: &[Vec<CaseSummary>]) -> Vec<Goal> {
    let of = |method: Method, figures: &dyn Fn(&[CaseSummary], &CaseSummary) -> Vec<f64>| -> Vec<f64> {
        let of_method = |all: &Vec<CaseSummary>| -> Vec<f64> {
            all.iter().filter(|s| s.method == method).flat_map(|s| figures(all, s)).collect()
        };
        seeds.iter().flat_map(of_method).collect()
    };
    let ours = |figures: &dyn Fn(&CaseSummary) -> Vec<f64>| of(Method::PreCopy, &|_, s| figures(s));
    let optional = |estimate: &Option<Estimate>| estimate.iter().map(mean).collect::<Vec<f64>>();
    vec![
        recovery(seeds, &ours(&|s| vec![recovered(s)])),
        at_most(
            "bytes sent / bytes dirty or used again, pre-copy",
            "at most 1.1",
            MOST_OVER_NEEDED,
            |x| format!("{x:.2}"),
            &ours(&|s| vec![s.wire_over_needed.mean]),
        ),
        at_most(
            "longest stall, pre-copy",
            "at most 50 ms",
            MOST_STALL_MS,
            |x| format!("{x:.1} ms"),
            &ours(&|s| vec![s.longest_stall_ms]),
        ),
        at_least(
            "guest IOPS while copies are sent ahead over none, pre-copy",
            "at least -5 %",
            LEAST_IOPS_AHEAD,
            percent,
            &ours(&|s| optional(&s.iops_ahead)),
        ),
        at_most(
            "neighbours' p99 while copies are sent ahead over none, pre-copy",
            "at most +10 %",
            MOST_RISE,
            percent,
            &ours(&|s| s.neighbours_ahead.iter().flatten().map(mean).collect()),
        ),
        at_least(
            "guest IOPS after the stop over none, invalidation-filter",
            "at least +16.7 %, as its paper",
            PAPER_OVER_NONE,
            percent,
            &of(Method::InvalidationFilter, &|_, s| optional(&s.iops_over_none)),
        ),
        at_least(
            "guest IOPS after the stop, pre-copy over the best other method",
            "above 0",
            f64::MIN_POSITIVE,
            percent,
            &of(Method::PreCopy, &|all, s| over_best_other(all, s).into_iter().collect()),
        ),
    ]
}

/// Seconds until the hit ratio had recovered; infinite if it did not.
fn recovered(summary: &CaseSummary) -> f64 {
    summary.recovered_seconds.as_ref().map_or(f64::INFINITY, mean)
}

/// The time until the cache serves as before. Reaching the goal proves something only if `none`, measured for
/// long enough, misses it.
fn recovery(seeds: &[Vec<CaseSummary>], found: &[f64]) -> Goal {
    let (measure, goal) = ("90 % of the hit ratio before, pre-copy", "after at most 5 s");
    let is_late = |s: &CaseSummary| {
        s.method == Method::None && s.window_seconds >= MOST_SECONDS && recovered(s) > MOST_SECONDS
    };
    let is_proof = seeds.iter().flatten().any(is_late);
    let goal = at_most(measure, goal, MOST_SECONDS, seconds, found);
    Goal { reached: goal.reached.filter(|reached| is_proof || !reached), ..goal }
}

/// IOPS relative to `none`, divided by those of the best other method in the same case, minus 1.
fn over_best_other(summaries: &[CaseSummary], ours: &CaseSummary) -> Option<f64> {
    let is_rival = |s: &&CaseSummary| s.is_alike(ours) && s.method != ours.method && s.method != Method::None;
    let rivals = summaries.iter().filter(is_rival).filter_map(|s| s.iops_over_none.as_ref().map(mean));
    let best = rivals.max_by(f64::total_cmp)?;
    Some((1.0 + ours.iops_over_none.as_ref()?.mean) / (1.0 + best) - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(method: Method) -> CaseSummary {
        let zero = Estimate::of(&[0.0]);
        CaseSummary {
            method,
            link: "1Gbit".parse().unwrap(),
            fraction: 0.5,
            seeds: 1,
            hits_before: zero,
            hits_after: zero,
            window_seconds: 30.0,
            recovered_seconds: None,
            iops_over_none: None,
            iops_ahead: None,
            mean_us: zero,
            p90_us: zero,
            p99_us: zero,
            stall_ms: zero,
            longest_stall_ms: 0.0,
            wire_bytes: zero,
            wire_over_needed: zero,
            origin_read_bytes: zero,
            alone_seconds: None,
            neighbours_ahead: [None, None],
            neighbours_after: [None, None],
            refused_copies: zero,
        }
    }

    fn some(value: f64) -> Option<Estimate> {
        Some(Estimate::of(&[value]))
    }

    /// Best, worst and verdict of each goal.
    fn found(seeds: &[Vec<CaseSummary>]) -> Vec<(String, String, Option<bool>)> {
        judge(seeds).into_iter().map(|goal| (goal.best, goal.worst, goal.reached)).collect()
    }

    fn judged(reached: Option<bool>, figures: [[&str; 2]; 7]) -> Vec<(String, String, Option<bool>)> {
        figures.map(|[best, worst]| (best.to_string(), worst.to_string(), reached)).to_vec()
    }

    fn good() -> Vec<CaseSummary> {
        let filter = CaseSummary { iops_over_none: some(0.2), ..summary(Method::InvalidationFilter) };
        let ours = CaseSummary {
            recovered_seconds: some(5.0),
            wire_over_needed: Estimate::of(&[1.0]),
            longest_stall_ms: 50.0,
            iops_ahead: some(0.0),
            neighbours_ahead: [some(-0.5), some(0.1)],
            iops_over_none: some(0.32),
            ..summary(Method::PreCopy)
        };
        vec![summary(Method::None), filter, ours]
    }

    #[test]
    fn goals_are_reached() {
        let expected = ["5.00 s", "1.00", "50.0 ms", "+0.0 %", "+10.0 %", "+20.0 %", "+10.0 %"];
        let mut expected = expected.map(|figure| [figure, figure]);
        expected[4][0] = "-50.0 %";
        assert_eq!(found(&[good()]), judged(Some(true), expected));
    }

    #[test]
    fn goals_are_missed_if_one_seed_misses_them() {
        let filter = CaseSummary { iops_over_none: some(0.1), ..summary(Method::InvalidationFilter) };
        let ours = CaseSummary {
            recovered_seconds: some(6.0),
            wire_over_needed: Estimate::of(&[1.2]),
            longest_stall_ms: 51.0,
            iops_ahead: some(-0.06),
            neighbours_ahead: [some(0.2), None],
            iops_over_none: some(-0.12),
            ..summary(Method::PreCopy)
        };
        let expected = [
            ["5.00 s", "6.00 s"],
            ["1.00", "1.20"],
            ["50.0 ms", "51.0 ms"],
            ["+0.0 %", "-6.0 %"],
            ["-50.0 %", "+20.0 %"],
            ["+20.0 %", "+10.0 %"],
            ["+10.0 %", "-20.0 %"],
        ];
        assert_eq!(found(&[good(), vec![filter, ours.clone()]]), judged(Some(false), expected));
        let never = CaseSummary { recovered_seconds: None, ..ours };
        let expected = ("5.00 s".into(), "not in the window".into(), Some(false));
        assert_eq!(found(&[good(), vec![never]])[0], expected);
    }

    #[test]
    fn what_was_not_measured_is_not_judged() {
        let expected = judged(None, [["-", "-"]; 7]);
        assert_eq!(found(&[vec![summary(Method::None)]]), expected);
        let [none, ours] = [Method::None, Method::PreCopy]
            .map(|method| CaseSummary { recovered_seconds: some(1.0), ..summary(method) });
        let found = found(&[vec![none, ours.clone()]]);
        assert_eq!(found[0], ("1.00 s".into(), "1.00 s".into(), None), "none is as soon");
        assert_eq!(found[3..], expected[3..], "no requests in flight, no neighbours");
        let short = CaseSummary { window_seconds: 1.5, ..summary(Method::None) };
        assert_eq!(judge(&[vec![short, ours]])[0].reached, None, "none is not known to take longer");
    }
}
