//! Changes that a caller waits for.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Instant;

use etcd_client::{Client, ResponseHeader};

use crate::connect::in_time;
use crate::status::Shared;
use crate::transaction::All;
use haversack_directory::{Change, DirectoryError, Write};

/// Calls that wait; more are refused.
pub(crate) const MOST_CALLS: usize = 64;

/// A change, and who waits for it.
pub(crate) struct Call {
    pub change: Change,
    /// Receives the revision of the change. The channel has room for it, so sending never blocks.
    pub answer: SyncSender<Result<i64, DirectoryError>>,
}

impl Call {
    /// Answers without trying.
    pub fn refuse(self, shared: &Shared) {
        shared.count_failed_call();
        let why = shared.why_away().unwrap_or_else(|| "the connection was just lost".into());
        // The caller may have given up waiting.
        let _ = self.answer.try_send(Err(DirectoryError::Away { why }));
    }

    /// Carries the call out and answers. Returns an error if the connection is of no use any more.
    pub async fn carry_out(
        self,
        shared: &Shared,
        calls: &mut Client,
        endpoint: &str,
    ) -> Result<(), DirectoryError> {
        let Call { change, answer } = self;
        let result = make(shared, calls, endpoint, change).await;
        shared.count_writes(usize::from(result.is_ok()));
        let lost = match &result {
            Err(error) if error.ends_session() => Some(error.to_string()),
            _ => None,
        };
        if result.is_err() {
            shared.count_failed_call();
        }
        let _ = answer.try_send(result);
        match lost {
            None => Ok(()),
            Some(why) => {
                let what = "a call".into();
                Err(DirectoryError::Call { endpoint: endpoint.into(), what, why, is_connection: true })
            }
        }
    }
}

async fn make(
    shared: &Shared,
    calls: &mut Client,
    endpoint: &str,
    change: Change,
) -> Result<i64, DirectoryError> {
    let Change { writes, conditions, is_leased } = change;
    let lease = shared.lease().filter(|_| is_leased).map_or(0, |lease| lease.id);
    let writes: Vec<_> = writes.into_iter().map(|write| write.with_lease(lease)).collect();
    let Some(first) = writes.first() else { return Ok(0) };
    let (all, txn) = All::new(&writes, &conditions);
    let answer = in_time(endpoint, &first.to_string(), calls.txn(txn)).await?;
    if !answer.succeeded() {
        let key = all.refused(&answer).unwrap_or(&first.key).clone();
        return Err(DirectoryError::Changed { key });
    }
    let revision = answer.header().map_or(0, ResponseHeader::revision);
    note(shared, &writes, revision);
    Ok(revision)
}

/// Applies a change to the view immediately, so that the caller sees it. The watch reports it again.
fn note(shared: &Shared, writes: &[Write], revision: i64) {
    let at = Instant::now();
    let mut view = shared.lock_view();
    let view = Arc::make_mut(&mut view);
    writes.iter().for_each(|write| view.note(write, revision, at));
}
