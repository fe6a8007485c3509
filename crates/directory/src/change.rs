//! Changes whose result a caller needs: what they write, and on what they depend. They are carried out by etcd,
//! and in the crash simulator by a model of it.
//!
//! Invariants
//! - A move begins only if the disk still has the owner and epoch that the mover has seen, and the directory has no
//!   intent for another move of the disk. The daemon that began a move may begin the same move again.
//! - Under a [`Leadership`], nothing is changed once another host has become the leader.
//! - An intent is removed only if it is still the one that was seen: a later one stays.

use crate::bugs::{Bug, planted};
use crate::error::DirectoryError;
use crate::key::Key;
use crate::leadership::Leadership;
use crate::record::{
    BalanceRecord, DiskRecord, DrainRecord, IntentRecord, LeaderRecord, TenantRecord, encode,
};
use crate::view::{Seen, View};
use crate::write::{At, Condition, MOST_WRITES, Write};

/// Writes that are made together or not at all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// What is written.
    pub writes: Vec<Write>,
    /// What must hold, besides what the writes expect.
    pub conditions: Vec<Condition>,
    /// The written keys are bound to this host's lease.
    pub is_leased: bool,
}

impl Change {
    /// Makes a change that depends only on what its write expects.
    pub fn of(write: Write) -> Change {
        Change { writes: vec![write], conditions: Vec::new(), is_leased: false }
    }

    /// Begins a move.
    ///
    /// # Errors
    /// [`DirectoryError::Changed`]: the disk is not where the intent says, as far as the view shows.
    pub fn begin_move(
        view: &View,
        disk: &str,
        intent: &IntentRecord,
        leadership: Option<Leadership>,
    ) -> Result<Change, DirectoryError> {
        let owned = Key::Disk(disk.into());
        let is_same = |entry: &&Seen<DiskRecord>| {
            entry.record.host == intent.from && entry.record.epoch == intent.epoch
        };
        let Some(entry) = view.disks.get(disk).filter(is_same) else {
            return Err(DirectoryError::Changed { key: owned });
        };
        let is_owned = Condition { key: owned, at: At::Changed(entry.revision) };
        let leads = leadership.filter(|_| !planted(Bug::LeadForEver)).map(Leadership::condition);
        let mine = view.intents.get(disk).filter(|seen| seen.record.is_same_move(intent));
        // Etcd decides whether another daemon's intent is there: the view may still have one that was just removed.
        let write =
            Write::put(Key::Intent(disk.into()), encode(intent)).if_at(mine.map_or(0, |seen| seen.revision));
        Ok(Change { conditions: leads.into_iter().chain([is_owned]).collect(), ..Change::of(write) })
    }

    /// Returns the change that removes this intent; none if the view does not have the intent.
    pub fn end_move(view: &View, disk: &str, intent: &IntentRecord) -> Option<Change> {
        let key = Key::Intent(disk.into());
        if planted(Bug::EndAnyMove) {
            return Some(Change::of(Write::delete(key)));
        }
        let seen = view.intents.get(disk).filter(|seen| seen.record == *intent)?;
        Some(Change::of(Write::delete(key).if_at(seen.revision)))
    }

    /// Stores what the host that balances has observed.
    pub fn balance(leadership: Leadership, record: &BalanceRecord) -> Change {
        let conditions = vec![leadership.condition()];
        Change { conditions, ..Change::of(Write::put(Key::Balance, encode(record))) }
    }

    /// Marks a host as draining, or removes the mark.
    pub fn drain(host: &str, drain: Option<&DrainRecord>) -> Change {
        let key = Key::Drain(host.into());
        Change::of(match drain {
            Some(drain) => Write::put(key, encode(drain)),
            None => Write::delete(key),
        })
    }

    /// Sets a tenant, or removes it.
    pub fn tenant(name: &str, tenant: Option<&TenantRecord>) -> Change {
        let key = Key::Tenant(name.into());
        Change::of(match tenant {
            Some(tenant) => Write::put(key, encode(tenant)),
            None => Write::delete(key),
        })
    }

    /// Removes what the directory has of a permanently dead host. Nothing is removed if it is alive again, nor anything
    /// that others have changed since.
    ///
    /// # Errors
    /// [`DirectoryError::Changed`] of the host's key: it is alive, as far as the view shows.
    pub fn forget_host(view: &View, host: &str) -> Result<Vec<Change>, DirectoryError> {
        let key = Key::Host(host.into());
        if view.hosts.contains_key(host) {
            return Err(DirectoryError::Changed { key });
        }
        let writes: Vec<Write> =
            view.entries_of(host).map(|(key, at)| Write::delete(key).if_at(at)).collect();
        let is_gone = Condition { key, at: At::Changed(0) };
        let change = |writes: &[Write]| Change {
            writes: writes.to_vec(),
            conditions: vec![is_gone.clone()],
            is_leased: false,
        };
        Ok(writes.chunks(MOST_WRITES).map(change).collect())
    }
}

/// Whether a host balances.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Lead {
    /// It does.
    Is(Leadership),
    /// Another host does.
    Other,
    /// No host does: this change makes it the one, from the revision at which it is made.
    Ask(Change),
}

impl Lead {
    /// Returns whether a host balances that has this lease.
    pub fn of(view: &View, name: &str, instance: u64, lease: i64) -> Lead {
        match &view.leader {
            Some(leader) if leader.record.instance == instance && leader.lease == lease => {
                Lead::Is(Leadership { created: leader.created })
            }
            Some(_) => Lead::Other,
            None => {
                let record = LeaderRecord { host: name.into(), instance };
                let write = Write::put(Key::Leader, encode(&record)).if_at(0);
                Lead::Ask(Change { is_leased: true, ..Change::of(write) })
            }
        }
    }
}
