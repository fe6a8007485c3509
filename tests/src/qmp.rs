//! QEMU's machine protocol: the monitor of a running QEMU.

use std::path::Path;
use std::time::Duration;

use haversack_qmp::{Address, Monitor, Phase};
use serde_json::{Value, json};

use crate::tools::{PATIENCE, wait_until};
use crate::{Error, Result};

/// Connects to a monitor's socket.
///
/// # Errors
/// If nobody answers there as a monitor does.
pub fn connect(socket: &Path) -> Result<Monitor> {
    Monitor::connect(&Address::Unix(socket.to_owned()), PATIENCE).map_err(Error::from)
}

/// Migrates the guest to the QEMU that listens on `channel`. Returns what QEMU tells of it.
///
/// # Errors
/// If it fails or takes longer than `limit`.
pub fn migrate(monitor: &mut Monitor, channel: &str, limit: Duration) -> Result<Value> {
    monitor.execute("migrate", &json!({ "uri": channel }))?;
    wait_until("the migration", limit, || match monitor.migration()? {
        told if matches!(told.phase, Phase::Failed | Phase::Cancelled) => {
            Err(Error::Check(format!("the migration failed: {told:?}")))
        }
        told => Ok(told.phase == Phase::Completed),
    })?;
    Ok(monitor.execute("query-migrate", &json!({}))?)
}

/// Waits until the guest has this status, such as `running`.
///
/// # Errors
/// If it has not within `limit`.
pub fn wait_for_status(monitor: &mut Monitor, status: &str, limit: Duration) -> Result<()> {
    wait_until(&format!("the guest's being {status}"), limit, || Ok(monitor.run_state()? == status))
}
