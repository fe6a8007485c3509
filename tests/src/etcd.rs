//! Members of etcd, each on ports of its own on the loopback interface, or on a host of a network.

use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::Command;

use crate::certificates::Certificates;
use crate::network::Network;
use crate::process::Process;
use crate::tools::{self, PATIENCE};
use crate::{Error, Place, Result};

/// The ports of a member that has an address of its own.
const CLIENT_PORT: u16 = 2379;
const PEER_PORT: u16 = 2380;

/// A member of an etcd. Its data survives its end.
#[derive(Debug)]
pub struct Etcd<'a> {
    place: &'a Place,
    name: String,
    address: Ipv4Addr,
    port: u16,
    /// The network namespace that it runs in, if not the test's.
    network: Option<PathBuf>,
    scheme: &'static str,
    arguments: Vec<String>,
    process: Option<Process>,
}

impl<'a> Etcd<'a> {
    /// Starts one that is alone.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(place: &'a Place) -> Result<Self> {
        let mut members = Self::members(place, 1)?;
        members.pop().ok_or_else(|| Error::Check("no member".into()))
    }

    /// Starts one that is alone and demands certificates of its clients: `server` is its own, `ca` has signed both.
    ///
    /// # Errors
    /// If it does not start.
    pub fn with_tls(place: &'a Place, certificates: &Certificates) -> Result<Self> {
        let mut etcd = Self::prepare(place, "etcd0", "https", tools::free_port()?);
        let file = |name: &str| certificates.path(name).display().to_string();
        etcd.arguments.extend(
            [
                ["--cert-file", &file("server-cert.pem")],
                ["--key-file", &file("server-key.pem")],
                ["--trusted-ca-file", &file("ca-cert.pem")],
            ]
            .as_flattened()
            .iter()
            .map(ToString::to_string),
        );
        etcd.arguments.push("--client-cert-auth".into());
        etcd.join(&format!("etcd0={}", etcd.peer(tools::free_port()?)))?;
        etcd.start_again()?;
        Ok(etcd)
    }

    /// Starts several that are one etcd.
    ///
    /// # Errors
    /// If they do not start.
    pub fn members(place: &'a Place, count: usize) -> Result<Vec<Self>> {
        let mut members = Vec::new();
        for number in 0..count {
            let member = Self::prepare(place, &format!("etcd{number}"), "http", tools::free_port()?);
            let peer = member.peer(tools::free_port()?);
            members.push((member, peer));
        }
        Self::start_all(members)
    }

    /// Starts several that are one etcd, on the first hosts of a network.
    ///
    /// # Errors
    /// If they do not start.
    pub fn on(place: &'a Place, network: &Network, count: usize) -> Result<Vec<Self>> {
        let members = (0..count).map(|host| {
            let member = Self::prepare(place, &format!("etcd{host}"), "http", CLIENT_PORT);
            let member =
                Self { address: network.address(host), network: Some(network.namespace(host)), ..member };
            let peer = member.peer(PEER_PORT);
            (member, peer)
        });
        Self::start_all(members.collect())
    }

    /// Starts members, given with their addresses for each other.
    fn start_all(members: Vec<(Self, String)>) -> Result<Vec<Self>> {
        let list: Vec<String> =
            members.iter().map(|(member, peer)| format!("{}={peer}", member.name)).collect();
        let mut members: Vec<Self> = members.into_iter().map(|(member, _)| member).collect();
        let list = list.join(",");
        for member in &mut members {
            member.join(&list)?;
            member.begin()?;
        }
        members.iter_mut().try_for_each(Self::wait)?;
        Ok(members)
    }

    fn prepare(place: &'a Place, name: &str, scheme: &'static str, port: u16) -> Self {
        Self {
            place,
            name: name.into(),
            address: Ipv4Addr::LOCALHOST,
            port,
            network: None,
            scheme,
            arguments: Vec::new(),
            process: None,
        }
    }

    fn peer(&self, port: u16) -> String {
        format!("http://{}:{port}", self.address)
    }

    fn join(&mut self, list: &str) -> Result<()> {
        let own = list.split(',').find_map(|member| member.strip_prefix(&format!("{}=", self.name)));
        let own = own.ok_or_else(|| Error::Check(format!("{} is not in {list}", self.name)))?.to_owned();
        let (name, client, data) = (self.name.clone(), self.endpoint(), self.data().display().to_string());
        let pairs = [
            ["--name", &name],
            ["--data-dir", &data],
            ["--listen-client-urls", &client],
            ["--advertise-client-urls", &client],
            ["--listen-peer-urls", &own],
            ["--initial-advertise-peer-urls", &own],
            ["--initial-cluster", list],
            // Shorter than by default, so that elections and leases do not make tests long.
            ["--heartbeat-interval", "100"],
            ["--election-timeout", "1000"],
        ];
        self.arguments.extend(pairs.as_flattened().iter().map(ToString::to_string));
        // On a busy disk, a sync can take longer than a lease or a call. The tests kill the process, not the machine.
        self.arguments.push("--unsafe-no-fsync".into());
        Ok(())
    }

    fn data(&self) -> PathBuf {
        self.place.path(format!("{}-data", self.name))
    }

    /// Starts it on its data, after [`Etcd::kill`].
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_again(&mut self) -> Result<()> {
        self.begin()?;
        self.wait()
    }

    fn begin(&mut self) -> Result<()> {
        let mut command: Command = tools::tool("etcd")?;
        command.args(&self.arguments);
        if let Some(network) = &self.network {
            command = tools::in_network(&command, network)?;
        }
        self.process = Some(Process::start(self.place, &self.name, &command)?);
        Ok(())
    }

    /// Waits until it takes connections.
    fn wait(&mut self) -> Result<()> {
        let (address, port, network) = (self.address, self.port, self.network.clone());
        let process = self.process.as_mut().ok_or_else(|| Error::Check("etcd does not run".into()))?;
        process.wait_for(PATIENCE, || match &network {
            None => Ok(TcpStream::connect((address, port)).is_ok()),
            Some(network) => {
                let mut curl = tools::tool("curl")?;
                curl.args(["--silent", "--fail", &format!("http://{address}:{port}/health")]);
                Ok(tools::output(tools::in_network(&curl, network)?)?.status.success())
            }
        })
    }

    /// Where its clients connect.
    pub fn endpoint(&self) -> String {
        format!("{}://{}:{}", self.scheme, self.address, self.port)
    }

    /// The member, to pause and resume it.
    ///
    /// # Errors
    /// If it does not run.
    pub fn process(&self) -> Result<&Process> {
        self.process.as_ref().ok_or_else(|| Error::Check("etcd does not run".into()))
    }

    /// `kill -9`.
    ///
    /// # Errors
    /// If it is gone already.
    pub fn kill(&mut self) -> Result<()> {
        self.process.take().ok_or_else(|| Error::Check("etcd does not run".into()))?.kill()
    }

    /// Throws its data away, after [`Etcd::kill`].
    ///
    /// # Errors
    /// If that is not possible.
    pub fn lose_data(&self) -> Result<()> {
        let data = self.data();
        std::fs::remove_dir_all(&data).map_err(Error::io(data.display().to_string()))
    }
}
