//! A VM that moves between two hosts with its cache, in simulated time.
//!
//! Each host has a pool with `haversack-core`, and the two hosts use the protocol of `haversack-migrate`,
//! both exactly as in the daemon. Devices, the origin, the link and the time are simulated. Every read is
//! checked.
//!
//! - [`MigrationTable`], [`MigrationPlan`]: what moves, when and how.
//! - [`Setup`], [`simulate`]: the VMs and their loads; the result is an [`Outcome`].
//! - [`neighbours`]: FirepanIF's model of how VMs share a host's flash and the storage.

mod checker;
mod content;
mod host;
pub mod link;
pub mod measure;
pub mod neighbours;
mod outcome;
mod plan;
mod vm;
mod world;

use std::collections::BTreeMap;
use std::path::Path;

use haversack_model::BLOCK_BYTES;
use haversack_trace::{Source, VolumeNo};

use crate::error::SimError;
use crate::latency::{LatencyModel, Stations};
use crate::mix::{Mix, is_of};
use crate::production;
use crate::production::pool::PoolMake;
use crate::settings::Settings;
use crate::tape::Survey;
use host::Host;
use measure::recovered_seconds;
use vm::Vm;
use world::{DESTINATION, Moments, SOURCE, World};

pub use haversack_migrate::Method;
pub use outcome::{LoadSample, OriginTraffic, Outcome, VmOutcome};
pub use plan::{LatencyTable, MigrationPlan, MigrationTable};
pub use vm::{OpenLoad, Role};

/// Number of samples in a window.
const SAMPLES_A_WINDOW: u64 = 50;
/// The share of the earlier hit ratio that counts as recovered.
const RECOVERED_SHARE: f64 = 0.9;

/// A VM to simulate.
pub struct VmSetup<'a> {
    /// Its name.
    pub name: String,
    /// Whether a volume of that name is one of its disks.
    pub owns: Box<dyn Fn(&str) -> bool + 'a>,
    /// Its role.
    pub role: Role,
    /// Requests that it keeps in flight; `None` if they arrive at fixed times.
    pub depth: Option<u32>,
    /// Its load.
    pub open: OpenLoad<'a>,
}

/// The setup of a simulation.
pub struct Setup<'a> {
    /// The VMs.
    pub vms: Vec<VmSetup<'a>>,
    /// All their loads together.
    pub survey: &'a Survey,
    /// Pools and disks. Each host has a pool with the first of its sizes.
    pub settings: &'a Settings,
    /// The model of time.
    pub latency: &'a LatencyModel,
}

impl<'a> Setup<'a> {
    /// The VMs of a mix.
    ///
    /// # Errors
    /// The mix cannot be simulated on two hosts.
    pub fn of_mix(
        mix: &'a Mix,
        table: &MigrationTable,
        folder: &'a Path,
        survey: &'a Survey,
        settings: &'a Settings,
        latency: &'a LatencyModel,
    ) -> Result<Setup<'a>, SimError> {
        let vms = mix.disks.iter().map(|load| VmSetup {
            name: load.name().into(),
            owns: Box::new(|volume| is_of(volume, load.name())),
            role: load.role(load.name() == table.disk),
            depth: load.depth,
            open: Box::new(move || load.open(folder)),
        });
        let setup = Setup { vms: vms.collect(), survey, settings, latency };
        setup.check()?;
        Ok(setup)
    }

    fn check(&self) -> Result<(), SimError> {
        let moves = self.vms.iter().filter(|vm| vm.role == Role::Moves).count();
        if moves != 1 {
            let names: Vec<&str> = self.vms.iter().map(|vm| vm.name.as_str()).collect();
            return Err(SimError::Settings(format!(
                "which disk moves? name one that is on host 'a': there are {}",
                names.join(", ")
            )));
        }
        if self.settings.pool.mirrored {
            return Err(SimError::Settings(
                "mirrored devices are not simulated in migrations: leave them out".into(),
            ));
        }
        self.latency.check().map_err(|error| SimError::Settings(error.to_string()))?;
        if !self.survey.timed {
            return Err(SimError::Settings("the trace has no times, which a migration needs".into()));
        }
        Ok(())
    }

    /// The volumes of a VM, by name.
    fn volumes(&self, vm: &VmSetup<'_>) -> BTreeMap<String, VolumeNo> {
        let all = self.survey.volumes.iter().zip(0..);
        let own = all.filter(|(volume, _)| (vm.owns)(&volume.name));
        own.map(|(volume, number)| (volume.name.clone(), VolumeNo(number))).collect()
    }

    /// Checks that the load of the VM that moves is long enough for the plan, unless it repeats.
    fn check_length(&self, plan: &MigrationPlan) -> Result<(), SimError> {
        let end_ns = plan.marks_ns()[3];
        let moving = self.vms.iter().find(|vm| vm.role == Role::Moves && vm.depth.is_none());
        let Some(moving) = moving else { return Ok(()) };
        let last_ns = self.last_ns(moving);
        if last_ns < end_ns {
            return Err(SimError::Settings(format!(
                "the load of '{}' ends after {:.1} s, and the migration is looked at until {:.1} s: move earlier, or take a \
                 smaller window",
                moving.name,
                last_ns as f64 / 1e9,
                end_ns as f64 / 1e9
            )));
        }
        Ok(())
    }

    /// The simulated time of a VM's last request.
    fn last_ns(&self, vm: &VmSetup<'_>) -> u64 {
        let own = self.survey.volumes.iter().filter(|volume| (vm.owns)(&volume.name));
        let last_ns = own.map(|volume| volume.last_ns).max().unwrap_or(0);
        let since_ns = last_ns.saturating_sub(self.survey.start_ns());
        (since_ns as f64 / self.settings.traffic.speed_up) as u64
    }
}

/// Simulates a migration.
///
/// # Errors
/// The settings are invalid, a load cannot be read, or the migration goes wrong: then the error says how.
pub fn simulate(setup: &Setup<'_>, plan: &MigrationPlan, seed: u64) -> Result<Outcome, SimError> {
    setup.check()?;
    setup.check_length(plan)?;
    let (settings, survey) = (setup.settings, setup.survey);
    let disks = production::disks(settings, survey)?;
    let sizes = settings.sizes.blocks(BLOCK_BYTES as u64, survey.footprint_blocks)?;
    let blocks = *sizes.first().ok_or_else(|| SimError::Settings("how large are the pools?".into()))?;
    let make = PoolMake::of(&settings.pool, blocks)?;
    let hosts = [Host::new(SOURCE, &make)?, Host::new(DESTINATION, &make)?];
    let clock = (survey.start_ns(), settings.traffic.speed_up);
    let vms = setup.vms.iter().map(|vm| {
        let numbers = setup.volumes(vm);
        let open: OpenLoad<'_> = Box::new(|| -> Result<Box<dyn Source>, SimError> { (vm.open)() });
        Vm::new(&vm.name, vm.role, vm.depth, open, numbers, clock)
    });
    let vms = vms.collect::<Result<Vec<_>, _>>()?;
    let devices = hosts.len() * make.devices as usize;
    let stations = Stations::of_hosts(setup.latency, hosts.len(), devices, seed);
    let sample_ns = (plan.window_ns / SAMPLES_A_WINDOW).max(1);
    let mut world = World::new(*plan, hosts, vms, &disks, stations, sample_ns)?;
    world.run()?;
    let outcome = outcome(&mut world, seed, make.capacity_blocks());
    world.read_everything()?;
    Ok(Outcome { checked_sectors: world.checker.checked_sectors, ..outcome })
}

fn outcome(world: &mut World<'_>, seed: u64, pool_blocks: u64) -> Outcome {
    let World { plan, moments, cached, .. } = *world;
    let marks = plan.marks_ns();
    let seconds = [0, 1, 2].map(|at: usize| (marks[at + 1] - marks[at]) as f64 / 1e9);
    let results = world.vms.iter().zip(world.meters.drain(..)).map(|(vm, meter)| {
        let (figures, samples) = meter.end(seconds);
        VmOutcome::new(vm, figures, samples)
    });
    let vms: Vec<VmOutcome> = results.collect();
    let Moments { stopped_ns, drained_ns, resumed_ns, served_ns, alone_ns, was_ready } = moments;
    let between = |from: Option<u64>, to: Option<u64>| match (from, to) {
        (Some(from), Some(to)) => to - from,
        _ => 0,
    };
    let moving = vms.iter().find(|vm| vm.moves).expect("a VM moves");
    let recovered = recovered_seconds(
        &moving.samples,
        moving.before.hit_ratio,
        RECOVERED_SHARE,
        between(stopped_ns, resumed_ns) as f64 / 1e9,
    );
    let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
    let origin = |stretch: usize| world.origin_marks[stretch + 1].since(world.origin_marks[stretch]);
    let [there, back] = &world.links;
    Outcome {
        method: plan.method,
        seed,
        link: plan.link,
        pool_blocks,
        drain_us: between(stopped_ns, drained_ns) / 1_000,
        downtime_us: plan.downtime_ns / 1_000,
        stall_us: between(resumed_ns, served_ns) / 1_000,
        alone_seconds: alone_ns.map(|ns| between(stopped_ns, Some(ns)) as f64 / 1e9),
        recovered_seconds: recovered,
        was_ready,
        there: there.sent,
        back: back.sent,
        refused_copies: world.refused_copies,
        cached_bytes: bytes(cached.blocks),
        reused_bytes: bytes(cached.reused_blocks),
        dirty_bytes: bytes(cached.dirty_blocks),
        needed_bytes: bytes(cached.needed_blocks),
        origin_before: origin(0),
        origin_ahead: origin(1),
        origin_after: origin(2),
        samples: std::mem::take(&mut world.samples),
        checked_sectors: world.checker.checked_sectors,
        vms,
    }
}
