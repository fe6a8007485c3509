//! The host that balances: what it does next.
//!
//! One of the hosts that have the operator's program moves VMs, one at a time. [`Mover::round`] begins a round. Each
//! step says what to do, and the driver calls the method that takes the outcome, until there is nothing more to do.
//! Then the driver removes the intents of the round.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use haversack_cluster::{ClusterError, Move, MoveRecord, Plan, VmName};
use haversack_directory::bugs::{Bug, planted};
use haversack_directory::{BalanceRecord, DirectoryError, IntentRecord, Leadership, View};
use serde::Serialize;

use crate::observed::Observed;
use crate::snapshot;

/// How long a VM is not moved again.
#[derive(Clone, Copy, Debug)]
pub struct Rests {
    /// After a move that has failed.
    pub after_failure: Duration,
    /// After a move that was made or could not begin, in report periods of the hosts: until both hosts have reported
    /// the result.
    pub reports: f64,
    /// The minimum after such a move.
    pub least: Duration,
    /// After a move that was made and that no disk of the VM has followed, since the VM is idle.
    pub until_followed: Duration,
}

impl Default for Rests {
    fn default() -> Rests {
        let after_failure = Duration::from_secs(600);
        Rests {
            after_failure,
            reports: 2.0,
            least: Duration::from_secs(1),
            until_followed: Duration::from_secs(3600),
        }
    }
}

/// The program's task.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Order {
    /// The VM.
    pub vm: String,
    /// The host that it leaves.
    pub from: String,
    /// The host that it goes to.
    pub to: String,
    /// Its disks.
    pub disks: Vec<OrderedDisk>,
    /// Why.
    pub reason: String,
}

/// A disk of the VM.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct OrderedDisk {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub id: String,
}

/// What to do next.
#[derive(Debug)]
pub enum Act {
    /// Become or stay the host that balances: [`Mover::led`] takes the outcome.
    Lead,
    /// Have the balancer make a plan: [`Mover::planned`].
    Plan,
    /// Put an intent into the directory: [`Mover::began`].
    Begin {
        /// The disk's identity.
        disk: String,
        /// The intent.
        intent: IntentRecord,
        /// This host's right to write it.
        leadership: Leadership,
    },
    /// Put what the balancer knows into the directory: [`Mover::handed_on`].
    HandOn {
        /// What it knows.
        record: BalanceRecord,
        /// This host's right to write it.
        leadership: Leadership,
    },
    /// Have the program move a VM: [`Mover::moved`].
    Call(Order),
    /// Say that the program is not called for a VM, and why. The round is over.
    Refuse {
        /// The VM.
        vm: String,
        /// Why.
        why: String,
    },
}

/// A move that is being begun.
#[derive(Debug)]
struct Beginning {
    order: Order,
    moved: Move,
    /// Its disks, by identity, and the epochs under which the host that it leaves owns them.
    owned: Vec<(String, u64)>,
    /// Intents that are not in the directory yet.
    intents: Vec<(String, IntentRecord)>,
    /// What the balancer has recorded about it.
    recorded: Option<MoveRecord>,
}

/// A VM that the program has moved. Some disks follow only when the VM writes.
#[derive(Debug)]
struct Made {
    owned: Vec<(String, u64)>,
    from: String,
    until: Instant,
}

impl Made {
    /// Returns whether the directory has all disks where they were when the move began.
    fn is_followed_by_none(&self, view: &View) -> bool {
        self.owned.iter().all(|(disk, epoch)| {
            let record = view.disks.get(disk).map(|disk| &disk.record);
            record.is_some_and(|record| record.host == self.from && record.epoch == *epoch)
        })
    }
}

/// See the module.
#[derive(Debug)]
pub struct Mover {
    me: String,
    instance: u64,
    rests: Rests,
    /// The most time that the program may take, in milliseconds.
    most_ms: u64,
    /// Returns an error for a name that cannot be passed to the program.
    check_name: fn(&str) -> Result<(), String>,
    leadership: Option<Leadership>,
    /// VMs that are left alone, and until when.
    resting: HashMap<VmName, Instant>,
    /// VMs that the program has moved, until one of their disks has followed.
    made: HashMap<VmName, Made>,
    report_every_s: f64,
    beginning: Option<Beginning>,
}

impl Mover {
    /// Creates the mover of a daemon that stops the program that moves a VM after the time `most`.
    pub fn new(
        me: &str,
        instance: u64,
        rests: Rests,
        most: Duration,
        check_name: fn(&str) -> Result<(), String>,
    ) -> Mover {
        let most_ms = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
        Mover {
            me: me.into(),
            instance,
            rests,
            most_ms,
            check_name,
            leadership: None,
            resting: HashMap::new(),
            made: HashMap::new(),
            report_every_s: 0.0,
            beginning: None,
        }
    }

    /// Begins a round. Does nothing while the view is not up to date (`is_current`).
    pub fn round(&mut self, is_current: bool) -> Option<Act> {
        self.beginning = None;
        if !is_current {
            self.leadership = None;
            return None;
        }
        Some(Act::Lead)
    }

    /// Handles the answer to whether this host balances.
    pub fn led(
        &mut self,
        led: Result<Option<Leadership>, DirectoryError>,
        observed: &mut Observed,
        view: &View,
        now: Instant,
    ) -> Option<Act> {
        let led = led.unwrap_or_else(|error| {
            tracing::debug!("nothing is balanced: {error}");
            None
        });
        let before = self.leadership.take();
        let leadership = led?;
        // Another host may have balanced while a program ran. The state that it handed on last must be in the view.
        let is_new = before != Some(leadership);
        if is_new && !leadership.is_seen(view) {
            return None;
        }
        self.leadership = Some(leadership);
        if is_new {
            tracing::info!("this host balances the cluster");
            observed.take_over(view, now);
        }
        self.resting.retain(|_, until| *until > now);
        self.made.retain(|_, made| made.until > now && made.is_followed_by_none(view));
        Some(Act::Plan)
    }

    /// Handles the result of [`Act::Plan`]: a plan that is based on this view.
    pub fn planned(
        &mut self,
        plan: Result<Plan, ClusterError>,
        observed: &Observed,
        view: &View,
        now: Instant,
    ) -> Option<Act> {
        let plan = plan.unwrap_or_else(|error| {
            tracing::debug!("nothing is balanced: {error}");
            Plan::default()
        });
        let Some(moved) = plan.moves.into_iter().find(|moved| self.may_begin(moved, view)) else {
            return self.hand_on(observed, now);
        };
        let beginning = self.beginning(moved, view);
        let Order { vm, from, to, disks, .. } = &beginning.order;
        let names = [vm, from, to].into_iter().chain(disks.iter().map(|disk| &disk.name));
        let refused = names.into_iter().find_map(|name| (self.check_name)(name).err());
        if let Some(why) = refused {
            let vm = beginning.moved.vm;
            self.rest(vm.clone(), self.rests.after_failure, now);
            return Some(Act::Refuse { vm: vm.0, why });
        }
        self.report_every_s = view.hosts.values().map(|host| host.record.report_every_s).fold(0.0, f64::max);
        self.beginning = Some(beginning);
        self.begin_next(observed, now)
    }

    fn may_begin(&self, moved: &Move, view: &View) -> bool {
        let from = view.hosts.get(&moved.from.0);
        let is_connected = from.is_some_and(|from| from.record.reaches.contains(&moved.to.0));
        let rests = self.resting.contains_key(&moved.vm) || self.made.contains_key(&moved.vm);
        is_connected && !rests
    }

    fn beginning(&self, moved: Move, view: &View) -> Beginning {
        let disks = snapshot::disks_of(view, [(moved.vm.0.as_str(), moved.from.0.as_str())]);
        let disks: Vec<snapshot::Named> = disks.into_values().flatten().collect();
        let reason = moved.to_string();
        let intent = |id: &String| {
            let entry = &view.disks.get(id)?.record;
            let intent = IntentRecord {
                name: entry.name.clone(),
                from: entry.host.clone(),
                epoch: entry.epoch,
                to: moved.to.0.clone(),
                by: self.me.clone(),
                instance: self.instance,
                reason: reason.clone(),
                is_ordered: false,
                most_ms: Some(self.most_ms),
            };
            Some((id.clone(), intent))
        };
        let intents: Vec<(String, IntentRecord)> =
            disks.iter().rev().filter_map(|(id, _)| intent(id)).collect();
        let owned = intents.iter().map(|(id, intent)| (id.clone(), intent.epoch)).collect();
        let order = Order {
            vm: moved.vm.0.clone(),
            from: moved.from.0.clone(),
            to: moved.to.0.clone(),
            disks: disks.into_iter().map(|(id, name)| OrderedDisk { name, id }).collect(),
            reason,
        };
        Beginning { order, moved, owned, intents, recorded: None }
    }

    fn begin_next(&mut self, observed: &Observed, now: Instant) -> Option<Act> {
        let leadership = self.leadership?;
        let beginning = self.beginning.as_mut()?;
        match beginning.intents.pop() {
            Some((disk, intent)) => Some(Act::Begin { disk, intent, leadership }),
            None if planted(Bug::HandOnLate) => Some(Act::Call(beginning.order.clone())),
            None => self.hand_on(observed, now),
        }
    }

    /// Handles the result of [`Act::Begin`]: the intent is in the directory, or was refused.
    pub fn began(
        &mut self,
        result: Result<(), DirectoryError>,
        observed: &mut Observed,
        now: Instant,
    ) -> Option<Act> {
        if let Err(error) = result {
            // The program was not called. The next plan is based on the directory as it is then.
            tracing::info!("a VM is not moved now: {error}");
            self.put_off(now);
            return None;
        }
        let beginning = self.beginning.as_mut()?;
        if beginning.intents.is_empty() {
            beginning.recorded = Some(observed.record(&beginning.moved, now));
        }
        self.begin_next(observed, now)
    }

    fn hand_on(&self, observed: &Observed, now: Instant) -> Option<Act> {
        let leadership = self.leadership?;
        Some(Act::HandOn { record: observed.to_hand_on(now), leadership })
    }

    /// Handles the result of [`Act::HandOn`]: the balancer's state is in the directory, or was refused. The host that
    /// balances next must be able to know of a move before the move is made.
    pub fn handed_on(
        &mut self,
        record: BalanceRecord,
        result: Result<(), DirectoryError>,
        observed: &mut Observed,
        now: Instant,
    ) -> Option<Act> {
        if let Err(error) = result {
            tracing::debug!("the balancer's state is not in the directory: {error}");
            // The program is not called, so forget the recorded move.
            let recorded = self.beginning.as_ref().and_then(|beginning| beginning.recorded.as_ref());
            recorded.into_iter().for_each(|moved| observed.forget(moved));
            self.put_off(now);
            return None;
        }
        observed.handed_on(record);
        self.beginning.as_ref().map(|beginning| Act::Call(beginning.order.clone()))
    }

    /// Handles the end of the program: it has moved the VM, or has failed. The round has ended. A failed move counts as
    /// a move, because the VM may have moved before the program failed.
    pub fn moved(&mut self, is_done: bool, now: Instant) {
        if !is_done {
            return self.give_up(now);
        }
        if let Some(Beginning { order, moved, owned, .. }) = &self.beginning {
            let until = now + self.rests.until_followed;
            let made = Made { owned: owned.clone(), from: order.from.clone(), until };
            self.made.insert(moved.vm.clone(), made);
        }
        self.put_off(now);
    }

    /// Excludes the VM from moves until both hosts have reported the result.
    fn put_off(&mut self, now: Instant) {
        let Some(beginning) = self.beginning.take() else { return };
        let (least, most) = (self.rests.least, self.rests.after_failure);
        let time_s = self.report_every_s * self.rests.reports;
        let time_s = time_s.clamp(least.as_secs_f64(), most.as_secs_f64());
        self.rest(beginning.moved.vm, Duration::from_secs_f64(time_s), now);
    }

    fn give_up(&mut self, now: Instant) {
        if let Some(beginning) = self.beginning.take() {
            self.rest(beginning.moved.vm, self.rests.after_failure, now);
        }
    }

    fn rest(&mut self, vm: VmName, time: Duration, now: Instant) {
        self.resting.insert(vm, now + time);
    }
}

#[cfg(test)]
mod tests {
    use haversack_cluster::{Balancer, Settings};
    use haversack_directory::DrainRecord;

    use super::*;
    use crate::samples::{add_disk, add_host, seen};

    /// A cluster whose host alpha is drained, and the host that balances.
    struct Scene {
        view: View,
        observed: Observed,
        mover: Mover,
        start: Instant,
    }

    impl Scene {
        fn new() -> Scene {
            let mut view = View::default();
            for host in ["alpha", "beta"] {
                add_host(&mut view, host, true);
                let others = ["alpha", "beta"].map(String::from).into_iter().filter(|other| other != host);
                view.hosts.get_mut(host).unwrap().record.reaches = others.collect();
            }
            add_disk(&mut view, "id", "vm1", None, "alpha");
            view.drains.insert("alpha".into(), seen(DrainRecord::default()));
            let start = Instant::now();
            let observed = Observed::new(Balancer::new(Settings::default()).unwrap(), start);
            let mover = Mover::new("beta", 1, Rests::default(), Duration::from_secs(60), |_| Ok(()));
            Scene { view, observed, mover, start }
        }

        /// Runs a round. Returns whether the program was called; it says that it has moved the VM.
        fn calls(&mut self, seconds: u64) -> bool {
            let Scene { view, observed, mover, start } = self;
            let now = *start + Duration::from_secs(seconds);
            let mut act = mover.round(true);
            while let Some(next) = act {
                act = match next {
                    Act::Lead => mover.led(Ok(Some(Leadership::since(0))), observed, view, now),
                    Act::Plan => {
                        let (balancer, now_us) = observed.balancer(now);
                        let plan = balancer.plan(now_us, &snapshot::of(view));
                        mover.planned(plan, observed, view, now)
                    }
                    Act::Begin { .. } => mover.began(Ok(()), observed, now),
                    Act::HandOn { record, .. } => mover.handed_on(record, Ok(()), observed, now),
                    Act::Call(_) => {
                        mover.moved(true, now);
                        return true;
                    }
                    Act::Refuse { .. } => unreachable!("the name is good"),
                };
            }
            false
        }
    }

    #[test]
    fn the_program_is_not_called_again_for_a_vm_that_is_idle_at_its_destination() {
        let mut scene = Scene::new();
        assert!(scene.calls(0), "the host is drained");
        assert!((1..3600).step_by(10).all(|seconds| !scene.calls(seconds)));
        assert!(scene.calls(3600), "after an hour the VM may have come back");

        // The VM has written at its destination, and comes back.
        scene.view.disks.get_mut("id").unwrap().record.epoch += 2;
        assert!(scene.calls(3630));
    }
}
