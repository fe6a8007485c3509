//! What is on a cache device before it is formatted: nothing, garbage, or what an older pool left there.
//!
//! Formatting does not overwrite most of it, so it is there while the pool runs.

use haversack_core::checksum::device_seed;
use haversack_core::format::geometry::{self, PAGE_BYTES};
use haversack_core::format::page::{self, Header, Kind, Place};
use haversack_core::format::record::PoolRecord;
use haversack_model::random::Random;
use haversack_model::{ArenaId, ArenaNo, BLOCK_BYTES, SECTOR_BYTES, Uuid};

use crate::device::{Payload, Store};

/// What is on a device before it is formatted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Remains {
    /// Zeroes.
    Nothing,
    /// Random bytes wherever a pool has metadata.
    Garbage,
    /// A record of another arena of the pool, much newer than any that this one will write, and segments full of dirty
    /// blocks. Their pages have the identity of this very arena, which is worse than what any older pool can leave.
    OldPool,
}

impl Remains {
    /// Leaves it on a device that will be device `id` of `pool`.
    pub fn leave(self, store: &mut Store, segments: u32, arena: ArenaId, id: Uuid) {
        if self == Remains::Nothing {
            return;
        }
        let mut rng = Random::scrambled(u64::from(segments));
        for copy in 0..2 {
            let old = PoolRecord { generation: 1 << 30, flushed_seq: 1 << 30, ..PoolRecord::default() };
            let other = ArenaId { number: ArenaNo(arena.number.0 + 1), ..arena };
            let record = if self == Remains::OldPool { old.encode(other) } else { garbage(&mut rng) };
            write(store, geometry::record_bytes(copy), record);
        }
        let seed = device_seed(arena, id);
        for (segment, generation) in (0..segments).flat_map(|segment| [(segment, 40), (segment, 41)]) {
            let offset_bytes = geometry::metadata_bytes(segment, generation);
            let page = match self {
                Remains::OldPool => full_page(generation, Place { device_seed: seed, offset_bytes }),
                _ => garbage(&mut rng),
            };
            write(store, offset_bytes, page);
        }
        store.settle();
    }
}

fn write(store: &mut Store, offset_bytes: u64, bytes: Vec<u8>) {
    assert!((bytes.len() as u64).is_multiple_of(PAGE_BYTES));
    store.write(offset_bytes / SECTOR_BYTES as u64, Payload::Bytes(bytes));
}

fn garbage(rng: &mut Random) -> Vec<u8> {
    (0..BLOCK_BYTES / 8).flat_map(|_| rng.bits().to_le_bytes()).collect()
}

/// Returns a page that lists dirty blocks of disk 0, newer than any that the pool will write.
fn full_page(generation: u64, place: Place) -> Vec<u8> {
    let header =
        Header { generation, flushed_seq: 1 << 30, owner: 0, kind: Kind::Segment, opening: generation as u8 };
    let entry = |block: u64| {
        let (listed, dirty, all_sectors) = (1u64 << 55, 1u64 << 57, 0xff_u64 << 38);
        [block | listed | dirty | all_sectors, 1 << 62]
    };
    let entries = (0..u64::from(geometry::SLOTS_PER_SEGMENT)).flat_map(entry);
    let content: Vec<u8> = entries.flat_map(u64::to_le_bytes).collect();
    let mut page = [0; BLOCK_BYTES];
    page::seal(&mut page, header, &content, place);
    page.to_vec()
}
