//! Clean blocks follow a disk that has moved here. Everything that this host does takes precedence over them.

use haversack_core::{Action, CoreConfig, DiskConfig, LateSource, Op, RequestTag};
use haversack_model::{BLOCK_BYTES, BlockNo, DiskNo, HostId};

use crate::common::*;

const SECTORS: u64 = 4096;
const THERE: HostId = HostId(9);
const COPY: u8 = 9;

fn lazy() -> DiskConfig {
    DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(0), SECTORS) }
}

/// A disk that was just claimed. The previous owner has listed these clean blocks, and its list is not complete yet.
fn claimed(source: LateSource, blocks: &[u64]) -> (Rig, DiskNo) {
    let mut rig = Rig::new(&[4], false, CoreConfig { commit_blocks: 1, ..CoreConfig::default() });
    let disk = rig.core().expect_disk(0, &lazy()).expect("the disk is not known");
    rig.origins.insert(disk, Origin::new(vec![OF_ORIGIN; SECTORS as usize * 512]));
    rig.core().await_late_copies(disk, source);
    let job = rig.core().claim(0, disk, 2).expect("the disk is expected");
    rig.finish(job);
    list(&mut rig, disk, blocks, false);
    rig.peer = blocks.iter().map(|block| (BlockNo(*block), COPY)).collect();
    (rig, disk)
}

fn list(rig: &mut Rig, disk: DiskNo, blocks: &[u64], last: bool) {
    let blocks: Vec<(BlockNo, u8)> = blocks.iter().map(|block| (BlockNo(*block), 255)).collect();
    let now = rig.now;
    rig.core().list_late_copies(now, disk, &blocks, last);
}

fn open_window(rig: &mut Rig, disk: DiskNo) {
    let now = rig.now;
    rig.core().set_late_window(now, disk, 4);
}

fn is_peer_read(asked: &Requested) -> bool {
    matches!(asked.action, Action::ReadPeer { is_late: true, .. })
}

fn left(rig: &Rig, disk: DiskNo) -> Option<usize> {
    rig.running().late_copies(disk)
}

#[test]
fn late_copies_come_in_the_background_until_none_is_left() {
    let (mut rig, disk) = claimed(LateSource::Owner, &[0, 1, 2]);
    rig.run();
    assert_eq!(left(&rig, disk), Some(3), "none is read before the window is open");
    open_window(&mut rig, disk);
    rig.run();
    assert_eq!(left(&rig, disk), Some(0), "more may be listed");
    list(&mut rig, disk, &[3], true);
    rig.peer.insert(BlockNo(3), COPY);
    rig.run();
    assert_eq!(left(&rig, disk), None);
    assert_eq!(rig.stats(disk).late_blocks, 4);
    rig.run_without(is_origin_read);
    assert_eq!(rig.read(disk, 0, 32), [COPY; 32]);
}

#[test]
fn from_the_origin_they_come_without_the_other_host() {
    let (mut rig, disk) = claimed(LateSource::Origin, &[0, 1]);
    open_window(&mut rig, disk);
    rig.run();
    assert_eq!(rig.stats(disk).late_blocks, 2);
    assert_eq!(rig.stats(disk).peer_read_blocks, 0);
    let misses = rig.stats(disk).read_misses;
    assert_eq!(rig.read(disk, 0, 16), [OF_ORIGIN; 16]);
    assert_eq!(rig.stats(disk).read_misses, misses);
}

#[test]
fn a_block_that_was_changed_since_the_claim_does_not_come_however_late_it_is_listed() {
    let (mut rig, disk) = claimed(LateSource::Owner, &[0, 1]);
    rig.write(disk, 0, 8, 3);
    rig.write(disk, 16, 8, 3);
    let tag = rig.submit(disk, Op::Discard, 8, vec![0; BLOCK_BYTES]);
    rig.run();
    assert!(rig.is_answered(tag));
    assert_eq!(left(&rig, disk), Some(0));
    list(&mut rig, disk, &[0, 1, 2], true);
    open_window(&mut rig, disk);
    rig.run();
    assert_eq!(rig.stats(disk).late_blocks, 0);
    assert_eq!(rig.read(disk, 0, 24)[16..], [3; 8]);
    assert_eq!(rig.read(disk, 8, 8), [0; 8]);
}

#[test]
fn a_write_waits_for_the_late_copy_of_its_block_and_is_newer() {
    let (mut rig, disk) = claimed(LateSource::Owner, &[0]);
    open_window(&mut rig, disk);
    rig.run_without(is_peer_read);
    assert_eq!(left(&rig, disk), Some(1), "it is being read");
    let tag = rig.start_write(disk, 0, 4, 3);
    rig.run_without(is_peer_read);
    assert!(!rig.is_answered(tag));
    rig.run();
    assert!(rig.is_answered(tag));
    assert_eq!(rig.read(disk, 0, 8), [3, 3, 3, 3, COPY, COPY, COPY, COPY]);
}

#[test]
fn a_read_gets_a_late_copy_on_demand_if_that_is_wanted_and_the_origins_block_if_there_is_none() {
    for (source, expected) in [(LateSource::OwnerOnDemand, COPY), (LateSource::Owner, OF_ORIGIN)] {
        let (mut rig, disk) = claimed(source, &[0, 1]);
        rig.peer.remove(&BlockNo(1));
        assert_eq!(rig.read(disk, 0, 8), [expected; 8]);
        assert_eq!(rig.read(disk, 8, 8), [OF_ORIGIN; 8], "the other host has it no more");
    }
}

#[test]
fn the_limit_holds_for_the_background_and_counts_what_requests_need() {
    let (mut rig, disk) = claimed(LateSource::OwnerOnDemand, &[0, 1, 2, 3, 4]);
    let now = rig.now;
    rig.core().set_fetch_allowance(now, disk, Some(2));
    assert_eq!(rig.read(disk, 32, 8), [COPY; 8]);
    open_window(&mut rig, disk);
    rig.run();
    assert_eq!(rig.stats(disk).peer_read_blocks, 2);
    assert_eq!(rig.read(disk, 24, 8), [COPY; 8], "a request does not wait for the next period");
    let now = rig.now;
    rig.core().set_fetch_allowance(now, disk, Some(2));
    rig.run();
    assert_eq!(rig.stats(disk).peer_read_blocks, 5);
}

#[test]
fn a_disk_that_moves_on_takes_no_more_of_them() {
    let (mut rig, disk) = claimed(LateSource::Owner, &[0, 1]);
    let now = rig.now;
    let job = rig.core().freeze(now, disk).expect("the disk is attached");
    rig.finish(job);
    assert_eq!(left(&rig, disk), None);
}

/// The clean blocks of a released disk can be read on the host that released it until that host is told that they are
/// no longer needed.
#[test]
fn clean_blocks_of_a_released_disk_are_lent() {
    let mut rig = Rig::new(&[4], false, CoreConfig { commit_blocks: 1, ..CoreConfig::default() });
    let disk = rig.attach(&lazy(), 1);
    rig.write(disk, 0, 8, 1);
    rig.flush(disk);
    rig.clean(disk);
    let now = rig.now;
    let job = rig.core().freeze(now, disk).expect("the disk is attached");
    rig.finish(job);
    let job = rig.core().release_to(now, disk, 2, THERE).expect("the disk is frozen");
    rig.finish(job);
    let tag = RequestTag(1 << 32);
    rig.give_buffer(tag, vec![0; BLOCK_BYTES]);
    let copied = rig.core().read_copy(now, tag, disk, BlockNo(0), 0);
    assert_eq!(copied.map(|copied| copied.map(|copied| copied.mask)), Ok(Some(255)));
    rig.answered(tag);
    assert_eq!(rig.buffer(tag), vec![1; BLOCK_BYTES]);
    rig.core().stop_lending(disk);
    rig.give_buffer(tag, vec![0; BLOCK_BYTES]);
    assert!(rig.core().read_copy(now, tag, disk, BlockNo(0), 0).is_err());
}

#[test]
fn a_read_that_waits_for_the_other_host_is_a_miss() {
    let (mut rig, disk) = claimed(LateSource::OwnerOnDemand, &[0, 1]);
    let before = rig.stats(disk);
    assert_eq!(rig.read(disk, 0, 16), [COPY; 16]);
    let after = rig.stats(disk);
    assert_eq!((after.read_misses - before.read_misses, after.read_hits - before.read_hits), (2, 0));
    assert_eq!(rig.read(disk, 0, 16), [COPY; 16]);
    let again = rig.stats(disk);
    assert_eq!((again.read_misses - after.read_misses, again.read_hits - after.read_hits), (0, 2));
}
