//! The status of a range: which sectors are cached, and which the origin lacks.

use crate::common::*;
use haversack_core::{Action, CacheState, CoreConfig, DiskConfig, IoPurpose, RequestError};
use haversack_model::{DeviceNo, DiskNo, SectorNo};

const NEITHER: CacheState = CacheState { cached: false, dirty: false };
const CLEAN: CacheState = CacheState { cached: true, dirty: false };
const DIRTY: CacheState = CacheState { cached: true, dirty: true };

fn runs(rig: &Rig, disk: DiskNo, sectors: u64) -> Vec<(u64, CacheState)> {
    let mut runs = Vec::new();
    rig.running()
        .cache_runs(disk, SectorNo(0), sectors, usize::MAX, |count, state| runs.push((count, state)));
    runs
}

/// A disk that is not cleaned, in a pool of one device that commits each block at once.
fn rig() -> (Rig, DiskNo) {
    let mut rig = Rig::new(&[4], false, CoreConfig { commit_blocks: 1, ..CoreConfig::default() });
    let disk = rig.attach(&DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(0), 4096) }, 1);
    (rig, disk)
}

#[test]
fn each_sector_has_the_state_of_the_newest_place_that_has_it() {
    let (mut rig, disk) = rig();
    rig.read(disk, 8, 8);
    rig.write(disk, 0, 4, 1);
    rig.write(disk, 10, 2, 2);
    rig.flush(disk);
    assert_eq!(runs(&rig, disk, 24), [(4, DIRTY), (4, NEITHER), (8, DIRTY), (8, NEITHER)]);
    rig.clean(disk);
    assert_eq!(runs(&rig, disk, 24), [(4, CLEAN), (4, NEITHER), (8, CLEAN), (8, NEITHER)]);
}

#[test]
fn sectors_written_over_a_damaged_block_are_dirty_and_the_others_lost() {
    let (mut rig, disk) = rig();
    rig.write(disk, 0, 8, 1);
    rig.flush(disk);
    // A commit writes the data first, then its page.
    let written = rig.log.iter().find(|asked| asked.purpose == Some(IoPurpose::Commit)).copied();
    let Some(Action::WriteDevice { offset_bytes, .. }) = written.map(|asked| asked.action) else {
        panic!("the block was committed")
    };
    rig.device(DeviceNo(0)).rot(offset_bytes + 5);
    let read = rig.start_read(disk, 0, 8);
    rig.run();
    assert_eq!(rig.answer(read), Err(RequestError::DataLost));
    rig.write(disk, 0, 4, 2);
    rig.flush(disk);
    assert_eq!(rig.read(disk, 0, 4), [2; 4]);
    assert_eq!(runs(&rig, disk, 8), [(4, DIRTY), (4, NEITHER)]);
}
