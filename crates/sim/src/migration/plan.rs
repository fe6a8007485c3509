//! The plan of a migration: a mix's `[migration]` table, which the command line can override.

use std::time::Duration;

use haversack_api::{Size, Span};
use haversack_migrate::{Method, Timing, blocks_a_period};
use serde::{Deserialize, Serialize};

use super::link::{LinkModel, Speed};
use crate::error::SimError;
use crate::latency::LatencyModel;
use crate::latency::distribution::Distribution;

/// The longest default window.
const LONGEST_WINDOW_US: u64 = 60_000_000;

/// The table `[migration]` of a mix.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MigrationTable {
    /// The disk that moves, or the load of all disks that move.
    pub disk: String,
    /// When the VM stops at the source.
    pub at: Span,
    /// How long the VMs are measured before memory is copied, and from the stop on.
    pub window: Span,
    /// How long the hypervisor keeps the VM stopped.
    #[serde(default = "downtime")]
    pub downtime: Span,
    /// How long its memory is copied before it stops; meanwhile its cache is sent ahead.
    #[serde(default = "memory")]
    pub memory: Span,
    /// Speed of the link between the hosts.
    #[serde(default = "link")]
    pub link: Speed,
    /// Its round-trip time.
    #[serde(default = "round_trip")]
    pub round_trip: Span,
    /// Bytes a second that `on-demand-rws` fetches from the source at most, on demand and in the background; 0 for no
    /// limit. Other methods have no limit.
    #[serde(default)]
    pub rate: Size,
    /// Latencies and speeds other than the simulator's defaults.
    #[serde(default)]
    pub latency: LatencyTable,
}

/// The table `[migration.latency]`. Its keys are named like options of `haversack sim`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LatencyTable {
    /// Latency of a read from a cache device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_read: Option<Distribution>,
    /// Latency of a write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_write: Option<Distribution>,
    /// Latency of a flush.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_flush: Option<Distribution>,
    /// I/Os that a cache device handles in parallel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_servers: Option<u32>,
    /// Bytes per second of each of these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_speed: Option<Size>,
    /// Latency of a read from the origin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin_read: Option<Distribution>,
    /// Latency of a write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin_write: Option<Distribution>,
    /// Latency of a flush.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin_flush: Option<Distribution>,
    /// I/Os that the origin handles in parallel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin_servers: Option<u32>,
    /// Bytes per second of each of these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin_speed: Option<Size>,
    /// Speed of each host's network to the origin, in bytes per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_speed: Option<Size>,
}

impl LatencyTable {
    /// The simulator's default model, with the table's values.
    pub fn model(&self) -> LatencyModel {
        self.over(LatencyModel::default())
    }

    /// A model with the table's values.
    pub fn over(&self, mut model: LatencyModel) -> LatencyModel {
        let set = |to: &mut Distribution, from: &Option<Distribution>| {
            from.iter().for_each(|distribution| to.clone_from(distribution));
        };
        set(&mut model.device.read, &self.device_read);
        set(&mut model.device.write, &self.device_write);
        set(&mut model.device.flush, &self.device_flush);
        set(&mut model.origin.read, &self.origin_read);
        set(&mut model.origin.write, &self.origin_write);
        set(&mut model.origin.flush, &self.origin_flush);
        model.device.servers = self.device_servers.unwrap_or(model.device.servers);
        model.origin.servers = self.origin_servers.unwrap_or(model.origin.servers);
        let speed = |given: Option<Size>, default: f64| given.map_or(default, |size| size.0 as f64);
        model.device.bytes_per_second = speed(self.device_speed, model.device.bytes_per_second);
        model.origin.bytes_per_second = speed(self.origin_speed, model.origin.bytes_per_second);
        model.network_bytes_per_second = speed(self.network_speed, model.network_bytes_per_second);
        model
    }
}

fn downtime() -> Span {
    Span(Duration::from_millis(30))
}

fn memory() -> Span {
    Span(Duration::from_secs(5))
}

fn link() -> Speed {
    LinkModel::default().speed
}

fn round_trip() -> Span {
    Span(Duration::from_micros(100))
}

impl MigrationTable {
    /// The defaults for a disk that moves at a given time. The window is a minute, or shorter if the move comes
    /// earlier.
    pub fn at(disk: &str, at: Span) -> MigrationTable {
        let before = at.as_micros().saturating_sub(memory().as_micros());
        let window = Span(Duration::from_micros(before.min(LONGEST_WINDOW_US)));
        MigrationTable {
            disk: disk.into(),
            at,
            window,
            downtime: downtime(),
            memory: memory(),
            link: link(),
            round_trip: round_trip(),
            rate: Size(0),
            latency: LatencyTable::default(),
        }
    }

    /// Checks what can be checked without a load.
    ///
    /// # Errors
    /// What is wrong, and what was expected.
    pub fn check(&self) -> Result<(), SimError> {
        let wrong = |why: String| Err(SimError::Settings(format!("[migration] of '{}': {why}", self.disk)));
        if let Err(error) = self.latency.model().check() {
            return wrong(format!("[migration.latency] {error}"));
        }
        if self.window.as_micros() == 0 {
            return wrong("'window' is 0: expected a span such as 60s".into());
        }
        if self.at.as_micros() < self.memory.as_micros() + self.window.as_micros() {
            return wrong(format!(
                "it stops at {}, too early for a window of {} and then {} in which memory is copied: move it later",
                self.at, self.window, self.memory
            ));
        }
        Ok(())
    }

    /// The same in simulated time. Times of the load pass `speed_up` times faster; the hypervisor and the link do not.
    pub fn plan(&self, method: Method, speed_up: f64) -> MigrationPlan {
        let ns = |span: Span| span.as_micros().saturating_mul(1_000);
        let of_trace = |span: Span| (ns(span) as f64 / speed_up) as u64;
        MigrationPlan {
            method,
            at_ns: of_trace(self.at),
            window_ns: of_trace(self.window),
            downtime_ns: ns(self.downtime),
            memory_ns: of_trace(self.memory),
            link: LinkModel { speed: self.link, round_trip_us: self.round_trip.as_micros() as f64 },
            timing: Timing { fetched_a_period: blocks_a_period(self.rate.0), ..Timing::default() },
        }
    }
}

/// A migration in simulated time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MigrationPlan {
    /// The method.
    pub method: Method,
    /// When the VM stops at the source.
    pub at_ns: u64,
    /// How long the VMs are measured before memory is copied, and from the stop on.
    pub window_ns: u64,
    /// How long the hypervisor keeps the VM stopped.
    pub downtime_ns: u64,
    /// How long its memory is copied before it stops.
    pub memory_ns: u64,
    /// The link between the hosts.
    pub link: LinkModel,
    /// The protocol's timing.
    pub timing: Timing,
}

impl MigrationPlan {
    /// The beginning of the first window, of copying memory, of the second window (the VM stops), and its end.
    pub fn marks_ns(&self) -> [u64; 4] {
        let ahead_ns = self.at_ns.saturating_sub(self.memory_ns);
        [ahead_ns.saturating_sub(self.window_ns), ahead_ns, self.at_ns, self.at_ns + self.window_ns]
    }
}
