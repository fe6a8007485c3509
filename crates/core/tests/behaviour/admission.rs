//! Which blocks enter the cache: admission filters and the data stage.

use crate::common::*;
use haversack_core::{AdmissionConfig, CoreConfig, DiskConfig, Op, StagingKind, Target};
use haversack_model::random::Random;
use haversack_model::{DiskNo, WriteMode, WriteThroughAck};

const SECTORS: u64 = 40_000;

#[test]
fn reuse_admits_a_block_at_its_nth_reuse() {
    for n in 1..4 {
        let mut rig = Rig::new(&[8], false, CoreConfig::default());
        let disk = reader(&mut rig, 0, Target::Equal);
        rig.core().set_admission(0, disk, AdmissionConfig::reuse(n, 100)).expect("attached");
        for _ in 0..n {
            rig.read(disk, 80, 8);
            assert_eq!(rig.usage(disk).usage_blocks, 0);
        }
        rig.read(disk, 80, 8);
        assert_eq!(rig.usage(disk).usage_blocks, 1);
        assert_eq!((rig.stats(disk).not_admitted, rig.stats(disk).read_misses), (n.into(), u64::from(n) + 1));
        rig.read(disk, 80, 8);
        assert_eq!(rig.stats(disk).read_hits, 1);
    }
}

#[test]
fn reuse_forgets_addresses_that_were_not_seen_for_long() {
    let mut rig = Rig::new(&[8], false, CoreConfig::default());
    let disk = reader(&mut rig, 0, Target::Equal);
    rig.core().set_admission(0, disk, AdmissionConfig::reuse(1, 10)).expect("attached");
    rig.read(disk, 0, 8);
    rig.read(disk, 800, 80);
    rig.read(disk, 0, 8);
    assert_eq!(rig.usage(disk).usage_blocks, 0);
}

#[test]
fn staged_writes_pass_the_filter_whole() {
    let mut rig = Rig::new(&[8], false, CoreConfig::default());
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    rig.core().set_admission(0, disk, AdmissionConfig::reuse(1, 100)).expect("attached");
    rig.write(disk, 0, 16, 1);
    assert_eq!((rig.usage(disk).usage_blocks, rig.stats(disk).not_admitted), (0, 2));
    assert_eq!(rig.origins[&disk].sectors(0, 16), [1; 16 * 512], "the origin has what the cache has not");
    rig.write(disk, 8, 16, 2);
    assert_eq!(rig.usage(disk).dirty_blocks, 2, "one block may enter, the other comes with it");
    assert_eq!(rig.origins[&disk].sectors(8, 8), [1; 8 * 512]);
    rig.write(disk, 8, 8, 3);
    assert_eq!((rig.usage(disk).dirty_blocks, rig.stats(disk).not_admitted), (2, 2));
    assert_eq!(rig.read(disk, 0, 24), [&[1; 8][..], &[3; 8], &[2; 8]].concat());
}

#[test]
fn larc_lets_in_what_is_missed_again_soon() {
    let mut rig = Rig::new(&[8], false, CoreConfig::default());
    let disk = reader(&mut rig, 0, Target::Equal);
    rig.core().set_admission(0, disk, AdmissionConfig::Larc { cache_blocks: 100 }).expect("attached");
    rig.read(disk, 0, 8);
    rig.read(disk, 0, 8);
    assert_eq!(rig.usage(disk).usage_blocks, 1);
    rig.read(disk, 80, 8);
    fill(&mut rig, disk, 40);
    rig.read(disk, 80, 8);
    assert_eq!(
        rig.stats(disk).read_hits,
        1 + 1,
        "block 0 was hit by the scan, block 10 was a ghost within it"
    );
}

#[test]
fn hec_lets_in_what_is_touched_again() {
    let mut rig = Rig::new(&[8], false, CoreConfig::default());
    let disk = reader(&mut rig, 0, Target::Equal);
    let hec = AdmissionConfig::Hec { region_blocks: 64, run_blocks: 16 };
    rig.core().set_admission(0, disk, hec).expect("attached");
    rig.read(disk, 0, 64 * 8);
    assert_eq!(rig.usage(disk).usage_blocks, 0, "a scan of new ground is one touch");
    rig.read(disk, 0, 64 * 8);
    assert_eq!(rig.usage(disk).usage_blocks, 16, "a long run is cut off");
    rig.read(disk, 40 * 8, 8);
    assert_eq!(rig.usage(disk).usage_blocks, 17);
}

/// Two disks share a pool of 2,024 blocks. One disk reads the same 200 blocks repeatedly; the other reads 5,000 blocks
/// in sequence.
#[test]
fn learned_keeps_out_what_returns_too_late() {
    let mut rig = Rig::new(&[8], false, CoreConfig::default());
    let disks = [reader(&mut rig, 0, SHARED), reader(&mut rig, 1, SHARED)];
    for disk in disks {
        rig.core().set_admission(0, disk, AdmissionConfig::Learned).expect("attached");
    }
    let (mut before, mut random) = (None, Random::new(1));
    for round in 0..4500 {
        rig.read(disks[0], random.below(200) * 8, 8);
        rig.read(disks[1], round * 64 % SECTORS, 64);
        if round == 4000 {
            before = Some(disks.map(|disk| rig.stats(disk)));
        }
    }
    let [again, scanned] = before.expect("it came by");
    let hits = rig.stats(disks[0]).read_hits - again.read_hits;
    assert!(hits > 450, "{hits} of 499");
    let now = rig.stats(disks[1]);
    let (misses, kept_out) = (now.read_misses - scanned.read_misses, now.not_admitted - scanned.not_admitted);
    assert!(misses > 2000 && kept_out * 4 > misses * 3, "{kept_out} of {misses}");
}

/// When a full pool is opened again, its filter continues from what it had learned. The filter of an empty pool admits
/// everything.
#[test]
fn what_admission_has_learned_outlives_a_restart() {
    let learns = |rig: &mut Rig, disk| {
        rig.core().set_admission(0, disk, AdmissionConfig::Learned).expect("attached");
    };
    let scan = |rig: &mut Rig, disk, rounds: std::ops::Range<u64>| {
        let before = rig.stats(disk);
        for round in rounds {
            rig.read(disk, round * 64 % SECTORS, 64);
        }
        let after = rig.stats(disk);
        (after.not_admitted - before.not_admitted, after.read_misses - before.read_misses)
    };
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let disk = reader(&mut rig, 0, SHARED);
    learns(&mut rig, disk);
    scan(&mut rig, disk, 0..2000);
    let saved = rig.running().saved_admission(disk, true).expect("it learns");
    let figures = rig.running().admission_figures(disk).expect("it learns");
    let stay = figures.stay.expect("blocks were evicted");
    let shelf = rig.shutdown();
    for (shelf, is_full) in [(shelf, true), (Shelf::pool(&[4], false), false)] {
        let mut rig = Rig::open(shelf, memory(), CoreConfig::default());
        let disk = reader(&mut rig, 0, SHARED);
        assert_eq!(rig.core().resume_admission(disk, &saved), Ok(false), "it lets everything in");
        learns(&mut rig, disk);
        assert!(rig.core().resume_admission(disk, &saved[..20]).is_err());
        assert_eq!(rig.core().resume_admission(disk, &saved), Ok(true));
        let (kept_out, misses) = scan(&mut rig, disk, 2000..2020);
        let resumed = rig.running().admission_figures(disk).expect("it learns");
        if is_full {
            assert!(
                resumed.stay.is_some_and(|now| now.abs_diff(stay) < stay / 4),
                "{stay} and {:?}",
                resumed.stay
            );
            assert!(kept_out == misses && misses > 150, "{kept_out} of {misses}");
        } else {
            assert_eq!((resumed.stay, kept_out, misses), (None, 0, 160));
        }
    }
}

/// A disk that admits a block at its third access. Until then, up to `kilobytes` KB of such data are kept in the data
/// stage.
fn data_stage(rig: &mut Rig, mode: WriteMode, kilobytes: u64) -> DiskNo {
    let disk = rig.disk(0, SECTORS, mode);
    let filter = AdmissionConfig::Staging { kind: StagingKind::Data, reuses: 2, bytes: 1000 * kilobytes };
    rig.core().set_admission(0, disk, filter).expect("attached");
    disk
}

/// Reads whole blocks. Returns how many of them were read from the origin.
fn from_origin(rig: &mut Rig, disk: DiskNo, blocks: &[u64]) -> u64 {
    let before = rig.stats(disk).origin_read_bytes;
    for block in blocks {
        rig.read(disk, block * 8, 8);
    }
    (rig.stats(disk).origin_read_bytes - before) / 4096
}

#[test]
fn reads_are_served_from_the_data_stage_until_the_block_enters() {
    let mut rig = Rig::new(&[8], false, CoreConfig::default());
    let disk = data_stage(&mut rig, WriteMode::WriteInvalidate, 100);
    assert_eq!(from_origin(&mut rig, disk, &[5, 5]), 1);
    let (stats, usage) = (rig.stats(disk), rig.usage(disk));
    assert_eq!((stats.read_hits, stats.read_misses, stats.data_stage_hits), (1, 1, 1));
    assert_eq!(usage.usage_blocks, 0, "it has not entered: {usage:?}");
    assert_eq!(from_origin(&mut rig, disk, &[5]), 0);
    assert_eq!(rig.usage(disk).usage_blocks, 1, "it enters, from the data stage");
    assert_eq!(from_origin(&mut rig, disk, &[5]), 0);
    assert_eq!(rig.stats(disk).data_stage_hits, 2, "it is in the cache");
    // The data stage has room for the last 24 blocks.
    let many: Vec<u64> = (100..130).collect();
    assert_eq!(from_origin(&mut rig, disk, &many), 30);
    assert_eq!(from_origin(&mut rig, disk, &many[10..]), 0);
    assert_eq!(from_origin(&mut rig, disk, &many[..1]), 1);
}

#[test]
fn whatever_writes_a_block_takes_it_out_of_the_data_stage() {
    use WriteMode::{PassThrough, WriteAround, WriteBack, WriteInvalidate, WriteThrough};
    let through = WriteThrough(WriteThroughAck::Origin);
    for mode in [WriteBack, through, WriteAround, WriteInvalidate, PassThrough] {
        for (op, expected) in [(Op::Write { fua: false }, 1), (Op::Discard, 0), (Op::WriteZeroes, 0)] {
            let mut rig = Rig::new(&[8], false, CoreConfig::default());
            let disk = data_stage(&mut rig, WriteInvalidate, 100);
            assert_eq!(rig.read(disk, 40, 16), [7; 16]);
            let job = rig.core().set_mode(0, disk, mode).expect("the mode may change");
            rig.finish(job);
            let tag = rig.submit(disk, op, 44, vec![1; 4 * 512]);
            rig.answered(tag);
            let mut after = [7; 16];
            after[4..8].fill(expected);
            assert_eq!(rig.read(disk, 40, 16), after, "{mode} {op:?}");
            assert_eq!(rig.read(disk, 40, 16), after, "{mode} {op:?}, again");
        }
    }
}

#[test]
fn the_data_stage_gives_way_to_writes() {
    let mut rig = Rig::new(&[8], false, CoreConfig::default());
    let disk = data_stage(&mut rig, WriteMode::WriteBack, 100_000);
    let all: Vec<u64> = (0..1000).collect();
    assert_eq!(from_origin(&mut rig, disk, &all), 1000);
    let frames = rig.staging_frames() as usize;
    let kept = &all[1000 - frames * 3 / 4..];
    assert_eq!(from_origin(&mut rig, disk, kept), 0, "free frames hold what was read last");
    for block in 2000..2000 + frames as u64 {
        rig.write(disk, block * 8, 8, 1);
    }
    assert!(rig.read(disk, 2000 * 8, 64).iter().all(|byte| *byte == 1));
}

#[test]
fn another_host_may_have_written_what_the_data_stage_had() {
    let mut rig = Rig::new(&[8], false, CoreConfig::default());
    let disk = data_stage(&mut rig, WriteMode::WriteInvalidate, 100);
    assert_eq!(from_origin(&mut rig, disk, &[5, 5]), 1);
    let job = rig.core().release(0, disk).expect("the disk may be released");
    rig.finish(job);
    rig.origins.get_mut(&disk).expect("it has an origin").bytes[5 * 4096..6 * 4096].fill(9);
    let again = rig.attach(&DiskConfig::new(disk_id(0), SECTORS), 2);
    assert_eq!((again, rig.read(disk, 40, 8)), (disk, vec![9; 8]));
}

#[test]
fn a_filter_of_another_size_remembers() {
    let mut rig = Rig::new(&[8], false, CoreConfig::default());
    let disk = reader(&mut rig, 0, Target::Equal);
    rig.core().set_admission(0, disk, AdmissionConfig::reuse(1, 100)).expect("attached");
    rig.read(disk, 0, 8);
    rig.core().set_admission(0, disk, AdmissionConfig::reuse(1, 1000)).expect("attached");
    rig.read(disk, 0, 8);
    assert_eq!(rig.usage(disk).usage_blocks, 1);
}
