//! What waits to be sent to a host.
//!
//! Invariants
//! - Copies that are sent ahead yield to everything else, and their rate is limited.
//! - The queue holds no more than [`MOST_BYTES`]; what does not fit is dropped.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::frame::{Frame, Sent, encode};

/// The most bytes that wait, for copies and for everything else.
const MOST_BYTES: usize = 8 << 20;
/// What may be sent at once after a pause, as a time at the rate.
const BURST: Duration = Duration::from_millis(100);

#[derive(Default)]
struct Line {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Line {
    fn push(&mut self, frame: Vec<u8>) -> bool {
        let fits = self.bytes + frame.len() <= MOST_BYTES;
        if fits {
            self.bytes += frame.len();
            self.frames.push_back(frame);
        }
        fits
    }

    fn pop(&mut self) -> Option<Vec<u8>> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.len();
        Some(frame)
    }
}

/// See the module.
pub struct Queue {
    urgent: Line,
    ahead: Line,
    rate_bytes: u64,
    /// Bytes of copies that may be sent now; negative after a long frame.
    allowance_bytes: f64,
    counted: Instant,
}

impl Queue {
    /// With a rate of copies in bytes a second, 0 for no limit.
    pub fn new(rate_bytes: u64, now: Instant) -> Queue {
        Queue {
            urgent: Line::default(),
            ahead: Line::default(),
            rate_bytes,
            allowance_bytes: 0.0,
            counted: now,
        }
    }

    /// Adds a frame. Returns false if it was dropped.
    pub fn push(&mut self, frame: Frame) -> bool {
        let line = if frame.is_ahead() { &mut self.ahead } else { &mut self.urgent };
        line.push(encode(&Sent::Frame(frame)))
    }

    /// Adds what the connection itself sends.
    pub fn push_own(&mut self, sent: &Sent) {
        self.urgent.push(encode(sent));
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        (self.urgent, self.ahead) = (Line::default(), Line::default());
    }

    /// Returns the next frame that may be sent, or when one may be.
    pub fn next(&mut self, now: Instant) -> Result<Vec<u8>, Option<Instant>> {
        if let Some(frame) = self.urgent.pop() {
            return Ok(frame);
        }
        if self.rate_bytes == 0 {
            return self.ahead.pop().ok_or(None);
        }
        let rate = self.rate_bytes as f64;
        let earned = now.duration_since(self.counted).as_secs_f64() * rate;
        self.allowance_bytes = (self.allowance_bytes + earned).min(BURST.as_secs_f64() * rate);
        self.counted = now;
        if self.ahead.frames.is_empty() {
            return Err(None);
        }
        if self.allowance_bytes < 0.0 {
            return Err(Some(now + Duration::from_secs_f64(-self.allowance_bytes / rate)));
        }
        let frame = self.ahead.pop().expect("it is not empty");
        self.allowance_bytes -= frame.len() as f64;
        Ok(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use haversack_migrate::{Message, Position, Session};
    use haversack_model::{BLOCK_BYTES, BlockNo, DiskId};

    fn copy() -> Frame {
        let session = Session { incarnation: 1, count: 1 };
        let at = Position { round: 1, next: 1 };
        let data = vec![0; BLOCK_BYTES];
        let message = Message::Copy { session, taker: 1, at, block: BlockNo(1), mask: 0xff, data };
        Frame::Protocol { disk: DiskId([1; 16]), message }
    }

    fn note() -> Frame {
        Frame::Note { disk: DiskId([1; 16]), text: b"x".to_vec() }
    }

    #[test]
    fn copies_yield_and_keep_to_the_rate() {
        let start = Instant::now();
        let mut queue = Queue::new(1_000_000, start);
        let pushed = (0..1000).all(|_| queue.push(copy()));
        assert!(pushed && queue.push(note()));
        assert!(queue.next(start).unwrap().len() < 100, "the note is first");
        let mut sent = 0;
        for at_ms in 0..1000 {
            let now = start + Duration::from_millis(at_ms);
            while let Ok(frame) = queue.next(now) {
                sent += frame.len();
            }
        }
        assert!((900_000..=1_110_000).contains(&sent), "{sent} bytes in a second");
    }

    #[test]
    fn a_full_queue_drops_what_does_not_fit() {
        let now = Instant::now();
        let mut queue = Queue::new(0, now);
        let fit = (0..4000).filter(|_| queue.push(copy())).count();
        assert!((1900..2100).contains(&fit), "{fit}");
        assert!(queue.push(note()), "copies do not keep others out");
        queue.clear();
        assert_eq!(queue.next(now), Err(None));
    }
}
