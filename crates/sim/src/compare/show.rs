//! A comparison as a table, and as a page.

use haversack_model::BLOCK_BYTES;
use haversack_report::{Axis, Bars, Page, Section, StackedArea, Table, Unit};

use super::{Combination, Comparison, DiskRow};

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

fn bytes(blocks: u64) -> String {
    Unit::Bytes.format((blocks * BLOCK_BYTES as u64) as f64)
}

/// Every system in a row, size by size.
pub fn table(comparison: &Comparison) -> Table {
    let mut table = Table::new([
        "allocator",
        "admission",
        "writes",
        "pool",
        "read hits",
        "hits",
        "mean us",
        "p95 us",
        "to flash",
        "origin",
        "in use",
        "decision ms",
    ])
    .words(3);
    for row in &comparison.combinations {
        table.row([
            row.allocator.clone(),
            row.admission.clone(),
            row.write_mode.clone(),
            bytes(row.blocks),
            percent(row.read_hit_ratio),
            percent(row.hit_ratio),
            format!("{:.0}", row.mean_us),
            format!("{:.0}", row.p95_us),
            bytes(row.flash_writes),
            Unit::Bytes.format(row.origin_bytes as f64),
            bytes(row.usage_blocks as u64),
            format!("{:.2}", row.decision_ms),
        ]);
    }
    table
}

/// What no system can exceed, size by size.
pub fn bounds_table(comparison: &Comparison) -> Table {
    let mut table = Table::new(["pool", "unlimited", "MIN", "best static split", "global LRU", "the split"]);
    for bound in &comparison.bounds {
        let names = comparison.trace.volumes.iter().map(|volume| volume.name.as_str());
        let split =
            names.zip(&bound.static_split.blocks).map(|(name, blocks)| format!("{name} {}", bytes(*blocks)));
        table.row([
            bytes(bound.blocks),
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
             divisions of LRU caches only.",
        )
        .table(bounds_table(comparison))
}

/// Rows that differ in one thing alone, in bars.
fn bars(comparison: &Comparison, title: &str, unit: Unit, value: impl Fn(&Combination) -> f64) -> Bars {
    let first = &comparison.combinations[0];
    let alike = |row: &&Combination| {
        row.admission == first.admission && row.write_mode == first.write_mode && row.blocks == first.blocks
    };
    let rows = comparison.combinations.iter().filter(alike);
    rows.fold(Bars::new(title, unit), |bars, row| bars.bar(&row.allocator, value(row)))
}

/// A figure of each disk, a row for every system.
fn of_disks(comparison: &Comparison, figure: impl Fn(&DiskRow) -> String) -> Table {
    let names = comparison.trace.volumes.iter().map(|volume| volume.name.clone());
    let head = ["allocator", "admission", "writes", "pool"].map(String::from);
    let mut table = Table::new(head.into_iter().chain(names)).words(3);
    for row in &comparison.combinations {
        let cells = [row.allocator.clone(), row.admission.clone(), row.write_mode.clone(), bytes(row.blocks)];
        table.row(cells.into_iter().chain(row.disks.iter().map(&figure)));
    }
    table
}

fn disks(comparison: &Comparison) -> Section {
    Section::new("Disks")
        .text("Read hits of each disk.")
        .table(of_disks(comparison, |disk| percent(disk.read_hit_ratio)))
        .text("Mean latency and 95th percentile of each disk, in microseconds.")
        .table(of_disks(comparison, |disk| format!("{:.0}, {:.0}", disk.mean_us, disk.p95_us)))
}

fn shares(comparison: &Comparison) -> Section {
    let first = &comparison.combinations[0];
    let alike = |row: &&Combination| {
        row.admission == first.admission && row.write_mode == first.write_mode && row.blocks == first.blocks
    };
    let mut section =
        Section::new("Shares over time").text("Targets after each decision, with the first admission.");
    for row in comparison.combinations.iter().filter(alike) {
        let at = row.targets.iter().map(|sample| sample.time_seconds).collect();
        let (x, y) = (Axis::time("Time"), Axis::linear("Target", Unit::Bytes));
        let mut area = StackedArea::new(&row.allocator, x, y, at);
        for (number, volume) in comparison.trace.volumes.iter().enumerate() {
            let blocks = |at: usize| row.targets[at].target_blocks.get(number).copied().unwrap_or(0);
            let values = (0..row.targets.len()).map(|at| (blocks(at) * BLOCK_BYTES as u64) as f64);
            area = area.layer(&volume.name, values.collect());
        }
        section = section.chart(area);
    }
    section
}

/// A comparison as a page.
pub fn page(comparison: &Comparison) -> Page {
    let trace = &comparison.trace;
    let lead = format!(
        "{} disks, {} requests, {} block accesses, footprint {}, {} of simulated time.",
        trace.volumes.len(),
        trace.requests,
        trace.block_accesses,
        bytes(trace.footprint_blocks),
        Unit::Seconds.format(trace.span_seconds),
    );
    let first = &comparison.combinations[0];
    let text = format!(
        "Admission {}, write mode {}, a pool of {}.",
        first.admission,
        first.write_mode,
        bytes(first.blocks)
    );
    let overview = Section::new("Allocators")
        .text(&text)
        .chart(bars(comparison, "Hit ratio", Unit::Share, |row| row.hit_ratio))
        .chart(bars(comparison, "Mean latency", Unit::Seconds, |row| row.mean_us / 1e6))
        .chart(bars(comparison, "Flash writes", Unit::Bytes, |row| {
            (row.flash_writes * BLOCK_BYTES as u64) as f64
        }));
    Page::new(&comparison.mix.title)
        .lead(&lead)
        .section(overview)
        .section(bounds(comparison))
        .section(Section::new("All systems").table(table(comparison)))
        .section(disks(comparison))
        .section(shares(comparison))
}
