//! Keeps a second client of an RBD image out, on this host or another one.
//!
//! The lock of [`super::lock`] is Haversack's own. But each client that opens an image
//! for writing watches its header object, and `rbd status` lists the watchers. The list is read once this daemon's own
//! helper has the image open, so of two hosts that attach the same image at the same time, neither misses the other.
//! If the disk moves between hosts, the clients of all of them are in a register ([`super::register`]), and only others
//! are refused.
//!
//! A client that is killed stays listed for 30 s. When the daemon is restarted after a crash, its previous helper is
//! such a client; so a restart ignores watchers on this host.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::lock::Holder;
use super::{Image, register};
use crate::origin::BlockDevice;

/// A client that died is no longer listed after this time: Ceph's default of 30 s, and some margin.
pub const FORGOTTEN_AFTER: Duration = Duration::from_secs(40);
/// How long another host may take to enter a client that has opened the image in the register.
const REGISTERING_TIME: Duration = Duration::from_secs(5);
/// How often to check whether it has.
const LOOK_EVERY: Duration = Duration::from_millis(200);

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

/// Refuses a device with an RBD image that another client has open for writing. The device's own helper must have it
/// open. `after_crash`: clients on this host may be what is left of an earlier helper, and are ignored.
///
/// # Errors
/// Another client has an image open, or the clients cannot be determined.
pub fn refuse_other_clients(
    device: &BlockDevice,
    holder: &Holder,
    after_crash: bool,
) -> Result<(), WatchError> {
    let images = Image::all_of(device);
    if images.is_empty() {
        return Ok(());
    }
    let local = local_addresses();
    for image in images {
        let unknown = |why| WatchError::Unknown { image: image.path(), why };
        let deadline = Instant::now() + REGISTERING_TIME;
        loop {
            // List the watchers first: a client that is entered in between is found in the register.
            let watchers = clients_of(&image).map_err(unknown)?;
            let registered = match holder.is_shared() {
                true => Some(register::registered(&image).map_err(unknown)?),
                false => None,
            };
            let clients = others(&watchers, &local, registered.as_deref(), after_crash);
            if clients.is_empty() {
                break;
            }
            if !holder.is_shared() || Instant::now() >= deadline {
                return Err(WatchError::InUse { image: image.path(), clients });
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
    Ok(())
}

/// Returns the addresses of the clients that have an image open for writing.
pub(super) fn clients_of(image: &Image) -> Result<Vec<String>, String> {
    watchers(&image.run("rbd", &["status", "--format", "json", "--", &image.path()])?)
}

/// Returns those of the clients that are on this host.
pub(super) fn on_this_host(clients: &[String]) -> Vec<String> {
    let local = local_addresses();
    clients.iter().filter(|client| is_local(client, &local)).cloned().collect()
}

/// Reads the addresses of the watchers from what `rbd status --format json` printed.
fn watchers(status: &str) -> Result<Vec<String>, String> {
    let unreadable = || format!("rbd status printed '{}'", status.trim());
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

pub(super) fn is_local(watcher: &str, local: &[IpAddr]) -> bool {
    address(watcher).is_some_and(|ip| local.contains(&ip))
}

/// Returns the watchers that are neither in the register nor this daemon's own helper. If the image has a register, the
/// helper is in it; otherwise the helper is one of the clients on this host.
fn others(
    watchers: &[String],
    local: &[IpAddr],
    registered: Option<&[String]>,
    after_crash: bool,
) -> Vec<String> {
    let is_known = |watcher: &&String| registered.is_some_and(|clients| clients.contains(watcher));
    let unknown = watchers.iter().filter(|watcher| !is_known(watcher));
    let (here, elsewhere): (Vec<&String>, Vec<&String>) =
        unknown.partition(|watcher| is_local(watcher, local));
    let is_second = here.len() > usize::from(registered.is_none()) && !after_crash;
    elsewhere.into_iter().chain(here.into_iter().filter(|_| is_second)).cloned().collect()
}

/// Returns the addresses of this host.
pub(super) fn local_addresses() -> Vec<IpAddr> {
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

    #[test]
    fn clients_of_other_hosts_are_distinguished_from_the_own_helper() {
        let local = [IpAddr::from([10, 0, 0, 1])];
        let list = |status: &str| watchers(status).expect("a list");
        let own = r#"{"address": "10.0.0.1:0/1030710457", "client": 4123, "cookie": 140495963558224}"#;
        let other = r#"{"address": "v1:10.0.0.2:0/7", "client": 4124, "cookie": 1}"#;
        let alone = list(&format!(r#"{{"watchers": [{own}]}}"#));
        assert!(others(&alone, &local, None, false).is_empty());
        let elsewhere = list(&format!(r#"{{"watchers": [{own}, {other}]}}"#));
        for after_crash in [false, true] {
            assert_eq!(others(&elsewhere, &local, None, after_crash), ["v1:10.0.0.2:0/7"]);
        }
        let twice = list(&format!(r#"{{"watchers": [{own}, {own}]}}"#));
        assert_eq!(others(&twice, &local, None, false).len(), 2);
        assert!(others(&twice, &local, None, true).is_empty());
        assert_eq!(address("[fd00::1]:0/9"), Some("fd00::1".parse().expect("an address")));
    }

    #[test]
    fn clients_in_the_register_are_not_refused() {
        let local = [IpAddr::from([10, 0, 0, 1])];
        let [own, left, theirs, foreign] =
            ["10.0.0.1:0/1", "10.0.0.1:0/2", "10.0.0.2:0/3", "10.0.0.2:0/4"].map(str::to_string);
        let registered = [own.clone(), theirs.clone()];
        let refused = |watchers: &[&String], after_crash| {
            let watchers: Vec<String> = watchers.iter().copied().cloned().collect();
            others(&watchers, &local, Some(&registered), after_crash)
        };
        assert!(refused(&[&own, &theirs], false).is_empty());
        assert_eq!(refused(&[&own, &theirs, &foreign], true), std::slice::from_ref(&foreign));
        assert_eq!(refused(&[&own, &left], false), std::slice::from_ref(&left));
        assert!(refused(&[&own, &left], true).is_empty());
    }

    #[test]
    fn an_unreadable_list_is_an_error() {
        for status in ["", "{}", r#"{"watchers": [{"client": 1}]}"#] {
            assert!(watchers(status).is_err_and(|why| why.contains("rbd status printed")), "{status}");
        }
    }
}
