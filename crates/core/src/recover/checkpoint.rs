//! Checkpoints: a clean stop leaves its tables, so that the next opening need not read all metadata pages.
//!
//! The stop gets an identity, which the record names ([`crate::Call::name_stop`]). When nothing is left to do, the core
//! is turned into a checkpoint of that stop. The next opening takes it if the record still names the stop, and from
//! then on the record names none.
//!
//! Invariants
//! - A checkpoint is taken of a core that cannot write any more: [`Core::checkpoint`] consumes it.
//! - A loaded checkpoint matches the devices: it is loaded only if no record was written after that of its stop, and if
//!   all devices of that record are present. The first record of an opening voids the checkpoint, whether it was loaded
//!   or not.
//! - A checkpoint that cannot be used never prevents opening: the pool then opens as if there were none.
//! - A checkpoint has no clean block that may be newer than the origin after a power loss.

use haversack_model::{ArenaId, DiskNo, Uuid};

use super::entries::Recovered;
use super::scan::Pool;
use crate::config::Persistence;
use crate::core::Core;
use crate::format::checkpoint::{
    CHECKPOINT_VERSION, CheckpointSource, Head, HeadDevice, HeadFound, NoPiece, PieceReader, PieceWriter,
    Section,
};
use crate::format::record::{DeviceRecord, DeviceState};
use crate::media::Media;
use crate::store::Store;
use crate::store::checkpoint::Loading;

/// Why no checkpoint was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unsaved<E> {
    /// The stop has no identity, or it is not on record.
    #[error("the stop is not on record")]
    NotStopped,
    /// Something is still in progress, or the pool is not whole: another start repairs that.
    #[error("{0}")]
    NotAtRest(&'static str),
    /// A piece could not be written.
    #[error("{0}")]
    Sink(E),
}

/// Whether an opening used a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CheckpointUse {
    /// None was offered.
    #[default]
    NotOffered,
    /// The tables came from it.
    Loaded,
    /// It could not be used: the metadata pages were read.
    Refused(NoCheckpoint),
}

/// Why a checkpoint was not used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoCheckpoint {
    /// The record does not name a clean stop.
    #[error("the pool was not stopped cleanly, or the program that stopped it does not write checkpoints")]
    NotStopped,
    /// There is no checkpoint.
    #[error("there is none")]
    Missing,
    /// It ends too early.
    #[error("it ends after {pieces} pieces")]
    Short {
        /// Pieces that were read.
        pieces: u32,
    },
    /// A checksum does not match.
    #[error("piece {piece} of it is damaged")]
    Damaged {
        /// The piece, counted from 0.
        piece: u32,
    },
    /// The format version is another.
    #[error("it has version {found}, this program reads version {expected}")]
    Version {
        /// Its version.
        found: u32,
        /// The version of this program.
        expected: u32,
    },
    /// It belongs to another pool or arena.
    #[error("it is of arena {found}", found = Named(*found))]
    OtherArena {
        /// The arena.
        found: ArenaId,
    },
    /// It belongs to another stop.
    #[error("it is not of the last stop")]
    OtherStop,
    /// It was made with other devices, or one of them is not here, or the pool is not whole.
    #[error("the devices in use are not those of the stop, or not all of them are whole")]
    Devices,
    /// The write-intent bitmaps cannot be read.
    #[error("the write-intent bitmaps cannot be read")]
    Intents,
    /// It has a disk that the record does not know.
    #[error("it has blocks of a disk that the pool does not know")]
    Disks,
    /// Its parts contradict each other.
    #[error("its parts do not fit together")]
    Inconsistent,
    /// There are staged blocks, or the contents of the devices are void.
    #[error("it is older than the staged blocks or than the loss of all devices")]
    Overtaken,
}

/// An arena as messages name it.
struct Named(ArenaId);

impl std::fmt::Display for Named {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of pool {}", self.0.number, self.0.pool)
    }
}

impl Core {
    /// Turns the core, after a clean stop that has an identity, into a checkpoint: `sink` takes it piece by piece. No
    /// I/O of the core may be in flight.
    ///
    /// # Errors
    /// See [`Unsaved`]. The stop remains clean, and the pool opens without a checkpoint.
    pub fn checkpoint<E>(mut self, sink: &mut dyn FnMut(&[u8]) -> Result<(), E>) -> Result<(), Unsaved<E>> {
        let stop = self.pool.stop_name();
        if !self.pool.is_stopped() || stop == Uuid::default() {
            return Err(Unsaved::NotStopped);
        }
        self.is_at_rest().map_err(Unsaved::NotAtRest)?;
        self.drop_volatile();
        let head =
            Head { stop, arena: self.arena(), last_seq: self.durability.last(), devices: self.heads() };
        let write = |sink| {
            let mut pieces = PieceWriter::start(&head, sink)?;
            self.store.save(&mut pieces)?;
            pieces.finish()
        };
        write(sink).map_err(Unsaved::Sink)
    }

    /// Checks that the devices have everything, that the record says so, and that nothing needs to be repaired.
    fn is_at_rest(&self) -> Result<(), &'static str> {
        let is_staged = self.disks.numbers().any(|disk| self.staging.all_of(disk).next().is_some());
        let busy = self.requests.len() > 0 || self.ios.len() > 0 || !self.batches.is_empty() || is_staged;
        if busy || !self.locks.is_empty() || self.is_preparing() {
            return Err("requests or I/O are in flight");
        }
        let has_job = self.jobs.is_pool_busy() || self.disks.iter().any(|d| d.job.is_some());
        if has_job || !self.durability.record.is_idle() {
            return Err("a job is not done");
        }
        if !self.durability.is_durable(self.durability.last()) || !self.store.is_at_rest() {
            return Err("not all writes are durable, or a device has left since the pool was opened");
        }
        let is_whole =
            !self.pool.is_degraded() && !self.pool.distrusts_clean() && self.devices.purge.is_over();
        if !is_whole || self.devices.leaves_any() || self.devices.has_gone() {
            return Err("the pool is not whole");
        }
        Ok(())
    }

    /// Drops clean blocks whose region was written past the cache, if the origin may have such writes in its volatile
    /// cache alone. Opening without a checkpoint drops them, too.
    fn drop_volatile(&mut self) {
        for segment in self.store.segments.numbers() {
            let disk = DiskNo(self.store.segments[segment].owner);
            let Some(d) = self.disks.get(disk).filter(|d| !d.origin.is_durable()) else { continue };
            for number in self.store.slots_of(segment) {
                let Some(slot) = self.store.slot(number).primary() else { continue };
                if !slot.dirty() && d.intents.is_marked(slot.block()) {
                    self.store.invalidate(disk, slot.block());
                }
            }
        }
    }

    fn heads(&self) -> Vec<HeadDevice> {
        let mut devices: Vec<_> = self.store.devices.numbered().collect();
        devices.sort_by_key(|(_, device)| device.as_ref().map(|device| device.first_segment));
        let head = |(number, device): (_, &Option<crate::store::DeviceSpace>)| {
            let device = device.as_ref()?;
            let (id, segments, prepared) = (device.id, device.segments, device.prepared);
            Some(HeadDevice { number, id, segments, prepared })
        };
        devices.into_iter().filter_map(head).collect()
    }
}

/// Loads a checkpoint of the stop that the record names. Writes nothing. `is_overtaken` says that the checkpoint is
/// outdated: there are staged blocks, or the contents of the devices are void.
pub(super) fn load(
    media: &mut dyn Media,
    pool: &Pool,
    source: &mut dyn CheckpointSource,
    is_overtaken: bool,
) -> Result<Recovered, NoCheckpoint> {
    let record = &pool.record;
    if !record.clean_stop || record.stop == Uuid::default() {
        return Err(NoCheckpoint::NotStopped);
    }
    if is_overtaken {
        return Err(NoCheckpoint::Overtaken);
    }
    let mut pieces = PieceReader::new(source);
    let head = head(&mut pieces, pool)?;
    let mut store = Store::new();
    store.second_copies = pool.record.redundancy;
    for device in &head.devices {
        store.add_device(device.number, device.id, device.segments, device.prepared);
    }
    media.will_fill(&store.memory_to_fill());
    let mut r = Recovered::with(store, media, pool).map_err(|_| NoCheckpoint::Intents)?;
    (r.last_seq, r.flushed_seq) = (head.last_seq, head.last_seq);
    let mut loading = Loading::default();
    loop {
        let number = pieces.next_number();
        let piece = pieces.next().map_err(|why| missing(why, number))?;
        if piece.section == Section::End {
            break;
        }
        r.store.load(&mut loading, &piece).ok_or(NoCheckpoint::Inconsistent)?;
    }
    r.store.finish_loading(&loading).ok_or(NoCheckpoint::Inconsistent)?;
    let holds = |disk: &DiskNo| !r.store.disks[*disk].segments.is_empty();
    for disk in r.store.disks.numbers().filter(holds).collect::<Vec<_>>() {
        let known = record.disks.get(disk.0 as usize).copied().flatten().ok_or(NoCheckpoint::Disks)?;
        r.keep_persistent(disk, known.persistence);
    }
    Ok(r)
}

fn missing(why: NoPiece, number: u32) -> NoCheckpoint {
    match why {
        NoPiece::Missing if number == 0 => NoCheckpoint::Missing,
        NoPiece::Missing => NoCheckpoint::Short { pieces: number },
        NoPiece::Damaged => NoCheckpoint::Damaged { piece: number },
    }
}

/// Reads the head, and checks that it belongs to the pool as it is.
fn head(pieces: &mut PieceReader<'_>, pool: &Pool) -> Result<Head, NoCheckpoint> {
    let head = match pieces.head().map_err(|why| missing(why, 0))? {
        HeadFound::Valid(head) => head,
        HeadFound::OtherVersion(found) => {
            return Err(NoCheckpoint::Version { found, expected: CHECKPOINT_VERSION });
        }
        HeadFound::Damaged => return Err(NoCheckpoint::Damaged { piece: 0 }),
    };
    let mut present = pool.present.iter().flatten();
    if present.any(|device| device.superblock.arena != head.arena) {
        return Err(NoCheckpoint::OtherArena { found: head.arena });
    }
    if head.stop != pool.record.stop {
        return Err(NoCheckpoint::OtherStop);
    }
    let in_use = |device: &&DeviceRecord| device.state.is_in_use();
    let recorded = pool.record.devices.iter().flatten().filter(in_use).count();
    let is_whole = pool.missing.is_empty() && !pool.record.distrust_clean && recorded == head.devices.len();
    if !is_whole || !head.devices.iter().all(|device| is_here(pool, device)) {
        return Err(NoCheckpoint::Devices);
    }
    if head.last_seq < pool.record.flushed_seq {
        return Err(NoCheckpoint::Inconsistent);
    }
    Ok(head)
}

/// Whether a device is in use as it was at the stop.
fn is_here(pool: &Pool, device: &HeadDevice) -> bool {
    let at = usize::from(device.number.0);
    let recorded = pool.record.devices.get(at).copied().flatten();
    let present = pool.present.get(at).copied().flatten();
    let as_recorded = recorded.is_some_and(|found| {
        let DeviceRecord { id, segments, prepared, state } = found;
        (id, segments, prepared) == (device.id, device.segments, device.prepared)
            && state == DeviceState::Active
    });
    as_recorded && present.is_some_and(|found| found.superblock.segments == device.segments)
}

impl Recovered {
    /// Drops the blocks of a disk that do not outlive a restart. Others stay, even where the origin may have been
    /// written past the cache: the tables of a clean stop know which blocks that was.
    fn keep_persistent(&mut self, disk: DiskNo, persistence: Persistence) {
        if persistence == Persistence::All {
            return;
        }
        for segment in self.store.disks[disk].segments.clone() {
            for number in self.store.slots_of(segment) {
                let Some(slot) = self.store.slot(number).primary() else { continue };
                if persistence == Persistence::None || !slot.dirty() {
                    self.store.invalidate(disk, slot.block());
                }
            }
        }
    }
}
