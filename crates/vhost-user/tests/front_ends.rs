//! Several front ends on one disk, as in a live migration within a host.
mod support;

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use haversack_vhost_user::*;
use support::client::{Client, PATIENCE};
use support::disk::{Event, TestDisk};
use support::driver::{self, BUFFERS, Driver};
use support::{Ram, socket_path};
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostUserHeaderFlag;

const DISK_BYTES: usize = 1 << 20;

fn served() -> (Server, Arc<TestDisk>) {
    let disk = TestDisk::new(DISK_BYTES);
    let config =
        DeviceConfig { capacity_sectors: DISK_BYTES as u64 / 512, queues: 2, ..DeviceConfig::default() };
    (serve(&socket_path(), 0o600, config, disk.clone()).unwrap(), disk)
}

fn wait_for_event(disk: &TestDisk, wanted: impl Fn(&Event) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !disk.events().iter().any(&wanted) {
        assert!(Instant::now() < deadline, "not among {:?}", disk.events());
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

fn drivers(ram: &Ram) -> Vec<Driver> {
    (0..2).map(|index| Driver::new(ram, index, 16)).collect()
}

#[test]
fn a_second_front_end_starts_where_the_first_has_stopped() {
    let (server, disk) = served();
    let ram = Ram::new();
    let mut source = Client::new(server.path(), &ram, 0);
    source.start(drivers(&ram), None);
    let mut destination = Client::new(server.path(), &ram, feature::BLK_CONFIG_WCE);
    assert_eq!(destination.frontend.get_queue_num().unwrap(), 2, "answered while the first one's queues run");
    destination.frontend.set_features(destination.features).unwrap();
    assert_eq!(source.queues[0].run(driver::WRITE, 1, &[(BUFFERS, 512)]), 0);
    assert!(!disk.events().contains(&Event::Waits));

    let bases = [0, 1].map(|index| source.frontend.get_vring_base(index).unwrap());
    assert_eq!(bases, [1, 0]);
    let moved = source.queues.drain(..).map(|queue| queue.driver).collect();
    destination.start(moved, None);
    assert_eq!(destination.queues[0].run(driver::WRITE, 2, &[(BUFFERS, 512)]), 0);
    assert_eq!(disk.taken(), [1, 2]);
    use Event::{Started, Stopped, WriteCache};
    let all = [
        [WriteCache(true), Started(0), WriteCache(true), Started(1), Stopped(0), Stopped(1)].as_slice(),
        &[WriteCache(true), Started(0), WriteCache(true), Started(1)],
    ];
    assert_eq!(disk.events(), all.concat());

    // The front end without running queues disconnects; the other one keeps its queues.
    drop(source);
    wait_for_event(&disk, |event| *event == Event::Disconnected(None));
    assert_eq!(destination.queues[1].run(driver::WRITE, 3, &[(BUFFERS, 512)]), 0);
}

#[test]
fn two_front_ends_never_have_queues_running_at_once() {
    let (server, disk) = served();
    let rams = [Ram::new(), Ram::new()];
    let mut first = Client::new(server.path(), &rams[0], 0);
    first.start(drivers(&rams[0]), None);

    let mut second = Client::new(server.path(), &rams[1], 0);
    let waiting = std::thread::spawn({
        let ram = rams[1].clone();
        move || {
            second.start(drivers(&ram), None);
            second
        }
    });
    wait_for_event(&disk, |event| *event == Event::Waits);
    // The second front end waits until all queues of the first have stopped.
    first.frontend.set_vring_enable(0, false).unwrap();
    assert_eq!(first.queues[1].run(driver::WRITE, 7, &[(BUFFERS, 512)]), 0);
    assert!(!waiting.is_finished());
    first.frontend.set_vring_enable(1, false).unwrap();
    let mut second = waiting.join().unwrap();
    assert_eq!(second.queues[1].run(driver::WRITE, 8, &[(BUFFERS, 512)]), 0);
    assert_eq!(disk.taken(), [7, 8]);
}

/// A front end that has sent all its messages without waiting for replies.
fn started_without_replies(server: &Server, ram: &Ram) -> Client {
    let mut client = Client::new(server.path(), ram, 0);
    client.frontend.set_hdr_flags(VhostUserHeaderFlag::empty());
    client.start(drivers(ram), None);
    client
}

#[test]
fn whoever_gives_up_waiting_starts_nothing() {
    let (server, disk) = served();
    let rams = [Ram::new(), Ram::new()];
    let mut first = Client::new(server.path(), &rams[0], 0);
    first.start(drivers(&rams[0]), None);
    let second = started_without_replies(&server, &rams[1]);
    wait_for_event(&disk, |event| *event == Event::Waits);
    drop(second);
    let left =
        |event: &Event| matches!(event, Event::Disconnected(Some(why)) if why.contains("was not started"));
    wait_for_event(&disk, left);
    assert_eq!(first.queues[0].run(driver::WRITE, 1, &[(BUFFERS, 512)]), 0);
    let started = disk.events().iter().filter(|event| matches!(event, Event::Started(_))).count();
    assert_eq!(started, 2);

    // Stopping the service does not wait for front ends that wait.
    disk.events.lock().unwrap().clear();
    let _third = started_without_replies(&server, &rams[1]);
    wait_for_event(&disk, |event| *event == Event::Waits);
    drop(server);
    wait_for_event(&disk, |event| *event == Event::Stopped(1));
}

#[test]
fn a_closed_disk_lets_no_front_end_in_until_it_is_open_again() {
    let (server, _disk) = served();
    let ram = Ram::new();
    let connected = Client::new(server.path(), &ram, 0);
    assert_eq!(server.close_if_unused().unwrap_err().len(), 1, "one is connected");
    drop(connected);
    let deadline = Instant::now() + PATIENCE;
    let closed = loop {
        match server.close_if_unused() {
            Ok(closed) => break closed,
            Err(_) => assert!(Instant::now() < deadline, "it stays in use"),
        }
    };
    // The accepting thread already waits for this connection.
    let mut early = UnixStream::connect(server.path()).unwrap();
    let path = server.path().to_owned();
    let waiting = std::thread::spawn(move || {
        let ram = Ram::new();
        let mut client = Client::new(&path, &ram, 0);
        client.start(drivers(&ram), None);
        client.queues[0].run(driver::WRITE, 1, &[(BUFFERS, 512)])
    });
    std::thread::sleep(2 * LONG);
    assert!(!waiting.is_finished() && server.connected().is_empty());
    let twice = server.close_if_unused().unwrap();
    drop(closed);
    std::thread::sleep(LONG);
    assert!(server.connected().is_empty(), "somebody else wants it closed");
    early.set_read_timeout(Some(LONG)).unwrap();
    assert!(!is_over(&mut early), "it was dropped instead of waiting");
    drop(twice);
    assert_eq!(waiting.join().unwrap(), 0);

    // One that waits for a disk that is detached is refused.
    drop(early);
    let closed = loop {
        match server.close_if_unused() {
            Ok(closed) => break closed,
            Err(_) => assert!(Instant::now() < deadline, "it stays in use"),
        }
    };
    let mut late = UnixStream::connect(server.path()).unwrap();
    drop(server);
    late.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(is_over(&mut late));
    drop(closed);
}

/// Longer than it takes to hang up.
const LONG: Duration = Duration::from_millis(300);

/// Whether the server has hung up.
fn is_over(socket: &mut UnixStream) -> bool {
    socket.read(&mut [0]).is_ok_and(|bytes| bytes == 0)
}
