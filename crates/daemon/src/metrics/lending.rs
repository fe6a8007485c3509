//! Metrics of flash that this host lends and borrows. There are none if it does neither.

use haversack_engine::LendingStatus;

use super::text::Text;
use super::{BLOCK, Metric, Seen};

/// What a disk borrows.
type Borrowed = haversack_lend::BorrowerFigures;

/// Writes the figures of all pools.
pub fn lending(out: &mut Text, seen: &[Seen<'_>]) {
    let status = |seen: &Seen<'_>| Some((seen.pool.name.clone(), seen.pool.backend.lending_status().ok()?));
    let all: Vec<(String, LendingStatus)> = seen.iter().filter_map(status).collect();
    lent(out, &all);
    borrowed(out, &all);
}

fn lent(out: &mut Text, all: &[(String, LendingStatus)]) {
    let lends: Vec<_> = all.iter().filter(|(_, status)| status.lends).collect();
    if lends.is_empty() {
        return;
    }
    let metrics: [Metric<LendingStatus>; 8] = [
        ("haversack_lent_loans", "gauge", "Loans that other hosts have.", |s| s.lent.loans),
        ("haversack_lent_bytes", "gauge", "Data that other hosts have stored in their loans.", |s| {
            s.lent.blocks * BLOCK
        }),
        ("haversack_lent_stored_bytes_total", "counter", "Data that other hosts have sent.", |s| {
            s.lent.stored_blocks * BLOCK
        }),
        ("haversack_lent_asked_blocks_total", "counter", "Blocks that other hosts have asked for.", |s| {
            s.lent.asked_blocks
        }),
        ("haversack_lent_hit_blocks_total", "counter", "Requested blocks that were there.", |s| {
            s.lent.hit_blocks
        }),
        ("haversack_lent_bad_blocks_total", "counter", "Blocks that came with a wrong checksum.", |s| {
            s.lent.bad_blocks
        }),
        (
            "haversack_lent_given_back_total",
            "counter",
            "Loans that were ended because the space was needed.",
            |s| s.lent.given_back,
        ),
        (
            "haversack_lent_left_total",
            "counter",
            "Loans that were ended because their host was gone, or did not use them after it was back.",
            |s| s.lent.left_loans,
        ),
    ];
    for (name, kind, help, value) in metrics {
        out.head(name, kind, help);
        for (pool, status) in &lends {
            out.sample(name, &[("pool", pool)], value(status) as f64);
        }
    }
}

fn borrowed(out: &mut Text, all: &[(String, LendingStatus)]) {
    let disks: Vec<(&str, &Borrowed)> = all
        .iter()
        .flat_map(|(_, status)| status.borrowed.iter().map(|one| (one.disk.as_str(), &one.figures)))
        .collect();
    if disks.is_empty() {
        return;
    }
    let metrics: [Metric<Borrowed>; 10] = [
        ("haversack_borrowed_loans", "gauge", "Loans that the disk has at other hosts.", |f| f.loans),
        ("haversack_borrowed_bytes", "gauge", "Data that the index says is at other hosts.", |f| {
            f.lent_blocks * BLOCK
        }),
        ("haversack_borrowed_memory_bytes", "gauge", "Memory of the disk's index.", |f| f.memory_bytes),
        ("haversack_borrowed_sent_blocks_total", "counter", "Blocks that were sent to lenders.", |f| {
            f.sent_blocks
        }),
        ("haversack_borrowed_asked_blocks_total", "counter", "Blocks that lenders were asked for.", |f| {
            f.asked_blocks
        }),
        ("haversack_borrowed_hit_blocks_total", "counter", "Blocks that lenders have served.", |f| {
            f.hit_blocks
        }),
        (
            "haversack_borrowed_missing_blocks_total",
            "counter",
            "Blocks that were not there: dropped by the lender, or the index was wrong.",
            |f| f.missing_blocks,
        ),
        ("haversack_borrowed_late_reads_total", "counter", "Reads that no lender answered in time.", |f| {
            f.late_reads
        }),
        ("haversack_borrowed_bad_blocks_total", "counter", "Blocks that came with a wrong checksum.", |f| {
            f.bad_blocks
        }),
        (
            "haversack_borrowed_overtaken_reads_total",
            "counter",
            "Reads that went to the origin because a block was being written.",
            |f| f.overtaken_reads,
        ),
    ];
    for (name, kind, help, value) in metrics {
        out.head(name, kind, help);
        for (disk, figures) in &disks {
            out.sample(name, &[("disk", disk)], value(figures) as f64);
        }
    }
    type Time = (&'static str, &'static str, fn(&Borrowed) -> f64);
    let times: [Time; 2] = [
        (
            "haversack_borrowed_lender_seconds",
            "Mean time of the latest reads from the fastest lender; a late one includes the origin's time.",
            |f| f.lender_us,
        ),
        ("haversack_borrowed_origin_seconds", "Mean time of the latest reads of the origin.", |f| {
            f.origin_us
        }),
    ];
    for (name, help, value) in times {
        out.head(name, "gauge", help);
        for (disk, figures) in &disks {
            out.sample(name, &[("disk", disk)], value(figures) / 1e6);
        }
    }
}
