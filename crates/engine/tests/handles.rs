//! Handles of disks that were detached: whatever they are used for, they name no disk, also when another is in that place
//! by then.

mod common;

use common::*;
use haversack_core::{AdmissionConfig, CleanerConfig, MonitorConfig, Records, Target};
use haversack_engine::{EngineError, NbdClient, OriginSpec, VhostUserConfig};
use haversack_model::{DiskId, WriteMode};
use std::sync::Arc;

fn file(path: std::path::PathBuf) -> OriginSpec {
    OriginSpec::File { path }
}

fn refused<T>(what: &str, result: Result<T, EngineError>) {
    let error = result.err().unwrap_or_else(|| panic!("{what} is done"));
    assert!(matches!(error, EngineError::Detached), "{what}: {error}");
}

#[test]
fn the_handle_of_a_detached_disk_names_no_other() {
    let place = Place::new("handles");
    let (shard, _) = start(&place.pool(&[64], false));
    let handle = shard.handle();
    let old = attach(&shard, spec(1, 8, file(place.origin("one", 8))));
    let mut client = Client::new(&handle, old, 8 * MIB);
    client.write(0, 8, 1);
    handle.detach(old).unwrap().wait().unwrap();
    handle.forget(DiskId([1; 16]), false).unwrap().wait().unwrap();
    assert!(matches!(handle.forget(DiskId([1; 16]), false).err(), Some(EngineError::Unknown(_))));
    let new = attach(&shard, spec(2, 8, file(place.origin("two", 8))));
    assert_eq!(new.number(), old.number(), "the place is used again");
    assert_ne!(new, old);

    refused("a detach", handle.detach(old));
    refused("a flush", handle.clean(old));
    refused("a resize", handle.resize(old, 8 * MIB / 512, false));
    refused("a mode", handle.set_mode(old, WriteMode::PassThrough));
    refused("a share", handle.set_target(old, Target::Blocks(0)));
    refused("an admission", handle.set_admission(old, AdmissionConfig::Always));
    refused("a cleaner", handle.set_cleaner(old, CleanerConfig::default()));
    refused("a cut-off", handle.set_sequential_cutoff(old, 0));
    let monitor = MonitorConfig { records: 64, sample_shift: 0 };
    refused("a recording", handle.set_monitor(old, Some(monitor)));
    let shown = VhostUserConfig { serial: "disk1".into(), queues: 1, read_only: false, write_cache: true };
    refused("a socket", handle.serve_vhost_user(old, 8 * MIB / 512, &place.path("socket"), &shown));

    handle.set_monitor(new, Some(monitor)).unwrap();
    Client::new(&handle, new, 8 * MIB).read(0, 8);
    let buffers = vec![(old, Records::with_room(64)), (new, Records::with_room(64))];
    let records: Vec<usize> =
        handle.take_records(buffers).unwrap().iter().map(|(_, records)| records.iter().count()).collect();
    assert_eq!(records, [0, 1], "the old handle gets no records of the new disk");
    let names: Vec<_> = handle.snapshot().unwrap().disks.into_iter().map(|d| (d.disk, d.name)).collect();
    assert_eq!(names, [(new, "disk2".to_string())]);
}

#[test]
fn a_client_is_taken_only_for_what_was_agreed_on() {
    let place = Place::new("agreed");
    let (shard, _) = start(&place.pool(&[64], false));
    let handle = shard.handle();
    let disk = attach(&shard, spec(1, 8, file(place.origin("one", 8))));
    let offer = |size_bytes, read_only, max_connections| {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut negotiated = negotiated(size_bytes);
        negotiated.export.read_only = read_only;
        let client = NbdClient {
            disk,
            socket: theirs.into(),
            negotiated,
            max_connections,
            peer: "a test".into(),
            held: Arc::new(()),
        };
        handle.add_nbd_client(client).map(|()| ours)
    };
    let refusal = |size_bytes, read_only, max| offer(size_bytes, read_only, max).unwrap_err();
    assert!(matches!(refusal(4 * MIB, false, 2), EngineError::ExportChanged { .. }));
    assert!(matches!(refusal(8 * MIB, true, 2), EngineError::ExportChanged { .. }));
    let first = offer(8 * MIB, false, 2).unwrap();
    let second = offer(8 * MIB, false, 2).unwrap();
    assert!(matches!(refusal(8 * MIB, false, 2), EngineError::TooManyConnections { most: 2, .. }));
    assert!(refusal(8 * MIB, false, 2).to_string().contains("disk1"));
    drop(first);
    wait_until("the place of a closed connection", || offer(8 * MIB, false, 2).is_ok());
    drop(second);
    handle.detach(disk).unwrap().wait().unwrap();
    assert!(matches!(refusal(8 * MIB, false, 2), EngineError::Detached));
}
