//! The part of the start that waits for disks, while guests and callers of the API are served.
//!
//! An origin that does not answer delays this part, for at most `ATTACH_PATIENCE`, and nothing else: each disk is
//! attached on a thread of its own, and its guest is served from then on. What divides and watches disks begins
//! afterwards, so that it finds the disks there.
//!
//! Invariants
//! - Nothing begins once the daemon is stopping.
//! - While this part goes on, [`Daemon::is_starting`] says so, and no other policy can be set: the configured one would
//!   replace it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use haversack_api::DiskConfig;

use crate::config::Config;
use crate::daemon::{Daemon, Disk};
use crate::hosts::{self, guests};
use crate::run::RunError;
use crate::{bases, budget, cluster, governed, history, learned, pool};

/// How long the start waits for disks; slower ones continue in the background.
const ATTACH_PATIENCE: Duration = Duration::from_secs(30);

/// A start that goes on.
pub struct Start {
    attaching: Vec<Arc<Disk>>,
    deadline: Instant,
}

impl Start {
    /// Begins to attach configured and remembered disks. A disk whose name or identity is in use is left out, and
    /// logged.
    pub fn begin(daemon: &Arc<Daemon>, disks: Vec<(DiskConfig, bool)>) -> Start {
        daemon.set_starting(true);
        let deadline = Instant::now() + ATTACH_PATIENCE;
        let (attaching, errors) = daemon.begin_attaching(disks);
        for error in errors {
            tracing::error!("{error}");
        }
        Start { attaching, deadline }
    }

    /// Waits until each disk is attached or waits for its next attempt, but not for those that take too long.
    pub fn wait(&mut self, daemon: &Daemon) {
        let attaching = std::mem::take(&mut self.attaching);
        let slow = daemon.await_attached(&attaching, self.deadline);
        for disk in slow.iter().filter(|_| !daemon.is_stopping()) {
            tracing::warn!(
                disk = disk.config().name,
                "still being attached: does its origin answer? The start goes on without the disk"
            );
        }
    }

    /// Waits for the disks, then begins to divide the pools among them and to watch them.
    ///
    /// # Errors
    /// The policy cannot be used, or a thread cannot be started.
    pub fn finish(mut self, daemon: &Arc<Daemon>, config: &Config) -> Result<(), RunError> {
        self.wait(daemon);
        if daemon.is_stopping() {
            return Ok(());
        }
        for pool in daemon.pools() {
            pool::tell_left_dirty(daemon, pool);
        }
        if let Some(cluster) = &config.cluster {
            daemon.policy.join_cluster(cluster.balance.window.0);
        }
        daemon.begin_policy(config.policy.clone())?;
        governed::start(daemon)?;
        history::start(daemon)?;
        budget::start(daemon, &config.pools)?;
        learned::start(daemon)?;
        bases::start(daemon)?;
        guests::watch(daemon)?;
        hosts::watch_epochs(daemon)?;
        hosts::watch_detached(daemon)?;
        hosts::tell_unknown_disks(daemon);
        hosts::watch_lenders(daemon)?;
        hosts::watch_replicas(daemon)?;
        if let Some(cluster) = &config.cluster {
            cluster::start(daemon, cluster, config.migration.as_ref())?;
        }
        daemon.set_starting(false);
        Ok(())
    }
}
