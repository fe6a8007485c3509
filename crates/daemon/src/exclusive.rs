//! One store, one disk: identifies the store behind an origin, so that a second disk or a pool on the same
//! store is noticed however the origin is written.
//!
//! Files and block devices are identified by inode and device number ([`StorageIdentity`]), other stores by a
//! normalized form of their URI. Two disks may have the same store if both only read it.

use std::fs::DirEntry;
use std::path::{Path, PathBuf};

use haversack_api::DiskConfig;
use haversack_engine::{ShardConfig, StorageIdentity};
use haversack_nbd::{NbdUri, Transport};
use serde_json::Value;

use crate::origin::Origin;

/// Keys of a QEMU block node that do not identify its store.
const TUNING: [&str; 11] = [
    "node-name",
    "cache",
    "discard",
    "read-only",
    "auto-read-only",
    "detect-zeroes",
    "locking",
    "aio",
    "user",
    "conf",
    "timeout",
];

/// The files, devices and remote stores that an origin uses.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Store {
    files: Vec<PathBuf>,
    remote: Vec<String>,
}

impl Store {
    /// Returns the store that an origin names; an empty one if it is malformed.
    pub fn of(origin: &str) -> Store {
        let mut store = Store::default();
        match Origin::parse(origin) {
            Ok(Origin::File(path)) => store.files.push(path),
            Ok(Origin::Nbd(uri)) => store.remote.extend(nbd_server(&uri)),
            Ok(Origin::Helper(device)) => device.nodes.iter().for_each(|node| store.add_node(node)),
            Err(_) => {}
        }
        store
    }

    /// Adds the leaves of a tree of QEMU block nodes.
    fn add_node(&mut self, node: &Value) {
        let Some(fields) = node.as_object() else { return };
        let mut has_child = false;
        for child in fields.values().filter(|value| value.get("driver").is_some()) {
            has_child = true;
            self.add_node(child);
        }
        if let Some(path) = node["filename"].as_str() {
            self.files.push(PathBuf::from(path.strip_prefix("file:").unwrap_or(path)));
        } else if !has_child && !node["file"].is_string() {
            let naming = fields.iter().filter(|(key, _)| !TUNING.contains(&key.as_str()));
            let naming: serde_json::Map<_, _> = naming.map(|(k, v)| (k.clone(), v.clone())).collect();
            self.remote.push(Value::from(naming).to_string());
        }
    }

    /// Returns something that both stores use, if there is anything.
    pub fn shared(&self, other: &Store) -> Option<String> {
        let file = self.files.iter().find(|path| other.uses(path)).map(|path| path.display().to_string());
        file.or_else(|| self.remote.iter().find(|name| other.remote.contains(name)).cloned())
    }

    /// Returns whether the store uses a file or device, or one that shares storage with it.
    pub fn uses(&self, path: &Path) -> bool {
        self.files.iter().any(|file| is_same(file, path))
    }
}

/// Returns the staging areas of all pools of this host, open or not.
pub fn staging_areas() -> impl Iterator<Item = PathBuf> {
    let directory = ShardConfig::staging_path_of("");
    let entries = directory.parent().and_then(|path| std::fs::read_dir(path).ok());
    let is_one =
        |entry: &DirEntry| entry.file_name().to_string_lossy().starts_with(ShardConfig::STAGING_PREFIX);
    entries.into_iter().flatten().flatten().filter(is_one).map(|entry| entry.path())
}

/// Returns whether two paths lead to the same storage.
pub fn is_same(a: &Path, b: &Path) -> bool {
    match (StorageIdentity::of(a), StorageIdentity::of(b)) {
        (Ok(a), Ok(b)) => a.overlaps(&b),
        // A file that does not exist yet can only be compared by name.
        _ => a == b,
    }
}

/// Returns why a second disk may not use the same store; `None` if both only read it.
pub fn conflict(disk: &DiskConfig, other: &DiskConfig) -> Option<String> {
    if disk.read_only && other.read_only {
        return None;
    }
    let store = Store::of(&disk.origin).shared(&Store::of(&other.origin))?;
    Some(format!(
        "disk '{}' has the origin of disk '{}' ({store}): an image has one writer",
        disk.name, other.name
    ))
}

fn nbd_server(uri: &str) -> Option<String> {
    let NbdUri { transport, export, .. } = uri.parse().ok()?;
    Some(match transport {
        Transport::Tcp { host, port } => format!("nbd://{}:{port}/{export}", host.to_lowercase()),
        Transport::Unix { socket } => {
            let socket = socket.canonicalize().unwrap_or(socket);
            format!("nbd+unix:///{export}?socket={}", socket.display())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(name: &str, origin: &str) -> DiskConfig {
        DiskConfig::new(name, "main", origin)
    }

    fn conflicts(a: &str, b: &str) -> bool {
        conflict(&disk("a", a), &disk("b", b)).is_some()
    }

    #[test]
    fn one_image_is_known_however_it_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("vm1.img");
        let link = directory.path().join("link.img");
        std::fs::write(&image, "").unwrap();
        std::os::unix::fs::symlink(&image, &link).unwrap();
        let (image, link) = (image.display().to_string(), link.display().to_string());
        let json = format!(r#"qemu:{{"driver": "raw", "file": {{"driver": "file", "filename": "{link}"}}}}"#);
        for other in [&link, &format!("file:{image}"), &format!("qcow2:{link}"), &json] {
            assert!(conflicts(&image, other), "{image} and {other}");
        }
        assert!(!conflicts(&image, &format!("{image}.2")));
    }

    #[test]
    fn remote_stores_are_known_by_what_they_name() {
        assert!(conflicts("nbd://Host/x", "nbd://host:10809/x"));
        assert!(!conflicts("nbd://host/x", "nbd://host/y"));
        assert!(conflicts("rbd:vms/vm1", "rbd:vms/vm1:id=other"));
        assert!(!conflicts("rbd:vms/vm1@a", "rbd:vms/vm1@b"));
        assert!(conflicts("iscsi://h:3260/t/1", "iscsi://h:3260/t/1"));
        assert!(!conflicts("nfs://h/a", "nfs://h/b"));
        assert!(conflicts("rbd:a/b", r#"qemu:{"driver": "rbd", "pool": "a", "image": "b"}"#));
    }

    #[test]
    fn readers_may_share() {
        let reader = |name| DiskConfig { read_only: true, ..disk(name, "/golden.img") };
        assert!(conflict(&reader("a"), &reader("b")).is_none());
        assert!(conflict(&reader("a"), &disk("b", "/golden.img")).is_some());
    }
}
