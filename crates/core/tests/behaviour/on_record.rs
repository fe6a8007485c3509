//! What the record and the write-intent bitmaps must contain before something else happens. The tests kill the process
//! at that moment and check what is durable.

use crate::common::*;
use haversack_core::{Action, CoreConfig, Damage, DiskConfig, IoPurpose, RequestError};
use haversack_model::{DeviceNo, DiskNo};

const SECTORS: u64 = 4096;

fn config() -> CoreConfig {
    CoreConfig { commit_blocks: 1, ..CoreConfig::default() }
}

fn lazy(number: u8) -> DiskConfig {
    DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(number), SECTORS) }
}

/// Attaches a disk that another host owned in the meantime, and kills the process while the I/Os that `held` selects
/// are in flight.
fn killed_after_a_hand_over(held: impl Fn(&Requested) -> bool) -> (Rig, DiskNo) {
    let mut rig = Rig::new(&[4], false, config());
    let disk = rig.attach(&lazy(0), 1);
    rig.read(disk, 0, 8);
    rig.flush(disk);
    let now = rig.now;
    let detached = rig.core().detach(now, disk).expect("nothing else is going on");
    rig.finish(detached);
    rig.origins.get_mut(&disk).expect("an origin").bytes.fill(9);
    let now = rig.now;
    rig.core().attach(now, &lazy(0), 2, false).expect("the epoch is higher");
    rig.run_without(|asked| is_origin_flush(asked) || held(asked));
    (rig.after_kill(config()), disk)
}

#[test]
fn a_guests_flush_covers_another_hosts_volatile_writes_even_after_a_kill() {
    let held: [fn(&Requested) -> bool; 2] = [|_| false, |asked| asked.purpose == Some(IoPurpose::Intent)];
    for held in held {
        let (mut rig, disk) = killed_after_a_hand_over(held);
        let now = rig.now;
        rig.core().attach(now, &lazy(0), 2, false).expect("it is this host's");
        rig.run_without(is_origin_flush);
        let flush = rig.start_flush(disk);
        rig.run_without(is_origin_flush);
        assert!(!rig.is_answered(flush), "the other host may not have flushed");
        rig.answered(flush);
        assert_eq!(rig.read(disk, 0, 8), [9; 8]);
    }
}

/// Two devices without redundancy, and a disk that has dirty sectors 0 to 3 on one of them.
fn partly_dirty() -> (Rig, DiskNo, DeviceNo) {
    let mut rig = Rig::new(&[4, 4], false, CoreConfig::default());
    let disk = rig.attach(&lazy(0), 1);
    rig.write(disk, 0, 4, 1);
    rig.flush(disk);
    let on = [0, 1].map(DeviceNo).into_iter().find(|at| rig.log.iter().any(|a| is_segment_write_to(a, *at)));
    (rig, disk, on.expect("the block was committed"))
}

#[test]
fn clean_sectors_do_not_hide_lost_ones_when_their_device_returns() {
    let (mut rig, disk, device) = partly_dirty();
    rig.read(disk, 4, 4);
    let now = rig.now;
    rig.core().fail_device(now, device);
    // Read enough blocks that everything staged is committed to the other device.
    for block in 1..160 {
        rig.start_read(disk, block * 8, 8);
        rig.run_without(is_record);
    }
    let mut rig = rig.after_kill(config());
    assert_eq!(rig.report.devices.len(), 2, "the record does not say that the device is gone");
    rig.attach(&lazy(0), 1);
    assert_eq!(rig.read(disk, 0, 8), [1, 1, 1, 1, 7, 7, 7, 7]);
}

#[test]
fn a_damaged_block_is_reported_lost_while_its_device_is_emptied() {
    let (mut rig, disk, device) = partly_dirty();
    let data = rig.log.iter().find_map(|asked| match asked.action {
        Action::WriteDevice { offset_bytes, .. } if asked.purpose == Some(IoPurpose::Commit) => {
            Some(offset_bytes)
        }
        _ => None,
    });
    rig.device(device).rot(data.expect("the block was committed"));
    let read = rig.start_read(disk, 0, 4);
    assert_eq!(rig.answer(read), Err(RequestError::DataLost));
    let now = rig.now;
    rig.core().remove_device(now, device).expect("another is left");
    for _ in 0..10 {
        rig.wait_with(1_000_000, |asked| if is_record(asked) { Fate::Hold } else { Fate::Done });
    }
    let mut rig = rig.after_kill(config());
    if rig.report.disks[0].damage == Damage::None {
        rig.attach(&lazy(0), 1);
        let read = rig.start_read(disk, 0, 4);
        assert_eq!(rig.answer(read), Err(RequestError::DataLost));
    }
}
