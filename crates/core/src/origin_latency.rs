//! How long a disk's origin takes, which is what a hit saves.
//!
//! A mean over about the last 1,024 I/Os, reads and writes apart.

use haversack_admission::Prices;
use haversack_model::Micros;

/// The mean is over about this many I/Os.
const MEAN_OVER: u32 = 1024;
/// I/Os until a mean is used.
const LEAST_COUNTED: u32 = 16;
/// No real origin is faster. A lower mean comes from a driver whose clock does not advance during I/O.
const LEAST_US: f32 = 10.0;

#[derive(Clone, Copy, Default)]
struct Mean {
    us: f32,
    counted: u32,
}

impl Mean {
    fn add(&mut self, took_us: Micros) {
        self.counted = (self.counted + 1).min(MEAN_OVER);
        self.us += (took_us as f32 - self.us) / self.counted as f32;
    }

    /// Returns the mean, or this if nothing is known.
    fn or(self, unknown_us: f32) -> f32 {
        if self.counted >= LEAST_COUNTED && self.us >= LEAST_US { self.us } else { unknown_us }
    }
}

/// See the module.
#[derive(Clone, Copy, Default)]
pub(crate) struct OriginLatency {
    reads: Mean,
    writes: Mean,
}

impl OriginLatency {
    pub fn add_read(&mut self, took_us: Micros) {
        self.reads.add(took_us);
    }

    pub fn add_write(&mut self, took_us: Micros) {
        self.writes.add(took_us);
    }

    /// Returns how long a write takes, if that was measured.
    #[inline]
    pub fn measured_write_us(&self) -> f32 {
        self.writes.or(0.0)
    }

    /// Returns the prices for the disk, given that of a flash write.
    #[inline]
    pub fn prices(&self, flash_write_us: f32) -> Prices {
        let unknown = Prices::default();
        Prices {
            read_us: self.reads.or(unknown.read_us),
            write_us: self.writes.or(unknown.write_us),
            flash_write_us,
            ..unknown
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_is_believed_after_some_ios_and_follows_a_change() {
        let mut latency = OriginLatency::default();
        (11..26).for_each(|us| latency.add_read(us));
        assert_eq!(latency.prices(7.0), Prices { flash_write_us: 7.0, ..Prices::default() });
        latency.add_read(26);
        assert_eq!(latency.prices(7.0).read_us, 18.5);
        (0..10_000).for_each(|_| latency.add_read(300));
        assert!((latency.prices(7.0).read_us - 300.0).abs() < 1.0);
        (0..100).for_each(|_| latency.add_write(9));
        assert_eq!(latency.prices(7.0).write_us, Prices::default().write_us, "time does not pass");
        assert_eq!(latency.measured_write_us(), 0.0);
    }
}
