//! Converts a disk's settings, as users write them, into those of the core and into the wishes that decisions
//! respect: the same in the daemon and in the simulator.

use haversack_api::{
    Admission, CleanOrder, CleanerSettings, DiskConfig, Persistence, Size, Span, Target, WindowSetting,
};
use haversack_core as core;
use haversack_model::{BLOCK_BYTES, DiskId};
use haversack_policy::{AdmissionRule, OwnWindow};

use crate::wishes::Wishes;

/// Converts a disk's settings for the core.
pub fn core_config(disk: &DiskConfig, id: DiskId, sectors: u64) -> core::DiskConfig {
    core::DiskConfig {
        id,
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
    }
}

/// Returns what the operator wants for a disk.
pub fn wishes(disk: &DiskConfig) -> Wishes {
    let fixed_blocks = match disk.target {
        Target::Auto | Target::Equal => None,
        Target::Bytes(size) => Some(blocks(size)),
    };
    Wishes {
        vm: disk.vm.clone(),
        tenant: disk.tenant.clone(),
        priority: disk.priority,
        reservation_blocks: blocks(disk.reservation),
        limit_blocks: disk.limit.map(blocks),
        fixed_blocks,
        own_window: own_window(disk),
    }
}

/// Returns how the length of a disk's window is found, if it asks for one.
pub fn own_window(disk: &DiskConfig) -> Option<OwnWindow> {
    disk.window.map(|window| match window {
        WindowSetting::Length(length) => OwnWindow::Length(length.as_micros()),
        WindowSetting::Knee => OwnWindow::AtKnee,
    })
}

/// Whole blocks in a size.
fn blocks(size: Size) -> u64 {
    size.0 / BLOCK_BYTES as u64
}

/// Returns a disk's share for the core, while no policy assigns one.
pub fn target(disk: &DiskConfig) -> core::Target {
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
        Admission::Always => core::AdmissionConfig::Always,
        Admission::Auto | Admission::Learned => core::AdmissionConfig::Learned,
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
        age_us: settings.age.map_or(default.age_us, Span::as_micros),
        idle_us: settings.idle.map_or(default.idle_us, Span::as_micros),
        rate_limit_blocks: settings.rate_limit.map_or(default.rate_limit_blocks, blocks),
        order: match settings.order {
            None => default.order,
            Some(CleanOrder::Age) => core::CleanOrder::Age,
            Some(CleanOrder::Flush) => core::CleanOrder::Flush,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn without_a_policy_a_filter_learns_what_may_enter() {
        let disk = DiskConfig::new("vm1", "main", "/dev/b");
        let core = core_config(&disk, DiskId([1; 16]), 8);
        assert_eq!(core.admission, core::AdmissionConfig::Learned);
        assert_eq!(admission(Admission::Always, 0), core::AdmissionConfig::Always);
    }

    #[test]
    fn a_tiny_rate_limit_is_not_none() {
        let settings = CleanerSettings { rate_limit: Some(Size(1)), ..CleanerSettings::default() };
        assert_eq!(cleaner(settings).rate_limit_blocks, 1);
        for defaults in [CleanerSettings::default(), CleanerSettings::DEFAULTS] {
            assert_eq!(cleaner(defaults), core::CleanerConfig::default());
        }
    }
}
