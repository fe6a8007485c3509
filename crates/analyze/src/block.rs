//! What is known of a block.

use crate::reference::Kind;
use crate::table::{Slot, Tag};

/// No place: the block was discarded, or is being moved.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// What is known of a block, in 20 bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    tag: Tag,
    /// Its last access in the order of last accesses.
    pub place: u32,
    /// The largest distance at an access since the last write.
    pub deepest: u32,
    /// Reads and writes.
    pub count: u32,
}

/// Marks beside the one that every block has.
const WRITTEN_LAST: u32 = 2;
const DIRTY: u32 = 4;
const INHERITED: u32 = 8;

impl Slot for Block {
    fn new(tag: Tag) -> Block {
        Block { tag, place: NOWHERE, deepest: 0, count: 0 }
    }

    fn tag(&self) -> Tag {
        self.tag
    }
}

impl Block {
    pub fn key(&self) -> u64 {
        self.tag.key()
    }

    /// What the last access was.
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

    /// Whether it is dirty is known only to what came before this part of the trace.
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
