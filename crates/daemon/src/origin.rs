//! Parses an origin's URI: either something that the engine accesses itself, or a store that a helper exports.
//!
//! | written | reached by |
//! |---|---|
//! | `/path`, `file:/path` | the engine: a file or block device |
//! | `nbd://`, `nbds://`, `nbd+unix://`, `nbds+unix://` | the engine: an NBD server |
//! | `rbd:pool/image[@snapshot]`, `iscsi://host[:port]/target/lun`, `nfs://host/path`, `qcow2:/path`, `qemu:{json}` | a helper |
//!
//! `qemu:` takes the JSON of a QEMU block device (`-blockdev`), so that every QEMU driver can be used.

use std::path::PathBuf;

use haversack_api::{OriginTls, redact};
use haversack_engine::{OriginSpec, TlsFiles};
use serde_json::{Value, json};

/// An origin.
#[derive(Clone, PartialEq, Debug)]
pub enum Origin {
    /// A file or block device.
    File(PathBuf),
    /// An NBD server's URI.
    Nbd(String),
    /// QEMU block nodes that a helper exports.
    Helper(BlockDevice),
}

/// QEMU block nodes, in the order of their creation. The last one is the disk.
#[derive(Clone, PartialEq, Debug)]
pub struct BlockDevice {
    /// One `blockdev-add` each.
    pub nodes: Vec<Value>,
}

/// The name of the node that a helper exports.
pub const DISK_NODE: &str = "disk";
/// The name of the node below it.
const PROTOCOL_NODE: &str = "protocol";

impl Origin {
    /// Parses an origin as written in the configuration.
    ///
    /// # Errors
    /// The origin is malformed; the text says what was expected.
    pub fn parse(text: &str) -> Result<Origin, String> {
        if text.starts_with('/') {
            return Ok(Origin::File(text.into()));
        }
        // Errors are logged, too.
        let shown = redact::text(text);
        let unknown = || {
            format!(
                "origin '{shown}' is unknown: expected a path, file:, nbd://, nbds://, nbd+unix://, nbds+unix://, rbd:, \
                 iscsi://, nfs://, qcow2: or qemu:"
            )
        };
        let (scheme, rest) = text.split_once(':').ok_or_else(unknown)?;
        match scheme {
            "file" => absolute(&shown, rest.strip_prefix("//").unwrap_or(rest)).map(Origin::File),
            "nbd" | "nbds" | "nbd+unix" | "nbds+unix" if rest.starts_with("//") => {
                Ok(Origin::Nbd(text.into()))
            }
            "rbd" => rbd(&shown, rest).map(Origin::Helper),
            "iscsi" => iscsi(&shown, rest).map(Origin::Helper),
            "nfs" => nfs(&shown, rest).map(Origin::Helper),
            "qcow2" => qcow2(&shown, rest).map(Origin::Helper),
            "qemu" => qemu(rest).map(Origin::Helper),
            _ => Err(unknown()),
        }
    }

    /// Checks the TLS files: TLS is possible only with NBD servers, and a certificate needs its key.
    ///
    /// # Errors
    /// The files do not fit; the text says what was expected.
    pub fn check_tls(&self, tls: &OriginTls) -> Result<(), String> {
        let with_tls = |uri: &str| uri.starts_with("nbds:") || uri.starts_with("nbds+unix:");
        if !matches!(self, Origin::Nbd(uri) if with_tls(uri)) {
            return Err("origin_tls is for origins nbds:// and nbds+unix://; leave it out".into());
        }
        if tls.certificate.is_some() != tls.key.is_some() {
            return Err("origin_tls: certificate and key belong together: give both or none".into());
        }
        Ok(())
    }

    /// Converts the origin for the engine. `helper_uri` is the URI of the helper's server, if one is needed.
    pub fn engine_spec(
        &self,
        connections: u8,
        tls: Option<OriginTls>,
        helper_uri: Option<String>,
    ) -> OriginSpec {
        let OriginTls { ca, certificate, key } = tls.unwrap_or_default();
        let tls = TlsFiles { ca, certificate, key };
        match self {
            Origin::File(path) => OriginSpec::File { path: path.clone() },
            Origin::Nbd(uri) => OriginSpec::Nbd { uri: uri.clone(), connections, tls },
            Origin::Helper(_) => OriginSpec::Nbd { uri: helper_uri.unwrap_or_default(), connections, tls },
        }
    }
}

fn absolute(text: &str, path: &str) -> Result<PathBuf, String> {
    if path.starts_with('/') {
        return Ok(path.into());
    }
    Err(format!("origin '{text}': expected an absolute path"))
}

/// Makes a block device of the protocol node alone. The helper does not cache: whatever it acknowledges is at the
/// store.
fn direct(mut protocol: Value) -> BlockDevice {
    protocol["node-name"] = json!(DISK_NODE);
    protocol["cache"] = json!({"direct": true, "no-flush": false});
    protocol["discard"] = json!("unmap");
    BlockDevice { nodes: vec![protocol] }
}

/// `pool[/namespace]/image[@snapshot][:key=value...]`; keys: `conf`, `id`.
fn rbd(text: &str, rest: &str) -> Result<BlockDevice, String> {
    let wrong =
        || format!("origin '{text}': expected rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT][:id=USER][:conf=FILE]");
    let mut parts = rest.split(':');
    let path = parts.next().unwrap_or_default();
    let (path, snapshot) = path.split_once('@').map_or((path, None), |(p, s)| (p, Some(s)));
    let names: Vec<&str> = path.split('/').collect();
    if names.iter().any(|name| name.is_empty()) || snapshot == Some("") {
        return Err(wrong());
    }
    let mut node = match names[..] {
        [pool, image] => json!({"driver": "rbd", "pool": pool, "image": image}),
        [pool, namespace, image] => {
            json!({"driver": "rbd", "pool": pool, "namespace": namespace, "image": image})
        }
        _ => return Err(wrong()),
    };
    if let Some(snapshot) = snapshot {
        node["snapshot"] = json!(snapshot);
    }
    for option in parts {
        match option.split_once('=') {
            Some(("id", user)) => node["user"] = json!(user),
            Some(("conf", file)) => node["conf"] = json!(file),
            _ => return Err(wrong()),
        }
    }
    Ok(direct(node))
}

/// `//host[:port]/target/lun`. A user is refused: the password does not belong in a configuration that others can read.
/// With `qemu:`, it is passed to QEMU as a secret.
fn iscsi(text: &str, rest: &str) -> Result<BlockDevice, String> {
    let wrong = || format!("origin '{text}': expected iscsi://HOST[:PORT]/TARGET/LUN");
    let rest = rest.strip_prefix("//").ok_or_else(wrong)?;
    let parts: Vec<&str> = rest.split('/').collect();
    let [portal, target, lun] = parts[..] else { return Err(wrong()) };
    let lun: u32 = lun.parse().map_err(|_| wrong())?;
    if portal.is_empty() || portal.contains('@') || target.is_empty() {
        return Err(wrong());
    }
    Ok(direct(json!({"driver": "iscsi", "transport": "tcp", "portal": portal, "target": target, "lun": lun})))
}

/// `//host/path`
fn nfs(text: &str, rest: &str) -> Result<BlockDevice, String> {
    let wrong = || format!("origin '{text}': expected nfs://HOST/PATH");
    let (host, path) = rest.strip_prefix("//").and_then(|rest| rest.split_once('/')).ok_or_else(wrong)?;
    if host.is_empty() || path.is_empty() {
        return Err(wrong());
    }
    let server = json!({"type": "inet", "host": host});
    Ok(direct(json!({"driver": "nfs", "server": server, "path": format!("/{path}")})))
}

fn qcow2(text: &str, rest: &str) -> Result<BlockDevice, String> {
    let path = absolute(text, rest.strip_prefix("//").unwrap_or(rest))?;
    let file = json!({
        "driver": "file", "node-name": PROTOCOL_NODE, "filename": path,
        "cache": {"direct": true, "no-flush": false}, "discard": "unmap"
    });
    let image = json!({
        "driver": "qcow2", "node-name": DISK_NODE, "file": PROTOCOL_NODE,
        "cache": {"direct": true, "no-flush": false}, "discard": "unmap"
    });
    Ok(BlockDevice { nodes: vec![file, image] })
}

/// JSON of one node. Whatever it contains, flushes are not ignored.
fn qemu(rest: &str) -> Result<BlockDevice, String> {
    let mut node: Value = serde_json::from_str(rest)
        .map_err(|e| format!("origin qemu: expected the JSON of a block device: {e}"))?;
    if !node.is_object() || !node["driver"].is_string() {
        return Err("origin qemu: expected a JSON object with a \"driver\"".into());
    }
    node["node-name"] = json!(DISK_NODE);
    if node["cache"]["no-flush"] == json!(true) {
        return Err("origin qemu: \"no-flush\" would lose what a flush promised; leave it out".into());
    }
    Ok(BlockDevice { nodes: vec![node] })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(text: &str) -> Vec<Value> {
        match Origin::parse(text).unwrap() {
            Origin::Helper(device) => device.nodes,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn the_engine_speaks_to_files_and_nbd_servers() {
        assert_eq!(Origin::parse("/dev/x"), Ok(Origin::File("/dev/x".into())));
        assert_eq!(Origin::parse("file:/a:b"), Ok(Origin::File("/a:b".into())));
        assert_eq!(Origin::parse("file:///a"), Ok(Origin::File("/a".into())));
        let uri = "nbd+unix:///vm1?socket=/run/x.sock";
        assert_eq!(Origin::parse(uri), Ok(Origin::Nbd(uri.into())));
    }

    #[test]
    fn helpers_reach_the_rest_without_a_cache_of_their_own() {
        let rbd = nodes("rbd:vms/vm1@s:id=admin:conf=/etc/ceph/c.conf");
        assert_eq!((rbd[0]["image"].as_str(), rbd[0]["snapshot"].as_str()), (Some("vm1"), Some("s")));
        assert_eq!(
            (rbd[0]["user"].as_str(), rbd[0]["conf"].as_str()),
            (Some("admin"), Some("/etc/ceph/c.conf"))
        );
        let iscsi = nodes("iscsi://10.0.0.1:3260/iqn.2020-01.org.example:disk/1");
        assert_eq!((iscsi[0]["portal"].as_str(), iscsi[0]["lun"].as_u64()), (Some("10.0.0.1:3260"), Some(1)));
        assert_eq!(nodes("nfs://host/a/b")[0]["path"], "/a/b");
        let qcow2 = nodes("qcow2:/images/vm1.qcow2");
        assert_eq!(
            (qcow2[0]["driver"].as_str(), qcow2[1]["file"].as_str()),
            (Some("file"), Some(PROTOCOL_NODE))
        );
        for node in rbd.iter().chain(&iscsi).chain(&qcow2) {
            assert_eq!(node["cache"], json!({"direct": true, "no-flush": false}));
        }
        assert_eq!(nodes(r#"qemu:{"driver": "null-co"}"#)[0]["node-name"], DISK_NODE);
    }

    #[test]
    fn malformed_values_are_reported() {
        let bad = [
            "disk.img",
            "gopher://x",
            "file:x",
            "nbd:host:10809",
            "rbd:image",
            "rbd:a/b:secret=1",
            "rbd:a//b",
            "iscsi://h/t",
            "iscsi://u@h/t/1",
            "iscsi://h/t/one",
            "nfs://h",
            "nfs:/x",
            "qcow2:x",
            "qemu:x",
            "qemu:{}",
            r#"qemu:{"driver": "file", "cache": {"no-flush": true}}"#,
        ];
        for text in bad {
            let error = Origin::parse(text).unwrap_err();
            assert!(error.contains("expected") || error.contains("no-flush"), "{text}: {error}");
        }
    }
}
