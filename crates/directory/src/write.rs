//! Writes, and the transactions that carry them out.

use std::fmt;

use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse, TxnResponse,
};

use crate::key::Key;

/// The most writes of a transaction: etcd takes 128 operations.
pub(crate) const MOST_WRITES: usize = 100;

/// A change of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Write {
    /// The key.
    pub key: Key,
    /// Its new value; none to delete it.
    pub value: Option<Vec<u8>>,
    /// The lease that it depends on; 0 for none.
    pub lease: i64,
    /// The revision of the key's last change that is expected, 0 for a key that must not exist; none if it does not matter.
    pub expected: Option<i64>,
}

impl Write {
    /// Sets a value.
    pub fn put(key: Key, value: Vec<u8>) -> Write {
        Write { key, value: Some(value), lease: 0, expected: None }
    }

    /// Deletes a key.
    pub fn delete(key: Key) -> Write {
        Write { key, value: None, lease: 0, expected: None }
    }

    /// Lets the key go with a lease.
    pub fn with_lease(self, lease: i64) -> Write {
        Write { lease, ..self }
    }

    /// Does nothing unless the key's last change was at a revision, 0 for a key that does not exist.
    pub fn if_at(self, revision: i64) -> Write {
        Write { expected: Some(revision), ..self }
    }

    fn condition(&self) -> Option<Condition> {
        let expected = self.expected?;
        Some(Condition { key: self.key.clone(), at: At::Changed(expected) })
    }

    fn operation(&self) -> TxnOp {
        let key = self.key.to_string();
        match &self.value {
            Some(value) => TxnOp::put(key, value.clone(), Some(PutOptions::new().with_lease(self.lease))),
            None => TxnOp::delete(key, None),
        }
    }

    /// Returns the write as an operation of a transaction: one of its own if it depends on what is there.
    fn nested(&self) -> TxnOp {
        match self.condition() {
            Some(condition) => {
                TxnOp::txn(Txn::new().when([condition.compare()]).and_then([self.operation()]))
            }
            None => self.operation(),
        }
    }
}

/// For messages and tests.
impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.value.is_some() { "put" } else { "delete" };
        write!(f, "{verb} {}", self.key)
    }
}

/// Returns a transaction in which each write is carried out if its own key is as expected, whatever becomes of the others.
pub(crate) fn each(writes: &[Write]) -> Txn {
    Txn::new().and_then(writes.iter().map(Write::nested).collect::<Vec<_>>())
}

/// What must be so for a change to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Condition {
    pub key: Key,
    pub at: At,
}

/// Where a key must stand in etcd's history; 0 if it must not exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum At {
    /// The revision of its last change.
    Changed(i64),
    /// The revision at which it was created.
    Created(i64),
}

impl Condition {
    fn compare(&self) -> Compare {
        let key = self.key.to_string();
        match self.at {
            At::Changed(revision) => Compare::mod_revision(key, CompareOp::Equal, revision),
            At::Created(revision) => Compare::create_revision(key, CompareOp::Equal, revision),
        }
    }

    fn holds(&self, kv: Option<&KeyValue>) -> bool {
        match self.at {
            At::Changed(revision) => kv.map_or(0, KeyValue::mod_revision) == revision,
            At::Created(revision) => kv.map_or(0, KeyValue::create_revision) == revision,
        }
    }
}

/// A transaction in which all writes are carried out, or none.
pub(crate) struct All {
    conditions: Vec<Condition>,
}

impl All {
    /// Returns the transaction. It depends on what the writes expect, and on more conditions.
    pub fn new(writes: &[Write], more: &[Condition]) -> (All, Txn) {
        let conditions: Vec<_> =
            writes.iter().filter_map(Write::condition).chain(more.iter().cloned()).collect();
        // If it is refused, what is there says why.
        let look = |condition: &Condition| {
            TxnOp::get(condition.key.to_string(), Some(GetOptions::new().with_keys_only()))
        };
        let txn = Txn::new()
            .when(conditions.iter().map(Condition::compare).collect::<Vec<_>>())
            .and_then(writes.iter().map(Write::operation).collect::<Vec<_>>())
            .or_else(conditions.iter().map(look).collect::<Vec<_>>());
        (All { conditions }, txn)
    }

    /// Returns the first key that was not as it must be.
    pub fn refused(&self, answer: &TxnResponse) -> Option<&Key> {
        let found = answer.op_responses();
        let fails = |(condition, found): &(&Condition, &TxnOpResponse)| match found {
            TxnOpResponse::Get(found) => !condition.holds(found.kvs().first()),
            _ => false,
        };
        self.conditions.iter().zip(&found).find(fails).map(|(condition, _)| &condition.key)
    }
}
