//! The handle, and the thread behind it.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::backoff::{Backoff, random};
use crate::call::{Call, MOST_CALLS};
use crate::config::Config;
use crate::session::Session;
use crate::status::{Shared, Status};
use haversack_directory::{
    BalanceRecord, Change, DirectoryError, DrainRecord, IntentRecord, Key, Lead, Leadership, Report,
    TenantRecord, View,
};

/// How long a connection must have lasted for the next attempt to follow at once.
const LASTING: Duration = Duration::from_secs(10);
/// How often to try to begin a move while reports change the disk's entry at the same time.
const MOST_ATTEMPTS: u32 = 5;
/// How long a call may take, with those before it.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// How long the view may take to show what etcd has.
const UNTIL_SEEN: Duration = Duration::from_millis(50);

/// A host's access to the directory. See the crate.
///
/// Dropping it revokes the lease, if etcd can be reached, and ends the thread.
pub struct Directory {
    shared: Arc<Shared>,
    calls: Mutex<Option<mpsc::Sender<Call>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Directory {
    /// Starts the thread, which connects to etcd. Returns at once, whether etcd can be reached or not.
    ///
    /// # Errors
    /// The settings cannot be used, see [`Config::check`], or the thread cannot be started.
    pub fn start(config: Config) -> Result<Directory, DirectoryError> {
        config.check()?;
        let shared = Arc::new(Shared::new(config, random()));
        let (sender, receiver) = mpsc::channel(MOST_CALLS);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(DirectoryError::Thread)?;
        let served = shared.clone();
        let run = move || runtime.block_on(serve(&served, receiver));
        let thread = std::thread::Builder::new().name("directory".into()).spawn(run);
        let thread = thread.map_err(DirectoryError::Thread)?;
        Ok(Directory { shared, calls: Mutex::new(Some(sender)), thread: Mutex::new(Some(thread)) })
    }

    /// Returns this host's name.
    pub fn name(&self) -> &str {
        &self.shared.config.name
    }

    /// Returns the number that this daemon has chosen for itself.
    pub fn instance(&self) -> u64 {
        self.shared.instance
    }

    /// Returns what is known of the directory. It does not wait, and the copy is cheap. [`Status::age`] says how old it
    /// is.
    pub fn view(&self) -> Arc<View> {
        self.shared.view()
    }

    /// Returns the state of this host's connection to the directory.
    pub fn status(&self) -> Status {
        self.shared.status()
    }

    /// Sets what this host wants to have in the directory. Does not wait, and replaces the report before.
    pub fn report(&self, report: Report) {
        self.shared.set_report(report);
    }

    /// Begins a move: from then on nobody else begins one of this disk. It is refused if the disk's entry or an intent
    /// has changed since the view was taken, or, under a [`Leadership`], if another host balances. A move that this
    /// daemon has begun already, to the same host, is begun again.
    ///
    /// Waits a few seconds at most, and must not be called inside a tokio runtime. Both also hold for all methods
    /// below.
    ///
    /// # Errors
    /// Etcd is away or does not answer, or somebody else was faster. [`DirectoryError::Time`] leaves open whether the
    /// intent is there.
    pub fn begin_move(
        &self,
        disk: &str,
        intent: &IntentRecord,
        leadership: Option<Leadership>,
    ) -> Result<(), DirectoryError> {
        let (key, owned) = (Key::Intent(disk.into()), Key::Disk(disk.into()));
        for attempt in 1.. {
            let view = self.view();
            let is_there =
                |view: &View| view.intents.get(disk).is_some_and(|seen| seen.record.is_same_move(intent));
            match self.call(Change::begin_move(&view, disk, intent, leadership)?) {
                // This daemon's own intent has just been removed, or is there and not in the view yet.
                Err(DirectoryError::Changed { key: changed })
                    if changed == key && attempt < MOST_ATTEMPTS =>
                {
                    std::thread::sleep(UNTIL_SEEN);
                    if !is_there(&view) && !is_there(&self.view()) {
                        return Err(DirectoryError::Changed { key });
                    }
                }
                // The owner has just reported the disk, most likely unchanged. The view will show the change.
                Err(DirectoryError::Changed { key }) if key == owned && attempt < MOST_ATTEMPTS => {
                    std::thread::sleep(UNTIL_SEEN);
                }
                result => return result.map(drop),
            }
        }
        Err(DirectoryError::Changed { key: owned })
    }

    /// Removes this intent. Another one of the same disk stays.
    ///
    /// # Errors
    /// As [`Directory::begin_move`].
    pub fn end_move(&self, disk: &str, intent: &IntentRecord) -> Result<(), DirectoryError> {
        let change = Change::end_move(&self.view(), disk, intent);
        change.map_or(Ok(()), |change| self.call(change).map(drop))
    }

    /// Marks a host as draining, or removes the mark.
    ///
    /// # Errors
    /// Etcd is away or does not answer.
    pub fn set_drain(&self, host: &str, drain: Option<&DrainRecord>) -> Result<(), DirectoryError> {
        self.call(Change::drain(host, drain)).map(drop)
    }

    /// Removes what the directory has of a permanently dead host: its pools, the disks that it owned, and its mark as
    /// draining. Nothing is removed of a host that is alive. Entries that others change meanwhile, since they have
    /// taken a disk over, stay.
    ///
    /// # Errors
    /// Etcd is away or does not answer; or the host is alive, which is [`DirectoryError::Changed`] of its key.
    pub fn forget_host(&self, host: &str) -> Result<(), DirectoryError> {
        let key = Key::Host(host.into());
        for attempt in 1.. {
            let mut changes = Change::forget_host(&self.view(), host)?.into_iter();
            match changes.try_for_each(|change| self.call(change).map(drop)) {
                Err(DirectoryError::Changed { key: changed })
                    if changed != key && attempt < MOST_ATTEMPTS =>
                {
                    std::thread::sleep(UNTIL_SEEN);
                }
                result => return result,
            }
        }
        Ok(())
    }

    /// Sets a tenant, or removes it.
    ///
    /// # Errors
    /// Etcd is away or does not answer.
    pub fn set_tenant(&self, name: &str, tenant: Option<&TenantRecord>) -> Result<(), DirectoryError> {
        self.call(Change::tenant(name, tenant)).map(drop)
    }

    /// Makes this host the host that balances, or keeps it so, unless another host balances. The right ends with this
    /// host's lease.
    ///
    /// # Errors
    /// Etcd is away or does not answer. That another host balances is not an error.
    pub fn lead(&self) -> Result<Option<Leadership>, DirectoryError> {
        let lease = self.shared.lease().filter(|lease| lease.is_valid(Instant::now()));
        let Some(lease) = lease else {
            let why = self.shared.why_away().unwrap_or_else(|| "this host has no lease".into());
            return Err(DirectoryError::Away { why });
        };
        match Lead::of(&self.view(), self.name(), self.instance(), lease.id) {
            Lead::Is(leadership) => Ok(Some(leadership)),
            Lead::Other => Ok(None),
            Lead::Ask(change) => match self.call(change) {
                Ok(created) => Ok(Some(Leadership::since(created))),
                Err(DirectoryError::Changed { .. }) => Ok(None),
                Err(error) => Err(error),
            },
        }
    }

    /// Stores what the host that balances has observed.
    ///
    /// # Errors
    /// Etcd is away or does not answer, or another host balances.
    pub fn set_balance(&self, leadership: Leadership, record: &BalanceRecord) -> Result<(), DirectoryError> {
        self.call(Change::balance(leadership, record)).map(drop)
    }

    fn call(&self, change: Change) -> Result<i64, DirectoryError> {
        if let Some(why) = self.shared.why_away() {
            self.shared.count_failed_call();
            return Err(DirectoryError::Away { why });
        }
        let what = change.writes.first().map_or_else(|| "a change".into(), ToString::to_string);
        let (answer, answered) = sync_channel(1);
        let call = Call { change, answer };
        {
            let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
            let calls = calls.as_ref().ok_or(DirectoryError::Stopped)?;
            calls.try_send(call).map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => DirectoryError::Busy,
                mpsc::error::TrySendError::Closed(_) => DirectoryError::Stopped,
            })?;
        }
        match answered.recv_timeout(ANSWER_TIME) {
            Ok(result) => result,
            Err(RecvTimeoutError::Disconnected) => Err(DirectoryError::Stopped),
            Err(RecvTimeoutError::Timeout) => Err(DirectoryError::Time {
                endpoint: self.shared.status().endpoint.unwrap_or_default(),
                what,
                seconds: ANSWER_TIME.as_secs_f64(),
            }),
        }
    }

    /// Revokes the lease, if etcd can be reached, and ends the thread. Waits a few seconds at most. Later calls are
    /// refused.
    pub fn stop(&self) {
        drop(self.calls.lock().unwrap_or_else(PoisonError::into_inner).take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the thread of the directory has panicked");
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Connects again and again, until there are no callers any more.
async fn serve(shared: &Shared, mut calls: mpsc::Receiver<Call>) {
    let endpoints = &shared.config.endpoints;
    let mut backoff = Backoff::new(endpoints.len());
    let mut is_away = false;
    for endpoint in endpoints.iter().cycle() {
        let opened = tokio::select! {
            opened = Session::open(shared, endpoint) => opened,
            () = refuse(shared, &mut calls) => return,
        };
        let error = match opened {
            Err(error) => error,
            Ok(mut session) => {
                shared.connected(endpoint);
                tracing::info!(endpoint, "connected to etcd");
                is_away = false;
                let began = Instant::now();
                match session.run(&mut calls).await {
                    Ok(()) => return session.leave().await,
                    Err(error) => {
                        if began.elapsed() >= LASTING {
                            backoff.succeeded();
                        }
                        error
                    }
                }
            }
        };
        let text = error.to_string();
        if is_away {
            tracing::debug!("{text}");
        } else {
            tracing::warn!("no connection to etcd, the next is tried: {text}");
        }
        is_away = true;
        shared.disconnected(text);
        tokio::select! {
            () = tokio::time::sleep(backoff.failed()) => {}
            () = refuse(shared, &mut calls) => return,
        }
    }
}

/// Refuses calls. Returns when there are no callers any more.
async fn refuse(shared: &Shared, calls: &mut mpsc::Receiver<Call>) {
    while let Some(call) = calls.recv().await {
        call.refuse(shared);
    }
}
