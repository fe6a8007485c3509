//! The contents of the cache devices, byte by byte. `docs/format.md` describes the same in prose.

pub mod checkpoint;
pub mod codec;
pub mod descriptor;
pub mod geometry;
pub mod page;
pub mod record;
pub mod superblock;

/// Version of everything on the devices and in the staging area.
pub const FORMAT_VERSION: u32 = 5;
