//! When each block of a disk was last written at its origin, counted in loans.
//!
//! The number of entries is bounded, so blocks share them; adjacent blocks have different entries. An entry has the
//! highest number of all its blocks, so sharing only makes more copies void than necessary.
//!
//! Invariants
//! - An entry is at least the number of the newest loan at the beginning and at the end of each write to its blocks.
//! - While a write is under way its entry says so.

/// The most entries: 12 bytes each.
const MOST_ENTRIES: u64 = 1 << 18;

/// See the module.
#[derive(Debug)]
pub(crate) struct Voids {
    written_in: Box<[u64]>,
    writes: Box<[u32]>,
    mask: u64,
}

impl Voids {
    /// Makes the table of a disk.
    pub fn new(disk_blocks: u64) -> Voids {
        let entries = disk_blocks.next_power_of_two().clamp(64, MOST_ENTRIES);
        let entries_len = entries as usize;
        Voids {
            written_in: vec![0; entries_len].into_boxed_slice(),
            writes: vec![0; entries_len].into_boxed_slice(),
            mask: entries - 1,
        }
    }

    /// Returns its memory in bytes.
    pub fn bytes(&self) -> usize {
        self.written_in.len() * 12
    }

    /// Visits the entries of blocks, each once.
    fn visit(&mut self, first: u64, last: u64, mut visit: impl FnMut(&mut u64, &mut u32)) {
        let count = (last - first).min(self.mask) + 1;
        for block in first..first + count {
            let at = (block & self.mask) as usize;
            visit(&mut self.written_in[at], &mut self.writes[at]);
        }
    }

    /// Records that a write to blocks begins while this loan is the newest.
    pub fn begins(&mut self, first: u64, last: u64, newest: u64) {
        self.visit(first, last, |written_in, writes| {
            *written_in = newest;
            *writes += 1;
        });
    }

    /// Records that such a write has ended.
    pub fn ended(&mut self, first: u64, last: u64, newest: u64) {
        self.visit(first, last, |written_in, writes| {
            *written_in = newest;
            *writes -= 1;
        });
    }

    /// Returns whether a block is being written, or was while this loan or a later one was the newest.
    pub fn is_void(&self, block: u64, loan: u64) -> bool {
        let at = (block & self.mask) as usize;
        self.writes[at] > 0 || self.written_in[at] >= loan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_voids_what_was_sent_before_it_and_while_it_lasts() {
        let mut voids = Voids::new(1000);
        assert!(!voids.is_void(5, 1));
        voids.begins(4, 6, 3);
        assert!((4..=6).all(|block| voids.is_void(block, 9)) && !voids.is_void(7, 1));
        voids.begins(6, 6, 3);
        voids.ended(4, 6, 4);
        assert!(voids.is_void(5, 4) && !voids.is_void(5, 5));
        assert!(voids.is_void(6, 5), "the second write lasts");
        voids.ended(6, 6, 4);
        assert!(!voids.is_void(6, 5));
    }

    #[test]
    fn a_write_of_the_whole_disk_visits_each_entry_once() {
        let mut voids = Voids::new(1 << 30);
        voids.begins(3, (1 << 30) - 1, 1);
        assert!(voids.writes.iter().all(|count| *count == 1));
        voids.ended(3, (1 << 30) - 1, 1);
        assert!(voids.writes.iter().all(|count| *count == 0));
        assert!((0..1 << 20).step_by(1013).all(|block| voids.is_void(block, 1) && !voids.is_void(block, 2)));
    }
}
