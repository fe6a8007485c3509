//! Opening: writes what recovery decided to the devices, then builds the core.
//!
//! Invariants
//! - The record is written before any page. It keeps the flush mark of pages that are about to be replaced.
//!   It says which devices stand alone before pages drop entries that only one device has overtaken. It says
//!   which disks may be dirty before their staged blocks reach pages.
//! - The record no longer names the last clean stop before anything else is written: a checkpoint counts once.
//! - The devices are flushed before pages are rewritten: what was read becomes as durable as it is trusted
//!   to be. Two pages of one segment are never written without a flush in between.
//! - After a start at which clean blocks were not trusted, they are trusted again only when no page lists a
//!   dead entry.
//! - A staged block is adopted only if the staging area has the pool's current staging number, the data matches its
//!   checksum, and no newer frame of the block exists. Descriptors of any other staging area are cleared before its
//!   header gets a new number. It gets that only when the pages no longer list what never happened: until then, that
//!   a block is not staged does not show that its commit was written.

use haversack_model::{BLOCK_BYTES, DeviceNo, DiskNo, Micros, Uuid};

use super::checkpoint::{self, CheckpointUse};
use super::entries::{self, Recovered, StagedBlocks};
use super::scan::{self, IntentFound, Pool, Present};
use super::{DiskSummary, OpenOptions, OpenReport};
use crate::bugs::{Bug, planted};
use crate::checksum;

use crate::config::{CoreConfig, Persistence};
use crate::core::{Call, Core};
use crate::devices::{Device, Devices};
use crate::disk::Disk;
use crate::disks::Disks;
use crate::durability::Durability;
use crate::error::PoolError;
use crate::flow::commit::batches::Batches;
use crate::format::checkpoint::CheckpointSource;
use crate::format::descriptor::{Descriptor, StagingHeader};
use crate::format::geometry;
use crate::format::page::{self, Header, Kind, NO_OWNER, Place};
use crate::format::record::{Damage, DeviceRecord, DeviceState, DiskRecord, PoolRecord};
use crate::io::Ios;
use crate::jobs::Jobs;
use crate::locks::Locks;
use crate::media::Media;
use crate::memory::{DESCRIPTOR_BYTES, FrameNo, Memory};
use crate::pool::{self, io_error};
use crate::pool_state::PoolState;
use crate::schedule::Schedule;
use crate::slab::Slab;
use crate::staging::{Staged, Staging};
use crate::store::segment::SegmentNo;
use crate::store::{PageContent, Store};
use crate::transfer::{MIN_FRAMES, TransferFrames};

impl Core {
    /// Opens a pool. Its disks are known but not attached. With the staging area of a killed core in `memory`,
    /// every acknowledged write is kept.
    ///
    /// # Errors
    /// See [`PoolError`]. Nothing is written if the devices are not fit.
    pub fn open<M: Memory>(
        media: &mut dyn Media,
        memory: &mut M,
        config: CoreConfig,
        options: &OpenOptions,
        now: Micros,
    ) -> Result<(Core, OpenReport), PoolError> {
        Core::open_with(media, memory, None, config, options, now)
    }

    /// Like [`Core::open`]. If the pool was stopped cleanly and `checkpoint` is that of the stop, the tables come from
    /// it, and the metadata pages are not read. Afterwards the checkpoint is void.
    ///
    /// # Errors
    /// See [`PoolError`]. A checkpoint that cannot be used is not an error: [`OpenReport::checkpoint`] says why.
    pub fn open_with<M: Memory>(
        media: &mut dyn Media,
        memory: &mut M,
        checkpoint: Option<&mut dyn CheckpointSource>,
        config: CoreConfig,
        options: &OpenOptions,
        now: Micros,
    ) -> Result<(Core, OpenReport), PoolError> {
        let opening = prepare(media, memory, checkpoint, options)?;
        Ok(build(opening, memory, config, now))
    }
}

struct Opening {
    pool: Pool,
    recovered: Recovered,
    /// The staging area belongs to the pool as it was left.
    survived: bool,
    /// The pool was stopped cleanly.
    clean_stop: bool,
    checkpoint: CheckpointUse,
}

/// Does everything that may fail: reading, deciding, and the writes before the pool is used.
fn prepare<M: Memory>(
    media: &mut dyn Media,
    memory: &mut M,
    checkpoint: Option<&mut dyn CheckpointSource>,
    options: &OpenOptions,
) -> Result<Opening, PoolError> {
    let (staging, transfer) = (memory.staging_frames(), memory.frames() - memory.staging_frames());
    if staging < MIN_FRAMES || transfer < MIN_FRAMES {
        return Err(PoolError::Memory { needed: MIN_FRAMES, staging, transfer });
    }
    let mut pool = scan::pool(media, options)?;
    let arena = pool.present.iter().flatten().next().expect("a device is present").superblock.arena;
    let wanted = StagingHeader { arena, staging_id: pool.record.staging_id };
    let survived =
        StagingHeader::decode(memory.descriptor(staging)) == Some(wanted) && pool.record.staging_id > 0;
    let survived = survived && !planted(Bug::IgnoreStaging);
    let clean_stop = pool.record.clean_stop;
    let staged = survived.then(|| staged_blocks(memory));
    let loaded = checkpoint.map(|source| {
        let is_overtaken = staged.as_ref().is_some_and(|staged| !staged.is_empty()) || options.contents_void;
        checkpoint::load(media, &pool, source, is_overtaken)
    });
    let (mut recovered, checkpoint) = match loaded {
        Some(Ok(recovered)) => (recovered, CheckpointUse::Loaded),
        Some(Err(why)) => (entries::recover(media, &pool, staged.as_ref())?, CheckpointUse::Refused(why)),
        None => (entries::recover(media, &pool, staged.as_ref())?, CheckpointUse::NotOffered),
    };
    if options.contents_void {
        for disk in pool.record.disks.iter_mut().flatten() {
            disk.since_seq = recovered.last_seq + 1;
            if disk.may_be_dirty {
                disk.damage = Damage::Uncertain;
            }
        }
        recovered = entries::recover(media, &pool, staged.as_ref())?;
        // The origins may hold unflushed writes that no map could mark.
        for intents in &mut recovered.intents {
            intents.marked.fill(0xff);
            intents.repair = true;
        }
    }
    if !survived {
        pool.record.staging_id += 1;
        for frame in 0..=staging {
            memory.store_descriptor(frame, &[0; DESCRIPTOR_BYTES]);
        }
    }
    if survived {
        note_staged(memory, &mut pool.record);
    }
    write_record(media, &mut pool, &recovered)?;
    write_pages(media, &mut pool, &mut recovered)?;
    if !survived {
        let header = StagingHeader { arena, staging_id: pool.record.staging_id };
        memory.store_descriptor(staging, &header.encode());
    }
    Ok(Opening { pool, recovered, survived, clean_stop, checkpoint })
}

/// Returns the blocks that the staging area has descriptors of.
fn staged_blocks<M: Memory>(memory: &M) -> StagedBlocks {
    let described = (0..memory.staging_frames()).filter_map(|at| Descriptor::decode(memory.descriptor(at)));
    described.map(|staged| (staged.disk, staged.block)).collect()
}

/// Notes disks with dirty staged blocks in the record: it must say that they may be dirty before these blocks
/// reach pages. It may say otherwise if the disk was flushed offline, which sees only what is on flash.
fn note_staged<M: Memory>(memory: &M, record: &mut PoolRecord) {
    for frame in 0..memory.staging_frames() {
        let staged = Descriptor::decode(memory.descriptor(frame)).filter(|d| d.dirty);
        if let Some(disk) = staged.and_then(|d| record.disks.get_mut(d.disk.0 as usize)?.as_mut()) {
            disk.may_be_dirty = true;
        }
    }
}

fn flush_all(media: &mut dyn Media, pool: &Pool) -> Result<(), PoolError> {
    for device in pool.present.iter().flatten() {
        pool::flush(media, device.index)?;
    }
    Ok(())
}

/// Makes the pages say what was decided: entries that never became durable are no longer listed, and damaged
/// pages are repaired.
fn write_pages(media: &mut dyn Media, pool: &mut Pool, r: &mut Recovered) -> Result<(), PoolError> {
    write_second_copies(media, pool, r)?;
    // What was read may still be in volatile caches: now it becomes as durable as it is trusted to be.
    flush_all(media, pool)?;
    let flushed_seq = pool.record.flushed_seq;
    let mut scrub = std::mem::take(&mut r.scrub);
    scrub.sort_unstable();
    // If a segment's pages were written twice without a flush in between, both could be torn.
    scrub.dedup();
    for segment in scrub {
        write_page(media, pool, r, segment, flushed_seq)?;
    }
    flush_all(media, pool)?;
    // A damaged page may have been the only one to mark commits as flushed. By now all that is listed is.
    let all_seq = r.last_seq;
    for segment in std::mem::take(&mut r.rebuild) {
        for _ in 0..2 {
            write_page(media, pool, r, segment, all_seq)?;
            flush_all(media, pool)?;
        }
    }
    repair_intents(media, pool, r)?;
    if r.distrust_clean {
        forget_dead(media, pool, r, flushed_seq)?;
        pool.record.distrust_clean = false;
    }
    r.store.flushed(r.last_seq + 1);
    Ok(())
}

/// Writes mirrored copies again that did not land, so that the loss of one device cannot take what is trusted.
fn write_second_copies(media: &mut dyn Media, pool: &Pool, r: &mut Recovered) -> Result<(), PoolError> {
    let place = |number| {
        let (device, offset_bytes) = r.store.location(number);
        (pool.present[device.0 as usize].as_ref().expect("the device is here").index, offset_bytes)
    };
    for (from, to) in std::mem::take(&mut r.recopy) {
        let (device, offset_bytes) = place(from);
        let mut page = [0; BLOCK_BYTES];
        media.read(device, offset_bytes, &mut page).map_err(|f| io_error(media, device, offset_bytes, f))?;
        let (device, offset_bytes) = place(to);
        pool::write(media, device, offset_bytes, &page)?;
    }
    Ok(())
}

/// Writes a segment's next page. The caller flushes before the same segment is written again.
fn write_page(
    media: &mut dyn Media,
    pool: &Pool,
    r: &mut Recovered,
    segment: SegmentNo,
    flushed_seq: u64,
) -> Result<(), PoolError> {
    let mut content: PageContent = [0; _];
    let write = r.store.compose_page(segment, r.last_seq + 1, &mut content);
    let device = pool.present[write.device.0 as usize].as_ref().expect("the device is here");
    let opening = pool.record.openings as u8;
    let header = Header {
        generation: write.generation,
        flushed_seq,
        owner: write.owner,
        kind: Kind::Segment,
        opening,
    };
    let place = Place { device_seed: device.seed, offset_bytes: write.offset_bytes };
    let mut page = [0; BLOCK_BYTES];
    page::seal(&mut page, header, &content, place);
    pool::write(media, device.index, write.offset_bytes, &page)?;
    r.store.page_written(segment);
    Ok(())
}

/// Rewrites every page that lists a dead slot until none does: then clean blocks may be trusted again.
fn forget_dead(
    media: &mut dyn Media,
    pool: &Pool,
    r: &mut Recovered,
    flushed_seq: u64,
) -> Result<(), PoolError> {
    loop {
        let lists_dead = |s: &SegmentNo| r.store.slots_of(*s).any(|n| r.store.slot(n).dead().is_some());
        let owned = r.store.segments.numbers().filter(|s| r.store.segments[*s].owner != NO_OWNER);
        let left: Vec<SegmentNo> = owned.filter(lists_dead).collect();
        if left.is_empty() {
            break;
        }
        for segment in left {
            write_page(media, pool, r, segment, flushed_seq)?;
        }
        flush_all(media, pool)?;
        r.last_seq += 1;
        r.store.flushed(r.last_seq);
    }
    r.distrust_clean = false;
    Ok(())
}

fn repair_intents(media: &mut dyn Media, pool: &Pool, r: &mut Recovered) -> Result<(), PoolError> {
    for disk in 0..r.intents.len() {
        if !r.intents[disk].repair {
            continue;
        }
        let (found, number) = (&mut r.intents[disk], DiskNo(disk as u16));
        for pass in 0..2 {
            for (device, first) in pool.present.iter().flatten().zip(&found.first_repairs) {
                let generation = first + pass;
                found.generation = found.generation.max(generation);
                let offset_bytes = geometry::intent_bytes(number, generation);
                let header = Header {
                    generation,
                    flushed_seq: 0,
                    owner: number.0,
                    kind: Kind::Intent,
                    opening: pool.record.openings as u8,
                };
                let mut page = [0; BLOCK_BYTES];
                let place = Place { device_seed: device.seed, offset_bytes };
                page::seal(&mut page, header, &found.marked[..], place);
                pool::write(media, device.index, offset_bytes, &page)?;
            }
            flush_all(media, pool)?;
        }
    }
    Ok(())
}

/// Notes which devices the pool cannot do without. There may be single copies although the record does not
/// say so: a crash came first, or the entries of the other copies are damaged. Pages are about to drop what
/// these single copies overtook.
fn note_alone(pool: &mut Pool, r: &Recovered) {
    for (at, device) in pool.record.devices.iter_mut().enumerate() {
        let Some(device) = device.as_mut().filter(|device| device.state.is_in_use()) else { continue };
        if !pool.missing.is_empty() || r.store.has_single_copies(DeviceNo(at as u8)) {
            device.state = DeviceState::Alone;
        }
    }
}

/// Writes the record: the pool is open, with these devices, and these disks were damaged.
fn write_record(media: &mut dyn Media, pool: &mut Pool, r: &Recovered) -> Result<(), PoolError> {
    let record = &mut pool.record;
    record.generation += 1;
    record.openings += 1;
    if !record.clean_stop {
        record.crashed_seq = r.last_seq;
    }
    if !planted(Bug::KeepStopName) {
        (record.clean_stop, record.stop) = (false, Uuid::default());
    }
    record.distrust_clean = r.distrust_clean;
    // The pages that say so may be replaced next.
    record.flushed_seq = r.flushed_seq;
    for missing in &pool.missing {
        if let Some(device) = record.devices[missing.0 as usize].as_mut() {
            device.state = DeviceState::Retired;
        }
    }
    if record.redundancy {
        note_alone(pool, r);
    }
    let lost_dirty = !pool.missing.is_empty() && !pool.covered;
    for (at, disk) in pool.record.disks.iter_mut().enumerate() {
        let Some(disk) = disk else { continue };
        if r.damaged.contains(&DiskNo(at as u16)) || lost_dirty && disk.may_be_dirty {
            disk.damage = Damage::Uncertain;
        }
    }
    for copy in 0..2 {
        for device in pool.present.iter().flatten() {
            pool::write_record_copy(media, device.index, copy, device.superblock.arena, &pool.record)?;
        }
    }
    Ok(())
}

fn build<M: Memory>(opening: Opening, memory: &mut M, config: CoreConfig, now: Micros) -> (Core, OpenReport) {
    let Opening { pool, recovered: r, survived, clean_stop, checkpoint } = opening;
    let devices = pool.present.iter().enumerate();
    let mut report = OpenReport {
        devices: devices.filter_map(|(at, d)| Some((DeviceNo(at as u8), d.as_ref()?.index))).collect(),
        ignored: pool.ignored.clone(),
        missing: pool.missing.clone(),
        staging_survived: survived,
        clean_stop,
        checkpoint,
        torn_entries: r.torn_entries,
        damaged_segments: r.damaged_segments,
        ..OpenReport::default()
    };
    let mut core = without_disks(&pool, r.store, memory, config, now);
    report.arena = core.arena();
    let mut call = core.with(memory);
    // Zero, unless a planted mistake keeps it.
    call.name_stop(pool.record.stop);
    call.adopt_disks(&pool.record.disks, r.intents);
    if survived {
        call.adopt_staging();
    }
    call.adopt_damaged();
    report.disks = call.summaries();
    call.restage_unmirrored();
    if call.rebuilding() {
        call.purge_before_whole();
        call.queue_all();
        call.settle();
    }
    (core, report)
}

/// Returns the core without its disks.
fn without_disks<M: Memory>(pool: &Pool, store: Store, memory: &M, config: CoreConfig, now: Micros) -> Core {
    let (staging_frames, frames) = (memory.staging_frames(), memory.frames());
    let device = |(number, present): (usize, &Option<Present>)| {
        let present = present.as_ref()?;
        let alone = pool.record.devices[number].is_some_and(|d| d.state == DeviceState::Alone);
        Some(Device::new(present.seed, present.superblock.device, alone))
    };
    let retired = |device: &Option<DeviceRecord>| {
        device.filter(|d| d.state == DeviceState::Retired).map(|d| (d.id, d.segments))
    };
    Core {
        config,
        now,
        pool: PoolState::recorded(
            pool.present.iter().flatten().next().expect("a device is present").superblock.arena,
            pool.record.redundancy,
            pool.record.is_degraded(),
            pool.record.distrust_clean,
        ),
        durability: Durability::after_recovery(store.flushed_seq(), &pool.record),
        staging: Staging::new(staging_frames),
        disks: Disks::new(),
        devices: Devices::new(
            pool.present.iter().enumerate().map(device).collect(),
            pool.record.devices.iter().map(retired).collect(),
        ),
        requests: Slab::new(),
        ios: Ios::new(),
        batches: Batches::new(),
        locks: Locks::default(),
        jobs: Jobs::default(),
        frames: TransferFrames::new(staging_frames..frames),
        schedule: Schedule::default(),
        store,
    }
}

impl<M: Memory> Call<'_, M> {
    fn adopt_disks(&mut self, records: &[Option<DiskRecord>], intents: Vec<IntentFound>) {
        for (at, (record, intents)) in records.iter().zip(intents).enumerate() {
            let number = DiskNo(at as u16);
            self.staging.add_disk(number);
            let generation = intents.generation;
            let disk = record.as_ref().map(|record| {
                let mut disk = Disk::new(record);
                // Without marks nothing went past the cache since the origin was last flushed. A disk whose
                // clean blocks do not survive the process has no marks, so nothing is known of it.
                let may_be_volatile = intents.marked.iter().any(|regions| *regions != 0)
                    || record.persistence != Persistence::All;
                if may_be_volatile {
                    disk.origin.suspect();
                }
                disk.intents.adopt(intents.marked, generation);
                disk
            });
            self.disks.adopt(disk, generation);
        }
    }

    /// Takes over the staged blocks of a killed core.
    fn adopt_staging(&mut self) {
        for index in 0..self.memory.staging_frames() {
            let frame = FrameNo(index);
            let Some(d) = Descriptor::decode(self.memory.descriptor(index)) else {
                continue;
            };
            self.staging.next_version = self.staging.next_version.max(d.version + 1);
            if !self.believes(frame, &d) || !self.adopt_staged(frame, &d) {
                self.memory.store_descriptor(index, &[0; DESCRIPTOR_BYTES]);
            }
        }
    }

    fn believes(&self, frame: FrameNo, d: &Descriptor) -> bool {
        let Some(disk) = self.disks.get(d.disk) else {
            return false;
        };
        let keeps = match disk.persistence {
            Persistence::All => true,
            Persistence::Dirty => d.dirty,
            Persistence::None => false,
        };
        let inside = disk.inside(d.block);
        // A block that was shrunk away has nothing to keep, but a damaged one must stay known.
        let has_content = d.mask & inside != 0 || d.poisoned && inside != 0;
        keeps && has_content && checksum::bind(self.memory.crc(frame), disk.seed, d.block) == d.crc
    }

    /// Adopts a staged block unless a newer frame of it exists.
    fn adopt_staged(&mut self, frame: FrameNo, d: &Descriptor) -> bool {
        if let Some((other, s)) = self.staging.find(d.disk, d.block) {
            if s.version > d.version {
                return false;
            }
            self.unstage(other);
        }
        self.staging.claim(frame);
        let mut staged = Staged::new(d.disk, d.block);
        (staged.mask, staged.dirty, staged.poisoned) =
            (d.mask & self.disk(d.disk).inside(d.block), d.dirty, d.poisoned);
        staged.trimmed = staged.mask != d.mask;
        (staged.crc, staged.version, staged.since_us) = (d.crc, d.version, self.now);
        staged.group = self.disk(d.disk).flush.open_group();
        if d.dirty {
            self.disk_mut(d.disk).flush.staged(staged.group);
        }
        self.staging.insert(frame, staged);
        if d.poisoned {
            self.note_damaged(d.disk, d.block);
        }
        true
    }

    fn summaries(&self) -> Vec<DiskSummary> {
        let summary = |(disk, d): (DiskNo, &Disk)| {
            let space = &self.store.disks[disk];
            DiskSummary {
                disk,
                id: d.id,
                sectors: d.sectors,
                phase: d.phase,
                cached_blocks: space.live,
                dirty_blocks: space.dirty + d.flush.staged_dirty(),
                owned: d.life.is_owned(),
                epoch: d.life.epoch(),
                damage: d.damage,
            }
        };
        self.disks.numbered().map(summary).collect()
    }
}
