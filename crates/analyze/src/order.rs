//! The order of last accesses: a sequence of places, some of them taken, and how many taken ones come after a given
//! one.
//!
//! Taken places are bits; a Fenwick tree has the number of taken places of each line of 256. The line being filled is
//! not in the tree yet, so that taking a place touches one word. Both grow with the places, and fit the processor's
//! caches for millions of blocks, which makes distances cheap.

/// Words of a line.
const WORDS: usize = 4;
const LINE_BITS: u32 = 8;
/// Places of a line.
const LINE: u32 = 1 << LINE_BITS;

#[derive(Clone)]
pub(crate) struct Order {
    bits: Vec<u64>,
    /// Fenwick tree over the full lines, from 1: the count of line `l` is item `l + 1`.
    tree: Vec<u32>,
    next: u32,
    live: u32,
}

impl Order {
    pub fn new() -> Order {
        Order { bits: vec![0; WORDS], tree: vec![0], next: 0, live: 0 }
    }

    /// Places that are taken.
    pub fn live(&self) -> u32 {
        self.live
    }

    /// Places that are or were taken.
    pub fn used(&self) -> u32 {
        self.next
    }

    /// Takes the next place.
    #[inline]
    pub fn push(&mut self) -> u32 {
        let place = self.next;
        self.bits[place as usize / 64] |= 1 << (place % 64);
        self.next += 1;
        self.live += 1;
        if self.next.is_multiple_of(LINE) {
            self.fill_line();
        }
        place
    }

    /// Adds the line that is now full to the tree, and begins another.
    #[cold]
    fn fill_line(&mut self) {
        let item = self.tree.len();
        let mut count = self.bits[(item - 1) * WORDS..].iter().map(|word| word.count_ones()).sum();
        // The new item also covers the items below it.
        let mut below = item - 1;
        while below > item & (item - 1) {
            count += self.tree[below];
            below &= below - 1;
        }
        self.tree.push(count);
        self.bits.resize(self.bits.len() + WORDS, 0);
    }

    /// Frees a place.
    #[inline]
    pub fn remove(&mut self, place: u32) {
        debug_assert!(self.bits[place as usize / 64] & 1 << (place % 64) != 0, "place {place} is taken");
        self.bits[place as usize / 64] &= !(1 << (place % 64));
        self.live -= 1;
        let mut item = (place >> LINE_BITS) as usize + 1;
        while let Some(count) = self.tree.get_mut(item) {
            *count -= 1;
            item += item & item.wrapping_neg();
        }
    }

    /// Returns the number of taken places after a taken one.
    #[inline]
    pub fn after(&self, place: u32) -> u32 {
        let line = (place >> LINE_BITS) as usize;
        let words = &self.bits[line * WORDS..][..WORDS];
        let word = place as usize / 64 % WORDS;
        let mut upto = (words[word] << (63 - place % 64)).count_ones();
        upto += words[..word].iter().map(|word| word.count_ones()).sum::<u32>();
        let mut item = line;
        while item > 0 {
            upto += self.tree[item];
            item &= item - 1;
        }
        self.live - upto
    }

    /// Returns some bits near a place, or near none: only to load them into the cache.
    pub fn peek(&self, place: u32) -> u64 {
        self.bits.get(place as usize / 64).copied().unwrap_or(0)
    }

    /// Returns an order of the same taken places without gaps, and the new number of each old place.
    pub fn renumbered(&self) -> (Order, impl Fn(u32) -> u32 + '_) {
        let mut before = Vec::with_capacity(self.bits.len());
        let mut sum = 0;
        for word in &self.bits {
            before.push(sum);
            sum += word.count_ones();
        }
        let mut order = Order::new();
        for _ in 0..self.live {
            order.push();
        }
        let number = move |place: u32| {
            let word = place as usize / 64;
            before[word] + (self.bits[word] & ((1 << (place % 64)) - 1)).count_ones()
        };
        (order, number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn counts_agree_with_a_list(steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..3000)) {
            let mut order = Order::new();
            let mut list: Vec<u32> = Vec::new();
            for (remove, index) in steps {
                if order.used() == 1000 {
                    let (new, number) = order.renumbered();
                    list.iter_mut().for_each(|place| *place = number(*place));
                    drop(number);
                    order = new;
                    prop_assert_eq!(&list, &(0..list.len() as u32).collect::<Vec<_>>());
                }
                if remove && !list.is_empty() {
                    let at = index.index(list.len());
                    prop_assert_eq!(order.after(list[at]) as usize, list.len() - at - 1);
                    order.remove(list.remove(at));
                } else {
                    list.push(order.push());
                }
                prop_assert_eq!(order.live() as usize, list.len());
            }
        }
    }
}
