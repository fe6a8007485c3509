//! Metrics of pools and their cache devices.

use haversack_api::PoolState;
use haversack_engine::snapshot::{DeviceSnapshot, Snapshot};

use super::text::Text;
use super::{BLOCK, Metric, Seen};
use crate::status::pool_state;

/// Writes the figures of the pools; `closed` are those that could not be opened.
pub fn pools<'a>(out: &mut Text, seen: &[Seen], closed: impl Iterator<Item = (&'a str, String)>) {
    out.head("haversack_pool_state", "gauge", "1 for the current state of the pool, 0 for the others.");
    for s in seen {
        let state = pool_state(s.pool, s.snapshot.as_ref());
        out.states("haversack_pool_state", &[("pool", &s.pool.name)], PoolState::ALL, state);
    }
    for (name, _) in closed {
        out.states("haversack_pool_state", &[("pool", name)], PoolState::ALL, PoolState::Failed);
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
    let name = "haversack_pool_missing_devices";
    out.head(name, "gauge", "Cache devices that were not found when the pool was opened.");
    for s in seen {
        out.sample(name, &[("pool", &s.pool.name)], s.pool.missing_devices as f64);
    }
}

/// Writes the figures of the cache devices.
pub fn devices(out: &mut Text, seen: &[Seen]) {
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
