//! How many commits of a disk are in flight.

use crate::common::*;
use haversack_core::{CoreConfig, DiskConfig, IoPurpose};
use haversack_model::DiskNo;

/// The most commits of a disk in flight.
const MOST: usize = 4;

/// Two disks. Ten blocks were written to the first one, one after the other, and none of their commits has ended.
fn busy() -> (Rig, [DiskNo; 2]) {
    let mut rig = Rig::new(&[16], false, CoreConfig { commit_blocks: 1, ..CoreConfig::default() });
    let disks = [0, 1]
        .map(|number| rig.attach(&DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(number), 4096) }, 1));
    for block in 0..10 {
        write(&mut rig, disks[0], block);
    }
    (rig, disks)
}

fn write(rig: &mut Rig, disk: DiskNo, block: u64) {
    let write = rig.start_write(disk, block * 8, 8, 1);
    rig.run_without(is_segment_write);
    assert!(rig.is_answered(write), "a staged write does not wait for its commit");
}

/// Commits in flight: each writes one run of blocks and one page.
fn commits(rig: &Rig, disk: DiskNo) -> usize {
    let is_commit = |asked: &Requested| asked.purpose == Some(IoPurpose::Commit) && asked.disk == Some(disk);
    rig.pending.iter().filter(|io| is_commit(&io.asked)).count() / 2
}

#[test]
fn a_disk_has_few_commits_in_flight_and_what_waits_goes_in_one() {
    let (mut rig, [disk, other]) = busy();
    assert_eq!(commits(&rig, disk), MOST);
    write(&mut rig, other, 0);
    assert_eq!(commits(&rig, other), 1, "other disks do not wait");
    rig.run();
    assert_eq!(rig.stats(disk).flash_batch_pages, MOST as u64 + 1);
    assert_eq!(rig.usage(disk).dirty_blocks, 10);
    assert_eq!(rig.read(disk, 0, 80), [1; 80]);
}

#[test]
fn a_flush_does_not_wait_for_the_commits_before_it() {
    let (mut rig, [disk, _]) = busy();
    rig.start_flush(disk);
    rig.run_without(is_segment_write);
    assert_eq!(commits(&rig, disk), MOST + 1);
}
