//! A disk that is detached at its host goes to whichever host asks for it: two pools, one origin.

mod common;

use common::hosts::{Host, Network};
use common::*;
use haversack_core::ManageError;
use haversack_engine::{DiskSpec, EngineError, Moves, OriginSpec};
use haversack_model::{DiskHandle, DiskId};
use haversack_ownership::Record;

const DISK_MIB: u64 = 4;
const BYTES: u64 = DISK_MIB * MIB;
const SECTORS: u64 = BYTES / 512;
const DISK: DiskId = DiskId([1; 16]);

fn record(host: &Host) -> Option<Record> {
    host.handle().migration_status(DISK).unwrap().map(|status| status.record)
}

fn owns(host: &Host) -> bool {
    matches!(record(host), Some(Record::Owner { .. }))
}

fn origin(place: &Place) -> OriginSpec {
    let path = place.path("origin");
    if !path.exists() {
        place.origin("origin", DISK_MIB);
    }
    OriginSpec::File { path }
}

fn detach(host: &Host, disk: DiskHandle) {
    host.handle().arena(disk).detach(disk, false).unwrap().wait().unwrap();
}

/// Attaches the disk again at the host where it was, and retries while the disk is being released.
fn attach_again(host: &Host, origin: &OriginSpec) -> DiskHandle {
    loop {
        let spec = DiskSpec { moves: Some(Moves::default()), ..spec(1, DISK_MIB, origin.clone()) };
        match host.handle().attach(spec) {
            Ok((disk, job)) => {
                job.wait().unwrap();
                return disk;
            }
            Err(EngineError::Manage(ManageError::Busy)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// A host attaches its disk again at the moment when another host asks for it. Either of them may get the disk first;
/// in the end the host of the guest owns it.
#[test]
fn an_attach_and_a_release_at_the_same_time_leave_one_owner() {
    let (shared, a, b) = (Place::new("detached"), Place::new("detached-a"), Place::new("detached-b"));
    let network = Network::new(false, 0);
    let hosts = [Host::new(&a, 1, &network), Host::new(&b, 2, &network)];
    let origin = origin(&shared);
    let mut at = hosts[0].attach(DISK_MIB, origin.clone(), None);
    let mut guest = Client::new(&hosts[0].handle(), at, BYTES);
    guest.write(0, SECTORS, 1);
    guest.flush();
    drop(guest);
    let mut there = hosts[1].attach(DISK_MIB, origin.clone(), Some(hosts[0].id));
    for round in 0..20usize {
        let (from, to) = (&hosts[round % 2], &hosts[1 - round % 2]);
        wait_until("the guest is gone", || {
            let status = from.handle().migration_status(DISK).unwrap();
            let Some(status) = status else { return false };
            matches!(&status.record, Record::Owner { peers, .. } if peers.is_empty()) && !status.is_guest_here
        });
        wait_until("the detach", || {
            let job = from.handle().arena(at).detach(at, false);
            job.is_ok_and(|job| job.wait().is_ok())
        });
        let mut guest = Client::new(&to.handle(), there, BYTES);
        let version = round as u64 + 2;
        let writer = std::thread::spawn(move || {
            guest.write(0, 64, version);
            guest
        });
        at = attach_again(from, &origin);
        let mut guest = writer.join().unwrap();
        assert!(owns(to) && !owns(from), "round {round}");
        assert_eq!(guest.read(0, 64), patterns(0, 64, version));
        assert_eq!(guest.read(64, SECTORS - 64), patterns(64, SECTORS - 64, 1));
        guest.flush();
        (at, there) = (there, at);
    }
}

/// A disk that was detached while its origin was unreachable is dirty, and so is a disk of a killed host: no other host
/// gets it.
#[test]
fn only_a_disk_that_was_left_clean_stands_by() {
    let (shared, a) = (Place::new("detached"), Place::new("detached-a"));
    let network = Network::new(false, 0);
    let mut host = Host::new(&a, 1, &network);
    let at = host.attach(DISK_MIB, origin(&shared), None);
    let mut guest = Client::new(&host.handle(), at, BYTES);
    guest.write(0, 64, 1);
    drop(guest);
    host.kill();
    host.start();
    assert!(!host.handle().stand_by(DISK).unwrap() && record(&host).is_none());
    let at = host.attach(DISK_MIB, origin(&shared), None);
    assert!(owns(&host));
    wait_until("the guest is gone", || host.handle().arena(at).nbd_peers(at).unwrap().is_empty());
    detach(&host, at);
    assert!(owns(&host), "it stands by");
    host.kill();
    host.start();
    assert!(record(&host).is_none(), "after a start, it stands by only when the caller says so");
    assert!(host.handle().stand_by(DISK).unwrap() && owns(&host));
    // A disk that does not move is not given away.
    let (disk, job) = host.handle().attach(spec(1, DISK_MIB, origin(&shared))).unwrap();
    job.wait().unwrap();
    assert!(record(&host).is_none());
    detach(&host, disk);
}
