//! What a host remembers for the balancer.
//!
//! Every host observes the windows, and follows what the host that balances hands on through the directory. So the
//! history of moves outlives the leader, and also the directory's data, as long as one host that knows it keeps
//! running.
//!
//! Times are on the cluster's clock, in microseconds. It is not the time of day: it advances with the monotonic clocks
//! of the hosts, and is set forward to the latest time that a host has received.

use std::time::Instant;

use haversack_cluster::{Balancer, ClusterError, HostName, Move, MoveRecord};
use haversack_directory::bugs::{Bug, planted};
use haversack_directory::{BalanceRecord, View};
use haversack_model::Micros;
use serde::Deserialize;

/// What the balancer has seen.
#[derive(Debug)]
pub struct Observed {
    balancer: Balancer,
    /// The cluster's clock at the instant `since`.
    clock_us: Micros,
    since: Instant,
    windows: u64,
    /// What this host has put into the directory last.
    handed_on: Option<BalanceRecord>,
    /// The record that was followed last.
    followed: Option<(i64, Micros)>,
}

impl Observed {
    /// Creates the state of a host that has just started.
    pub fn new(balancer: Balancer, now: Instant) -> Observed {
        Observed { balancer, clock_us: 0, since: now, windows: 0, handed_on: None, followed: None }
    }

    /// Returns the time on the cluster's clock.
    pub fn now_us(&self, now: Instant) -> Micros {
        let passed = now.saturating_duration_since(self.since);
        self.clock_us.saturating_add(u64::try_from(passed.as_micros()).unwrap_or(u64::MAX))
    }

    /// Returns how many windows were observed.
    pub fn windows(&self) -> u64 {
        self.windows
    }

    /// Returns a copy of the balancer, for [`Balancer::plan`] at the time that is returned with it.
    pub fn balancer(&self, now: Instant) -> (Balancer, Micros) {
        (self.balancer.clone(), self.now_us(now))
    }

    /// Returns whether a plan may tell a host to borrow. `borrows`: the host already borrows.
    pub fn may_borrow(&self, host: &str, borrows: bool) -> bool {
        self.balancer.may_borrow(&HostName(host.into()), borrows)
    }

    /// Looks at the hosts' loads at the end of a window.
    ///
    /// # Errors
    /// The directory contradicts itself.
    pub fn observe(&mut self, view: &View) -> Result<(), ClusterError> {
        self.balancer.observe(&crate::snapshot::of(view))?;
        self.windows += 1;
        Ok(())
    }

    /// Records a move that begins now. Returns what was recorded.
    pub fn record(&mut self, moved: &Move, now: Instant) -> MoveRecord {
        let record = MoveRecord::of(self.now_us(now), moved);
        self.balancer.record(record.clone());
        record
    }

    /// Forgets a move that was recorded and was not made.
    pub fn forget(&mut self, moved: &MoveRecord) {
        self.balancer.forget(moved);
    }

    /// Records the moves in the directory that are not this host's own.
    pub fn follow(&mut self, view: &View, now: Instant) {
        let Some(seen) = &view.balance else { return };
        let (record, state) = (&seen.record, (seen.revision, seen.record.clock_us));
        if self.followed == Some(state) || planted(Bug::ForgetMoves) {
            return;
        }
        self.followed = Some(state);
        if self.handed_on.as_ref() == Some(record) {
            return;
        }
        let moves = record.state.get("moves").map(Vec::<MoveRecord>::deserialize);
        match moves {
            Some(Ok(moves)) => {
                let behind_us = record.clock_us.saturating_sub(self.now_us(now));
                self.clock_us = self.clock_us.saturating_add(behind_us);
                self.balancer.advance(behind_us);
                self.balancer.learn(self.now_us(now), &moves, record.clock_us);
            }
            Some(Err(error)) => tracing::warn!("the balancer's earlier state cannot be read: {error}"),
            None => tracing::warn!("the balancer's earlier state has no moves"),
        }
    }

    /// Continues with the state of the host that balanced before, unless that was this one.
    pub fn take_over(&mut self, view: &View, now: Instant) {
        self.follow(view, now);
        let record = view.balance.as_ref().map(|seen| &seen.record);
        let Some(record) = record.filter(|record| self.handed_on.as_ref() != Some(*record)) else { return };
        match Balancer::deserialize(&*record.state) {
            Ok(balancer) => self.balancer.go_on_from(balancer),
            Err(error) => tracing::warn!("the balancer's earlier state cannot be read: {error}"),
        }
    }

    /// Returns what to hand on to the host that balances next.
    pub fn to_hand_on(&self, now: Instant) -> BalanceRecord {
        // This cannot fail: all keys are text.
        let state = serde_json::to_value(&self.balancer).unwrap_or_default();
        BalanceRecord { clock_us: self.now_us(now), state: state.into() }
    }

    /// Records that the handed-on state is in the directory.
    pub fn handed_on(&mut self, record: BalanceRecord) {
        self.handed_on = Some(record);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use haversack_cluster::Settings;
    use haversack_directory::Seen;

    use super::*;

    const SECOND: Micros = 1_000_000;

    fn observed(now: Instant) -> Observed {
        Observed::new(Balancer::new(Settings::default()).unwrap(), now)
    }

    fn moved(vm: &str, at_us: Micros) -> MoveRecord {
        MoveRecord { at_us, vm: vm.into(), from: "alpha".into(), to: "beta".into(), draining: false }
    }

    /// A view in which a leader has handed on these moves when the cluster's clock showed `clock_us`.
    fn view(clock_us: Micros, moves: &[MoveRecord], revision: i64, at: Instant) -> View {
        let balancer = Balancer::restore(Settings::default(), moves.to_vec()).unwrap();
        let record = BalanceRecord { clock_us, state: serde_json::to_value(&balancer).unwrap().into() };
        let seen = Seen { record, created: revision, revision, lease: 0, at };
        let mut view = View::default();
        view.balance = Some(seen);
        view
    }

    /// Returns the VMs that a host knows to be moved, and how many seconds ago.
    fn known(observed: &Observed, now: Instant) -> Vec<(String, u64)> {
        let now_us = observed.now_us(now);
        let age = |moved: &MoveRecord| (moved.vm.0.clone(), (now_us - moved.at_us) / SECOND);
        observed.balancer.moves().map(age).collect()
    }

    #[test]
    fn moves_that_a_host_has_heard_of_outlive_the_directory() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut host = observed(start);
        host.follow(&view(5_000 * SECOND, &[moved("web", 4_900 * SECOND)], 7, start), at(10));
        assert_eq!(known(&host, at(10)), [("web".into(), 100)]);
        // Etcd has been replaced by an empty one, and this host leads.
        host.take_over(&View::default(), at(60));
        assert_eq!(known(&host, at(60)), [("web".into(), 150)]);
        assert_eq!(host.to_hand_on(at(60)).clock_us, 5_050 * SECOND);
    }

    #[test]
    fn a_leader_that_knows_less_makes_no_other_host_forget() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut host = observed(start);
        host.follow(&view(5_000 * SECOND, &[moved("web", 4_900 * SECOND)], 7, start), at(10));
        // Another leader has just started, so its clock shows only 30 s.
        let mut news = view(30 * SECOND, &[moved("db", 20 * SECOND)], 3, start);
        host.follow(&news, at(40));
        host.follow(&news, at(50));
        assert_eq!(known(&host, at(50)), [("web".into(), 140), ("db".into(), 20)]);
        // Of two moves of the same VM, the later one counts.
        news = view(60 * SECOND, &[moved("web", 55 * SECOND)], 4, start);
        host.take_over(&news, at(50));
        assert_eq!(known(&host, at(50)), [("db".into(), 20), ("web".into(), 5)]);
    }

    #[test]
    fn a_record_that_cannot_be_read_changes_nothing() {
        let start = Instant::now();
        let mut host = observed(start);
        let mut bad = view(5_000 * SECOND, &[moved("web", 0)], 7, start);
        bad.balance.as_mut().unwrap().record.state = serde_json::json!({"moves": 3}).into();
        host.follow(&bad, start);
        host.take_over(&bad, start);
        assert!(known(&host, start).is_empty());
        assert_eq!(host.now_us(start), 0);
    }
}
