//! Handles of disks that were detached: they never refer to a disk, even if another disk has the same number by then.

mod common;

use common::departing::Departing;
use common::*;
use haversack_core::{AdmissionConfig, ManageError, MonitorConfig, Records, Target};
use haversack_engine::{
    EngineError, NbdClient, OriginSpec, PoolHandle, TlsFiles, VhostUserConfig, WriteCacheSetting,
};
use haversack_model::{DiskHandle, DiskId, WriteMode};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
    let (open, _) = start(&place.pool(&[64], false));
    let handle = open.handle();
    let old = attach(&open, spec(1, 8, file(place.origin("one", 8))));
    let mut client = Client::new(&handle, old, 8 * MIB);
    client.write(0, 8, 1);
    handle.arena(old).detach(old, true).unwrap().wait().unwrap();
    let moved_on = handle.forget(DiskId([1; 16]), false, Some(0)).err();
    assert!(matches!(moved_on, Some(EngineError::Manage(ManageError::Busy))), "{moved_on:?}");
    handle.forget(DiskId([1; 16]), false, Some(1)).unwrap().wait().unwrap();
    assert!(matches!(handle.forget(DiskId([1; 16]), false, None).err(), Some(EngineError::Unknown(_))));
    let new = attach(&open, spec(2, 8, file(place.origin("two", 8))));
    assert_eq!(new.number(), old.number(), "the place is used again");
    assert_ne!(new, old);

    refused("a detach", handle.arena(old).detach(old, true));
    refused("a flush", handle.arena(old).clean(old));
    refused("a resize", handle.arena(old).resize(old, 8 * MIB / 512, false));
    refused("a mode", handle.arena(old).set_mode(old, WriteMode::PassThrough));
    refused("a share", handle.arena(old).set_target(old, Target::Blocks(0)));
    refused("an admission", handle.arena(old).set_admission(old, AdmissionConfig::Always));
    refused("settings", handle.arena(old).tune(old, spec(1, 8, file(place.origin("tuned", 8))).config));
    let monitor = MonitorConfig { records: 64, sample_shift: 0 };
    refused("a recording", handle.arena(old).set_monitor(old, Some(monitor)));
    let shown = VhostUserConfig {
        serial: "disk1".into(),
        queues: 1,
        read_only: false,
        write_cache: WriteCacheSetting::On,
        on_switch: None,
    };
    refused(
        "a socket",
        handle.arena(old).serve_vhost_user(old, 8 * MIB / 512, &place.path("socket"), &shown),
    );

    handle.arena(new).set_monitor(new, Some(monitor)).unwrap();
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
    let (open, _) = start(&place.pool(&[64], false));
    let handle = open.handle();
    let disk = attach(&open, spec(1, 8, file(place.origin("one", 8))));
    let offer = |size_bytes, read_only, most| offer(&handle, disk, size_bytes, read_only, most);
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
    handle.arena(disk).detach(disk, true).unwrap().wait().unwrap();
    assert!(matches!(refusal(8 * MIB, false, 2), EngineError::Detached));
}

/// Hands over a connection that has completed its negotiation. Returns the client's side.
fn offer(
    handle: &PoolHandle,
    disk: DiskHandle,
    size_bytes: u64,
    read_only: bool,
    max_connections: u32,
) -> Result<UnixStream, EngineError> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut negotiated = negotiated(size_bytes);
    negotiated.export.read_only = read_only;
    let (socket, peer, held) = (theirs.into(), "a test".into(), Arc::new(()));
    let client = NbdClient { disk, socket, negotiated, max_connections, peer, held };
    handle.arena(client.disk).add_nbd_client(client).map(|()| ours)
}

/// No client can connect between the check for clients and the change of size.
#[test]
fn a_disk_that_is_being_made_smaller_takes_no_client() {
    let place = Place::new("shrinking");
    let (open, _) = start(&place.pool(&[64], false));
    let handle = open.handle();
    let disk = attach(&open, spec(1, 8, file(place.origin("one", 8))));
    for mib in (1..8).rev() {
        let job = handle.arena(disk).resize(disk, mib * MIB / 512, true).unwrap();
        let old = offer(&handle, disk, (mib + 1) * MIB, false, 9);
        assert!(matches!(old, Err(EngineError::ExportChanged { .. })), "{mib} MiB: {old:?}");
        job.wait().unwrap();
        drop(offer(&handle, disk, mib * MIB, false, 9).expect("the new size"));
        wait_until("the client's end", || handle.arena(disk).nbd_peers(disk).unwrap().is_empty());
    }
}

/// No client can connect between the check for clients and the end of the detach.
#[test]
fn a_disk_that_is_being_detached_takes_no_client() {
    let (place, near) = (Place::new("closing"), Place::new("closing-near"));
    let socket = place.path("nbd.sock");
    let server = Departing::serve(patterns(0, 8 * MIB / 512, 0), &socket);
    let (open, _) = start(&near.pool(&[64], false));
    let handle = open.handle();
    let uri = format!("nbd+unix:///disk?socket={}", socket.display());
    let origin = OriginSpec::Nbd { uri, connections: 1, tls: TlsFiles::default() };
    let disk = attach(&open, spec(1, 8, origin));
    let mut client = Client::new(&handle, disk, 8 * MIB);
    client.write(0, 8, 1);
    let in_use = handle.arena(disk).detach(disk, false).err().expect("a disk in use is detached");
    assert!(matches!(&in_use, EngineError::Connected { clients, .. } if clients.len() == 1), "{in_use}");
    drop(client);
    wait_until("the client's end", || handle.arena(disk).nbd_peers(disk).unwrap().is_empty());

    // Dirty blocks cannot be cleaned now, so the detach does not end.
    server.leaves.store(true, Ordering::Relaxed);
    let job = handle.arena(disk).detach(disk, false).unwrap();
    refused("a client", offer(&handle, disk, 8 * MIB, false, 9));
    assert!(job.cancel().unwrap());
    assert!(job.wait().is_err());
    drop(offer(&handle, disk, 8 * MIB, false, 9).expect("the detach was cancelled"));
    server.leaves.store(false, Ordering::Relaxed);
    handle.arena(disk).detach(disk, true).unwrap().wait().unwrap();
}
