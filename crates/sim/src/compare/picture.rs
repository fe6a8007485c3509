//! Latency and hits over flash writes, a line for each system through its settings, and over the size of the pool.

use haversack_report::{Axis, LineChart, Unit};

use super::summary::{MeanBounds, Summary};
use super::system::System;
use super::winners::Best;

/// Maximum number of systems with their own lines; over flash writes the others are dots.
const NAMED: usize = 7;

/// Mean latency over flash writes. Points further left and further down are better.
pub fn latency(title: &str, summaries: &[&Summary], subject: Option<&System>) -> LineChart {
    let unit = Unit::Named("blocks");
    let chart = LineChart::new(
        title,
        Axis::linear("Flash writes for each block accessed", unit),
        Axis::linear("Mean latency", Unit::Seconds),
    );
    draw(chart, summaries, subject, |summary| summary.mean_us.mean / 1e6)
}

/// Hits over flash writes, with the bounds. Points further left and further up are better.
pub fn hits(title: &str, summaries: &[&Summary], subject: Option<&System>, bounds: &MeanBounds) -> LineChart {
    let most = summaries.iter().map(|summary| summary.flash_write_ratio.mean).fold(0.0, f64::max);
    let chart = LineChart::new(
        title,
        Axis::linear("Flash writes for each block accessed", Unit::Named("blocks")),
        Axis::linear("Hits", Unit::Share),
    );
    let chart = draw(chart, summaries, subject, |summary| summary.hit_ratio.mean);
    let level = |hits: f64| vec![(0.0, hits), (most, hits)];
    let chart =
        chart.dashed("MIN", level(bounds.min)).dashed("best static split", level(bounds.static_split));
    chart.dots("one LRU cache", vec![(bounds.global_lru_flash_writes, bounds.global_lru)])
}

fn draw(
    mut chart: LineChart,
    summaries: &[&Summary],
    subject: Option<&System>,
    figure: impl Fn(&Summary) -> f64,
) -> LineChart {
    let place = |summary: &Summary| (summary.flash_write_ratio.mean, figure(summary));
    let named = named(summaries, subject);
    for system in &named {
        let own = summaries.iter().filter(|summary| summary.system == **system);
        let mut points: Vec<_> = own.map(|summary| place(summary)).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        chart = chart.line(&system.label(), points);
    }
    let others = summaries.iter().filter(|summary| !named.contains(&&summary.system));
    let others: Vec<_> = others.map(|summary| place(summary)).collect();
    if others.is_empty() { chart } else { chart.dots("others", others) }
}

/// The subject, then the systems that no other dominates, the ones with the lowest latency first.
fn named<'a>(summaries: &[&'a Summary], subject: Option<&System>) -> Vec<&'a System> {
    let mut front: Vec<&Summary> = summaries
        .iter()
        .copied()
        .filter(|summary| !summaries.iter().any(|other| other.dominates(summary)))
        .collect();
    front.sort_by(|a, b| a.mean_us.mean.total_cmp(&b.mean_us.mean));
    let judged = summaries.iter().map(|summary| &summary.system).find(|system| Some(*system) == subject);
    let mut named: Vec<&System> = judged.into_iter().collect();
    for summary in front {
        if !named.contains(&&summary.system) && named.len() < NAMED {
            named.push(&summary.system);
        }
    }
    named
}

/// A pool of one size.
pub struct AtSize<'a> {
    /// What it can hold.
    pub held_bytes: f64,
    /// The systems in it.
    pub summaries: Vec<&'a Summary>,
    /// The bounds.
    pub bounds: MeanBounds,
}

/// Mean latency over the size of the pool.
pub fn latency_over_size(sizes: &[AtSize<'_>], subject: Option<&System>) -> LineChart {
    let latency = Axis::linear("Mean latency", Unit::Seconds);
    let chart = LineChart::new("Mean latency over the size of the pool", size_axis(sizes), latency);
    over_size(chart, sizes, subject, Best::MeanLatency, |summary| summary.mean_us.mean / 1e6)
}

/// Hits over the size of the pool, with the bounds.
pub fn hits_over_size(sizes: &[AtSize<'_>], subject: Option<&System>) -> LineChart {
    let chart =
        LineChart::new("Hits over the size of the pool", size_axis(sizes), Axis::linear("Hits", Unit::Share));
    let bound = |of: fn(&MeanBounds) -> f64| -> Vec<_> {
        sizes.iter().map(|size| (size.held_bytes, of(&size.bounds))).collect()
    };
    over_size(chart, sizes, subject, Best::Hits, |summary| summary.hit_ratio.mean)
        .dashed("MIN", bound(|bounds| bounds.min))
        .dashed("best static split", bound(|bounds| bounds.static_split))
        .dashed("one LRU cache", bound(|bounds| bounds.global_lru))
}

fn size_axis(sizes: &[AtSize<'_>]) -> Axis {
    Axis::sizes("What the pool can hold", sizes.iter().map(|size| size.held_bytes))
}

/// The one with the lowest cost.
fn least<'a>(summaries: impl Iterator<Item = &'a Summary>, best: Best) -> Option<&'a Summary> {
    summaries.min_by(|a, b| best.cost(a).total_cmp(&best.cost(b)))
}

/// A line for the subject, and for each system that is best somewhere; at each size through its best pool.
fn over_size(
    mut chart: LineChart,
    sizes: &[AtSize<'_>],
    subject: Option<&System>,
    best: Best,
    figure: impl Fn(&Summary) -> f64,
) -> LineChart {
    let all = || sizes.iter().flat_map(|size| size.summaries.iter().copied());
    let judged = all().map(|summary| &summary.system).find(|system| Some(*system) == subject);
    let mut named: Vec<&System> = judged.into_iter().collect();
    for by in [Best::MeanLatency, Best::Hits] {
        for size in sizes {
            let system = least(size.summaries.iter().copied(), by).map(|summary| &summary.system);
            named.extend(system.filter(|system| !named.contains(system)));
        }
    }
    for system in named.into_iter().take(NAMED) {
        let point = |size: &AtSize<'_>| {
            let own = size.summaries.iter().copied().filter(|summary| summary.system == *system);
            Some((size.held_bytes, figure(least(own, best)?)))
        };
        chart = chart.line(&system.label(), sizes.iter().filter_map(point).collect());
    }
    chart
}
