//! How the methods do by the goals of migration.

use haversack_migrate::Method;
use serde::Serialize;

use super::summary::CaseSummary;
use crate::compare::Estimate;

/// A goal, and what was found.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Goal {
    /// What is measured.
    pub measure: &'static str,
    /// What is wanted.
    pub goal: &'static str,
    /// What was found: the mean over seeds of the worst size and link, and of stalls the longest.
    pub found: String,
    /// Whether it was reached; none if what was simulated does not tell.
    pub reached: Option<bool>,
}

const MOST_SECONDS: f64 = 5.0;
const MOST_OVER_NEEDED: f64 = 1.1;
const MOST_STALL_MS: f64 = 50.0;
const LEAST_IOPS_AHEAD: f64 = -0.05;
const MOST_RISE: f64 = 0.1;
/// FirepanIF's own method over `none` in the first 400 s with a cache of 10 GB, by its table 1.
const PAPER_OVER_NONE: f64 = 0.1668;

fn percent(part: f64) -> String {
    format!("{:+.1} %", part * 100.0)
}

fn most(values: impl Iterator<Item = f64>) -> Option<f64> {
    values.max_by(f64::total_cmp)
}

fn least(values: impl Iterator<Item = f64>) -> Option<f64> {
    values.min_by(f64::total_cmp)
}

fn mean(estimate: &Estimate) -> f64 {
    estimate.mean
}

/// The goals that a simulation can judge, for the default method over all links and sizes.
pub fn goals(summaries: &[CaseSummary]) -> Vec<Goal> {
    let of = |method: Method| summaries.iter().filter(move |summary| summary.method == method);
    let ours = || of(Method::PreCopy);
    let figure =
        |measure, goal, found: Option<f64>, text: &dyn Fn(f64) -> String, good: &dyn Fn(f64) -> bool| Goal {
            measure,
            goal,
            found: found.map_or_else(|| "-".into(), text),
            reached: found.map(good),
        };
    vec![
        recovery(summaries),
        figure(
            "bytes sent / bytes dirty or used again, pre-copy",
            "at most 1.1",
            most(ours().map(|s| s.wire_over_needed.mean)),
            &|x| format!("{x:.2}"),
            &|x| x <= MOST_OVER_NEEDED,
        ),
        figure(
            "longest stall, pre-copy",
            "at most 50 ms",
            most(ours().map(|s| s.longest_stall_ms)),
            &|x| format!("{x:.1} ms"),
            &|x| x <= MOST_STALL_MS,
        ),
        figure(
            "guest IOPS while copies are sent ahead over none, pre-copy",
            "at least -5 %",
            least(ours().filter_map(|s| s.iops_ahead.as_ref().map(mean))),
            &percent,
            &|x| x >= LEAST_IOPS_AHEAD,
        ),
        figure(
            "neighbours' p99 while copies are sent ahead over none, pre-copy",
            "at most +10 %",
            most(ours().flat_map(|s| s.neighbours_ahead.iter().flatten().map(mean))),
            &percent,
            &|x| x <= MOST_RISE,
        ),
        figure(
            "guest IOPS after the stop over none, invalidation-filter",
            "at least +16.7 %, as its paper",
            least(of(Method::InvalidationFilter).filter_map(|s| s.iops_over_none.as_ref().map(mean))),
            &percent,
            &|x| x >= PAPER_OVER_NONE,
        ),
        figure(
            "guest IOPS after the stop, pre-copy over the best other method",
            "above 0",
            least(ours().filter_map(|s| over_best_other(summaries, s))),
            &percent,
            &|x| x > 0.0,
        ),
    ]
}

/// How soon the cache serves as before. That says something of a method only where it takes longer than the goal with `none`.
fn recovery(summaries: &[CaseSummary]) -> Goal {
    let is_soon = |s: &CaseSummary| s.recovered_seconds.is_some_and(|seconds| seconds.mean <= MOST_SECONDS);
    let is_late_without = |ours: &CaseSummary| {
        let mut none = summaries.iter().filter(|s| s.is_alike(ours) && s.method == Method::None);
        none.any(|s| !is_soon(s) && s.window_seconds >= MOST_SECONDS)
    };
    let ours: Vec<&CaseSummary> = summaries.iter().filter(|s| s.method == Method::PreCopy).collect();
    let reached = if ours.iter().any(|s| !is_soon(s)) {
        Some(false)
    } else {
        ours.iter().any(|s| is_late_without(s)).then_some(true)
    };
    let seconds: Option<Vec<f64>> = ours.iter().map(|s| s.recovered_seconds.as_ref().map(mean)).collect();
    let found = match seconds {
        None => "not in the window".into(),
        Some(seconds) => match most(seconds.into_iter()) {
            None => "-".into(),
            Some(seconds) if reached.is_none() => format!("{seconds:.2} s, none perhaps, too"),
            Some(seconds) => format!("{seconds:.2} s"),
        },
    };
    Goal { measure: "90 % of the hit ratio before, pre-copy", goal: "after at most 5 s", found, reached }
}

/// IOPS over none, over those of the best other method of the same case, less 1.
fn over_best_other(summaries: &[CaseSummary], ours: &CaseSummary) -> Option<f64> {
    let is_rival = |s: &&CaseSummary| s.is_alike(ours) && s.method != ours.method && s.method != Method::None;
    let rivals = summaries.iter().filter(is_rival).filter_map(|s| s.iops_over_none.as_ref().map(mean));
    let best = most(rivals)?;
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

    fn found(summaries: &[CaseSummary]) -> Vec<(String, Option<bool>)> {
        goals(summaries).into_iter().map(|goal| (goal.found, goal.reached)).collect()
    }

    fn judged(yes: bool, figures: [&str; 7]) -> Vec<(String, Option<bool>)> {
        figures.map(|figure| (figure.to_string(), Some(yes))).to_vec()
    }

    #[test]
    fn goals_are_reached() {
        let none = summary(Method::None);
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
        let expected = ["5.00 s", "1.00", "50.0 ms", "+0.0 %", "+10.0 %", "+20.0 %", "+10.0 %"];
        assert_eq!(found(&[none, filter, ours]), judged(true, expected));
    }

    #[test]
    fn goals_are_missed_in_the_worst_case() {
        let filter = CaseSummary { iops_over_none: some(0.1), ..summary(Method::InvalidationFilter) };
        let good = CaseSummary { fraction: 0.9, recovered_seconds: some(1.0), ..summary(Method::PreCopy) };
        let bad = CaseSummary {
            recovered_seconds: some(6.0),
            wire_over_needed: Estimate::of(&[1.2]),
            longest_stall_ms: 51.0,
            iops_ahead: some(-0.06),
            neighbours_ahead: [some(0.2), None],
            iops_over_none: some(-0.12),
            ..summary(Method::PreCopy)
        };
        let expected = ["6.00 s", "1.20", "51.0 ms", "-6.0 %", "+20.0 %", "+10.0 %", "-20.0 %"];
        assert_eq!(found(&[filter, good.clone(), bad.clone()]), judged(false, expected));
        let never = CaseSummary { recovered_seconds: None, ..bad };
        assert_eq!(found(&[good, never])[0], ("not in the window".into(), Some(false)));
    }

    #[test]
    fn what_was_not_measured_is_not_judged() {
        let expected: Vec<_> = (0..7).map(|_| ("-".to_string(), None)).collect();
        assert_eq!(found(&[summary(Method::None)]), expected);
        let [none, ours] = [Method::None, Method::PreCopy]
            .map(|method| CaseSummary { recovered_seconds: some(1.0), ..summary(method) });
        let found = found(&[none, ours.clone()]);
        assert_eq!(found[0], ("1.00 s, none perhaps, too".into(), None));
        assert_eq!(found[3..], expected[3..], "no requests in flight, no neighbours");
        let short = CaseSummary { window_seconds: 1.5, ..summary(Method::None) };
        assert_eq!(super::goals(&[short, ours])[0].reached, None, "none is not known to take longer");
    }
}
