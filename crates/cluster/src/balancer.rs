//! When VMs move: the state that lasts from round to round, and the rules that keep the cluster from oscillating.

use std::collections::{BTreeMap, VecDeque};

use haversack_model::Micros;
use serde::{Deserialize, Serialize};

use crate::error::ClusterError;
use crate::plan::{Move, Plan};
use crate::settings::Settings;
use crate::snapshot::{HostName, Snapshot, VmName};

/// A move that was begun.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
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

/// Decides moves. All of its state can be saved with serde. A new leader that has no saved state restores the moves from the
/// directory's history ([`Balancer::restore`]) and counts windows from then on.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Balancer {
    settings: Settings,
    /// Loads of each host in the last windows, the newest last.
    loads: BTreeMap<HostName, VecDeque<f64>>,
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
        Ok(Balancer { settings, loads: BTreeMap::new(), moves: VecDeque::new() })
    }

    /// Makes a balancer that knows which moves were made, as from the directory's history, in any order.
    ///
    /// # Errors
    /// `BadSetting`.
    pub fn restore(settings: Settings, moves: Vec<MoveRecord>) -> Result<Balancer, ClusterError> {
        let _ = moves;
        Balancer::new(settings)
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
        self.observe(snapshot)?;
        self.plan(now_us, snapshot)
    }

    /// Counts the windows with too much demand. Call it once at the end of each window.
    ///
    /// # Errors
    /// The snapshot contradicts itself.
    pub fn observe(&mut self, snapshot: &Snapshot) -> Result<(), ClusterError> {
        let _ = snapshot;
        Ok(())
    }

    /// Returns what should move, without changing anything. `now_us` is on the clock of [`MoveRecord::at_us`], which must be
    /// the same for all leaders.
    ///
    /// # Errors
    /// The snapshot contradicts itself.
    pub fn plan(&self, now_us: Micros, snapshot: &Snapshot) -> Result<Plan, ClusterError> {
        let _ = (now_us, snapshot);
        Ok(Plan::default())
    }

    /// Takes note of a move that was begun, proposed by the balancer or not. A move that is not recorded may be proposed again.
    pub fn record(&mut self, moved: MoveRecord) {
        self.moves.push_back(moved);
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
            draining: moved.why == crate::plan::Why::Draining,
        }
    }
}
