//! A disk moves between hosts with its cache: two pools, one origin, and a network that may lose messages.

mod common;

use std::io::Read;
use std::sync::Arc;

use common::hosts::{Host, Network};
use common::*;
use haversack_engine::{EngineEvent, HostMessage, MOST_OBSERVED_SECTORS, MoveStatus, OriginSpec};
use haversack_migrate::{Message, Method};
use haversack_model::{DiskId, HostId};
use haversack_nbd::{Command, CommandFlags};
use haversack_ownership::Record;

const DISK_MIB: u64 = 8;
const BYTES: u64 = DISK_MIB * MIB;
const SECTORS: u64 = BYTES / 512;
const DISK: DiskId = DiskId([1; 16]);

fn status(host: &Host) -> MoveStatus {
    host.handle().migration_status(DISK).unwrap().expect("the disk moves")
}

fn owns(host: &Host) -> bool {
    matches!(status(host).record, Record::Owner { .. })
}

/// Sends what is cached ahead, and waits until little is left.
fn send_ahead(from: &Host, disk: haversack_model::DiskHandle, to: &Host) {
    from.handle().arena(disk).start_migration(disk, to.id, Method::PreCopy).unwrap();
    wait_until("the destination has the blocks", || status(from).is_ready);
}

fn origin(place: &Place) -> OriginSpec {
    let path = place.path("origin");
    if !path.exists() {
        place.origin("origin", DISK_MIB);
    }
    OriginSpec::File { path }
}

/// A guest on NBD moves to the other host and back; every sector has what was written last.
fn there_and_back(detaches: bool, faults: bool, seed: u64) {
    let (shared, a, b) = (Place::new("moving"), Place::new("moving-a"), Place::new("moving-b"));
    let network = Network::new(faults, seed);
    let (a, b) = (Host::new(&a, 1, &network), Host::new(&b, 2, &network));
    let events = b.handle().events().unwrap();
    let mut at_a = a.attach(DISK_MIB, origin(&shared), None);
    let at_b = b.attach(DISK_MIB, origin(&shared), Some(a.id));
    let mut guest = Client::new(&a.handle(), at_a, BYTES);
    guest.write(0, SECTORS / 2, 1);
    assert_eq!(guest.read(SECTORS / 2, SECTORS / 4), patterns(SECTORS / 2, SECTORS / 4, 0));

    send_ahead(&a, at_a, &b);
    guest.write(64, 64, 2);
    // The destination's hypervisor reads the disk before its guest arrives.
    let mut moved = Client::new(&b.handle(), at_b, BYTES);
    assert_eq!(moved.read(0, 8), patterns(0, 8, 1));
    assert_eq!(moved.read(64, 64), patterns(64, 64, 2));
    moved.flush();
    assert!(owns(&a) && !owns(&b));
    guest.write(72, 8, 3);
    assert_eq!(moved.read(72, 8), patterns(72, 8, 3), "what it saw before is not kept");
    guest.flush();

    // The guest is there.
    moved.write(80, 8, 4);
    assert!(owns(&b) && !owns(&a));
    drop(guest);
    let expected = |sector| match sector {
        80..88 => 4,
        72..80 => 3,
        64..128 => 2,
        sector if sector < SECTORS / 2 => 1,
        _ => 0,
    };
    let all: Vec<u8> = (0..SECTORS).flat_map(|sector| pattern(sector, expected(sector))).collect();
    assert!(moved.read(0, SECTORS) == all);
    wait_until("nothing is left at the source", || !status(&a).progress.is_peer);
    wait_until(
        "the move ends",
        || matches!(status(&b).record, Record::Owner { peers, .. } if peers.is_empty()),
    );
    let told: Vec<EngineEvent> = events.try_iter().collect();
    assert!(told.contains(&EngineEvent::MovedHere { disk: DISK, from: Some(a.id) }), "{told:?}");
    assert!(told.contains(&EngineEvent::MoveEnded { disk: DISK }), "{told:?}");

    // And back.
    if detaches {
        a.handle().arena(at_a).detach(at_a, true).unwrap().wait().unwrap();
        at_a = a.attach(DISK_MIB, origin(&shared), None);
    }
    assert!(!owns(&a), "its record says that another host has the disk");
    send_ahead(&b, at_b, &a);
    moved.write(1_000, 8, 5);
    let mut back = Client::new(&a.handle(), at_a, BYTES);
    back.write(80, 4, 6);
    assert!(owns(&a) && !owns(&b));
    let expected = |sector| match sector {
        80..84 => 6,
        1_000..1_008 => 5,
        sector => expected(sector),
    };
    let all: Vec<u8> = (0..SECTORS).flat_map(|sector| pattern(sector, expected(sector))).collect();
    assert!(back.read(0, SECTORS) == all);
}

#[test]
fn a_disk_moves_there_and_back() {
    there_and_back(false, false, 0);
}

/// A manager detaches a disk at the source when its guest has left.
#[test]
fn a_disk_that_was_detached_at_the_source_comes_back() {
    there_and_back(true, false, 0);
}

#[test]
fn a_network_that_loses_messages_only_costs_time() {
    there_and_back(false, true, 1);
}

/// Before the guest arrives, more clients read a disk than the owner serves at a time: no read is refused, and all are
/// answered.
#[test]
fn clients_that_look_at_a_disk_wait_for_each_other() {
    const READ: u64 = MOST_OBSERVED_SECTORS as u64;
    let (shared, a, b) = (Place::new("moving"), Place::new("moving-a"), Place::new("moving-b"));
    let network = Network::new(false, 0);
    let (a, b) = (Host::new(&a, 1, &network), Host::new(&b, 2, &network));
    let at_a = a.attach(DISK_MIB, origin(&shared), None);
    let at_b = b.attach(DISK_MIB, origin(&shared), Some(a.id));
    let mut guest = Client::new(&a.handle(), at_a, BYTES);
    guest.write(0, SECTORS, 1);
    network.cut(true);
    let client = |at: u64| {
        let mut client = Client::new(&b.handle(), at_b, BYTES);
        std::thread::spawn(move || client.read(at * READ, READ))
    };
    let clients: Vec<_> = (0..SECTORS / READ).map(client).collect();
    std::thread::sleep(std::time::Duration::from_millis(100));
    network.cut(false);
    for (at, client) in clients.into_iter().enumerate() {
        assert!(client.join().unwrap() == patterns(at as u64 * READ, READ, 1), "the read of client {at}");
    }
    assert_eq!(network.refused_reads(), 0);
}

/// Either host dies when the guest has moved and its dirty blocks have not: reads wait, and nothing is lost.
#[test]
fn blocks_that_only_the_source_has_wait_for_it() {
    let (shared, a, b) = (Place::new("moving"), Place::new("moving-a"), Place::new("moving-b"));
    let network = Network::new(false, 0);
    let (mut a, mut b) = (Host::new(&a, 1, &network), Host::new(&b, 2, &network));
    let at_a = a.attach(DISK_MIB, origin(&shared), None);
    let at_b = b.attach(DISK_MIB, origin(&shared), Some(a.id));
    let mut guest = Client::new(&a.handle(), at_a, BYTES);
    guest.write(0, SECTORS / 2, 1);
    drop(guest);
    wait_until("the guest is gone", || !status(&a).is_guest_here);
    let mut moved = Client::new(&b.handle(), at_b, BYTES);
    moved.write(8, 8, 2);
    a.kill();
    assert!(status(&b).progress.needed_blocks > 0, "blocks are only there");
    let reader = std::thread::spawn(move || {
        let read = moved.read(0, SECTORS);
        (moved, read)
    });
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(!reader.is_finished(), "a block that only the source has is not made up");
    a.start();
    let (moved, read) = reader.join().unwrap();
    let expected = |sector| match sector {
        8..16 => 2,
        sector if sector < SECTORS / 2 => 1,
        _ => 0,
    };
    let all: Vec<u8> = (0..SECTORS).flat_map(|sector| pattern(sector, expected(sector))).collect();
    assert!(read == all);
    drop(moved);
    b.kill();
    b.start();
    let at_b = b.attach(DISK_MIB, origin(&shared), Some(a.id));
    let mut again = Client::new(&b.handle(), at_b, BYTES);
    assert!(again.read(0, SECTORS) == all);
    wait_until("nothing is left at the source", || !status(&a).progress.is_peer);
}

/// Nothing was sent ahead, and the guest at the source has never stopped: the disk is not taken from it.
#[test]
fn a_disk_in_use_is_not_given_away() {
    let (shared, a, b) = (Place::new("moving"), Place::new("moving-a"), Place::new("moving-b"));
    let network = Network::new(false, 0);
    let (a, b) = (Host::new(&a, 1, &network), Host::new(&b, 2, &network));
    let at_a = a.attach(DISK_MIB, origin(&shared), None);
    let at_b = b.attach(DISK_MIB, origin(&shared), Some(a.id));
    let mut guest = Client::new(&a.handle(), at_a, BYTES);
    guest.write(0, 8, 1);
    let mut other = Client::new(&b.handle(), at_b, BYTES);
    let writer = std::thread::spawn(move || {
        other.ask(Command::Write, CommandFlags::NONE, 0, 8, &patterns(0, 8, 2)).unwrap();
        other
    });
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(!writer.is_finished() && owns(&a));
    guest.write(8, 8, 1);
    assert_eq!(guest.read(0, 8), patterns(0, 8, 1));
    drop(guest);
    let mut other = writer.join().unwrap();
    assert!(owns(&b));
    assert_eq!(other.read(0, 8), patterns(0, 8, 2));
    assert_eq!(other.read(8, 8), patterns(8, 8, 1));
}

/// A writer that goes away before the disk has come leaves nothing behind that would take the disk later.
#[test]
fn a_guest_that_gives_up_does_not_take_the_disk_later() {
    let (shared, a, b) = (Place::new("moving"), Place::new("moving-a"), Place::new("moving-b"));
    let network = Network::new(false, 0);
    let (a, b) = (Host::new(&a, 1, &network), Host::new(&b, 2, &network));
    let at_a = a.attach(DISK_MIB, origin(&shared), None);
    let at_b = b.attach(DISK_MIB, origin(&shared), Some(HostId(1)));
    let mut guest = Client::new(&a.handle(), at_a, BYTES);
    guest.write(0, 8, 1);
    let other = Client::new(&b.handle(), at_b, BYTES);
    let other = other.ask_only(Command::Write, 0, 8, &patterns(0, 8, 2));
    wait_until("it wants the disk", || status(&b).is_guest_here);
    drop(other);
    wait_until("it is gone", || !status(&b).is_guest_here);
    drop(guest);
    wait_until("the guest is gone", || !status(&a).is_guest_here);
    let mut guest = Client::new(&a.handle(), at_a, BYTES);
    assert_eq!(guest.read(0, 8), patterns(0, 8, 1));
    assert!(owns(&a) && !owns(&b));
}

/// Copies that were sent ahead are dropped when the migration is aborted, and the migration can begin again.
#[test]
fn a_migration_that_is_called_off_changes_nothing() {
    let (shared, a, b) = (Place::new("moving"), Place::new("moving-a"), Place::new("moving-b"));
    let network = Network::new(false, 0);
    let (a, b) = (Host::new(&a, 1, &network), Host::new(&b, 2, &network));
    let at_a = a.attach(DISK_MIB, origin(&shared), None);
    let at_b = b.attach(DISK_MIB, origin(&shared), Some(a.id));
    let mut guest = Client::new(&a.handle(), at_a, BYTES);
    guest.write(0, SECTORS, 1);
    send_ahead(&a, at_a, &b);
    assert!(a.handle().arena(at_a).stop_migration(at_a).unwrap());
    assert!(!a.handle().arena(at_a).stop_migration(at_a).unwrap());
    guest.write(0, SECTORS, 2);
    assert_eq!(guest.read(0, SECTORS), patterns(0, SECTORS, 2));
    send_ahead(&a, at_a, &b);
    assert!(owns(&a));
    let mut moved = Client::new(&b.handle(), at_b, BYTES);
    moved.write(0, 8, 3);
    assert_eq!(moved.read(8, SECTORS - 8), patterns(8, SECTORS - 8, 2));
}

/// A hypervisor reads a disk on hosts that only know where it was two moves ago: they learn where it is now.
#[test]
fn a_read_finds_a_disk_that_has_moved_on() {
    let places: Vec<Place> =
        ["a", "b", "c", "d"].iter().map(|name| Place::new(&format!("moving-{name}"))).collect();
    let (shared, network) = (Place::new("moving"), Network::new(false, 0));
    let hosts: Vec<Host> =
        places.iter().zip(1..).map(|(place, number)| Host::new(place, number, &network)).collect();
    let [a, b, c, d] = &hosts[..] else { panic!("four hosts") };
    let at_a = a.attach(DISK_MIB, origin(&shared), None);
    let mut guest = Client::new(&a.handle(), at_a, BYTES);
    guest.write(0, 8, 1);
    for (number, (from, to)) in [(a, b), (b, c)].into_iter().enumerate() {
        let at = to.attach(DISK_MIB, origin(&shared), Some(from.id));
        drop(guest);
        guest = Client::new(&to.handle(), at, BYTES);
        guest.write(0, 8, number as u64 + 2);
        wait_until("the move ends", || !status(from).progress.is_peer && owns(to));
    }
    let at_d = d.attach(DISK_MIB, origin(&shared), Some(a.id));
    for (host, at) in [(a, at_a), (d, at_d)] {
        let mut looks = Client::new(&host.handle(), at, BYTES);
        assert_eq!(looks.read(0, 8), patterns(0, 8, 3));
        assert!(owns(c) && !owns(host));
    }
}

/// A read that nobody can answer ends when the disk is detached, and so does a guest that waits; nothing stays behind.
#[test]
fn a_disk_that_waits_can_be_detached() {
    let (shared, b) = (Place::new("moving"), Place::new("moving-b"));
    let network = Network::new(false, 0);
    let b = Host::new(&b, 2, &network);
    let at_b = b.attach(DISK_MIB, origin(&shared), Some(HostId(1)));
    let client = || Client::new(&b.handle(), at_b, BYTES);
    let mut reader = client().ask_only(Command::Read, 0, 8, &[]);
    let mut writer = client().ask_only(Command::Write, 0, 8, &patterns(0, 8, 1));
    wait_until("the guest", || status(&b).is_guest_here);
    b.handle().arena(at_b).detach(at_b, true).unwrap().wait().unwrap();
    // Both are answered, or their connections end.
    for waits in [&mut reader, &mut writer] {
        let _ = waits.read(&mut [0; 64]).unwrap();
    }
    assert_eq!(b.handle().migration_status(DISK).unwrap(), None);
    let again = b.attach(DISK_MIB, origin(&shared), Some(HostId(1)));
    assert_ne!(again, at_b);
}

/// A host that still needs blocks of another one keeps the disk attached, and a host that is needed keeps its blocks.
#[test]
fn a_disk_in_the_midst_of_a_move_is_not_let_go() {
    let (shared, a, b) = (Place::new("moving"), Place::new("moving-a"), Place::new("moving-b"));
    let network = Network::new(false, 0);
    let (mut a, b) = (Host::new(&a, 1, &network), Host::new(&b, 2, &network));
    let at_a = a.attach(DISK_MIB, origin(&shared), None);
    let at_b = b.attach(DISK_MIB, origin(&shared), Some(a.id));
    let mut guest = Client::new(&a.handle(), at_a, BYTES);
    guest.write(0, SECTORS / 2, 1);
    drop(guest);
    wait_until("the guest is gone", || !status(&a).is_guest_here);
    let mut moved = Client::new(&b.handle(), at_b, BYTES);
    moved.write(8, 8, 2);
    a.kill();
    assert!(status(&b).progress.needed_blocks > 0, "blocks are only there");
    let error = b.handle().arena(at_b).detach(at_b, true).err().expect("it needs the other host").to_string();
    assert!(error.contains("moving between hosts"), "{error}");
    a.start();
    wait_until("the move ends", || !status(&a).progress.is_peer && status(&b).progress.needed_blocks == 0);
    let done = |record: &Record| matches!(record, Record::Owner { peers, .. } if peers.is_empty());
    wait_until("the record of that", || done(&status(&b).record));
    b.handle().arena(at_b).detach(at_b, true).unwrap().wait().unwrap();
    a.handle().forget(DISK, false, None).unwrap().wait().unwrap();
    assert_eq!(a.handle().migration_status(DISK).unwrap(), None);
}

/// The destination was attached with a smaller size: it does not take the disk, and says why.
#[test]
fn a_disk_does_not_move_to_where_it_is_smaller() {
    let (shared, a, b) = (Place::new("moving"), Place::new("moving-a"), Place::new("moving-b"));
    let network = Network::new(false, 0);
    let (a, b) = (Host::new(&a, 1, &network), Host::new(&b, 2, &network));
    let at_a = a.attach(DISK_MIB, origin(&shared), None);
    let at_b = b.attach(DISK_MIB / 2, origin(&shared), Some(a.id));
    let mut guest = Client::new(&a.handle(), at_a, BYTES);
    guest.write(0, SECTORS, 1);
    drop(guest);
    wait_until("the guest is gone", || !status(&a).is_guest_here);
    let other = Client::new(&b.handle(), at_b, BYTES / 2);
    let _other = other.ask_only(Command::Write, 0, 8, &patterns(0, 8, 2));
    wait_until("the refusal", || status(&b).problem.is_some());
    let problem = status(&b).problem.unwrap_or_default();
    assert!(problem.contains("size"), "{problem}");
    assert!(!owns(&b));
}

/// The source has released the disk, and the destination died before it took it: a client that only reads there is
/// answered.
#[test]
fn a_disk_that_was_released_is_taken_although_nobody_writes() {
    let (shared, a, b) = (Place::new("moving"), Place::new("moving-a"), Place::new("moving-b"));
    let network = Network::new(false, 0);
    let (a, b) = (Host::new(&a, 1, &network), Host::new(&b, 2, &network));
    let at_a = a.attach(DISK_MIB, origin(&shared), None);
    let at_b = b.attach(DISK_MIB, origin(&shared), Some(a.id));
    let mut guest = Client::new(&a.handle(), at_a, BYTES);
    guest.write(0, 64, 1);
    drop(guest);
    wait_until("the guest is gone", || !status(&a).is_guest_here);
    let ask = haversack_ownership::Message::Ask { granted: None };
    a.handle().host_said(b.id, DISK, HostMessage::Protocol(Message::Ownership(ask)), Arc::new(()));
    wait_until("the disk is released", || !owns(&a));
    assert!(!owns(&b));
    let mut reader = Client::new(&b.handle(), at_b, BYTES);
    assert_eq!(reader.read(0, 64), patterns(0, 64, 1));
    assert!(owns(&b));
}

/// A client reads while no other host can be reached, and then the guest arrives: the read is answered when the disk is
/// here. This also holds if the disk was new at first, so that no other host was named when it was attached.
#[test]
fn a_read_that_waited_for_the_owner_is_answered_when_the_disk_comes() {
    let (shared, a, b) = (Place::new("moving"), Place::new("moving-a"), Place::new("moving-b"));
    let network = Network::new(false, 0);
    let (mut a, b) = (Host::new(&a, 1, &network), Host::new(&b, 2, &network));
    let at_a = a.attach(DISK_MIB, origin(&shared), None);
    let at_b = b.attach(DISK_MIB, origin(&shared), Some(a.id));
    let mut guest = Client::new(&a.handle(), at_a, BYTES);
    guest.write(0, 64, 1);
    drop(guest);
    wait_until("the guest is gone", || !status(&a).is_guest_here);
    let mut guest = Client::new(&b.handle(), at_b, BYTES);
    guest.write(0, 8, 2);
    wait_until("nothing is left at the source", || !status(&a).progress.is_peer);
    drop(guest);
    wait_until("the guest is gone", || !status(&b).is_guest_here);
    a.kill();
    network.cut(true);
    a.start();
    let at_a = a.attach(DISK_MIB, origin(&shared), None);
    let mut reader = Client::new(&a.handle(), at_a, BYTES);
    let reader = std::thread::spawn(move || reader.read(0, 64));
    std::thread::sleep(std::time::Duration::from_millis(100));
    let mut guest = Client::new(&a.handle(), at_a, BYTES);
    let writer = std::thread::spawn(move || guest.write(64, 8, 3));
    wait_until("the guest", || status(&a).is_guest_here);
    assert_eq!(status(&a).from, b.id);
    network.cut(false);
    writer.join().unwrap();
    assert_eq!(reader.join().unwrap(), [patterns(0, 8, 2), patterns(8, 56, 1)].concat());
    assert!(owns(&a));
}
