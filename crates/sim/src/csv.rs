//! Results as CSV: one line per cache, with the same columns for all.

use std::fmt::Write;

use crate::latency::histogram::Summary;
use crate::outcome::{Report, Row};

const COLUMNS: &str = "policy,blocks,size_bytes,footprint_fraction,accesses,hits,misses,miss_ratio,read_miss_ratio,\
                       read_hits,data_stage_hits,read_misses,write_hits,write_misses,flash_writes,flash_write_ratio,\
                       flash_guest_blocks,flash_fill_blocks,flash_mirror_blocks,flash_metadata_pages,not_admitted,\
                       origin_reads,origin_read_bytes,origin_writes,origin_written_bytes,\
                       mean_us,p50_us,p90_us,p95_us,p99_us,read_mean_us,read_p95_us,write_mean_us,write_p95_us,held_blocks";

/// All results. Values that a cache does not have are empty.
pub fn csv(report: &Report) -> String {
    let mut text = format!("{COLUMNS}\n");
    for row in &report.results {
        line(&mut text, row);
    }
    text
}

fn optional<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

fn line(text: &mut String, row: &Row) {
    let c = &row.counts;
    let of =
        |pick: fn(&Summary) -> f64, summary: Option<Summary>| optional(summary.map(|summary| pick(&summary)));
    let all = row.latency.map(|latency| latency.all);
    let (reads, writes) =
        (row.latency.map(|latency| latency.reads), row.latency.map(|latency| latency.writes));
    let cells = [
        row.policy.to_string(),
        optional(row.blocks),
        optional(row.size_bytes),
        optional(row.footprint_fraction),
        row.accesses.to_string(),
        row.hits.to_string(),
        row.misses.to_string(),
        optional(row.miss_ratio),
        optional(row.read_miss_ratio),
        c.read_hits.to_string(),
        c.data_stage_hits.to_string(),
        c.read_misses.to_string(),
        c.write_hits.to_string(),
        c.write_misses.to_string(),
        row.flash_writes.to_string(),
        row.flash_write_ratio.to_string(),
        c.flash_guest_blocks.to_string(),
        c.flash_fill_blocks.to_string(),
        c.flash_mirror_blocks.to_string(),
        c.flash_metadata_pages.to_string(),
        c.not_admitted.to_string(),
        c.origin_reads.to_string(),
        c.origin_read_bytes.to_string(),
        c.origin_writes.to_string(),
        c.origin_written_bytes.to_string(),
        of(|s| s.mean_us, all),
        of(|s| s.p50_us, all),
        of(|s| s.p90_us, all),
        of(|s| s.p95_us, all),
        of(|s| s.p99_us, all),
        of(|s| s.mean_us, reads),
        of(|s| s.p95_us, reads),
        of(|s| s.mean_us, writes),
        of(|s| s.p95_us, writes),
        optional(row.held_blocks),
    ];
    // Writing to a string does not fail.
    let _ = writeln!(text, "{}", cells.join(","));
}
