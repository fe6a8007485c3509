//! Space that is lent to other hosts.

use std::time::{Duration, Instant};

use haversack_core::{Copied, CoreConfig, DiskConfig, JobId, Rejected, RequestTag};
use haversack_model::{BLOCK_BYTES, BlockNo, DiskNo, WriteMode, WriteThroughAck};

use crate::common::{Rig, disk_id};

/// Lends space for this many blocks, and stores all of them.
fn lent(rig: &mut Rig, blocks: u64) -> DiskNo {
    let config = DiskConfig::new(disk_id(9), blocks * 8);
    let disk = rig.core().lend_space(0, &config).expect("the disk is not known");
    for block in 0..blocks {
        let tag = RequestTag(1 << 32 | block);
        rig.give_buffer(tag, vec![1; BLOCK_BYTES]);
        let (now, copied) = (rig.now, Copied { mask: 255, reused: false });
        assert_eq!(rig.core().take_copy(now, tag, disk, BlockNo(block), copied), Ok(true));
        rig.run();
    }
    disk
}

fn end_loan(rig: &mut Rig, disk: DiskNo) -> JobId {
    let now = rig.now;
    rig.core().end_loan(now, disk).expect("it is lent")
}

/// Reads a block that is, or was, lent.
fn read(rig: &mut Rig, disk: DiskNo, block: u64) -> Result<Option<Copied>, Rejected> {
    let (now, tag) = (rig.now, RequestTag(2 << 32 | block));
    rig.give_buffer(tag, vec![0; BLOCK_BYTES]);
    rig.core().read_copy(now, tag, disk, BlockNo(block), 0)
}

/// Ends the next I/O, or advances the time until the core wants to be called.
fn call(rig: &mut Rig) {
    if !rig.pending.is_empty() {
        return rig.end(0, Ok(()));
    }
    rig.now = rig.core().next_wakeup().map_or(rig.now + 1_000_000, |at| at.max(rig.now));
    let now = rig.now;
    rig.core().tick(now);
    rig.collect();
}

/// Runs the job that `begin` starts, which frees a disk's space call by call, until it ends. Checks that no call frees
/// more than two segments and the staged blocks. Prints how long the longest call takes, since the arena does nothing
/// else during a call.
fn free_in_steps(
    rig: &mut Rig,
    disk: DiskNo,
    begin: impl FnOnce(&mut Rig) -> JobId,
    mut look: impl FnMut(&mut Rig, bool),
) {
    let most = 2 * 253 + u64::from(rig.staging_frames());
    let used = |rig: &Rig| rig.running().disk_usage(disk).map_or(0, |usage| usage.usage_blocks);
    let (mut before, mut since) = (used(rig), Instant::now());
    let job = begin(rig);
    rig.collect();
    let (mut longest, mut calls) = (Duration::ZERO, 0);
    loop {
        longest = longest.max(since.elapsed());
        calls += 1;
        assert!(calls < 100_000, "the job does not end");
        assert!(before - used(rig) <= most, "a call frees {} blocks", before - used(rig));
        let is_done = rig.jobs.contains_key(&job);
        look(rig, is_done);
        if is_done {
            break;
        }
        (before, since) = (used(rig), Instant::now());
        call(rig);
    }
    assert_eq!(rig.jobs[&job], Ok(()));
    println!("the longest of {calls} calls took {longest:?}, and the last one ended at {} us", rig.now);
}

#[test]
fn the_largest_loan_is_freed_in_short_steps() {
    const BLOCKS: u64 = 1 << 16;
    let mut rig = Rig::new(&[300], false, CoreConfig::default());
    let free = rig.running().free_blocks();
    let disk = lent(&mut rig, BLOCKS);
    assert!(rig.running().free_blocks().0 + BLOCKS <= free.0);
    free_in_steps(&mut rig, disk, |rig| end_loan(rig, disk), |_, _| ());
    assert_eq!(rig.running().free_blocks(), free);
}

#[test]
fn nothing_is_read_of_a_loan_that_is_being_freed() {
    let mut rig = Rig::new(&[30], false, CoreConfig::default());
    let disk = lent(&mut rig, 2000);
    assert!(matches!(read(&mut rig, disk, 7), Ok(Some(_))), "it is there before");
    let again = DiskConfig::new(disk_id(9), 2000 * 8);
    free_in_steps(
        &mut rig,
        disk,
        |rig| end_loan(rig, disk),
        |rig, is_done| {
            assert_eq!(read(rig, disk, 1999).ok().flatten(), None);
            let now = rig.now;
            assert!(is_done || rig.core().lend_space(now, &again).is_err());
        },
    );
}

#[test]
fn nothing_of_a_loan_is_left_after_a_crash_while_it_is_freed() {
    for (calls, cuts) in [1, 4, 8, 16].into_iter().flat_map(|calls| [(calls, false), (calls, true)]) {
        let mut rig = Rig::new(&[30], false, CoreConfig::default());
        let disk = lent(&mut rig, 4000);
        end_loan(&mut rig, disk);
        rig.collect();
        (0..calls).for_each(|_| call(&mut rig));
        assert!(rig.running().disk_usage(disk).is_some(), "it is not done after {calls} calls");
        let config = CoreConfig::default();
        let mut rig = if cuts { rig.after_power_cut(config) } else { rig.after_kill(config) };
        for number in rig.running().disk_numbers().collect::<Vec<_>>() {
            assert_eq!(read(&mut rig, number, 7).ok().flatten(), None, "after {calls} calls");
            let now = rig.now;
            let job = rig.core().forget(now, number, None).expect("it is not attached");
            rig.finish(job);
        }
        rig.wait(10_000_000);
        assert_eq!(rig.running().free_blocks(), (30 * 253, 30 * 253), "after {calls} calls");
    }
}

/// The space of a detached disk is freed in the same way.
#[test]
fn a_detached_disk_is_forgotten_in_short_steps() {
    let mut rig = Rig::new(&[60], false, CoreConfig::default());
    let disk = rig.disk(1, 8000 * 8, WriteMode::WriteThrough(WriteThroughAck::Origin));
    for block in 0..8000 {
        rig.write(disk, block * 8, 8, 3);
    }
    let now = rig.now;
    let job = rig.core().detach(now, disk).expect("it is attached");
    rig.finish(job);
    assert!(rig.usage(disk).usage_blocks >= 7000);
    let now = rig.now;
    let begin = |rig: &mut Rig| rig.core().forget(now, disk, None).expect("nothing is dirty");
    free_in_steps(&mut rig, disk, begin, |_, _| ());
    assert_eq!(rig.running().free_blocks().0, 60 * 253);
}
