//! From a plan to the data path: targets, admission, write modes.
//!
//! Invariants
//! - What the operator set is not touched: a share, a mode, an admission of a disk's own.
//! - Only what differs from what the disk has is set.

use haversack_api::{Admission, DiskConfig, JobKind, Mode};
use haversack_control::actuate;
use haversack_core::{AdmissionConfig, Target};
use haversack_engine::DiskSnapshot;
use haversack_model::WriteMode;
use haversack_policy::DiskPlan;
use haversack_policy::admission::{Admit, ENTRY_BYTES};

use crate::backend::Backend;
use crate::daemon::Daemon;
use crate::error::{DaemonError, Result};
use crate::settings;

/// What was set of a disk by a plan.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Applied {
    target: Option<Target>,
    admission: Option<AdmissionConfig>,
}

/// Memory of staging is begun anew only if it changes by more than one part of so many.
const CHANGES: u32 = 4;

/// Sets what a plan says of a disk. What of the plan is not done, since the operator said otherwise or the data path has
/// nothing like it, in words.
///
/// # Errors
/// The data path refuses.
pub fn apply(
    daemon: &Daemon,
    pool: &str,
    disk: &DiskSnapshot,
    config: &DiskConfig,
    plan: &DiskPlan,
    applied: &mut Applied,
) -> Result<Vec<String>> {
    let backend = &*daemon.pool(pool)?.backend;
    let mut kept = Vec::new();
    let target = actuate::target(plan.target);
    if applied.target != Some(target) {
        backend.set_target(disk.disk, target)?;
        applied.target = Some(target);
    }
    if config.target != haversack_api::Target::Equal {
        kept.push(format!("target {} is the operator's", config.target));
    }
    apply_admission(backend, disk, config, plan, applied, &mut kept)?;
    match config.mode {
        Mode::Fixed(mode) if mode != plan.write_mode => {
            kept.push(format!("mode {mode} is the operator's, not {}", plan.write_mode));
        }
        Mode::Auto if plan.write_mode != disk.mode => change_mode(daemon, pool, disk, plan.write_mode)?,
        _ => {}
    }
    Ok(kept)
}

fn apply_admission(
    backend: &dyn Backend,
    disk: &DiskSnapshot,
    config: &DiskConfig,
    plan: &DiskPlan,
    applied: &mut Applied,
    kept: &mut Vec<String>,
) -> Result<()> {
    if config.admission != Admission::Auto {
        if plan.admission != Admit::Always {
            kept.push(format!(
                "admission {} is the operator's, not {}",
                config.admission,
                plan.admission.name()
            ));
        }
        return Ok(());
    }
    let (admission, note) = core_admission(plan.admission);
    kept.extend(note);
    if applied.admission.is_none_or(|before| !is_like(before, admission)) {
        backend.set_admission(disk.disk, admission)?;
        applied.admission = Some(admission);
    }
    Ok(())
}

/// The filter of the data path that comes nearest, and what it does not do.
fn core_admission(admit: Admit) -> (AdmissionConfig, Option<String>) {
    match admit {
        Admit::Always => (AdmissionConfig::Always, None),
        Admit::Staging { reuses, bytes, kind } => {
            let addresses = u32::try_from(bytes / ENTRY_BYTES).unwrap_or(u32::MAX).max(1);
            let address = kind == haversack_policy::admission::StagingKind::Address;
            let note = (!address).then(|| format!("{} stages addresses alone", kind.name()));
            (AdmissionConfig::Reuse { n: reuses, addresses }, note)
        }
        Admit::Hec { .. } | Admit::Larc { .. } => {
            let note = format!("admission {} is not in the data path: everything enters", admit.name());
            (AdmissionConfig::Always, Some(note))
        }
    }
}

fn is_like(before: AdmissionConfig, now: AdmissionConfig) -> bool {
    use AdmissionConfig::Reuse;
    match (before, now) {
        (Reuse { n, addresses }, Reuse { n: now, addresses: wanted }) => {
            n == now && addresses.abs_diff(wanted) <= addresses / CHANGES
        }
        (before, now) => before == now,
    }
}

/// A change of mode takes as long as the pool's record takes to be written: nobody waits for it here.
fn change_mode(daemon: &Daemon, pool: &str, disk: &DiskSnapshot, mode: WriteMode) -> Result<()> {
    let backend = daemon.pool(pool)?.backend.clone();
    let number = disk.disk;
    tracing::info!(disk = disk.name, %mode, "the policy changes the write mode");
    daemon.jobs.start(JobKind::Change, &disk.name, move |control| {
        control.follow(&backend.set_mode(number, mode)?)
    })?;
    Ok(())
}

/// Gives a disk back what it is configured with.
pub fn restore(daemon: &Daemon, pool: &str, disk: &DiskSnapshot, config: &DiskConfig) {
    let restored = || -> Result<()> {
        let backend = &daemon.pool(pool)?.backend;
        backend.set_target(disk.disk, settings::target(config.target))?;
        backend.set_admission(disk.disk, settings::admission(config.admission))?;
        if disk.mode != config.mode.at_first() {
            change_mode(daemon, pool, disk, config.mode.at_first())?;
        }
        Ok::<(), DaemonError>(())
    };
    if let Err(error) = restored() {
        tracing::error!(disk = disk.name, "its configured settings are not restored: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use haversack_policy::admission::StagingKind;

    #[test]
    fn small_changes_do_not_empty_the_staged_addresses() {
        let reuse = |addresses| AdmissionConfig::Reuse { n: 1, addresses };
        assert!(is_like(reuse(1000), reuse(1250)) && !is_like(reuse(1000), reuse(1251)));
        assert!(!is_like(reuse(1000), AdmissionConfig::Always));
    }

    #[test]
    fn what_the_data_path_lacks_is_told() {
        let staging = |kind| core_admission(Admit::Staging { kind, reuses: 2, bytes: 64 * ENTRY_BYTES });
        let reuse = AdmissionConfig::Reuse { n: 2, addresses: 64 };
        assert_eq!(staging(StagingKind::Address), (reuse, None));
        assert!(staging(StagingKind::Data).1.unwrap().contains("addresses alone"));
        assert!(core_admission(Admit::Larc { cache_blocks: 1 }).1.unwrap().contains("larc"));
    }
}
