//! Applies a plan to the data path: targets, admission, write modes.
//!
//! Invariants
//! - A share, mode or admission that the operator set for a disk is not touched.
//! - Only settings that differ from the disk's current ones are set.

use haversack_api::{Admission, DiskConfig, Mode};
use haversack_control::actuate;
use haversack_core::{AdmissionConfig, Target};
use haversack_engine::DiskSnapshot;
use haversack_model::WriteMode;
use haversack_policy::DiskPlan;

use super::events::Order;
use crate::backend::Backend;
use crate::error::Result;
use crate::settings;

/// What a plan has set for a disk.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Applied {
    target: Option<Target>,
    admission: Option<AdmissionConfig>,
}

/// Applies a plan to a disk. Returns, in words, the parts of the plan that were skipped because the operator
/// decided otherwise.
///
/// # Errors
/// The data path refused.
pub fn apply(
    backend: &dyn Backend,
    disk: &DiskSnapshot,
    config: &DiskConfig,
    plan: &DiskPlan,
    applied: &mut Applied,
    orders: &mut Vec<Order>,
) -> Result<Vec<String>> {
    let mut kept = Vec::new();
    let target = actuate::target(plan.target);
    if applied.target != Some(target) {
        backend.set_target(disk.disk, target)?;
        applied.target = Some(target);
    }
    if matches!(config.target, haversack_api::Target::Bytes(_)) {
        kept.push(format!("target {} is the operator's", config.target));
    }
    apply_admission(backend, disk, config, plan, applied, &mut kept)?;
    match config.mode {
        Mode::Fixed(mode) if mode != plan.write_mode => {
            kept.push(format!("mode {mode} is the operator's, not {}", plan.write_mode));
        }
        Mode::Auto if plan.write_mode != disk.mode => orders.push(change_mode(disk, plan.write_mode)),
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
        if settings::admission(config.admission, disk.usage.target_blocks) != plan.admission {
            kept.push(format!(
                "admission {} is the operator's, not {}",
                config.admission,
                plan.admission.name()
            ));
        }
        return Ok(());
    }
    let admission = actuate::admission(plan.admission);
    if applied.admission != Some(admission) {
        backend.set_admission(disk.disk, admission)?;
        applied.admission = Some(admission);
    }
    Ok(())
}

fn change_mode(disk: &DiskSnapshot, mode: WriteMode) -> Order {
    Order::ChangeMode { disk: disk.name.clone(), mode }
}

/// Restores a disk's configured settings.
pub fn restore(backend: &dyn Backend, disk: &DiskSnapshot, config: &DiskConfig, orders: &mut Vec<Order>) {
    let mut restored = || -> Result<()> {
        backend.set_target(disk.disk, settings::target(config))?;
        backend.set_admission(disk.disk, settings::admission(config.admission, disk.usage.target_blocks))?;
        if disk.mode != config.mode.at_first() {
            orders.push(change_mode(disk, config.mode.at_first()));
        }
        Ok(())
    };
    if let Err(error) = restored() {
        tracing::error!(disk = disk.name, "cannot restore the configured settings: {error}");
    }
}
