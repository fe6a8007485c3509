//! Prometheus metrics, in the text format. docs/metrics.md lists them all.
//!
//! Invariants
//! - A name has one type and help text, and all its samples are consecutive, as the format requires.
//! - Names follow Prometheus' conventions: base units (seconds, bytes) last, counters end with `_total`, and every
//!   state of a thing with states is exported, so that a query need not know which it was before.

mod cluster;
mod disks;
mod latency;
mod lending;
mod policy;
mod pools;
mod process;
mod replicas;
mod text;

use haversack_api::JobState;
use haversack_engine::snapshot::{DeviceSnapshot, DiskSnapshot, Snapshot};
use haversack_model::BLOCK_BYTES;

use crate::daemon::Daemon;
use crate::pool::Pool;
use text::Text;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// A metric: name, type, help, and a function that returns its value.
type Metric<T> = (&'static str, &'static str, &'static str, fn(&T) -> u64);

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

/// Returns the text of all metrics.
pub fn text(daemon: &Daemon) -> String {
    let seen: Vec<Seen> =
        daemon.pools().map(|pool| Seen { pool, snapshot: pool.backend.snapshot().ok() }).collect();
    let mut out = Text::default();
    out.head("haversack_build_info", "gauge", "Always 1; the label has the daemon's version.");
    out.sample("haversack_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    pools::pools(&mut out, &seen, daemon.closed.closed());
    pools::devices(&mut out, &seen);
    disks::disks(&mut out, &seen);
    disks::flash(&mut out, &seen);
    latency::histograms(&mut out, &seen);
    disks::states(&mut out, daemon);
    replicas::replicas(&mut out, daemon);
    jobs(&mut out, daemon);
    policy::policy(&mut out, daemon);
    cluster::cluster(&mut out, daemon);
    lending::lending(&mut out, &seen);
    process::process(&mut out);
    out.into_text()
}

fn jobs(out: &mut Text, daemon: &Daemon) {
    let name = "haversack_running_jobs";
    out.head(name, "gauge", "Jobs that are running.");
    let running = daemon.jobs.list().iter().filter(|job| job.state == JobState::Running).count();
    out.sample(name, &[], running as f64);
}
