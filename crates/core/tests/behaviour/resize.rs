//! A disk changes its size while other work on it is in progress.

use crate::common::*;
use haversack_core::{CoreConfig, DiskConfig, IoPurpose};
use haversack_model::{DiskNo, WriteMode};

/// The regions of a smaller disk have 256 blocks, those of a larger one 512.
const SECTORS_OF_SMALL_REGIONS: u64 = 4048 * 8 * 256 * 8;

/// The mark of a write past the cache would be kept under the number that its region had before.
#[test]
fn marks_that_are_being_cleared_stay_if_the_size_of_a_region_changes() {
    const SECTOR: u64 = 1281 * 8;
    let config = CoreConfig { commit_blocks: 1, intent_clear_us: 1_000_000, ..CoreConfig::default() };
    let mut rig = Rig::new(&[4], false, config);
    // Only the first sectors of the origin are used.
    rig.origins.insert(DiskNo(0), Origin::new(vec![OF_ORIGIN; 4 * SECTOR as usize * 512]));
    let settings = DiskConfig {
        mode: WriteMode::WriteInvalidate,
        ..DiskConfig::new(disk_id(0), SECTORS_OF_SMALL_REGIONS + 4096)
    };
    let disk = rig.attach(&settings, 1);
    rig.read(disk, SECTOR - 8, 16);
    rig.write(disk, SECTOR - 8, 8, 8);
    // The mark of this write is about to be cleared: the page that listed its block is being written. The page still
    // lists the block that is written next.
    let is_page = |asked: &Requested| asked.purpose == Some(IoPurpose::Page);
    rig.wait_with(2_000_000, |asked| if is_page(asked) { Fate::Hold } else { Fate::Done });
    assert!(rig.pending.iter().any(|pending| is_page(&pending.asked)));
    let write = rig.start_write(disk, SECTOR, 8, 9);
    rig.run_without(is_page);
    assert!(rig.is_answered(write), "its region is marked");
    let now = rig.now;
    let smaller = SECTORS_OF_SMALL_REGIONS - 4096;
    rig.core().resize(now, disk, smaller).expect("no job runs");
    // The power fails when the new size is on record, and before the pages are written that no longer list the block.
    let mut is_recorded = false;
    rig.run_with(|asked| {
        is_recorded |= is_record(asked);
        if is_recorded && is_page(asked) { Fate::Hold } else { Fate::Done }
    });
    assert!(is_recorded && rig.pending.iter().any(|pending| is_page(&pending.asked)));
    let mut rig = rig.after_power_cut(config);
    let disk = rig.attach(&DiskConfig { sectors: smaller, ..settings }, 1);
    assert_eq!(rig.read(disk, SECTOR, 8), [9; 8]);
}
