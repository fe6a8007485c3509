//! The guest's memory as the front end described it: regions mapped from files.
//!
//! A value never changes; another table is another value that shares the mappings both have. Code that may still
//! access a region holds the value it was found in, and so keeps the region mapped.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use crate::mapping::{Mapping, Window};
use crate::quota::Quota;

/// How many regions a front end may set up (KVM's usual number of user slots).
pub const MAX_MEMORY_REGIONS: usize = 509;

/// Location of a region of guest memory, in each side's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionDescription {
    /// First byte in the guest's physical memory.
    pub guest_address: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// First byte in the front end's own memory; ring addresses use these.
    pub user_address: u64,
    /// First byte in the file.
    pub file_offset: u64,
}

/// Why a memory table is not usable.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The kernel or a check refused the mapping.
    #[error("memory region {0:x?} cannot be mapped: {1}")]
    Map(RegionDescription, #[source] io::Error),
    /// The region is empty or wraps around.
    #[error("memory region {0:x?} is empty or exceeds the address space")]
    Range(RegionDescription),
    /// Two regions share guest addresses.
    #[error("memory region {0:x?} overlaps the region at guest address {1:#x}")]
    Overlap(RegionDescription, u64),
    /// More regions than [`MAX_MEMORY_REGIONS`].
    #[error("more than {MAX_MEMORY_REGIONS} memory regions")]
    TooMany,
    /// A region to be removed does not exist.
    #[error("no memory region {0:x?} to remove")]
    Unknown(RegionDescription),
}

#[derive(Clone, Debug)]
struct Region {
    description: RegionDescription,
    window: Window,
}

/// Mapped guest memory. Small changes are cheap: see [`GuestMemory::with`].
#[derive(Clone, Debug, Default)]
pub struct GuestMemory {
    /// Sorted by guest address, disjoint.
    regions: Vec<Region>,
    quota: Quota,
}

/// A piece of a guest buffer within one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub(crate) region: u32,
    pub(crate) offset: usize,
    /// Its address in the guest's physical memory.
    pub guest_address: u64,
    /// Length in bytes, never zero.
    pub len_bytes: u32,
}

impl GuestMemory {
    /// Returns memory without regions; their mappings will count in a quota.
    pub fn counted(quota: Quota) -> Self {
        Self { regions: Vec::new(), quota }
    }

    /// Returns this memory with one more region.
    ///
    /// # Errors
    /// The region cannot be mapped, overlaps another, or is one too many.
    pub fn with(&self, region: RegionDescription, file: impl AsFd) -> Result<Self, MemoryError> {
        if self.regions.len() >= MAX_MEMORY_REGIONS {
            return Err(MemoryError::TooMany);
        }
        let RegionDescription { guest_address, size_bytes, user_address, file_offset } = region;
        if size_bytes == 0
            || guest_address.checked_add(size_bytes).is_none()
            || user_address.checked_add(size_bytes).is_none()
        {
            return Err(MemoryError::Range(region));
        }
        let at = self.regions.partition_point(|r| r.description.guest_address < guest_address);
        let below = at.checked_sub(1).map(|i| self.regions[i].description);
        let above = self.regions.get(at).map(|r| r.description);
        if let Some(below) = below.filter(|r| r.guest_address + r.size_bytes > guest_address) {
            return Err(MemoryError::Overlap(region, below.guest_address));
        }
        if let Some(above) = above.filter(|r| guest_address + size_bytes > r.guest_address) {
            return Err(MemoryError::Overlap(region, above.guest_address));
        }
        let mapping = Mapping::new(file, file_offset, size_bytes, &self.quota);
        let mapping = mapping.map_err(|e| MemoryError::Map(region, e))?;
        let mapping = Arc::new(mapping);
        let window = Window::new(&mapping, 0, mapping.len()).ok_or(MemoryError::Range(region))?;
        let mut regions = self.regions.clone();
        regions.insert(at, Region { description: region, window });
        Ok(Self { regions, quota: self.quota.clone() })
    }

    /// Returns this memory without the region at the same addresses; the offset in the file does not matter.
    ///
    /// # Errors
    /// There is no such region.
    pub fn without(&self, region: RegionDescription) -> Result<Self, MemoryError> {
        let key = |r: &RegionDescription| (r.guest_address, r.size_bytes, r.user_address);
        let mut regions = self.regions.clone();
        regions.retain(|r| key(&r.description) != key(&region));
        if regions.len() == self.regions.len() {
            return Err(MemoryError::Unknown(region));
        }
        Ok(Self { regions, quota: self.quota.clone() })
    }

    /// Returns whether a part of it was lost: truncated by its owner, or failed.
    pub(crate) fn is_lost(&self) -> bool {
        self.regions.iter().any(|region| region.window.is_lost())
    }

    /// Returns the first guest address above all regions; zero if there is none.
    pub fn end_address(&self) -> u64 {
        self.regions.last().map_or(0, |r| r.description.guest_address + r.description.size_bytes)
    }

    /// Returns `len` bytes at an address of the front end's own memory, if they lie within one region.
    pub(crate) fn at_user_address(&self, address: u64, len: usize) -> Option<Window> {
        self.regions.iter().find_map(|region| {
            let offset = address.checked_sub(region.description.user_address)?;
            region.window.part(usize::try_from(offset).ok()?, len)
        })
    }

    /// Returns the location of `len` bytes at a guest address, if they lie within one region: its memory and the
    /// offset in it.
    pub(crate) fn at_guest_address(&self, address: u64, len: usize) -> Option<(&Window, usize)> {
        let (index, offset) = self.find(address)?;
        let window = &self.regions[index].window;
        (len <= window.len() - offset).then_some((window, offset))
    }

    /// Returns the first piece of `len` bytes at a guest address: shorter if the region ends before.
    pub(crate) fn segment(&self, guest_address: u64, len: u32) -> Option<Segment> {
        let (index, offset) = self.find(guest_address)?;
        let left = self.regions[index].window.len() - offset;
        let len_bytes = u32::try_from(left).map_or(len, |left| left.min(len));
        Some(Segment { region: index as u32, offset, guest_address, len_bytes })
    }

    /// Returns the region that contains a guest address, and the address's offset in it.
    fn find(&self, guest_address: u64) -> Option<(usize, usize)> {
        let after = self.regions.partition_point(|r| r.description.guest_address <= guest_address);
        let index = after.checked_sub(1)?;
        let offset = guest_address - self.regions[index].description.guest_address;
        let offset = usize::try_from(offset).ok()?;
        (offset < self.regions[index].window.len()).then_some((index, offset))
    }

    /// Returns the memory that contains a segment of this value.
    pub(crate) fn window(&self, segment: &Segment) -> &Window {
        &self.regions[segment.region as usize].window
    }
}

impl Segment {
    /// Returns the segment without its first `count` bytes, which must be fewer than it has.
    pub(crate) fn skip(self, count: u32) -> Self {
        assert!(count < self.len_bytes, "a segment of {} bytes cannot lose {count}", self.len_bytes);
        Self {
            offset: self.offset + count as usize,
            guest_address: self.guest_address + u64::from(count),
            len_bytes: self.len_bytes - count,
            ..self
        }
    }
}
