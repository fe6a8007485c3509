//! Judges a comparison: what the paper reports, and what is wanted of ours.

use serde::Serialize;

use super::{ClusterComparison, Details, Run, Scenario};
use crate::cluster::model::Event;
use crate::cluster::{System, model};

/// CloudCache with migration over CloudCache's allocation alone, from what it reports of both over none: +28 % and +17
/// % hits, -27 % and -13 % of the 90th percentile.
const PAPER_HITS: f64 = 1.28 / 1.17 - 1.0;
const PAPER_P90: f64 = 0.73 / 0.87 - 1.0;
/// Within this many windows, the variance of load must fall to half of its value right after a step in demand.
const WINDOWS: usize = 3;
const HALF: f64 = 0.5;
/// A round of the balancer with this many hosts is to take no longer than that.
const MANY_HOSTS: usize = 10_000;
const MOST_SECONDS: f64 = 1.0;

/// A goal, and the results of all seeds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Goal {
    /// What is measured.
    pub measure: String,
    /// The target.
    pub goal: String,
    /// The mean over seeds.
    pub mean: String,
    /// The worst seed.
    pub worst: String,
    /// Whether the mean reaches the goal, or the worst where every seed must; `None` if it was not measured.
    pub reached: Option<bool>,
}

/// Which way is better.
#[derive(Clone, Copy, PartialEq)]
enum Better {
    High,
    Low,
}

fn percent(part: f64) -> String {
    format!("{:+.1} %", part * 100.0)
}

/// A goal for the mean of a figure. A mean that equals the limit does not reach the goal.
fn judged(
    measure: &str,
    goal: String,
    limit: f64,
    better: Better,
    text: fn(f64) -> String,
    found: &[f64],
) -> Goal {
    let mean = found.iter().sum::<f64>() / found.len().max(1) as f64;
    let worst = match better {
        Better::High => found.iter().copied().fold(f64::INFINITY, f64::min),
        Better::Low => found.iter().copied().fold(f64::NEG_INFINITY, f64::max),
    };
    let is_measured = !found.is_empty();
    let reached = match better {
        Better::High => mean > limit,
        Better::Low => mean < limit,
    };
    let shown = |figure: f64| if is_measured { text(figure) } else { "-".into() };
    Goal {
        measure: measure.into(),
        goal,
        mean: shown(mean),
        worst: shown(worst),
        reached: is_measured.then_some(reached),
    }
}

/// A goal that every seed has to reach.
fn always(measure: &str, goal: &str, most: f64, text: fn(f64) -> String, found: &[f64]) -> Goal {
    let mean = judged(measure, goal.into(), most, Better::Low, text, found);
    Goal { reached: mean.reached.map(|_| found.iter().all(|figure| *figure <= most)), ..mean }
}

/// A figure of a system relative to that of another, minus 1, for each seed that both have and in which the other is
/// not 0.
fn relative(
    comparison: &ClusterComparison,
    ours: System,
    other: System,
    figure: fn(&Run) -> f64,
) -> Vec<f64> {
    let other = |seed: u64| comparison.of(other).find(|run| run.seed == seed);
    let pairs = comparison.of(ours).filter_map(|run| Some((run, other(run.seed)?)));
    pairs.map(|(run, other)| figure(run) / figure(other) - 1.0).filter(|part| part.is_finite()).collect()
}

/// The goals that this scenario can judge.
pub fn goals(comparison: &ClusterComparison) -> Vec<Goal> {
    match &comparison.scenario {
        Scenario::Traced(_) => of_trace(comparison),
        Scenario::Model(scenario) => of_model(comparison, scenario),
    }
}

fn of_trace(comparison: &ClusterComparison) -> Vec<Goal> {
    let hits = |ours, other| relative(comparison, ours, other, |run| run.hit_ratio);
    let p90 = |ours, other| relative(comparison, ours, other, |run| run.p90_us);
    let mean = |ours, other| relative(comparison, ours, other, |run| run.mean_us);
    let least = |limit: f64| format!("at least {}, as in the paper", percent(limit));
    let most = |limit: f64| format!("at most {}, as in the paper", percent(limit));
    let mut goals = Vec::new();
    for (ours, local) in [
        (System::LeastVariance, System::Local),
        (System::LeastLatency, System::Local),
        (System::Haversack, System::Local),
    ] {
        let measure = |what: &str| format!("{what}: {ours} over {local}");
        let (high, low) = (Better::High, Better::Low);
        goals.push(judged(
            &measure("hits"),
            least(PAPER_HITS),
            PAPER_HITS,
            high,
            percent,
            &hits(ours, local),
        ));
        let found = p90(ours, local);
        goals.push(judged(&measure("p90 latency"), most(PAPER_P90), PAPER_P90, low, percent, &found));
    }
    let alone = format!("hits: {} over {}", System::Haversack, System::HaversackLocal);
    let found = hits(System::Haversack, System::HaversackLocal);
    goals.push(judged(&alone, "above 0".into(), 0.0, Better::High, percent, &found));
    for ours in [System::LeastLatency, System::Haversack] {
        let measure = |what: &str| format!("{what}: {ours} over {}", System::LeastVariance);
        let found = hits(ours, System::LeastVariance);
        goals.push(judged(&measure("hits"), "above 0".into(), 0.0, Better::High, percent, &found));
        let found = mean(ours, System::LeastVariance);
        goals.push(judged(&measure("mean latency"), "below 0".into(), 0.0, Better::Low, percent, &found));
    }
    goals
}

fn of_model(comparison: &ClusterComparison, scenario: &model::Scenario) -> Vec<Goal> {
    let outcomes = |system: System| comparison.of(system).filter_map(outcome);
    let ours = || outcomes(System::LeastLatency);
    let mut goals = Vec::new();
    // If no VM can move, all of these are alike.
    let moves = scenario.pinned < 1.0;
    for other in [System::Local, System::LeastVariance].into_iter().filter(|_| moves) {
        let found = relative(comparison, System::LeastLatency, other, |run| run.mean_us);
        let measure = format!("mean latency: {} over {other}", System::LeastLatency);
        goals.push(judged(&measure, "below 0".into(), 0.0, Better::Low, percent, &found));
    }
    if scenario.lend > 0.0 {
        let lending =
            |figure: fn(&Run) -> f64| relative(comparison, System::Lending, System::LeastLatency, figure);
        for (what, found) in [
            ("mean latency", lending(|run| run.mean_us)),
            ("accesses of the origin", lending(|run| 1.0 - run.hit_ratio - run.lent_hit_ratio)),
        ] {
            let measure = format!("{what}: {} over {}", System::Lending, System::LeastLatency);
            goals.push(judged(&measure, "below 0".into(), 0.0, Better::Low, percent, &found));
        }
    }
    let steps = scenario.events.iter().filter(|event| moves && matches!(event, Event::Step { .. }));
    for step in steps {
        let at = scenario.window_of(step.at()) as usize;
        for system in [System::LeastVariance, System::LeastLatency] {
            let found: Vec<f64> = outcomes(system).filter_map(|outcome| after_step(outcome, at)).collect();
            let measure = format!("variance of load {WINDOWS} windows after a step: {system}");
            let text = |part: f64| format!("{:.1} %", part * 100.0);
            goals.push(always(&measure, "at most half", HALF, text, &found));
        }
    }
    let number = |figure: f64| format!("{figure:.0}");
    let twice: Vec<f64> = ours().map(|outcome| outcome.moved_twice as f64).collect();
    goals.push(always("VMs moved twice in an hour: least-latency", "none", 0.0, number, &twice));
    let all = comparison.runs.iter().filter_map(outcome);
    let lost: Vec<f64> = all.map(|outcome| outcome.lost as f64).collect();
    goals.push(always("VMs lost, with every rule", "none", 0.0, number, &lost));
    if scenario.hosts >= MANY_HOSTS {
        let took: Vec<f64> = ours().map(|outcome| outcome.longest_round.as_secs_f64()).collect();
        let seconds = |figure: f64| format!("{figure:.2} s");
        goals.push(always(
            "longest round of the balancer: least-latency",
            "at most 1 s",
            MOST_SECONDS,
            seconds,
            &took,
        ));
    }
    goals
}

fn outcome(run: &Run) -> Option<&model::Outcome> {
    match &run.details {
        Details::Model(outcome) => Some(outcome),
        Details::Traced(_) => None,
    }
}

/// The variance some windows after a step over that in its first window.
fn after_step(outcome: &model::Outcome, at: usize) -> Option<f64> {
    let first = outcome.windows.get(at)?.variance;
    Some(outcome.windows.get(at + WINDOWS)?.variance / first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_decides_unless_every_seed_must() {
        let of = |found: &[f64]| judged("m", "g".into(), 0.1, Better::High, percent, found);
        assert_eq!((of(&[0.3, -0.05]).reached, of(&[0.3, -0.05]).worst), (Some(true), "-5.0 %".into()));
        assert_eq!((of(&[0.1, 0.0]).reached, of(&[]).reached, of(&[]).mean), (Some(false), None, "-".into()));
        let every = |found: &[f64]| always("m", "g", 0.5, percent, found).reached;
        assert_eq!((every(&[0.1, 0.5]), every(&[0.1, 0.6]), every(&[])), (Some(true), Some(false), None));
    }

    #[test]
    fn the_papers_relation_is_that_of_its_figures() {
        assert_eq!((percent(PAPER_HITS), percent(PAPER_P90)), ("+9.4 %".into(), "-16.1 %".into()));
    }

    #[test]
    fn equal_is_not_ahead() {
        for (better, figure, reached) in [
            (Better::Low, 0.0, Some(false)),
            (Better::Low, -0.001, Some(true)),
            (Better::High, 0.0, Some(false)),
            (Better::High, 0.001, Some(true)),
        ] {
            assert_eq!(judged("hits", String::new(), 0.0, better, percent, &[figure]).reached, reached);
        }
        assert_eq!(judged("hits", String::new(), 0.0, Better::Low, percent, &[]).reached, None);
    }
}
