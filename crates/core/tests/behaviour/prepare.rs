//! Segments are prepared ahead of use. Data that was on a device before the pool was created is never trusted.

use crate::common::*;
use haversack_core::format::geometry;
use haversack_core::format::record::PoolRecord;
use haversack_core::{CoreConfig, PoolConfig, pool};
use haversack_model::{ArenaId, DeviceNo, Uuid, WriteMode};

const SECTORS: u64 = 16_384;

fn config() -> CoreConfig {
    CoreConfig { prepare_segments: 1, ..CoreConfig::default() }
}

/// A new pool on one device that was full of `garbage`. One segment is prepared.
fn pool_over(garbage: u8, segments: u32) -> Shelf {
    let mut shelf = Shelf::blank(&[segments]);
    shelf.0[0].bytes.fill(garbage);
    let pool_config = PoolConfig {
        arena: ArenaId::first(POOL),
        arenas: 1,
        device_ids: vec![device_id(0)],
        redundancy: false,
        prepared_segments: 1,
    };
    pool::create(&mut shelf, &pool_config).expect("no pool is on the device");
    shelf
}

#[test]
fn creation_writes_the_same_amount_whatever_the_size() {
    assert_eq!(pool_over(0, 4).writes(), pool_over(0, 40).writes());
}

#[test]
fn every_segment_of_a_device_with_garbage_comes_into_use_and_a_power_cut_harms_none() {
    let mut rig = Rig::open(pool_over(0x5a, 8), memory(), config());
    assert_eq!((rig.report.damaged_segments, rig.report.disks.len()), (0, 0));
    assert_eq!(rig.running().pool_stats().free_segments, 8, "those that are not prepared count as free");
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    fill(&mut rig, disk, 253 * 8);
    assert_eq!(rig.running().pool_stats().free_segments, 0);
    rig.write(disk, 0, 64, 3);
    rig.flush(disk);
    let mut rig = rig.after_power_cut(config());
    assert_eq!(rig.report.damaged_segments, 0);
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    assert!(rig.read(disk, 0, 64).iter().all(|byte| *byte == 3));
    assert!(rig.usage(disk).usage_blocks > 253 * 6, "what was cached is still there");
}

#[test]
fn a_segment_waits_for_the_record_that_calls_it_prepared() {
    let mut rig = Rig::open(pool_over(0, 4), memory(), config());
    let disk = rig.disk(0, SECTORS, WriteMode::WriteThrough(haversack_model::WriteThroughAck::Origin));
    for block in 0..400 {
        rig.start_read(disk, block * 8, 8);
        rig.run_without(is_record);
    }
    assert_eq!(rig.usage(disk).segments, 1, "the record is not durable");
    rig.run();
    for block in 400..800 {
        rig.start_read(disk, block * 8, 8);
        rig.run();
    }
    assert!(rig.usage(disk).segments > 1);
}

#[test]
fn a_record_that_another_pool_left_on_a_device_that_joins_is_not_believed() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    rig.write(disk, 0, 64, 3);
    rig.flush(disk);
    let mut shelf = rig.shutdown();
    let (mut joins, other) = (Shelf::blank(&[4]).take(0), ArenaId::first(Uuid([9; 16])));
    let newer = PoolRecord { generation: 1 << 20, ..PoolRecord::default() }.encode(other);
    for copy in 0..2 {
        joins.write(geometry::record_bytes(copy), &newer).expect("it fits");
    }
    joins.name = "/dev/cache1".into();
    shelf.0.push(joins);
    pool::prepare_device(&mut shelf, 1, &member(DeviceNo(1), device_id(1)), u32::MAX, 4)
        .expect("no pool is on the device");
    // The host dies before the record of this pool lists the device.
    let mut rig = Rig::open(shelf, memory(), CoreConfig::default());
    assert_eq!(rig.report.ignored, [1]);
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    assert!(rig.read(disk, 0, 64).iter().all(|byte| *byte == 3));
}
