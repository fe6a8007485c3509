//! A set of numbers below a bound that can find its largest element: bits, and above them levels of bits that
//! say which words of the level below are not empty. Every operation accesses one word per level.

const WORD: usize = 64;

/// See the module.
pub struct BitTree {
    /// The lowest level first; the highest is one word.
    levels: Vec<Vec<u64>>,
    len: usize,
}

impl BitTree {
    /// An empty set of numbers below `bound`.
    pub fn new(bound: usize) -> Self {
        let mut levels = vec![vec![0; bound.div_ceil(WORD).max(1)]];
        while let Some(below) = levels.last().map(Vec::len).filter(|words| *words > 1) {
            levels.push(vec![0; below.div_ceil(WORD)]);
        }
        BitTree { levels, len: 0 }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether a number is in the set.
    pub fn contains(&self, number: usize) -> bool {
        self.levels[0][number / WORD] & (1 << (number % WORD)) != 0
    }

    /// Adds a number.
    pub fn insert(&mut self, number: usize) {
        self.len += usize::from(!self.contains(number));
        let mut at = number;
        for level in &mut self.levels {
            level[at / WORD] |= 1 << (at % WORD);
            at /= WORD;
        }
    }

    /// Removes a number.
    pub fn remove(&mut self, number: usize) {
        self.len -= usize::from(self.contains(number));
        let mut at = number;
        for level in &mut self.levels {
            level[at / WORD] &= !(1 << (at % WORD));
            if level[at / WORD] != 0 {
                return;
            }
            at /= WORD;
        }
    }

    /// The largest number.
    pub fn max(&self) -> Option<usize> {
        let descend = |at: usize, level: &Vec<u64>| {
            let word = level[at];
            at * WORD + (WORD - 1) - word.leading_zeros() as usize
        };
        (self.len > 0).then(|| self.levels.iter().rev().fold(0, descend))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_does_what_a_sorted_set_does(
            bound in 1usize..6000,
            steps in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 1..200),
        ) {
            let (mut bits, mut set) = (BitTree::new(bound), BTreeSet::new());
            for (number, insert) in steps {
                let number = number.index(bound);
                if insert {
                    bits.insert(number);
                    set.insert(number);
                } else {
                    bits.remove(number);
                    set.remove(&number);
                }
                prop_assert_eq!(bits.max(), set.last().copied());
                prop_assert_eq!((bits.len(), bits.contains(number)), (set.len(), insert));
            }
        }
    }
}
