//! Which parts of a read were received: disjoint ranges in order, adjacent ones merged. Chunks in order need one.

/// Most ranges that are tracked; this bounds what one request can make a client store.
pub(super) const MAX_RANGES: usize = 64;

/// Why a part cannot be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Misfit {
    /// Some of it was received before.
    Overlap,
    /// It would be one range too many.
    TooMany,
}

/// The parts received, as half-open ranges of bytes within the read.
#[derive(Clone, Debug)]
pub(super) struct Coverage {
    ranges: Vec<(u32, u32)>,
}

impl Coverage {
    /// Starts with nothing received.
    pub(super) fn new() -> Self {
        Self { ranges: Vec::with_capacity(2) }
    }

    pub(super) fn clear(&mut self) {
        self.ranges.clear();
    }

    /// Returns how many bytes were received.
    pub(super) fn bytes(&self) -> u32 {
        self.ranges.iter().map(|(start, end)| end - start).sum()
    }

    /// Adds a received part.
    pub(super) fn add(&mut self, start: u32, end: u32) -> Result<(), Misfit> {
        let at = self.ranges.partition_point(|range| range.1 < start);
        let touches_before = self.ranges.get(at).is_some_and(|range| range.1 == start);
        let after = if touches_before { at + 1 } else { at };
        let next = self.ranges.get(after).copied();
        if next.is_some_and(|range| range.0 < end) {
            return Err(Misfit::Overlap);
        }
        let touches_after = next.is_some_and(|range| range.0 == end);
        match (touches_before, touches_after) {
            (true, true) => {
                self.ranges[at].1 = self.ranges[after].1;
                self.ranges.remove(after);
            }
            (true, false) => self.ranges[at].1 = end,
            (false, true) => self.ranges[after].0 = start,
            (false, false) if self.ranges.len() >= MAX_RANGES => return Err(Misfit::TooMany),
            (false, false) => self.ranges.insert(at, (start, end)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn too_many_gaps_are_refused() {
        let mut coverage = Coverage::new();
        for i in 0..MAX_RANGES as u32 {
            coverage.add(i * 2, i * 2 + 1).unwrap();
        }
        assert_eq!(coverage.add(1000, 1001), Err(Misfit::TooMany));
        assert_eq!(coverage.add(1, 2), Ok(()));
        assert_eq!(coverage.bytes(), MAX_RANGES as u32 + 1);
    }

    proptest! {
        #[test]
        fn agrees_with_a_set_of_bytes(parts in prop::collection::vec((0_u32..100, 1_u32..20), 0..40)) {
            let mut coverage = Coverage::new();
            let mut came = [false; 120];
            for (start, length) in parts {
                let bytes = &mut came[start as usize..(start + length) as usize];
                let expected = if bytes.contains(&true) { Err(Misfit::Overlap) } else { Ok(()) };
                prop_assert_eq!(coverage.add(start, start + length), expected);
                if expected.is_ok() {
                    bytes.fill(true);
                }
                prop_assert_eq!(coverage.bytes() as usize, came.iter().filter(|came| **came).count());
            }
        }
    }
}
