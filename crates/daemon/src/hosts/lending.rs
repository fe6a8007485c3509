//! Pooled flash: which hosts this one borrows from and lends to, and which of the lenders have said that they lend.
//!
//! Invariant
//! - Messages about loans go only to a host that has said, on the present connection, that it lends to this one. A host of an
//!   older version does not know these messages.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use haversack_api::Size;
use haversack_engine::LendingSettings;
use haversack_lend::LEAST_LOAN_BLOCKS;
use haversack_link::{Frame, host_id};
use haversack_model::{BLOCK_BYTES, DiskId, HostId};
use serde::Deserialize;

use super::config::HostConfig;
use super::talk::{Answer, Question};
use super::{Hosts, LOOK_EVERY, frame, watch};
use crate::daemon::Daemon;
use crate::locked::Locked;
use crate::settings::check_name;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// A host that does not lend is asked again after this time.
const ASK_EVERY: Duration = Duration::from_secs(30);
/// The least that can be lent: the smallest loan. The pool knows how many arenas it has, each of which needs as much.
const LEAST_BYTES: u64 = LEAST_LOAN_BLOCKS as u64 * BLOCK_BYTES as u64;

/// What this host lends.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LendConfig {
    /// The pool whose free space is lent.
    pub pool: String,
    /// The most that is lent.
    pub capacity: Size,
    /// The hosts that it is lent to; all if not set.
    pub to: Option<Vec<String>>,
}

/// What this host borrows.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BorrowConfig {
    /// The hosts that lend.
    pub from: Vec<String>,
    /// The disks that are read through them; all if not set.
    pub disks: Option<Vec<String>>,
}

/// Checks a list of hosts, which `key` has. `optional` can be left out instead.
fn check_hosts(key: &str, optional: &str, names: &[String], hosts: &[HostConfig]) -> Result<(), String> {
    if names.is_empty() {
        return Err(format!("{key} = [] names no host: name one, or leave {optional} out"));
    }
    match names.iter().find(|name| !hosts.iter().any(|host| host_id(&host.name) == host_id(name))) {
        None => Ok(()),
        Some(name) => Err(format!(
            "{key} names host '{name}', which is not in the configuration: add a [[host]] with its address, or correct the name"
        )),
    }
}

impl LendConfig {
    /// Checks it against the rest of the configuration.
    pub(crate) fn check<'a>(
        &self,
        hosts: &[HostConfig],
        mut pools: impl Iterator<Item = (&'a str, bool)>,
    ) -> Result<(), String> {
        let LendConfig { pool, capacity, to } = self;
        let Some((_, shares_spare)) = pools.find(|(name, _)| name == pool) else {
            return Err(format!("pool = \"{pool}\": there is no such pool; name one of this file"));
        };
        if !shares_spare {
            return Err(format!(
                "pool = \"{pool}\": that pool has share_spare = false, so nothing of it is spare; set that to true, or name another \
                 pool"
            ));
        }
        if capacity.0 < LEAST_BYTES {
            return Err(format!(
                "capacity = \"{capacity}\" is too small to lend anything: give 4MiB or more for each arena of the pool"
            ));
        }
        to.iter().try_for_each(|to| check_hosts("to", "it", to, hosts))
    }
}

impl BorrowConfig {
    /// Checks it against the rest of the configuration.
    pub(crate) fn check(&self, hosts: &[HostConfig]) -> Result<(), String> {
        check_hosts("from", "[borrow]", &self.from, hosts)?;
        let Some(disks) = &self.disks else { return Ok(()) };
        if disks.is_empty() {
            return Err("disks = [] names no disk: name one, or leave it out for all disks".into());
        }
        disks.iter().try_for_each(|disk| check_name(disk).map_err(|what| format!("disks: {what}")))
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Lending {
    lend: Option<LendConfig>,
    borrow: Option<BorrowConfig>,
    /// The hosts to borrow from, and whether they lend now.
    lenders: Arc<BTreeMap<HostId, AtomicBool>>,
    asked: Mutex<BTreeMap<HostId, Instant>>,
}

impl Lending {
    pub fn new(lend: Option<&LendConfig>, borrow: Option<&BorrowConfig>) -> Lending {
        let from = borrow.iter().flat_map(|borrow| &borrow.from);
        Lending {
            lend: lend.cloned(),
            borrow: borrow.cloned(),
            lenders: Arc::new(from.map(|name| (host_id(name), AtomicBool::new(false))).collect()),
            asked: Mutex::default(),
        }
    }

    /// Notes that the connection to a host has ended.
    pub fn lost(&self, host: HostId) {
        if let Some(lends) = self.lenders.get(&host) {
            lends.store(false, Ordering::Relaxed);
        }
    }

    fn lends_to(&self, host: HostId) -> bool {
        let to =
            |lend: &LendConfig| lend.to.as_ref().is_none_or(|to| to.iter().any(|name| host_id(name) == host));
        self.lend.as_ref().is_some_and(to)
    }
}

impl Hosts {
    /// Returns what a pool lends and borrows; `None` for nothing.
    pub(super) fn lending_settings(&self, pool: &str) -> Option<LendingSettings> {
        let lending = &self.lending;
        let lend = lending.lend.as_ref().filter(|lend| lend.pool == pool);
        if lend.is_none() && lending.borrow.is_none() {
            return None;
        }
        let (sender, rooms) = (self.sender.clone(), self.sender.clone());
        let lenders = lending.lenders.clone();
        let lends = move |host: HostId| lenders.get(&host).is_some_and(|lends| lends.load(Ordering::Relaxed));
        let lends_to_me = Arc::new(lends);
        let may_send = lends_to_me.clone();
        let send = move |to: HostId, disk: DiskId, message| {
            let frame = frame(disk, message);
            let is_for_lender = matches!(&frame, Frame::Lend { message, .. } if message.is_for_lender());
            if !is_for_lender || may_send(to) {
                // A lost message does no harm.
                let _ = sender.send(to, frame);
            }
        };
        let others = self.others().into_iter();
        Some(LendingSettings {
            send: Arc::new(send),
            room: Arc::new(move |to| rooms.copy_room(to)),
            lends_to_me,
            lenders: lending.lenders.keys().copied().collect(),
            borrowing_disks: lending.borrow.as_ref().and_then(|borrow| borrow.disks.clone()),
            lent_blocks: lend.map_or(0, |lend| lend.capacity.0 / BLOCK_BYTES as u64),
            borrowers: others.filter(|host| lending.lends_to(*host)).collect(),
        })
    }

    /// Answers whether this host lends to another one.
    pub(super) fn lends_answer(&self, from: HostId) -> Answer {
        if self.lending.lends_to(from) {
            return Answer::Done;
        }
        Answer::Refused(format!("it does not lend to host '{}'", self.name_of(from)))
    }

    /// Asks the hosts that are connected, and have not said that they lend, whether they do.
    fn ask_lenders(&self) {
        for (host, lends) in self.lending.lenders.iter().filter(|(_, lends)| !lends.load(Ordering::Relaxed)) {
            let Some(since) = self.connected_since(*host) else {
                // It is asked as soon as it is connected.
                self.lending.asked.locked().remove(host);
                continue;
            };
            let asked = self.lending.asked.locked().get(host).copied();
            if asked.is_some_and(|at| at.elapsed() < ASK_EVERY) {
                continue;
            }
            self.lending.asked.locked().insert(*host, Instant::now());
            let answers = self.ask_now(&[*host], DiskId([0; 16]), &Question::Lend);
            if !matches!(answers.recv_timeout(PATIENCE), Ok((_, Answer::Done))) {
                continue;
            }
            lends.store(true, Ordering::Relaxed);
            self.lending.asked.locked().remove(host);
            // If this connection has ended meanwhile, the answer does not hold for the next one.
            if self.connected_since(*host) != Some(since) {
                lends.store(false, Ordering::Relaxed);
            }
        }
    }
}

/// Says which disks of `[borrow]` nobody has attached: a name may be wrong, or the disk comes later.
pub fn tell_unknown_disks(daemon: &Daemon) {
    let Some(hosts) = daemon.hosts() else { return };
    let known = daemon.disks();
    let named = hosts.lending.borrow.iter().flat_map(|borrow| borrow.disks.iter().flatten());
    for name in named.filter(|name| !known.contains_key(*name)) {
        let what = format!(
            "disks of [borrow] names disk '{name}', which this host does not have: correct the name, unless the disk is attached later"
        );
        tracing::warn!("{what}");
        daemon.events.add("borrow-unknown-disk", name, what);
    }
}

/// Keeps asking lenders until the daemon ends.
///
/// # Errors
/// The thread cannot be started.
pub fn watch_lenders(daemon: &Arc<Daemon>) -> std::io::Result<()> {
    let borrows = daemon.hosts().is_some_and(|hosts| !hosts.lending.lenders.is_empty());
    if borrows {
        watch(daemon, ("lenders", "asking hosts whether they lend"), LOOK_EVERY, |_, hosts| {
            hosts.ask_lenders()
        })
    } else {
        Ok(())
    }
}
