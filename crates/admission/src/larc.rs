//! LARC, lazy adaptive replacement: a block is admitted when it is missed again while it is in a ghost list,
//! and the list's size adapts to the hit ratio.
//!
//! C is the disk's share of the cache, and C_r the size of the ghost list, initially 0.1 C. A hit shrinks it by
//! C / (C - C_r), to no less than 0.1 C: the cached blocks serve well, so replace them slowly. A miss grows it by
//! C / C_r, to no more than 0.9 C: learn quickly. With a constant hit ratio h it settles at (1 - h) C. The ghost
//! list is in LRU order, always has room for one block, and never for more than 4 Mi.
//!
//! Source: LARC (Huang, Wei, Chen, Chen, Feng, MSST'13), algorithm 1, which CloudCache uses for comparison.

use haversack_model::BlockNo;

use crate::lru::Lru;
use crate::{Access, Admission, Admit, Verdict};

/// See the module documentation.
pub struct Larc {
    cache_blocks: f64,
    /// C_r.
    ghosts_wanted: f64,
    ghosts: Lru,
}

fn least(cache_blocks: f64) -> f64 {
    0.1 * cache_blocks
}

fn most(cache_blocks: f64) -> f64 {
    0.9 * cache_blocks
}

/// Ghosts take 32 B each, so at most 128 MiB per disk.
const MOST_GHOSTS: f64 = (1u32 << 22) as f64;

fn places(cache_blocks: u64) -> u32 {
    most(cache_blocks as f64).ceil().clamp(1.0, MOST_GHOSTS) as u32
}

impl Larc {
    /// Makes a filter for a share of this many blocks.
    pub fn new(cache_blocks: u64) -> Larc {
        let ghosts_wanted = least(cache_blocks as f64);
        Larc { cache_blocks: cache_blocks as f64, ghosts_wanted, ghosts: Lru::new(places(cache_blocks)) }
    }

    /// Returns C_r: how many ghosts there may be.
    pub fn ghosts_wanted(&self) -> f64 {
        self.ghosts_wanted
    }

    /// Returns how many ghosts there are: LARC's count.
    pub fn ghosts(&self) -> u32 {
        self.ghosts.len()
    }

    fn trim(&mut self) {
        while f64::from(self.ghosts.len()) > self.ghosts_wanted.max(1.0) {
            self.ghosts.pop_oldest();
        }
    }
}

impl Admission for Larc {
    fn hit(&mut self, _: BlockNo, _: Access) {
        if self.cache_blocks > 0.0 {
            let shrunk = self.ghosts_wanted - self.cache_blocks / (self.cache_blocks - self.ghosts_wanted);
            self.ghosts_wanted = shrunk.max(least(self.cache_blocks));
        }
    }

    fn miss(&mut self, block: BlockNo, _: Access) -> Verdict {
        if self.cache_blocks <= 0.0 {
            return Verdict::default();
        }
        let grown = self.ghosts_wanted + self.cache_blocks / self.ghosts_wanted;
        self.ghosts_wanted = grown.min(most(self.cache_blocks));
        if self.ghosts.remove(block.0).is_some() {
            return Verdict { admit: true, ..Verdict::default() };
        }
        self.ghosts.put(block.0, 0);
        self.trim();
        Verdict::default()
    }

    fn resize(&mut self, to: &Admit, _: &mut dyn FnMut(BlockNo)) {
        let Admit::Larc { cache_blocks } = *to else { return };
        if cache_blocks as f64 == self.cache_blocks {
            return;
        }
        self.cache_blocks = cache_blocks as f64;
        self.ghosts_wanted = self.ghosts_wanted.clamp(least(self.cache_blocks), most(self.cache_blocks));
        self.trim();
        self.ghosts.resize(places(cache_blocks));
    }

    fn bytes(&self) -> usize {
        self.ghosts.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;

    fn miss(larc: &mut Larc, block: u64) -> bool {
        larc.miss(BlockNo(block), Op::Read.into()).admit
    }

    /// C = 20: a miss takes C_r from 2 to 2 + 20/2 = 12, and then to 12 + 20/12; a hit from there to
    /// 41/3 - 20 / (20 - 41/3).
    #[test]
    fn by_hand() {
        let mut larc = Larc::new(20);
        assert_eq!(larc.ghosts_wanted(), 2.0);
        assert!(!miss(&mut larc, 1));
        assert_eq!(larc.ghosts_wanted(), 12.0);
        assert!(!miss(&mut larc, 2));
        assert!((larc.ghosts_wanted() - 41.0 / 3.0).abs() < 1e-12);
        larc.hit(BlockNo(9), Op::Read.into());
        assert!((larc.ghosts_wanted() - (41.0 / 3.0 - 60.0 / 19.0)).abs() < 1e-12);
        assert!(!miss(&mut larc, 3));
        assert!(miss(&mut larc, 1), "1 is a ghost");
        assert_eq!(larc.ghosts(), 2);
    }

    #[test]
    fn a_shorter_list_forgets_at_the_next_miss() {
        let mut larc = Larc::new(40);
        (0..100).for_each(|block| assert!(!miss(&mut larc, block)));
        assert_eq!((larc.ghosts_wanted(), larc.ghosts()), (36.0, 36));
        (0..100).for_each(|_| larc.hit(BlockNo(99), Op::Read.into()));
        assert_eq!(larc.ghosts_wanted(), 4.0);
        assert!(!miss(&mut larc, 200));
        assert_eq!((larc.ghosts_wanted(), larc.ghosts()), (14.0, 14));
        assert!(miss(&mut larc, 99) && !miss(&mut larc, 80));
    }

    /// With a constant hit ratio h the list is (1 - h) C long: (1 - h) C / C_r = h C / (C - C_r).
    #[test]
    fn it_settles_at_the_miss_ratio() {
        for hits_of_ten in [3, 5, 7] {
            let mut larc = Larc::new(100_000);
            for block in 0..4_000_000 {
                if block % 10 < hits_of_ten {
                    larc.hit(BlockNo(block), Op::Read.into());
                } else {
                    miss(&mut larc, block);
                }
            }
            let expected = 100_000.0 * (10 - hits_of_ten) as f64 / 10.0;
            assert!(
                (larc.ghosts_wanted() / expected - 1.0).abs() < 0.01,
                "{} {expected}",
                larc.ghosts_wanted()
            );
        }
    }

    #[test]
    fn it_grows_to_nine_tenths() {
        let mut larc = Larc::new(10);
        (0..100).for_each(|block| assert!(!miss(&mut larc, block)));
        assert_eq!((larc.ghosts_wanted(), larc.ghosts()), (9.0, 9));
        larc.resize(&Admit::Larc { cache_blocks: 4 }, &mut |_| {});
        assert_eq!((larc.ghosts_wanted(), larc.ghosts()), (3.6, 3));
        assert!(miss(&mut larc, 99) && !miss(&mut larc, 90));
    }

    #[test]
    fn the_smallest_shares() {
        let mut nothing = Larc::new(0);
        nothing.hit(BlockNo(1), Op::Read.into());
        assert!(!miss(&mut nothing, 1) && !miss(&mut nothing, 1));
        let mut one = Larc::new(1);
        assert!(!miss(&mut one, 1) && miss(&mut one, 1));
    }
}
