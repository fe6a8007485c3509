//! Carrying out what the balancer proposes, with a program of the operator's that moves a VM.
//!
//! One of the hosts that have such a program does it, one VM at a time. Before the program is called, the directory has an intent for
//! each disk of the VM. The program is called as `PROGRAM VM FROM TO`, with the same, the disks and the reason as one JSON object on
//! its standard input. docs/cluster.md is its contract.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use haversack_cluster::{Balancer, Move, MoveRecord, VmName};
use haversack_directory::{BalanceRecord, DirectoryError, Leadership, View};
use serde::Serialize;

use super::config::ClusterConfig;
use super::{AFTER_PANIC, Cluster, panicked, snapshot};
use crate::daemon::Daemon;
use crate::locked::Locked;
use crate::program;
use crate::settings::check_name;

/// For how long a VM whose move has failed is left alone.
const AFTER_FAILURE: Duration = Duration::from_secs(600);
/// For how long a VM is left alone that has moved, or whose move has not begun, in periods of the hosts' reports: until both hosts have
/// reported it.
const REPORTS: f64 = 2.0;
/// How often it is looked whether the daemon is stopping.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What the program is told.
#[derive(Serialize)]
struct Order<'a> {
    vm: &'a str,
    from: &'a str,
    to: &'a str,
    disks: Vec<OrderedDisk<'a>>,
    reason: &'a str,
}

#[derive(Serialize)]
struct OrderedDisk<'a> {
    name: &'a str,
    id: &'a str,
}

struct Mover {
    hook: PathBuf,
    hook_time: Duration,
    leads: bool,
    /// VMs that are left alone, and until when.
    resting: HashMap<VmName, Instant>,
    /// What this host has put into the directory last.
    handed_on: Option<BalanceRecord>,
}

/// Starts the thread, if there is a program.
///
/// # Errors
/// The thread cannot be started.
pub fn start(daemon: &Arc<Daemon>, config: &ClusterConfig) -> Result<(), DirectoryError> {
    let Some(hook) = config.hook.clone() else { return Ok(()) };
    let hook_time = config.hook_time.0;
    let mut mover = Mover::new(&hook, hook_time);
    let (weak, every) = (Arc::downgrade(daemon), config.report_every.0);
    let run = move || {
        let mut next = Instant::now() + every;
        while let Some(daemon) = weak.upgrade().filter(|daemon| !daemon.is_stopping()) {
            let Some(cluster) = daemon.cluster() else { return };
            if Instant::now() >= next {
                let round = AssertUnwindSafe(|| mover.round(&daemon, cluster));
                let pause = match catch_unwind(round) {
                    Ok(()) => every,
                    Err(panic) => {
                        mover = Mover::new(&hook, hook_time);
                        daemon.events.add("balance-failed", "daemon", panicked(&*panic, "balancing"));
                        AFTER_PANIC
                    }
                };
                next = Instant::now() + pause;
            }
            drop(daemon);
            std::thread::sleep(LOOK_EVERY.min(every));
        }
    };
    std::thread::Builder::new().name("balance".into()).spawn(run).map_err(DirectoryError::Thread)?;
    Ok(())
}

impl Mover {
    fn new(hook: &Path, hook_time: Duration) -> Mover {
        Mover { hook: hook.into(), hook_time, leads: false, resting: HashMap::new(), handed_on: None }
    }

    /// Moves one VM, if one is to be moved and this host is the one that balances.
    fn round(&mut self, daemon: &Daemon, cluster: &Cluster) {
        let led = if cluster.is_current() { cluster.directory.lead() } else { Ok(None) };
        let leadership = match led {
            Ok(Some(leadership)) => leadership,
            Ok(None) => {
                self.leads = false;
                return;
            }
            Err(error) => {
                self.leads = false;
                tracing::debug!("nothing is balanced: {error}");
                return;
            }
        };
        if !std::mem::replace(&mut self.leads, true) {
            tracing::info!("this host balances the cluster");
            cluster.take_over_balance(self.handed_on.as_ref());
        }
        let now = Instant::now();
        self.resting.retain(|_, until| *until > now);
        let view = cluster.directory.view();
        match self.next(cluster, &view) {
            Some(moved) => self.carry_out(daemon, cluster, view, &moved, leadership),
            None => drop(self.hand_on(cluster, leadership)),
        }
    }

    /// Puts what the balancer knows into the directory, for the host that balances next. Returns whether it is there.
    fn hand_on(&mut self, cluster: &Cluster, leadership: Leadership) -> bool {
        let record = cluster.balance();
        match cluster.directory.set_balance(leadership, &record) {
            Ok(()) => {
                self.handed_on = Some(record);
                true
            }
            Err(error) => {
                tracing::debug!("what the balancer knows is not in the directory: {error}");
                false
            }
        }
    }

    /// Leaves a VM alone for a time.
    fn rest(&mut self, vm: &VmName, time: Duration) {
        self.resting.insert(vm.clone(), Instant::now() + time);
    }

    /// Returns what is to be moved next.
    fn next(&self, cluster: &Cluster, view: &View) -> Option<Move> {
        let may_begin = |moved: &Move| {
            let from = view.hosts.get(&moved.from.0);
            let is_connected = from.is_some_and(|from| from.record.reaches.contains(&moved.to.0));
            is_connected && !self.resting.contains_key(&moved.vm)
        };
        match cluster.plan(view) {
            Ok(plan) => plan.moves.into_iter().find(may_begin),
            Err(error) => {
                tracing::debug!("nothing is balanced: {error}");
                None
            }
        }
    }

    fn carry_out(
        &mut self,
        daemon: &Daemon,
        cluster: &Cluster,
        view: Arc<View>,
        moved: &Move,
        leadership: Leadership,
    ) {
        let (vm, from, to, reason) = (&moved.vm.0, &moved.from.0, &moved.to.0, moved.to_string());
        if let Some(error) = [vm, from, to].into_iter().find_map(|name| check_name(name).err()) {
            daemon.events.add(
                "balance-failed",
                vm,
                format!("the program is not called with this name: {error}"),
            );
            return self.rest(&moved.vm, AFTER_FAILURE);
        }
        let disks = snapshot::disks_of(&view, [(vm.as_str(), from.as_str())]).into_values().flatten();
        let disks: Vec<snapshot::Named> = disks.collect();
        let report_every_s = view.hosts.values().map(|host| host.record.report_every_s).fold(0.0, f64::max);
        let soon =
            Duration::from_secs_f64((report_every_s * REPORTS).clamp(1.0, AFTER_FAILURE.as_secs_f64()));
        drop(view);
        let mut driven = Vec::new();
        for (id, _) in &disks {
            match cluster.begin_proposed(id, to, &reason, leadership) {
                Ok(one) => driven.push(one),
                Err(error) => {
                    // Nothing was tried. The next plan is made of what the directory has then.
                    tracing::info!(vm, to, "not moved now: {error}");
                    return self.rest(&moved.vm, soon);
                }
            }
        }
        let record = {
            let mut observed = cluster.observed.locked();
            let record = MoveRecord::of(observed.now_us(), moved);
            observed.balancer.record(record.clone());
            record
        };
        // Whoever balances after this host must know of the move.
        if !self.hand_on(cluster, leadership) {
            cluster.observed.locked().balancer.forget(&record);
            return self.rest(&moved.vm, soon);
        }
        daemon.events.add("balancing", vm, reason.clone());
        let disks = disks.iter().map(|(id, name)| OrderedDisk { name, id }).collect();
        let order = Order { vm, from, to, disks, reason: &reason };
        match program::run(&self.hook, &[vm, from, to], &order, self.hook_time) {
            Ok(output) => {
                tracing::info!(vm, from, to, output, "moved");
                daemon.events.add("balanced", vm, format!("from host '{from}' to host '{to}'"));
                self.rest(&moved.vm, soon);
            }
            Err(error) => {
                daemon.events.add(
                    "balance-failed",
                    vm,
                    format!("from host '{from}' to host '{to}': {error}"),
                );
                // The program may fail after the VM has moved.
                if !snapshot::disks_of(&cluster.directory.view(), vm, from).is_empty() {
                    cluster.observed.locked().balancer.forget(&record);
                }
                self.rest(&moved.vm, AFTER_FAILURE);
            }
        }
    }
}

impl Cluster {
    /// Goes on with what the host knew that balanced before, unless that was this one.
    fn take_over_balance(&self, handed_on: Option<&BalanceRecord>) {
        let view = self.directory.view();
        let Some(record) = view.balance.as_ref().map(|seen| &seen.record) else { return };
        if handed_on == Some(record) {
            return;
        }
        match serde_json::from_value::<Balancer>(record.state.clone()) {
            Ok(balancer) => {
                let mut observed = self.observed.locked();
                // Its settings are this host's.
                let settings = observed.balancer.settings().clone();
                observed.balancer = balancer;
                (observed.clock_us, observed.since) = (record.clock_us, Instant::now());
                if let Err(error) = observed.balancer.set(settings) {
                    tracing::warn!("the balancer's settings: {error}");
                }
            }
            Err(error) => tracing::warn!("what the balancer knew before cannot be read: {error}"),
        }
    }

    /// Returns what the balancer knows.
    fn balance(&self) -> BalanceRecord {
        let observed = self.observed.locked();
        // Its keys are text.
        let state = serde_json::to_value(&observed.balancer).unwrap_or_default();
        BalanceRecord { clock_us: observed.now_us(), state }
    }
}
