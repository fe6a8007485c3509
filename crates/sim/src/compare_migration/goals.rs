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
    /// What was found, in the worst case.
    pub found: String,
    /// Whether it was reached; none if it was not measured.
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

fn worst(values: impl Iterator<Item = f64>) -> Option<f64> {
    values.max_by(f64::total_cmp)
}

fn mean(estimate: &Estimate) -> f64 {
    estimate.mean
}

/// The goals that a simulation can judge, for the default method over all links and sizes.
pub fn goals(summaries: &[CaseSummary]) -> Vec<Goal> {
    let of = |method: Method| move |summary: &&CaseSummary| summary.method == method;
    let ours: Vec<&CaseSummary> = summaries.iter().filter(of(Method::PreCopy)).collect();
    let figure =
        |measure, goal, found: Option<f64>, text: &dyn Fn(f64) -> String, good: &dyn Fn(f64) -> bool| Goal {
            measure,
            goal,
            found: found.map_or_else(|| "-".into(), text),
            reached: found.map(good),
        };
    let recovered: Option<Vec<f64>> = ours.iter().map(|s| s.recovered_seconds.as_ref().map(mean)).collect();
    let is_seen = ours.is_empty() || recovered.is_some();
    let mut goals = vec![Goal {
        measure: "90 % of the hit ratio before, pre-copy",
        goal: "after at most 5 s",
        found: match &recovered {
            Some(seconds) => {
                worst(seconds.iter().copied()).map_or_else(|| "-".into(), |s| format!("{s:.2} s"))
            }
            None => "not in the window".into(),
        },
        reached: (!ours.is_empty())
            .then(|| is_seen && recovered.iter().flatten().all(|seconds| *seconds <= MOST_SECONDS)),
    }];
    goals.push(figure(
        "bytes on the wire over those used again and those written, pre-copy",
        "at most 1.1",
        worst(ours.iter().map(|s| s.wire_over_needed.mean)),
        &|x| format!("{x:.2}"),
        &|x| x <= MOST_OVER_NEEDED,
    ));
    goals.push(figure(
        "longest stall, pre-copy",
        "at most 50 ms",
        worst(ours.iter().map(|s| s.longest_stall_ms)),
        &|x| format!("{x:.1} ms"),
        &|x| x <= MOST_STALL_MS,
    ));
    goals.push(figure(
        "guest IOPS while copies are sent ahead, pre-copy",
        "at least -5 %",
        worst(ours.iter().filter_map(|s| s.iops_ahead.as_ref().map(|e| -e.mean))).map(|x| -x),
        &percent,
        &|x| x >= LEAST_IOPS_AHEAD,
    ));
    goals.push(figure(
        "neighbours' p99 while copies are sent ahead, pre-copy",
        "at most +10 %",
        worst(ours.iter().flat_map(|s| s.neighbours_ahead.iter().flatten().map(mean))),
        &percent,
        &|x| x <= MOST_RISE,
    ));
    let filter = summaries.iter().filter(of(Method::InvalidationFilter));
    goals.push(figure(
        "guest IOPS after the stop over none, invalidation-filter",
        "at least +16.7 %, as its paper",
        worst(filter.filter_map(|s| s.iops_over_none.as_ref().map(|e| -e.mean))).map(|x| -x),
        &percent,
        &|x| x >= PAPER_OVER_NONE,
    ));
    goals.push(figure(
        "guest IOPS after the stop, pre-copy over the best other method",
        "above 0",
        worst(ours.iter().filter_map(|s| best_other(summaries, s).map(|x| -x))).map(|x| -x),
        &percent,
        &|x| x > 0.0,
    ));
    goals
}

/// IOPS over none, over those of the best other method of the same case, less 1.
fn best_other(summaries: &[CaseSummary], ours: &CaseSummary) -> Option<f64> {
    let is_rival = |s: &&CaseSummary| {
        s.link == ours.link
            && s.fraction == ours.fraction
            && s.method != ours.method
            && s.method != Method::None
    };
    let rivals = summaries.iter().filter(is_rival).filter_map(|s| s.iops_over_none.as_ref().map(mean));
    let best = worst(rivals)?;
    Some((1.0 + ours.iops_over_none.as_ref()?.mean) / (1.0 + best) - 1.0)
}
