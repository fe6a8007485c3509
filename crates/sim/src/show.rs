//! Results as a table, and as a page with curves.

use haversack_report::{Axis, LineChart, Page, Section, StackedArea, Table, Unit};

use crate::counts::Counts;
use crate::governor::TargetSample;
use crate::latency::histogram::Summary;
use crate::outcome::{Report, Row};
use crate::reference::PolicyName;

/// A size in human-readable form.
fn size(row: &Row) -> String {
    row.size_bytes.map_or("no limit".into(), |bytes| Unit::Bytes.format(bytes as f64))
}

fn percent(part: f64) -> String {
    format!("{:.2} %", part * 100.0)
}

/// A dash where there was nothing of which a part could miss.
fn missed(part: Option<f64>) -> String {
    part.map_or("-".into(), |part| format!("{part:.4}"))
}

fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// All results, one row each; with latencies if there is a model of time, and with the speed of the
/// simulation if requested.
pub fn table(report: &Report, speed: bool) -> Table {
    let timed = report.results.iter().any(|row| row.latency.is_some());
    let mut columns = hit_columns(report);
    columns.extend(if timed { &LATENCIES[..] } else { &[] });
    columns.extend(speed.then_some("million accesses/s"));
    let mut table = noted(Table::new(columns), report);
    for row in &report.results {
        let mut cells = hits(report, row);
        if timed {
            cells.extend(latencies(row));
        }
        if speed {
            cells.push(format!("{:.2}", row.accesses_per_second() / 1e6));
        }
        table.row(cells);
    }
    table
}

const HITS: [&str; 10] = [
    "policy",
    "size",
    "blocks",
    "of footprint",
    "miss ratio",
    "read misses",
    "flash writes",
    "a block access",
    "origin reads",
    "origin writes",
];
/// The column for what a cache can hold, next to what was requested.
const HOLDS: &str = "holds";
/// Its place.
const HOLDS_AT: usize = 3;
const LATENCIES: [&str; 5] = ["mean us", "p50 us", "p90 us", "p95 us", "p99 us"];

/// Whether a cache can hold more or fewer blocks than requested.
fn holds_other(report: &Report) -> bool {
    report.results.iter().any(|row| row.held_blocks != row.blocks)
}

fn hit_columns(report: &Report) -> Vec<&'static str> {
    let mut columns = HITS.to_vec();
    if holds_other(report) {
        columns.insert(HOLDS_AT, HOLDS);
    }
    columns
}

/// Adds what a reader has to know about the sizes.
fn noted(table: Table, report: &Report) -> Table {
    match raised(report) {
        Some(note) => table.note(&note),
        None => table,
    }
}

/// Says which caches are larger than requested, if any are.
pub(crate) fn raised(report: &Report) -> Option<String> {
    let rows = report.results.iter().filter_map(|row| Some((row.blocks?, row.raised_to()?)));
    let (blocks, fewest) = rows.max()?;
    let bytes = |blocks: u64| Unit::Bytes.format((blocks * report.block_bytes) as f64);
    Some(format!(
        "No pool of the production cache is smaller than {} ({} blocks), so at {} or less it was simulated with that.",
        bytes(fewest),
        thousands(fewest),
        bytes(blocks)
    ))
}

fn hits(report: &Report, row: &Row) -> Vec<String> {
    let mut cells = hit_cells(row);
    if holds_other(report) {
        cells.insert(HOLDS_AT, row.held_blocks.map_or(String::new(), thousands));
    }
    cells
}

fn hit_cells(row: &Row) -> Vec<String> {
    vec![
        row.policy.to_string(),
        size(row),
        row.blocks.map_or(String::new(), thousands),
        row.footprint_fraction.map_or(String::new(), percent),
        missed(row.miss_ratio),
        missed(row.read_miss_ratio),
        thousands(row.flash_writes),
        format!("{:.3}", row.flash_write_ratio),
        io_count(row, row.counts.origin_reads),
        io_count(row, row.counts.origin_writes),
    ]
}

/// Empty cells where there is no model of time.
fn latencies(row: &Row) -> Vec<String> {
    let figures = |all: Summary| [all.mean_us, all.p50_us, all.p90_us, all.p95_us, all.p99_us];
    let cells = row.latency.map(|latency| figures(latency.all).map(|us| format!("{us:.0}")));
    cells.map_or(vec![String::new(); LATENCIES.len()], |cells| cells.to_vec())
}

/// All results in tables that fit on a page.
fn all_results(report: &Report) -> Section {
    let mut hit_table = noted(Table::new(hit_columns(report)), report);
    let mut latency_table = Table::new(HITS[..2].iter().chain(&LATENCIES).copied());
    for row in &report.results {
        hit_table.row(hits(report, row));
        if row.latency.is_some() {
            latency_table.row([row.policy.to_string(), size(row)].into_iter().chain(latencies(row)));
        }
    }
    let section = Section::new("All results").table(hit_table);
    if latency_table.is_empty() { section } else { section.table(latency_table) }
}

/// MIN knows only blocks, not I/Os.
fn io_count(row: &Row, count: u64) -> String {
    if row.policy == PolicyName::Min { String::new() } else { thousands(count) }
}

/// The trace in one line.
pub fn trace_line(report: &Report) -> String {
    let trace = &report.trace;
    let footprint = Unit::Bytes.format((trace.footprint_blocks * report.block_bytes) as f64);
    format!(
        "{} requests ({} reads, {} writes) to {} {}, {} block accesses, footprint {} blocks ({footprint}), {}; mode {}",
        thousands(trace.requests),
        thousands(trace.reads),
        thousands(trace.writes),
        trace.volumes.len(),
        if trace.volumes.len() == 1 { "volume" } else { "volumes" },
        thousands(trace.block_accesses),
        thousands(trace.footprint_blocks),
        if trace.timed { Unit::Seconds.format(trace.span_seconds) } else { "without times".into() },
        report.mode,
    )
}

/// Policies of a report, each once, in order.
fn policies(report: &Report) -> Vec<PolicyName> {
    let mut policies: Vec<_> = report.results.iter().map(|row| row.policy).collect();
    policies.dedup();
    policies
}

/// What a cache can hold in bytes, the production cache's staging area included.
fn held_bytes(report: &Report, row: &Row) -> Option<f64> {
    row.held_blocks.map(|blocks| (blocks * report.block_bytes) as f64)
}

/// A chart over what caches can hold. A policy with one size has no curve, so there is no chart for fewer than two
/// sizes.
fn over_sizes(
    report: &Report,
    title: &str,
    y: Axis,
    value: impl Fn(&Row) -> Option<f64>,
) -> Option<LineChart> {
    if !has_curves(report) {
        return None;
    }
    let sizes: Vec<f64> = report.of(PolicyName::Min).filter_map(|row| held_bytes(report, row)).collect();
    let (first, last) = (sizes.iter().copied().reduce(f64::min)?, sizes.iter().copied().reduce(f64::max)?);
    let mut chart = LineChart::new(title, Axis::log("Cache size", Unit::Bytes), y);
    for policy in policies(report) {
        let mut points: Vec<_> =
            report.of(policy).filter_map(|row| Some((held_bytes(report, row)?, value(row)?))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        if policy == PolicyName::Unlimited {
            let level = report.of(policy).next().and_then(&value);
            points = level.map(|level| vec![(first, level), (last, level)]).unwrap_or_default();
        }
        if points.is_empty() {
            continue;
        }
        chart = if policy.is_bound() {
            chart.dashed(policy.name(), points)
        } else {
            chart.line(policy.name(), points)
        };
    }
    Some(chart)
}

/// Whether several sizes were requested. MIN has further ones if there are policies.
fn has_curves(report: &Report) -> bool {
    let bounds_alone = report.policies().next().is_none();
    let requested = report.results.iter().filter(|row| bounds_alone || !row.policy.is_bound());
    let mut sizes = requested.filter_map(|row| row.blocks);
    let first = sizes.next();
    sizes.any(|blocks| Some(blocks) != first)
}

fn curves(report: &Report) -> Section {
    let known = |row: &Row| !row.policy.is_bound();
    let mut section = Section::new("Over the size of the cache");
    if !has_curves(report) {
        return section.text("There are no curves: they need two sizes or more.");
    }
    section = section.text(
        "Dashed lines are bounds: no policy misses less than MIN, no cache less than one without limit. Sizes are \
         what a cache can hold: the production cache has whole segments, and its staging area in addition.",
    );
    let charts = [
        over_sizes(report, "Miss ratio", Axis::share("Miss ratio"), |row| row.miss_ratio),
        over_sizes(report, "Flash writes a block access", Axis::linear("Flash writes", Unit::Count), |row| {
            Some(row.flash_write_ratio)
        }),
        over_sizes(
            report,
            "Bytes read from and written to the origin",
            Axis::linear("Bytes", Unit::Bytes),
            |row| {
                known(row).then_some((row.counts.origin_read_bytes + row.counts.origin_written_bytes) as f64)
            },
        ),
        over_sizes(report, "Mean latency", Axis::linear("Latency", Unit::Seconds), |row| {
            Some(row.latency.filter(|_| known(row))?.all.mean_us / 1e6)
        }),
        over_sizes(report, "95th percentile of latency", Axis::linear("Latency", Unit::Seconds), |row| {
            Some(row.latency.filter(|_| known(row))?.all.p95_us / 1e6)
        }),
    ];
    let timed = report.results.iter().any(|row| row.latency.is_some());
    for chart in charts.into_iter().flatten().take(if timed { 5 } else { 3 }) {
        section = section.chart(chart);
    }
    section
}

/// Flash writes by cause, of the policies.
fn causes(report: &Report) -> Section {
    let mut table = Table::new(["policy", "size", "guest", "fills", "second copies", "metadata", "kept out"]);
    for row in report.policies() {
        let Counts { flash_guest_blocks, flash_fill_blocks, flash_mirror_blocks, .. } = row.counts;
        let Counts { flash_metadata_pages, not_admitted, .. } = row.counts;
        let counts =
            [flash_guest_blocks, flash_fill_blocks, flash_mirror_blocks, flash_metadata_pages, not_admitted];
        table.row([row.policy.to_string(), size(row)].into_iter().chain(counts.map(thousands)));
    }
    Section::new("Flash writes by cause")
        .text("In blocks of the cache; metadata in pages of 4 KiB.")
        .table(table)
}

fn over_time(report: &Report) -> Option<Section> {
    let sampled: Vec<_> = report.policies().filter(|row| !row.series.is_empty()).collect();
    let largest = sampled.iter().filter_map(|row| row.blocks).max()?;
    let mut chart = LineChart::new("Hit ratio over time", Axis::time("Time"), Axis::share("Hit ratio"));
    let mut section = Section::new("Over time").text("With the largest cache.");
    for row in sampled.iter().filter(|row| row.blocks == Some(largest)) {
        let hit_ratio =
            |s: &crate::meter::Sample| (s.accesses > 0).then(|| s.hits as f64 / s.accesses as f64);
        let points = row.series.iter().filter_map(|s| Some((s.time_seconds, hit_ratio(s)?))).collect();
        chart = chart.line(row.policy.name(), points);
    }
    section = section.chart(chart);
    for row in sampled.iter().filter(|row| row.blocks == Some(largest) && row.policy == PolicyName::Core) {
        let at = row.series.iter().map(|sample| sample.time_seconds).collect();
        let mut area =
            StackedArea::new("Use of the cache", Axis::time("Time"), Axis::linear("In use", Unit::Bytes), at);
        for (number, volume) in row.volumes.iter().enumerate() {
            let blocks =
                |sample: &crate::meter::Sample| sample.usage_blocks.get(number).copied().unwrap_or(0);
            let bytes = |sample| (blocks(sample) * report.block_bytes) as f64;
            area = area.layer(&volume.name, row.series.iter().map(bytes).collect());
        }
        let dirty = |s: &crate::meter::Sample| (s.time_seconds, (s.dirty_blocks * report.block_bytes) as f64);
        let dirty = LineChart::new("Dirty data", Axis::time("Time"), Axis::linear("Dirty", Unit::Bytes))
            .line("core", row.series.iter().map(dirty).collect());
        section = section.chart(area).chart(dirty);
    }
    Some(section)
}

fn volumes(report: &Report) -> Option<Section> {
    if report.trace.volumes.len() < 2 {
        return None;
    }
    let mut table =
        Table::new(["volume", "policy", "size", "reads", "writes", "miss ratio", "flash writes"]).words(1);
    for row in report.policies() {
        for volume in &row.volumes {
            let counts = &volume.counts;
            table.row([
                volume.name.clone(),
                row.policy.to_string(),
                size(row),
                thousands(counts.read_requests),
                thousands(counts.write_requests),
                missed(volume.miss_ratio),
                thousands(counts.flash_writes()),
            ]);
        }
    }
    Some(Section::new("Volumes").table(table))
}

/// The share of each volume under the control loop.
fn shares(report: &Report) -> Option<Section> {
    let governed = |row: &Row| Some((row.blocks?, row.production.as_ref()?.control.clone()?));
    let (_, governed) = report.policies().filter_map(governed).max_by_key(|(blocks, _)| *blocks)?;
    let at: Vec<f64> = governed.targets.iter().map(|sample| sample.time_seconds).collect();
    let area = |title: &str, of: fn(&TargetSample) -> &[u64]| {
        let axes = (Axis::time("Time"), Axis::linear(title, Unit::Bytes));
        let mut area = StackedArea::new(title, axes.0, axes.1, at.clone());
        for (number, volume) in report.trace.volumes.iter().enumerate() {
            let blocks = |sample: &TargetSample| of(sample).get(number).copied().unwrap_or(0);
            let bytes = |sample| (blocks(sample) * report.block_bytes) as f64;
            area = area.layer(&volume.name, governed.targets.iter().map(bytes).collect());
        }
        area
    };
    let mut section = Section::new("Shares")
        .text("What the control loop gave each volume, what it took each to demand, and what each had then; with the largest cache.")
        .chart(area("Targets", |sample| &sample.target_blocks))
        .chart(area("Demands", |sample| &sample.demand_blocks))
        .chart(area("Usage", |sample| &sample.usage_blocks));
    if let Some(refusal) = &governed.refusal {
        let text = format!("{} decisions were refused, the last one because {refusal}.", governed.refused);
        section = section.text(&text);
    }
    Some(section)
}

/// Results as a page.
pub fn page(report: &Report, title: &str) -> Page {
    let mut page = Page::new(title).lead(&trace_line(report));
    page = page.section(curves(report)).section(all_results(report)).section(causes(report));
    for section in [shares(report), over_time(report), volumes(report)].into_iter().flatten() {
        page = page.section(section);
    }
    page
}
