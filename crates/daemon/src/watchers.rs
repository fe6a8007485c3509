//! Keeps a second client of an RBD image out, on this host or another one.
//!
//! librbd's exclusive lock does not do that: it moves to any client that writes. But each client that opens an image
//! for writing watches its header object, and `rbd status` lists the watchers. The list is read once this daemon's own
//! helper has the image open, so of two hosts that attach the same image at the same time, neither misses the other.
//!
//! A client that is killed stays listed for 30 s. When the daemon is restarted after a crash, its previous helper is
//! such a client; so a restart ignores watchers on this host.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::origin::BlockDevice;

/// The program that lists the watchers.
const PROGRAM: &str = "rbd";
/// How long it may take.
const TIME_LIMIT: Duration = Duration::from_secs(20);
/// A client that died is no longer listed after this time: Ceph's default of 30 s, and some margin.
pub const FORGOTTEN_AFTER: Duration = Duration::from_secs(40);
/// How often its end is checked.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Why an image cannot be used.
#[derive(PartialEq, Eq, Debug, thiserror::Error)]
pub enum WatchError {
    /// Other clients have it open for writing.
    #[error(
        "RBD image {image} is open on {}: an image has one writer; close it there (a client that died is listed for 30 s)",
        .clients.join(", ")
    )]
    InUse {
        /// The image.
        image: String,
        /// The addresses of the clients. If one is on this host, the daemon's own helper is among them.
        clients: Vec<String>,
    },
    /// Its clients cannot be listed.
    #[error("cannot list the clients of RBD image {image}: {why}")]
    Unknown {
        /// The image.
        image: String,
        /// What failed.
        why: String,
    },
}

/// An RBD image that is opened for writing.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Image {
    /// `POOL[/NAMESPACE]/IMAGE`.
    name: String,
    user: Option<String>,
    conf: Option<PathBuf>,
}

/// Refuses a device with an RBD image that another client has open for writing. The device's own helper must have it
/// open. `after_crash`: clients on this host may be what is left of an earlier helper, and are ignored.
///
/// # Errors
/// Another client has an image open, or it cannot be found out.
pub fn refuse_other_clients(device: &BlockDevice, after_crash: bool) -> Result<(), WatchError> {
    let images = images(device);
    if images.is_empty() {
        return Ok(());
    }
    let local = local_addresses();
    for image in images {
        let unknown = |why| WatchError::Unknown { image: image.name.clone(), why };
        let watchers = watchers(&list(&image).map_err(unknown)?).map_err(unknown)?;
        let clients = others(&watchers, &local, after_crash);
        if !clients.is_empty() {
            return Err(WatchError::InUse { image: image.name, clients });
        }
    }
    Ok(())
}

/// Returns the RBD images among the leaves of a device's nodes. Snapshots are read-only.
fn images(device: &BlockDevice) -> Vec<Image> {
    fn add(node: &Value, images: &mut Vec<Image>) {
        let text = |key: &str| node[key].as_str().map(str::to_string);
        if let (Some("rbd"), Some(pool), Some(image), true) =
            (node["driver"].as_str(), text("pool"), text("image"), node["snapshot"].is_null())
        {
            let parts = [Some(pool), text("namespace").filter(|name| !name.is_empty()), Some(image)];
            let name = parts.into_iter().flatten().collect::<Vec<_>>().join("/");
            images.push(Image { name, user: text("user"), conf: text("conf").map(PathBuf::from) });
        }
        node.as_object().into_iter().flat_map(|fields| fields.values()).for_each(|child| add(child, images));
    }
    let mut images = Vec::new();
    device.nodes.iter().for_each(|node| add(node, &mut images));
    images
}

/// Runs `rbd status` and returns its output.
fn list(image: &Image) -> Result<String, String> {
    let mut command = Command::new(PROGRAM);
    if let Some(user) = &image.user {
        command.arg("--id").arg(user);
    }
    if let Some(conf) = &image.conf {
        command.arg("--conf").arg(conf);
    }
    command.args(["status", "--format", "json", "--"]).arg(&image.name);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    crate::system::die_with_parent(&mut command);
    let child = command
        .spawn()
        .map_err(|error| format!("{PROGRAM} cannot be started: {error}; install Debian's ceph-common"))?;
    let output = within_limit(child)?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        return Err(format!("{PROGRAM} status ended with {}: {last}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Waits for a program whose output fits in a pipe's buffer, and kills it if it takes too long.
fn within_limit(mut child: Child) -> Result<std::process::Output, String> {
    let deadline = Instant::now() + TIME_LIMIT;
    while Instant::now() < deadline {
        match child.try_wait() {
            Ok(None) => std::thread::sleep(LOOK_EVERY),
            Ok(Some(_)) => return child.wait_with_output().map_err(|error| error.to_string()),
            Err(error) => return Err(error.to_string()),
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    Err(format!("{PROGRAM} status took longer than {} s", TIME_LIMIT.as_secs()))
}

/// Reads the addresses of the watchers from what `rbd status --format json` printed.
fn watchers(status: &str) -> Result<Vec<String>, String> {
    let unreadable = || format!("{PROGRAM} status printed '{}'", status.trim());
    let status: Value = serde_json::from_str(status).map_err(|_| unreadable())?;
    let watchers = status["watchers"].as_array().ok_or_else(unreadable)?;
    watchers.iter().map(|w| w["address"].as_str().map(str::to_string).ok_or_else(unreadable)).collect()
}

/// Returns the address of a client, which Ceph writes as `[v1:|v2:]IP:PORT/NONCE`.
fn address(watcher: &str) -> Option<IpAddr> {
    let bare = watcher.split_once('/').map_or(watcher, |(address, _)| address);
    let bare = bare.trim_start_matches("v1:").trim_start_matches("v2:");
    bare.parse::<SocketAddr>().ok().map(|address| address.ip())
}

/// Returns the watchers that are not the daemon's own helper. That one is on this host.
fn others(watchers: &[String], local: &[IpAddr], after_crash: bool) -> Vec<String> {
    let is_local = |watcher: &&String| address(watcher).is_some_and(|ip| local.contains(&ip));
    let (here, elsewhere): (Vec<&String>, Vec<&String>) = watchers.iter().partition(is_local);
    let second_here = here.len() > 1 && !after_crash;
    elsewhere.into_iter().chain(here.into_iter().filter(|_| second_here)).cloned().collect()
}

fn local_addresses() -> Vec<IpAddr> {
    let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let ip = |address: nix::sys::socket::SockaddrStorage| {
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
    };
    interfaces.filter_map(|interface| interface.address).filter_map(ip).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::Origin;

    fn images_of(origin: &str) -> Vec<Image> {
        let Ok(Origin::Helper(device)) = Origin::parse(origin) else { panic!("{origin} needs a helper") };
        images(&device)
    }

    #[test]
    fn images_are_found_wherever_they_are_in_the_tree() {
        let image = Image { name: "vms/a/vm1".into(), user: Some("h".into()), conf: Some("/c".into()) };
        assert_eq!(images_of("rbd:vms/a/vm1:id=h:conf=/c"), [image]);
        let below = r#"qemu:{"driver": "raw", "file": {"driver": "rbd", "pool": "vms", "image": "vm2"}}"#;
        assert_eq!(images_of(below), [Image { name: "vms/vm2".into(), user: None, conf: None }]);
        assert!(images_of("rbd:vms/vm1@snapshot").is_empty());
        assert!(images_of("iscsi://127.0.0.1:1/iqn.2020-01.org.example:x/1").is_empty());
    }

    #[test]
    fn clients_of_other_hosts_are_distinguished_from_the_own_helper() {
        let local = [IpAddr::from([10, 0, 0, 1])];
        let list = |status: &str| watchers(status).expect("a list");
        let own = r#"{"address": "10.0.0.1:0/1030710457", "client": 4123, "cookie": 140495963558224}"#;
        let other = r#"{"address": "v1:10.0.0.2:0/7", "client": 4124, "cookie": 1}"#;
        let alone = list(&format!(r#"{{"watchers": [{own}]}}"#));
        assert!(others(&alone, &local, false).is_empty());
        let elsewhere = list(&format!(r#"{{"watchers": [{own}, {other}]}}"#));
        for after_crash in [false, true] {
            assert_eq!(others(&elsewhere, &local, after_crash), ["v1:10.0.0.2:0/7"]);
        }
        let twice = list(&format!(r#"{{"watchers": [{own}, {own}]}}"#));
        assert_eq!(others(&twice, &local, false).len(), 2);
        assert!(others(&twice, &local, true).is_empty());
        assert_eq!(address("[fd00::1]:0/9"), Some("fd00::1".parse().expect("an address")));
    }

    #[test]
    fn an_unreadable_list_is_an_error() {
        for status in ["", "{}", r#"{"watchers": [{"client": 1}]}"#] {
            assert!(watchers(status).is_err_and(|why| why.contains("rbd status printed")), "{status}");
        }
    }
}
