//! The data stage: data that reads fetched from the origin for blocks that the filter does not admit yet. The data is
//! kept in free frames of the staging area and is dropped when the frames are needed.
//!
//! Invariants
//! - A block here has neither a staged frame nor a slot, and the origin has nothing newer: staging a block,
//!   or writing it past the cache, drops it here first.
//! - No descriptor names these frames: after a kill they are free.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use crate::hasher::NumberHasher;
use crate::memory::FrameNo;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Entry {
    /// Key of disk and block.
    key: u64,
    /// Valid sectors.
    mask: u8,
    /// The neighbours in the order of insertion, as frame numbers, or `NONE`.
    older: u32,
    newer: u32,
}

const EMPTY: Entry = Entry { key: 0, mask: 0, older: NONE, newer: NONE };

/// Frames by block. A read removes its block and inserts it again, so that the oldest block is the one that was read
/// least recently.
pub(crate) struct DataStage {
    /// Frames of the staging area.
    frames: u32,
    /// Frame of each block, by key.
    table: HashMap<u64, u32, BuildHasherDefault<NumberHasher>>,
    /// By frame number. Empty until the first block is inserted.
    entries: Vec<Entry>,
    /// The frame that was inserted first, or `NONE`.
    oldest: u32,
    /// The frame that was inserted last, or `NONE`.
    newest: u32,
}

impl DataStage {
    /// Returns an empty data stage for a staging area of this many frames.
    pub fn new(frames: u32) -> DataStage {
        DataStage { frames, table: HashMap::default(), entries: Vec::new(), oldest: NONE, newest: NONE }
    }

    /// Returns the number of frames with data.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns the frame that has these sectors of a block, if it has them all.
    #[inline]
    pub fn find(&self, key: u64, mask: u8) -> Option<FrameNo> {
        if self.table.is_empty() {
            return None;
        }
        let frame = *self.table.get(&key)?;
        (self.entries[frame as usize].mask & mask == mask).then_some(FrameNo(frame))
    }

    /// Adds a frame with these sectors of a block, which must not be here.
    pub fn insert(&mut self, key: u64, frame: FrameNo, mask: u8) {
        if self.entries.is_empty() {
            self.entries = vec![EMPTY; self.frames as usize];
            self.table.reserve(self.frames as usize);
        }
        let before = self.table.insert(key, frame.0);
        assert!(before.is_none(), "a block has one frame here");
        self.entries[frame.0 as usize] = Entry { key, mask, ..EMPTY };
        self.link(frame.0);
    }

    /// Removes a block; returns its frame, and the sectors in it.
    pub fn remove(&mut self, key: u64) -> Option<(FrameNo, u8)> {
        if self.table.is_empty() {
            return None;
        }
        let frame = self.table.remove(&key)?;
        self.unlink(frame);
        Some((FrameNo(frame), self.entries[frame as usize].mask))
    }

    /// Removes the block that was inserted first; returns its frame.
    pub fn remove_oldest(&mut self) -> Option<FrameNo> {
        let key = self.entries.get(self.oldest as usize)?.key;
        self.remove(key).map(|(frame, _)| frame)
    }

    /// Returns the keys that match a condition. Slow.
    pub fn keys(&self, wanted: impl Fn(u64) -> bool) -> Vec<u64> {
        let mut keys: Vec<u64> = self.table.keys().copied().filter(|key| wanted(*key)).collect();
        keys.sort_unstable();
        keys
    }

    /// Returns the bytes of memory, frames not counted.
    pub fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>() + self.table.capacity() * 13
    }

    fn link(&mut self, frame: u32) {
        let before = std::mem::replace(&mut self.newest, frame);
        let entry = &mut self.entries[frame as usize];
        (entry.older, entry.newer) = (before, NONE);
        match before {
            NONE => self.oldest = frame,
            before => self.entries[before as usize].newer = frame,
        }
    }

    fn unlink(&mut self, frame: u32) {
        let Entry { older, newer, .. } = self.entries[frame as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.entries[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.entries[newer as usize].older = older,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_first() {
        let mut stage = DataStage::new(4);
        assert_eq!(stage.find(1, 0), None);
        for block in 0..4 {
            stage.insert(block, FrameNo(block as u32), 0xff);
        }
        let again = stage.remove(0).expect("it is here");
        stage.insert(0, again.0, again.1);
        assert_eq!(stage.remove(2), Some((FrameNo(2), 0xff)));
        assert_eq!([(); 3].map(|()| stage.remove_oldest().map(|f| f.0)), [Some(1), Some(3), Some(0)]);
        assert_eq!((stage.remove_oldest(), stage.len()), (None, 0));
    }

    #[test]
    fn a_block_is_found_if_it_has_all_requested_sectors() {
        let mut stage = DataStage::new(2);
        stage.insert(9, FrameNo(1), 0x0f);
        assert_eq!(stage.find(9, 0x03), Some(FrameNo(1)));
        assert_eq!((stage.find(9, 0x13), stage.find(8, 0x01)), (None, None));
    }
}
