//! Guests on vhost-user-blk: what is durable when they are answered.

mod common;
#[path = "../../vhost-user/tests/support/mod.rs"]
mod support;

use std::path::PathBuf;

use common::*;
use haversack_engine::{OpenPool, OriginSpec, VhostUserConfig, VhostUserServer};
use haversack_model::{DiskHandle, WriteMode};
use support::client::Client as Guest;
use support::driver::{self, BUFFERS, Driver};
use support::{Ram, socket_path};
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostUserConfigFlags;

const DISK_MIB: u64 = 8;
/// Where the guest can switch its write cache.
const WRITE_CACHE_AT: u32 = 32;

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
        let shown = VhostUserConfig {
            serial: "disk1".into(),
            queues: 1,
            read_only: false,
            write_cache: true,
            on_switch: None,
        };
        let server =
            handle.arena(disk).serve_vhost_user(disk, DISK_MIB * MIB / 512, &socket, &shown).unwrap();
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
    let mut guest = Guest::new(&served.socket, &Ram::new(), 0);
    guest.start(vec![Driver::new(&guest.ram, 0, 16)], None);
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
