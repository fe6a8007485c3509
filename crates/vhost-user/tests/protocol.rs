//! Both halves, with the `vhost` crate's front end as the peer.
mod support;

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use haversack_vhost_user::socket::SocketError;
use haversack_vhost_user::*;
use support::client::{self, Client, PATIENCE};
use support::disk::{Event, Mood, NAME, TestDisk};
use support::driver::{self, BUFFERS, Driver};
use support::{Ram, memory_file, socket_path};
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostUserConfigFlags;
use vhost::{VhostBackend, VhostUserDirtyLogRegion};

const DISK_BYTES: usize = 1 << 20;

fn config(queues: u16) -> DeviceConfig {
    DeviceConfig { capacity_sectors: DISK_BYTES as u64 / 512, queues, ..DeviceConfig::default() }
}

fn served(queues: u16) -> (Server, Arc<TestDisk>) {
    let disk = TestDisk::new(DISK_BYTES);
    (serve(&socket_path(), 0o600, config(queues), disk.clone()).unwrap(), disk)
}

fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn disconnected(disk: &TestDisk) -> Option<String> {
    wait_for("a disconnect", || {
        disk.events().into_iter().rev().find_map(|event| match event {
            Event::Disconnected(cause) => Some(cause),
            _ => None,
        })
    })
}

fn read_config(client: &mut Client, offset: u32, len: usize) -> Vec<u8> {
    let flags = VhostUserConfigFlags::empty();
    client.frontend.get_config(offset, len as u32, flags, &vec![0; len]).unwrap().1
}

#[test]
fn every_kind_of_request_on_every_queue() {
    let (server, disk) = served(3);
    for without in [0, feature::RING_EVENT_IDX, feature::RING_INDIRECT_DESC] {
        let ram = Ram::new();
        let mut client = Client::new(server.path(), &ram, without);
        assert_eq!(client.frontend.get_queue_num().unwrap(), 3);
        let drivers = (0..3).map(|index| {
            let indirect = without != feature::RING_INDIRECT_DESC;
            Driver { indirect, ..Driver::new(&ram, index, 64) }
        });
        client.start(drivers.collect(), None);
        for (index, queue) in client.queues.iter_mut().enumerate() {
            let sector = index as u64 * 100;
            let (data, back) = (BUFFERS + 3, BUFFERS + 0x10000);
            ram.write(data, &[index as u8 + 1; 8192]);
            assert_eq!(queue.run(driver::WRITE, sector, &[(data, 1000), (data + 1000, 7192)]), 0);
            assert_eq!(queue.run(driver::FLUSH, 0, &[]), 0);
            assert_eq!(queue.run(driver::READ, sector, &[(back, 8192)]), 0);
            assert_eq!(ram.bytes(back, 8192), vec![index as u8 + 1; 8192]);
            assert_eq!(queue.run(driver::GET_ID, 0, &[(back, 20)]), 0);
            assert_eq!(ram.bytes(back, NAME.len()), NAME);
            let mut range = [0; 16];
            range[0] = sector as u8;
            range[8] = 1;
            ram.write(data, &range);
            assert_eq!(queue.run(driver::DISCARD, 0, &[(data, 16)]), 0);
            assert_eq!(queue.run(driver::WRITE_ZEROES, 0, &[(data, 16)]), 0);
            assert_eq!(queue.run(driver::READ, sector, &[(back, 1024)]), 0);
            assert_eq!(ram.bytes(back, 512), [0; 512]);
            assert_eq!(ram.bytes(back + 512, 512), [index as u8 + 1; 512]);
            assert_eq!(queue.run(driver::READ, DISK_BYTES as u64 / 512, &[(back, 512)]), 1);
            assert_eq!(queue.run(77, 0, &[]), 2);
        }
        for index in 0..3 {
            let base = client.frontend.get_vring_base(index).unwrap();
            assert_eq!(base, u32::from(client.queues[index].driver.available));
        }
        disk.events.lock().unwrap().clear();
        drop(client);
        assert_eq!(disconnected(&disk), None);
    }
}

#[test]
fn the_configuration_space_and_its_changes() {
    let (server, disk) = served(2);
    let ram = Ram::new();
    let mut client = Client::new(server.path(), &ram, 0);
    assert_ne!(client.offered & feature::BLK_MQ, 0);
    assert_eq!(client.offered & feature::BLK_RO, 0);
    let space = read_config(&mut client, 0, 60);
    assert_eq!(space[..8], (DISK_BYTES as u64 / 512).to_le_bytes());
    assert_eq!((space[12], space[32], space[34]), (126, 1, 2));
    assert_eq!(u32::from_le_bytes([space[20], space[21], space[22], space[23]]), 512);

    client.start(vec![Driver::new(&ram, 0, 16)], None);
    client.frontend.set_config(32, VhostUserConfigFlags::empty(), &[0]).unwrap();
    assert_eq!(read_config(&mut client, 32, 1), [0]);
    // What is not a change need not be remembered.
    client.frontend.set_config(32, VhostUserConfigFlags::empty(), &[0]).unwrap();
    assert_eq!(read_config(&mut client, 32, 1), [0]);
    let is_cache = |event: &Event| matches!(event, Event::WriteCache(_) | Event::Switched(_));
    let caches = disk.events().into_iter().filter(is_cache);
    let expected = [Event::WriteCache(true), Event::WriteCache(true), Event::Switched(false)];
    assert_eq!(caches.collect::<Vec<_>>(), expected, "it is remembered before it takes effect");
    assert!(!disk.write_cache.is_on());

    let (ours, theirs) = UnixStream::pair().unwrap();
    client.frontend.set_backend_request_fd(&theirs).unwrap();
    server.resize(4096).unwrap();
    let mut notice = [0; 12];
    std::io::Read::read_exact(&mut &ours, &mut notice).unwrap();
    assert_eq!((notice[0], notice[4], notice[8]), (2, 1, 0), "CONFIG_CHANGE_MSG, version 1, no body");
    assert_eq!(read_config(&mut client, 0, 8), 4096u64.to_le_bytes());
    assert!(server.resize(u64::MAX).is_err());

    // Nothing else is the guest's to write.
    assert!(client.frontend.set_config(0, VhostUserConfigFlags::empty(), &[0; 8]).is_err());
    assert!(disconnected(&disk).unwrap().contains("not to be written"));
}

#[test]
fn a_guest_that_cannot_flush_has_no_write_cache() {
    let (server, disk) = served(1);
    let ram = Ram::new();
    let mut client = Client::new(server.path(), &ram, feature::BLK_FLUSH | feature::BLK_CONFIG_WCE);
    client.start(vec![Driver::new(&ram, 0, 16)], None);
    assert_eq!(disk.events()[..1], [Event::WriteCache(false)]);
}

#[test]
fn an_unknown_write_cache_is_shown_on_and_served_as_off() {
    let (server, disk) = served(1);
    disk.write_cache.set(WriteCacheSetting::Unknown);
    let ram = Ram::new();
    let mut client = Client::new(server.path(), &ram, 0);
    assert_eq!(read_config(&mut client, 32, 1), [1], "QEMU drops a switch to what it was shown");
    client.start(vec![Driver::new(&ram, 0, 16)], None);
    client.frontend.set_config(32, VhostUserConfigFlags::empty(), &[0]).unwrap();
    assert_eq!(disk.write_cache.get(), WriteCacheSetting::Off);
    let expected = [Event::WriteCache(false), Event::Started(0)];
    assert_eq!(disk.events()[..2], expected);
    assert_eq!(disk.events().last(), Some(&Event::Switched(false)));
}

#[test]
fn a_guest_that_cannot_switch_its_write_cache_has_one_whatever_another_has_set() {
    let (server, disk) = served(1);
    disk.write_cache.set(WriteCacheSetting::Unknown);
    let ram = Ram::new();
    let mut client = Client::new(server.path(), &ram, feature::BLK_CONFIG_WCE);
    client.start(vec![Driver::new(&ram, 0, 16)], None);
    assert_eq!(disk.events()[..1], [Event::WriteCache(true)]);
}

/// What becomes of an unknown setting when the guest's queue is stopped after a request and started at `base`.
fn settled(reads: bool, before: WriteCacheSetting, base: u16) -> WriteCacheSetting {
    let (server, disk) = served(1);
    disk.write_cache.set(before);
    let ram = Ram::new();
    let mut client = Client::new(server.path(), &ram, 0);
    if reads {
        read_config(&mut client, 0, 60);
    }
    disk.write_cache.set(WriteCacheSetting::Unknown);
    client.start(vec![Driver::new(&ram, 0, 16)], None);
    assert_eq!(client.queues[0].run(driver::WRITE, 0, &[(BUFFERS, 512)]), 0);
    assert_eq!(client.frontend.get_vring_base(0).unwrap(), 1);
    client.frontend.set_vring_base(0, base).unwrap();
    let setting = disk.write_cache.get();
    let is_told = disk.events().contains(&Event::Switched(true));
    assert_eq!(is_told, setting == WriteCacheSetting::On);
    setting
}

#[test]
fn a_driver_that_restarts_has_read_what_was_shown() {
    use WriteCacheSetting::{Off, On, Unknown};
    assert_eq!(settled(true, Unknown, 0), On, "it has read that its cache is on");
    assert_eq!(settled(true, Unknown, 1), Unknown, "it goes on");
    assert_eq!(settled(true, Off, 0), Unknown, "its front end was shown that it is off");
    assert_eq!(settled(false, Unknown, 0), Unknown, "its front end knows it from an earlier connection");
}

#[test]
fn stopping_waits_for_requests_in_flight() {
    let (server, disk) = served(1);
    let ram = Ram::new();
    let mut client = Client::new(server.path(), &ram, 0);
    client.start(vec![Driver::new(&ram, 0, 16)], None);
    disk.set_mood(Mood::Hold);
    for sector in 0..3 {
        client.queues[0].submit(driver::WRITE, sector, &[(BUFFERS, 512)]).unwrap();
    }
    wait_for("taking", || (disk.taken().len() == 3).then_some(()));
    assert_eq!(client.queues[0].driver.completed(), None);
    // Disabled and enabled again: all done before the answer, and the next request is served.
    client.frontend.set_vring_enable(0, false).unwrap();
    for _ in 0..3 {
        assert_eq!(client.queues[0].driver.completed().unwrap().2, 0);
    }
    disk.set_mood(Mood::Prompt);
    client.queues[0].submit(driver::WRITE, 9, &[(BUFFERS, 512)]).unwrap();
    // Answered after the kick, so the session has seen both.
    client.frontend.get_features().unwrap();
    assert_eq!(disk.events().last(), Some(&Event::Stopped(0)), "nobody serves a disabled queue");
    assert_eq!(client.queues[0].driver.completed(), None, "served while disabled");
    client.frontend.set_vring_enable(0, true).unwrap();
    assert_eq!(client.queues[0].wait().2, 0);
    assert_eq!(client.frontend.get_vring_base(0).unwrap(), 4);
}

#[test]
fn memory_slots_come_and_go_while_a_queue_runs() {
    let (server, _disk) = served(1);
    let ram = Ram::new();
    let mut client = Client::new(server.path(), &ram, 0);
    assert_eq!(client.frontend.get_max_mem_slots().unwrap(), MAX_MEMORY_REGIONS as u64);
    client.start(vec![Driver::new(&ram, 0, 16)], None);
    let high = (support::REGION_BYTES + 4096, 512);
    assert_eq!(client.queues[0].run(driver::WRITE, 0, &[high]), 0);
    client.frontend.remove_mem_region(&client::region(1, &ram)).unwrap();
    assert_eq!(client.queues[0].run(driver::WRITE, 0, &[(BUFFERS, 512)]), 0);
    client.frontend.add_mem_region(&client::region(1, &ram)).unwrap();
    assert_eq!(client.queues[0].run(driver::WRITE, 0, &[high]), 0);
    assert!(client.frontend.add_mem_region(&client::region(1, &ram)).is_err(), "overlaps itself");
}

#[test]
fn dirty_pages_are_logged_exactly_while_asked_for() {
    use std::os::unix::fs::FileExt;
    let (server, _disk) = served(1);
    let ram = Ram::new();
    let mut client = Client::new(server.path(), &ram, 0);
    client.start(vec![Driver::new(&ram, 0, 16)], None);
    let log = memory_file(256);
    let is_marked = |address: u64| {
        let mut byte = [0];
        log.read_exact_at(&mut byte, address / 4096 / 8).unwrap();
        byte[0] >> (address / 4096 % 8) & 1 == 1
    };
    let region = VhostUserDirtyLogRegion { mmap_size: 256, mmap_offset: 0, mmap_handle: log.as_raw_fd() };
    client.frontend.set_log_base(0, Some(region)).unwrap();
    let page = |number: u64| BUFFERS + number * 4096;
    assert_eq!(client.queues[0].run(driver::READ, 0, &[(page(0), 512)]), 0);
    assert!(!is_marked(page(0)), "not asked for yet");

    client.frontend.set_features(client.features | feature::LOG_ALL).unwrap();
    client.set_addresses(0, &client.queues[0].driver, true);
    assert_eq!(client.queues[0].run(driver::READ, 0, &[(page(1), 512), (page(3), 512)]), 0);
    assert_eq!([0, 1, 2, 3].map(|n| is_marked(page(n))), [false, true, false, true]);
    assert!(is_marked(client.queues[0].driver.used_at()));
    assert_eq!(client.queues[0].run(driver::WRITE, 0, &[(page(5), 512)]), 0);
    assert!(!is_marked(page(5)), "reading guest memory does not dirty it");

    client.frontend.set_features(client.features).unwrap();
    log.write_all_at(&[0; 256], 0).unwrap();
    assert_eq!(client.queues[0].run(driver::READ, 0, &[(page(7), 512)]), 0);
    let mut bits = [0; 256];
    log.read_exact_at(&mut bits, 0).unwrap();
    assert_eq!(bits, [0; 256], "marked after the end of the migration");

    // A log that does not cover the memory is refused when it is to be used.
    client.frontend.set_features(client.features | feature::LOG_ALL).unwrap();
    let region = VhostUserDirtyLogRegion { mmap_size: 8, mmap_offset: 0, mmap_handle: log.as_raw_fd() };
    assert!(client.frontend.set_log_base(0, Some(region)).is_err());
}

#[test]
fn requests_in_flight_when_a_back_end_dies_are_done_once_by_the_next() {
    for seed in 0..40 {
        let path = socket_path();
        let ram = Ram::new();
        let mut numbers = haversack_model::random::Random::new(seed);
        let mut inflight = None;
        let mut driver = Driver { indirect: seed % 2 == 0, ..Driver::new(&ram, 0, 64) };
        let (mut submitted, mut completed) = (0u64, 0u64);
        for life in 0..6 {
            let disk = TestDisk::new(DISK_BYTES);
            let server = serve(&path, 0o600, config(1), disk.clone()).unwrap();
            let mut client = Client::new(&path, &ram, 0);
            let inflight = inflight.get_or_insert_with(|| client.new_inflight(1, 64));
            disk.set_mood(Mood::Moody);
            client.start(vec![driver], Some(inflight));
            let queue = &mut client.queues[0];
            for _ in 0..numbers.below(60) {
                if queue.submit(driver::WRITE, submitted, &[(BUFFERS, 512)]).is_some() {
                    submitted += 1;
                }
                if numbers.below(2) == 0 && queue.driver.in_flight() > 0 {
                    assert_eq!(queue.wait().2, 0);
                    completed += 1;
                }
            }
            if life == 5 {
                while queue.driver.in_flight() > 0 {
                    assert_eq!(queue.wait().2, 0);
                    completed += 1;
                }
            }
            // What the previous life left comes first, in its order, then what is new: nothing twice.
            let taken = disk.taken();
            assert!(taken.is_sorted_by(|a, b| a < b), "seed {seed}: {taken:?}");
            disk.killed.store(true, Ordering::SeqCst);
            driver = client.queues.pop().unwrap().driver;
            drop((client, server));
        }
        while driver.completed().is_some() {
            completed += 1;
        }
        assert_eq!((driver.in_flight(), completed), (0, submitted), "seed {seed}");
    }
}

/// The stores of a completion, taken back one by one as if the kill had come before them.
#[test]
fn a_kill_on_either_side_of_the_used_index_repeats_only_what_the_guest_has_not_seen() {
    use std::os::unix::fs::FileExt;
    for seen in [true, false] {
        let path = socket_path();
        let ram = Ram::new();
        let disk = TestDisk::new(DISK_BYTES);
        let server = serve(&path, 0o600, config(1), disk.clone()).unwrap();
        let mut client = Client::new(&path, &ram, 0);
        let inflight = client.new_inflight(1, 16);
        client.start(vec![Driver::new(&ram, 0, 16)], Some(&inflight));
        let queue = &mut client.queues[0];
        let head = queue.submit(driver::WRITE, 5, &[(BUFFERS, 512)]).unwrap();
        assert_ne!(head, 0, "the region's initial batch head");
        wait_for("a completion", || (queue.driver.used_index() == 1).then_some(()));
        let driver = client.queues.pop().unwrap().driver;
        drop((client, server));

        let region = &inflight.1;
        region.write_all_at(&[1], 16 + 16 * u64::from(head)).unwrap();
        region.write_all_at(&[0; 2], 14).unwrap();
        ram.set_u16(driver.used_at() + 2, u16::from(seen));

        let disk = TestDisk::new(DISK_BYTES);
        let _server = serve(&path, 0o600, config(1), disk.clone()).unwrap();
        let mut client = Client::new(&path, &ram, 0);
        client.start(vec![driver], Some(&inflight));
        let queue = &mut client.queues[0];
        assert_eq!(queue.wait(), (head, 1, 0));
        assert_eq!(queue.run(driver::WRITE, 6, &[(BUFFERS, 512)]), 0);
        assert_eq!(disk.taken(), if seen { vec![6] } else { vec![5, 6] });
    }
}

#[test]
fn malformed_messages_end_their_session_and_no_other() {
    let (server, disk) = served(1);
    let (other, _other_disk) = served(1);
    let ram = Ram::new();
    let mut bystander = Client::new(other.path(), &ram, 0);
    bystander.start(vec![Driver::new(&ram, 0, 16)], None);
    let header = |request: u32, flags: u32, size: u32| [request, flags, size].map(u32::to_ne_bytes).concat();
    let cases: [(&str, Vec<u8>); 12] = [
        ("version", header(1, 0, 0)),
        ("reserved flag", header(1, 0x11, 0)),
        ("a reply", header(1, 5, 0)),
        ("huge", header(5, 1, u32::MAX)),
        ("unknown", header(4000, 1, 0)),
        ("body missing", header(2, 1, 0)),
        ("body too long", [header(3, 1, 4), vec![0; 4]].concat()),
        ("features not offered", [header(2, 1, 8), u64::MAX.to_ne_bytes().to_vec()].concat()),
        ("queue beyond", [header(8, 1, 8), vec![9, 0, 0, 0, 1, 0, 0, 0]].concat()),
        ("kick without its file", [header(12, 1, 8), vec![0; 8]].concat()),
        ("too many regions", [header(5, 1, 8), vec![200, 0, 0, 0, 0, 0, 0, 0]].concat()),
        ("started without addresses", [header(12, 1, 8), 0x100u64.to_ne_bytes().to_vec()].concat()),
    ];
    for (what, bytes) in cases {
        disk.events.lock().unwrap().clear();
        let socket = UnixStream::connect(server.path()).unwrap();
        std::io::Write::write_all(&mut &socket, &bytes).unwrap();
        let cause = disconnected(&disk);
        assert!(cause.is_some(), "{what}: closed without an error");
        drop(socket);
        assert_eq!(bystander.queues[0].run(driver::WRITE, 0, &[(BUFFERS, 512)]), 0);
    }
    // Cut off within a message.
    disk.events.lock().unwrap().clear();
    std::io::Write::write_all(&mut UnixStream::connect(server.path()).unwrap(), &[1, 0, 0]).unwrap();
    assert!(disconnected(&disk).is_some());
    // And the next front end is served.
    let mut client = Client::new(server.path(), &ram, 0);
    client.start(vec![Driver::new(&ram, 1, 16)], None);
    assert_eq!(client.queues[0].run(driver::FLUSH, 0, &[]), 0);
}

#[test]
fn a_broken_ring_concerns_its_queue_only() {
    let (server, disk) = served(2);
    let ram = Ram::new();
    let mut client = Client::new(server.path(), &ram, 0);
    client.start(vec![Driver::new(&ram, 0, 16), Driver::new(&ram, 1, 16)], None);
    let error = vmm_sys_util::eventfd::EventFd::new(vmm_sys_util::eventfd::EFD_NONBLOCK).unwrap();
    client.frontend.set_vring_err(0, &error).unwrap();
    client.queues[0].driver.make_available(99);
    client.queues[0].kick.write(1).unwrap();
    let broken = wait_for("a broken queue", || disk.broken());
    assert_eq!(broken.fault, Fault::DescriptorIndex { index: 99, table: 16 });
    wait_for("the error eventfd", || error.read().ok());
    assert_eq!(client.queues[1].run(driver::FLUSH, 0, &[]), 0);
    // The guest resets the device, and the queue serves again.
    client.frontend.reset_device().unwrap();
    client.queues.clear();
    ram.write(0, &vec![0; driver::QUEUE_BYTES as usize * 2]);
    client.start(vec![Driver::new(&ram, 0, 16)], None);
    assert_eq!(client.queues[0].run(driver::FLUSH, 0, &[]), 0);
}

#[test]
fn the_socket_is_private_and_nobody_elses() {
    use std::os::unix::fs::PermissionsExt;
    let path = socket_path();
    let disk = TestDisk::new(DISK_BYTES);
    // What a killed process leaves behind.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let server = serve(&path, 0o600, config(1), disk.clone()).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(
        serve(&path, 0o600, config(1), disk.clone()),
        Err(ServeError::Socket(SocketError::InUse(_)))
    ));
    // The first server goes on.
    let _client = client::connect(&path);
    let connected = wait_for("a front end", || Some(server.connected()).filter(|found| !found.is_empty()));
    assert!(connected[0].starts_with(&format!("pid {} (", std::process::id())), "{connected:?}");
    drop(server);
    assert!(!path.exists());
    std::fs::write(&path, "not a socket").unwrap();
    assert!(matches!(
        serve(&path, 0o600, config(1), disk.clone()),
        Err(ServeError::Socket(SocketError::NotASocket(_)))
    ));
    assert_eq!(std::fs::read(&path).unwrap(), b"not a socket");
    std::fs::remove_file(&path).unwrap();
    // Neither the name under which the socket is made.
    let new = path.with_added_extension("new");
    std::fs::write(&new, "not a socket").unwrap();
    assert!(serve(&path, 0o600, config(1), disk.clone()).is_err() && !path.exists());
    assert_eq!(std::fs::read(&new).unwrap(), b"not a socket");
    std::fs::remove_file(&new).unwrap();
    let server = serve(&path, 0o600, config(1), disk.clone()).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "put there meanwhile").unwrap();
    drop(server);
    assert_eq!(std::fs::read(&path).unwrap(), b"put there meanwhile");
    std::fs::remove_file(&path).unwrap();
    let odd = DeviceConfig { block_bytes: 1000, ..config(1) };
    assert!(matches!(serve(&path, 0o600, odd, disk), Err(ServeError::Config(..))));
}

/// The thread that drives a queue reads its kick descriptor and writes its call descriptor. Any descriptor but an
/// eventfd could block the thread.
#[test]
fn descriptors_that_are_no_eventfds_end_the_session() {
    let (server, disk) = served(1);
    let set: [fn(&mut Client, &vmm_sys_util::eventfd::EventFd) -> bool; 3] = [
        |client, file| client.frontend.set_vring_kick(0, file).is_err(),
        |client, file| client.frontend.set_vring_call(0, file).is_err(),
        |client, file| client.frontend.set_vring_err(0, file).is_err(),
    ];
    for (set, what) in set.into_iter().zip(["kick", "call", "error"]) {
        disk.events.lock().unwrap().clear();
        let ram = Ram::new();
        let mut client = Client::new(server.path(), &ram, 0);
        let pipe = std::os::fd::IntoRawFd::into_raw_fd(std::io::pipe().unwrap().1);
        // SAFETY: the descriptor was just given up by its owner.
        let file = unsafe { std::os::fd::FromRawFd::from_raw_fd(pipe) };
        assert!(set(&mut client, &file));
        let cause = disconnected(&disk).expect("an error");
        assert!(cause.contains(&format!("the {what} descriptor")) && cause.contains("pipe"), "{cause}");
    }
}
