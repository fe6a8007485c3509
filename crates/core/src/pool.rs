//! Creating a pool, and formatting a device that will join one.
//!
//! Invariants
//! - Nothing is written unless all devices are fit and carry no pool.
//! - The superblock is written last, when the blank pages and, for a new pool, the record are durable. So a
//!   device whose formatting was cut short carries no pool.
//! - The amount written does not depend on the size of a device. What was on it before stays where it is, but
//!   nothing of it is read: neither segments that are not prepared, nor a record of another pool.

use haversack_model::{ArenaId, BLOCK_BYTES, DeviceNo, DiskNo, Uuid};

use crate::checksum::device_seed;
use crate::config::{MAX_DEVICES, MAX_DISKS, PoolConfig};
use crate::error::PoolError;
use crate::flow::device::NewDevice;
use crate::format::geometry::{self, MAX_SEGMENTS, MIN_SEGMENTS, PAGE_BYTES};
use crate::format::page::{self, Header, Kind, NO_OWNER, Place};
use crate::format::record::{DeviceRecord, DeviceState, PoolRecord};
pub use crate::format::superblock::Division;
use crate::format::superblock::{Found, Superblock};
use crate::media::{IoFailure, Media};
use crate::recover::scan;

/// Returns the bytes of a device with this many segments.
pub fn device_bytes(segments: u32) -> u64 {
    geometry::device_bytes(segments)
}

/// Returns the bytes at the beginning of a device, before the segments.
pub fn metadata_bytes() -> u64 {
    geometry::device_bytes(0)
}

/// The identity of a cache device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceIdentity {
    /// The pool that it belongs to.
    pub pool: Uuid,
    /// The device.
    pub device: Uuid,
    /// Its number in the pool.
    pub number: DeviceNo,
}

/// Returns the device that a superblock page belongs to; `None` if the page is no valid superblock.
pub fn device_of(page: &[u8; BLOCK_BYTES]) -> Option<DeviceIdentity> {
    match Superblock::decode(page) {
        Found::Valid(Superblock { arena, device, number, .. }) => {
            Some(DeviceIdentity { pool: arena.pool, device, number })
        }
        _ => None,
    }
}

/// Returns how a device in `media` is divided; `None` if it has no superblock of this version, or cannot be read.
pub fn division(media: &mut dyn Media, device: usize) -> Option<Division> {
    superblock(media, device).map(|superblock| superblock.division)
}

/// Returns the bytes at the end of an extent in `media` that were left out when it was formatted, because the devices
/// before it had nearly all the segments that an arena can have; 0 if less than a segment is left out.
pub fn unused_bytes(media: &mut dyn Media, device: usize) -> u64 {
    let unused = superblock(media, device).map(|superblock| {
        let extent_bytes = superblock.division.extent_bytes.min(media.capacity_bytes(device));
        extent_bytes.saturating_sub(device_bytes(superblock.segments))
    });
    unused.filter(|bytes| *bytes >= geometry::SEGMENT_PAGES * PAGE_BYTES).unwrap_or(0)
}

/// Returns the arena that an extent in `media` belongs to; `None` if it has no superblock of this version, or cannot be
/// read.
pub fn arena_of(media: &mut dyn Media, device: usize) -> Option<ArenaId> {
    superblock(media, device).map(|superblock| superblock.arena)
}

/// Returns the superblock of a device in `media`, if one of its copies is valid.
fn superblock(media: &mut dyn Media, device: usize) -> Option<Superblock> {
    let mut page = [0; BLOCK_BYTES];
    (0..2).find_map(|copy| {
        media.read(device, geometry::superblock_bytes(copy), &mut page).ok()?;
        match Superblock::decode(&page) {
            Found::Valid(superblock) => Some(superblock),
            _ => None,
        }
    })
}

/// Returns the identity of a device in `media`; `None` if it has no superblock of this version, or cannot be
/// read.
pub fn identify(media: &mut dyn Media, device: usize) -> Option<DeviceIdentity> {
    superblock(media, device).map(|found| DeviceIdentity {
        pool: found.arena.pool,
        device: found.device,
        number: found.number,
    })
}

/// Returns the devices that an arena has in use, according to the newest record on some of them. Empty if none
/// can be read.
pub fn members(media: &mut dyn Media) -> Vec<DeviceIdentity> {
    let found = (0..media.devices()).find_map(|device| superblock(media, device));
    let Some(arena) = found.map(|superblock| superblock.arena) else { return Vec::new() };
    let records =
        (0..media.devices()).filter_map(|device| scan::read_record(media, device, arena).ok().flatten());
    let newest = records.max_by_key(|record| record.generation);
    let Some(record) = newest else { return Vec::new() };
    let in_use = record.devices.iter().enumerate().filter_map(|(at, device)| Some((at, (*device)?)));
    in_use
        .filter(|(_, device)| device.state.is_in_use())
        .map(|(at, device)| DeviceIdentity {
            pool: arena.pool,
            device: device.id,
            number: DeviceNo(at as u8),
        })
        .collect()
}

/// Location of the device labels: byte offset and bytes.
pub const DEVICE_LABELS: (u64, usize) = (geometry::DEVICE_LABEL_START * PAGE_BYTES, 2 * BLOCK_BYTES);
/// Location of the disk labels: byte offset and bytes.
pub const DISK_LABELS: (u64, usize) = (geometry::DISK_LABEL_START * PAGE_BYTES, 128 * BLOCK_BYTES);

/// Returns the byte offsets of the sealed pages that the first disks, and all segments of a device, have on it.
pub fn sealed_pages(disks: u16, segments: u32) -> impl Iterator<Item = u64> {
    let of_disks = (0..disks).flat_map(|disk| [0, 1].map(|copy| geometry::intent_bytes(DiskNo(disk), copy)));
    of_disks
        .chain((0..segments).flat_map(|segment| [0, 1].map(|copy| geometry::metadata_bytes(segment, copy))))
}

/// Seals a page again after its bytes were changed, as if it had been written like that: for tests that damage pools.
pub fn reseal(page: &mut [u8; BLOCK_BYTES], arena: ArenaId, device: Uuid, offset_bytes: u64) {
    page::reseal(page, Place { device_seed: device_seed(arena, device), offset_bytes });
}

/// Whether a copy of the pool record begins at a byte offset of a device.
pub fn is_record(offset_bytes: u64) -> bool {
    (0..2).any(|copy| geometry::record_bytes(copy) == offset_bytes)
}

pub(crate) fn io_error(media: &dyn Media, device: usize, offset_bytes: u64, failure: IoFailure) -> PoolError {
    PoolError::Io { device: media.name(device), offset_bytes, failure }
}

pub(crate) fn write(
    media: &mut dyn Media,
    device: usize,
    offset_bytes: u64,
    pages: &[u8],
) -> Result<(), PoolError> {
    media.write(device, offset_bytes, pages).map_err(|f| io_error(media, device, offset_bytes, f))
}

pub(crate) fn flush(media: &mut dyn Media, device: usize) -> Result<(), PoolError> {
    media.flush(device).map_err(|f| io_error(media, device, 0, f))
}

/// The error for a device of which an arena cannot use anything.
pub(crate) fn arena_full(device: String) -> PoolError {
    let most_bytes = u64::from(MAX_SEGMENTS) * geometry::SEGMENT_PAGES * PAGE_BYTES;
    PoolError::ArenaFull { device, most_bytes }
}

/// Checks that a device can be formatted; returns its number of segments, at most `most`. Nothing is written.
fn fit(media: &mut dyn Media, device: usize, most: u32) -> Result<u32, PoolError> {
    let (found_bytes, needed_bytes) = (media.capacity_bytes(device), device_bytes(MIN_SEGMENTS));
    if found_bytes < needed_bytes {
        return Err(PoolError::TooSmall { device: media.name(device), found_bytes, needed_bytes });
    }
    for copy in 0..2 {
        let mut page = [0; BLOCK_BYTES];
        let offset = geometry::superblock_bytes(copy);
        media.read(device, offset, &mut page).map_err(|f| io_error(media, device, offset, f))?;
        if let Found::Valid(superblock) = Superblock::decode(&page) {
            return Err(PoolError::InUse { device: media.name(device), pool: superblock.arena.pool });
        }
    }
    let segments = geometry::segments_in(found_bytes).min(most);
    if segments < MIN_SEGMENTS { Err(arena_full(media.name(device))) } else { Ok(segments) }
}

/// Returns a blank pair of pages A and B of a write-intent bitmap or of a segment.
fn blank_pair(seed: u64, offset_bytes: u64, owner: u16, kind: Kind) -> [u8; 2 * BLOCK_BYTES] {
    let mut pages = [0u8; 2 * BLOCK_BYTES];
    for (generation, page) in pages.as_chunks_mut().0.iter_mut().enumerate() {
        let header = Header { generation: generation as u64, flushed_seq: 0, owner, kind, opening: 0 };
        let place = Place { device_seed: seed, offset_bytes: offset_bytes + generation as u64 * PAGE_BYTES };
        page::seal(page, header, &[], place);
    }
    pages
}

/// Writes blank write-intent bitmaps, and the blank pages of the segments that are prepared at once, and makes them
/// durable.
fn blank(
    media: &mut dyn Media,
    device: usize,
    (arena, id): (ArenaId, Uuid),
    prepared: u32,
) -> Result<(), PoolError> {
    const PAIRS_AT_A_TIME: u16 = 128;
    let seed = device_seed(arena, id);
    for first in (0..MAX_DISKS as u16).step_by(PAIRS_AT_A_TIME.into()) {
        let disks = first..(first + PAIRS_AT_A_TIME).min(MAX_DISKS as u16);
        let pages: Vec<u8> = disks
            .flat_map(|disk| blank_pair(seed, geometry::intent_bytes(DiskNo(disk), 0), disk, Kind::Intent))
            .collect();
        write(media, device, geometry::intent_bytes(DiskNo(first), 0), &pages)?;
    }
    for segment in 0..prepared {
        let offset = geometry::metadata_bytes(segment, 0);
        write(media, device, offset, &blank_pair(seed, offset, NO_OWNER, Kind::Segment))?;
    }
    flush(media, device)
}

/// Writes one copy of the record and makes it durable.
pub(crate) fn write_record_copy(
    media: &mut dyn Media,
    device: usize,
    copy: u64,
    arena: ArenaId,
    record: &PoolRecord,
) -> Result<(), PoolError> {
    let mut bytes = record.encode(arena);
    bytes.resize(bytes.len().next_multiple_of(PAGE_BYTES as usize), 0);
    write(media, device, geometry::record_bytes(copy), &bytes)?;
    flush(media, device)
}

fn write_superblocks(media: &mut dyn Media, device: usize, superblock: &Superblock) -> Result<(), PoolError> {
    for copy in 0..2 {
        write(media, device, geometry::superblock_bytes(copy), &superblock.encode())?;
    }
    flush(media, device)
}

/// Creates an arena, which may be all of a pool, on all devices of `media`. Their contents are lost. A device that
/// carries a pool is refused.
///
/// # Errors
/// See [`PoolError`]. Nothing is written unless all devices are fit.
pub fn create(media: &mut dyn Media, config: &PoolConfig) -> Result<(), PoolError> {
    let devices = media.devices();
    if devices == 0 || devices > MAX_DEVICES || config.device_ids.len() != devices {
        return Err(PoolError::DeviceCount { devices, ids: config.device_ids.len() });
    }
    let (mut segments, mut left) = (Vec::with_capacity(devices), MAX_SEGMENTS);
    for device in 0..devices {
        let fitting = fit(media, device, left)?;
        segments.push(fitting);
        left -= fitting;
    }
    let record = PoolRecord {
        generation: 1,
        redundancy: config.redundancy,
        devices: (0..devices)
            .map(|d| {
                let (id, segments) = (config.device_ids[d], segments[d]);
                let prepared = segments.min(config.prepared_segments);
                let state =
                    if config.redundancy && devices < 2 { DeviceState::Alone } else { DeviceState::Active };
                Some(DeviceRecord { id, segments, prepared, state })
            })
            .collect(),
        ..PoolRecord::default()
    };
    for (device, (id, segments)) in config.device_ids.iter().zip(&segments).enumerate() {
        blank(media, device, (config.arena, *id), (*segments).min(config.prepared_segments))?;
        for copy in 0..2 {
            write_record_copy(media, device, copy, config.arena, &record)?;
        }
    }
    for (device, (id, segments)) in config.device_ids.iter().zip(&segments).enumerate() {
        let member =
            Member { arena: config.arena, arenas: config.arenas, number: DeviceNo(device as u8), id: *id };
        let extent_bytes = media.capacity_bytes(device);
        write_superblocks(media, device, &member.superblock(extent_bytes, *segments))?;
    }
    Ok(())
}

/// A device, or an extent of it, that will belong to an arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// The arena.
    pub arena: ArenaId,
    /// The number of arenas of the pool.
    pub arenas: u8,
    /// The device's number in the pool.
    pub number: DeviceNo,
    /// The device's identity.
    pub id: Uuid,
}

impl Member {
    fn superblock(&self, extent_bytes: u64, segments: u32) -> Superblock {
        let division = Division { arenas: self.arenas, extent_bytes };
        Superblock { arena: self.arena, device: self.id, number: self.number, segments, division }
    }
}

/// Formats a device so that it can join an open pool with [`crate::Call::add_device`]. It gets at most `most_segments`,
/// see [`crate::Core::spare_segments`]. Its first `prepared_segments` segments are prepared at once.
///
/// # Errors
/// See [`PoolError`]. Nothing is written unless the device is fit.
pub fn prepare_device(
    media: &mut dyn Media,
    index: usize,
    member: &Member,
    most_segments: u32,
    prepared_segments: u32,
) -> Result<NewDevice, PoolError> {
    let segments = fit(media, index, most_segments)?;
    let prepared = segments.min(prepared_segments);
    blank(media, index, (member.arena, member.id), prepared)?;
    let extent_bytes = media.capacity_bytes(index);
    write_superblocks(media, index, &member.superblock(extent_bytes, segments))?;
    Ok(NewDevice { number: member.number, id: member.id, segments, prepared })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use haversack_model::ArenaNo;

    use super::*;
    use crate::media::PageRead;

    /// Large devices, of which what was written is kept.
    struct Large {
        capacities_bytes: Vec<u64>,
        pages: HashMap<(usize, u64), [u8; BLOCK_BYTES]>,
    }

    impl Media for Large {
        fn devices(&self) -> usize {
            self.capacities_bytes.len()
        }

        fn name(&self, device: usize) -> String {
            format!("/dev/cache{device}")
        }

        fn capacity_bytes(&self, device: usize) -> u64 {
            self.capacities_bytes[device]
        }

        fn read_batch(&mut self, reads: &mut [PageRead<'_>]) {
            for read in reads {
                *read.page = self.pages.get(&(read.device, read.offset_bytes)).copied().unwrap_or([0; _]);
            }
        }

        fn write(&mut self, device: usize, offset_bytes: u64, pages: &[u8]) -> Result<(), IoFailure> {
            let places = (offset_bytes..).step_by(BLOCK_BYTES);
            let pages = pages.as_chunks().0.iter().zip(places);
            self.pages.extend(pages.map(|(page, at)| ((device, at), *page)));
            Ok(())
        }

        fn flush(&mut self, _: usize) -> Result<(), IoFailure> {
            Ok(())
        }
    }

    const TIB: u64 = 1 << 40;

    fn created(capacities_bytes: &[u64]) -> (Large, Result<(), PoolError>) {
        let mut media = Large { capacities_bytes: capacities_bytes.to_vec(), pages: HashMap::new() };
        let device_ids = (0..media.devices()).map(|at| Uuid([at as u8 + 1; 16])).collect();
        let arena = ArenaId { pool: Uuid([9; 16]), number: ArenaNo(0) };
        let config = PoolConfig { arena, arenas: 1, device_ids, redundancy: false, prepared_segments: 2 };
        let result = create(&mut media, &config);
        (media, result)
    }

    fn segments(media: &mut Large, device: usize) -> u32 {
        superblock(media, device).expect("it was formatted").segments
    }

    #[test]
    fn a_device_of_several_tebibytes_is_used_completely() {
        let (mut media, result) = created(&[4 * TIB, 4 * TIB]);
        assert_eq!(result, Ok(()));
        for device in 0..2 {
            assert_eq!(segments(&mut media, device), geometry::segments_in(4 * TIB));
            assert_eq!(unused_bytes(&mut media, device), 0);
        }
    }

    #[test]
    fn the_devices_of_an_arena_have_no_more_slots_than_can_be_numbered() {
        let (mut media, result) = created(&[10 * TIB, 10 * TIB]);
        assert_eq!(result, Ok(()));
        let [first, second] = [0, 1].map(|device| segments(&mut media, device));
        assert_eq!(first + second, MAX_SEGMENTS);
        assert_eq!(unused_bytes(&mut media, 1), 10 * TIB - device_bytes(second));
        assert!(scan::pool(&mut media, &crate::OpenOptions::default()).is_ok());
        let (media, result) = created(&[17 * TIB, TIB]);
        assert_eq!(result, Err(arena_full("/dev/cache1".into())));
        assert!(media.pages.is_empty(), "a refusal writes nothing");
    }

    #[test]
    fn a_device_that_joins_gets_what_is_left() {
        let mut media = Large { capacities_bytes: vec![TIB], pages: HashMap::new() };
        let arena = ArenaId { pool: Uuid([9; 16]), number: ArenaNo(0) };
        let member = Member { arena, arenas: 1, number: DeviceNo(1), id: Uuid([1; 16]) };
        let none_left = prepare_device(&mut media, 0, &member, 1, 2).map(|_| ());
        assert_eq!(none_left, Err(arena_full("/dev/cache0".into())));
        assert!(prepare_device(&mut media, 0, &member, 1000, 2).is_ok());
        assert_eq!(segments(&mut media, 0), 1000);
        assert_eq!(unused_bytes(&mut media, 0), TIB - device_bytes(1000));
    }
}
