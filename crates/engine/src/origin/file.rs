//! Files and block devices as origins, including devices of kernel initiators (iSCSI, NVMe-oF, multipath,
//! krbd).
//!
//! Block devices with 512-byte sectors are accessed with direct I/O, past the page cache: another host that
//! takes over the disk must find what was written. Devices with larger sectors go through the page cache,
//! because requests are multiples of 512 bytes. So do files, which are flushed with fdatasync.
//!
//! If the disk moves between hosts, the page cache is used only for files on file systems that keep it coherent. On
//! others, such as NFS, and on block devices, a host that gets the disk back would read stale pages: such
//! origins are accessed with direct I/O, or refused.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use haversack_core::{IoFailure, OriginMedia};
use haversack_model::BLOCK_BYTES;

use super::file_lock::{self, Users};
use super::{Origin, OriginAnswer, OriginContext, OriginOp, OriginRequest};
use crate::error::{EngineError, Result, at};
use crate::media::failure;
use crate::ring::{Completion, Order, Owner};

/// Zeroes for stores that cannot zero ranges themselves, aligned for direct I/O.
static ZEROES: Aligned = Aligned([0; 1 << 16]);
/// The longest write of zeroes.
const MOST_ZERO_BYTES: u64 = (ZEROES.0.len() * 64) as u64;
/// Types of file systems (statfs) that are local, or on which all hosts see the same pages: ext4, XFS, Btrfs, ZFS,
/// F2FS, bcachefs, tmpfs, ramfs, overlayfs; CephFS, GFS2, OCFS2, Lustre, GPFS.
const COHERENT: [u32; 14] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x2fc1_2fc1,
    0xf2f5_2010,
    0xca45_1a4e,
    0x0102_1994,
    0x8584_58f6,
    0x794c_7630,
    0x00c3_6400,
    0x0116_1970,
    0x7461_636f,
    0x0bd0_0bd0,
    0x4750_4653,
];

#[repr(align(4096))]
struct Aligned([u8; 1 << 16]);

/// An open file or block device.
pub(crate) struct OpenFile {
    file: File,
    pub size_bytes: u64,
    is_block_device: bool,
}

/// See the module documentation.
pub(crate) struct FileOrigin {
    file: File,
    is_block_device: bool,
    /// The store can zero ranges itself.
    makes_zeroes: bool,
    requests: HashMap<u64, Job>,
    next_token: u64,
}

/// A request in progress.
struct Job {
    request: OriginRequest,
    /// The data is written and must be durable: the file is being flushed.
    flushing: bool,
}

fn open_with(path: &Path, read_only: bool, flags: i32) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(!read_only).custom_flags(flags).open(path)
}

fn has_small_sectors(file: &File) -> bool {
    rustix::fs::ioctl_blksszget(file).is_ok_and(|bytes| bytes == 512)
}

/// Returns whether hosts see each other's writes to a file through their page caches. A file system on a block device
/// is either local, or shared by hosts with a lock on each page.
fn is_coherent(file: &File) -> bool {
    let is_on_device = file.metadata().is_ok_and(|found| rustix::fs::major(found.dev()) != 0);
    is_on_device || rustix::fs::fstatfs(file).is_ok_and(|found| COHERENT.contains(&(found.f_type as u32)))
}

/// Memory for one request of direct I/O.
#[repr(align(512))]
struct Sector([u8; 512]);

impl OpenFile {
    pub fn into_file(self) -> File {
        self.file
    }

    /// Opens a file or block device and locks it.
    pub fn open(path: &Path, users: Users) -> Result<OpenFile> {
        let read_only = users == Users::Readers;
        let mut opened = OpenFile::examine(path, read_only)?;
        let is_direct = match users {
            Users::Hosts => opened.is_block_device || !is_coherent(&opened.file),
            Users::One | Users::Readers => opened.is_block_device && has_small_sectors(&opened.file),
        };
        if is_direct {
            opened.bypass_page_cache(path, read_only)?;
        }
        file_lock::take(&opened.file, path, users)?;
        Ok(opened)
    }

    /// Opens a file or block device again for direct I/O.
    fn bypass_page_cache(&mut self, path: &Path, read_only: bool) -> Result<()> {
        let is_refused = |error: &std::io::Error| error.raw_os_error() == Some(libc::EINVAL);
        let refused = |source| EngineError::NoDirectIo { path: PathBuf::from(path), source };
        let direct = match open_with(path, read_only, libc::O_DIRECT) {
            Err(error) if is_refused(&error) => return Err(refused(error)),
            opened => opened.map_err(at("open the origin", path))?,
        };
        // Probe with one sector, the unit of requests. Ignore other read errors here: requests will report them.
        let mut sector = Sector([0; 512]);
        if let Err(error) = direct.read_at(&mut sector.0, 0)
            && is_refused(&error)
        {
            return Err(refused(error));
        }
        self.file = direct;
        Ok(())
    }

    /// Opens a file or block device for writing through the page cache, and locks it.
    pub fn buffered(path: &Path) -> Result<OpenFile> {
        let opened = OpenFile::examine(path, false)?;
        file_lock::take(&opened.file, path, Users::One)?;
        Ok(opened)
    }

    /// Opens a file or block device without a lock, to examine it.
    pub fn examine(path: &Path, read_only: bool) -> Result<OpenFile> {
        let mut file = open_with(path, read_only, 0).map_err(at("open the origin", path))?;
        let kind = file.metadata().map_err(at("examine", path))?.file_type();
        let is_block_device = kind.is_block_device();
        if !is_block_device && !kind.is_file() {
            return Err(EngineError::WrongKind { path: PathBuf::from(path) });
        }
        let size_bytes = file.seek(SeekFrom::End(0)).map_err(at("find the size of", path))?;
        Ok(OpenFile { file, size_bytes, is_block_device })
    }

    /// Refuses a file or device that carries a pool's superblock.
    pub fn refuse_cache_device(&self, path: &Path) -> Result<()> {
        let mut page = [0; BLOCK_BYTES];
        if self.size_bytes < page.len() as u64 || self.file.read_exact_at(&mut page, 0).is_err() {
            return Ok(());
        }
        match haversack_core::pool::device_of(&page).map(|identity| identity.pool) {
            Some(pool) => Err(EngineError::OriginIsCacheDevice { path: PathBuf::from(path), pool }),
            None => Ok(()),
        }
    }
}

impl FileOrigin {
    pub fn new(opened: OpenFile) -> FileOrigin {
        let OpenFile { file, is_block_device, .. } = opened;
        FileOrigin { file, is_block_device, makes_zeroes: true, requests: HashMap::new(), next_token: 0 }
    }

    /// Makes a request's written data durable.
    fn make_durable(&mut self, context: &mut OriginContext<'_>, request: OriginRequest) {
        let owner = Owner::Origin { disk: context.disk, token: self.next_token };
        context.ring.flush(owner, self.file.as_raw_fd(), context.now);
        self.requests.insert(self.next_token, Job { request, flushing: true });
        self.next_token += 1;
    }

    fn launch(&mut self, context: &mut OriginContext<'_>, request: OriginRequest) {
        let token = self.next_token;
        self.next_token += 1;
        let owner = Owner::Origin { disk: context.disk, token };
        let (fd, now, ring) = (self.file.as_raw_fd(), context.now, &mut *context.ring);
        let (offset, len) = (request.offset_bytes, request.len_bytes);
        let iovecs = request.iovecs.iter().copied();
        match request.op {
            OriginOp::Read => ring.read(owner, fd, offset, iovecs, Order::AtOnce, now),
            OriginOp::Write => ring.write(owner, fd, offset, iovecs, Order::AtOnce, now),
            OriginOp::Flush => ring.flush(owner, fd, now),
            OriginOp::Zero { discard } if self.makes_zeroes => {
                ring.allocate(owner, fd, self.zero_mode(discard), offset, len, now);
            }
            OriginOp::Zero { .. } => ring.write(owner, fd, offset, zero_iovecs(len), Order::AtOnce, now),
        }
        self.requests.insert(token, Job { request, flushing: false });
    }

    fn zero_mode(&self, discard: bool) -> i32 {
        // A block device punches a hole by zeroing, and may free the space.
        if discard || self.is_block_device {
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE
        } else {
            libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE
        }
    }
}

fn zero_iovecs(len_bytes: u64) -> impl Iterator<Item = libc::iovec> {
    let mut left = len_bytes.min(MOST_ZERO_BYTES) as usize;
    std::iter::from_fn(move || {
        let part = left.min(ZEROES.0.len());
        left -= part;
        let iov_base = ZEROES.0.as_ptr().cast_mut().cast();
        (part > 0).then_some(libc::iovec { iov_base, iov_len: part })
    })
}

impl Origin for FileOrigin {
    fn start(&mut self, context: &mut OriginContext<'_>, request: OriginRequest) {
        self.launch(context, request);
    }

    fn completed(&mut self, context: &mut OriginContext<'_>, token: u64, completion: Completion) {
        let Job { mut request, flushing } =
            self.requests.remove(&token).expect("the token is of a request in flight");
        let zero = !flushing && matches!(request.op, OriginOp::Zero { .. });
        match completion.result {
            Err(libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS) if zero && self.makes_zeroes => {
                self.makes_zeroes = false;
                self.launch(context, request);
            }
            Ok(bytes) if zero && bytes > 0 && (bytes as u64) < request.len_bytes => {
                request.offset_bytes += bytes as u64;
                request.len_bytes -= bytes as u64;
                self.launch(context, request);
            }
            Ok(_) if request.durable && !flushing => self.make_durable(context, request),
            result => {
                let result = result.map(|_| ()).map_err(|errno| {
                    tracing::warn!(disk = %context.id, ?request.op, request.offset_bytes, errno, "origin I/O failed");
                    failure(errno)
                });
                context.answers.push(OriginAnswer { request, result });
            }
        }
    }
}

impl OriginMedia for OpenFile {
    fn capacity_sectors(&self) -> u64 {
        self.size_bytes / 512
    }

    fn write(&mut self, sector: u64, bytes: &[u8]) -> std::result::Result<(), IoFailure> {
        let write = |file: &File| file.write_all_at(bytes, sector * 512);
        write(&self.file).map_err(|e| failure(e.raw_os_error().unwrap_or(libc::EIO)))
    }

    fn flush(&mut self) -> std::result::Result<(), IoFailure> {
        self.file.sync_data().map_err(|e| failure(e.raw_os_error().unwrap_or(libc::EIO)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(opened: &OpenFile) -> rustix::fs::OFlags {
        rustix::fs::fcntl_getfl(&opened.file).unwrap()
    }

    /// A local file system has one page cache, however often a file on it is opened.
    #[test]
    fn a_file_that_moves_goes_past_the_page_cache_only_where_hosts_have_different_ones() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("origin.img");
        std::fs::write(&path, vec![7; 8192]).unwrap();
        let mut opened = OpenFile::open(&path, Users::Hosts).unwrap();
        assert!(is_coherent(&opened.file) && !flags(&opened).contains(rustix::fs::OFlags::DIRECT));
        // Some file systems have no direct I/O, such as a tmpfs before Linux 6.6.
        let is_possible = open_with(&path, false, libc::O_DIRECT).is_ok();
        assert_eq!(opened.bypass_page_cache(&path, false).is_ok(), is_possible);
        assert_eq!(flags(&opened).contains(rustix::fs::OFlags::DIRECT), is_possible);
        assert_eq!(ZEROES.0.as_ptr().align_offset(4096), 0);
    }

    /// A file system that is not on a block device and not in the list of known ones.
    #[test]
    fn a_file_that_moves_is_refused_where_it_cannot_go_past_the_page_cache() {
        let path = Path::new("/proc/self/comm");
        let file = File::open(path).unwrap();
        let mut opened = OpenFile { file, size_bytes: 0, is_block_device: false };
        assert!(!is_coherent(&opened.file));
        let error = opened.bypass_page_cache(path, false).unwrap_err().to_string();
        assert!(error.contains("/proc/self/comm: direct I/O"), "{error}");
    }
}
