//! What the tests against other programs share: scratch directories, tools, children.

pub mod client;
pub mod server;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A directory that goes with its owner.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("haversack-nbd-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The Debian package that has a tool.
fn package(tool: &str) -> &'static str {
    match tool {
        "nbdinfo" | "nbdcopy" => "libnbd-bin",
        "nbdkit" => "nbdkit",
        "qemu-storage-daemon" => "qemu-utils (Debian 12: qemu-system-common)",
        "fio" => "fio",
        _ => "qemu-utils",
    }
}

fn spawn(tool: &str, arguments: &[&str]) -> Child {
    Command::new(tool)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{tool}: {error}; install the Debian package {}", package(tool)))
}

/// Runs a tool to its end: whether it succeeded, and all that it printed.
pub fn outcome(tool: &str, arguments: &[&str]) -> (bool, String) {
    let output = spawn(tool, arguments).wait_with_output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// Runs a tool that must succeed.
pub fn run(tool: &str, arguments: &[&str]) -> String {
    let (success, text) = outcome(tool, arguments);
    assert!(success, "{tool} {arguments:?}:\n{text}");
    text
}

/// A server of another program, stopped with its owner.
pub struct Peer(Child);

impl Peer {
    /// Starts it and waits for its socket.
    pub fn start(tool: &str, arguments: &[&str], socket: &Path) -> Self {
        let mut child = spawn(tool, arguments);
        let end = Instant::now() + Duration::from_secs(20);
        while std::os::unix::net::UnixStream::connect(socket).is_err() {
            if Instant::now() > end || child.try_wait().unwrap().is_some() {
                let _ = child.kill();
                let output = child.wait_with_output().unwrap();
                panic!("{tool} {arguments:?}: no server:\n{}", String::from_utf8_lossy(&output.stderr));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Self(child)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
