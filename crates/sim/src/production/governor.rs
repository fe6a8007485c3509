//! The control loop over a simulated pool: the same windows and the same code as in the daemon, on the simulation's
//! clock.
//!
//! All volumes are disks from the beginning, and nothing is wished of them but the sizes that the operator gave.

use std::time::Duration;

use haversack_control::{
    Cause, Control, ControlError, Counters, DiskReport, Port, RECALLED_LINES, Wishes, actuate, log, measures,
};
use haversack_core::{DiskConfig, MonitorConfig, Records, Target};
use haversack_model::{DiskNo, Micros, SECTORS_PER_BLOCK};
use haversack_policy::{Config, DiskPlan};
use serde::{Deserialize, Serialize};

use super::driver::Driver;
use super::memory::SimMemory;
use crate::error::SimError;
use crate::meter::Meter;
use crate::sweep::thread_time;

/// Records are taken when this share of their room is.
const TAKE_AT: f64 = 0.5;

/// What a decision changed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TargetSample {
    /// When, in seconds of simulated time.
    pub time_seconds: f64,
    /// What each volume should have from then on.
    pub target_blocks: Vec<u64>,
    /// What each demands, as the system sees it.
    pub demand_blocks: Vec<u64>,
    /// What each has at that moment.
    pub usage_blocks: Vec<u64>,
    /// The write mode of each.
    pub write_modes: Vec<String>,
}

/// What came of the control loop.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Governed {
    /// The decisions.
    pub targets: Vec<TargetSample>,
    /// Windows in which nothing could be decided, and why the last of them.
    pub refused: u64,
    /// Why nothing could be decided the last time.
    pub refusal: Option<String>,
    /// Lines of the decision log.
    #[serde(skip)]
    pub log: Vec<String>,
    /// Processor time of the longest decision, analysis not counted.
    #[serde(skip)]
    pub longest_decision: Duration,
}

/// A volume as a disk of the pool.
struct Governable {
    name: String,
    blocks: u64,
    wishes: Wishes,
}

/// See the module.
pub struct Governor {
    control: Control,
    disks: Vec<Governable>,
    pool_blocks: u64,
    records: Records,
    governed: Governed,
}

/// The simulated pool, as the control loop sees it.
struct SimPort<'a, M: SimMemory> {
    driver: &'a mut Driver<M>,
    meter: &'a mut Meter,
    disks: &'a [Governable],
    pool_blocks: u64,
    governed: &'a mut Governed,
    /// Processor time at which the decision began.
    begun: Duration,
}

impl<M: SimMemory> Port for SimPort<'_, M> {
    type Error = SimError;

    fn reports(&mut self) -> Option<(u64, Vec<DiskReport>)> {
        let (origins, cache_latency_us) = self.driver.take_latencies();
        let stats = self.driver.disk_stats();
        let mut reports = Vec::with_capacity(self.disks.len());
        for (disk, Governable { name, wishes, .. }) in self.driver.disk_numbers().zip(self.disks) {
            let number = usize::from(disk.0);
            let used_blocks = self.driver.disk_usage(disk).usage_blocks;
            let origin_latency_us = origins[number];
            reports.push(DiskReport {
                facts: wishes.facts(name, self.pool_blocks, used_blocks, self.driver.mode(disk)),
                counters: Counters { origin_latency_us, cache_latency_us, ..Counters::of(&stats[number]) },
            });
        }
        self.begun = thread_time();
        Some((self.pool_blocks, reports))
    }

    fn write_log(&mut self, entries: &[log::Entry]) {
        let took = thread_time().saturating_sub(self.begun);
        self.governed.longest_decision = self.governed.longest_decision.max(took);
        self.governed.log.extend(entries.iter().map(log::Entry::line));
    }

    fn carry_out(&mut self, name: &str, plan: &DiskPlan) -> Result<(), SimError> {
        let number = self.disks.iter().position(|disk| disk.name == name).expect("it was reported");
        let (target, admission) = (actuate::target(plan.target), actuate::admission(plan.admission));
        self.driver.set(DiskNo(number as u16), target, admission, plan.write_mode, self.meter)
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
    pub fn new<M: SimMemory>(
        config: &Config,
        pool_blocks: u64,
        disks: &[DiskConfig],
        names: &[String],
        driver: &mut Driver<M>,
        meter: &mut Meter,
    ) -> Result<Governor, SimError> {
        let governable = |(name, disk): (&String, &DiskConfig)| {
            let fixed_blocks = if let Target::Blocks(blocks) = disk.target { Some(blocks) } else { None };
            let blocks = disk.sectors.div_ceil(SECTORS_PER_BLOCK);
            Governable { name: name.clone(), blocks, wishes: Wishes { fixed_blocks, ..Wishes::default() } }
        };
        let mut governor = Governor {
            control: Control::new(config.clone(), 0).map_err(|error| unfit(&error))?,
            disks: names.iter().zip(disks).map(governable).collect(),
            pool_blocks,
            records: Records::with_room(MonitorConfig::default().records),
            governed: Governed::default(),
        };
        governor.begin(0, driver, meter)?;
        Ok(governor)
    }

    /// Continues after a restart as the daemon does, from its log; windows start again.
    ///
    /// # Errors
    /// The core refuses what is decided.
    pub fn restart<M: SimMemory>(
        &mut self,
        now_us: Micros,
        driver: &mut Driver<M>,
        meter: &mut Meter,
    ) -> Result<(), SimError> {
        let config = self.control.config().clone();
        let mut control = Control::new(config, now_us).map_err(|error| unfit(&error))?;
        let log = &self.governed.log;
        let newest = log[log.len().saturating_sub(RECALLED_LINES)..].iter().map(String::as_str);
        control.recall(newest).map_err(|error| unfit(&error))?;
        self.control = control;
        // What was measured since the last window belongs to the daemon that has ended.
        driver.take_latencies();
        self.begin(now_us, driver, meter)
    }

    fn begin<M: SimMemory>(
        &mut self,
        now_us: Micros,
        driver: &mut Driver<M>,
        meter: &mut Meter,
    ) -> Result<(), SimError> {
        if measures(self.control.config()) {
            driver.monitor(MonitorConfig::default())?;
        }
        for Governable { name, blocks, .. } in &self.disks {
            let begun = self.control.begin(now_us, name, *blocks, &Counters::default());
            begun.map_err(|error| unfit(&error))?;
        }
        self.turn(now_us, Cause::Event("start"), driver, meter)
    }

    /// When the window ends.
    pub fn due_ns(&self) -> u64 {
        self.control.due_us().saturating_mul(1000)
    }

    /// Takes a disk's records if there are many.
    pub fn take<M: SimMemory>(&mut self, disk: DiskNo, driver: &mut Driver<M>) {
        if driver.records_fill(disk) >= TAKE_AT {
            self.take_now(disk, driver);
        }
    }

    fn take_now<M: SimMemory>(&mut self, disk: DiskNo, driver: &mut Driver<M>) {
        driver.take_records(disk, &mut self.records);
        self.control.note(&self.disks[usize::from(disk.0)].name, &self.records);
    }

    /// Ends the window and carries out what is decided.
    ///
    /// # Errors
    /// The core refuses what was decided.
    pub fn close<M: SimMemory>(&mut self, driver: &mut Driver<M>, meter: &mut Meter) -> Result<(), SimError> {
        let now_us = self.control.due_us();
        driver.disk_numbers().for_each(|disk| self.take_now(disk, driver));
        self.turn(now_us, Cause::Window, driver, meter)
    }

    fn turn<M: SimMemory>(
        &mut self,
        now_us: Micros,
        cause: Cause<'_>,
        driver: &mut Driver<M>,
        meter: &mut Meter,
    ) -> Result<(), SimError> {
        let (disks, pool_blocks, governed) = (&self.disks, self.pool_blocks, &mut self.governed);
        let mut port =
            SimPort { driver: &mut *driver, meter, disks, pool_blocks, governed, begun: Duration::ZERO };
        let plan = match self.control.turn(&mut port, now_us, cause)? {
            Some(Ok(decision)) => decision.plan,
            Some(Err(error)) => {
                self.governed.refused += 1;
                self.governed.refusal = Some(error.to_string());
                return Ok(());
            }
            None => unreachable!("a simulated pool is always available"),
        };
        let plans: Vec<_> = self.disks.iter().map(|disk| &plan.disks[&disk.name]).collect();
        let usages: Vec<_> = driver.disk_numbers().map(|disk| driver.disk_usage(disk)).collect();
        self.governed.targets.push(TargetSample {
            time_seconds: now_us as f64 / 1e6,
            target_blocks: usages.iter().map(|usage| usage.target_blocks).collect(),
            demand_blocks: plans.iter().map(|plan| plan.demand_blocks).collect(),
            usage_blocks: usages.iter().map(|usage| usage.usage_blocks).collect(),
            write_modes: plans.iter().map(|plan| plan.write_mode.to_string()).collect(),
        });
        Ok(())
    }

    /// What came of it.
    pub fn end(self) -> Governed {
        self.governed
    }
}
