//! Rings that break the rules: a typed error each, and requests taken before can still be completed.
mod support;

use std::sync::Arc;

use haversack_vhost_user::*;
use support::driver::{self, BUFFERS, DEVICE_WRITES, Driver, INDIRECT, NEXT};
use support::{RAM_BYTES, REGION_BYTES, Ram, user_address};

const LIMITS: RequestLimits = RequestLimits {
    read_only: false,
    discard_ranges: 1,
    discard_sectors: 8,
    write_zeroes_ranges: 1,
    write_zeroes_sectors: 8,
};

fn setup(driver: &Driver) -> QueueSetup {
    QueueSetup {
        index: 3,
        size: driver.size,
        addresses: driver.addresses(),
        base: 0,
        memory: Arc::new(driver.ram.mapped()),
        indirect: true,
        event_index: false,
        limits: LIMITS,
        kick: None,
        call: None,
        error: None,
        connection: None,
        inflight: None,
        log: None,
        write_cache: Arc::default(),
    }
}

/// A chain's descriptors: address, length, flags, next.
type Chain<'a> = &'a [(u64, u32, u16, u16)];

/// Serves a good request, and then a bad chain from descriptor 4 on. Returns the fault of the bad chain.
fn fault_of(chain: Chain) -> Fault {
    let ram = Ram::new();
    let mut driver = Driver::new(&ram, 0, 16);
    driver.free = vec![3, 2, 1, 0];
    let mut queue = Queue::new(setup(&driver)).unwrap();
    let good = driver.submit(driver::FLUSH, 0, &[]).unwrap();
    for (i, (address, len, flags, next)) in chain.iter().enumerate() {
        driver.put_descriptor(driver.base, 4 + i as u16, (*address, *len), *flags, *next);
    }
    driver.make_available(4);
    assert_eq!(queue.next().unwrap().map(|r| r.head), Some(good));
    let broken = queue.next().unwrap_err();
    assert_eq!((broken.queue, queue.broken()), (3, Some(broken)));
    assert_eq!(queue.next(), Err(broken));
    assert!(!queue.has_work());
    queue.complete(good, Status::Ok);
    assert_eq!(driver.completed(), Some((good, 1, 0)));
    broken.fault
}

#[test]
fn bad_chains() {
    let b = BUFFERS;
    let table = |entries: u32| (b, entries * 16, INDIRECT, 0);
    let cases: [(Chain, Fault); 16] = [
        (&[(b, 16, NEXT, 5), (b, 1, DEVICE_WRITES | NEXT, 5)], Fault::Loop(4)),
        (&[(b, 16, NEXT, 4)], Fault::Loop(4)),
        (&[(b, 16, NEXT, 16)], Fault::DescriptorIndex { index: 16, table: 16 }),
        (&[(b, 16, NEXT, 5), (b, 0, DEVICE_WRITES, 0)], Fault::ZeroLength(4)),
        (&[(RAM_BYTES, 16, 0, 0)], Fault::Unmapped { address: RAM_BYTES, len: 16 }),
        (&[(RAM_BYTES - 15, 16, 0, 0)], Fault::Unmapped { address: RAM_BYTES - 15, len: 16 }),
        (&[(u64::MAX, u32::MAX, 0, 0)], Fault::Unmapped { address: u64::MAX, len: u32::MAX }),
        (&[(0, u32::MAX, 0, 0)], Fault::Unmapped { address: 0, len: u32::MAX }),
        (&[(b, 16, NEXT | DEVICE_WRITES, 5), (b, 16, 0, 0)], Fault::Order(4)),
        (&[(b, 16, DEVICE_WRITES, 0)], Fault::Frame(4)),
        (&[(b, 15, NEXT, 5), (b, 1, DEVICE_WRITES, 0)], Fault::Frame(4)),
        (&[(b, 16, 0, 0)], Fault::Frame(4)),
        (&[table(1025)], Fault::Indirect { head: 4, len: 1025 * 16 }),
        (&[(b, 24, INDIRECT, 0)], Fault::Indirect { head: 4, len: 24 }),
        (&[(b, 0, INDIRECT, 0)], Fault::Indirect { head: 4, len: 0 }),
        (&[(b, 16, INDIRECT | NEXT, 5)], Fault::Indirect { head: 4, len: 16 }),
    ];
    for (chain, expected) in cases {
        assert_eq!(fault_of(chain), expected, "{chain:?}");
    }
    let across = (REGION_BYTES - 16, 32, INDIRECT, 0);
    assert_eq!(fault_of(&[across]), Fault::Unmapped { address: REGION_BYTES - 16, len: 32 });
}

#[test]
fn bad_indirect_tables() {
    let served = |entries: Chain, indirect: bool| {
        let ram = Ram::new();
        let mut driver = Driver::new(&ram, 0, 16);
        let mut queue = Queue::new(QueueSetup { indirect, ..setup(&driver) }).unwrap();
        for (i, (address, len, flags, next)) in entries.iter().enumerate() {
            driver.put_descriptor(BUFFERS, i as u16, (*address, *len), *flags, *next);
        }
        driver.put_descriptor(driver.base, 0, (BUFFERS, entries.len() as u32 * 16), INDIRECT, 0);
        driver.make_available(0);
        queue.next().map(|request| request.map(|r| r.operation)).map_err(|broken| broken.fault)
    };
    let b = BUFFERS + 0x8000;
    let good = [(b, 16, NEXT, 1), (b + 16, 513, DEVICE_WRITES, 0)];
    assert_eq!(served(&good, true), Ok(Some(Operation::Read)));
    assert_eq!(served(&good, false), Err(Fault::Indirect { head: 0, len: 32 }));
    assert_eq!(served(&[(b, 16, NEXT, 0)], true), Err(Fault::Loop(0)));
    assert_eq!(served(&[(b, 16, NEXT, 1)], true), Err(Fault::DescriptorIndex { index: 1, table: 1 }));
    assert_eq!(served(&[(b, 32, INDIRECT, 0)], true), Err(Fault::Indirect { head: 0, len: 32 }));
    // As long as it may be; every entry is cut in two by the regions' border.
    let cut = (REGION_BYTES - 8, 16);
    let mut long: Vec<_> = (1..=1024).map(|next| (cut.0, cut.1, NEXT, next)).collect();
    long[1023] = (b, 1, DEVICE_WRITES, 0);
    assert_eq!(served(&long, true), Err(Fault::TooLong(0)));
}

#[test]
fn bad_indices() {
    let ram = Ram::new();
    let mut driver = Driver::new(&ram, 0, 16);
    let fresh = |driver: &Driver| Queue::new(setup(driver)).unwrap();
    let mut queue = fresh(&driver);
    let head = driver.submit(driver::FLUSH, 0, &[]).unwrap();
    driver.make_available(head);
    queue.next().unwrap().unwrap();
    assert_eq!(queue.next().unwrap_err().fault, Fault::InFlight(head));

    ram.set_u16(driver.available_at() + 2, 17);
    let mut queue = fresh(&driver);
    assert_eq!(queue.next().unwrap_err().fault, Fault::AvailableIndex { found: 17, expected: 0 });

    driver.available = 0;
    driver.make_available(16);
    let mut queue = fresh(&driver);
    assert_eq!(queue.next().unwrap_err().fault, Fault::DescriptorIndex { index: 16, table: 16 });
}

#[test]
fn a_driver_that_never_stops_does_not_hold_the_caller() {
    let ram = Ram::new();
    let mut driver = Driver::new(&ram, 0, 16);
    let mut queue = Queue::new(setup(&driver)).unwrap();
    // One malformed request after the other, each made available as soon as the last was failed: the same head.
    let head = driver.submit(driver::READ, 0, &[]).unwrap();
    for _ in 0..15 {
        driver.make_available(head);
    }
    assert_eq!(queue.next(), Ok(None));
    assert_eq!(driver.used_index(), 16);
    driver.make_available(head);
    assert!(queue.has_work());
}

#[test]
fn bad_rings() {
    let ram = Ram::new();
    let driver = Driver::new(&ram, 0, 16);
    let refused = |change: &dyn Fn(&mut QueueSetup)| {
        let mut setup = setup(&driver);
        change(&mut setup);
        Queue::new(setup).unwrap_err().fault
    };
    for size in [0, 3, 2048] {
        assert_eq!(refused(&|s| s.size = size), Fault::Size(size));
    }
    let end = user_address(REGION_BYTES - 16);
    for address in [0, u64::MAX - 15, end, driver.addresses().descriptors + 8] {
        let fault = refused(&|s| s.addresses.descriptors = address);
        assert_eq!(fault, Fault::RingAddress { part: "descriptor table", address });
    }
    let odd = driver.addresses().used + 2;
    assert_eq!(refused(&|s| s.addresses.used = odd), Fault::RingAddress { part: "used ring", address: odd });
    let odd = driver.addresses().available + 1;
    let fault = refused(&|s| s.addresses.available = odd);
    assert_eq!(fault, Fault::RingAddress { part: "available ring", address: odd });

    let mut queue = Queue::new(setup(&driver)).unwrap();
    let nowhere = RingAddresses { used: 0, ..driver.addresses() };
    let broken = queue.update(QueueUpdate::Rings(nowhere)).unwrap_err();
    assert_eq!(queue.next(), Err(broken));
}

#[test]
fn bad_memory() {
    let ram = Ram::new();
    let [region, _] = Ram::regions();
    let memory = GuestMemory::default();
    let refused = |region: RegionDescription| memory.with(region, &*ram.file).unwrap_err();
    assert!(matches!(refused(RegionDescription { size_bytes: 0, ..region }), MemoryError::Range(_)));
    assert!(matches!(
        refused(RegionDescription { guest_address: u64::MAX, ..region }),
        MemoryError::Range(_)
    ));
    assert!(matches!(refused(RegionDescription { user_address: u64::MAX, ..region }), MemoryError::Range(_)));
    for file_offset in [RAM_BYTES, u64::MAX] {
        assert!(matches!(refused(RegionDescription { file_offset, ..region }), MemoryError::Map(..)));
    }
    let memory = ram.mapped();
    for guest_address in [0, 1, REGION_BYTES - 1, RAM_BYTES - 1] {
        let overlapping = RegionDescription { guest_address, size_bytes: 4096, ..region };
        assert!(matches!(memory.with(overlapping, &*ram.file), Err(MemoryError::Overlap(..))));
    }
    assert!(matches!(GuestMemory::default().without(region), Err(MemoryError::Unknown(_))));
    let mut many = GuestMemory::default();
    for i in 0..=MAX_MEMORY_REGIONS as u64 {
        let small = RegionDescription { guest_address: i * 8192, size_bytes: 4096, ..region };
        match many.with(small, &*ram.file) {
            Ok(more) => many = more,
            Err(error) => {
                assert!(matches!(error, MemoryError::TooMany) && i == MAX_MEMORY_REGIONS as u64);
                return;
            }
        }
    }
    panic!("there is no limit to the number of regions");
}
