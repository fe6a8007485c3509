//! FirepanIF's model of how VMs share a host's flash and the storage, to compare with a simulation (section 4.3.1).
//!
//! A VM gets from flash the requests of its hits, but at most an equal share of the device's rate; and from
//! the storage those of its misses, but at most an equal share of the storage's rate, or the network's rate.
//! The smaller limit applies to a shared device; the paper prints the larger.

use haversack_model::BLOCK_BYTES;

use crate::latency::{LatencyModel, StationModel};

/// The maximum rates of the hardware, in I/Os per second.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Hardware {
    /// A cache device: F.
    pub flash: f64,
    /// The same for a single VM: F_k.
    pub flash_of_vm: f64,
    /// The shared storage: S.
    pub storage: f64,
    /// The same for a single VM: S_k.
    pub storage_of_vm: f64,
    /// A host's network: N / B.
    pub network: f64,
}

/// I/Os per second of a station that is never idle.
fn most_iops(station: &StationModel, read_share: f64) -> f64 {
    let service_us = read_share * station.read.mean_us() + (1.0 - read_share) * station.write.mean_us();
    let transfer_us = BLOCK_BYTES as f64 / station.bytes_per_second * 1e6;
    f64::from(station.servers) * 1e6 / (service_us + transfer_us)
}

impl Hardware {
    /// Computes it from a latency model. Requests are of one block; `read_share` of them are reads, of which
    /// `hit_ratio` hit. Each VM keeps `depth` in flight. Writes go to the storage alone.
    pub fn of(model: &LatencyModel, read_share: f64, hit_ratio: f64, depth: u32) -> Hardware {
        let (hits, misses) = (read_share * hit_ratio, read_share * (1.0 - hit_ratio));
        let storage_reads = misses / (1.0 - hits).max(f64::MIN_POSITIVE);
        let (flash, storage) = (most_iops(&model.device, 1.0), most_iops(&model.origin, storage_reads));
        let alone = |iops: f64, servers: u32, more_us: f64| {
            let latency_us = f64::from(servers) * 1e6 / iops + more_us + model.host_us;
            iops.min(f64::from(depth) * 1e6 / latency_us)
        };
        Hardware {
            flash,
            flash_of_vm: alone(flash, model.device.servers, 0.0),
            storage,
            storage_of_vm: alone(storage, model.origin.servers, model.network_round_trip_us),
            network: model.network_bytes_per_second / BLOCK_BYTES as f64,
        }
    }

    /// Requests per second of a VM, of which flash serves the share `from_flash`.
    pub fn iops(&self, from_flash: f64, vms_of_host: usize, all_vms: usize) -> f64 {
        let flash = (self.flash / vms_of_host as f64).min(from_flash * self.flash_of_vm);
        let storage =
            (self.storage / all_vms as f64).min(self.network).min((1.0 - from_flash) * self.storage_of_vm);
        flash + storage
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HARDWARE: Hardware =
        Hardware { flash: 60.0, flash_of_vm: 40.0, storage: 70.0, storage_of_vm: 20.0, network: 8.0 };

    #[test]
    fn each_limit_counts() {
        // 0.25 * 40 of flash, the network's 8 of the storage.
        assert_eq!(HARDWARE.iops(0.25, 3, 7), 18.0);
        // 60 / 4 of flash, 0.25 * 20 of the storage.
        assert_eq!(HARDWARE.iops(0.75, 4, 7), 20.0);
        // 70 / 14 of the storage.
        assert_eq!(HARDWARE.iops(0.0, 4, 14), 5.0);
    }

    #[test]
    fn hardware_gives_what_its_servers_do() {
        let mut model = LatencyModel { network_round_trip_us: 100.0, ..LatencyModel::default() };
        let station = StationModel {
            read: "100".parse().unwrap(),
            write: "300".parse().unwrap(),
            flush: "0".parse().unwrap(),
            servers: 10,
            bytes_per_second: f64::INFINITY,
        };
        (model.device, model.origin, model.host_us) = (station.clone(), station, 0.0);
        // Of 10 requests 4 are writes and 3 are misses.
        let hardware = Hardware::of(&model, 0.6, 0.5, 8);
        assert_eq!(hardware.flash, 100_000.0);
        assert_eq!(hardware.flash_of_vm, 80_000.0);
        let service_us = (3.0 * 100.0 + 4.0 * 300.0) / 7.0;
        assert!((hardware.storage / (1e7 / service_us) - 1.0).abs() < 1e-9);
        assert!((hardware.storage_of_vm / (8e6 / (service_us + 100.0)) - 1.0).abs() < 1e-9);
        assert_eq!(hardware.network, model.network_bytes_per_second / 4096.0);
    }
}
