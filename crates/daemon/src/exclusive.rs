//! One store, one disk: identifies the store behind an origin, so that a second disk or a pool on the same
//! store is noticed however the origin is written.
//!
//! Files, block devices and Unix sockets are identified by inode and device number ([`StorageIdentity`]), other stores
//! by a normalized form of their URI. Nothing is asked of a server: NBD has no identity of an export, so two exports
//! with different names count as two stores, and so do two names of one host. Two disks may have the same store if both
//! only read it.
//!
//! Looking a file up may take as long as its file system likes. So a store is looked up once, on a thread that may wait
//! ([`Store::look_up`]), and then compared in memory.

use std::fs::DirEntry;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use haversack_api::DiskConfig;
use haversack_engine::{PoolSettings, StorageIdentity};
use haversack_nbd::constants::DEFAULT_PORT;
use haversack_nbd::{NbdUri, Transport};
use serde_json::{Value, json};

use crate::origin::Origin;

const ISCSI_PORT: &str = "3260";

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
    local_exports: Vec<LocalExport>,
    remote: Vec<String>,
}

/// An export of an NBD server that listens on a Unix socket.
#[derive(Clone, PartialEq, Eq, Debug)]
struct LocalExport {
    socket: PathBuf,
    name: String,
}

/// A store whose files were looked up, or are known by name only.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KnownStore {
    files: Vec<KnownFile>,
    local_exports: Vec<(KnownFile, String)>,
    remote: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct KnownFile {
    path: PathBuf,
    /// What it is; `None` if it does not exist yet or was not looked up.
    identity: Option<StorageIdentity>,
}

impl KnownFile {
    fn is(&self, other: &KnownFile) -> bool {
        match (&self.identity, &other.identity) {
            (Some(own), Some(other)) => own.overlaps(other),
            _ => self.path == other.path,
        }
    }
}

impl KnownStore {
    /// Returns something that both stores use, if there is anything. Looks nothing up.
    pub fn shared(&self, other: &KnownStore) -> Option<String> {
        let file = self.files.iter().find(|own| other.files.iter().any(|file| own.is(file)));
        let has_export = |(socket, name): &&(KnownFile, String)| {
            other.local_exports.iter().any(|(other, known)| known == name && other.is(socket))
        };
        let export = || self.local_exports.iter().find(has_export);
        let remote = || self.remote.iter().find(|name| other.remote.contains(name)).cloned();
        let uri = |(socket, name): &(KnownFile, String)| {
            format!("nbd+unix:///{name}?socket={}", socket.path.display())
        };
        file.map(|file| file.path.display().to_string()).or_else(|| export().map(uri)).or_else(remote)
    }
}

impl Store {
    /// Returns the store that an origin names; an empty one if it is malformed.
    pub fn of(origin: &str) -> Store {
        Store::of_nodes(origin, true)
    }

    /// As [`Store::of`], but without the images behind others.
    pub fn without_backing(origin: &str) -> Store {
        Store::of_nodes(origin, false)
    }

    fn of_nodes(origin: &str, with_backing: bool) -> Store {
        let mut store = Store::default();
        match Origin::parse(origin) {
            Ok(Origin::File(path)) => store.files.push(path),
            Ok(Origin::Nbd(uri)) => {
                if let Ok(NbdUri { transport, export, .. }) = uri.parse() {
                    store.add_export(transport, export);
                }
            }
            Ok(Origin::Helper(device)) => {
                device.nodes.iter().for_each(|node| store.add_node(node, with_backing));
            }
            Err(_) => {}
        }
        store
    }

    fn add_export(&mut self, transport: Transport, name: String) {
        match transport {
            Transport::Tcp { host, port } => {
                self.remote.push(format!("nbd://{}:{port}/{name}", one_name(&host)));
            }
            Transport::Unix { socket } => self.local_exports.push(LocalExport { socket, name }),
        }
    }

    /// Adds the leaves of a tree of QEMU block nodes.
    fn add_node(&mut self, node: &Value, with_backing: bool) {
        let Some(fields) = node.as_object() else { return };
        let mut has_child = false;
        for (key, child) in
            fields.iter().flat_map(|(key, value)| children(value).map(move |child| (key, child)))
        {
            has_child = true;
            if with_backing || key != "backing" {
                self.add_node(child, with_backing);
            }
        }
        if let Some(path) = node["filename"].as_str() {
            self.files.push(PathBuf::from(path.strip_prefix("file:").unwrap_or(path)));
        } else if let Some(transport) = nbd_server(node) {
            self.add_export(transport, node["export"].as_str().unwrap_or_default().to_owned());
        } else if !has_child && !node["file"].is_string() {
            let naming = fields.iter().filter(|(key, _)| !TUNING.contains(&key.as_str()));
            let mut naming: Value = naming.map(|(k, v)| (k.clone(), v.clone())).collect();
            name_server(&mut naming);
            self.remote.push(naming.to_string());
        }
    }

    /// Looks its files up.
    pub fn look_up(&self) -> KnownStore {
        self.known(|path| StorageIdentity::of(path).ok())
    }

    /// Returns what is known of it without looking at any file.
    pub fn by_name(&self) -> KnownStore {
        self.known(|_| None)
    }

    fn known(&self, identify: impl Fn(&Path) -> Option<StorageIdentity>) -> KnownStore {
        let file = |path: &PathBuf| KnownFile { path: path.clone(), identity: identify(path) };
        let export = |export: &LocalExport| (file(&export.socket), export.name.clone());
        KnownStore {
            files: self.files.iter().map(file).collect(),
            local_exports: self.local_exports.iter().map(export).collect(),
            remote: self.remote.clone(),
        }
    }

    /// Returns something that both stores use, if there is anything. Looks the files of both up.
    pub fn shared(&self, other: &Store) -> Option<String> {
        self.look_up().shared(&other.look_up())
    }

    /// Returns its files and devices.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Returns whether the store uses a file or device, or one that shares storage with it.
    pub fn uses(&self, path: &Path) -> bool {
        self.files.iter().any(|file| is_same(file, path))
    }
}

/// Returns the staging areas of all pools of this host, open or not.
pub fn staging_areas() -> impl Iterator<Item = PathBuf> {
    let directory = PoolSettings::staging_path_of("");
    let entries = directory.parent().and_then(|path| std::fs::read_dir(path).ok());
    let is_one =
        |entry: &DirEntry| entry.file_name().to_string_lossy().starts_with(PoolSettings::STAGING_PREFIX);
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

/// Returns why a second disk may not use the same store; `None` if both only read it. Looks nothing up.
pub fn conflict(
    (disk, store): (&DiskConfig, &KnownStore),
    (other, other_store): (&DiskConfig, &KnownStore),
) -> Option<String> {
    if disk.read_only && other.read_only {
        return None;
    }
    let store = store.shared(other_store)?;
    Some(format!(
        "disk '{}' has the origin of disk '{}' ({store}): an image has one writer",
        disk.name, other.name
    ))
}

/// Returns the block nodes in a field of a QEMU block node: a single node, or a list as in `quorum`.
fn children(field: &Value) -> impl Iterator<Item = &Value> {
    let list = field.as_array().map_or(std::slice::from_ref(field), Vec::as_slice);
    list.iter().filter(|one| one.get("driver").is_some())
}

/// Returns the server of a QEMU block node that is an NBD client.
fn nbd_server(node: &Value) -> Option<Transport> {
    let server = (node["driver"] == "nbd").then_some(&node["server"])?;
    if let Some(socket) = server["path"].as_str() {
        return Some(Transport::Unix { socket: socket.into() });
    }
    let port = &server["port"];
    let port = port
        .as_str()
        .and_then(|port| port.parse().ok())
        .or(port.as_u64().and_then(|port| port.try_into().ok()));
    Some(Transport::Tcp { host: server["host"].as_str()?.into(), port: port.unwrap_or(DEFAULT_PORT) })
}

/// Writes the server of a QEMU block node in one form.
fn name_server(node: &mut Value) {
    if let Some(host) = node["server"]["host"].as_str().map(one_name) {
        node["server"]["host"] = json!(host);
    }
    if let Some(portal) = node["portal"].as_str().map(one_portal) {
        node["portal"] = json!(portal);
    }
}

/// Returns an iSCSI portal, `HOST[:PORT]`, in one form.
fn one_portal(portal: &str) -> String {
    let has_port =
        |(host, port): &(&str, &str)| !port.contains(']') && (host.ends_with(']') || !host.contains(':'));
    let (host, port) = portal.rsplit_once(':').filter(has_port).unwrap_or((portal, ISCSI_PORT));
    format!("{}:{port}", one_name(host.trim_matches(['[', ']'])))
}

/// Returns a host's name or address in one form. It is not resolved: that takes time, and the answer may change.
fn one_name(host: &str) -> String {
    const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let name = host.strip_suffix('.').unwrap_or(host).to_lowercase();
    match name.parse::<IpAddr>().map(|address| address.to_canonical()) {
        Ok(address) if LOOPBACK.contains(&address) => "localhost".into(),
        Ok(address) => address.to_string(),
        Err(_) => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(name: &str, origin: &str) -> DiskConfig {
        DiskConfig::new(name, "main", origin)
    }

    fn conflicts(a: &str, b: &str) -> bool {
        conflict_of(&disk("a", a), &disk("b", b)).is_some()
    }

    fn conflict_of(a: &DiskConfig, b: &DiskConfig) -> Option<String> {
        let [of_a, of_b] = [a, b].map(|disk| Store::of(&disk.origin).look_up());
        conflict((a, &of_a), (b, &of_b))
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
    fn the_image_behind_another_is_part_of_a_store_but_not_of_its_own_data() {
        let file = |name: &str| format!(r#"{{"driver": "file", "filename": "{name}"}}"#);
        let [own, behind] = ["/own.qcow2", "/behind.raw"].map(file);
        let origin = format!(r#"qemu:{{"driver": "qcow2", "file": {own}, "backing": {behind}}}"#);
        let uses = |store: Store| ["/own.qcow2", "/behind.raw"].map(|path| store.uses(Path::new(path)));
        assert_eq!(uses(Store::of(&origin)), [true, true]);
        assert_eq!(uses(Store::without_backing(&origin)), [true, false]);
    }

    #[test]
    fn nodes_in_a_list_are_parts_of_a_store() {
        let file = |name: &str| {
            format!(r#"{{"driver": "raw", "file": {{"driver": "file", "filename": "{name}"}}}}"#)
        };
        let remote = r#"{"driver": "rbd", "pool": "vms", "image": "vm1"}"#;
        let (first, second) = (file("/a.img"), file("/b.img"));
        let quorum = format!(
            r#"qemu:{{"driver": "quorum", "vote-threshold": 2, "children": [{first}, {second}, {remote}]}}"#
        );
        for other in ["/a.img", "file:/b.img", "qcow2:/b.img", "rbd:vms/vm1"] {
            assert!(conflicts(&quorum, other), "{other}");
        }
        assert!(!conflicts(&quorum, "/c.img") && !conflicts(&quorum, "rbd:vms/vm2"));
        assert_eq!(Store::of(&quorum).files(), ["/a.img", "/b.img"].map(PathBuf::from));
    }

    #[test]
    fn remote_stores_are_known_by_what_they_name() {
        assert!(conflicts("nbd://Host/x", "nbd://host:10809/x"));
        assert!(!conflicts("nbd://host/x", "nbd://host/y"));
        assert!(conflicts("rbd:vms/vm1", "rbd:vms/vm1:id=other"));
        assert!(!conflicts("rbd:vms/vm1@a", "rbd:vms/vm1@b"));
        assert!(conflicts("iscsi://h/t/1", "iscsi://H:3260/t/1"));
        assert!(conflicts("iscsi://[::1]/t/1", "iscsi://localhost:3260/t/1"));
        assert!(!conflicts("iscsi://h:3261/t/1", "iscsi://h/t/1"));
        assert!(conflicts("nfs://h/a", "nfs://H./a"));
        assert!(!conflicts("nfs://h/a", "nfs://h/b"));
        assert!(conflicts("rbd:a/b", r#"qemu:{"driver": "rbd", "pool": "a", "image": "b"}"#));
    }

    #[test]
    fn an_export_of_a_server_is_known_however_the_server_is_named() {
        let node =
            |server: &str| format!(r#"qemu:{{"driver": "nbd", "export": "x", "server": {{{server}}}}}"#);
        let tcp = node(r#""type": "inet", "host": "127.0.0.1", "port": "10809""#);
        for other in ["nbd://localhost/x", "nbd://[::1]/x", "nbds://[::ffff:127.0.0.1]:10809/x", &tcp] {
            assert!(conflicts("nbd://127.0.0.1/x", other), "{other}");
        }
        for other in
            ["nbd://127.0.0.1:10810/x", "nbd://127.0.0.2/x", "nbd://127.0.0.1/", "nbd+unix:///x?socket=/s"]
        {
            assert!(!conflicts("nbd://127.0.0.1/x", other), "{other}");
        }

        let directory = tempfile::tempdir().unwrap();
        let [socket, symbolic, hard, other] =
            ["socket", "symbolic", "hard", "other"].map(|name| directory.path().join(name));
        let _listeners = [&socket, &other].map(|path| std::os::unix::net::UnixListener::bind(path).unwrap());
        std::os::unix::fs::symlink(&socket, &symbolic).unwrap();
        std::fs::hard_link(&socket, &hard).unwrap();
        let uri = |path: &Path, export: &str| format!("nbd+unix:///{export}?socket={}", path.display());
        let unix = node(&format!(r#""type": "unix", "path": "{}""#, hard.display()));
        for name in [uri(&symbolic, "x"), uri(&hard, "x"), uri(&hard, "x").replace("nbd+", "nbds+"), unix] {
            assert!(conflicts(&uri(&socket, "x"), &name), "{name}");
        }
        assert!(!conflicts(&uri(&socket, "x"), &uri(&socket, "y")));
        assert!(!conflicts(&uri(&socket, "x"), &uri(&other, "x")));
    }

    #[test]
    fn readers_may_share() {
        let reader = |name| DiskConfig { read_only: true, ..disk(name, "/golden.img") };
        assert!(conflict_of(&reader("a"), &reader("b")).is_none());
        assert!(conflict_of(&reader("a"), &disk("b", "/golden.img")).is_some());
    }
}
