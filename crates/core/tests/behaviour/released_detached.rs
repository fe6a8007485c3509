//! A disk that is detached here is released to another host.

use haversack_core::{CoreConfig, DiskConfig, ManageError, Moved, RequestTag};
use haversack_model::{BLOCK_BYTES, BlockNo, DiskNo, HostId};

use crate::common::*;

const SECTORS: u64 = 4096;
const THERE: HostId = HostId(9);

fn config() -> CoreConfig {
    CoreConfig { commit_blocks: 1, ..CoreConfig::default() }
}

fn attached() -> (Rig, DiskNo) {
    let mut rig = Rig::new(&[4], false, config());
    let disk = rig.attach(&DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(0), SECTORS) }, 1);
    rig.write(disk, 0, 8, 1);
    (rig, disk)
}

fn detached() -> (Rig, DiskNo) {
    let (mut rig, disk) = attached();
    let now = rig.now;
    let job = rig.core().detach(now, disk).expect("the disk is attached");
    rig.finish(job);
    (rig, disk)
}

fn release(rig: &mut Rig, disk: DiskNo, epoch: u64) -> Result<(), ManageError> {
    let now = rig.now;
    let job = rig.core().release_detached(now, disk, epoch, THERE)?;
    rig.finish(job);
    Ok(())
}

fn info(rig: &Rig, disk: DiskNo) -> (bool, Moved, u64) {
    let info = rig.running().disk_info(disk).expect("the disk is known");
    (info.owned, info.moved, info.epoch)
}

#[test]
fn a_detached_disk_is_released_for_good_and_its_blocks_are_not_lent() {
    let (mut rig, disk) = detached();
    assert!(rig.running().disk_info(disk).expect("the disk is known").left_clean);
    release(&mut rig, disk, 2).expect("it was left clean");
    let away = (false, Moved::Away { to: THERE, holder: None }, 2);
    assert_eq!(info(&rig, disk), away);
    let tag = RequestTag(1 << 32);
    rig.give_buffer(tag, vec![0; BLOCK_BYTES]);
    let now = rig.now;
    // The origin may have been rolled back since the disk was detached.
    let refused = rig.core().read_copy(now, tag, disk, BlockNo(0), 0);
    assert!(!matches!(refused, Ok(Some(_))), "{refused:?}");
    let mut rig = rig.after_power_cut(config());
    assert_eq!(info(&rig, disk), away);
    let (now, again) = (rig.now, DiskConfig::new(disk_id(0), SECTORS));
    let refused = rig.core().attach(now, &again, 1, false);
    assert!(matches!(refused, Err(ManageError::OldEpoch { .. })), "{refused:?}");
}

/// Until the record is durable the job has not ended, and a power loss finds the disk as it was.
#[test]
fn a_release_that_is_not_on_record_has_not_happened() {
    let (mut rig, disk) = detached();
    let now = rig.now;
    rig.core().release_detached(now, disk, 2, THERE).expect("it was left clean");
    rig.run_without(is_record);
    let rig = rig.after_power_cut(config());
    assert_eq!(info(&rig, disk), (true, Moved::No, 1));
}

#[test]
fn only_what_was_left_clean_is_released() {
    let (mut rig, disk) = attached();
    let refused = release(&mut rig, disk, 2);
    assert!(matches!(refused, Err(ManageError::Attached(_))), "{refused:?}");
    let mut rig = rig.after_kill(config());
    assert!(!rig.running().disk_info(disk).expect("the disk is known").left_clean);
    let refused = release(&mut rig, disk, 2);
    assert!(matches!(refused, Err(ManageError::Dirty { dirty_blocks: 1, .. })), "{refused:?}");
    let (mut rig, disk) = detached();
    let refused = release(&mut rig, disk, 1);
    assert!(matches!(refused, Err(ManageError::OldEpoch { .. })), "{refused:?}");
    let (now, again) = (rig.now, DiskConfig::new(disk_id(0), SECTORS));
    let (disk, job) = rig.core().attach(now, &again, 1, false).expect("it is still owned");
    rig.finish(job);
    assert_eq!(rig.read(disk, 0, 8), [1; 8]);
}
