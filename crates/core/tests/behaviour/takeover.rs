//! A disk is taken over from a permanently dead host, and the dead host comes back.

use haversack_core::{
    Copied, CoreConfig, Damage, DiskConfig, JobError, JobId, ManageError, Moved, Op, OpenOptions, PeerLoss,
    Rejected, RequestError, RequestTag,
};
use haversack_model::{BLOCK_BYTES, BlockNo, DeviceNo, DiskNo, HostId};

use crate::common::*;

const SECTORS: u64 = 4096;
const SLOTS_OF_A_SEGMENT: u32 = 253;
const THERE: HostId = HostId(9);
/// The epoch that is taken by force.
const FORCED: u64 = 1_000;

fn config() -> CoreConfig {
    CoreConfig { commit_blocks: 1, ..CoreConfig::default() }
}

fn lazy() -> DiskConfig {
    DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(0), SECTORS) }
}

/// A disk that has moved here. Its previous owner, which is dead, has dirty blocks 0, 1 and 2. This host has a copy of
/// block 1 and has written half of block 2.
fn dependent() -> (Rig, DiskNo) {
    dependent_with(&[4], &lazy())
}

fn dependent_with(segments: &[u32], disk_config: &DiskConfig) -> (Rig, DiskNo) {
    let mut rig = Rig::new(segments, false, config());
    let disk = rig.core().expect_disk(0, disk_config).expect("the disk is not known");
    rig.origins.insert(disk, Origin::new(vec![OF_ORIGIN; SECTORS as usize * 512]));
    let tag = RequestTag(1 << 32);
    rig.give_buffer(tag, vec![3; BLOCK_BYTES]);
    assert_eq!(rig.core().take_copy(0, tag, disk, BlockNo(1), Copied { mask: 255, reused: false }), Ok(true));
    rig.run();
    let listed = [0, 1, 2].map(|block| (BlockNo(block), 255));
    rig.core().list_peer_blocks(0, disk, THERE, &listed, true).expect("the disk is expected");
    let job = rig.core().claim(0, disk, 2).expect("the disk is expected");
    rig.finish(job);
    rig.write(disk, 20, 4, 4);
    rig.write(disk, 80, 8, 5);
    rig.flush(disk);
    (rig, disk)
}

fn give_up(rig: &mut Rig, disk: DiskNo, loss: PeerLoss) -> JobId {
    let now = rig.now;
    rig.core().give_up_peer(now, disk, FORCED, loss).expect("the disk depends on a host")
}

fn read_error(rig: &mut Rig, disk: DiskNo, sector: u64) -> Result<(), RequestError> {
    let read = rig.start_read(disk, sector, 1);
    rig.answer(read)
}

fn moved(rig: &Rig, disk: DiskNo) -> Moved {
    rig.running().disk_info(disk).expect("the disk is known").moved
}

#[test]
fn what_only_the_dead_host_had_is_lost_and_nothing_else() {
    let (mut rig, disk) = dependent();
    let only_there = [(BlockNo(0), 255), (BlockNo(2), 0b0000_1111)];
    assert_eq!(rig.running().only_at_peer(disk), only_there);
    let job = give_up(&mut rig, disk, PeerLoss::Recorded);
    rig.finish(job);
    assert_eq!(moved(&rig, disk), Moved::No);
    assert_eq!(read_error(&mut rig, disk, 0), Err(RequestError::DataLost));
    assert_eq!(read_error(&mut rig, disk, 16), Err(RequestError::DataLost));
    assert_eq!(rig.read(disk, 8, 8), [3; 8], "a copy was here");
    assert_eq!(rig.read(disk, 20, 4), [4; 4], "it was written here");
    assert_eq!(rig.read(disk, 80, 8), [5; 8]);
    assert_eq!(rig.read(disk, 24, 8), [OF_ORIGIN; 8]);
    assert_eq!(rig.running().lost_runs(disk).iter().map(|run| run.1).sum::<u64>(), 12);
    // Blocks that are written again are complete, and all blocks that are cached here are written to the origin.
    rig.write(disk, 0, 8, 6);
    rig.write(disk, 16, 8, 6);
    rig.clean(disk);
    let origin = &rig.origins[&disk].bytes;
    assert_eq!([0, 8, 16, 80].map(|sector| origin[sector * 512]), [6, 3, 6, 5]);
}

#[test]
fn an_accepted_loss_is_what_the_origin_has() {
    let (mut rig, disk) = dependent();
    let job = give_up(&mut rig, disk, PeerLoss::Accepted);
    rig.finish(job);
    let o = OF_ORIGIN;
    assert_eq!(rig.read(disk, 0, 24)[..], [[o; 8], [3; 8], [o, o, o, o, 4, 4, 4, 4]].concat());
    assert_eq!(rig.running().disk_info(disk).unwrap().damage, Damage::None);
}

#[test]
fn a_loss_is_on_record_when_the_dependence_is_not() {
    let (mut rig, disk) = dependent();
    let job = give_up(&mut rig, disk, PeerLoss::Recorded);
    rig.finish(job);
    let mut rig = rig.after_power_cut(config());
    let info = rig.running().disk_info(disk).unwrap();
    assert_eq!((info.moved, info.damage, info.epoch), (Moved::No, Damage::Lost, FORCED));
    let now = rig.now;
    let refused = rig.core().attach(now, &lazy(), FORCED, false);
    assert_eq!(refused.err(), Some(ManageError::Lost(disk_id(0))));
    let (_, job) = rig.core().attach(now, &lazy(), FORCED, true).expect("the loss is accepted");
    rig.finish(job);
    assert_eq!(rig.read(disk, 8, 8), [3; 8], "the copy is dirty by now");
    assert_eq!(rig.read(disk, 80, 8), [5; 8]);
}

/// After a restart it is not known which blocks the dead host had. So all blocks that are cached here are kept as
/// possibly newer than the origin.
#[test]
fn copies_are_kept_although_nobody_lists_them() {
    let (rig, disk) = dependent();
    let mut rig = rig.after_power_cut(config());
    let now = rig.now;
    rig.core().assume_peer_list(now, disk).expect("the disk depends on a host");
    let (_, job) = rig.core().attach(now, &lazy(), 2, false).expect("there is a list");
    rig.finish(job);
    let job = give_up(&mut rig, disk, PeerLoss::Accepted);
    rig.finish(job);
    assert_eq!(rig.read(disk, 8, 8), [3; 8]);
    rig.clean(disk);
    let origin = &rig.origins[&disk].bytes;
    assert_eq!([0, 8, 20, 80].map(|sector| origin[sector * 512]), [OF_ORIGIN, 3, 4, 5]);
}

/// Lists again what the previous owner has, and attaches the disk that depends on it.
fn attach_with_peer(rig: &mut Rig, disk: DiskNo, held: [u8; 3], accept_loss: bool) {
    rig.peer = held.into_iter().enumerate().map(|(block, value)| (BlockNo(block as u64), value)).collect();
    let listed = [0, 1, 2].map(|block| (BlockNo(block), 255));
    let now = rig.now;
    rig.core().list_peer_blocks(now, disk, THERE, &listed, true).expect("the disk depends on a host");
    let (_, job) = rig.core().attach(now, &lazy(), 2, accept_loss).expect("the peer has listed its blocks");
    rig.finish(job);
}

/// Until the record says that the previous owner is given up, its blocks may count again. What was written here since
/// must then be dirty: the origin's version would count as older than that of the previous owner.
#[test]
fn a_peer_that_is_back_before_it_was_given_up_replaces_nothing_that_was_written_since() {
    for loss in [PeerLoss::Recorded, PeerLoss::Accepted] {
        let (mut rig, disk) = dependent_with(&[4], &DiskConfig::new(disk_id(0), SECTORS));
        rig.write(disk, 8, 8, 9);
        rig.flush(disk);
        give_up(&mut rig, disk, loss);
        rig.wait_with(60_000_000, |asked| if is_record(asked) { Fate::Hold } else { Fate::Done });
        let origin = &rig.origins[&disk].bytes;
        assert_eq!([0, 8, 20].map(|sector| origin[sector * 512]), [OF_ORIGIN; 3], "{loss:?}");
        let reads = [0, 16].map(|sector| rig.start_read(disk, sector, 1));
        rig.wait_with(1_000_000, |asked| if is_record(asked) { Fate::Hold } else { Fate::Done });
        assert!(reads.iter().all(|read| !rig.is_answered(*read)), "nothing is lost yet");
        let mut rig = rig.after_power_cut(config());
        let info = rig.running().disk_info(disk).unwrap();
        assert_eq!((info.moved, info.damage, info.epoch), (Moved::Depends { on: THERE }, Damage::None, 2));
        attach_with_peer(&mut rig, disk, [1, 2, 3], false);
        let expected = [[1; 8], [9; 8], [3, 3, 3, 3, 4, 4, 4, 4]].concat();
        assert_eq!(rig.read(disk, 0, 24)[..], expected, "{loss:?}");
    }
}

/// The record may be written for another reason while the previous owner is being given up.
#[test]
fn nothing_is_on_record_as_lost_before_the_peer_is_given_up() {
    let (mut rig, disk) = dependent();
    give_up(&mut rig, disk, PeerLoss::Recorded);
    // The copy of block 1 is being made dirty.
    let hold_reads = |asked: &Requested| if is_device_read(asked) { Fate::Hold } else { Fate::Done };
    rig.run_with(hold_reads);
    let now = rig.now;
    rig.core().attach(now, &DiskConfig::new(disk_id(1), SECTORS), 1, false).expect("it is a new disk");
    rig.wait_with(1_000_000, hold_reads);
    let mut rig = rig.after_power_cut(config());
    let ids: Vec<_> = rig.running().disk_numbers().collect();
    assert_eq!(ids.len(), 2, "the record was written");
    let info = rig.running().disk_info(disk).unwrap();
    assert_eq!((info.moved, info.damage), (Moved::Depends { on: THERE }, Damage::None));
    attach_with_peer(&mut rig, disk, [1, 3, 6], false);
    let expected = [[1; 8], [3; 8], [6, 6, 6, 6, 4, 4, 4, 4]].concat();
    assert_eq!(rig.read(disk, 0, 24)[..], expected);
}

/// A device is missing, so everything here is void. What the previous owner still has is then the newest, even where
/// this host had something newer.
#[test]
fn blocks_of_the_peer_count_again_when_all_is_void_here() {
    let (mut rig, disk) = dependent_with(&[4, 4], &lazy());
    let origins = std::mem::take(&mut rig.origins);
    let mut shelf = rig.power_cut();
    shelf.take(1);
    let options = OpenOptions { accept_missing: true, ..OpenOptions::default() };
    let mut rig = Rig::open_with(shelf, memory(), config(), options);
    rig.origins = origins;
    let info = rig.running().disk_info(disk).unwrap();
    assert_eq!((info.moved, info.damage), (Moved::Depends { on: THERE }, Damage::Uncertain));
    attach_with_peer(&mut rig, disk, [1, 2, 3], true);
    assert_eq!(rig.read(disk, 0, 24)[..], [[1; 8], [2; 8], [3; 8]].concat());
}

/// Nothing can be cleaned while the previous owner is given up. If its blocks fill the cache, that would never end.
#[test]
fn a_peer_is_given_up_although_its_blocks_fill_the_cache() {
    let mut rig = Rig::new(&[2], false, config());
    let blocks = 2 * u64::from(SLOTS_OF_A_SEGMENT);
    let config = DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(0), 8 * 2 * blocks) };
    let disk = rig.core().expect_disk(0, &config).expect("the disk is not known");
    rig.origins.insert(disk, Origin::new(vec![OF_ORIGIN; config.sectors as usize * 512]));
    let listed: Vec<_> = (0..blocks).map(|block| (BlockNo(block), 255)).collect();
    rig.core().list_peer_blocks(0, disk, THERE, &listed, true).expect("the disk is expected");
    let job = rig.core().claim(0, disk, 2).expect("the disk is expected");
    rig.finish(job);
    for block in 0..blocks - 32 {
        rig.write(disk, 8 * block, 8, (block % 200) as u8 + 10);
    }
    let job = give_up(&mut rig, disk, PeerLoss::Recorded);
    // These find no space until other blocks are clean.
    let writes: Vec<_> = (blocks - 32..blocks).map(|block| rig.start_write(disk, 8 * block, 8, 1)).collect();
    rig.finish(job);
    writes.into_iter().for_each(|write| rig.answered(write));
    assert_eq!(rig.read(disk, 8, 1), [11]);
    assert_eq!(rig.running().lost_runs(disk), []);
    rig.clean(disk);
}

#[test]
fn only_a_dependent_disk_can_do_without_its_peer() {
    let (mut rig, disk) = dependent();
    let now = rig.now;
    let refused = rig.core().give_up_peer(now, disk, 2, PeerLoss::Recorded);
    assert_eq!(refused, Err(ManageError::OldEpoch { given: 2, recorded: 2 }));
    let job = give_up(&mut rig, disk, PeerLoss::Recorded);
    rig.finish(job);
    let refused = rig.core().give_up_peer(now, disk, FORCED + 1, PeerLoss::Recorded);
    assert!(matches!(refused, Err(ManageError::Attached(_))), "{refused:?}");
}

/// A disk that was handed over: block 0 is clean, block 1 dirty.
fn handed_over() -> (Rig, DiskNo) {
    let mut rig = Rig::new(&[4], false, config());
    let disk = rig.attach(&lazy(), 1);
    rig.write(disk, 0, 8, 1);
    rig.flush(disk);
    rig.clean(disk);
    rig.write(disk, 8, 8, 2);
    let now = rig.now;
    let job = rig.core().freeze(now, disk).expect("the disk is attached");
    rig.finish(job);
    let job = rig.core().release_to(now, disk, 2, THERE).expect("the disk is frozen");
    rig.finish(job);
    (rig, disk)
}

#[test]
fn a_disk_that_is_retaken_has_what_was_held_and_nothing_that_may_be_stale() {
    for power in [false, true] {
        let (mut rig, disk) = handed_over();
        // The owner cleaned block 0 before it died.
        rig.origins.get_mut(&disk).unwrap().bytes[..BLOCK_BYTES].fill(7);
        let now = rig.now;
        let (_, job) = rig.core().retake(now, &lazy(), FORCED, PeerLoss::Recorded).expect("blocks are held");
        rig.finish(job);
        let mut rig = match power {
            true => rig.after_power_cut(config()),
            false => rig.after_kill(config()),
        };
        assert_eq!(rig.running().disk_info(disk).unwrap().epoch, FORCED);
        rig.attach(&lazy(), FORCED);
        assert_eq!(rig.read(disk, 0, 16)[..], [[7; 8], [2; 8]].concat());
        rig.clean(disk);
        assert_eq!(rig.origins[&disk].bytes[8 * 512], 2);
    }
}

#[test]
fn a_disk_that_was_overtaken_is_neither_served_nor_cleaned_and_keeps_its_dirty_blocks() {
    let mut rig = Rig::new(&[4], false, config());
    let disk = rig.attach(&lazy(), 1);
    rig.write(disk, 8, 8, 2);
    let now = rig.now;
    let job = rig.core().overtaken(now, disk, FORCED, THERE).expect("the epoch is higher");
    rig.finish(job);
    for _ in 0..2 {
        let refused = rig.try_submit(disk, Op::Read, 0, vec![0; 512]);
        assert_eq!(refused, Err(Rejected::NotOwner));
        rig.wait(10_000_000);
        assert_eq!(rig.origins[&disk].writes, 0);
        assert_eq!(moved(&rig, disk), Moved::Overtaken { to: THERE });
        let now = rig.now;
        let expected = ManageError::Overtaken { disk: disk_id(0), dirty_blocks: 1 };
        assert_eq!(rig.core().attach(now, &lazy(), FORCED + 1, true).err(), Some(expected.clone()));
        assert_eq!(rig.core().expect_disk(now, &lazy()).err(), Some(expected));
        rig = rig.after_power_cut(config());
    }
    let now = rig.now;
    let refused = rig.core().forget(now, disk, None);
    assert_eq!(refused, Err(ManageError::Dirty { disk: disk_id(0), dirty_blocks: 1 }));
    let job = rig.core().forget(now, disk, Some(disk_id(0))).expect("it is named");
    rig.finish(job);
    rig.core().expect_disk(now, &lazy()).expect("nothing is left");
}

/// No name confirms that: the owner would wait for them for ever.
#[test]
fn a_job_that_cleans_does_not_keep_a_disk_that_was_overtaken() {
    for detaches in [false, true] {
        let mut rig = Rig::new(&[4], false, config());
        let disk = rig.attach(&lazy(), 1);
        rig.write(disk, 0, 8, 1);
        let now = rig.now;
        let job = match detaches {
            true => rig.core().detach(now, disk).expect("the disk is attached"),
            false => rig.core().clean(now, disk).expect("the disk is attached"),
        };
        rig.run_without(is_origin_write);
        let noted = rig.core().overtaken(now, disk, FORCED, THERE).expect("the job does not matter");
        assert_eq!(rig.outcome(job), Err(JobError::Cancelled));
        rig.finish(noted);
        assert_eq!(moved(&rig, disk), Moved::Overtaken { to: THERE });
    }
}

#[test]
fn blocks_that_the_owner_needs_are_not_forgotten() {
    let (mut rig, disk) = handed_over();
    let id = disk_id(0);
    for _ in 0..2 {
        let now = rig.now;
        for named in [None, Some(id)] {
            let refused = rig.core().forget(now, disk, named);
            assert_eq!(refused, Err(ManageError::KeptForOwner { disk: id, dirty_blocks: 1 }));
        }
        rig = rig.after_power_cut(config());
    }
    let now = rig.now;
    rig.core().forget_held(now, disk, &[BlockNo(1)]).expect("the owner has it");
    rig.run();
    let job = rig.core().forget(now, disk, None).expect("no host needs it");
    rig.finish(job);
}

/// The owner has continued without the blocks that are held for it here.
#[test]
fn blocks_that_the_owner_does_not_want_any_more_are_kept() {
    let (mut rig, disk) = handed_over();
    let now = rig.now;
    let refused = rig.core().overtaken(now, disk, 2, THERE);
    assert_eq!(refused, Err(ManageError::OldEpoch { given: 2, recorded: 2 }));
    let job = rig.core().overtaken(now, disk, FORCED, THERE).expect("the epoch is higher");
    rig.finish(job);
    assert_eq!(rig.running().overtaken_blocks(disk), 1);
    assert_eq!(rig.core().held_blocks(disk, BlockNo(0), 9), []);
    let rig = rig.after_power_cut(config());
    assert_eq!(rig.running().overtaken_blocks(disk), 1);
}

/// A discard waits until the peer no longer has the discarded blocks, without busy-waiting.
#[test]
fn a_discard_waits_while_a_peer_is_given_up() {
    let (mut rig, disk) = dependent();
    let discard = rig.submit(disk, Op::Discard, 0, vec![0; 24 * 512]);
    rig.run_without(|_| true);
    let job = give_up(&mut rig, disk, PeerLoss::Accepted);
    rig.run_without(|_| true);
    rig.finish(job);
    assert_eq!(rig.answer(discard), Ok(()));
}

/// A disk that was taken over from this host, and of which nothing dirty is left here, can be passed on. The next owner
/// learns which host holds its blocks.
#[test]
fn a_disk_that_was_overtaken_with_nothing_dirty_is_passed_on() {
    let mut rig = Rig::new(&[4], false, config());
    let disk = rig.attach(&lazy(), 1);
    let now = rig.now;
    let job = rig.core().overtaken(now, disk, FORCED, THERE).expect("the epoch is higher");
    rig.finish(job);
    let job = rig.core().pass_on(now, &lazy(), FORCED + 2, HostId(3), Some(THERE)).expect("it is not owned");
    rig.finish(job);
    assert_eq!(moved(&rig, disk), Moved::Away { to: HostId(3), holder: Some(THERE) });
}

/// If this host has lost blocks that it held for another host, taking the disk back does not hide the loss.
#[test]
fn a_loss_is_not_forgotten_when_a_disk_is_taken_back() {
    let (mut rig, disk) = handed_over();
    let now = rig.now;
    rig.core().fail_device(now, DeviceNo(0));
    rig.run();
    assert_eq!(rig.running().disk_info(disk).unwrap().damage, Damage::Lost);
    for loss in [false, true] {
        let now = rig.now;
        let refused = match loss {
            false => rig.core().regain(now, &lazy(), FORCED).err(),
            true => rig.core().retake(now, &lazy(), FORCED, PeerLoss::Recorded).err(),
        };
        assert_eq!(refused, Some(ManageError::Lost(disk_id(0))));
    }
}
