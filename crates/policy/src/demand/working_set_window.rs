//! Counts working sets in windows of real time, access by access, in bounded memory.
//!
//! Windows follow one another on the caller's clock, so an idle disk has empty windows instead of one that
//! never ends. Each distinct block takes a place in a table. When the table is full, the threshold is halved,
//! only blocks whose hash is below it are counted, and the counts are scaled up: an estimate that is accurate
//! to a few percent with thousands of places. The next window begins with twice the threshold, up to all
//! blocks.
//!
//! Source: CloudCache (Arteaga), section 3.4.1, "real-time-based window".

use haversack_model::Micros;
use haversack_model::place::spread;
use serde::{Deserialize, Serialize};

use crate::error::PolicyError;
use haversack_admission::lru::Lru;

/// Reuse working sets are counted up to this many reuses.
pub const MOST_REUSES: u8 = 4;

/// After a longer time without accesses, only this many empty windows are reported.
const MOST_EMPTY: u64 = 64;

/// The sizes of the working sets of a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WorkingSetSizes {
    /// When the window began.
    pub start_us: Micros,
    /// WSS in blocks.
    pub wss_blocks: u64,
    /// RWSS_1 to RWSS_4 in blocks.
    pub rwss_blocks: [u64; MOST_REUSES as usize],
}

/// Counts a disk's working sets.
pub struct WorkingSetWindow {
    length_us: Micros,
    start_us: Micros,
    /// Accesses to each block minus one, at most [`MOST_REUSES`].
    reuses: Lru,
    /// One block in 2^shift is counted.
    shift: u32,
    /// The minimum of `shift`: only one block in 2^`least_shift` is passed in.
    least_shift: u32,
}

impl WorkingSetWindow {
    /// Counts in windows of `length_us`, the first of which starts at `start_us`, in at most this many places
    /// of 32 bytes.
    ///
    /// # Errors
    /// `BadFigure` for windows without length or a table without places.
    pub fn new(length_us: Micros, start_us: Micros, places: u32) -> Result<WorkingSetWindow, PolicyError> {
        for (what, found) in
            [("the length of a window in us", length_us), ("the places to count in", places.into())]
        {
            if found == 0 {
                let found = found.to_string();
                return Err(PolicyError::BadFigure { what: what.into(), found, expected: "at least 1" });
            }
        }
        Ok(WorkingSetWindow { length_us, start_us, reuses: Lru::new(places), shift: 0, least_shift: 0 })
    }

    /// From now on expects accesses to one block in 2^`shift`, those that [`spread`] puts first. Counts so
    /// far are dropped. Sizes are still those of all blocks.
    pub fn thin_out(&mut self, shift: u8) {
        (self.shift, self.least_shift) = (shift.into(), shift.into());
        while self.reuses.pop_oldest().is_some() {}
    }

    /// From now on counts one block in 2^`shift`, which is no less than before. Counts of these blocks are kept.
    pub fn narrow(&mut self, shift: u8) {
        (self.shift, self.least_shift) = (shift.into(), shift.into());
        self.reuses.retain(|block| spread(block).leading_zeros() >= shift.into());
    }

    /// Counts as at first, in windows of which the first starts at 0, one block in 2^`shift`.
    pub fn begin_again(&mut self, shift: u8) {
        self.start_us = 0;
        self.thin_out(shift);
    }

    /// Returns how many places are in use, and how many there are.
    pub fn places(&self) -> (u32, u32) {
        (self.reuses.len(), self.reuses.capacity())
    }

    /// Same as [`thin_out`](Self::thin_out), from the beginning.
    #[must_use]
    pub fn sampled(mut self, shift: u8) -> WorkingSetWindow {
        self.thin_out(shift);
        self
    }

    /// Records an access to a block.
    pub fn access(&mut self, block: u64) {
        let place = spread(block);
        if place.leading_zeros() < self.shift {
            return;
        }
        let reuses = self.reuses.get(block).map_or(0, |reuses| (reuses + 1).min(MOST_REUSES));
        if reuses == 0 && self.reuses.len() == self.reuses.capacity() {
            self.shift += 1;
            let shift = self.shift;
            self.reuses.retain(|block| spread(block).leading_zeros() >= shift);
            return self.access(block);
        }
        self.reuses.put(block, reuses);
    }

    /// Advances the time and reports the sizes of each window that has ended, including empty ones. Must be
    /// called before an access at that time is noted.
    pub fn pass(&mut self, now_us: Micros, mut ended: impl FnMut(WorkingSetSizes)) {
        let mut behind = now_us.saturating_sub(self.start_us) / self.length_us;
        while behind > 0 {
            ended(self.sizes());
            self.shift = self.shift.saturating_sub(1).max(self.least_shift);
            while self.reuses.pop_oldest().is_some() {}
            let windows = behind.saturating_sub(MOST_EMPTY).max(1);
            self.start_us += windows * self.length_us;
            behind -= windows;
        }
    }

    /// Returns the sizes of the current window so far.
    pub fn sizes(&self) -> WorkingSetSizes {
        let mut sizes = WorkingSetSizes { start_us: self.start_us, ..WorkingSetSizes::default() };
        for reuses in self.reuses.values() {
            sizes.wss_blocks += 1;
            sizes.rwss_blocks.iter_mut().take(reuses.into()).for_each(|blocks| *blocks += 1);
        }
        let weight = 1 << self.shift.min(63);
        sizes.wss_blocks = sizes.wss_blocks.saturating_mul(weight);
        sizes.rwss_blocks = sizes.rwss_blocks.map(|blocks| blocks.saturating_mul(weight));
        sizes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_real_time() {
        let mut window = WorkingSetWindow::new(10, 100, 16).unwrap();
        let mut ended = Vec::new();
        for (now_us, block) in [(100, 1), (101, 1), (103, 2), (109, 1), (131, 2)] {
            window.pass(now_us, |sizes| ended.push(sizes));
            window.access(block);
        }
        let first = WorkingSetSizes { start_us: 100, wss_blocks: 2, rwss_blocks: [1, 1, 0, 0] };
        let empty = |start_us| WorkingSetSizes { start_us, ..WorkingSetSizes::default() };
        assert_eq!(ended, [first, empty(110), empty(120)]);
        assert_eq!(window.sizes().wss_blocks, 1);
        let mut told = 0;
        window.pass(u64::MAX, |_| told += 1);
        assert_eq!(told, 1 + MOST_EMPTY);
        assert!(WorkingSetWindow::new(0, 0, 16).is_err());
    }

    /// Sizes are those of all blocks, whether or not the table is large enough for the sampled ones.
    #[test]
    fn samples_are_scaled_once() {
        for places in [1 << 16, 1 << 10] {
            let mut window = WorkingSetWindow::new(10, 0, places).unwrap().sampled(3);
            for block in (0..200_000).filter(|block| spread(*block).leading_zeros() >= 3) {
                window.access(block);
            }
            let sizes = window.sizes();
            assert!(sizes.wss_blocks.abs_diff(200_000) < 20_000, "{places} places: {sizes:?}");
        }
    }

    #[test]
    fn a_small_table_estimates() {
        let mut window = WorkingSetWindow::new(10, 0, 4096).unwrap();
        (0..100_000).for_each(|block| window.access(block));
        (0..50_000).for_each(|block| window.access(block));
        let sizes = window.sizes();
        assert!(sizes.wss_blocks.abs_diff(100_000) < 10_000, "{sizes:?}");
        assert!(sizes.rwss_blocks[0].abs_diff(50_000) < 6_000, "{sizes:?}");
        assert_eq!(sizes.rwss_blocks[1], 0);
    }
}
