//! Borrowing from the hosts that the cluster's plan names: `[borrow] from = "auto"`.
//!
//! Each borrowing host computes the plan itself from the directory, and publishes in its own entry from whom it
//! borrows. So no balancing host is needed, and the loans of a dead host disappear from the directory with its lease.
//! Each lender decides how much it lends and to whom, so a wrong plan costs only speed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use haversack_api::PlannedLoan;
use haversack_cluster::{ClusterError, FlashLoan, Plan};
use haversack_directory::{LendRecord, View};
use haversack_model::BLOCK_BYTES;
use haversack_moves::snapshot;

use super::Cluster;
use crate::daemon::Daemon;
use crate::hosts::Hosts;
use crate::locked::Locked;

const BLOCK: u64 = BLOCK_BYTES as u64;

impl Cluster {
    /// Returns what the balancer would move, and who is to borrow from whom.
    ///
    /// # Errors
    /// What the directory has contradicts itself.
    pub(super) fn plan_with_loans(&self, view: &View) -> Result<(Plan, Vec<FlashLoan>), ClusterError> {
        let (balancer, now_us) = self.observed.locked().balancer(Instant::now());
        let of_view = snapshot::of(view);
        let plan = balancer.plan(now_us, &of_view)?;
        let loans = balancer.loans(&of_view, &plan, &snapshot::offers(view))?;
        Ok((plan, loans))
    }

    /// Returns a disk's name as the directory has it.
    pub(crate) fn name_of_disk(&self, id: &str) -> Option<String> {
        self.directory.view().disks.get(id).map(|seen| seen.record.name.clone())
    }

    /// Borrows from the hosts that the plan names, at the end of a window. Changes nothing while the directory is away,
    /// and makes no plan while this host is not overloaded.
    pub(super) fn borrow(&self, daemon: &Daemon) {
        let Some(hosts) = daemon.hosts() else { return };
        let Some(before) = hosts.auto_lenders().filter(|_| self.is_current()) else { return };
        if !self.observed.locked().may_borrow(self.directory.name(), !before.is_empty()) {
            return;
        }
        let loans = match self.plan_with_loans(&self.directory.view()) {
            Ok((_, loans)) => loans,
            Err(error) => return tracing::debug!("cannot determine the hosts to borrow from: {error}"),
        };
        let mine: Vec<&FlashLoan> =
            loans.iter().filter(|loan| loan.borrower.0 == self.directory.name()).collect();
        let chosen: BTreeSet<String> = mine.iter().map(|loan| loan.lender.0.clone()).collect();
        hosts.choose_lenders(daemon, &chosen);
        for loan in mine.iter().filter(|loan| !before.contains(&loan.lender.0)) {
            daemon.events.add("loan-planned", "daemon", loan.to_string());
        }
        for host in before.difference(&chosen) {
            let what = format!("this host no longer borrows from host '{host}': its loans are given back");
            daemon.events.add("loan-ended", "daemon", what);
        }
    }
}

/// Returns a planned loan for the operator.
pub(super) fn planned(loan: &FlashLoan) -> PlannedLoan {
    PlannedLoan {
        borrower: loan.borrower.to_string(),
        lender: loan.lender.to_string(),
        size_bytes: loan.blocks * BLOCK,
        is_begun: loan.is_begun,
        reason: loan.to_string(),
    }
}

/// Returns what this host lends; none if it lends nothing.
pub(super) fn lends(daemon: &Daemon, hosts: &Hosts) -> Option<LendRecord> {
    let (pool, to) = hosts.lends()?;
    let status = daemon.pool(pool).ok().and_then(|pool| pool.backend.lending_status().ok());
    let spare_bytes = status.map_or(0, |status| status.spare_blocks * BLOCK);
    Some(LendRecord { spare_bytes, to })
}

/// Returns the bytes that this host borrows, by lender of the plan; `None` without `from = "auto"`.
pub(super) fn borrows(daemon: &Daemon, hosts: &Hosts) -> Option<BTreeMap<String, u64>> {
    let lenders = hosts.auto_lenders()?;
    let mut all: BTreeMap<String, u64> = lenders.into_iter().map(|host| (host, 0)).collect();
    for one in daemon.loans().borrowed {
        if let Some(bytes) = all.get_mut(&one.host) {
            *bytes = bytes.saturating_add(one.used_bytes);
        }
    }
    Some(all)
}
