//! What is recorded of a disk's requests.

use crate::common::*;
use haversack_core::monitor::{Kind, MOST_RECORDS, Record};
use haversack_core::{CoreConfig, DiskConfig, MonitorConfig, Op, Records};
use haversack_model::place::spread;
use haversack_model::{DiskNo, WriteMode};

const SECTORS: u64 = 40_000;

fn rig() -> (Rig, DiskNo) {
    let mut rig = Rig::new(&[8], false, CoreConfig::default());
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    (rig, disk)
}

fn watch(rig: &mut Rig, disk: DiskNo, records: usize, sample_shift: u8) {
    rig.core().set_monitor(disk, Some(MonitorConfig { records, sample_shift })).expect("a monitor");
}

fn record(time_us: u64, kind: Kind, sector: u64, sectors: u32) -> Record {
    Record { time_us, kind, sector, sectors }
}

#[test]
fn requests_are_recorded_with_their_time() {
    let (mut rig, disk) = rig();
    let mut taken = Records::default();
    rig.read(disk, 8, 8);
    assert!(!rig.core().take_records(disk, &mut taken), "it is off until it is asked for");
    watch(&mut rig, disk, 100, 0);
    rig.now = 10_000;
    rig.read(disk, 3, 8);
    rig.now += 999;
    rig.write(disk, SECTORS - 1, 1, 5);
    rig.now += 1;
    let discard = rig.submit_sized(disk, Op::Discard, 80, 800, Vec::new()).expect("the request is taken");
    rig.answered(discard);
    rig.flush(disk);
    assert!(rig.core().take_records(disk, &mut taken));
    let expected = [
        record(10_000, Kind::Read, 3, 8),
        record(10_000, Kind::Write, SECTORS - 1, 1),
        record(11_000, Kind::Discard, 80, 800),
        record(11_000, Kind::Flush, 0, 0),
    ];
    assert_eq!(taken.iter().collect::<Vec<_>>(), expected);
    let blocks: Vec<_> = taken.iter().map(|record| taken.blocks(record)).collect();
    assert_eq!(blocks, [0..2, SECTORS / 8 - 1..SECTORS / 8, 10..110, 0..0]);

    rig.read(disk, 0, 8);
    assert!(rig.core().take_records(disk, &mut taken));
    let again: Vec<_> = taken.iter().collect();
    assert_eq!(again, [record(11_000, Kind::Read, 0, 8)], "a buffer begins with the time");
    assert!(rig.core().take_records(disk, &mut taken) && taken.is_empty());
}

#[test]
fn records_that_find_no_room_are_counted() {
    let (mut rig, disk) = rig();
    watch(&mut rig, disk, 4, 0);
    let bytes = rig.core().pool_stats().memory_bytes;
    for block in 0..10 {
        rig.read(disk, block * 8, 8);
    }
    assert_eq!(rig.running().records_fill(disk), 1.0);
    let mut taken = Records::default();
    assert!(rig.core().take_records(disk, &mut taken));
    assert_eq!((taken.iter().count(), taken.lost()), (3, 7), "one of four is the time");
    assert_eq!(rig.core().pool_stats().memory_bytes, bytes);
    rig.read(disk, 0, 8);
    rig.core().take_records(disk, &mut taken);
    assert_eq!((taken.iter().count(), taken.lost()), (1, 0));
    rig.core().set_monitor(disk, None).expect("known");
    assert_eq!(rig.core().pool_stats().memory_bytes, bytes - 32);
}

#[test]
fn a_sample_is_of_whole_blocks_by_address() {
    let mut rig = Rig::new(&[8], false, CoreConfig::default());
    let disk = rig.attach(&DiskConfig { phase: 7, ..DiskConfig::new(disk_id(0), SECTORS) }, 1);
    watch(&mut rig, disk, 10_000, 3);
    rig.read(disk, 4, 30_000);
    let mut taken = Records::default();
    rig.core().take_records(disk, &mut taken);
    assert_eq!((taken.sample_shift(), taken.phase()), (3, 7));
    let blocks: Vec<u64> = taken.iter().flat_map(|record| taken.blocks(record)).collect();
    let expected: Vec<u64> = (0..=(30_003 + 1) / 8).filter(|block| spread(*block) >> 61 == 0).collect();
    assert_eq!(blocks, expected);
    let whole = taken.iter().skip(1).all(|record| record.sectors == 8 && record.sector % 8 == 7);
    assert!(whole, "blocks are told as they lie on the disk");
}

#[test]
fn wrong_settings_change_nothing() {
    let (mut rig, disk) = rig();
    watch(&mut rig, disk, 10, 0);
    for (records, sample_shift) in [(0, 0), (MOST_RECORDS + 1, 0), (10, 33)] {
        let refused = rig.core().set_monitor(disk, Some(MonitorConfig { records, sample_shift }));
        assert!(refused.unwrap_err().to_string().contains("not "), "{records} {sample_shift}");
    }
    assert!(rig.core().set_monitor(DiskNo(9), None).is_err());
    rig.read(disk, 0, 8);
    let mut taken = Records::default();
    assert!(rig.core().take_records(disk, &mut taken) && taken.iter().count() == 1);
}
