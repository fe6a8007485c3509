//! Guests on vhost-user-blk: what is durable when they are answered, also after a move to another host.

mod common;
#[path = "../../vhost-user/tests/support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};

use common::hosts::{Host, Network};
use common::*;
use haversack_engine::{
    OpenPool, OriginSpec, PoolHandle, VhostUserConfig, VhostUserServer, WriteCacheSetting,
};
use haversack_model::{DiskHandle, WriteMode};
use support::client::Client as Guest;
use support::driver::{self, BUFFERS, Driver};
use support::{Ram, socket_path};
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostUserConfigFlags;

const DISK_MIB: u64 = 8;
/// Where the guest can switch its write cache.
const WRITE_CACHE_AT: u32 = 32;

/// Serves a disk on a socket.
fn serve_guest(
    handle: &PoolHandle,
    disk: DiskHandle,
    socket: &Path,
    write_cache: WriteCacheSetting,
) -> VhostUserServer {
    let shown =
        VhostUserConfig { serial: "disk1".into(), queues: 1, read_only: false, write_cache, on_switch: None };
    handle.arena(disk).serve_vhost_user(disk, DISK_MIB * MIB / 512, socket, &shown).unwrap()
}

/// Connects a guest to a disk and starts its queue.
fn connect(socket: &Path) -> Guest {
    let mut guest = Guest::new(socket, &Ram::new(), 0);
    guest.start(vec![Driver::new(&guest.ram, 0, 16)], None);
    guest
}

/// A disk that is served on a socket, without a cache for writes of its own.
struct Served {
    open: OpenPool,
    disk: DiskHandle,
    socket: PathBuf,
    _server: VhostUserServer,
}

impl Served {
    fn new(place: &Place) -> Served {
        let (open, _) = start(&place.pool(&[64], false));
        let origin = OriginSpec::File { path: place.origin("origin", DISK_MIB) };
        let disk = attach(&open, spec(1, DISK_MIB, origin));
        let handle = open.handle();
        handle.arena(disk).set_mode(disk, WriteMode::WriteAround).unwrap().wait().unwrap();
        let socket = socket_path();
        let server = serve_guest(&handle, disk, &socket, WriteCacheSetting::On);
        Served { open, disk, socket, _server: server }
    }

    fn origin_flushes(&self) -> u64 {
        let snapshot = self.open.handle().snapshot().unwrap();
        let disk = snapshot.disks.iter().find(|disk| disk.disk == self.disk).unwrap();
        disk.origin_latency.flush.count()
    }
}

/// Asks for a range to be zeroed or discarded.
fn clear(guest: &mut Guest, kind: u32) {
    let mut range = [0; 16];
    range[..8].copy_from_slice(&64_u64.to_le_bytes());
    range[8..12].copy_from_slice(&64_u32.to_le_bytes());
    guest.ram.write(BUFFERS, &range);
    assert_eq!(guest.queues[0].run(kind, 0, &[(BUFFERS, 16)]), 0);
}

#[test]
fn without_a_write_cache_zeroes_and_discards_are_durable() {
    let place = Place::new("zeroes");
    let served = Served::new(&place);
    let mut guest = connect(&served.socket);
    let flushes_of = |guest: &mut Guest, kind| {
        let before = served.origin_flushes();
        clear(guest, kind);
        served.origin_flushes() - before
    };
    assert_eq!(flushes_of(&mut guest, driver::WRITE_ZEROES), 0, "the guest would flush");
    guest.frontend.set_config(WRITE_CACHE_AT, VhostUserConfigFlags::empty(), &[0]).unwrap();
    assert_eq!(flushes_of(&mut guest, driver::WRITE_ZEROES), 1);
    assert_eq!(flushes_of(&mut guest, driver::DISCARD), 1);
}

/// Writes, and returns whether each write was durable when it was answered: the cache device was flushed for it.
fn writes_are_durable(handle: &PoolHandle, guest: &mut Guest) -> bool {
    const WRITES: u64 = 20;
    let flushes = || handle.snapshot().unwrap().devices[0].latency.flush.count();
    let before = flushes();
    for sector in 0..WRITES {
        assert_eq!(guest.queues[0].run(driver::WRITE, sector * 8, &[(BUFFERS, 4096)]), 0);
    }
    flushes() - before >= WRITES
}

#[test]
fn after_a_move_every_write_is_durable_until_the_write_cache_is_known() {
    use WriteCacheSetting::{Off, On, Unknown};
    let (shared, a, b) = (Place::new("wce"), Place::new("wce-a"), Place::new("wce-b"));
    let network = Network::new(false, 0);
    let (a, b) = (Host::new(&a, 1, &network), Host::new(&b, 2, &network));
    let origin = || OriginSpec::File { path: shared.path("origin") };
    shared.origin("origin", DISK_MIB);
    let [at_a, at_b] = [a.attach(DISK_MIB, origin(), None), b.attach(DISK_MIB, origin(), Some(a.id))];
    let sockets = [socket_path(), socket_path()];
    let server_a = serve_guest(&a.handle(), at_a, &sockets[0], Off);
    let server_b = serve_guest(&b.handle(), at_b, &sockets[1], On);
    assert_eq!(server_a.write_cache(), (Some(1), Off));
    assert_eq!(server_b.write_cache(), (None, Unknown), "its guest may be at the other host");

    let mut guest = connect(&sockets[0]);
    assert!(writes_are_durable(&a.handle(), &mut guest));
    guest.frontend.set_config(WRITE_CACHE_AT, VhostUserConfigFlags::empty(), &[1]).unwrap();
    assert!(!writes_are_durable(&a.handle(), &mut guest));
    drop(guest);

    // What it switches while it waits here takes effect only when this host knows what it did before.
    let mut moved = connect(&sockets[1]);
    moved.frontend.set_config(WRITE_CACHE_AT, VhostUserConfigFlags::empty(), &[0]).unwrap();
    assert!(writes_are_durable(&b.handle(), &mut moved));
    assert_eq!(server_b.write_cache(), (Some(2), Unknown));
    wait_until("the earlier owner knows", || server_a.write_cache() == (None, Unknown));
    let settle = |epoch, on| b.handle().arena(at_b).settle_write_cache(at_b, epoch, on).unwrap();
    assert!(!settle(1, true), "that was found out for an earlier epoch");
    assert!(writes_are_durable(&b.handle(), &mut moved));
    assert!(settle(2, true));
    assert_eq!(server_b.write_cache(), (Some(2), On));
    assert!(!writes_are_durable(&b.handle(), &mut moved));

    // The guest has switched it since.
    moved.frontend.set_config(WRITE_CACHE_AT, VhostUserConfigFlags::empty(), &[0]).unwrap();
    assert!(settle(2, true));
    assert_eq!(server_b.write_cache(), (Some(2), Off));
    drop(moved);
    // It has left and come back to the same host, which has owned the disk all along.
    let mut again = connect(&sockets[1]);
    assert!(writes_are_durable(&b.handle(), &mut again));
    assert_eq!(server_b.write_cache(), (Some(2), Off));
}
