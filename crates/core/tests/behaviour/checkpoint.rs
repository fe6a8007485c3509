//! A clean stop leaves a checkpoint. The next opening, and only that one, can load the checkpoint, with the same result
//! as reading the pages.

use crate::common::*;
use haversack_core::{
    CheckpointSource, CheckpointUse, CleanerConfig, Core, CoreConfig, DiskConfig, MemoryCheckpoint,
    NoCheckpoint, OpenOptions, Persistence, Target, Unsaved, offline,
};
use haversack_model::random::Random;
use haversack_model::{DiskNo, Uuid, WriteMode, WriteThroughAck};

const SECTORS: u64 = 6_000;
const WRITE_THROUGH: WriteMode = WriteMode::WriteThrough(WriteThroughAck::Origin);
const STOP: Uuid = Uuid([0x51; 16]);

fn open(shelf: Shelf, pieces: &MemoryCheckpoint) -> Rig {
    let mut pieces = pieces.clone();
    Rig::open_from(shelf, memory(), Some(&mut pieces), CoreConfig::default(), OpenOptions::default())
}

fn refusal(rig: &Rig) -> Option<NoCheckpoint> {
    match rig.report.checkpoint {
        CheckpointUse::Refused(why) => Some(why),
        CheckpointUse::Loaded | CheckpointUse::NotOffered => None,
    }
}

/// Checks that opening the devices gives the same result with and without the checkpoint.
fn compare(shelf: &Shelf, pieces: &MemoryCheckpoint) {
    let open = |checkpoint: Option<&mut dyn CheckpointSource>| {
        let (mut shelf, options) = (shelf.clone(), OpenOptions::default());
        Core::open_with(&mut shelf, &mut memory(), checkpoint, CoreConfig::default(), &options, 0)
            .unwrap_or_else(|error| panic!("{error}"))
    };
    let ((loaded, report), (scanned, by_pages)) = (open(Some(&mut pieces.clone())), open(None));
    assert_eq!((report.checkpoint, by_pages.checkpoint), (CheckpointUse::Loaded, CheckpointUse::NotOffered));
    loaded.compare_with_scan(&scanned).unwrap_or_else(|what| panic!("{what}"));
}

/// A pool after every kind of operation that changes its tables. It has three disks: one exceeds its share, one writes
/// past the cache and shrinks, and one is dirty.
fn busy(segments: &[u32], redundancy: bool, seed: u64) -> (Rig, [DiskNo; 3]) {
    let (mut rig, mut rng) = (Rig::new(segments, redundancy, CoreConfig::default()), Random::scrambled(seed));
    let lazy = |number, mode, target| {
        let cleaner = CleanerConfig { dirty_limit: 1.0, ..LAZY };
        DiskConfig { mode, target, cleaner, ..DiskConfig::new(disk_id(number), SECTORS) }
    };
    let disks = [
        rig.attach(&lazy(0, WriteMode::WriteInvalidate, Target::Equal), 1),
        rig.attach(&lazy(1, WRITE_THROUGH, SHARED), 1),
        rig.attach(&lazy(2, WriteMode::WriteBack, SHARED), 1),
    ];
    for round in 0..400 {
        let (disk, at) = (rng.pick(&disks), rng.below(SECTORS - 64));
        match rng.below(8) {
            0..4 => drop(rig.read(disk, at, rng.range(1, 64) as u32)),
            4..7 => rig.write(disk, at, rng.range(1, 64) as u32, round as u8),
            _ => rig.flush(disk),
        }
        if round == 200 {
            rig.clean(disks[2]);
        }
    }
    (rig, disks)
}

#[test]
fn it_has_what_the_pages_have() {
    for (segments, redundancy) in [(&[9][..], false), (&[7, 7], true), (&[4, 5, 6], false), (&[90], false)] {
        for seed in 0..4 {
            let (mut rig, _) = busy(segments, redundancy, seed);
            let (shelf, pieces) = rig.checkpoint(STOP);
            compare(&shelf, &pieces.unwrap_or_else(|why| panic!("{why:?}")));
        }
    }
}

#[test]
fn a_pool_opens_from_it_without_its_pages() {
    let (mut rig, disks) = busy(&[20], false, 9);
    rig.write(disks[2], 100, 8, 77);
    rig.read(disks[0], 100, 8);
    disks.iter().for_each(|disk| rig.flush(*disk));
    rig.stop(STOP);
    let usage: Vec<_> = disks.map(|disk| rig.usage(disk)).to_vec();
    let (mut shelf, pieces) = rig.checkpoint(STOP);
    let origins = std::mem::take(&mut rig.origins);
    let pieces = pieces.expect("the pool is at rest");
    // Destroy all metadata pages: the opening must not read them.
    for segment in 0..20 {
        for page in 0..2 {
            let first = haversack_core::format::geometry::metadata_bytes(segment, page) as usize;
            shelf.0[0].bytes[first..first + 4096].fill(0x5a);
        }
    }
    let mut rig = open(shelf, &pieces);
    assert_eq!(rig.report.checkpoint, CheckpointUse::Loaded);
    assert!(rig.report.clean_stop && rig.report.damaged_segments == 0);
    rig.origins = origins;
    for (number, (mode, disk)) in
        [WriteMode::WriteInvalidate, WRITE_THROUGH, WriteMode::WriteBack].into_iter().zip(disks).enumerate()
    {
        let config = DiskConfig { mode, ..DiskConfig::new(disk_id(number as u8), SECTORS) };
        assert_eq!(rig.attach(&config, 1), disk);
        let (now, before) = (rig.usage(disk), usage[number]);
        let held =
            |usage: haversack_core::DiskUsage| (usage.usage_blocks, usage.dirty_blocks, usage.segments);
        assert_eq!(held(now), held(before), "{now:?}, {before:?}");
    }
    let reads = rig.log.len();
    assert_eq!((rig.read(disks[2], 100, 8), rig.read(disks[0], 100, 8)), (vec![77; 8], vec![7; 8]));
    assert!(!rig.log[reads..].iter().any(is_origin_read), "both are hits");
}

/// The host and the origin lose power after the stop.
#[test]
fn it_leaves_out_blocks_that_the_origin_may_lose() {
    for is_flushed in [true, false] {
        let mut rig = Rig::new(&[12], false, CoreConfig::default());
        let config = DiskConfig { mode: WRITE_THROUGH, ..DiskConfig::new(disk_id(1), SECTORS) };
        let disk = rig.attach(&config, 1);
        rig.write(disk, 0, 8, 1);
        if is_flushed {
            rig.flush(disk);
        }
        let (shelf, pieces) = rig.checkpoint(STOP);
        let origins = std::mem::take(&mut rig.origins);
        let mut rig = open(shelf, &pieces.expect("the pool is at rest"));
        rig.origins = origins;
        assert_eq!(rig.report.checkpoint, CheckpointUse::Loaded);
        assert_eq!(rig.attach(&config, 1), disk);
        assert_eq!(rig.usage(disk).usage_blocks, u64::from(is_flushed));
    }
}

#[test]
fn it_counts_once() {
    let (mut rig, disks) = busy(&[12], false, 3);
    rig.write(disks[2], 0, 8, 1);
    let (shelf, pieces) = rig.checkpoint(STOP);
    let origins = std::mem::take(&mut rig.origins);
    let pieces = pieces.expect("the pool is at rest");
    let mut rig = open(shelf, &pieces);
    rig.origins = origins;
    let disk = rig.attach(&DiskConfig::new(disk_id(2), SECTORS), 1);
    rig.write(disk, 0, 8, 2);
    rig.flush(disk);
    let origins = std::mem::take(&mut rig.origins);
    let mut rig = open(rig.power_cut(), &pieces);
    rig.origins = origins;
    assert_eq!(refusal(&rig), Some(NoCheckpoint::NotStopped));
    let disk = rig.attach(&DiskConfig::new(disk_id(2), SECTORS), 1);
    assert_eq!(rig.read(disk, 0, 8), [2; 8]);
    // After another clean stop, the old checkpoint is refused too.
    let (shelf, newer) = rig.checkpoint(Uuid([0x52; 16]));
    assert!(newer.is_ok());
    assert_eq!(refusal(&open(shelf, &pieces)), Some(NoCheckpoint::OtherStop));
}

#[test]
fn it_must_be_whole() {
    let (mut rig, _) = busy(&[12], false, 4);
    let (shelf, pieces) = rig.checkpoint(STOP);
    let pieces = pieces.expect("the pool is at rest");
    for at in 0..pieces.pieces.len() {
        let mut short = pieces.clone();
        short.pieces.truncate(at);
        let expected =
            if at == 0 { NoCheckpoint::Missing } else { NoCheckpoint::Short { pieces: at as u32 } };
        assert_eq!(refusal(&open(shelf.clone(), &short)), Some(expected));
        let mut bad = pieces.clone();
        let byte = bad.pieces[at].len() / 2;
        bad.pieces[at][byte] ^= 1;
        let expected = NoCheckpoint::Damaged { piece: at as u32 };
        assert_eq!(refusal(&open(shelf.clone(), &bad)), Some(expected));
    }
    assert_eq!(refusal(&open(shelf, &pieces)), None);
}

#[test]
fn it_needs_the_same_devices() {
    let (mut rig, disks) = busy(&[7, 7], true, 5);
    rig.clean(disks[2]);
    let (mut shelf, pieces) = rig.checkpoint(STOP);
    let pieces = pieces.expect("the pool is at rest");
    // The order in which the devices are given does not matter.
    let turned = Shelf(shelf.0.iter().rev().cloned().collect());
    assert_eq!(refusal(&open(turned, &pieces)), None);
    shelf.take(0);
    assert_eq!(refusal(&open(shelf, &pieces)), Some(NoCheckpoint::Devices));
}

#[test]
fn it_is_of_the_devices_after_one_has_joined_and_one_has_left() {
    let (mut rig, _) = busy(&[7, 7], false, 6);
    rig.add_device(9);
    let (shelf, pieces) = rig.checkpoint(STOP);
    compare(&shelf, &pieces.expect("the pool is at rest"));
    let mut rig = Rig::open(shelf, memory(), CoreConfig::default());
    let job = rig.core().remove_device(0, haversack_model::DeviceNo(0)).expect("there is space elsewhere");
    rig.finish(job);
    let (shelf, pieces) = rig.checkpoint(STOP);
    assert!(matches!(pieces, Err(Unsaved::NotAtRest(_))), "the tables still have the device");
    let mut rig = Rig::open(shelf, memory(), CoreConfig::default());
    let (shelf, pieces) = rig.checkpoint(STOP);
    compare(&shelf, &pieces.expect("the pool is at rest"));
}

#[test]
fn work_on_a_stopped_pool_makes_it_void() {
    let (mut rig, disks) = busy(&[12], false, 7);
    rig.write(disks[2], 0, 8, 1);
    let mut origin = rig.origins[&disks[2]].clone();
    let (mut shelf, pieces) = rig.checkpoint(STOP);
    let pieces = pieces.expect("the pool is at rest");
    offline::check(&mut shelf, true).expect("it can be read");
    assert_eq!(refusal(&open(shelf.clone(), &pieces)), None, "a check changes nothing");
    offline::flush_disk(&mut shelf, disk_id(2), &mut origin, |_| {}).expect("the origin is there");
    assert_eq!(refusal(&open(shelf, &pieces)), Some(NoCheckpoint::NotStopped));
}

#[test]
fn a_stop_without_a_name_has_none() {
    let (mut rig, _) = busy(&[12], false, 8);
    let (shelf, pieces) = rig.checkpoint(Uuid::default());
    assert_eq!(pieces.err(), Some(Unsaved::NotStopped));
    assert_eq!(refusal(&open(shelf, &MemoryCheckpoint::default())), Some(NoCheckpoint::NotStopped));
}

#[test]
fn blocks_that_do_not_outlive_a_restart_are_dropped() {
    for (persistence, mode, kept) in [
        (Persistence::None, WRITE_THROUGH, 0),
        (Persistence::Dirty, WriteMode::WriteBack, 2),
        (Persistence::All, WriteMode::WriteBack, 6),
    ] {
        let mut rig = Rig::new(&[6], false, CoreConfig::default());
        let config = DiskConfig { persistence, mode, cleaner: LAZY, ..DiskConfig::new(disk_id(0), SECTORS) };
        let disk = rig.attach(&config, 1);
        rig.read(disk, 800, 32);
        rig.write(disk, 0, 16, 1);
        rig.flush(disk);
        let (shelf, pieces) = rig.checkpoint(STOP);
        let pieces = pieces.expect("the pool is at rest");
        compare(&shelf, &pieces);
        assert_eq!(open(shelf, &pieces).report.disks[0].cached_blocks, kept, "{persistence:?}");
    }
}

#[test]
fn a_sink_that_fails_ends_it() {
    let (mut rig, _) = busy(&[6], false, 1);
    rig.stop(STOP);
    let core = rig.into_core();
    assert_eq!(core.checkpoint(&mut |_| Err("full")), Err(Unsaved::Sink("full")));
}
