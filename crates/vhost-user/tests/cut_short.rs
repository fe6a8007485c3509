//! Front ends that truncate their files while requests are under way: the connection ends with a reason, data that was
//! read is not trusted, and others are not affected.
mod support;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use haversack_vhost_user::*;
use support::client::{Client, Inflight, PATIENCE};
use support::disk::{Event, Mood, TestDisk};
use support::driver::{self, BUFFERS, Driver};
use support::{RAM_BYTES, Ram, memory_file, socket_path};
use vhost::vhost_user::VhostUserFrontend;
use vhost::{VhostBackend, VhostUserDirtyLogRegion};

const DISK_BYTES: usize = 1 << 20;
const LOG_BYTES: u64 = RAM_BYTES / 4096 / 8;

struct Place {
    server: Server,
    disk: Arc<TestDisk>,
}

impl Place {
    fn new() -> Self {
        let disk = TestDisk::new(DISK_BYTES);
        let config =
            DeviceConfig { capacity_sectors: DISK_BYTES as u64 / 512, queues: 1, ..DeviceConfig::default() };
        Self { server: serve(&socket_path(), 0o600, config, disk.clone()).unwrap(), disk }
    }

    fn client(&self, ram: &Ram, inflight: Option<&Inflight>) -> Client {
        self.client_with(Driver::new(ram, 0, 16), inflight)
    }

    fn client_with(&self, driver: Driver, inflight: Option<&Inflight>) -> Client {
        let mut client = Client::new(self.server.path(), &driver.ram, 0);
        client.start(vec![driver], inflight);
        client
    }

    fn wait_until(&self, condition: impl Fn(&TestDisk) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition(&self.disk) {
            assert!(Instant::now() < deadline, "{:?}", self.disk);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits for the end of the connection, which must be for this loss.
    fn check_lost(&self, what: &str) {
        let deadline = Instant::now() + PATIENCE;
        let cause = loop {
            let ends = |event: &Event| {
                if let Event::Disconnected(cause) = event { Some(cause.clone()) } else { None }
            };
            if let Some(cause) = self.disk.events().iter().find_map(ends) {
                break cause;
            }
            assert!(Instant::now() < deadline, "the connection goes on: {:?}", self.disk.events());
            std::thread::sleep(Duration::from_millis(1));
        };
        let cause = cause.expect("a loss is an error");
        assert!(cause.starts_with(&format!("the {what} is lost")), "{cause}");
    }

    /// Checks that a new connection is served normally.
    fn check_alive(&self) {
        let ram = Ram::new();
        let mut client = self.client(&ram, None);
        ram.write(BUFFERS, &[9; 512]);
        assert_eq!(client.queues[0].run(driver::WRITE, 7, &[(BUFFERS, 512)]), 0);
        assert_eq!(client.queues[0].run(driver::READ, 7, &[(BUFFERS + 512, 512)]), 0);
        assert_eq!(ram.bytes(BUFFERS + 512, 512), [9; 512]);
    }

    fn check_alive_beside(&self, client: &mut Client) {
        assert!(!self.disk.events().iter().any(|event| matches!(event, Event::Disconnected(_))));
        assert_eq!(client.queues[0].run(driver::FLUSH, 0, &[]), 0);
    }
}

fn own_inflight(client: &mut Client) -> Inflight {
    let Inflight(mut shape, ours) = client.new_inflight(1, 16);
    let file = memory_file(ours.metadata().unwrap().len());
    shape.mmap_offset = 0;
    Inflight(shape, file)
}

#[test]
fn data_that_was_cut_off_is_not_written() {
    let (place, other) = (Place::new(), Place::new());
    let rams = [Ram::new(), Ram::new()];
    let mut client = place.client(&rams[0], None);
    let mut neighbour = other.client(&rams[1], None);
    rams[0].write(BUFFERS, &[5; 4096]);
    assert_eq!(client.queues[0].run(driver::WRITE, 0, &[(BUFFERS, 4096)]), 0);
    // The rings stay, the buffers go.
    rams[0].file.set_len(BUFFERS).unwrap();
    client.queues[0].submit(driver::WRITE, 0, &[(BUFFERS, 4096)]).unwrap();
    place.check_lost("guest memory");
    assert_eq!(place.disk.stored(0, 4096), [5; 4096]);
    assert_eq!(client.queues[0].driver.used_index(), 1, "the lost request is not completed");
    assert_eq!(neighbour.queues[0].run(driver::WRITE, 0, &[(BUFFERS, 4096)]), 0);
    place.check_alive();
    other.check_alive_beside(&mut neighbour);
}

#[test]
fn rings_that_were_cut_off_end_the_connection() {
    for kick in [true, false] {
        let place = Place::new();
        let ram = Ram::new();
        let mut client = place.client(&ram, None);
        place.disk.set_mood(Mood::Hold);
        client.queues[0].submit(driver::WRITE, 0, &[(BUFFERS, 4096)]).unwrap();
        place.wait_until(|disk| disk.taken() == [0]);
        ram.file.set_len(0).unwrap();
        if kick {
            client.queues[0].kick.write(1).unwrap();
        }
        place.disk.set_mood(Mood::Prompt);
        place.check_lost("guest memory");
        place.check_alive();
    }
}

#[test]
fn the_next_connection_gets_what_was_not_answered() {
    let place = Place::new();
    let ram = Ram::new();
    let mut client = Client::new(place.server.path(), &ram, 0);
    let inflight = client.new_inflight(1, 16);
    client.start(vec![Driver::new(&ram, 0, 16)], Some(&inflight));
    assert_eq!(client.queues[0].run(driver::FLUSH, 0, &[]), 0);
    ram.file.set_len(BUFFERS).unwrap();
    let head = client.queues[0].submit(driver::WRITE, 3, &[(BUFFERS, 512)]).unwrap();
    place.check_lost("guest memory");
    // The memory is whole again.
    ram.file.set_len(RAM_BYTES).unwrap();
    ram.write(BUFFERS, &[6; 512]);
    let driver = client.queues.remove(0).driver;
    drop(client);
    let mut client = place.client_with(driver, Some(&inflight));
    assert_eq!(client.queues[0].wait(), (head, 1, 0));
    assert_eq!(place.disk.stored(3 * 512, 512), [6; 512]);
}

#[test]
fn an_in_flight_region_that_was_cut_short_ends_the_connection() {
    let place = Place::new();
    let ram = Ram::new();
    let mut client = Client::new(place.server.path(), &ram, 0);
    let inflight = own_inflight(&mut client);
    client.start(vec![Driver::new(&ram, 0, 16)], Some(&inflight));
    assert_eq!(client.queues[0].run(driver::FLUSH, 0, &[]), 0);
    inflight.1.set_len(0).unwrap();
    client.queues[0].submit(driver::WRITE, 0, &[(BUFFERS, 4096)]).unwrap();
    place.check_lost("in-flight region");
    place.check_alive();
}

#[test]
fn a_log_that_was_cut_short_ends_the_connection() {
    let place = Place::new();
    let ram = Ram::new();
    let mut client = place.client(&ram, None);
    let log: File = memory_file(LOG_BYTES);
    let region =
        VhostUserDirtyLogRegion { mmap_size: LOG_BYTES, mmap_offset: 0, mmap_handle: log.as_raw_fd() };
    client.frontend.set_log_base(0, Some(region)).unwrap();
    client.frontend.set_features(client.features | feature::LOG_ALL).unwrap();
    assert_eq!(client.queues[0].run(driver::READ, 0, &[(BUFFERS, 4096)]), 0);
    log.set_len(0).unwrap();
    client.queues[0].submit(driver::READ, 0, &[(BUFFERS, 4096)]).unwrap();
    place.check_lost("dirty log");
    place.check_alive();
}

#[test]
fn memory_that_was_cut_short_before_the_queues_start_is_refused() {
    let place = Place::new();
    let ram = Ram::new();
    let mut client = Client::new(place.server.path(), &ram, 0);
    client.start(Vec::new(), None);
    ram.file.set_len(0).unwrap();
    let driver = Driver::new(&ram, 0, 16);
    client.frontend.set_vring_num(0, driver.size).unwrap();
    client.set_addresses(0, &driver, false);
    let kick = vmm_sys_util::eventfd::EventFd::new(0).unwrap();
    client.frontend.set_vring_kick(0, &kick).unwrap();
    assert!(client.frontend.set_vring_enable(0, true).is_err());
    ram.file.set_len(RAM_BYTES).unwrap();
    place.check_alive();
}
