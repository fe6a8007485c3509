//! A small cluster, request by request: every host runs `haversack-core` under `haversack-control`, VMs move with their
//! caches by `haversack-migrate`, and `haversack-cluster` decides which. Devices, links, the origin, hypervisors and
//! time are simulated. There is no data: that every read is right is tested by [`crate::migration`].

mod actions;
mod event;
mod figures;
mod host;
mod measure;
mod moving;
mod world;

use std::path::Path;

use haversack_model::BLOCK_BYTES;
use haversack_trace::Source;
use serde::Serialize;

use super::balance::Balance;
use super::system::System;
use super::table::ClusterTable;
use crate::error::SimError;
use crate::governor::{self, Governor};
use crate::latency::Stations;
use crate::mix::{Mix, with_windows};
use crate::production;
use crate::production::pool::PoolMake;
use crate::settings::{Pool, Settings};
use crate::tape::{Survey, Tape};
use world::{Make, World};

pub use measure::{Hits, VmOutcome, WindowSample};
pub use moving::Done;

/// A simulated cluster.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Outcome {
    /// The system.
    pub system: System,
    /// The seed.
    pub seed: u64,
    /// Blocks of each host's pool.
    pub pool_blocks: u64,
    /// The windows, those of the warm-up first.
    pub windows: Vec<WindowSample>,
    /// The VMs, over all windows that count.
    pub vms: Vec<VmOutcome>,
    /// The moves, in the order in which they ended.
    pub moves: Vec<Done>,
}

/// The mix's table, which it must have.
///
/// # Errors
/// It has none.
pub fn table_of(mix: &Mix) -> Result<&ClusterTable, SimError> {
    mix.cluster.as_ref().ok_or_else(|| {
        SimError::Settings(format!("the mix '{}' has no hosts: give it a table [cluster]", mix.title))
    })
}

/// The loads of a mix, read once for all systems.
///
/// # Errors
/// A trace cannot be read.
pub fn with_tape<T>(
    mix: &Mix,
    folder: &Path,
    then: impl FnOnce(&Tape<'_>) -> Result<T, SimError>,
) -> Result<T, SimError> {
    let settings = mix.settings(None)?;
    let opener = || -> Result<Box<dyn Source>, SimError> { mix.open(folder) };
    let tape = Tape::of(&opener, &settings, &|_| {})?;
    if !tape.survey.timed {
        return Err(SimError::Settings("the loads have no times, which a cluster needs".into()));
    }
    then(&tape)
}

/// Simulates a mix on its hosts with one system.
///
/// # Errors
/// The mix is invalid, a load cannot be read, or a move goes wrong.
pub fn simulate(mix: &Mix, tape: &Tape<'_>, system: System, seed: u64) -> Result<Outcome, SimError> {
    let table = table_of(mix)?;
    table.check(mix)?;
    let config = system.config()?;
    let config = mix.window_s.map_or(config.clone(), |seconds| with_windows(&config, seconds));
    let of_mix = mix.settings(Some(config.clone()))?;
    let pool = Pool { devices: table.devices, ..of_mix.pool.clone() };
    let settings = Settings { pool, ..of_mix };
    let names: Vec<String> = tape.survey.volumes.iter().map(|volume| volume.name.clone()).collect();
    let homes = homes(table, &tape.survey)?;
    let sizes = settings.sizes.blocks(BLOCK_BYTES as u64, tape.survey.footprint_blocks)?;
    let blocks = *sizes.first().ok_or_else(|| SimError::Settings("how large are the pools?".into()))?;
    let shape = PoolMake::of(&settings.pool, blocks)?;
    let disks = production::disks(&settings, &tape.survey)?;
    let model = table.latency.model();
    let hosts = table.hosts.len();
    let stations = Stations::of_hosts(&model, hosts, hosts * table.devices as usize, seed);
    let balance = table.balancing.settings_of(system).map(Balance::new).transpose()?;
    let governed = || {
        let volumes = names.iter().zip(&disks).map(|(name, disk)| (name, disk.sectors, disk.target));
        governor::disks(&settings, volumes)
    };
    let pool_blocks = shape.capacity_blocks();
    let make =
        Make { pool: shape, table, disks: disks.clone(), names: names.clone(), homes, stations, balance };
    let mut world = World::new(
        make,
        |disks, host, meter| Governor::new(&config, pool_blocks, disks, &[], host, meter),
        governed,
    )?;
    play(&mut world, tape, table.warm_up_windows)?;
    let windows = world.measure.samples.len();
    if windows <= table.warm_up_windows as usize {
        return Err(SimError::Settings(format!(
            "the mix '{}' ends after {windows} windows, of which 'warm-up-windows = {}' leaves none to count: lower it, \
             or shorten the window",
            mix.title, table.warm_up_windows
        )));
    }
    Ok(Outcome {
        system,
        seed,
        pool_blocks,
        vms: world.measure.vms(&names),
        windows: std::mem::take(&mut world.measure.samples),
        moves: std::mem::take(&mut world.done),
    })
}

fn play(world: &mut World<'_>, tape: &Tape<'_>, warm_up_windows: u32) -> Result<(), SimError> {
    let start_ns = world.now_ns;
    let mut playback = tape.play()?;
    let mut batch = Vec::new();
    let mut is_warm = warm_up_windows == 0;
    loop {
        playback.next(&mut batch)?;
        if batch.is_empty() {
            break;
        }
        for access in &mut batch {
            access.time_ns += start_ns;
            world.request(access)?;
            if !is_warm && world.measure.samples.len() >= warm_up_windows as usize {
                is_warm = true;
                world.measure.end_warm_up();
            }
        }
    }
    world.run_out()?;
    world.measure.end(&world.hosts);
    Ok(())
}

/// The host of each volume at the beginning.
fn homes(table: &ClusterTable, survey: &Survey) -> Result<Vec<usize>, SimError> {
    let home = |name: &String| {
        table
            .home(name)
            .ok_or_else(|| SimError::Settings(format!("volume '{name}' is on no host of [cluster]")))
    };
    survey.volumes.iter().map(|volume| home(&volume.name)).collect()
}
