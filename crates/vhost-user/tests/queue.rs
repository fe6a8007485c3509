//! The data half on its own: requests in every shape, notifications, memory changes, dirty pages, recovery.
mod support;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use haversack_vhost_user::*;
use rustix::event::{EventfdFlags, eventfd};
use support::driver::{self, BUFFERS, Driver};
use support::{REGION_BYTES, Ram, memory_file};

const LIMITS: RequestLimits = RequestLimits {
    read_only: false,
    discard_ranges: 4,
    discard_sectors: 1 << 20,
    write_zeroes_ranges: 2,
    write_zeroes_sectors: 1 << 16,
};

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap()
}

fn bell(event: &OwnedFd) -> Arc<Bell> {
    Arc::new(Bell::new(event.as_fd()).unwrap())
}

/// How often an eventfd was signalled since the last look.
fn signals(event: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    rustix::io::read(event, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
}

fn setup(driver: &Driver, ram: &Ram) -> QueueSetup {
    QueueSetup {
        index: 0,
        size: driver.size,
        addresses: driver.addresses(),
        base: 0,
        memory: Arc::new(ram.mapped()),
        indirect: driver.indirect,
        event_index: driver.event_index,
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

fn pair(size: u16) -> (Ram, Driver, Queue) {
    let ram = Ram::new();
    let driver = Driver::new(&ram, 0, size);
    let queue = Queue::new(setup(&driver, &ram)).unwrap();
    (ram, driver, queue)
}

fn next(queue: &mut Queue) -> BlkRequest {
    queue.next().unwrap().expect("a request")
}

#[test]
fn a_queue_can_be_sent_to_another_thread() {
    fn is_send<T: Send>() {}
    is_send::<Queue>();
    is_send::<QueueUpdate>();
}

#[test]
fn write_then_read_in_odd_pieces() {
    for indirect in [false, true] {
        let ram = Ram::new();
        let mut driver = Driver::new(&ram, 0, 16);
        driver.indirect = indirect;
        let mut queue = Queue::new(setup(&driver, &ram)).unwrap();
        let data: Vec<u8> = (0..1536u32).map(|i| (i * 7) as u8).collect();
        // Pieces of odd lengths at odd addresses, one of them across the two memory regions.
        let pieces = [(BUFFERS + 1, 511), (REGION_BYTES - 100, 1000), (BUFFERS + 4097, 25)];
        let mut at = 0;
        for (address, len) in pieces {
            ram.write(address, &data[at..at + len as usize]);
            at += len as usize;
        }
        let head = driver.submit(driver::WRITE, 77, &pieces).unwrap();
        let request = next(&mut queue);
        assert_eq!(request, BlkRequest { head, operation: Operation::Write, sector: 77, len_bytes: 1536 });
        assert_eq!(queue.segments(head).len(), 4, "the middle piece is cut at the region's end");
        let mut copied = vec![0; 1536];
        assert!(queue.copy_from_guest(head, 0, &mut copied[..700]));
        assert!(queue.copy_from_guest(head, 700, &mut copied[700..]));
        assert_eq!(copied, data);
        queue.complete(head, Status::Ok);
        assert_eq!(driver.completed(), Some((head, 1, 0)));

        for (address, len) in pieces {
            ram.write(address, &vec![0; len as usize]);
        }
        let head = driver.submit(driver::READ, 0, &pieces).unwrap();
        let request = next(&mut queue);
        assert_eq!((request.operation, request.len_bytes), (Operation::Read, 1536));
        queue.copy_to_guest(head, 600, &data[600..]);
        queue.copy_to_guest(head, 0, &data[..600]);
        queue.complete(head, Status::Ok);
        assert_eq!(driver.completed(), Some((head, 1537, 0)));
        let back: Vec<u8> = pieces.iter().flat_map(|(a, l)| ram.bytes(*a, *l as usize)).collect();
        assert_eq!(back, data);
        assert_eq!(queue.next(), Ok(None));
        assert_eq!(queue.in_flight(), 0);
    }
}

#[test]
fn header_and_status_may_be_cut_anywhere() {
    let (ram, mut driver, mut queue) = pair(16);
    let (frame, data) = (BUFFERS, BUFFERS + 0x1000);
    let mut header = [0; 16];
    header[8] = 5;
    ram.write(frame, &header);
    // The header in three pieces, data and status in one.
    let status_at = data + 512;
    let chain = [(frame, 1, false), (frame + 1, 14, false), (frame + 15, 1, false), (data, 513, true)];
    driver.submit_chain(&chain, status_at).unwrap();
    let request = next(&mut queue);
    assert_eq!((request.operation, request.sector, request.len_bytes), (Operation::Read, 5, 512));
    queue.copy_to_guest(request.head, 0, &[9; 512]);
    queue.complete(request.head, Status::IoError);
    assert_eq!(driver.completed(), Some((request.head, 1, 1)));
    assert_eq!(ram.bytes(data, 512), [9; 512]);

    // Header and data of a write in one piece.
    header[0] = 1;
    ram.write(frame, &header);
    ram.write(frame + 16, &[3; 512]);
    driver.submit_chain(&[(frame, 528, false), (status_at, 1, true)], status_at).unwrap();
    let request = next(&mut queue);
    let mut copied = [0; 512];
    assert!(queue.copy_from_guest(request.head, 0, &mut copied));
    assert_eq!((request.operation, copied), (Operation::Write, [3; 512]));
}

fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
}

#[test]
fn ranges_of_discards_and_zeroes() {
    let (ram, mut driver, mut queue) = pair(16);
    let two = [range(8, 16, 0), range(1 << 40, 1, 0)].concat();
    ram.write(BUFFERS, &two);
    // The second range is cut in two.
    driver.submit(driver::DISCARD, 0, &[(BUFFERS, 20), (BUFFERS + 20, 12)]).unwrap();
    let request = next(&mut queue);
    assert_eq!(request.operation, Operation::Discard);
    let expected = [
        SectorRange { sector: 8, sectors: 16, unmap: true },
        SectorRange { sector: 1 << 40, sectors: 1, unmap: true },
    ];
    assert_eq!(queue.ranges(request.head), expected);
    queue.complete(request.head, Status::Ok);
    driver.completed();

    ram.write(BUFFERS, &[range(0, 1, 1), range(1, 1, 0)].concat());
    driver.submit(driver::WRITE_ZEROES, 0, &[(BUFFERS, 32)]).unwrap();
    let request = next(&mut queue);
    assert_eq!(queue.ranges(request.head).iter().map(|r| r.unmap).collect::<Vec<_>>(), [true, false]);
    queue.complete(request.head, Status::Ok);
    driver.completed();
}

#[test]
fn malformed_requests_are_failed_without_breaking_the_queue() {
    let (ram, mut driver, mut queue) = pair(16);
    let cases: [(u32, u64, Vec<u8>, Status); 10] = [
        (driver::READ, 0, vec![], Status::IoError),
        (driver::WRITE, 0, vec![0; 511], Status::IoError),
        (driver::WRITE, u64::MAX, vec![0; 512], Status::IoError),
        (driver::WRITE, u64::MAX / 512, vec![0; 1024], Status::IoError),
        (driver::DISCARD, 0, vec![0; 15], Status::IoError),
        (driver::DISCARD, 0, range(0, 1, 1), Status::Unsupported),
        (driver::DISCARD, 0, [(); 5].map(|()| range(0, 1, 0)).concat(), Status::IoError),
        (driver::DISCARD, 0, range(u64::MAX, 1, 0), Status::IoError),
        (driver::WRITE_ZEROES, 0, range(0, 1, 2), Status::Unsupported),
        (driver::WRITE_ZEROES, 0, range(0, (1 << 16) + 1, 0), Status::IoError),
    ];
    for (kind, sector, data, expected) in cases {
        ram.write(BUFFERS, &data);
        let data: Vec<_> = (!data.is_empty()).then_some((BUFFERS, data.len() as u32)).into_iter().collect();
        let head = driver.submit(kind, sector, &data).unwrap();
        assert_eq!(queue.next(), Ok(None), "request of type {kind}");
        assert_eq!(driver.completed(), Some((head, 1, expected as u8)), "request of type {kind}");
    }
    let mut read_only = setup(&driver, &ram);
    read_only.limits.read_only = true;
    read_only.base = driver.available;
    let mut queue = Queue::new(read_only).unwrap();
    driver.submit(driver::WRITE, 0, &[(BUFFERS, 512)]).unwrap();
    assert_eq!(queue.next(), Ok(None));
    assert_eq!(driver.completed().unwrap().2, Status::IoError as u8);
}

#[test]
fn names_flushes_and_unknown_types() {
    let (ram, mut driver, mut queue) = pair(16);
    driver.submit(driver::GET_ID, 0, &[(BUFFERS, 64)]).unwrap();
    let request = next(&mut queue);
    assert_eq!((request.operation, request.len_bytes), (Operation::GetId, ID_BYTES));
    queue.copy_to_guest(request.head, 0, b"disk-1");
    queue.complete(request.head, Status::Ok);
    assert_eq!(ram.bytes(BUFFERS, 6), b"disk-1");
    driver.submit(driver::FLUSH, 0, &[]).unwrap();
    driver.submit(99, 0, &[]).unwrap();
    assert_eq!(next(&mut queue).operation, Operation::Flush);
    assert_eq!(next(&mut queue).operation, Operation::Unsupported(99));
}

#[test]
fn completions_in_any_order_reuse_descriptors() {
    let (_, mut driver, mut queue) = pair(8);
    let mut numbers = haversack_model::random::Random::new(1);
    let mut held: Vec<u16> = Vec::new();
    let mut done = 0;
    while done < 70_000 {
        while driver.submit(driver::FLUSH, 0, &[]).is_some() {}
        while let Some(request) = queue.next().unwrap() {
            held.push(request.head);
        }
        let at = numbers.below(held.len() as u64) as usize;
        queue.complete(held.swap_remove(at), Status::Ok);
        assert!(driver.completed().is_some());
        done += 1;
    }
    assert_eq!(queue.next_available(), driver.available, "the indices have wrapped around");
}

#[test]
fn interrupts_and_kicks_follow_the_event_index() {
    let ram = Ram::new();
    let mut driver = Driver::new(&ram, 0, 16);
    driver.event_index = true;
    let call = event();
    let mut queue = Queue::new(QueueSetup { call: Some(bell(&call)), ..setup(&driver, &ram) }).unwrap();
    assert_eq!(signals(&call), 1, "in case the last back end was killed before it could tell");

    // The driver wants to hear of the third completion.
    driver.set_used_event(2);
    let complete_one = |queue: &mut Queue| {
        let request = next(queue);
        queue.complete(request.head, Status::Ok);
        queue.notify_if_needed();
        signals(&call)
    };
    for _ in 0..4 {
        driver.submit(driver::FLUSH, 0, &[]).unwrap();
    }
    assert_eq!(complete_one(&mut queue), 1, "the first of a connection is always told");
    assert_eq!((complete_one(&mut queue), complete_one(&mut queue), complete_one(&mut queue)), (0, 1, 0));

    queue.set_notification(false);
    let before = driver.available;
    driver.submit(driver::FLUSH, 0, &[]).unwrap();
    assert!(!driver.must_kick(before));
    assert!(queue.has_work());
    next(&mut queue);
    queue.set_notification(true);
    assert!(!queue.has_work());
    let before = driver.available;
    driver.submit(driver::FLUSH, 0, &[]).unwrap();
    assert!(driver.must_kick(before));
}

#[test]
fn interrupts_and_kicks_without_the_event_index() {
    let ram = Ram::new();
    let mut driver = Driver::new(&ram, 0, 16);
    let call = event();
    let mut queue = Queue::new(QueueSetup { call: Some(bell(&call)), ..setup(&driver, &ram) }).unwrap();
    signals(&call);
    for suppressed in [true, false] {
        driver.suppress_interrupts(suppressed);
        driver.submit(driver::FLUSH, 0, &[]).unwrap();
        let request = next(&mut queue);
        queue.complete(request.head, Status::Ok);
        queue.notify_if_needed();
        queue.notify_if_needed();
        assert_eq!(signals(&call), u64::from(!suppressed));
        queue.set_notification(!suppressed);
        assert_eq!(driver.must_kick(driver.available), !suppressed);
    }
}

#[test]
fn another_eventfd_for_interrupts_is_told_at_once() {
    let (_, _, mut queue) = pair(8);
    let call = event();
    queue.update(QueueUpdate::Call(Some(bell(&call)))).unwrap();
    assert_eq!(signals(&call), 1);
}

#[test]
fn memory_is_replaced_under_requests_in_flight() {
    let (ram, mut driver, mut queue) = pair(16);
    let old = driver.submit(driver::READ, 0, &[(BUFFERS, 512)]).unwrap();
    next(&mut queue);
    // Another table: the same guest addresses in another file, as after a hot-plug that moved everything.
    let moved = Ram::new();
    moved.write(0, &ram.bytes(0, support::RAM_BYTES as usize));
    queue.update(QueueUpdate::Memory(Arc::new(moved.mapped()))).unwrap();
    driver.ram = moved.clone();
    let new = driver.submit(driver::READ, 0, &[(BUFFERS, 512)]).unwrap();
    assert_eq!(next(&mut queue).head, new);
    queue.copy_to_guest(old, 0, &[1; 512]);
    queue.copy_to_guest(new, 0, &[2; 512]);
    assert_eq!((ram.bytes(BUFFERS, 1), moved.bytes(BUFFERS, 1)), (vec![1], vec![2]));
    queue.complete(new, Status::Ok);
    queue.complete(old, Status::Ok);
    assert_eq!(driver.completed(), Some((new, 513, 0)));
    assert_eq!(queue.in_flight(), 0);
    // A table without the rings' memory leaves them where they are.
    let lower = ram.mapped().without(Ram::regions()[0]).unwrap();
    queue.update(QueueUpdate::Memory(Arc::new(lower))).unwrap();
    assert_eq!(queue.next(), Ok(None));
}

/// The numbers of the pages marked in a log.
fn marked(log: &std::fs::File) -> Vec<u64> {
    use std::os::unix::fs::FileExt;
    let mut bits = vec![0; 256];
    log.read_exact_at(&mut bits, 0).unwrap();
    log.write_all_at(&[0; 256], 0).unwrap();
    (0..2048).filter(|page| bits[page / 8] >> (page % 8) & 1 == 1).map(|page| page as u64).collect()
}

#[test]
fn every_write_to_guest_memory_is_logged() {
    let ram = Ram::new();
    let mut driver = Driver::new(&ram, 0, 16);
    let file = memory_file(256);
    let log = Arc::new(DirtyLog::new(&file, 0, 256, &Quota::default()).unwrap());
    let addresses = RingAddresses { used_log: Some(driver.used_at()), ..driver.addresses() };
    let mut queue =
        Queue::new(QueueSetup { log: Some(log.clone()), addresses, ..setup(&driver, &ram) }).unwrap();
    marked(&file);
    let frame_page = (driver.base + 0x30000) / 4096;
    let used_page = driver.used_at() / 4096;

    // A read across a page's end, and the second region's first page.
    let data = [(BUFFERS + 4000, 200), (REGION_BYTES, 312)];
    driver.submit(driver::READ, 0, &data).unwrap();
    let head = next(&mut queue).head;
    assert!(marked(&file).is_empty(), "a request that was only taken wrote nothing");
    queue.copy_to_guest(head, 0, &[1; 90]);
    assert_eq!(marked(&file), [BUFFERS / 4096]);
    queue.copy_to_guest(head, 90, &[1; 422]);
    let [first, second] = [BUFFERS / 4096, BUFFERS / 4096 + 1];
    assert_eq!(marked(&file), [first, second, REGION_BYTES / 4096]);
    queue.complete(head, Status::Ok);
    assert_eq!(marked(&file), [used_page, frame_page], "used ring and status");

    // Without the ring's flag only what is in buffers is marked.
    queue.update(QueueUpdate::Rings(driver.addresses())).unwrap();
    driver.submit(driver::WRITE, 0, &[(BUFFERS, 512)]).unwrap();
    let head = next(&mut queue).head;
    queue.complete(head, Status::Ok);
    assert_eq!(marked(&file), [frame_page]);

    queue.update(QueueUpdate::Log(None)).unwrap();
    driver.submit(driver::READ, 0, &[(BUFFERS, 512)]).unwrap();
    let head = next(&mut queue).head;
    queue.copy_to_guest(head, 0, &[1; 512]);
    queue.complete(head, Status::Ok);
    assert!(marked(&file).is_empty());
}
