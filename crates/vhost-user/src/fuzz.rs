//! Entry point of the fuzz target.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::MemfdFlags;

use crate::inflight::InflightRegion;
use crate::memory::{GuestMemory, RegionDescription};
use crate::queue::{Queue, QueueSetup};
use crate::quota::Quota;
use crate::request::{BlkRequest, Operation, RequestLimits, Status};
use crate::ring::{DESCRIPTOR_BYTES, RingAddresses};

/// Guest memory: two adjacent regions of this size, and nothing after them.
const REGION_BYTES: u64 = 0x8000;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const BUFFERS: u64 = 0x3000;

const INDIRECT: u8 = 1;
const EVENT_INDEX: u8 = 2;
const READ_ONLY: u8 = 4;
/// Addresses and lengths are limited to what can be in memory, so that more chains are valid.
const TAME: u8 = 8;
const IN_FLIGHT: u8 = 16;

/// Serves a queue whose rings, tables, buffers and in-flight region are read from bytes.
///
/// # Panics
/// A request violates a guarantee of [`Queue`]: its length, its bounds, or the number in flight.
pub fn vhost_ring(data: &[u8]) {
    let (head, data) = data.split_at(data.len().min(4));
    let [flags, size, base, held] = std::array::from_fn(|i| head.get(i).copied().unwrap_or(0));
    let size = 1u16 << (size % 8);
    let Some(memory) = guest_memory(data, size, flags & TAME != 0) else { return };
    let inflight = (flags & IN_FLIGHT != 0).then(|| inflight_region(data, size)).flatten();
    let setup = QueueSetup {
        index: 0,
        size,
        addresses: RingAddresses { descriptors: 0, available: AVAILABLE, used: USED, used_log: None },
        base: base.into(),
        memory: Arc::new(memory),
        indirect: flags & INDIRECT != 0,
        event_index: flags & EVENT_INDEX != 0,
        limits: RequestLimits {
            read_only: flags & READ_ONLY != 0,
            discard_ranges: 16,
            discard_sectors: u32::MAX,
            write_zeroes_ranges: 1,
            write_zeroes_sectors: 1 << 16,
        },
        kick: None,
        call: None,
        error: None,
        connection: None,
        inflight: inflight.and_then(|region| region.queue(0)),
        log: None,
        write_cache: Arc::default(),
    };
    if let Ok(queue) = Queue::new(setup) {
        serve(queue, usize::from(held % 16), size);
    }
}

/// Takes and completes requests, with `held` in flight at a time.
fn serve(mut queue: Queue, held: usize, size: u16) {
    let mut in_flight: Vec<BlkRequest> = Vec::new();
    // A ring that is never empty would go on forever.
    for _ in 0..4 * u32::from(size) {
        queue.set_notification(in_flight.len().is_multiple_of(2));
        match queue.next() {
            Ok(Some(request)) => {
                use_data(&queue, &request);
                in_flight.push(request);
            }
            Ok(None) if !queue.has_work() => break,
            Ok(None) => {}
            Err(broken) => {
                assert_eq!(queue.next(), Err(broken), "a broken queue stays broken");
                break;
            }
        }
        assert!(queue.in_flight() <= size && usize::from(queue.in_flight()) == in_flight.len());
        if in_flight.len() > held {
            queue.complete(in_flight.swap_remove(0).head, Status::Ok);
            queue.notify_if_needed();
        }
    }
    for request in in_flight {
        queue.complete(request.head, Status::IoError);
    }
    assert_eq!(queue.in_flight(), 0);
}

fn use_data(queue: &Queue, request: &BlkRequest) {
    let len = request.len_bytes as usize;
    let segments = queue.segments(request.head);
    let total: u64 = segments.iter().map(|s| u64::from(s.len_bytes)).sum();
    assert!(total >= len as u64, "{request:?} has only {total} bytes");
    for segment in segments {
        assert!(segment.guest_address + u64::from(segment.len_bytes) <= 2 * REGION_BYTES);
    }
    let mut buffer = vec![0; len];
    match request.operation {
        Operation::Read | Operation::GetId => queue.copy_to_guest(request.head, 0, &buffer),
        Operation::Write => assert!(queue.copy_from_guest(request.head, 0, &mut buffer)),
        Operation::Discard | Operation::WriteZeroes => assert!(!queue.ranges(request.head).is_empty()),
        Operation::Flush | Operation::Unsupported(_) => assert_eq!(len, 0),
    }
}

/// Makes guest memory: the bytes fill the descriptor table first, then the available ring, then the buffers.
fn guest_memory(data: &[u8], size: u16, tame: bool) -> Option<GuestMemory> {
    let file = rustix::fs::memfd_create("fuzz", MemfdFlags::CLOEXEC).ok()?;
    rustix::fs::ftruncate(&file, 2 * REGION_BYTES).ok()?;
    let mut data = data.to_vec();
    let table_bytes = data.len().min(usize::from(size) * DESCRIPTOR_BYTES);
    if tame {
        // The upper bytes of the address, and of the length.
        for descriptor in data.chunks_exact_mut(DESCRIPTOR_BYTES) {
            descriptor[2..8].fill(0);
            descriptor[10..12].fill(0);
        }
    }
    let (table, rest) = data.split_at(table_bytes);
    let (available, buffers) = rest.split_at(rest.len().min(usize::from(size) * 2 + 6));
    for (at, bytes) in [(0, table), (AVAILABLE, available), (BUFFERS, buffers)] {
        let room = (2 * REGION_BYTES - at) as usize;
        rustix::io::pwrite(&file, &bytes[..bytes.len().min(room)], at).ok()?;
    }
    [0, REGION_BYTES].iter().try_fold(GuestMemory::default(), |memory, &at| {
        let region = RegionDescription {
            guest_address: at,
            size_bytes: REGION_BYTES,
            user_address: at,
            file_offset: at,
        };
        memory.with(region, file.as_fd()).ok()
    })
}

/// Uses the same bytes again as an in-flight region.
fn inflight_region(data: &[u8], size: u16) -> Option<InflightRegion> {
    let (shape, file) = InflightRegion::create(1, size).ok()?;
    rustix::io::pwrite(&file, &data[..data.len().min(shape.size_bytes as usize)], 0).ok()?;
    InflightRegion::map(shape, &file, &Quota::default()).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A header that makes a valid request, so that random chains get past the first check now and then.
    fn descriptor() -> impl Strategy<Value = [u8; 16]> {
        let address = prop_oneof![4 => 0x3000u64..0x3100, 2 => 0u64..0x1_1000, 1 => any::<u64>()];
        let len =
            prop_oneof![3 => Just(16u32), 3 => 1u32..1025, 1 => Just(512), 1 => Just(0), 1 => any::<u32>()];
        let flags = prop_oneof![8 => 0u16..4, 1 => 4u16..8];
        (address, len, flags, 0u16..9).prop_map(|(address, len, flags, next)| {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&address.to_le_bytes());
            bytes[8..12].copy_from_slice(&len.to_le_bytes());
            bytes[12..14].copy_from_slice(&flags.to_le_bytes());
            bytes[14..].copy_from_slice(&next.to_le_bytes());
            bytes
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        #[test]
        fn hostile_rings_never_panic_or_hang(
            flags in 0u8..32,
            base in 0u8..4,
            held: u8,
            table in prop::collection::vec(descriptor(), 8),
            heads in prop::collection::vec(0u16..9, 8),
            index in prop_oneof![9 => 0u16..12, 1 => any::<u16>()],
            buffers in prop::collection::vec(prop_oneof![4 => 0u8..14, 1 => any::<u8>()], 0..256),
        ) {
            let mut data = vec![flags, 3, base, held];
            data.extend(table.concat());
            data.extend([0, 0]);
            data.extend(index.to_le_bytes());
            data.extend(heads.iter().flat_map(|head| head.to_le_bytes()));
            data.extend([0, 0]);
            data.extend(buffers);
            vhost_ring(&data);
        }

        #[test]
        fn any_bytes_never_panic_or_hang(data in prop::collection::vec(any::<u8>(), 0..400)) {
            vhost_ring(&data);
        }
    }
}
