//! Constant times in whole microseconds, for clocks that count microseconds.

use serde::Deserialize;

use crate::distribution::Distribution;
use crate::{LatencyModel, StationModel};

/// What I/Os take, in microseconds. Neither transfers nor a network take time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WholeTimes {
    /// A read from a cache device.
    pub device_read_us: u32,
    /// A write to it.
    pub device_write_us: u32,
    /// Its flush.
    pub device_flush_us: u32,
    /// I/Os that a cache device handles in parallel, at least 1.
    pub device_servers: u32,
    /// A read from the origin of any disk.
    pub origin_read_us: u32,
    /// A write to it, or a discard.
    pub origin_write_us: u32,
    /// Its flush.
    pub origin_flush_us: u32,
    /// I/Os that the origin handles in parallel, at least 1.
    pub origin_servers: u32,
}

impl WholeTimes {
    /// Returns the model with these times.
    pub fn model(&self) -> LatencyModel {
        let station = |[read, write, flush]: [u32; 3], servers| StationModel {
            read: Distribution::Constant(read.into()),
            write: Distribution::Constant(write.into()),
            flush: Distribution::Constant(flush.into()),
            servers,
            bytes_per_second: f64::INFINITY,
        };
        let device = [self.device_read_us, self.device_write_us, self.device_flush_us];
        let origin = [self.origin_read_us, self.origin_write_us, self.origin_flush_us];
        LatencyModel {
            device: station(device, self.device_servers),
            origin: station(origin, self.origin_servers),
            network_round_trip_us: 0.0,
            network_bytes_per_second: f64::INFINITY,
            host_us: 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{IoKind, Stations};

    #[test]
    fn ios_end_at_whole_microseconds_whatever_their_size() {
        let times = WholeTimes {
            device_read_us: 90,
            device_write_us: 31,
            device_flush_us: 207,
            device_servers: 1,
            origin_read_us: 700,
            origin_write_us: 433,
            origin_flush_us: 1009,
            origin_servers: 1,
        };
        let mut stations = Stations::new(&times.model(), 1, 0);
        assert_eq!(stations.device(5_000, 0, IoKind::Read, 4096), 95_000);
        assert_eq!(stations.device(5_000, 0, IoKind::Write, 1 << 20), 126_000);
        assert_eq!(stations.origin(5_000, IoKind::Write, 12_345), 438_000);
        assert_eq!(stations.origin(5_000, IoKind::Flush, 0), 1_447_000);
    }
}
