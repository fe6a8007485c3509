//! Cache devices: block devices and files, opened for direct I/O and locked against other processes.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut, Seek, SeekFrom};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use haversack_core::pool::Division;
use haversack_model::ArenaNo;

use crate::error::{EngineError, Result, at};
use crate::faults::Faults;
use crate::pool::Formatting;
use crate::write_cache::WriteCache;
use crate::{lock, signature};

/// An open cache device, or one extent of it: the part that belongs to one arena. Offsets are from its beginning.
pub(crate) struct CacheDevice {
    file: File,
    pub path: PathBuf,
    /// Where the extent begins on the device.
    pub start_bytes: u64,
    pub capacity_bytes: u64,
    /// Makes it fail on demand, in tests.
    pub faults: Option<Faults>,
    /// A file that was created for the pool.
    pub is_new: bool,
    write_cache: WriteCache,
}

fn open_with(path: &Path, flags: i32) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)
}

/// Opens a path for direct I/O where the file system supports it; a block device exclusively, so that it cannot
/// be mounted while in use.
fn open_alone(path: &Path) -> Result<File> {
    let kind = std::fs::metadata(path).map_err(at("open", path))?.file_type();
    if kind.is_block_device() {
        let busy = |e: &io::Error| e.raw_os_error() == Some(libc::EBUSY);
        return lock::patiently(path, false, || match open_with(path, libc::O_DIRECT | libc::O_EXCL) {
            Err(e) if busy(&e) => Ok(None),
            opened => opened.map(Some).map_err(at("open", path)),
        });
    }
    if !kind.is_file() {
        return Err(EngineError::WrongKind { path: path.to_path_buf() });
    }
    match open_with(path, libc::O_DIRECT) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
            tracing::info!(path = %path.display(), "direct I/O is not supported on this file system: using the page cache");
            open_with(path, 0).map_err(at("open", path))
        }
        opened => opened.map_err(at("open", path)),
    }
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Changes the owner and group of a file created by root to those of its directory. Only the owner can open the file,
/// and the daemon may run as another user than root.
fn give_to_owner_of_directory(file: &File, path: &Path) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let owner = std::fs::metadata(directory_of(path))?;
    fchown(file, Some(owner.uid()), Some(owner.gid()))
}

/// Creates a file with all of its space allocated. Its name is durable as well: a power failure must not take away the
/// cache with all that its guests have flushed.
fn make_file(path: &Path, size_bytes: u64) -> Result<()> {
    let file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(at("create", path))?;
    if let Err(error) = give_to_owner_of_directory(&file, path) {
        // Not every file system supports ownership. A process that cannot open the file later gets an error.
        tracing::warn!(path = %path.display(), "cannot give the file to the owner of the directory: {error}");
    }
    let made = allocate(&file, path, size_bytes).and_then(|()| {
        let directory = directory_of(path);
        File::open(directory).and_then(|it| it.sync_all()).map_err(at("make durable", directory))
    });
    if made.is_err() {
        let _ = std::fs::remove_file(path);
    }
    made
}

fn allocate(file: &File, path: &Path, size_bytes: u64) -> Result<()> {
    // SAFETY: the descriptor is open.
    let failed = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, size_bytes as libc::off_t) };
    match failed {
        0 => Ok(()),
        failed => Err(at("allocate all of", path)(io::Error::from_raw_os_error(failed))),
    }
}

impl CacheDevice {
    /// Opens a device and locks it. Waits a while if a process that is about to exit holds the lock.
    pub fn open(name: &Path) -> Result<CacheDevice> {
        let (path, faults) = Faults::of(name);
        let path = path.as_path();
        let mut file = open_alone(path)?;
        lock::exclusively(&file, path)?;
        let capacity_bytes = file.seek(SeekFrom::End(0)).map_err(at("find the size of", path))?;
        let write_cache = WriteCache::of(&file);
        Ok(CacheDevice {
            file,
            path: path.to_path_buf(),
            start_bytes: 0,
            capacity_bytes,
            faults,
            is_new: false,
            write_cache,
        })
    }

    /// Opens a device that is to be formatted. A file that does not exist is created with the given size and
    /// fully allocated; anything that exists must be blank, unless overwriting is allowed.
    pub fn create(path: &Path, formatting: Formatting) -> Result<CacheDevice> {
        let Some(bytes) = formatting.size_bytes.filter(|_| !path.exists()) else {
            let device = CacheDevice::open(path)?;
            if !formatting.overwrite {
                signature::refuse_data(&device.path)?;
            }
            return Ok(device);
        };
        make_file(path, bytes)?;
        let opened = CacheDevice::open(path);
        if opened.is_err() {
            let _ = std::fs::remove_file(path);
        }
        Ok(CacheDevice { is_new: true, ..opened? })
    }

    /// Duplicates the open device. It stays open and locked until both are dropped.
    pub fn again(&self) -> Result<CacheDevice> {
        self.part(0, self.capacity_bytes)
    }

    /// Duplicates the open device, as the extent of an arena.
    pub fn extent(&self, division: Division, arena: ArenaNo) -> Result<CacheDevice> {
        self.part(u64::from(arena.0) * division.extent_bytes, division.extent_bytes)
    }

    fn part(&self, start_bytes: u64, capacity_bytes: u64) -> Result<CacheDevice> {
        let file = self.file.try_clone().map_err(at("open", &self.path))?;
        let start_bytes = self.start_bytes + start_bytes;
        let (path, faults) = (self.path.clone(), self.faults.clone());
        let (is_new, write_cache) = (self.is_new, self.write_cache.clone());
        Ok(CacheDevice { file, path, start_bytes, capacity_bytes, faults, is_new, write_cache })
    }

    /// Reads all of `bytes` from an offset.
    pub fn read_at(&self, bytes: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        self.file.read_exact_at(bytes, self.start_bytes + offset_bytes)
    }

    /// Reads from an offset to several places, one after the other; returns how many bytes were read.
    pub fn read_pages_at(&self, pages: &mut [IoSliceMut<'_>], offset_bytes: u64) -> io::Result<usize> {
        let offset_bytes = self.start_bytes + offset_bytes;
        Ok(rustix::io::retry_on_intr(|| rustix::io::preadv(&self.file, pages, offset_bytes))?)
    }

    /// Writes all of `bytes` to an offset.
    pub fn write_at(&self, bytes: &[u8], offset_bytes: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, self.start_bytes + offset_bytes)
    }

    /// Makes everything written durable.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Whether what was written is durable without a flush. All access to a block device is past the page cache.
    pub fn is_durable(&self) -> bool {
        self.write_cache.is_durable()
    }

    /// Returns the current size of a file that has been truncated since it was opened.
    pub fn cut_to_bytes(&self) -> Option<u64> {
        let now = self.file.metadata().ok()?;
        (now.is_file() && now.len() < self.start_bytes + self.capacity_bytes).then_some(now.len())
    }

    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}
