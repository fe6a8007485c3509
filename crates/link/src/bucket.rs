//! A limit in bytes per second.
//!
//! Invariants
//! - In any time t, at most `rate` times t passes, plus a twentieth of a second's bytes and one frame.

use std::time::{Duration, Instant};

/// How long unused allowance is kept.
const BURST: Duration = Duration::from_millis(50);

/// A token bucket. A frame passes while there is any allowance, and uses all of its length, so a frame of any size
/// passes at any rate.
#[derive(Debug)]
pub(crate) struct Bucket {
    bytes_per_second: u64,
    /// Negative after a frame longer than the allowance.
    allowance_bytes: f64,
    filled_at: Instant,
}

impl Bucket {
    /// Makes a full bucket; 0 for no limit.
    pub fn new(bytes_per_second: u64, now: Instant) -> Bucket {
        let mut bucket = Bucket { bytes_per_second, allowance_bytes: 0.0, filled_at: now };
        bucket.allowance_bytes = bucket.most_bytes();
        bucket
    }

    fn most_bytes(&self) -> f64 {
        (self.bytes_per_second as f64 * BURST.as_secs_f64()).max(1.0)
    }

    /// Changes the limit from now on.
    pub fn set(&mut self, bytes_per_second: u64, now: Instant) {
        self.fill(now);
        self.bytes_per_second = bytes_per_second;
        self.allowance_bytes = self.allowance_bytes.min(self.most_bytes());
    }

    fn fill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.filled_at);
        self.filled_at = now;
        let filled = self.allowance_bytes + self.bytes_per_second as f64 * passed.as_secs_f64();
        self.allowance_bytes = filled.min(self.most_bytes());
    }

    /// Returns how long to wait until the next frame may pass.
    pub fn wait(&mut self, now: Instant) -> Option<Duration> {
        if self.bytes_per_second == 0 {
            return None;
        }
        self.fill(now);
        if self.allowance_bytes >= 1.0 {
            return None;
        }
        let seconds = (1.0 - self.allowance_bytes) / self.bytes_per_second as f64;
        // Rounded up: there is enough allowance after the wait.
        Some(Duration::from_secs_f64(seconds.min(3_600.0)) + Duration::from_micros(1))
    }

    /// Returns how many frames of this length may pass now, if there is a limit.
    pub fn frames(&mut self, frame_bytes: usize, now: Instant) -> Option<usize> {
        if self.bytes_per_second == 0 {
            return None;
        }
        self.fill(now);
        let whole = self.allowance_bytes >= 1.0;
        Some(if whole { (self.allowance_bytes / frame_bytes as f64).ceil() as usize } else { 0 })
    }

    /// Uses allowance for what passes.
    pub fn take(&mut self, bytes: usize) {
        if self.bytes_per_second > 0 {
            self.allowance_bytes -= bytes as f64;
        }
    }

    /// Returns a part of the allowance: fewer bytes were sent.
    pub fn give_back(&mut self, bytes: usize) {
        self.allowance_bytes = (self.allowance_bytes + bytes as f64).min(self.most_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes frames for a time, and returns their bytes.
    fn pass(bucket: &mut Bucket, start: Instant, time: Duration, frame_bytes: usize) -> usize {
        let (mut now, mut passed) = (start, 0);
        while now < start + time {
            match bucket.wait(now) {
                Some(wait) => now += wait,
                None => {
                    for _ in 0..bucket.frames(frame_bytes, now).unwrap() {
                        assert_eq!(bucket.wait(now), None);
                        bucket.take(frame_bytes);
                        passed += frame_bytes;
                    }
                    assert_eq!(bucket.frames(frame_bytes, now), Some(0));
                }
            }
        }
        passed
    }

    #[test]
    fn a_limit_holds_at_any_rate() {
        for rate in [1_000, 100_000, 50 << 20] {
            let start = Instant::now();
            let passed = pass(&mut Bucket::new(rate, start), start, Duration::from_secs(100), 4_200);
            let most = rate as f64 * 100.05 + 4_200.0;
            assert!((passed as f64) <= most, "{passed} of {most}");
            assert!(passed as f64 >= rate as f64 * 99.0, "{passed} at {rate}");
        }
    }

    #[test]
    fn a_changed_limit_counts_at_once() {
        let start = Instant::now();
        let mut bucket = Bucket::new(1, start);
        bucket.take(4_000);
        assert!(bucket.wait(start) > Some(Duration::from_secs(3_000)));
        bucket.set(1 << 20, start);
        assert!(bucket.wait(start) < Some(Duration::from_millis(10)));
        bucket.set(0, start);
        assert_eq!(bucket.wait(start), None);
    }
}
