//! Handles a VM that was sent and that the destination's QEMU has refused: it continues where it was.
//!
//! Invariant
//! - A VM is continued at the source only if the destination's QEMU has itself reported that the migration
//!   failed while it waited for the VM, and this process has seen the source send the VM to it: so the VM has
//!   never run there, and never will.
//! - The monitor on which the source reported that it has sent the VM stays open until then, so nobody else can
//!   have moved the VM in the meantime.

use haversack_qmp::{Monitor, Phase};
use serde_json::json;

use super::source;
use crate::error::CliError;

/// Ends a QEMU whose incoming migration has failed: it does not accept another one.
pub fn discard(destination: &mut Monitor) {
    // In a QEMU that runs a VM, the last migration may have failed as well.
    let has_failed = destination.migration().is_ok_and(|migration| migration.phase == Phase::Failed);
    if has_failed && destination.run_state().is_ok_and(|state| state == "inmigrate") {
        // A QEMU that ends need not answer.
        let _ = destination.execute("quit", &json!({}));
    }
}

/// The destination has refused a VM, but this process did not see it being sent there, or the source's QEMU cannot be
/// asked.
pub fn unknown_whether_sent(why: &str) -> CliError {
    CliError::Attention(format!(
        "the QEMU at --qmp-destination has refused a VM: {why}. Whether the VM runs anywhere is not known: if it runs on no host, 'cont' \
         of the monitor at --qmp continues it; if that QEMU has ended, restart the VM"
    ))
}

/// Continues a refused VM at the source, unless it was paused there. Returns the outcome of the move.
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

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use haversack_qmp::Address;
    use serde_json::Value;

    use super::*;

    /// A fake QEMU whose last migration is in this phase. It records the commands that change something.
    struct Qemu {
        monitor: Monitor,
        heard: Arc<Mutex<Vec<String>>>,
        _directory: tempfile::TempDir,
    }

    impl Qemu {
        fn new(state: &'static str, phase: &'static str) -> Qemu {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("qmp");
            let listener = UnixListener::bind(&path).unwrap();
            let heard = Arc::new(Mutex::new(Vec::new()));
            let noted = heard.clone();
            std::thread::spawn(move || {
                let mut stream = BufReader::new(listener.accept().unwrap().0);
                let say = |stream: &mut BufReader<_>, what: Value| {
                    let stream: &mut std::os::unix::net::UnixStream = stream.get_mut();
                    stream.write_all(format!("{what}\r\n").as_bytes()).is_ok()
                };
                say(&mut stream, json!({ "QMP": { "version": {}, "capabilities": [] } }));
                let (mut line, mut state) = (String::new(), state);
                while stream.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
                    let command: Value = serde_json::from_str(&line).unwrap();
                    line.clear();
                    let name = command["execute"].as_str().unwrap_or_default().to_owned();
                    let answer = match name.as_str() {
                        "query-migrate" => json!({ "status": phase }),
                        "query-status" => json!({ "status": state, "running": state == "running" }),
                        _ => json!({}),
                    };
                    if name == "cont" {
                        state = "running";
                    }
                    if !name.starts_with("q") || name == "quit" {
                        noted.lock().unwrap().push(name);
                    }
                    say(&mut stream, json!({ "return": answer, "id": command["id"] }));
                }
            });
            let monitor = Monitor::connect(&Address::Unix(path), Duration::from_secs(30)).unwrap();
            Qemu { monitor, heard, _directory: directory }
        }

        fn heard(&self, command: &str) -> bool {
            self.heard.lock().unwrap().iter().any(|heard| heard == command)
        }
    }

    #[test]
    fn only_a_qemu_that_has_refused_a_vm_is_ended() {
        for (state, phase, is_ended) in
            [("inmigrate", "failed", true), ("running", "failed", false), ("inmigrate", "active", false)]
        {
            let mut qemu = Qemu::new(state, phase);
            discard(&mut qemu.monitor);
            assert_eq!(qemu.heard("quit"), is_ended, "{state}, {phase}");
        }
    }

    #[test]
    fn a_vm_that_was_refused_goes_on_at_the_source_unless_it_was_paused() {
        for runs in [true, false] {
            let (mut here, mut there) =
                (Qemu::new("postmigrate", "completed"), Qemu::new("inmigrate", "failed"));
            let error = bring_back(&mut here.monitor, &mut there.monitor, "no such device", runs);
            assert!(matches!(error, CliError::NotMoved { is_cancelled: false, .. }), "{error}");
            assert_eq!((here.heard("cont"), there.heard("quit")), (runs, true));
        }
    }
}
