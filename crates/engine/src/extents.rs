//! How the devices of a pool are divided among its arenas.
//!
//! Invariants
//! - The extents of a device do not overlap, and each lies within the device.
//! - An arena gets only extents that carry its own superblock.

use std::io::Error;

use haversack_core::pool::{self, Division};
use haversack_core::{Media, PoolError};
use haversack_model::{ArenaNo, BLOCK_BYTES};

use crate::device::CacheDevice;
use crate::error::{self, EngineError, Result};
use crate::media::Devices;

/// Extents begin at multiples of this size, which is that of a segment.
const ALIGNMENT_BYTES: u64 = 1 << 20;

/// Returns how a device is divided when it is formatted. One extent is the whole device.
pub(crate) fn divide(device: &CacheDevice, arenas: u8) -> Division {
    let extent_bytes = match arenas {
        1 => device.capacity_bytes,
        _ => device.capacity_bytes / u64::from(arenas) / ALIGNMENT_BYTES * ALIGNMENT_BYTES,
    };
    Division { arenas, extent_bytes }
}

/// Returns devices that carry no pool as one arena will see them. Whether a device carries a pool is decided by the
/// first arena's superblock, so what an earlier pool has left in the place of this arena's superblock is overwritten.
///
/// # Errors
/// A device carries a pool, or cannot be written.
pub(crate) fn blank(devices: &mut Devices, arenas: u8, arena: ArenaNo) -> Result<Devices> {
    for at in 0..devices.devices.len() {
        if let Some(identity) = pool::identify(devices, at) {
            return Err(PoolError::InUse { device: devices.name(at), pool: identity.pool }.into());
        }
    }
    let extents = devices.devices.iter().map(|device| device.extent(divide(device, arenas), arena));
    let mut extents = Devices::of(extents.collect::<Result<_>>()?)?;
    for at in 0..extents.devices.len() {
        if pool::arena_of(&mut extents, at).is_some() {
            let written = extents.write(at, 0, &[0; 2 * BLOCK_BYTES]);
            let error = error::at("format", &extents.devices[at].path);
            written.map_err(|_| error(Error::from_raw_os_error(libc::EIO)))?;
        }
    }
    Ok(extents)
}

/// Returns the number of arenas of the pool that the devices belong to; 1 if no superblock can be read.
pub(crate) fn arenas(devices: &mut Devices) -> u8 {
    let mut found = (0..devices.devices.len()).filter_map(|at| pool::division(devices, at));
    found.next().map_or(1, |division| division.arenas.max(1))
}

/// Returns the extents of each arena of a pool. A device is left out where it does not carry an arena's superblock; the
/// only arena of a pool gets all devices, so that the core says what is wrong with them.
pub(crate) fn of_arenas(devices: &mut Devices) -> Result<Vec<Devices>> {
    let arenas = arenas(devices);
    (0..arenas).map(|number| of_arena(devices, arenas, ArenaNo(number))).collect()
}

/// As [`of_arenas`], for a pool that is to be used: each arena must have a device.
///
/// # Errors
/// An arena has none.
pub(crate) fn of_whole_pool(devices: &mut Devices) -> Result<Vec<Devices>> {
    let extents = of_arenas(devices)?;
    match extents.iter().position(|extents| extents.devices.is_empty()) {
        None => Ok(extents),
        Some(arena) => {
            let paths = devices.devices.iter().map(|device| device.path.display().to_string());
            Err(EngineError::NoExtent { arena, devices: paths.collect::<Vec<_>>().join(", ") })
        }
    }
}

fn of_arena(devices: &mut Devices, arenas: u8, arena: ArenaNo) -> Result<Devices> {
    let mut extents = Devices::of(Vec::new())?;
    for at in 0..devices.devices.len() {
        if arenas == 1 {
            extents.devices.push(devices.devices[at].again()?);
            continue;
        }
        let Some(division) = pool::division(devices, at).filter(|found| found.arenas == arenas) else {
            continue;
        };
        let device = &devices.devices[at];
        let end_bytes = division.extent_bytes.checked_mul(arenas.into());
        if end_bytes.is_none_or(|end| end > device.capacity_bytes) {
            continue;
        }
        extents.devices.push(device.extent(division, arena)?);
        let last = extents.devices.len() - 1;
        if pool::arena_of(&mut extents, last).is_none_or(|found| found.number != arena) {
            extents.devices.pop();
        }
    }
    Ok(extents)
}
