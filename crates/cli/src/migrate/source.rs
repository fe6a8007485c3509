//! The QEMU that the VM runs in.
//!
//! Invariant
//! - A migration is never cancelled once QEMU may have sent all of the VM: it could run in both QEMUs.

use std::time::{Duration, Instant};

use haversack_qmp::{Capability, Monitor, Phase, QmpError};
use serde_json::json;

use crate::error::{CliError, Result};

/// How long a migration that is cancelled may take to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the state is polled.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Where the VM is, as its QEMU knows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stage {
    /// It is here. No migration is under way.
    Here,
    /// A migration is under way.
    Moving(Phase),
    /// It has been sent away.
    Gone,
    /// QEMU waits for a VM.
    Waiting,
}

/// Returns where the VM is.
pub fn stage(source: &mut Monitor) -> std::result::Result<Stage, QmpError> {
    let phase = source.migration()?.phase;
    let state = source.run_state()?;
    Ok(match state.as_str() {
        // A QEMU that has received a VM reports its incoming migration as completed, too.
        "inmigrate" => Stage::Waiting,
        _ if !phase.is_ended() => Stage::Moving(phase),
        "finish-migrate" => Stage::Moving(phase),
        "postmigrate" => Stage::Gone,
        _ => Stage::Here,
    })
}

/// Cancels a migration if one is under way. Returns whether the VM has been sent.
pub fn end(source: &mut Monitor) -> Result<bool> {
    let is_sent = match stage(source)? {
        Stage::Moving(_) => !cancel(source)?,
        stage => stage == Stage::Gone,
    };
    dont_pause(source);
    Ok(is_sent)
}

/// Lets the next migration finish without a pause, because the program that starts it may not know that it has to
/// continue it.
pub fn dont_pause(source: &mut Monitor) {
    let _ = source.set(Capability::PauseBeforeSwitchover, false);
}

/// Cancels a migration, and waits until the VM continues here. Returns false if it was too late to cancel, and an error
/// if the migration does not pause before the switchover.
pub fn cancel(source: &mut Monitor) -> Result<bool> {
    let deadline = Instant::now() + PATIENCE;
    let mut is_asked = false;
    while Instant::now() < deadline {
        let stage = match stage(source) {
            Err(QmpError::Silent { .. }) => continue,
            stage => stage?,
        };
        match stage {
            Stage::Here => return Ok(true),
            Stage::Gone => return Ok(false),
            Stage::Moving(phase) if may_be_cancelled(&phase) && !is_asked => {
                let pauses = match source.has(Capability::PauseBeforeSwitchover) {
                    Err(QmpError::Silent { .. }) => continue,
                    pauses => pauses?,
                };
                if !pauses && phase != Phase::PreSwitchover {
                    return Err(unpaused());
                }
                // QEMU carries it out even if its answer comes late.
                let _ = source.execute("migrate_cancel", &json!({}));
                is_asked = true;
            }
            Stage::Moving(_) | Stage::Waiting => {}
        }
        // The next query reports an error.
        let _ = source.next_event(LOOK_EVERY);
    }
    Err(CliError::Attention(format!(
        "QEMU has not ended the migration within {PATIENCE:?}, and the VM may be stopped: see 'query-migrate' and \
         'query-status' of its monitor; 'cont' there continues the VM if the migration has failed"
    )))
}

/// Continues a VM that was sent and has run nowhere else, and waits until it runs.
pub fn go_on(source: &mut Monitor) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut last = match source.execute("cont", &json!({})) {
        Ok(_) => "it does not run yet".to_owned(),
        // QEMU carries it out even if its answer comes late.
        Err(error @ QmpError::Silent { .. }) => error.to_string(),
        Err(error) => return Err(error.into()),
    };
    while Instant::now() < deadline {
        match source.run_state() {
            Ok(state) if state == "running" => return Ok(()),
            Ok(state) => last = format!("it is {state}"),
            Err(QmpError::Silent { .. }) => continue,
            Err(error) => return Err(error.into()),
        }
        // The next query reports an error.
        let _ = source.next_event(LOOK_EVERY);
    }
    Err(CliError::Failed(last))
}

/// Without the pause, QEMU may send all of the VM between the look at its phase and the command to cancel.
fn unpaused() -> CliError {
    CliError::Attention(
        "the migration goes on: it was started without pause-before-switchover, so QEMU may have sent all of the VM when it is told to \
         cancel, and the VM would run in both QEMUs. Run the command again to see how that has ended"
            .into(),
    )
}

fn may_be_cancelled(phase: &Phase) -> bool {
    matches!(phase, Phase::Setup | Phase::Active | Phase::PreSwitchover | Phase::Other(_))
}
