//! What a host wants the directory to contain, and what it must write for that.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use haversack_ownership::least_forced_epoch;

use crate::bugs::{Bug, planted};
use crate::key::Key;
use crate::noticeable::Noticeable;
use crate::record::{DiskRecord, HostRecord, PoolRecord, encode};
use crate::view::{Seen, View};
use crate::write::Write;

/// What a host wants to have in the directory.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// The host itself.
    pub host: HostRecord,
    /// Its pools.
    pub pools: BTreeMap<String, PoolRecord>,
    /// Pools that are not open: only their state is known, so their figures in the directory, and the entries of their
    /// disks, stay as they are.
    pub closed_pools: BTreeSet<String>,
    /// The disks that it owns, by identity.
    pub disks: BTreeMap<String, DiskRecord>,
    /// Disks that it knows and does not own: it never removes their entries.
    pub other_disks: BTreeSet<String>,
}

/// A disk that this host owns although the directory names another owner, or names this host with a higher epoch that
/// was taken by force.
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
pub struct Changes {
    /// What to write.
    pub writes: Vec<Write>,
    /// What is not written, since another host has a better claim.
    pub conflicts: Vec<Conflict>,
}

/// After this time every difference is written, however small: the entries of 1,000 busy disks make about three writes
/// a second.
const AFTER: Duration = Duration::from_secs(300);

/// Returns whether an entry must be written: it is missing, differs noticeably, or has differed slightly for a long
/// time.
fn is_due<T: Noticeable + PartialEq>(mine: &T, there: Option<&Seen<T>>, now: Instant) -> bool {
    there.is_none_or(|there| {
        let is_old = now.saturating_duration_since(there.at) >= AFTER;
        mine.differs_noticeably(&there.record) || (is_old && *mine != there.record)
    })
}

/// Returns what to write so that the directory, as far as it is known, nearly agrees with a report.
pub fn changes(report: &Report, view: &View, me: &str, lease: i64, now: Instant) -> Changes {
    let mut changes = Changes::default();
    let is_new = view.hosts.get(me).is_none_or(|seen| seen.record != report.host || seen.lease != lease);
    if is_new {
        let key = Key::Host(me.into());
        let revision = view.revision_of(&key);
        changes.writes.push(Write::put(key, encode(&report.host)).with_lease(lease).if_at(revision));
    }
    for (pool, record) in &report.pools {
        let key = (me.to_string(), pool.clone());
        let seen = view.pools.get(&key);
        let record = match seen.filter(|_| report.closed_pools.contains(pool)) {
            Some(seen) => &PoolRecord { state: record.state.clone(), ..seen.record.clone() },
            None => record,
        };
        if is_due(record, seen, now) {
            let key = Key::Pool { host: me.into(), pool: pool.clone() };
            changes.writes.push(Write::put(key, encode(record)));
        }
    }
    let is_gone = |pool: &String| !report.pools.contains_key(pool) && !report.closed_pools.contains(pool);
    for (host, pool) in view.pools.keys().filter(|(host, pool)| *host == me && is_gone(pool)) {
        changes.writes.push(Write::delete(Key::Pool { host: host.clone(), pool: pool.clone() }));
    }
    for (id, record) in &report.disks {
        let (key, seen) = (Key::Disk(id.clone()), view.disks.get(id));
        match claim(record, view.owner_of(id)) {
            Claim::Write if is_due(record, seen, now) => {
                let revision = view.revision_of(&key);
                changes.writes.push(Write::put(key, encode(record)).if_at(revision));
            }
            Claim::Write | Claim::Stands => {}
            Claim::Refused(conflict) => changes.conflicts.push(conflict),
        }
    }
    if planted(Bug::ClaimFromDead) {
        for (id, seen) in view.disks.iter().filter(|(id, _)| report.other_disks.contains(*id)) {
            if !view.hosts.contains_key(&seen.record.host) {
                let (host, epoch) = (me.to_string(), seen.record.epoch + 1);
                let record = DiskRecord { host, epoch, ..seen.record.clone() };
                changes.writes.push(Write::put(Key::Disk(id.clone()), encode(&record)));
            }
        }
    }
    for (id, seen) in &view.disks {
        let is_mine = seen.record.host == me && !report.closed_pools.contains(&seen.record.pool);
        if is_mine && !report.disks.contains_key(id) && !report.other_disks.contains(id) {
            changes.writes.push(Write::delete(Key::Disk(id.clone())).if_at(seen.revision));
        }
    }
    changes
}

/// Whether an entry with the given host and epoch takes precedence over this host's entry. This host may have taken a
/// disk over by force, lost its record, and attached the disk as a new one. Even then, its old entry stays: it may be
/// the only thing that tells a former owner of the takeover.
fn is_better(host: &str, epoch: u64, mine: &DiskRecord) -> bool {
    let is_evidence = mine.epoch > 0 && epoch >= least_forced_epoch(mine.epoch);
    let is_others = host != mine.host && epoch >= mine.epoch;
    (is_others || is_evidence) && !planted(Bug::ReplaceAnyEntry)
}

enum Claim {
    Stands,
    Write,
    Refused(Conflict),
}

/// Compares what an owner says with what the directory has. Another host's entry is replaced only by one with a higher
/// epoch. An epoch that was taken by force is never replaced by a lower one. If this host does not know the epoch of a
/// disk at the moment, its own entry stays.
fn claim(mine: &DiskRecord, there: Option<(&str, u64)>) -> Claim {
    match there {
        Some((host, epoch)) if is_better(host, epoch, mine) => Claim::Refused(Conflict {
            disk: mine.name.clone(),
            epoch: mine.epoch,
            host: host.into(),
            directory_epoch: epoch,
        }),
        Some((host, epoch)) if host == mine.host && mine.epoch == 0 && epoch > 0 => Claim::Stands,
        _ => Claim::Write,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::{disk, seen_at};

    fn report() -> Report {
        let host = HostRecord {
            instance: 1,
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
        changes(report, view, "alpha", 9, Instant::now()).writes.iter().map(ToString::to_string).collect()
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
    fn of_a_closed_pool_only_the_state_is_new() {
        let mut report = report();
        let mut view = view_of(&report);
        let there = PoolRecord { dirty_bytes: 3, ..pool(5) };
        view.pools.insert(("alpha".into(), "fast".into()), seen_at(there.clone(), 2));
        report.closed_pools.insert("fast".into());
        report.pools.insert("fast".into(), PoolRecord { state: "failed".into(), ..pool(0) });
        let writes = changes(&report, &view, "alpha", 9, Instant::now()).writes;
        let expected = encode(&PoolRecord { state: "failed".into(), ..there });
        assert_eq!(writes.iter().map(|write| write.value.clone()).collect::<Vec<_>>(), [Some(expected)]);
    }

    #[test]
    fn small_differences_wait() {
        let mut report = report();
        let view = view_of(&report);
        let disk = report.disks.get_mut("id").unwrap();
        let usage_bytes = disk.usage_bytes;
        disk.usage_bytes += usage_bytes / 50;
        assert!(written(&report, &view).is_empty());
        let later = changes(&report, &view, "alpha", 9, Instant::now() + AFTER);
        assert_eq!(
            later.writes.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["put /haversack/v1/disks/id"]
        );
        report.disks.get_mut("id").unwrap().usage_bytes += usage_bytes / 5;
        assert_eq!(written(&report, &view), ["put /haversack/v1/disks/id"]);
    }

    /// Simulates a host with busy disks for an hour, with a report every 10 s. Requests arrive at random at each disk's
    /// rate, which changes by a half every quarter of an hour on average; usage grows; dirty data comes and goes.
    /// Returns the keys and the transactions written per second.
    fn written_a_second(disks: usize) -> (f64, f64) {
        const REPORTS: u32 = 360;
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        let mut now_report = report();
        let one = now_report.disks.remove("id").unwrap();
        let mut rates: Vec<f64> = (0..disks).map(|disk| 20.0 * (1 + disk % 50) as f64).collect();
        for disk in 0..disks {
            now_report
                .disks
                .insert(format!("id{disk}"), DiskRecord { name: format!("vm{disk}"), ..one.clone() });
        }
        let mut view = View::default();
        let (begin, mut keys, mut transactions) = (Instant::now(), 0, 0);
        for number in 0..REPORTS {
            now_report.host.reports += 1;
            for (rate, disk) in rates.iter_mut().zip(now_report.disks.values_mut()) {
                if random() < 1.0 / 90.0 {
                    *rate *= if random() < 0.5 { 1.5 } else { 1.0 / 1.5 };
                }
                // The mean of ten seconds of arrivals at random: twelve evenly distributed numbers are nearly normal.
                let normal: f64 = (0..12).map(|_| random()).sum::<f64>() - 6.0;
                disk.load.requests_per_s = (*rate + normal * (*rate / 10.0).sqrt()).round();
                disk.load.read_hits_per_s = (disk.load.requests_per_s * 0.8).round();
                disk.load.bytes_per_s = disk.load.requests_per_s * 8192.0;
                disk.load.latency_us = (300.0 + 60.0 * random()).round();
                disk.usage_bytes += (random() * 0.002 * (1 << 20) as f64) as u64;
                disk.dirty_bytes = (1.0 + random() * 20e6) as u64;
            }
            let now = begin + Duration::from_secs(10) * number;
            let writes = changes(&now_report, &view, "alpha", 9, now).writes;
            // What fills an empty directory is not counted.
            if number > 0 {
                keys += writes.len();
                transactions += writes.len().div_ceil(crate::MOST_WRITES);
            }
            for write in writes {
                let revision = i64::from(number) + 1;
                view.note(&write, revision, now);
            }
        }
        let seconds = f64::from(10 * (REPORTS - 1));
        (keys as f64 / seconds, transactions as f64 / seconds)
    }

    #[test]
    fn a_thousand_hosts_write_a_hundred_times_a_second() {
        for (disks, most_keys, most_transactions) in [(50, 1.0, 0.101), (1000, 12.0, 0.25)] {
            let (keys, transactions) = written_a_second(disks);
            eprintln!("{disks} disks: {keys:.2} keys and {transactions:.3} transactions a second");
            assert!(keys < most_keys && transactions <= most_transactions, "{disks}: {keys}, {transactions}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_replaced_unless_it_says_that_another_host_has_the_disk() {
        let report = report();
        let with = |value: &str| {
            let mut view = view_of(&report);
            view.disks.clear();
            view.note(&Write::put(Key::Disk("id".into()), value.into()), 7, Instant::now());
            let changes = changes(&report, &view, "alpha", 9, Instant::now());
            (changes.writes.iter().map(|write| write.expected).collect::<Vec<_>>(), changes.conflicts.len())
        };
        assert_eq!(with("nonsense"), (vec![Some(7)], 0));
        assert_eq!(with(r#"{"version":9,"host":"beta","epoch":2}"#), (vec![Some(7)], 0));
        assert_eq!(with(r#"{"version":9,"host":"beta","epoch":3}"#), (vec![], 1));
        assert_eq!(with(r#"{"version":9,"host":"alpha","epoch":8}"#), (vec![Some(7)], 0));
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
            let changes = changes(&report, &view, "alpha", 9, Instant::now());
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
    fn an_epoch_that_was_taken_by_force_is_replaced_only_by_a_higher_one() {
        let with = |mine: u64, there: DiskRecord| {
            let mut report = report();
            report.disks.insert("id".into(), disk("alpha", mine));
            let mut view = view_of(&report);
            view.disks.insert("id".into(), seen_at(there, 3));
            let changes = changes(&report, &view, "alpha", 9, Instant::now());
            (changes.writes.len(), changes.conflicts.len())
        };
        let forced = least_forced_epoch(3);
        // The disk was attached as a new one, after a takeover by this host or by another one.
        assert_eq!(with(3, disk("alpha", forced)), (0, 1));
        assert_eq!(with(3, disk("beta", forced)), (0, 1));
        assert_eq!(with(forced + 1, disk("alpha", forced)), (1, 0));
        assert_eq!(with(forced + 1, disk("beta", forced)), (1, 0));
        assert_eq!(with(0, disk("alpha", forced)), (0, 0), "the epoch is not known for the moment");
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
