//! The lease that says that this host is alive.

use std::time::{Duration, Instant};

use etcd_client::{Client, LeaseKeepAliveStream, LeaseKeeper};

use crate::connect::in_time;
use haversack_directory::DirectoryError;

/// What is known of a lease. It outlives connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lease {
    /// Its number.
    pub id: i64,
    /// Until when etcd keeps it at least.
    pub valid_until: Instant,
}

impl Lease {
    pub fn is_valid(&self, now: Instant) -> bool {
        now < self.valid_until
    }
}

/// Keeps a lease alive over one connection.
pub(crate) struct Keeper {
    endpoint: String,
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
}

impl Keeper {
    /// Continues with a lease, or with a new one if there is none or etcd does not know it any more.
    pub async fn start(
        client: &mut Client,
        endpoint: &str,
        seconds: i64,
        before: Option<Lease>,
    ) -> Result<(Keeper, Lease), DirectoryError> {
        // A lease that should have expired may still exist if etcd was away as well. It can be used.
        if let Some(before) = before
            && let Some(kept) = Keeper::keep(client, endpoint, seconds, before.id).await?
        {
            return Ok(kept);
        }
        let granted = in_time(endpoint, "granting a lease", client.lease_grant(seconds, None)).await?;
        match Keeper::keep(client, endpoint, seconds, granted.id()).await? {
            Some(kept) => Ok(kept),
            None => Err(ended(endpoint)),
        }
    }

    /// Returns none if etcd does not know the lease.
    async fn keep(
        client: &mut Client,
        endpoint: &str,
        seconds: i64,
        id: i64,
    ) -> Result<Option<(Keeper, Lease)>, DirectoryError> {
        let sent = Instant::now();
        let keep = async {
            match client.lease_keep_alive(id).await {
                // The library returns this error for an answer that says that the lease has no time left.
                Err(etcd_client::Error::LeaseKeepAliveError(_)) => Ok(None),
                result => result.map(Some),
            }
        };
        let kept = in_time(endpoint, "keeping a lease", keep).await?;
        Ok(kept.map(|(keeper, answers)| {
            let keeper = Keeper { endpoint: endpoint.into(), keeper, answers };
            (keeper, lease(id, sent, seconds))
        }))
    }

    /// Prolongs the lease. Returns none if it has ended.
    pub async fn prolong(&mut self) -> Result<Option<Lease>, DirectoryError> {
        let sent = Instant::now();
        let (keeper, answers) = (&mut self.keeper, &mut self.answers);
        let prolong = async {
            keeper.keep_alive().await?;
            answers.message().await
        };
        match in_time(&self.endpoint, "keeping a lease", prolong).await? {
            Some(answer) if answer.ttl() > 0 => Ok(Some(lease(self.keeper.id(), sent, answer.ttl()))),
            Some(_) => Ok(None),
            None => Err(ended(&self.endpoint)),
        }
    }
}

/// Returns a lease that counts from when the request was sent: etcd counts from its arrival, which is never earlier.
fn lease(id: i64, sent: Instant, seconds: i64) -> Lease {
    Lease { id, valid_until: sent + Duration::from_secs(seconds.unsigned_abs()) }
}

fn ended(endpoint: &str) -> DirectoryError {
    DirectoryError::Call {
        endpoint: endpoint.into(),
        what: "keeping a lease".into(),
        why: "etcd ended the exchange".into(),
        is_connection: true,
    }
}
