//! The parts of the configuration file that are about other hosts: `[migration]` and `[[host]]`.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use haversack_api::{Method, Size, Span};
use haversack_link::host_id;
use serde::Deserialize;

use super::fence::FencePrograms;

/// How disks move between this host and others.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MigrationConfig {
    /// This host's name, the same in the configuration of every other host. Its certificate must be valid for it.
    pub name: String,
    /// The addresses to listen on for other hosts.
    pub listen: Vec<SocketAddr>,
    /// Certificate chain, PEM.
    pub certificate: Option<PathBuf>,
    /// Private key, PEM.
    pub key: Option<PathBuf>,
    /// The authorities that sign the hosts' certificates, PEM.
    pub authority: Option<PathBuf>,
    /// Talk to other hosts without TLS: for a network that nobody else can reach.
    #[serde(default)]
    pub insecure: bool,
    /// The most that is sent ahead to one host, in bytes a second; 0 for no limit.
    #[serde(default)]
    pub rate: Size,
    /// Compress what is sent while the network, or `rate`, is the limit.
    #[serde(default = "yes")]
    pub compress: bool,
    /// What travels with a disk, if the request does not say.
    #[serde(default)]
    pub method: Method,
    /// The program that makes sure that a dead host writes no origin any more.
    pub fence: Option<FencePrograms>,
    /// How long it may take.
    #[serde(default = "fence_time")]
    pub fence_time: Span,
}

fn yes() -> bool {
    true
}

fn fence_time() -> Span {
    Span(Duration::from_secs(60))
}

/// Another host.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostConfig {
    /// Its name.
    pub name: String,
    /// Where it listens: `ADDRESS:PORT` or `NAME:PORT`.
    pub address: String,
}

/// Checks that files for TLS are given only where it is used.
pub(crate) fn check_insecure<const N: usize>(
    is_insecure: bool,
    files: [&Option<PathBuf>; N],
) -> Result<(), String> {
    if is_insecure && files.iter().any(|file| file.is_some()) {
        return Err("insecure = true and certificates exclude each other: leave one of them out".into());
    }
    Ok(())
}

impl MigrationConfig {
    /// Checks that the settings fit together, and the hosts with them.
    pub(crate) fn check(&self, hosts: &[HostConfig]) -> Result<(), String> {
        let files = [&self.certificate, &self.key, &self.authority];
        check_insecure(self.insecure, files)?;
        if !self.insecure && files.iter().any(|file| file.is_none()) {
            return Err(
                "certificate, key and authority are needed: hosts send each other their guests' data. In a network that \
                 nobody else can reach, set insecure = true instead"
                    .into(),
            );
        }
        if self.listen.is_empty() {
            return Err("listen = [] lets no other host connect: give ADDRESS:PORT".into());
        }
        if let Some(fence) = &self.fence {
            fence.check().map_err(|what| format!("fence: {what}"))?;
            if self.fence_time.0.is_zero() {
                return Err("fence_time = \"0s\" leaves no time to run: give a time such as 60s".into());
            }
        }
        let mut taken = HashSet::new();
        for name in hosts.iter().map(|host| &host.name).chain([&self.name]) {
            crate::settings::check_name(name)?;
            if !taken.insert(host_id(name)) {
                return Err(format!("host '{name}' is named twice: every host needs a unique name"));
            }
        }
        Ok(())
    }
}

impl HostConfig {
    /// Checks the address.
    pub(crate) fn check(&self) -> Result<(), String> {
        let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
        match self.address.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && is_port(port) => Ok(()),
            _ => Err(format!("address of host '{}': '{}' is not HOST:PORT", self.name, self.address)),
        }
    }
}
