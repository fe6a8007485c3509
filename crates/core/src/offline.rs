//! Tools for a pool that no core has open: check it, list its disks and dirty blocks, and write a disk's
//! dirty blocks to its origin after the host has died.
//!
//! They see what is durable on the devices. Blocks that were only staged when the host died are missing. If
//! only the daemon died, open the pool with its staging area instead.
//!
//! Invariants
//! - A disk's dirty blocks are written only if this host owns it, no other host has dirty blocks of it that this one
//!   has to fetch, and it is certain that every one of them is known in its newest version.
//! - Dirty blocks count as clean only after all of them are at the origin and the origin was flushed. Until
//!   then the pool is unchanged.

use haversack_model::{ArenaId, BLOCK_BYTES, BlockNo, DeviceNo, DiskId, DiskNo, HostId, Uuid};

use crate::checksum;
use crate::disk::{Disk, runs};
use crate::error::PoolError;
use crate::format::record::{Damage, DiskRecord, Moved};
use crate::media::{IoFailure, Media, OriginMedia};
use crate::pool;
use crate::recover::entries::{self, Recovered};
use crate::recover::scan::{self, Pool};
use crate::recover::{OpenOptions, merge_devices};
use crate::store::slot::{Live, SlotNo};

/// What a check found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CheckReport {
    /// The identity of the arena, and of its pool.
    pub arena: ArenaId,
    /// Devices in use, each with its index in the list.
    pub devices: Vec<(DeviceNo, usize)>,
    /// Devices in the list that are no longer part of the pool.
    pub ignored: Vec<usize>,
    /// Devices of the pool that were not in the list.
    pub missing: Vec<DeviceNo>,
    /// The pool was stopped cleanly.
    pub clean_stop: bool,
    /// Segments whose metadata is damaged.
    pub damaged_segments: u64,
    /// Entries of commits that did not become durable: normal after a power loss.
    pub torn_entries: u64,
    /// The disks.
    pub disks: Vec<DiskReport>,
}

impl CheckReport {
    /// Adds what a check of another arena of the pool found. Places of devices stay those of this arena.
    pub fn add(&mut self, other: CheckReport) {
        merge_devices((&mut self.devices, &mut self.missing), (other.devices, other.missing));
        self.clean_stop &= other.clean_stop;
        self.damaged_segments += other.damaged_segments;
        self.torn_entries += other.torn_entries;
        self.disks.extend(other.disks);
    }
}

/// A disk as a check found it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskReport {
    /// Its identity.
    pub id: DiskId,
    /// Its sectors.
    pub sectors: u64,
    /// Whether this host owns it.
    pub owned: bool,
    /// The ownership epoch.
    pub epoch: u64,
    /// What remains of its last migration.
    pub moved: Moved,
    /// Dirty blocks of it may have been lost.
    pub damaged: bool,
    /// Its blocks on flash.
    pub cached_blocks: u64,
    /// Its dirty blocks, in order.
    pub dirty_blocks: Vec<BlockNo>,
    /// Blocks whose data was read and does not match its checksum, in order; only from a thorough check.
    pub bad_blocks: Vec<BlockNo>,
}

impl DiskReport {
    /// Checks that its dirty blocks may be written to the origin, as far as it depends on other hosts.
    ///
    /// # Errors
    /// See [`OfflineError`].
    pub fn check_owner(&self) -> Result<(), OfflineError> {
        check_owner(self.id, (self.owned, self.epoch), self.moved)
    }
}

/// Why an offline operation on a disk was refused or failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OfflineError {
    /// The pool cannot be read.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// No such disk.
    #[error("the pool does not know disk {0}; list its disks to see which it knows")]
    NoSuchDisk(DiskId),
    /// Another host may own the disk.
    #[error(
        "this host released disk {disk} after epoch {epoch}: its blocks must not be written to the origin"
    )]
    NotOwner {
        /// The disk.
        disk: DiskId,
        /// The epoch on record.
        epoch: u64,
    },
    /// This host owns the disk, and another one has dirty blocks of it, some of which may be older than those here.
    #[error(
        "host {on}, which owned disk {disk} before, has dirty blocks of it, and could later write them over newer data: start haversackd with these devices under the name of their host, so that it fetches those blocks or, if host {on} is permanently dead, gives them up with 'haversack disk own'"
    )]
    DependsOnHost {
        /// The disk.
        disk: DiskId,
        /// That host.
        on: HostId,
    },
    /// The disk has dirty blocks and was not named for their destruction.
    #[error("disk {disk} has {dirty_blocks} dirty blocks; flush it first, or name the disk to destroy them")]
    Dirty {
        /// The disk.
        disk: DiskId,
        /// Its dirty blocks.
        dirty_blocks: u64,
    },
    /// A device is missing or metadata is damaged: there may be unknown dirty blocks, and older versions of
    /// others may pass for the newest.
    #[error(
        "devices are missing or metadata is damaged: it is uncertain which blocks of disk {0} are dirty; bring the devices back, or drop it by name"
    )]
    Damaged(DiskId),
    /// The origin is smaller than the disk: it belongs to another one.
    #[error(
        "disk {disk} has {needed_sectors} sectors, the origin {found_sectors}; name the disk's own origin"
    )]
    OriginTooSmall {
        /// The disk.
        disk: DiskId,
        /// The origin's sectors.
        found_sectors: u64,
        /// The disk's sectors.
        needed_sectors: u64,
    },
    /// The origin failed.
    #[error("writing the origin of disk {disk} failed at sector {sector}; the dirty blocks stay in the pool")]
    Origin {
        /// The disk.
        disk: DiskId,
        /// First sector of the failed write.
        sector: u64,
    },
    /// Some dirty blocks are damaged. The others were written; nothing was marked clean.
    #[error(
        "disk {disk}: {} dirty blocks are damaged: {}; the others are at the origin, the pool is unchanged",
        .blocks.len(),
        ranges(.blocks)
    )]
    DataLost {
        /// The disk.
        disk: DiskId,
        /// The damaged dirty blocks, in order.
        blocks: Vec<BlockNo>,
    },
}

/// Formats blocks, which are in order, for people: `block 3, blocks 7-9`. If there are very many ranges, the
/// first ones are named, followed by the number of the others.
pub fn ranges(blocks: &[BlockNo]) -> String {
    const MOST: usize = 64;
    let runs: Vec<&[BlockNo]> = blocks.chunk_by(|one, next| one.0 + 1 == next.0).collect();
    let named = runs.iter().take(MOST).map(|run| match run {
        [one] => format!("block {one}"),
        [first, .., last] => format!("blocks {first}-{last}"),
        [] => String::new(),
    });
    let mut text = named.collect::<Vec<_>>().join(", ");
    if runs.len() > MOST {
        text += &format!(" and {} more ranges", runs.len() - MOST);
    }
    text
}

/// The progress of a flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlushProgress {
    /// Blocks written.
    pub done_blocks: u64,
    /// Blocks in total.
    pub total_blocks: u64,
}

fn load(media: &mut dyn Media) -> Result<(Pool, Recovered), PoolError> {
    let pool = scan::pool(media, &OpenOptions { accept_missing: true, contents_void: false })?;
    let recovered = entries::recover(media, &pool, None)?;
    Ok((pool, recovered))
}

fn live_slots(r: &Recovered, disk: DiskNo) -> Vec<(SlotNo, Live)> {
    let mut slots: Vec<(SlotNo, Live)> = r.store.disks[disk]
        .segments
        .iter()
        .flat_map(|segment| r.store.slots_of(*segment))
        .filter_map(|number| Some((number, r.store.slot(number).primary()?)))
        .collect();
    slots.sort_by_key(|(_, slot)| slot.block());
    slots
}

/// Reads a block and verifies it, from its mirrored copy if necessary.
fn read_block(
    media: &mut dyn Media,
    pool: &Pool,
    r: &Recovered,
    record: &DiskRecord,
    number: SlotNo,
) -> Option<[u8; BLOCK_BYTES]> {
    let slot = r.store.slot(number);
    // Nothing is valid in a damaged block that was not written since.
    if slot.mask() == 0 {
        return None;
    }
    for copy in [Some(number), r.store.mirror_of(number)].into_iter().flatten() {
        let (device, offset) = r.store.location(copy);
        let index = pool.present[device.0 as usize].as_ref()?.index;
        let mut page = [0; BLOCK_BYTES];
        let read = media.read(index, offset, &mut page).is_ok();
        let crc = checksum::bind(checksum::crc32c(&page), checksum::disk_seed(record.id), slot.block());
        if read && crc == slot.crc() {
            return Some(page);
        }
    }
    None
}

/// Reads all metadata of a pool and, if `thorough`, the data of every block. Writes nothing.
///
/// # Errors
/// The pool cannot be read at all.
pub fn check(media: &mut dyn Media, thorough: bool) -> Result<CheckReport, PoolError> {
    let (pool, r) = load(media)?;
    let mut report = CheckReport {
        ignored: pool.ignored.clone(),
        missing: pool.missing.clone(),
        clean_stop: pool.record.clean_stop,
        damaged_segments: r.damaged_segments,
        torn_entries: r.torn_entries,
        ..CheckReport::default()
    };
    for (at, present) in pool.present.iter().enumerate() {
        if let Some(present) = present {
            report.arena = present.superblock.arena;
            report.devices.push((DeviceNo(at as u8), present.index));
        }
    }
    for (at, record) in pool.record.disks.iter().enumerate() {
        let Some(record) = record else { continue };
        let disk = DiskNo(at as u16);
        let slots = live_slots(&r, disk);
        let mut bad_blocks = Vec::new();
        if thorough {
            for (number, slot) in &slots {
                if slot.poisoned() || read_block(media, &pool, &r, record, *number).is_none() {
                    bad_blocks.push(slot.block());
                }
            }
        }
        report.disks.push(DiskReport {
            id: record.id,
            sectors: record.sectors,
            owned: record.owned,
            epoch: record.epoch,
            moved: record.moved,
            damaged: record.damage != Damage::None || r.damaged.contains(&disk),
            cached_blocks: slots.len() as u64,
            dirty_blocks: slots.iter().filter(|s| s.1.dirty()).map(|s| s.1.block()).collect(),
            bad_blocks,
        });
    }
    Ok(report)
}

fn find(pool: &Pool, id: DiskId) -> Result<(DiskNo, DiskRecord), OfflineError> {
    let disks = pool.record.disks.iter().enumerate();
    let found = disks.filter_map(|(at, d)| d.map(|d| (DiskNo(at as u16), d))).find(|(_, d)| d.id == id);
    found.ok_or(OfflineError::NoSuchDisk(id))
}

fn check_owner(disk: DiskId, (owned, epoch): (bool, u64), moved: Moved) -> Result<(), OfflineError> {
    match moved {
        _ if !owned => Err(OfflineError::NotOwner { disk, epoch }),
        Moved::Depends { on } => Err(OfflineError::DependsOnHost { disk, on }),
        _ => Ok(()),
    }
}

/// Whether every dirty block of a disk is known, in its newest version.
fn is_certain(pool: &Pool, r: &Recovered, disk: DiskNo, record: &DiskRecord) -> bool {
    record.damage != Damage::Uncertain
        && !r.damaged.contains(&disk)
        && (pool.missing.is_empty() || pool.covered)
}

/// Writes a disk's dirty blocks to its origin, flushes it, and then marks them clean by voiding everything
/// that the pool has of the disk. After an error before that last step the pool is unchanged. After any error
/// the flush can be repeated.
///
/// # Errors
/// See [`OfflineError`].
pub fn flush_disk(
    media: &mut dyn Media,
    id: DiskId,
    origin: &mut dyn OriginMedia,
    mut progress: impl FnMut(FlushProgress),
) -> Result<u64, OfflineError> {
    let (pool, r) = load(media)?;
    let (disk, record) = find(&pool, id)?;
    check_owner(id, (record.owned, record.epoch), record.moved)?;
    if !is_certain(&pool, &r, disk, &record) {
        return Err(OfflineError::Damaged(id));
    }
    let (found_sectors, needed_sectors) = (origin.capacity_sectors(), record.sectors);
    if found_sectors < needed_sectors {
        return Err(OfflineError::OriginTooSmall { disk: id, found_sectors, needed_sectors });
    }
    let grid = Disk::new(&record);
    let dirty: Vec<(SlotNo, Live)> = live_slots(&r, disk).into_iter().filter(|s| s.1.dirty()).collect();
    let mut lost = Vec::new();
    for (done, (number, slot)) in dirty.iter().enumerate() {
        match read_block(media, &pool, &r, &record, *number) {
            Some(page) => {
                write_block(origin, &grid, id, *slot, &page)?;
                if slot.poisoned() {
                    lost.push(slot.block());
                }
            }
            None => lost.push(slot.block()),
        }
        progress(FlushProgress { done_blocks: done as u64 + 1, total_blocks: dirty.len() as u64 });
    }
    let failed = |_: IoFailure| OfflineError::Origin { disk: id, sector: 0 };
    origin.flush().map_err(failed)?;
    if !lost.is_empty() {
        return Err(OfflineError::DataLost { disk: id, blocks: lost });
    }
    void_disk(media, pool, &r, disk, record.damage)?;
    Ok(dirty.len() as u64)
}

fn write_block(
    origin: &mut dyn OriginMedia,
    grid: &Disk,
    id: DiskId,
    slot: Live,
    page: &[u8; BLOCK_BYTES],
) -> Result<(), OfflineError> {
    for (first, count) in runs(slot.mask() & grid.inside(slot.block())) {
        let sector = grid.sector(slot.block(), first);
        let bytes = &page[first as usize * 512..(first + count) as usize * 512];
        origin.write(sector, bytes).map_err(|_| OfflineError::Origin { disk: id, sector })?;
    }
    Ok(())
}

/// Voids everything that the pool has of a disk. Dirty blocks, known or possible, are destroyed only if
/// `destroy_dirty` names the disk.
///
/// # Errors
/// See [`OfflineError`].
pub fn drop_disk(
    media: &mut dyn Media,
    id: DiskId,
    destroy_dirty: Option<DiskId>,
) -> Result<(), OfflineError> {
    let (pool, r) = load(media)?;
    let (disk, record) = find(&pool, id)?;
    let dirty_blocks = live_slots(&r, disk).iter().filter(|s| s.1.dirty()).count() as u64;
    if dirty_blocks > 0 && destroy_dirty != Some(id) {
        return Err(OfflineError::Dirty { disk: id, dirty_blocks });
    }
    if record.may_be_dirty && destroy_dirty != Some(id) && !is_certain(&pool, &r, disk, &record) {
        return Err(OfflineError::Damaged(id));
    }
    let damage = if destroy_dirty == Some(id) { Damage::None } else { record.damage };
    void_disk(media, pool, &r, disk, damage)?;
    Ok(())
}

fn void_disk(
    media: &mut dyn Media,
    mut pool: Pool,
    r: &Recovered,
    disk: DiskNo,
    damage: Damage,
) -> Result<(), PoolError> {
    let record = &mut pool.record;
    record.generation += 1;
    // A checkpoint of the last stop has blocks that are void now.
    record.stop = Uuid::default();
    if let Some(disk) = record.disks[disk.0 as usize].as_mut() {
        (disk.since_seq, disk.may_be_dirty, disk.damage) = (r.last_seq + 1, false, damage);
    }
    for copy in 0..2 {
        for device in pool.present.iter().flatten() {
            pool::write_record_copy(media, device.index, copy, device.superblock.arena, record)?;
        }
    }
    Ok(())
}
