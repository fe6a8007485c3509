//! Where a block is: the only place that compares staging area, flash, peer and origin.
//!
//! Invariants
//! - A staged sector is newer than the same sector on flash, and that is newer than the same sector at the origin.
//! - A sector that a peer has newest is read from there, unless it is cached: what is cached of it is then a copy.
//! - Where dirty sectors of a block are lost, because flash is damaged or a device is gone, these are not read
//!   from elsewhere: what is there is older.
//! - The data stage has sectors only of blocks that are neither staged nor on flash, with the same content as
//!   the origin.
//! - All code that needs to know where the newest sectors of a block are, or whether it is dirty, asks here.

use haversack_model::{BlockNo, DiskNo};

use crate::bugs::{Bug, planted};
use crate::core::Core;
use crate::memory::FrameNo;
use crate::staging::Staged;
use crate::store::slot::{Live, SlotNo};

/// A block's newest staged frame.
#[derive(Clone, Copy)]
pub(crate) struct StagedVersion {
    pub frame: FrameNo,
    /// Valid sectors.
    pub mask: u8,
    pub dirty: bool,
    /// Sectors outside the mask are lost.
    pub poisoned: bool,
    pub committing: bool,
    /// The last commit that contained it, or an older frame of its block; 0: none.
    pub commit_seq: u64,
    /// Version in its descriptor.
    pub version: u64,
}

impl StagedVersion {
    #[inline]
    fn of((frame, staged): (FrameNo, &Staged)) -> StagedVersion {
        let Staged { mask, dirty, poisoned, committing, commit_seq, version, .. } = *staged;
        StagedVersion { frame, mask, dirty, poisoned, committing, commit_seq, version }
    }
}

/// The versions of a block that count.
#[derive(Clone, Copy)]
pub(crate) struct Versions {
    pub staged: Option<StagedVersion>,
    /// The live slot that is not a mirrored copy.
    pub flash: Option<(SlotNo, Live)>,
    /// Dirty sectors that were lost with a device, and no entry in the cache says so.
    pub lost: u8,
}

impl Versions {
    /// Whether the cache has any sector of it.
    #[inline]
    pub fn is_cached(&self) -> bool {
        self.staged.is_some() || self.flash.is_some()
    }

    /// Whether the cache has anything that the origin lacks.
    #[inline]
    pub fn is_dirty(&self) -> bool {
        self.is_staged_dirty() || self.is_flash_dirty()
    }

    pub fn is_staged_dirty(&self) -> bool {
        self.staged.is_some_and(|staged| staged.dirty)
    }

    pub fn is_flash_dirty(&self) -> bool {
        self.flash.is_some_and(|(_, slot)| slot.dirty())
    }

    /// Whether the entries say that what they lack is lost.
    fn is_poisoned(&self) -> bool {
        self.staged.is_some_and(|staged| staged.poisoned)
            || self.flash.is_some_and(|(_, slot)| slot.poisoned())
    }

    /// Whether the cache lacks any of the sectors `inside` the block, and those are lost.
    pub fn is_damaged(&self, inside: u8) -> bool {
        let cached = self.staged.map_or(0, |s| s.mask) | self.flash.map_or(0, |(_, slot)| slot.mask());
        (self.is_poisoned() && inside & !cached != 0 || self.lost != 0) && !planted(Bug::HideDamage)
    }

    /// Returns which of these sectors inside the block are lost. The cache has none of them.
    fn lost_of(&self, uncached: u8) -> u8 {
        match self.is_poisoned() {
            _ if planted(Bug::HideDamage) => 0,
            true => uncached,
            false => uncached & self.lost,
        }
    }

    /// Returns the version on flash, if commit `seq` wrote it.
    pub fn flash_of(&self, seq: u64) -> Option<(SlotNo, Live)> {
        self.flash.filter(|(_, slot)| slot.seq() == seq)
    }

    /// Returns the last commit that contained any version of the block. What it wrote to flash may have been
    /// evicted since; what it took from staging is still there.
    pub fn commit_seq(&self) -> u64 {
        let staged = self.staged.map_or(0, |staged| staged.commit_seq);
        staged.max(self.flash.map_or(0, |(_, slot)| slot.seq()))
    }
}

/// Where to read sectors of a block from. Each sector is in at most one mask.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sources {
    /// Sectors in a staged frame.
    pub staged: Option<(FrameNo, u8)>,
    /// Sectors in a slot.
    pub flash: Option<(SlotNo, Live, u8)>,
    /// Sectors in the data stage: all that the cache lacks.
    pub data: Option<(FrameNo, u8)>,
    /// Sectors to fetch from the peer.
    pub peer: u8,
    /// Sectors to fetch from the origin.
    pub origin: u8,
    /// Sectors that are lost and cannot be read.
    pub damaged: u8,
}

impl Sources {
    /// Whether the cache has all of them.
    pub fn is_hit(&self) -> bool {
        self.data.is_none() && self.peer | self.origin | self.damaged == 0
    }
}

impl Core {
    /// Returns where a block is.
    #[inline]
    pub(crate) fn resolve(&self, disk: DiskNo, block: BlockNo) -> Versions {
        Versions {
            staged: self.staging.find(disk, block).map(StagedVersion::of),
            flash: self.store.lookup(disk, block),
            lost: self.disk(disk).lost.sectors_of(block),
        }
    }

    /// Returns where the block of a waiting staging frame is. The frame is the newest of its block, since it
    /// waits to be committed.
    pub(crate) fn resolve_waiting(&self, frame: FrameNo) -> Versions {
        let staged = self.staging.get(frame);
        Versions {
            staged: Some(StagedVersion::of((frame, staged))),
            flash: self.store.lookup(staged.disk, staged.block),
            lost: self.disk(staged.disk).lost.sectors_of(staged.block),
        }
    }

    /// Returns where to read sectors of a block from. Flash is checked only for what is not staged, and so
    /// on: this is the cost of a hit.
    #[inline]
    pub(crate) fn resolve_sectors(&self, disk: DiskNo, block: BlockNo, wanted: u8) -> Sources {
        let mut sources = Sources::default();
        let staged = self.staging.find(disk, block);
        let mut left = wanted;
        if let Some((frame, s)) = staged.filter(|s| s.1.mask & wanted != 0) {
            let mut mask = s.mask & wanted;
            if planted(Bug::FlashOverStaging) && s.mask != self.disk(disk).inside(block) {
                mask &= !self.store.lookup(disk, block).map_or(0, |(_, slot)| slot.mask());
            }
            sources.staged = (mask != 0).then_some((frame, mask));
            left &= !mask;
        }
        if left == 0 {
            return sources;
        }
        let flash = self.store.lookup(disk, block);
        if let Some((number, slot)) = flash.filter(|(_, slot)| slot.mask() & left != 0) {
            sources.flash = Some((number, slot, slot.mask() & left));
            left &= !slot.mask();
        }
        if left == 0 {
            return sources;
        }
        sources.peer = self.needed_of_peer(disk, block) & left;
        left &= !sources.peer;
        if left == 0 {
            return sources;
        }
        let versions = Versions {
            staged: staged.map(StagedVersion::of),
            flash,
            lost: self.disk(disk).lost.sectors_of(block),
        };
        sources.damaged = versions.lost_of(left);
        left &= !sources.damaged;
        if left == 0 {
            return sources;
        }
        if let Some(frame) = self.staging.find_data(disk, block, left) {
            sources.data = Some((frame, left));
        } else {
            sources.origin = left;
        }
        sources
    }

    /// Returns the sectors of a block that are cached, and those that are dirty. For a damaged block these
    /// are the sectors written since.
    pub(crate) fn cached_and_dirty(&self, disk: DiskNo, block: BlockNo) -> (u8, u8) {
        let versions = self.resolve(disk, block);
        let of = |mask: u8, dirty: bool| (mask, if dirty { mask } else { 0 });
        let staged = versions.staged.map_or((0, 0), |s| of(s.mask, s.dirty));
        let flash = versions.flash.map_or((0, 0), |(_, slot)| of(slot.mask(), slot.dirty()));
        (staged.0 | flash.0, staged.1 | flash.1)
    }

    /// Whether a commit with this number may not have ended.
    #[inline]
    pub(crate) fn commit_in_flight(&self, seq: u64) -> bool {
        seq > self.durability.completed()
    }
}
