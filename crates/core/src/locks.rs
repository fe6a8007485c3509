//! Block locks: which blocks have I/O in flight that others must wait for.
//!
//! Invariants
//! - A block has at most one lock.
//! - A lock is released by the request or the cleaner's round that took it.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use haversack_model::{BlockNo, DiskNo};

use crate::hasher::NumberHasher;

/// Why a block is locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockKind {
    /// It is being read from the origin to be cached.
    Fill,
    /// The origin is being written past the cache.
    Around,
    /// It is being cleaned. Staged writes and reads may proceed.
    Clean,
}

/// The locked blocks.
#[derive(Default)]
pub(crate) struct Locks {
    /// By key of disk and block: why it is locked, and whether a request waits for it.
    held: HashMap<u64, (LockKind, bool), BuildHasherDefault<NumberHasher>>,
}

fn key(disk: DiskNo, block: BlockNo) -> u64 {
    u64::from(disk.0) << 44 | block.0
}

impl Locks {
    pub fn get(&self, disk: DiskNo, block: BlockNo) -> Option<LockKind> {
        if self.held.is_empty() {
            return None;
        }
        self.held.get(&key(disk, block)).map(|l| l.0)
    }

    pub fn lock(&mut self, disk: DiskNo, block: BlockNo, kind: LockKind) {
        let before = self.held.insert(key(disk, block), (kind, false));
        assert!(before.is_none(), "{block:?} of {disk:?} is locked already");
    }

    /// Called when a request waits for the block.
    pub fn waited(&mut self, disk: DiskNo, block: BlockNo) {
        self.held.get_mut(&key(disk, block)).expect("the block is locked").1 = true;
    }

    /// Unlocks the block; returns whether a request waits for it.
    pub fn unlock(&mut self, disk: DiskNo, block: BlockNo) -> bool {
        self.held.remove(&key(disk, block)).expect("the block is locked").1
    }

    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}
