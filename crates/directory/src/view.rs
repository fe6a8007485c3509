//! A host's local copy of the directory.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use crate::key::Key;
use crate::record::{
    BalanceRecord, DiskRecord, DrainRecord, HostRecord, IntentRecord, LeaderRecord, Owner, PoolRecord,
    TenantRecord,
};
use crate::value::{Unread, Value};
use crate::write::Write;

/// A record, and where it stands in etcd's history.
#[derive(Clone, PartialEq, Debug)]
pub struct Seen<T> {
    /// The record.
    pub record: T,
    /// The revision at which its key was created.
    pub created: i64,
    /// The revision of its last change.
    pub revision: i64,
    /// The lease that it depends on; 0 for none.
    pub lease: i64,
    /// When this host heard of that change, by its monotonic clock.
    pub at: Instant,
}

/// A value that this daemon cannot read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unreadable {
    /// Why.
    pub why: String,
    /// The revision of its last change.
    pub(crate) revision: i64,
    /// Who has the disk, if it is an entry of a disk that says at least that.
    pub(crate) owner: Option<Owner>,
}

/// What the directory contained when this host heard of it last. It does not say how long ago
/// that was.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct View {
    /// Etcd's revision up to which every change is included.
    pub revision: i64,
    /// The hosts that are alive.
    pub hosts: BTreeMap<String, Seen<HostRecord>>,
    /// When hosts disappeared that this host has seen alive.
    pub gone: BTreeMap<String, Instant>,
    /// The pools, by host and name.
    pub pools: BTreeMap<(String, String), Seen<PoolRecord>>,
    /// The disks, by identity.
    pub disks: BTreeMap<String, Seen<DiskRecord>>,
    /// The moves that are planned or under way, by the disk's identity.
    pub intents: BTreeMap<String, Seen<IntentRecord>>,
    /// The hosts that are draining.
    pub drains: BTreeMap<String, Seen<DrainRecord>>,
    /// The tenants.
    pub tenants: BTreeMap<String, Seen<TenantRecord>>,
    /// The host that balances.
    pub leader: Option<Seen<LeaderRecord>>,
    /// What that host, or the one before it, has observed.
    pub balance: Option<Seen<BalanceRecord>>,
    /// Keys with values that this daemon cannot read.
    pub unreadable: BTreeMap<Key, Unreadable>,
    /// Keys that this host has deleted, and at which revisions, until the watch has reported the deletions.
    deleted: BTreeMap<Key, i64>,
}

impl View {
    /// Returns the hosts that have pools or disks in the directory, or are draining, and are not alive.
    pub fn away(&self) -> BTreeSet<&str> {
        let of_pools = self.pools.keys().map(|(host, _)| host);
        let of_disks = self.disks.values().map(|disk| &disk.record.host);
        let known = of_pools.chain(of_disks).chain(self.drains.keys());
        known.filter(|host| !self.hosts.contains_key(*host)).map(String::as_str).collect()
    }

    /// Returns the keys of a host that do not expire with its lease, and their revisions: its pools, the disks that it
    /// owns, and its mark as draining.
    pub(crate) fn entries_of<'a>(&'a self, host: &'a str) -> impl Iterator<Item = (Key, i64)> {
        let pools = self.pools_of(host).map(|((host, pool), seen)| {
            (Key::Pool { host: host.clone(), pool: pool.clone() }, seen.revision)
        });
        let disks = self.disks.iter().filter(move |(_, seen)| seen.record.host == host);
        let disks = disks.map(|(id, seen)| (Key::Disk(id.clone()), seen.revision));
        let drain =
            self.drains.get_key_value(host).map(|(host, seen)| (Key::Drain(host.clone()), seen.revision));
        let unreadable = self.unreadable.iter().filter(move |(key, one)| match key {
            Key::Pool { host: of, .. } | Key::Drain(of) => of == host,
            _ => one.owner.as_ref().is_some_and(|owner| owner.host == host),
        });
        let unreadable = unreadable.map(|(key, one)| (key.clone(), one.revision));
        pools.chain(disks).chain(drain).chain(unreadable)
    }

    /// Returns the pools of a host.
    pub fn pools_of<'a>(
        &'a self,
        host: &'a str,
    ) -> impl Iterator<Item = (&'a (String, String), &'a Seen<PoolRecord>)> {
        let first = (host.to_string(), String::new());
        self.pools.range(first..).take_while(move |((of, _), _)| of == host)
    }

    /// Returns the host that had a disk when the disk's entry was written, and its epoch. That can be read from entries
    /// of later versions, too.
    pub fn owner_of(&self, disk: &str) -> Option<(&str, u64)> {
        if let Some(seen) = self.disks.get(disk) {
            return Some((&seen.record.host, seen.record.epoch));
        }
        let owner = self.unreadable.get(&Key::Disk(disk.into()))?.owner.as_ref()?;
        Some((&owner.host, owner.epoch))
    }

    /// Returns the disks of a name, with their identities.
    pub fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a String, &'a Seen<DiskRecord>)> {
        self.disks.iter().filter(move |(_, disk)| disk.record.name == name)
    }

    /// Returns what delays or ends a move, by the entries of its disk and of the host that has begun it.
    pub fn progress(&self, disk: &str, intent: &IntentRecord) -> Progress {
        match self.disks.get(disk).map(|disk| &disk.record) {
            Some(disk) if disk.host == intent.to && disk.epoch > intent.epoch => Progress::Arrived,
            Some(disk) if disk.host != intent.from || disk.epoch != intent.epoch => Progress::Elsewhere,
            Some(disk) if disk.moving_to.as_ref() == Some(&intent.to) => Progress::Sending,
            None => Progress::Elsewhere,
            Some(_) => {
                let driver = self.hosts.get(&intent.by).map(|host| host.record.instance);
                if driver == Some(intent.instance) { Progress::Planned } else { Progress::Abandoned }
            }
        }
    }

    /// Returns the revision of a host's entry if another daemon with the same name wrote it.
    pub fn other_daemon(&self, name: &str, instance: u64) -> Option<i64> {
        let entry = self.hosts.get(name).filter(|host| host.record.instance != instance);
        entry.map(|host| host.revision)
    }

    /// Returns whether this view belongs to the history of an etcd at this revision: not if the etcd is another one
    /// than the `known` one, or was restored from an older copy.
    pub fn is_of(&self, known: Option<u64>, cluster: u64, revision: i64) -> bool {
        known == Some(cluster) && self.revision > 0 && self.revision <= revision
    }

    /// Applies the present state of a key. A state older than the known one is ignored.
    pub fn put(&mut self, found: &Found) {
        if let Some(key) = Key::parse(found.key) {
            self.set(&key, found.value, found.stamp);
        }
    }

    /// Applies a change that this host has made itself. Older changes that the watch still reports are ignored.
    pub fn note(&mut self, write: &Write, revision: i64, at: Instant) {
        let key = &write.key;
        match &write.value {
            Some(value) => self.set(key, value, self.stamp_of(write, revision, at)),
            None => {
                self.deleted.insert(key.clone(), revision);
                self.delete_key(key, revision, at);
            }
        }
    }

    /// Does the same as [`View::note`] for a write that sets a value, which is already decoded.
    pub fn note_value(&mut self, write: &Write, value: &Value, revision: i64, at: Instant) {
        self.put_value(&write.key, value, self.stamp_of(write, revision, at));
    }

    fn stamp_of(&self, write: &Write, revision: i64, at: Instant) -> Stamp {
        let created = self.created(&write.key).unwrap_or(revision);
        Stamp { created, revision, lease: write.lease, at }
    }

    /// Records that all changes up to a revision have been applied.
    pub fn reached(&mut self, revision: i64) {
        self.revision = self.revision.max(revision);
        let reached = self.revision;
        self.deleted.retain(|_, deleted| *deleted > reached);
    }

    fn created(&self, key: &Key) -> Option<i64> {
        match key {
            Key::Leader => self.leader.as_ref().map(|seen| seen.created),
            Key::Disk(id) => self.disks.get(id).map(|seen| seen.created),
            _ => None,
        }
    }

    /// Does the same as [`View::put`] with a value that is already decoded.
    pub fn put_value(&mut self, key: &Key, value: &Value, stamp: Stamp) {
        if self.is_later(key, stamp) {
            self.store(key, value.clone(), stamp);
        }
    }

    fn set(&mut self, key: &Key, value: &[u8], stamp: Stamp) {
        if self.is_later(key, stamp) {
            self.store(key, Value::read(key, value), stamp);
        }
    }

    fn is_later(&self, key: &Key, stamp: Stamp) -> bool {
        let deleted = self.deleted.get(key).copied().unwrap_or_default();
        self.revision_of(key).max(deleted) < stamp.revision
    }

    fn store(&mut self, key: &Key, value: Value, stamp: Stamp) {
        match (key, value) {
            (Key::Host(name), Value::Host(record)) => {
                self.gone.remove(name);
                self.hosts.insert(name.clone(), stamp.seen(record));
            }
            (Key::Pool { host, pool }, Value::Pool(record)) => {
                self.pools.insert((host.clone(), pool.clone()), stamp.seen(record));
            }
            (Key::Disk(id), Value::Disk(record)) => keep(&mut self.disks, id, stamp.seen(*record)),
            (Key::Intent(id), Value::Intent(record)) => keep(&mut self.intents, id, stamp.seen(record)),
            (Key::Drain(name), Value::Drain(record)) => keep(&mut self.drains, name, stamp.seen(record)),
            (Key::Tenant(name), Value::Tenant(record)) => keep(&mut self.tenants, name, stamp.seen(record)),
            (Key::Leader, Value::Leader(record)) => self.leader = Some(stamp.seen(record)),
            (Key::Balance, Value::Balance(record)) => self.balance = Some(stamp.seen(record)),
            (_, Value::Unreadable(unread)) => return self.store_unread(key, unread, stamp),
            (_, other) => {
                let why = format!("the value is of a different kind than its key: {other:?}");
                return self.store_unread(key, Unread { why, owner: None }, stamp);
            }
        }
        self.unreadable.remove(key);
    }

    fn store_unread(&mut self, key: &Key, unread: Unread, stamp: Stamp) {
        self.forget(key, stamp.at);
        let Unread { why, owner } = unread;
        self.unreadable.insert(key.clone(), Unreadable { why, revision: stamp.revision, owner });
    }

    /// Removes a key that was deleted at a revision.
    pub fn delete(&mut self, text: &str, revision: i64, at: Instant) {
        if let Some(key) = Key::parse(text) {
            self.delete_key(&key, revision, at);
        }
    }

    /// Removes a key that was deleted at a revision.
    pub fn delete_key(&mut self, key: &Key, revision: i64, at: Instant) {
        if self.revision_of(key) < revision {
            self.unreadable.remove(key);
            self.forget(key, at);
        }
    }

    fn forget(&mut self, key: &Key, at: Instant) {
        match key {
            Key::Host(name) => {
                if self.hosts.remove(name).is_some() {
                    self.gone.insert(name.clone(), at);
                }
            }
            Key::Pool { host, pool } => forget(&mut self.pools, &(host.clone(), pool.clone())),
            Key::Disk(id) => forget(&mut self.disks, id),
            Key::Intent(id) => forget(&mut self.intents, id),
            Key::Drain(name) => forget(&mut self.drains, name),
            Key::Tenant(name) => forget(&mut self.tenants, name),
            Key::Leader => self.leader = None,
            Key::Balance => self.balance = None,
        }
    }

    /// Returns the revision of a key's last change; 0 if there is none.
    pub fn revision_of(&self, key: &Key) -> i64 {
        if let Some(unreadable) = self.unreadable.get(key) {
            return unreadable.revision;
        }
        match key {
            Key::Host(name) => revision(self.hosts.get(name)),
            Key::Pool { host, pool } => revision(self.pools.get(&(host.clone(), pool.clone()))),
            Key::Disk(id) => revision(self.disks.get(id)),
            Key::Intent(id) => revision(self.intents.get(id)),
            Key::Drain(name) => revision(self.drains.get(name)),
            Key::Tenant(name) => revision(self.tenants.get(name)),
            Key::Leader => revision(self.leader.as_ref()),
            Key::Balance => revision(self.balance.as_ref()),
        }
    }

    /// Replaces everything by what was read at a revision. Unchanged entries keep the time of their last change.
    pub fn replace<'a>(&mut self, all: impl IntoIterator<Item = Found<'a>>, revision: i64, at: Instant) {
        let mut new = View::default();
        all.into_iter().for_each(|found| new.put(&found));
        self.become_of(new, revision, at);
    }

    /// Does the same as [`View::replace`] with values that are already decoded.
    pub fn replace_values<'a>(
        &mut self,
        all: impl IntoIterator<Item = (&'a Key, &'a Value, Stamp)>,
        revision: i64,
        at: Instant,
    ) {
        let mut new = View::default();
        all.into_iter().for_each(|(key, value, stamp)| new.put_value(key, value, stamp));
        self.become_of(new, revision, at);
    }

    /// Becomes another view, which has everything that there is at a revision.
    fn become_of(&mut self, new: View, revision: i64, at: Instant) {
        let mut new = View { revision, gone: std::mem::take(&mut self.gone), ..new };
        new.gone.retain(|name, _| !new.hosts.contains_key(name));
        for name in self.hosts.keys().filter(|name| !new.hosts.contains_key(*name)) {
            new.gone.insert(name.clone(), at);
        }
        keep_times(&mut new.hosts, &self.hosts);
        keep_times(&mut new.pools, &self.pools);
        keep_times(&mut new.disks, &self.disks);
        keep_times(&mut new.intents, &self.intents);
        keep_times(&mut new.drains, &self.drains);
        keep_times(&mut new.tenants, &self.tenants);
        *self = new;
    }
}

/// The progress of a move, see [`View::progress`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Nothing is sent yet.
    Planned,
    /// The disk's cache is being sent.
    Sending,
    /// The disk has arrived: the intent can be removed.
    Arrived,
    /// Another host has the disk, or it was forgotten: the intent can be removed.
    Elsewhere,
    /// Nothing is sent, and whoever has begun the move is gone: the intent can be removed.
    Abandoned,
}

impl Progress {
    /// Returns whether the intent is obsolete.
    pub fn is_over(self) -> bool {
        matches!(self, Progress::Arrived | Progress::Elsewhere | Progress::Abandoned)
    }
}

fn revision<T>(seen: Option<&Seen<T>>) -> i64 {
    seen.map_or(0, |seen| seen.revision)
}

/// A key and its value as they are in etcd.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// The key.
    pub key: &'a str,
    /// The value.
    pub value: &'a [u8],
    /// Where it stands.
    pub stamp: Stamp,
}

/// Where a value stands in etcd's history, see [`Seen`].
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    /// The revision at which its key was created.
    pub created: i64,
    /// The revision of its last change.
    pub revision: i64,
    /// The lease that it depends on; 0 for none.
    pub lease: i64,
    /// When this host heard of that change.
    pub at: Instant,
}

impl Stamp {
    fn seen<T>(self, record: T) -> Seen<T> {
        let Stamp { created, revision, lease, at } = self;
        Seen { record, created, revision, lease, at }
    }
}

fn keep<T>(map: &mut BTreeMap<String, T>, key: &str, value: T) {
    map.insert(key.to_string(), value);
}

fn forget<K: Ord + std::borrow::Borrow<Q>, Q: Ord + ?Sized, T>(map: &mut BTreeMap<K, T>, key: &Q) {
    map.remove(key);
}

fn keep_times<K: Ord, T>(new: &mut BTreeMap<K, Seen<T>>, old: &BTreeMap<K, Seen<T>>) {
    for (key, seen) in new {
        if let Some(before) = old.get(key).filter(|before| before.revision == seen.revision) {
            seen.at = before.at;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a disk's record.
    pub fn disk(host: &str, epoch: u64) -> DiskRecord {
        DiskRecord {
            name: "vm1".into(),
            vm: None,
            tenant: None,
            host: host.into(),
            epoch,
            pool: "fast".into(),
            state: "attached".into(),
            can_move: true,
            vm_needs: crate::VmNeeds::default(),
            size_bytes: 1 << 30,
            demand_bytes: 1 << 20,
            usage_bytes: 1 << 20,
            dirty_bytes: 0,
            clients: 1,
            moving_to: None,
            replica_at: None,
            is_replicated: false,
            load: crate::Load::default(),
            worth: crate::Worth::default(),
        }
    }

    /// Returns what was seen of a record.
    pub fn seen_at<T>(record: T, revision: i64) -> Seen<T> {
        Seen { record, created: revision, revision, lease: 0, at: Instant::now() }
    }

    fn host(instance: u64) -> HostRecord {
        HostRecord {
            instance,
            reports: 1,
            report_every_s: 1.0,
            software: "0".into(),
            reaches: BTreeSet::new(),
            moves_disks: true,
            link_bytes_per_s: None,
            memory_bytes: None,
            processors: None,
            lends: None,
            borrows: None,
        }
    }

    fn intent() -> IntentRecord {
        IntentRecord {
            name: "vm1".into(),
            from: "alpha".into(),
            epoch: 3,
            to: "beta".into(),
            by: "gamma".into(),
            instance: 7,
            reason: "test".into(),
            is_ordered: false,
            most_ms: None,
        }
    }

    #[test]
    fn a_move_is_judged_by_the_owners_entry() {
        let progress = |disk: Option<DiskRecord>, driver: Option<u64>| {
            let mut view = View::default();
            view.disks.extend(disk.map(|disk| ("id".into(), seen_at(disk, 1))));
            view.hosts.extend(driver.map(|instance| ("gamma".into(), seen_at(host(instance), 1))));
            view.progress("id", &intent())
        };
        assert_eq!(progress(Some(disk("alpha", 3)), Some(7)), Progress::Planned);
        assert_eq!(progress(Some(disk("alpha", 3)), Some(8)), Progress::Abandoned);
        assert_eq!(progress(Some(disk("alpha", 3)), None), Progress::Abandoned);
        let sending = DiskRecord { moving_to: Some("beta".into()), ..disk("alpha", 3) };
        // The move is under way, although the daemon that began it is gone.
        assert_eq!(progress(Some(sending), None), Progress::Sending);
        assert_eq!(progress(Some(disk("beta", 4)), Some(7)), Progress::Arrived);
        assert_eq!(progress(Some(disk("delta", 4)), Some(7)), Progress::Elsewhere);
        assert_eq!(progress(Some(disk("alpha", 5)), Some(7)), Progress::Elsewhere);
        assert_eq!(progress(None, Some(7)), Progress::Elsewhere);
    }

    #[test]
    fn what_this_host_has_deleted_does_not_come_back_with_the_watch() {
        let mut view = View::default();
        let key = Key::Intent("id".into());
        let value = crate::record::encode(&intent());
        let stamp = |revision| Stamp { created: revision, revision, lease: 0, at: Instant::now() };
        view.note(&Write::put(key.clone(), value.clone()), 5, Instant::now());
        view.note(&Write::delete(key.clone()), 6, Instant::now());
        assert!(view.intents.is_empty());
        view.set(&key, &value, stamp(5));
        assert!(view.intents.is_empty());
        view.reached(5);
        view.set(&key, &value, stamp(5));
        assert!(view.intents.is_empty());
        // A later intent, from another host.
        view.set(&key, &value, stamp(7));
        assert!(view.intents.contains_key("id"));
        view.reached(7);
        assert!(view.deleted.is_empty());
    }

    #[test]
    fn a_change_is_noted_alike_whether_its_value_is_decoded_or_not() {
        let at = Instant::now();
        let key = Key::Intent("id".into());
        let write = Write::put(key.clone(), crate::record::encode(&intent())).with_lease(9);
        let mut views = [View::default(), View::default()];
        views[0].note(&write, 5, at);
        views[1].note_value(&write, &Value::Intent(intent()), 5, at);
        assert_eq!(views[0], views[1]);
        assert_eq!((views[1].intents["id"].revision, views[1].intents["id"].lease), (5, 9));
        // It is not newer than what is known.
        views[1].note_value(&write, &Value::Intent(IntentRecord { epoch: 4, ..intent() }), 5, at);
        assert_eq!(views[0], views[1]);
    }

    #[test]
    fn an_entry_of_a_later_version_says_who_had_the_disk() {
        let mut view = View::default();
        let mut put = |value: &str, revision| {
            let write = Write::put(Key::Disk("id".into()), value.into());
            view.note(&write, revision, Instant::now());
            view.owner_of("id").map(|(host, epoch)| (host.to_owned(), epoch))
        };
        let entry = String::from_utf8(crate::record::encode(&disk("alpha", 3))).unwrap();
        assert_eq!(put(&entry, 1), Some(("alpha".into(), 3)));
        assert_eq!(put(r#"{"version":9,"host":"beta","epoch":4}"#, 2), Some(("beta".into(), 4)));
        assert_eq!(put("nonsense", 3), None);
    }

    #[test]
    fn hosts_with_pools_or_disks_and_no_lease_are_away() {
        let mut view = View::default();
        view.disks.insert("id".into(), seen_at(disk("alpha", 3), 1));
        view.disks.insert("id2".into(), seen_at(disk("beta", 3), 1));
        view.hosts.insert("beta".into(), seen_at(host(1), 1));
        assert_eq!(view.away(), BTreeSet::from(["alpha"]));
        view.delete("/haversack/v1/hosts/beta", 2, Instant::now());
        assert_eq!(view.away(), BTreeSet::from(["alpha", "beta"]));
        assert!(view.gone.contains_key("beta"));
        // The disks stay with their owners.
        assert_eq!(view.disks["id2"].record.host, "beta");
        // A deletion that is older than what is known changes nothing.
        view.hosts.insert("beta".into(), seen_at(host(1), 5));
        view.delete("/haversack/v1/hosts/beta", 4, Instant::now());
        assert!(view.hosts.contains_key("beta"));
    }
}
