//! Types shared by all Haversack crates: identities, addresses, write modes.
//!
//! There is no logic here, only names and the arithmetic that defines them.

mod bug_switch;
pub mod place;
pub mod random;

use std::fmt;
use std::str::FromStr;

/// Bytes of a sector, the smallest unit that a guest can address.
pub const SECTOR_BYTES: usize = 512;
/// Bytes of a cache block.
pub const BLOCK_BYTES: usize = 4096;
/// Sectors of a cache block.
pub const SECTORS_PER_BLOCK: u64 = (BLOCK_BYTES / SECTOR_BYTES) as u64;

/// Microseconds on the caller's monotonic clock.
pub type Micros = u64;

/// The permanent identity of a virtual disk: a UUID, the same on every host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DiskId(pub [u8; 16]);

/// The permanent identity of a pool or of a cache device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Uuid(pub [u8; 16]);

/// A host that may own disks, the same number on every host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct HostId(pub u64);

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The number of an arena in its pool, from 0 on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct ArenaNo(pub u8);

/// The identity of an arena: the part of a pool with its own segments, index, sequence numbers, record and staging
/// area. A disk belongs to one arena, and nothing in an arena refers to another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct ArenaId {
    /// The pool.
    pub pool: Uuid,
    /// Which part of it.
    pub number: ArenaNo,
}

/// A disk's index in its arena's disk table, stable while the arena knows the disk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct DiskNo(pub u16);

/// An attached disk, as everything outside of the core refers to it: its arena, its index in the arena's disk table,
/// and which of the arena's attachments this is. An index is reused once its disk was forgotten, a handle never: the
/// handle of a detached disk refers to no disk, rather than to the next one at that index.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct DiskHandle {
    arena: ArenaNo,
    number: DiskNo,
    generation: u32,
}

/// A cache device's index in the pool's device table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct DeviceNo(pub u8);

/// A 512-byte sector of a virtual disk, as numbered by the guest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SectorNo(pub u64);

/// A cache block of a virtual disk, on the disk's own grid (see the grid phase).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct BlockNo(pub u64);

/// When the origin sees a write, and whether the cache keeps it. Names as in Open CAS.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WriteMode {
    /// `wb`: acknowledged once staged; the cleaner writes the origin later.
    WriteBack,
    /// `wt`: cache and origin both get the write.
    WriteThrough(WriteThroughAck),
    /// `wa`: the origin gets the write; a cached block is updated, an uncached one stays uncached.
    WriteAround,
    /// `wi`: the origin gets the write; a cached block is dropped.
    WriteInvalidate,
    /// `pt`: neither reads nor writes use the cache.
    PassThrough,
}

/// When a write-through write is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WriteThroughAck {
    /// Once the origin has it.
    Origin,
    /// Once the cache has it, while the write to the origin is still in flight.
    Cache,
}

impl ArenaId {
    /// Returns the identity of a pool's first arena, or only one.
    pub fn first(pool: Uuid) -> ArenaId {
        ArenaId { pool, number: ArenaNo(0) }
    }
}

impl DiskHandle {
    /// Makes the handle of an attachment. Only the code that counts an arena's attachments makes handles.
    pub fn new(arena: ArenaNo, number: DiskNo, generation: u32) -> DiskHandle {
        DiskHandle { arena, number, generation }
    }

    /// Returns the disk's arena.
    pub fn arena(self) -> ArenaNo {
        self.arena
    }

    /// Returns the disk's index, which belongs to another disk once this one was forgotten.
    pub fn number(self) -> DiskNo {
        self.number
    }
}

impl fmt::Display for DiskHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.arena.0, self.number.0, self.generation)
    }
}

macro_rules! shows_its_number {
    ($($name:ty)*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

shows_its_number!(ArenaNo DiskNo DeviceNo SectorNo BlockNo);

impl WriteMode {
    /// All write modes.
    pub const ALL: [WriteMode; 6] = [
        WriteMode::WriteBack,
        WriteMode::WriteThrough(WriteThroughAck::Origin),
        WriteMode::WriteThrough(WriteThroughAck::Cache),
        WriteMode::WriteAround,
        WriteMode::WriteInvalidate,
        WriteMode::PassThrough,
    ];

    /// Returns the name in settings.
    pub fn name(self) -> &'static str {
        match self {
            WriteMode::WriteBack => "wb",
            WriteMode::WriteThrough(WriteThroughAck::Origin) => "wt",
            WriteMode::WriteThrough(WriteThroughAck::Cache) => "wt-cache",
            WriteMode::WriteAround => "wa",
            WriteMode::WriteInvalidate => "wi",
            WriteMode::PassThrough => "pt",
        }
    }

    /// Returns whether the cache has a written block afterwards. `cached` says whether it had it before.
    pub fn caches_write(self, cached: bool) -> bool {
        match self {
            WriteMode::WriteThrough(_) | WriteMode::WriteBack => true,
            WriteMode::WriteAround => cached,
            WriteMode::WriteInvalidate | WriteMode::PassThrough => false,
        }
    }

    /// Returns whether a write may be acknowledged before the origin has it.
    pub fn defers_origin(self) -> bool {
        matches!(self, WriteMode::WriteBack | WriteMode::WriteThrough(WriteThroughAck::Cache))
    }
}

impl fmt::Display for WriteMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for WriteMode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let unknown = || {
            let names = WriteMode::ALL.map(WriteMode::name).join(", ");
            format!("unknown write mode '{name}': expected one of {names}")
        };
        WriteMode::ALL.into_iter().find(|mode| mode.name() == name).ok_or_else(unknown)
    }
}

impl fmt::Display for DiskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(uuid::Uuid::from_bytes_ref(&self.0), f)
    }
}

impl fmt::Debug for DiskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(uuid::Uuid::from_bytes_ref(&self.0), f)
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_mode_names_round_trip() {
        for mode in WriteMode::ALL {
            assert_eq!(mode.name().parse(), Ok(mode));
        }
        let refused = "writeback".parse::<WriteMode>().unwrap_err();
        assert_eq!(refused, "unknown write mode 'writeback': expected one of wb, wt, wt-cache, wa, wi, pt");
    }

    #[test]
    fn numbers_print_as_numbers() {
        let (device, block) = (DeviceNo(0), BlockNo(1157));
        assert_eq!(format!("device {device}, block {block:>6}"), "device 0, block   1157");
    }

    #[test]
    fn identities_print_as_uuids() {
        let id = DiskId([0xab; 16]);
        assert_eq!(id.to_string(), "abababab-abab-abab-abab-abababababab");
    }
}
