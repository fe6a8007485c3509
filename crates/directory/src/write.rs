//! Writes, and the conditions under which they are made. Without I/O.

use std::fmt;

use crate::key::Key;

/// The most writes of a transaction: etcd takes 128 operations.
pub const MOST_WRITES: usize = 100;

/// A change of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Write {
    /// The key.
    pub key: Key,
    /// Its new value; none to delete it.
    pub value: Option<Vec<u8>>,
    /// The lease that it depends on; 0 for none.
    pub lease: i64,
    /// The revision of the key's last change that is expected, 0 for a key that must not exist; none if it does not
    /// matter.
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

    /// Makes the key expire with a lease.
    pub fn with_lease(self, lease: i64) -> Write {
        Write { lease, ..self }
    }

    /// Does nothing unless the key's last change was at a revision, 0 for a key that does not exist.
    pub fn if_at(self, revision: i64) -> Write {
        Write { expected: Some(revision), ..self }
    }

    /// Returns what it expects of its key, if anything.
    pub fn condition(&self) -> Option<Condition> {
        let expected = self.expected?;
        Some(Condition { key: self.key.clone(), at: At::Changed(expected) })
    }
}

/// For messages and tests.
impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.value.is_some() { "put" } else { "delete" };
        write!(f, "{verb} {}", self.key)
    }
}

/// A condition under which a change is made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Condition {
    /// The key.
    pub key: Key,
    /// Where it must stand.
    pub at: At,
}

/// Where a key must stand in etcd's history; 0 if it must not exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// The revision of its last change.
    Changed(i64),
    /// The revision at which it was created.
    Created(i64),
}

impl Condition {
    /// Returns whether it holds of a key that was created and last changed at these revisions, 0 and 0 if it does not
    /// exist.
    pub fn holds(&self, created: i64, changed: i64) -> bool {
        match self.at {
            At::Changed(revision) => changed == revision,
            At::Created(revision) => created == revision,
        }
    }
}
