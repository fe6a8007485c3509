//! How much of the cache may be on probation: as much as saves the most misses.
//!
//! Each of the two hands evicts blocks that some more room on its side would have kept. If more of those that the
//! probation hand evicted come back than of those that the main hand evicted, of the last few of either, a block of
//! room is worth more on probation, and its share grows; otherwise it shrinks. So a load whose blocks come back soon
//! after they were new, such as one that goes from phase to phase, gets a cache that is nearly an LRU list, and a load
//! of which most blocks never come back keeps nearly all room for those that do.
//!
//! A hash sample of the evicted blocks is remembered.
//!
//! Source: the two ghost lists of ARC (Megiddo and Modha, FAST'03) and of S3-FIFO's adaptive variant (Yang et al.,
//! SOSP'23, section 6.2.2), here of equal numbers of evictions, with a step that follows the size of the cache.
//!
//! Invariants
//! - The share stays between its bounds: both hands always have blocks to judge by.

/// Blocks that are remembered of each hand's last evictions, about.
const REMEMBERED_EACH: u64 = 256;
const PLACES: usize = 1024;
/// The last evictions of a hand are one of this many blocks of the cache.
const WINDOW: u64 = 50;
/// Blocks by which the share changes with each block that comes back.
const STEP: f64 = 4.0;

const FIRST: f64 = 0.1;
const LEAST: f64 = 0.02;
const MOST: f64 = 0.9;

/// One of the hands of replacement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Hand {
    #[default]
    Probation,
    Main,
}

#[derive(Clone, Copy, Default)]
struct Departed {
    hash: u64,
    /// Which of its hand's evictions it was, counted from 1; 0 if there is none here.
    number: u64,
    hand: Hand,
}

/// See the module.
pub(super) struct Balance {
    share: f64,
    /// Evictions of the probation hand, and of the main hand.
    evictions: [u64; 2],
    /// Empty until something is evicted.
    departed: Vec<Departed>,
}

impl Default for Balance {
    fn default() -> Balance {
        Balance { share: FIRST, evictions: [0; 2], departed: Vec::new() }
    }
}

impl Balance {
    /// Whether the probation hand is to act before the main hand.
    pub(super) fn is_probation_due(&self, probation: u64, live: u64) -> bool {
        probation as f64 > self.share * live as f64
    }

    pub(super) fn bytes(&self) -> usize {
        self.departed.capacity() * size_of::<Departed>()
    }

    /// One of this many blocks is remembered, a power of two.
    fn one_in(live: u64) -> u64 {
        (live / WINDOW / REMEMBERED_EACH).max(1).next_power_of_two()
    }

    fn place(hash: u64, live: u64) -> Option<usize> {
        (hash & (Self::one_in(live) - 1) == 0).then_some((hash >> 40) as usize % PLACES)
    }

    /// Notes that a hand evicts a block from a cache of `live` blocks.
    pub(super) fn leaves(&mut self, hash: u64, hand: Hand, live: u64) {
        self.evictions[hand as usize] += 1;
        let Some(place) = Self::place(hash, live) else { return };
        if self.departed.is_empty() {
            self.departed = vec![Departed::default(); PLACES];
        }
        self.departed[place] = Departed { hash, number: self.evictions[hand as usize], hand };
    }

    /// Notes that a block enters that the cache did not have.
    pub(super) fn enters(&mut self, hash: u64, live: u64) {
        let Some(place) = Self::place(hash, live).filter(|_| !self.departed.is_empty()) else { return };
        let departed = self.departed[place];
        if departed.hash != hash || departed.number == 0 {
            return;
        }
        self.departed[place].number = 0;
        let evictions_since = self.evictions[departed.hand as usize] - departed.number;
        if evictions_since > live / WINDOW {
            return;
        }
        let step = STEP * Self::one_in(live) as f64 / live.max(1) as f64;
        let change = if departed.hand == Hand::Probation { step } else { -step };
        self.share = (self.share + change).clamp(LEAST, MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use haversack_model::place::mix;

    const LIVE: u64 = 10_000;

    /// Every block of one hand comes back after `later` more evictions of that hand.
    fn come_back(balance: &mut Balance, hand: Hand, later: u64, live: u64) {
        for block in 0..10 * live {
            balance.leaves(mix(block), hand, live);
            if let Some(earlier) = block.checked_sub(later) {
                balance.enters(mix(earlier), live);
            }
        }
    }

    #[test]
    fn the_share_follows_the_hand_whose_blocks_come_back() {
        let mut balance = Balance::default();
        assert!(balance.is_probation_due(LIVE / 10 + 1, LIVE) && !balance.is_probation_due(LIVE / 10, LIVE));
        come_back(&mut balance, Hand::Probation, LIVE / 100, LIVE);
        assert_eq!(balance.share, MOST);
        come_back(&mut balance, Hand::Main, LIVE / 100, LIVE);
        assert_eq!(balance.share, LEAST);
    }

    #[test]
    fn what_comes_back_late_would_not_have_been_kept_by_a_little_more_room() {
        let mut balance = Balance::default();
        come_back(&mut balance, Hand::Probation, LIVE / WINDOW + 1, LIVE);
        assert_eq!(balance.share, FIRST);
    }

    #[test]
    fn blocks_that_come_back_as_often_to_either_side_change_little() {
        let mut balance = Balance::default();
        for block in 0..10 * LIVE {
            for hand in [Hand::Probation, Hand::Main] {
                balance.leaves(mix(block << 1 | hand as u64), hand, LIVE);
                if block >= 10 {
                    balance.enters(mix((block - 10) << 1 | hand as u64), LIVE);
                }
            }
        }
        assert!((balance.share - FIRST).abs() < 0.01, "{}", balance.share);
    }

    #[test]
    fn a_sample_of_a_large_cache_tells_the_same() {
        let live = 4_000_000;
        assert!(Balance::one_in(live) > 100);
        let mut balance = Balance::default();
        for block in 0..live {
            balance.leaves(mix(block), Hand::Probation, live);
            if block >= 1_000 && block % 8 == 0 {
                balance.enters(mix(block - 1_000), live);
            }
        }
        // An eighth of the evicted blocks came back, each of which is worth four blocks of room.
        let expected = FIRST + STEP / 8.0;
        assert!((balance.share - expected).abs() < 0.1, "{} of {expected}", balance.share);
        assert!(balance.bytes() <= 24 << 10, "{}", balance.bytes());
    }
}
