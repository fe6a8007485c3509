//! The control loop over a simulated pool: the same windows and the same code as in the daemon, on the simulation's
//! clock. Events of disks are handled as the daemon handles them.

use std::collections::VecDeque;
use std::time::Duration;

use haversack_api::{Admission, DiskConfig, Mode, Size};
use haversack_control::{
    Cause, Control, ControlError, Counters, DiskReport, Port, actuate, disk, log, measures, recalled_lines,
};
use haversack_core::{AdmissionConfig, DiskUsage, MonitorConfig, Records, Target};
use haversack_model::{BLOCK_BYTES, DiskNo, Micros, SECTORS_PER_BLOCK, WriteMode};
use haversack_policy::{Config, DiskPlan, DiskState, DiskWindow, Event};
use serde::{Deserialize, Serialize};

use crate::error::SimError;
use crate::meter::Meter;
use crate::mix::{Happening, Timed, is_of};
use crate::settings::Settings;
use crate::sweep::thread_time;

/// Records are taken when this share of their buffer is used.
const TAKE_AT: f64 = 0.5;

/// The changes made by a decision.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TargetSample {
    /// When, in seconds of simulated time.
    pub time_seconds: f64,
    /// The target of each volume from then on.
    pub target_blocks: Vec<u64>,
    /// The demand of each volume, as computed by the system.
    pub demand_blocks: Vec<u64>,
    /// The usage of each volume at that moment.
    pub usage_blocks: Vec<u64>,
    /// The write mode of each volume.
    pub write_modes: Vec<String>,
}

/// The results of the control loop.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Outcome {
    /// The decisions.
    pub targets: Vec<TargetSample>,
    /// Number of windows in which no decision was possible.
    pub refused: u64,
    /// Why no decision was possible the last time.
    pub refusal: Option<String>,
    /// Lines of the decision log.
    #[serde(skip)]
    pub log: Vec<String>,
    /// Processor time of the longest decision, excluding analysis.
    #[serde(skip)]
    pub longest_decision: Duration,
}

/// A simulated pool, as the control loop drives it. Disks have the numbers of the trace's volumes.
pub trait Governable {
    /// Records the requests of all disks from now on.
    ///
    /// # Errors
    /// The pool refuses.
    fn monitor(&mut self, config: MonitorConfig) -> Result<(), SimError>;

    /// Returns the used share of a disk's record buffer.
    fn records_fill(&self, disk: DiskNo) -> f64;

    /// Takes a disk's records since the last call.
    fn take_records(&mut self, disk: DiskNo, into: &mut Records);

    /// Returns a disk's counters, with the mean latencies since the last window.
    fn counters(&self, disk: DiskNo) -> Counters;

    /// Restarts the mean latencies: of one disk's origin, or of everything.
    fn restart_latencies(&mut self, of: Option<DiskNo>);

    /// Returns a disk's share.
    fn disk_usage(&self, disk: DiskNo) -> DiskUsage;

    /// Returns a disk's write mode.
    fn mode(&self, disk: DiskNo) -> WriteMode;

    /// Sets the share of a disk and changes nothing else.
    ///
    /// # Errors
    /// The pool refuses.
    fn set_target(&mut self, disk: DiskNo, target: Target, meter: &mut Meter) -> Result<(), SimError>;

    /// Sets which blocks of a disk may enter the cache.
    ///
    /// # Errors
    /// The pool refuses.
    fn set_admission(&mut self, disk: DiskNo, admission: AdmissionConfig) -> Result<(), SimError>;

    /// Sets a disk's write mode.
    ///
    /// # Errors
    /// The pool refuses.
    fn set_mode(&mut self, disk: DiskNo, mode: WriteMode, meter: &mut Meter) -> Result<(), SimError>;
}

/// A volume as a disk of the pool.
pub struct Governed {
    name: String,
    blocks: u64,
    config: DiskConfig,
    /// Whether the control loop knows it: it has arrived and not ended.
    here: bool,
}

/// The volumes as disks, in order: each with its name, its sectors, and its target if that is fixed.
pub fn disks<'a>(
    settings: &Settings,
    volumes: impl Iterator<Item = (&'a String, u64, Target)>,
) -> Vec<Governed> {
    let disk = |(name, sectors, target): (&String, u64, Target)| {
        let plain = || {
            let mut config = DiskConfig::new(name, crate::mix::MAIN_POOL, "");
            if let Target::Blocks(blocks) = target {
                config.target = haversack_api::Target::Bytes(Size(blocks * BLOCK_BYTES as u64));
            }
            config
        };
        let config = settings.disk(name).cloned().unwrap_or_else(plain);
        let first = settings.pool.happenings.iter().find(|timed| is_of(name, &timed.disk));
        let here = !first.is_some_and(Timed::is_arrival);
        Governed { name: name.clone(), blocks: sectors.div_ceil(SECTORS_PER_BLOCK), config, here }
    };
    volumes.map(disk).collect()
}

impl Governed {
    /// Takes it out: it is on another host, and the control loop does not know it.
    pub(crate) fn leave(&mut self) {
        self.here = false;
    }
}

/// See the module.
pub struct Governor {
    control: Control,
    disks: Vec<Governed>,
    pool_blocks: u64,
    records: Records,
    /// The events that are still to come.
    happenings: VecDeque<Timed>,
    /// What the last plans have set, by disk.
    applied: Vec<Applied>,
    outcome: Outcome,
}

/// What a plan has set for a disk. Only what differs is set again, as in the daemon.
#[derive(Clone, Copy, Default)]
struct Applied {
    target: Option<Target>,
    admission: Option<AdmissionConfig>,
}

/// The simulated pool, as the control loop sees it.
struct SimPort<'a, C> {
    cache: &'a mut C,
    meter: &'a mut Meter,
    disks: &'a [Governed],
    pool_blocks: u64,
    applied: &'a mut [Applied],
    /// Write modes to change when everything else is done.
    modes: Vec<(DiskNo, WriteMode)>,
    outcome: &'a mut Outcome,
    /// Processor time at which the decision began.
    begun: Duration,
}

/// The disks with their numbers.
fn numbered(disks: &[Governed]) -> impl Iterator<Item = (DiskNo, &Governed)> {
    (0..).map(DiskNo).zip(disks)
}

impl<C: Governable> Port for SimPort<'_, C> {
    type Error = SimError;

    fn reports(&mut self) -> Option<(u64, Vec<DiskReport>)> {
        let report = |(number, governed): (DiskNo, &Governed)| {
            let (wishes, used_blocks) =
                (disk::wishes(&governed.config), self.cache.disk_usage(number).usage_blocks);
            let mode = self.cache.mode(number);
            DiskReport {
                facts: wishes.facts(&governed.name, self.pool_blocks, used_blocks, mode),
                counters: self.cache.counters(number),
            }
        };
        let reports = numbered(self.disks).map(report).collect();
        self.begun = thread_time();
        Some((self.pool_blocks, reports))
    }

    fn write_log(&mut self, entries: &[log::Entry]) {
        let took = thread_time().saturating_sub(self.begun);
        self.outcome.longest_decision = self.outcome.longest_decision.max(took);
        self.outcome.log.extend(entries.iter().map(log::Entry::line));
    }

    fn carry_out(&mut self, name: &str, plan: &DiskPlan) -> Result<(), SimError> {
        let (number, governed) =
            numbered(self.disks).find(|(_, disk)| disk.name == name).expect("it was reported");
        let target = actuate::target(plan.target);
        let admission = match governed.config.admission {
            Admission::Auto => actuate::admission(plan.admission),
            chosen => disk::admission(chosen, plan.target.own_blocks().unwrap_or(self.pool_blocks)),
        };
        let mode = match governed.config.mode {
            Mode::Auto => plan.write_mode,
            Mode::Fixed(mode) => mode,
        };
        let applied = &mut self.applied[usize::from(number.0)];
        if applied.target.replace(target) != Some(target) {
            self.cache.set_target(number, target, self.meter)?;
        }
        if applied.admission.replace(admission) != Some(admission) {
            self.cache.set_admission(number, admission)?;
        }
        if self.cache.mode(number) != mode {
            self.modes.push((number, mode));
        }
        Ok(())
    }
}

fn unfit(error: &ControlError) -> SimError {
    SimError::Settings(format!("the control loop: {error}"))
}

impl Governor {
    /// Takes over a pool whose disks are attached.
    ///
    /// # Errors
    /// The configuration is invalid.
    pub fn new<C: Governable>(
        config: &Config,
        pool_blocks: u64,
        disks: Vec<Governed>,
        happenings: &[Timed],
        cache: &mut C,
        meter: &mut Meter,
    ) -> Result<Governor, SimError> {
        let mut governor = Governor {
            control: Control::new(config.clone(), 0).map_err(|error| unfit(&error))?,
            applied: vec![Applied::default(); disks.len()],
            disks,
            pool_blocks,
            records: Records::with_room(MonitorConfig::default().records),
            happenings: happenings.iter().cloned().collect(),
            outcome: Outcome::default(),
        };
        governor.begin(0, cache, meter)?;
        Ok(governor)
    }

    /// Continues after a restart as the daemon does, from its log; windows start again.
    ///
    /// # Errors
    /// The core refuses the decision.
    pub fn restart<C: Governable>(
        &mut self,
        now_us: Micros,
        cache: &mut C,
        meter: &mut Meter,
    ) -> Result<(), SimError> {
        let config = self.control.config().clone();
        let mut control = Control::new(config, now_us).map_err(|error| unfit(&error))?;
        let log = &self.outcome.log;
        let own = self.disks.iter().map(|governed| disk::own_window(&governed.config));
        let newest = &log[log.len().saturating_sub(recalled_lines(control.config(), own))..];
        control.recall(newest).map_err(|error| unfit(&error))?;
        self.control = control;
        self.applied.fill(Applied::default());
        // What was measured since the last window belongs to the daemon that has ended.
        cache.restart_latencies(None);
        self.begin(now_us, cache, meter)
    }

    fn begin<C: Governable>(
        &mut self,
        now_us: Micros,
        cache: &mut C,
        meter: &mut Meter,
    ) -> Result<(), SimError> {
        if measures(self.control.config()) {
            cache.monitor(MonitorConfig::default())?;
        }
        for Governed { name, blocks, .. } in self.disks.iter().filter(|disk| disk.here) {
            let begun = self.control.begin(now_us, name, *blocks, &Counters::default());
            begun.map_err(|error| unfit(&error))?;
        }
        self.turn(now_us, Cause::Event("start"), cache, meter)?;
        cache.restart_latencies(None);
        Ok(())
    }

    fn happens_ns(&self) -> u64 {
        self.happenings.front().map_or(u64::MAX, |timed| timed.at_ns)
    }

    /// The time at which the window ends, or of the next event of a disk.
    pub fn due_ns(&self) -> u64 {
        self.control.due_us().saturating_mul(1000).min(self.happens_ns())
    }

    /// Takes a disk's records if enough of its buffer is used.
    pub fn take<C: Governable>(&mut self, disk: DiskNo, cache: &mut C) {
        if cache.records_fill(disk) >= TAKE_AT {
            self.take_now(disk, cache);
        }
    }

    fn take_now<C: Governable>(&mut self, disk: DiskNo, cache: &mut C) {
        cache.take_records(disk, &mut self.records);
        self.control.note(&self.disks[usize::from(disk.0)].name, &self.records);
    }

    /// Performs due work: handles the event of a disk, or ends the window and carries out the decision.
    ///
    /// # Errors
    /// The core refuses the decision, or an event is not possible.
    pub fn act<C: Governable>(&mut self, cache: &mut C, meter: &mut Meter) -> Result<(), SimError> {
        if self.happens_ns() <= self.control.due_us().saturating_mul(1000)
            && let Some(timed) = self.happenings.pop_front()
        {
            return self.happen(&timed, cache, meter);
        }
        let now_us = self.control.due_us();
        for number in 0..self.disks.len() {
            self.take_now(DiskNo(number as u16), cache);
        }
        self.turn(now_us, Cause::Window, cache, meter)?;
        cache.restart_latencies(None);
        Ok(())
    }

    fn happen<C: Governable>(
        &mut self,
        timed: &Timed,
        cache: &mut C,
        meter: &mut Meter,
    ) -> Result<(), SimError> {
        let now_us = timed.at_ns / 1000;
        for at in 0..self.disks.len() {
            if !is_of(&self.disks[at].name, &timed.disk) {
                continue;
            }
            let (number, name) = (DiskNo(at as u16), self.disks[at].name.clone());
            self.take_now(number, cache);
            match &timed.what {
                Happening::Change(change) => {
                    let config = &mut self.disks[at].config;
                    *config = change.applied_to(config);
                    self.applied[at] = Applied::default();
                    self.turn(now_us, Cause::Event(&format!("changed {name}")), cache, meter)?;
                }
                Happening::Event(event) => self.tell(now_us, number, &name, event, cache, meter)?,
            }
        }
        Ok(())
    }

    /// Handles an event of a disk.
    fn tell<C: Governable>(
        &mut self,
        now_us: Micros,
        number: DiskNo,
        name: &str,
        event: &Event,
        cache: &mut C,
        meter: &mut Meter,
    ) -> Result<(), SimError> {
        let refused =
            |error: ControlError| SimError::Settings(format!("event at {} s: {error}", now_us as f64 / 1e6));
        if *event == Event::StorageMigrated {
            cache.restart_latencies(Some(number));
        }
        let blocks = self.disks[usize::from(number.0)].blocks;
        let counters = cache.counters(number);
        let came = matches!(event, Event::MigratingIn(Some(_)));
        if came && self.control.state(name) == Some(DiskState::New) {
            self.control.event(now_us, name, blocks, &counters, Event::Ended).map_err(refused)?;
        }
        let due = self.control.event(now_us, name, blocks, &counters, event.clone()).map_err(refused)?;
        let here = self.control.state(name).is_some();
        self.disks[usize::from(number.0)].here = here;
        self.outcome.log.extend(self.control.take_log().iter().map(log::Entry::line));
        if due {
            self.turn(now_us, Cause::Event(&format!("{} {name}", event.name())), cache, meter)?;
        }
        if !here {
            cache.set_target(number, Target::Blocks(0), meter)?;
            self.applied[usize::from(number.0)] = Applied::default();
        }
        Ok(())
    }

    fn turn<C: Governable>(
        &mut self,
        now_us: Micros,
        cause: Cause<'_>,
        cache: &mut C,
        meter: &mut Meter,
    ) -> Result<(), SimError> {
        let (disks, pool_blocks, outcome) = (&self.disks, self.pool_blocks, &mut self.outcome);
        let mut port = SimPort {
            cache: &mut *cache,
            meter: &mut *meter,
            disks,
            pool_blocks,
            applied: &mut self.applied,
            modes: Vec::new(),
            outcome,
            begun: Duration::ZERO,
        };
        let decided = self.control.turn(&mut port, now_us, cause)?;
        for (number, mode) in std::mem::take(&mut port.modes) {
            cache.set_mode(number, mode, meter)?;
        }
        let plan = match decided {
            Some(Ok(decision)) => decision.plan,
            Some(Err(error)) => {
                self.outcome.refused += 1;
                self.outcome.refusal = Some(error.to_string());
                return Ok(());
            }
            None => unreachable!("a simulated pool is always available"),
        };
        let plans = || self.disks.iter().map(|disk| plan.disks.get(&disk.name));
        let usages: Vec<_> = numbered(&self.disks).map(|(number, _)| cache.disk_usage(number)).collect();
        let mode = |(number, plan): (DiskNo, Option<&DiskPlan>)| {
            plan.map_or(cache.mode(number), |plan| plan.write_mode).to_string()
        };
        self.outcome.targets.push(TargetSample {
            time_seconds: now_us as f64 / 1e6,
            target_blocks: usages.iter().map(|usage| usage.target_blocks).collect(),
            demand_blocks: plans().map(|plan| plan.map_or(0, |plan| plan.demand_blocks)).collect(),
            usage_blocks: usages.iter().map(|usage| usage.usage_blocks).collect(),
            write_modes: (0..).map(DiskNo).zip(plans()).map(mode).collect(),
        });
        Ok(())
    }

    /// Passes on an event of a disk, and decides if one is due.
    ///
    /// # Errors
    /// The event is not possible, or the core refuses the decision.
    pub(crate) fn disk_event<C: Governable>(
        &mut self,
        now_us: Micros,
        disk: DiskNo,
        event: &Event,
        cache: &mut C,
        meter: &mut Meter,
    ) -> Result<(), SimError> {
        self.take_now(disk, cache);
        let name = self.disks[usize::from(disk.0)].name.clone();
        self.tell(now_us, disk, &name, event, cache, meter)
    }

    /// Decides between windows.
    ///
    /// # Errors
    /// The core refuses the decision.
    pub(crate) fn decide<C: Governable>(
        &mut self,
        now_us: Micros,
        cause: &str,
        cache: &mut C,
        meter: &mut Meter,
    ) -> Result<(), SimError> {
        self.turn(now_us, Cause::Event(cause), cache, meter)
    }

    /// Forgets what was set for a disk that was elsewhere: the next decision sets it again.
    pub(crate) fn forget_applied(&mut self, disk: DiskNo) {
        self.applied[usize::from(disk.0)] = Applied::default();
    }

    /// The configuration.
    pub(crate) fn config(&self) -> &Config {
        self.control.config()
    }

    /// What was measured of a disk in its last window.
    pub(crate) fn window(&self, disk: usize) -> Option<&DiskWindow> {
        self.control.window(&self.disks[disk].name)
    }

    /// The windows of a disk that go with it to another host.
    pub(crate) fn kept_windows(&self, disk: usize) -> Vec<DiskWindow> {
        self.control.kept_windows(&self.disks[disk].name).cloned().collect()
    }

    /// The demand of a disk in the last decision; 0 if that knows nothing of it.
    pub(crate) fn demand_blocks(&self, disk: usize) -> u64 {
        let plan = self.control.last().and_then(|last| last.plan.disks.get(&self.disks[disk].name));
        plan.map_or(0, |plan| plan.demand_blocks)
    }

    /// Ends the control loop, and returns its results.
    pub fn end(self) -> Outcome {
        self.outcome
    }
}
