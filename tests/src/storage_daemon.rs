//! qemu-storage-daemon: QEMU's own server of disks. It stands in for the daemon where the harness proves itself.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::process::Process;
use crate::tools::PATIENCE;
use crate::{Attachment, Place, Result, tools};

/// A running qemu-storage-daemon with one disk, under `NAME-vhost.sock` and as export `NAME` on `NAME-nbd.sock`.
#[derive(Debug)]
pub struct StorageDaemon {
    process: Process,
    name: String,
    vhost_user: PathBuf,
    nbd: PathBuf,
}

impl StorageDaemon {
    /// Serves a raw image file.
    ///
    /// # Errors
    /// If it does not start.
    pub fn file(place: &Place, name: &str, file: &Path) -> Result<Self> {
        Self::start(place, name, json!({ "driver": "file", "filename": file, "discard": "unmap" }))
    }

    /// Serves a block node of any driver; `node` is what QEMU's `--blockdev` takes, without a name.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(place: &Place, name: &str, mut node: Value) -> Result<Self> {
        let (vhost_user, nbd) =
            (place.path(format!("{name}-vhost.sock")), place.path(format!("{name}-nbd.sock")));
        let ready = place.path(format!("{name}.pid"));
        for leftover in [&vhost_user, &nbd, &ready] {
            // Left by an earlier server that was killed.
            let _ = std::fs::remove_file(leftover);
        }
        node["node-name"] = json!("disk");
        let mut daemon = tools::tool("qemu-storage-daemon")?;
        daemon.args(["--blockdev", &node.to_string()]);
        daemon.args(["--nbd-server", &format!("addr.type=unix,addr.path={}", nbd.display())]);
        daemon.args([
            "--export",
            &format!("type=nbd,id=nbd,node-name=disk,name={name},writable=on,allocation-depth=on"),
        ]);
        let address = format!("addr.type=unix,addr.path={}", vhost_user.display());
        let export =
            format!("type=vhost-user-blk,id=vhost,node-name=disk,writable=on,num-queues=2,{address}");
        daemon.args(["--export", &export]);
        daemon.arg("--pidfile").arg(&ready);
        let mut process = Process::start(place, name, &daemon)?;
        process.wait_for_file(&ready)?;
        Ok(Self { process, name: name.to_owned(), vhost_user, nbd })
    }

    /// Its disk for a guest, over vhost-user-blk.
    pub fn vhost_user(&self) -> Attachment {
        Attachment::VhostUser(self.vhost_user.clone())
    }

    /// Its disk for a guest, over NBD.
    pub fn nbd(&self) -> Attachment {
        Attachment::Nbd { socket: self.nbd.clone(), export: self.name.clone(), reconnect_s: 60 }
    }

    /// The URI of its NBD export.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///{}?socket={}", self.name, self.nbd.display())
    }

    /// The server, to pause and resume it.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// `kill -9`.
    ///
    /// # Errors
    /// If it is gone already.
    pub fn kill(self) -> Result<()> {
        self.process.kill()
    }

    /// Stops the server with SIGTERM, and waits until it has ended.
    ///
    /// # Errors
    /// If it does not end.
    pub fn stop(self) -> Result<()> {
        self.process.terminate(PATIENCE).map(|_| ())
    }
}
