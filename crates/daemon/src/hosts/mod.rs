//! The other hosts between which disks move: the connections to them, and what daemons say to each other.
//!
//! Invariants
//! - A disk of which this host's pool does not know the owner is attached as a new one only if every other host has said
//!   that it does not know the disk either, or the operator has said so for those that do not answer. Of two hosts that
//!   attach a disk as a new one at the same time, at least one is told.
//! - No message of another host makes this daemon wait.

pub mod config;
mod find;
pub mod guests;
pub mod incarnation;
mod migrate;
mod talk;

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, Weak};

use haversack_api::{HostStatus, Method};
use haversack_engine::{HostMessage, HostSettings};
use haversack_link::{Frame, LinkConfig, LinkError, LinkSender, Links, PeerConfig, Security, host_id};
use haversack_model::{DiskId, HostId};

use self::config::{HostConfig, MigrationConfig};
use self::talk::WaitingTable;
use crate::daemon::Daemon;
use crate::pool::Pool;

/// See the module.
pub struct Hosts {
    me: HostId,
    incarnation: u64,
    names: BTreeMap<HostId, String>,
    /// What travels with a disk, if a request does not say.
    pub method: Method,
    links: Links,
    sender: LinkSender,
    waiting: WaitingTable,
    /// Disks that are being attached here, of which the owner is to be found.
    seeking: Mutex<HashSet<DiskId>>,
}

impl Hosts {
    /// Listens for the other hosts and connects to them.
    ///
    /// # Errors
    /// An address is in use, or a certificate cannot be used.
    pub fn start(
        daemon: &Arc<Daemon>,
        config: &MigrationConfig,
        others: &[HostConfig],
        incarnation: u64,
    ) -> Result<Arc<Hosts>, LinkError> {
        let peers =
            others.iter().map(|host| PeerConfig { name: host.name.clone(), address: host.address.clone() });
        let security = match (&config.certificate, &config.key, &config.authority) {
            (Some(certificate), Some(key), Some(authority)) => Security::Tls {
                certificate: certificate.clone(),
                key: key.clone(),
                authority: authority.clone(),
            },
            _ => Security::Insecure,
        };
        let link = LinkConfig {
            name: config.name.clone(),
            listen: config.listen.clone(),
            peers: peers.collect(),
            security,
            copy_rate_bytes: config.rate.0,
        };
        let daemon: Weak<Daemon> = Arc::downgrade(daemon);
        let links = Links::start(link, move |from, frame| {
            if let Some(daemon) = daemon.upgrade() {
                daemon.host_said(from, frame);
            }
        })?;
        let names = others.iter().map(|host| &host.name).chain([&config.name]);
        Ok(Arc::new(Hosts {
            me: host_id(&config.name),
            incarnation,
            names: names.map(|name| (host_id(name), name.clone())).collect(),
            method: config.method,
            sender: links.sender(),
            links,
            waiting: WaitingTable::default(),
            seeking: Mutex::default(),
        }))
    }

    /// Returns a host's name.
    pub fn name_of(&self, host: HostId) -> String {
        self.names.get(&host).cloned().unwrap_or_else(|| format!("unknown host {:016x}", host.0))
    }

    /// Returns the host of a name, if it is another one.
    pub fn find(&self, name: &str) -> Option<HostId> {
        self.names.iter().find(|(id, known)| *known == name && **id != self.me).map(|(id, _)| *id)
    }

    /// Returns the other hosts.
    pub fn others(&self) -> Vec<HostId> {
        self.names.keys().copied().filter(|host| *host != self.me).collect()
    }

    fn send_note(&self, host: HostId, disk: DiskId, text: Vec<u8>) {
        self.sender.send(host, Frame::Note { disk, text });
    }

    /// Returns what the engine needs to know.
    fn settings(&self) -> HostSettings {
        let sender = self.sender.clone();
        let send = move |to, disk, message| sender.send(to, frame(disk, message));
        HostSettings { me: self.me, incarnation: self.incarnation, send: Arc::new(send) }
    }

    fn are_connected(&self, hosts: &[HostId]) -> bool {
        let connected =
            |host: &HostId| self.links.state().iter().any(|state| state.id == *host && state.is_connected);
        hosts.iter().all(connected)
    }

    /// Returns the state of the connections.
    pub fn status(&self) -> Vec<HostStatus> {
        let state = self.links.state().into_iter();
        let state = state.map(|host| HostStatus {
            name: host.name,
            address: host.address,
            is_connected: host.is_connected,
            round_trip_s: host.round_trip_us.map(|us| us as f64 / 1e6),
            sent_bytes: host.sent_bytes,
            received_bytes: host.received_bytes,
            error: host.last_error,
        });
        state.collect()
    }
}

fn frame(disk: DiskId, message: HostMessage) -> Frame {
    match message {
        HostMessage::Protocol(message) => Frame::Protocol { disk, message },
        HostMessage::Read { question, sector, sectors } => Frame::Read { disk, question, sector, sectors },
        HostMessage::ReadDone { question, data } => Frame::ReadDone { disk, question, data },
    }
}

impl Daemon {
    fn host_said(self: &Arc<Self>, from: HostId, frame: Frame) {
        let (disk, message) = match frame {
            Frame::Note { disk, text } => {
                if let Some(hosts) = self.hosts() {
                    hosts.heard(self, from, disk, &text);
                }
                return;
            }
            Frame::Protocol { disk, message } => (disk, HostMessage::Protocol(message)),
            Frame::Read { disk, question, sector, sectors } => {
                (disk, HostMessage::Read { question, sector, sectors })
            }
            Frame::ReadDone { disk, question, data } => (disk, HostMessage::ReadDone { question, data }),
        };
        for pool in self.pools() {
            pool.backend.host_said(from, disk, message.clone());
        }
    }

    /// Returns a host's name.
    pub(crate) fn host_name(&self, host: HostId) -> String {
        self.hosts().map_or_else(|| format!("{:016x}", host.0), |hosts| hosts.name_of(host))
    }

    /// Makes this host known to a pool that was opened.
    pub fn join_hosts(&self, pool: &Pool) {
        if let Some(hosts) = self.hosts()
            && let Err(error) = pool.backend.join_hosts(&hosts.settings())
        {
            tracing::error!(pool = pool.name, "{error}");
        }
    }
}
