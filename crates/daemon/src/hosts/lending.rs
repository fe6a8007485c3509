//! Pooled flash: which hosts this one borrows from and lends to, and which of the lenders have said that they lend.
//!
//! Invariants
//! - Messages about loans go only to a host that has said, on the present connection, that it lends to this one. A host
//!   of an older version does not know these messages.
//! - Disks ask only chosen lenders: those of the configuration or, with `from = "auto"`, those that the cluster's plan
//!   names (`cluster/loans.rs`). When a lender is no longer chosen, its loans are given back.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use haversack_api::Size;
use haversack_engine::LendingSettings;
use haversack_lend::LEAST_LOAN_BLOCKS;
use haversack_link::{Frame, host_id};
use haversack_model::{BLOCK_BYTES, DiskId, HostId};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::config::HostConfig;
use super::loans::Watch;
use super::talk::{Answer, Question};
use super::{Hosts, LOOK_EVERY, frame, watch};
use crate::daemon::Daemon;
use crate::locked::Locked;
use crate::settings::check_name;

/// Changes are reported to the operator each time after this many checks.
const LOOKS_A_TELL: u32 = 4;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// A host that does not lend is asked again after this time.
const ASK_EVERY: Duration = Duration::from_secs(30);
/// The least that can be lent: the smallest loan. Each arena of a pool needs as much, but only the pool knows how many
/// arenas it has.
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

/// The hosts that this one borrows from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Lenders {
    /// Those that the cluster's plan names, while disks of this host need more than its cache and their VMs cannot
    /// move.
    Auto,
    /// These.
    Named(Vec<String>),
}

impl<'de> Deserialize<'de> for Lenders {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Lenders, D::Error> {
        struct Read;

        impl<'de> Visitor<'de> for Read {
            type Value = Lenders;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"auto\" or a list of hosts that lend")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Lenders, E> {
                if text == "auto" {
                    return Ok(Lenders::Auto);
                }
                Err(E::invalid_value(de::Unexpected::Str(text), &self))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Lenders, A::Error> {
                let mut names = Vec::new();
                while let Some(name) = list.next_element()? {
                    names.push(name);
                }
                Ok(Lenders::Named(names))
            }
        }

        deserializer.deserialize_any(Read)
    }
}

/// What this host borrows.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BorrowConfig {
    /// The hosts that lend.
    pub from: Lenders,
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
    pub(crate) fn check(&self, hosts: &[HostConfig], is_in_cluster: bool) -> Result<(), String> {
        match &self.from {
            Lenders::Auto if is_in_cluster => {}
            Lenders::Auto => {
                return Err("from = \"auto\" needs [cluster], which says who has flash to spare".into());
            }
            Lenders::Named(names) => check_hosts("from", "[borrow]", names, hosts)?,
        }
        let Some(disks) = &self.disks else { return Ok(()) };
        if disks.is_empty() {
            return Err("disks = [] names no disk: name one, or leave it out for all disks".into());
        }
        disks.iter().try_for_each(|disk| check_name(disk).map_err(|what| format!("disks: {what}")))
    }
}

/// A host to borrow from.
#[derive(Default)]
pub(super) struct LenderFlags {
    /// It has said on the present connection that it lends to this host.
    lends: AtomicBool,
    /// Disks may ask it.
    is_chosen: AtomicBool,
}

impl LenderFlags {
    pub fn lends(&self) -> bool {
        self.lends.load(Ordering::Relaxed)
    }

    pub fn is_chosen(&self) -> bool {
        self.is_chosen.load(Ordering::Relaxed)
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Lending {
    lend: Option<LendConfig>,
    borrow: Option<BorrowConfig>,
    /// The hosts to borrow from.
    pub lenders: Arc<BTreeMap<HostId, LenderFlags>>,
    asked: Mutex<BTreeMap<HostId, Instant>>,
    pub watch: Mutex<Watch>,
}

impl Lending {
    pub fn new(lend: Option<&LendConfig>, borrow: Option<&BorrowConfig>, others: &[HostConfig]) -> Lending {
        let lender = |name: &String, is_chosen: bool| {
            (host_id(name), LenderFlags { is_chosen: AtomicBool::new(is_chosen), ..LenderFlags::default() })
        };
        let lenders = match borrow.map(|borrow| &borrow.from) {
            None => BTreeMap::new(),
            Some(Lenders::Auto) => others.iter().map(|host| lender(&host.name, false)).collect(),
            Some(Lenders::Named(names)) => names.iter().map(|name| lender(name, true)).collect(),
        };
        Lending {
            lend: lend.cloned(),
            borrow: borrow.cloned(),
            lenders: Arc::new(lenders),
            asked: Mutex::default(),
            watch: Mutex::default(),
        }
    }

    /// Returns the hosts that disks may ask.
    fn chosen(&self) -> impl Iterator<Item = HostId> + '_ {
        self.lenders.iter().filter(|(_, lender)| lender.is_chosen()).map(|(host, _)| *host)
    }

    /// Handles the end of the connection to a host.
    pub fn lost(&self, host: HostId) {
        if let Some(lender) = self.lenders.get(&host) {
            lender.lends.store(false, Ordering::Relaxed);
        }
    }

    /// Returns whether the cluster's plan says whom to borrow from.
    fn is_auto(&self) -> bool {
        self.borrow.as_ref().is_some_and(|borrow| borrow.from == Lenders::Auto)
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
        let (sender, rooms, connections) = (self.sender.clone(), self.sender.clone(), self.sender.clone());
        let lenders = lending.lenders.clone();
        let may_send = move |host: HostId| lenders.get(&host).is_some_and(LenderFlags::lends);
        let lenders = lending.lenders.clone();
        let may_ask =
            move |host: HostId| lenders.get(&host).is_some_and(|lender| lender.lends() && lender.is_chosen());
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
            lends_to_me: Arc::new(may_ask),
            borrows: !lending.lenders.is_empty(),
            lenders: lending.chosen().collect(),
            borrowing_disks: lending.borrow.as_ref().and_then(|borrow| borrow.disks.clone()),
            lent_blocks: lend.map_or(0, |lend| lend.capacity.0 / BLOCK_BYTES as u64),
            borrowers: others.filter(|host| lending.lends_to(*host)).collect(),
            connection: Arc::new(move |host| connections.connection(host)),
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
        let is_asked = |lender: &LenderFlags| lender.is_chosen() && !lender.lends();
        for (host, lender) in self.lending.lenders.iter().filter(|(_, lender)| is_asked(lender)) {
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
            lender.lends.store(true, Ordering::Relaxed);
            self.lending.asked.locked().remove(host);
            // If this connection has ended meanwhile, the answer does not hold for the next one.
            if self.connected_since(*host) != Some(since) {
                lender.lends.store(false, Ordering::Relaxed);
            }
        }
    }

    /// Returns whether this host lends or borrows.
    pub(crate) fn shares_flash(&self) -> bool {
        !self.lending.lenders.is_empty() || self.lending.lend.is_some()
    }

    /// Returns the pool that lends, and the hosts that it lends to; all if none are named.
    pub(crate) fn lends(&self) -> Option<(&str, Option<BTreeSet<String>>)> {
        let lend = self.lending.lend.as_ref()?;
        let to = lend.to.as_ref().map(|to| to.iter().map(|name| name.to_ascii_lowercase()).collect());
        Some((&lend.pool, to))
    }

    /// Returns the hosts that the cluster's plan has chosen; none if it chooses none here.
    pub(crate) fn auto_lenders(&self) -> Option<BTreeSet<String>> {
        self.lending.is_auto().then(|| self.lending.chosen().map(|host| self.name_of(host)).collect())
    }

    /// Borrows from these hosts and no others. Loans from other hosts are given back.
    pub(crate) fn choose_lenders(&self, daemon: &Daemon, names: &BTreeSet<String>) {
        for (host, lender) in self.lending.lenders.iter() {
            lender.is_chosen.store(names.contains(&self.name_of(*host)), Ordering::Relaxed);
        }
        let chosen: Vec<HostId> = self.lending.chosen().collect();
        for pool in daemon.pools() {
            if let Err(error) = pool.backend.choose_lenders(&chosen) {
                tracing::debug!(pool = pool.name, "its disks do not know whom to borrow from: {error}");
            }
        }
    }
}

/// Reports disks in `[borrow]` that do not exist: a name may be wrong, or the disk is attached later.
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

/// Keeps asking lenders whether they lend, and reports changes to the operator, until the daemon ends.
///
/// # Errors
/// The thread cannot be started.
pub fn watch_lenders(daemon: &Arc<Daemon>) -> std::io::Result<()> {
    if !daemon.hosts().is_some_and(|hosts| hosts.shares_flash()) {
        return Ok(());
    }
    let mut looks = 0;
    watch(daemon, ("lenders", "asking hosts whether they lend"), LOOK_EVERY, move |daemon, hosts| {
        hosts.ask_lenders();
        looks += 1;
        if looks % LOOKS_A_TELL == 0 {
            daemon.tell_of_loans(hosts);
        }
    })
}
