//! Opening a pool: from the contents of the devices and of the staging area to a running core.
//!
//! 1. [`scan`]: read superblocks, the record, write-intent bitmaps and metadata pages. Writes nothing.
//! 2. Entries of commits that may not have been durable are verified; those that fail never happened.
//! 3. The newest version of each block wins; persistence and write-intent bitmaps decide what is kept.
//! 4. The record says that the pool is open; pages that list what never happened are rewritten.
//! 5. Staged blocks, if the staging area survived, are added on top.
//!
//! After a clean stop, step 1 to 3 may be left out: [`checkpoint`] has their result.
//!
//! Invariants
//! - Nothing is written to the devices before all of them have been read and found fit.
//! - What was decided about doubtful commits is durable before the core takes requests, so that a second
//!   crash leads to the same decision.

pub(crate) mod checkpoint;
mod compare;
pub(crate) mod entries;
mod listing;
mod newest;
mod open;
pub(crate) mod scan;

use haversack_model::{ArenaId, DeviceNo, DiskId, DiskNo};

use crate::format::record::Damage;

pub use checkpoint::{CheckpointUse, NoCheckpoint, Unsaved};

/// How to open a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenOptions {
    /// Open even if a missing device may hold the only copy of dirty blocks. Disks that may have had such
    /// blocks are then marked as damaged.
    pub accept_missing: bool,
    /// All cache devices were lost while the origins continued to be written (see
    /// [`crate::Event::PoolLost`]): everything that is cached is void. Pass it until the pool was opened once
    /// with it.
    pub contents_void: bool,
}

/// The state in which a pool was found when it was opened.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OpenReport {
    /// The identity of the arena, and of its pool.
    pub arena: ArenaId,
    /// Device numbers, each with its index in the list of devices.
    pub devices: Vec<(DeviceNo, usize)>,
    /// Devices in the list that are no longer part of the pool.
    pub ignored: Vec<usize>,
    /// Devices of the pool that were not in the list.
    pub missing: Vec<DeviceNo>,
    /// The staging area belonged to the pool in its last state.
    pub staging_survived: bool,
    /// The pool was stopped cleanly.
    pub clean_stop: bool,
    /// Whether its tables came from a checkpoint, or why not.
    pub checkpoint: CheckpointUse,
    /// Entries of commits that did not become durable.
    pub torn_entries: u64,
    /// Segments whose metadata was damaged.
    pub damaged_segments: u64,
    /// The disks.
    pub disks: Vec<DiskSummary>,
}

/// Adds the devices that another arena of the pool found, in use and missing, to those of one arena.
pub(crate) fn merge_devices(
    (used, missing): (&mut Vec<(DeviceNo, usize)>, &mut Vec<DeviceNo>),
    (other_used, other_missing): (Vec<(DeviceNo, usize)>, Vec<DeviceNo>),
) {
    for (number, place) in other_used {
        if !used.iter().any(|(known, _)| *known == number) {
            used.push((number, place));
        }
    }
    missing.extend(other_missing);
    missing.sort();
    missing.dedup();
}

impl OpenReport {
    /// Adds the report of another arena of the pool. Places of devices stay those of this arena.
    pub fn add(&mut self, other: OpenReport) {
        merge_devices((&mut self.devices, &mut self.missing), (other.devices, other.missing));
        self.staging_survived &= other.staging_survived;
        self.clean_stop &= other.clean_stop;
        if self.checkpoint == CheckpointUse::Loaded {
            self.checkpoint = other.checkpoint;
        }
        self.torn_entries += other.torn_entries;
        self.damaged_segments += other.damaged_segments;
        self.disks.extend(other.disks);
    }
}

/// The state in which a disk was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskSummary {
    /// Its number.
    pub disk: DiskNo,
    /// Its identity.
    pub id: DiskId,
    /// Its sectors.
    pub sectors: u64,
    /// Its grid phase.
    pub phase: u8,
    /// Blocks of it on flash.
    pub cached_blocks: u64,
    /// Blocks that the origin does not have, including staged ones.
    pub dirty_blocks: u64,
    /// Whether this host owns it.
    pub owned: bool,
    /// The ownership epoch.
    pub epoch: u64,
    /// Whether dirty blocks were lost.
    pub damage: Damage,
}
