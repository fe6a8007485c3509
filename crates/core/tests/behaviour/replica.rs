//! A replica of a disk's dirty blocks: what the owner's flushes wait for, and what the other host stores.

use haversack_core::{
    Action, Copied, CoreConfig, DiskConfig, IoFailure, IoPurpose, JobError, JobId, ManageError, Moved, Op,
    PeerLoss, RequestError, RequestTag, ToReplicate,
};
use haversack_model::{BLOCK_BYTES, BlockNo, DiskNo, HostId, WriteMode};

use crate::common::*;

const SECTORS: u64 = 4096;
const OWNER: HostId = HostId(1);
const KEEPER: HostId = HostId(2);
const SESSION: [u64; 2] = [6, 1];

fn config() -> CoreConfig {
    CoreConfig { commit_blocks: 4, ..CoreConfig::default() }
}

fn lazy() -> DiskConfig {
    DiskConfig { cleaner: LAZY, mode: WriteMode::WriteBack, ..DiskConfig::new(disk_id(0), SECTORS) }
}

/// A disk whose flushes wait for its replica, which is empty.
fn guarded() -> (Rig, DiskNo) {
    guarded_with(config())
}

fn guarded_with(config: CoreConfig) -> (Rig, DiskNo) {
    let mut rig = Rig::new(&[4], false, config);
    let disk = rig.attach(&lazy(), 1);
    let now = rig.now;
    let job = rig.core().start_replication(now, disk, KEEPER).expect("the disk has no replica");
    rig.finish(job);
    rig.core().replicate(now, disk).expect("that is on record");
    rig.core().guard(disk);
    (rig, disk)
}

/// Reads what the replica is to be sent next.
fn next_copy(rig: &mut Rig, disk: DiskNo, tag: RequestTag) -> (BlockNo, Copied, Vec<u8>) {
    let now = rig.now;
    let next = rig.core().next_to_replicate(now, disk);
    let Some(ToReplicate::Copy(block)) = next else { panic!("a copy is due, not {next:?}") };
    rig.give_buffer(tag, vec![0xEE; BLOCK_BYTES]);
    let copied = rig.core().read_dirty_copy(now, tag, disk, block).expect("the disk is attached");
    rig.answered(tag);
    (block, copied.expect("the block is dirty"), rig.buffer(tag))
}

#[test]
fn a_flush_waits_for_the_replica_and_a_write_does_not() {
    let (mut rig, disk) = guarded();
    rig.write(disk, 8, 8, 3);
    let flush = rig.start_flush(disk);
    rig.run();
    assert!(!rig.is_answered(flush), "the replica has nothing");
    rig.write(disk, 16, 8, 4);
    let (block, copied, bytes) = next_copy(&mut rig, disk, RequestTag(1 << 40));
    assert_eq!((block, copied.mask, bytes), (BlockNo(1), 255, vec![3; BLOCK_BYTES]));
    assert!(!rig.is_answered(flush));
    let now = rig.now;
    rig.core().replicated(now, disk, &[block]);
    rig.run();
    assert!(rig.is_answered(flush), "what was written after it does not matter");
    rig.answered(flush);
}

#[test]
fn what_the_origin_has_overtaken_is_removed_before_a_flush_succeeds() {
    let (mut rig, disk) = guarded();
    rig.write(disk, 8, 8, 3);
    let (block, ..) = next_copy(&mut rig, disk, RequestTag(1 << 40));
    let now = rig.now;
    rig.core().replicated(now, disk, &[block]);
    let zeroes = rig.submit_sized(disk, Op::WriteZeroes, 8, 8, Vec::new()).expect("the disk is attached");
    rig.answered(zeroes);
    let flush = rig.start_flush(disk);
    rig.run();
    assert!(!rig.is_answered(flush), "the replica would bring the old block back");
    assert_eq!(rig.core().next_to_replicate(now, disk), Some(ToReplicate::Removal(block)));
    rig.core().replicated(now, disk, &[block]);
    rig.run();
    assert!(rig.is_answered(flush));
    rig.answered(flush);
}

#[test]
fn a_cleaned_block_is_removed_at_leisure() {
    let (mut rig, disk) = guarded();
    rig.write(disk, 8, 8, 3);
    let (block, ..) = next_copy(&mut rig, disk, RequestTag(1 << 40));
    let now = rig.now;
    rig.core().replicated(now, disk, &[block]);
    rig.clean(disk);
    rig.flush(disk);
    assert_eq!(rig.core().next_to_replicate(now, disk), Some(ToReplicate::Removal(block)));
}

#[test]
fn a_copy_has_the_sectors_that_the_replica_has_already() {
    let (mut rig, disk) = guarded();
    rig.write(disk, 8, 8, 3);
    let (block, ..) = next_copy(&mut rig, disk, RequestTag(1 << 40));
    let now = rig.now;
    rig.core().replicated(now, disk, &[block]);
    rig.clean(disk);
    rig.write(disk, 8, 1, 4);
    let (_, copied, bytes) = next_copy(&mut rig, disk, RequestTag(1 << 42));
    assert_eq!(copied.mask, 255, "sector 8 is dirty, the others are at the origin and at the replica");
    assert_eq!([bytes[0], bytes[512], bytes[4095]], [4, 3, 3]);
}

#[test]
fn after_a_crash_no_flush_succeeds_before_the_replica_has_ended() {
    let (mut rig, disk) = guarded();
    rig.write(disk, 8, 8, 3);
    let mut rig = rig.after_kill(config());
    let disk = rig.attach(&lazy(), 1);
    assert_eq!(rig.running().disk_info(disk).map(|info| info.moved), Some(Moved::Replicates { at: KEEPER }));
    let flush = rig.start_flush(disk);
    rig.run();
    assert!(!rig.is_answered(flush), "the replica may be used");
    let now = rig.now;
    rig.core().end_replication(now, disk);
    rig.run();
    rig.answered(flush);
    assert_eq!(rig.running().disk_info(disk).map(|info| info.moved), Some(Moved::No));
}

#[test]
fn a_disk_with_a_replica_is_not_detached_resized_or_cleaned_in_order() {
    let (mut rig, disk) = guarded();
    let id = disk_id(0);
    let now = rig.now;
    let refused = |result: Result<JobId, ManageError>| assert_eq!(result, Err(ManageError::Replicated(id)));
    refused(rig.core().detach(now, disk));
    refused(rig.core().resize(now, disk, SECTORS / 2));
    refused(rig.core().release(now, disk));
    assert!(rig.core().freeze(now, disk).is_err());
    let ordered = haversack_core::CleanerConfig { order: haversack_core::CleanOrder::Flush, ..LAZY };
    assert!(matches!(rig.core().set_cleaner(now, disk, ordered), Err(ManageError::BadConfig(_))));
}

/// Each block is committed immediately and alone.
fn one_by_one() -> CoreConfig {
    CoreConfig { commit_blocks: 1, ..CoreConfig::default() }
}

/// Writes block 1, and damages it on flash, where its only copy is. The core has not noticed the damage yet.
fn rot(rig: &mut Rig, disk: DiskNo, value: u8) {
    rig.log.clear();
    rig.write(disk, 8, 8, value);
    rig.run();
    // A commit writes the data first, then its page.
    let written = rig.log.iter().find(|asked| asked.purpose == Some(IoPurpose::Commit)).copied();
    let Some(Action::WriteDevice { device, offset_bytes, .. }) = written.map(|asked| asked.action) else {
        panic!("the block was committed")
    };
    rig.device(device).rot(offset_bytes + 5);
}

fn read_lost(rig: &mut Rig, disk: DiskNo) {
    let read = rig.start_read(disk, 8, 8);
    assert_eq!(rig.answer(read), Err(RequestError::DataLost));
}

#[test]
fn what_the_owner_has_lost_is_not_removed_and_counts_as_lacking() {
    let (mut rig, disk) = guarded_with(one_by_one());
    rig.write(disk, 8, 8, 3);
    let (block, ..) = next_copy(&mut rig, disk, RequestTag(1 << 40));
    let now = rig.now;
    rig.core().replicated(now, disk, &[block]);
    rot(&mut rig, disk, 4);
    let flush = rig.start_flush(disk);
    rig.run();
    // The copy cannot be read.
    assert_eq!(rig.core().next_to_replicate(now, disk), Some(ToReplicate::Copy(block)));
    let tag = RequestTag(1 << 42);
    rig.give_buffer(tag, vec![0xEE; BLOCK_BYTES]);
    rig.core().read_dirty_copy(now, tag, disk, block).expect("the disk is attached");
    assert_eq!(rig.answer(tag), Err(RequestError::DataLost));
    rig.core().not_sent(disk, block);
    assert_eq!(
        rig.core().next_to_replicate(now, disk),
        None,
        "the replica has an older version, which is good"
    );
    rig.run();
    assert!(!rig.is_answered(flush), "the replica does not have what was written");
    assert!(rig.running().replication(disk).is_some_and(|one| one.is_stuck));
    rig.core().end_replication(now, disk);
    rig.run();
    rig.answered(flush);
    assert_eq!(rig.core().start_replication(now, disk, KEEPER), Err(ManageError::Lost(disk_id(0))));
    // Once the lost block has been written again, the disk may have a replica again.
    rig.write(disk, 8, 8, 5);
    rig.flush(disk);
    let job = rig.core().start_replication(now, disk, KEEPER).expect("nothing is lost any more");
    rig.finish(job);
}

#[test]
fn a_block_that_rots_after_it_was_copied_stays_at_the_replica() {
    let (mut rig, disk) = guarded_with(one_by_one());
    rot(&mut rig, disk, 3);
    let now = rig.now;
    // Replaces the copy, as if the block had been read before it was damaged.
    assert_eq!(rig.core().next_to_replicate(now, disk), Some(ToReplicate::Copy(BlockNo(1))));
    let tag = RequestTag(1 << 42);
    rig.give_buffer(tag, vec![0xEE; BLOCK_BYTES]);
    rig.core().read_dirty_copy(now, tag, disk, BlockNo(1)).expect("the disk is attached");
    rig.core().replicated(now, disk, &[BlockNo(1)]);
    read_lost(&mut rig, disk);
    let clean = rig.core().clean(now, disk).expect("no job runs");
    assert_eq!(rig.outcome(clean), Err(JobError::DataLost));
    assert!(rig.running().only_lost_left(disk), "nothing else could reach the origin");
    assert_eq!(rig.core().next_to_replicate(now, disk), None);
    rig.flush(disk);
    assert!(rig.running().replication(disk).is_some_and(|one| !one.is_stuck && one.kept == 1));
}

/// A host that has a replica with block 1, sealed, and block 2, which is not.
fn keeping() -> (Rig, DiskNo) {
    let mut rig = Rig::new(&[4], false, config());
    let now = rig.now;
    let (disk, job) =
        rig.core().start_replica(now, &lazy(), 5, OWNER, SESSION).expect("the disk is not known");
    rig.finish(job);
    rig.origins.insert(disk, Origin::new(vec![OF_ORIGIN; SECTORS as usize * 512]));
    keep(&mut rig, disk, 1, 3);
    let seal = rig.core().seal(now, disk).expect("it is a replica");
    assert!(rig.running().sealed(disk) < seal, "nothing is on flash yet");
    rig.run();
    assert_eq!(rig.running().sealed(disk), seal);
    keep(&mut rig, disk, 2, 4);
    (rig, disk)
}

fn keep(rig: &mut Rig, disk: DiskNo, block: u64, value: u8) {
    let (now, tag) = (rig.now, RequestTag(1 << 41));
    rig.give_buffer(tag, vec![value; BLOCK_BYTES]);
    assert_eq!(rig.core().keep_copy(now, tag, disk, BlockNo(block), 255), Ok(true));
    rig.buffer(tag);
}

/// Takes the disk over, and returns it.
fn take(rig: &mut Rig) -> DiskNo {
    let now = rig.now;
    let (disk, job) = rig.core().retake(now, &lazy(), 1_000, PeerLoss::Accepted).expect("blocks are here");
    rig.origins.entry(disk).or_insert_with(|| Origin::new(vec![OF_ORIGIN; SECTORS as usize * 512]));
    rig.finish(job);
    disk
}

#[test]
fn what_is_sealed_survives_a_power_cut_and_is_dirty_after_a_take_over() {
    let (rig, _) = keeping();
    let mut rig = rig.after_power_cut(config());
    let disk = take(&mut rig);
    assert_eq!(rig.read(disk, 8, 8), [3; 8]);
    assert_eq!(rig.read(disk, 24, 8), [OF_ORIGIN; 8]);
    rig.clean(disk);
    assert_eq!(rig.origins[&disk].bytes[8 * 512], 3);
}

#[test]
fn what_is_served_after_a_take_over_survives_a_power_cut() {
    let (rig, _) = keeping();
    let mut rig = rig.after_kill(config());
    let disk = take(&mut rig);
    assert_eq!(rig.read(disk, 16, 8), [4; 8], "it was staged");
    let mut rig = rig.after_power_cut(config());
    let disk = rig.attach(&lazy(), 1_000);
    assert_eq!(rig.read(disk, 8, 16), [[3; 8], [4; 8]].concat());
}

#[test]
fn copies_that_come_late_change_nothing_of_a_disk_that_is_taken_over() {
    let (mut rig, disk) = keeping();
    let now = rig.now;
    let (_, job) = rig.core().retake(now, &lazy(), 1_000, PeerLoss::Accepted).expect("blocks are here");
    let tag = RequestTag(1 << 41);
    rig.give_buffer(tag, vec![9; BLOCK_BYTES]);
    let late = rig.core().keep_copy(now, tag, disk, BlockNo(1), 255);
    assert_eq!(late, Err(ManageError::NotAttached(disk_id(0))));
    rig.finish(job);
    assert_eq!(rig.read(disk, 8, 8), [3; 8]);
}

#[test]
fn a_copy_that_is_not_all_inside_the_disk_does_not_count_as_kept() {
    let (mut rig, disk) = keeping();
    let (now, tag) = (rig.now, RequestTag(1 << 41));
    for block in [SECTORS / 8, u64::MAX / 8] {
        rig.give_buffer(tag, vec![9; BLOCK_BYTES]);
        assert_eq!(rig.core().keep_copy(now, tag, disk, BlockNo(block), 1), Ok(false), "block {block}");
    }
    assert_eq!(rig.running().replica_blocks(disk), 2);
}

#[test]
fn what_was_removed_does_not_come_back() {
    let (mut rig, disk) = keeping();
    let now = rig.now;
    rig.core().forget_held(now, disk, &[BlockNo(1), BlockNo(2)]).expect("it is a replica");
    rig.run();
    assert_eq!(rig.running().forgetting(disk), 0);
    let mut rig = rig.after_power_cut(config());
    let disk = take(&mut rig);
    assert_eq!(rig.read(disk, 8, 16), [OF_ORIGIN; 16]);
}

#[test]
fn a_replica_is_not_written_to_the_origin_and_serves_nothing() {
    let (mut rig, disk) = keeping();
    rig.wait(60_000_000);
    assert!(rig.origins[&disk].bytes.iter().all(|byte| *byte == OF_ORIGIN));
    assert!(rig.try_submit(disk, Op::Flush, 0, Vec::new()).is_err());
    let moved = rig.running().disk_info(disk).map(|info| info.moved);
    assert_eq!(moved, Some(Moved::Replica { of: OWNER, session: SESSION, is_complete: false }));
    assert_eq!(rig.running().replica_blocks(disk), 2);
}

#[test]
fn a_replica_is_forgotten_by_name_and_stays_away() {
    let (mut rig, disk) = keeping();
    let (now, id) = (rig.now, disk_id(0));
    assert_eq!(rig.core().forget(now, disk, None), Err(ManageError::Dirty { disk: id, dirty_blocks: 2 }));
    let job = rig.core().forget(now, disk, Some(id)).expect("it is named");
    rig.finish(job);
    assert!(rig.running().disk_info(disk).is_none());
    let mut rig = rig.after_power_cut(config());
    assert!(rig.running().disk_info(disk).is_none());
    let disk = rig.attach(&lazy(), 9);
    assert_eq!(rig.read(disk, 8, 16), [OF_ORIGIN; 16]);
}

/// An earlier session of this host may have left volatile writes at the origin. The replica is ended while it is being
/// sealed.
#[test]
fn a_seal_flushes_no_origin() {
    let mut rig = Rig::new(&[4], false, config());
    let is_origin_flush = |asked: &Requested| matches!(asked.action, Action::FlushOrigin { .. });
    let fate = |asked: &Requested| match is_origin_flush(asked) {
        true => Fate::Fail(IoFailure::Error),
        false => Fate::Done,
    };
    let now = rig.now;
    let (disk, _) = rig.core().attach(now, &lazy(), 2, false).expect("the disk is not known");
    rig.origins.insert(disk, Origin::new(vec![OF_ORIGIN; SECTORS as usize * 512]));
    rig.run_with(fate);
    rig.core().release(now, disk).expect("the disk is attached");
    rig.run_with(fate);
    rig.core().start_replica(now, &lazy(), 5, OWNER, SESSION).expect("the disk is released");
    rig.run_with(fate);
    keep(&mut rig, disk, 1, 3);
    assert!(rig.log.iter().any(is_origin_flush), "the origin may hold volatile writes");
    rig.log.clear();
    rig.core().seal(now, disk).expect("it is a replica");
    rig.run_without(is_device_flush);
    let job = rig.core().end_replica(now, disk).expect("it is a replica");
    rig.finish(job);
    rig.wait(1_000_000);
    assert!(!rig.log.iter().any(is_origin_flush));
}

#[test]
fn a_new_replica_starts_empty_and_an_ended_one_stays_away() {
    let (mut rig, disk) = keeping();
    let now = rig.now;
    let job = rig.core().complete_replica(now, disk).expect("it is a replica");
    rig.finish(job);
    let (again, job) =
        rig.core().start_replica(now, &lazy(), 5, OWNER, SESSION).expect("the old one is replaced");
    rig.finish(job);
    assert_eq!(again, disk);
    assert_eq!(rig.running().replica_blocks(disk), 0);
    keep(&mut rig, disk, 7, 9);
    let job = rig.core().end_replica(now, disk).expect("it is a replica");
    rig.finish(job);
    let rig = rig.after_kill(config());
    let moved = rig.running().disk_info(disk).map(|info| info.moved);
    assert_eq!(moved, Some(Moved::Away { to: OWNER, holder: None }));
    assert_eq!(rig.usage(disk).dirty_blocks, 0);
}
