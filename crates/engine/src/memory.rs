//! An arena's block memory: a staging area in a shared-memory file, and private transfer frames.
//!
//! The file (`docs/format.md`, "Staging area") holds the descriptors, padded to whole pages, followed by the
//! staging frames. It lives on a memory file system, so it survives the process but not a power loss. All
//! frames are mapped contiguously: frame `n` is at `n * 4096`.
//!
//! Invariants
//! - Only one process uses the file at a time: it is locked while it is mapped.
//! - No other user can write to the file: its directory is open to everybody, and what is in it counts as acknowledged.
//! - A descriptor is stored after its frame's content; a fence keeps the compiler from reordering them.
//! - A truncated file is never read as zeroes, however briefly it was truncated: the process ends.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{Ordering, compiler_fence};

use haversack_core::{DESCRIPTOR_BYTES, FrameNo, Memory, Payloads, RequestTag, checksum};
use haversack_guard::{Guard, Whole};
use haversack_model::BLOCK_BYTES;

use crate::error::{EngineError, Result, at};
use crate::lock;
use crate::mapping::Mapping;
use crate::staging_size;

/// See the module documentation.
pub(crate) struct SharedMemory<P> {
    /// Dropped before the mappings that it watches.
    watch: Watch,
    descriptors: Mapping,
    frames: Mapping,
    staging_frames: u32,
    /// Holds the lock.
    file: File,
    file_bytes: u64,
    /// The payloads of requests.
    pub payloads: P,
}

/// Ends the process when the staging file loses pages.
struct Watch {
    message: String,
    _guards: [Guard; 2],
    /// Empty where the kernel does not allow it. A file that is truncated and extended again at once is then
    /// not noticed.
    _whole: Vec<Whole>,
}

impl Watch {
    /// Watches the mappings of the descriptors and the staging frames.
    fn new(path: &Path, parts: [(*const u8, usize); 2]) -> io::Result<Watch> {
        let message = format!(
            "haversackd: the staging area {} has lost pages while it was in use: it was truncated, or memory has failed. \
             What was acknowledged and not flushed may be lost, as after a power failure. The process ends, so that what is \
             left is not taken for data; the next start continues from the cache devices",
            path.display()
        );
        let [first, second] = parts.map(|(start, bytes)| Guard::ending(start, bytes, &message));
        let whole: io::Result<Vec<Whole>> =
            parts.iter().map(|(start, bytes)| Whole::watch(*start, *bytes)).collect();
        let whole = whole.unwrap_or_else(|error| {
            tracing::debug!(path = %path.display(), %error, "cannot watch the staging area for missing pages");
            Vec::new()
        });
        Ok(Watch { message, _guards: [first?, second?], _whole: whole })
    }
}

fn descriptor_bytes(staging_frames: u32) -> usize {
    ((staging_frames as usize + 1) * DESCRIPTOR_BYTES).next_multiple_of(BLOCK_BYTES)
}

/// Returns the size of a staging file with this many frames.
pub(crate) fn staging_file_bytes(staging_frames: u32) -> u64 {
    (descriptor_bytes(staging_frames) + staging_frames as usize * BLOCK_BYTES) as u64
}

/// Checks that something at the path of a staging file belongs to this user, and that nobody else can write to it.
fn check_ours(path: &Path, found: &Metadata) -> Result<()> {
    let expected_uid = rustix::process::geteuid().as_raw();
    let is_ours = found.is_file() && found.uid() == expected_uid && found.mode() & 0o022 == 0;
    if is_ours {
        return Ok(());
    }
    let kind = if found.is_file() { "a file" } else { "something that is not a file," };
    let found = format!("{kind} of user {} with mode {:04o}", found.uid(), found.mode() & 0o7777);
    Err(EngineError::StagingNotOurs { path: path.to_path_buf(), found, expected_uid })
}

/// Opens or creates the staging file. A file of another size that has content is refused: it may hold
/// acknowledged writes.
fn open_file(path: &Path, bytes: u64) -> Result<File> {
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path);
    let file = opened.map_err(|error| {
        let foreign = std::fs::symlink_metadata(path).ok().and_then(|found| check_ours(path, &found).err());
        foreign.unwrap_or_else(|| at("open the staging area", path)(error))
    })?;
    check_ours(path, &file.metadata().map_err(at("examine", path))?)?;
    lock::exclusively(&file, path)?;
    let found_bytes = file.metadata().map_err(at("examine", path))?.len();
    if found_bytes != 0 && found_bytes != bytes {
        let (path, expected_bytes) = (path.to_path_buf(), bytes);
        return Err(match staging_size::by_header(&file).map_err(at("read", &path))? {
            Some(made) if made == found_bytes => {
                EngineError::StagingSize { path, found_bytes, expected_bytes }
            }
            Some(made_bytes) => EngineError::StagingTruncated { path, found_bytes, made_bytes },
            None => EngineError::StagingWithoutHeader { path, found_bytes, expected_bytes },
        });
    }
    // Allocate all of it now, so that a memory file system that fills up later does not end the process.
    // SAFETY: the descriptor is open.
    let failed = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes as libc::off_t) };
    if failed != 0 {
        return Err(at("allocate the staging area", path)(io::Error::from_raw_os_error(failed)));
    }
    Ok(file)
}

impl<P> SharedMemory<P> {
    /// Maps the staging area at `path`, followed by transfer frames.
    ///
    /// # Errors
    /// The file cannot be opened, is in use, has another size, or does not fit into memory.
    pub fn open(
        path: &Path,
        staging_frames: u32,
        transfer_frames: u32,
        payloads: P,
    ) -> Result<SharedMemory<P>> {
        let file_bytes = staging_file_bytes(staging_frames);
        let file = open_file(path, file_bytes)?;
        let head = descriptor_bytes(staging_frames);
        let staging = staging_frames as usize * BLOCK_BYTES;
        let map = at("map the staging area", path);
        let mapped = || -> io::Result<(Mapping, Mapping, Watch)> {
            let descriptors = Mapping::shared(&file, 0, head)?;
            let mut frames = Mapping::anonymous(staging + transfer_frames as usize * BLOCK_BYTES)?;
            frames.overlay(&file, head as u64, staging)?;
            let parts = [(&descriptors, head), (&frames, staging)];
            let watch =
                Watch::new(path, parts.map(|(mapping, bytes)| (mapping.address(0).cast_const(), bytes)))?;
            Ok((descriptors, frames, watch))
        };
        let (descriptors, frames, watch) = mapped().map_err(map)?;
        Ok(SharedMemory { watch, descriptors, frames, staging_frames, file, file_bytes, payloads })
    }

    /// Ends the process if the staging file has lost pages. Called when the kernel could not access its memory.
    pub fn check_whole(&self) {
        let is_whole = self
            .file
            .metadata()
            .is_ok_and(|file| file.len() == self.file_bytes && file.blocks() * 512 >= self.file_bytes);
        if !is_whole {
            eprintln!("{}", self.watch.message);
            std::process::abort();
        }
    }

    /// Empties the staging file after a clean stop: nothing in it counts any more, and the next start may use
    /// another size. The staging area must not be used after this.
    pub fn empty_file(&self) -> io::Result<()> {
        self.file.set_len(0)
    }

    /// Returns the address of a frame's bytes, for the kernel to read or fill.
    pub fn address(&self, frame: FrameNo, at: usize) -> *mut u8 {
        debug_assert!(frame.0 < self.count() && at < BLOCK_BYTES);
        self.frames.address(frame.0 as usize * BLOCK_BYTES + at)
    }

    /// Returns the memory of the transfer frames, for the kernel.
    pub fn transfer(&self) -> (*mut u8, usize) {
        let at = self.staging_frames as usize * BLOCK_BYTES;
        (self.frames.address(at), self.frames.len() - at)
    }

    fn count(&self) -> u32 {
        (self.frames.len() / BLOCK_BYTES) as u32
    }
}

impl<P: Payloads> Memory for SharedMemory<P> {
    fn staging_frames(&self) -> u32 {
        self.staging_frames
    }

    fn frames(&self) -> u32 {
        self.count()
    }

    fn frame(&self, frame: FrameNo) -> &[u8; BLOCK_BYTES] {
        self.frames.array(frame.0 as usize)
    }

    fn frame_mut(&mut self, frame: FrameNo) -> &mut [u8; BLOCK_BYTES] {
        self.frames.array_mut(frame.0 as usize)
    }

    fn take(
        &mut self,
        tag: RequestTag,
        payload_at: usize,
        frame: FrameNo,
        frame_at: usize,
        len: usize,
    ) -> bool {
        let frame: &mut [u8; BLOCK_BYTES] = self.frames.array_mut(frame.0 as usize);
        self.payloads.take(tag, payload_at, &mut frame[frame_at..frame_at + len])
    }

    fn give(&mut self, tag: RequestTag, payload_at: usize, frame: FrameNo, frame_at: usize, len: usize) {
        let frame: &[u8; BLOCK_BYTES] = self.frames.array(frame.0 as usize);
        self.payloads.give(tag, payload_at, &frame[frame_at..frame_at + len]);
    }

    fn copy(&mut self, from: FrameNo, to: FrameNo, at: usize, len: usize) {
        let (source, target) = self.frames.two_arrays::<BLOCK_BYTES>(from.0 as usize, to.0 as usize);
        target[at..at + len].copy_from_slice(&source[at..at + len]);
    }

    fn zero(&mut self, frame: FrameNo, at: usize, len: usize) {
        self.frame_mut(frame)[at..at + len].fill(0);
    }

    fn crc(&self, frame: FrameNo) -> u32 {
        checksum::crc32c(self.frame(frame))
    }

    fn descriptor(&self, index: u32) -> &[u8; DESCRIPTOR_BYTES] {
        self.descriptors.array(index as usize)
    }

    fn store_descriptor(&mut self, index: u32, bytes: &[u8; DESCRIPTOR_BYTES]) {
        compiler_fence(Ordering::SeqCst);
        *self.descriptors.array_mut(index as usize) = *bytes;
        compiler_fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use haversack_core::format::descriptor::StagingHeader;
    use haversack_model::ArenaId;

    use super::*;

    struct NoPayloads;
    impl Payloads for NoPayloads {
        fn take(&mut self, _: RequestTag, _: usize, _: &mut [u8]) -> bool {
            true
        }
        fn give(&mut self, _: RequestTag, _: usize, _: &[u8]) {}
    }

    fn path(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("haversack-memory-{}-{name}", std::process::id()))
    }

    #[test]
    fn staged_data_outlives_the_mapping() {
        let path = path("outlives");
        let mut memory = SharedMemory::open(&path, 100, 20, NoPayloads).unwrap();
        memory.frame_mut(FrameNo(99)).fill(7);
        memory.frame_mut(FrameNo(119)).fill(8);
        memory.store_descriptor(100, &[9; DESCRIPTOR_BYTES]);
        drop(memory);
        let memory = SharedMemory::open(&path, 100, 20, NoPayloads).unwrap();
        assert_eq!((memory.frames(), memory.staging_frames()), (120, 100));
        assert_eq!(memory.frame(FrameNo(99)), &[7; BLOCK_BYTES]);
        assert_eq!(memory.frame(FrameNo(119)), &[0; BLOCK_BYTES]);
        assert_eq!(memory.descriptor(100), &[9; DESCRIPTOR_BYTES]);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_others_can_write_is_refused() {
        let (path, target) = (path("foreign"), path("foreign-target"));
        let told = || SharedMemory::open(&path, 100, 20, NoPayloads).err().unwrap().to_string();

        std::os::unix::fs::symlink(&target, &path).unwrap();
        assert!(told().contains("something that is not a file, of user "), "{}", told());
        assert!(!target.exists(), "it was made through the link");
        std::fs::remove_file(&path).unwrap();

        drop(SharedMemory::open(&path, 100, 20, NoPayloads).unwrap());
        std::fs::set_permissions(&path, Permissions::from_mode(0o620)).unwrap();
        assert!(told().contains("with mode 0620, expected a file of user "), "{}", told());
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        drop(SharedMemory::open(&path, 100, 20, NoPayloads).unwrap());
        // Only root can give a file away.
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
            assert!(told().contains("found a file of user 12345 with mode 0644"), "{}", told());
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn another_size_is_refused() {
        let path = path("size");
        let mut memory = SharedMemory::open(&path, 100, 20, NoPayloads).unwrap();
        memory.store_descriptor(100, &StagingHeader { arena: ArenaId::default(), staging_id: 1 }.encode());
        drop(memory);
        let told = |frames| SharedMemory::open(&path, frames, 20, NoPayloads).err().unwrap().to_string();
        assert!(told(101).contains("set the configured size back"), "{}", told(101));
        let cut = |bytes| File::options().write(true).open(&path).unwrap().set_len(bytes).unwrap();
        cut(staging_file_bytes(100) - 4096);
        assert!(told(100).contains("was cut from 417792 to 413696 bytes"), "{}", told(100));
        assert!(told(101).contains("was cut from 417792 to 413696 bytes"), "{}", told(101));
        cut(4096);
        assert!(told(100).contains("4096 bytes, 417792 expected"), "{}", told(100));
        std::fs::remove_file(path).unwrap();
    }
}
