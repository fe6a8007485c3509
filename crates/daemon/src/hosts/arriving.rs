//! A disk that came from another host is detached only when none of its blocks is left there.

use std::time::{Duration, Instant};

use haversack_core::{JobError, Progress};
use haversack_engine::EngineError;
use haversack_model::{DiskHandle, HostId};
use haversack_ownership::Record;

use super::{Hosts, bytes};
use crate::backend::Backend;
use crate::daemon::{Daemon, Disk};
use crate::error::{DaemonError, Result};
use crate::jobs::JobControl;

/// How often to check what is still to come.
const POLL_EVERY: Duration = Duration::from_millis(100);
/// How long the other host may be away, and how long it may be connected without sending anything.
const AWAY: Duration = Duration::from_secs(15);
const STALLED: Duration = Duration::from_secs(60);

/// How long nothing has been heard of the other host, and nothing has come from there.
struct Patience {
    heard: Instant,
    came: Instant,
    least_needed_blocks: u64,
}

impl Patience {
    fn new(now: Instant) -> Patience {
        Patience { heard: now, came: now, least_needed_blocks: u64::MAX }
    }

    /// Updates the times. Returns what is wrong with the other host once that has lasted too long.
    fn over(&mut self, now: Instant, is_connected: bool, needed_blocks: u64) -> Option<&'static str> {
        if is_connected {
            self.heard = now;
        }
        if needed_blocks < self.least_needed_blocks {
            (self.least_needed_blocks, self.came) = (needed_blocks, now);
        }
        if now - self.heard >= AWAY {
            Some("is not connected")
        } else if now - self.came >= STALLED {
            Some("has sent nothing for a minute")
        } else {
            None
        }
    }
}

impl Daemon {
    /// Waits until no block of a disk is left on the host that it came from, so that it can be detached.
    ///
    /// # Errors
    /// That host is away or sends nothing, or the wait was cancelled.
    pub(crate) fn await_blocks(
        &self,
        control: &JobControl,
        name: &str,
        disk: &Disk,
        handle: DiskHandle,
    ) -> Result<()> {
        let Some(hosts) = self.hosts() else { return Ok(()) };
        let backend = &*self.pool(&disk.config().pool)?.backend;
        let (mut total_blocks, mut patience) = (None, Patience::new(Instant::now()));
        while let Some((peer, needed_blocks)) = still_there(backend, disk)? {
            if total_blocks.is_none() {
                backend.fetch_rest(handle)?;
                self.tell_that_it_waits(&hosts, name, peer, needed_blocks);
            }
            let total_blocks = *total_blocks.get_or_insert(needed_blocks);
            control
                .report(Progress { done_blocks: total_blocks.saturating_sub(needed_blocks), total_blocks });
            if control.is_cancelled() {
                return Err(EngineError::Job(JobError::Cancelled).into());
            }
            if let Some(why) = patience.over(Instant::now(), hosts.is_connected(peer), needed_blocks) {
                let (needed, host) = (bytes(needed_blocks), hosts.name_of(peer));
                return Err(DaemonError::conflict(
                    format!("disk '{name}' needs {needed} bytes that are only on host '{host}', which {why}"),
                    "check haversackd there and try again; or, if that host is permanently dead, see 'haversack disk own'",
                ));
            }
            std::thread::sleep(POLL_EVERY);
        }
        Ok(())
    }

    fn tell_that_it_waits(&self, hosts: &Hosts, name: &str, peer: HostId, needed_blocks: u64) {
        let what = format!("waits for {} bytes from host '{}'", bytes(needed_blocks), hosts.name_of(peer));
        tracing::info!(disk = name, "detaching: {what}");
        self.events.add("detach-waits", name, what);
    }
}

/// Returns the host that an attached disk came from and still needs, and how many blocks are only there.
fn still_there(backend: &dyn Backend, disk: &Disk) -> Result<Option<(HostId, u64)>> {
    let Some(status) = backend.migration_status(disk.id)? else { return Ok(None) };
    let Record::Owner { peers, .. } = &status.record else { return Ok(None) };
    // A disk that is not attached in its pool waits for that host itself. It needs the blocks there when it is attached
    // again.
    let is_attached = backend.recorded_disk(disk.id)?.is_some_and(|recorded| recorded.info.attached);
    Ok(peers.first().filter(|_| is_attached).map(|peer| (*peer, status.progress.needed_blocks)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_told_once_it_has_lasted() {
        let start = Instant::now();
        let mut patience = Patience::new(start);
        assert_eq!(patience.over(start, false, 5), None);
        assert_eq!(patience.over(start + AWAY, false, 5), Some("is not connected"));
        assert_eq!(patience.over(start + AWAY, true, 5), None);
        assert_eq!(patience.over(start + STALLED, true, 5), Some("has sent nothing for a minute"));
        assert_eq!(patience.over(start + STALLED, true, 4), None, "a block has come");
    }
}
