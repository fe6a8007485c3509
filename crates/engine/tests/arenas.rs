//! A pool of several arenas: each has its own reactor, but devices and management are those of one pool.

mod common;

use common::*;
use haversack_engine::pool::{self, Formatting, Shape};
use haversack_engine::{EngineError, EngineEvent, OpenPool, OriginSpec, PoolSettings, VoidArena};
use haversack_model::{ArenaNo, DeviceNo, DiskHandle, DiskId, Uuid};

const DISK_MIB: u64 = 4;
const SECTORS: u64 = DISK_MIB * MIB / 512;

fn file(path: std::path::PathBuf) -> OriginSpec {
    OriginSpec::File { path }
}

/// Settings of a new pool of two arenas.
fn two_arenas(place: &Place, sizes_mib: &[u64], redundancy: bool) -> PoolSettings {
    let devices: Vec<_> = (0..sizes_mib.len()).map(|at| place.path(&format!("cache{at}"))).collect();
    for (device, mib) in devices.iter().zip(sizes_mib) {
        std::fs::File::create(device).unwrap().set_len(mib * MIB).unwrap();
    }
    pool::create(&devices, Formatting::default(), Shape { redundancy, arenas: 2 }).unwrap();
    place.settings(devices)
}

/// Attaches disk 1 and disk 2, and connects a client to each.
fn two_disks(place: &Place, open: &OpenPool) -> Vec<(DiskHandle, Client)> {
    let one = |number: u8| {
        let origin = place.path(&format!("origin{number}"));
        if !origin.exists() {
            place.origin(&format!("origin{number}"), DISK_MIB);
        }
        let disk = attach(open, spec(number, DISK_MIB, file(origin)));
        (disk, Client::new(&open.handle(), disk, DISK_MIB * MIB))
    };
    vec![one(1), one(2)]
}

#[test]
fn disks_are_spread_over_the_arenas_and_stay_where_they_are() {
    let place = Place::new("arenas");
    let settings = two_arenas(&place, &[64, 64], true);
    for version in 1..4 {
        let (open, report) = start(&settings);
        assert_eq!(report.disks.len(), if version == 1 { 0 } else { 2 });
        let mut disks = two_disks(&place, &open);
        let arenas: Vec<ArenaNo> = disks.iter().map(|(disk, _)| disk.arena()).collect();
        assert_eq!(arenas, [ArenaNo(0), ArenaNo(1)]);
        for (number, (_, client)) in (10..).step_by(10).zip(&mut disks) {
            let before = if version == 1 { 0 } else { number + version - 1 };
            assert_eq!(client.read(0, SECTORS), patterns(0, SECTORS, before));
            client.write(0, SECTORS, number + version);
        }
        let snapshot = open.handle().snapshot().unwrap();
        assert_eq!((snapshot.disks.len(), snapshot.devices.len()), (2, 2));
        assert!(snapshot.pool.capacity_blocks > 150 * 253 / 2);
        if version == 2 {
            open.handle().shutdown().unwrap().wait().unwrap();
        }
    }
    let (_open, report) = start(&settings);
    assert!(report.staging_survived && !report.clean_stop);
}

#[test]
fn a_device_that_fails_in_one_arena_is_left_by_all() {
    let place = Place::new("arenas-fail");
    let mut settings = two_arenas(&place, &[48, 48], true);
    let second = settings.devices[1].clone();
    settings.devices[1] = format!("faulty:{}", second.display()).into();
    let (open, _) = start(&settings);
    let mut disks = two_disks(&place, &open);
    let events = open.handle().events().unwrap();
    for (_, client) in &mut disks {
        client.write(0, SECTORS, 1);
        client.flush();
    }
    std::fs::write(format!("{}.fault", second.display()), "gone").unwrap();
    // Only the second arena has anything to write.
    disks[1].1.write(0, 64, 2);
    disks[1].1.flush();
    wait_until("the failure", || open.handle().snapshot().unwrap().devices.len() == 1);
    assert_eq!(disks[0].1.read(0, SECTORS), patterns(0, SECTORS, 1));
    assert_eq!(disks[1].1.read(0, SECTORS), [patterns(0, 64, 2), patterns(64, SECTORS - 64, 1)].concat());
    let failed = events.try_iter().filter(|event| matches!(event, EngineEvent::DeviceFailed { .. })).count();
    assert_eq!(failed, 2, "each arena says what it lost");
}

#[test]
fn an_arena_is_void_only_in_the_pool_that_lost_it() {
    let place = Place::new("arenas-void");
    let mut settings = two_arenas(&place, &[64], false);
    let (open, report) = start(&settings);
    let pool = report.arena.pool;
    let mut disks = two_disks(&place, &open);
    for (_, client) in &mut disks {
        client.write(0, SECTORS, 1);
        client.flush();
    }
    drop((disks, open));
    for (id, is_void) in [(Uuid([7; 16]), false), (pool, true)] {
        settings.void_arenas = vec![VoidArena { pool: Some(id), number: ArenaNo(1) }];
        let (_open, report) = start(&settings);
        let cached: Vec<bool> = report.disks.iter().map(|disk| disk.cached_blocks > 0).collect();
        assert_eq!(cached, [true, !is_void], "void in {id}");
    }
}

#[test]
fn every_arena_reports_the_loss_of_the_last_device_and_goes_on_without() {
    let place = Place::new("arenas-lost");
    let mut settings = two_arenas(&place, &[48], false);
    let device = settings.devices[0].clone();
    settings.devices[0] = format!("faulty:{}", device.display()).into();
    let (open, _) = start(&settings);
    let mut disks = two_disks(&place, &open);
    let handle = open.handle();
    let events = handle.events().unwrap();
    std::fs::write(format!("{}.fault", device.display()), "gone").unwrap();
    disks[0].1.write(0, 64, 1);
    let mut lost = Vec::new();
    while lost.len() < 2 {
        if let EngineEvent::PoolLost { arena } = events.recv().unwrap() {
            handle.loss_recorded(arena).unwrap();
            lost.push(arena);
        }
    }
    lost.sort();
    assert_eq!(lost, [ArenaNo(0), ArenaNo(1)]);
    for (disk, client) in &mut disks {
        client.write(64, 64, 2);
        assert_eq!(client.read(64, 64), patterns(64, 64, 2));
        handle.arena(*disk).clean(*disk).unwrap().wait().unwrap();
    }
}

#[test]
fn a_loss_that_nobody_has_recorded_is_reported_to_those_who_subscribe_later() {
    let place = Place::new("arenas-lost-early");
    let mut settings = two_arenas(&place, &[48], false);
    let device = settings.devices[0].clone();
    settings.devices[0] = format!("faulty:{}", device.display()).into();
    let (open, _) = start(&settings);
    let mut disks = two_disks(&place, &open);
    let handle = open.handle();
    std::fs::write(format!("{}.fault", device.display()), "gone").unwrap();
    disks[0].1.write(0, 64, 1);
    wait_until("the loss", || handle.snapshot().unwrap().devices.is_empty());
    let losses = |events: std::sync::mpsc::Receiver<EngineEvent>| {
        let lost = |event| if let EngineEvent::PoolLost { arena } = event { Some(arena) } else { None };
        events.try_iter().filter_map(lost).collect::<Vec<_>>()
    };
    assert_eq!(losses(handle.events().unwrap()), [ArenaNo(0), ArenaNo(1)]);
    handle.loss_recorded(ArenaNo(0)).unwrap();
    assert_eq!(losses(handle.events().unwrap()), [ArenaNo(1)]);
}

#[test]
fn devices_join_and_leave_all_arenas_also_when_that_is_cut_short() {
    let place = Place::new("arenas-devices");
    let settings = two_arenas(&place, &[48], false);
    let (open, _) = start(&settings);
    let mut disks = two_disks(&place, &open);
    for (_, client) in &mut disks {
        client.write(0, SECTORS, 1);
    }
    let formatting = Formatting { size_bytes: Some(48 * MIB), ..Formatting::default() };
    open.handle().add_device(&place.path("cache-new"), formatting).unwrap().wait().unwrap();
    // A kill in the middle of the removal: some arenas may have let go of the device, others not.
    let removal = open.handle().remove_device(DeviceNo(0)).unwrap();
    drop((removal, disks, open));
    let (open, _) = start(&settings);
    let mut disks = two_disks(&place, &open);
    match open.handle().remove_device(DeviceNo(0)) {
        Ok(removal) => removal.wait().unwrap(),
        Err(refused) => assert!(matches!(refused, EngineError::Manage(_)), "{refused}"),
    }
    wait_until("the removal", || open.handle().snapshot().unwrap().devices.len() == 1);
    for (_, client) in &mut disks {
        assert_eq!(client.read(0, SECTORS), patterns(0, SECTORS, 1));
    }
}

#[test]
fn offline_tools_see_all_arenas() {
    let place = Place::new("arenas-offline");
    let settings = two_arenas(&place, &[48], false);
    let (open, _) = start(&settings);
    for (_, client) in &mut two_disks(&place, &open) {
        client.write(0, 64, 7);
        client.flush();
    }
    drop(open);
    let report = pool::check(&settings.devices, true).unwrap();
    let dirty: Vec<usize> = report.disks.iter().map(|disk| disk.dirty_blocks.len()).collect();
    assert_eq!(dirty, [8, 8]);
    let origin = place.path("origin2");
    pool::flush_offline(&settings.devices, DiskId([2; 16]), &file(origin.clone()), |_| {}).unwrap();
    assert_eq!(std::fs::read(origin).unwrap()[..64 * 512], patterns(0, 64, 7));
    assert_eq!(pool::check(&settings.devices, false).unwrap().disks[1].dirty_blocks, []);
}

#[test]
fn nothing_of_a_pool_that_was_wiped_counts_for_the_next() {
    let place = Place::new("arenas-wipe");
    let settings = two_arenas(&place, &[48], false);
    let formatting = Formatting { overwrite: true, ..Formatting::default() };
    let refused = pool::create(&settings.devices, formatting, Shape { redundancy: false, arenas: 3 });
    assert!(refused.unwrap_err().to_string().contains("already carries"));
    // Overwrite the beginning of the device, as `dd` would: the second arena's superblock stays.
    let device = std::fs::OpenOptions::new().write(true).open(&settings.devices[0]).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&device, &vec![0; 1 << 20], 0).unwrap();
    drop(device);
    let made = pool::create(&settings.devices, formatting, Shape { redundancy: false, arenas: 2 });
    made.unwrap();
    let (open, report) = start(&settings);
    assert!(report.disks.is_empty());
    assert_eq!(two_disks(&place, &open)[1].1.read(0, SECTORS), patterns(0, SECTORS, 0));
    drop(open);
    pool::wipe(&settings.devices[0]).unwrap();
    assert!(matches!(OpenPool::start(&settings).err().unwrap(), EngineError::NoDevices { .. }));
}

#[test]
fn an_extent_that_is_not_the_arenas_own_is_refused() {
    let place = Place::new("arenas-mixed");
    let settings = two_arenas(&place, &[48], false);
    let mut bytes = std::fs::read(&settings.devices[0]).unwrap();
    let (first, second) = bytes.split_at_mut(24 << 20);
    second.copy_from_slice(first);
    std::fs::write(&settings.devices[0], &bytes).unwrap();
    let refused = OpenPool::start(&settings).err().unwrap().to_string();
    assert!(refused.contains("superblock of arena 1"), "{refused}");
    let refused = pool::check(&settings.devices, false).unwrap_err().to_string();
    assert!(refused.contains("superblock of arena 1"), "{refused}");
    let refused = pool::create(
        &[place.path("x")],
        Formatting { size_bytes: Some(48 * MIB), overwrite: false },
        Shape { redundancy: false, arenas: 0 },
    );
    assert!(matches!(refused, Err(EngineError::Arenas { arenas: 0, .. })));
}

#[test]
fn memory_that_is_too_little_for_the_arenas_is_refused() {
    let place = Place::new("arenas-memory");
    let settings = two_arenas(&place, &[48], false);
    let little = PoolSettings { staging_blocks: 100, ..settings.clone() };
    let refused = OpenPool::start(&little).err().unwrap().to_string();
    assert!(refused.contains("set at least 524288 bytes"), "{refused}");
    drop(OpenPool::start(&PoolSettings { staging_blocks: 128, ..settings }).unwrap());
}
