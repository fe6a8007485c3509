//! A disk moves to another host with what is cached of it, dirty blocks included.

use haversack_core::{
    Action, Copied, CoreConfig, DiskConfig, ListCursor, ManageError, Moved, Op, Rejected, RelistCursor,
    RequestError, RequestTag, Target,
};
use haversack_model::{BLOCK_BYTES, BlockNo, DiskNo, HostId, WriteMode, WriteThroughAck};

use crate::common::*;

const SECTORS: u64 = 4096;
const THERE: HostId = HostId(9);

fn config() -> CoreConfig {
    CoreConfig { commit_blocks: 1, ..CoreConfig::default() }
}

fn lazy() -> DiskConfig {
    DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(0), SECTORS) }
}

/// A disk whose block 0 is clean and whose block 1 is dirty. Both were written.
fn half_clean() -> (Rig, DiskNo) {
    let mut rig = Rig::new(&[4], false, config());
    let disk = rig.attach(&lazy(), 1);
    rig.write(disk, 0, 8, 1);
    rig.flush(disk);
    rig.clean(disk);
    rig.write(disk, 8, 8, 2);
    (rig, disk)
}

fn freeze(rig: &mut Rig, disk: DiskNo) {
    let now = rig.now;
    let job = rig.core().freeze(now, disk).expect("the disk is attached");
    rig.finish(job);
}

fn hand_over(rig: &mut Rig, disk: DiskNo) {
    freeze(rig, disk);
    let now = rig.now;
    let job = rig.core().release_to(now, disk, 2, THERE).expect("the disk is frozen");
    rig.finish(job);
}

fn held(rig: &mut Rig, disk: DiskNo) -> Vec<(BlockNo, u8)> {
    rig.core().held_blocks(disk, BlockNo(0), 100)
}

fn moved(rig: &Rig, disk: DiskNo) -> Moved {
    rig.running().disk_info(disk).expect("the disk is known").moved
}

/// A disk that is expected here. Its previous owner has dirty sectors of these blocks.
fn expected(listed: &[(BlockNo, u8)]) -> (Rig, DiskNo) {
    let mut rig = Rig::new(&[4], false, config());
    let disk = rig.core().expect_disk(0, &lazy()).expect("the disk is not known");
    rig.origins.insert(disk, Origin::new(vec![OF_ORIGIN; SECTORS as usize * 512]));
    rig.core().list_peer_blocks(0, disk, THERE, listed, true).expect("the disk is expected");
    (rig, disk)
}

fn claim(rig: &mut Rig, disk: DiskNo) {
    let now = rig.now;
    let job = rig.core().claim(now, disk, 2).expect("the disk is expected");
    rig.finish(job);
}

/// Stores a received copy of a block, full of `value`.
fn take_copy(rig: &mut Rig, disk: DiskNo, block: u64, value: u8) {
    let tag = RequestTag(1 << 32 | block);
    rig.give_buffer(tag, vec![value; BLOCK_BYTES]);
    let now = rig.now;
    let taken = rig.core().take_copy(now, tag, disk, BlockNo(block), Copied { mask: 255, reused: false });
    assert_eq!(taken, Ok(true), "there is room");
    rig.run();
}

/// They may be all that the cleaner finds in many segments, and stay as long as the other host does not answer.
#[test]
fn blocks_that_the_previous_owner_still_lists_do_not_keep_others_from_being_cleaned() {
    const BLOCKS: u64 = 70 * 253;
    const FREE: u64 = BLOCKS + 64;
    let mut rig = Rig::new(&[90], false, CoreConfig::default());
    let settings = DiskConfig {
        cleaner: haversack_core::CleanerConfig { idle_us: 1_000_000, ..LAZY },
        ..DiskConfig::new(disk_id(0), (FREE + 1) * 8)
    };
    let disk = rig.core().expect_disk(0, &settings).expect("the disk is not known");
    rig.origins.insert(disk, Origin::new(vec![OF_ORIGIN; (FREE + 1) as usize * BLOCK_BYTES]));
    let listed: Vec<_> = (0..BLOCKS).map(|block| (BlockNo(block), 255)).collect();
    rig.core().list_peer_blocks(0, disk, THERE, &listed, true).expect("the disk is expected");
    claim(&mut rig, disk);
    for block in (0..BLOCKS).step_by(70) {
        rig.write(disk, block * 8, 70 * 8, 1);
    }
    rig.write(disk, FREE * 8, 8, 2);
    rig.wait(10_000_000);
    assert_eq!(rig.origins[&disk].sectors(FREE * 8, 8), [2; BLOCK_BYTES]);
    assert_eq!(rig.origins[&disk].writes, 1, "no other block may be written");
}

/// Blocks beyond the new end could neither be stored here nor be forgotten there.
#[test]
fn a_disk_does_not_shrink_while_it_needs_blocks_of_its_previous_owner() {
    let (mut rig, disk) = expected(&[(BlockNo(400), 255)]);
    rig.peer.insert(BlockNo(400), 3);
    claim(&mut rig, disk);
    let now = rig.now;
    let shrunk = rig.core().resize(now, disk, SECTORS / 2);
    assert_eq!(shrunk, Err(ManageError::ShrinksDependent(disk_id(0))));
    rig.core().set_fetch_window(now, disk, 8);
    rig.run();
    rig.flush(disk);
    assert_eq!(rig.running().ready_to_forget(disk, 8), [BlockNo(400)]);
    rig.core().forgotten_by_peer(now, disk, &[BlockNo(400)]);
    let job = rig.core().end_dependence(now, disk).expect("nothing is needed any more");
    rig.finish(job);
    let now = rig.now;
    let job = rig.core().resize(now, disk, SECTORS / 2).expect("the disk is independent");
    rig.finish(job);
}

/// A policy may set the share of a disk before the disk has arrived. The disk keeps its share if its host starts to
/// send it again, and when it has arrived.
#[test]
fn a_disk_that_is_expected_takes_a_share() {
    let share = Target::Capped(320);
    let (mut rig, disk) = expected(&[]);
    assert_ne!(rig.usage(disk).target_blocks, 320);
    rig.core().set_target(0, disk, share).expect("it is expected");
    assert_eq!(rig.usage(disk).target_blocks, 320);
    assert_eq!(rig.core().expect_disk(0, &lazy()), Ok(disk));
    assert_eq!(rig.usage(disk).target_blocks, 320, "it is expected once more");
    rig.core().list_peer_blocks(0, disk, THERE, &[], true).expect("the disk is expected");
    claim(&mut rig, disk);
    assert_eq!(rig.usage(disk).target_blocks, 320, "it has come");
}

#[test]
fn a_disk_that_is_expected_no_more_takes_no_share() {
    let (mut rig, disk) = expected(&[]);
    rig.core().dismiss_disk(0, disk).expect("it is expected");
    let refused = rig.core().set_target(0, disk, Target::Capped(1));
    assert!(matches!(refused, Err(ManageError::NotAttached(_))), "{refused:?}");
    assert_eq!(rig.core().expect_disk(0, &lazy()), Ok(disk));
    assert_ne!(rig.usage(disk).target_blocks, 1);
}

#[test]
fn a_frozen_disk_takes_no_requests_until_it_thaws() {
    let (mut rig, disk) = half_clean();
    freeze(&mut rig, disk);
    let refused = rig.try_submit(disk, Op::Read, 0, vec![0; 512]);
    assert_eq!(refused, Err(Rejected::Busy));
    let now = rig.now;
    rig.core().thaw(now, disk).expect("it is frozen");
    assert_eq!(rig.read(disk, 4, 8), [1, 1, 1, 1, 2, 2, 2, 2]);
    let refused = rig.core().release_to(now, disk, 2, THERE);
    assert!(matches!(refused, Err(ManageError::Migrating(_))), "{refused:?}");
}

#[test]
fn a_handed_over_disk_is_served_no_more_and_keeps_what_is_dirty() {
    let (mut rig, disk) = half_clean();
    hand_over(&mut rig, disk);
    let refused = rig.try_submit(disk, Op::Read, 0, vec![0; 512]);
    assert_eq!(refused, Err(Rejected::NotOwner));
    assert_eq!(moved(&rig, disk), Moved::Peer { to: THERE });
    assert_eq!(held(&mut rig, disk), [(BlockNo(1), 255)]);
    rig.wait(10_000_000);
    assert_eq!(rig.origins[&disk].bytes[8 * 512], OF_ORIGIN, "the origin is not written");
}

#[test]
fn a_crash_adds_nothing_to_what_is_held_for_the_new_owner() {
    for power in [false, true] {
        let mut rig = Rig::new(&[4], false, CoreConfig::default());
        let disk = rig.attach(&lazy(), 1);
        // The blocks fill more than one segment, and the first segment's page does not show yet that its blocks are
        // clean.
        for block in 0..300 {
            rig.write(disk, block * 8, 8, 1);
        }
        rig.clean(disk);
        rig.write(disk, 400 * 8, 8, 2);
        hand_over(&mut rig, disk);
        let mut rig = if power { rig.after_power_cut(config()) } else { rig.after_kill(config()) };
        assert_eq!(held(&mut rig, disk), [(BlockNo(400), 255)], "all others were clean");
    }
}

/// A write-through disk with a clean block that is only in the volatile cache of the origin.
fn written_through() -> (Rig, DiskNo) {
    let mut rig = Rig::new(&[4], false, config());
    let mode = WriteMode::WriteThrough(WriteThroughAck::Origin);
    let disk = rig.attach(&DiskConfig { mode, ..lazy() }, 1);
    rig.write(disk, 0, 8, 1);
    let origin = &rig.origins[&disk];
    assert!(origin.flushed_writes < origin.writes, "no guest has asked for a flush");
    (rig, disk)
}

/// Whether the clean block of a disk that was handed over is lent.
fn is_lent(rig: &mut Rig, disk: DiskNo) -> bool {
    let (now, tag) = (rig.now, RequestTag(1 << 32));
    rig.give_buffer(tag, vec![0; BLOCK_BYTES]);
    rig.core().read_copy(now, tag, disk, BlockNo(0), 1).is_ok_and(|mask| mask.is_some())
}

#[test]
fn what_is_lent_to_the_new_owner_is_durable_at_the_origin() {
    let (mut rig, disk) = written_through();
    freeze(&mut rig, disk);
    assert!(rig.running().is_origin_settled(disk));
    let origin = &rig.origins[&disk];
    assert_eq!(origin.flushed_writes, origin.writes);
    let now = rig.now;
    let job = rig.core().release_to(now, disk, 2, THERE).expect("the disk is frozen");
    rig.finish(job);
    assert!(is_lent(&mut rig, disk));
}

#[test]
fn nothing_clean_is_lent_if_the_origin_cannot_be_flushed() {
    let (mut rig, disk) = written_through();
    rig.origins.get_mut(&disk).expect("the disk has an origin").down = true;
    freeze(&mut rig, disk);
    assert!(!rig.running().is_origin_settled(disk));
    let now = rig.now;
    let job = rig.core().release_to(now, disk, 2, THERE).expect("the disk is frozen");
    rig.finish(job);
    assert!(!is_lent(&mut rig, disk));
}

#[test]
fn what_the_new_owner_has_is_forgotten_for_good() {
    let (mut rig, disk) = half_clean();
    hand_over(&mut rig, disk);
    let now = rig.now;
    rig.core().forget_held(now, disk, &[BlockNo(1)]).expect("it is held");
    assert_eq!(rig.running().forgetting(disk), 1, "a durable page lists it");
    rig.run();
    assert_eq!(rig.running().forgetting(disk), 0);
    let mut rig = rig.after_power_cut(config());
    assert_eq!(held(&mut rig, disk), []);
}

#[test]
fn what_is_being_forgotten_is_listed_as_long_as_a_crash_brings_it_back() {
    let (mut rig, disk) = half_clean();
    hand_over(&mut rig, disk);
    let now = rig.now;
    for _ in 0..2 {
        rig.core().forget_held(now, disk, &[BlockNo(1)]).expect("it is held");
    }
    assert_eq!(rig.running().forgetting(disk), 1);
    let listed = held(&mut rig, disk);
    let mut rig = rig.after_power_cut(config());
    assert_eq!(held(&mut rig, disk), [(BlockNo(1), 255)], "its page was not rewritten yet");
    assert_eq!(listed, [(BlockNo(1), 255)], "the new owner has heard of it");
}

#[test]
fn obsolete_blocks_are_discarded_for_good() {
    let (mut rig, disk) = half_clean();
    hand_over(&mut rig, disk);
    let now = rig.now;
    rig.core().discard_held(now, disk).expect("blocks are held");
    let refused = rig.core().discard_held(now, disk);
    assert!(matches!(refused, Err(ManageError::NotAttached(_))), "{refused:?}");
    let job = rig.core().pass_on(now, &lazy(), 3, THERE, Some(THERE)).expect("the epoch is higher");
    rig.finish(job);
    let mut rig = rig.after_power_cut(config());
    assert_eq!(moved(&rig, disk), Moved::Away { to: THERE, holder: Some(THERE) });
    assert_eq!(held(&mut rig, disk), []);
    let info = rig.running().disk_info(disk).expect("the disk is known");
    assert_eq!(rig.running().disk_usage(disk).map(|usage| usage.dirty_blocks), Some(0), "{info:?}");
}

#[test]
fn a_disk_that_the_other_host_never_took_is_regained_with_what_is_dirty() {
    let (mut rig, disk) = half_clean();
    hand_over(&mut rig, disk);
    let mut rig = rig.after_power_cut(config());
    let now = rig.now;
    let (_, job) = rig.core().regain(now, &lazy(), 3).expect("the epoch is higher");
    rig.finish(job);
    assert_eq!(rig.read(disk, 4, 8), [1, 1, 1, 1, 2, 2, 2, 2]);
    assert_eq!(moved(&rig, disk), Moved::No);
}

#[test]
fn a_peers_block_loses_against_newer_sectors() {
    let (mut rig, disk) = expected(&[(BlockNo(0), 255), (BlockNo(1), 255)]);
    rig.peer.insert(BlockNo(0), 3);
    claim(&mut rig, disk);
    rig.write(disk, 2, 3, 4);
    assert_eq!(rig.read(disk, 0, 8), [3, 3, 4, 4, 4, 3, 3, 3]);
    rig.write(disk, 8, 8, 5);
    assert_eq!(rig.read(disk, 8, 8), [5; 8], "nothing of the peer's block is needed");
}

#[test]
fn sectors_that_a_peer_cannot_give_are_not_read_from_the_origin() {
    let (mut rig, disk) = expected(&[(BlockNo(0), 255)]);
    claim(&mut rig, disk);
    let read = rig.start_read(disk, 0, 8);
    assert_eq!(rig.answer(read), Err(RequestError::PeerLost));
}

#[test]
fn the_origin_is_not_written_before_the_peer_has_forgotten_a_block() {
    let (mut rig, disk) = expected(&[(BlockNo(0), 255)]);
    rig.peer.insert(BlockNo(0), 3);
    claim(&mut rig, disk);
    rig.core().set_fetch_window(0, disk, 1);
    rig.flush(disk);
    assert_eq!(rig.running().ready_to_forget(disk, 10), [BlockNo(0)]);
    let now = rig.now;
    let clean = rig.core().clean(now, disk).expect("the disk is attached");
    rig.wait(1_000_000);
    assert_eq!(rig.origins[&disk].writes, 0);
    let now = rig.now;
    rig.core().forgotten_by_peer(now, disk, &[BlockNo(0)]);
    rig.finish(clean);
    assert_eq!(rig.origins[&disk].bytes[0], 3);
    let now = rig.now;
    let job = rig.core().end_dependence(now, disk).expect("the peer has nothing left");
    rig.finish(job);
    assert_eq!(moved(&rig, disk), Moved::No);
}

#[test]
fn copies_count_from_the_claim_on_and_survive_a_crash() {
    let (mut rig, disk) = expected(&[]);
    // Far enough apart to be in two regions of the write-intent bitmap.
    take_copy(&mut rig, disk, 0, 1);
    take_copy(&mut rig, disk, 500, 1);
    rig.core().drop_copies(0, disk, &[BlockNo(500)]).expect("the disk is expected");
    claim(&mut rig, disk);
    let mut rig = rig.after_power_cut(config());
    rig.attach(&lazy(), 2);
    assert_eq!(rig.read(disk, 0, 8), [1; 8]);
    assert_eq!(rig.read(disk, 4000, 8), [OF_ORIGIN; 8], "the copy was out of date");
}

#[test]
fn copies_of_what_was_used_again_stay_when_more_come_than_there_is_room_for() {
    const BLOCKS: u64 = 4_000;
    const REUSED: u64 = 300;
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let large = DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(0), BLOCKS * 8) };
    let disk = rig.core().expect_disk(0, &large).expect("the disk is not known");
    for block in 0..BLOCKS {
        let tag = RequestTag(1 << 32 | block);
        rig.give_buffer(tag, vec![1; BLOCK_BYTES]);
        let (now, copied) = (rig.now, Copied { mask: 255, reused: block < REUSED });
        assert_eq!(rig.core().take_copy(now, tag, disk, BlockNo(block), copied), Ok(true));
        rig.run();
    }
    let (mut kept, mut from) = (0, Some(ListCursor::default()));
    while let Some(at) = from {
        from = rig.running().list_cached(disk, at, |cached| kept += u64::from(cached.block.0 < REUSED));
    }
    assert_eq!(kept, REUSED);
}

#[test]
fn a_copy_says_whether_the_block_is_protected_and_was_hit() {
    let (mut rig, disk) = expected(&[]);
    for (block, reused) in [(0, true), (1, false)] {
        let tag = RequestTag(1 << 32 | block);
        rig.give_buffer(tag, vec![1; BLOCK_BYTES]);
        let now = rig.now;
        let copied = Copied { mask: 255, reused };
        assert_eq!(rig.core().take_copy(now, tag, disk, BlockNo(block), copied), Ok(true));
        rig.run();
    }
    claim(&mut rig, disk);
    let reused = |rig: &mut Rig, order, block| {
        let (tag, now) = (RequestTag(1 << 40 | order), rig.now);
        rig.give_buffer(tag, vec![0; BLOCK_BYTES]);
        let copied = rig.core().read_copy(now, tag, disk, BlockNo(block), order);
        rig.answered(tag);
        copied.expect("this host owns the disk").map(|copied| copied.reused)
    };
    assert_eq!(reused(&mut rig, 1, 0), Some(false), "it is protected, and has no hit here");
    assert_eq!(reused(&mut rig, 2, 0), Some(false), "reading a copy is no hit");
    assert_eq!(rig.read(disk, 0, 8), [1; 8]);
    assert_eq!(rig.read(disk, 8, 8), [1; 8]);
    assert_eq!(reused(&mut rig, 3, 0), Some(true));
    assert_eq!(reused(&mut rig, 4, 1), Some(false), "it was hit on probation");
}

#[test]
fn a_copy_that_a_newer_one_replaced_does_not_come_back() {
    let (mut rig, disk) = expected(&[]);
    let other = rig.attach(&DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(1), SECTORS) }, 1);
    take_copy(&mut rig, disk, 0, 1);
    // Use up all staging frames, so that none is left for the newer copy.
    for block in 0..u64::from(rig.staging_frames()) {
        rig.start_write(other, block * 8, 8, 2);
    }
    let tag = RequestTag(1 << 40);
    rig.give_buffer(tag, vec![3; BLOCK_BYTES]);
    assert_eq!(
        rig.core().take_copy(0, tag, disk, BlockNo(0), Copied { mask: 255, reused: false }),
        Ok(false)
    );
    claim(&mut rig, disk);
    let mut rig = rig.after_power_cut(config());
    rig.attach(&lazy(), 2);
    assert_eq!(rig.read(disk, 0, 8), [OF_ORIGIN; 8]);
}

#[test]
fn a_crash_before_the_claim_voids_all_copies() {
    let (mut rig, disk) = expected(&[]);
    take_copy(&mut rig, disk, 0, 1);
    let mut rig = rig.after_kill(config());
    rig.attach(&lazy(), 2);
    assert_eq!(rig.read(disk, 0, 8), [OF_ORIGIN; 8]);
}

#[test]
fn a_copy_is_out_of_date_once_its_block_is_written() {
    let (mut rig, disk) = half_clean();
    let now = rig.now;
    rig.core().start_export(now, disk).expect("the disk is attached");
    for block in [0, 1] {
        let tag = RequestTag(1 << 32 | block);
        rig.give_buffer(tag, vec![0; BLOCK_BYTES]);
        let copied = rig.core().read_copy(now, tag, disk, BlockNo(block), block + 1);
        assert_eq!(copied.map(|copied| copied.map(|copied| copied.mask)), Ok(Some(255)));
        rig.answered(tag);
        assert_eq!(rig.buffer(tag), vec![block as u8 + 1; BLOCK_BYTES]);
    }
    assert_eq!(rig.running().outdated_copies(disk, 3), []);
    rig.write(disk, 0, 1, 6);
    assert!(!rig.running().is_copy_good(disk, BlockNo(0)));
    assert_eq!(rig.running().outdated_copies(disk, 3), [BlockNo(0)]);
    assert_eq!(rig.running().outdated_copies(disk, 2), [0, 1].map(BlockNo), "copy 2 may not have arrived");
    let reads = |asked: &Requested| matches!(asked.action, Action::ReadPeer { .. });
    assert!(!rig.log.iter().any(reads), "this host needs no other");
}

#[test]
fn the_copies_that_were_sent_are_forgotten_once_the_disk_has_left() {
    let (mut rig, disk) = half_clean();
    let now = rig.now;
    rig.core().start_export(now, disk).expect("the disk is attached");
    let tag = RequestTag(1 << 32);
    rig.give_buffer(tag, vec![0; BLOCK_BYTES]);
    rig.core().read_copy(now, tag, disk, BlockNo(0), 1).expect("the block is cached");
    rig.answered(tag);
    freeze(&mut rig, disk);
    assert_eq!(rig.running().outdated_copies(disk, 0), [BlockNo(0)], "they count until the release");
    let now = rig.now;
    let job = rig.core().release_to(now, disk, 2, THERE).expect("the disk is frozen");
    rig.finish(job);
    assert!(!rig.running().is_copy_good(disk, BlockNo(0)));
}

/// A disk with 64 clean blocks that the durable pages list as dirty.
fn falsely_dirty() -> (Rig, DiskNo) {
    let mut rig = Rig::new(&[4], false, config());
    let disk = rig.attach(&lazy(), 1);
    for block in 0..64 {
        rig.write(disk, block * 8, 8, 1);
    }
    rig.flush(disk);
    rig.clean(disk);
    (rig, disk)
}

#[test]
fn a_freeze_has_no_page_to_rewrite_that_was_rewritten_ahead() {
    let rewritten_by_freeze = |is_ahead: bool| {
        let (mut rig, disk) = falsely_dirty();
        let mut from = Some(RelistCursor::default());
        while let Some(at) = from.filter(|_| is_ahead) {
            let now = rig.now;
            from = rig.core().relist_ahead(now, disk, at);
            rig.run();
        }
        rig.wait(1_000_000);
        let before = rig.stats(disk).flash_rewrite_pages;
        freeze(&mut rig, disk);
        assert_eq!(held(&mut rig, disk), []);
        rig.stats(disk).flash_rewrite_pages - before
    };
    assert!(rewritten_by_freeze(false) > 0, "otherwise this shows nothing");
    assert_eq!(rewritten_by_freeze(true), 0);
}

#[test]
fn what_a_stopped_guest_has_written_is_durable_before_the_freeze() {
    let staged_after = |is_settled: bool| {
        let mut rig = Rig::new(&[4], false, CoreConfig::default());
        let disk = rig.attach(&lazy(), 1);
        let now = rig.now;
        rig.core().start_export(now, disk).expect("the disk is attached");
        rig.write(disk, 0, 8, 1);
        for _ in 0..if is_settled { 3 } else { 0 } {
            let now = rig.now;
            rig.core().settle_ahead(now, disk);
            rig.run();
        }
        let (written, flushed) =
            (rig.log.iter().filter(|a| is_segment_write(a)).count(), rig.log.iter().any(is_device_flush));
        let rig = rig.after_power_cut(CoreConfig::default());
        assert_eq!(written > 0 && flushed, is_settled);
        rig.usage(disk).dirty_blocks
    };
    assert_eq!((staged_after(false), staged_after(true)), (0, 1));
}

#[test]
fn the_guest_is_back_and_nothing_is_committed_early() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let disk = rig.attach(&lazy(), 1);
    let now = rig.now;
    rig.core().start_export(now, disk).expect("the disk is attached");
    rig.core().settle_ahead(now, disk);
    rig.core().end_settling(disk);
    rig.log.clear();
    rig.write(disk, 0, 8, 1);
    assert!(!rig.log.iter().any(is_segment_write));
}
