//! Measures how fast disks are sent to other hosts, and estimates how long the rest takes.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use haversack_model::{BLOCK_BYTES, DiskId, HostId};

/// The weight of the last measurement.
const WEIGHT: f64 = 0.4;
/// If nothing arrives for so long, the rate is 0: a mean that only falls would predict ever later ends.
const STALLED_AFTER: Duration = Duration::from_secs(3);
/// Entries of a list of blocks that one message has.
const ENTRIES_OF_A_LIST: u64 = 1024;
/// Round trips before a disk is served: the request for it, its release, and the ends of the lists.
const LEAST_ROUND_TRIPS: u64 = 3;

/// The paces of the disks that are being sent.
#[derive(Default)]
pub(super) struct Paces(HashMap<DiskId, Pace>);

struct Pace {
    to: HostId,
    /// Copies that had arrived at the last measurement.
    copies: u64,
    at: Instant,
    /// When a copy last arrived, or none was left to send.
    moved_at: Instant,
    bytes_per_s: Option<f64>,
}

impl Paces {
    /// Records how many copies of a disk have arrived at a host, and how many are left. Updates the rate.
    pub fn measure(&mut self, disk: DiskId, to: HostId, (copies, left): (u64, u64), now: Instant) {
        let fresh = || Pace { to, copies, at: now, moved_at: now, bytes_per_s: None };
        let pace = self.0.entry(disk).or_insert_with(fresh);
        let seconds = now.saturating_duration_since(pace.at).as_secs_f64();
        if pace.to != to || copies < pace.copies {
            *pace = fresh();
        } else if seconds > 0.0 {
            let sent = (copies - pace.copies) as f64 * BLOCK_BYTES as f64 / seconds;
            if left == 0 || copies > pace.copies {
                pace.moved_at = now;
            }
            // A pause between two passes says nothing of the link.
            if left > 0 || copies > pace.copies {
                let known = pace.bytes_per_s.filter(|known| *known > 0.0);
                let mean = known.map_or(sent, |known| known + WEIGHT * (sent - known));
                let is_stalled = now.saturating_duration_since(pace.moved_at) >= STALLED_AFTER;
                pace.bytes_per_s = Some(if is_stalled { 0.0 } else { mean });
            }
            (pace.copies, pace.at) = (copies, now);
        }
    }

    /// Forgets the disks that are not being sent any more.
    pub fn retain(&mut self, is_sent: impl Fn(DiskId) -> bool) {
        self.0.retain(|disk, _| is_sent(*disk));
    }

    /// Returns how many bytes of a disk are sent per second.
    pub fn of(&self, disk: DiskId) -> Option<f64> {
        self.0.get(&disk)?.bytes_per_s
    }
}

/// Returns how long a switchover would keep the guest waiting for messages between the hosts, if `dirty` and `outdated`
/// blocks are listed.
pub(super) fn expected_stall_s(round_trip_s: f64, dirty: u64, outdated: u64) -> f64 {
    let lists = dirty.div_ceil(ENTRIES_OF_A_LIST) + outdated.div_ceil(ENTRIES_OF_A_LIST);
    round_trip_s * (LEAST_ROUND_TRIPS + lists) as f64
}

/// Returns the time until `left_bytes` will have been sent.
pub(super) fn eta_s(left_bytes: u64, bytes_per_s: f64) -> Option<f64> {
    match left_bytes {
        0 => Some(0.0),
        left => (bytes_per_s > 0.0).then(|| left as f64 / bytes_per_s),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const DISK: DiskId = DiskId([1; 16]);

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let (start, mut paces) = (Instant::now(), Paces::default());
        let mut measure = |second: u64, to: u64, copies: u64, left: u64| {
            paces.measure(DISK, HostId(to), (copies, left), start + Duration::from_secs(second));
            paces.of(DISK).map(|rate| (rate / BLOCK_BYTES as f64).round() as u64)
        };
        assert_eq!(measure(0, 1, 0, 1000), None);
        assert_eq!(measure(1, 1, 100, 900), Some(100));
        assert_eq!(measure(2, 1, 300, 700), Some(140));
        assert_eq!(measure(3, 1, 300, 0), Some(140), "nothing was left to send");
        assert_eq!(measure(4, 1, 300, 700), Some(84), "nothing was sent");
        assert_eq!(measure(5, 2, 5, 700), None, "to another host");
        assert_eq!(measure(6, 2, 3, 700), None, "sent again");
        paces.retain(|_| false);
        assert_eq!(paces.of(DISK), None);
    }

    #[test]
    fn a_disk_that_is_stalled_has_no_rate_and_no_end() {
        let (start, mut paces) = (Instant::now(), Paces::default());
        let mut measure = |second: u64, copies: u64, left: u64| {
            paces.measure(DISK, HostId(1), (copies, left), start + Duration::from_secs(second));
            paces.of(DISK).and_then(|rate| eta_s(left * BLOCK_BYTES as u64, rate)).map(f64::round)
        };
        measure(0, 0, 1000);
        assert_eq!(measure(1, 100, 900), Some(9.0));
        assert_eq!(measure(2, 100, 900), Some(15.0));
        assert_eq!(measure(3, 100, 900), Some(25.0));
        assert_eq!(measure(4, 100, 900), None, "nothing arrives");
        assert_eq!(measure(5, 200, 800), Some(8.0), "it goes on");
        // Everything had been sent for a long time before there was more to send.
        measure(100, 200, 0);
        assert!(measure(101, 200, 100).is_some());
    }

    #[test]
    fn what_is_to_come_is_estimated() {
        assert_eq!(eta_s(0, 0.0), Some(0.0));
        assert_eq!(eta_s(100, 0.0), None);
        assert_eq!(eta_s(100, 50.0), Some(2.0));
        assert_eq!(expected_stall_s(0.01, 0, 0), 0.03);
        assert_eq!(expected_stall_s(0.01, 1025, 1), 0.06);
    }
}
