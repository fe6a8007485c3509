//! The QEMU that the VM moves to.

use std::time::{Duration, Instant};

use haversack_qmp::{Capability, Migration, Monitor, Phase, QmpError};
use serde_json::json;

use crate::error::{CliError, Result};

/// How long the VM may take to run when it has been sent.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Refuses a QEMU that does not wait for a VM.
pub fn check_waits(destination: &mut Monitor) -> Result<()> {
    match destination.run_state()?.as_str() {
        "inmigrate" => Ok(()),
        state => Err(CliError::Usage(format!(
            "the QEMU at --qmp-destination does not wait for a VM: it is {state}; start it with -incoming defer"
        ))),
    }
}

/// Has QEMU listen for the VM, unless it does already. Returns the URI for the source. `host` is the destination's host.
pub fn listen(destination: &mut Monitor, host: &str, uri: Option<&str>) -> Result<String> {
    let before = destination.migration()?;
    if before.ports.is_empty() && before.sockets.is_empty() {
        // Without events it is only looked at less promptly.
        let _ = destination.set(Capability::Events, true);
        let wanted = uri.map_or_else(|| format!("tcp:{host}:0"), str::to_owned);
        let told = destination.execute("migrate-incoming", &json!({ "uri": wanted }));
        // It may have been started with a channel that has no address, and --uri says which.
        if let Err(error) = told
            && (before.phase == Phase::None || uri.is_none())
        {
            let what = "restart the QEMU at --qmp-destination: it does not retry after it failed to listen";
            return Err(CliError::Failed(format!("{error}; {what}")));
        }
    }
    if let Some(uri) = uri {
        return Ok(uri.to_owned());
    }
    let Migration { ports, sockets, .. } = destination.migration()?;
    match (ports.first(), sockets.first()) {
        (Some(port), _) => Ok(format!("tcp:{host}:{port}")),
        (None, Some(path)) => Ok(format!("unix:{path}")),
        (None, None) => {
            let what = "the QEMU at --qmp-destination does not report where it listens: give --uri";
            Err(CliError::Usage(what.into()))
        }
    }
}

/// Waits until a VM that was sent runs here. `runs` tells whether it ran before it was sent: a paused one stays paused.
pub fn arrive(destination: &mut Monitor, runs: bool) -> Result<()> {
    let lost = |why: String| {
        CliError::Attention(format!(
            "the source has sent the VM, and it does not run at the destination: {why}; do not continue it at the source, \
             where its disks may have changed since: restart it on the destination's host"
        ))
    };
    let deadline = Instant::now() + PATIENCE;
    let mut is_continued = false;
    while Instant::now() < deadline {
        let told = destination.migration().and_then(|migration| Ok((migration, destination.run_state()?)));
        let (migration, state) = match told {
            Err(QmpError::Silent { .. }) => continue,
            told => told.map_err(|error| lost(error.to_string()))?,
        };
        match (migration.phase, state.as_str()) {
            (Phase::Failed, _) => {
                return Err(lost(migration.error.unwrap_or_else(|| "the migration has failed there".into())));
            }
            // QEMU runs the VM a moment before it calls the migration completed.
            (Phase::Completed | Phase::None, "running") => return Ok(()),
            (Phase::Completed, "inmigrate") => {}
            (Phase::Completed, _) if !runs => return Ok(()),
            // It was started with -S.
            (Phase::Completed, "paused" | "prelaunch") if !is_continued => {
                if let Err(error @ QmpError::Refused { .. }) = destination.execute("cont", &json!({})) {
                    return Err(lost(error.to_string()));
                }
                is_continued = true;
            }
            _ => {}
        }
        // What is wrong is found when it is asked.
        let _ = destination.next_event(LOOK_EVERY);
    }
    Err(lost(format!("not within {PATIENCE:?}")))
}
