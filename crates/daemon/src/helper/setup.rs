//! Configures a helper over its QMP monitor: which nodes to open and what to export. The passwords of an origin are
//! then not on a command line, which every user of the host can read.
//!
//! Invariants
//! - After the first command that the monitor refuses, no more are sent.
//! - Errors that are returned contain no passwords.

use std::io;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::mpsc::{Receiver, sync_channel};

use haversack_api::redact;
use haversack_qmp::{Monitor, QmpError};
use serde_json::{Value, json};

use super::{HelperSpec, START_TIME};
use crate::origin::DISK_NODE;
use crate::system;

/// The monitor of a helper, and the commands that configure it.
pub struct Setup {
    monitor: UnixStream,
    commands: Vec<(&'static str, Value)>,
}

impl Setup {
    /// Adds the monitor to the command line of a helper that is about to be started.
    pub fn prepare(spec: &HelperSpec, command: &mut Command) -> io::Result<Setup> {
        let (monitor, theirs) = UnixStream::pair()?;
        let number = system::inherit(command, theirs.into());
        command.args(["--chardev", &format!("socket,id=monitor,fd={number},server=off")]);
        command.args(["--monitor", "chardev=monitor"]);
        Ok(Setup { monitor, commands: commands(spec) })
    }

    /// Sends the commands from a thread of its own. The receiver gets the result, with the reason if the helper refuses
    /// one; it is disconnected if the helper has ended.
    pub fn begin(self) -> io::Result<Receiver<Result<(), String>>> {
        // Whoever waits may have given up.
        let (sender, outcome) = sync_channel(1);
        let run = move || match self.tell() {
            Ok(()) => drop(sender.send(Ok(()))),
            Err(error) if error.is_gone() => {}
            Err(QmpError::Refused { why, .. }) => drop(sender.send(Err(redact::text(&why)))),
            Err(error) => drop(sender.send(Err(redact::text(&error.to_string())))),
        };
        std::thread::Builder::new().name("helper-setup".into()).spawn(run)?;
        Ok(outcome)
    }

    fn tell(self) -> Result<(), QmpError> {
        let mut monitor = Monitor::of_stream(self.monitor, "the helper's monitor", START_TIME)?;
        self.commands.iter().try_for_each(|(name, arguments)| monitor.execute(name, arguments).map(drop))
    }
}

/// Returns the commands for a helper: its nodes, the socket to listen on, and the export.
pub(super) fn commands(spec: &HelperSpec) -> Vec<(&'static str, Value)> {
    let node = |node: &Value| {
        let mut node = node.clone();
        if spec.read_only {
            node["read-only"] = true.into();
        }
        ("blockdev-add", node)
    };
    let mut commands: Vec<_> = spec.device.nodes.iter().map(node).collect();
    let address = json!({"type": "unix", "data": {"path": spec.closed_socket()}});
    commands.push(("nbd-server-start", json!({"addr": address, "max-connections": 0})));
    let mut export = json!({
        "type": "nbd", "id": "export", "node-name": DISK_NODE, "name": DISK_NODE, "writable": !spec.read_only
    });
    if spec.tells_depth {
        export["allocation-depth"] = true.into();
    }
    commands.push(("block-export-add", export));
    commands
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::tests::spec;
    use super::*;

    #[test]
    fn commands_name_nodes_server_and_export() {
        let mut spec = spec(Path::new("/run/x"), "qcow2:/images/a.qcow2");
        let of = |spec: &HelperSpec, name| -> Vec<Value> {
            commands(spec)
                .into_iter()
                .filter(|(command, _)| *command == name)
                .map(|(_, given)| given)
                .collect()
        };
        assert_eq!(of(&spec, "blockdev-add").len(), 2);
        assert_eq!(of(&spec, "block-export-add")[0]["writable"], true);
        let server = &of(&spec, "nbd-server-start")[0];
        assert_eq!(server["addr"]["data"]["path"], "/run/x/a b.sock.new");
        assert_eq!(spec.uri(), "nbd+unix:///disk?socket=/run/x/a%20b.sock");
        spec.read_only = true;
        assert_eq!(of(&spec, "blockdev-add")[0]["read-only"], true);
        assert_eq!(of(&spec, "block-export-add")[0]["writable"], false);
    }
}
