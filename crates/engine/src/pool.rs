//! Work on pools that no reactor runs: making, checking, and saving disks of a dead host.

use std::path::PathBuf;

pub use haversack_core::offline::CheckReport;
use haversack_core::offline::{self, FlushProgress, OfflineError};
use haversack_core::{OriginMedia, PoolConfig};
use haversack_model::{DiskId, Uuid};

use crate::config::OriginSpec;
use crate::error::{EngineError, Result};
use crate::media::Devices;

/// Makes a pool of block devices and files. A file that does not exist is made with `size_bytes`, all of it allocated.
/// What was on the devices is lost; one that carries a pool is refused.
///
/// # Errors
/// A device cannot be opened or is unfit; nothing is written unless all are fit.
pub fn create(paths: &[PathBuf], size_bytes: Option<u64>, redundancy: bool) -> Result<Uuid> {
    let mut devices = Devices::create(paths, size_bytes)?;
    let id = random_id()?;
    let device_ids = paths.iter().map(|_| random_id()).collect::<Result<Vec<_>>>()?;
    haversack_core::pool::create(&mut devices, &PoolConfig { id, device_ids, redundancy })?;
    Ok(id)
}

/// Reads all metadata of a pool and, if `thorough`, the data of every block. Writes nothing.
///
/// # Errors
/// The pool cannot be read.
pub fn check(paths: &[PathBuf], thorough: bool) -> Result<CheckReport> {
    Ok(offline::check(&mut Devices::open(paths)?, thorough)?)
}

/// Why an offline flush failed.
#[derive(Debug, thiserror::Error)]
pub enum FlushError {
    /// A device or the origin cannot be used.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The pool or the disk does not allow it.
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
    let mut devices = Devices::open(paths)?;
    let mut origin: Box<dyn OriginMedia> = crate::origin::open_offline(origin)?;
    Ok(offline::flush_disk(&mut devices, disk, origin.as_mut(), progress)?)
}

/// A random identity.
///
/// # Errors
/// The system has no randomness.
pub fn random_id() -> Result<Uuid> {
    let path = std::path::Path::new("/dev/urandom");
    let mut bytes = [0; 16];
    let mut source = std::fs::File::open(path).map_err(crate::error::at("open", path))?;
    std::io::Read::read_exact(&mut source, &mut bytes).map_err(crate::error::at("read", path))?;
    Ok(Uuid(bytes))
}
