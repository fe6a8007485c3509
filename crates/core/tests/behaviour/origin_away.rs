//! Write-back disks whose origin is unreachable: no write fails as long as the cache has room for it.

use crate::common::*;
use haversack_core::{Action, CoreConfig, DiskConfig, Op, Persistence, RequestError};
use haversack_model::{DiskNo, WriteMode, WriteThroughAck};

const SECTORS: u64 = 80_000;

fn rig() -> (Rig, DiskNo) {
    let mut rig = Rig::new(&[8], false, CoreConfig::default());
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    (rig, disk)
}

fn leave(rig: &mut Rig, disk: DiskNo, down: bool) {
    rig.origins.get_mut(&disk).expect("an origin").down = down;
}

fn change(rig: &mut Rig, disk: DiskNo, op: Op, sector: u64, sectors: u32) {
    let tag = rig.submit_sized(disk, op, sector, sectors, Vec::new()).expect("the request is taken");
    assert_eq!(rig.answer(tag), Ok(()));
}

#[test]
fn a_flush_needs_no_origin_right_after_the_first_attach() {
    let (mut rig, disk) = rig();
    leave(&mut rig, disk, true);
    rig.write(disk, 0, 16, 1);
    rig.flush(disk);
}

#[test]
fn a_flush_needs_no_origin_after_a_kill_if_nothing_went_past_the_cache() {
    let (mut rig, disk) = rig();
    rig.write(disk, 0, 16, 1);
    let mut rig = rig.after_kill(CoreConfig::default());
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    leave(&mut rig, disk, true);
    rig.flush(disk);
    assert_eq!(rig.read(disk, 0, 16), [1; 16]);
}

#[test]
fn a_flush_needs_no_origin_after_the_cleaner_has_tried() {
    let (mut rig, disk) = rig();
    rig.write(disk, 0, 16, 1);
    rig.flush(disk);
    leave(&mut rig, disk, true);
    let now = rig.now;
    let clean = rig.core().clean(now, disk).expect("it is attached");
    rig.wait(60_000_000);
    assert!(rig.jobs.get(&clean).is_some_and(Result::is_err));
    rig.write(disk, 800, 16, 2);
    rig.flush(disk);
}

#[test]
fn a_flush_needs_no_origin_for_what_the_cleaner_wrote_there() {
    let (mut rig, disk) = rig();
    rig.write(disk, 0, 16, 1);
    rig.flush(disk);
    let now = rig.now;
    rig.core().clean(now, disk).expect("it is attached");
    rig.run_without(is_origin_flush);
    leave(&mut rig, disk, true);
    let flush = rig.start_flush(disk);
    rig.run_without(is_origin_flush);
    assert!(rig.is_answered(flush));
}

#[test]
fn a_flush_needs_no_origin_after_zeroes_and_a_sequential_run() {
    let mut rig = Rig::new(&[8], false, CoreConfig::default());
    let config = DiskConfig { sequential_cutoff_bytes: 65_536, ..DiskConfig::new(disk_id(0), SECTORS) };
    let disk = rig.attach(&config, 1);
    change(&mut rig, disk, Op::WriteZeroes, 0, 800);
    change(&mut rig, disk, Op::Discard, 8_000, 800);
    for at in 0..8 {
        rig.write(disk, 16_000 + at * 64, 64, 3);
    }
    assert_eq!(rig.origins[&disk].sectors(16_000 + 7 * 64, 64), [3; 64 * 512], "it went past the cache");
    leave(&mut rig, disk, true);
    rig.flush(disk);
}

#[test]
fn writes_past_a_write_back_cache_are_durable_when_acknowledged() {
    for (mode, expected) in [
        (WriteMode::WriteBack, true),
        (WriteMode::WriteThrough(WriteThroughAck::Cache), true),
        (WriteMode::WriteThrough(WriteThroughAck::Origin), false),
        (WriteMode::WriteAround, false),
    ] {
        let mut rig = Rig::new(&[8], false, CoreConfig::default());
        let disk = rig.disk(0, SECTORS, mode);
        rig.submit_sized(disk, Op::WriteZeroes, 0, 800, Vec::new()).expect("the request is taken");
        let mut seen = None;
        rig.run_without(|action| {
            if let Action::ZeroOrigin { durable, .. } = action.action {
                seen = Some(durable);
            }
            false
        });
        assert_eq!(seen, Some(expected), "{mode}");
    }
}

#[test]
fn zeroes_that_the_origin_refuses_are_staged() {
    for op in [Op::WriteZeroes, Op::Discard] {
        let (mut rig, disk) = rig();
        rig.write(disk, 0, 64, 1);
        rig.clean(disk);
        leave(&mut rig, disk, true);
        change(&mut rig, disk, op, 4, 40);
        rig.flush(disk);
        let expected = [[1; 4].as_slice(), &[0; 40], &[1; 20]].concat();
        assert_eq!(rig.read(disk, 0, 64), expected);
        let origin = rig.origins[&disk].bytes.clone();
        let mut rig = rig.after_power_cut(CoreConfig::default());
        let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
        rig.origins.get_mut(&disk).expect("an origin").bytes = origin;
        leave(&mut rig, disk, false);
        assert_eq!(rig.read(disk, 0, 64), expected);
        rig.clean(disk);
        assert_eq!(rig.origins[&disk].sectors(4, 40), [0; 40 * 512]);
    }
}

#[test]
fn a_sequential_run_that_the_origin_refuses_is_staged() {
    let mut rig = Rig::new(&[8], false, CoreConfig::default());
    let config = DiskConfig { sequential_cutoff_bytes: 65_536, ..DiskConfig::new(disk_id(0), SECTORS) };
    let disk = rig.attach(&config, 1);
    leave(&mut rig, disk, true);
    for at in 0..8 {
        rig.write(disk, at * 64, 64, 3);
    }
    rig.flush(disk);
    assert_eq!(rig.read(disk, 0, 512), [3; 512]);
    leave(&mut rig, disk, false);
    rig.clean(disk);
    assert_eq!(rig.origins[&disk].sectors(0, 512), [3; 512 * 512]);
}

#[test]
fn an_hour_without_the_origin_fails_no_write_hit_or_flush() {
    let (mut rig, disk) = rig();
    rig.write(disk, 0, 8, 1);
    leave(&mut rig, disk, true);
    for minute in 0..60u64 {
        let value = minute as u8 + 1;
        rig.write(disk, minute * 8, 16, value);
        rig.flush(disk);
        assert_eq!(rig.read(disk, minute * 8, 16), [value; 16]);
        change(&mut rig, disk, Op::Discard, 8_000 + minute * 8, 8);
        rig.wait(60_000_000);
    }
    assert_eq!(rig.stats(disk).failed_requests, 0);
    leave(&mut rig, disk, false);
    rig.clean(disk);
    assert_eq!(rig.origins[&disk].sectors(59 * 8, 16), [60; 16 * 512]);
}

#[test]
fn a_flush_waits_for_writes_acknowledged_only_by_the_origin() {
    let (mut rig, disk) = rig();
    let now = rig.now;
    let mode = WriteMode::WriteThrough(WriteThroughAck::Origin);
    let through = rig.core().set_mode(now, disk, mode).expect("it is attached");
    rig.finish(through);
    rig.write(disk, 0, 8, 1);
    let now = rig.now;
    let back = rig.core().set_mode(now, disk, WriteMode::WriteBack).expect("it is attached");
    rig.finish(back);
    leave(&mut rig, disk, true);
    let flush = rig.start_flush(disk);
    assert_eq!(rig.answer(flush), Err(RequestError::Origin));
    leave(&mut rig, disk, false);
    rig.flush(disk);
    leave(&mut rig, disk, true);
    rig.flush(disk);
}

#[test]
fn a_detach_makes_the_origin_durable_whatever_persists() {
    for persistence in [Persistence::All, Persistence::Dirty, Persistence::None] {
        let mut rig = Rig::new(&[8], false, CoreConfig::default());
        let mode = WriteMode::WriteThrough(WriteThroughAck::Origin);
        let disk = rig.attach(&DiskConfig { persistence, mode, ..DiskConfig::new(disk_id(0), SECTORS) }, 1);
        rig.write(disk, 0, 8, 1);
        let now = rig.now;
        let detach = rig.core().detach(now, disk).expect("it is attached");
        rig.finish(detach);
        let origin = &rig.origins[&disk];
        assert_eq!(origin.flushed_writes, origin.writes, "{persistence:?}");
    }
}
