//! Metrics of the directory of the cluster. There are none if this host is in no cluster.

use haversack_etcd::Status;

use super::Metric;
use super::text::Text;
use crate::daemon::Daemon;

/// Writes the figures of this host's access to the directory.
pub fn cluster(out: &mut Text, daemon: &Daemon) {
    let Some((status, view)) = daemon.cluster().map(|cluster| cluster.figures()) else { return };
    let away = view.away().len();
    let gauges = [
        (
            "haversack_cluster_connected",
            "1 if etcd is connected.",
            f64::from(u8::from(status.endpoint.is_some())),
        ),
        (
            "haversack_cluster_view_age_seconds",
            "Time since the last update from the directory, or since it was lost if there was none.",
            status.age.unwrap_or(status.since).as_secs_f64(),
        ),
        (
            "haversack_cluster_lease_left_seconds",
            "Time left on this host's lease.",
            status.lease_left.unwrap_or_default().as_secs_f64(),
        ),
        (
            "haversack_cluster_moves",
            "Moves that are planned or under way, in the whole cluster.",
            view.intents.len() as f64,
        ),
        (
            "haversack_cluster_conflicts",
            "Disks that this host owns and the directory lists at another host.",
            status.conflicts.len() as f64,
        ),
    ];
    for (name, help, value) in gauges {
        out.head(name, "gauge", help);
        out.sample(name, &[], value);
    }
    let name = "haversack_cluster_hosts";
    out.head(name, "gauge", "Hosts of the cluster, by state: alive or away.");
    out.sample(name, &[("state", "alive")], view.hosts.len() as f64);
    out.sample(name, &[("state", "away")], away as f64);
    let counters: [Metric<Status>; 6] = [
        ("haversack_cluster_connections_total", "counter", "Connections to etcd that were made.", |s| {
            s.connections
        }),
        ("haversack_cluster_full_reads_total", "counter", "Times that the whole directory was read.", |s| {
            s.full_reads
        }),
        (
            "haversack_cluster_lost_leases_total",
            "counter",
            "Leases that have ended while the daemon ran.",
            |s| s.lost_leases,
        ),
        ("haversack_cluster_writes_total", "counter", "Keys written to the directory.", |s| s.writes),
        (
            "haversack_cluster_skipped_reports_total",
            "counter",
            "Reports that were replaced before they were written.",
            |s| s.skipped_reports,
        ),
        (
            "haversack_cluster_failed_calls_total",
            "counter",
            "Changes of the directory that were refused or failed.",
            |s| s.failed_calls,
        ),
    ];
    for (name, kind, help, value) in counters {
        out.head(name, kind, help);
        out.sample(name, &[], value(&status) as f64);
    }
}
