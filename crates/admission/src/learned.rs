//! Learned admission: a block is admitted if blocks of its category are mostly used again soon enough.
//!
//! How long a block stays after its last use is measured by the cache and passed with each access, in accesses
//! of the pool. Soon enough is seven tenths of that: what is used again later takes more space than it is worth. The
//! category is: read or write; how long ago the block was last accessed, in units of that; how many earlier
//! accesses are remembered; size of the request; whether it continues another. A sample of the blocks is
//! followed to learn how often each category is used again in time: see [`ratios`]. Where this is nearly always
//! so, blocks are protected at once: nothing more is to be learned on probation.
//!
//! While nothing was evicted yet, everything is admitted.
//!
//! docs/auto.md has the model, its sources, and what else was tried.

mod memory;
mod ratios;

use haversack_model::BlockNo;
use haversack_model::place::mix;

use crate::{Access, Admission, Admit, Op, Verdict};
use memory::{Memory, Seen};
use ratios::Ratios;

/// The most blocks whose last access is remembered: 768 KiB.
const MOST_REMEMBERED: u64 = 3 << 16;
const LEAST_REMEMBERED: u64 = 1 << 10;
/// A block is worth its space if it is used again within this fraction of the time that it would stay.
const HORIZON: f64 = 0.7;
/// Bounds of the ages that are told apart, in units of that.
const AGES: [f32; 6] = [0.03, 0.12, 0.5, 1.0, 2.0, 8.0];
/// The share of its like that must be used again in time for a block to be admitted, and to be protected.
const ADMIT: f32 = 0.5;
const PROTECT: f32 = 0.7;

/// See the module documentation.
pub struct Learned {
    memory: Memory,
    ratios: Ratios,
    /// How long a block stays was known at the last access.
    knows_stay: bool,
}

impl Learned {
    /// Makes a filter for a disk of this many blocks.
    pub fn new(disk_blocks: u64) -> Learned {
        let blocks = disk_blocks.clamp(LEAST_REMEMBERED, MOST_REMEMBERED);
        Learned { memory: Memory::new(blocks as usize), ratios: Ratios::new(), knows_stay: false }
    }

    /// Notes an access. Returns the share of its like that is used again in time, if it is known how long a
    /// block stays.
    fn note(&mut self, BlockNo(block): BlockNo, access: Access) -> Option<f32> {
        let hash = mix(block);
        let horizon = access.stay.map(|stay| ((stay as f64 * HORIZON) as u64).max(1));
        self.memory.tell_apart(horizon.unwrap_or(access.now), access.now);
        let seen = self.memory.note(hash, access.now);
        if horizon.is_some() != self.knows_stay {
            self.knows_stay = horizon.is_some();
            self.ratios.forget_samples();
        }
        let horizon = horizon?;
        let category = category(access, seen, horizon);
        self.ratios.note(hash, category, access.now, horizon);
        Some(self.ratios.ratio(category))
    }
}

/// Returns the coarse category and the fine one in it.
fn category(access: Access, seen: Option<Seen>, horizon: u64) -> (usize, usize) {
    let (age, count) = match seen {
        Some(Seen { age, count }) => {
            let age = age as f32 / horizon as f32;
            (AGES.iter().filter(|bound| age >= **bound).count(), count.min(2) as usize)
        }
        None => (AGES.len() + 1, 0),
    };
    let size = match access.blocks {
        0..=1 => 0,
        2..=4 => 1,
        5..=16 => 2,
        _ => 3,
    };
    let op = usize::from(access.op == Op::Write);
    (op * 24 + age * 3 + count, size * 2 + usize::from(access.continues))
}

impl Admission for Learned {
    fn hit(&mut self, block: BlockNo, access: Access) {
        self.note(block, access);
    }

    fn miss(&mut self, block: BlockNo, access: Access) -> Verdict {
        match self.note(block, access) {
            Some(ratio) => Verdict { admit: ratio >= ADMIT, protect: ratio >= PROTECT, forget: None },
            None => Verdict { admit: true, ..Verdict::default() },
        }
    }

    fn resize(&mut self, _: &Admit, _: &mut dyn FnMut(BlockNo)) {}

    fn bytes(&self) -> usize {
        self.memory.bytes() + self.ratios.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk of which nothing is cached.
    struct Disk {
        learned: Learned,
        now: u64,
        stay: Option<u64>,
    }

    impl Disk {
        fn new(stay: Option<u64>) -> Disk {
            Disk { learned: Learned::new(1 << 24), now: 0, stay }
        }

        fn access(&mut self, block: u64, op: Op, blocks: u32) -> Verdict {
            self.now += 1;
            let access = Access { op, blocks, continues: false, now: self.now, stay: self.stay };
            self.learned.miss(BlockNo(block), access)
        }
    }

    const PROTECTED: Verdict = Verdict { admit: true, protect: true, forget: None };

    #[test]
    fn everything_enters_while_nothing_was_evicted_and_what_is_unknown_is_tried() {
        let mut disk = Disk::new(None);
        let admitted = Verdict { admit: true, ..Verdict::default() };
        assert!((0..10_000).all(|block| disk.access(block, Op::Read, 1) == admitted));
        disk.stay = Some(1000);
        assert_eq!(disk.access(20_000, Op::Read, 1), admitted);
    }

    #[test]
    fn categories_by_hand() {
        let access = |op, blocks, continues| Access { op, blocks, continues, now: 0, stay: None };
        let seen = |age, count| Some(Seen { age, count });
        assert_eq!(category(access(Op::Read, 1, false), None, 100), (21, 0));
        assert_eq!(category(access(Op::Write, 1, false), None, 100), (45, 0));
        assert_eq!(category(access(Op::Read, 4, true), seen(2, 1), 100), (1, 3));
        assert_eq!(category(access(Op::Read, 5, false), seen(3, 2), 100), (5, 4));
        assert_eq!(category(access(Op::Read, 17, true), seen(99, 3), 100), (11, 7));
        assert_eq!(category(access(Op::Read, 17, true), seen(100, 1), 100), (13, 7));
        assert_eq!(category(access(Op::Write, 16, false), seen(800, 3), 100), (44, 4));
    }

    /// Large reads are never repeated, small ones after 200 accesses. Blocks stay for 1,000.
    #[test]
    fn it_tells_what_returns_from_what_does_not() {
        let mut disk = Disk::new(Some(1000));
        let mut verdicts = Vec::new();
        for round in 0..300 {
            verdicts.clear();
            for block in 0..100 {
                let small = disk.access(block, Op::Read, 1);
                let large = disk.access(1 << 20 | (round * 100 + block), Op::Read, 64);
                verdicts.push((small, large));
            }
        }
        assert!(verdicts.iter().all(|(small, large)| *small == PROTECTED && !large.admit), "{verdicts:?}");
        // With a horizon of 140 the small ones return too late as well.
        disk.stay = Some(200);
        for _ in 0..300 {
            (0..200).for_each(|block| assert!(disk.access(block, Op::Read, 1).forget.is_none()));
        }
        assert!(!disk.access(0, Op::Read, 1).admit);
    }

    /// The same accesses give the same answers, whatever else there is in memory: a digest of all of them.
    #[test]
    fn known_answer() {
        let mut disk = Disk::new(None);
        let mut random = haversack_model::random::Random::new(7);
        let mut digest = 0;
        let mut admitted = 0;
        for step in 0..200_000u64 {
            disk.stay = (step > 20_000).then(|| 15_000 + step / 20);
            let upto = 1 + random.below(20_000);
            let reused = random.below(upto);
            let block = if random.one_in(3) { 1 << 20 | step } else { reused };
            let op = if random.one_in(4) { Op::Write } else { Op::Read };
            let verdict = disk.access(block, op, 1 << random.below(6));
            admitted += u64::from(verdict.admit);
            digest = mix(digest ^ u64::from(verdict.admit) ^ u64::from(verdict.protect) << 1);
        }
        assert_eq!((admitted, digest), (128_370, 4_468_788_975_665_185_925));
    }

    #[test]
    fn it_takes_at_most_a_mebibyte() {
        let bytes = |blocks| Learned::new(blocks).bytes();
        assert!(bytes(u64::MAX) <= 1 << 20, "{}", bytes(u64::MAX));
        assert!(bytes(1000) <= 1 << 19);
    }
}
