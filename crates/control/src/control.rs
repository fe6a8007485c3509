//! The control loop of a pool: it collects records, closes windows, decides, and logs what it did.
//!
//! Invariants
//! - A refused event or decision changes neither the plan nor the log, except for an entry that reports it.
//! - Disks that are suspended, on another host, or whose origin is being replaced are not observed; afterwards
//!   observation starts again from nothing.
//! - The log leads to the same decisions when it is replayed.

use std::collections::BTreeMap;

use haversack_core::Records;
use haversack_model::Micros;
use haversack_policy::{
    Config, Controller, DemandRule, DiskFacts, DiskState, DiskWindow, Event, Inputs, OwnWindow, Plan,
    PolicyError, TenantBounds, Unaligned,
};
use serde::{Deserialize, Serialize};

use crate::counters::Counters;
use crate::error::ControlError;
use crate::log::Entry;
use crate::observer::{Observer, ObserverConfig};
use crate::recall::{WINDOW, recall};
use crate::wishes::measures;

/// A disk as the caller knows it when a window ends or a decision is due.
#[derive(Clone, PartialEq, Debug)]
pub struct DiskReport {
    /// What it must and may have. The measurements in it are ignored; the observed ones are used.
    pub facts: DiskFacts,
    /// What the cache counted.
    pub counters: Counters,
}

/// A decision with all of its inputs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Decision {
    /// What triggered it: `window`, or an event and its disk.
    pub cause: String,
    /// What was known.
    pub inputs: Inputs,
    /// What was decided.
    pub plan: Plan,
}

/// A disk under observation.
struct Observed {
    disk_blocks: u64,
    observer: Option<Observer>,
    window: Option<DiskWindow>,
}

/// See the module documentation.
pub struct Control {
    controller: Controller,
    observed: BTreeMap<String, Observed>,
    opened_us: Micros,
    last: Option<Decision>,
    log: Vec<Entry>,
    /// What the loop knew before a restart.
    recalled: Option<Controller>,
}

impl Control {
    /// Makes a loop whose first window begins now.
    ///
    /// # Errors
    /// The configuration contradicts itself.
    pub fn new(config: Config, now_us: Micros) -> Result<Control, ControlError> {
        let log = vec![Entry::Started { time_us: now_us, config: Box::new(config.clone()) }];
        Ok(Control {
            controller: Controller::new(config)?,
            observed: BTreeMap::new(),
            opened_us: now_us,
            last: None,
            log,
            recalled: None,
        })
    }

    /// Reads what an earlier loop knew from the newest lines of its log, oldest first. [`Control::begin`]
    /// continues from that.
    ///
    /// # Errors
    /// The configuration contradicts itself.
    pub fn recall(&mut self, lines: impl IntoIterator<Item = impl AsRef<str>>) -> Result<(), ControlError> {
        let known = recall(self.config(), lines)?;
        self.controller.set_tenants(known.tenants().to_vec());
        self.recalled = Some(known);
        Ok(())
    }

    /// Adds a disk of this many blocks with these counters: as the earlier loop knew it, or as new.
    ///
    /// # Errors
    /// The disk has already been added.
    pub fn begin(
        &mut self,
        now_us: Micros,
        disk: &str,
        disk_blocks: u64,
        counters: &Counters,
    ) -> Result<(), ControlError> {
        let known = self.recalled.as_mut().filter(|_| self.controller.state(disk).is_none());
        if !known.is_some_and(|known| self.controller.take_over(disk, known)) {
            self.event(now_us, disk, disk_blocks, counters, Event::New)?;
            return Ok(());
        }
        let state = self.controller.state(disk).expect("it was taken over");
        self.log.push(Entry::Restored { time_us: now_us, disk: disk.into(), state });
        let window = self.controller.window(disk).cloned();
        self.observe(now_us, disk, disk_blocks, counters, window)
    }

    /// Forgets what an earlier loop knew of a disk that has left: if it returns, it is new.
    pub fn forget(&mut self, disk: &str) {
        if let Some(known) = &mut self.recalled {
            // A disk that is not known need not be forgotten.
            let _ = known.event(disk, Event::Ended);
        }
    }

    /// Sets what tenants have here of their parts of a cluster. Returns whether that is a change: then a decision is
    /// due.
    pub fn set_tenants(&mut self, tenants: &[TenantBounds]) -> bool {
        let is_change = self.controller.tenants() != tenants;
        self.controller.set_tenants(tenants.to_vec());
        is_change
    }

    /// Returns what tenants have here.
    pub fn tenants(&self) -> &[TenantBounds] {
        self.controller.tenants()
    }

    /// Returns its configuration.
    pub fn config(&self) -> &Config {
        self.controller.config()
    }

    /// Returns when the current window ends.
    pub fn due_us(&self) -> Micros {
        self.opened_us.saturating_add(self.config().window_us)
    }

    /// Returns a disk's state; `None` if the disk is not known.
    pub fn state(&self, disk: &str) -> Option<DiskState> {
        self.controller.state(disk)
    }

    /// Returns what was measured of a disk in its last window, or in its first one so far.
    pub fn window(&self, disk: &str) -> Option<&DiskWindow> {
        self.observed.get(disk)?.window.as_ref()
    }

    /// Returns a disk's last windows that say something about its demand, oldest first. They travel with the disk to
    /// another host.
    pub fn kept_windows(&self, disk: &str) -> impl Iterator<Item = &DiskWindow> {
        self.controller.kept_windows(disk)
    }

    /// Returns the mean relative error of a disk's forecasts so far.
    pub fn forecast_error(&self, disk: &str) -> Option<f64> {
        self.controller.forecast_error(disk)
    }

    /// Returns the last decision.
    pub fn last(&self) -> Option<&Decision> {
        self.last.as_ref()
    }

    /// Returns what has been done since the last call, in order. Must be called after every call that may do
    /// something, or the entries accumulate.
    pub fn take_log(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.log)
    }

    /// Handles an event of a disk of this many blocks with these counters. Returns whether a decision is due at
    /// once.
    ///
    /// # Errors
    /// The event is not possible in the disk's state, or its figures are invalid.
    pub fn event(
        &mut self,
        now_us: Micros,
        disk: &str,
        disk_blocks: u64,
        counters: &Counters,
        event: Event,
    ) -> Result<bool, ControlError> {
        let due = self.controller.event(disk, event.clone())?;
        let travelled = match &event {
            Event::MigratingIn(window) => window.as_deref().cloned(),
            Event::Arriving(windows) => windows.last().cloned(),
            _ => None,
        };
        self.log.push(Entry::Event { time_us: now_us, disk: disk.into(), event });
        self.observe(now_us, disk, disk_blocks, counters, travelled)?;
        Ok(due)
    }

    /// Starts or stops observing a disk, depending on its state. A migrated disk may come with a known window.
    fn observe(
        &mut self,
        now_us: Micros,
        disk: &str,
        disk_blocks: u64,
        counters: &Counters,
        window: Option<DiskWindow>,
    ) -> Result<(), ControlError> {
        match self.controller.state(disk) {
            None => {
                self.observed.remove(disk);
            }
            Some(state) if state.gone() || state == DiskState::StorageMigrating => {
                let fresh = || Observed { disk_blocks, observer: None, window: None };
                self.observed.entry(disk.into()).or_insert_with(fresh).observer = None;
            }
            Some(_) => {
                let observer = self.observer(now_us, disk_blocks, counters)?;
                let fresh = || Observed { disk_blocks, observer: None, window: None };
                let observed = self.observed.entry(disk.into()).or_insert_with(fresh);
                observed.observer.get_or_insert(observer);
                if window.is_some() {
                    observed.window = window;
                }
            }
        }
        Ok(())
    }

    fn observer(
        &self,
        now_us: Micros,
        disk_blocks: u64,
        counters: &Counters,
    ) -> Result<Observer, PolicyError> {
        let config = self.config();
        let observer = ObserverConfig {
            window_us: config.window_us,
            measurement_us: config.measurement_us,
            sample_blocks: usize::try_from(config.sample_blocks).ok().filter(|blocks| *blocks > 0),
            unit_blocks: config.unit_blocks,
            whole_blocks: config.unaligned == Unaligned::Discarded,
            touches: config.demand == DemandRule::TouchCount,
        };
        Observer::new(observer, now_us, disk_blocks, counters)?.ending_at(self.due_us())
    }

    /// Notes a disk's new size in blocks. Samples do not depend on it; if touches are counted, the count
    /// restarts.
    pub fn resized(&mut self, disk: &str, disk_blocks: u64) {
        let Some(observed) = self.observed.get_mut(disk) else { return };
        observed.disk_blocks = disk_blocks;
        if let Some(observer) = &mut observed.observer {
            observer.resized(disk_blocks);
        }
    }

    /// Adds a disk's records. Records of a disk that is gone or not known are ignored.
    pub fn note(&mut self, disk: &str, records: &Records) {
        if let Some(observer) = self.observed.get_mut(disk).and_then(|observed| observed.observer.as_mut()) {
            observer.note(records);
        }
    }

    /// Ends a window of the pool, and those of its disks that end with it, and decides. All records of the window must
    /// have been noted.
    ///
    /// # Errors
    /// The decision is refused. The measurements are kept, and a new window has begun.
    pub fn close(
        &mut self,
        now_us: Micros,
        pool_blocks: u64,
        reports: &[DiskReport],
    ) -> Result<Decision, ControlError> {
        let mut facts = Vec::with_capacity(reports.len());
        for report in reports {
            let (mut window, mut goes_on) = (None, false);
            let config = self.controller.config();
            let own = config.window_of_disk(report.facts.own_window);
            let mut knee = None;
            if let Some(observed) = self.observed.get_mut(&report.facts.name)
                && let Some(observer) = &mut observed.observer
            {
                let chosen = self.controller.knee(&report.facts.name);
                let at_knee = own == OwnWindow::AtKnee && measures(config);
                knee = observer.knee(at_knee, config.reuses(), chosen)?;
                let windows = match (own, &knee) {
                    (OwnWindow::Length(length_us), _) => config.whole_windows(length_us),
                    (OwnWindow::AtKnee, Some(knee)) => config.whole_windows(knee.length_us),
                    (OwnWindow::AtKnee, None) => 1,
                };
                let (seen, lasts) = observer.turn(now_us, &report.counters, windows)?;
                let is_awaited = self.controller.state(&report.facts.name) == Some(DiskState::MigratedIn);
                let is_shown = !lasts || self.controller.is_unmeasured(&report.facts.name);
                if is_shown && (seen.accesses() > 0 || !is_awaited) {
                    observed.window = Some(seen.clone());
                }
                (window, goes_on) = (Some(seen), lasts);
            }
            facts.push(DiskFacts { window, goes_on, knee, ..report.facts.clone() });
        }
        self.opened_us = now_us;
        self.conclude(now_us, WINDOW.into(), pool_blocks, &facts)
    }

    /// Decides between windows, based on what is already known.
    ///
    /// # Errors
    /// The decision is refused. The previous plan stays in effect.
    pub fn decide(
        &mut self,
        now_us: Micros,
        cause: impl Into<String>,
        pool_blocks: u64,
        reports: &[DiskReport],
    ) -> Result<Decision, ControlError> {
        let facts = |report: &DiskReport| DiskFacts { window: None, goes_on: false, ..report.facts.clone() };
        let facts: Vec<DiskFacts> = reports.iter().map(facts).collect();
        self.conclude(now_us, cause.into(), pool_blocks, &facts)
    }

    fn conclude(
        &mut self,
        now_us: Micros,
        cause: String,
        pool_blocks: u64,
        facts: &[DiskFacts],
    ) -> Result<Decision, ControlError> {
        match self.controller.close_window(now_us, pool_blocks, facts) {
            Ok((inputs, plan)) => {
                let decision = Decision { cause, inputs, plan };
                self.log.push(Entry::Decision(Box::new(decision.clone())));
                self.last = Some(decision.clone());
                Ok(decision)
            }
            Err(error) => {
                self.log.push(Entry::Refused { time_us: now_us, cause, reason: error.to_string() });
                Err(error.into())
            }
        }
    }

    /// Switches to another configuration, by which a window begins now. Disks keep their states and their last windows,
    /// from which forecasts start again. All records so far must have been noted. `counters` returns a disk's counters
    /// as they are now: the new window counts from there. A disk without them is counted from the start of the window
    /// that ends here.
    ///
    /// # Errors
    /// The configuration contradicts itself; the previous one stays in effect.
    pub fn reconfigure(
        &mut self,
        now_us: Micros,
        config: Config,
        counters: impl Fn(&str) -> Option<Counters>,
    ) -> Result<(), ControlError> {
        let mut next = Control::new(config, now_us)?;
        for (disk, observed) in &self.observed {
            let state = self.controller.state(disk);
            let kept: Vec<DiskWindow> = self.controller.kept_windows(disk).cloned().collect();
            let begin = if kept.is_empty() { Event::New } else { Event::Arriving(kept) };
            let then = match state {
                Some(DiskState::Suspended) => Some(Event::Suspended),
                Some(DiskState::MigratedOut) => Some(Event::MigratingOut),
                Some(DiskState::Stunned) => Some(Event::Stunned),
                Some(DiskState::StorageMigrating) => Some(Event::StorageMigrating),
                _ => None,
            };
            let earlier = || observed.observer.as_ref().map(Observer::counters).unwrap_or_default();
            let counters = counters(disk).unwrap_or_else(earlier);
            for event in [Some(begin), then].into_iter().flatten() {
                next.event(now_us, disk, observed.disk_blocks, &counters, event)?;
            }
        }
        next.controller.keep_states(&self.controller);
        next.last = self.last.take();
        next.recalled =
            self.recalled.take().map(|known| known.reconfigured(next.config().clone())).transpose()?;
        let before = std::mem::take(&mut self.log);
        next.log.splice(..0, before);
        *self = next;
        Ok(())
    }
}
