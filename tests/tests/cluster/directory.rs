//! [`Directory`] against a real etcd.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use haversack_directory::{
    DirectoryError, DiskRecord, DrainRecord, HostRecord, IntentRecord, Key, Load, PoolRecord, Progress,
    Report, TenantRecord, VmNeeds, Worth,
};
use haversack_e2e::certificates::Certificates;
use haversack_e2e::error::check;
use haversack_e2e::etcd::Etcd;
use haversack_e2e::tools::{PATIENCE, wait_until};
use haversack_e2e::{Error, Result, test};
use haversack_etcd::{Config, Directory, TlsFiles};

use super::raw::Raw;

const LEASE: Duration = Duration::from_secs(3);
/// A lease that does not end while a test waits for something that takes no time.
const LONG_LEASE: Duration = Duration::from_secs(60);
/// A step that never waits for etcd takes less than this, even on a busy machine. One that waits takes at least 2 s.
const AT_ONCE: Duration = Duration::from_secs(1);

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Check(error.to_string())
}

fn start(name: &str, endpoints: &[String]) -> Result<Directory> {
    start_with(name, endpoints, LEASE)
}

fn start_with(name: &str, endpoints: &[String], lease: Duration) -> Result<Directory> {
    let config = Config { endpoints: endpoints.to_vec(), tls: None, user: None, name: name.into(), lease };
    Directory::start(config).map_err(failed)
}

fn disk(name: &str, host: &str, epoch: u64) -> DiskRecord {
    DiskRecord {
        name: name.into(),
        vm: None,
        tenant: None,
        host: host.into(),
        epoch,
        pool: "fast".into(),
        state: "attached".into(),
        can_move: true,
        vm_needs: VmNeeds::default(),
        size_bytes: 1 << 30,
        demand_bytes: 1 << 20,
        usage_bytes: 1 << 20,
        dirty_bytes: 0,
        clients: 1,
        moving_to: None,
        replica_at: None,
        is_replicated: false,
        load: Load::default(),
        worth: Worth::default(),
    }
}

fn pool(usage_bytes: u64) -> PoolRecord {
    PoolRecord {
        state: "running".into(),
        capacity_bytes: 1 << 30,
        demand_bytes: 1 << 20,
        usage_bytes,
        dirty_bytes: 0,
        load: Load::default(),
        tenant_limits: BTreeMap::new(),
    }
}

/// What a host reports: one pool, and disks that are their own identities.
fn report(directory: &Directory, number: u64, disks: &[(&str, u64)]) -> Report {
    let me = directory.name();
    let host = HostRecord {
        instance: directory.instance(),
        reports: number,
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
    let disk = |(name, epoch): &(&str, u64)| (format!("id-{name}"), disk(name, me, *epoch));
    Report {
        host,
        pools: BTreeMap::from([("fast".into(), pool(number))]),
        closed_pools: BTreeSet::new(),
        disks: disks.iter().map(disk).collect(),
        other_disks: BTreeSet::new(),
    }
}

fn intent(from: &str, epoch: u64, to: &str, by: &Directory) -> IntentRecord {
    IntentRecord {
        name: "vm1".into(),
        from: from.into(),
        epoch,
        to: to.into(),
        by: by.name().into(),
        instance: by.instance(),
        reason: "a test".into(),
        is_ordered: false,
        most_ms: None,
    }
}

fn until(what: &str, mut question: impl FnMut() -> bool) -> Result<()> {
    wait_until(what, PATIENCE, || Ok(question()))
}

/// Waits until another host sees a host's report of that number.
fn until_seen(by: &Directory, host: &str, number: u64) -> Result<()> {
    until(&format!("report {number} of {host}"), || {
        by.view().hosts.get(host).is_some_and(|seen| seen.record.reports == number)
    })
}

fn until_connected(directory: &Directory) -> Result<()> {
    until("a connection to etcd", || directory.status().endpoint.is_some())
}

fn until_away(directory: &Directory) -> Result<()> {
    until("the loss of etcd", || directory.status().endpoint.is_none())
}

/// Calls something that must not wait.
fn at_once<T>(what: &str, call: impl FnOnce() -> T) -> Result<T> {
    let begin = Instant::now();
    let result = call();
    let taken = begin.elapsed();
    check(taken < AT_ONCE, format!("{what} took {taken:?}"))?;
    Ok(result)
}

#[test]
fn hosts_see_each_other_and_write_only_what_has_changed() {
    test("reports", |place| {
        let etcd = Etcd::start(place)?;
        let alpha = start_with("alpha", &[etcd.endpoint()], LONG_LEASE)?;
        let beta = start("beta", &[etcd.endpoint()])?;
        alpha.report(report(&alpha, 1, &[("vm1", 1), ("vm2", 0)]));
        until_seen(&beta, "alpha", 1)?;
        until("the disks", || beta.view().disks.len() == 2)?;
        let view = beta.view();
        check(view.pools[&("alpha".into(), "fast".into())].record == pool(1), "another pool")?;
        check(view.disks["id-vm1"].record == disk("vm1", "alpha", 1), "another disk")?;
        let raw = Raw::connect(&etcd.endpoint())?;
        let keys = raw.keys("/haversack/")?;
        let expected = ["disks/id-vm1", "disks/id-vm2", "hosts/alpha", "pools/alpha/fast"];
        check(keys == expected.map(|key| format!("/haversack/v1/{key}")), format!("{keys:?}"))?;
        let text = raw.get("/haversack/v1/disks/id-vm1")?.unwrap_or_default();
        check(
            text.starts_with(
                r#"{"version":1,"name":"vm1","vm":null,"tenant":null,"host":"alpha","epoch":1,"#,
            ),
            text,
        )?;
        until("the end of the report", || alpha.status().is_reported)?;
        let before = alpha.status().writes;
        alpha.report(report(&alpha, 2, &[("vm1", 1), ("vm2", 0)]));
        until_seen(&beta, "alpha", 2)?;
        until("the end of the report", || alpha.status().is_reported)?;
        // The keys of the host and of its pool; those of the disks are unchanged.
        let written = alpha.status().writes - before;
        check(written == 2, format!("{written} keys were written"))?;
        alpha.report(report(&alpha, 3, &[("vm1", 1)]));
        until("the end of a disk", || !beta.view().disks.contains_key("id-vm2"))?;
        check(beta.status().age.is_some_and(|age| age < Duration::from_secs(3)), "an old view")?;
        // A host that ends well is gone at once.
        drop(alpha);
        let begin = Instant::now();
        until("the end of alpha", || !beta.view().hosts.contains_key("alpha"))?;
        check(begin.elapsed() < LONG_LEASE / 2, "it was not told")?;
        check(beta.view().away() == BTreeSet::from(["alpha"]), "it is unknown")?;
        check(beta.view().disks["id-vm1"].record.host == "alpha", "its disk has another owner")
    });
}

#[test]
fn a_host_whose_lease_expires_is_away_and_keeps_its_disks() {
    test("an expired lease", |place| {
        let etcd = Etcd::start(place)?;
        let raw = Raw::connect(&etcd.endpoint())?;
        let beta = start("beta", &[etcd.endpoint()])?;
        let record = r#"{"version":1,"instance":1,"reports":1,"report_every_s":1,"software":"0"}"#;
        raw.put_for("/haversack/v1/hosts/gamma", record, 2)?;
        let record = serde_json::to_value(disk("vm1", "gamma", 7)).map_err(failed)?;
        let mut record = record.as_object().cloned().unwrap_or_default();
        record.insert("version".into(), 1.into());
        raw.put("/haversack/v1/disks/id-vm1", &serde_json::Value::from(record).to_string())?;
        until("gamma", || beta.view().hosts.contains_key("gamma") && beta.view().disks.len() == 1)?;
        until("the end of gamma", || !beta.view().hosts.contains_key("gamma"))?;
        let view = beta.view();
        check(view.away() == BTreeSet::from(["gamma"]) && view.gone.contains_key("gamma"), "it is not away")?;
        check(view.disks["id-vm1"].record == disk("vm1", "gamma", 7), "its disk has changed")
    });
}

#[test]
fn nothing_waits_while_etcd_is_dead_and_all_is_told_when_it_is_back() {
    test("a dead etcd", |place| {
        let mut etcd = Etcd::start(place)?;
        let (alpha, beta) = (start("alpha", &[etcd.endpoint()])?, start("beta", &[etcd.endpoint()])?);
        alpha.report(report(&alpha, 1, &[("vm1", 1)]));
        until_seen(&beta, "alpha", 1)?;
        until_connected(&beta)?;
        etcd.kill()?;
        until_away(&alpha)?;
        until_away(&beta)?;
        at_once("a view", || beta.view())?;
        check(beta.view().hosts.contains_key("alpha"), "the view is gone")?;
        let refused = at_once("a call", || alpha.set_drain("beta", Some(&DrainRecord::default())))?;
        let refused = refused.err().ok_or_else(|| failed("a call was not refused"))?;
        check(matches!(refused, DirectoryError::Away { .. }), format!("refused by {refused}"))?;
        check(refused.to_string().contains(&etcd.endpoint()), format!("the endpoint is missing: {refused}"))?;
        check(alpha.status().failed_calls == 1, "the failed call is not counted")?;
        at_once("many reports", || (2..1000).for_each(|n| alpha.report(report(&alpha, n, &[("vm1", 1)]))))?;
        check(
            alpha.status().skipped_reports > 900 && !alpha.status().is_reported,
            "reports are not skipped",
        )?;
        std::thread::sleep(Duration::from_secs(2));
        check(beta.status().age.is_some_and(|age| age > Duration::from_secs(2)), "the view's age is wrong")?;
        etcd.start_again()?;
        until_seen(&beta, "alpha", 999)?;
        check(beta.status().age.is_some_and(|age| age < Duration::from_secs(3)), "the view's age is wrong")?;
        // The history was there: nothing had to be read again.
        check(beta.status().full_reads == 1, format!("{:?}", beta.status()))?;
        alpha.set_drain("beta", Some(&DrainRecord { by: "me".into() })).map_err(failed)?;
        check(alpha.view().drains["beta"].record.by == "me", "a caller does not see its own change")?;
        until("the order", || beta.view().drains.contains_key("beta"))?;
        alpha.set_drain("beta", None).map_err(failed)?;
        until("its end", || beta.view().drains.is_empty())
    });
}

#[test]
fn an_etcd_that_was_lost_with_its_data_is_filled_again() {
    test("lost data", |place| {
        let mut etcd = Etcd::start(place)?;
        let (alpha, beta) = (start("alpha", &[etcd.endpoint()])?, start("beta", &[etcd.endpoint()])?);
        alpha.report(report(&alpha, 1, &[("vm1", 1)]));
        beta.report(report(&beta, 1, &[("vm2", 1)]));
        until_seen(&beta, "alpha", 1)?;
        until_seen(&alpha, "beta", 1)?;
        etcd.kill()?;
        etcd.lose_data()?;
        etcd.start_again()?;
        let is_whole = |directory: &Directory| {
            let view = directory.view();
            directory.status().full_reads >= 2 && view.hosts.len() == 2 && view.disks.len() == 2
        };
        until("the directory", || is_whole(&alpha) && is_whole(&beta))?;
        let raw = Raw::connect(&etcd.endpoint())?;
        check(raw.keys("/haversack/")?.len() == 6, "not everything is there")
    });
}

#[test]
fn a_paused_etcd_is_noticed_and_a_lost_lease_replaced() {
    test("a paused etcd", |place| {
        let etcd = Etcd::start(place)?;
        let alpha = start("alpha", &[etcd.endpoint()])?;
        alpha.report(report(&alpha, 1, &[("vm1", 1)]));
        until_seen(&alpha, "alpha", 1)?;
        etcd.process()?.pause()?;
        let begin = Instant::now();
        at_once("a report", || alpha.report(report(&alpha, 2, &[("vm1", 1)])))?;
        at_once("a view", || alpha.view())?;
        // A call that is under way ends, too.
        let refused = alpha
            .set_tenant("blue", Some(&TenantRecord { weight: 1.0, reservation_bytes: 0, limit_bytes: None }))
            .err();
        let refused = refused.ok_or_else(|| failed("a call was not refused"))?.to_string();
        // The call is given up after 10 s.
        check(begin.elapsed() < Duration::from_secs(15), format!("a call took {:?}", begin.elapsed()))?;
        check(refused.contains(&etcd.endpoint()), format!("the endpoint is missing: {refused}"))?;
        until_away(&alpha)?;
        until("the end of the lease", || alpha.status().lease_left.is_none())?;
        std::thread::sleep(LEASE);
        etcd.process()?.resume()?;
        until_seen(&alpha, "alpha", 2)?;
        until("a lease", || alpha.status().lease_left.is_some())?;
        let view = alpha.view();
        check(
            view.hosts.contains_key("alpha") && view.disks["id-vm1"].record.epoch == 1,
            "not everything is there",
        )?;
        // It stays: the entry does not go with the old lease.
        std::thread::sleep(LEASE * 2);
        check(alpha.view().hosts.contains_key("alpha"), "the entry has gone with the old lease")
    });
}

#[test]
fn what_was_compacted_during_a_pause_is_read_again() {
    test("a compaction", |place| {
        let members = Etcd::members(place, 3)?;
        let raw = Raw::connect(&members[1].endpoint())?;
        let beta = start("beta", &[members[0].endpoint()])?;
        let alpha = start("alpha", &[members[1].endpoint(), members[2].endpoint()])?;
        alpha.report(report(&alpha, 1, &[("vm1", 1), ("vm2", 1)]));
        until("the report", || beta.view().disks.len() == 2)?;
        until_connected(&beta)?;
        check(beta.status().full_reads == 1, "it has read more than once")?;
        members[0].process()?.pause()?;
        until_away(&beta)?;
        alpha.report(report(&alpha, 2, &[("vm2", 5), ("vm3", 1)]));
        until("the report", || alpha.status().is_reported)?;
        raw.compact()?;
        let vm2 = beta.view().disks["id-vm2"].record.epoch;
        check(vm2 == 1, format!("a paused member has told epoch {vm2}"))?;
        members[0].process()?.resume()?;
        until_seen(&beta, "alpha", 2)?;
        let disks: Vec<_> =
            beta.view().disks.iter().map(|(id, disk)| (id.clone(), disk.record.epoch)).collect();
        check(disks == [("id-vm2".into(), 5), ("id-vm3".into(), 1)], format!("{disks:?}"))?;
        check(beta.status().full_reads == 2, format!("{:?}", beta.status()))?;
        alpha.report(report(&alpha, 3, &[("vm2", 5), ("vm3", 1)]));
        until_seen(&beta, "alpha", 3)
    });
}

#[test]
fn a_lost_quorum_is_noticed_and_its_return_too() {
    test("a lost quorum", |place| {
        let mut members = Etcd::members(place, 3)?;
        let all: Vec<_> = members.iter().map(Etcd::endpoint).collect();
        let (alpha, beta) = (start("alpha", &all[..1])?, start("beta", &all)?);
        alpha.report(report(&alpha, 1, &[("vm1", 1)]));
        until_seen(&beta, "alpha", 1)?;
        until_connected(&beta)?;
        // The loss of one member does not affect hosts that can use another one.
        members[2].kill()?;
        alpha.report(report(&alpha, 2, &[("vm1", 1)]));
        until_seen(&beta, "alpha", 2)?;
        members[1].kill()?;
        until_away(&alpha)?;
        until_away(&beta)?;
        let refused = at_once("a call", || alpha.lead())?.err();
        check(matches!(refused, Some(DirectoryError::Away { .. })), format!("{refused:?}"))?;
        alpha.report(report(&alpha, 3, &[("vm1", 1)]));
        check(beta.view().disks.len() == 1, "the view is gone")?;
        members[1].start_again()?;
        until_seen(&beta, "alpha", 3)?;
        check(alpha.lead().map_err(failed)?.is_some(), "no host leads")
    });
}

#[test]
fn of_two_that_begin_a_move_one_does() {
    test("two intents", |place| {
        let etcd = Etcd::start(place)?;
        let (alpha, beta) = (start("alpha", &[etcd.endpoint()])?, start("beta", &[etcd.endpoint()])?);
        alpha.report(report(&alpha, 1, &[("vm1", 4)]));
        until("the disk", || [&alpha, &beta].iter().all(|host| host.view().disks.contains_key("id-vm1")))?;
        for round in 0..20 {
            until("no intent", || [&alpha, &beta].iter().all(|host| host.view().intents.is_empty()))?;
            let (by_alpha, by_beta) = std::thread::scope(|scope| {
                let other =
                    scope.spawn(|| beta.begin_move("id-vm1", &intent("alpha", 4, "beta", &beta), None));
                let one = alpha.begin_move("id-vm1", &intent("alpha", 4, "beta", &alpha), None);
                (one, other.join())
            });
            let by_beta = by_beta.map_err(|_| failed("a panic"))?;
            let (winner, lost) = match (by_alpha, by_beta) {
                (Ok(()), Err(lost)) => (&alpha, lost),
                (Err(lost), Ok(())) => (&beta, lost),
                both => return Err(failed(format!("round {round}: {both:?}"))),
            };
            let is_intent =
                matches!(&lost, DirectoryError::Changed { key: Key::Intent(id) } if id == "id-vm1");
            check(is_intent, format!("round {round}: {lost}"))?;
            let view = winner.view();
            let progress = view.progress("id-vm1", &view.intents["id-vm1"].record);
            // Beta has not reported, so it counts as gone.
            let expected = if winner.name() == "alpha" { Progress::Planned } else { Progress::Abandoned };
            check(progress == expected, format!("{progress:?}"))?;
            winner.end_move("id-vm1", &view.intents["id-vm1"].record).map_err(failed)?;
        }
        // A host may begin its own move again, which replaces the intent; a move to a different host is refused.
        for reason in ["first", "again"] {
            let begun = IntentRecord { reason: reason.into(), ..intent("alpha", 4, "beta", &alpha) };
            alpha.begin_move("id-vm1", &begun, None).map_err(failed)?;
            check(alpha.view().intents["id-vm1"].record == begun, "it is not as begun last")?;
        }
        let other = alpha.begin_move("id-vm1", &intent("alpha", 4, "gamma", &alpha), None);
        check(matches!(other, Err(DirectoryError::Changed { key: Key::Intent(_) })), format!("{other:?}"))?;
        let begun = alpha.view().intents["id-vm1"].record.clone();
        alpha.end_move("id-vm1", &begun).map_err(failed)?;
        until("no intent", || beta.view().intents.is_empty())?;
        let stale = beta.begin_move("id-vm1", &intent("alpha", 3, "beta", &beta), None);
        check(matches!(stale, Err(DirectoryError::Changed { key: Key::Disk(_) })), format!("{stale:?}"))?;
        // The owner reports while others begin moves: neither is in the other's way.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 2..40 {
                    let mut report = report(&alpha, number, &[("vm1", 4)]);
                    report.disks.values_mut().for_each(|disk| disk.usage_bytes = number % 2);
                    alpha.report(report);
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            (0..10).try_for_each(|_| {
                let begun = intent("alpha", 4, "beta", &beta);
                beta.begin_move("id-vm1", &begun, None).map_err(failed)?;
                beta.end_move("id-vm1", &begun).map_err(failed)
            })
        })?;
        // The host that was refused does not remove the intent of the other one.
        let begun = intent("alpha", 4, "beta", &beta);
        beta.begin_move("id-vm1", &begun, None).map_err(failed)?;
        let refused = intent("alpha", 4, "beta", &alpha);
        let error = alpha.begin_move("id-vm1", &refused, None);
        check(matches!(error, Err(DirectoryError::Changed { key: Key::Intent(_) })), format!("{error:?}"))?;
        until("alpha sees it", || alpha.view().intents.contains_key("id-vm1"))?;
        alpha.end_move("id-vm1", &refused).map_err(failed)?;
        let again = alpha.begin_move("id-vm1", &refused, None);
        check(again.is_err(), "the intent of the other host was removed")?;
        beta.end_move("id-vm1", &begun).map_err(failed)
    });
}

#[test]
fn one_host_leads_and_an_old_leader_begins_nothing() {
    test("leaders", |place| {
        let etcd = Etcd::start(place)?;
        let raw = Raw::connect(&etcd.endpoint())?;
        let (alpha, beta) = (start("alpha", &[etcd.endpoint()])?, start("beta", &[etcd.endpoint()])?);
        alpha.report(report(&alpha, 1, &[("vm1", 4)]));
        until("the disk", || [&alpha, &beta].iter().all(|host| host.view().disks.contains_key("id-vm1")))?;
        let leads = |host: &Directory| host.lead().map_err(failed);
        let first = leads(&alpha)?.ok_or_else(|| failed("no host leads"))?;
        check(leads(&alpha)? == Some(first), "it does not go on to lead")?;
        until("the leader", || beta.view().leader.is_some())?;
        check(leads(&beta)?.is_none(), "two lead")?;
        // As if alpha had been cut off for longer than its lease.
        raw.delete("/haversack/v1/leader")?;
        until("no leader", || beta.view().leader.is_none())?;
        let second = leads(&beta)?.ok_or_else(|| failed("no host leads"))?;
        let late = alpha.begin_move("id-vm1", &intent("alpha", 4, "beta", &alpha), Some(first));
        check(matches!(late, Err(DirectoryError::Changed { key: Key::Leader })), format!("{late:?}"))?;
        beta.begin_move("id-vm1", &intent("alpha", 4, "beta", &beta), Some(second)).map_err(failed)?;
        // The leader's key is removed with its lease.
        drop(beta);
        until("no leader", || alpha.view().leader.is_none())?;
        check(leads(&alpha)?.is_some(), "no host leads")
    });
}

#[test]
fn a_partitioned_host_does_not_take_its_disks_back() {
    test("higher epochs", |place| {
        let etcd = Etcd::start(place)?;
        let (alpha, beta) = (start("alpha", &[etcd.endpoint()])?, start("beta", &[etcd.endpoint()])?);
        alpha.report(report(&alpha, 1, &[("vm1", 4)]));
        until("the disk", || beta.view().disks.contains_key("id-vm1"))?;
        beta.report(report(&beta, 1, &[("vm1", 5)]));
        // Alpha may see its own report later than beta does.
        until("the move", || {
            alpha.view().disks.get("id-vm1").is_some_and(|seen| seen.record == disk("vm1", "beta", 5))
        })?;
        alpha.report(report(&alpha, 2, &[("vm1", 4)]));
        until_seen(&beta, "alpha", 2)?;
        until("the conflict", || !alpha.status().conflicts.is_empty())?;
        let conflict = alpha.status().conflicts.remove(0);
        check(
            conflict.host == "beta" && conflict.directory_epoch == 5 && conflict.epoch == 4,
            format!("{conflict:?}"),
        )?;
        check(
            beta.view().disks["id-vm1"].record == disk("vm1", "beta", 5),
            "an old owner has replaced a new one",
        )?;
        // Nor does it remove the entry when it forgets the disk.
        alpha.report(report(&alpha, 3, &[]));
        until_seen(&beta, "alpha", 3)?;
        until("no conflict", || alpha.status().conflicts.is_empty())?;
        check(beta.view().disks.contains_key("id-vm1"), "an old owner has removed the entry")
    });
}

#[test]
fn two_daemons_with_one_name_do_not_mix() {
    test("one name", |place| {
        let etcd = Etcd::start(place)?;
        let first = start("alpha", &[etcd.endpoint()])?;
        first.report(report(&first, 1, &[("vm1", 1)]));
        until_seen(&first, "alpha", 1)?;
        let second = start("alpha", &[etcd.endpoint()])?;
        until_connected(&second)?;
        let mut number = 1;
        until("the second one's complaint", || {
            number += 1;
            first.report(report(&first, number, &[("vm1", 1)]));
            second.report(report(&second, number, &[("vm2", 1)]));
            std::thread::sleep(Duration::from_millis(50));
            second.status().is_name_taken
        })?;
        check(!first.status().is_name_taken, "the first one complains as well")?;
        check(!first.view().disks.contains_key("id-vm2"), "the second one has written")?;
        check(first.view().disks.contains_key("id-vm1"), "the second one has removed a disk")?;
        drop(first);
        until("the second one", || second.view().disks.contains_key("id-vm2"))?;
        until("the end of the complaint", || !second.status().is_name_taken)
    });
}

#[test]
fn what_cannot_be_read_is_replaced_by_its_owner_and_left_alone_by_others() {
    test("nonsense", |place| {
        let etcd = Etcd::start(place)?;
        let raw = Raw::connect(&etcd.endpoint())?;
        raw.put("/haversack/v1/disks/later", r#"{"version":2,"name":"vm9"}"#)?;
        let alpha = start("alpha", &[etcd.endpoint()])?;
        alpha.report(report(&alpha, 1, &[("vm1", 1)]));
        until_seen(&alpha, "alpha", 1)?;
        raw.put("/haversack/v1/hosts/beta", "nonsense")?;
        raw.put("/haversack/v1/something/else", "{}")?;
        raw.put("/haversack/v1/disks/id-vm1", "[]")?;
        until("the nonsense", || alpha.view().unreadable.len() == 3)?;
        let view = alpha.view();
        let why = &view.unreadable[&Key::Disk("later".into())].why;
        check(why.contains("version 2 is later than 1"), why)?;
        check(!view.disks.contains_key("id-vm1") && !view.hosts.contains_key("beta"), "it was understood")?;
        // A later version's, which says that another host has the disk; and one of an earlier epoch.
        raw.put("/haversack/v1/disks/id-vm2", r#"{"version":2,"host":"beta","epoch":9}"#)?;
        raw.put("/haversack/v1/disks/id-vm3", r#"{"version":2,"host":"beta","epoch":3}"#)?;
        raw.put("/haversack/v1/pools/alpha/fast", "nonsense")?;
        until("more nonsense", || alpha.view().unreadable.len() == 6)?;
        alpha.report(report(&alpha, 2, &[("vm1", 1), ("vm2", 4), ("vm3", 4)]));
        until("the disks", || {
            let view = alpha.view();
            ["id-vm1", "id-vm3"].iter().all(|disk| view.disks.contains_key(*disk))
                && view.pools.contains_key(&("alpha".into(), "fast".into()))
        })?;
        let left: Vec<_> = alpha.view().unreadable.keys().map(ToString::to_string).collect();
        let expected = ["hosts/beta", "disks/id-vm2", "disks/later"];
        check(left == expected.map(|key| format!("/haversack/v1/{key}")), format!("{left:?}"))?;
        let conflicts = alpha.status().conflicts;
        check(conflicts.len() == 1 && conflicts[0].directory_epoch == 9, format!("{conflicts:?}"))
    });
}

#[test]
fn many_disks_are_written_and_read_in_parts() {
    test("many disks", |place| {
        let etcd = Etcd::start(place)?;
        let alpha = start("alpha", &[etcd.endpoint()])?;
        let names: Vec<_> = (0..1200).map(|number| format!("vm{number}")).collect();
        let disks: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
        alpha.report(report(&alpha, 1, &disks));
        until("the report", || alpha.status().is_reported)?;
        let beta = start("beta", &[etcd.endpoint()])?;
        until("the disks", || beta.view().disks.len() == 1200)?;
        check(beta.status().full_reads == 1, "it has read more than once")?;
        alpha.report(report(&alpha, 2, &disks[..3]));
        until("fewer disks", || beta.view().disks.len() == 3)
    });
}

#[test]
fn etcd_is_reached_over_tls_with_certificates_on_both_sides() {
    test("TLS", |place| {
        let certificates = Certificates::make(place, "tls")?;
        let strangers = Certificates::make(place, "strangers")?;
        let etcd = Etcd::with_tls(place, &certificates)?;
        let with = |authority: &Certificates, identity: Option<&Certificates>| {
            let file = |of: &Certificates, name: &str| of.path(name);
            let identity = identity.map(|of| (file(of, "client-cert.pem"), file(of, "client-key.pem")));
            let tls = Some(TlsFiles { authority: file(authority, "ca-cert.pem"), identity });
            let endpoints = vec![etcd.endpoint()];
            Directory::start(Config { endpoints, tls, user: None, name: "alpha".into(), lease: LEASE })
                .map_err(failed)
        };
        let alpha = with(&certificates, Some(&certificates))?;
        alpha.report(report(&alpha, 1, &[("vm1", 1)]));
        until_seen(&alpha, "alpha", 1)?;
        for (authority, identity) in
            [(&strangers, Some(&certificates)), (&certificates, None), (&certificates, Some(&strangers))]
        {
            let refused = with(authority, identity)?;
            let why = || refused.status().error.unwrap_or_default();
            until("a refusal", || why().contains(&etcd.endpoint()))?;
            check(refused.status().connections == 0, "it has connected")?;
            place.say(&why());
        }
        let missing = TlsFiles { authority: place.path("nothing.pem"), identity: None };
        let endpoints = vec![etcd.endpoint()];
        let lost = Directory::start(Config {
            endpoints,
            tls: Some(missing),
            user: None,
            name: "beta".into(),
            lease: LEASE,
        });
        let lost = lost.map_err(failed)?;
        until("the missing file", || lost.status().error.unwrap_or_default().contains("nothing.pem"))
    });
}

#[test]
fn etcd_may_ask_for_a_user_and_a_password() {
    test("a password", |place| {
        let etcd = Etcd::start(place)?;
        Raw::connect(&etcd.endpoint())?.ask_for_users("haversack", "secret")?;
        let with = |name: &str, password: Option<&str>| -> Result<Directory> {
            let file = place.path(format!("{name}-password"));
            let user = password.map(|password| -> Result<_> {
                std::fs::write(&file, format!("{password}\n")).map_err(Error::io("a password"))?;
                Ok(("haversack".to_string(), file.clone()))
            });
            let user = user.transpose()?;
            let endpoints = vec![etcd.endpoint()];
            Directory::start(Config { endpoints, tls: None, user, name: name.into(), lease: LEASE })
                .map_err(failed)
        };
        let alpha = with("alpha", Some("secret"))?;
        alpha.report(report(&alpha, 1, &[("vm1", 1)]));
        until_seen(&alpha, "alpha", 1)?;
        for (name, password) in [("beta", None), ("gamma", Some("wrong")), ("delta", Some(""))] {
            let refused = with(name, password)?;
            let why = || refused.status().error.unwrap_or_default();
            until("a refusal", || !why().is_empty() && why() != "not connected yet")?;
            check(refused.status().connections == 0, "it has connected")?;
            check(!why().contains("wrong") && !why().contains("secret"), why())?;
            place.say(&why());
        }
        // The login stays valid: etcd forgets a client that it has not heard from for some time.
        alpha.report(report(&alpha, 2, &[("vm1", 1), ("vm2", 1)]));
        until("the second report", || alpha.view().disks.len() == 2)
    });
}

/// Ages are measured by the monotonic clock alone, so that a step of the system's clock changes nothing.
#[test]
fn the_directory_does_not_look_at_the_time_of_day() {
    let crates = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates");
    for name in ["directory", "etcd", "moves"] {
        for entry in std::fs::read_dir(format!("{crates}/{name}/src")).unwrap() {
            let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            assert!(!text.contains("SystemTime"));
        }
    }
}
