//! Compares cores that were opened from the same devices, for tests.
//!
//! A core that was opened from a checkpoint may differ from one that was opened from the pages: the pages may list
//! blocks that the tables know to be evicted in place, and may list blocks as dirty that are clean. They never lack a
//! block that the tables have.

use std::convert::Infallible;

use haversack_model::{ArenaId, Uuid};

use crate::core::Core;
use crate::format::checkpoint::{Head, PieceWriter};
use crate::format::page::NO_OWNER;
use crate::store::Store;
use crate::store::segment::SegmentNo;
use crate::store::slot::{Live, Slot, SlotNo, Status, View};

/// Returns an error with a formatted text unless a condition holds.
macro_rules! expect {
    ($holds:expr, $($text:tt)*) => { if !$holds { return Err(format!($($text)*)); } };
}

impl Core {
    /// Checks that this core, opened from a checkpoint, matches a core that was opened from the same devices without a
    /// checkpoint. For tests; slow.
    ///
    /// # Errors
    /// What differs.
    pub fn compare_with_scan(&self, scanned: &Core) -> Result<(), String> {
        let (ours, theirs) = (&self.store, &scanned.store);
        expect!(ours.segments.len() == theirs.segments.len(), "the number of segments differs");
        self.check();
        for (at, number) in ours.segments.numbers().enumerate() {
            let (device, on_device) = (ours.segments[number].device, ours.segments[number].on_device);
            let same = theirs.numbers_on(haversack_model::DeviceNo(device)).nth(on_device as usize);
            let Some(same) = same else { return Err(format!("segment {at} is on another device")) };
            compare_segment(self, number, scanned, same)?;
        }
        for (disk, d) in self.disks.numbered() {
            let Some(other) = scanned.disks.get(disk) else { return Err(format!("{disk:?} is unknown")) };
            let (record, scanned_record) = (d.record(), other.record());
            expect!(record == scanned_record, "{disk:?}: {record:?}, by pages {scanned_record:?}");
            let (dirty, listed) = (ours.disks[disk].dirty, theirs.disks[disk].dirty);
            expect!(dirty <= listed, "{disk:?} has {dirty} dirty blocks, by its pages {listed}");
            for block in d.damaged.blocks() {
                expect!(
                    ours.lookup(disk, block).is_some_and(|(_, slot)| slot.dirty()),
                    "{block:?} is not damaged"
                );
            }
        }
        let (last, scanned_last) = (self.durability.last(), scanned.durability.last());
        expect!(last >= scanned_last, "the sequence is at {last}, by pages at {scanned_last}");
        Ok(())
    }

    /// Whether the tables of this core and of another one that was opened from the same pages are the same, byte by
    /// byte. For tests; slow.
    pub fn has_tables_of(&self, other: &Core) -> bool {
        tables(&self.store) == tables(&other.store)
    }
}

/// Returns the tables of a store, in pieces.
pub(super) fn tables(store: &Store) -> Vec<Vec<u8>> {
    let mut pieces = Vec::new();
    let mut sink = |piece: &[u8]| -> Result<(), Infallible> {
        pieces.push(piece.to_vec());
        Ok(())
    };
    let head = Head { stop: Uuid::default(), arena: ArenaId::default(), last_seq: 0, devices: Vec::new() };
    let Ok(mut writer) = PieceWriter::start(&head, &mut sink);
    let Ok(()) = store.save(&mut writer);
    let Ok(()) = writer.finish();
    pieces
}

fn compare_segment(ours: &Core, number: SegmentNo, theirs: &Core, same: SegmentNo) -> Result<(), String> {
    // Where the origin may have been written past the cache, recovery from pages drops clean blocks; the tables of a
    // clean stop know which of them are as the origin has them.
    let is_marked = |slot: SlotNo, block| {
        theirs.disks.get(ours.store.owner_of(slot)).is_some_and(|disk| disk.intents.is_marked(block))
    };
    let (ours, theirs) = (&ours.store, &theirs.store);
    let (segment, scanned) = (&ours.segments[number], &theirs.segments[same]);
    let slots = || ours.slots_of(number).zip(theirs.slots_of(same));
    let is_blank = slots().all(|(slot, _)| ours.slot(slot).status() == Status::Blank);
    let owner = if is_blank { NO_OWNER } else { segment.owner };
    expect!(owner == scanned.owner, "{number:?} belongs to {owner}, by its page to {}", scanned.owner);
    let is_next = segment.generation <= scanned.generation;
    expect!(is_next, "{number:?} has a page {}, found {}", segment.generation, scanned.generation);
    let free = |store: &Store, number: SegmentNo| {
        let device = store.devices.iter().flatten().find(|d| d.numbers().any(|n| n == number));
        device.is_some_and(|device| device.free_segments.contains(&number))
    };
    let (is_free, scanned_free) = (free(ours, number), free(theirs, same));
    expect!(!is_free || scanned_free, "{number:?} is free, and its page lists something");
    expect!(!scanned_free || is_blank, "{number:?} is not blank, and its page lists nothing");
    for (slot, other) in slots() {
        let (mine, listed) = (ours.slot(slot), theirs.slot(other));
        let is_dropped = mine.live().is_some_and(|mine| !mine.dirty()) && is_marked(slot, mine.block());
        let may_lack = is_dropped || leaves(ours, slot, mine, theirs);
        let is_rewritten = segment.generation < scanned.generation;
        let is_left_out = is_rewritten && may_lack && listed.status() == Status::Blank;
        expect!(
            is_left_out || fits(ours, slot, mine, theirs, listed, is_dropped),
            "{slot:?}: {:?}, by its page {:?}",
            mine.view(),
            listed.view()
        );
    }
    Ok(())
}

/// Whether a page that recovery has written may leave a slot out: it is obsolete, or the one of two copies that the
/// pages still call dirty.
fn leaves(ours: &Store, number: SlotNo, mine: Slot, theirs: &Store) -> bool {
    let other = theirs.lookup(ours.owner_of(number), mine.block());
    let is_copy = || mine.durable_dirty() && other.is_some_and(|(_, other)| other.seq() == mine.seq());
    mine.dead().is_some() || mine.live().is_some_and(|mine| !mine.dirty() && is_copy())
}

/// Whether a slot may be as it is if its page says something else. `is_dropped` says that recovery from pages drops it.
fn fits(ours: &Store, number: SlotNo, mine: Slot, theirs: &Store, listed: Slot, is_dropped: bool) -> bool {
    let is_same = (mine.block(), mine.seq(), mine.crc()) == (listed.block(), listed.seq(), listed.crc());
    match (mine.view(), listed.view()) {
        (View::Blank, View::Blank) => true,
        (View::Live(mine), View::Live(listed)) => {
            let is_found = mine.mirror() || ours.lookup(ours.owner_of(number), mine.block()).is_some();
            // A damaged block, or one of which sectors were overtaken, is listed as it was.
            let has_mask = mine.mask() == listed.mask() || mine.poisoned() || !mine.dirty();
            is_same && is_found && has_mask && dirty_fits(mine, listed)
        }
        (View::Live(mine), View::Dead(_)) => {
            // Of two copies of a clean block, recovery keeps the one that it reads first.
            let kept = theirs.lookup(ours.owner_of(number), mine.block());
            let is_copied = kept.is_some_and(|(_, kept)| kept.seq() == mine.seq());
            is_same && (is_dropped || !mine.dirty() && is_copied)
        }
        // It was evicted in place, or is obsolete; the page still lists it.
        (View::Dead(mine), View::Live(listed)) => {
            let newer = theirs.lookup(ours.owner_of(number), mine.block());
            is_same && (!listed.dirty() || mine.durable_dirty() || newer.is_none())
        }
        (View::Dead(_), View::Dead(_)) => is_same,
        _ => false,
    }
}

/// Whether a block that is dirty is listed as dirty, and one that is not was cleaned since its page was written.
fn dirty_fits(mine: Live, listed: Live) -> bool {
    mine.dirty() == listed.dirty() || !mine.dirty() && mine.durable_dirty()
}
