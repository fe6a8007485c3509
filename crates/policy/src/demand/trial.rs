//! One length of windows on trial: the RWSS_N of a window is the size of an LRU cache in the next window, and a block
//! enters it at its access number N+1.
//!
//! Source: CloudCache (Arteaga), section 3.4.1.

use haversack_admission::lru::Lru;
use haversack_model::Micros;
use haversack_model::place::spread;

use super::working_set_window::WorkingSetWindow;

/// Replays accesses in order of time.
pub struct Trial {
    window: WorkingSetWindow,
    /// N, 1 to 4.
    reuses: u8,
    cache: Lru,
    /// Blocks that are not in the cache: how often each was accessed, at most N.
    staged: Lru,
    /// One block in 2^shift is passed in.
    shift: u8,
}

impl Trial {
    /// Tries the windows of this new counter. The cache is empty until the first window has ended.
    pub fn new(window: WorkingSetWindow, reuses: u8) -> Trial {
        let (_, places) = window.places();
        Trial { window, reuses, cache: Lru::new(0), staged: Lru::new(places), shift: 0 }
    }

    /// From now on expects accesses to one block in 2^`shift`, which is no less than before. What is known of these
    /// blocks is kept.
    pub fn narrow(&mut self, shift: u8) {
        self.window.narrow(shift);
        let is_sampled = |block| spread(block).leading_zeros() >= shift.into();
        self.cache.retain(is_sampled);
        self.cache.resize(self.cache.capacity() >> (shift - self.shift));
        self.staged.retain(is_sampled);
        self.shift = shift;
    }

    /// Begins again with windows of which the first starts at 0, and with one block in 2^`shift`.
    pub fn begin_again(&mut self, shift: u8) {
        self.window.begin_again(shift);
        (self.cache, self.shift) = (Lru::new(0), shift);
        self.staged.retain(|_| false);
    }

    /// Returns the counter of the window that goes on.
    pub fn window(&self) -> &WorkingSetWindow {
        &self.window
    }

    /// Advances the time, and reports the RWSS_N of each window that has ended, in blocks. Must be called before an
    /// access at that time.
    pub fn pass(&mut self, now_us: Micros, mut ended: impl FnMut(u64)) {
        let (reuses, mut latest) = (usize::from(self.reuses), None);
        self.window.pass(now_us, |sizes| {
            let blocks = sizes.rwss_blocks[reuses - 1];
            latest = Some(blocks);
            ended(blocks);
        });
        if let Some(blocks) = latest {
            self.cache.resize((blocks >> self.shift).min(u64::from(u32::MAX - 1)) as u32);
        }
    }

    /// Accesses a block. Returns whether the cache has it.
    pub fn access(&mut self, block: u64) -> bool {
        self.window.access(block);
        let is_hit = self.cache.get(block).is_some();
        let earlier = self.staged.get(block).unwrap_or(0);
        if is_hit || earlier >= self.reuses {
            self.staged.remove(block);
            self.cache.put(block, 0);
        } else {
            self.staged.put(block, earlier + 1);
        }
        is_hit
    }
}
