//! The state of a block.

use crate::reference::Kind;
use crate::table::{Slot, Tag};

/// No place: the block was discarded, or is being moved.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// The state of a block that is in n orders, and has versions with depths in some of them: 12 bytes, and four for each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block<const ORDERS: usize, const DEPTHS: usize> {
    tag: Tag,
    /// Its last access in each order of last accesses; in none if it was discarded.
    pub places: [u32; ORDERS],
    /// The largest distance in each order at an access since the last write.
    pub deepest: [u32; DEPTHS],
    /// Reads and writes.
    pub count: u32,
}

/// Marks in addition to the one that every block has.
const WRITTEN_LAST: u32 = 2;
const DIRTY: u32 = 4;
const INHERITED: u32 = 8;

impl<const ORDERS: usize, const DEPTHS: usize> Slot for Block<ORDERS, DEPTHS> {
    fn new(tag: Tag) -> Self {
        Block { tag, places: [NOWHERE; ORDERS], deepest: [0; DEPTHS], count: 0 }
    }

    fn tag(&self) -> Tag {
        self.tag
    }
}

impl<const ORDERS: usize, const DEPTHS: usize> Block<ORDERS, DEPTHS> {
    /// Returns the block in other orders, with the same values as in its first one.
    pub fn everywhere<const O: usize, const D: usize>(&self) -> Block<O, D> {
        let deepest = std::array::from_fn(|_| self.deepest[0]);
        Block { tag: self.tag, places: [self.places[0]; O], deepest, count: self.count }
    }

    /// It was not discarded since its last access.
    #[inline]
    pub fn has_places(&self) -> bool {
        self.places[0] != NOWHERE
    }

    pub fn key(&self) -> u64 {
        self.tag.key()
    }

    /// The kind of the last access.
    pub fn last(&self) -> Kind {
        if self.is(WRITTEN_LAST) { Kind::Write } else { Kind::Read }
    }

    pub fn set_last(&mut self, kind: Kind) {
        self.set(WRITTEN_LAST, kind == Kind::Write);
    }

    /// It was written, and not discarded since.
    pub fn is_dirty(&self) -> bool {
        self.is(DIRTY)
    }

    pub fn set_dirty(&mut self, dirty: bool) {
        self.set(DIRTY, dirty);
    }

    /// Only the state before this part of the trace shows whether it is dirty.
    pub fn is_inherited(&self) -> bool {
        self.is(INHERITED)
    }

    pub fn set_inherited(&mut self, inherited: bool) {
        self.set(INHERITED, inherited);
    }

    fn is(&self, mark: u32) -> bool {
        self.tag.marks() & mark != 0
    }

    fn set(&mut self, mark: u32, on: bool) {
        let marks = self.tag.marks();
        self.tag.set_marks(if on { marks | mark } else { marks & !mark });
    }
}
