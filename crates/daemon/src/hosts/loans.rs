//! Reports loans of flash to operators: a list of them, and events.
//!
//! Invariant
//! - For each lender and each pool, there is at most one event of each kind in [`EVERY`], however often the state
//!   changes.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use haversack_api::{BorrowedLoans, LenderState, LendingPool, LentLoans, Loans};
use haversack_engine::LendingStatus;
use haversack_lend::{AtLender, Cause, LoanStatus};
use haversack_model::{BLOCK_BYTES, DiskId, HostId};

use super::Hosts;
use super::lending::LenderFlags;
use crate::daemon::Daemon;
use crate::locked::Locked;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// The least time between two events of a kind.
const EVERY: Duration = Duration::from_secs(60);
/// A lender that is away for a shorter time is no event.
const GRACE: Duration = Duration::from_secs(10);

/// The state of a lender that this host is to borrow from.
struct LenderNow {
    host: String,
    /// It is connected, and lends to this host.
    is_there: bool,
    /// Why a disk has paused asking it, if one has.
    pause: Option<Cause>,
    /// How often disks have paused asking it.
    pauses: u64,
    /// It has answered a disk since the pause.
    answers: bool,
}

/// What operators were told of a lender.
#[derive(Default)]
struct Told {
    away_since: Option<Instant>,
    is_away: bool,
    is_paused: bool,
    pauses: u64,
    at: HashMap<&'static str, Instant>,
}

impl Told {
    /// Returns whether an event of this kind may be added.
    fn may(&mut self, kind: &'static str, now: Instant) -> bool {
        let may = self.at.get(kind).is_none_or(|at| now.saturating_duration_since(*at) >= EVERY);
        if may {
            self.at.insert(kind, now);
        }
        may
    }
}

/// Notices changes of lenders and loans.
#[derive(Default)]
pub(super) struct Watch {
    lenders: BTreeMap<String, Told>,
    /// How many loans each pool had taken back when that was told, and when.
    taken_back: BTreeMap<String, (u64, Option<Instant>)>,
}

/// An event: its kind, its subject and its message.
type News = (&'static str, String, String);

impl Watch {
    fn look_at_lender(&mut self, now: Instant, lender: &LenderNow) -> Option<News> {
        let told = self.lenders.entry(lender.host.clone()).or_default();
        let host = &lender.host;
        let news = |kind, text: String| Some((kind, "daemon".to_string(), text));
        if !lender.is_there {
            let since = *told.away_since.get_or_insert(now);
            let is_due = now.saturating_duration_since(since) >= GRACE && !told.is_away;
            if is_due && told.may("loan-unreachable", now) {
                told.is_away = true;
                let text = format!(
                    "host '{host}' is not connected or does not lend to this host: what it has is read from the origins"
                );
                return news("loan-unreachable", text);
            }
            return None;
        }
        told.away_since = None;
        // The count also drops when disks are detached.
        let is_new = lender.pauses > told.pauses;
        told.pauses = lender.pauses;
        let is_paused = lender.pause.is_some() || is_new;
        if is_paused {
            if !told.is_paused && told.may("loan-paused", now) {
                told.is_paused = true;
                let why = match lender.pause {
                    Some(Cause::Slow) => "answers slower than the origin",
                    Some(Cause::Fails) => "does not answer in time",
                    None => "did not answer in time, or slower than the origin",
                };
                return news("loan-paused", format!("host '{host}' {why}: it is not asked for a while"));
            }
            return None;
        }
        if told.is_away || (told.is_paused && lender.answers) {
            (told.is_away, told.is_paused) = (false, false);
            return news("loan-resumed", format!("host '{host}' is asked for blocks again"));
        }
        None
    }

    fn look_at_pool(&mut self, now: Instant, pool: &str, taken_back: u64) -> Option<News> {
        let (told, at) = self.taken_back.entry(pool.into()).or_default();
        let is_due = at.is_none_or(|at| now.saturating_duration_since(at) >= EVERY);
        // A pool that was opened again counts from 0.
        let since = if taken_back < *told { taken_back } else { taken_back - *told };
        if since == 0 || !is_due {
            return None;
        }
        (*told, *at) = (taken_back, Some(now));
        let text =
            format!("{since} loans were taken back from other hosts: disks of this host need the space");
        Some(("loan-taken-back", pool.into(), text))
    }
}

fn state(lender: Option<&LenderFlags>, at: &AtLender) -> LenderState {
    match lender {
        Some(lender) if !lender.is_chosen() => LenderState::Unused,
        Some(lender) if lender.lends() => match (at.pause, at.answers) {
            (Some(_), _) => LenderState::Paused,
            (None, false) => LenderState::Trial,
            (None, true) => LenderState::Asked,
        },
        _ => LenderState::Unreachable,
    }
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

fn borrowed(disk: &str, hosts: &Hosts, at: &AtLender) -> BorrowedLoans {
    BorrowedLoans {
        disk: disk.into(),
        host: hosts.name_of(at.host),
        state: state(hosts.lending.lenders.get(&at.host), at),
        pause_left_s: at.pause.map(|pause| seconds(pause.left_us)),
        pauses: at.pauses,
        loans: at.loans,
        capacity_bytes: at.most_blocks * BLOCK,
        used_bytes: at.blocks * BLOCK,
        age_s: seconds(at.oldest_us),
        asked_blocks: at.asked_blocks,
        hit_blocks: at.hit_blocks,
        ended_loans: at.ended_loans,
        latency_us: at.mean_us,
    }
}

impl Daemon {
    fn lending_statuses(&self) -> Vec<(String, LendingStatus)> {
        // A pool that has stopped has lent nothing.
        let status =
            |pool: &crate::pool::Pool| Some((pool.name.clone(), pool.backend.lending_status().ok()?));
        self.pools().filter_map(status).collect()
    }

    /// Returns what this host lends and borrows.
    pub fn loans(&self) -> Loans {
        let Some(hosts) = self.hosts() else { return Loans::default() };
        let mut loans = Loans::default();
        for (pool, status) in self.lending_statuses() {
            for one in &status.borrowed {
                let of_disk = one.lenders.iter().map(|at| borrowed(&one.disk, &hosts, at));
                loans.borrowed.extend(of_disk);
            }
            if !status.lends {
                continue;
            }
            let mut lent: BTreeMap<(HostId, DiskId), LentLoans> = BTreeMap::new();
            for loan in &status.loans {
                let new = || LentLoans {
                    pool: pool.clone(),
                    host: hosts.name_of(loan.host),
                    disk: self.name_in_cluster(loan.disk),
                    loans: 0,
                    capacity_bytes: 0,
                    used_bytes: 0,
                    age_s: 0.0,
                    asked_blocks: 0,
                    hit_blocks: 0,
                };
                count(lent.entry((loan.host, loan.disk)).or_insert_with(new), loan);
            }
            loans.lent.extend(lent.into_values());
            loans.lends.push(LendingPool {
                pool,
                capacity_bytes: status.capacity_blocks * BLOCK,
                promised_bytes: status.lent.promised_blocks * BLOCK,
                spare_bytes: status.spare_blocks * BLOCK,
                taken_back: status.lent.given_back,
            });
        }
        loans.lent.sort_by(|a, b| (&a.host, &a.disk).cmp(&(&b.host, &b.disk)));
        loans.borrowed.sort_by(|a, b| (&a.disk, &a.host).cmp(&(&b.disk, &b.host)));
        loans
    }

    /// Returns the name of another host's disk as the directory has it, or its identity.
    fn name_in_cluster(&self, disk: DiskId) -> String {
        let id = disk.to_string();
        let named = self.cluster().and_then(|cluster| cluster.name_of_disk(&id));
        named.unwrap_or(id)
    }

    /// Adds events for what has changed.
    pub(super) fn tell_of_loans(&self, hosts: &Hosts) {
        let (now, all) = (Instant::now(), self.lending_statuses());
        let mut watch = hosts.lending.watch.locked();
        for (host, lender) in hosts.lending.lenders.iter().filter(|(_, lender)| lender.is_chosen()) {
            let borrowed = all.iter().flat_map(|(_, status)| &status.borrowed);
            let at: Vec<&AtLender> =
                borrowed.flat_map(|one| &one.lenders).filter(|at| at.host == *host).collect();
            let lender = LenderNow {
                host: hosts.name_of(*host),
                is_there: lender.lends(),
                pause: at.iter().find_map(|at| at.pause.map(|pause| pause.cause)),
                pauses: at.iter().map(|at| at.pauses).sum(),
                answers: at.iter().any(|at| at.answers),
            };
            self.tell(watch.look_at_lender(now, &lender));
        }
        for (pool, status) in all.iter().filter(|(_, status)| status.lends) {
            self.tell(watch.look_at_pool(now, pool, status.lent.given_back));
        }
    }

    fn tell(&self, news: Option<News>) {
        if let Some((kind, subject, text)) = news {
            self.events.add(kind, &subject, text);
        }
    }
}

fn count(lent: &mut LentLoans, loan: &LoanStatus) {
    lent.loans += 1;
    lent.capacity_bytes += u64::from(loan.most_blocks) * BLOCK;
    lent.used_bytes += u64::from(loan.blocks) * BLOCK;
    lent.age_s = lent.age_s.max(seconds(loan.age_us));
    lent.asked_blocks += loan.asked_blocks;
    lent.hit_blocks += loan.hit_blocks;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lender() -> LenderNow {
        LenderNow { host: "beta".into(), is_there: true, pause: None, pauses: 0, answers: true }
    }

    fn kinds(watch: &mut Watch, steps: &[(u64, LenderNow)]) -> Vec<(u64, &'static str)> {
        let start = Instant::now();
        let look = |(second, lender): &(u64, LenderNow)| {
            let news = watch.look_at_lender(start + Duration::from_secs(*second), lender);
            news.map(|(kind, ..)| (*second, kind))
        };
        steps.iter().filter_map(look).collect()
    }

    #[test]
    fn a_lender_that_is_left_alone_and_answers_again_is_told_once() {
        let paused = |pauses| LenderNow { pause: Some(Cause::Fails), pauses, answers: false, ..lender() };
        let trial = |pauses| LenderNow { pauses, answers: false, ..lender() };
        let steps = [
            (0, lender()),
            (2, paused(1)),
            (4, trial(1)),
            (6, paused(2)),
            (8, trial(2)),
            (10, LenderNow { pauses: 2, ..lender() }),
            (12, LenderNow { pauses: 2, ..lender() }),
            // The pause was shorter than the time between two looks, and it is too soon for another event.
            (14, trial(3)),
            (16, LenderNow { pauses: 3, ..lender() }),
            (80, paused(4)),
        ];
        let expected = [(2, "loan-paused"), (10, "loan-resumed"), (80, "loan-paused")];
        assert_eq!(kinds(&mut Watch::default(), &steps), expected);
    }

    #[test]
    fn a_lender_that_is_away_for_long_is_told_once_and_so_is_its_return() {
        let away = || LenderNow { is_there: false, ..lender() };
        let steps = [
            (0, away()),
            (5, lender()),
            (6, away()),
            (14, away()),
            (16, away()),
            (18, away()),
            (100, away()),
            (102, lender()),
            (104, lender()),
        ];
        let expected = [(16, "loan-unreachable"), (102, "loan-resumed")];
        assert_eq!(kinds(&mut Watch::default(), &steps), expected);
    }

    #[test]
    fn loans_that_are_taken_back_one_after_the_other_are_one_event_a_minute() {
        let (mut watch, start) = (Watch::default(), Instant::now());
        let mut look = |second, taken_back| {
            let news = watch.look_at_pool(start + Duration::from_secs(second), "main", taken_back);
            news.map(|(_, _, text)| text.split(' ').next().map(str::to_string))
        };
        let told = [(0, 0), (2, 1), (4, 3), (60, 5), (62, 5), (64, 5), (66, 6)].map(|(s, n)| look(s, n));
        let count = |number: &str| Some(Some(number.to_string()));
        assert_eq!(told, [None, count("1"), None, None, count("4"), None, None]);
    }
}
