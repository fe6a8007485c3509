//! The QEMU that the VM moves to.

use std::time::{Duration, Instant};

use haversack_qmp::{Capability, Migration, Monitor, Phase, QmpError};
use serde_json::json;

use crate::error::{CliError, Result};

/// How long the VM may take to run when it has been sent.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the state is polled.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The outcome for a VM that was sent.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum Arrival {
    /// It runs at the destination, or is paused there as it was before.
    Arrived,
    /// QEMU has refused it, and will never run it.
    Refused(String),
}

/// Refuses a QEMU that does not wait for a VM.
pub fn check_waits(destination: &mut Monitor) -> Result<()> {
    if destination.migration()?.phase == Phase::Failed {
        let what =
            "restart the QEMU at --qmp-destination: a migration to it has failed, and it accepts no other";
        return Err(CliError::Usage(what.into()));
    }
    match destination.run_state()?.as_str() {
        "inmigrate" => Ok(()),
        state => Err(CliError::Usage(format!(
            "the QEMU at --qmp-destination does not wait for a VM: it is {state}; start it with -incoming defer"
        ))),
    }
}

/// Has QEMU listen for the VM, unless it does already. Returns the URI for the source. `host` is the destination's
/// host.
pub fn listen(destination: &mut Monitor, host: &str, uri: Option<&str>) -> Result<String> {
    let before = destination.migration()?;
    if before.ports.is_empty() && before.sockets.is_empty() {
        // Without events, changes are only noticed later.
        let _ = destination.set(Capability::Events, true);
        let wanted = uri.map_or_else(|| format!("tcp:{host}:0"), str::to_owned);
        let told = accept(destination, &wanted);
        // QEMU may have been started with a channel that has no address; --uri gives the address then.
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

/// Tells QEMU to listen, and not to exit if the migration fails, so that it can report whether the VM has run there.
fn accept(destination: &mut Monitor, uri: &str) -> std::result::Result<(), QmpError> {
    let told = destination.execute("migrate-incoming", &json!({ "uri": uri, "exit-on-error": false }));
    match told {
        // Before version 9.1, QEMU always ends.
        Err(QmpError::Refused { why, .. }) if why.contains("exit-on-error") => {
            destination.execute("migrate-incoming", &json!({ "uri": uri })).map(drop)
        }
        told => told.map(drop),
    }
}

/// Waits until a VM that was sent runs here, or is refused. `runs` tells whether it ran before it was sent: a paused
/// one stays paused.
pub fn arrive(destination: &mut Monitor, runs: bool) -> Result<Arrival> {
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
            (Phase::Failed, "inmigrate") => {
                let why = migration.error.unwrap_or_else(|| "it gives no reason".into());
                return Ok(Arrival::Refused(why));
            }
            (Phase::Failed, _) => {
                return Err(lost(migration.error.unwrap_or_else(|| "the migration has failed there".into())));
            }
            // QEMU starts the VM shortly before it reports the migration as completed.
            (Phase::Completed | Phase::None, "running") => return Ok(Arrival::Arrived),
            (Phase::Completed, "inmigrate") => {}
            (Phase::Completed, _) if !runs => return Ok(Arrival::Arrived),
            // It was started with -S.
            (Phase::Completed, "paused" | "prelaunch") if !is_continued => {
                if let Err(error @ QmpError::Refused { .. }) = destination.execute("cont", &json!({})) {
                    return Err(lost(error.to_string()));
                }
                is_continued = true;
            }
            _ => {}
        }
        // The next query reports an error.
        let _ = destination.next_event(LOOK_EVERY);
    }
    Err(lost(format!("not within {PATIENCE:?}")))
}
