//! Mapped memory, unmapped when dropped.
//!
//! Invariant
//! - The kernel reads and writes parts of it for I/Os in flight. A reference covers only the bytes that its caller asks
//!   for, and no caller asks for bytes of an I/O in flight.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// The bytes of a large page.
const LARGE_PAGE_BYTES: usize = 2 << 20;

/// Asks the system to back memory with large pages, as far as there are whole ones in it. They are filled with one page
/// fault each, and the processor finds them faster. If the system has none, nothing changes.
pub fn ask_for_large_pages(addresses: &Range<usize>) {
    let start = addresses.start.next_multiple_of(LARGE_PAGE_BYTES);
    let end = addresses.end - addresses.end % LARGE_PAGE_BYTES;
    if start < end {
        let memory = std::ptr::without_provenance_mut(start);
        // SAFETY: the advice does not change what memory contains, and there is an error if nothing is mapped there.
        let failed = unsafe { madvise(memory, end - start, Advice::LinuxHugepage) };
        if let Err(error) = failed {
            tracing::debug!(%error, "no large pages");
        }
    }
}

/// Bytes that are mapped readable and writable.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

impl Mapping {
    /// Maps zeroed, private memory.
    pub fn anonymous(len: usize) -> io::Result<Mapping> {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, READ_WRITE, MapFlags::PRIVATE)? };
        Mapping::at(start, len)
    }

    /// Maps part of a file, which must be at least this long.
    pub fn shared(file: &File, offset_bytes: u64, len: usize) -> io::Result<Mapping> {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start =
            unsafe { mmap(std::ptr::null_mut(), len, READ_WRITE, MapFlags::SHARED, file, offset_bytes)? };
        Mapping::at(start, len)
    }

    fn at(start: *mut std::ffi::c_void, len: usize) -> io::Result<Mapping> {
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Mapping { start, len })
    }

    /// Replaces the first bytes of the mapping by part of a file.
    pub fn overlay(&mut self, file: &File, offset_bytes: u64, len: usize) -> io::Result<()> {
        assert!(len <= self.len, "the file's part fits");
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: inside the mapping, which is borrowed mutably.
        unsafe { mmap(self.start.as_ptr().cast(), len, READ_WRITE, flags, file, offset_bytes)? };
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn address(&self, at: usize) -> *mut u8 {
        assert!(at < self.len, "inside the mapping");
        // SAFETY: inside the mapping.
        unsafe { self.start.as_ptr().add(at) }
    }

    /// Returns `N` bytes from number `index * N` on.
    pub fn array<const N: usize>(&self, index: usize) -> &[u8; N] {
        // SAFETY: mapped as long as `self` lives, and no I/O in flight changes these bytes.
        unsafe { &*self.array_address(index) }
    }

    /// As [`Mapping::array`].
    pub fn array_mut<const N: usize>(&mut self, index: usize) -> &mut [u8; N] {
        // SAFETY: as for `array`, and `self` is borrowed mutably.
        unsafe { &mut *self.array_address(index) }
    }

    /// As [`Mapping::array`], to copy from one to another.
    pub fn two_arrays<const N: usize>(&mut self, from: usize, to: usize) -> (&[u8; N], &mut [u8; N]) {
        assert_ne!(from, to, "a copy is between two different places");
        // SAFETY: as for `array`, `self` is borrowed mutably, and the two do not overlap.
        unsafe { (&*self.array_address(from), &mut *self.array_address(to)) }
    }

    fn array_address<const N: usize>(&self, index: usize) -> *mut [u8; N] {
        assert!(index < self.len / N, "inside the mapping");
        self.address(index * N).cast()
    }

    /// Returns the first bytes.
    pub fn first_mut(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= self.len, "inside the mapping");
        // SAFETY: as for `array_mut`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and no longer borrowed. That cannot fail.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the memory at an address has the advice, according to the system. `None` if the system does not say.
    fn has_advice(address: usize) -> Option<bool> {
        let maps = std::fs::read_to_string("/proc/self/smaps").ok()?;
        let mut is_here = false;
        for line in maps.lines() {
            let (first, rest) = line.split_once([' ', ':'])?;
            if let Some((start, end)) = first.split_once('-') {
                let number = |text| usize::from_str_radix(text, 16).ok();
                is_here = (number(start)?..number(end)?).contains(&address);
            } else if is_here && first == "VmFlags" {
                return Some(rest.split_whitespace().any(|flag| flag == "hg"));
            }
        }
        None
    }

    #[test]
    fn only_whole_large_pages_are_asked_for() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            return;
        }
        let mapping = Mapping::anonymous(4 * LARGE_PAGE_BYTES).expect("memory");
        let start = mapping.address(0).addr();
        ask_for_large_pages(&(start..start + LARGE_PAGE_BYTES - 1));
        assert_eq!(has_advice(start), Some(false));
        ask_for_large_pages(&(start + 1..start + 3 * LARGE_PAGE_BYTES));
        assert_eq!(has_advice(start), Some(false));
        assert_eq!(has_advice((start + 1).next_multiple_of(LARGE_PAGE_BYTES)), Some(true));
    }
}
