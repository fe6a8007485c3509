//! A limit on what is fetched from the earlier owner: a number of blocks per period of 100 ms, including those on
//! demand. A block that a request needs beyond the limit is asked for first in the next period.
//!
//! Source: Arteaga, Cabrera, Xu, Sundararaman and Zhao, "CloudCache: on-demand flash cache management for cloud
//! computing", FAST 2016, section 4.3.

use std::collections::VecDeque;

use haversack_core::IoId;
use haversack_model::{BLOCK_BYTES, Micros};

/// The length of a period.
const PERIOD_US: Micros = 100_000;

/// Returns how many blocks a rate allows in a period; `None`, no limit, for a rate of 0.
pub fn blocks_a_period(bytes_per_second: u64) -> Option<u32> {
    let blocks = bytes_per_second / (1_000_000 / PERIOD_US) / BLOCK_BYTES as u64;
    (bytes_per_second > 0).then(|| u32::try_from(blocks).unwrap_or(u32::MAX).max(1))
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Limit {
    /// Blocks in a period; `None` for no limit.
    blocks: Option<u32>,
    began_us: Option<Micros>,
    asked: u32,
    /// Fetches that wait for the next period, in this order.
    waiting: VecDeque<IoId>,
}

impl Limit {
    pub fn new(blocks: Option<u32>) -> Limit {
        Limit { blocks, ..Limit::default() }
    }

    /// Returns whether a block may be asked for now; otherwise its turn comes in a later period.
    pub fn may_ask(&mut self, io: IoId) -> bool {
        let is_reached = self.blocks.is_some_and(|blocks| self.asked >= blocks);
        if is_reached {
            self.waiting.push_back(io);
        } else {
            self.asked += 1;
        }
        !is_reached
    }

    /// Begins a new period if it is due; returns the fetches whose turn it is, and how many more may be asked for in
    /// the background.
    pub fn next_period(&mut self, now: Micros) -> Option<(Vec<IoId>, u64)> {
        let blocks = self.blocks?;
        if self.began_us.is_some_and(|began| now < began + PERIOD_US) {
            return None;
        }
        self.began_us = Some(now);
        let count = self.waiting.len().min(blocks as usize);
        self.asked = count as u32;
        Some((self.waiting.drain(..count).collect(), u64::from(blocks - self.asked)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beyond_the_limit_is_first_in_the_next_period_and_counts_there() {
        let mut limit = Limit::new(Some(2));
        assert_eq!(limit.next_period(5), Some((vec![], 2)));
        assert_eq!([1, 2, 3, 4, 5].map(|io| limit.may_ask(IoId(io))), [true, true, false, false, false]);
        assert_eq!(limit.next_period(5 + PERIOD_US - 1), None);
        assert_eq!(limit.next_period(5 + PERIOD_US), Some((vec![IoId(3), IoId(4)], 0)));
        assert!(!limit.may_ask(IoId(6)));
        assert_eq!(limit.next_period(5 + 2 * PERIOD_US), Some((vec![IoId(5), IoId(6)], 0)));
        assert_eq!(limit.next_period(5 + 3 * PERIOD_US), Some((vec![], 2)));
    }

    #[test]
    fn a_rate_is_a_number_of_blocks_in_a_tenth_of_a_second() {
        let rates = [0, 1, 40_960, 409_600, u64::MAX];
        assert_eq!(rates.map(blocks_a_period), [None, Some(1), Some(1), Some(10), Some(u32::MAX)]);
    }

    #[test]
    fn without_a_limit_there_are_no_periods() {
        let mut limit = Limit::new(None);
        assert!((0..1_000).all(|io| limit.may_ask(IoId(io))));
        assert_eq!(limit.next_period(0), None);
    }
}
