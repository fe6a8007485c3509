//! Devices that do not fit, requests and settings that make no sense: each is refused with an error that
//! names what is wrong, and nothing is written.

use crate::common::{Buffers, POOL, Rig, Shelf, device_id, disk_id, member, memory};
use haversack_core::format::FORMAT_VERSION;
use haversack_core::{
    AdmissionConfig, CleanerConfig, Core, CoreConfig, Damage, DiskConfig, HeapMemory, ManageError, Op,
    OpenOptions, Persistence, PoolConfig, PoolError, Rejected, StagingKind, Target, offline, pool,
};
use haversack_model::{ArenaId, DeviceNo, DiskNo, SECTOR_BYTES, Uuid, WriteMode};

const RECORD_COPIES: [usize; 2] = [8192, 139_264];
const VERSION_AT: usize = 8;

/// Checks that opening and checking these devices fail with the same error and write nothing. Returns the error.
fn refused(shelf: &mut Shelf, options: OpenOptions) -> PoolError {
    let (before, writes) = (shelf.clone(), shelf.writes());
    let opened = Core::open(shelf, &mut memory(), CoreConfig::default(), &options, 0);
    let error = opened.err().expect("the devices are refused");
    assert_eq!(shelf.writes(), writes, "nothing is written");
    assert!(shelf.same_bytes(&before));
    error
}

#[track_caller]
fn refused_by_all(shelf: &mut Shelf, named: &str, advice: &str) -> PoolError {
    let error = refused(shelf, OpenOptions::default());
    let forced = OpenOptions { accept_missing: true, contents_void: true };
    assert_eq!(refused(shelf, forced), error, "no option opens it");
    let (before, writes) = (shelf.clone(), shelf.writes());
    assert_eq!(offline::check(shelf, true), Err(error.clone()));
    assert!(shelf.writes() == writes && shelf.same_bytes(&before));
    let message = error.to_string();
    assert!(message.contains(named), "{message:?} names {named:?}");
    assert!(message.contains(advice), "{message:?} says {advice:?}");
    error
}

/// A pool of two mirrored devices with a dirty disk, stopped cleanly.
fn used_pool() -> Shelf {
    let mut rig = Rig::new(&[4, 4], true, CoreConfig::default());
    let disk = rig.disk(0, 4096, WriteMode::WriteBack);
    rig.write(disk, 3, 100, 9);
    rig.shutdown()
}

#[test]
fn another_version_is_refused() {
    let mut shelf = used_pool();
    for copy in [0, 4096] {
        shelf.0[1].bytes[copy + VERSION_AT..][..4].copy_from_slice(&1u32.to_le_bytes());
    }
    let error = refused_by_all(&mut shelf, "/dev/cache1", "use the program that wrote it");
    assert_eq!(
        error,
        PoolError::Version { device: "/dev/cache1".into(), found: 1, expected: FORMAT_VERSION }
    );
}

#[test]
fn a_device_of_another_pool_is_refused() {
    let mut shelf = used_pool();
    let mut other = Shelf::pool_of(Uuid([0xbb; 16]), 7, &[4], false);
    other.0[0].name = "/dev/stranger".into();
    shelf.0[1] = other.take(0);
    let error = refused_by_all(&mut shelf, "/dev/stranger", "give only the devices of one pool");
    assert!(
        matches!(error, PoolError::OtherPool { found, expected, .. } if found.0 == [0xbb; 16] && expected == POOL)
    );
}

#[test]
fn the_same_device_twice_is_refused() {
    let mut shelf = used_pool();
    shelf.0[1].bytes = shelf.0[0].bytes.clone();
    let error = refused_by_all(&mut shelf, "/dev/cache1", "leave it out");
    assert!(
        matches!(error, PoolError::Duplicate { other, id, .. } if other == "/dev/cache0" && id == device_id(0))
    );
}

#[test]
fn swapped_devices_are_identified() {
    let mut shelf = used_pool();
    shelf.0.swap(0, 1);
    let mut rig = Rig::open(shelf, memory(), CoreConfig::default());
    assert_eq!(rig.report.devices, [(DeviceNo(0), 1), (DeviceNo(1), 0)]);
    let disk = rig.disk(0, 4096, WriteMode::WriteBack);
    assert_eq!(rig.read(disk, 3, 100), [9; 100]);
}

#[test]
fn exchanged_contents_of_unequal_devices_are_refused() {
    let mut rig = Rig::new(&[4, 6], false, CoreConfig::default());
    let mut shelf = rig.shutdown();
    let small = shelf.0[0].bytes.len();
    let [a, b] = &mut shelf.0[..] else { unreachable!("two devices") };
    std::mem::swap(&mut a.bytes, &mut b.bytes);
    b.bytes.resize(a.bytes.len(), 0);
    a.bytes.truncate(small);
    refused_by_all(&mut shelf, "/dev/cache0", "truncated");
}

#[test]
fn a_truncated_device_is_refused_wherever_it_was_cut() {
    let full = pool::device_bytes(4) as usize;
    for left in [full - 4096, full / 2, 300_000, 200_000, 12_288, 8192] {
        let mut shelf = used_pool();
        shelf.0[1].bytes.truncate(left);
        let error = refused_by_all(&mut shelf, "/dev/cache1", "restore its size or leave it out");
        let (found_bytes, expected_bytes) = (left as u64, full as u64);
        assert_eq!(error, PoolError::Truncated { device: "/dev/cache1".into(), found_bytes, expected_bytes });
    }
}

#[test]
fn a_device_too_small_for_its_superblocks_is_refused() {
    for left in [0, 4096] {
        let mut shelf = used_pool();
        shelf.0[1].bytes.truncate(left);
        let error = refused_by_all(&mut shelf, "/dev/cache1", "needs at least 11534336");
        assert!(matches!(error, PoolError::TooSmall { found_bytes, .. } if found_bytes == left as u64));
    }
}

#[test]
fn a_device_without_superblock_is_refused() {
    let mut shelf = used_pool();
    shelf.0[0].bytes[..8192].fill(0);
    let error = refused_by_all(&mut shelf, "/dev/cache0", "create a pool on it first");
    assert_eq!(error, PoolError::NotACacheDevice { device: "/dev/cache0".into() });
}

#[test]
fn one_good_superblock_is_enough_and_none_is_not() {
    let mut shelf = used_pool();
    shelf.0[0].rot(20);
    Rig::open(shelf.clone(), memory(), CoreConfig::default());
    shelf.0[0].rot(4096 + 20);
    let error = refused_by_all(&mut shelf, "/dev/cache0", "leave the device out");
    assert_eq!(error, PoolError::DamagedSuperblock { device: "/dev/cache0".into() });
    let damaged = shelf.take(0);
    assert_eq!(damaged.name, "/dev/cache0");
    let mut rig = Rig::open(shelf, memory(), CoreConfig::default());
    let disk = rig.disk(0, 4096, WriteMode::WriteBack);
    assert_eq!(rig.read(disk, 3, 100), [9; 100], "the other copy has it");
}

#[test]
fn a_record_is_needed_once() {
    let mut shelf = used_pool();
    for device in [0, 1] {
        for copy in RECORD_COPIES {
            let all_but_one = (device, copy) != (1, RECORD_COPIES[1]);
            if all_but_one {
                shelf.0[device].rot(copy as u64 + 40);
            }
        }
    }
    let rig = Rig::open(shelf.clone(), memory(), CoreConfig::default());
    assert_eq!(rig.report.disks.len(), 1);
    shelf.0[1].rot(RECORD_COPIES[1] as u64 + 40);
    let error = refused_by_all(&mut shelf, "/dev/cache0", "the pool cannot be opened");
    assert_eq!(error, PoolError::NoRecord { device: "/dev/cache0".into() });
}

fn rot_all_metadata(shelf: &mut Shelf, device: usize) {
    for segment in 0..4 {
        for page in 0..2 {
            shelf.0[device].rot(9_437_184 + (segment << 20) + page * 4096 + 700);
        }
    }
}

#[test]
fn damaged_metadata_is_reported_only_if_both_devices_have_it() {
    let mut shelf = used_pool();
    rot_all_metadata(&mut shelf, 0);
    let mut rig = Rig::open(shelf, memory(), CoreConfig::default());
    assert!(rig.report.damaged_segments == 4 && rig.report.disks[0].damage == Damage::None);
    let disk = rig.disk(0, 4096, WriteMode::WriteBack);
    assert_eq!(rig.read(disk, 3, 100), [9; 100]);

    let mut shelf = used_pool();
    rot_all_metadata(&mut shelf, 0);
    rot_all_metadata(&mut shelf, 1);
    let mut rig = Rig::open(shelf, memory(), CoreConfig::default());
    let refused = rig.core().attach(0, &DiskConfig::new(disk_id(0), 4096), 1, false);
    assert_eq!(refused.err(), Some(ManageError::Damaged(disk_id(0))));
}

#[test]
fn a_missing_device_with_the_only_copy_is_refused_unless_the_loss_is_accepted() {
    let mut rig = Rig::new(&[4, 4], false, CoreConfig::default());
    let disk = rig.disk(0, 4096, WriteMode::WriteBack);
    rig.write(disk, 0, 100, 9);
    let mut shelf = rig.shutdown();
    shelf.take(1);
    let error = refused(&mut shelf, OpenOptions::default());
    assert!(matches!(error, PoolError::MissingDevice { device: DeviceNo(1), id, .. } if id == device_id(1)));
    assert!(error.to_string().contains("bring it back"));
    let options = OpenOptions { accept_missing: true, ..OpenOptions::default() };
    let mut rig = Rig::open_with(shelf, memory(), CoreConfig::default(), options);
    assert_eq!(rig.report.disks[0].damage, Damage::Uncertain);
    let config = DiskConfig::new(disk_id(0), 4096);
    let now = rig.now;
    let refused = rig.core().attach(now, &config, 1, false);
    assert_eq!(refused.err(), Some(ManageError::Damaged(disk_id(0))));
}

#[test]
fn no_devices_and_too_little_memory_are_refused() {
    let error = refused(&mut Shelf(Vec::new()), OpenOptions::default());
    assert_eq!(error, PoolError::DeviceCount { devices: 0, ids: 0 });
    let mut shelf = used_pool();
    let (before, mut small) = (shelf.clone(), HeapMemory::new(63, 64, Buffers::default()));
    let failure = Core::open(&mut shelf, &mut small, CoreConfig::default(), &OpenOptions::default(), 0).err();
    let needed = PoolError::Memory { needed: 64, staging: 63, transfer: 64 };
    assert_eq!(failure.expect("63 frames are too few"), needed);
    assert!(shelf.same_bytes(&before));
}

#[test]
fn a_pool_is_created_on_fit_devices_only() {
    let config = |ids: u8| PoolConfig {
        arena: ArenaId::first(Uuid([1; 16])),
        arenas: 1,
        device_ids: (0..ids).map(device_id).collect(),
        redundancy: false,
        prepared_segments: 256,
    };
    let mut small = Shelf::blank(&[4, 2]);
    small.0[1].bytes.pop();
    let error = pool::create(&mut small, &config(2)).expect_err("one byte is missing");
    assert!(matches!(&error, PoolError::TooSmall { device, .. } if device == "/dev/cache1"));
    assert_eq!(small.writes(), 0, "the other device is not touched either");

    let mut used = Shelf(vec![Shelf::blank(&[4]).take(0), used_pool().take(1)]);
    let writes = used.writes();
    let error = pool::create(&mut used, &config(2)).expect_err("a pool is on it");
    assert_eq!(error, PoolError::InUse { device: "/dev/cache1".into(), pool: POOL });
    assert_eq!(used.writes(), writes);
    let error = pool::prepare_device(&mut used, 1, &member(DeviceNo(2), device_id(2)), u32::MAX, 256)
        .expect_err("as well");
    assert_eq!(error, PoolError::InUse { device: "/dev/cache1".into(), pool: POOL });
    assert_eq!(used.writes(), writes);

    for (devices, ids) in [(0, 0), (2, 1), (1, 2), (17, 17)] {
        let mut shelf = Shelf::blank(&vec![2; devices]);
        let error = pool::create(&mut shelf, &config(ids as u8)).expect_err("the numbers do not fit");
        assert_eq!(error, PoolError::DeviceCount { devices, ids });
        assert_eq!(shelf.writes(), 0);
    }
}

#[test]
fn requests_outside_the_disk_are_rejected() {
    let mut rig = Rig::new(&[4], false, CoreConfig { max_requests: 2, ..CoreConfig::default() });
    let sectors = 200_000;
    let disk = rig.disk(0, sectors, WriteMode::WriteBack);
    let issued = rig.log.len();
    let ops = [Op::Read, Op::Write { fua: false }, Op::Write { fua: true }, Op::Discard, Op::WriteZeroes];
    let ranges = [
        (0, 0),
        (sectors, 1),
        (sectors - 1, 2),
        (u64::MAX, 1),
        (u64::MAX - 3, 8),
        (0, 65_537),
        (0, u32::MAX),
    ];
    for op in ops {
        for (sector, count) in ranges {
            let error = rig.submit_sized(disk, op, sector, count, Vec::new());
            let range = Rejected::OutOfRange { sector, sectors: count, disk_sectors: sectors };
            assert_eq!(error, Err(range), "{op:?}");
        }
    }
    let message = rig.submit_sized(disk, Op::Read, 0, 65_537, Vec::new()).unwrap_err().to_string();
    assert!(message.contains("65537") && message.contains("32 MiB"), "{message}");
    for unknown in [1, u16::MAX] {
        let error = rig.try_submit(DiskNo(unknown), Op::Flush, 0, Vec::new());
        assert_eq!(error, Err(Rejected::NoSuchDisk(DiskNo(unknown))));
    }
    assert_eq!((rig.stats(disk).reads, rig.stats(disk).writes, rig.stats(disk).zeroes), (0, 0, 0));
    assert_eq!(rig.log.len(), issued, "nothing was started");

    rig.start_read(disk, 0, 1);
    rig.start_read(disk, 8, 1);
    assert_eq!(rig.try_submit(disk, Op::Flush, 0, Vec::new()), Err(Rejected::Busy));
    rig.run();
    let longest = rig.submit(disk, Op::WriteZeroes, 0, vec![0; 65_536 * SECTOR_BYTES]);
    rig.answered(longest);
    rig.write(disk, sectors - 1, 1, 5);
    assert_eq!(rig.read(disk, sectors - 1, 1), [5]);
}

#[test]
fn a_disk_that_is_not_attached_takes_no_requests() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let disk = rig.disk(0, 1000, WriteMode::WriteBack);
    let now = rig.now;
    let job = rig.core().detach(now, disk).expect("it is attached");
    assert_eq!(rig.try_submit(disk, Op::Flush, 0, Vec::new()), Err(Rejected::NoSuchDisk(disk)));
    rig.finish(job);
    assert_eq!(rig.try_submit(disk, Op::Read, 0, vec![0; 512]), Err(Rejected::NoSuchDisk(disk)));
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let good = DiskConfig::new(disk_id(0), 1000);
    let cleaner = |low, high, limit| CleanerConfig {
        low_watermark: low,
        high_watermark: high,
        dirty_limit: limit,
        ..CleanerConfig::default()
    };
    let reuse = AdmissionConfig::reuse;
    let staged_data = AdmissionConfig::Staging { kind: StagingKind::Hybrid, reuses: 1, bytes: 100 };
    let bad = [
        (DiskConfig { sectors: 0, ..good.clone() }, "1 to"),
        (DiskConfig { sectors: (1 << 41) + 1, ..good.clone() }, "1 to"),
        (DiskConfig { phase: 8, ..good.clone() }, "0 to 7"),
        (DiskConfig { persistence: Persistence::None, ..good.clone() }, "use 'dirty' or 'all'"),
        (DiskConfig { cleaner: cleaner(0.5, 0.4, 0.9), ..good.clone() }, "low (0.5)"),
        (DiskConfig { cleaner: cleaner(0.1, 0.9, 0.4), ..good.clone() }, "high (0.9)"),
        (DiskConfig { cleaner: cleaner(0.1, 0.4, 1.1), ..good.clone() }, "limit (1.1)"),
        (DiskConfig { cleaner: cleaner(-0.1, 0.4, 0.9), ..good.clone() }, "0 <= low"),
        (DiskConfig { cleaner: cleaner(f32::NAN, 0.4, 0.9), ..good.clone() }, "0 <= low"),
        (DiskConfig { cleaner: cleaner(0.1, 0.4, f32::NAN), ..good.clone() }, "<= 1"),
        (DiskConfig { admission: reuse(0, 8), ..good.clone() }, "use 'always'"),
        (DiskConfig { admission: reuse(1, 0), ..good.clone() }, "use 'always'"),
        (DiskConfig { admission: staged_data, ..good.clone() }, "for at least one address"),
    ];
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    for (config, advice) in &bad {
        match rig.core().attach(0, config, 1, false) {
            Err(ManageError::BadConfig(message)) => assert!(message.contains(advice), "{message}"),
            other => panic!("{config:?}: {other:?}"),
        }
    }
    rig.run();
    assert!(rig.log.is_empty(), "nothing was started");
    let disk = rig.attach(&good, 1);
    let bad_config = |error: Option<ManageError>| matches!(error, Some(ManageError::BadConfig(_)));
    assert!(bad_config(rig.core().resize(0, disk, 0).err()));
    assert!(bad_config(rig.core().resize(0, disk, (1 << 41) + 1).err()));
    assert!(bad_config(rig.core().set_cleaner(0, disk, cleaner(0.5, 0.4, 0.9)).err()));
    assert!(bad_config(rig.core().set_admission(0, disk, reuse(0, 8)).err()));
    let none = DiskConfig {
        persistence: Persistence::None,
        mode: WriteMode::WriteInvalidate,
        ..DiskConfig::new(disk_id(1), 1000)
    };
    let volatile = rig.attach(&none, 1);
    assert!(bad_config(rig.core().set_mode(0, volatile, WriteMode::WriteBack).err()));
}

#[test]
fn management_of_the_wrong_thing_is_refused() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let config = DiskConfig::new(disk_id(0), 1000);
    let disk = rig.attach(&config, 5);
    let (unknown, id) = (DiskNo(9), disk_id(0));
    assert_eq!(rig.core().clean(0, unknown).err(), Some(ManageError::NoSuchDisk(unknown)));
    assert_eq!(rig.core().detach(0, unknown).err(), Some(ManageError::NoSuchDisk(unknown)));
    assert_eq!(rig.core().release(0, unknown).err(), Some(ManageError::NoSuchDisk(unknown)));
    assert_eq!(rig.core().forget(0, unknown, None).err(), Some(ManageError::NoSuchDisk(unknown)));
    assert_eq!(
        rig.core().set_target(0, unknown, Target::Equal).err(),
        Some(ManageError::NoSuchDisk(unknown))
    );
    assert_eq!(rig.core().attach(0, &config, 5, false).err(), Some(ManageError::Attached(id)));
    assert_eq!(rig.core().forget(0, disk, Some(id)).err(), Some(ManageError::Attached(id)));
    assert_eq!(rig.core().remove_device(0, DeviceNo(3)).err(), Some(ManageError::NoSuchDevice(DeviceNo(3))));
    assert_eq!(rig.core().remove_device(0, DeviceNo(0)).err(), Some(ManageError::LastDevice(DeviceNo(0))));

    rig.write(disk, 0, 80, 4);
    let job = rig.core().clean(0, disk).expect("it is attached");
    assert_eq!(rig.core().detach(0, disk).err(), Some(ManageError::Busy));
    assert_eq!(rig.core().resize(0, disk, 2000).err(), Some(ManageError::Busy));
    rig.finish(job);
    let job = rig.core().detach(0, disk).expect("no job runs");
    rig.finish(job);
    assert_eq!(rig.core().clean(0, disk).err(), Some(ManageError::NotAttached(id)));
    assert_eq!(
        rig.core().set_mode(0, disk, WriteMode::PassThrough).err(),
        Some(ManageError::NotAttached(id))
    );
    let old = ManageError::OldEpoch { given: 4, recorded: 5 };
    assert_eq!(rig.core().attach(0, &config, 4, false).err(), Some(old));
    let grown = DiskConfig { sectors: 2000, ..config };
    let size = ManageError::Size { disk: id, recorded_sectors: 1000 };
    assert_eq!(rig.core().attach(0, &grown, 5, false).err(), Some(size));
}

#[test]
fn dirty_blocks_are_destroyed_only_by_name() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let config = DiskConfig::new(disk_id(0), 1000);
    let disk = rig.attach(&config, 1);
    rig.write(disk, 0, 80, 4);
    let (shelf, memory) = rig.kill();
    let mut rig = Rig::open(shelf, memory, CoreConfig::default());
    let dirty = ManageError::Dirty { disk: disk_id(0), dirty_blocks: 10 };
    let other = DiskConfig { phase: 1, ..config.clone() };
    assert_eq!(rig.core().attach(0, &other, 1, false).err(), Some(dirty.clone()));
    assert_eq!(rig.core().attach(0, &config, 2, false).err(), Some(dirty.clone()));
    assert_eq!(rig.core().forget(0, disk, None).err(), Some(dirty.clone()));
    assert_eq!(rig.core().forget(0, disk, Some(disk_id(1))).err(), Some(dirty));
    let job = rig.core().forget(0, disk, Some(disk_id(0))).expect("it is named");
    rig.finish(job);
    let again = rig.attach(&config, 1);
    assert_eq!(rig.read(again, 0, 80), [7; 80]);
}

#[test]
fn the_tables_of_disks_and_devices_have_an_end() {
    let mut rig = Rig::new(&[2], false, CoreConfig::default());
    for number in 0..1024u32 {
        let mut id = disk_id(0);
        id.0[..4].copy_from_slice(&number.to_le_bytes());
        rig.core().attach(0, &DiskConfig::new(id, 8), 1, false).expect("1,024 disks fit");
    }
    let error = rig.core().attach(0, &DiskConfig::new(disk_id(99), 8), 1, false).err();
    assert_eq!(error, Some(ManageError::DiskTableFull));
    for _ in 1..16 {
        rig.add_device(2);
    }
    assert_eq!(rig.core().next_device_no(), None);
}
