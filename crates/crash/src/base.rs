//! In some runs, one disk is the base of other disks. Their origins start with the content of the base, and the core
//! reads blocks that such a disk has not changed through the base.
//!
//! The origin of such a disk behaves like a store of clusters: it reads a cluster from the base as long as the disk has
//! changed no part of the cluster. The simulator asks the origin some time after sharing has begun, and the origin
//! answers later still, possibly after sharing has begun again.

use haversack_core::{BaseBlocks, SharingId};
use haversack_model::random::Random;
use haversack_model::{DiskNo, SECTOR_BYTES};

use crate::device::Blank;
use crate::plan::Made;
use crate::run::tell;
use crate::world::World;

/// One step in this many begins to share the blocks of a disk.
const STEPS_BETWEEN: u64 = 40;
/// An origin is asked, and answers, after this many steps on average.
const STEPS_TO_ANSWER: u64 = 6;
/// Questions that may be in progress for a disk.
const MOST_QUESTIONS: usize = 3;
/// One step in this many ends a disk's sharing.
const STEPS_TO_END: u64 = 2_000;
/// One step in this many makes the base a disk that is written like any other, by guests here and on other hosts.
const STEPS_TO_SPOIL: u64 = 4_000;

/// The base of a run, and what is known of its blocks.
pub struct Sharing {
    /// Which disks were made from it.
    made: Made,
    rng: Random,
    /// The content of a sector of the base that was never written.
    content: Blank,
    /// The sectors of the base that still have the content from which disks were made.
    sectors: u64,
    /// The base has been written, or is about to be: nothing is shared from now on.
    is_spoiled: bool,
    /// Questions in progress, by disk.
    asked: Vec<Vec<Asked>>,
}

/// A question to a disk's origin: which sectors does the disk read from the base?
struct Asked {
    /// The disk's number when sharing began, and the identity of that sharing.
    no: DiskNo,
    sharing: SharingId,
    /// The disk's size when the origin was asked, and the runs of sectors that the disk reads from the base; `None`
    /// until the origin is asked.
    answer: Option<(u64, Vec<(u64, u64)>)>,
}

impl Sharing {
    /// Nothing is shared yet.
    pub(crate) fn new(made: Made, content: Blank, sectors: u64, disks: usize) -> Sharing {
        let rng = Random::scrambled(made.seed);
        let asked = (0..disks).map(|_| Vec::new()).collect();
        Sharing { made, rng, content, sectors, is_spoiled: false, asked }
    }

    /// Called when the process ended.
    pub(crate) fn forget_questions(&mut self) {
        self.asked.iter_mut().for_each(Vec::clear);
    }

    /// Records the size of a disk.
    pub(crate) fn note_size(&mut self, disk: usize, sectors: u64) {
        if disk == self.made.from {
            self.sectors = self.sectors.min(sectors);
        }
    }
}

impl World {
    /// Whether a disk is a base that nobody writes.
    pub(crate) fn is_base(&self, disk: usize) -> bool {
        self.sharing.as_ref().is_some_and(|sharing| sharing.made.from == disk && !sharing.is_spoiled)
    }

    /// In a run with a base, sometimes begins to share, asks an origin, or gives its answer to the core.
    pub(crate) fn share_something(&mut self) {
        let Some(mut sharing) = self.sharing.take() else { return };
        for disk in sharing.made.disks.clone() {
            self.share_step(&mut sharing, disk);
        }
        sharing.is_spoiled |= sharing.rng.one_in(STEPS_TO_SPOIL);
        self.sharing = Some(sharing);
    }

    fn share_step(&mut self, sharing: &mut Sharing, disk: usize) {
        if sharing.rng.one_in(STEPS_BETWEEN) {
            self.begin_to_share(sharing, disk);
        } else if sharing.rng.one_in(STEPS_TO_ANSWER) {
            self.go_on_sharing(sharing, disk);
        } else if sharing.rng.one_in(STEPS_TO_END)
            && let Some(no) = self.disks[disk].no
        {
            self.core().end_sharing(no);
        }
    }

    /// Begins to share blocks of some disks, and may ask their origins and pass the answers on immediately. Called
    /// after recovery and during a resize.
    pub(crate) fn share_some(&mut self) {
        let Some(mut sharing) = self.sharing.take() else { return };
        for disk in sharing.made.disks.clone() {
            if sharing.rng.percent(60) {
                self.begin_to_share(&mut sharing, disk);
                for _ in 0..sharing.rng.below(4) {
                    self.go_on_sharing(&mut sharing, disk);
                }
            }
        }
        self.sharing = Some(sharing);
    }

    fn begin_to_share(&mut self, sharing: &mut Sharing, disk: usize) {
        let numbers = (self.disks[disk].no, self.disks[sharing.made.from].no);
        let (now, (Some(no), Some(base)), false) = (self.now, numbers, sharing.is_spoiled) else { return };
        // The core refuses disks that are not attached, and a base that is being resized.
        let begun = self.core().share_base(now, no, base);
        tell(|| format!("{now:>10} {no:?} begins to share blocks of {base:?}: {begun:?}"));
        if let Ok(begun) = begun {
            let asked = &mut sharing.asked[disk];
            asked.push(Asked { no, sharing: begun, answer: None });
            if asked.len() > MOST_QUESTIONS {
                asked.remove(0);
            }
        }
    }

    /// Asks the origin, or gives its answer to the core.
    fn go_on_sharing(&mut self, sharing: &mut Sharing, disk: usize) {
        if sharing.asked[disk].is_empty() {
            return;
        }
        let which = sharing.rng.below(sharing.asked[disk].len() as u64) as usize;
        let mut asked = sharing.asked[disk].remove(which);
        let size = self.disks[disk].origin.bytes() / SECTOR_BYTES as u64;
        let Some((size_then, runs)) = asked.answer else {
            asked.answer = Some((size, self.runs_of_base(sharing, disk)));
            sharing.asked[disk].insert(which, asked);
            return;
        };
        if self.disks[disk].no != Some(asked.no) {
            return;
        }
        let phase = self.disks[disk].config.phase;
        let mut blocks = BaseBlocks::new(sharing.rng.pick(&[size, size_then]), phase, sharing.sectors);
        runs.iter().for_each(|(first, sectors)| blocks.add(*first, *sectors));
        let is_shared = self.core().share_blocks(asked.no, asked.sharing, blocks);
        let usage = self.core().base_usage(asked.no);
        self.counts.shared += u64::from(is_shared && usage.is_some_and(|usage| usage.shared_blocks > 0));
        tell(|| format!("{:>10} {:?} shares {usage:?}", self.now, asked.no));
    }

    /// Returns the runs of sectors that a disk reads from the base: the clusters in which its origin has no data of its
    /// own.
    fn runs_of_base(&self, sharing: &Sharing, disk: usize) -> Vec<(u64, u64)> {
        let origin = &self.disks[disk].origin;
        let end = sharing.sectors.min(origin.bytes() / SECTOR_BYTES as u64);
        let clusters = (0..end).step_by(sharing.made.cluster_sectors as usize);
        let clusters = clusters.map(|first| (first, sharing.made.cluster_sectors.min(end - first)));
        clusters.filter(|(first, sectors)| origin.is_as(*first..first + sectors, sharing.content)).collect()
    }
}
