//! A commit that a crash cuts short writes over a clean block whose page still lists it. That is not damage.

use crate::common::*;
use haversack_core::{Action, CoreConfig, DiskConfig, IoPurpose, ListCursor, Target};
use haversack_model::{DeviceNo, DiskNo, WriteMode};

const SECTORS: u64 = 40_000;
const BLOCKS: u64 = SECTORS / 8;
/// Where the data of a device begins.
const DATA_STARTS: u64 = 9_437_184;
const SEGMENT_BYTES: u64 = 1 << 20;
/// A segment begins with its pages.
const PAGES_BYTES: u64 = 8192;

fn config() -> DiskConfig {
    DiskConfig { mode: WriteMode::WriteInvalidate, ..DiskConfig::new(disk_id(0), SECTORS) }
}

fn is_page(asked: &Requested) -> bool {
    match asked.action {
        Action::WriteDevice { offset_bytes, .. } => {
            is_segment_write(asked) && (offset_bytes - DATA_STARTS) % SEGMENT_BYTES < PAGES_BYTES
        }
        _ => false,
    }
}

/// A full cache of clean blocks. The power fails in the middle of commits that overwrite some of these blocks: the data
/// of the commits is on the device, their pages are not.
fn cut_short() -> (Rig, DiskNo) {
    let mut rig = Rig::new(&[2], false, CoreConfig::default());
    let disk = rig.attach(&config(), 1);
    for (block, bytes) in rig.origins.get_mut(&disk).expect("an origin").bytes.chunks_mut(4096).enumerate() {
        bytes.fill(block as u8);
    }
    fill(&mut rig, disk, BLOCKS);
    // The next commit evicts most blocks in one call, and reuses their slots.
    rig.core().set_target(0, disk, Target::Capped(100)).expect("the disk is attached");
    for block in (0..400).step_by(8) {
        rig.start_read(disk, block * 8, 64);
        rig.run_without(is_page);
    }
    assert!(rig.pending.iter().any(|pending| is_page(&pending.asked)), "a commit is cut short");
    let origins = std::mem::take(&mut rig.origins);
    let (shelf, _) = rig.kill();
    let mut rig = Rig::open(shelf, memory(), CoreConfig::default());
    rig.origins = origins;
    let disk = rig.attach(&config(), 1);
    (rig, disk)
}

/// Reads all cached blocks. Returns how many counted as corrupt, and how many as dropped because of the crash.
fn read_all(rig: &mut Rig, disk: DiskNo) -> [u64; 2] {
    let (mut blocks, mut at) = (Vec::new(), Some(ListCursor::default()));
    while let Some(cursor) = at {
        at = rig.core().list_cached(disk, cursor, |cached| blocks.push(cached.block));
    }
    for block in blocks {
        rig.read(disk, block.0 * 8, 8);
    }
    let stats = rig.stats(disk);
    [stats.corrupt_blocks, stats.crash_dropped_blocks]
}

#[test]
fn a_block_that_a_commit_cut_short_has_overwritten_is_not_corrupt() {
    let (mut rig, disk) = cut_short();
    let [corrupt, dropped] = read_all(&mut rig, disk);
    assert_eq!(corrupt, 0);
    assert!(dropped > 0, "some blocks were overwritten");
}

#[test]
fn it_is_not_corrupt_after_a_clean_stop_either() {
    let (mut rig, _) = cut_short();
    let origins = std::mem::take(&mut rig.origins);
    let shelf = rig.shutdown();
    let mut rig = Rig::open(shelf, memory(), CoreConfig::default());
    rig.origins = origins;
    assert!(rig.report.clean_stop);
    let disk = rig.attach(&config(), 1);
    let [corrupt, dropped] = read_all(&mut rig, disk);
    assert_eq!(corrupt, 0);
    assert!(dropped > 0, "some blocks were overwritten");
}

#[test]
fn a_block_that_was_cached_since_the_crash_is_corrupt_if_it_is_damaged() {
    let (mut rig, disk) = cut_short();
    let [_, before] = read_all(&mut rig, disk);
    fill(&mut rig, disk, BLOCKS);
    rig.wait(10_000_000);
    let written = rig.log.iter().rev().find_map(|asked| match asked.action {
        Action::WriteDevice { offset_bytes, .. }
            if asked.purpose == Some(IoPurpose::Commit) && !is_page(asked) =>
        {
            Some(offset_bytes)
        }
        _ => None,
    });
    rig.device(DeviceNo(0)).rot(written.expect("a block was cached") + 5);
    assert_eq!(read_all(&mut rig, disk), [1, before]);
}
