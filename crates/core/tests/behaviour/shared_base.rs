//! Disks made from a base image read what they share with it through the base's disk.

use haversack_core::{Action, BaseBlocks, CoreConfig, DiskConfig, IoFailure, MonitorConfig, Op, Records};
use haversack_model::{BlockNo, DiskNo, HostId, WriteMode, WriteThroughAck};

use crate::common::*;

const SECTORS: u64 = 4096;
/// What the base contains. Origins of other disks contain [`OF_ORIGIN`], so that a test sees where data comes from.
const OF_BASE: u8 = 66;

fn config(number: u8) -> DiskConfig {
    DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(number), SECTORS) }
}

/// A base, and disks of which the first 1,024 sectors are shared with it.
fn clones(count: u8) -> (Rig, DiskNo, Vec<DiskNo>) {
    let mut rig = Rig::new(&[8], false, CoreConfig { commit_blocks: 1, ..CoreConfig::default() });
    let base =
        rig.attach(&DiskConfig { mode: WriteMode::WriteThrough(WriteThroughAck::Origin), ..config(0) }, 1);
    rig.origins.insert(base, Origin::new(vec![OF_BASE; SECTORS as usize * 512]));
    let clones: Vec<DiskNo> = (1..=count).map(|number| rig.attach(&config(number), 1)).collect();
    for clone in &clones {
        share(&mut rig, *clone, base);
    }
    (rig, base, clones)
}

fn share(rig: &mut Rig, clone: DiskNo, base: DiskNo) {
    let now = rig.now;
    let sharing = rig.core().share_base(now, clone, base).expect("it can be shared");
    assert!(rig.core().share_blocks(clone, sharing, first_1024()));
}

fn first_1024() -> BaseBlocks {
    let mut blocks = BaseBlocks::new(SECTORS, 0, SECTORS);
    blocks.add(0, 1024);
    blocks
}

fn refusal(rig: &mut Rig, clone: DiskNo, base: DiskNo) -> String {
    let now = rig.now;
    rig.core().share_base(now, clone, base).expect_err("it cannot be shared").to_string()
}

#[test]
fn one_cached_copy_serves_all_clones() {
    let (mut rig, base, clones) = clones(3);
    for clone in &clones {
        assert_eq!(rig.read(*clone, 0, 16), [OF_BASE; 16]);
    }
    let counts = |rig: &Rig, disk| (rig.stats(disk).read_hits, rig.stats(disk).read_misses);
    assert_eq!(counts(&rig, base), (4, 2), "the first clone missed, the others hit");
    for clone in &clones {
        assert_eq!((counts(&rig, *clone), rig.stats(*clone).base_blocks), ((0, 0), 2));
        assert_eq!((rig.stats(*clone).origin_read_bytes, rig.usage(*clone).usage_blocks), (0, 0));
    }
    assert_eq!(rig.usage(base).usage_blocks, 2);
}

#[test]
fn a_read_across_shared_and_own_blocks_has_each_in_its_place() {
    let (mut rig, _, clones) = clones(1);
    rig.write(clones[0], 11, 2, 1);
    let mut expected = vec![OF_BASE; 5];
    // The disk's other sectors of a partly written block come from its own origin.
    expected.extend([OF_ORIGIN, OF_ORIGIN, OF_ORIGIN, 1, 1, OF_ORIGIN, OF_ORIGIN, OF_ORIGIN]);
    expected.extend([OF_BASE; 8]);
    assert_eq!(rig.read(clones[0], 3, 21), expected);
    let mut expected = vec![OF_BASE; 14];
    expected.extend([OF_ORIGIN; 20]);
    assert_eq!(rig.read(clones[0], 1010, 34), expected);
}

#[test]
fn many_runs_of_shared_blocks_are_one_read() {
    let (mut rig, _, clones) = clones(1);
    for block in 0..60 {
        rig.write(clones[0], block * 16, 8, 1);
    }
    let expected: Vec<u8> =
        (0..120).flat_map(|block| [if block % 2 == 0 { 1 } else { OF_BASE }; 8]).collect();
    assert_eq!(rig.read(clones[0], 0, 960), expected);
}

#[test]
fn what_is_written_is_not_shared_after_it_has_left_the_cache() {
    for op in [Op::Write { fua: false }, Op::WriteZeroes, Op::Discard] {
        let (mut rig, base, clones) = clones(2);
        rig.read(clones[0], 0, 64);
        let payload = vec![3; if matches!(op, Op::Write { .. }) { 8 * 512 } else { 0 }];
        let tag = rig.submit_sized(clones[0], op, 8, 8, payload).expect("it is taken");
        rig.answered(tag);
        rig.clean(clones[0]);
        let epoch = 2;
        // After an attach under a higher epoch, nothing of the disk is cached. Sharing begins again with a new answer
        // of the origin.
        let now = rig.now;
        let job = rig.core().release(now, clones[0]).expect("it is attached");
        rig.finish(job);
        rig.attach(&config(1), epoch);
        let own = if matches!(op, Op::Write { .. }) { 3 } else { 0 };
        assert_eq!(rig.read(clones[0], 0, 24)[8], own, "{op:?}");
        assert_eq!(rig.read(clones[1], 8, 8), [OF_BASE; 8], "{op:?}");
        assert_eq!(rig.running().base_usage(clones[1]).map(|usage| usage.base), Some(base));
    }
}

#[test]
fn blocks_that_were_dirty_or_being_written_when_sharing_began_are_the_disks_own() {
    let mut rig = Rig::new(&[8], false, CoreConfig { commit_blocks: 1, ..CoreConfig::default() });
    let base = rig.attach(&config(0), 1);
    rig.origins.insert(base, Origin::new(vec![OF_BASE; SECTORS as usize * 512]));
    let clone = rig.attach(&config(1), 1);
    rig.write(clone, 0, 8, 1);
    rig.flush(clone);
    rig.write(clone, 8, 8, 2);
    let through =
        rig.attach(&DiskConfig { mode: WriteMode::WriteThrough(WriteThroughAck::Origin), ..config(2) }, 1);
    let held = rig.start_write(through, 0, 8, 3);
    rig.run_without(|asked| matches!(asked.action, Action::WriteOrigin { .. }));
    for disk in [clone, through] {
        share(&mut rig, disk, base);
    }
    rig.answered(held);
    rig.clean(clone);
    assert_eq!(rig.running().base_usage(clone).map(|usage| usage.shared_blocks), Some(126));
    assert_eq!(rig.running().base_usage(through).map(|usage| usage.shared_blocks), Some(127));
    assert_eq!(rig.read(clone, 0, 24), [[1; 8], [2; 8], [OF_BASE; 8]].concat());
    assert_eq!(rig.read(through, 0, 16), [[3; 8], [OF_BASE; 8]].concat());
}

#[test]
fn a_change_between_the_question_and_the_answer_counts() {
    let (mut rig, base, clones) = clones(1);
    let now = rig.now;
    let sharing = rig.core().share_base(now, clones[0], base).expect("it can be shared again");
    rig.write(clones[0], 0, 8, 5);
    rig.clean(clones[0]);
    assert_eq!(rig.read(clones[0], 8, 8), [OF_ORIGIN; 8], "nothing is shared before the answer");
    assert!(rig.core().share_blocks(clones[0], sharing, first_1024()));
    assert_eq!(rig.running().base_usage(clones[0]).map(|usage| usage.shared_blocks), Some(127));
    assert_eq!(rig.read(clones[0], 0, 8), [5; 8]);
}

#[test]
fn an_answer_from_before_sharing_began_again_is_not_used() {
    let (mut rig, base, clones) = clones(1);
    let clone = clones[0];
    let now = rig.now;
    let first = rig.core().share_base(now, clone, base).expect("it can be shared again");
    // The origin is asked now. Before sharing begins a second time, a block is written and cleaned.
    let answer = first_1024();
    rig.write(clone, 0, 8, 5);
    rig.clean(clone);
    let second = rig.core().share_base(now, clone, base).expect("it can be shared again");
    assert!(!rig.core().share_blocks(clone, first, answer));
    assert_eq!(rig.running().base_usage(clone).map(|usage| usage.is_known), Some(false));
    let mut now_shared = BaseBlocks::new(SECTORS, 0, SECTORS);
    now_shared.add(8, 1016);
    assert!(rig.core().share_blocks(clone, second, now_shared));
    assert_eq!(rig.read(clone, 0, 16), [[5; 8], [OF_BASE; 8]].concat());
}

#[test]
fn a_disk_whose_base_has_left_is_recorded_as_before() {
    let (mut rig, base, clones) = clones(1);
    rig.core().set_monitor(clones[0], Some(MonitorConfig::default())).expect("it is known");
    let now = rig.now;
    let job = rig.core().release(now, base).expect("it is attached");
    rig.finish(job);
    rig.read(clones[0], 0, 16);
    let mut records = Records::default();
    assert!(rig.core().take_records(clones[0], &mut records));
    assert_eq!(records.iter().map(|record| (record.sector, record.sectors)).collect::<Vec<_>>(), [(0, 16)]);
}

#[test]
fn without_its_base_a_disk_reads_its_own_origin() {
    let (mut rig, base, clones) = clones(1);
    let held = rig.start_read(clones[0], 0, 8);
    // The base's origin fails while a read is on its way.
    rig.run_with(|asked| match asked.action {
        Action::ReadOrigin { disk, .. } if disk == base => Fate::Fail(IoFailure::Error),
        _ => Fate::Done,
    });
    rig.answered(held);
    assert_eq!(rig.buffer(held)[0], OF_ORIGIN);
    let now = rig.now;
    let job = rig.core().detach(now, base).expect("it is attached");
    rig.finish(job);
    assert_eq!(rig.read(clones[0], 8, 8), [OF_ORIGIN; 8]);
    assert_eq!(rig.running().base_usage(clones[0]), None);
}

#[test]
fn a_base_is_detached_when_the_reads_through_it_have_ended() {
    let (mut rig, base, clones) = clones(1);
    let read = rig.start_read(clones[0], 0, 8);
    let now = rig.now;
    let job = rig.core().detach(now, base).expect("it is attached");
    rig.run_without(|asked| matches!(asked.action, Action::ReadOrigin { .. }));
    assert!(!rig.jobs.contains_key(&job));
    rig.answered(read);
    rig.finish(job);
}

#[test]
fn a_write_to_the_base_ends_sharing() {
    let (mut rig, base, clones) = clones(2);
    rig.write(base, 0, 8, 9);
    for clone in clones {
        assert_eq!(rig.running().base_usage(clone), None);
        assert_eq!(rig.read(clone, 0, 8), [OF_ORIGIN; 8]);
    }
}

#[test]
fn a_disk_that_shrinks_and_grows_has_none_of_the_base_beyond() {
    let (mut rig, _, clones) = clones(1);
    let clone = clones[0];
    for sectors in [516, SECTORS] {
        let now = rig.now;
        let job = rig.core().resize(now, clone, sectors).expect("it is attached");
        rig.finish(job);
    }
    assert_eq!(rig.running().base_usage(clone).map(|usage| usage.shared_blocks), Some(64));
    assert_eq!(rig.read(clone, 504, 16), [[OF_BASE; 8], [OF_ORIGIN; 8]].concat());
}

#[test]
fn a_disk_that_grows_has_none_of_the_base_in_the_rest_of_its_last_block() {
    let (mut rig, base, _) = clones(0);
    let clone = rig.attach(&DiskConfig { sectors: 1001, ..config(1) }, 1);
    rig.origins.insert(clone, Origin::new(vec![OF_ORIGIN; SECTORS as usize * 512]));
    let now = rig.now;
    let sharing = rig.core().share_base(now, clone, base).expect("it can be shared");
    let mut blocks = BaseBlocks::new(1001, 0, 1001);
    blocks.add(0, 1001);
    assert!(rig.core().share_blocks(clone, sharing, blocks));
    assert_eq!(rig.read(clone, 996, 5), [OF_BASE; 5]);
    let job = rig.core().resize(now, clone, SECTORS).expect("it is attached");
    rig.finish(job);
    assert_eq!(rig.read(clone, 996, 12), [[OF_BASE; 4].as_slice(), &[OF_ORIGIN; 8]].concat());
}

#[test]
fn an_answer_for_another_size_than_the_disk_has_is_not_used() {
    let (mut rig, base, _) = clones(0);
    let clone = rig.attach(&config(1), 1);
    let now = rig.now;
    let sharing = rig.core().share_base(now, clone, base).expect("it can be shared");
    // An answer from before the disk grew: its last block had one sector.
    let mut blocks = BaseBlocks::new(1001, 0, 1001);
    blocks.add(0, 1001);
    assert!(!rig.core().share_blocks(clone, sharing, blocks));
    assert_eq!(rig.read(clone, 1000, 8), [OF_ORIGIN; 8]);
    assert!(rig.core().share_blocks(clone, sharing, first_1024()));
}

#[test]
fn sharing_does_not_begin_while_a_size_changes() {
    let (mut rig, base, _) = clones(0);
    let clone = rig.attach(&config(1), 1);
    for disk in [clone, base] {
        let now = rig.now;
        let job = rig.core().resize(now, disk, 516).expect("it is attached");
        assert!(refusal(&mut rig, clone, base).contains("another management job"));
        rig.finish(job);
    }
    rig.core().share_base(0, clone, base).expect("the sizes do not change any more");
}

#[test]
fn a_write_to_the_base_is_not_seen_by_a_read_that_began_before() {
    let (mut rig, base, clones) = clones(1);
    let fills = |asked: &Requested| matches!(asked.action, Action::ReadOrigin { .. });
    let own = rig.start_read(base, 0, 8);
    rig.run_without(fills);
    // The part that is read through the base waits until its block is filled.
    let read = rig.start_read(clones[0], 0, 16);
    let mode = WriteMode::WriteBack;
    let now = rig.now;
    let job = rig.core().set_mode(now, base, mode).expect("it is attached");
    rig.run_without(fills);
    assert!(rig.jobs.contains_key(&job));
    let write = rig.start_write(base, 8, 8, 9);
    rig.run_without(fills);
    assert!(rig.is_answered(write) && !rig.is_answered(read));
    rig.answered(own);
    rig.answered(read);
    let bytes = rig.buffer(read);
    assert_eq!((bytes[0], bytes[8 * 512]), (OF_ORIGIN, OF_ORIGIN));
}

#[test]
fn a_base_that_was_forgotten_is_another_disk_when_it_is_back() {
    let (mut rig, base, clones) = clones(2);
    let now = rig.now;
    let job = rig.core().release(now, base).expect("it is attached");
    rig.finish(job);
    let job = rig.core().forget(now, base, None).expect("it is released");
    rig.finish(job);
    assert_eq!(rig.attach(&config(0), 1), base, "it has the same number and epoch");
    share(&mut rig, clones[0], base);
    assert_eq!(rig.running().base_usage(clones[1]), None);
}

#[test]
fn a_disk_with_blocks_on_another_host_has_no_base_and_is_none() {
    let mut rig = Rig::new(&[8], false, CoreConfig::default());
    let moved = rig.core().expect_disk(0, &config(0)).expect("the disk is not known");
    rig.origins.insert(moved, Origin::new(vec![OF_BASE; SECTORS as usize * 512]));
    let there = [(BlockNo(0), u8::MAX)];
    rig.core().list_peer_blocks(0, moved, HostId(9), &there, true).expect("the disk is expected");
    let job = rig.core().claim(0, moved, 2).expect("the disk is expected");
    rig.finish(job);
    let other = rig.attach(&config(1), 1);
    for (disk, base) in [(moved, other), (other, moved)] {
        assert!(refusal(&mut rig, disk, base).contains("is moving between hosts"));
    }
}

#[test]
fn unfit_bases_are_refused() {
    let (mut rig, base, clones) = clones(2);
    assert!(refusal(&mut rig, base, base).contains("is the disk itself"));
    assert!(refusal(&mut rig, clones[0], clones[1]).contains("has a base itself"));
    assert!(refusal(&mut rig, base, clones[1]).contains("has a base itself"));
    let odd = rig.attach(&DiskConfig { phase: 7, ..config(5) }, 1);
    assert!(refusal(&mut rig, odd, base).contains("another grid phase"));
    let new = rig.attach(&config(6), 1);
    assert!(refusal(&mut rig, base, new).contains("would be the base of another disk's base"));
    rig.write(new, 0, 8, 1);
    assert!(refusal(&mut rig, odd, new).contains("another grid phase"));
    let clone = rig.attach(&config(7), 1);
    assert!(refusal(&mut rig, clone, new).contains("that its origin does not have"));
}

#[test]
fn a_guests_read_is_recorded_once() {
    let (mut rig, base, clones) = clones(1);
    rig.write(clones[0], 16, 8, 1);
    for disk in [base, clones[0]] {
        rig.core().set_monitor(disk, Some(MonitorConfig::default())).expect("it is known");
    }
    rig.read(clones[0], 4, 40);
    let mut records = Records::default();
    let mut parts = |disk| {
        assert!(rig.core().take_records(disk, &mut records));
        records.iter().map(|record| (record.sector, record.sectors)).collect::<Vec<_>>()
    };
    assert_eq!(parts(clones[0]), [(16, 8)]);
    assert_eq!(parts(base), [(4, 12), (24, 20)]);
}
