//! One connection to one member of etcd, from beginning to end.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::{Client, TxnOpResponse, WatchResponse};
use tokio::sync::mpsc::Receiver;
use tokio::time::{Interval, MissedTickBehavior};

use crate::call::Call;
use crate::connect::{client, in_time};
use crate::lease::Keeper;
use crate::status::Shared;
use crate::transaction;
use crate::watch::{BEAT, Lost, Watch};
use haversack_directory::{Changes, DirectoryError, MOST_WRITES, Report, Write, changes};

/// How long after a partial refusal a report is compared with the view again.
const AFTER_REFUSAL: Duration = Duration::from_millis(250);

/// A connection to a member of etcd.
pub(crate) struct Session<'a> {
    shared: &'a Shared,
    endpoint: String,
    /// For calls and the lease.
    calls: Client,
    /// For the watch alone.
    watching: Client,
    watch: Watch,
    keeper: Keeper,
    /// What is to be written of a report, in transactions.
    pending: VecDeque<Vec<Write>>,
    /// The report that is being written.
    writing: Option<Arc<Report>>,
    /// When a part of the report was refused, because another host has changed a key, or etcd has at the end of a
    /// lease. The report is then compared with the view again, which has the change by then.
    refused_at: Option<Instant>,
    /// The revision of the entry with this host's name, while another daemon has that name.
    other: Option<i64>,
}

/// What happens next.
enum Next {
    Message(Result<Option<WatchResponse>, DirectoryError>),
    Keep,
    Beat,
    Call(Call),
    Write,
    Report,
    Stop,
}

impl<'a> Session<'a> {
    /// Connects, reads what has changed, and makes this host's lease count.
    pub async fn open(shared: &'a Shared, endpoint: &str) -> Result<Session<'a>, DirectoryError> {
        let mut calls = client(&shared.config, endpoint).await?;
        let mut watching = client(&shared.config, endpoint).await?;
        let watch = Watch::start(shared, &mut calls, &mut watching, endpoint, false).await?;
        let seconds = shared.config.lease_s();
        let (keeper, lease) = Keeper::start(&mut calls, endpoint, seconds, shared.lease()).await?;
        shared.set_lease(Some(lease));
        Ok(Session {
            shared,
            endpoint: endpoint.into(),
            calls,
            watching,
            watch,
            keeper,
            pending: VecDeque::new(),
            writing: None,
            refused_at: None,
            other: None,
        })
    }

    /// Serves until the connection is lost, with the reason, or there are no callers any more.
    pub async fn run(&mut self, calls: &mut Receiver<Call>) -> Result<(), DirectoryError> {
        let mut keep = ticks(Duration::from_secs(self.shared.config.lease_s().unsigned_abs()) / 3);
        let mut beat = ticks(BEAT);
        self.begin_report();
        loop {
            match self.next(calls, &mut keep, &mut beat).await {
                Next::Message(message) => self.hear(message?).await?,
                Next::Keep => self.keep_lease().await?,
                Next::Beat => {
                    self.watch.check()?;
                    self.watch.ask().await?;
                }
                Next::Call(call) => call.carry_out(self.shared, &mut self.calls, &self.endpoint).await?,
                Next::Write => self.write().await?,
                Next::Report => self.begin_report(),
                Next::Stop => return Ok(()),
            }
        }
    }

    /// Waits for what is to be done next. The lease comes before everything that takes time.
    async fn next(&mut self, calls: &mut Receiver<Call>, keep: &mut Interval, beat: &mut Interval) -> Next {
        let has_pending = !self.pending.is_empty();
        tokio::select! {
            biased;
            _ = keep.tick() => Next::Keep,
            message = self.watch.message() => Next::Message(message),
            _ = beat.tick() => Next::Beat,
            call = calls.recv() => call.map_or(Next::Stop, Next::Call),
            () = std::future::ready(()), if has_pending => Next::Write,
            () = self.shared.wake.notified(), if !has_pending => Next::Report,
        }
    }

    async fn hear(&mut self, message: Option<WatchResponse>) -> Result<(), DirectoryError> {
        match self.watch.apply(self.shared, message) {
            Ok(()) => {
                let is_idle = self.pending.is_empty();
                let is_due = self.refused_at.is_some_and(|at| at.elapsed() >= AFTER_REFUSAL);
                if is_idle && (is_due || (self.other.is_some() && self.has_name())) {
                    self.begin_report();
                }
                Ok(())
            }
            Err(Lost::Failed(error)) => Err(error),
            Err(Lost::Compacted) => {
                tracing::info!(
                    endpoint = self.endpoint,
                    "etcd was compacted meanwhile: everything is read again"
                );
                let (calls, watching) = (&mut self.calls, &mut self.watching);
                self.watch = Watch::start(self.shared, calls, watching, &self.endpoint, true).await?;
                Ok(())
            }
        }
    }

    /// Returns whether this host's name is free. Another daemon that has it, such as the one before this, keeps it
    /// until its lease ends.
    fn has_name(&mut self) -> bool {
        let other = self.shared.view().other_daemon(&self.shared.config.name, self.shared.instance);
        let before = std::mem::replace(&mut self.other, other);
        match (before, other) {
            (_, None) => self.shared.set_name_taken(false),
            // The entry has changed, so the other daemon is alive: a dead one does not report.
            (Some(before), Some(now)) if before != now => self.shared.set_name_taken(true),
            _ => {}
        }
        other.is_none()
    }

    async fn keep_lease(&mut self) -> Result<(), DirectoryError> {
        if let Some(lease) = self.keeper.prolong().await? {
            self.shared.set_lease(Some(lease));
            return Ok(());
        }
        tracing::warn!(endpoint = self.endpoint, "this host's lease has expired: it requests a new one");
        let seconds = self.shared.config.lease_s();
        let (keeper, lease) = Keeper::start(&mut self.calls, &self.endpoint, seconds, None).await?;
        self.keeper = keeper;
        self.shared.set_lease(Some(lease));
        self.begin_report();
        Ok(())
    }

    /// Finds out what is to be written of the last report.
    fn begin_report(&mut self) {
        if !self.has_name() {
            return;
        }
        let (Some(report), Some(lease)) = (self.shared.last_report(), self.shared.lease()) else { return };
        let Changes { writes, conflicts } =
            changes(&report, &self.shared.view(), &self.shared.config.name, lease.id, Instant::now());
        self.shared.set_conflicts(conflicts);
        self.pending = writes.chunks(MOST_WRITES).map(<[_]>::to_vec).collect();
        (self.writing, self.refused_at) = (Some(report), None);
        self.end_report();
    }

    /// Writes a part of the report.
    async fn write(&mut self) -> Result<(), DirectoryError> {
        let Some(writes) = self.pending.pop_front() else { return Ok(()) };
        let what = format!("{} and {} more", writes[0], writes.len() - 1);
        match in_time(&self.endpoint, &what, self.calls.txn(transaction::each(&writes))).await {
            Ok(answer) => {
                let failed = answer.op_responses().iter().filter(|response| was_refused(response)).count();
                self.shared.count_writes(writes.len() - failed);
                if failed > 0 {
                    self.refused_at = Some(Instant::now());
                }
                self.shared.set_write_error(None);
                self.end_report();
                Ok(())
            }
            Err(error) if error.ends_session() => Err(error),
            // Such as a full disk of etcd: the next report tries again.
            Err(error) => {
                tracing::warn!("a report was not written: {error}");
                self.shared.set_write_error(Some(error.to_string()));
                self.pending.clear();
                self.writing = None;
                Ok(())
            }
        }
    }

    fn end_report(&mut self) {
        if self.pending.is_empty()
            && let Some(report) = self.writing.take()
            && self.refused_at.is_none()
        {
            self.shared.wrote(&report);
        }
    }

    /// Tells the other hosts at once that this one is leaving.
    pub async fn leave(&mut self) {
        if let Some(lease) = self.shared.lease() {
            let result =
                in_time(&self.endpoint, "giving a lease back", self.calls.lease_revoke(lease.id)).await;
            if let Err(error) = result {
                tracing::debug!("{error}");
            }
        }
    }
}

fn was_refused(response: &TxnOpResponse) -> bool {
    matches!(response, TxnOpResponse::Txn(answer) if !answer.succeeded())
}

/// Ticks that do not come in a burst after a delay.
fn ticks(every: Duration) -> Interval {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
