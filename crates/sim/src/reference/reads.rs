//! Latencies of a reference cache's reads, as a live system would measure them.
//!
//! Invariant
//! - A read counts when it ends.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use haversack_trace::VolumeNo;

use crate::latency::Mean;

/// Recent latencies of reads from each volume's origin, and of reads from the cache device.
#[derive(Default)]
pub struct Reads {
    origins: Vec<Mean>,
    device: Mean,
    /// When each read in flight ends and how long it takes, in nanoseconds, and the number of the volume whose origin
    /// is read; `None` for the device.
    in_flight: BinaryHeap<Reverse<(u64, u64, Option<u32>)>>,
}

impl Reads {
    /// A read from a volume's origin, or from the cache device, begins and will end then.
    pub fn begin(&mut self, now_ns: u64, done_ns: u64, origin_of: Option<VolumeNo>) {
        let volume = origin_of.map(|volume| volume.0);
        self.in_flight.push(Reverse((done_ns, done_ns - now_ns, volume)));
    }

    /// Counts the reads that have ended by now.
    pub fn pass(&mut self, now_ns: u64) {
        while let Some(Reverse((done_ns, took_ns, volume))) = self.in_flight.peek().copied()
            && done_ns <= now_ns
        {
            self.in_flight.pop();
            self.count(volume, took_ns);
        }
    }

    fn count(&mut self, volume: Option<u32>, took_ns: u64) {
        let Some(volume) = volume else { return self.device.add(took_ns) };
        let at = volume as usize;
        if at >= self.origins.len() {
            self.origins.resize(at + 1, Mean::default());
        }
        self.origins[at].add(took_ns);
    }

    /// Means in microseconds: of reads from a volume's origin, and from the cache device.
    pub fn means_us(&self, volume: VolumeNo) -> (Option<f64>, Option<f64>) {
        let origin = self.origins.get(volume.0 as usize).copied().and_then(Mean::us);
        (origin, self.device.us())
    }

    /// Restarts the means: of one volume's origin, or of all. What is in flight counts when it ends.
    pub fn restart(&mut self, of: Option<VolumeNo>) {
        match of {
            Some(volume) => {
                self.origins.get_mut(volume.0 as usize).into_iter().for_each(|mean| *mean = Mean::default());
            }
            None => {
                self.origins.clear();
                self.device = Mean::default();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_counts_in_the_window_in_which_it_ends() {
        let (mut reads, volume) = (Reads::default(), VolumeNo(1));
        reads.begin(1_000, 5_000, Some(volume));
        reads.begin(1_000, 2_000, None);
        reads.begin(1_500, 4_500, None);
        reads.pass(4_499);
        assert_eq!(reads.means_us(volume), (None, Some(1.0)));
        reads.restart(None);
        reads.pass(5_000);
        assert_eq!(reads.means_us(volume), (Some(4.0), Some(3.0)));
        reads.restart(Some(volume));
        assert_eq!(reads.means_us(volume), (None, Some(3.0)));
    }
}
