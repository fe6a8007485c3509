//! The production cache with a trace: `haversack-core` itself, so that its hit ratio is the daemon's.

pub mod driver;
pub mod media;
pub mod memory;
mod pacing;
pub mod pool;
pub(crate) mod reads;
pub(crate) mod requests;

use haversack_api::{Admission, CleanerSettings, Mode};
use haversack_control as control;
use haversack_control::budget::Budget;
use haversack_core::{DiskConfig, DiskStats, MAX_DISKS, NullMemory, Target};
use haversack_model::{BLOCK_BYTES, DiskId, DiskNo, SECTOR_BYTES, SECTORS_PER_BLOCK};
use haversack_trace::{Access, VolumeNo};

use crate::cell::{Cell, CellResult, ProductionResult};
use crate::counts::Counts;
use crate::error::SimError;
use crate::governor::{self, Governor};
use crate::latency::Stations;
use crate::meter::{Meter, MeterSettings};
use crate::reference::PolicyName;
use crate::settings::{Restarts, Settings};
use crate::tape::Survey;
use driver::{Driver, Make};
use memory::{PageMemory, SimMemory};
use pacing::Pacing;
use pool::PoolMake;

/// Number of requests announced to the core together.
const ANNOUNCED: usize = 32;

/// See the module.
pub struct Production<M> {
    blocks: u64,
    driver: Driver<M>,
    meter: Meter,
    governor: Option<Governor>,
    pacing: Option<Pacing>,
    restarts: Option<Restarts>,
    next_restart_ns: u64,
    shape: PoolMake,
}

/// Converts the core's counters to the simulator's.
fn counts(stats: &DiskStats) -> Counts {
    Counts {
        read_requests: stats.reads,
        write_requests: stats.writes,
        flush_requests: stats.flushes,
        discard_requests: stats.zeroes,
        read_hits: stats.read_hits,
        data_stage_hits: stats.data_stage_hits,
        read_misses: stats.read_misses,
        write_hits: stats.write_hits,
        write_misses: stats.write_misses,
        origin_read_bytes: stats.origin_read_bytes,
        origin_written_bytes: stats.origin_written_bytes + stats.cleaned_bytes,
        flash_guest_blocks: stats.flash_write_blocks,
        flash_fill_blocks: stats.flash_fill_blocks,
        flash_mirror_blocks: stats.flash_mirror_blocks,
        flash_metadata_pages: stats.flash_batch_pages + stats.flash_rewrite_pages + stats.flash_intent_pages,
        not_admitted: stats.not_admitted,
        // Counted by the driver.
        origin_reads: 0,
        origin_writes: 0,
    }
}

/// The disks' settings, as the daemon would be given them.
pub(crate) fn disks(settings: &Settings, survey: &Survey) -> Result<Vec<DiskConfig>, SimError> {
    let pool = &settings.pool;
    if survey.volumes.len() > MAX_DISKS {
        return Err(SimError::Settings(format!(
            "the production cache takes at most {MAX_DISKS} disks, the trace has {} volumes: cut or merge it",
            survey.volumes.len()
        )));
    }
    if let Some((name, _)) =
        pool.targets.iter().find(|(name, _)| survey.volumes.iter().all(|v| v.name != *name))
    {
        let known: Vec<_> = survey.volumes.iter().map(|volume| volume.name.as_str()).collect();
        return Err(SimError::Settings(format!(
            "no volume '{name}' to give a target; there are {}",
            known.join(", ")
        )));
    }
    let disk = |(number, volume): (usize, &crate::tape::Volume)| {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&(number as u64 + 1).to_be_bytes());
        let sectors = volume.end_bytes.div_ceil(SECTOR_BYTES as u64).next_multiple_of(SECTORS_PER_BLOCK);
        let sectors = sectors.max(SECTORS_PER_BLOCK);
        let target = pool.targets.iter().find(|(name, _)| *name == volume.name);
        let plain = DiskConfig {
            mode: settings.mode,
            phase: pool.phase,
            persistence: pool.persistence,
            target: target.map_or(pool.others, |(_, blocks)| Target::Blocks(*blocks)),
            admission: pool.admission,
            sequential_cutoff_bytes: pool.sequential_cutoff_bytes,
            cleaner: pool.cleaner,
            ..DiskConfig::new(DiskId(id), sectors)
        };
        match settings.disk(&volume.name) {
            Some(configured) => as_configured(configured, &plain, settings),
            None => plain,
        }
    };
    Ok(survey.volumes.iter().enumerate().map(disk).collect())
}

/// A disk's settings for the core; settings that the disk does not specify are the simulation's.
fn as_configured(disk: &haversack_api::DiskConfig, plain: &DiskConfig, settings: &Settings) -> DiskConfig {
    let mut config = control::disk::core_config(disk, plain.id, plain.sectors);
    if disk.mode == Mode::Auto {
        config.mode = settings.mode;
    }
    if disk.admission == Admission::Auto {
        config.admission = plain.admission;
    }
    if disk.cleaner == CleanerSettings::default() {
        config.cleaner = plain.cleaner;
    }
    config
}

impl Production<NullMemory> {
    /// A pool of n blocks, or up to one segment per device fewer, with all volumes as its disks.
    ///
    /// # Errors
    /// The pool or a disk is refused.
    pub fn cell(
        settings: &Settings,
        survey: &Survey,
        blocks: u64,
        meter: MeterSettings,
    ) -> Result<Box<dyn Cell>, SimError> {
        Ok(match settings.pool.restarts {
            Some(_) => Box::new(Production::<PageMemory>::new(settings, survey, blocks, meter)?),
            None => Box::new(Production::<NullMemory>::new(settings, survey, blocks, meter)?),
        })
    }
}

impl<M: SimMemory> Production<M> {
    fn new(
        settings: &Settings,
        survey: &Survey,
        blocks: u64,
        meter: MeterSettings,
    ) -> Result<Self, SimError> {
        let pool = &settings.pool;
        let shape = PoolMake::of(pool, blocks)?;
        let (configs, names) = (disks(settings, survey)?, survey.volumes.iter());
        let names: Vec<String> = names.map(|volume| volume.name.clone()).collect();
        let make = Make { pool: shape, disks: configs.clone(), names: names.clone() };
        let model = settings.latency.as_ref();
        let stations = model.map(|model| Stations::new(model, shape.stations(), settings.seed));
        let (mut driver, mut meter) = (Driver::open(make, stations)?, Meter::new(meter));
        let governor = match &settings.control {
            Some(config) => {
                let volumes =
                    names.iter().zip(&configs).map(|(name, disk)| (name, disk.sectors, disk.target));
                let (disks, happenings) = (governor::disks(settings, volumes), &pool.happenings);
                Some(Governor::new(
                    config,
                    shape.capacity_blocks(),
                    disks,
                    happenings,
                    &mut driver,
                    &mut meter,
                )?)
            }
            None => None,
        };
        let pool_bytes = shape.capacity_blocks() * BLOCK_BYTES as u64;
        let budget = pool.endurance.map(|endurance| endurance.budget(pool_bytes));
        let budget = budget.map(|budget| Budget { burst_us: pool.burst_us, ..budget });
        let pacing = budget.map(Pacing::new).transpose()?;
        Ok(Production {
            blocks,
            driver,
            meter,
            governor,
            pacing,
            restarts: pool.restarts,
            next_restart_ns: pool.restarts.map_or(u64::MAX, |restarts| restarts.every_ns),
            shape,
        })
    }

    /// Restarts the cache, ends a window or updates the budget, whichever is due first by then. Returns false
    /// if none is.
    fn pass_to(&mut self, to_ns: u64) -> Result<bool, SimError> {
        let window_ns = self.governor.as_ref().map_or(u64::MAX, Governor::due_ns);
        let pace_ns = self.pacing.as_ref().map_or(u64::MAX, Pacing::due_ns);
        let due_ns = self.next_restart_ns.min(window_ns).min(pace_ns);
        if due_ns > to_ns {
            return Ok(false);
        }
        let (driver, meter) = (&mut self.driver, &mut self.meter);
        driver.advance(due_ns, meter);
        if due_ns == self.next_restart_ns
            && let Some(Restarts { every_ns, kind }) = self.restarts
        {
            driver.restart(kind, meter)?;
            self.next_restart_ns += every_ns;
            let governor = self.governor.as_mut();
            governor.map_or(Ok(()), |governor| governor.restart(due_ns / 1000, driver, meter))?;
            let pacing = self.pacing.as_mut();
            pacing.map_or(Ok(()), |pacing| pacing.restart(due_ns / 1000, driver))?;
        } else if due_ns == pace_ns
            && let Some(pacing) = &mut self.pacing
        {
            pacing.pace(driver);
        } else if let Some(governor) = &mut self.governor {
            governor.act(driver, meter)?;
        }
        Ok(true)
    }

    fn request(&mut self, access: &Access) -> Result<(), SimError> {
        while self.pass_to(access.time_ns)? {}
        self.driver.advance(access.time_ns, &mut self.meter);
        if self.meter.sample_due(access.time_ns) {
            self.count();
            let (usage, dirty) = self.driver.usage();
            self.meter.sample(access.time_ns, usage, dirty);
        }
        if self.meter.request() {
            self.count();
            self.meter.end_warm_up(access.time_ns);
        }
        self.driver.request(access, &mut self.meter);
        if let Some(governor) = &mut self.governor {
            governor.take(DiskNo(access.volume.0 as u16), &mut self.driver);
        }
        Ok(())
    }

    /// Brings the meter's counts up to date.
    fn count(&mut self) {
        for (volume, counts) in self.driver.counts().into_iter().enumerate() {
            *self.meter.volume(VolumeNo(volume as u32)) = counts;
        }
    }
}

impl<M: SimMemory> Cell for Production<M> {
    fn play(&mut self, accesses: &[Access]) -> Result<(), SimError> {
        for some in accesses.chunks(ANNOUNCED) {
            self.driver.announce(some);
            some.iter().try_for_each(|access| self.request(access))?;
        }
        Ok(())
    }

    fn end(mut self: Box<Self>) -> Result<Vec<CellResult>, SimError> {
        self.driver.run_out(&mut self.meter);
        self.count();
        let production = ProductionResult {
            segments: self.shape.all_segments(),
            capacity_blocks: self.shape.capacity_blocks(),
            staging_blocks: self.shape.staging_blocks,
            restarts: self.driver.restarts,
            disk_stats: self.driver.disk_stats(),
            device_flushes: self.driver.device_flushes,
            disk_usages: self.driver.disk_usages(),
            pool_stats: self.driver.pool_stats(),
            governed: self.governor.map(Governor::end),
            flash_account: self.pacing.map(Pacing::end),
        };
        let mut result = CellResult::new(PolicyName::Core, Some(self.blocks), self.meter.end());
        result.production = Some(production);
        Ok(vec![result])
    }
}
