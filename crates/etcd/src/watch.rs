//! Reading the directory, and hearing of its changes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::{
    Client, EventType, GetOptions, KeyValue, ResponseHeader, WatchOptions, WatchResponse, WatchStream,
};

use crate::connect::in_time;
use crate::error::text;
use crate::status::Shared;
use haversack_directory::{DirectoryError, Found, PREFIX, Stamp};

/// Keys that are read at once: an answer may have 4 MiB.
const PAGE_KEYS: i64 = 500;
/// How often a sign of life is asked for.
pub(crate) const BEAT: Duration = Duration::from_secs(1);
/// After how much silence the watch counts as lost.
pub(crate) const SILENCE: Duration = Duration::from_secs(4);

/// A watch that has begun where the view ends.
pub(crate) struct Watch {
    endpoint: String,
    stream: WatchStream,
    /// When something was heard of it last.
    pub heard: Instant,
}

impl Watch {
    /// Starts a watch where the view ends. Reads everything first if etcd does not have that history any more, or if
    /// `is_lost` says that the view must not be continued.
    pub async fn start(
        shared: &Shared,
        calls: &mut Client,
        watching: &mut Client,
        endpoint: &str,
        is_lost: bool,
    ) -> Result<Watch, DirectoryError> {
        if is_lost || !is_same_history(shared, calls, endpoint).await? {
            read_all(shared, calls, endpoint).await?;
        }
        // The last known revision may have arrived only in part, so the watch starts with it: repeated changes are
        // harmless.
        let from = shared.view().revision;
        let options = WatchOptions::new().with_prefix().with_start_revision(from).with_fragment();
        let stream = in_time(endpoint, "watching", watching.watch(PREFIX, Some(options))).await?;
        Ok(Watch { endpoint: endpoint.into(), stream, heard: Instant::now() })
    }

    /// Waits for the next message. Cancelling it loses nothing.
    pub async fn message(&mut self) -> Result<Option<WatchResponse>, DirectoryError> {
        self.stream.message().await.map_err(|error| ended(&self.endpoint, &text(&error)))
    }

    /// Applies a message to the view.
    pub fn apply(&mut self, shared: &Shared, message: Option<WatchResponse>) -> Result<(), Lost> {
        let fail = |why: &str| Lost::Failed(ended(&self.endpoint, why));
        let message = message.ok_or_else(|| fail("the connection was closed"))?;
        if message.compact_revision() > 0 {
            return Err(Lost::Compacted);
        }
        if message.canceled() {
            let reason = message.cancel_reason();
            return Err(fail(if reason.is_empty() { "no reason given" } else { reason }));
        }
        self.heard = Instant::now();
        let at = self.heard;
        let mut view = shared.lock_view();
        let last = message.events().iter().filter_map(|event| Some(event.kv()?.mod_revision())).max();
        if let Some(last) = last {
            let view = Arc::make_mut(&mut view);
            for event in message.events() {
                match (event.event_type(), event.kv()) {
                    (EventType::Put, Some(kv)) => {
                        found(kv, at).iter().for_each(|found| view.put(found));
                    }
                    (EventType::Delete, Some(kv)) => {
                        kv.key_str().iter().for_each(|key| view.delete(key, kv.mod_revision(), at));
                    }
                    (_, None) => {}
                }
            }
            view.reached(last);
        }
        drop(view);
        shared.heard(at);
        Ok(())
    }

    /// Asks for a sign of life.
    pub async fn ask(&mut self) -> Result<(), DirectoryError> {
        in_time(&self.endpoint, "watching", self.stream.request_progress()).await
    }

    /// Returns an error if nothing was heard for too long.
    pub fn check(&self) -> Result<(), DirectoryError> {
        let silence = self.heard.elapsed();
        if silence < SILENCE {
            return Ok(());
        }
        Err(ended(&self.endpoint, &format!("nothing was heard for {:.1} s", silence.as_secs_f64())))
    }
}

/// Why a watch cannot continue.
pub(crate) enum Lost {
    /// The history that it needs was compacted.
    Compacted,
    /// Something else.
    Failed(DirectoryError),
}

fn ended(endpoint: &str, why: &str) -> DirectoryError {
    DirectoryError::Watch { endpoint: endpoint.into(), why: why.into() }
}

/// Returns whether the view is a part of the history of the etcd that answers: not if it is another one, or was
/// restored from an older copy. The question is answered only if a majority of the members is there.
async fn is_same_history(
    shared: &Shared,
    calls: &mut Client,
    endpoint: &str,
) -> Result<bool, DirectoryError> {
    let options = GetOptions::new().with_prefix().with_count_only();
    let answer = in_time(endpoint, &format!("reading {PREFIX}"), calls.get(PREFIX, Some(options))).await?;
    let Some(header) = answer.header() else { return Ok(false) };
    Ok(shared.view().is_of(shared.cluster(), header.cluster_id(), header.revision()))
}

/// Reads everything, as of one revision.
async fn read_all(shared: &Shared, calls: &mut Client, endpoint: &str) -> Result<(), DirectoryError> {
    let what = format!("reading {PREFIX}");
    let end = prefix_end();
    let (mut from, mut revision, mut cluster) = (PREFIX.as_bytes().to_vec(), 0, None);
    let mut all: Vec<KeyValue> = Vec::new();
    loop {
        let options = GetOptions::new().with_range(end.clone()).with_limit(PAGE_KEYS).with_revision(revision);
        let mut page = in_time(endpoint, &what, calls.get(from.clone(), Some(options))).await?;
        if revision == 0 {
            revision = page.header().map_or(0, ResponseHeader::revision);
            cluster = page.header().map(ResponseHeader::cluster_id);
        }
        let is_full = page.kvs().len() as i64 == PAGE_KEYS;
        all.append(&mut page.take_kvs());
        match all.last() {
            Some(last) if is_full => from = [last.key(), &[0]].concat(),
            _ => break,
        }
    }
    let at = Instant::now();
    tracing::debug!(endpoint, keys = all.len(), revision, "the directory was read");
    let mut view = shared.lock_view();
    let is_same = cluster.is_some_and(|cluster| view.is_of(shared.cluster(), cluster, revision));
    let is_other = view.revision > 0 && !is_same;
    Arc::make_mut(&mut view).replace(all.iter().filter_map(|kv| found(kv, at)), revision, at);
    // Do this before the view is unlocked, so that no reader sees one without the other.
    shared.read(at, cluster, is_other);
    Ok(())
}

/// Returns what was found; none for a key that is no text.
fn found(kv: &KeyValue, at: Instant) -> Option<Found<'_>> {
    let stamp = Stamp { created: kv.create_revision(), revision: kv.mod_revision(), lease: kv.lease(), at };
    Some(Found { key: kv.key_str().ok()?, value: kv.value(), stamp })
}

/// Returns the first key after all keys of the directory.
fn prefix_end() -> Vec<u8> {
    let mut end = PREFIX.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}
