//! Prometheus metrics, in the text format.
//!
//! Invariant
//! - A name has one type and help text, and all its samples are consecutive, as the format requires.

use std::fmt::Write;

use haversack_api::{Measured, PoolPolicy, PoolState};
use haversack_engine::histogram::Histogram;
use haversack_engine::snapshot::{DeviceSnapshot, DiskSnapshot, Latencies, Snapshot};
use haversack_model::{BLOCK_BYTES, SECTOR_BYTES};

use crate::daemon::Daemon;
use crate::pool::Pool;
use crate::status::{flash_writes, pool_state};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Upper bounds of latency buckets, in microseconds.
const BUCKETS_US: [u64; 18] = [
    10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 500_000, 1_000_000,
    2_000_000, 5_000_000, 10_000_000,
];

/// Returns the text of all metrics.
pub fn text(daemon: &Daemon) -> String {
    let seen: Vec<Seen> =
        daemon.pools().map(|pool| Seen { pool, snapshot: pool.backend.snapshot().ok() }).collect();
    let mut out = Text::default();
    out.head("haversack_up", "gauge", "Always 1 while the daemon is running.");
    out.sample("haversack_up", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    pools(&mut out, &seen, daemon.closed.closed());
    devices(&mut out, &seen);
    disks(&mut out, &seen);
    flash(&mut out, &seen);
    histograms(&mut out, &seen);
    states(&mut out, daemon);
    policy(&mut out, daemon);
    out.0
}

/// A pool at one point in time.
struct Seen<'a> {
    pool: &'a Pool,
    snapshot: Option<Snapshot>,
}

impl Seen<'_> {
    fn disks(&self) -> impl Iterator<Item = &DiskSnapshot> {
        self.snapshot.iter().flat_map(|s| &s.disks)
    }

    fn devices(&self) -> impl Iterator<Item = &DeviceSnapshot> {
        self.snapshot.iter().flat_map(|s| &s.devices)
    }
}

#[derive(Default)]
struct Text(String);

/// Writing to a string cannot fail.
impl Text {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.0.push_str(name);
        for (at, (key, value)) in labels.iter().enumerate() {
            let escaped = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.0, "{}{key}=\"{escaped}\"", if at == 0 { '{' } else { ',' });
        }
        let _ = writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    fn histogram(&mut self, name: &str, labels: &[(&str, &str)], histogram: &Histogram) {
        let bucket = format!("{name}_bucket");
        for bound_us in BUCKETS_US {
            let bound_s = (bound_us as f64 / 1e6).to_string();
            let labels = [labels, &[("le", bound_s.as_str())]].concat();
            self.sample(&bucket, &labels, histogram.at_most(bound_us) as f64);
        }
        self.sample(&bucket, &[labels, &[("le", "+Inf")]].concat(), histogram.count() as f64);
        self.sample(&format!("{name}_sum"), labels, histogram.sum_us() as f64 / 1e6);
        self.sample(&format!("{name}_count"), labels, histogram.count() as f64);
    }
}

/// A metric: name, type, help, and a function that returns its value.
type Metric<T> = (&'static str, &'static str, &'static str, fn(&T) -> u64);

fn pools<'a>(out: &mut Text, seen: &[Seen], closed: impl Iterator<Item = (&'a str, String)>) {
    out.head("haversack_pool_state", "gauge", "1 for the current state of the pool.");
    for s in seen {
        let state = pool_state(s.pool, s.snapshot.as_ref());
        for (name, is) in [
            ("ok", state == PoolState::Ok),
            ("degraded", state == PoolState::Degraded),
            ("lost", state == PoolState::Lost),
            ("stopped", state == PoolState::Stopped),
        ] {
            out.sample(
                "haversack_pool_state",
                &[("pool", &s.pool.name), ("state", name)],
                f64::from(u8::from(is)),
            );
        }
    }
    for (name, _) in closed {
        out.sample("haversack_pool_state", &[("pool", name), ("state", "failed")], 1.0);
    }
    let metrics: [Metric<Snapshot>; 9] = [
        ("haversack_pool_capacity_bytes", "gauge", "Capacity in bytes of blocks.", |s| {
            s.pool.capacity_blocks * BLOCK
        }),
        ("haversack_pool_usage_bytes", "gauge", "Bytes of cached blocks.", |s| s.pool.usage_blocks * BLOCK),
        ("haversack_pool_dirty_bytes", "gauge", "Bytes of dirty blocks.", |s| s.pool.dirty_blocks * BLOCK),
        ("haversack_pool_free_segments", "gauge", "Free segments of 1 MiB.", |s| s.pool.free_segments),
        ("haversack_pool_devices", "gauge", "Cache devices in use.", |s| s.pool.devices),
        ("haversack_pool_memory_bytes", "gauge", "Memory for metadata.", |s| s.pool.memory_bytes),
        ("haversack_pool_ios_in_flight", "gauge", "I/Os of cache devices and origins in flight.", |s| {
            s.ios_in_flight
        }),
        ("haversack_pool_flushes_total", "counter", "Device flushes.", |s| s.pool.flushes),
        ("haversack_pool_record_bytes_total", "counter", "Bytes of pool records written.", |s| {
            s.pool.record_pages * BLOCK
        }),
    ];
    for (name, kind, help, value) in metrics {
        out.head(name, kind, help);
        for s in seen {
            if let Some(snapshot) = &s.snapshot {
                out.sample(name, &[("pool", &s.pool.name)], value(snapshot) as f64);
            }
        }
    }
}

fn devices(out: &mut Text, seen: &[Seen]) {
    let metrics: [Metric<DeviceSnapshot>; 4] = [
        ("haversack_device_capacity_bytes", "gauge", "Size of the cache device.", |d| d.capacity_bytes),
        ("haversack_device_errors_total", "counter", "Failed I/Os of the cache device.", |d| d.errors),
        ("haversack_device_read_bytes_total", "counter", "Bytes read from the cache device.", |d| {
            d.read_bytes
        }),
        ("haversack_device_written_bytes_total", "counter", "Bytes written to the cache device.", |d| {
            d.written_bytes
        }),
    ];
    for (name, kind, help, value) in metrics {
        out.head(name, kind, help);
        for s in seen {
            for device in s.devices() {
                out.sample(name, &[("pool", &s.pool.name), ("device", &device.path)], value(device) as f64);
            }
        }
    }
}

fn disks(out: &mut Text, seen: &[Seen]) {
    let metrics: [Metric<DiskSnapshot>; 26] = [
        ("haversack_disk_size_bytes", "gauge", "Size of the disk.", |d| d.sectors * SECTOR_BYTES as u64),
        ("haversack_disk_target_bytes", "gauge", "Target of the disk.", |d| d.usage.target_blocks * BLOCK),
        ("haversack_disk_usage_bytes", "gauge", "Cached bytes of the disk.", |d| {
            d.usage.usage_blocks * BLOCK
        }),
        ("haversack_disk_dirty_bytes", "gauge", "Dirty bytes of the disk.", |d| d.usage.dirty_blocks * BLOCK),
        ("haversack_disk_mirrored_bytes", "gauge", "Dirty bytes with a second copy.", |d| {
            d.usage.mirrored_blocks * BLOCK
        }),
        ("haversack_disk_oldest_dirty_microseconds", "gauge", "Age of the oldest dirty block.", |d| {
            d.usage.oldest_dirty_us
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
        ("haversack_disk_origin_read_bytes_total", "counter", "Bytes read from the origin.", |d| {
            d.stats.origin_read_bytes
        }),
        ("haversack_disk_cleaned_bytes_total", "counter", "Bytes written back.", |d| d.stats.cleaned_bytes),
        ("haversack_disk_origin_errors_total", "counter", "Failed I/Os of the origin.", |d| d.origin_errors),
        ("haversack_disk_failed_requests_total", "counter", "Failed requests.", |d| d.stats.failed_requests),
        ("haversack_disk_corrupt_blocks_total", "counter", "Blocks that failed their checksum.", |d| {
            d.stats.corrupt_blocks
        }),
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
}

fn flash(out: &mut Text, seen: &[Seen]) {
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

fn histograms(out: &mut Text, seen: &[Seen]) {
    let kinds =
        |l: &Latencies| [("read", l.read.clone()), ("write", l.write.clone()), ("flush", l.flush.clone())];
    let name = "haversack_request_seconds";
    out.head(name, "histogram", "Latency seen by clients, by front end.");
    for s in seen {
        for disk in s.disks() {
            for (front_end, latencies) in
                [("vhost-user", &disk.vhost_user_latency), ("nbd", &disk.nbd_latency)]
            {
                for (op, histogram) in kinds(latencies) {
                    let labels = [
                        ("pool", s.pool.name.as_str()),
                        ("disk", &disk.name),
                        ("front_end", front_end),
                        ("op", op),
                    ];
                    out.histogram(name, &labels, &histogram);
                }
            }
        }
    }
    let name = "haversack_pool_turn_seconds";
    out.head(
        name,
        "histogram",
        "Duration of turns of the pool's thread; other clients are not served during a turn.",
    );
    for s in seen {
        if let Some(snapshot) = &s.snapshot {
            out.histogram(name, &[("pool", &s.pool.name)], &snapshot.turns);
        }
    }
    let name = "haversack_pool_processor_wait_seconds_total";
    out.head(name, "counter", "Time for which the pool's thread was ready to run but had no processor.");
    for s in seen {
        if let Some(snapshot) = &s.snapshot {
            out.sample(name, &[("pool", &s.pool.name)], snapshot.processor_wait_us as f64 / 1e6);
        }
    }
    let name = "haversack_origin_seconds";
    out.head(name, "histogram", "Latency of origins.");
    for s in seen {
        for disk in s.disks() {
            for (op, histogram) in kinds(&disk.origin_latency) {
                out.histogram(name, &[("pool", &s.pool.name), ("disk", &disk.name), ("op", op)], &histogram);
            }
        }
    }
    let name = "haversack_device_seconds";
    out.head(name, "histogram", "Latency of cache devices.");
    for s in seen {
        for device in s.devices() {
            for (op, histogram) in kinds(&device.latency) {
                out.histogram(
                    name,
                    &[("pool", &s.pool.name), ("device", &device.path), ("op", op)],
                    &histogram,
                );
            }
        }
    }
}

fn states(out: &mut Text, daemon: &Daemon) {
    let name = "haversack_disk_state";
    out.head(name, "gauge", "1 for the current state of the disk.");
    for (disk_name, disk) in daemon.disks() {
        let (pool, state) = disk.with(|d| (d.config.pool.clone(), format!("{:?}", d.state).to_lowercase()));
        out.sample(name, &[("pool", &pool), ("disk", &disk_name), ("state", &state)], 1.0);
    }
}

/// A figure of a window: name, help, and a function that returns its value.
type Figure = (&'static str, &'static str, fn(&Measured) -> f64);

/// Writes what the policy decided and measured, if there is a policy.
fn policy(out: &mut Text, daemon: &Daemon) {
    let status = daemon.policy.status(daemon);
    if status.settings.is_none() {
        return;
    }
    let counters: [Metric<PoolPolicy>; 2] = [
        ("haversack_policy_decisions_total", "counter", "Decisions made.", |pool| pool.decisions),
        ("haversack_policy_refusals_total", "counter", "Decisions refused.", |pool| pool.refusals),
    ];
    for (name, kind, help, value) in counters {
        out.head(name, kind, help);
        for pool in &status.pools {
            out.sample(name, &[("pool", &pool.pool)], value(pool) as f64);
        }
    }
    let name = "haversack_disk_demand_bytes";
    out.head(name, "gauge", "Demand of the disk.");
    let mut measured = Vec::new();
    for pool in &status.pools {
        for disk in &pool.disks {
            out.sample(name, &[("pool", &pool.pool), ("disk", &disk.disk)], disk.demand_bytes as f64);
            let window = daemon.policy.of_disk(&pool.pool, &disk.disk).1;
            measured.extend(window.map(|window| (pool.pool.as_str(), disk.disk.as_str(), window)));
        }
    }
    figures(out, &measured);
}

fn figures(out: &mut Text, measured: &[(&str, &str, Measured)]) {
    let figures: [Figure; 4] = [
        ("haversack_disk_wss_bytes", "Distinct bytes accessed in the last window.", |m| m.wss_bytes as f64),
        ("haversack_disk_intensity_per_second", "Reuse intensity of the last window.", |m| m.intensity_per_s),
        (
            "haversack_disk_overwrites",
            "Blocks written in the last window that had been accessed before.",
            |m| m.overwrites as f64,
        ),
        ("haversack_disk_lost_records", "Records of the last window that found no room.", |m| {
            m.lost_records as f64
        }),
    ];
    for (name, help, value) in figures {
        out.head(name, "gauge", help);
        for (pool, disk, window) in measured {
            out.sample(name, &[("pool", pool), ("disk", disk)], value(window));
        }
    }
    let name = "haversack_disk_rwss_bytes";
    out.head(name, "gauge", "Distinct bytes reused at least this many times in the last window.");
    for (pool, disk, window) in measured {
        for (reuses, bytes) in (1..).zip(&window.rwss_bytes) {
            let reuses: &str = &i32::to_string(&reuses);
            out.sample(name, &[("pool", pool), ("disk", disk), ("reuses", reuses)], *bytes as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_histograms_accumulate() {
        let mut out = Text::default();
        let mut histogram = Histogram::default();
        [5, 15, 15, 3_000_000].into_iter().for_each(|us| histogram.record(us));
        out.histogram("h_seconds", &[("disk", "a\"b\\")], &histogram);
        assert!(out.0.contains("h_seconds_bucket{disk=\"a\\\"b\\\\\",le=\"0.00001\"} 1\n"), "{}", out.0);
        assert!(
            out.0.contains("le=\"+Inf\"} 4\n") && out.0.contains("h_seconds_count{disk=\"a\\\"b\\\\\"} 4\n")
        );
        let counts: Vec<f64> = out
            .0
            .lines()
            .filter(|l| l.contains("_bucket"))
            .map(|l| l.rsplit(' ').next().unwrap().parse().unwrap())
            .collect();
        assert!(counts.is_sorted());
    }
}
