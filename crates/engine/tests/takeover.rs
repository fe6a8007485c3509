//! A disk is taken over from a permanently dead host: a pool for each host, one origin.

mod common;

use common::hosts::{Host, Network};
use common::*;
use haversack_core::PeerLoss;
use haversack_engine::{DiskSpec, EngineEvent, MoveStatus, Moves, OriginSpec, TakeoverLoss, VoidArena};
use haversack_migrate::Method;
use haversack_model::{ArenaNo, DiskHandle, DiskId, SectorNo};
use haversack_nbd::{Command, CommandFlags};
use haversack_ownership::Record;

const DISK_MIB: u64 = 8;
const BYTES: u64 = DISK_MIB * MIB;
const SECTORS: u64 = BYTES / 512;
const DISK: DiskId = DiskId([1; 16]);
const FORCED: u64 = 1 << 40;

fn status(host: &Host) -> MoveStatus {
    host.handle().migration_status(DISK).unwrap().expect("the disk moves")
}

fn origin(place: &Place) -> OriginSpec {
    let path = place.path("origin");
    if !path.exists() {
        place.origin("origin", DISK_MIB);
    }
    OriginSpec::File { path }
}

fn own(host: &Host, disk: DiskHandle, loss: PeerLoss) {
    host.handle().arena(disk).take_over(disk, FORCED, loss).unwrap();
    wait_until(
        "the disk is taken over",
        || matches!(status(host).record, Record::Owner { epoch: FORCED, peers } if peers.is_empty()),
    );
}

/// Two hosts; the guest has moved from the first to the second, and most of its dirty blocks have not.
fn moved() -> (Place, [Place; 2], Host, Host, [DiskHandle; 2], Client) {
    let (shared, a, b) = (Place::new("takeover"), Place::new("takeover-a"), Place::new("takeover-b"));
    let network = Network::new(false, 0);
    let (host_a, host_b) = (Host::new(&a, 1, &network), Host::new(&b, 2, &network));
    let at_a = host_a.attach(DISK_MIB, origin(&shared), None);
    let at_b = host_b.attach(DISK_MIB, origin(&shared), Some(host_a.id));
    let mut guest = Client::new(&host_a.handle(), at_a, BYTES);
    guest.write(0, SECTORS / 2, 1);
    drop(guest);
    wait_until("the guest is gone", || !status(&host_a).is_guest_here);
    let mut guest = Client::new(&host_b.handle(), at_b, BYTES);
    guest.write(8, 8, 2);
    (shared, [a, b], host_a, host_b, [at_a, at_b], guest)
}

/// Only reads of sectors that just the dead host had fail; the list of these sectors is exact.
#[test]
fn what_only_the_dead_host_had_fails_until_it_is_written() {
    let (_shared, _places, mut a, b, [_, at_b], mut guest) = moved();
    a.kill();
    let TakeoverLoss::Runs(runs) = b.handle().takeover_loss(DISK).unwrap() else { panic!("it is listed") };
    let is_lost =
        |sector: u64| runs.iter().any(|(first, count)| (first.0..first.0 + count).contains(&sector));
    assert!(!runs.is_empty() && !is_lost(8), "{runs:?}");
    // A read that waits for the dead host ends, too.
    let lost = (0..SECTORS).find(|sector| is_lost(*sector)).unwrap();
    let waiting = std::thread::spawn({
        let mut other = Client::new(&b.handle(), at_b, BYTES);
        move || other.ask(Command::Read, CommandFlags::NONE, lost, 1, &[]).is_err()
    });
    own(&b, at_b, PeerLoss::Recorded);
    assert!(waiting.join().unwrap(), "it is lost");
    assert_eq!(b.handle().arena(at_b).lost_runs(at_b).unwrap(), runs);
    for sector in (0..SECTORS).step_by(8) {
        let read = guest.ask(Command::Read, CommandFlags::NONE, sector, 8, &[]);
        let version = if sector == 8 { 2 } else { u64::from(sector < SECTORS / 2) };
        match is_lost(sector) {
            true => assert!(read.is_err(), "sector {sector} is lost"),
            false => assert!(read.unwrap() == patterns(sector, 8, version), "sector {sector}"),
        }
    }
    guest.write(0, SECTORS, 3);
    guest.flush();
    assert!(guest.read(0, SECTORS) == patterns(0, SECTORS, 3));
    assert_eq!(b.handle().arena(at_b).lost_runs(at_b).unwrap(), [] as [(SectorNo, u64); 0]);
}

/// The host that needs blocks of a dead one was restarted: it no longer has the list of
/// those blocks, and keeps all blocks that it has itself.
#[test]
fn a_restarted_host_keeps_what_it_has() {
    let (shared, _places, mut a, mut b, _, guest) = moved();
    drop(guest);
    a.kill();
    b.kill();
    b.start();
    let at_b = b.attach(DISK_MIB, origin(&shared), None);
    assert_eq!(b.handle().takeover_loss(DISK).unwrap(), TakeoverLoss::Unknown);
    own(&b, at_b, PeerLoss::Accepted);
    let mut guest = Client::new(&b.handle(), at_b, BYTES);
    assert_eq!(guest.read(8, 8), patterns(8, 8, 2));
    for sector in (16..SECTORS).step_by(8) {
        let read = guest.read(sector, 8);
        let is_known =
            read == patterns(sector, 8, 0) || read == patterns(sector, 8, 1) && sector < SECTORS / 2;
        assert!(is_known, "sector {sector}");
    }
    a.start();
    assert!(!a.handle().overtaken(DISK, b.id, FORCED).unwrap());
    wait_until("it knows", || a.handle().overtaken(DISK, b.id, FORCED).unwrap());
    assert!(a.handle().recorded_disk(DISK).unwrap().unwrap().dirty_blocks > 0, "they are kept");
}

/// The host that needs blocks of another one has lost what was dirty on its own devices. Only that loss is accepted.
#[test]
fn a_loss_that_is_accepted_does_not_cost_what_the_other_host_still_has() {
    let places = ["takeover", "takeover-a", "takeover-b"].map(Place::new);
    let network = Network::new(false, 0);
    let (a, mut b) = (Host::new(&places[1], 1, &network), Host::new(&places[2], 2, &network));
    let at_a = a.attach(DISK_MIB, origin(&places[0]), None);
    let at_b = b.attach(DISK_MIB, origin(&places[0]), Some(a.id));
    let mut guest = Client::new(&a.handle(), at_a, BYTES);
    guest.write(0, SECTORS / 2, 1);
    drop(guest);
    wait_until("the guest is gone", || !status(&a).is_guest_here);
    let mut guest = Client::new(&b.handle(), at_b, BYTES);
    // The other host has nothing of this block.
    guest.write(SECTORS / 2, 8, 2);
    network.cut(true);
    let held = a.handle().recorded_disk(DISK).unwrap().unwrap().dirty_blocks;
    assert!(held > 0, "nothing is left to lose");
    guest.flush();
    drop(guest);
    b.kill();
    b.settings.void_arenas = vec![VoidArena { pool: None, number: ArenaNo(0) }];
    b.start();
    b.settings.void_arenas.clear();
    network.cut(false);
    let at_b = b.attach(DISK_MIB, origin(&places[0]), None);
    wait_until("the loss is known", || status(&b).problem.is_some());
    assert_eq!(a.handle().recorded_disk(DISK).unwrap().unwrap().dirty_blocks, held, "they are kept");

    b.handle().arena(at_b).detach(at_b, true).unwrap().wait().unwrap();
    let moves = Some(Moves::default());
    let spec = DiskSpec { accept_loss: true, moves, ..spec(1, DISK_MIB, origin(&places[0])) };
    let (at_b, job) = b.handle().attach(spec).unwrap();
    job.wait().unwrap();
    let mut guest = Client::new(&b.handle(), at_b, BYTES);
    assert!(guest.read(SECTORS / 2, 8) == patterns(SECTORS / 2, 8, 0), "what the origin has");
    let has = |guest: &mut Client, sector, version| guest.read(sector, 8) == patterns(sector, 8, version);
    let kept = (0..SECTORS / 2).step_by(8).filter(|sector| has(&mut guest, *sector, 1)).count();
    assert!(kept as u64 >= held, "{kept} of {held} blocks");
    wait_until(
        "nothing is left there",
        || matches!(status(&b).record, Record::Owner { peers, .. } if peers.is_empty()),
    );
}

/// A host that waits for a disk takes it from its dead owner, and the owner comes back.
#[test]
fn a_dead_owner_that_comes_back_serves_nothing_and_keeps_its_dirty_blocks() {
    let (shared, a, b) = (Place::new("takeover"), Place::new("takeover-a"), Place::new("takeover-b"));
    let network = Network::new(false, 0);
    let (mut a, b) = (Host::new(&a, 1, &network), Host::new(&b, 2, &network));
    let at_a = a.attach(DISK_MIB, origin(&shared), None);
    let at_b = b.attach(DISK_MIB, origin(&shared), Some(a.id));
    let mut guest = Client::new(&a.handle(), at_a, BYTES);
    guest.write(0, 16, 1);
    guest.flush();
    a.handle().arena(at_a).clean(at_a).unwrap().wait().unwrap();
    guest.write(8, 8, 2);
    guest.flush();
    a.kill();
    own(&b, at_b, PeerLoss::Accepted);
    let mut guest = Client::new(&b.handle(), at_b, BYTES);
    assert_eq!(guest.read(0, 16), patterns(0, 16, 1), "as the origin has it");
    guest.write(0, 8, 3);
    a.start();
    let events = a.handle().events().unwrap();
    let at_a = a.attach(DISK_MIB, origin(&shared), None);
    wait_until("it knows", || a.handle().overtaken(DISK, b.id, FORCED).unwrap());
    assert!(matches!(status(&a).record, Record::Overtaken { by, epoch: FORCED } if by == b.id));
    let told = EngineEvent::Overtaken { disk: DISK, by: b.id, dirty_blocks: 1 };
    wait_until("the event", || events.try_iter().any(|event| event == told));
    // A guest at the earlier owner is not served, and its dirty blocks never reach the origin.
    let other = Client::new(&a.handle(), at_a, BYTES);
    let mut waiting = other.ask_only(Command::Write, 0, 8, &patterns(0, 8, 9));
    b.handle().arena(at_b).clean(at_b).unwrap().wait().unwrap();
    assert_eq!(guest.read(0, 8), patterns(0, 8, 3));
    assert_eq!(guest.read(8, 8), patterns(8, 8, 1));
    a.handle().arena(at_a).detach(at_a, true).unwrap().wait().unwrap();
    let _ = std::io::Read::read(&mut waiting, &mut [0; 64]).unwrap();
    let refused = a.handle().forget(DISK, false, None).map(|job| job.wait());
    let refused = refused.err().map(|error| error.to_string()).expect("there is a dirty block");
    assert!(refused.contains("dirty"), "{refused}");
    a.handle().forget(DISK, true, None).unwrap().wait().unwrap();
    // It is like any other host again.
    let at_a = a.attach(DISK_MIB, origin(&shared), Some(b.id));
    drop(guest);
    wait_until("the guest is gone", || !status(&b).is_guest_here);
    let mut guest = Client::new(&a.handle(), at_a, BYTES);
    guest.write(16, 8, 4);
    assert_eq!(guest.read(0, 8), patterns(0, 8, 3));
}

/// The disk has moved away and its new owner has died: the blocks still held for the new owner are the newest
/// ones left.
#[test]
fn a_disk_is_taken_back_from_a_dead_owner() {
    let (_shared, _places, a, mut b, [disk, _], guest) = moved();
    let left = a.handle().recorded_disk(DISK).unwrap().unwrap().dirty_blocks;
    drop(guest);
    b.kill();
    assert!(left > 0, "blocks are still held");
    own(&a, disk, PeerLoss::Accepted);
    let mut guest = Client::new(&a.handle(), disk, BYTES);
    for sector in (0..SECTORS / 2).step_by(8) {
        let read = guest.read(sector, 8);
        assert!([0, 1, 2].iter().any(|version| read == patterns(sector, 8, *version)), "sector {sector}");
    }
    let held = (0..SECTORS / 2).step_by(8).filter(|s| guest.read(*s, 8) == patterns(*s, 8, 1)).count();
    assert!(held > 0, "what was held is served");
}

/// A host that waits for the disk has missed the takeover, and learns of it while copies are being sent to it.
#[test]
fn a_host_that_waits_hears_who_has_taken_the_disk_over() {
    let shared = Place::new("takeover");
    let places = ["takeover-a", "takeover-b", "takeover-c"].map(Place::new);
    let network = Network::new(false, 0);
    let host = |number: usize| Host::new(&places[number - 1], number as u64, &network);
    let (mut a, b, c) = (host(1), host(2), host(3));
    let at_a = a.attach(DISK_MIB, origin(&shared), None);
    let at_b = b.attach(DISK_MIB, origin(&shared), Some(a.id));
    let at_c = c.attach(DISK_MIB, origin(&shared), Some(a.id));
    Client::new(&a.handle(), at_a, BYTES).write(0, 16, 1);
    a.kill();
    own(&b, at_b, PeerLoss::Accepted);
    let mut guest = Client::new(&b.handle(), at_b, BYTES);
    guest.write(0, SECTORS / 2, 2);
    assert_eq!(status(&c).record, Record::Unknown);
    b.handle().arena(at_b).start_migration(at_b, c.id, Method::PreCopy).unwrap();
    wait_until("the copies are there", || status(&b).is_ready);
    guest.write(0, 8, 3);
    wait_until("it knows", || c.handle().overtaken(DISK, b.id, FORCED).unwrap());
    assert!(matches!(status(&c).record, Record::Overtaken { by, epoch: FORCED } if by == b.id));
    guest.write(8, 8, 4);
    drop(guest);
    wait_until("the guest is gone", || !status(&b).is_guest_here);
    let mut guest = Client::new(&c.handle(), at_c, BYTES);
    guest.write(16, 8, 5);
    assert_eq!(guest.read(0, 8), patterns(0, 8, 3));
    assert_eq!(guest.read(8, 8), patterns(8, 8, 4));
    assert_eq!(guest.read(16, 8), patterns(16, 8, 5));
    let rest = SECTORS / 2 - 24;
    assert!(guest.read(24, rest) == patterns(24, rest, 2));
}
