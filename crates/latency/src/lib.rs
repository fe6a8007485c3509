//! A model of time: a cache device, a network and an origin, each a queue with servers. The simulator uses it, and for
//! tests the engine.
//!
//! An I/O to the cache device waits for one of the device's servers, which then takes a random service time
//! plus the time of the transfer. An I/O to the origin first passes through the network, which handles one
//! transfer at a time, then waits for one of the origin's servers; half a round trip is added before and
//! after. All disks share one origin, and a pool's devices are identical. Each of several hosts has its own
//! devices and network.

pub mod distribution;
mod error;
mod looks;
mod mean;
mod whole;

use haversack_model::random::Random;

use distribution::Distribution;
pub use error::LatencyError;
pub use looks::Looks;
pub use mean::Mean;
pub use whole::WholeTimes;

/// The most I/Os that a station serves in parallel.
const MOST_SERVERS: u32 = 65_536;
/// The last time that there is, after 146 years: what would end later ends then.
const LAST_NS: u64 = 1 << 62;

/// A device or store: service times, and the number of parallel I/Os.
#[derive(Clone, PartialEq, Debug)]
pub struct StationModel {
    /// Time of a read, without the transfer.
    pub read: Distribution,
    /// Time of a write, without the transfer.
    pub write: Distribution,
    /// Time of a flush.
    pub flush: Distribution,
    /// I/Os served in parallel, at least 1.
    pub servers: u32,
    /// Speed of a transfer, for each server.
    pub bytes_per_second: f64,
}

/// Everything that takes time.
#[derive(Clone, PartialEq, Debug)]
pub struct LatencyModel {
    /// A cache device.
    pub device: StationModel,
    /// The origin, as a whole.
    pub origin: StationModel,
    /// Round-trip time, without the transfer.
    pub network_round_trip_us: f64,
    /// Speed of the network.
    pub network_bytes_per_second: f64,
    /// The time that every request takes on the host.
    pub host_us: f64,
}

impl Default for LatencyModel {
    /// An NVMe device, 10 Gbit/s Ethernet, and a disk array with its own cache. The figures are typical, not
    /// those of a product: use your own.
    fn default() -> Self {
        LatencyModel {
            device: StationModel {
                read: Distribution::LogNormal { median_us: 80.0, sigma: 0.3 },
                write: Distribution::LogNormal { median_us: 20.0, sigma: 0.4 },
                flush: Distribution::Constant(500.0),
                servers: 32,
                bytes_per_second: 1e9,
            },
            origin: StationModel {
                read: Distribution::LogNormal { median_us: 2_000.0, sigma: 0.9 },
                write: Distribution::LogNormal { median_us: 700.0, sigma: 0.6 },
                flush: Distribution::Constant(2_000.0),
                servers: 64,
                bytes_per_second: 2e8,
            },
            network_round_trip_us: 100.0,
            network_bytes_per_second: 1.25e9,
            host_us: 5.0,
        }
    }
}

/// The kind of an I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoKind {
    /// A read.
    Read,
    /// A write, or a discard.
    Write,
    /// A flush.
    Flush,
}

impl LatencyModel {
    /// Checks that everything has servers and a speed.
    ///
    /// # Errors
    /// [`LatencyError`] says what is wrong, and what was expected.
    pub fn check(&self) -> Result<(), LatencyError> {
        for (name, station) in [("device", &self.device), ("origin", &self.origin)] {
            if !(1..=MOST_SERVERS).contains(&station.servers) {
                return Err(LatencyError(format!(
                    "{name}-servers: expected 1 to {MOST_SERVERS} I/Os in parallel, found {}",
                    station.servers
                )));
            }
        }
        let speeds = [
            ("device", self.device.bytes_per_second),
            ("origin", self.origin.bytes_per_second),
            ("network", self.network_bytes_per_second),
        ];
        match speeds.into_iter().find(|(_, speed)| speed.is_nan() || *speed <= 0.0) {
            None => Ok(()),
            Some((name, speed)) => Err(LatencyError(format!(
                "{name}-speed: expected bytes a second above 0, such as 200MB, found {speed}"
            ))),
        }
    }
}

fn nanoseconds(us: f64) -> u64 {
    ((us * 1000.0) as u64).min(LAST_NS)
}

/// A time later than another, but never after the last one.
fn later(ns: u64, by_ns: u64) -> u64 {
    ns.saturating_add(by_ns).min(LAST_NS)
}

/// Servers with one queue.
struct Station {
    model: StationModel,
    /// When each server is free again.
    free_ns: Vec<u64>,
}

impl Station {
    fn new(model: &StationModel) -> Self {
        Station { model: model.clone(), free_ns: vec![0; model.servers.max(1) as usize] }
    }

    /// When a server is free.
    fn free_ns(&self) -> u64 {
        self.free_ns.iter().copied().min().unwrap_or(0)
    }

    /// When an I/O that arrives now is done.
    fn serve(&mut self, now_ns: u64, kind: IoKind, bytes: u64, rng: &mut Random) -> u64 {
        let service = match kind {
            IoKind::Read => &self.model.read,
            IoKind::Write => &self.model.write,
            IoKind::Flush => &self.model.flush,
        };
        let transfer_us = bytes as f64 / self.model.bytes_per_second * 1e6;
        let busy_ns = nanoseconds(service.draw_us(rng) + transfer_us);
        let server = self.free_ns.iter_mut().min().expect("a station has a server");
        *server = later(now_ns.max(*server), busy_ns);
        *server
    }
}

/// The running model: it tracks until when each part is busy.
pub struct Stations {
    devices: Vec<Station>,
    origin: Station,
    /// When the network of each host is free again.
    networks_free_ns: Vec<u64>,
    half_trip_ns: u64,
    network_ns_per_byte: f64,
    host_ns: u64,
    rng: Random,
}

impl Stations {
    /// One host, everything idle.
    pub fn new(model: &LatencyModel, devices: usize, seed: u64) -> Self {
        Stations::of_hosts(model, 1, devices, seed)
    }

    /// Several hosts with this number of devices altogether, everything idle.
    pub fn of_hosts(model: &LatencyModel, hosts: usize, devices: usize, seed: u64) -> Self {
        Stations {
            devices: (0..devices).map(|_| Station::new(&model.device)).collect(),
            origin: Station::new(&model.origin),
            networks_free_ns: vec![0; hosts],
            half_trip_ns: nanoseconds(model.network_round_trip_us / 2.0),
            network_ns_per_byte: 1e9 / model.network_bytes_per_second,
            host_ns: nanoseconds(model.host_us),
            rng: Random::new(seed),
        }
    }

    /// When an I/O to a cache device is done.
    pub fn device(&mut self, now_ns: u64, device: usize, kind: IoKind, bytes: u64) -> u64 {
        self.devices[device].serve(now_ns, kind, bytes, &mut self.rng)
    }

    /// When an I/O to a mirrored pair of cache devices is done: a read is served by the one that is free first,
    /// anything else by both.
    pub fn mirrored(&mut self, now_ns: u64, pair: usize, kind: IoKind, bytes: u64) -> u64 {
        let (one, other) = (2 * pair, 2 * pair + 1);
        if kind != IoKind::Read {
            return self.device(now_ns, one, kind, bytes).max(self.device(now_ns, other, kind, bytes));
        }
        let is_sooner = self.devices[other].free_ns() < self.devices[one].free_ns();
        self.device(now_ns, if is_sooner { other } else { one }, kind, bytes)
    }

    /// When an I/O of the first host to the origin is done.
    pub fn origin(&mut self, now_ns: u64, kind: IoKind, bytes: u64) -> u64 {
        self.origin_from(0, now_ns, kind, bytes)
    }

    /// When an I/O of a host to the origin is done.
    pub fn origin_from(&mut self, host: usize, now_ns: u64, kind: IoKind, bytes: u64) -> u64 {
        let transfer_ns = (bytes as f64 * self.network_ns_per_byte) as u64;
        let free_ns = &mut self.networks_free_ns[host];
        *free_ns = later((*free_ns).max(later(now_ns, self.half_trip_ns)), transfer_ns);
        later(self.origin.serve(*free_ns, kind, bytes, &mut self.rng), self.half_trip_ns)
    }

    /// The time that every request takes on the host.
    pub fn host_ns(&self) -> u64 {
        self.host_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> LatencyModel {
        let station = |us, servers| StationModel {
            read: Distribution::Constant(us),
            write: Distribution::Constant(us),
            flush: Distribution::Constant(us),
            servers,
            bytes_per_second: f64::INFINITY,
        };
        LatencyModel {
            device: station(10.0, 2),
            origin: station(100.0, 1),
            network_round_trip_us: 20.0,
            network_bytes_per_second: 1e9,
            host_us: 1.0,
        }
    }

    #[test]
    fn two_servers_serve_two_at_a_time() {
        let mut stations = Stations::new(&model(), 1, 0);
        let done = [0, 0, 0, 50_000].map(|now| stations.device(now, 0, IoKind::Read, 4096));
        assert_eq!(done, [10_000, 10_000, 20_000, 60_000]);
    }

    #[test]
    fn a_pair_reads_from_either_and_writes_to_both() {
        let mut one = model();
        one.device.servers = 1;
        let mut stations = Stations::new(&one, 4, 0);
        let read = [0, 0, 0].map(|now| stations.mirrored(now, 1, IoKind::Read, 4096));
        assert_eq!(read, [10_000, 10_000, 20_000]);
        // The first of the pair is busy until 20 us, the second until 10 us.
        assert_eq!(stations.mirrored(0, 1, IoKind::Write, 4096), 30_000);
        assert_eq!(stations.mirrored(0, 1, IoKind::Read, 4096), 30_000);
        assert_eq!(stations.mirrored(0, 0, IoKind::Flush, 0), 10_000, "the other pair is idle");
    }

    #[test]
    fn the_origin_is_behind_the_network() {
        let mut stations = Stations::new(&model(), 1, 0);
        // Half a trip, 1 us for 1,000 bytes, 100 us, half a trip; the second waits for the one server.
        assert_eq!(stations.origin(0, IoKind::Read, 1000), 121_000);
        assert_eq!(stations.origin(0, IoKind::Write, 1000), 221_000);
    }

    #[test]
    fn without_servers_or_speed_nothing_is_served() {
        assert_eq!(model().check(), Ok(()));
        let refused = |change: fn(&mut LatencyModel)| {
            let mut changed = model();
            change(&mut changed);
            changed.check().expect_err("it is refused").to_string()
        };
        assert!(refused(|model| model.device.servers = 0).starts_with("device-servers: expected 1 to 65536"));
        assert!(refused(|model| model.origin.servers = u32::MAX).starts_with("origin-servers"));
        assert!(refused(|model| model.origin.bytes_per_second = 0.0).starts_with("origin-speed: expected"));
        assert!(refused(|model| model.network_bytes_per_second = f64::NAN).starts_with("network-speed"));
        assert!(refused(|model| model.device.bytes_per_second = -1.0).starts_with("device-speed"));
    }

    #[test]
    fn times_end_instead_of_overflowing() {
        let mut slow = model();
        (slow.device.bytes_per_second, slow.network_bytes_per_second) = (1e-9, 1e-9);
        let mut stations = Stations::new(&slow, 1, 0);
        for now_ns in [0, LAST_NS] {
            let device_ns = stations.device(now_ns, 0, IoKind::Read, 4096);
            assert_eq!((device_ns, stations.origin(now_ns, IoKind::Read, 4096)), (LAST_NS, LAST_NS));
        }
    }

    /// Mean waiting time of M/M/1 is rho / (mu - lambda).
    #[test]
    fn queueing_agrees_with_theory() {
        let mut one = model();
        one.device.servers = 1;
        one.device.read = Distribution::Exponential { mean_us: 100.0 };
        let (mut stations, mut rng) = (Stations::new(&one, 1, 1), Random::new(2));
        let arrivals = Distribution::Exponential { mean_us: 200.0 };
        let (mut now, mut sum) = (0.0, 0.0);
        let count = 1_000_000;
        for _ in 0..count {
            now += arrivals.draw_us(&mut rng) * 1000.0;
            sum += stations.device(now as u64, 0, IoKind::Read, 0) as f64 - now;
        }
        let mean_us = sum / f64::from(count) / 1000.0;
        assert!((mean_us / 200.0 - 1.0).abs() < 0.03, "{mean_us}");
    }
}
