//! RBD images, as their own tools see them.
//!
//! QEMU's driver opens an image so that any other client may open it, too. So an image is locked for the pool that
//! caches it, or for the hosts between which its disk moves ([`lock`]), and refused if another client has it open
//! ([`watchers`]). A fencing program finds a host's clients in a register ([`register`]), and marks the host
//! ([`fenced`]). A helper is used only while its pool has the lock ([`gate`]).

pub mod descent;
mod fenced;
mod gate;
pub mod lock;
mod own;
mod rados;
mod register;
mod store;
pub mod watchers;

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::origin::BlockDevice;

/// How long a program may take.
const TIME_LIMIT: Duration = Duration::from_secs(20);
/// How often its end is checked.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Returns whether a disk with an origin of this device can move between hosts: it is one RBD image, and nothing above
/// it caches what another host may have changed.
pub fn can_move(origin: &str, device: &BlockDevice) -> bool {
    origin.starts_with("rbd:") && Image::all_of(device).len() == 1
}

/// An RBD image that is opened for writing.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Image {
    pool: String,
    namespace: Option<String>,
    name: String,
    user: Option<String>,
    conf: Option<PathBuf>,
}

impl Image {
    /// Returns the RBD images among the leaves of a device's nodes. Snapshots are read-only.
    fn all_of(device: &BlockDevice) -> Vec<Image> {
        fn add(node: &Value, images: &mut Vec<Image>) {
            let text = |key: &str| node[key].as_str().map(str::to_string);
            if let (Some("rbd"), Some(pool), Some(name), true) =
                (node["driver"].as_str(), text("pool"), text("image"), node["snapshot"].is_null())
            {
                let namespace = text("namespace").filter(|name| !name.is_empty());
                images.push(Image {
                    pool,
                    namespace,
                    name,
                    user: text("user"),
                    conf: text("conf").map(PathBuf::from),
                });
            }
            node.as_object()
                .into_iter()
                .flat_map(|fields| fields.values())
                .for_each(|child| add(child, images));
        }
        let mut images = Vec::new();
        device.nodes.iter().for_each(|node| add(node, &mut images));
        images
    }

    /// Returns `POOL[/NAMESPACE]/IMAGE`.
    fn path(&self) -> String {
        let parts = [Some(&self.pool), self.namespace.as_ref(), Some(&self.name)];
        parts.into_iter().flatten().map(String::as_str).collect::<Vec<_>>().join("/")
    }

    /// Runs one of Ceph's programs with the image's user and configuration, and returns the text that it printed.
    fn run(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        Ok(String::from_utf8_lossy(&self.run_raw(program, arguments)?).into_owned())
    }

    /// Returns the bytes that it printed.
    fn run_raw(&self, program: &str, arguments: &[&str]) -> Result<Vec<u8>, String> {
        let mut command = Command::new(program);
        if let Some(user) = &self.user {
            command.arg("--id").arg(user);
        }
        if let Some(conf) = &self.conf {
            command.arg("--conf").arg(conf);
        }
        command.args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        crate::system::end_with_parent(&mut command, Signal::SIGKILL);
        let child = command
            .spawn()
            .map_err(|error| format!("{program} cannot be started: {error}; install Debian's ceph-common"))?;
        let what = format!("{program} {}", arguments.first().unwrap_or(&""));
        let output = within_limit(child, &what)?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            let last = errors.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
            return Err(format!("{what} ended with {}: {last}", output.status));
        }
        Ok(output.stdout)
    }
}

/// Waits for a program whose error output fits in a pipe's buffer, and kills it if it takes too long.
fn within_limit(mut child: Child, what: &str) -> Result<Output, String> {
    let deadline = Instant::now() + TIME_LIMIT;
    let mut printed = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        printed.as_mut().map_or(Ok(0), |stdout| stdout.read_to_end(&mut bytes)).map(|_| bytes)
    });
    while Instant::now() < deadline {
        match child.try_wait() {
            Ok(None) => std::thread::sleep(LOOK_EVERY),
            Ok(Some(_)) => {
                let output = child.wait_with_output().map_err(|error| error.to_string())?;
                let stdout = reader.join().map_err(|_| format!("the output of {what} cannot be read"))?;
                return Ok(Output { stdout: stdout.map_err(|error| error.to_string())?, ..output });
            }
            Err(error) => return Err(error.to_string()),
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    Err(format!("{what} took longer than {} s", TIME_LIMIT.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::Origin;

    fn images_of(origin: &str) -> Vec<Image> {
        let Ok(Origin::Helper(device)) = Origin::parse(origin) else { panic!("{origin} needs a helper") };
        Image::all_of(&device)
    }

    #[test]
    fn plain_images_can_move() {
        let moves = |origin: &str| {
            let Ok(Origin::Helper(device)) = Origin::parse(origin) else { panic!("{origin} needs a helper") };
            can_move(origin, &device)
        };
        assert!(moves("rbd:vms/a/vm1:id=h"));
        let cached = r#"qemu:{"driver": "qcow2", "file": {"driver": "rbd", "pool": "vms", "image": "vm2"}}"#;
        for origin in ["rbd:vms/vm1@snapshot", cached, "iscsi://127.0.0.1:1/iqn.2020-01.org.example:x/1"] {
            assert!(!moves(origin), "{origin}");
        }
    }

    #[test]
    fn images_are_found_wherever_they_are_in_the_tree() {
        let [image] = &images_of("rbd:vms/a/vm1:id=h:conf=/c")[..] else { panic!("one image") };
        assert_eq!((image.path(), image.user.as_deref()), ("vms/a/vm1".into(), Some("h")));
        assert_eq!(image.conf, Some("/c".into()));
        let below = r#"qemu:{"driver": "raw", "file": {"driver": "rbd", "pool": "vms", "image": "vm2"}}"#;
        assert_eq!(images_of(below).iter().map(Image::path).collect::<Vec<_>>(), ["vms/vm2"]);
        assert!(images_of("rbd:vms/vm1@snapshot").is_empty());
        assert!(images_of("iscsi://127.0.0.1:1/iqn.2020-01.org.example:x/1").is_empty());
    }
}
