//! A pool with real files, real io_uring and NBD clients.

mod common;

use std::sync::atomic::Ordering;

use common::departing::Departing;
use common::*;
use haversack_engine::pool::Formatting;
use haversack_engine::{EngineError, EngineEvent, OpenPool, OriginSpec, TlsFiles};
use haversack_model::WriteMode;
use haversack_nbd::{Command, CommandFlags, Errno};

fn file(path: std::path::PathBuf) -> OriginSpec {
    OriginSpec::File { path }
}

#[test]
fn writes_are_read_back_and_reach_the_origin() {
    let place = Place::new("basic");
    let origin = place.origin("origin", 16);
    let (open, _) = start(&place.pool(&[64], false));
    let disk = attach(&open, spec(1, 16, file(origin.clone())));
    let mut client = Client::new(&open.handle(), disk, 16 * MIB);
    assert_eq!(client.read(100, 300), patterns(100, 300, 0));
    client.write(101, 33, 1);
    client.write(5000, 2048, 2);
    client.trim(8192, 64);
    let expected = [patterns(100, 1, 0), patterns(101, 33, 1), patterns(134, 3, 0)].concat();
    assert_eq!(client.read(100, 37), expected);
    assert_eq!(client.read(5000, 2048), patterns(5000, 2048, 2));
    assert_eq!(client.read(8192, 64), vec![0; 64 * 512]);
    client.flush();
    let handle = open.handle();
    handle.arena(disk).clean(disk).unwrap().wait().unwrap();
    let bytes = std::fs::read(&origin).unwrap();
    assert_eq!(bytes[101 * 512..134 * 512], patterns(101, 33, 1));
    assert_eq!(bytes[5000 * 512..7048 * 512], patterns(5000, 2048, 2));
    let snapshot = handle.snapshot().unwrap();
    let stats = &snapshot.disks[0];
    assert_eq!((stats.usage.dirty_blocks, stats.clients), (0, 1));
    assert!(stats.nbd_latency.read.count() == 4 && stats.nbd_latency.flush.count() == 1);
    handle.arena(disk).detach(disk, true).unwrap().wait().unwrap();
    assert!(handle.snapshot().unwrap().disks.is_empty());
}

#[test]
fn a_clean_stop_leaves_the_cache_warm() {
    let place = Place::new("warm");
    let origin = place.origin("origin", 4);
    let config = place.pool(&[64], false);
    let (open, _) = start(&config);
    let disk = attach(&open, spec(1, 4, file(origin.clone())));
    let mut client = Client::new(&open.handle(), disk, 4 * MIB);
    client.read(0, 4096);
    client.write(8, 8, 3);
    open.handle().shutdown().unwrap().wait().unwrap();
    drop(open);
    let (open, report) = start(&config);
    assert!(report.clean_stop);
    let disk = attach(&open, spec(1, 4, file(origin)));
    let mut client = Client::new(&open.handle(), disk, 4 * MIB);
    assert_eq!(client.read(8, 16), [patterns(8, 8, 3), patterns(16, 8, 0)].concat());
    let stats = open.handle().snapshot().unwrap().disks[0].stats;
    assert_eq!((stats.read_hits, stats.read_misses), (2, 0));
}

#[test]
fn a_stop_without_warning_loses_nothing() {
    let place = Place::new("kill");
    let origin = place.origin("origin", 4);
    let config = place.pool(&[64, 64], true);
    for version in 1..6 {
        let (open, report) = start(&config);
        assert_eq!(report.staging_survived, version > 1);
        let disk = attach(&open, spec(1, 4, file(origin.clone())));
        let mut client = Client::new(&open.handle(), disk, 4 * MIB);
        assert_eq!(client.read(64, 512), patterns(64, 512, version - 1));
        client.write(64, 512, version);
        drop(open);
    }
}

#[test]
fn an_nbd_origin_may_go_and_come_back() {
    let place = Place::new("nbd");
    let (far, near) = (Place::new("far"), Place::new("near"));
    let origin = place.origin("origin", 8);
    let socket = place.path("nbd.sock");
    let far_config = far.pool(&[32], false);
    let begin = || {
        let (open, _) = start(&far_config);
        let disk = attach(&open, spec(1, 8, file(origin.clone())));
        serve(open.handle(), disk, 8 * MIB, &socket);
        open
    };
    let far_pool = begin();
    let (open, _) = start(&near.pool(&[32], false));
    let uri = format!("nbd+unix:///disk?socket={}", socket.display());
    let disk = attach(&open, spec(2, 8, OriginSpec::Nbd { uri, connections: 2, tls: TlsFiles::default() }));
    let mut client = Client::new(&open.handle(), disk, 8 * MIB);
    assert_eq!(client.read(0, 4096), patterns(0, 4096, 0));
    client.write(0, 100, 1);
    drop(far_pool);
    client.write(100, 100, 1);
    let reader = std::thread::spawn(move || {
        assert_eq!(client.read(8192, 2048), patterns(8192, 2048, 0));
        client
    });
    wait_until("the loss of the origin", || !open.handle().snapshot().unwrap().disks[0].origin_up);
    let _far_pool = begin();
    let mut client = reader.join().unwrap();
    client.trim(4096, 16);
    assert_eq!(client.read(4096, 16), vec![0; 16 * 512]);
    open.handle().arena(disk).clean(disk).unwrap().wait().unwrap();
    assert_eq!(client.read(0, 200), patterns(0, 200, 1));
}

/// A server that is shutting down, such as nbdkit after SIGTERM. Its answers are not errors of the disk: requests are
/// repeated when the server is back.
#[test]
fn a_server_that_is_shutting_down_is_waited_for() {
    let (place, near) = (Place::new("departing"), Place::new("near"));
    let socket = place.path("nbd.sock");
    let server = Departing::serve(patterns(0, 8 * MIB / 512, 0), &socket);
    let (open, _) = start(&near.pool(&[32], false));
    let uri = format!("nbd+unix:///disk?socket={}", socket.display());
    let mut spec = spec(1, 8, OriginSpec::Nbd { uri, connections: 2, tls: TlsFiles::default() });
    spec.config.mode = WriteMode::PassThrough;
    let disk = attach(&open, spec);
    let mut client = Client::new(&open.handle(), disk, 8 * MIB);
    client.write(0, 100, 1);
    client.flush();
    server.leaves.store(true, Ordering::Relaxed);
    let asker = std::thread::spawn(move || {
        client.flush();
        client.write(100, 100, 1);
        assert_eq!(client.read(0, 300), [patterns(0, 200, 1), patterns(200, 100, 0)].concat());
        client.flush();
    });
    wait_until("an answer that it is shutting down", || server.refused.load(Ordering::Relaxed) > 0);
    // Longer than failed requests are retried; on a slow machine it takes longer still.
    let (begin, before) = (std::time::Instant::now(), server.connections.load(Ordering::Relaxed));
    std::thread::sleep(std::time::Duration::from_secs(5));
    let connections = server.connections.load(Ordering::Relaxed) - before;
    let waited_s = begin.elapsed().as_secs_f64();
    assert!(f64::from(connections) < 40.0 * waited_s, "{connections} connections in {waited_s} seconds");
    server.leaves.store(false, Ordering::Relaxed);
    asker.join().unwrap();
}

#[test]
fn unfit_origins_and_devices_are_refused() {
    let place = Place::new("unfit");
    let config = place.pool(&[32], false);
    let (open, _) = start(&config);
    let handle = open.handle();
    let refused = handle.attach(spec(1, 8, file(place.origin("small", 4)))).err().unwrap();
    assert!(refused.to_string().contains("enlarge the origin"), "{refused}");
    let refused = handle.attach(spec(1, 8, file(place.path("none")))).err().unwrap();
    assert!(matches!(refused, EngineError::Io { .. }), "{refused}");
    let mut gone = spec(
        1,
        8,
        OriginSpec::Nbd {
            uri: "nbd+unix:///x?socket=/nowhere".into(),
            connections: 1,
            tls: TlsFiles::default(),
        },
    );
    gone.origin_wait = std::time::Duration::from_millis(100);
    assert!(handle.attach(gone).err().unwrap().to_string().contains("nowhere"));
    let mut other = place.settings(config.devices.clone());
    other.staging_path = place.path("staging2");
    let refused = OpenPool::start(&other).err().unwrap();
    assert!(matches!(refused, EngineError::InUse { .. }), "{refused}");
}

#[test]
fn a_detached_disk_answers_with_an_error_or_hangs_up() {
    let place = Place::new("detach");
    let (open, _) = start(&place.pool(&[32], false));
    let disk = attach(&open, spec(1, 4, file(place.origin("origin", 4))));
    let mut client = Client::new(&open.handle(), disk, 4 * MIB);
    client.write(0, 64, 1);
    assert_eq!(client.ask(Command::Cache, CommandFlags::NONE, 1024, 4096, &[]), Ok(Vec::new()));
    assert_eq!(open.handle().snapshot().unwrap().disks[0].usage.usage_blocks, 512 + 8);
    open.handle().arena(disk).detach(disk, true).unwrap().wait().unwrap();
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        client.ask(Command::Read, CommandFlags::NONE, 0, 8, &[])
    }));
    assert!(ended.is_err() || ended.is_ok_and(|read| read == Err(Errno::ESHUTDOWN)));
}

#[test]
fn a_device_that_fails_or_is_pulled_loses_no_write_that_has_two_copies() {
    for fault in ["write", "read", "flush", "gone"] {
        let place = Place::new("fault");
        let mut config = place.pool(&[32, 32], true);
        let second = config.devices[1].clone();
        config.devices[1] = format!("faulty:{}", second.display()).into();
        let (open, _) = start(&config);
        let disk = attach(&open, spec(1, 8, file(place.origin("origin", 8))));
        let mut client = Client::new(&open.handle(), disk, 8 * MIB);
        let events = open.handle().events().unwrap();
        client.write(0, 4096, 1);
        client.flush();
        client.read(4096, 4096);
        std::fs::write(format!("{}.fault", second.display()), fault).unwrap();
        for round in 0..8 {
            client.write(0, 2048, 2 + round);
            client.flush();
            assert_eq!(client.read(0, 2048), patterns(0, 2048, 2 + round), "{fault}");
            assert_eq!(client.read(2048, 6144)[..1 << 20], patterns(2048, 2048, 1), "{fault}");
        }
        let failed = events.try_iter().any(|event| matches!(event, EngineEvent::DeviceError { .. }));
        assert!(failed, "{fault}");
        open.handle().arena(disk).clean(disk).unwrap().wait().unwrap();
        drop(open);
        let origin = std::fs::read(place.path("origin")).unwrap();
        assert_eq!(origin[..4096 * 512], [patterns(0, 2048, 9), patterns(2048, 2048, 1)].concat(), "{fault}");
    }
}

#[test]
fn a_device_joins_and_another_leaves() {
    let place = Place::new("devices");
    let (open, _) = start(&place.pool(&[32], false));
    let disk = attach(&open, spec(1, 8, file(place.origin("origin", 8))));
    let mut client = Client::new(&open.handle(), disk, 8 * MIB);
    client.write(0, 8192, 1);
    let handle = open.handle();
    handle
        .add_device(
            &place.path("cache-new"),
            Formatting { size_bytes: Some(32 * MIB), ..Formatting::default() },
        )
        .unwrap()
        .wait()
        .unwrap();
    handle.remove_device(haversack_model::DeviceNo(0)).unwrap().wait().unwrap();
    assert_eq!(client.read(0, 8192), patterns(0, 8192, 1));
    let devices = handle.snapshot().unwrap().devices;
    let paths: Vec<&str> = devices.iter().map(|d| d.path.as_str()).collect();
    assert_eq!(paths, [place.path("cache-new").to_str().unwrap()]);
}
