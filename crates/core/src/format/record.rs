//! The pool record: devices, disks, ownership. It is rarely written, and then as a whole, on every device, in
//! both copies.

use haversack_model::{ArenaId, DiskId, HostId, Uuid};

use super::codec::{Reader, Writer};
use super::geometry::{PAGE_BYTES, RECORD_PAGES};
use crate::checksum::{arena_seed, crc32c};
use crate::config::{MAX_DEVICES, MAX_DISKS, Persistence};
use crate::store::slot::IMPOSSIBLE_SEQ;

const MAGIC: &[u8; 8] = b"HVRECORD";
const HEADER_BYTES: usize = 8 + 4 + 4;

/// The state of a device in the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceState {
    /// In use.
    Active,
    /// Failed or removed: its contents are void.
    Retired,
    /// In use, and it may hold the only copy of dirty blocks, although they should have two.
    Alone,
}

impl DeviceState {
    /// Whether the device is in use.
    pub fn is_in_use(self) -> bool {
        self != DeviceState::Retired
    }
}

/// A device in the record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceRecord {
    /// Its identity.
    pub id: Uuid,
    /// Segments on it.
    pub segments: u32,
    /// This many of its segments, from the first, are prepared for use. The others were never used, regardless of their
    /// content.
    pub prepared: u32,
    /// Its state in the pool.
    pub state: DeviceState,
}

/// What the loss of dirty blocks means for a disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Damage {
    /// None were lost.
    #[default]
    None,
    /// Some were lost. The remaining ones are the newest versions of their blocks.
    Lost,
    /// Some may have been lost, and it is unknown which: the remaining ones may be older than the origin's
    /// content.
    Uncertain,
}

/// What this host still has to do, or to answer to other hosts, after a disk's last migration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Moved {
    /// Nothing.
    #[default]
    No,
    /// Another host owns the disk, and needs no block from here.
    Away {
        /// That host.
        to: HostId,
        /// The host whose dirty blocks it may need, if this host knows of one.
        holder: Option<HostId>,
    },
    /// Another host owns the disk, and needs the dirty blocks that are here.
    Peer {
        /// That host.
        to: HostId,
    },
    /// This host owns the disk, and another one still has dirty blocks.
    Depends {
        /// That host.
        on: HostId,
    },
    /// This host owns the disk, and another one may have a replica of its dirty blocks.
    Replicates {
        /// That host.
        at: HostId,
    },
    /// Another host owns the disk, and this one keeps copies of its dirty blocks.
    Replica {
        /// The owner.
        of: HostId,
        /// The start of the owner, and the count of its replicas since: a later replica has a greater one. Zeros if an
        /// earlier program started this one.
        session: [u64; 2],
        /// The owner had told this host that everything flushed is here.
        is_complete: bool,
    },
    /// Another host has taken the disk over by force, or is about to. Dirty blocks here are obsolete.
    Overtaken {
        /// That host.
        to: HostId,
    },
}

/// A disk in the record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskRecord {
    /// Its identity.
    pub id: DiskId,
    /// Its sectors.
    pub sectors: u64,
    /// Its grid phase.
    pub phase: u8,
    /// Whether this host owns it.
    pub owned: bool,
    /// The ownership epoch.
    pub epoch: u64,
    /// Whether blocks of it may be dirty on flash.
    pub may_be_dirty: bool,
    /// Whether the origin may hold writes in its volatile cache that no write-intent bitmap marks.
    pub origin_volatile: bool,
    /// Whether dirty blocks of it were lost. The record does not say which.
    pub damage: Damage,
    /// Blocks that survive a restart.
    pub persistence: Persistence,
    /// Entries of commits with lower sequence numbers are void.
    pub since_seq: u64,
    /// Blocks that commits up to this number wrote are clean, regardless of what their pages say.
    pub clean_seq: u64,
    /// What remains of its last migration.
    pub moved: Moved,
}

/// The pool record.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PoolRecord {
    /// Increases with each write.
    pub generation: u64,
    /// Counts the lives of the staging area. The one with this number belongs to the pool in its current state.
    pub staging_id: u64,
    /// Counts openings of the pool.
    pub openings: u64,
    /// The last stop was clean: nothing needs to be verified.
    pub clean_stop: bool,
    /// Dirty blocks go to two devices.
    pub redundancy: bool,
    /// A device was lost whose entries may have been newer than clean ones elsewhere: those are not to be
    /// trusted.
    pub distrust_clean: bool,
    /// Every commit up to this sequence number is durable.
    pub flushed_seq: u64,
    /// By device number; `None` where there never was one.
    pub devices: Vec<Option<DeviceRecord>>,
    /// By disk number; `None` where there is none.
    pub disks: Vec<Option<DiskRecord>>,
    /// The highest sequence number on the devices when the pool was last opened after a stop that was not clean. A
    /// commit that this stop cut short may have left its data, but not its page: then the slot of a clean block that a
    /// commit up to this number wrote has other data.
    pub crashed_seq: u64,
    /// The identity of the clean stop that wrote this record: a checkpoint of the same stop has what the devices have.
    /// Zero if there is none.
    pub stop: Uuid,
}

/// Returns the checksum of the body of an arena's record.
fn checksum(body: &[u8], arena: ArenaId) -> u32 {
    crc32c(body) ^ arena_seed(arena) as u32
}

fn persistence_code(p: Persistence) -> u8 {
    match p {
        Persistence::All => 0,
        Persistence::Dirty => 1,
        Persistence::None => 2,
    }
}

fn persistence_of(code: u8) -> Option<Persistence> {
    Some(match code {
        0 => Persistence::All,
        1 => Persistence::Dirty,
        2 => Persistence::None,
        _ => return None,
    })
}

fn damage_code(damage: Damage) -> u8 {
    match damage {
        Damage::None => 0,
        Damage::Uncertain => 1,
        Damage::Lost => 2,
    }
}

fn damage_of(code: u8) -> Option<Damage> {
    [Damage::None, Damage::Uncertain, Damage::Lost].into_iter().find(|damage| damage_code(*damage) == code)
}

/// Returns the code of what remains of a migration, and the two hosts; 0 for none.
fn moved_fields(moved: Moved) -> (u8, u64, u64) {
    match moved {
        Moved::No => (0, 0, 0),
        Moved::Away { to, holder: None } => (1, to.0, 0),
        Moved::Away { to, holder: Some(holder) } => (2, to.0, holder.0),
        Moved::Peer { to } => (3, to.0, 0),
        Moved::Depends { on } => (4, on.0, 0),
        Moved::Overtaken { to } => (5, to.0, 0),
        Moved::Replicates { at } => (6, at.0, 0),
        Moved::Replica { of, is_complete, .. } => (7, of.0, u64::from(is_complete)),
    }
}

fn moved_of(code: u8, host: u64, holder: u64) -> Option<Moved> {
    let host = HostId(host);
    Some(match code {
        0 => Moved::No,
        1 => Moved::Away { to: host, holder: None },
        2 => Moved::Away { to: host, holder: Some(HostId(holder)) },
        3 => Moved::Peer { to: host },
        4 => Moved::Depends { on: host },
        5 => Moved::Overtaken { to: host },
        6 => Moved::Replicates { at: host },
        7 => Moved::Replica { of: host, session: [0; 2], is_complete: holder == 1 },
        _ => return None,
    })
}

fn state_code(state: DeviceState) -> u8 {
    match state {
        DeviceState::Active => 0,
        DeviceState::Retired => 1,
        DeviceState::Alone => 2,
    }
}

fn state_of(code: u8) -> Option<DeviceState> {
    [DeviceState::Active, DeviceState::Retired, DeviceState::Alone]
        .into_iter()
        .find(|state| state_code(*state) == code)
}

impl DiskRecord {
    /// Returns the highest sequence number that the entry mentions. All commits up to it were made before the
    /// record was written.
    pub fn last_seq(&self) -> u64 {
        self.clean_seq.max(self.since_seq.saturating_sub(1))
    }
}

impl PoolRecord {
    /// Whether some dirty blocks may have no mirrored copy although they should.
    pub fn is_degraded(&self) -> bool {
        self.devices.iter().flatten().any(|device| device.state == DeviceState::Alone)
    }

    /// Returns the record of this arena as whole pages.
    pub fn encode(&self, arena: ArenaId) -> Vec<u8> {
        let mut w = Writer::default();
        w.u64(self.generation)
            .u64(self.staging_id)
            .u64(self.openings)
            .flag(self.clean_stop)
            .flag(self.redundancy);
        w.flag(self.is_degraded()).flag(self.distrust_clean).u64(self.flushed_seq);
        w.u32(self.devices.len() as u32);
        for device in &self.devices {
            w.flag(device.is_some());
            if let Some(d) = device {
                w.bytes(&d.id.0).u32(d.segments).u32(d.prepared).u8(state_code(d.state));
            }
        }
        w.u32(self.disks.len() as u32);
        for disk in &self.disks {
            w.flag(disk.is_some());
            if let Some(d) = disk {
                w.bytes(&d.id.0).u64(d.sectors).u8(d.phase).flag(d.owned).u64(d.epoch);
                w.u8(u8::from(d.may_be_dirty) | u8::from(d.origin_volatile) << 1);
                w.u8(damage_code(d.damage)).u8(persistence_code(d.persistence));
                let (moved, host, holder) = moved_fields(d.moved);
                w.u64(d.since_seq).u64(d.clean_seq).u8(moved).u64(host).u64(holder);
            }
        }
        w.u64(self.crashed_seq).bytes(&self.stop.0);
        for disk in self.disks.iter().flatten() {
            if let Moved::Replica { session: [start, count], .. } = disk.moved {
                w.u64(start).u64(count);
            }
        }
        let body = w.0;
        let mut out = Writer::default();
        out.bytes(MAGIC).u32(body.len() as u32).u32(checksum(&body, arena)).bytes(&body);
        let pages = out.0.len().div_ceil(PAGE_BYTES as usize);
        assert!(pages as u64 <= RECORD_PAGES, "the largest record fits its area");
        out.0.resize(pages * PAGE_BYTES as usize, 0);
        out.0
    }

    /// Reads a copy of the record. Returns `None` if it is not whole, not of this arena, or has numbers from which no
    /// pool could continue.
    pub fn decode(area: &[u8], arena: ArenaId) -> Option<PoolRecord> {
        let mut r = Reader(area);
        let magic: [u8; 8] = r.array()?;
        let (length, crc) = (r.u32()? as usize, r.u32()?);
        let body = area.get(HEADER_BYTES..)?.get(..length)?;
        if &magic != MAGIC || checksum(body, arena) != crc {
            return None;
        }
        let mut r = Reader(body);
        let mut record = PoolRecord {
            generation: r.u64()?,
            staging_id: r.u64()?,
            openings: r.u64()?,
            clean_stop: r.flag()?,
            redundancy: r.flag()?,
            ..PoolRecord::default()
        };
        let _is_degraded = r.flag()?;
        (record.distrust_clean, record.flushed_seq) = (r.flag()?, r.u64()?);
        let devices = r.u32()? as usize;
        if devices > MAX_DEVICES {
            return None;
        }
        for _ in 0..devices {
            record.devices.push(if r.flag()? { Some(Self::device(&mut r)?) } else { None });
        }
        let disks = r.u32()? as usize;
        if disks > MAX_DISKS {
            return None;
        }
        for _ in 0..disks {
            record.disks.push(if r.flag()? { Some(Self::disk(&mut r)?) } else { None });
        }
        // Records of earlier programs end here, or after one of the next fields.
        record.crashed_seq = r.u64().unwrap_or(0);
        record.stop = Uuid(r.array().unwrap_or_default());
        for disk in record.disks.iter_mut().flatten() {
            if let Moved::Replica { session, .. } = &mut disk.moved {
                *session = [r.u64().unwrap_or(0), r.u64().unwrap_or(0)];
            }
        }
        let seqs = record.disks.iter().flatten().map(DiskRecord::last_seq);
        let mut seqs = seqs.chain([record.flushed_seq, record.crashed_seq]);
        seqs.all(|seq| seq < IMPOSSIBLE_SEQ).then_some(record)
    }

    fn device(r: &mut Reader<'_>) -> Option<DeviceRecord> {
        Some(DeviceRecord {
            id: Uuid(r.array()?),
            segments: r.u32()?,
            prepared: r.u32()?,
            state: state_of(r.u8()?)?,
        })
    }

    fn disk(r: &mut Reader<'_>) -> Option<DiskRecord> {
        let (id, sectors, phase) = (DiskId(r.array()?), r.u64()?, r.u8()?);
        let (owned, epoch, flags) = (r.flag()?, r.u64()?, r.u8()?);
        Some(DiskRecord {
            id,
            sectors,
            phase,
            owned,
            epoch,
            may_be_dirty: flags & 1 != 0,
            origin_volatile: flags & 2 != 0,
            damage: damage_of(r.u8()?)?,
            persistence: persistence_of(r.u8()?)?,
            since_seq: r.u64()?,
            clean_seq: r.u64()?,
            moved: moved_of(r.u8()?, r.u64()?, r.u64()?)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use haversack_model::ArenaNo;

    use super::*;

    fn disk() -> DiskRecord {
        DiskRecord {
            id: DiskId([3; 16]),
            sectors: 99,
            phase: 7,
            owned: true,
            epoch: 4,
            may_be_dirty: true,
            origin_volatile: true,
            damage: Damage::Uncertain,
            persistence: Persistence::Dirty,
            since_seq: 9,
            clean_seq: 11,
            moved: Moved::No,
        }
    }

    #[test]
    fn the_largest_record_round_trips() {
        let disk = disk();
        let device =
            DeviceRecord { id: Uuid([1; 16]), segments: 8, prepared: 5, state: DeviceState::Retired };
        let states = [DeviceState::Active, DeviceState::Retired, DeviceState::Alone];
        let (to, holder) = (HostId(7), Some(HostId(u64::MAX)));
        let moves = [
            Moved::No,
            Moved::Away { to, holder: None },
            Moved::Away { to, holder },
            Moved::Peer { to },
            Moved::Depends { on: to },
            Moved::Overtaken { to },
            Moved::Replicates { at: to },
            Moved::Replica { of: to, session: [7 << 60, 3], is_complete: false },
            Moved::Replica { of: to, session: [0, 0], is_complete: true },
        ];
        let damages = [Damage::None, Damage::Lost, Damage::Uncertain];
        let record = PoolRecord {
            generation: 5,
            crashed_seq: 1 << 40,
            stop: Uuid([8; 16]),
            devices: (0..MAX_DEVICES)
                .map(|at| Some(DeviceRecord { state: states[at % 3], ..device }))
                .collect(),
            disks: (0..MAX_DISKS)
                .map(|at| Some(DiskRecord { damage: damages[at % 3], moved: moves[at % 9], ..disk }))
                .collect(),
            ..PoolRecord::default()
        };
        let arena = ArenaId { pool: Uuid([6; 16]), number: ArenaNo(1) };
        let mut bytes = record.encode(arena);
        let other = ArenaId { pool: Uuid([7; 16]), ..arena };
        assert_eq!(PoolRecord::decode(&bytes, other), None, "a record of another pool");
        let other = ArenaId { number: ArenaNo(0), ..arena };
        assert_eq!(PoolRecord::decode(&bytes, other), None, "a record of another arena");
        assert_eq!(PoolRecord::decode(&bytes, arena), Some(record));
        bytes[40] ^= 1;
        assert_eq!(PoolRecord::decode(&bytes, arena), None);
        let moved = Moved::Replica { of: to, session: [1, 2], is_complete: true };
        let disks = vec![Some(DiskRecord { moved, ..disk }); MAX_DISKS];
        let devices = vec![Some(device); MAX_DEVICES];
        let largest = PoolRecord { devices, disks, ..PoolRecord::default() };
        assert_eq!(PoolRecord::decode(&largest.encode(arena), arena), Some(largest));
    }

    /// Its replicas count as older than none: it is not known which is the later one.
    #[test]
    fn a_record_of_an_earlier_program_has_no_sessions() {
        let arena = ArenaId::first(Uuid([6; 16]));
        let replica = |session| {
            let moved = Moved::Replica { of: HostId(3), session, is_complete: true };
            let disk = DiskRecord { moved, ..disk() };
            PoolRecord { disks: vec![Some(disk)], ..PoolRecord::default() }
        };
        let bytes = shortened(replica([5, 6]).encode(arena), 16, arena);
        assert_eq!(PoolRecord::decode(&bytes, arena), Some(replica([0; 2])));
    }

    /// Returns a record without its last bytes.
    fn shortened(mut bytes: Vec<u8>, by: u32, arena: ArenaId) -> Vec<u8> {
        let length = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) - by;
        bytes[8..12].copy_from_slice(&length.to_le_bytes());
        let crc = checksum(&bytes[HEADER_BYTES..][..length as usize], arena);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    #[test]
    fn a_record_with_impossible_numbers_does_not_count() {
        let arena = ArenaId::first(Uuid([6; 16]));
        let high = IMPOSSIBLE_SEQ;
        let with = |disk| PoolRecord { disks: vec![Some(disk)], ..PoolRecord::default() };
        let records = [
            with(DiskRecord { since_seq: high + 1, ..disk() }),
            with(DiskRecord { clean_seq: high, ..disk() }),
            PoolRecord { flushed_seq: high, ..PoolRecord::default() },
            PoolRecord { crashed_seq: u64::MAX, ..PoolRecord::default() },
        ];
        for record in records {
            assert_eq!(PoolRecord::decode(&record.encode(arena), arena), None, "{record:?}");
        }
    }

    #[test]
    fn a_record_of_an_earlier_program_names_no_stop() {
        let arena = ArenaId::first(Uuid([6; 16]));
        let record = PoolRecord { crashed_seq: 7, stop: Uuid([8; 16]), ..PoolRecord::default() };
        let bytes = shortened(record.encode(arena), 16, arena);
        assert_eq!(PoolRecord::decode(&bytes, arena), Some(PoolRecord { stop: Uuid::default(), ..record }));
    }
}
