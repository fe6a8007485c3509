//! From a plan to the data path: targets, admission, write modes.
//!
//! Invariants
//! - What the operator set is not touched: a share, a mode, an admission of a disk's own.
//! - Only what differs from what the disk has is set.

use haversack_admission::Admit;
use haversack_api::{Admission, DiskConfig, JobKind, Mode};
use haversack_control::actuate;
use haversack_core::{AdmissionConfig, Target};
use haversack_engine::DiskSnapshot;
use haversack_model::WriteMode;
use haversack_policy::DiskPlan;

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
    if applied.admission != Some(admission) {
        backend.set_admission(disk.disk, admission)?;
        applied.admission = Some(admission);
    }
    Ok(())
}

/// The filter of the data path, and what it does not do.
fn core_admission(admit: Admit) -> (AdmissionConfig, Option<String>) {
    let admission = actuate::admission(admit);
    let note =
        (admission.name() != admit.name()).then(|| format!("{} stages addresses, no data", admit.name()));
    (admission, note)
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
    use haversack_admission::StagingKind;

    #[test]
    fn what_the_data_path_lacks_is_told() {
        let staging = |kind, bytes| core_admission(Admit::Staging { kind, reuses: 2, bytes });
        let (address, note) = staging(StagingKind::Address, 1 << 20);
        assert!(note.is_none() && address.check().is_ok());
        assert!(staging(StagingKind::Data, 1 << 20).1.unwrap().contains("no data"));
        assert!(staging(StagingKind::Hybrid, 0).0.check().is_ok());
        let larc = Admit::Larc { cache_blocks: 7 };
        assert_eq!(core_admission(larc), (larc, None));
    }
}
