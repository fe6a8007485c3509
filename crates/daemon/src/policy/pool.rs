//! The control loop of one pool: records in, windows closed, decisions made, logged and carried out.
//!
//! Invariants
//! - Without a policy and without a request for figures, nothing is recorded and the loop has nothing to do.
//! - A disk that has ended, is suspended or is on another host is not recorded for the policy. A disk that has
//!   ended stays so until it is new again, whatever else happens.
//! - The loop itself changes shares and admission. Changes of the daemon's other parts are issued as an [`Order`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use haversack_api::{DiskConfig, DiskCurve, DiskPolicy, Measured, PoolPolicy};
use haversack_control::{Cause, Control, ControlError, disk, measures, recalled_lines};
use haversack_engine::{DiskSnapshot, Snapshot};
use haversack_model::{Micros, SECTOR_BYTES};
use haversack_policy::{Config, DiskWindow, Event, TenantBounds};

use super::actuate::{self, Applied};
use super::events::{News, Order};
use super::monitors::Monitors;
use super::port::{self, PoolPort};
use super::recording::{Recording, Rows};
use super::reports::Latencies;
use super::show;
use crate::backend::Backend;
use crate::error::{DaemonError, Result};
use crate::line_log::LineLog;
use crate::state::StateError;

/// Sectors of a block.
const SECTORS: u64 = (haversack_model::BLOCK_BYTES / SECTOR_BYTES) as u64;

/// See the module documentation.
pub struct PoolLoop {
    /// The pool's name.
    name: String,
    backend: Arc<dyn Backend>,
    /// The settings of the attached disks that are not being detached.
    disks: BTreeMap<String, DiskConfig>,
    /// Orders that the daemon has not taken yet.
    orders: Vec<Order>,
    control: Option<Control>,
    monitors: Monitors,
    latencies: Latencies,
    log: LineLog,
    applied: BTreeMap<String, Applied>,
    /// The parts of the last plan that were skipped, by disk.
    kept: BTreeMap<String, Vec<String>>,
    /// Disks whose VMs were powered off.
    ended: BTreeSet<String>,
    /// Records lost in the last window.
    lost: BTreeMap<String, u64>,
    decisions: u64,
    refusals: u64,
    refused: Option<String>,
}

impl PoolLoop {
    /// Makes a loop without a policy.
    pub fn new(name: &str, backend: Arc<dyn Backend>, log: LineLog) -> PoolLoop {
        PoolLoop {
            name: name.into(),
            backend,
            disks: BTreeMap::new(),
            orders: Vec::new(),
            control: None,
            monitors: Monitors::default(),
            latencies: Latencies::default(),
            log,
            applied: BTreeMap::new(),
            kept: BTreeMap::new(),
            ended: BTreeSet::new(),
            lost: BTreeMap::new(),
            decisions: 0,
            refusals: 0,
            refused: None,
        }
    }

    /// Returns the decision log.
    pub fn log(&self) -> &LineLog {
        &self.log
    }

    /// Takes the orders for the daemon.
    pub fn take_orders(&mut self) -> Vec<Order> {
        std::mem::take(&mut self.orders)
    }

    /// Returns how many orders were not taken yet.
    pub fn orders(&self) -> u64 {
        self.orders.len() as u64
    }

    /// Returns the pool's current time.
    pub fn now_us(&self) -> Micros {
        self.backend.now_us()
    }

    fn measures(&self) -> bool {
        self.control.as_ref().is_some_and(|control| measures(control.config()))
    }

    /// Sets another policy, or none.
    ///
    /// # Errors
    /// The policy contradicts itself, or the pool has stopped.
    pub fn set(&mut self, config: Option<&Config>) -> Result<()> {
        let now_us = self.now_us();
        // What was recorded so far belongs to the policy that ends.
        self.take(now_us);
        let snapshot = self.backend.snapshot()?;
        match (config, &mut self.control) {
            (None, None) => return Ok(()),
            (None, Some(_)) => self.end(&snapshot),
            (Some(config), Some(control)) => {
                let counters = |name: &str| {
                    let disk = snapshot.disks.iter().find(|disk| disk.name == name)?;
                    Some(self.latencies.counters(&snapshot, disk))
                };
                control.reconfigure(now_us, config.clone(), counters)?;
            }
            (Some(config), None) => self.control = Some(Control::new(config.clone(), now_us)?),
        }
        self.take_part(now_us, &snapshot)
    }

    /// Sets the policy that the daemon had before a restart, and continues from where that stopped.
    ///
    /// # Errors
    /// As [`PoolLoop::set`].
    pub fn resume(&mut self, config: &Config) -> Result<()> {
        let (now_us, snapshot) = (self.now_us(), self.backend.snapshot()?);
        let mut control = Control::new(config.clone(), now_us)?;
        let own = self.disks.values().map(disk::own_window);
        // One line at a time: together they may be as large as the logs that are kept.
        match self.log.newest_lines(recalled_lines(config, own), |_| true) {
            Ok(lines) => control.recall(lines.map_while(|line| self.recalled(line)))?,
            Err(error) => tracing::warn!(pool = self.name, "the policy starts without its history: {error}"),
        }
        self.control = Some(control);
        self.take_part(now_us, &snapshot)
    }

    /// Returns a line of the log, if it could be read.
    fn recalled(&self, line: std::result::Result<String, StateError>) -> Option<String> {
        let failed =
            |error| tracing::warn!(pool = self.name, "the policy starts with a part of its history: {error}");
        line.map_err(failed).ok()
    }

    /// Makes all attached disks take part in the policy that was set.
    fn take_part(&mut self, now_us: Micros, snapshot: &Snapshot) -> Result<()> {
        self.refused = None;
        self.latencies.unknown = !self.backend.measures_latencies();
        for disk in &snapshot.disks {
            if self.disks.contains_key(&disk.name) {
                self.begin(disk, now_us, snapshot)?;
            }
        }
        if self.control.is_some() {
            self.latencies.close(snapshot);
            self.decide(now_us, "the policy was set");
        }
        Ok(())
    }

    fn end(&mut self, snapshot: &Snapshot) {
        self.control = None;
        for (disk, config) in port::attached(&self.disks, snapshot) {
            actuate::restore(&*self.backend, disk, config, &mut self.orders);
        }
        self.orders.push(Order::SizeFilters { pool: self.name.clone() });
        self.applied.clear();
        self.kept.clear();
        self.ended.clear();
        self.lost.clear();
    }

    /// Makes a disk known to the policy, and records it if the policy measures.
    fn begin(&mut self, disk: &DiskSnapshot, now_us: Micros, snapshot: &Snapshot) -> Result<()> {
        if let Some(control) = &mut self.control
            && control.state(&disk.name).is_none()
            && !self.ended.contains(&disk.name)
        {
            let counters = self.latencies.counters(snapshot, disk);
            control.begin(now_us, &disk.name, disk.sectors.div_ceil(SECTORS), &counters)?;
        }
        self.watch(disk)
    }

    /// Starts or stops recording a disk, depending on its state. A disk that waits for its guest to come from another
    /// host is recorded once it is served here.
    fn watch(&mut self, disk: &DiskSnapshot) -> Result<()> {
        let state = self.control.as_ref().and_then(|control| control.state(&disk.name));
        let wanted = self.measures() && disk.is_served && state.is_some_and(|state| !state.gone());
        Ok(self.monitors.for_policy(&*self.backend, &disk.name, disk.disk, wanted)?)
    }

    /// Handles news of a disk.
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn note(&mut self, disk: &str, news: News) -> Result<()> {
        let now_us = self.now_us();
        match news {
            News::Attached(config) => {
                self.disks.insert(disk.into(), *config);
                self.attached(now_us, disk)?;
            }
            News::Detaching => drop(self.disks.remove(disk)),
            News::DetachFailed(config) => drop(self.disks.insert(disk.into(), *config)),
            News::Detached => self.detached(now_us, disk),
            News::Resized { sectors } => self.resized(disk, sectors),
            News::Changed(config) => {
                if let Some(known) = self.disks.get_mut(disk) {
                    *known = *config;
                }
                // The next decision sets everything again.
                self.applied.remove(disk);
                self.decide(now_us, &format!("changed {disk}"));
            }
        }
        Ok(())
    }

    fn resized(&mut self, name: &str, sectors: u64) {
        if let Some(control) = &mut self.control {
            control.resized(name, sectors.div_ceil(SECTORS));
        }
    }

    fn attached(&mut self, now_us: Micros, name: &str) -> Result<()> {
        if self.control.is_none() {
            return Ok(());
        }
        let snapshot = self.backend.snapshot()?;
        if let Some(disk) = snapshot.disks.iter().find(|disk| disk.name == name) {
            self.begin(disk, now_us, &snapshot)?;
            self.decide(now_us, &format!("new {name}"));
        }
        Ok(())
    }

    /// Removes a detached disk: its share goes to the others.
    fn detached(&mut self, now_us: Micros, name: &str) {
        self.disks.remove(name);
        self.monitors.forget(&*self.backend, name);
        self.ended.remove(name);
        self.applied.remove(name);
        self.kept.remove(name);
        self.lost.remove(name);
        let Some(control) = &mut self.control else { return };
        control.forget(name);
        if control.state(name).is_some() {
            // A known disk can always end.
            let _ = control.event(now_us, name, 0, &Default::default(), Event::Ended);
            self.decide(now_us, &format!("ended {name}"));
        }
    }

    /// Returns the tenants' bounds on this pool.
    pub fn tenants(&self) -> &[TenantBounds] {
        self.control.as_ref().map_or(&[], Control::tenants)
    }

    /// Sets the tenants' bounds on this pool, and decides again if they have changed.
    pub fn set_tenants(&mut self, tenants: &[TenantBounds]) {
        if self.control.as_mut().is_some_and(|control| control.set_tenants(tenants)) {
            self.decide(self.now_us(), "tenants");
        }
    }

    /// Handles an event of a disk.
    ///
    /// # Errors
    /// There is no policy, or the event is not possible in the disk's state.
    pub fn tell(&mut self, name: &str, event: Event) -> Result<DiskPolicy> {
        let now_us = self.now_us();
        // What was recorded before the event is not part of what is measured after it.
        self.take(now_us);
        let snapshot = self.backend.snapshot()?;
        let disk = found(&snapshot, name)?;
        let (blocks, cause) = (disk.sectors.div_ceil(SECTORS), format!("{} {name}", event.name()));
        if event == Event::StorageMigrated {
            self.latencies.restart(disk);
        }
        let counters = self.latencies.counters(&snapshot, disk);
        let Some(control) = &mut self.control else { return Err(no_policy()) };
        // The disk was just attached as a new one, and only now is it known that it came with measurements.
        let came = matches!(event, Event::MigratingIn(Some(_)));
        if came && control.state(name) == Some(haversack_policy::DiskState::New) {
            control.event(now_us, name, blocks, &counters, Event::Ended)?;
        }
        let event_name = event.name();
        let told = control.event(now_us, name, blocks, &counters, event);
        let has_ended = control.state(name).is_none();
        self.write_log();
        let decides = told?;
        self.orders.push(Order::ReportEvent { disk: name.into(), event: event_name });
        if has_ended {
            self.ended.insert(name.into());
        } else {
            self.ended.remove(name);
        }
        self.watch(disk)?;
        if decides {
            self.decide(now_us, &cause);
        }
        let end = DiskPolicy {
            disk: name.into(),
            state: "ended".into(),
            demand_bytes: 0,
            target_bytes: Some(0),
            mode: haversack_api::Mode::Fixed(disk.mode),
            admission: "always".into(),
            reason: "ended: nothing".into(),
        };
        if has_ended {
            self.backend.set_target(disk.disk, haversack_core::Target::Blocks(0))?;
            self.applied.remove(name);
        }
        Ok(self.decided(name).unwrap_or(end))
    }

    /// Returns a disk's last windows, oldest first.
    pub fn kept_windows(&self, name: &str) -> impl Iterator<Item = &DiskWindow> {
        let control = self.control.as_ref().filter(|_| self.measures());
        control.into_iter().flat_map(move |control| control.kept_windows(name))
    }

    /// Continues with what another host has measured of a disk that comes from there, and decides immediately.
    ///
    /// # Errors
    /// There is no policy, the disk's VM has ended, or the windows are invalid.
    pub fn arriving(&mut self, name: &str, windows: Vec<DiskWindow>) -> Result<()> {
        let now_us = self.now_us();
        self.take(now_us);
        let snapshot = self.backend.snapshot()?;
        let disk = found(&snapshot, name)?;
        let blocks = disk.sectors.div_ceil(SECTORS);
        let counters = self.latencies.counters(&snapshot, disk);
        let Some(control) = self.control.as_mut().filter(|_| !self.ended.contains(name)) else {
            return Err(no_policy());
        };
        let told = control.event(now_us, name, blocks, &counters, Event::Arriving(windows));
        self.write_log();
        told?;
        self.watch(disk)?;
        // The disk's settings may have been reset when it was expected or arrived, so all are set again.
        self.applied.remove(name);
        self.decide(now_us, &format!("arriving {name}"));
        Ok(())
    }

    /// Decides between windows, based on what is known.
    fn decide(&mut self, now_us: Micros, cause: &str) {
        self.turn(now_us, Cause::Event(cause));
    }

    fn close(&mut self, now_us: Micros) {
        let Some(snapshot) = self.turn(now_us, Cause::Window) else { return };
        for disk in &snapshot.disks {
            self.lost.insert(disk.name.clone(), self.monitors.take_lost(&disk.name));
            // The disk may have moved from or to another host in this window.
            if let Err(error) = self.watch(disk) {
                tracing::debug!(disk = disk.name, "cannot begin or end recording: {error}");
            }
        }
        self.latencies.close(&snapshot);
    }

    /// Decides, logs the decision and carries it out. Returns the snapshot of the pool on which it is based.
    fn turn(&mut self, now_us: Micros, cause: Cause<'_>) -> Option<Snapshot> {
        let control = self.control.as_mut()?;
        let mut port = PoolPort {
            backend: &*self.backend,
            disks: &self.disks,
            orders: &mut self.orders,
            latencies: &self.latencies,
            config: control.config().clone(),
            log: &mut self.log,
            applied: &mut self.applied,
            kept: &mut self.kept,
            snapshot: None,
        };
        let Ok(decided) = control.turn(&mut port, now_us, cause);
        let snapshot = port.snapshot;
        match decided? {
            Ok(_) => {
                self.decisions += 1;
                self.refused = None;
                self.orders.push(Order::SizeFilters { pool: self.name.clone() });
            }
            Err(error) => self.refuse(&error),
        }
        snapshot
    }

    fn refuse(&mut self, error: &ControlError) {
        self.refusals += 1;
        let why = error.to_string();
        if self.refused.as_ref() != Some(&why) {
            tracing::warn!(pool = self.name, "decision refused, the previous plan stays in effect: {why}");
            self.orders.push(Order::ReportRefusal { pool: self.name.clone(), why: why.clone() });
        }
        self.refused = Some(why);
    }

    fn write_log(&mut self) {
        if let Some(control) = &mut self.control {
            let entries = control.take_log();
            port::write_log(&mut self.log, control.config(), &entries);
        }
    }

    /// Does what is due. Returns when it must be called again; `None` for never.
    pub fn tick(&mut self) -> Option<Micros> {
        let now_us = self.now_us();
        self.take(now_us);
        if self.control.as_ref().is_some_and(|control| control.due_us() <= now_us) {
            self.close(now_us);
        }
        let window = self.control.as_ref().map(Control::due_us);
        window.into_iter().chain(self.monitors.due_us(now_us)).min()
    }

    fn take(&mut self, now_us: Micros) {
        let control = &mut self.control;
        let note = |name: &str, records: &haversack_core::Records| {
            if let Some(control) = control {
                control.note(name, records);
            }
        };
        if let Err(error) = self.monitors.take(&*self.backend, now_us, note) {
            tracing::debug!(pool = self.name, "cannot collect records: {error}");
        }
    }

    /// Measures a disk for a requested curve.
    ///
    /// # Errors
    /// The disk is not attached.
    pub fn measure(&mut self, name: &str, time: Duration) -> Result<()> {
        if self.measures() {
            return Ok(());
        }
        let now_us = self.now_us();
        self.take(now_us);
        let snapshot = self.backend.snapshot()?;
        let disk = found(&snapshot, name)?;
        let counters = self.latencies.counters(&snapshot, disk);
        let of = (name, disk.disk, disk.sectors.div_ceil(SECTORS));
        self.monitors
            .ask(&*self.backend, of, (now_us, time), &counters)?
            .map_err(|e| DaemonError::Control(e.into()))
    }

    /// Returns a disk's curve.
    ///
    /// # Errors
    /// Nothing was measured.
    pub fn curve(&mut self, name: &str) -> Result<DiskCurve> {
        let now_us = self.now_us();
        if let Some(window) = self.window(name) {
            return Ok(show::curve(name, true, window, self.lost.get(name).copied().unwrap_or(0)));
        }
        self.take(now_us);
        let snapshot = self.backend.snapshot()?;
        let counters = self.latencies.counters(&snapshot, found(&snapshot, name)?);
        if let Some((window, lost)) = self.monitors.asked(name, now_us, &counters) {
            return Ok(show::curve(name, false, &window, lost));
        }
        let (what, hint) = match &self.control {
            Some(control) if self.measures() => {
                let left_s = control.due_us().saturating_sub(now_us) as f64 / 1e6;
                (format!("its first window ends in {left_s:.0} s"), "ask again then")
            }
            _ => ("it is not measured".into(), "measure it first: 'haversack disk curve NAME --for 30s'"),
        };
        Err(DaemonError::conflict(format!("disk '{name}' has no curve: {what}"), hint))
    }

    /// Returns a disk's last measured window.
    fn window(&self, name: &str) -> Option<&haversack_policy::DiskWindow> {
        self.control.as_ref().filter(|_| self.measures())?.window(name)
    }

    /// Returns what was measured of a disk in the last window.
    pub fn measured(&self, name: &str) -> Option<Measured> {
        Some(show::measured(self.window(name)?, self.lost.get(name).copied().unwrap_or(0)))
    }

    /// Records a disk for a trace.
    ///
    /// # Errors
    /// The pool has stopped, or the disk is not attached.
    pub fn record(&mut self, name: &str, time: Option<Duration>) -> Result<Rows> {
        let disk = found(&self.backend.snapshot()?, name)?.disk;
        let now_us = self.now_us();
        // Earlier records do not belong to this trace.
        self.take(now_us);
        let time_us = time.map_or(u64::MAX, |time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        let (recording, rows) = Recording::new(now_us, now_us.saturating_add(time_us));
        self.monitors.record(&*self.backend, name, disk, recording)?;
        Ok(rows)
    }

    /// Returns what was decided for a disk.
    pub fn decided(&self, name: &str) -> Option<DiskPolicy> {
        let control = self.control.as_ref()?;
        let state = control.state(name)?;
        let plan = control.last()?.plan.disks.get(name)?;
        let kept = self.kept.get(name).map_or(&[][..], Vec::as_slice);
        Some(show::decided(name, state.name(), plan, kept))
    }

    /// Explains a disk's share and settings in words, and what a learning filter admits.
    ///
    /// # Errors
    /// The disk is not attached, or there is a policy that has decided nothing for it.
    pub fn explain(&self, name: &str) -> Result<String> {
        let snapshot = self.backend.snapshot()?;
        let disk = found(&snapshot, name)?;
        let learned = self.backend.admission_figures(disk.disk)?;
        let mut text = match &self.control {
            Some(control) => self.explain_decision(control, name)?,
            None => {
                let admission = if learned.is_some() { " Admission: learned." } else { "" };
                format!(
                    "No policy: {name} uses its configured settings. See 'haversack disk show {name}'.{admission}\n"
                )
            }
        };
        if let Some(figures) = learned {
            text += &haversack_control::explain::admission(&figures);
        }
        Ok(text)
    }

    fn explain_decision(&self, control: &Control, name: &str) -> Result<String> {
        let last = control.last().ok_or_else(|| match &self.refused {
            Some(why) => DaemonError::conflict(format!("no decision: {why}"), "see 'haversack policy log'"),
            None => DaemonError::conflict("nothing was decided yet", "wait for the end of the window"),
        })?;
        let mut text = haversack_control::explain::explain(last, name)?;
        for note in self.kept.get(name).into_iter().flatten() {
            text.push_str(&format!("Not as planned: {note}.\n"));
        }
        if let Some(why) = &self.refused {
            text.push_str(&format!("A later decision was refused: {why}.\n"));
        }
        Ok(text)
    }

    /// Returns the status for the API.
    pub fn status(&self) -> PoolPolicy {
        let (control, now_us) = (self.control.as_ref(), self.now_us());
        let left = |control: &Control| control.due_us().saturating_sub(now_us) as f64 / 1e6;
        let names = control.and_then(Control::last).map(|last| last.plan.disks.keys());
        PoolPolicy {
            pool: self.name.clone(),
            log: self.log.path().display().to_string(),
            window_left_s: control.map(left),
            decisions: self.decisions,
            refusals: self.refusals,
            refused: self.refused.clone(),
            disks: names.into_iter().flatten().filter_map(|name| self.decided(name)).collect(),
        }
    }
}

fn no_policy() -> DaemonError {
    DaemonError::conflict("there is no policy", "set one: 'haversack policy set ALLOCATOR', or [policy]")
}

fn found<'a>(snapshot: &'a Snapshot, name: &str) -> Result<&'a DiskSnapshot> {
    let found = snapshot.disks.iter().find(|disk| disk.name == name);
    found.ok_or_else(|| DaemonError::NoSuch { what: "attached disk", name: name.into() })
}
