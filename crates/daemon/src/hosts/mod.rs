//! The other hosts between which disks move: the connections to them, and what daemons say to each other.
//!
//! Invariants
//! - If this host's pool does not know the owner of a disk, the disk is attached as a new one only if every other host
//!   has said that it does not know the disk either, or the operator has said so for the hosts that do not answer. If
//!   two hosts attach a disk as a new one at the same time, at least one of them is told.
//! - No message of another host makes this daemon wait.

mod arriving;
pub mod config;
mod detached;
mod epochs;
mod expect;
mod fence;
mod find;
pub mod guests;
pub mod incarnation;
mod known;
pub(crate) mod learned;
pub mod lending;
mod loans;
mod measured;
mod migrate;
mod movable;
mod own;
mod pace;
mod questions;
pub(crate) mod replicas;
mod talk;
mod waits;
mod wanted;
mod witness;
mod workers;
mod write_caches;

pub use detached::watch as watch_detached;
pub use epochs::watch as watch_epochs;
pub use fence::FencePrograms;
pub use lending::{tell_unknown_disks, watch_lenders};
pub use replicas::watch as watch_replicas;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant, SystemTime};

use haversack_api::{HostStatus, Method, Span};
use haversack_engine::{HostMessage, HostSettings, ReadRefusal, Receipt, blocks_a_period};
use haversack_link::{
    Config, Event, Frame, HostConfig as LinkHost, HostState, LinkError, LinkSender, Links, ObserveError,
    Security, TlsFiles, host_id,
};
use haversack_model::{BLOCK_BYTES, DiskId, HostId, SectorNo};

use self::config::{HostConfig, MigrationConfig};
use self::epochs::LastHeard;
use self::lending::{BorrowConfig, LendConfig, Lending};
use self::replicas::Replicas;
use self::talk::{Places, WaitingTable};
use self::wanted::Wanted;
use self::workers::Workers;
use crate::daemon::Daemon;
use crate::locked::Locked;
use crate::part::Part;
use crate::pool::Pool;

/// How often the daemon checks whether it has questions for other hosts.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Threads that answer questions about records: no such answer waits for an origin.
const RECORD_THREADS: usize = 2;
/// Questions for records that wait for them; more are refused.
const MOST_RECORD_QUESTIONS: usize = 8192;
/// Threads that ask what admission has learned of the disks that have moved here.
const LEARNED_THREADS: usize = 2;
/// Disks that wait for them; for more, admission starts learning again.
const MOST_LEARNED: usize = 8192;

/// See the module.
pub struct Hosts {
    me: HostId,
    incarnation: u64,
    /// The names of all hosts, in lower case, so that certificates, locks and fencing programs use the same form.
    names: BTreeMap<HostId, String>,
    /// What is sent along with a disk if a request does not specify it.
    pub method: Method,
    /// The most that is sent ahead to one host, in bytes a second.
    rate: u64,
    links: Links,
    sender: LinkSender,
    waiting: WaitingTable,
    /// Migrations that the operator has aborted. The host's requests for the disk are refused until its hypervisor has
    /// closed the disk or the operator starts the migration again.
    aborted: Mutex<HashSet<(DiskId, HostId)>>,
    /// When each host last requested that a disk be sent to it.
    wanted: Mutex<Wanted>,
    /// Disks whose running migration is to end because its move was given up, not because the operator has aborted it.
    given_up: Mutex<HashSet<DiskId>>,
    /// When migrations are cancelled unless the programs that drive them keep them alive.
    kept: Mutex<HashMap<DiskId, Instant>>,
    /// How fast disks are being sent.
    paces: Mutex<pace::Paces>,
    /// Questions of other hosts that are being answered.
    answering: Places,
    /// Threads that answer questions about records, however many other questions are being answered.
    records: Workers,
    /// Threads that ask what admission has learned on other hosts.
    learners: Workers,
    /// Disks that are being attached here, whose owner is being looked up.
    seeking: Mutex<HashSet<DiskId>>,
    /// Disks that are being taken over by force.
    taking: Mutex<HashSet<DiskId>>,
    /// When a takeover last waited for hosts to connect.
    waited: Mutex<Option<Instant>>,
    /// What the hosts of disks that wait here said last.
    heard_of: Mutex<HashMap<DiskId, LastHeard>>,
    /// By name, disks for which guests wait here and which no connected host has, and what the operator can do.
    stranded: Mutex<HashMap<String, String>>,
    /// Replicas of this host's disks elsewhere, and of others' here.
    pub(crate) replicas: Replicas,
    fence: Option<FencePrograms>,
    fence_time: Duration,
    lending: Lending,
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
        (lend, borrow): (Option<&LendConfig>, Option<&BorrowConfig>),
        incarnation: u64,
    ) -> Result<Arc<Hosts>, LinkError> {
        let hosts = others.iter().map(|host| LinkHost {
            name: host.name.clone(),
            address: host.address.clone(),
            copy_bytes_per_second: config.rate.0,
        });
        let security = match (&config.certificate, &config.key, &config.authority) {
            (Some(certificate), Some(key), Some(authority)) => Security::Tls(TlsFiles {
                authority: authority.clone(),
                certificate: certificate.clone(),
                key: key.clone(),
            }),
            _ => Security::Insecure,
        };
        let link = Config {
            name: config.name.clone(),
            listen: config.listen.clone(),
            hosts: hosts.collect(),
            security,
            compresses: config.compress,
        };
        let daemon: Weak<Daemon> = Arc::downgrade(daemon);
        let links = Links::start(&link, move |from, event, receipt| {
            let Some(daemon) = daemon.upgrade() else { return };
            match event {
                Event::Received(frame) => daemon.host_said(from, frame, Arc::new(receipt)),
                Event::Lost => {
                    if let Some(hosts) = daemon.hosts() {
                        hosts.lending.lost(from);
                    }
                }
                Event::Connected => {}
            }
        })?;
        let names = others.iter().map(|host| &host.name).chain([&config.name]);
        Ok(Arc::new(Hosts {
            me: host_id(&config.name),
            incarnation,
            names: names.map(|name| (host_id(name), name.to_ascii_lowercase())).collect(),
            method: config.method,
            rate: config.rate.0,
            sender: links.sender(),
            links,
            waiting: WaitingTable::default(),
            aborted: Mutex::default(),
            wanted: Mutex::default(),
            given_up: Mutex::default(),
            kept: Mutex::default(),
            paces: Mutex::default(),
            answering: Places::default(),
            records: Workers::start("records", RECORD_THREADS, MOST_RECORD_QUESTIONS),
            learners: Workers::start("learned", LEARNED_THREADS, MOST_LEARNED),
            seeking: Mutex::default(),
            taking: Mutex::default(),
            waited: Mutex::default(),
            heard_of: Mutex::default(),
            stranded: Mutex::default(),
            replicas: Replicas::default(),
            fence: config.fence.clone(),
            fence_time: config.fence_time.0,
            lending: Lending::new(lend, borrow, others),
        }))
    }

    /// Returns a host's name.
    pub fn name_of(&self, host: HostId) -> String {
        self.names.get(&host).cloned().unwrap_or_else(|| unknown_name(host))
    }

    /// Returns this host's name.
    pub fn my_name(&self) -> String {
        self.name_of(self.me)
    }

    /// Returns whether the host of this name is connected.
    pub fn is_there(&self, name: &str) -> bool {
        self.find(name).is_some_and(|host| self.is_connected(host))
    }

    /// Returns the host of a name, if it is another one. Case makes no difference.
    pub fn find(&self, name: &str) -> Option<HostId> {
        Some(host_id(name)).filter(|id| self.names.contains_key(id) && *id != self.me)
    }

    /// Returns the other hosts.
    pub fn others(&self) -> Vec<HostId> {
        self.names.keys().copied().filter(|host| *host != self.me).collect()
    }

    /// Returns the names of the hosts that are connected.
    pub fn reachable(&self) -> impl Iterator<Item = String> + '_ {
        self.connections().into_iter().map(|(host, _)| self.name_of(host))
    }

    /// Sends a note. Returns false if it was dropped.
    fn send_note(&self, host: HostId, disk: DiskId, text: Vec<u8>) -> bool {
        let sent = self.sender.send(host, Frame::Note { disk, text });
        if let Err(error) = &sent {
            tracing::debug!(host = self.name_of(host), "not sent: {error}");
        }
        sent.is_ok()
    }

    /// Returns this host's settings for the engine.
    fn settings(&self) -> HostSettings {
        let sender = self.sender.clone();
        let send = move |to, disk, message| {
            // What is lost is sent again.
            let _ = sender.send(to, frame(disk, message));
        };
        let rooms = self.sender.clone();
        HostSettings {
            me: self.me,
            incarnation: self.incarnation,
            method: self.method,
            fetched_a_period: blocks_a_period(self.rate),
            send: Arc::new(send),
            room: Arc::new(move |to| rooms.copy_room(to)),
        }
    }

    /// Keeps a disk's migration alive for this long, or until it ends.
    fn keep(&self, disk: DiskId, keep: Option<Span>) {
        let until = keep.and_then(|keep| Instant::now().checked_add(keep.0));
        let mut kept = self.kept.locked();
        match until {
            Some(until) => drop(kept.insert(disk, until)),
            None => drop(kept.remove(&disk)),
        }
    }

    /// As [`Hosts::keep`], but only for a migration that is cancelled unless it is kept alive.
    fn keep_on(&self, disk: DiskId, keep: Option<Span>) {
        if self.kept.locked().contains_key(&disk) {
            self.keep(disk, keep);
        }
    }

    /// Returns whether the program that drives a disk's migration has been silent for too long.
    fn is_left(&self, disk: DiskId) -> bool {
        self.kept.locked().get(&disk).is_some_and(|until| Instant::now() >= *until)
    }

    fn are_connected(&self, hosts: &[HostId]) -> bool {
        hosts.iter().all(|host| self.is_connected(*host))
    }

    fn is_connected(&self, host: HostId) -> bool {
        self.sender.is_connected(host)
    }

    /// Returns the hosts that are connected, and since when.
    fn connections(&self) -> Vec<(HostId, SystemTime)> {
        let state = self.links.state().into_iter();
        state.filter_map(|host| Some((host.id, host.connected_since?))).collect()
    }

    /// Returns the state of the connection to a host.
    fn state_of(&self, host: HostId) -> Option<HostState> {
        self.links.state().into_iter().find(|state| state.id == host)
    }

    /// Returns since when a host is connected.
    pub fn connected_since(&self, host: HostId) -> Option<SystemTime> {
        self.state_of(host)?.connected_since
    }

    /// Returns the state of the connections.
    pub fn status(&self) -> Vec<HostStatus> {
        let state = self.links.state().into_iter();
        let state = state.map(|host| HostStatus {
            name: host.name,
            address: host.address,
            is_connected: host.connected_since.is_some(),
            round_trip_s: host.round_trip_us.map(|us| us as f64 / 1e6),
            sent_bytes: host.sent_bytes,
            saved_bytes: host.saved_bytes,
            received_bytes: host.received_bytes,
            error: host.last_error.filter(|_| host.connected_since.is_none()),
        });
        state.collect()
    }
}

/// Returns what a host is called that is not configured.
fn unknown_name(host: HostId) -> String {
    format!("unknown host {:016x}", host.0)
}

/// Returns the bytes of blocks.
fn bytes(blocks: u64) -> u64 {
    blocks * BLOCK_BYTES as u64
}

/// Calls `look` repeatedly, on a thread of its own, until the daemon ends. After a panic it continues a minute later.
/// `what` says what it does, for the operator.
fn watch(
    daemon: &Arc<Daemon>,
    (name, what): (&str, &'static str),
    every: Duration,
    mut look: impl FnMut(&Daemon, &Hosts) + Send + 'static,
) -> std::io::Result<()> {
    let Some(hosts) = daemon.hosts() else { return Ok(()) };
    let (daemon, mut part) = (Arc::downgrade(daemon), Part::new(what));
    let run = move || {
        while let Some(daemon) = daemon.upgrade().filter(|daemon| !daemon.is_stopping()) {
            if let Some(what) = part.run(Instant::now(), &mut || look(&daemon, &hosts)) {
                daemon.events.add("hosts-failed", "daemon", what);
            }
            drop(daemon);
            std::thread::sleep(every);
        }
    };
    std::thread::Builder::new().name(name.into()).spawn(run).map(drop)
}

fn frame(disk: DiskId, message: HostMessage) -> Frame {
    match message {
        HostMessage::Protocol(message) => Frame::Migrate { disk, message },
        HostMessage::Read { question, sector, sectors } => {
            Frame::ObserveRead { question, disk, sector: SectorNo(sector), sectors }
        }
        HostMessage::Lend(message) => Frame::Lend { disk, message },
        HostMessage::ReadDone { question, data } => {
            Frame::Observed { question, disk, result: data.map_err(observe_error) }
        }
    }
}

fn observe_error(why: ReadRefusal) -> ObserveError {
    match why {
        ReadRefusal::NotOwner => ObserveError::NotOwner,
        ReadRefusal::Failed => ObserveError::Failed,
        ReadRefusal::Busy => ObserveError::Busy,
    }
}

fn read_refusal(why: ObserveError) -> ReadRefusal {
    match why {
        ObserveError::NotOwner => ReadRefusal::NotOwner,
        ObserveError::OutOfRange | ObserveError::Failed => ReadRefusal::Failed,
        ObserveError::Busy => ReadRefusal::Busy,
    }
}

impl Daemon {
    fn host_said(self: &Arc<Self>, from: HostId, frame: Frame, receipt: Receipt) {
        let (disk, message) = match frame {
            Frame::Note { disk, text } => {
                if let Some(hosts) = self.hosts() {
                    hosts.heard(self, from, disk, &text);
                }
                return;
            }
            Frame::Migrate { disk, message } => (disk, HostMessage::Protocol(message)),
            Frame::Lend { disk, message } => (disk, HostMessage::Lend(message)),
            Frame::ObserveRead { question, disk, sector, sectors } => {
                (disk, HostMessage::Read { question, sector: sector.0, sectors })
            }
            Frame::Observed { question, disk, result } => {
                (disk, HostMessage::ReadDone { question, data: result.map_err(read_refusal) })
            }
        };
        let mut pools = self.pools().peekable();
        while let Some(pool) = pools.next() {
            if pools.peek().is_none() {
                return pool.backend.host_said(from, disk, message, receipt);
            }
            pool.backend.host_said(from, disk, message.clone(), receipt.clone());
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
        if let Some(settings) = self.hosts().and_then(|hosts| hosts.lending_settings(&pool.name))
            && let Err(error) = pool.backend.join_lending(&settings)
        {
            tracing::error!(pool = pool.name, "{error}");
        }
    }
}
