//! A front end that does what QEMU does, in the same order.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use haversack_vhost_user::{RingAddresses, feature};
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserInflight};
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::Ram;
use super::driver::Driver;

pub const PATIENCE: Duration = Duration::from_secs(20);

/// A queue's driver and its eventfds.
pub struct ClientQueue {
    pub driver: Driver,
    pub kick: EventFd,
    pub call: EventFd,
}

pub struct Client {
    pub frontend: Frontend,
    pub ram: Ram,
    pub queues: Vec<ClientQueue>,
    pub offered: u64,
    pub features: u64,
}

/// The in-flight region, which outlives connections.
pub struct Inflight(pub VhostUserInflight, pub File);

pub fn connect(path: &Path) -> Frontend {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match Frontend::connect(path, 256) {
            Ok(frontend) => return frontend,
            Err(e) => assert!(Instant::now() < deadline, "cannot connect: {e}"),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn region(index: usize, ram: &Ram) -> VhostUserMemoryRegionInfo {
    let region = Ram::regions()[index];
    VhostUserMemoryRegionInfo {
        guest_phys_addr: region.guest_address,
        memory_size: region.size_bytes,
        userspace_addr: region.user_address,
        mmap_offset: region.file_offset,
        mmap_handle: ram.raw_fd(),
    }
}

impl Client {
    /// Negotiates features, all that are offered but for `without`.
    pub fn new(path: &Path, ram: &Ram, without: u64) -> Self {
        let mut frontend = connect(path);
        let offered = frontend.get_features().unwrap();
        let protocol = frontend.get_protocol_features().unwrap();
        frontend.set_protocol_features(protocol).unwrap();
        assert!(protocol.contains(VhostUserProtocolFeatures::INFLIGHT_SHMFD));
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        frontend.set_owner().unwrap();
        let features = offered & !without & !feature::LOG_ALL;
        Self { frontend, ram: ram.clone(), queues: Vec::new(), offered, features }
    }

    /// Makes a new in-flight region.
    pub fn new_inflight(&mut self, queues: u16, queue_size: u16) -> Inflight {
        let asked = VhostUserInflight::new(0, 0, queues, queue_size);
        let (shape, file) = self.frontend.get_inflight_fd(&asked).unwrap();
        Inflight(shape, file)
    }

    /// Starts queues with these drivers.
    pub fn start(&mut self, drivers: Vec<Driver>, inflight: Option<&Inflight>) {
        if let Some(Inflight(shape, file)) = inflight {
            self.frontend.set_inflight_fd(shape, file.as_raw_fd()).unwrap();
        }
        self.frontend.set_features(self.features).unwrap();
        let regions = [region(0, &self.ram), region(1, &self.ram)];
        self.frontend.set_mem_table(&regions).unwrap();
        for (index, mut driver) in drivers.into_iter().enumerate() {
            driver.event_index = self.features & feature::RING_EVENT_IDX != 0;
            let [kick, call] = [(); 2].map(|()| EventFd::new(EFD_NONBLOCK).unwrap());
            self.frontend.set_vring_num(index, driver.size).unwrap();
            // After a lost connection QEMU goes on from the used index.
            self.frontend.set_vring_base(index, driver.used_index()).unwrap();
            self.set_addresses(index, &driver, false);
            self.frontend.set_vring_call(index, &call).unwrap();
            self.frontend.set_vring_kick(index, &kick).unwrap();
            self.frontend.set_vring_enable(index, true).unwrap();
            self.queues.push(ClientQueue { driver, kick, call });
        }
    }

    pub fn set_addresses(&self, index: usize, driver: &Driver, log: bool) {
        let RingAddresses { descriptors, available, used, .. } = driver.addresses();
        let config = VringConfigData {
            queue_max_size: driver.size,
            queue_size: driver.size,
            flags: u32::from(log),
            desc_table_addr: descriptors,
            used_ring_addr: used,
            avail_ring_addr: available,
            log_addr: log.then_some(driver.used_at()),
        };
        self.frontend.set_vring_addr(index, &config).unwrap();
    }
}

impl ClientQueue {
    /// Submits a request and kicks if the device asked for it.
    pub fn submit(&mut self, kind: u32, sector: u64, data: &[(u64, u32)]) -> Option<u16> {
        let before = self.driver.available;
        let head = self.driver.submit(kind, sector, data)?;
        if self.driver.must_kick(before) {
            self.kick.write(1).unwrap();
        }
        Some(head)
    }

    /// Waits for the next completion by the call eventfd, as a guest does.
    pub fn wait(&mut self) -> (u16, u32, u8) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(completion) = self.driver.completed() {
                return completion;
            }
            while self.call.read().is_err() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_micros(50));
            }
            assert!(Instant::now() < deadline, "no completion: {} in flight", self.driver.in_flight());
        }
    }

    /// One request from start to end; its status.
    pub fn run(&mut self, kind: u32, sector: u64, data: &[(u64, u32)]) -> u8 {
        let head = self.submit(kind, sector, data).expect("a free descriptor");
        let (completed, _, status) = self.wait();
        assert_eq!(completed, head);
        status
    }
}
