//! Where each write mode sends data, and when it acknowledges writes.

use crate::common::*;
use haversack_core::{Action, CoreConfig, IoFailure, IoPurpose, Op, RequestError};
use haversack_model::{DiskNo, SECTOR_BYTES, WriteMode, WriteThroughAck};

const SECTORS: u64 = 8000;

fn rig(mode: WriteMode) -> (Rig, DiskNo) {
    let mut rig = Rig::new(&[6], false, CoreConfig::default());
    let disk = rig.disk(0, SECTORS, mode);
    rig.log.clear();
    (rig, disk)
}

fn count(rig: &Rig, what: impl Fn(&Requested) -> bool) -> usize {
    rig.log.iter().filter(|a| what(a)).count()
}

fn any_io(action: &Requested) -> bool {
    !matches!(action.action, Action::Complete { .. } | Action::Event(_))
}

/// Whether these sectors are read without the origin.
fn is_cached(rig: &mut Rig, disk: DiskNo, sector: u64, sectors: u32, value: u8) -> bool {
    let before = count(rig, is_origin_read);
    assert_eq!(rig.read(disk, sector, sectors), vec![value; sectors as usize]);
    count(rig, is_origin_read) == before
}

#[test]
fn a_flush_completes_when_a_discard_drops_the_block_it_waits_for() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    // The region is marked by the first discard, so that the second one need not wait.
    let first = rig.submit(disk, Op::Discard, 0, vec![0; 8 * 512]);
    rig.answered(first);
    rig.write(disk, 136, 8, 1);
    let discard = rig.submit(disk, Op::Discard, 136, vec![0; 8 * 512]);
    let flush = rig.start_flush(disk);
    rig.run_without(|a| matches!(a.action, Action::ZeroOrigin { .. }));
    assert!(!rig.is_answered(flush), "the block is staged yet");
    rig.run();
    assert!(rig.is_answered(discard) && rig.is_answered(flush));
}

#[test]
fn wb_answers_before_any_io() {
    let (mut rig, disk) = rig(WriteMode::WriteBack);
    let tag = rig.start_write(disk, 5, 20, 1);
    assert!(rig.is_answered(tag), "it is staged");
    assert_eq!(count(&rig, any_io), 0);
    assert_eq!(rig.usage(disk).dirty_blocks, 4);
    assert!(is_cached(&mut rig, disk, 5, 20, 1));
}

#[test]
fn wb_flush_is_answered_after_the_device_flush() {
    let (mut rig, disk) = rig(WriteMode::WriteBack);
    rig.write(disk, 5, 20, 1);
    let flush = rig.start_flush(disk);
    rig.run_without(is_device_flush);
    assert!(count(&rig, is_device_write) > 0 && count(&rig, is_device_flush) == 1);
    assert!(!rig.is_answered(flush));
    rig.answered(flush);
    assert_eq!(count(&rig, is_origin_write), 0, "the origin has no part in it");
}

#[test]
fn a_device_flush_follows_the_writes_that_it_covers() {
    let (mut rig, disk) = rig(WriteMode::WriteBack);
    rig.write(disk, 0, 8, 1);
    let flush = rig.start_flush(disk);
    rig.run_without(is_device_write);
    assert_eq!(count(&rig, is_device_flush), 0);
    rig.answered(flush);
}

#[test]
fn wb_fua_is_a_write_that_waits_for_the_device_flush() {
    let (mut rig, disk) = rig(WriteMode::WriteBack);
    let fua = rig.submit(disk, Op::Write { fua: true }, 3, vec![1; SECTOR_BYTES]);
    rig.run_without(is_device_flush);
    assert!(!rig.is_answered(fua));
    assert_eq!(rig.read(disk, 3, 1), [1]);
    rig.answered(fua);
}

#[test]
fn concurrent_flushes_share_one() {
    let (mut rig, disk) = rig(WriteMode::WriteBack);
    let other = rig.disk(1, SECTORS, WriteMode::WriteBack);
    rig.log.clear();
    rig.write(disk, 0, 8, 1);
    rig.write(other, 0, 8, 2);
    let flushes = [rig.start_flush(disk), rig.start_flush(other)];
    rig.run_without(is_device_flush);
    assert_eq!(rig.pending.len(), 1);
    let more: Vec<_> = (0..5).map(|_| rig.start_flush(disk)).collect();
    for tag in flushes.into_iter().chain(more) {
        rig.answered(tag);
    }
    assert!(count(&rig, is_device_flush) <= 2, "one more at most for those that came late");
}

#[test]
fn a_power_cut_keeps_what_was_flushed() {
    let (mut rig, disk) = rig(WriteMode::WriteBack);
    rig.write(disk, 0, 64, 1);
    rig.flush(disk);
    let mut rig = rig.after_power_cut(CoreConfig::default());
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    assert_eq!(rig.read(disk, 0, 64), [1; 64]);
}

#[test]
fn a_kill_keeps_what_was_acknowledged() {
    let (mut rig, disk) = rig(WriteMode::WriteBack);
    rig.write(disk, 0, 64, 1);
    let mut rig = rig.after_kill(CoreConfig::default());
    assert!(rig.report.staging_survived);
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    assert_eq!(rig.read(disk, 0, 64), [1; 64]);
}

#[test]
fn wt_answers_after_the_origin_has_it_and_keeps_it() {
    let (mut rig, disk) = rig(WriteMode::WriteThrough(WriteThroughAck::Origin));
    let tag = rig.start_write(disk, 5, 20, 1);
    rig.run_without(is_origin_write);
    assert!(!rig.is_answered(tag));
    assert_eq!(count(&rig, is_origin_write), 1);
    rig.answered(tag);
    assert_eq!(rig.origins[&disk].sectors(5, 20), [1; 20 * SECTOR_BYTES]);
    assert_eq!(rig.usage(disk).dirty_blocks, 0);
    assert!(is_cached(&mut rig, disk, 5, 20, 1));
}

#[test]
fn wt_marks_its_intent_durably_before_the_origin_is_written() {
    let (mut rig, disk) = rig(WriteMode::WriteThrough(WriteThroughAck::Origin));
    let tag = rig.start_write(disk, 5, 20, 1);
    rig.run_without(is_device_flush);
    assert_eq!(count(&rig, is_origin_write), 0, "the mark is not durable yet");
    rig.answered(tag);
    rig.log.clear();
    rig.write(disk, 40, 20, 2);
    assert_eq!(count(&rig, is_device_write), 0, "the region is marked already");
}

#[test]
fn wt_flush_flushes_the_origin() {
    for mode in ["wt", "wa", "wi", "pt"] {
        let (mut rig, disk) = rig(mode.parse().expect("a mode"));
        rig.write(disk, 5, 20, 1);
        let flush = rig.start_flush(disk);
        rig.run_without(is_origin_flush);
        assert!(!rig.is_answered(flush), "{mode}");
        rig.answered(flush);
        assert_eq!(rig.origins[&disk].flushed_writes, rig.origins[&disk].writes);
        let again = rig.start_flush(disk);
        rig.run_without(is_origin_flush);
        assert!(rig.is_answered(again), "{mode}: nothing was written since");
    }
}

#[test]
fn wt_fua_waits_for_the_origin_flush() {
    let (mut rig, disk) = rig(WriteMode::WriteThrough(WriteThroughAck::Origin));
    let fua = rig.submit(disk, Op::Write { fua: true }, 3, vec![1; SECTOR_BYTES]);
    rig.run_without(is_origin_flush);
    assert!(!rig.is_answered(fua));
    rig.answered(fua);
}

#[test]
fn wt_cache_answers_at_once_and_is_cleaned_eagerly() {
    let (mut rig, disk) = rig(WriteMode::WriteThrough(WriteThroughAck::Cache));
    let tag = rig.start_write(disk, 5, 20, 1);
    assert!(rig.is_answered(tag));
    rig.run();
    assert_eq!(rig.origins[&disk].sectors(5, 20), [1; 20 * SECTOR_BYTES], "no time had to pass");
    assert_eq!(rig.usage(disk).dirty_blocks, 0);
    assert!(is_cached(&mut rig, disk, 5, 20, 1));
}

#[test]
fn wa_updates_what_is_cached_and_brings_nothing_in() {
    let (mut rig, disk) = rig(WriteMode::WriteAround);
    rig.read(disk, 0, 16);
    let tag = rig.start_write(disk, 0, 32, 1);
    rig.run_without(is_origin_write);
    assert!(!rig.is_answered(tag));
    rig.answered(tag);
    assert!(is_cached(&mut rig, disk, 0, 16, 1), "the cached blocks were updated");
    assert!(!is_cached(&mut rig, disk, 16, 16, 1), "the others were not brought in");
}

#[test]
fn wi_drops_what_is_cached() {
    let (mut rig, disk) = rig(WriteMode::WriteInvalidate);
    rig.read(disk, 0, 16);
    assert!(is_cached(&mut rig, disk, 0, 16, 7));
    rig.write(disk, 0, 8, 1);
    assert!(is_cached(&mut rig, disk, 8, 8, 7));
    assert!(!is_cached(&mut rig, disk, 0, 8, 1));
    assert!(is_cached(&mut rig, disk, 0, 8, 1), "reads bring it in again");
}

#[test]
fn pt_keeps_nothing() {
    let (mut rig, disk) = rig(WriteMode::PassThrough);
    rig.read(disk, 0, 16);
    rig.write(disk, 0, 8, 1);
    assert!(!is_cached(&mut rig, disk, 0, 8, 1));
    assert!(!is_cached(&mut rig, disk, 8, 8, 7));
    assert_eq!(rig.usage(disk).usage_blocks, 0);
}

#[test]
fn after_leaving_wb_a_dirty_block_is_cleaned_before_a_write_past_the_cache() {
    let (mut rig, disk) = rig(WriteMode::WriteBack);
    rig.write(disk, 0, 8, 1);
    let now = rig.now;
    let job = rig.core().set_mode(now, disk, WriteMode::WriteInvalidate).expect("no job runs");
    rig.finish(job);
    rig.log.clear();
    rig.write(disk, 2, 2, 2);
    assert_eq!(rig.read(disk, 0, 8), [1, 1, 2, 2, 1, 1, 1, 1]);
    assert_eq!(count(&rig, is_origin_write), 2, "the block, and then the write");
    assert_eq!(rig.usage(disk).dirty_blocks, 0);
}

#[test]
fn discard_and_write_zeroes_reach_the_origin_and_read_as_zeroes() {
    for mode in ["wb", "wt", "wt-cache", "wa", "wi", "pt"] {
        for op in [Op::Discard, Op::WriteZeroes] {
            let (mut rig, disk) = rig(mode.parse().expect("a mode"));
            rig.write(disk, 0, 64, 1);
            let tag = rig.submit(disk, op, 3, vec![0; 40 * SECTOR_BYTES]);
            rig.run_without(is_origin_write);
            assert!(!rig.is_answered(tag), "{mode}");
            rig.answered(tag);
            let freed = |a: &Requested| matches!(a.action, Action::ZeroOrigin { discard, .. } if discard);
            assert_eq!(count(&rig, freed) > 0, op == Op::Discard);
            assert_eq!(rig.read(disk, 0, 64), [vec![1; 3], vec![0; 40], vec![1; 21]].concat(), "{mode}");
        }
    }
}

#[test]
fn zeroes_over_a_partly_dirty_block_replace_its_clean_sectors() {
    for op in [Op::Discard, Op::WriteZeroes] {
        let (mut rig, disk) = rig(WriteMode::WriteBack);
        rig.write(disk, 0, 4, 1);
        rig.flush(disk);
        assert_eq!(rig.read(disk, 0, 8), [1, 1, 1, 1, 7, 7, 7, 7]);
        let tag = rig.submit(disk, op, 0, vec![0; 8 * SECTOR_BYTES]);
        rig.answered(tag);
        assert_eq!(rig.read(disk, 0, 8), [0; 8]);
    }
}

#[test]
fn an_origin_that_fails_a_write_fails_the_request() {
    for mode in ["wt", "wa", "wi", "pt"] {
        let (mut rig, disk) = rig(mode.parse().expect("a mode"));
        rig.origins.get_mut(&disk).expect("an origin").down = true;
        let tag = rig.start_write(disk, 0, 8, 1);
        assert_eq!(rig.answer(tag), Err(haversack_core::RequestError::Origin), "{mode}");
        rig.origins.get_mut(&disk).expect("an origin").down = false;
        assert_eq!(rig.read(disk, 0, 8), [7; 8], "{mode}");
        assert_eq!(rig.stats(disk).failed_requests, 1);
    }
}

/// Clean fills are not urgent. So they are committed in batches, even for a disk whose dirty blocks are committed and
/// cleaned immediately.
#[test]
fn clean_fills_are_committed_together_in_every_mode() {
    let modes =
        [WriteMode::WriteBack, WriteMode::WriteThrough(WriteThroughAck::Cache), WriteMode::WriteInvalidate];
    for mode in modes {
        let mut rig = Rig::new(&[8], false, CoreConfig { commit_blocks: 16, ..CoreConfig::default() });
        let disk = rig.disk(0, 8000, mode);
        rig.log.clear();
        for block in 0..32 {
            rig.read(disk, block * 16, 8);
        }
        let commits = rig.log.iter().filter(|asked| asked.purpose == Some(IoPurpose::Commit)).count();
        assert_eq!(rig.usage(disk).usage_blocks, 32, "{mode}");
        assert_eq!(commits, 2 * 2, "{mode}: two batches, each with its page");
    }
}

#[test]
fn a_read_of_a_part_brings_the_whole_block_in() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    rig.read(disk, 3, 1);
    rig.log.clear();
    rig.read(disk, 0, 8);
    assert!(!rig.log.iter().any(is_origin_read), "the other sectors were fetched with the first");
    assert_eq!((rig.stats(disk).read_misses, rig.stats(disk).read_hits), (1, 1));
}

#[test]
fn a_read_of_a_part_succeeds_beside_a_bad_sector_of_the_origin() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    let holds_bad = |asked: &Requested| match asked.action {
        Action::ReadOrigin { sector, sectors, .. } => (sector.0..sector.0 + u64::from(sectors)).contains(&5),
        _ => false,
    };
    let fate = |asked: &Requested| if holds_bad(asked) { Fate::Fail(IoFailure::Error) } else { Fate::Done };
    let good = rig.start_read(disk, 3, 1);
    rig.run_with(fate);
    assert_eq!(rig.answer(good), Ok(()));
    let bad = rig.start_read(disk, 5, 1);
    rig.run_with(fate);
    assert_eq!(rig.answer(bad), Err(RequestError::Origin));
}
