//! Carries out the balancer's proposals with an operator's program that moves a VM.
//!
//! One of the hosts with such a program does this, one VM at a time. Before the program is called, the directory has an
//! intent for each disk of the VM. The program is called as `PROGRAM VM FROM TO`. Its standard input has the same
//! values, the disks and the reason as one JSON object. docs/cluster.md specifies the interface.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use haversack_directory::DirectoryError;
use haversack_moves::{Act, Mover, Order, Rests};

use super::config::ClusterConfig;
use super::moves::Driven;
use super::{Cluster, LOOK_EVERY};
use crate::daemon::Daemon;
use crate::locked::Locked;
use crate::part::Part;
use crate::program;
use crate::settings::check_name;

/// The operator's program.
struct Hook {
    path: PathBuf,
    time: Duration,
}

/// Starts the thread, if there is a program.
///
/// # Errors
/// The thread cannot be started.
pub fn start(daemon: &Arc<Daemon>, config: &ClusterConfig) -> Result<(), DirectoryError> {
    let (Some(path), Some(cluster)) = (config.hook.clone(), daemon.cluster()) else { return Ok(()) };
    let hook = Hook { path, time: config.hook_time.0 };
    let (name, instance) = (cluster.directory.name().to_owned(), cluster.directory.instance());
    // It has a moment more to end.
    let most = hook.time.saturating_add(program::KILL_TIME);
    let new = move || Mover::new(&name, instance, Rests::default(), most, check_name);
    let (mut mover, mut part) = (new(), Part::new("balancing"));
    let (weak, every) = (Arc::downgrade(daemon), config.report_every.0);
    let run = move || {
        let mut next = Instant::now() + every;
        while let Some(daemon) = weak.upgrade().filter(|daemon| !daemon.is_stopping()) {
            let Some(cluster) = daemon.cluster() else { return };
            if Instant::now() >= next {
                let told = part.run(Instant::now(), &mut || round(&mut mover, &hook, &daemon, cluster));
                if let Some(what) = told {
                    mover = new();
                    daemon.events.add("balance-failed", "daemon", what);
                }
                next = Instant::now() + every;
            }
            drop(daemon);
            std::thread::sleep(LOOK_EVERY.min(every));
        }
    };
    std::thread::Builder::new().name("balance".into()).spawn(run).map_err(DirectoryError::Thread)?;
    Ok(())
}

/// Moves one VM, if the balancer proposes a move and this host is the one that balances.
fn round(mover: &mut Mover, hook: &Hook, daemon: &Daemon, cluster: &Cluster) {
    let directory = &cluster.directory;
    // Dropping these removes the intents.
    let mut driven: Vec<Driven> = Vec::new();
    let mut act = mover.round(cluster.is_current());
    while let Some(next) = act {
        act = match next {
            Act::Lead => {
                let led = directory.lead();
                mover.led(led, &mut cluster.observed.locked(), &directory.view(), Instant::now())
            }
            Act::Plan => {
                let view = directory.view();
                let plan = cluster.plan(&view);
                mover.planned(plan, &cluster.observed.locked(), &view, Instant::now())
            }
            Act::Begin { disk, intent, leadership } => {
                let begun = cluster.begin_proposed(&disk, intent, leadership);
                let result = begun.map(|one| driven.push(one));
                mover.began(result, &mut cluster.observed.locked(), Instant::now())
            }
            Act::HandOn { record, leadership } => {
                let result = directory.set_balance(leadership, &record);
                mover.handed_on(record, result, &mut cluster.observed.locked(), Instant::now())
            }
            Act::Call(order) => {
                let is_done = call(&hook.path, hook.time, &order, daemon);
                mover.moved(is_done, Instant::now());
                None
            }
            Act::Refuse { vm, why } => {
                let what = format!("the program is not called with this name: {why}");
                daemon.events.add("balance-failed", &vm, what);
                None
            }
        };
    }
}

/// Calls the program. Returns whether it has moved the VM.
fn call(hook: &Path, time: Duration, order: &Order, daemon: &Daemon) -> bool {
    let Order { vm, from, to, reason, .. } = order;
    daemon.events.add("balancing", vm, reason.clone());
    match program::run(hook, &[vm, from, to], order, time) {
        Ok(output) => {
            tracing::info!(vm, from, to, output, "moved");
            daemon.events.add("balanced", vm, format!("from host '{from}' to host '{to}'"));
            true
        }
        Err(error) => {
            let what = format!("from host '{from}' to host '{to}': {error}");
            daemon.events.add("balance-failed", vm, what);
            false
        }
    }
}
