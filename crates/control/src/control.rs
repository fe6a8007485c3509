//! The loop of a pool: takes in records, closes windows, decides, remembers what it did.
//!
//! Invariants
//! - An event or a decision that is refused changes neither plan nor log, but for an entry that says so.
//! - Disks that are suspended or on another host are not observed; when they come back, observation begins anew.
//! - What is in the log leads to the same decisions again.

use std::collections::BTreeMap;

use haversack_core::Records;
use haversack_model::Micros;
use haversack_policy::{
    Config, Controller, DemandRule, DiskFacts, DiskState, DiskWindow, Event, Inputs, Plan, PolicyError,
};
use serde::{Deserialize, Serialize};

use crate::counters::Counters;
use crate::error::ControlError;
use crate::log::Entry;
use crate::observer::{Observer, ObserverConfig};
use crate::recall::{WINDOW, recall};

/// Blocks of each of a disk's samples: estimates are good to about two in a hundred, in about half a megabyte a disk.
const SAMPLE_BLOCKS: usize = 1024;

/// A disk as the caller knows it when a window ends or a decision is due.
#[derive(Clone, PartialEq, Debug)]
pub struct DiskReport {
    /// What it must and may have. Its window is not looked at: it is what was observed.
    pub facts: DiskFacts,
    /// What the cache counted.
    pub counters: Counters,
}

/// A decision with everything that it was made from.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Decision {
    /// What asked for it: `window`, or an event and its disk.
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
    sample_blocks: usize,
    opened_us: Micros,
    last: Option<Decision>,
    log: Vec<Entry>,
    /// What an earlier life knew.
    recalled: Option<Controller>,
}

impl Control {
    /// A loop whose first window begins now.
    ///
    /// # Errors
    /// The configuration contradicts itself.
    pub fn new(config: Config, now_us: Micros) -> Result<Control, ControlError> {
        let log = vec![Entry::Started { time_us: now_us, config: Box::new(config.clone()) }];
        Ok(Control {
            controller: Controller::new(config)?,
            observed: BTreeMap::new(),
            sample_blocks: SAMPLE_BLOCKS,
            opened_us: now_us,
            last: None,
            log,
            recalled: None,
        })
    }

    /// The newest lines of its log, oldest first, tell what an earlier life knew: [`Control::begin`] goes on with that.
    ///
    /// # Errors
    /// The configuration contradicts itself.
    pub fn recall<'a>(&mut self, lines: impl IntoIterator<Item = &'a str>) -> Result<(), ControlError> {
        self.recalled = Some(recall(self.config(), lines)?);
        Ok(())
    }

    /// A disk of so many blocks, which has these counters, takes part from now on: as an earlier life knew it, or as new.
    ///
    /// # Errors
    /// It takes part already.
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

    /// An earlier life's disk has left: if it comes again, it is new.
    pub fn forget(&mut self, disk: &str) {
        if let Some(known) = &mut self.recalled {
            // One that is not known need not be forgotten.
            let _ = known.event(disk, Event::Ended);
        }
    }

    /// What it decides by.
    pub fn config(&self) -> &Config {
        self.controller.config()
    }

    /// When the present window ends.
    pub fn due_us(&self) -> Micros {
        self.opened_us.saturating_add(self.config().window_us)
    }

    /// Where a disk is in its life; none if it is not known.
    pub fn state(&self, disk: &str) -> Option<DiskState> {
        self.controller.state(disk)
    }

    /// What was measured of a disk in the last window that ended: also what travels with it to another host.
    pub fn window(&self, disk: &str) -> Option<&DiskWindow> {
        self.observed.get(disk)?.window.as_ref()
    }

    /// The mean relative error of a disk's forecasts so far.
    pub fn forecast_error(&self, disk: &str) -> Option<f64> {
        self.controller.forecast_error(disk)
    }

    /// The last decision.
    pub fn last(&self) -> Option<&Decision> {
        self.last.as_ref()
    }

    /// What has been done since this was last asked, in order. To be asked after every call that may do something, or
    /// the entries pile up.
    pub fn take_log(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.log)
    }

    /// Something has happened to a disk of so many blocks, which has these counters. Whether a decision is due at once.
    ///
    /// # Errors
    /// The event cannot happen to it, or brings figures that are none.
    pub fn event(
        &mut self,
        now_us: Micros,
        disk: &str,
        disk_blocks: u64,
        counters: &Counters,
        event: Event,
    ) -> Result<bool, ControlError> {
        let due = self.controller.event(disk, event.clone())?;
        let travelled = if let Event::MigratingIn(window) = &event { window.clone() } else { None };
        self.log.push(Entry::Event { time_us: now_us, disk: disk.into(), event });
        self.observe(now_us, disk, disk_blocks, counters, travelled.map(|window| *window))?;
        Ok(due)
    }

    /// A disk is in another state: it is observed, or no more. Of one that comes in, this may be known.
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
            Some(state) if state.gone() => {
                let fresh = || Observed { disk_blocks, observer: None, window: None };
                self.observed.entry(disk.into()).or_insert_with(fresh).observer = None;
            }
            Some(_) => {
                let observer = self.observer(now_us, disk_blocks, counters)?;
                let fresh = || Observed { disk_blocks, observer: None, window };
                let observed = self.observed.entry(disk.into()).or_insert_with(fresh);
                observed.observer.get_or_insert(observer);
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
            sample_blocks: self.sample_blocks,
            touches: config.demand == DemandRule::TouchCount,
        };
        Observer::new(observer, now_us, disk_blocks, counters)
    }

    /// A disk has so many blocks from now on. Samples do not depend on that; where touches are counted, they are counted
    /// anew.
    pub fn resized(&mut self, disk: &str, disk_blocks: u64) {
        let Some(observed) = self.observed.get_mut(disk) else { return };
        observed.disk_blocks = disk_blocks;
        if let Some(observer) = &mut observed.observer {
            observer.resized(disk_blocks);
        }
    }

    /// Takes in what was recorded of a disk. What is recorded of a disk that is gone or not known says nothing.
    pub fn note(&mut self, disk: &str, records: &Records) {
        if let Some(observer) = self.observed.get_mut(disk).and_then(|observed| observed.observer.as_mut()) {
            observer.note(records);
        }
    }

    /// Ends the window, if it has lasted long enough to be measured, and decides. All that was recorded in it has been
    /// noted before.
    ///
    /// # Errors
    /// The decision is refused; what was measured is kept, and a new window has begun.
    pub fn close(
        &mut self,
        now_us: Micros,
        pool_blocks: u64,
        reports: &[DiskReport],
    ) -> Result<Decision, ControlError> {
        let mut facts = Vec::with_capacity(reports.len());
        for report in reports {
            let mut window = None;
            if let Some(observed) = self.observed.get_mut(&report.facts.name)
                && let Some(observer) = &mut observed.observer
            {
                window = Some(observer.close(now_us, &report.counters)?);
                observed.window.clone_from(&window);
            }
            facts.push(DiskFacts { window, ..report.facts.clone() });
        }
        self.opened_us = now_us;
        self.conclude(now_us, WINDOW.into(), pool_blocks, &facts)
    }

    /// Decides between windows, from what is known already.
    ///
    /// # Errors
    /// The decision is refused. The plan before goes on holding.
    pub fn decide(
        &mut self,
        now_us: Micros,
        cause: impl Into<String>,
        pool_blocks: u64,
        reports: &[DiskReport],
    ) -> Result<Decision, ControlError> {
        let facts = |report: &DiskReport| DiskFacts { window: None, ..report.facts.clone() };
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

    /// Goes on by another configuration: disks keep their states, and what they showed in the last window is what is
    /// known of them; forecasts begin anew.
    ///
    /// # Errors
    /// The configuration contradicts itself; the one before goes on holding.
    pub fn reconfigure(&mut self, now_us: Micros, config: Config) -> Result<(), ControlError> {
        let mut next = Control::new(config, now_us)?;
        for (disk, observed) in &self.observed {
            let state = self.controller.state(disk);
            let begin = match &observed.window {
                Some(window) => Event::MigratingIn(Some(Box::new(window.clone()))),
                None => Event::New,
            };
            let then = match state {
                Some(DiskState::Suspended) => Some(Event::Suspended),
                Some(DiskState::MigratedOut) => Some(Event::MigratingOut),
                Some(DiskState::Stunned) => Some(Event::Stunned),
                Some(DiskState::StorageMigrating) => Some(Event::StorageMigrating),
                _ => None,
            };
            for event in [Some(begin), then].into_iter().flatten() {
                let counters = observed.observer.as_ref().map(Observer::counters).unwrap_or_default();
                next.event(now_us, disk, observed.disk_blocks, &counters, event)?;
            }
        }
        next.last = self.last.take();
        next.recalled =
            self.recalled.take().map(|known| known.reconfigured(next.config().clone())).transpose()?;
        let before = std::mem::take(&mut self.log);
        next.log.splice(..0, before);
        *self = next;
        Ok(())
    }
}
