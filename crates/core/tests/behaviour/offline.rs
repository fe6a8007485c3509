//! The tools for a pool that no core has open: they check the pool, save dirty blocks, and destroy only what the caller
//! names.

use crate::common::{Origin, Rig, Shelf, disk_id, memory};
use haversack_core::offline::{self, FlushProgress, OfflineError};
use haversack_core::{CoreConfig, DiskConfig, Moved};
use haversack_model::{BlockNo, DeviceNo, HostId, SECTOR_BYTES, WriteMode};

const SECTORS: u64 = 4096;

/// Two disks. The first has flushed dirty blocks 0 to 12 and clean blocks after them, the second is clean. Then the
/// power fails.
fn after_power_loss(segments: &[u32], redundancy: bool) -> (Shelf, Origin) {
    let mut rig = Rig::new(segments, redundancy, CoreConfig::default());
    let dirty = rig.disk(0, SECTORS, WriteMode::WriteBack);
    let clean = rig.disk(1, SECTORS, WriteMode::WriteInvalidate);
    rig.read(clean, 0, 64);
    rig.read(dirty, 800, 64);
    rig.write(dirty, 3, 48, 9);
    rig.flush(dirty);
    rig.write(dirty, 51, 50, 9);
    rig.flush(dirty);
    rig.write(dirty, 2000, 8, 1);
    let origin = rig.origins[&dirty].clone();
    (rig.power_cut(), origin)
}

fn blocks(range: std::ops::Range<u64>) -> Vec<BlockNo> {
    range.map(BlockNo).collect()
}

fn flush(shelf: &mut Shelf, origin: &mut Origin) -> (Result<u64, OfflineError>, Vec<FlushProgress>) {
    let mut progress = Vec::new();
    let result = offline::flush_disk(shelf, disk_id(0), origin, |p| progress.push(p));
    (result, progress)
}

/// Checks that the pool can be opened, has no dirty block, and reads return the origin's data.
fn opens_clean(shelf: Shelf, origin: Origin) {
    let mut rig = Rig::open(shelf, memory(), CoreConfig::default());
    assert!(rig.report.disks.iter().all(|d| d.dirty_blocks == 0 && d.damage == haversack_core::Damage::None));
    let disk = rig.report.disks[0].disk;
    rig.origins.insert(disk, origin);
    assert_eq!(rig.attach(&DiskConfig::new(disk_id(0), SECTORS), 1), disk);
    assert_eq!(rig.read(disk, 0, 103), [vec![7; 3], vec![9; 98], vec![7; 2]].concat());
}

#[test]
fn a_check_lists_devices_disks_and_dirty_blocks() {
    let (mut shelf, _) = after_power_loss(&[4, 4], true);
    let (before, writes) = (shelf.clone(), shelf.writes());
    let report = offline::check(&mut shelf, true).expect("the pool is whole");
    assert_eq!(report.devices, [(DeviceNo(0), 0), (DeviceNo(1), 1)]);
    assert!(report.missing.is_empty() && report.ignored.is_empty() && !report.clean_stop);
    assert_eq!(report.damaged_segments, 0);
    let [dirty, clean] = &report.disks[..] else { panic!("two disks") };
    assert_eq!((dirty.id, dirty.sectors, dirty.owned, dirty.epoch), (disk_id(0), SECTORS, true, 1));
    assert_eq!(dirty.dirty_blocks, blocks(0..13));
    assert_eq!((clean.id, clean.dirty_blocks.len(), clean.damaged), (disk_id(1), 0, false));
    assert!(dirty.bad_blocks.is_empty());
    assert!(shelf.writes() == writes && shelf.same_bytes(&before), "a check writes nothing");
}

#[test]
fn dirty_blocks_reach_the_origin_with_progress() {
    let (mut shelf, mut origin) = after_power_loss(&[4], false);
    let (result, progress) = flush(&mut shelf, &mut origin);
    assert_eq!(result, Ok(13));
    let expected: Vec<_> =
        (1..=13).map(|done_blocks| FlushProgress { done_blocks, total_blocks: 13 }).collect();
    assert_eq!(progress, expected);
    assert_eq!(origin.sectors(3, 98), vec![9; 98 * SECTOR_BYTES]);
    assert_eq!(origin.sectors(0, 3), vec![7; 3 * SECTOR_BYTES], "only what was written is written");
    assert_eq!(origin.sectors(101, 3), vec![7; 3 * SECTOR_BYTES]);
    assert_eq!(origin.flushed_writes, origin.writes, "the origin was flushed");
    let report = offline::check(&mut shelf, true).expect("the pool is whole");
    assert!(report.disks[0].dirty_blocks.is_empty());
    assert_eq!(flush(&mut shelf, &mut origin).0, Ok(0), "there is nothing left to do");
    opens_clean(shelf, origin);
}

#[test]
fn one_of_two_mirrored_devices_is_enough() {
    for missing in [0, 1] {
        let (mut shelf, mut origin) = after_power_loss(&[4, 4], true);
        shelf.take(missing);
        let report = offline::check(&mut shelf, true).expect("one device is enough");
        assert_eq!(report.missing, [DeviceNo(missing as u8)]);
        assert_eq!(report.disks[0].dirty_blocks, blocks(0..13));
        assert!(!report.disks[0].damaged && report.disks[0].bad_blocks.is_empty());
        assert_eq!(flush(&mut shelf, &mut origin).0, Ok(13));
        assert_eq!(origin.sectors(3, 98), vec![9; 98 * SECTOR_BYTES]);
        opens_clean(shelf, origin);
    }
}

#[test]
fn a_device_that_missed_the_flush_brings_nothing_back() {
    for missing in [0, 1] {
        let (mut shelf, mut origin) = after_power_loss(&[4, 4], true);
        let absent = shelf.take(missing);
        assert_eq!(flush(&mut shelf, &mut origin).0, Ok(13));
        shelf.0.insert(missing, absent);
        opens_clean(shelf, origin);
    }
}

#[test]
fn without_second_copies_a_missing_device_makes_everything_uncertain() {
    let (mut shelf, mut origin) = after_power_loss(&[4, 4], false);
    shelf.take(0);
    let before = shelf.clone();
    assert_eq!(flush(&mut shelf, &mut origin).0, Err(OfflineError::Damaged(disk_id(0))));
    assert_eq!(origin.writes, 0);
    assert!(shelf.same_bytes(&before));
}

#[test]
fn dirty_blocks_are_dropped_only_by_name() {
    let (mut shelf, _) = after_power_loss(&[4], false);
    let before = shelf.clone();
    let dirty = OfflineError::Dirty { disk: disk_id(0), dirty_blocks: 13 };
    assert_eq!(offline::drop_disk(&mut shelf, disk_id(0), None), Err(dirty.clone()));
    assert_eq!(offline::drop_disk(&mut shelf, disk_id(0), Some(disk_id(1))), Err(dirty.clone()));
    assert!(dirty.to_string().contains("flush it first"));
    assert!(shelf.same_bytes(&before), "a refusal writes nothing");
    assert_eq!(offline::drop_disk(&mut shelf, disk_id(1), None), Ok(()));
    assert_eq!(offline::drop_disk(&mut shelf, disk_id(0), Some(disk_id(0))), Ok(()));
    let report = offline::check(&mut shelf, true).expect("the pool is whole");
    assert!(report.disks.iter().all(|d| d.cached_blocks == 0));
}

#[test]
fn dirty_blocks_on_missing_devices_are_dropped_only_by_name() {
    for missing in [0, 1] {
        let (mut shelf, _) = after_power_loss(&[4, 4], false);
        shelf.take(missing);
        let before = shelf.clone();
        let refused = offline::drop_disk(&mut shelf, disk_id(0), None);
        assert!(refused.is_err(), "device {missing} may hold dirty blocks of it");
        assert!(shelf.same_bytes(&before));
        assert_eq!(offline::drop_disk(&mut shelf, disk_id(1), None), Ok(()), "it never had any");
        assert_eq!(offline::drop_disk(&mut shelf, disk_id(0), Some(disk_id(0))), Ok(()));
    }
}

#[test]
fn an_origin_that_fails_leaves_the_pool_as_it_was() {
    let (mut shelf, mut origin) = after_power_loss(&[4], false);
    let before = shelf.clone();
    origin.down = true;
    let error = flush(&mut shelf, &mut origin).0.expect_err("the origin is down");
    assert_eq!(error, OfflineError::Origin { disk: disk_id(0), sector: 3 });
    assert!(error.to_string().contains("stay in the pool"));
    assert!(shelf.same_bytes(&before));
    origin.down = false;
    assert_eq!(flush(&mut shelf, &mut origin).0, Ok(13), "it can be repeated");
}

#[test]
fn a_damaged_dirty_block_is_reported_and_the_others_are_saved() {
    let (mut shelf, mut origin) = after_power_loss(&[4], false);
    let needle = vec![9; 4096];
    let data_starts = 9_437_184;
    let at = shelf.0[0].bytes[data_starts..].chunks(4096).position(|page| page == needle);
    shelf.0[0].rot((data_starts + at.expect("a whole dirty block is on flash") * 4096) as u64);
    let before = shelf.clone();
    let report = offline::check(&mut shelf, true).expect("the metadata is whole");
    let [first] = report.disks[0].bad_blocks[..] else { panic!("one bad block") };
    let (result, progress) = flush(&mut shelf, &mut origin);
    assert_eq!(result, Err(OfflineError::DataLost { disk: disk_id(0), blocks: vec![first] }));
    let told = result.unwrap_err().to_string();
    assert!(told.contains(&format!("1 dirty blocks are damaged: block {first};")), "{told}");
    assert_eq!(offline::ranges(&[3, 7, 8, 9].map(BlockNo)), "block 3, blocks 7-9");
    let many: Vec<BlockNo> = (0..100).map(|at| BlockNo(at * 2)).collect();
    assert!(offline::ranges(&many).ends_with("block 126 and 36 more ranges"));
    assert_eq!(progress.len(), 13);
    assert!(shelf.same_bytes(&before), "nothing is called clean");
    let lost = first.0 * 8;
    for sector in 3..101 {
        let value = if (lost..lost + 8).contains(&sector) { 7 } else { 9 };
        assert_eq!(origin.sectors(sector, 1), [value; SECTOR_BYTES], "sector {sector}");
    }
}

#[test]
fn a_rotten_copy_is_replaced_by_the_other() {
    let (mut shelf, mut origin) = after_power_loss(&[4, 4], true);
    let data_starts = 9_437_184;
    for page in shelf.0[0].bytes[data_starts..].chunks_mut(4096) {
        if page == [9; 4096] {
            page[17] ^= 1;
        }
    }
    assert_eq!(flush(&mut shelf, &mut origin).0, Ok(13));
    assert_eq!(origin.sectors(3, 98), vec![9; 98 * SECTOR_BYTES]);
}

#[test]
fn a_released_disk_is_not_written() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    rig.write(disk, 3, 98, 9);
    rig.flush(disk);
    let now = rig.now;
    let job = rig.core().release(now, disk).expect("it is attached");
    rig.finish(job);
    let mut origin = rig.origins[&disk].clone();
    let mut shelf = rig.power_cut();
    let error = flush(&mut shelf, &mut origin).0;
    assert_eq!(error, Err(OfflineError::NotOwner { disk: disk_id(0), epoch: 1 }));
    assert_eq!(origin.writes, 0);
}

/// The previous owner may later be made the owner again, and would write its older blocks over what was saved.
#[test]
fn a_disk_that_needs_blocks_of_another_host_is_not_written() {
    let there = HostId(9);
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let disk = rig.core().expect_disk(0, &DiskConfig::new(disk_id(0), SECTORS)).expect("it is not known");
    rig.origins.insert(disk, Origin::new(vec![7; SECTORS as usize * SECTOR_BYTES]));
    rig.core().list_peer_blocks(0, disk, there, &[(BlockNo(0), 255)], true).expect("it is expected");
    let job = rig.core().claim(0, disk, 2).expect("it is expected");
    rig.finish(job);
    rig.write(disk, 0, 4, 9);
    rig.flush(disk);
    let mut origin = rig.origins[&disk].clone();
    let mut shelf = rig.power_cut();
    let before = shelf.clone();
    let (result, progress) = flush(&mut shelf, &mut origin);
    assert_eq!(result, Err(OfflineError::DependsOnHost { disk: disk_id(0), on: there }));
    assert!(result.unwrap_err().to_string().contains("host 0000000000000009"));
    assert!(progress.is_empty() && origin.writes == 0 && shelf.same_bytes(&before));
    let report = offline::check(&mut shelf, false).expect("the pool is whole");
    assert_eq!(report.disks[0].moved, Moved::Depends { on: there });
    assert!(report.disks[0].check_owner().is_err());
}

#[test]
fn an_unknown_disk_is_named() {
    let (mut shelf, mut origin) = after_power_loss(&[4], false);
    let unknown = OfflineError::NoSuchDisk(disk_id(8));
    assert_eq!(offline::drop_disk(&mut shelf, disk_id(8), Some(disk_id(8))), Err(unknown.clone()));
    let flushed = offline::flush_disk(&mut shelf, disk_id(8), &mut origin, |_| {});
    assert_eq!(flushed, Err(unknown));
}
