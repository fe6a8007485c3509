//! Dirty blocks of a disk that was handed over, or taken over by another host, keep no other disk out that has to take
//! blocks over from another host.

use haversack_core::{CoreConfig, DiskConfig, IoFailure, Moved, PeerLoss, RequestTag, Target, offline};
use haversack_model::{BLOCK_BYTES, BlockNo, DeviceNo, DiskNo, HostId};

use crate::common::*;

const SECTORS: u64 = 8 * 900;
const THERE: HostId = HostId(9);
/// An epoch that is taken by force.
const FORCED: u64 = 1_000;

fn config() -> CoreConfig {
    CoreConfig { commit_blocks: 1, ..CoreConfig::default() }
}

fn lazy(number: u8) -> DiskConfig {
    DiskConfig { cleaner: LAZY, target: Target::Blocks(900), ..DiskConfig::new(disk_id(number), SECTORS) }
}

fn value(block: u64) -> u8 {
    (block % 200) as u8 + 10
}

/// A pool in which a disk was handed over, and in which all segments of at least one device have dirty blocks of that
/// disk. Also returns the number of these blocks.
fn filled(devices: &[u32], redundancy: bool, segments: u64) -> (Rig, DiskNo, u64) {
    fill(Rig::new(devices, redundancy, config()), segments)
}

/// Writes dirty blocks of a disk until it has that many segments. Returns how many.
fn write_until(rig: &mut Rig, segments: u64) -> (DiskNo, u64) {
    let disk = rig.attach(&lazy(0), 1);
    let mut blocks = 0;
    while rig.usage(disk).segments < segments {
        rig.write(disk, blocks * 8, 8, value(blocks));
        blocks += 1;
    }
    rig.flush(disk);
    (disk, blocks)
}

fn fill(mut rig: Rig, segments: u64) -> (Rig, DiskNo, u64) {
    let (disk, blocks) = write_until(&mut rig, segments);
    let now = rig.now;
    let job = rig.core().freeze(now, disk).expect("the disk is attached");
    rig.finish(job);
    let now = rig.now;
    let job = rig.core().release_to(now, disk, 2, THERE).expect("the disk is frozen");
    rig.finish(job);
    assert_eq!(held(&mut rig, disk) as u64, blocks);
    (rig, disk, blocks)
}

fn held(rig: &mut Rig, disk: DiskNo) -> usize {
    rig.core().held_blocks(disk, BlockNo(0), 10_000).len()
}

/// Claims a disk that needs a block from its previous owner.
fn begin_to_take_over(rig: &mut Rig) -> DiskNo {
    let now = rig.now;
    let disk = rig.core().expect_disk(now, &lazy(1)).expect("the disk is not known");
    rig.origins.insert(disk, Origin::new(vec![OF_ORIGIN; SECTORS as usize * 512]));
    rig.core().list_peer_blocks(now, disk, THERE, &[(BlockNo(5), 255)], true).expect("the disk is expected");
    rig.peer.insert(BlockNo(5), 3);
    let job = rig.core().claim(now, disk, 2).expect("the disk is expected");
    rig.finish(job);
    rig.log.clear();
    let now = rig.now;
    rig.core().set_fetch_window(now, disk, 1);
    disk
}

/// Returns whether the previous owner may finally forget the block.
fn is_taken_over(rig: &mut Rig) -> bool {
    let disk = begin_to_take_over(rig);
    rig.wait(3_000_000);
    assert_eq!(rig.origins[&disk].writes, 0, "the host before may still list it");
    rig.running().ready_to_forget(disk, 10) == [BlockNo(5)]
}

/// Checks that the new owner of the disk can read all held blocks.
fn assert_held(rig: &mut Rig, disk: DiskNo, blocks: u64) {
    for block in 0..blocks {
        let (now, tag) = (rig.now, RequestTag(1 << 32 | block));
        rig.give_buffer(tag, vec![0; BLOCK_BYTES]);
        let copied = rig.core().read_copy(now, tag, disk, BlockNo(block), block + 1).expect("it is held");
        assert_eq!(copied.map(|copied| copied.mask), Some(255), "block {block}");
        rig.answered(tag);
        assert_eq!(rig.buffer(tag), vec![value(block); BLOCK_BYTES], "block {block}");
    }
}

fn a_full_pool_makes_room(devices: &[u32], redundancy: bool, segments: u64) {
    let (mut rig, disk, blocks) = filled(devices, redundancy, segments);
    let before = rig.stats(disk).flash_write_blocks;
    assert!(is_taken_over(&mut rig));
    let moved = rig.stats(disk).flash_write_blocks - before;
    assert!(
        (1..100).contains(&moved),
        "{moved} blocks were moved: there was room anyway, or too much effort"
    );
    assert_held(&mut rig, disk, blocks);
    let mut rig = rig.after_power_cut(config());
    assert_eq!(held(&mut rig, disk) as u64, blocks);
    assert_held(&mut rig, disk, blocks);
}

#[test]
fn a_stop_does_not_wait_for_a_disk_that_came_while_there_was_no_space() {
    let (mut rig, disk, blocks) = filled(&[4], false, 4);
    begin_to_take_over(&mut rig);
    let mut rig = Rig::open(rig.shutdown(), memory(), config());
    assert_eq!(held(&mut rig, disk) as u64, blocks);
    assert_held(&mut rig, disk, blocks);
}

#[test]
fn a_disk_that_was_handed_over_makes_room_for_one_that_comes() {
    a_full_pool_makes_room(&[4], false, 4);
}

#[test]
fn a_disk_that_was_handed_over_makes_room_for_second_copies() {
    a_full_pool_makes_room(&[4, 2], true, 4);
}

#[test]
fn a_power_cut_while_blocks_are_gathered_loses_none() {
    let (mut rig, disk, blocks) = filled(&[4], false, 4);
    begin_to_take_over(&mut rig);
    rig.run_without(is_device_flush);
    assert!(rig.log.iter().any(is_segment_write), "nothing is gathered yet");
    let mut rig = rig.after_power_cut(config());
    assert_eq!(held(&mut rig, disk) as u64, blocks);
    assert_held(&mut rig, disk, blocks);
}

#[test]
fn a_device_that_was_removed_is_no_obstacle() {
    let mut rig = Rig::new(&[4, 2], false, config());
    let now = rig.now;
    let job = rig.core().remove_device(now, DeviceNo(1)).expect("another is left");
    rig.finish(job);
    let (mut rig, disk, blocks) = fill(rig, 4);
    assert!(is_taken_over(&mut rig));
    assert_held(&mut rig, disk, blocks);
}

#[test]
fn a_block_that_cannot_be_read_is_not_tried_for_ever() {
    let (mut rig, disk, blocks) = filled(&[4], false, 4);
    begin_to_take_over(&mut rig);
    let fail = |asked: &Requested| match is_device_read(asked) {
        true => Fate::Fail(IoFailure::Error),
        false => Fate::Done,
    };
    rig.wait_with(3_500_000, fail);
    let tried = rig.log.iter().filter(|asked| is_device_read(asked)).count();
    assert!((1..100).contains(&tried), "{tried} reads in some seconds");
    // The device works again: gathering continues after a pause.
    rig.wait(3_000_000);
    assert_held(&mut rig, disk, blocks);
}

/// Returns a pool in which every segment has dirty blocks of a disk that another host has taken over, the disk, and the
/// number of its blocks.
fn overtaken() -> (Rig, DiskNo, u64) {
    let mut rig = Rig::new(&[4], false, config());
    let (disk, blocks) = write_until(&mut rig, 4);
    let now = rig.now;
    let job = rig.core().overtaken(now, disk, FORCED, THERE).expect("the epoch is higher");
    rig.finish(job);
    (rig, disk, blocks)
}

/// Checks that the dirty blocks of the disk that was taken over are all in the pool, and readable, after a power cut.
fn assert_kept(rig: Rig, disk: DiskNo, blocks: u64) {
    assert_eq!(rig.running().disk_info(disk).map(|info| info.moved), Some(Moved::Overtaken { to: THERE }));
    assert_eq!(rig.running().overtaken_blocks(disk), blocks);
    let report = offline::check(&mut rig.power_cut(), true).expect("the pool is whole");
    let kept = report.disks.iter().find(|report| report.id == disk_id(0)).expect("it is known");
    assert_eq!(kept.dirty_blocks, (0..blocks).map(BlockNo).collect::<Vec<_>>());
    assert!(kept.bad_blocks.is_empty() && !kept.damaged);
}

#[test]
fn a_disk_that_was_overtaken_makes_room_and_keeps_its_dirty_blocks() {
    let (mut rig, disk, blocks) = overtaken();
    assert!(is_taken_over(&mut rig));
    assert_kept(rig, disk, blocks);
}

#[test]
fn a_dead_peer_is_given_up_although_dirty_blocks_of_an_overtaken_disk_fill_the_pool() {
    let (mut rig, disk, blocks) = overtaken();
    let coming = begin_to_take_over(&mut rig);
    rig.run();
    let now = rig.now;
    let job = rig.core().give_up_peer(now, coming, FORCED, PeerLoss::Recorded).expect("it needs a block");
    rig.wait(3_000_000);
    rig.finish(job);
    assert_eq!(rig.running().disk_info(coming).map(|info| info.moved), Some(Moved::No));
    assert_eq!(rig.read(coming, 40, 8), [3; 8]);
    assert_kept(rig, disk, blocks);
}

#[test]
fn a_kill_while_an_overtaken_disk_makes_room_loses_none_of_its_blocks() {
    let (mut rig, disk, blocks) = overtaken();
    begin_to_take_over(&mut rig);
    rig.run_without(is_segment_write);
    assert!(rig.usage(disk).dirty_blocks > blocks, "no block is staged again");
    let mut rig = rig.after_kill(config());
    rig.wait(3_000_000);
    assert_kept(rig, disk, blocks);
}

#[test]
fn an_overtaken_disk_can_be_forgotten_while_it_makes_room() {
    let (mut rig, disk, _) = overtaken();
    let coming = begin_to_take_over(&mut rig);
    rig.run_without(is_segment_write);
    let now = rig.now;
    let job = rig.core().forget(now, disk, Some(disk_id(0))).expect("it is named");
    rig.finish(job);
    rig.wait(3_000_000);
    assert_eq!(rig.running().ready_to_forget(coming, 10), [BlockNo(5)]);
}
