//! Converts what users write into what the engine takes: names, identities, settings of disks.
//!
//! Invariants
//! - A disk without an `id` has the same identity on every host: the UUID version 5 of its name in
//!   [`haversack_api::DISK_NAMESPACE`].
//! - Checks made here apply to the configuration file and to the control API alike.

use haversack_api::{Admission, CleanerSettings, DiskConfig, Persistence, Size, Target};
use haversack_core as core;
use haversack_model::{BLOCK_BYTES, DiskId, SECTOR_BYTES};
use haversack_policy::AdmissionRule;
use uuid::Uuid;

use crate::origin::Origin;
use crate::policy;

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
    policy::settings::check_disk(disk).map_err(of_disk)?;
    if disk.queues == 0 || disk.queues > MAX_QUEUES {
        return Err(of_disk(format!("queues are 1 to {MAX_QUEUES}, not {}", disk.queues)));
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
    Ok(core::DiskConfig {
        id: disk_id(disk)?,
        sectors,
        phase: disk.phase,
        mode: disk.mode.at_first(),
        persistence: match disk.persistence {
            Persistence::All => core::Persistence::All,
            Persistence::Dirty => core::Persistence::Dirty,
            Persistence::None => core::Persistence::None,
        },
        target: target(disk),
        admission: admission(disk.admission, share_blocks(disk)),
        sequential_cutoff_bytes: disk.sequential_cutoff.0,
        cleaner: cleaner(disk.cleaner),
    })
}

/// Returns a disk's share for the core, while no policy assigns one.
pub fn target(disk: &DiskConfig) -> core::Target {
    let blocks = |size: Size| size.0 / BLOCK_BYTES as u64;
    match disk.target {
        Target::Auto => core::Target::Shared {
            at_least_blocks: blocks(disk.reservation),
            at_most_blocks: disk.limit.map_or(u64::MAX, blocks),
        },
        Target::Equal => core::Target::Equal,
        Target::Bytes(size) => core::Target::Blocks(blocks(size)),
    }
}

/// Returns the share that the operator gave a disk; 0 if it is not known until the disk is in its pool.
fn share_blocks(disk: &DiskConfig) -> u64 {
    if let core::Target::Blocks(blocks) = target(disk) { blocks } else { 0 }
}

/// Converts the admission of a disk with a share of this many blocks for the core.
pub fn admission(admission: Admission, share_blocks: u64) -> core::AdmissionConfig {
    match admission {
        Admission::Hec => AdmissionRule::Hec.of_share(share_blocks),
        Admission::Larc => AdmissionRule::Larc.of_share(share_blocks),
        Admission::Staging { kind, n } => AdmissionRule::staging(kind, n).of_share(share_blocks),
        Admission::Auto | Admission::Always => core::AdmissionConfig::Always,
        Admission::Learned => core::AdmissionConfig::Learned,
        Admission::Reuse { n, addresses } => core::AdmissionConfig::reuse(n, addresses),
    }
}

/// Converts cleaner settings for the core, with its defaults for settings that are not given.
pub fn cleaner(settings: CleanerSettings) -> core::CleanerConfig {
    let default = core::CleanerConfig::default();
    // A limit below one block would round to 0, which means no limit.
    let blocks = |rate: Size| rate.0.div_ceil(BLOCK_BYTES as u64).min(u64::from(u32::MAX)) as u32;
    core::CleanerConfig {
        low_watermark: settings.low_watermark.unwrap_or(default.low_watermark),
        high_watermark: settings.high_watermark.unwrap_or(default.high_watermark),
        dirty_limit: settings.dirty_limit.unwrap_or(default.dirty_limit),
        age_us: settings.age.map_or(default.age_us, haversack_api::Span::as_micros),
        idle_us: settings.idle.map_or(default.idle_us, haversack_api::Span::as_micros),
        rate_limit_blocks: settings.rate_limit.map_or(default.rate_limit_blocks, blocks),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_derived_from_the_name() {
        let mut disk = DiskConfig::new("vm1", "main", "/dev/b");
        let derived = disk_id(&disk).unwrap();
        assert_eq!(Uuid::from_bytes(derived.0).get_version_num(), 5);
        disk.id = Some(derived.to_string());
        assert_eq!(disk_id(&disk), Ok(derived));
        assert_ne!(disk_id(&DiskConfig::new("vm2", "main", "/dev/b")), Ok(derived));
    }

    #[test]
    fn without_a_policy_disks_share_one_pool_within_what_is_reserved_and_allowed() {
        let mut disk = DiskConfig::new("vm1", "main", "/dev/b");
        let shared =
            |at_least_blocks, at_most_blocks| core::Target::Shared { at_least_blocks, at_most_blocks };
        assert_eq!(target(&disk), shared(0, u64::MAX));
        (disk.reservation, disk.limit) = (Size(8192), Some(Size(40_960)));
        assert_eq!(target(&disk), shared(2, 10));
        disk.target = Target::Equal;
        assert_eq!(target(&disk), core::Target::Equal);
        disk.target = Target::Bytes(Size(16_384));
        assert_eq!(target(&disk), core::Target::Blocks(4));
    }

    #[test]
    fn a_tiny_rate_limit_is_not_none() {
        let settings = CleanerSettings { rate_limit: Some(Size(1)), ..CleanerSettings::default() };
        assert_eq!(cleaner(settings).rate_limit_blocks, 1);
        assert_eq!(cleaner(CleanerSettings::default()), core::CleanerConfig::default());
    }
}
