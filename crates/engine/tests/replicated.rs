//! A replica of a disk's dirty blocks on another host: a pool for each host, one origin.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::hosts::{Host, Network};
use common::*;
use haversack_core::PeerLoss;
use haversack_engine::{
    DiskSpec, EngineError, HostMessage, MoveStatus, Moves, NoReplica, OriginSpec, VoidArena,
};
use haversack_migrate::{Message, OnLoss, Position, ReplicaPolicy, ReplicaState, ReplicationState, Session};
use haversack_model::{ArenaNo, BLOCK_BYTES, BlockNo, DiskHandle, DiskId, HostId};
use haversack_ownership::Record;

const DISK_MIB: u64 = 16;
const BYTES: u64 = DISK_MIB * MIB;
const SECTORS: u64 = BYTES / 512;
const DISK: DiskId = DiskId([1; 16]);
const FORCED: u64 = 1 << 40;
/// What is measured.
const FLUSHES: usize = 300;

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

fn is_complete(owner: &Host) -> bool {
    status(owner).replication == Some(ReplicationState::Complete)
}

/// Two hosts; the disk is at the first, and the second has a complete replica.
fn replicated(network: &std::sync::Arc<Network>) -> (Place, [Place; 2], Host, Host, [DiskHandle; 2], Client) {
    let (shared, a, b) = (Place::new("replica"), Place::new("replica-a"), Place::new("replica-b"));
    let (host_a, host_b) = (Host::new(&a, 1, network), Host::new(&b, 2, network));
    let policy = ReplicaPolicy { at: host_b.id, on_loss: OnLoss::WriteThrough };
    let at_a = host_a.attach_replicated(DISK_MIB, origin(&shared), None, Some(policy));
    let at_b = host_b.attach(DISK_MIB, origin(&shared), Some(host_a.id));
    let mut guest = Client::new(&host_a.handle(), at_a, BYTES);
    guest.write(0, 8, 1);
    wait_until("the replica is complete", || is_complete(&host_a));
    (shared, [a, b], host_a, host_b, [at_a, at_b], guest)
}

/// Takes the disk over, with the replica if that is certain.
fn own(host: &Host, disk: DiskHandle) {
    let pool = host.handle();
    let arena = pool.arena(disk);
    if status(host).replica.is_some_and(|replica| replica.is_certain) {
        arena.take_over_with_replica(disk, FORCED).unwrap();
    } else {
        arena.take_over(disk, FORCED, PeerLoss::Accepted).unwrap();
    }
    wait_until_owned(host);
}

fn wait_until_owned(host: &Host) {
    wait_until(
        "the disk is taken over",
        || matches!(status(host).record, Record::Owner { epoch: FORCED, peers } if peers.is_empty()),
    );
}

/// Writes and flushes, and returns how long each flush took.
fn flushes(guest: &mut Client, version: u64) -> Vec<Duration> {
    let one = |at: usize| {
        guest.write(at as u64 * 8 % SECTORS, 8, version);
        let begin = Instant::now();
        guest.flush();
        begin.elapsed()
    };
    let mut took: Vec<Duration> = (0..FLUSHES).map(one).collect();
    took.sort_unstable();
    took
}

#[test]
fn nothing_flushed_is_lost_with_the_owner() {
    let network = Network::new(true, 3);
    let (_shared, _places, mut a, b, [_, at_b], mut guest) = replicated(&network);
    for round in 2..6 {
        for sector in (0..SECTORS).step_by(256) {
            guest.write(sector, 256, round);
        }
        // The trim bypasses the cache, over blocks that the replica has.
        guest.trim(512, 64);
        guest.flush();
    }
    let replica = status(&b).replica.expect("it has one");
    assert!(replica.is_certain && replica.blocks > 0, "{replica:?}");
    a.kill();
    let begin = Instant::now();
    own(&b, at_b);
    let mut guest = Client::new(&b.handle(), at_b, BYTES);
    assert!(guest.read(512, 64).iter().all(|byte| *byte == 0));
    println!("served {:?} after the fence", begin.elapsed());
    for sector in (0..SECTORS).step_by(256) {
        let (read, wanted) = (guest.read(sector, 256), patterns(sector, 256, 5));
        if sector == 512 {
            assert!(read[64 * 512..] == wanted[64 * 512..]);
        } else {
            assert!(read == wanted, "sector {sector}");
        }
    }
}

#[test]
fn a_replica_that_is_certain_is_dropped_if_the_disk_is_taken_over_without_it() {
    let network = Network::new(false, 0);
    let (_shared, _places, mut a, b, [_, at_b], mut guest) = replicated(&network);
    guest.write(0, SECTORS / 2, 2);
    guest.flush();
    a.kill();
    let replica = status(&b).replica.expect("it has one");
    assert!(replica.is_certain && replica.blocks > 0, "{replica:?}");
    b.handle().arena(at_b).take_over(at_b, FORCED, PeerLoss::Accepted).unwrap();
    wait_until_owned(&b);
    assert_eq!(status(&b).replica, None);
    let mut guest = Client::new(&b.handle(), at_b, BYTES);
    let (read, written) = (guest.read(0, SECTORS / 2), patterns(0, SECTORS / 2, 2));
    let older = read.chunks(BLOCK_BYTES).zip(written.chunks(BLOCK_BYTES)).filter(|(read, one)| read != one);
    assert!(older.count() > 0, "the replica was used: {replica:?}");
}

#[test]
fn a_flush_takes_a_round_trip_more() {
    let network = Network::new(false, 0);
    let (_shared, _places, a, _b, [at_a, _], mut guest) = replicated(&network);
    let with = flushes(&mut guest, 2);
    a.handle().arena(at_a).set_replica(at_a, None).unwrap();
    wait_until("there is none", || status(&a).replication.is_none());
    let without = flushes(&mut guest, 3);
    let [median, p99] = [FLUSHES / 2, FLUSHES * 99 / 100];
    println!(
        "a flush takes {:?} (p99 {:?}) with a replica, {:?} (p99 {:?}) without",
        with[median], with[p99], without[median], without[p99]
    );
}

#[test]
fn without_its_replica_the_disk_goes_on_and_what_is_stale_is_not_used() {
    let network = Network::new(false, 0);
    let (_shared, _places, mut a, b, [_, at_b], mut guest) = replicated(&network);
    guest.write(0, SECTORS / 2, 2);
    guest.flush();
    network.cut(true);
    guest.write(0, 64, 3);
    let begin = Instant::now();
    guest.flush();
    println!("a flush took {:?} when the replica was lost", begin.elapsed());
    assert_eq!(status(&a).replication, Some(ReplicationState::Missing));
    let replica = status(&b).replica.expect("it has one still");
    assert!(replica.is_complete && !replica.is_certain, "{replica:?}");
    // It writes through now: what is flushed is at the origin.
    guest.write(64, 64, 4);
    guest.flush();
    a.kill();
    own(&b, at_b);
    let mut guest = Client::new(&b.handle(), at_b, BYTES);
    assert!(guest.read(0, 64) == patterns(0, 64, 3));
    assert!(guest.read(64, 64) == patterns(64, 64, 4));
    assert!(guest.read(128, SECTORS / 2 - 128) == patterns(128, SECTORS / 2 - 128, 2));
}

#[test]
fn a_replica_that_is_back_is_filled_again() {
    let network = Network::new(false, 0);
    let (shared, _places, mut a, mut b, _, mut guest) = replicated(&network);
    guest.write(0, SECTORS / 4, 2);
    guest.flush();
    b.kill();
    b.start();
    let at_b = b.attach(DISK_MIB, origin(&shared), Some(a.id));
    wait_until("the new start of the host is noticed", || {
        status(&b).replica.is_some_and(|replica| replica.is_certain) && is_complete(&a)
    });
    guest.write(0, 64, 3);
    guest.flush();
    a.kill();
    own(&b, at_b);
    let mut guest = Client::new(&b.handle(), at_b, BYTES);
    assert!(guest.read(0, 64) == patterns(0, 64, 3));
    assert!(guest.read(64, SECTORS / 4 - 64) == patterns(64, SECTORS / 4 - 64, 2));
}

#[test]
fn a_restarted_owner_serves_the_disk_again() {
    let network = Network::new(false, 0);
    let (shared, _places, mut a, b, _, mut guest) = replicated(&network);
    guest.write(0, SECTORS / 4, 2);
    guest.flush();
    drop(guest);
    a.kill();
    a.start();
    let policy = ReplicaPolicy { at: b.id, on_loss: OnLoss::WriteThrough };
    let at_a = a.attach_replicated(DISK_MIB, origin(&shared), None, Some(policy));
    let mut guest = Client::new(&a.handle(), at_a, BYTES);
    assert!(guest.read(0, SECTORS / 4) == patterns(0, SECTORS / 4, 2));
    wait_until("the replica is complete", || is_complete(&a));
}

/// The disk is no longer attached, or is attached as a disk that does not move: its replica ends nevertheless.
#[test]
fn a_replica_is_ended_although_its_disk_moves_no_more() {
    let network = Network::new(false, 0);
    let own = Place::new("replica-own");
    let (shared, _places, mut a, b, _, mut guest) = replicated(&network);
    guest.write(0, SECTORS / 4, 2);
    guest.flush();
    drop(guest);
    a.kill();
    network.cut(true);
    a.start();
    // The other host still has the origin open, which a disk that does not move must have for itself.
    std::fs::copy(shared.path("origin"), own.path("origin")).unwrap();
    let attach = || a.handle().attach(spec(1, DISK_MIB, origin(&own)));
    let told = attach().map(drop);
    assert!(matches!(told, Err(EngineError::HasReplica { .. })), "its flushes would wait for ever: {told:?}");
    network.cut(false);
    wait_until("the replica is gone", || status(&b).replica.is_none());
    wait_until("that is on record", || a.handle().migration_status(DISK).unwrap().is_none());
    let (disk, job) = attach().unwrap();
    job.wait().unwrap();
    let mut guest = Client::new(&a.handle(), disk, BYTES);
    assert!(guest.read(0, SECTORS / 4) == patterns(0, SECTORS / 4, 2));
    guest.write(0, 8, 3);
    guest.flush();
}

/// Messages about replicas that a host could make up for its peers.
fn made_up(session: Session, taker: u64, epoch: u64) -> Vec<Message> {
    let (block, at) = (BlockNo(0), Position { round: 1, next: 0 });
    let state = ReplicaState {
        session,
        taker,
        is_known: true,
        until: Position { round: u64::MAX, next: u64::MAX },
        removed: u64::MAX,
        beat: u64::MAX,
        is_complete: true,
    };
    vec![
        Message::ReplicaCopy {
            session,
            taker,
            echo: u64::MAX,
            at,
            block,
            mask: 255,
            data: vec![9; BLOCK_BYTES],
        },
        Message::ReplicaRemove { session, taker, echo: 0, number: 1, blocks: vec![block, BlockNo(u64::MAX)] },
        Message::ReplicaBeat { session, taker, echo: u64::MAX, completes: true },
        Message::ReplicaHas(state),
        Message::ReplicaDropped { session },
        Message::ReplicaEnd { session, taker: Some(taker) },
        Message::ReplicaOpen { session, taker: Some(taker), epoch, sectors: SECTORS, from: at },
    ]
}

#[test]
fn a_host_that_is_not_the_owner_neither_ends_nor_empties_a_replica() {
    let network = Network::new(false, 0);
    let (_shared, _places, mut a, b, [_, at_b], mut guest) = replicated(&network);
    guest.write(0, SECTORS / 2, 2);
    guest.flush();
    let epoch = status(&b).replica.expect("it has one").epoch;
    for incarnation in [0, (1 << 32) + 1, u64::MAX] {
        for (count, taker) in [(0, 0), (1, (1 << 32) + 1), (u64::MAX, (1 << 32) + 1), (1, (1 << 32) + 2)] {
            let session = Session { incarnation, count };
            // Even a message of a new owner has no effect while the replica is in use.
            let later = made_up(session, taker, epoch + 1).pop();
            for message in made_up(session, taker, epoch).into_iter().chain(later) {
                for host in [&a, &b] {
                    let message = HostMessage::Protocol(message.clone());
                    host.handle().host_said(HostId(3), DISK, message, Arc::new(()));
                }
            }
        }
    }
    guest.write(0, 64, 3);
    guest.flush();
    assert!(is_complete(&a));
    let replica = status(&b).replica.expect("it has one still");
    assert!(replica.is_certain && replica.of == a.id, "{replica:?}");
    a.kill();
    own(&b, at_b);
    let mut guest = Client::new(&b.handle(), at_b, BYTES);
    assert!(guest.read(0, 64) == patterns(0, 64, 3));
    assert!(guest.read(64, SECTORS / 2 - 64) == patterns(64, SECTORS / 2 - 64, 2));
}

#[test]
fn a_take_over_is_trusted_once_and_only_with_a_replica_that_is_there() {
    let network = Network::new(false, 0);
    let (_shared, _places, mut a, b, [_, at_b], mut guest) = replicated(&network);
    guest.write(0, SECTORS / 2, 2);
    guest.flush();
    a.kill();
    wait_until("the end of the lease", || status(&b).replica.is_some_and(|replica| !replica.is_certain));
    // The epoch is too low: nothing changes, and the replica is not trusted any more.
    b.handle().arena(at_b).take_over_with_replica(at_b, 0).unwrap_err();
    assert!(status(&b).replica.is_some_and(|replica| replica.is_complete));
    b.handle().arena(at_b).take_over_with_replica(at_b, FORCED).unwrap();
    wait_until("the disk is taken over", || matches!(status(&b).record, Record::Owner { epoch: FORCED, .. }));
    let mut guest = Client::new(&b.handle(), at_b, BYTES);
    assert!(guest.read(0, SECTORS / 2) == patterns(0, SECTORS / 2, 2));
    b.handle().arena(at_b).take_over_with_replica(at_b, 2 * FORCED).unwrap_err();
}

#[test]
fn a_host_on_which_the_disk_is_smaller_has_no_replica() {
    let network = Network::new(false, 0);
    let (shared, a, b) =
        (Place::new("replica-size"), Place::new("replica-size-a"), Place::new("replica-size-b"));
    let (mut host_a, host_b) = (Host::new(&a, 1, &network), Host::new(&b, 2, &network));
    let policy = ReplicaPolicy { at: host_b.id, on_loss: OnLoss::WriteThrough };
    let at_a = host_a.attach_replicated(DISK_MIB, origin(&shared), None, Some(policy));
    let small = host_b.attach(DISK_MIB / 2, origin(&shared), Some(host_a.id));
    let mut guest = Client::new(&host_a.handle(), at_a, BYTES);
    guest.write(SECTORS - 8, 8, 1);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(status(&host_a).replication, Some(ReplicationState::Missing));
    assert_eq!(status(&host_b).replica, None);
    host_b.handle().arena(small).detach(small, false).unwrap().wait().unwrap();
    let at_b = host_b.attach(DISK_MIB, origin(&shared), Some(host_a.id));
    wait_until("the replica is complete", || is_complete(&host_a));
    guest.write(SECTORS - 8, 8, 2);
    guest.flush();
    host_a.kill();
    own(&host_b, at_b);
    let mut guest = Client::new(&host_b.handle(), at_b, BYTES);
    assert!(guest.read(SECTORS - 8, 8) == patterns(SECTORS - 8, 8, 2));
}

/// The owner comes back without what its devices had: only the replica has what was dirty there. The disk is attached
/// at both hosts.
fn lossy(network: &Arc<Network>) -> ([Place; 3], Host, Host, [DiskHandle; 2]) {
    let places = ["replica-loss", "replica-loss-a", "replica-loss-b"].map(Place::new);
    let (mut host_a, host_b) = (Host::new(&places[1], 1, network), Host::new(&places[2], 2, network));
    let policy = Some(ReplicaPolicy { at: host_b.id, on_loss: OnLoss::Continue });
    let at_a = host_a.attach_replicated(DISK_MIB, origin(&places[0]), None, policy);
    let at_b = host_b.attach(DISK_MIB, origin(&places[0]), Some(host_a.id));
    let mut guest = Client::new(&host_a.handle(), at_a, BYTES);
    guest.write(0, SECTORS / 2, 2);
    wait_until("the replica is complete", || is_complete(&host_a));
    guest.flush();
    drop(guest);
    host_a.kill();
    host_a.settings.void_arenas = vec![VoidArena { pool: None, number: ArenaNo(0) }];
    host_a.start();
    host_a.settings.void_arenas.clear();
    let at_a = host_a.attach_replicated(DISK_MIB, origin(&places[0]), None, policy);
    wait_until("the loss is known", || status(&host_a).problem.is_some());
    (places, host_a, host_b, [at_a, at_b])
}

#[test]
fn an_owner_that_has_lost_blocks_does_not_end_its_replica() {
    let network = Network::new(false, 0);
    let (_places, mut a, b, [_, at_b]) = lossy(&network);
    // Wait for longer than the replica's lease.
    std::thread::sleep(Duration::from_secs(8));
    let MoveStatus { problem, no_replica, .. } = status(&a);
    assert!(problem.is_some_and(|problem| problem.contains("take the disk over on the other one")));
    assert_eq!(no_replica, Some(NoReplica::Losses));
    assert!(status(&b).replica.is_some_and(|replica| replica.is_complete));
    a.kill();
    b.handle().arena(at_b).take_over_with_replica(at_b, FORCED).unwrap();
    wait_until("the disk is taken over", || matches!(status(&b).record, Record::Owner { epoch: FORCED, .. }));
    let mut guest = Client::new(&b.handle(), at_b, BYTES);
    assert!(guest.read(0, SECTORS / 2) == patterns(0, SECTORS / 2, 2));
}

#[test]
fn a_loss_that_is_accepted_ends_the_replica() {
    let network = Network::new(false, 0);
    let (places, a, b, [at_a, _]) = lossy(&network);
    a.handle().arena(at_a).detach(at_a, false).unwrap().wait().unwrap();
    assert!(status(&b).replica.is_some_and(|replica| replica.is_complete));
    let moves = Some(Moves::default());
    let spec = DiskSpec { accept_loss: true, moves, ..spec(1, DISK_MIB, origin(&places[0])) };
    let (at_a, job) = a.handle().attach(spec).unwrap();
    job.wait().unwrap();
    let mut guest = Client::new(&a.handle(), at_a, BYTES);
    assert!(guest.read(0, SECTORS) == patterns(0, SECTORS, 0), "what the origin has");
    wait_until("the replica is gone", || status(&b).replica.is_none());
}

/// The owner gives the replica up while the replica's host cannot be reached, and does not want another one.
#[test]
fn a_replica_that_its_owner_has_left_ends_when_its_host_asks() {
    let network = Network::new(false, 0);
    let (_shared, _places, a, mut b, [at_a, _], mut guest) = replicated(&network);
    guest.write(0, SECTORS / 2, 2);
    network.cut(true);
    a.handle().arena(at_a).set_replica(at_a, None).unwrap();
    wait_until("the replica is given up", || status(&a).replication.is_none());
    b.kill();
    b.start();
    network.cut(false);
    // Nobody attaches the disk there.
    wait_until("the replica is gone", || status(&b).replica.is_none());
    guest.flush();
    assert!(guest.read(0, SECTORS / 2) == patterns(0, SECTORS / 2, 2));
}
