//! Staged blocks: written or admitted, not yet on flash.
//!
//! A block that is written again gets a new frame, with the older valid sectors copied in, before the old one
//! is freed. So at any instant a valid descriptor names complete content, even if the process is killed.
//!
//! Invariants
//! - The table has the newest frame of each block. An older frame of it exists only while it is being
//!   committed, and its valid sectors are also in the newer one. The older frame has a descriptor until that
//!   commit has ended; the newer frame must not be freed before that.
//! - Sectors outside a frame's mask are zero.
//! - Frames of the data stage count as free.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use haversack_model::{BlockNo, DiskNo, Micros};

use crate::data_stage::DataStage;
use crate::hasher::NumberHasher;
use crate::memory::FrameNo;
use crate::store::slot::MAX_HITS;
use crate::table::Table;

/// No frame.
pub const NO_FRAME: u32 = u32::MAX;

/// State of a staging frame.
#[derive(Clone, Copy, Debug)]
pub struct Staged {
    /// The disk.
    pub disk: DiskNo,
    /// The block.
    pub block: BlockNo,
    /// Valid sectors.
    pub mask: u8,
    /// The origin does not have it.
    pub dirty: bool,
    /// Sectors outside the mask are lost.
    pub poisoned: bool,
    /// It is as on flash, and staged to get other copies there.
    pub restaged: bool,
    /// It enters flash as protected.
    pub protected: bool,
    /// Hits while staged.
    pub hits: u8,
    /// It is in a batch that is being written to flash.
    pub committing: bool,
    /// The last commit that contained it, or an older frame of its block; 0: none.
    pub commit_seq: u64,
    /// Its descriptor names sectors beyond the end of the disk.
    pub trimmed: bool,
    /// A newer frame of the block exists.
    pub superseded: bool,
    /// The sectors that only flash has are being read.
    pub merging: bool,
    /// The frame's checksum, bound to disk and block.
    pub crc: u32,
    /// Version in its descriptor.
    pub version: u64,
    /// The flush group that it must be durable with.
    pub group: u64,
    /// When the oldest of its dirty content arrived.
    pub since_us: Micros,
    /// The neighbours in the disk's list of waiting frames, or `NO_FRAME`.
    previous: u32,
    next: u32,
}

impl Staged {
    /// Returns the state of a frame for a block, clean and empty.
    pub fn new(disk: DiskNo, block: BlockNo) -> Staged {
        Staged {
            disk,
            block,
            mask: 0,
            dirty: false,
            poisoned: false,
            restaged: false,
            protected: false,
            hits: 0,
            committing: false,
            commit_seq: 0,
            trimmed: false,
            superseded: false,
            merging: false,
            crc: 0,
            version: 0,
            group: 0,
            since_us: 0,
            previous: NO_FRAME,
            next: NO_FRAME,
        }
    }
}

/// A disk's frames that wait to be committed, oldest first.
#[derive(Clone, Copy, Debug)]
pub struct StagedList {
    /// The oldest frame, or `NO_FRAME`.
    head: u32,
    /// The newest frame, or `NO_FRAME`.
    tail: u32,
    /// Frames in the list.
    pub len: u32,
}

impl Default for StagedList {
    fn default() -> Self {
        StagedList { head: NO_FRAME, tail: NO_FRAME, len: 0 }
    }
}

/// All staging frames.
pub struct Staging {
    /// By frame number; `None` if the frame names no block.
    frames: Vec<Option<Staged>>,
    /// Free frames, those of the data stage not included.
    free: Vec<FrameNo>,
    data: DataStage,
    /// The newest frame of each block, by the key of disk and block.
    table: HashMap<u64, u32, BuildHasherDefault<NumberHasher>>,
    pub lists: Table<DiskNo, StagedList>,
    /// Version of the next descriptor.
    pub next_version: u64,
}

const DISK_SHIFT: u32 = 44;

fn key(disk: DiskNo, block: BlockNo) -> u64 {
    u64::from(disk.0) << DISK_SHIFT | block.0
}

impl Staging {
    /// Returns a staging area with this many free frames.
    pub fn new(frames: u32) -> Staging {
        Staging {
            frames: vec![None; frames as usize],
            free: (0..frames).rev().map(FrameNo).collect(),
            data: DataStage::new(frames),
            table: HashMap::with_capacity_and_hasher(frames as usize * 2, BuildHasherDefault::default()),
            lists: Table::new(),
            next_version: 1,
        }
    }

    /// Makes room in the disk table up to `disk`.
    pub fn add_disk(&mut self, disk: DiskNo) {
        self.lists.reach(disk, StagedList::default);
    }

    /// Returns the number of frames.
    pub fn capacity(&self) -> usize {
        self.frames.len()
    }

    /// Returns the number of free frames.
    pub fn free(&self) -> usize {
        self.free.len() + self.data.len()
    }

    /// Takes a free frame.
    pub fn allocate(&mut self) -> Option<FrameNo> {
        self.free.pop().or_else(|| self.data.remove_oldest())
    }

    /// Returns the frame of the data stage that has these sectors of a block, if it has them all.
    #[inline]
    pub fn find_data(&self, disk: DiskNo, block: BlockNo, mask: u8) -> Option<FrameNo> {
        self.data.find(key(disk, block), mask)
    }

    /// Puts an allocated frame with sectors of a block into the data stage.
    pub fn keep_data(&mut self, disk: DiskNo, block: BlockNo, frame: FrameNo, mask: u8) {
        self.drop_data(disk, block);
        self.data.insert(key(disk, block), frame, mask);
    }

    /// Takes a block out of the data stage; returns its frame, which is allocated then, and the sectors in
    /// it.
    pub fn take_data(&mut self, disk: DiskNo, block: BlockNo) -> Option<(FrameNo, u8)> {
        self.data.remove(key(disk, block))
    }

    /// Drops a block from the data stage.
    #[inline]
    pub fn drop_data(&mut self, disk: DiskNo, block: BlockNo) {
        if let Some((frame, _)) = self.data.remove(key(disk, block)) {
            self.free.push(frame);
        }
    }

    /// Drops all blocks of a disk from the data stage. Slow.
    pub fn drop_all_data(&mut self, disk: DiskNo) {
        for key in self.data.keys(|key| key >> DISK_SHIFT == u64::from(disk.0)) {
            self.free.extend(self.data.remove(key).map(|(frame, _)| frame));
        }
    }

    /// Frees an allocated frame that names no block.
    pub fn give_back(&mut self, frame: FrameNo) {
        debug_assert!(self.frames[frame.0 as usize].is_none());
        self.free.push(frame);
    }

    /// Takes a particular free frame, in which recovery found a block.
    pub fn claim(&mut self, frame: FrameNo) {
        self.free.retain(|f| *f != frame);
    }

    /// Returns the newest frame of a block.
    pub fn find(&self, disk: DiskNo, block: BlockNo) -> Option<(FrameNo, &Staged)> {
        let frame = *self.table.get(&key(disk, block))?;
        self.frames[frame as usize].as_ref().map(|s| (FrameNo(frame), s))
    }

    /// Returns a frame's state.
    pub fn get(&self, frame: FrameNo) -> &Staged {
        self.frames[frame.0 as usize].as_ref().expect("the frame names a block")
    }

    /// Returns a frame's state, to change. Disk and block must stay.
    pub fn get_mut(&mut self, frame: FrameNo) -> &mut Staged {
        self.frames[frame.0 as usize].as_mut().expect("the frame names a block")
    }

    /// Counts a hit: a frame had everything that was read of a block.
    pub fn hit(&mut self, frame: FrameNo) {
        let staged = self.get_mut(frame);
        staged.hits = (staged.hits + 1).min(MAX_HITS);
    }

    /// Whether the frame names a block.
    pub fn is_used(&self, frame: FrameNo) -> bool {
        self.frames[frame.0 as usize].is_some()
    }

    /// Makes a frame the newest of its block and lets it wait to be committed.
    pub fn insert(&mut self, frame: FrameNo, staged: Staged) {
        let (disk, block) = (staged.disk, staged.block);
        self.frames[frame.0 as usize] = Some(staged);
        self.table.insert(key(disk, block), frame.0);
        self.link(frame);
    }

    fn link(&mut self, frame: FrameNo) {
        let disk = self.get(frame).disk;
        let tail = self.lists[disk].tail;
        let staged = self.get_mut(frame);
        (staged.previous, staged.next) = (tail, NO_FRAME);
        if tail != NO_FRAME {
            self.get_mut(FrameNo(tail)).next = frame.0;
        }
        let list = &mut self.lists[disk];
        list.tail = frame.0;
        if tail == NO_FRAME {
            list.head = frame.0;
        }
        list.len += 1;
    }

    fn unlink(&mut self, frame: FrameNo) {
        let Staged { disk, previous, next, .. } = *self.get(frame);
        if previous == NO_FRAME {
            self.lists[disk].head = next;
        } else {
            self.get_mut(FrameNo(previous)).next = next;
        }
        if next == NO_FRAME {
            self.lists[disk].tail = previous;
        } else {
            self.get_mut(FrameNo(next)).previous = previous;
        }
        self.lists[disk].len -= 1;
    }

    /// Makes the frame part of batch `seq`.
    pub fn start_commit(&mut self, frame: FrameNo, seq: u64) {
        self.unlink(frame);
        let staged = self.get_mut(frame);
        (staged.committing, staged.commit_seq) = (true, seq);
    }

    /// Lets the frame wait again: its batch failed.
    pub fn restart(&mut self, frame: FrameNo) {
        self.get_mut(frame).committing = false;
        self.link(frame);
    }

    /// Called when a newer frame of a block replaces an older one. If the older frame is not being committed, frees it
    /// and returns its state.
    pub fn supersede(&mut self, frame: FrameNo) -> Option<Staged> {
        if self.get(frame).committing {
            self.get_mut(frame).superseded = true;
            return None;
        }
        self.unlink(frame);
        self.frames[frame.0 as usize].take()
    }

    /// Forgets a frame that is being committed: it is freed when its batch ends.
    pub fn abandon(&mut self, frame: FrameNo) {
        let staged = self.get_mut(frame);
        staged.superseded = true;
        let key = key(staged.disk, staged.block);
        if self.table.get(&key) == Some(&frame.0) {
            self.table.remove(&key);
        }
    }

    /// Forgets a frame and frees it.
    pub fn remove(&mut self, frame: FrameNo) -> Staged {
        if !self.get(frame).committing {
            self.unlink(frame);
        }
        let staged = self.frames[frame.0 as usize].take().expect("the frame names a block");
        let key = key(staged.disk, staged.block);
        if self.table.get(&key) == Some(&frame.0) {
            self.table.remove(&key);
        }
        self.free.push(frame);
        staged
    }

    /// Returns a disk's waiting frames, oldest first.
    pub fn waiting(&self, disk: DiskNo) -> impl Iterator<Item = FrameNo> + '_ {
        let mut at = self.lists[disk].head;
        std::iter::from_fn(move || {
            let frame = (at != NO_FRAME).then_some(FrameNo(at))?;
            at = self.get(frame).next;
            Some(frame)
        })
    }

    /// Returns all frames that name a block of the disk, including those being committed. Slow.
    pub fn all_of(&self, disk: DiskNo) -> impl Iterator<Item = FrameNo> + '_ {
        let of_disk = move |s: &Option<Staged>| s.as_ref().is_some_and(|s| s.disk == disk);
        self.frames.iter().enumerate().filter(move |(_, s)| of_disk(s)).map(|(at, _)| FrameNo(at as u32))
    }

    /// Returns the bytes of memory, frames not counted.
    pub fn bytes(&self) -> usize {
        self.frames.capacity() * size_of::<Option<Staged>>()
            + self.free.capacity() * 4
            + self.table.capacity() * 13
            + self.data.bytes()
    }
}
