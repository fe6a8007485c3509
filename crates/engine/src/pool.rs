//! Work on pools that no reactor runs: creating and checking them, and saving the disks of a dead host.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use haversack_core::offline::{self, FlushProgress, OfflineError};
pub use haversack_core::offline::{CheckReport, DiskReport};
use haversack_core::{Media, OriginMedia, PREPARED_AT_FORMAT, PoolConfig};
use haversack_model::{ArenaId, ArenaNo, DiskId, Uuid};

use crate::assembly;
use crate::config::OriginSpec;
use crate::error::{EngineError, Result, at};
use crate::extents;
use crate::label::{self, Kind, Label};
use crate::media::Devices;

/// How a device is turned into a cache device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Formatting {
    /// A file that does not exist is created with this size, fully allocated.
    pub size_bytes: Option<u64>,
    /// Existing data may be overwritten; a pool never is.
    pub overwrite: bool,
}

/// What is fixed when a pool is created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Dirty blocks are written to two devices when there are two or more.
    pub redundancy: bool,
    /// The number of arenas, each with a thread of its own.
    pub arenas: u8,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape { redundancy: false, arenas: 1 }
    }
}

/// The most arenas that a pool can have.
pub const MOST_ARENAS: u8 = 64;

/// Creates a pool of some arenas on block devices and files. A device that carries a pool is refused; one with other
/// data too, unless it may be overwritten.
///
/// # Errors
/// A device cannot be opened or is unfit. Nothing is written unless all are fit, and files created by this call
/// are removed.
pub fn create(paths: &[PathBuf], formatting: Formatting, shape: Shape) -> Result<Uuid> {
    let Shape { redundancy, arenas } = shape;
    if !(1..=MOST_ARENAS).contains(&arenas) {
        return Err(EngineError::Arenas { arenas, most: MOST_ARENAS });
    }
    let id = random_id()?;
    let device_ids = paths.iter().map(|_| random_id()).collect::<Result<Vec<_>>>()?;
    let mut devices = Devices::create(paths, formatting)?;
    // The first arena comes last: without it, the devices carry no pool.
    for number in (0..arenas).rev() {
        let config = PoolConfig {
            arena: ArenaId { pool: id, number: ArenaNo(number) },
            arenas,
            device_ids: device_ids.clone(),
            redundancy,
            prepared_segments: (PREPARED_AT_FORMAT / u32::from(arenas)).max(1),
        };
        let made = extents::blank(&mut devices, arenas, config.arena.number)
            .and_then(|mut extents| Ok(haversack_core::pool::create(&mut extents, &config)?));
        if let Err(error) = made {
            devices.remove_made();
            return Err(error);
        }
    }
    Ok(id)
}

/// Returns how many bytes of each device the pool cannot use, because an arena has a maximum number of segments. Devices
/// with less than one unused segment are left out.
///
/// # Errors
/// A device cannot be opened.
pub fn unused(paths: &[PathBuf]) -> Result<BTreeMap<PathBuf, u64>> {
    let mut unused = BTreeMap::new();
    for mut extents in extents::of_arenas(&mut Devices::open(paths)?)? {
        for at in 0..extents.devices.len() {
            let bytes = haversack_core::pool::unused_bytes(&mut extents, at);
            if bytes > 0 {
                *unused.entry(extents.devices[at].path.clone()).or_insert(0) += bytes;
            }
        }
    }
    Ok(unused)
}

/// Returns the paths of a pool's devices: the listed paths that are not patterns, and the paths of the devices that
/// opening the pool would find. The pool must not be open.
pub fn places(name: &str, listed: &[PathBuf]) -> Vec<PathBuf> {
    assembly::places(name, listed)
}

/// Returns the identity of the pool that a device carries.
///
/// # Errors
/// The device cannot be opened, or carries no pool.
pub fn pool_on(path: &Path) -> Result<Uuid> {
    let mut devices = Devices::open(std::slice::from_ref(&path.to_path_buf()))?;
    find_pool(&mut devices).ok_or_else(|| EngineError::NothingToWipe { path: path.to_path_buf() })
}

fn find_pool(devices: &mut Devices) -> Option<Uuid> {
    haversack_core::pool::identify(devices, 0).map(|identity| identity.pool)
}

/// Overwrites a device's metadata with zeroes. The device then carries no pool, and everything cached on it is
/// lost.
///
/// # Errors
/// The device cannot be opened or written, is in use, or carries no pool.
pub fn wipe(path: &Path) -> Result<()> {
    let mut devices = Devices::open(std::slice::from_ref(&path.to_path_buf()))?;
    if find_pool(&mut devices).is_none() {
        return Err(EngineError::NothingToWipe { path: path.to_path_buf() });
    }
    let failed = |_| at("wipe", path)(std::io::Error::from_raw_os_error(libc::EIO));
    let zeroes = vec![0; haversack_core::pool::metadata_bytes() as usize];
    for mut extent in
        extents::of_arenas(&mut devices)?.into_iter().rev().filter(|extent| extent.devices() > 0)
    {
        extent.write(0, 0, &zeroes).and_then(|()| extent.flush(0)).map_err(failed)?;
    }
    Ok(())
}

/// Reads all metadata of a pool and, if `thorough`, the data of every block. Writes nothing.
///
/// # Errors
/// The pool cannot be read.
pub fn check(paths: &[PathBuf], thorough: bool) -> Result<CheckReport> {
    let mut arenas = extents::of_whole_pool(&mut Devices::open(paths)?)?.into_iter();
    let mut report = offline::check(&mut arenas.next().expect("a pool has an arena"), thorough)?;
    for mut extents in arenas {
        report.add(offline::check(&mut extents, thorough)?);
    }
    Ok(report)
}

/// Returns the disks of a pool that no daemon uses, with their labels.
///
/// # Errors
/// The pool cannot be read.
pub fn disks(paths: &[PathBuf]) -> Result<Vec<(DiskReport, Option<Label>)>> {
    let mut disks = Vec::new();
    for mut extents in extents::of_whole_pool(&mut Devices::open(paths)?)? {
        let report = offline::check(&mut extents, false)?;
        let labels = label::read(&mut extents, Kind::Disk);
        let of = |disk: &DiskReport| labels.iter().find(|label| label.id.0 == disk.id.0).cloned();
        disks.extend(report.disks.into_iter().map(|disk| (disk.clone(), of(&disk))));
    }
    Ok(disks)
}

/// Why an offline flush failed.
#[derive(Debug, thiserror::Error)]
pub enum FlushError {
    /// A device or the origin cannot be used.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The state of the pool or the disk does not allow it.
    #[error(transparent)]
    Offline(#[from] OfflineError),
}

/// Writes a disk's dirty blocks from the devices of a dead host to its origin.
///
/// # Errors
/// See [`FlushError`]; after an error it can be repeated.
pub fn flush_offline(
    paths: &[PathBuf],
    disk: DiskId,
    origin: &OriginSpec,
    progress: impl FnMut(FlushProgress),
) -> std::result::Result<u64, FlushError> {
    let mut arenas = extents::of_whole_pool(&mut Devices::open(paths)?)?;
    let mut origin: Box<dyn OriginMedia> = crate::origin::open_offline(origin)?;
    let knows = |extents: &mut Devices| {
        Ok::<_, EngineError>(offline::check(extents, false)?.disks.iter().any(|found| found.id == disk))
    };
    let mut home = 0;
    while home + 1 < arenas.len() && !knows(&mut arenas[home])? {
        home += 1;
    }
    Ok(offline::flush_disk(&mut arenas[home], disk, origin.as_mut(), progress)?)
}

/// Returns a random identity.
///
/// # Errors
/// The system has no source of randomness.
pub fn random_id() -> Result<Uuid> {
    let path = std::path::Path::new("/dev/urandom");
    let mut bytes = [0; 16];
    let mut source = std::fs::File::open(path).map_err(crate::error::at("open", path))?;
    std::io::Read::read_exact(&mut source, &mut bytes).map_err(crate::error::at("read", path))?;
    Ok(Uuid(bytes))
}
