//! What a host wants to have in the directory, and what it has to write for that.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::Config;
use crate::key::Key;
use crate::record::{DiskRecord, HostRecord, PoolRecord, encode};
use crate::view::View;
use crate::write::Write;

/// What a host wants to have in the directory.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// The host itself.
    pub host: HostRecord,
    /// Its open pools.
    pub pools: BTreeMap<String, PoolRecord>,
    /// Its pools that are not open: their entries, and those of their disks, stay as they are.
    pub closed_pools: BTreeSet<String>,
    /// The disks that it owns, by identity.
    pub disks: BTreeMap<String, DiskRecord>,
    /// Disks that it knows and does not own: it never removes their entries.
    pub other_disks: BTreeSet<String>,
}

/// A disk that this host owns and of which the directory says something else.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Conflict {
    /// The disk's name here.
    pub disk: String,
    /// The epoch here.
    pub epoch: u64,
    /// The host that the directory names.
    pub host: String,
    /// The epoch there.
    pub directory_epoch: u64,
}

/// What a report needs.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// What is to be written.
    pub writes: Vec<Write>,
    /// What is not written, since another host has a better claim.
    pub conflicts: Vec<Conflict>,
}

/// Returns what is to be written so that the directory, as far as it is known, says what a report says.
pub(crate) fn changes(report: &Report, view: &View, config: &Config, lease: i64) -> Changes {
    let mut changes = Changes::default();
    let me = &config.name;
    let is_new = view.hosts.get(me).is_none_or(|seen| seen.record != report.host || seen.lease != lease);
    if is_new {
        let key = Key::Host(me.clone());
        let revision = view.revision_of(&key);
        changes.writes.push(Write::put(key, encode(&report.host)).with_lease(lease).if_at(revision));
    }
    for (pool, record) in &report.pools {
        let key = (me.clone(), pool.clone());
        if view.pools.get(&key).is_none_or(|seen| seen.record != *record) {
            let key = Key::Pool { host: me.clone(), pool: pool.clone() };
            changes.writes.push(Write::put(key, encode(record)));
        }
    }
    let is_gone = |pool: &String| !report.pools.contains_key(pool) && !report.closed_pools.contains(pool);
    for (host, pool) in view.pools.keys().filter(|(host, pool)| host == me && is_gone(pool)) {
        changes.writes.push(Write::delete(Key::Pool { host: host.clone(), pool: pool.clone() }));
    }
    for (id, record) in &report.disks {
        match claim(record, view.disks.get(id).map(|seen| &seen.record)) {
            Claim::Stands => {}
            Claim::Write => {
                let key = Key::Disk(id.clone());
                let revision = view.revision_of(&key);
                changes.writes.push(Write::put(key, encode(record)).if_at(revision));
            }
            Claim::Refused(conflict) => changes.conflicts.push(conflict),
        }
    }
    for (id, seen) in &view.disks {
        let is_mine = seen.record.host == *me && !report.closed_pools.contains(&seen.record.pool);
        if is_mine && !report.disks.contains_key(id) && !report.other_disks.contains(id) {
            changes.writes.push(Write::delete(Key::Disk(id.clone())).if_at(seen.revision));
        }
    }
    changes
}

enum Claim {
    Stands,
    Write,
    Refused(Conflict),
}

/// Compares what an owner says with what the directory has. Another host's entry is replaced only by a higher epoch. If this
/// host does not know the epoch of a disk for the moment, its own entry stays.
fn claim(mine: &DiskRecord, there: Option<&DiskRecord>) -> Claim {
    match there {
        Some(there) if there == mine => Claim::Stands,
        Some(there) if there.host != mine.host && there.epoch >= mine.epoch => Claim::Refused(Conflict {
            disk: mine.name.clone(),
            epoch: mine.epoch,
            host: there.host.clone(),
            directory_epoch: there.epoch,
        }),
        Some(there) if there.host == mine.host && mine.epoch == 0 && there.epoch > 0 => Claim::Stands,
        _ => Claim::Write,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::view::tests::{disk, seen_at};

    fn config() -> Config {
        Config {
            endpoints: vec!["http://localhost:1".into()],
            tls: None,
            name: "alpha".into(),
            lease: Duration::from_secs(10),
        }
    }

    fn report() -> Report {
        let host = HostRecord {
            instance: 1,
            reports: 1,
            report_every_s: 1.0,
            software: "0".into(),
            reaches: BTreeSet::new(),
            moves_disks: true,
            link_bytes_per_s: None,
        };
        Report {
            host,
            pools: BTreeMap::from([("fast".into(), pool(5))]),
            closed_pools: BTreeSet::new(),
            disks: BTreeMap::from([("id".into(), disk("alpha", 3))]),
            other_disks: BTreeSet::new(),
        }
    }

    fn pool(usage_bytes: u64) -> PoolRecord {
        PoolRecord {
            state: "running".into(),
            capacity_bytes: 10,
            demand_bytes: 7,
            usage_bytes,
            dirty_bytes: 0,
            load: crate::Load::default(),
            tenant_limits: BTreeMap::new(),
        }
    }

    fn written(report: &Report, view: &View) -> Vec<String> {
        changes(report, view, &config(), 9).writes.iter().map(ToString::to_string).collect()
    }

    fn view_of(report: &Report) -> View {
        let mut view = View::default();
        view.hosts.insert("alpha".into(), crate::Seen { lease: 9, ..seen_at(report.host.clone(), 1) });
        view.pools.insert(("alpha".into(), "fast".into()), seen_at(report.pools["fast"].clone(), 2));
        view.disks.insert("id".into(), seen_at(report.disks["id"].clone(), 3));
        view
    }

    #[test]
    fn only_differences_are_written() {
        let report = report();
        let all = [
            "put /haversack/v1/hosts/alpha",
            "put /haversack/v1/pools/alpha/fast",
            "put /haversack/v1/disks/id",
        ];
        assert_eq!(written(&report, &View::default()), all);
        let mut view = view_of(&report);
        assert!(written(&report, &view).is_empty());
        view.pools.get_mut(&("alpha".into(), "fast".into())).unwrap().record = pool(6);
        assert_eq!(written(&report, &view), all[1..2]);
    }

    #[test]
    fn a_host_entry_with_another_lease_is_written_again() {
        let report = report();
        let mut view = view_of(&report);
        view.hosts.get_mut("alpha").unwrap().lease = 8;
        assert_eq!(written(&report, &view), ["put /haversack/v1/hosts/alpha"]);
    }

    #[test]
    fn an_epoch_that_is_not_known_for_the_moment_replaces_none() {
        let mut report = report();
        let view = view_of(&report);
        report.disks.insert("id".into(), disk("alpha", 0));
        assert!(written(&report, &view).iter().all(|write| !write.contains("disks/")));
        report.disks.insert("id".into(), disk("alpha", 4));
        assert!(written(&report, &view).iter().any(|write| write.contains("disks/")));
    }

    #[test]
    fn another_hosts_disk_is_replaced_only_by_a_higher_epoch() {
        let report = report();
        let with = |there: DiskRecord| {
            let mut view = view_of(&report);
            view.disks.insert("id".into(), seen_at(there, 3));
            let changes = changes(&report, &view, &config(), 9);
            (changes.writes.len(), changes.conflicts.len())
        };
        assert_eq!(with(disk("beta", 2)), (1, 0));
        assert_eq!(with(disk("beta", 3)), (0, 1));
        assert_eq!(with(disk("beta", 4)), (0, 1));
        // This host's own entry: its durable record decides.
        assert_eq!(with(disk("alpha", 2)), (1, 0));
        assert_eq!(with(disk("alpha", 4)), (1, 0));
    }

    #[test]
    fn only_what_this_host_has_forgotten_is_deleted() {
        let mut report = report();
        let view = view_of(&report);
        report.disks.clear();
        assert_eq!(written(&report, &view), ["delete /haversack/v1/disks/id"]);
        report.other_disks.insert("id".into());
        assert!(written(&report, &view).is_empty());
        report.other_disks.clear();
        report.pools.clear();
        report.closed_pools.insert("fast".into());
        assert!(written(&report, &view).is_empty());
        report.closed_pools.clear();
        let both = ["delete /haversack/v1/pools/alpha/fast", "delete /haversack/v1/disks/id"];
        assert_eq!(written(&report, &view), both);
        let mut view = view;
        view.disks.insert("id".into(), seen_at(disk("beta", 9), 3));
        view.pools.clear();
        assert!(written(&report, &view).is_empty());
    }
}
