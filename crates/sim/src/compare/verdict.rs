//! Compares the subject with its rivals: at each point, which is a mix and a size, and over all points.
//!
//! Rivals may be tuned: each window length is a separate rival. Figures are means over seeds. The subject's
//! result for a number of flash writes is the best of its simulated pools that wrote no more than that, not
//! an interpolation.

use serde::Serialize;

use super::statistics::median;
use super::summary::{MeanBounds, Summary, mean_bounds, summaries};
use super::{Comparison, System};

/// Flash writes that differ by less than this part count as equal.
const EQUAL_WRITES: f64 = 0.02;

/// A rival, and the subject's relative latency with no more flash writes than the rival.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct AtEqualWrites {
    /// The rival.
    pub rival: System,
    /// Length of its windows in seconds.
    pub window_s: f64,
    /// The subject's mean latency relative to the rival's, minus one: negative if the subject is faster.
    /// `None` if no simulated pool of the subject wrote so little.
    pub latency_difference: Option<f64>,
}

/// The subject at one point.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Point {
    /// The mix.
    pub mix: String,
    /// Size of the pool as a part of the footprint.
    pub fraction: f64,
    /// The subject.
    pub subject: Summary,
    /// Rivals with both lower mean latency and fewer flash writes.
    pub dominated_by: Vec<System>,
    /// The rival with the most hits.
    pub best_rival: Summary,
    /// The subject's hits with at most half of that rival's flash writes, relative to that rival's hits.
    /// `None` if no simulated pool of the subject wrote so little.
    pub hits_at_half_writes: Option<f64>,
    /// Every rival at equal flash writes.
    pub at_equal_writes: Vec<AtEqualWrites>,
    /// The subject's hit ratio minus that of one LRU cache for all.
    pub over_global_lru: f64,
    /// The fraction of the distance between the best rival's hits and those of the best static split that the
    /// subject covers. `None` if the rival already has as many hits as the split.
    pub distance_closed: Option<f64>,
    /// The bounds.
    pub bounds: MeanBounds,
}

/// A measure over all points.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Measure {
    /// What is measured.
    pub measure: &'static str,
    /// The goal.
    pub goal: &'static str,
    /// The result, in words.
    pub found: String,
    /// Whether the goal is reached; `None` if it could not be measured.
    pub reached: Option<bool>,
}

/// The subject against all rivals on all mixes.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Verdict {
    /// The subject.
    pub subject: System,
    /// Its points.
    pub points: Vec<Point>,
    /// Over all points.
    pub measures: Vec<Measure>,
}

/// Budgets for comparing the subject at its rivals' flash writes, for each size: the writes of each rival
/// that no other rival beats in both latency and writes, and half of the writes of the rival with the most
/// hits. Budgets that the subject does not exceed anyway are left out.
pub(super) fn budgets(comparison: &Comparison, subject: &System) -> Vec<(f64, f64)> {
    let mut budgets = Vec::new();
    for fraction in &comparison.mix.fractions {
        let all = summaries(comparison).into_iter().filter(|summary| summary.fraction == *fraction);
        let (own, rivals): (Vec<Summary>, Vec<Summary>) = all.partition(|summary| summary.system == *subject);
        let writes = |summary: &Summary| summary.flash_write_ratio.mean;
        let front = rivals.iter().filter(|rival| !rivals.iter().any(|other| other.dominates(rival)));
        let best = rivals.iter().max_by(|a, b| a.hit_ratio.mean.total_cmp(&b.hit_ratio.mean));
        let mut wanted: Vec<f64> = front.map(writes).chain(best.map(|best| writes(best) / 2.0)).collect();
        wanted.retain(|blocks| own.iter().all(|summary| writes(summary) > *blocks));
        wanted.sort_by(f64::total_cmp);
        wanted.dedup_by(|a, b| (*a - *b).abs() <= EQUAL_WRITES * *b);
        budgets.extend(wanted.into_iter().map(|blocks| (*fraction, blocks)));
    }
    budgets
}

/// Judges the subject. `None` if it or its rivals were not simulated.
pub fn verdict(comparisons: &[Comparison], subject: &System) -> Option<Verdict> {
    let mut points = Vec::new();
    for comparison in comparisons {
        let all = summaries(comparison);
        for fraction in &comparison.mix.fractions {
            let (own, rivals): (Vec<&Summary>, Vec<&Summary>) = all
                .iter()
                .filter(|summary| summary.fraction == *fraction)
                .partition(|summary| summary.system == *subject);
            points.extend(point(comparison, *fraction, &own, &rivals));
        }
    }
    (!points.is_empty()).then(|| Verdict { subject: subject.clone(), measures: measures(&points), points })
}

fn point(comparison: &Comparison, fraction: f64, own: &[&Summary], rivals: &[&Summary]) -> Option<Point> {
    let subject = *own.first()?;
    let hits = |summary: &Summary| summary.hit_ratio.mean;
    let best = rivals.iter().copied().max_by(|a, b| hits(a).total_cmp(&hits(b)))?;
    let within = |writes: f64| {
        let most = writes * (1.0 + EQUAL_WRITES);
        own.iter().copied().filter(move |summary| summary.flash_write_ratio.mean <= most)
    };
    let at_equal_writes = |rival: &&Summary| AtEqualWrites {
        rival: rival.system.clone(),
        window_s: rival.window_s,
        latency_difference: within(rival.flash_write_ratio.mean)
            .map(|summary| summary.mean_us.mean / rival.mean_us.mean - 1.0)
            .min_by(f64::total_cmp),
    };
    let bounds = mean_bounds(comparison, fraction);
    let distance = bounds.static_split - hits(best);
    let dominating = rivals.iter().filter(|rival| rival.dominates(subject));
    Some(Point {
        mix: comparison.mix.title.clone(),
        fraction,
        subject: subject.clone(),
        dominated_by: dominating.map(|rival| rival.system.clone()).collect(),
        best_rival: best.clone(),
        hits_at_half_writes: within(best.flash_write_ratio.mean / 2.0)
            .map(|summary| hits(summary) / hits(best).max(f64::MIN_POSITIVE))
            .max_by(f64::total_cmp),
        at_equal_writes: rivals.iter().map(at_equal_writes).collect(),
        over_global_lru: hits(subject) - bounds.global_lru,
        distance_closed: (distance > 0.0).then(|| (hits(subject) - hits(best)) / distance),
        bounds,
    })
}

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

fn measures(points: &[Point]) -> Vec<Measure> {
    vec![
        not_dominated(points),
        hits_at_half_writes(points),
        latency_at_equal_writes(points),
        over_global_lru(points),
        distance_closed(points),
        decision(points),
    ]
}

fn not_dominated(points: &[Point]) -> Measure {
    let free = points.iter().filter(|point| point.dominated_by.is_empty()).count();
    let share = free as f64 / points.len() as f64;
    Measure {
        measure: "points where no rival has both lower mean latency and fewer flash writes",
        goal: "95 %",
        found: format!("{} ({free} of {})", percent(share), points.len()),
        reached: Some(share >= 0.95),
    }
}

fn hits_at_half_writes(points: &[Point]) -> Measure {
    let ratios: Vec<f64> = points.iter().filter_map(|point| point.hits_at_half_writes).collect();
    let found = match median(&ratios) {
        Some(middle) => {
            let worst = ratios.iter().copied().fold(f64::INFINITY, f64::min);
            let not = points.len() - ratios.len();
            format!("{middle:.2} in the median, {worst:.2} at worst; {not} points without such a pool")
        }
        None => "no pool of the subject wrote so little".into(),
    };
    Measure {
        measure: "hits relative to the best rival's, at half its flash writes",
        goal: "1.15",
        found,
        reached: (ratios.len() == points.len()).then(|| ratios.iter().all(|ratio| *ratio >= 1.15)),
    }
}

fn latency_at_equal_writes(points: &[Point]) -> Measure {
    let all = || points.iter().flat_map(|point| &point.at_equal_writes);
    let differences: Vec<f64> = all().filter_map(|rival| rival.latency_difference).collect();
    let not = all().count() - differences.len();
    let worst = differences.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (found, reached) = match median(&differences) {
        Some(middle) => (
            format!(
                "{:+.1} % in the median, {:+.1} % at worst; {not} of {} rivals without such a pool",
                middle * 100.0,
                worst * 100.0,
                all().count()
            ),
            (not == 0).then_some(middle <= -0.1 && worst <= 0.03),
        ),
        None => ("no pool of the subject wrote so little".into(), None),
    };
    Measure {
        measure: "mean latency against each rival, at no more flash writes than it has",
        goal: "-10 % in the median, +3 % at worst",
        found,
        reached,
    }
}

fn over_global_lru(points: &[Point]) -> Measure {
    let over: Vec<f64> = points.iter().map(|point| point.over_global_lru).collect();
    let worst = over.iter().copied().fold(f64::INFINITY, f64::min);
    let middle = median(&over).unwrap_or(0.0);
    Measure {
        measure: "hits more than one LRU cache for all",
        goal: "5 points in the median, 0 at worst",
        found: format!("{:+.1} points in the median, {:+.1} at worst", middle * 100.0, worst * 100.0),
        reached: Some(middle >= 0.05 && worst >= 0.0),
    }
}

fn distance_closed(points: &[Point]) -> Measure {
    let closed: Vec<f64> = points.iter().filter_map(|point| point.distance_closed).collect();
    let middle = median(&closed);
    let beyond = points.len() - closed.len();
    Measure {
        measure: "distance closed between the best rival's hits and the best static split's",
        goal: "50 %",
        found: match middle {
            Some(middle) => format!(
                "{} in the median of {} points; at {beyond} the rival is not below the split",
                percent(middle),
                closed.len()
            ),
            None => "no rival is below the split".into(),
        },
        reached: middle.map(|middle| middle >= 0.5),
    }
}

fn decision(points: &[Point]) -> Measure {
    let longest = points.iter().map(|point| point.subject.decision_ms).fold(0.0, f64::max);
    Measure {
        measure: "processor time of the longest decision",
        goal: "50 ms",
        found: format!("{longest:.1} ms"),
        reached: Some(longest <= 50.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{Bounds, StaticSplit};
    use crate::tape::Survey;

    fn row(system: &System, window_s: f64, hits: f64, mean_us: f64, writes: f64) -> Summary {
        Summary { window_s, ..Summary::of_one_seed(system, hits, mean_us, writes) }
    }

    fn comparison() -> Comparison {
        let mix = toml::from_str("title = \"m\"\nfractions = [0.1]\ndisk = []\n").expect("a mix");
        let bounds = Bounds {
            seed: 1,
            fraction: 0.1,
            blocks: 100,
            held_blocks: 100,
            raised_to: None,
            unlimited: 0.9,
            min: 0.8,
            global_lru: 0.4,
            global_lru_flash_writes: 1.0,
            static_split: StaticSplit { hit_ratio: 0.7, blocks: vec![100] },
        };
        Comparison { mix, trace: Survey::default(), combinations: Vec::new(), bounds: vec![bounds] }
    }

    #[test]
    fn each_measure_of_a_point_is_what_its_definition_says() {
        let (own, one, two) = (System::own("auto"), System::own("urd"), System::own("wss"));
        let own = [row(&own, 1.0, 0.6, 900.0, 0.4), row(&own, 1.0, 0.55, 1000.0, 0.25)];
        let rivals = [
            row(&one, 1.0, 0.5, 1000.0, 0.5),
            row(&one, 10.0, 0.3, 1200.0, 0.26),
            row(&two, 1.0, 0.4, 800.0, 0.3),
            row(&two, 10.0, 0.1, 2000.0, 0.1),
        ];
        let (own, rivals): (Vec<_>, Vec<_>) = (own.iter().collect(), rivals.iter().collect());
        let point = point(&comparison(), 0.1, &own, &rivals).unwrap();
        assert_eq!(point.dominated_by, std::slice::from_ref(&two));
        assert_eq!(point.best_rival.system, one);
        assert!((point.hits_at_half_writes.unwrap() - 1.1).abs() < 1e-9);
        assert!((point.over_global_lru - 0.2).abs() < 1e-9);
        assert!((point.distance_closed.unwrap() - 0.5).abs() < 1e-9);
        let differences: Vec<_> =
            point.at_equal_writes.iter().map(|rival| rival.latency_difference).collect();
        assert!((differences[0].unwrap() + 0.1).abs() < 1e-9);
        assert!((differences[1].unwrap() + 1.0 / 6.0).abs() < 1e-9);
        assert!((differences[2].unwrap() - 0.25).abs() < 1e-9);
        assert_eq!(differences[3], None);
        let measures = measures(&[point]);
        assert_eq!(measures[0].found, "0.0 % (0 of 1)");
        assert_eq!(measures[1].reached, Some(false));
        assert_eq!(measures[2].reached, None, "a rival wrote less than any pool of the subject");
        assert_eq!(measures[3].reached, Some(true));
        assert_eq!(measures[4].reached, Some(true));
    }

    #[test]
    fn without_the_subject_or_its_rivals_there_is_no_verdict() {
        assert_eq!(verdict(&[comparison()], &System::own("auto")), None);
    }
}
