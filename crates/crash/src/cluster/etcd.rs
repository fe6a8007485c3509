//! A model of etcd: keys with revisions and leases, transactions, and a history that watches read and that can be
//! compacted.
//!
//! It can be without a quorum, and it can be replaced by an empty one.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

use haversack_directory::{Condition, Key, Stamp, Value, Write};
use haversack_model::Micros;

/// A key's value, and where it stands in the history.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The decoded value, which all readers share.
    pub value: Rc<Value>,
    pub created: i64,
    pub revision: i64,
    pub lease: i64,
}

impl Kept {
    /// Returns where it stands for a host that hears of it at that time.
    pub fn stamp(&self, at: Instant) -> Stamp {
        Stamp { created: self.created, revision: self.revision, lease: self.lease, at }
    }
}

/// A change of a key.
#[derive(Clone, Debug)]
pub struct Event {
    pub revision: i64,
    pub at: Micros,
    pub key: Key,
    /// None if it was deleted.
    pub kept: Option<Kept>,
}

/// A change, for the judge.
#[derive(Debug)]
pub struct Applied {
    /// Which host has made it; none if a lease has ended.
    pub by: Option<usize>,
    pub key: Key,
    pub before: Option<Kept>,
    pub after: Option<Kept>,
    /// The value of the leader's key when it was made.
    pub leader: Option<Rc<Value>>,
}

/// See the module documentation.
pub struct Etcd {
    /// It is another one after its data were lost.
    pub cluster: u64,
    pub revision: i64,
    keys: BTreeMap<Key, Kept>,
    history: Vec<Event>,
    compacted: i64,
    /// Until when leases last.
    leases: BTreeMap<i64, Micros>,
    leases_granted: i64,
    /// It has no quorum until then.
    pub away_until: Micros,
    /// Changes that the judge has not seen.
    pub applied: Vec<Applied>,
}

impl Default for Etcd {
    fn default() -> Etcd {
        Etcd {
            cluster: 1,
            revision: 1,
            keys: BTreeMap::new(),
            history: Vec::new(),
            compacted: 0,
            leases: BTreeMap::new(),
            leases_granted: 0,
            away_until: 0,
            applied: Vec::new(),
        }
    }
}

impl Etcd {
    /// Whether it answers.
    pub fn answers(&self, now: Micros) -> bool {
        now >= self.away_until
    }

    /// Ends leases that nobody has kept. Leases last on while there is no quorum, and start over when it is back.
    pub fn tick(&mut self, now: Micros, lease_us: Micros) {
        if !self.answers(now) {
            self.leases.values_mut().for_each(|until| *until = now + lease_us);
            return;
        }
        let ended: Vec<i64> =
            self.leases.iter().filter(|(_, until)| **until <= now).map(|(id, _)| *id).collect();
        ended.into_iter().for_each(|id| self.revoke(id, now, None));
    }

    /// Grants a lease.
    pub fn grant(&mut self, until: Micros) -> i64 {
        self.leases_granted += 1;
        let id = self.cluster as i64 * 1_000_000 + self.leases_granted;
        self.leases.insert(id, until);
        id
    }

    /// Prolongs a lease. Returns false if it has ended.
    pub fn keep(&mut self, id: i64, until: Micros) -> bool {
        self.leases.get_mut(&id).map(|lease| *lease = until).is_some()
    }

    /// Ends a lease, and deletes its keys.
    pub fn revoke(&mut self, id: i64, now: Micros, by: Option<usize>) {
        if self.leases.remove(&id).is_none() {
            return;
        }
        let keys: Vec<Key> =
            self.keys.iter().filter(|(_, kept)| kept.lease == id).map(|(key, _)| key.clone()).collect();
        if !keys.is_empty() {
            self.revision += 1;
            keys.into_iter().for_each(|key| self.set(key, None, 0, now, by));
        }
    }

    /// Returns what a key has.
    pub fn get(&self, key: &Key) -> Option<&Kept> {
        self.keys.get(key)
    }

    /// Returns all keys.
    pub fn all(&self) -> impl Iterator<Item = (&Key, &Kept)> {
        self.keys.iter()
    }

    fn holds(&self, condition: &Condition) -> bool {
        let kept = self.keys.get(&condition.key);
        condition.holds(kept.map_or(0, |kept| kept.created), kept.map_or(0, |kept| kept.revision))
    }

    /// Carries out each write whose key is as expected. Returns how many were refused.
    pub fn each(&mut self, writes: Vec<Write>, now: Micros, by: usize) -> usize {
        self.revision += 1;
        let mut refused = 0;
        for write in writes {
            if write.condition().is_none_or(|condition| self.holds(&condition)) && self.has_lease(&write) {
                self.set(write.key, write.value, write.lease, now, Some(by));
            } else {
                refused += 1;
            }
        }
        refused
    }

    /// Carries out all writes, or none.
    ///
    /// # Errors
    /// The first key that is not as it must be.
    pub fn all_or_none(
        &mut self,
        writes: &[Write],
        conditions: &[Condition],
        now: Micros,
        by: usize,
    ) -> Result<i64, Key> {
        let expected = writes.iter().filter_map(Write::condition).chain(conditions.iter().cloned());
        if let Some(condition) = expected.into_iter().find(|condition| !self.holds(condition)) {
            return Err(condition.key);
        }
        if let Some(write) = writes.iter().find(|write| !self.has_lease(write)) {
            return Err(write.key.clone());
        }
        self.revision += 1;
        for write in writes.iter().cloned() {
            self.set(write.key, write.value, write.lease, now, Some(by));
        }
        Ok(self.revision)
    }

    fn has_lease(&self, write: &Write) -> bool {
        write.lease == 0 || self.leases.contains_key(&write.lease)
    }

    fn set(&mut self, key: Key, value: Option<Vec<u8>>, lease: i64, at: Micros, by: Option<usize>) {
        let before = self.keys.remove(&key);
        let revision = self.revision;
        let created = before.as_ref().map_or(revision, |before| before.created);
        let after = value.map(|value| {
            let value = Value::read(&key, &value);
            assert!(!matches!(value, Value::Unreadable(_)), "{key:?}: {value:?}");
            Kept { value: Rc::new(value), created, revision, lease }
        });
        if before.is_none() && after.is_none() {
            return;
        }
        if let Some(after) = &after {
            self.keys.insert(key.clone(), after.clone());
        }
        let leader = self.keys.get(&Key::Leader).map(|kept| kept.value.clone());
        self.history.push(Event { revision, at, key: key.clone(), kept: after.clone() });
        self.applied.push(Applied { by, key, before, after, leader });
    }

    /// Returns what has happened since a revision, that included; none if it was compacted.
    pub fn since(&self, revision: i64) -> Option<&[Event]> {
        let from = self.history.partition_point(|event| event.revision < revision);
        (revision >= self.compacted).then(|| &self.history[from..])
    }

    /// Forgets its history.
    pub fn compact(&mut self) {
        self.compacted = self.revision;
        self.history.clear();
    }

    /// It is replaced by an empty one.
    pub fn lose(&mut self) {
        let (cluster, applied) = (self.cluster + 1, std::mem::take(&mut self.applied));
        *self = Etcd { cluster, applied, ..Etcd::default() };
    }
}
