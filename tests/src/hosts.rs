//! Daemons between which disks move, as if each were on a host of its own.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};

use crate::certificates::Certificates;
use crate::haversack::Haversack;
use crate::network::Network;
use crate::tools::{self, PATIENCE};
use crate::{Place, Result};

/// Where hosts listen. Each has an address of its own, so that the port is free when its daemon comes back.
const PORT: u16 = 10810;

/// The names, addresses and certificates of the hosts, for their configurations.
#[derive(Debug)]
pub struct Hosts {
    certificates: Certificates,
    hosts: Vec<(String, SocketAddr)>,
}

impl Hosts {
    /// Makes addresses and certificates for hosts of these names.
    ///
    /// # Errors
    /// If they cannot be made.
    pub fn new(place: &Place, names: &[&str]) -> Result<Self> {
        static COUNT: AtomicU8 = AtomicU8::new(1);
        let [_, _, a, b] = std::process::id().to_be_bytes();
        let address = |_: &&str| Ipv4Addr::new(127, a, b, COUNT.fetch_add(1, Ordering::Relaxed));
        Self::at(place, names, names.iter().map(address))
    }

    /// Makes certificates for hosts of these names, which are on a network of their own.
    ///
    /// # Errors
    /// If they cannot be made.
    pub fn on(place: &Place, names: &[&str], network: &Network) -> Result<Self> {
        Self::at(place, names, (0..names.len()).map(|host| network.address(host)))
    }

    fn at(place: &Place, names: &[&str], addresses: impl Iterator<Item = Ipv4Addr>) -> Result<Self> {
        let certificates = Certificates::of_hosts(place, "hosts", names)?;
        let names = names.iter().map(|name| (*name).to_owned());
        let addresses = addresses.map(|address| SocketAddr::from((address, PORT)));
        Ok(Self { certificates, hosts: names.zip(addresses).collect() })
    }

    /// The tables of a host's configuration, for the end of its file.
    pub fn tables(&self, me: &str) -> String {
        let file = |name: String| self.certificates.path(&name).display().to_string();
        let mut text = String::new();
        for (name, address) in &self.hosts {
            if name == me {
                text += &format!(
                    "\n[migration]\nname = \"{me}\"\nlisten = [\"{address}\"]\ncertificate = {:?}\nkey = {:?}\n\
                     authority = {:?}\n",
                    file(format!("{me}-cert.pem")),
                    file(format!("{me}-key.pem")),
                    file("ca-cert.pem".into()),
                );
            } else {
                text += &format!("\n[[host]]\nname = \"{name}\"\naddress = \"{address}\"\n");
            }
        }
        text
    }
}

/// The state of a moving disk on a host, as shown by `haversack migrate status`.
///
/// # Errors
/// The error output of the daemon.
pub fn state(host: &Haversack<'_>, disk: &str) -> Result<String> {
    Ok(host.json(&["migrate", "status", disk])?["state"].as_str().unwrap_or_default().to_owned())
}

/// Waits until nothing of a disk is on the host that it came from.
///
/// # Errors
/// If the move does not end.
pub fn wait_until_moved(from: &Haversack<'_>, to: &Haversack<'_>, disk: &str) -> Result<()> {
    tools::wait_until(&format!("the end of the move of '{disk}'"), PATIENCE, || {
        Ok(state(to, disk)? == "here" && matches!(state(from, disk)?.as_str(), "away" | "waiting"))
    })
}

/// Waits until a host is connected to all others. While another host that may have a disk is not connected, the disk
/// cannot be attached.
///
/// # Errors
/// If that takes too long.
pub fn wait_until_connected(host: &Haversack<'_>) -> Result<()> {
    tools::wait_until("the other hosts", PATIENCE, || {
        let listed = host.json(&["host", "list"]).unwrap_or_default();
        Ok(listed.as_array().is_some_and(|hosts| hosts.iter().all(|other| other["is_connected"] == true)))
    })
}
