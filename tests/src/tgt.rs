//! tgt: an iSCSI target in user space, on the loopback interface.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::Process;
use crate::tools::PATIENCE;
use crate::{Place, Result, tools};

/// The target's name.
const TARGET: &str = "iqn.2001-04.test.haversack:disk";

/// A running tgtd with one disk as LUN 1.
#[derive(Debug)]
pub struct Tgt {
    process: Process,
    port: u16,
}

impl Tgt {
    /// Serves a file on `port`, such as an earlier one's, or on a free one.
    ///
    /// # Errors
    /// If tgtd does not start or tgtadm does not set it up.
    pub fn start(place: &Place, name: &str, file: &Path, port: Option<u16>) -> Result<Self> {
        let port = port.map_or_else(tools::free_port, Ok)?;
        let control = place.path(format!("{name}-control"));
        // Left by an earlier server that was killed.
        let _ = std::fs::remove_file(&control);
        let mut tgtd = tools::tool("tgtd")?;
        tgtd.args(["--foreground", "--iscsi", &format!("portal=127.0.0.1:{port}")]);
        tgtd.env("TGT_IPC_SOCKET", &control);
        let mut process = Process::start(place, name, &tgtd)?;
        process.wait_for(PATIENCE, || {
            Ok(tools::run(tgtadm(&control, &["--mode", "target", "--op", "show"])?).is_ok())
        })?;
        let file = file.display().to_string();
        for arguments in [
            &["--mode", "target", "--op", "new", "--tid", "1", "--targetname", TARGET][..],
            &["--mode", "logicalunit", "--op", "new", "--tid", "1", "--lun", "1", "--backing-store", &file],
            &["--mode", "target", "--op", "bind", "--tid", "1", "--initiator-address", "127.0.0.1"],
        ] {
            tools::run(tgtadm(&control, arguments)?)?;
        }
        Ok(Self { process, port })
    }

    /// The disk's URI.
    pub fn uri(&self) -> String {
        format!("iscsi://127.0.0.1:{}/{TARGET}/1", self.port)
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `kill -9`.
    ///
    /// # Errors
    /// If it is gone already.
    pub fn kill(self) -> Result<()> {
        self.process.kill()
    }

    /// The disk as QEMU's `--blockdev` takes it.
    pub fn node(&self) -> serde_json::Value {
        serde_json::json!({
            "driver": "iscsi", "transport": "tcp", "portal": format!("127.0.0.1:{}", self.port),
            "target": TARGET, "lun": 1,
        })
    }

    /// The server, to pause and resume it.
    pub fn process(&self) -> &Process {
        &self.process
    }
}

fn tgtadm(control: &PathBuf, arguments: &[&str]) -> Result<Command> {
    let mut tgtadm = tools::tool("tgtadm")?;
    tgtadm.env("TGT_IPC_SOCKET", control).args(["--lld", "iscsi"]).args(arguments);
    Ok(tgtadm)
}
