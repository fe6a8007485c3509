//! Memory shared with the front end, and the only place where it is accessed.
//!
//! The other side may change any byte at any time. So nothing here ever forms a reference to shared bytes: they are
//! copied out and in, or accessed as atomics. Every access is checked against the bounds of its window; an access
//! outside is a bug in this crate, never the guest's fault, and panics.
//!
//! The other side may also truncate the file. The missing bytes then read as zeroes, and the mapping is *lost*, which
//! must be checked before data that was read is trusted.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};

use haversack_guard::Guard;
use rustix::fs::FileType;
use rustix::mm::{MapFlags, ProtFlags};

use crate::quota::{self, MAX_MAPPINGS, Place, Quota};

/// `f_type` of hugetlbfs, whose files are mapped in units of their own page size.
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// `f_type` of file systems whose pages come from another process or host, which may never answer.
const SLOW_FILE_SYSTEMS: [(u64, &str); 7] = [
    (0x6573_5546, "FUSE"),
    (0x6969, "NFS"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "Ceph"),
    (0x6b41_4653, "AFS"),
];

/// A shared, writable mapping of a part of a file.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// Start of the mapping: at or below the first byte requested, on a page boundary.
    base: NonNull<u8>,
    mapped_bytes: usize,
    /// The first byte requested, from `base`.
    start: usize,
    len: usize,
    /// `None` once the mapping is being dropped.
    guard: Option<Guard>,
    place: Option<Place>,
}

// SAFETY: a mapping is plain memory owned by this value; all accesses go through atomics or raw copies.
unsafe impl Send for Mapping {}
// SAFETY: as above; concurrent raw copies can mix bytes, which the shared memory allows for anyway.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `file` from `offset`.
    ///
    /// # Errors
    /// `InvalidInput` if the range is empty, overflows or exceeds a regular file; `QuotaExceeded` if there are too
    /// many mappings; else the kernel's error.
    pub(crate) fn new(file: impl AsFd, offset: u64, len: u64, quota: &Quota) -> io::Result<Self> {
        let file = file.as_fd();
        let refused = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
        let end = offset.checked_add(len).filter(|_| len > 0);
        let end = end.ok_or_else(|| refused(format!("{len} bytes at {offset} is not a range")))?;
        let stat = rustix::fs::fstat(file)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && (stat.st_size as u64) < end {
            return Err(refused(format!(
                "{len} bytes at {offset} are beyond the end of a file of {} bytes",
                stat.st_size
            )));
        }
        let unit = page_bytes(file)?;
        let first = offset / unit * unit;
        let mapped = end.div_ceil(unit).checked_mul(unit).map(|end| end - first);
        let mapped = mapped.and_then(|bytes| usize::try_from(bytes).ok());
        let mapped_bytes = mapped.ok_or_else(|| refused(format!("{len} bytes are too many to map")))?;
        let place = quota.take().ok_or_else(|| {
            let what = format!(
                "the disk's front ends have {MAX_MAPPINGS} mappings, those of requests under way included"
            );
            io::Error::new(io::ErrorKind::QuotaExceeded, what)
        })?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address chosen by the kernel aliases nothing of this process.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), mapped_bytes, protection, flags, file, first) }?;
        let base = NonNull::new(base.cast()).ok_or_else(|| refused("mapped at address zero".into()))?;
        let start = (offset - first) as usize;
        let mut mapping =
            Self { base, mapped_bytes, start, len: len as usize, guard: None, place: Some(place) };
        mapping.guard = Some(Guard::surviving(base.as_ptr(), mapped_bytes)?);
        Ok(mapping)
    }

    /// Returns whether some of its bytes could not be accessed any more.
    pub(crate) fn is_lost(&self) -> bool {
        self.guard.as_ref().is_some_and(Guard::is_lost)
    }

    /// Returns how many bytes were requested.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of byte `at`, from which `len` bytes are mapped.
    fn address(&self, at: usize, len: usize) -> *mut u8 {
        let end = at.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "{len} bytes at {at} of a mapping of {}", self.len);
        // SAFETY: `start + at` lies within the mapping, or exactly at its end if `len` is zero.
        unsafe { self.base.as_ptr().add(self.start + at) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let (guard, place) = (self.guard.take(), self.place.take());
        let (base, bytes) = (self.base.as_ptr() as usize, self.mapped_bytes);
        quota::elsewhere(move || {
            drop(guard);
            // SAFETY: the range is the one returned by mmap; every user of it held a reference to the mapping, and
            // those are gone.
            let _ = unsafe { rustix::mm::munmap(base as *mut _, bytes) };
            drop(place);
        });
    }
}

/// Returns the number of a file system. The kernel extends the sign of some.
fn kind_of(f_type: u64) -> u64 {
    f_type & u64::from(u32::MAX)
}

/// Returns the name of a file system whose pages may never arrive.
fn slow_file_system(kind: u64) -> Option<&'static str> {
    SLOW_FILE_SYSTEMS.iter().find(|(magic, _)| *magic == kind).map(|(_, name)| *name)
}

/// Returns the unit in which a file must be mapped.
fn page_bytes(file: BorrowedFd) -> io::Result<u64> {
    let of_file = rustix::fs::fstatfs(file)?;
    let kind = kind_of(of_file.f_type as u64);
    if let Some(name) = slow_file_system(kind) {
        let what =
            format!("its file is on {name}: an access to it may block forever; use a local file system");
        return Err(io::Error::new(io::ErrorKind::Unsupported, what));
    }
    let huge = kind == HUGETLBFS_MAGIC;
    Ok(if huge { of_file.f_bsize as u64 } else { rustix::param::page_size() as u64 })
}

/// A part of a mapping that keeps the whole of it mapped.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    mapping: Arc<Mapping>,
    start: usize,
    len: usize,
}

impl Window {
    /// Returns `len` bytes of `mapping` from `start`; `None` if they are not all within it.
    pub(crate) fn new(mapping: &Arc<Mapping>, start: usize, len: usize) -> Option<Self> {
        start.checked_add(len).filter(|end| *end <= mapping.len())?;
        Some(Self { mapping: mapping.clone(), start, len })
    }

    /// Returns a part of this window; `None` if it is not all within.
    pub(crate) fn part(&self, start: usize, len: usize) -> Option<Self> {
        start.checked_add(len).filter(|end| *end <= self.len)?;
        Some(Self { mapping: self.mapping.clone(), start: self.start + start, len })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether some bytes of the mapping could not be accessed any more.
    pub(crate) fn is_lost(&self) -> bool {
        self.mapping.is_lost()
    }

    /// Returns whether the address of the first byte in this process is a multiple of `bytes`.
    pub(crate) fn is_aligned(&self, bytes: usize) -> bool {
        (self.address(0, 0) as usize).is_multiple_of(bytes)
    }

    /// Returns the address of byte `at`, from which `len` bytes are valid while a clone of this window lives.
    pub(crate) fn address(&self, at: usize, len: usize) -> *mut u8 {
        let end = at.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "{len} bytes at {at} of a window of {}", self.len);
        self.mapping.address(self.start + at, len)
    }

    fn aligned<T>(&self, at: usize) -> *mut T {
        let address = self.address(at, size_of::<T>()).cast::<T>();
        assert!(address.is_aligned(), "unaligned access to shared memory at {at}");
        address
    }

    pub(crate) fn u8(&self, at: usize) -> &AtomicU8 {
        // SAFETY: within bounds and mapped as long as `self` is borrowed; an atomic may change under us.
        unsafe { AtomicU8::from_ptr(self.aligned(at)) }
    }

    fn u16(&self, at: usize) -> &AtomicU16 {
        // SAFETY: within bounds, aligned, and mapped as long as `self` is borrowed.
        unsafe { AtomicU16::from_ptr(self.aligned(at)) }
    }

    fn u64(&self, at: usize) -> &AtomicU64 {
        // SAFETY: within bounds, aligned, and mapped as long as `self` is borrowed.
        unsafe { AtomicU64::from_ptr(self.aligned(at)) }
    }

    /// Loads a little-endian number; `order` as for atomics.
    pub(crate) fn load_u16(&self, at: usize, order: Ordering) -> u16 {
        u16::from_le(self.u16(at).load(order))
    }

    /// Stores a little-endian number; `order` as for atomics.
    pub(crate) fn store_u16(&self, at: usize, value: u16, order: Ordering) {
        self.u16(at).store(value.to_le(), order);
    }

    /// Loads a little-endian number; `order` as for atomics.
    pub(crate) fn load_u64(&self, at: usize, order: Ordering) -> u64 {
        u64::from_le(self.u64(at).load(order))
    }

    /// Stores a little-endian number; `order` as for atomics.
    pub(crate) fn store_u64(&self, at: usize, value: u64, order: Ordering) {
        self.u64(at).store(value.to_le(), order);
    }

    /// Copies bytes out.
    pub(crate) fn read(&self, at: usize, bytes: &mut [u8]) {
        let from = self.address(at, bytes.len());
        // SAFETY: the source is within the mapping; the target is ours, so they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
    }

    /// Copies bytes in.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        let to = self.address(at, bytes.len());
        // SAFETY: the target is within the mapping; the source is ours, so they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_on_slow_file_systems_are_refused() {
        let slow = |f_type: u64| slow_file_system(kind_of(f_type));
        assert_eq!((slow(0x6573_5546), slow(0x6969)), (Some("FUSE"), Some("NFS")));
        // The sign of CIFS' number is extended.
        assert_eq!(slow(0xffff_ffff_ff53_4d42), Some("CIFS"));
        // tmpfs, hugetlbfs, ext4, XFS, Btrfs.
        for local in [0x0102_1994, HUGETLBFS_MAGIC, 0xef53, 0x5846_5342, 0x9123_683e] {
            assert_eq!(slow(local), None, "{local:x}");
        }
    }
}
