//! Metrics of the policy: what it decided and measured.

use haversack_api::{Measured, PoolPolicy};

use super::Metric;
use super::text::Text;
use crate::daemon::Daemon;
use crate::policy::Policy;

/// A figure of a window: name, help, and a function that returns its value.
type Figure = (&'static str, &'static str, fn(&Measured) -> f64);

/// Writes what the policy decided and measured, if there is a policy.
pub fn policy(out: &mut Text, daemon: &Daemon) {
    let status = daemon.with_policy(Policy::status);
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
            let window = daemon.with_policy(|policy| policy.of_disk(&pool.pool, &disk.disk)).1;
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
        (
            "haversack_disk_lost_records",
            "Records of the last window that were dropped because the buffer was full.",
            |m| m.lost_records as f64,
        ),
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
