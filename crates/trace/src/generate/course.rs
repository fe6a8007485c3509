//! A count that grows in proportion to the references, and its allowed deviation.

/// The allowed deviation at the end, as a fraction.
const TOLERANCE: f64 = 0.01;
/// The additional deviation allowed at the beginning, when it can still be corrected.
const CATCH_UP: f64 = 10.0;

/// A count that grows in proportion to the references.
pub(super) struct Course {
    total: u64,
    done: u64,
    tolerance: f64,
}

impl Course {
    pub fn new(total: u64) -> Self {
        Course { total, done: 0, tolerance: TOLERANCE * total as f64 }
    }

    /// Two counts that make up a whole: when one is ahead, the other is behind, so the smaller one determines the
    /// tolerance.
    pub fn pair(one: u64, other: u64) -> [Self; 2] {
        let tolerance = TOLERANCE * one.min(other) as f64;
        [one, other].map(|total| Course { tolerance, ..Course::new(total) })
    }

    /// Counts what was done.
    pub fn add(&mut self, blocks: u32) {
        self.done += u64::from(blocks);
    }

    /// Returns what was done so far.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Returns what remains to be done.
    pub fn left(&self) -> u64 {
        self.total.saturating_sub(self.done)
    }

    /// Returns the deficit at a given share of the trace.
    pub fn behind(&self, share: f64) -> f64 {
        self.total as f64 * share - self.done as f64
    }

    /// Returns whether the deficit at a given share of the trace is too large.
    pub fn far_behind(&self, share: f64) -> bool {
        self.behind(share) > 1.0 + self.tolerance * (1.0 + CATCH_UP * (1.0 - share).max(0.0))
    }

    /// Returns the probability that this count should grow next, if it is one of two that together make up `all`: its
    /// part of them, corrected for its deviation.
    pub fn due(&self, share: f64, all: u64) -> f64 {
        self.total as f64 / all as f64 + self.behind(share) / (1.0 + self.tolerance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_course_may_stray_less_and_less() {
        let [mut one, other] = Course::pair(1000, 9000);
        assert!(!one.far_behind(0.05) && one.far_behind(0.2) && one.due(0.2, 10_000) > 1.0);
        one.add(180);
        assert!(!one.far_behind(0.2) && one.due(0.2, 10_000) > 0.1);
        assert_eq!((one.done(), one.left(), other.left()), (180, 820, 9000));
        one.add(800);
        assert!(one.far_behind(1.0) && one.due(0.9, 10_000) < 0.0);
    }
}
