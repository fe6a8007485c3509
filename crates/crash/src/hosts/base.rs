//! In some runs, the disk was made from a base that all hosts have attached. Blocks that the disk has not changed are
//! read through the base, on whichever host the disk is.

use haversack_core::{BaseBlocks, DiskConfig, SharingId};
use haversack_model::random::Random;
use haversack_model::{DiskNo, SECTOR_BYTES};

use super::host::{Running, Shared};
use super::machines::Machines;
use crate::device::{Blank, Store};
use crate::plan::disk_id;
use crate::run::tell;

/// One step in this many begins to share blocks.
const STEPS_BETWEEN: u64 = 40;
/// The origin is asked, and answers, after this many steps on average.
const STEPS_TO_ANSWER: u64 = 6;

/// The disk that was made from the base.
const OF_BASE: usize = 0;

/// The base, which nobody writes.
pub struct Base {
    /// Its configuration, on either host.
    pub config: DiskConfig,
    /// Its origin.
    pub origin: Store,
    content: Blank,
    cluster_sectors: u64,
    rng: Random,
}

/// A question to the disk's origin: which sectors does the disk read from the base?
pub struct Asked {
    disk: DiskNo,
    sharing: SharingId,
    /// The runs of sectors that the disk reads from the base; `None` until the origin is asked.
    answer: Option<Vec<(u64, u64)>>,
}

impl Base {
    /// Makes a base of which `disk` was made, with that content.
    pub fn new(disk: &DiskConfig, content: Blank, mut rng: Random) -> Base {
        let config = DiskConfig { phase: disk.phase, ..DiskConfig::new(disk_id(1), disk.sectors) };
        let origin = Store::new(disk.sectors, content);
        Base { config, origin, content, cluster_sectors: rng.pick(&[1, 8, 16, 128]), rng }
    }

    /// Returns the sectors of the clusters in which an origin has nothing of its own.
    fn runs_in(&self, origin: &Store) -> Vec<(u64, u64)> {
        let end = origin.bytes() / SECTOR_BYTES as u64;
        let clusters = (0..end).step_by(self.cluster_sectors as usize);
        let clusters = clusters.map(|first| (first, self.cluster_sectors.min(end - first)));
        clusters.filter(|(first, sectors)| origin.is_as(*first..first + sectors, self.content)).collect()
    }
}

impl Machines {
    /// Sometimes begins to share blocks on a host, asks the origin, or gives its answer to the core.
    pub fn share_something(&mut self) {
        let Some(mut base) = self.shared.base.take() else { return };
        let at = base.rng.below(self.hosts.len() as u64) as usize;
        let running = self.hosts[at].running.as_mut();
        if let Some(running) = running {
            let is_shared = running.share_step(&mut base, &self.shared);
            running.note_wakeup();
            self.report.counts.shared += u64::from(is_shared);
        }
        self.shared.base = Some(base);
    }
}

impl Running {
    /// Returns true if blocks are shared from now on.
    fn share_step(&mut self, base: &mut Base, shared: &Shared) -> bool {
        let here = &mut self.disks[OF_BASE];
        let (Some(disk), Some(of)) = (here.migration.disk(), self.base) else { return false };
        if base.rng.one_in(STEPS_BETWEEN) {
            // The core refuses a disk that is not attached, or has blocks on the other host.
            let begun = self.core.share_base(shared.now, disk, of);
            tell(|| format!("{:>10} {disk:?} begins to share blocks of {of:?}: {begun:?}", shared.now));
            if let Ok(sharing) = begun {
                here.asked = Some(Asked { disk, sharing, answer: None });
            }
            return false;
        }
        let asked = if base.rng.one_in(STEPS_TO_ANSWER) { here.asked.take() } else { None };
        let Some(asked) = asked.filter(|asked| asked.disk == disk) else { return false };
        let Some(runs) = asked.answer else {
            here.asked = Some(Asked { answer: Some(base.runs_in(&shared.origins[OF_BASE])), ..asked });
            return false;
        };
        let mut blocks = BaseBlocks::new(base.config.sectors, base.config.phase, base.config.sectors);
        runs.iter().for_each(|(first, sectors)| blocks.add(*first, *sectors));
        self.core.share_blocks(disk, asked.sharing, blocks);
        let usage = self.core.base_usage(disk);
        tell(|| format!("{:>10} {disk:?} shares {usage:?}", shared.now));
        usage.is_some_and(|usage| usage.shared_blocks > 0)
    }
}
