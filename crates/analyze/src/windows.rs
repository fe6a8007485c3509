//! Working sets: distinct blocks, and blocks reused so often, in windows of time one after the other.
//!
//! Source: Arteaga, Cabrera, Xu, Sundararaman and Zhao, "CloudCache: on-demand flash cache management for cloud
//! computing", FAST'16, for the (reuse) working set; Meng et al., "vCacheShare", ATC'14, for reuse intensity.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use serde::{Deserialize, Serialize};

use crate::reference::{Kind, Reference, mix, spread};

/// Reuse working sets are counted for 1 to so many reuses.
pub(crate) const REUSES: usize = 4;

/// What was used in a window of time.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Window {
    /// When it began, in nanoseconds on the trace's clock.
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
    number: u64,
    uses: HashMap<u64, Uses, BuildHasherDefault<Mixed>>,
    /// Blocks with a place of at most this are counted.
    threshold: u64,
    most_blocks: usize,
    done: Vec<Window>,
}

#[derive(Clone, Default)]
struct Uses {
    reads: u32,
    writes: u32,
}

impl Windows {
    /// Windows of a length in nanoseconds, the first from `origin_ns` on, of at most so many blocks each: of more blocks,
    /// a sample is counted and scaled up.
    pub fn new(length_ns: u64, origin_ns: u64, most_blocks: usize) -> Windows {
        Windows {
            length_ns: length_ns.max(1),
            origin_ns,
            current: Window { start_ns: origin_ns, ..Window::default() },
            number: 0,
            uses: HashMap::default(),
            threshold: u64::MAX,
            most_blocks: most_blocks.max(1),
            done: Vec::new(),
        }
    }

    /// Notes an access. Times do not go back; one that does counts for the current window.
    pub fn access(&mut self, time_ns: u64, reference: Reference) {
        let number = time_ns.saturating_sub(self.origin_ns) / self.length_ns;
        if number > self.number {
            self.finish_window();
            self.number = number;
            let start_ns = self.origin_ns.saturating_add(number.saturating_mul(self.length_ns));
            self.current = Window { start_ns, ..Window::default() };
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
        let uses = self.uses.entry(key).or_default();
        let count = if kind == Kind::Read { &mut uses.reads } else { &mut uses.writes };
        *count = count.saturating_add(1);
        while self.uses.len() > self.most_blocks {
            self.threshold /= 2;
            let threshold = self.threshold;
            self.uses.retain(|key, _| spread(*key) <= threshold);
        }
    }

    /// All windows up to now, the current one too.
    pub fn finish(mut self) -> Vec<Window> {
        self.finish_window();
        self.done
    }

    fn finish_window(&mut self) {
        let mut window = self.current;
        for uses in self.uses.values() {
            window.blocks += 1;
            window.read_blocks += u64::from(uses.reads > 0);
            let count = uses.reads.saturating_add(uses.writes) as usize;
            window.reused_blocks.iter_mut().take(count - 1).for_each(|blocks| *blocks += 1);
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

/// The keys' own mixing as a hasher.
#[derive(Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = mix(self.0 ^ value);
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
