//! Working sets: distinct blocks, and blocks reused a number of times, in consecutive windows of time.
//!
//! Source: Arteaga, Cabrera, Xu, Sundararaman and Zhao, "CloudCache: on-demand flash cache management for cloud
//! computing", FAST'16, for the (reuse) working set; Meng et al., "vCacheShare", ATC'14, for reuse intensity.

use serde::{Deserialize, Serialize};

use crate::reference::{Kind, Reference, spread};
use crate::table::{AHEAD, ANYWHERE, Slot, Table, Tag};

/// Reuse working sets are counted for 1 to n reuses.
pub(crate) const REUSES: usize = 4;

/// The usage in a window of time.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Window {
    /// Its beginning, in nanoseconds on the trace's clock.
    pub start_ns: u64,
    /// Reads and writes.
    pub references: u64,
    /// Reads.
    pub reads: u64,
    /// Blocks read or written: WSS.
    pub blocks: u64,
    /// Blocks read.
    pub read_blocks: u64,
    /// Blocks reused at least 1, 2, 3 and 4 times, thus accessed at least once more than that: RWSS_N.
    pub reused_blocks: [u64; REUSES],
}

/// Counts windows as time passes. Windows without accesses are left out.
#[derive(Clone)]
pub struct Windows {
    length_ns: u64,
    origin_ns: u64,
    current: Window,
    uses: Table<Uses>,
    /// Blocks with a place of at most this are counted.
    threshold: u64,
    most_blocks: usize,
    done: Vec<Window>,
}

/// The usage of a block in a window: only the marks of a tag.
#[derive(Clone, Copy)]
struct Uses(Tag);

/// The largest number of accesses to a block that is distinguished.
const MOST_TIMES: u32 = REUSES as u32 + 1;

impl Slot for Uses {
    fn new(tag: Tag) -> Uses {
        Uses(tag)
    }

    fn tag(&self) -> Tag {
        self.0
    }
}

impl Uses {
    fn note(&mut self, kind: Kind) {
        let times = (self.times() + 1).min(MOST_TIMES);
        let read = u32::from(self.is_read() || kind == Kind::Read);
        self.0.set_marks(1 + (times << 1 | read));
    }

    /// Reads and writes.
    fn times(self) -> u32 {
        (self.0.marks() - 1) >> 1
    }

    fn is_read(self) -> bool {
        (self.0.marks() - 1) & 1 != 0
    }
}

impl Windows {
    /// Makes windows with a length in nanoseconds, the first from `origin_ns` on, of at most n blocks each: if there
    /// are more blocks, a sample is counted and scaled up.
    pub fn new(length_ns: u64, origin_ns: u64, most_blocks: usize) -> Windows {
        Windows {
            length_ns: length_ns.max(1),
            origin_ns,
            current: Window { start_ns: origin_ns, ..Window::default() },
            uses: Table::new(),
            threshold: u64::MAX,
            most_blocks: most_blocks.max(1),
            done: Vec::new(),
        }
    }

    /// Records accesses and their times, in order.
    pub fn access_all(&mut self, accesses: &[(u64, Reference)]) {
        for batch in accesses.chunks(AHEAD) {
            // Blocks of a sample are few and in the processor's cache anyway.
            let spots = match self.threshold {
                u64::MAX => self.uses.spots_of(batch.iter().map(|(_, reference)| reference.key())),
                _ => [ANYWHERE; AHEAD],
            };
            for ((time_ns, reference), spot) in batch.iter().zip(spots) {
                self.access_at(spot, *time_ns, *reference);
            }
        }
    }

    /// Records an access. Times do not decrease; one that does counts for the current window.
    pub fn access(&mut self, time_ns: u64, reference: Reference) {
        self.access_at(ANYWHERE, time_ns, reference);
    }

    #[inline]
    fn access_at(&mut self, spot: usize, time_ns: u64, reference: Reference) {
        if time_ns.saturating_sub(self.current.start_ns) >= self.length_ns {
            self.begin_window(time_ns);
        }
        let (key, kind) = (reference.key(), reference.kind());
        if kind == Kind::Discard {
            return;
        }
        self.current.references += 1;
        self.current.reads += u64::from(kind == Kind::Read);
        if spread(key) > self.threshold {
            return;
        }
        self.uses.find_or_insert(key, spot).0.note(kind);
        while self.uses.len() > self.most_blocks {
            self.threshold /= 2;
            let threshold = self.threshold;
            self.uses.retain(|key| spread(key) <= threshold);
        }
    }

    fn begin_window(&mut self, time_ns: u64) {
        self.finish_window();
        let number = time_ns.saturating_sub(self.origin_ns) / self.length_ns;
        let start_ns = self.origin_ns.saturating_add(number.saturating_mul(self.length_ns));
        self.current = Window { start_ns, ..Window::default() };
    }

    /// Returns all windows so far, including the current one.
    pub fn finish(mut self) -> Vec<Window> {
        self.finish_window();
        self.done
    }

    fn finish_window(&mut self) {
        let mut window = self.current;
        for uses in self.uses.iter() {
            window.blocks += 1;
            window.read_blocks += u64::from(uses.is_read());
            let reuses = uses.times() as usize - 1;
            window.reused_blocks.iter_mut().take(reuses).for_each(|blocks| *blocks += 1);
        }
        let weight = 2f64.powi(64) / (self.threshold as f64 + 1.0);
        let scaled = |blocks: u64| (blocks as f64 * weight).round() as u64;
        window.blocks = scaled(window.blocks);
        window.read_blocks = scaled(window.read_blocks);
        window.reused_blocks = window.reused_blocks.map(scaled);
        self.uses.clear();
        // The next window may be smaller: let the sample grow with it again.
        self.threshold = self.threshold.saturating_mul(4) | 3;
        if window.references > 0 {
            self.done.push(window);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(windows: &mut Windows, accesses: &[(u64, u64, Kind)]) {
        accesses.iter().for_each(|(time, key, kind)| windows.access(*time, Reference::new(*key, *kind)));
    }

    #[test]
    fn reuse_working_sets_of_windows() {
        use Kind::{Discard, Read, Write};
        let mut windows = Windows::new(10, 100, usize::MAX);
        feed(
            &mut windows,
            &[(100, 1, Read), (101, 1, Write), (103, 2, Read), (109, 1, Read), (109, 3, Discard)],
        );
        feed(&mut windows, &[(131, 2, Write)]);
        let done = windows.finish();
        let first = Window {
            start_ns: 100,
            references: 4,
            reads: 3,
            blocks: 2,
            read_blocks: 2,
            reused_blocks: [1, 1, 0, 0],
        };
        let second = Window { start_ns: 130, references: 1, blocks: 1, ..Window::default() };
        assert_eq!(done, [first, second]);
    }

    #[test]
    fn large_windows_are_sampled() {
        let mut windows = Windows::new(10, 0, 1000);
        for key in 0..100_000 {
            windows.access(0, Reference::new(key, Kind::Read));
            windows.access(0, Reference::new(key % 50_000, Kind::Read));
        }
        windows.access(10, Reference::new(1, Kind::Read));
        let done = windows.finish();
        assert!(done[0].blocks.abs_diff(100_000) < 10_000, "{:?}", done[0]);
        assert!(done[0].reused_blocks[0].abs_diff(50_000) < 6_000, "{:?}", done[0]);
    }
}
