//! Converts what users write into what the engine takes: names, identities, settings of disks.
//!
//! Invariants
//! - A disk without an `id` has the same identity on every host: the UUID version 5 of its name in
//!   [`haversack_api::DISK_NAMESPACE`].
//! - Checks made here apply to the configuration file and to the control API alike.

use haversack_api::{CleanOrder, DiskConfig, Mode, Size};
pub use haversack_control::disk::{admission, target};
use haversack_control::{disk, settings};
use haversack_core as core;
use haversack_model::{BLOCK_BYTES, DiskId, SECTOR_BYTES};
use uuid::Uuid;

use crate::origin::Origin;

/// The longest name of a disk or pool, in bytes.
const NAME_BYTES: usize = 64;

/// Checks the name of a disk or pool: it becomes part of paths, URIs and metrics.
///
/// # Errors
/// The name is invalid; the text says which names are valid.
pub fn check_name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let good = !name.is_empty() && name.len() <= NAME_BYTES && name.chars().all(allowed);
    if good && !name.starts_with(['.', '-']) {
        return Ok(());
    }
    Err(format!(
        "'{name}' is not a name: expected 1 to {NAME_BYTES} letters, digits, '.', '_' and '-', the first no '.' or '-'"
    ))
}

/// Returns a disk's identity: the given one, or one derived from the name.
///
/// # Errors
/// The given identity is not a UUID.
pub fn disk_id(disk: &DiskConfig) -> Result<DiskId, String> {
    let id = match &disk.id {
        Some(text) => Uuid::parse_str(text).map_err(|e| {
            format!("id of disk '{}': '{text}' is not a UUID: {e}; or leave it out", disk.name)
        })?,
        None => Uuid::new_v5(&haversack_api::DISK_NAMESPACE, disk.name.as_bytes()),
    };
    Ok(DiskId(id.into_bytes()))
}

/// Checks a disk's settings as far as possible without its origin and pool.
///
/// # Errors
/// A setting is invalid; the text says what to do.
pub fn check_disk(disk: &DiskConfig) -> Result<(), String> {
    check_name(&disk.name)?;
    let of_disk = |e: String| format!("disk '{}': {e}", disk.name);
    let origin = Origin::parse(&disk.origin).map_err(of_disk)?;
    disk.origin_tls.as_ref().map_or(Ok(()), |tls| origin.check_tls(tls)).map_err(of_disk)?;
    let sectors = disk.size.map_or(Ok(1), sectors).map_err(of_disk)?;
    core_config(disk, sectors).and_then(|config| config.check()).map_err(of_disk)?;
    settings::check_disk(disk).map_err(of_disk)?;
    if disk.queues == 0 || disk.queues > MAX_QUEUES {
        return Err(of_disk(format!("queues are 1 to {MAX_QUEUES}, not {}", disk.queues)));
    }
    if disk.base.as_ref() == Some(&disk.name) {
        return Err(of_disk(
            "base is the disk itself; name the read-only disk of the image that it was made from".into(),
        ));
    }
    if disk.connections == 0 {
        return Err(of_disk("connections are 1 or more".into()));
    }
    for (key, repeated) in
        [("accept_loss", &disk.accept_loss), ("accept_origin_change", &disk.accept_origin_change)]
    {
        if repeated.as_ref().is_some_and(|name| *name != disk.name) {
            return Err(of_disk(format!("{key} must repeat the disk's name, '{}'", disk.name)));
        }
    }
    Ok(())
}

/// Checks that the settings of a disk that is to have a replica of its dirty blocks make sense.
///
/// # Errors
/// It never has dirty blocks, or cleans them in an order that a replica does not keep.
pub fn check_replica(disk: &DiskConfig) -> Result<(), String> {
    let Some(host) = disk.replica_host() else { return Ok(()) };
    let refuse = |what: &str| Err(format!("disk '{}': replicate = \"{host}\": {what}", disk.name));
    match disk.mode {
        _ if disk.read_only => {
            refuse("it is read-only, so nothing of it is ever dirty; set replicate to none")
        }
        Mode::Fixed(mode) if !mode.defers_origin() => refuse(&format!(
            "nothing is dirty in write mode {mode}; set mode to wb or auto, or replicate to none"
        )),
        _ if disk.cleaner.order == Some(CleanOrder::Flush) => {
            refuse("a replica does not keep the order of flushes; set another order, or replicate to none")
        }
        _ => Ok(()),
    }
}

/// The most queues of a vhost-user-blk device.
const MAX_QUEUES: u16 = 64;

/// Converts a size to sectors.
///
/// # Errors
/// The size is not a positive whole number of sectors.
pub fn sectors(size: Size) -> Result<u64, String> {
    if size.0 == 0 || !size.0.is_multiple_of(SECTOR_BYTES as u64) {
        return Err(format!("a disk's size is a multiple of {SECTOR_BYTES} bytes above 0, not {}", size.0));
    }
    Ok(size.0 / SECTOR_BYTES as u64)
}

/// Converts a size of memory to blocks.
///
/// # Errors
/// The size is not a positive whole number of blocks, or it is too large.
pub fn blocks(size: Size) -> Result<u32, String> {
    let whole = size.0.is_multiple_of(BLOCK_BYTES as u64);
    let blocks = u32::try_from(size.0 / BLOCK_BYTES as u64).ok().filter(|b| whole && *b > 0);
    blocks.ok_or_else(|| format!("{size} is not a multiple of {BLOCK_BYTES} bytes above 0 and below 16 TiB"))
}

/// Converts a disk's settings for the core.
///
/// # Errors
/// The identity is malformed.
pub fn core_config(disk: &DiskConfig, sectors: u64) -> Result<core::DiskConfig, String> {
    Ok(disk::core_config(disk, disk_id(disk)?, sectors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_of_nothing_is_refused() {
        let plain = DiskConfig { replicate: Some("beta".into()), ..DiskConfig::new("vm1", "main", "/dev/b") };
        assert_eq!(check_replica(&plain), Ok(()));
        let mode = |mode: &str| DiskConfig { mode: mode.parse().unwrap(), ..plain.clone() };
        assert_eq!(check_replica(&mode("wb")), Ok(()));
        for text in ["wt", "wa", "wi", "pt"] {
            assert!(check_replica(&mode(text)).unwrap_err().contains("nothing is dirty"), "{text}");
            assert_eq!(check_replica(&DiskConfig { replicate: Some("none".into()), ..mode(text) }), Ok(()));
        }
        let cleaner = haversack_api::CleanerSettings { order: Some(CleanOrder::Flush), ..plain.cleaner };
        assert!(
            check_replica(&DiskConfig { cleaner, ..plain.clone() }).unwrap_err().contains("order of flushes")
        );
        assert!(check_replica(&DiskConfig { read_only: true, ..plain }).unwrap_err().contains("read-only"));
    }

    #[test]
    fn an_identity_is_derived_from_the_name() {
        let mut disk = DiskConfig::new("vm1", "main", "/dev/b");
        let derived = disk_id(&disk).unwrap();
        assert_eq!(Uuid::from_bytes(derived.0).get_version_num(), 5);
        disk.id = Some(derived.to_string());
        assert_eq!(disk_id(&disk), Ok(derived));
        assert_ne!(disk_id(&DiskConfig::new("vm2", "main", "/dev/b")), Ok(derived));
    }
}
