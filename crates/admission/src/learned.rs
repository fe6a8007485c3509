//! Learned admission: a block is admitted if blocks of its category are worth their space and a flash write.
//!
//! What is expected of a category is learned from a sample of the blocks ([`outlooks`]): how likely a block is used
//! again while it would stay, and what that saves. The category is: read or write; how long ago the block was last
//! accessed, in units of that time; how many earlier accesses are remembered; size of the request;
//! whether it continues another.
//!
//! A block is worth its space if what it is expected to save while it would stay is enough of what a use usually
//! saves: a read from a slow origin counts for more than a write that is buffered. The bound is lower for small
//! requests, since a hit on one of many blocks saves only a part of a request's time. The pool lowers all bounds if
//! blocks that were kept out would have saved more than those that were evicted. A block is worth a flash write if it
//! saves more than the price of the write, which counts only if the block is not used again: otherwise it would have
//! entered later at the same price. Blocks that are almost certainly used in time are protected at once: probation
//! would add no information. Until something has been evicted, everything is admitted.
//!
//! A write that is kept out waits for the origin. If that takes longer than a flash write is worth, the block enters
//! anyway, on probation.
//!
//! docs/auto.md has the model, its sources, and what else was tried.

mod memory;
mod outlooks;
mod saved;

use haversack_model::BlockNo;
use haversack_model::place::mix;

use crate::{Access, Admission, Admit, CategoryFigures, Figures, Op, Prices, Verdict};
use memory::{Memory, Seen};
use outlooks::{COARSE, FINE, Outlook, Outlooks};
pub use saved::Malformed;

/// The most blocks whose last access is remembered: 768 KiB.
const MOST_REMEMBERED: u64 = 3 << 16;
const LEAST_REMEMBERED: u64 = 1 << 10;
/// Bounds of the ages that are distinguished, in units of the time that a block stays.
const AGES: [f32; 6] = [0.03, 0.12, 0.5, 1.0, 2.0, 8.0];
/// Bounds of the request sizes that are distinguished, in blocks.
const SIZES: [u32; 3] = [1, 4, 16];
/// What a block must be expected to save to be worth its space, in units of what a use usually saves, by the size of
/// its request. It is multiplied by how strict admission is to be.
const ADMIT: [f32; SIZES.len() + 1] = [0.32, 0.36, 0.45, 0.55];
/// The probability of a use within a stay from which a block is protected at once.
const PROTECT: f32 = 0.7;

/// See the module documentation.
pub struct Learned {
    memory: Memory,
    outlooks: Outlooks,
    /// How long a block stays and what is paid, at the last access.
    stay: Option<u64>,
    prices: Prices,
}

impl Learned {
    /// Makes a filter for a disk of this many blocks.
    pub fn new(disk_blocks: u64) -> Learned {
        let blocks = disk_blocks.clamp(LEAST_REMEMBERED, MOST_REMEMBERED);
        Learned {
            memory: Memory::new(blocks as usize),
            outlooks: Outlooks::new(),
            stay: None,
            prices: Prices::default(),
        }
    }

    /// Returns whether a block with this outlook, and a request of this size, is worth its space and a flash write.
    fn is_worth_it(&self, outlook: Outlook, size: usize) -> bool {
        let value = self.outlooks.usual_us().map_or(outlook.again, |usual_us| outlook.saved_us / usual_us);
        let bound = ADMIT[size] * self.prices.strictness;
        value >= bound && outlook.saved_us >= self.prices.flash_write_us * (1.0 - outlook.again)
    }

    /// Notes an access. Returns what is expected of the block, if it is known how long a block stays.
    fn note(&mut self, BlockNo(block): BlockNo, access: &Access) -> Option<Outlook> {
        let hash = mix(block);
        let horizon = access.stay;
        self.memory.tell_apart(horizon.unwrap_or(access.now), access.now);
        let seen = self.memory.note(hash, access.now);
        if access.stay.is_some() != self.stay.is_some() {
            self.outlooks.forget_samples();
        }
        (self.stay, self.prices) = (access.stay, access.prices);
        let horizon = horizon?;
        let category = category(access, seen, horizon);
        self.outlooks.note(hash, category, access, horizon);
        Some(self.outlooks.of(category, access))
    }
}

/// Returns the class of a request's size, in blocks.
fn size_class(blocks: u32) -> usize {
    SIZES.iter().filter(|most| blocks > **most).count()
}

/// Returns whether a write is worth a flash write only because it need not wait for the origin. It takes space on
/// probation until it is cleaned.
fn is_worth_buffering(access: &Access) -> bool {
    access.waits_us > 0.0 && access.waits_us >= access.prices.flash_write_us
}

/// Returns the coarse category and the fine one in it.
fn category(access: &Access, seen: Option<Seen>, horizon: u64) -> (usize, usize) {
    let (age, count) = match seen {
        Some(Seen { age, count }) => {
            let age = age as f32 / horizon as f32;
            (AGES.iter().filter(|bound| age >= **bound).count(), count.min(2) as usize)
        }
        None => (AGES.len() + 1, 0),
    };
    let size = size_class(access.blocks);
    let op = usize::from(access.op == Op::Write);
    (op * 24 + age * 3 + count, size * 2 + usize::from(access.continues))
}

impl Admission for Learned {
    fn hit(&mut self, block: BlockNo, access: Access) {
        self.note(block, &access);
    }

    fn miss(&mut self, block: BlockNo, access: Access) -> Verdict {
        match self.note(block, &access) {
            Some(outlook) => Verdict {
                admit: self.is_worth_it(outlook, size_class(access.blocks)) || is_worth_buffering(&access),
                protect: outlook.again >= PROTECT,
                forget: None,
            },
            None => Verdict { admit: true, ..Verdict::default() },
        }
    }

    fn resize(&mut self, _: &Admit, _: &mut dyn FnMut(BlockNo)) {}

    fn bytes(&self) -> usize {
        self.memory.bytes() + self.outlooks.bytes()
    }

    fn saved(&self, now: u64, with_accesses: bool) -> Option<Vec<u8>> {
        Some(saved::encode(&self.outlooks, with_accesses.then_some(&self.memory), now))
    }

    fn resume(&mut self, saved: &[u8], now: u64) -> Result<bool, Malformed> {
        saved::decode(saved, &mut self.outlooks, &mut self.memory, now).map(|()| true)
    }

    fn figures(&self) -> Option<Figures> {
        let every = (0..COARSE).flat_map(|coarse| (0..FINE).map(move |fine| (coarse, fine)));
        let seen = every.filter(|category| self.outlooks.samples(*category) > 0.0);
        let figures = seen.map(|category| {
            let (op, age, earlier) = (category.0 / 24, category.0 % 24 / 3, category.0 % 3);
            let op = if op == 0 { Op::Read } else { Op::Write };
            let access = Access { prices: self.prices, ..Access::from(op) };
            let outlook = self.outlooks.of(category, &access);
            let bound = |at: usize| AGES.get(at).copied().unwrap_or(f32::INFINITY);
            let from = age.checked_sub(1).map_or(0.0, bound);
            CategoryFigures {
                op,
                age: (age <= AGES.len()).then(|| (from, bound(age))),
                earlier: earlier as u8,
                most_blocks: SIZES.get(category.1 / 2).copied().unwrap_or(u32::MAX),
                continues: category.1 % 2 == 1,
                samples: self.outlooks.samples(category),
                ratio: outlook.again,
                value_us: outlook.saved_us,
                admitted: self.stay.is_none() || self.is_worth_it(outlook, category.1 / 2),
            }
        });
        Some(Figures { prices: self.prices, stay: self.stay, categories: figures.collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WRITE_PRICE_US;

    /// A disk of which nothing is cached.
    struct Disk {
        learned: Learned,
        now: u64,
        stay: Option<u64>,
        prices: Prices,
    }

    impl Disk {
        fn new(stay: Option<u64>) -> Disk {
            Disk { learned: Learned::new(1 << 24), now: 0, stay, prices: Prices::default() }
        }

        fn access(&mut self, block: u64, op: Op, blocks: u32) -> Verdict {
            self.now += 1;
            let access = Access {
                op,
                blocks,
                continues: false,
                now: self.now,
                stay: self.stay,
                prices: self.prices,
                waits_us: 0.0,
            };
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
        let access = |op, blocks, continues| Access { blocks, continues, ..Access::from(op) };
        let seen = |age, count| Some(Seen { age, count });
        assert_eq!(category(&access(Op::Read, 1, false), None, 100), (21, 0));
        assert_eq!(category(&access(Op::Write, 1, false), None, 100), (45, 0));
        assert_eq!(category(&access(Op::Read, 4, true), seen(2, 1), 100), (1, 3));
        assert_eq!(category(&access(Op::Read, 5, false), seen(3, 2), 100), (5, 4));
        assert_eq!(category(&access(Op::Read, 17, true), seen(99, 3), 100), (11, 7));
        assert_eq!(category(&access(Op::Read, 17, true), seen(100, 1), 100), (13, 7));
        assert_eq!(category(&access(Op::Write, 16, false), seen(800, 3), 100), (44, 4));
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
        // If blocks stay for less than 200, the small ones return too late as well.
        disk.stay = Some(150);
        for _ in 0..300 {
            (0..200).for_each(|block| assert!(disk.access(block, Op::Read, 1).forget.is_none()));
        }
        assert!(!disk.access(0, Op::Read, 1).admit);
    }

    /// A block that is used again three times out of four within a stay saves 750 us per write: it enters while a
    /// write costs less than 3,000 us, and at any price once the origin is slower.
    #[test]
    fn what_a_flash_write_costs_decides() {
        let mut disk = Disk::new(Some(1000));
        let admits = |disk: &mut Disk, flash_write_us: f32, read_us: f32| {
            disk.prices = Prices { flash_write_us, read_us, ..Prices::default() };
            let mut admitted = 0;
            for round in 0..400 {
                for block in 0..100 {
                    let once = (round + block) % 4 == 0;
                    let block = if once { 1 << 20 | (round * 100 + block) } else { block };
                    admitted += u64::from(disk.access(block, Op::Read, 1).admit && !once && round >= 300);
                }
            }
            admitted
        };
        let [free, default, dear, slow] =
            [(0.0, 1000.0), (WRITE_PRICE_US, 1000.0), (1e9, 1000.0), (10_000.0, 1e6)]
                .map(|(price, read)| admits(&mut disk, price, read));
        assert_eq!((free, default), (7500, 7500));
        assert!(dear < 100 && slow == 7500, "{dear} {slow}");
        let figures = disk.learned.figures().expect("it learns");
        assert_eq!((figures.stay, figures.prices.flash_write_us), (Some(1000), 10_000.0));
        let samples: f32 = figures.categories.iter().map(|category| category.samples).sum();
        assert!(samples > 100.0 && figures.categories.iter().any(|category| category.admitted));
    }

    /// One read in seven is repeated within a stay, while writes always are. That is too few if a read saves as much
    /// as a write, and enough if it saves far more.
    #[test]
    fn a_rare_use_that_saves_much_is_worth_the_space() {
        let admits = |read_us: f32| {
            let mut disk = Disk::new(Some(1000));
            disk.prices = Prices { read_us, write_us: 100.0, flash_write_us: 0.0, ..Prices::default() };
            let mut admitted = 0;
            for round in 0..600u64 {
                for at in 0..100 {
                    disk.access(1 << 30 | at, Op::Write, 1);
                    let again = (round + at) % 8 == 0;
                    let block = (round - u64::from(again && round > 0)) * 100 + at;
                    admitted += u64::from(disk.access(block, Op::Read, 1).admit && !again && round >= 300);
                }
            }
            admitted
        };
        let (as_writes, far_more) = (admits(100.0), admits(3000.0));
        assert!(as_writes < 500 && far_more > 25_000, "{as_writes} and {far_more} of 26,250");
    }

    #[test]
    fn a_write_enters_if_it_would_wait_for_longer_than_a_flash_write_is_worth() {
        let mut learned = Learned::new(1 << 24);
        let write = |now, waits_us| Access { now, stay: Some(1000), waits_us, ..Access::from(Op::Write) };
        for now in 0..100_000 {
            learned.miss(BlockNo(now), write(now, 0.0));
        }
        let mut verdict = |block, waits_us| learned.miss(BlockNo(block), write(block, waits_us));
        assert!(!verdict(100_000, 0.0).admit, "what is written once is not worth its space");
        assert!(!verdict(100_001, WRITE_PRICE_US - 1.0).admit);
        let buffered = verdict(100_002, WRITE_PRICE_US);
        assert!(buffered.admit && !buffered.protect);
    }

    /// The same accesses give the same answers, whatever else is in memory: a digest of all of them.
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
        assert_eq!((admitted, digest), (142_858, 6_175_866_439_596_242_481));
    }

    /// A filter that continues from the bytes of another, some time later, gives the same answers.
    #[test]
    fn what_was_learned_is_taken_over() {
        let mut disk = Disk::new(Some(1000));
        let round = |disk: &mut Disk, round: u64| {
            (0..200u64)
                .map(|at| {
                    let (op, size) = if at % 2 == 0 { (Op::Read, 1) } else { (Op::Write, 16) };
                    let block = if at % 5 == 0 { 1 << 20 | round << 10 | at } else { at };
                    disk.access(block, op, size)
                })
                .collect::<Vec<_>>()
        };
        (0..300).for_each(|at| drop(round(&mut disk, at)));
        let bytes = disk.learned.saved(disk.now, true).expect("it learns");
        let mut again = Disk::new(Some(1000));
        assert_eq!(again.learned.resume(&bytes, again.now), Ok(true));
        assert_eq!(again.learned.saved(again.now, true), Some(bytes.clone()));
        let figures = |disk: &Disk| {
            let categories = disk.learned.figures().expect("it learns").categories;
            categories.into_iter().map(|c| (c.samples, c.ratio, c.value_us)).collect::<Vec<_>>()
        };
        assert_eq!(figures(&again), figures(&disk));
        let (before, after) = (round(&mut disk, 1000), round(&mut again, 1000));
        assert_eq!(before, after);
        assert!(before.iter().any(|verdict| !verdict.admit) && before.contains(&PROTECTED));
        // A disk of another size remembers other accesses, and they need not be saved.
        let counts = disk.learned.saved(disk.now, false).expect("it learns");
        assert!(counts.len() < 6000);
        for (blocks, bytes) in [(2000, &bytes), (1 << 24, &counts)] {
            let mut other = Learned::new(blocks);
            assert_eq!(other.resume(bytes, 0), Ok(true));
            assert_eq!(other.figures().expect("it learns").categories.len(), figures(&again).len());
        }
        for bad in [&bytes[..bytes.len() - 1], &bytes[..100], &[]] {
            assert_eq!(again.learned.resume(bad, 0), Err(Malformed));
        }
        let mut bad = bytes;
        bad[16..20].copy_from_slice(&f32::NAN.to_le_bytes());
        assert_eq!(again.learned.resume(&bad, 0), Err(Malformed));
        assert_eq!(crate::Always.resume(&bad, 0), Ok(false));
    }

    #[test]
    fn it_takes_at_most_a_mebibyte() {
        let bytes = |blocks| Learned::new(blocks).bytes();
        assert!(bytes(u64::MAX) <= 1 << 20, "{}", bytes(u64::MAX));
        assert!(bytes(1000) <= 1 << 19);
    }
}
