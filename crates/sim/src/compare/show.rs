//! Comparisons as tables, and as a page.

use haversack_model::BLOCK_BYTES;
use haversack_report::{Axis, Page, Section, StackedArea, Table, Unit, counted};

use super::picture::{self, AtSize};
use super::ranking::{RankedBy, Ranking, Swap, rankings};
use super::summary::{Summary, mean_bounds, summaries};
use super::verdict::{Point, Verdict};
use super::winners::{Best, best};
use super::{Bounds, Combination, Comparison, DiskRow};

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

fn bytes(blocks: u64) -> String {
    Unit::Bytes.format((blocks * BLOCK_BYTES as u64) as f64)
}

/// Every system in a row, size by size: means over seeds with 95 % confidence intervals. The last column says what a
/// system is best in among those with pools of the same size; the lowest mean latency is marked.
pub fn table(comparison: &Comparison) -> Table {
    let mut table = Table::new([
        "allocator",
        "admission",
        "writes",
        "window",
        "pool",
        "read hits %",
        "hits %",
        "mean us",
        "p95 us",
        "to flash",
        "budget",
        "decision ms",
        "best in",
    ])
    .words(3)
    .words(12);
    let all = summaries(comparison);
    let winners = best(&all);
    for (row, winner) in all.iter().zip(&winners) {
        let system = &row.system;
        let titles: Vec<&str> = winner.iter().map(|best| best.title()).collect();
        let cells = [
            system.allocator.clone(),
            system.admission.clone(),
            system.write_mode.clone(),
            Unit::Seconds.format(row.window_s),
            percent(row.fraction),
            row.read_hit_ratio.map_or_else(|| "-".into(), |hits| hits.text(100.0, 1)),
            row.hit_ratio.text(100.0, 1),
            row.mean_us.text(1.0, 0),
            row.p95_us.text(1.0, 0),
            row.flash_write_ratio.text(1.0, 3),
            row.write_budget.map_or_else(|| "-".into(), |blocks| format!("{blocks:.3}")),
            format!("{:.2}", row.decision_ms),
            titles.join(", "),
        ];
        if winner.contains(&Best::MeanLatency) { table.marked_row(cells) } else { table.row(cells) }
    }
    if winners.iter().any(|winner| !winner.is_empty()) {
        table = table.note(
            "Marked: the lowest mean latency in a pool of that size. Bounds are no systems and never win.",
        );
    }
    match raised(comparison) {
        Some(note) => table.note(&note),
        None => table,
    }
}

/// Says which pools are larger than requested, if any are.
fn raised(comparison: &Comparison) -> Option<String> {
    let too_small = comparison.bounds.iter().filter_map(|bound| Some((bound.fraction, bound.raised_to?)));
    let (fraction, fewest) = too_small.max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(format!(
        "No pool of the production cache is smaller than {} ({fewest} blocks), so at {} or less it was simulated with that.",
        bytes(fewest),
        percent(fraction)
    ))
}

/// The most pairs that a cell names.
const NAMED_PAIRS: usize = 8;

/// Whether each ranking is the same with all seeds, and which pairs change their order.
pub fn ranking_table(rankings: &[Ranking]) -> Table {
    let head = [
        "pool",
        "ranked by",
        "systems",
        "seeds",
        "stable",
        "least tau",
        "pairs that change order, by at most",
    ];
    let mut table = Table::new(head).words(1).words(4).words(6);
    for ranking in rankings {
        table.row([
            percent(ranking.fraction),
            ranking.by.title().into(),
            ranking.systems.to_string(),
            ranking.seeds.to_string(),
            if ranking.swaps.is_empty() { "yes" } else { "no" }.into(),
            format!("{:.3}", ranking.least_tau),
            swaps(ranking),
        ]);
    }
    table
}

fn swaps(ranking: &Ranking) -> String {
    let unit = if ranking.by == RankedBy::Hits { "points" } else { "%" };
    let name = |system: &super::System, window_s: f64| {
        format!("{} ({})", system.label(), Unit::Seconds.format(window_s))
    };
    let told = |swap: &Swap| {
        let (one, other) = (name(&swap.one, swap.one_window_s), name(&swap.other, swap.other_window_s));
        format!("{one} and {other}: {:.1} {unit}", swap.largest_difference * 100.0)
    };
    let mut parts: Vec<String> = ranking.swaps.iter().take(NAMED_PAIRS).map(told).collect();
    if ranking.swaps.len() > NAMED_PAIRS {
        parts.push(format!("{} more", ranking.swaps.len() - NAMED_PAIRS));
    }
    if parts.is_empty() { "-".into() } else { parts.join("; ") }
}

/// The subject's result for each measure.
pub fn verdict_table(verdict: &Verdict) -> Table {
    let mut table = Table::new(["measure", "goal", "found", "reached"]).words(1).words(2).words(3);
    for measure in &verdict.measures {
        let reached = match measure.reached {
            Some(true) => "yes",
            Some(false) => "no",
            None => "not measured",
        };
        table.row([measure.measure, measure.goal, &measure.found, reached]);
    }
    table
}

/// The subject at each point.
fn points_table(verdict: &Verdict) -> Table {
    let optional = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    let mut table = Table::new([
        "mix",
        "pool",
        "hits %",
        "mean us",
        "to flash",
        "dominated by",
        "best rival",
        "its hits %",
        "its flash",
        "hits at half its flash",
        "over LRU",
        "distance closed",
    ])
    .words(5)
    .words(6);
    for point in &verdict.points {
        let Point { subject, best_rival, .. } = point;
        table.row([
            point.mix.clone(),
            percent(point.fraction),
            subject.hit_ratio.text(100.0, 1),
            subject.mean_us.text(1.0, 0),
            subject.flash_write_ratio.text(1.0, 3),
            optional(point.dominated_by.first().map(super::System::label)),
            best_rival.system.label(),
            best_rival.hit_ratio.text(100.0, 1),
            best_rival.flash_write_ratio.text(1.0, 3),
            optional(point.hits_at_half_writes.map(|ratio| format!("{ratio:.2}"))),
            format!("{:+.1}", point.over_global_lru * 100.0),
            optional(point.distance_closed.map(percent)),
        ]);
    }
    table
}

/// The bounds, size by size.
pub fn bounds_table(comparison: &Comparison) -> Table {
    let mut table =
        Table::new(["pool", "holds", "unlimited", "MIN", "best static split", "global LRU", "the split"]);
    let first = comparison.bounds.first().map(|bound| bound.seed);
    for bound in comparison.bounds.iter().filter(|bound| Some(bound.seed) == first) {
        let names = comparison.trace.volumes.iter().map(|volume| volume.name.as_str());
        let split =
            names.zip(&bound.static_split.blocks).map(|(name, blocks)| format!("{name} {}", bytes(*blocks)));
        table.row([
            bytes(bound.blocks),
            bytes(bound.held_blocks),
            percent(bound.unlimited),
            percent(bound.min),
            percent(bound.static_split.hit_ratio),
            percent(bound.global_lru),
            split.collect::<Vec<_>>().join(", "),
        ]);
    }
    table
}

fn bounds(comparison: &Comparison) -> Section {
    Section::new("Bounds")
        .text(
            "Hits among all blocks read and written. No cache hits more than one without limit, none of a size more \
             than MIN. The best static split, found by exact search on the disks' true LRU curves, bounds fixed \
             divisions of LRU caches only. All of them have what the pool can hold, with the production cache in \
             whole segments and the staging area. With the first seed.",
        )
        .table(bounds_table(comparison))
}

/// Results of the first seed and size.
fn first_round(comparison: &Comparison) -> impl Iterator<Item = &Combination> {
    let first = &comparison.combinations[0];
    let alike = |row: &&Combination| row.seed == first.seed && row.fraction == first.fraction;
    comparison.combinations.iter().filter(alike)
}

/// A figure of each disk, a row for every system.
fn of_disks(comparison: &Comparison, figure: impl Fn(&DiskRow) -> String) -> Table {
    let names = comparison.trace.volumes.iter().map(|volume| volume.name.clone());
    let head = ["system", "window"].map(String::from);
    let mut table = Table::new(head.into_iter().chain(names));
    for row in first_round(comparison) {
        let cells = [row.system.label(), Unit::Seconds.format(row.window_s)];
        table.row(cells.into_iter().chain(row.disks.iter().map(&figure)));
    }
    table
}

/// Maximum number of systems whose shares are drawn.
const DRAWN_SHARES: usize = 9;

/// Shares over time of the systems that differ from the first rival only in the allocator, and of the
/// subject.
fn shares(comparison: &Comparison, verdict: Option<&Verdict>) -> Section {
    let subject = verdict.map(|verdict| &verdict.subject);
    let rival = first_round(comparison).find(|row| Some(&row.system) != subject);
    let drawn = |row: &&Combination| {
        let alike = rival.is_some_and(|rival| {
            rival.system.admission == row.system.admission && rival.system.write_mode == row.system.write_mode
        });
        !row.targets.is_empty() && (alike || Some(&row.system) == subject)
    };
    let mut section = Section::new("Shares over time").text("Targets after each decision.");
    if !first_round(comparison).any(|row| drawn(&row)) {
        return section.text("There is nothing to draw: no system decided, so no disk was given a target.");
    }
    for row in first_round(comparison).filter(drawn).take(DRAWN_SHARES) {
        let at = row.targets.iter().map(|sample| sample.time_seconds).collect();
        let (x, y) = (Axis::time("Time"), Axis::linear("Target", Unit::Bytes));
        let mut area = StackedArea::new(&row.system.label(), x, y, at);
        for (number, volume) in comparison.trace.volumes.iter().enumerate() {
            let blocks = |at: usize| row.targets[at].target_blocks.get(number).copied().unwrap_or(0);
            let values = (0..row.targets.len()).map(|at| (blocks(at) * BLOCK_BYTES as u64) as f64);
            area = area.layer(&volume.name, values.collect());
        }
        section = section.chart(area);
    }
    section
}

/// The charts of a mix, for each size.
fn pictures(comparison: &Comparison, verdict: Option<&Verdict>) -> Section {
    let subject = verdict.map(|verdict| &verdict.subject);
    let all = summaries(comparison);
    let mut section = Section::new("Latency and hits over flash writes").text(
        "Each point is a simulated pool, each line a system through its settings. Named systems are those that no \
         other beats in both latency and flash writes, and the subject.",
    );
    for fraction in &comparison.mix.fractions {
        let of_size: Vec<&Summary> = all.iter().filter(|summary| summary.fraction == *fraction).collect();
        let title = |what: &str| format!("{what}, a pool of {} of the footprint", percent(*fraction));
        let bounds = mean_bounds(comparison, *fraction);
        section = section
            .chart(picture::latency(&title("Mean latency"), &of_size, subject))
            .chart(picture::hits(&title("Hits"), &of_size, subject, &bounds));
    }
    section
}

/// Latency and hits over the size of the pool, if there are several sizes.
fn over_size(comparison: &Comparison, verdict: Option<&Verdict>) -> Option<Section> {
    let subject = verdict.map(|verdict| &verdict.subject);
    let all = summaries(comparison);
    let at_size = |bound: &Bounds| AtSize {
        held_bytes: (bound.held_blocks * BLOCK_BYTES as u64) as f64,
        summaries: all.iter().filter(|summary| summary.fraction == bound.fraction).collect(),
        bounds: mean_bounds(comparison, bound.fraction),
    };
    let first = comparison.bounds.first()?.seed;
    let mut sizes: Vec<AtSize<'_>> =
        comparison.bounds.iter().filter(|bound| bound.seed == first).map(at_size).collect();
    sizes.sort_by(|a, b| a.held_bytes.total_cmp(&b.held_bytes));
    sizes.dedup_by(|a, b| a.held_bytes == b.held_bytes);
    if sizes.len() < 2 {
        return None;
    }
    let section = Section::new("Over the size of the pool").text(
        "The subject, and the systems that have the lowest mean latency or the most hits at some size; of several windows \
         and budgets the best. Sizes are what the pool can hold, the staging area included. Dashed lines are bounds.",
    );
    Some(
        section
            .chart(picture::latency_over_size(&sizes, subject))
            .chart(picture::hits_over_size(&sizes, subject)),
    )
}

/// The sections of one mix.
fn sections(comparison: &Comparison, verdict: Option<&Verdict>) -> Vec<Section> {
    let trace = &comparison.trace;
    let lead = format!(
        "{}, {}, {} block accesses, footprint {}, {} of simulated time.",
        counted(trace.volumes.len() as u64, "disk"),
        counted(trace.requests, "request"),
        trace.block_accesses,
        bytes(trace.footprint_blocks),
        Unit::Seconds.format(trace.span_seconds),
    );
    let disks = Section::new("Disks")
        .text("Read hits of each disk, with the first seed and size.")
        .table(of_disks(comparison, |disk| disk.read_hit_ratio.map_or_else(|| "-".into(), percent)))
        .text("Mean latency and 95th percentile of each disk, in microseconds.")
        .table(of_disks(comparison, |disk| format!("{:.0}, {:.0}", disk.mean_us, disk.p95_us)));
    let mut systems = Section::new("All systems")
        .text(
            "Means over seeds with 95 % confidence intervals. Flash writes are blocks for each block accessed. The last column \
             says what a system is best in among those with pools of the same size.",
        )
        .table(table(comparison));
    let rankings = rankings(comparison);
    if !rankings.is_empty() {
        systems = systems
            .text(
                "Whether the systems have the same order with every seed. Recorded loads are the same for all seeds; latencies \
                 are not. Tau is Kendall's, the least of two seeds: 1 for the same order.",
            )
            .table(ranking_table(&rankings));
    }
    let mut sections = vec![Section::new(&comparison.mix.title).text(&lead), pictures(comparison, verdict)];
    sections.extend(over_size(comparison, verdict));
    sections.extend([bounds(comparison), systems, disks]);
    sections
}

/// Comparisons of several mixes as a page, with the verdict on top.
pub fn page(comparisons: &[Comparison], verdict: Option<&Verdict>) -> Page {
    let titles: Vec<&str> = comparisons.iter().map(|comparison| comparison.mix.title.as_str()).collect();
    let mut page = Page::new("Systems compared").lead(&titles.join(", "));
    if let Some(verdict) = verdict {
        let title = format!("How good is {}?", verdict.subject.label());
        let text = "A point is a mix and a size. Rivals may tune the length of their windows; the subject may not. What the \
                    subject reaches with few flash writes is the best of its simulated pools that wrote no more.";
        let section =
            Section::new(&title).text(text).table(verdict_table(verdict)).table(points_table(verdict));
        page = page.section(section);
    }
    for comparison in comparisons {
        for section in sections(comparison, verdict) {
            page = page.section(section);
        }
        page = page.section(shares(comparison, verdict));
    }
    page
}
