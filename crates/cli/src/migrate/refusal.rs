//! What becomes of a VM that was sent and that the destination's QEMU has refused: it goes on where it was.
//!
//! Invariant
//! - A VM is continued at the source only if the destination's QEMU has said itself that the migration has failed while it waited
//!   for the VM, and this process has seen the source send the VM to it: so the VM has never run there, and never will.
//! - The monitor on which the source said that it has sent the VM is kept until then, so nobody else has moved the VM on meanwhile.

use haversack_qmp::{Monitor, Phase};
use serde_json::json;

use super::source;
use crate::error::CliError;

/// Ends a QEMU whose incoming migration has failed: it does not accept another one.
pub fn discard(destination: &mut Monitor) {
    // The last migration of a QEMU in which a VM runs may have failed as well.
    let has_failed = destination.migration().is_ok_and(|migration| migration.phase == Phase::Failed);
    if has_failed && destination.run_state().is_ok_and(|state| state == "inmigrate") {
        // A QEMU that ends need not answer.
        let _ = destination.execute("quit", &json!({}));
    }
}

/// A VM was refused, and this process has not seen that it was sent there, or cannot ask the QEMU that it was in.
pub fn too_late(why: &str) -> CliError {
    CliError::Attention(format!(
        "the QEMU at --qmp-destination has refused a VM: {why}. Whether the VM runs anywhere is not known: if it runs on no host, 'cont' \
         of the monitor at --qmp continues it; if that QEMU has ended, restart the VM"
    ))
}

/// Has a VM that was refused go on at the source, unless it was paused there. Returns how the move has ended.
pub fn bring_back(source: &mut Monitor, destination: &mut Monitor, why: &str, runs: bool) -> CliError {
    discard(destination);
    let why = format!("the QEMU at --qmp-destination has refused it: {why}; its log may say more");
    match if runs { source::go_on(source) } else { Ok(()) } {
        Ok(()) => CliError::NotMoved { why, is_cancelled: false },
        Err(error) => CliError::Attention(format!(
            "the VM is stopped where it was, and has not run anywhere else: {why}. It could not be continued: {error}; 'cont' of \
             the monitor at --qmp continues it"
        )),
    }
}
