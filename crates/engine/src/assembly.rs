//! Finding a pool's devices. The configuration names one or more of them, or a pattern; the pool itself knows
//! the rest.
//!
//! The pool's record on the devices lists the members. A device's label says where it was last seen; if it is
//! not there, it is searched for among the block devices and in the directories of the devices already found.
//!
//! Invariants
//! - A device that does not belong to the pool is left out, wherever it is in the list, and this is reported.
//! - Only the core decides whether the pool can be opened without the missing devices.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use haversack_core::PoolError;
use haversack_core::pool::{self, DeviceIdentity};
use haversack_model::{BLOCK_BYTES, DeviceNo, Uuid};

use crate::device::CacheDevice;
use crate::error::{EngineError, Result};
use crate::extents;
use crate::faults::Faults;
use crate::identity::StorageIdentity;
use crate::label::{self, Kind, Label};
use crate::media::Devices;

/// The most files of a directory that are checked when searching for a device.
const MOST_FILES: usize = 4096;

/// A device that the pool uses and that was not found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MissingDevice {
    /// Its number in the pool.
    pub number: DeviceNo,
    /// Its identity.
    pub id: Uuid,
    /// The path at which the pool was last opened with it.
    pub path: Option<PathBuf>,
    /// The time of that, in seconds since 1970.
    pub seen_s: Option<u64>,
}

/// The devices of a pool that were found, and those that were not.
pub(crate) struct Assembly {
    /// The pool.
    pub pool: Uuid,
    pub devices: Devices,
    pub missing: Vec<MissingDevice>,
    /// Listed devices that are not used, and why.
    pub left_out: Vec<String>,
    members: Vec<DeviceIdentity>,
    labels: Vec<Label>,
    name: String,
}

/// An opened device and its identity.
type Candidate = (CacheDevice, DeviceIdentity);

/// Finds the devices of a pool.
///
/// # Errors
/// No device is found, the devices found belong to several pools, or one is in use.
pub(crate) fn assemble(name: &str, listed: &[PathBuf]) -> Result<Assembly> {
    let mut left_out = Vec::new();
    let candidates = open_listed(listed, &mut left_out)?;
    let (pool, candidates) = of_one_pool(name, candidates, &mut left_out)?;
    let mut devices = Devices::of(candidates.into_iter().map(|(device, _)| device).collect())?;
    let labels = label::read(&mut devices, Kind::Device);
    let mut assembly = Assembly {
        pool,
        devices,
        missing: Vec::new(),
        left_out,
        members: Vec::new(),
        labels,
        name: name.into(),
    };
    // A device that was just found may name further members.
    while assembly.find_more()? {}
    Ok(assembly)
}

/// Opens the listed devices. Paths that do not exist or carry no pool are left out.
fn open_listed(listed: &[PathBuf], left_out: &mut Vec<String>) -> Result<Vec<Candidate>> {
    let mut candidates: Vec<Candidate> = Vec::new();
    let mut seen: Vec<StorageIdentity> = Vec::new();
    for entry in listed {
        let pattern = is_pattern(entry);
        for name in if pattern { expand(entry) } else { vec![entry.clone()] } {
            let (path, _) = Faults::of(&name);
            let identity = match StorageIdentity::of(&path) {
                Ok(identity) => identity,
                Err(error) => {
                    left_out.push(format!("{}: {error}", path.display()));
                    continue;
                }
            };
            if seen.contains(&identity) || pattern && identify(&path).is_none() {
                continue;
            }
            seen.push(identity);
            let mut device = Devices::of(vec![CacheDevice::open(&name)?])?;
            match pool::identify(&mut device, 0) {
                Some(identity) => candidates.extend(device.devices.pop().map(|device| (device, identity))),
                None => left_out
                    .push(format!("{}: carries no pool of this version, or cannot be read", path.display())),
            }
        }
    }
    Ok(candidates)
}

/// Keeps the devices of one pool: the only pool found, or else the one with this name.
fn of_one_pool(
    name: &str,
    candidates: Vec<Candidate>,
    left_out: &mut Vec<String>,
) -> Result<(Uuid, Vec<Candidate>)> {
    let mut candidates = candidates;
    let pools: BTreeSet<Uuid> = candidates.iter().map(|(_, identity)| identity.pool).collect();
    let Some(first) = pools.first().copied() else {
        return Err(EngineError::NoDevices { pool: name.into(), why: left_out.join("; ") });
    };
    if pools.len() == 1 {
        return Ok((first, candidates));
    }
    let mut named = BTreeSet::new();
    for (device, identity) in &candidates {
        let mut device = Devices::of(vec![device.again()?])?;
        let labels = label::read(&mut device, Kind::Device);
        if labels.iter().any(|label| label.pool == identity.pool && label.name == name) {
            named.insert(identity.pool);
        }
    }
    let (Some(pool), 1) = (named.first().copied(), named.len()) else {
        let each =
            candidates.iter().map(|(device, i)| format!("{} is of pool {}", device.path.display(), i.pool));
        let devices = each.collect::<Vec<_>>().join(", ");
        return Err(EngineError::SeveralPools { pool: name.into(), devices });
    };
    candidates.retain(|(device, identity)| {
        if identity.pool != pool {
            left_out.push(format!("{}: of another pool, {}", device.path.display(), identity.pool));
        }
        identity.pool == pool
    });
    Ok((pool, candidates))
}

/// Returns the paths of a pool's devices: the listed paths that are not patterns, and the paths of the devices found
/// now.
pub(crate) fn places(name: &str, listed: &[PathBuf]) -> Vec<PathBuf> {
    let listed_paths = listed.iter().filter(|path| !is_pattern(path)).map(|path| Faults::of(path).0);
    let mut places: Vec<PathBuf> = listed_paths.collect();
    // Errors are ignored here: opening the pool reports them.
    let found = assemble(name, listed).map(|assembly| assembly.devices.devices).unwrap_or_default();
    for device in found {
        if !places.contains(&device.path) {
            places.push(device.path);
        }
    }
    places
}

fn is_pattern(path: &Path) -> bool {
    path.to_string_lossy().contains(['*', '?', '['])
}

fn expand(pattern: &Path) -> Vec<PathBuf> {
    let paths = glob::glob(&pattern.to_string_lossy());
    paths.into_iter().flatten().filter_map(std::result::Result::ok).collect()
}

/// Reads the identity of the device at a path, without a lock.
fn identify(path: &Path) -> Option<DeviceIdentity> {
    let kind = std::fs::metadata(path).ok()?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return None;
    }
    let file = File::open(path).ok()?;
    let mut page = [0; BLOCK_BYTES];
    (0..2).find_map(|copy| {
        file.read_exact_at(&mut page, copy * BLOCK_BYTES as u64).ok()?;
        pool::device_of(&page)
    })
}

impl Assembly {
    /// Searches for devices that the pool uses and that have not been found yet. Returns true if one was found.
    fn find_more(&mut self) -> Result<bool> {
        self.members = members(&mut self.devices)?;
        let present: Vec<Uuid> = self.present().into_iter().map(|(_, identity)| identity.device).collect();
        let absent: Vec<DeviceIdentity> =
            self.members.iter().filter(|member| !present.contains(&member.device)).copied().collect();
        self.missing.clear();
        let mut found = false;
        for member in absent {
            let label = self.labels.iter().find(|label| label.id == member.device);
            let (path, seen_s) = (label.map(|l| PathBuf::from(&l.place)), label.map(|l| l.seen_s));
            match self.find(&member, path.as_deref()) {
                Some(path) => {
                    tracing::info!(pool = self.name, device = member.number.0, path = %path.display(), "found a device that is not listed");
                    self.devices.devices.push(CacheDevice::open(&path)?);
                    found = true;
                }
                None => {
                    self.missing.push(MissingDevice {
                        number: member.number,
                        id: member.device,
                        path,
                        seen_s,
                    });
                }
            }
        }
        if found {
            self.labels = label::read(&mut self.devices, Kind::Device);
        }
        Ok(found)
    }

    fn present(&mut self) -> Vec<(usize, DeviceIdentity)> {
        let devices = 0..self.devices.devices.len();
        devices.filter_map(|at| Some((at, pool::identify(&mut self.devices, at)?))).collect()
    }

    /// Finds a device: at its old path, among the block devices, or next to the devices already found.
    fn find(&self, member: &DeviceIdentity, before: Option<&Path>) -> Option<PathBuf> {
        let is_it = |path: &PathBuf| identify(path).is_some_and(|found| found == *member);
        before.map(Path::to_path_buf).into_iter().chain(block_devices()).chain(self.neighbours()).find(is_it)
    }

    /// Returns the files in the directories of those devices that are files.
    fn neighbours(&self) -> impl Iterator<Item = PathBuf> + '_ {
        let files = self.devices.devices.iter().filter(|device| device.path.is_file());
        let directories: BTreeSet<&Path> = files.filter_map(|device| device.path.parent()).collect();
        directories.into_iter().flat_map(|directory| {
            let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).take(MOST_FILES)
        })
    }

    /// Turns the core's refusal into an error that names the missing device, where it was, and what else was
    /// seen.
    pub fn explain(&self, error: EngineError) -> EngineError {
        let EngineError::Pool(PoolError::MissingDevice { device, .. }) = error else { return error };
        match self.missing.iter().find(|missing| missing.number == device) {
            Some(missing) => EngineError::DeviceMissing {
                pool: self.name.clone(),
                device: missing.to_string(),
                seen: self.left_out.iter().map(|what| format!("; {what}")).collect(),
            },
            None => error,
        }
    }

    /// Logs which devices are missing and which are left out.
    pub fn tell(&self) {
        for what in &self.left_out {
            tracing::warn!(pool = self.name, "configured device not used: {what}");
        }
        for missing in &self.missing {
            tracing::warn!(pool = self.name, "{missing} is missing: the pool is degraded");
        }
    }

    /// Writes to all devices where each of them is now. The pool is usable without these labels.
    pub fn label(&mut self) {
        let seen_s = label::now_s();
        let present = self.present();
        let labels: Vec<(usize, Label)> = present
            .into_iter()
            .map(|(at, identity)| {
                let device = &self.devices.devices[at];
                (usize::from(identity.number.0), device_label(&self.name, identity, device, seen_s))
            })
            .collect();
        if let Err(error) = label::write(&mut self.devices, Kind::Device, &labels) {
            tracing::warn!(pool = self.name, "{error}");
        }
    }
}

/// Returns the devices that some arena of the pool has in use.
fn members(devices: &mut Devices) -> Result<Vec<DeviceIdentity>> {
    let mut members: Vec<DeviceIdentity> = Vec::new();
    for mut extents in extents::of_arenas(devices)? {
        for member in pool::members(&mut extents) {
            if !members.contains(&member) {
                members.push(member);
            }
        }
    }
    Ok(members)
}

/// Makes the label of a device that is present now.
pub(crate) fn device_label(pool: &str, identity: DeviceIdentity, device: &CacheDevice, seen_s: u64) -> Label {
    let path = std::path::absolute(&device.path).unwrap_or_else(|_| device.path.clone());
    let place = path.display().to_string();
    Label {
        pool: identity.pool,
        id: identity.device,
        seen_s,
        size_bytes: device.capacity_bytes,
        inode: 0,
        name: pool.to_string(),
        place_crc: label::place_crc(&place),
        place,
    }
}

impl std::fmt::Display for MissingDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "device {} ({})", self.number.0, self.id)?;
        let (Some(path), Some(seen_s)) = (&self.path, self.seen_s) else { return Ok(()) };
        let time = chrono::DateTime::from_timestamp(seen_s as i64, 0).unwrap_or_default();
        write!(
            f,
            ", which was {} when the pool was opened on {}",
            path.display(),
            time.format("%Y-%m-%d %H:%M UTC")
        )
    }
}

/// Returns all block devices of the system.
fn block_devices() -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
    entries.map(|entry| Path::new("/dev").join(entry.file_name()))
}
