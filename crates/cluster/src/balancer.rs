//! When VMs move: the state that lasts from round to round, and the rules that keep the cluster from oscillating.

use std::collections::{BTreeMap, HashMap, VecDeque};

use haversack_model::Micros;
use serde::{Deserialize, Serialize};

use crate::error::ClusterError;
use crate::plan::{Move, Plan, Why};
use crate::round::{Memory, Moved, Round};
use crate::settings::{HOUR_US, Settings};
use crate::snapshot::{HostName, Snapshot, VmName};
use crate::view::{HostView, View};

/// A move that was begun.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MoveRecord {
    /// When it was begun.
    pub at_us: Micros,
    /// The VM.
    pub vm: VmName,
    /// The host that it left.
    pub from: HostName,
    /// The host that it went to.
    pub to: HostName,
    /// Whether its host was draining: such moves do not count in the limit per hour.
    pub draining: bool,
}

/// What is remembered of a host.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
struct Past {
    /// Consecutive windows with too much demand.
    windows: u32,
    /// Its loads in the last windows in thousandths, rounded down, the newest last: short, as the state is saved each
    /// window.
    loads: VecDeque<u16>,
}

/// Decides moves. All of its state can be saved with serde. A new leader that has no saved state restores the moves
/// from the directory's history ([`Balancer::restore`]) and counts windows from then on.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Balancer {
    settings: Settings,
    /// Serving hosts.
    hosts: BTreeMap<HostName, Past>,
    /// Moves that still count, the oldest first.
    moves: VecDeque<MoveRecord>,
}

impl Balancer {
    /// Makes a balancer that knows nothing yet.
    ///
    /// # Errors
    /// `BadSetting`.
    pub fn new(settings: Settings) -> Result<Balancer, ClusterError> {
        settings.check()?;
        Ok(Balancer { settings, hosts: BTreeMap::new(), moves: VecDeque::new() })
    }

    /// Makes a balancer that knows which moves were made, as from the directory's history, in any order.
    ///
    /// # Errors
    /// `BadSetting`.
    pub fn restore(settings: Settings, moves: Vec<MoveRecord>) -> Result<Balancer, ClusterError> {
        let mut balancer = Balancer::new(settings)?;
        moves.into_iter().for_each(|moved| balancer.record(moved));
        Ok(balancer)
    }

    /// Returns the settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Replaces the settings; what was observed and moved is kept.
    ///
    /// # Errors
    /// `BadSetting`; the old settings stay.
    pub fn set(&mut self, settings: Settings) -> Result<(), ClusterError> {
        settings.check()?;
        self.settings = settings;
        Ok(())
    }

    /// Takes the cluster at the end of a window: [`Balancer::observe`], then [`Balancer::plan`].
    ///
    /// # Errors
    /// The snapshot contradicts itself.
    pub fn round(&mut self, now_us: Micros, snapshot: &Snapshot) -> Result<Plan, ClusterError> {
        let view = View::new(snapshot)?;
        self.observe_view(&view);
        Ok(self.plan_view(now_us, view))
    }

    /// Counts the windows with too much demand. Call it once at the end of each window.
    ///
    /// # Errors
    /// The snapshot contradicts itself.
    pub fn observe(&mut self, snapshot: &Snapshot) -> Result<(), ClusterError> {
        self.observe_view(&View::new(snapshot)?);
        Ok(())
    }

    /// Returns what should move, without changing anything. `now_us` is on the clock of [`MoveRecord::at_us`], which
    /// must be the same for all leaders.
    ///
    /// # Errors
    /// The snapshot contradicts itself.
    pub fn plan(&self, now_us: Micros, snapshot: &Snapshot) -> Result<Plan, ClusterError> {
        Ok(self.plan_view(now_us, View::new(snapshot)?))
    }

    fn observe_view(&mut self, view: &View) {
        let mut before = std::mem::take(&mut self.hosts);
        for host in view.hosts.iter().filter(|host| host.is_serving()) {
            let load = host.load();
            let mut past = before.remove(&host.host.name).unwrap_or_default();
            past.windows = if load > self.settings.threshold { past.windows.saturating_add(1) } else { 0 };
            past.loads.push_back((load * 1000.0) as u16);
            let kept = self.settings.calm_windows as usize;
            past.loads.drain(..past.loads.len().saturating_sub(kept));
            self.hosts.insert(host.host.name.clone(), past);
        }
    }

    fn plan_view(&self, now_us: Micros, view: View) -> Plan {
        let memory = |host: &HostView| self.memory(&host.host.name);
        let age_us = |moved: &MoveRecord| now_us.saturating_sub(moved.at_us);
        let is_counted = |moved: &&MoveRecord| !moved.draining && age_us(moved) < HOUR_US;
        let made = u32::try_from(self.moves.iter().filter(is_counted).count()).unwrap_or(u32::MAX);
        let host_moves_left = |host: &HostView| self.settings.max_moves_per_host.saturating_sub(host.moving);
        let round = Round {
            settings: &self.settings,
            memory: view.hosts.iter().map(memory).collect(),
            moved: self.moved(now_us, &view),
            moves_left: self.settings.max_moves_per_hour.saturating_sub(made),
            host_moves_left: view.hosts.iter().map(host_moves_left).collect(),
            smallest: view.smallest(),
            is_balancing: false,
            plan: Plan::default(),
            view,
        };
        round.run()
    }

    /// Returns what is remembered of a host.
    pub(crate) fn memory(&self, host: &HostName) -> Memory {
        self.hosts.get(host).map_or(Memory::default(), |past| Memory {
            windows: past.windows,
            peak_load: past.loads.iter().max().map_or(0.0, |load| f64::from(*load) / 1000.0),
        })
    }

    /// Returns whether the host had no overloaded window among the last `windows` windows, the number after which a
    /// host counts as overloaded.
    pub(crate) fn is_calm(&self, host: &HostName) -> bool {
        let Some(past) = self.hosts.get(host) else { return false };
        let windows = self.settings.windows as usize;
        let high = |load: &u16| f64::from(*load) / 1000.0 > self.settings.threshold;
        past.windows == 0 && past.loads.len() >= windows && !past.loads.iter().rev().take(windows).any(high)
    }

    /// Returns the moves of the snapshot's VMs that restrict further ones.
    fn moved(&self, now_us: Micros, view: &View) -> HashMap<usize, Moved> {
        let mut all: HashMap<usize, Moved> = HashMap::new();
        for record in &self.moves {
            let age_us = now_us.saturating_sub(record.at_us);
            let Ok(vm) = view.vms.binary_search_by(|vm| vm.vm.name.cmp(&record.vm)) else { continue };
            let moved = all.entry(vm).or_default();
            moved.is_recent |= age_us < self.settings.min_residence_us;
            let left = view.hosts.binary_search_by(|host| host.host.name.cmp(&record.from));
            if let Ok(left) = left
                && age_us < self.settings.no_return_us
            {
                moved.left.push(left);
            }
        }
        all
    }

    /// Records a move that was begun, proposed by the balancer or not. A move that is not recorded may be proposed
    /// again.
    pub fn record(&mut self, moved: MoveRecord) {
        let place = self.moves.partition_point(|other| other.at_us <= moved.at_us);
        self.moves.insert(place, moved);
        let newest_us = self.moves.back().map_or(0, |moved| moved.at_us);
        let kept_us = HOUR_US.max(self.settings.min_residence_us).max(self.settings.no_return_us);
        while self.moves.front().is_some_and(|moved| newest_us - moved.at_us > kept_us) {
            self.moves.pop_front();
        }
    }

    /// Forgets a recorded move that was not carried out. The VM is still where it was and may be moved at any time.
    pub fn forget(&mut self, moved: &MoveRecord) {
        self.moves.retain(|other| other != moved);
    }

    /// Records moves that another host knows of; `their_now_us` is the time on that host's clock. If both hosts know a
    /// move, the later time is kept.
    pub fn learn(&mut self, now_us: Micros, moves: &[MoveRecord], their_now_us: Micros) {
        for moved in moves {
            let at_us = now_us.saturating_sub(their_now_us.saturating_sub(moved.at_us));
            let is_same = |known: &MoveRecord| {
                (&known.vm, &known.from, &known.to) == (&moved.vm, &moved.from, &moved.to)
            };
            let place = self.moves.iter().position(is_same);
            if place.is_some_and(|place| self.moves[place].at_us >= at_us) {
                continue;
            }
            place.into_iter().for_each(|place| drop(self.moves.remove(place)));
            self.record(MoveRecord { at_us, ..moved.clone() });
        }
    }

    /// Advances the clock on which moves are recorded.
    pub fn advance(&mut self, by_us: Micros) {
        self.moves.iter_mut().for_each(|moved| moved.at_us = moved.at_us.saturating_add(by_us));
    }

    /// Continues with the windows that another host has observed.
    pub fn go_on_from(&mut self, other: Balancer) {
        self.hosts = other.hosts;
    }

    /// Returns the moves that still count, the oldest first.
    pub fn moves(&self) -> impl Iterator<Item = &MoveRecord> {
        self.moves.iter()
    }
}

impl MoveRecord {
    /// Makes the record of a proposed move that is begun now.
    pub fn of(at_us: Micros, moved: &Move) -> MoveRecord {
        MoveRecord {
            at_us,
            vm: moved.vm.clone(),
            from: moved.from.clone(),
            to: moved.to.clone(),
            draining: moved.why == Why::Draining,
        }
    }
}
