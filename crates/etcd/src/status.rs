//! What the thread and its callers share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::config::Config;
use crate::lease::Lease;
use haversack_directory::{Conflict, Report, View};

/// The state of a host's connection to the directory.
#[derive(Clone, PartialEq, Debug)]
pub struct Status {
    /// The member of etcd that is connected; none while etcd cannot be reached.
    pub endpoint: Option<String>,
    /// For how long it has been connected, or away.
    pub since: Duration,
    /// How long ago this host heard of the directory last: the [`View`] may lack what has happened since then. None if
    /// it never did.
    pub age: Option<Duration>,
    /// How long this host still counts as alive without being heard of; none if it does not.
    pub lease_left: Option<Duration>,
    /// Whether this host's last report is in the directory as a whole.
    pub is_reported: bool,
    /// Why the connection was lost or could not be made, or a write was refused; none if all is well.
    pub error: Option<String>,
    /// Another daemon uses this host's name.
    pub is_name_taken: bool,
    /// Disks that this host owns and the directory has at another host, with the same epoch or a higher one.
    pub conflicts: Vec<Conflict>,
    /// Connections that were made.
    pub connections: u64,
    /// How often everything had to be read, since the history was not there: at the start, after a compaction while
    /// etcd was away, from another etcd.
    pub full_reads: u64,
    /// How often etcd was another one than before, or was restored from an older copy.
    pub other_histories: u64,
    /// Leases that have ended while this host was running.
    pub lost_leases: u64,
    /// Keys written.
    pub writes: u64,
    /// Reports that were replaced before they were in the directory.
    pub skipped_reports: u64,
    /// Calls that were refused or failed.
    pub failed_calls: u64,
}

/// What the thread and its callers share. Its locks are held for a moment only.
pub(crate) struct Shared {
    pub config: Config,
    /// This daemon's number, see [`haversack_directory::HostRecord::instance`].
    pub instance: u64,
    /// Something is to be written.
    pub wake: Notify,
    view: Mutex<Arc<View>>,
    state: Mutex<State>,
    report: Mutex<Waiting>,
    failed_calls: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    report: Option<Arc<Report>>,
    is_written: bool,
}

struct State {
    endpoint: Option<String>,
    changed: Instant,
    heard: Option<Instant>,
    lease: Option<Lease>,
    /// Why there is no connection.
    error: Option<String>,
    /// Why a write was refused.
    write_error: Option<String>,
    cluster: Option<u64>,
    is_name_taken: bool,
    conflicts: Vec<Conflict>,
    connections: u64,
    full_reads: u64,
    other_histories: u64,
    lost_leases: u64,
    writes: u64,
    skipped_reports: u64,
}

/// A panic of another thread leaves these values as they are, which is good enough for all of them.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub fn new(config: Config, instance: u64) -> Shared {
        let state = State {
            endpoint: None,
            changed: Instant::now(),
            heard: None,
            lease: None,
            error: Some("not connected yet".into()),
            write_error: None,
            cluster: None,
            is_name_taken: false,
            conflicts: Vec::new(),
            connections: 0,
            full_reads: 0,
            other_histories: 0,
            lost_leases: 0,
            writes: 0,
            skipped_reports: 0,
        };
        Shared {
            config,
            instance,
            wake: Notify::new(),
            view: Mutex::default(),
            state: Mutex::new(state),
            report: Mutex::default(),
            failed_calls: AtomicU64::new(0),
        }
    }

    /// Returns the view. The copy is cheap.
    pub fn view(&self) -> Arc<View> {
        self.lock_view().clone()
    }

    /// Locks the view for a change.
    pub fn lock_view(&self) -> MutexGuard<'_, Arc<View>> {
        lock(&self.view)
    }

    /// Returns the state of the connection.
    pub fn status(&self) -> Status {
        let now = Instant::now();
        let (has_report, is_written) = {
            let waiting = lock(&self.report);
            (waiting.report.is_some(), waiting.is_written)
        };
        let state = lock(&self.state);
        Status {
            endpoint: state.endpoint.clone(),
            since: now.saturating_duration_since(state.changed),
            age: state.heard.map(|heard| now.saturating_duration_since(heard)),
            lease_left: state
                .lease
                .map(|lease| lease.valid_until.saturating_duration_since(now))
                .filter(|left| !left.is_zero()),
            is_reported: has_report && is_written,
            error: state.error.clone().or_else(|| state.write_error.clone()),
            is_name_taken: state.is_name_taken,
            conflicts: state.conflicts.clone(),
            connections: state.connections,
            full_reads: state.full_reads,
            other_histories: state.other_histories,
            lost_leases: state.lost_leases,
            writes: state.writes,
            skipped_reports: state.skipped_reports,
            failed_calls: self.failed_calls.load(Ordering::Relaxed),
        }
    }

    /// Returns why there is no connection; none if there is one.
    pub fn why_away(&self) -> Option<String> {
        let state = lock(&self.state);
        if state.endpoint.is_some() {
            return None;
        }
        Some(state.error.clone().unwrap_or_else(|| "not connected".into()))
    }

    /// Replaces the report that waits to be written.
    pub fn set_report(&self, report: Report) {
        let was_skipped = {
            let mut waiting = lock(&self.report);
            let was_skipped = waiting.report.is_some() && !waiting.is_written;
            *waiting = Waiting { report: Some(Arc::new(report)), is_written: false };
            was_skipped
        };
        lock(&self.state).skipped_reports += u64::from(was_skipped);
        self.wake.notify_one();
    }

    pub fn last_report(&self) -> Option<Arc<Report>> {
        lock(&self.report).report.clone()
    }

    /// Records that a report is in the directory, as far as possible.
    pub fn wrote(&self, report: &Arc<Report>) {
        let mut waiting = lock(&self.report);
        if waiting.report.as_ref().is_some_and(|last| Arc::ptr_eq(last, report)) {
            waiting.is_written = true;
        }
    }

    pub fn connected(&self, endpoint: &str) {
        let mut state = lock(&self.state);
        state.endpoint = Some(endpoint.into());
        (state.changed, state.error, state.write_error) = (Instant::now(), None, None);
        state.connections += 1;
    }

    pub fn disconnected(&self, error: String) {
        let mut state = lock(&self.state);
        if state.endpoint.take().is_some() {
            state.changed = Instant::now();
        }
        state.error = Some(error);
    }

    pub fn heard(&self, at: Instant) {
        lock(&self.state).heard = Some(at);
    }

    /// Records that everything was read from this etcd cluster. `is_other`: what was known before is not part of its
    /// history.
    pub fn read(&self, at: Instant, cluster: Option<u64>, is_other: bool) {
        let mut state = lock(&self.state);
        (state.heard, state.cluster) = (Some(at), cluster);
        state.full_reads += 1;
        state.other_histories += u64::from(is_other);
    }

    pub fn cluster(&self) -> Option<u64> {
        lock(&self.state).cluster
    }

    pub fn lease(&self) -> Option<Lease> {
        lock(&self.state).lease
    }

    /// Sets the lease that was granted or prolonged; none if it has ended.
    pub fn set_lease(&self, lease: Option<Lease>) {
        let mut state = lock(&self.state);
        let is_other =
            state.lease.is_some() && state.lease.map(|lease| lease.id) != lease.map(|lease| lease.id);
        state.lost_leases += u64::from(is_other);
        state.lease = lease;
    }

    pub fn set_conflicts(&self, conflicts: Vec<Conflict>) {
        let mut state = lock(&self.state);
        for conflict in conflicts.iter().filter(|conflict| !state.conflicts.contains(conflict)) {
            tracing::warn!(
                disk = conflict.disk,
                epoch = conflict.epoch,
                host = conflict.host,
                directory_epoch = conflict.directory_epoch,
                "the directory has this disk at another host"
            );
        }
        state.conflicts = conflicts;
    }

    pub fn set_name_taken(&self, is_taken: bool) {
        lock(&self.state).is_name_taken = is_taken;
    }

    pub fn set_write_error(&self, error: Option<String>) {
        lock(&self.state).write_error = error;
    }

    pub fn count_writes(&self, count: usize) {
        lock(&self.state).writes += count as u64;
    }

    pub fn count_failed_call(&self) {
        self.failed_calls.fetch_add(1, Ordering::Relaxed);
    }
}
