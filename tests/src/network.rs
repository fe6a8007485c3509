//! Hosts on a network of their own: a network namespace for each, and one for the switch between them. Links can be
//! slow, and they can be cut.
//!
//! A namespace lives as long as the process that holds it, and its interfaces live as long as the namespace. So nothing
//! is left of a test that was killed, no two tests meet, and nothing of the machine's own network is touched. From
//! outside, programs on the hosts are reached through Unix sockets alone.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;

use crate::process::Process;
use crate::tools::{self, PATIENCE};
use crate::{Error, Place, Result};

/// A host's interface.
const INTERFACE: &str = "host0";
const SWITCH: &str = "switch0";
/// The size of a burst at any rate: more than the kernel's largest packet.
const BURST: &str = "128kb";
/// The maximum time that a packet waits in the queue; other packets are dropped.
const LONGEST_QUEUE: &str = "20ms";

/// Hosts that reach each other through a switch. They and their links end with it.
#[derive(Debug)]
pub struct Network {
    switch: Namespace,
    hosts: Vec<Namespace>,
}

/// A network namespace.
#[derive(Debug)]
struct Namespace {
    holder: Process,
}

impl Network {
    /// Makes a network of hosts that send at most `mbits` million bits a second each.
    ///
    /// # Errors
    /// If the privileges for it lack, or it cannot be made.
    pub fn new(place: &Place, hosts: usize, mbits: u32) -> Result<Self> {
        let switch = Namespace::new(place, "network-switch")?;
        switch.ip(&["link", "add", "name", SWITCH, "type", "bridge"])?;
        switch.ip(&["link", "set", SWITCH, "up"])?;
        let mut network = Self { switch, hosts: Vec::new() };
        for host in 0..hosts {
            network.hosts.push(Namespace::new(place, &format!("network-host{host}"))?);
            network.connect(host)?;
            network.limit(host, mbits)?;
        }
        Ok(network)
    }

    fn connect(&self, host: usize) -> Result<()> {
        let (namespace, port) = (&self.hosts[host], port(host));
        let (here, there) = (namespace.holder.id().to_string(), self.switch.holder.id().to_string());
        let ends = [INTERFACE, "netns", &here, "type", "veth", "peer", "name", &port, "netns", &there];
        self.switch.ip(&[&["link", "add", "name"], &ends[..]].concat())?;
        self.switch.ip(&["link", "set", &port, "master", SWITCH, "up"])?;
        namespace.ip(&["address", "add", &format!("{}/24", self.address(host)), "dev", INTERFACE])?;
        namespace.ip(&["link", "set", "lo", "up"])?;
        namespace.ip(&["link", "set", INTERFACE, "up"])
    }

    /// A host's address, which is known on this network alone.
    pub fn address(&self, host: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, 0, host as u8 + 1)
    }

    /// The namespace of a host, for [`tools::in_network`].
    pub fn namespace(&self, host: usize) -> PathBuf {
        self.hosts[host].path()
    }

    /// Changes what a host sends at most, in million bits a second.
    ///
    /// # Errors
    /// If it cannot be changed.
    pub fn limit(&self, host: usize, mbits: u32) -> Result<()> {
        let rate = format!("{mbits}mbit");
        let bucket = ["tbf", "rate", &rate, "burst", BURST, "latency", LONGEST_QUEUE];
        self.hosts[host].run("tc", &[&["qdisc", "replace", "dev", INTERFACE, "root"], &bucket[..]].concat())
    }

    /// Cuts a host off: what it sends and what is sent to it vanishes. Nobody is told.
    ///
    /// # Errors
    /// If it cannot be done.
    pub fn cut(&self, host: usize) -> Result<()> {
        self.switch.ip(&["link", "set", &port(host), "nomaster"])
    }

    /// Undoes [`Network::cut`].
    ///
    /// # Errors
    /// If it cannot be done.
    pub fn heal(&self, host: usize) -> Result<()> {
        self.switch.ip(&["link", "set", &port(host), "master", SWITCH])
    }

    /// Bytes that a host has sent so far, with the headers of all protocols.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn sent_bytes(&self, host: usize) -> Result<u64> {
        let path = format!("/proc/{}/net/dev", self.hosts[host].holder.id());
        let text = std::fs::read_to_string(&path).map_err(Error::io(path.clone()))?;
        let line = text.lines().find_map(|line| line.trim_start().strip_prefix(INTERFACE)?.strip_prefix(':'));
        // Eight figures of what was received come first.
        let sent = line.and_then(|line| line.split_whitespace().nth(8)?.parse().ok());
        sent.ok_or_else(|| Error::Check(format!("{path} does not tell what {INTERFACE} has sent")))
    }
}

fn port(host: usize) -> String {
    format!("port{host}")
}

impl Namespace {
    fn new(place: &Place, name: &str) -> Result<Self> {
        let refused = |error: &dyn std::fmt::Display| {
            Error::Check(format!(
                "a network namespace cannot be made: {error}; run this test as root, with CAP_SYS_ADMIN and CAP_NET_ADMIN"
            ))
        };
        if !rustix::process::geteuid().is_root() {
            return Err(refused(&"not root"));
        }
        let mut command = tools::tool("unshare")?;
        command.args(["--net", "sleep", "infinity"]);
        let own = std::fs::read_link("/proc/self/ns/net").map_err(Error::io("/proc/self/ns/net"))?;
        let mut namespace = Self { holder: Process::start(place, name, &command)? };
        let path = namespace.path();
        let made =
            namespace.holder.wait_for(PATIENCE, || Ok(std::fs::read_link(&path).is_ok_and(|it| it != own)));
        made.map_err(|error| refused(&error))?;
        Ok(namespace)
    }

    fn path(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.holder.id()).into()
    }

    fn ip(&self, arguments: &[&str]) -> Result<()> {
        self.run("ip", arguments)
    }

    fn run(&self, tool: &str, arguments: &[&str]) -> Result<()> {
        let mut command: Command = tools::tool(tool)?;
        command.args(arguments);
        tools::run(tools::in_network(&command, &self.path())?).map(drop)
    }
}
