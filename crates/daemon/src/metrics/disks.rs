//! Metrics of disks, and of what they write to flash.

use haversack_api::DiskState;
use haversack_engine::snapshot::DiskSnapshot;
use haversack_model::SECTOR_BYTES;

use super::text::Text;
use super::{BLOCK, Metric, Seen};
use crate::daemon::Daemon;
use crate::status::flash_writes;

/// Writes the figures of the attached disks.
pub fn disks(out: &mut Text, seen: &[Seen]) {
    let metrics: [Metric<DiskSnapshot>; 28] = [
        ("haversack_disk_size_bytes", "gauge", "Size of the disk.", |d| d.sectors * SECTOR_BYTES as u64),
        ("haversack_disk_target_bytes", "gauge", "Target of the disk.", |d| d.usage.target_blocks * BLOCK),
        ("haversack_disk_usage_bytes", "gauge", "Cached bytes of the disk.", |d| {
            d.usage.usage_blocks * BLOCK
        }),
        ("haversack_disk_dirty_bytes", "gauge", "Dirty bytes of the disk.", |d| d.usage.dirty_blocks * BLOCK),
        ("haversack_disk_mirrored_bytes", "gauge", "Dirty bytes with a second copy.", |d| {
            d.usage.mirrored_blocks * BLOCK
        }),
        ("haversack_disk_origin_up", "gauge", "1 if the origin is reachable.", |d| u64::from(d.origin_up)),
        ("haversack_disk_clients", "gauge", "NBD connections and vhost-user queues.", |d| d.clients),
        ("haversack_disk_reads_total", "counter", "Read requests.", |d| d.stats.reads),
        ("haversack_disk_writes_total", "counter", "Write requests.", |d| d.stats.writes),
        ("haversack_disk_flushes_total", "counter", "Flush requests.", |d| d.stats.flushes),
        ("haversack_disk_zeroes_total", "counter", "Discard and write-zeroes requests.", |d| d.stats.zeroes),
        ("haversack_disk_read_bytes_total", "counter", "Bytes read by clients.", |d| d.stats.read_bytes),
        ("haversack_disk_written_bytes_total", "counter", "Bytes written by clients.", |d| {
            d.stats.written_bytes
        }),
        ("haversack_disk_read_hits_total", "counter", "Blocks read from the cache.", |d| d.stats.read_hits),
        (
            "haversack_disk_data_stage_hits_total",
            "counter",
            "Blocks read from the data stage, before admission let them in; read hits too.",
            |d| d.stats.data_stage_hits,
        ),
        ("haversack_disk_read_misses_total", "counter", "Blocks read that were not cached.", |d| {
            d.stats.read_misses
        }),
        ("haversack_disk_write_hits_total", "counter", "Blocks written that were cached.", |d| {
            d.stats.write_hits
        }),
        ("haversack_disk_write_misses_total", "counter", "Blocks written that were not cached.", |d| {
            d.stats.write_misses
        }),
        (
            "haversack_disk_not_admitted_total",
            "counter",
            "Blocks kept out by admission or the sequential cut-off.",
            |d| d.stats.not_admitted,
        ),
        (
            "haversack_disk_overflowed_total",
            "counter",
            "Blocks written past the cache at the dirty limit.",
            |d| d.stats.overflowed_blocks,
        ),
        (
            "haversack_disk_fills_skipped_total",
            "counter",
            "Blocks read from the origin that were not kept for lack of memory.",
            |d| d.stats.fills_skipped,
        ),
        ("haversack_disk_base_blocks_total", "counter", "Blocks read from the disk's base.", |d| {
            d.stats.base_blocks
        }),
        ("haversack_disk_origin_read_bytes_total", "counter", "Bytes read from the origin.", |d| {
            d.stats.origin_read_bytes
        }),
        ("haversack_disk_cleaned_bytes_total", "counter", "Bytes written back.", |d| d.stats.cleaned_bytes),
        ("haversack_disk_origin_errors_total", "counter", "Failed I/Os of the origin.", |d| d.origin_errors),
        ("haversack_disk_failed_requests_total", "counter", "Failed requests.", |d| d.stats.failed_requests),
        (
            "haversack_disk_corrupt_blocks_total",
            "counter",
            "Blocks that failed their checksum, except clean ones from before a crash (see crash_dropped_blocks).",
            |d| d.stats.corrupt_blocks,
        ),
        (
            "haversack_disk_crash_dropped_blocks_total",
            "counter",
            "Clean blocks from before a crash that failed their checksum and were dropped.",
            |d| d.stats.crash_dropped_blocks,
        ),
    ];
    for (name, kind, help, value) in metrics {
        out.head(name, kind, help);
        for s in seen {
            for disk in s.disks() {
                out.sample(name, &[("pool", &s.pool.name), ("disk", &disk.name)], value(disk) as f64);
            }
        }
    }
    let name = "haversack_disk_origin_written_bytes_total";
    out.head(name, "counter", "Bytes written to the origin, by cause.");
    for s in seen {
        for disk in s.disks() {
            let causes = [("client", disk.stats.origin_written_bytes), ("cleaner", disk.stats.cleaned_bytes)];
            for (cause, bytes) in causes {
                out.sample(
                    name,
                    &[("pool", &s.pool.name), ("disk", &disk.name), ("cause", cause)],
                    bytes as f64,
                );
            }
        }
    }
    let name = "haversack_disk_lost_blocks_total";
    out.head(name, "counter", "Dirty blocks that are damaged and have no second copy.");
    for s in seen {
        for disk in s.disks() {
            out.sample(name, &[("pool", &s.pool.name), ("disk", &disk.name)], disk.stats.lost_blocks as f64);
        }
    }
    let name = "haversack_disk_oldest_dirty_seconds";
    out.head(name, "gauge", "Age of the oldest dirty block.");
    for s in seen {
        for disk in s.disks() {
            let age_s = disk.usage.oldest_dirty_us as f64 / 1e6;
            out.sample(name, &[("pool", &s.pool.name), ("disk", &disk.name)], age_s);
        }
    }
    let name = "haversack_disk_origin_in_order";
    let help = "Whether the origin is as a flush of the guest left it, for disks with order = \"flush\".";
    out.head(name, "gauge", help);
    for s in seen {
        for disk in s.disks() {
            if let Some(in_order) = disk.usage.origin_in_order {
                out.sample(
                    name,
                    &[("pool", &s.pool.name), ("disk", &disk.name)],
                    f64::from(u8::from(in_order)),
                );
            }
        }
    }
}

/// Writes what the disks have written to flash.
pub fn flash(out: &mut Text, seen: &[Seen]) {
    let name = "haversack_flash_written_bytes_total";
    out.head(name, "counter", "Bytes written to flash, by cause.");
    for s in seen {
        for disk in s.disks() {
            let writes = flash_writes(&disk.stats);
            for (cause, bytes) in [
                ("write", writes.write_bytes),
                ("fill", writes.fill_bytes),
                ("mirror", writes.mirror_bytes),
                ("batch-page", writes.batch_page_bytes),
                ("rewrite-page", writes.rewrite_page_bytes),
                ("intent-page", writes.intent_page_bytes),
            ] {
                out.sample(
                    name,
                    &[("pool", &s.pool.name), ("disk", &disk.name), ("cause", cause)],
                    bytes as f64,
                );
            }
        }
    }
}

/// Writes the state of every disk that the daemon knows by name.
pub fn states(out: &mut Text, daemon: &Daemon) {
    let name = "haversack_disk_state";
    out.head(name, "gauge", "1 for the current state of the disk, 0 for the others.");
    for (disk_name, disk) in daemon.disks() {
        let (pool, state) = disk.with(|d| (d.config.pool.clone(), d.state));
        out.states(name, &[("pool", &pool), ("disk", &disk_name)], DiskState::ALL, state);
    }
}
