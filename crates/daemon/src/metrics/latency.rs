//! Metrics of time: latencies, and turns of the pools' threads.

use haversack_engine::snapshot::Latencies;

use super::Seen;
use super::text::Text;

/// Writes all histograms of latency.
pub fn histograms(out: &mut Text, seen: &[Seen]) {
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
        "Duration of turns of the pool's threads; other clients are not served during a turn.",
    );
    for s in seen {
        if let Some(snapshot) = &s.snapshot {
            out.histogram(name, &[("pool", &s.pool.name)], &snapshot.turns);
        }
    }
    let name = "haversack_pool_processor_wait_seconds_total";
    out.head(name, "counter", "Time for which the pool's threads were ready to run but had no processor.");
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
