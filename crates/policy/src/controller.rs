//! State that is kept between windows: each disk's state, its target, and the history of its forecast.
//!
//! The caller closes a window with the facts about all disks and gets the inputs of the decision, to be logged,
//! and the plan. Between windows it reports events; some of them call for a decision at once. After a refused
//! decision everything stays as in the previous plan; the measurements are still used for the forecasts.
//!
//! A disk's own window may be several windows of the pool. Its figures and its forecast then change when its own
//! window ends; reuse intensity and latencies are those of the last window of the pool. Until its first window has
//! ended, and in the window after one without any access, its figures are those so far.
//!
//! Sources: CloudCache (Arteaga), section 3.4.3, for windows of different lengths; vCacheShare (Meng et al.,
//! ATC'14), section 4.3, for intensity that is measured more often than the curve, and table 1; a disk whose
//! workload has ended counts as idle and is left out, as in ECI-Cache (section 6).

use std::collections::{BTreeMap, VecDeque};

use haversack_model::{Micros, WriteMode};
use serde::{Deserialize, Serialize};

use crate::allocate::Target;
use crate::config::{Config, OwnWindow};
use crate::decide::decide;
use crate::demand::running_knee::Knee;
use crate::error::PolicyError;
use crate::forecast::{Forecast, Forecaster, OutlierFilter, Scored};
use crate::history::Sliding;
use crate::plan::{DiskInput, DiskState, Inputs, Plan, WindowStage};
use crate::tenants::TenantBounds;
use crate::window::DiskWindow;

/// Number of windows kept for a disk, which move with it to another host.
pub const KEPT_WINDOWS: usize = 16;
const EXPECTED_WINDOWS: &str = "at most 16";
/// Number of windows without any use after which a disk from another host counts as idle. Until then the
/// measurements from that host are used: its VM may not have arrived yet.
const UNUSED_WINDOWS: u8 = 4;

/// An event of a disk.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// It was attached, or its VM powered on.
    New,
    /// It was detached, or its VM powered off.
    Ended,
    /// Its VM was suspended.
    Suspended,
    /// Its VM runs again: after a suspension it counts as new, after a stun as before.
    Resumed,
    /// Its VM is paused for a moment: fast suspend, or the stun of a migration.
    Stunned,
    /// It came from another host, with its measurements.
    MigratingIn(Option<Box<DiskWindow>>),
    /// It is about to come from another host or has come, with the windows that were measured there, oldest first.
    Arriving(Vec<DiskWindow>),
    /// It is leaving for another host.
    MigratingOut,
    /// Its origin is being replaced.
    StorageMigrating,
    /// Its origin has been replaced.
    StorageMigrated,
}

impl Event {
    /// Returns the name used in logs.
    pub fn name(&self) -> &'static str {
        match self {
            Event::New => "new",
            Event::Ended => "ended",
            Event::Suspended => "suspended",
            Event::Resumed => "resumed",
            Event::Stunned => "stunned",
            Event::MigratingIn(_) => "migrating-in",
            Event::Arriving(_) => "arriving",
            Event::MigratingOut => "migrating-out",
            Event::StorageMigrating => "storage-migrating",
            Event::StorageMigrated => "storage-migrated",
        }
    }
}

/// The caller's information about a disk when a window ends or a decision is due.
#[derive(Clone, PartialEq, Debug)]
pub struct DiskFacts {
    /// Its name.
    pub name: String,
    /// The VM that it belongs to.
    pub vm: String,
    /// The tenant that the VM belongs to.
    pub tenant: String,
    /// Its priority.
    pub priority: f64,
    /// Its reservation in blocks.
    pub reservation_blocks: u64,
    /// Its limit in blocks.
    pub limit_blocks: u64,
    /// The size set by the operator.
    pub fixed_blocks: Option<u64>,
    /// Blocks that it uses now; needed when it is locked in a shared pool.
    pub used_blocks: u64,
    /// Its write mode.
    pub write_mode: WriteMode,
    /// How the length of its window is found, if it asks for one.
    pub own_window: Option<OwnWindow>,
    /// The window length that was chosen while the disk ran, if it is chosen so and a window of the pool has ended.
    pub knee: Option<Knee>,
    /// The measurements of its window, or those so far if the window has not ended; `None` for a decision between
    /// windows of the pool.
    pub window: Option<DiskWindow>,
    /// Whether the disk's own window has not ended yet.
    pub goes_on: bool,
}

/// The state kept for a disk.
struct Tracked {
    state: DiskState,
    target: Target,
    outliers: OutlierFilter,
    forecast: Scored<Forecaster>,
    window: Option<DiskWindow>,
    /// Where its window stood when the last window of the pool ended.
    stage: WindowStage,
    /// Whether no window with any access has ended yet, or the last one had none.
    is_unmeasured: bool,
    /// The counts of the last windows, as many as the configuration wants.
    history: Sliding,
    /// The last windows that were used, oldest first.
    kept: VecDeque<DiskWindow>,
    /// Windows in which it was not used since it came from another host.
    unused: u8,
    /// Its state before it was stunned.
    before_stun: DiskState,
    /// The length of its window that was chosen last.
    knee: Option<Knee>,
}

impl Tracked {
    fn new(config: &Config, state: DiskState) -> Tracked {
        Tracked {
            state,
            target: Target::Blocks(0),
            outliers: OutlierFilter::default(),
            forecast: Scored::new(Forecaster::new(config.forecast)),
            window: None,
            stage: WindowStage::Ended,
            is_unmeasured: true,
            history: Sliding::default(),
            kept: VecDeque::new(),
            unused: 0,
            before_stun: state,
            knee: None,
        }
    }

    /// Uses the measurements of a window. Those of a locked disk say nothing about its demand, nor do those
    /// of a disk that has not been used yet since it arrived.
    fn close(&mut self, config: &Config, window: &DiskWindow) {
        if self.state.locked() || self.state.gone() {
            return;
        }
        let idle = window.accesses() == 0;
        if idle && self.state == DiskState::MigratedIn && self.unused < UNUSED_WINDOWS {
            self.unused += 1;
            return;
        }
        self.state = if idle { DiskState::Idle } else { DiskState::Active };
        (self.stage, self.is_unmeasured) = (WindowStage::Ended, idle);
        let observed = config.demand.model().blocks(window) as f64;
        let observed = if config.filter_outliers { self.outliers.filter(observed) } else { observed };
        self.forecast.observe(observed);
        if config.history_windows > 1 {
            self.history.push(window, observed.ceil() as u64, config.history_windows);
        }
        self.window =
            Some(DiskWindow { origin_latency_us: self.origin_latency_us(window), ..window.clone() });
        self.kept.push_back(window.clone());
        if self.kept.len() > KEPT_WINDOWS {
            self.kept.pop_front();
        }
    }

    /// Uses the length that was chosen for its window. If the length has changed, forecasts start again, since the
    /// demand depends on the window length. Of the kept windows, from which another policy would restart its forecasts,
    /// only the last one stays.
    fn choose(&mut self, config: &Config, knee: Option<&Knee>) {
        let length_us = |knee: Option<&Knee>| knee.map_or(config.window_us, |knee| knee.length_us);
        if length_us(knee) != length_us(self.knee.as_ref()) {
            self.outliers = OutlierFilter::default();
            self.forecast = Scored::new(Forecaster::new(config.forecast));
            self.kept.drain(..self.kept.len().saturating_sub(1));
        }
        self.knee = knee.cloned();
    }

    /// Uses what was measured of a window that has not ended.
    fn look(&mut self, window: &DiskWindow) {
        let waits = self.state == DiskState::MigratedIn && window.accesses() == 0;
        if self.state.locked() || self.state.gone() || waits {
            return;
        }
        self.state = match self.state {
            DiskState::New | DiskState::Idle | DiskState::MigratedIn if window.accesses() > 0 => {
                DiskState::Active
            }
            DiskState::New => DiskState::Idle,
            state => state,
        };
        let origin_latency_us = self.origin_latency_us(window);
        if self.is_unmeasured {
            self.stage = WindowStage::SoFar;
            self.window = Some(DiskWindow { origin_latency_us, ..window.clone() });
        } else if let Some(known) = &mut self.window {
            self.stage = WindowStage::GoesOn;
            known.intensity = window.intensity;
            known.origin_latency_us = origin_latency_us;
            known.cache_latency_us = window.cache_latency_us.or(known.cache_latency_us);
        }
    }

    /// Returns the latency of the origin in a window, or the last one that is known.
    fn origin_latency_us(&self, window: &DiskWindow) -> Option<f64> {
        window.origin_latency_us.or_else(|| self.window.as_ref()?.origin_latency_us)
    }

    /// Restores the figures of an earlier decision.
    fn recall(&mut self, config: &Config, window: &DiskWindow, stage: WindowStage) {
        match stage {
            // The window ended before the log begins: only its figures are known.
            WindowStage::GoesOn if self.is_unmeasured => self.close(config, window),
            WindowStage::GoesOn => self.window = Some(window.clone()),
            WindowStage::SoFar => self.look(window),
            WindowStage::Ended => self.close(config, window),
        }
        self.stage = stage;
    }
}

/// The control loop without a clock: monitor, demand, forecast, allocate, plan.
pub struct Controller {
    config: Config,
    disks: BTreeMap<String, Tracked>,
    tenants: Vec<TenantBounds>,
}

impl Controller {
    /// Makes a controller without disks; events add them.
    ///
    /// # Errors
    /// The errors of [`Config::check`].
    pub fn new(config: Config) -> Result<Controller, PolicyError> {
        config.check()?;
        Ok(Controller { config, disks: BTreeMap::new(), tenants: Vec::new() })
    }

    /// Returns its configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Sets the bounds of tenants on this pool. They apply from the next decision on.
    pub fn set_tenants(&mut self, tenants: Vec<TenantBounds>) {
        self.tenants = tenants;
    }

    /// Returns what tenants have here.
    pub fn tenants(&self) -> &[TenantBounds] {
        &self.tenants
    }

    /// Returns a disk's state.
    pub fn state(&self, disk: &str) -> Option<DiskState> {
        self.disks.get(disk).map(|tracked| tracked.state)
    }

    /// Returns the mean relative error of a disk's forecasts so far.
    pub fn forecast_error(&self, disk: &str) -> Option<f64> {
        self.disks.get(disk).and_then(|tracked| tracked.forecast.score.mean_error())
    }

    /// Returns a disk's last window that says something about its demand.
    pub fn window(&self, disk: &str) -> Option<&DiskWindow> {
        self.disks.get(disk)?.window.as_ref()
    }

    /// Returns the length of a disk's window that was chosen last.
    pub fn knee(&self, disk: &str) -> Option<&Knee> {
        self.disks.get(disk)?.knee.as_ref()
    }

    /// Returns whether no window of a disk has ended yet in which it was used: its figures are those so far.
    pub fn is_unmeasured(&self, disk: &str) -> bool {
        self.disks.get(disk).is_none_or(|tracked| tracked.is_unmeasured)
    }

    /// Returns a disk's last windows that say something about its demand, oldest first: they move with it to
    /// another host.
    pub fn kept_windows(&self, disk: &str) -> impl Iterator<Item = &DiskWindow> {
        self.disks.get(disk).into_iter().flat_map(|tracked| &tracked.kept)
    }

    /// Restores an earlier decision: the states and targets of its disks and, if it ended a window, the
    /// measurements of that window.
    pub fn recall(&mut self, inputs: &Inputs, plan: &Plan, ended_window: bool) {
        self.tenants.clone_from(&inputs.tenants);
        for input in &inputs.disks {
            let new = || Tracked::new(&self.config, DiskState::New);
            let tracked = self.disks.entry(input.name.clone()).or_insert_with(new);
            // A disk that has arrived and was not used yet has not been measured here.
            let was_measured = input.state != DiskState::MigratedIn;
            tracked.choose(&self.config, input.knee.as_ref());
            let shows = ended_window && was_measured && !input.state.locked() && !input.state.gone();
            if let Some(window) = input.window.as_ref().filter(|_| shows) {
                tracked.recall(&self.config, window, input.window_stage);
            }
            tracked.state = input.state;
            if let Some(plan) = plan.disks.get(&input.name) {
                tracked.target = plan.target;
            }
        }
    }

    /// Returns a controller of the same disks with another configuration. Forecasts start again from the last
    /// windows of each disk.
    ///
    /// # Errors
    /// The errors of [`Config::check`].
    pub fn reconfigured(self, config: Config) -> Result<Controller, PolicyError> {
        let mut next = Controller::new(config)?;
        next.tenants = self.tenants;
        for (disk, before) in self.disks {
            let mut tracked = Tracked::new(&next.config, DiskState::New);
            for window in &before.kept {
                tracked.close(&next.config, window);
            }
            (tracked.state, tracked.before_stun, tracked.target) =
                (before.state, before.before_stun, before.target);
            tracked.knee = before.knee;
            next.disks.insert(disk, tracked);
        }
        Ok(next)
    }

    /// Takes over the states of the disks, and what tenants have, from another controller, whatever its configuration.
    pub fn keep_states(&mut self, of: &Controller) {
        self.tenants.clone_from(&of.tenants);
        for (disk, tracked) in &mut self.disks {
            if let Some(before) = of.disks.get(disk) {
                (tracked.state, tracked.unused, tracked.before_stun) =
                    (before.state, before.unused, before.before_stun);
                tracked.knee.clone_from(&before.knee);
            }
        }
    }

    /// Continues with a disk from another controller of the same configuration. Returns false if that does not
    /// know the disk.
    pub fn take_over(&mut self, disk: &str, from: &mut Controller) -> bool {
        assert!(self.config == from.config, "forecasts are of one configuration");
        let tracked = from.disks.remove(disk);
        let known = tracked.is_some();
        self.disks.extend(tracked.map(|tracked| (disk.to_string(), tracked)));
        known
    }

    /// Handles an event of a disk. Returns whether a decision is due at once.
    ///
    /// # Errors
    /// `UnknownDisk`; `WrongState` if the event is not possible in the disk's state; the errors of
    /// [`DiskWindow::check`] for migrated figures.
    pub fn event(&mut self, disk: &str, event: Event) -> Result<bool, PolicyError> {
        match &event {
            Event::MigratingIn(Some(window)) => window.check(disk)?,
            Event::Arriving(windows) => check_arriving(disk, windows)?,
            _ => {}
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
            Event::Arriving(windows) if !state.locked() => {
                let target = tracked.target;
                *tracked = Tracked { target, ..arrived(&self.config, &windows) };
            }
            Event::MigratingIn(window) if state.gone() => {
                *tracked = migrated_in(&self.config, window.as_deref());
            }
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
        // While a disk is locked, the rest of the pool stays as it is.
        Ok(self.state(disk).is_none_or(|state| !state.locked()))
    }

    fn first_event(&mut self, disk: &str, event: Event) -> Result<bool, PolicyError> {
        let tracked = match event {
            Event::New => Tracked::new(&self.config, DiskState::New),
            Event::MigratingIn(window) => migrated_in(&self.config, window.as_deref()),
            Event::Arriving(windows) => arrived(&self.config, &windows),
            _ => return Err(PolicyError::UnknownDisk { disk: disk.into() }),
        };
        self.disks.insert(disk.into(), tracked);
        Ok(true)
    }

    /// Ends a window, or decides between windows if the facts have none. Returns the inputs of the decision, to
    /// be logged, and the plan.
    ///
    /// # Errors
    /// The errors of [`decide`]; `UnknownDisk` for facts about a disk without an event before; `TwiceThere`.
    /// The previous plan stays in effect.
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
            if self.config.window_of_disk(disk.own_window) != OwnWindow::AtKnee {
                tracked.choose(&self.config, None);
            } else if disk.knee.is_some() {
                tracked.choose(&self.config, disk.knee.as_ref());
            }
            match &disk.window {
                Some(window) if disk.goes_on => tracked.look(window),
                Some(window) => tracked.close(&self.config, window),
                None => {}
            }
            disks.push(input(tracked, disk));
        }
        let inputs = Inputs { time_us, pool_blocks, disks, tenants: self.tenants.clone() };
        let plan = decide(&self.config, &inputs)?;
        for (name, disk) in &plan.disks {
            if let Some(tracked) = self.disks.get_mut(name) {
                tracked.target = disk.target;
            }
        }
        Ok((inputs, plan))
    }

    /// Refuses invalid facts before any of them is used.
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

/// Makes the state of a migrated disk. With measurements from the other host, the disk takes part in the division
/// immediately. Without them, it is new.
fn migrated_in(config: &Config, window: Option<&DiskWindow>) -> Tracked {
    arrived(config, window.map_or(&[], std::slice::from_ref))
}

/// Like [`migrated_in`], with several windows, oldest first.
fn arrived(config: &Config, windows: &[DiskWindow]) -> Tracked {
    let mut tracked = Tracked::new(config, DiskState::New);
    for window in windows {
        // The origin is the same, but the cache device is another one.
        tracked.close(config, &DiskWindow { cache_latency_us: None, ..window.clone() });
    }
    if !windows.is_empty() {
        tracked.state = DiskState::MigratedIn;
    }
    tracked
}

fn check_arriving(disk: &str, windows: &[DiskWindow]) -> Result<(), PolicyError> {
    if windows.len() > KEPT_WINDOWS {
        let (what, found) =
            (format!("disk '{disk}': the windows of another host"), windows.len().to_string());
        return Err(PolicyError::BadFigure { what, found, expected: EXPECTED_WINDOWS });
    }
    windows.iter().try_for_each(|window| window.check(disk))
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
            Target::Blocks(blocks) | Target::Capped(blocks) => blocks,
            Target::Shared { at_least_blocks, at_most_blocks } => {
                facts.used_blocks.min(at_most_blocks).max(at_least_blocks)
            }
        },
        write_mode: facts.write_mode,
        // Part of a block takes the whole block.
        forecast_blocks: predicted.map(|blocks| blocks.ceil() as u64),
        forecast_by: predicted.map(|_| tracked.forecast.forecast.method().name().into()),
        window: tracked.window.clone(),
        window_stage: tracked.stage,
        knee: tracked.knee.clone(),
        history: tracked.history.total(),
    }
}
