//! What lasts from window to window: where each disk is in its life, what it has, and the memory of its forecast.
//!
//! The caller closes a window with the facts of all disks and gets the inputs of the decision, to be logged, and the
//! plan. Between windows it tells of events; some of them ask for a decision at once. A refused decision leaves
//! everything as the plan before said; what was measured is not lost for the forecasts.
//!
//! Source: vCacheShare (Meng et al., ATC'14), table 1; a disk whose workload has ended is left out as in ECI-Cache
//! (section 6): it is idle.

use std::collections::BTreeMap;

use haversack_model::{Micros, WriteMode};
use serde::{Deserialize, Serialize};

use crate::allocate::Target;
use crate::config::Config;
use crate::decide::decide;
use crate::error::PolicyError;
use crate::forecast::{Forecast, Forecaster, OutlierFilter, Scored};
use crate::plan::{DiskInput, DiskState, Inputs, Plan};
use crate::window::DiskWindow;

/// What has happened to a disk.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// It was attached, or its VM powered on.
    New,
    /// It was detached, or its VM powered off.
    Ended,
    /// Its VM was suspended.
    Suspended,
    /// Its VM runs again: after a suspension as new, after a stun as before.
    Resumed,
    /// Its VM stands still for a moment: fast suspend, or the stun of a migration.
    Stunned,
    /// It came from another host, with what was measured there.
    MigratingIn(Option<Box<DiskWindow>>),
    /// It goes to another host.
    MigratingOut,
    /// Its origin is being exchanged.
    StorageMigrating,
    /// Its origin has been exchanged.
    StorageMigrated,
}

impl Event {
    /// The name as it is logged.
    pub fn name(&self) -> &'static str {
        match self {
            Event::New => "new",
            Event::Ended => "ended",
            Event::Suspended => "suspended",
            Event::Resumed => "resumed",
            Event::Stunned => "stunned",
            Event::MigratingIn(_) => "migrating-in",
            Event::MigratingOut => "migrating-out",
            Event::StorageMigrating => "storage-migrating",
            Event::StorageMigrated => "storage-migrated",
        }
    }
}

/// What the caller knows of a disk when a window ends or a decision is due.
#[derive(Clone, PartialEq, Debug)]
pub struct DiskFacts {
    /// Its name.
    pub name: String,
    /// The VM that it belongs to.
    pub vm: String,
    /// The tenant that the VM belongs to.
    pub tenant: String,
    /// How much it counts.
    pub priority: f64,
    /// What it must have, in blocks.
    pub reservation_blocks: u64,
    /// What it may have, in blocks.
    pub limit_blocks: u64,
    /// The size that the operator gave it.
    pub fixed_blocks: Option<u64>,
    /// What it has at present, in blocks; counts where it is locked in a shared pool.
    pub used_blocks: u64,
    /// The write mode that it has.
    pub write_mode: WriteMode,
    /// What was measured in the window that has ended; none for a decision between windows.
    pub window: Option<DiskWindow>,
}

/// A disk's memory.
struct Tracked {
    state: DiskState,
    target: Target,
    outliers: OutlierFilter,
    forecast: Scored<Forecaster>,
    window: Option<DiskWindow>,
    /// What it was before it was stunned.
    before_stun: DiskState,
}

impl Tracked {
    fn new(config: &Config, state: DiskState) -> Tracked {
        Tracked {
            state,
            target: Target::Blocks(0),
            outliers: OutlierFilter::default(),
            forecast: Scored::new(Forecaster::new(config.forecast)),
            window: None,
            before_stun: state,
        }
    }

    /// Takes in what was measured. What a locked disk shows says nothing about its demand.
    fn close(&mut self, config: &Config, window: &DiskWindow) {
        if self.state.locked() || self.state.gone() {
            return;
        }
        let idle = window.accesses() == 0;
        self.state = if idle { DiskState::Idle } else { DiskState::Active };
        let observed = config.demand.model().blocks(window) as f64;
        let observed = if config.filter_outliers { self.outliers.filter(observed) } else { observed };
        self.forecast.observe(observed);
        let known_us = self.window.as_ref().and_then(|before| before.origin_latency_us);
        let origin_latency_us = window.origin_latency_us.or(known_us);
        self.window = Some(DiskWindow { origin_latency_us, ..window.clone() });
    }
}

/// The control loop without its clock: monitor, demand, forecast, allocate, plan.
pub struct Controller {
    config: Config,
    disks: BTreeMap<String, Tracked>,
}

impl Controller {
    /// A controller of disks that it will be told of.
    ///
    /// # Errors
    /// As [`Config::check`].
    pub fn new(config: Config) -> Result<Controller, PolicyError> {
        config.check()?;
        Ok(Controller { config, disks: BTreeMap::new() })
    }

    /// What it decides by.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Where a disk is in its life.
    pub fn state(&self, disk: &str) -> Option<DiskState> {
        self.disks.get(disk).map(|tracked| tracked.state)
    }

    /// The mean relative error of a disk's forecasts so far.
    pub fn forecast_error(&self, disk: &str) -> Option<f64> {
        self.disks.get(disk).and_then(|tracked| tracked.forecast.score.mean_error())
    }

    /// What a disk showed in the last window that says something about its demand.
    pub fn window(&self, disk: &str) -> Option<&DiskWindow> {
        self.disks.get(disk)?.window.as_ref()
    }

    /// Takes in a decision that was made before: what its disks were and got, and, where it ended a window, what they had
    /// shown in it.
    pub fn recall(&mut self, inputs: &Inputs, plan: &Plan, ended_window: bool) {
        for input in &inputs.disks {
            let new = || Tracked::new(&self.config, DiskState::New);
            let tracked = self.disks.entry(input.name.clone()).or_insert_with(new);
            let shows = ended_window && !input.state.locked() && !input.state.gone();
            if let Some(window) = input.window.as_ref().filter(|_| shows) {
                tracked.close(&self.config, window);
            }
            tracked.state = input.state;
            if let Some(plan) = plan.disks.get(&input.name) {
                tracked.target = plan.target;
            }
        }
    }

    /// The same disks by another configuration: what they showed in the last window is what is known of them.
    ///
    /// # Errors
    /// As [`Config::check`].
    pub fn reconfigured(self, config: Config) -> Result<Controller, PolicyError> {
        let mut next = Controller::new(config)?;
        for (disk, before) in self.disks {
            let mut tracked = Tracked::new(&next.config, DiskState::New);
            if let Some(window) = &before.window {
                tracked.close(&next.config, window);
            }
            (tracked.state, tracked.before_stun, tracked.target) =
                (before.state, before.before_stun, before.target);
            next.disks.insert(disk, tracked);
        }
        Ok(next)
    }

    /// Goes on with a disk where another controller, of the same configuration, stopped. False if that does not know it.
    pub fn take_over(&mut self, disk: &str, from: &mut Controller) -> bool {
        assert!(self.config == from.config, "forecasts are of one configuration");
        let tracked = from.disks.remove(disk);
        let known = tracked.is_some();
        self.disks.extend(tracked.map(|tracked| (disk.to_string(), tracked)));
        known
    }

    /// Notes what has happened to a disk. Whether a decision is due at once.
    ///
    /// # Errors
    /// `UnknownDisk`; `WrongState` for what cannot happen to it now; as [`DiskWindow::check`] for figures that travelled.
    pub fn event(&mut self, disk: &str, event: Event) -> Result<bool, PolicyError> {
        if let Event::MigratingIn(Some(window)) = &event {
            window.check(disk)?;
        }
        let Some(tracked) = self.disks.get_mut(disk) else {
            return self.first_event(disk, event);
        };
        let (state, wrong) = (tracked.state, wrong_state(disk, tracked.state, &event));
        match event {
            Event::Ended => {
                self.disks.remove(disk);
            }
            Event::Suspended if !state.gone() => *tracked = Tracked::new(&self.config, DiskState::Suspended),
            Event::MigratingOut if !state.gone() => {
                *tracked = Tracked::new(&self.config, DiskState::MigratedOut);
            }
            Event::New | Event::Resumed if state.gone() => {
                *tracked = Tracked::new(&self.config, DiskState::New);
            }
            Event::MigratingIn(window) if state.gone() => *tracked = migrated_in(&self.config, window),
            Event::Stunned if !state.locked() && !state.gone() => {
                tracked.before_stun = state;
                tracked.state = DiskState::Stunned;
            }
            Event::Resumed if state == DiskState::Stunned => tracked.state = tracked.before_stun,
            Event::StorageMigrating if !state.locked() && !state.gone() => {
                tracked.before_stun = state;
                tracked.state = DiskState::StorageMigrating;
                if let Some(window) = &mut tracked.window {
                    window.origin_latency_us = None;
                }
            }
            Event::StorageMigrated if state == DiskState::StorageMigrating => {
                tracked.state = tracked.before_stun;
            }
            _ => return Err(wrong),
        }
        // While a disk is locked the rest of the pool goes on as it is.
        Ok(self.state(disk).is_none_or(|state| !state.locked()))
    }

    fn first_event(&mut self, disk: &str, event: Event) -> Result<bool, PolicyError> {
        let tracked = match event {
            Event::New => Tracked::new(&self.config, DiskState::New),
            Event::MigratingIn(window) => migrated_in(&self.config, window),
            _ => return Err(PolicyError::UnknownDisk { disk: disk.into() }),
        };
        self.disks.insert(disk.into(), tracked);
        Ok(true)
    }

    /// Ends a window, or decides between windows where facts have none. The inputs of the decision, to be logged, and
    /// the plan.
    ///
    /// # Errors
    /// As [`decide`]; `UnknownDisk` for facts of a disk without an event before, `TwiceThere`. The plan before holds.
    pub fn close_window(
        &mut self,
        time_us: Micros,
        pool_blocks: u64,
        facts: &[DiskFacts],
    ) -> Result<(Inputs, Plan), PolicyError> {
        self.check(facts)?;
        let mut disks = Vec::with_capacity(facts.len());
        for disk in facts {
            let Some(tracked) = self.disks.get_mut(&disk.name) else { continue };
            if let Some(window) = &disk.window {
                tracked.close(&self.config, window);
            }
            disks.push(input(tracked, disk));
        }
        let inputs = Inputs { time_us, pool_blocks, disks };
        let plan = decide(&self.config, &inputs)?;
        for (name, disk) in &plan.disks {
            if let Some(tracked) = self.disks.get_mut(name) {
                tracked.target = disk.target;
            }
        }
        Ok((inputs, plan))
    }

    /// Refuses facts before any of them is taken in.
    fn check(&self, facts: &[DiskFacts]) -> Result<(), PolicyError> {
        let mut names = std::collections::BTreeSet::new();
        for disk in facts {
            if !self.disks.contains_key(&disk.name) {
                return Err(PolicyError::UnknownDisk { disk: disk.name.clone() });
            }
            if !names.insert(&disk.name) {
                return Err(PolicyError::TwiceThere { disk: disk.name.clone() });
            }
            if let Some(window) = &disk.window {
                window.check(&disk.name)?;
            }
        }
        Ok(())
    }
}

fn wrong_state(disk: &str, state: DiskState, event: &Event) -> PolicyError {
    PolicyError::WrongState { disk: disk.into(), state: state.name(), event: event.name() }
}

/// A disk that came with its figures takes part at once; without any it is new.
fn migrated_in(config: &Config, window: Option<Box<DiskWindow>>) -> Tracked {
    let Some(window) = window else { return Tracked::new(config, DiskState::New) };
    let mut tracked = Tracked::new(config, DiskState::MigratedIn);
    // The origin is the same, the cache device is another.
    tracked.close(config, &DiskWindow { cache_latency_us: None, ..*window });
    tracked.state = DiskState::MigratedIn;
    tracked
}

fn input(tracked: &Tracked, facts: &DiskFacts) -> DiskInput {
    let predicted = tracked.forecast.predict();
    DiskInput {
        name: facts.name.clone(),
        vm: facts.vm.clone(),
        tenant: facts.tenant.clone(),
        state: tracked.state,
        priority: facts.priority,
        reservation_blocks: facts.reservation_blocks,
        limit_blocks: facts.limit_blocks,
        fixed_blocks: facts.fixed_blocks,
        target_blocks: match tracked.target {
            Target::Blocks(blocks) => blocks,
            Target::Shared { at_least_blocks, at_most_blocks } => {
                facts.used_blocks.min(at_most_blocks).max(at_least_blocks)
            }
        },
        write_mode: facts.write_mode,
        // What is demanded in part of a block takes the block.
        forecast_blocks: predicted.map(|blocks| blocks.ceil() as u64),
        forecast_by: predicted.map(|_| tracked.forecast.forecast.method().name().into()),
        window: tracked.window.clone(),
    }
}
