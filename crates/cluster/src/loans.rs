//! Which hosts borrow spare flash of which other hosts, where VMs cannot be moved.
//!
//! A host begins to borrow when it is overloaded by the same rule as for moves, and no VM moves off it, because no move
//! is proposed or because no host carries out moves. It stops when its load has been at or below the threshold for
//! `windows` consecutive windows, the number that makes a host overloaded. So loans change no faster than moves.
//!
//! A borrower keeps a lender as long as the lender offers to lend to it, is reachable and is not overloaded itself. A
//! new lender is chosen only for the space that it had unused below the threshold in its worst recent window: flash
//! that it must soon take back is useless.
//!
//! The only state is what hosts report that they borrow, and what the balancer has observed. Each borrower decides for
//! itself and needs no leader.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use haversack_model::BLOCK_BYTES;
use serde::{Deserialize, Serialize};

use crate::balancer::Balancer;
use crate::error::ClusterError;
use crate::plan::Plan;
use crate::round::Memory;
use crate::settings::Settings;
use crate::snapshot::{HostName, Snapshot};
use crate::view::{HostView, View};

/// The most lenders of a host.
const MOST_LENDERS: usize = 4;
/// Less spare flash than this is not worth a loan: 16 MiB.
const LEAST_BLOCKS: u64 = 4096;

/// What hosts say about loans.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Offers {
    /// Hosts that lend.
    pub lenders: BTreeMap<HostName, Lends>,
    /// Hosts that borrow where the plan says.
    pub borrowers: BTreeMap<HostName, Borrows>,
    /// A host carries out the moves that are proposed.
    pub moves_are_made: bool,
}

/// A host that lends.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Lends {
    /// Free blocks that it would lend in addition to what it has lent.
    pub spare_blocks: u64,
    /// The hosts that it lends to; all if `None`.
    pub to: Option<BTreeSet<HostName>>,
}

/// A host that borrows where the plan says.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Borrows {
    /// The hosts that it borrows from now, and the blocks that it has there.
    pub from: BTreeMap<HostName, u64>,
    /// The hosts that it is connected to.
    pub reaches: BTreeSet<HostName>,
}

/// A host that is to borrow flash of another one. `Display` says it in a sentence.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FlashLoan {
    /// The host that borrows.
    pub borrower: HostName,
    /// The host that lends.
    pub lender: HostName,
    /// The approximate part of the borrower's demand that the loan should serve.
    pub blocks: u64,
    /// It borrows there already.
    pub is_begun: bool,
    /// Predicted demand of the borrower over its cache.
    pub load: f64,
}

impl fmt::Display for FlashLoan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = (self.load * 100.0).round();
        let mib = (self.blocks * BLOCK_BYTES as u64) >> 20;
        let FlashLoan { borrower, lender, .. } = self;
        if self.is_begun {
            write!(f, "{borrower} borrows flash of {lender}: its demand is {percent} % of its cache")
        } else {
            write!(
                f,
                "{borrower} is to borrow {mib} MiB of flash of {lender}: its demand is {percent} % of its cache, and no VM is moved \
                 away"
            )
        }
    }
}

/// A lender during the planning.
struct Lender<'a> {
    lends: &'a Lends,
    /// What a new borrower can count on.
    new_blocks: u64,
    is_overloaded: bool,
}

impl Balancer {
    /// Returns who is to borrow from whom, the most loaded host first. `plan` is of the same snapshot.
    ///
    /// # Errors
    /// The snapshot contradicts itself.
    pub fn loans(
        &self,
        snapshot: &Snapshot,
        plan: &Plan,
        offers: &Offers,
    ) -> Result<Vec<FlashLoan>, ClusterError> {
        let view = View::new(snapshot)?;
        let settings = self.settings();
        let mut lenders: BTreeMap<&HostName, Lender> = BTreeMap::new();
        for host in view.hosts.iter().filter(|host| host.is_serving()) {
            if let Some(lends) = offers.lenders.get(&host.host.name) {
                lenders.insert(&host.host.name, lender(settings, host, self.memory(&host.host.name), lends));
            }
        }
        let wants = |host: &&HostView| {
            let name = &host.host.name;
            let Some(borrows) = offers.borrowers.get(name) else { return false };
            let is_moving = offers.moves_are_made && plan.moves.iter().any(|moved| moved.from == *name);
            if borrows.from.is_empty() { self.is_overloaded(host) && !is_moving } else { !self.is_calm(name) }
        };
        let mut borrowers: Vec<&HostView> = view.hosts.iter().filter(|host| host.is_serving()).collect();
        borrowers.retain(wants);
        borrowers.sort_by(|a, b| b.load().total_cmp(&a.load()));
        let mut loans = Vec::new();
        for host in borrowers {
            loans.extend(borrow(settings, host, &offers.borrowers[&host.host.name], &mut lenders));
        }
        Ok(loans)
    }

    /// Returns whether [`Balancer::loans`] may return loans for a host. This rules out most hosts without making a
    /// plan.
    pub fn may_borrow(&self, host: &HostName, borrows: bool) -> bool {
        borrows || self.memory(host).windows >= self.settings().windows
    }

    fn is_overloaded(&self, host: &HostView) -> bool {
        self.memory(&host.host.name).windows >= self.settings().windows
            && host.load() > self.settings().threshold
    }
}

fn lender<'a>(settings: &Settings, host: &HostView, memory: Memory, lends: &'a Lends) -> Lender<'a> {
    let peak = memory.peak_load.max(host.load());
    let unused = (settings.threshold - peak).max(0.0) * host.host.capacity_blocks as f64;
    let is_overloaded = memory.windows >= settings.windows && host.load() > settings.threshold;
    Lender { lends, new_blocks: lends.spare_blocks.min(unused as u64), is_overloaded }
}

/// Returns the loans of a host: first from its present lenders and, if these are not enough, from the lenders with the
/// most spare blocks.
fn borrow(
    settings: &Settings,
    host: &HostView,
    borrows: &Borrows,
    lenders: &mut BTreeMap<&HostName, Lender>,
) -> Vec<FlashLoan> {
    let me = &host.host.name;
    let own_blocks = (settings.threshold * host.host.capacity_blocks as f64) as u64;
    let mut lacking_blocks = host.demand_blocks.saturating_sub(own_blocks);
    let may_lend = |name: &HostName, lender: &Lender| {
        let is_allowed = lender.lends.to.as_ref().is_none_or(|to| to.contains(me));
        name != me && is_allowed && borrows.reaches.contains(name) && !lender.is_overloaded
    };
    let mut chosen: Vec<(HostName, u64, bool)> = Vec::new();
    for (name, blocks) in &borrows.from {
        if chosen.len() < MOST_LENDERS && lenders.get(name).is_some_and(|lender| may_lend(name, lender)) {
            chosen.push((name.clone(), *blocks, true));
            lacking_blocks = lacking_blocks.saturating_sub(*blocks);
        }
    }
    let mut others: Vec<(&HostName, u64)> = lenders
        .iter()
        .filter(|(name, lender)| may_lend(name, lender) && !borrows.from.contains_key(**name))
        .map(|(name, lender)| (*name, lender.new_blocks))
        .filter(|(_, blocks)| *blocks >= LEAST_BLOCKS)
        .collect();
    others.sort_by(|a, b| (b.1, a.0).cmp(&(a.1, b.0)));
    // A present lender's spare blocks first go to this host, its present borrower.
    for (name, _, _) in &chosen {
        let lender = lenders.get_mut(name).expect("it was found there");
        let blocks = lacking_blocks.min(lender.new_blocks);
        lender.new_blocks -= blocks;
        lacking_blocks -= blocks;
    }
    for (name, spare_blocks) in others {
        if lacking_blocks == 0 || chosen.len() >= MOST_LENDERS {
            break;
        }
        let blocks = lacking_blocks.min(spare_blocks);
        lacking_blocks -= blocks;
        chosen.push((name.clone(), blocks, false));
        lenders.get_mut(name).expect("it was found there").new_blocks -= blocks;
    }
    let loan = |(lender, blocks, is_begun)| FlashLoan {
        borrower: me.clone(),
        lender,
        blocks,
        is_begun,
        load: host.load(),
    };
    chosen.into_iter().map(loan).collect()
}
