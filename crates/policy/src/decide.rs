//! The decision: a function of its inputs, without memory.
//!
//! Disks that are gone get nothing. Locked disks keep their share, which is taken out of the pool before the
//! rest is divided. If the allocation depends on measurements, new disks get their reservation until one of
//! their windows has ended. While no disk has been measured yet, each disk gets its reservation, and the rest
//! is divided by priority. What tenants have in a cluster becomes reservations and limits of their disks
//! first ([`tenants`](crate::tenants)).
//!
//! Source: vCacheShare (Meng et al., ATC'14), table 1 and section 6, for life cycle and bootstrapping; DESIGN, "The
//! control loop".

use std::collections::{BTreeMap, BTreeSet};

use haversack_model::BLOCK_BYTES;

use crate::allocate::{
    Allocation, Allocator, Claim, Equal, Global, MaxMin, MinimumLatency, Proportional, Spare, Static, Target,
    UtilityMaximum,
};
use crate::config::{AllocatorRule, Config, DemandRule, SolverRule};
use crate::demand::running_knee::Knee;
use crate::demand::utility::{Utility, reuse_intensity};
use crate::demand::weight::Counts;
use crate::demand::{Demand, ReadOnly};
use crate::error::PolicyError;
use crate::newcomer;
use crate::plan::{DiskInput, DiskPlan, DiskState, Inputs, Plan};
use crate::tenants::Tenants;
use crate::window::DiskWindow;
use haversack_admission::{self as admission, Admit};

/// Decides.
///
/// # Errors
/// The configuration or the inputs are inconsistent, more space is promised than the pool has, or there are
/// no weights. Nothing is decided then; the previous plan stays in effect.
pub fn decide(config: &Config, inputs: &Inputs) -> Result<Plan, PolicyError> {
    config.check()?;
    check(inputs)?;
    let locked = inputs.disks.iter().filter(|disk| disk.state.locked());
    let locked_blocks = locked.map(|disk| disk.target_blocks).fold(0, u64::saturating_add);
    let present: Vec<&DiskInput> =
        inputs.disks.iter().filter(|disk| !disk.state.locked() && !disk.state.gone()).collect();
    let pool_blocks = inputs.pool_blocks.checked_sub(locked_blocks).ok_or(PolicyError::Oversubscribed {
        promised_blocks: locked_blocks,
        pool_blocks: inputs.pool_blocks,
    })?;
    let model = config.demand.model();
    let mut claims = claims(config, model.as_ref(), &present, pool_blocks);
    let tenants = Tenants::bind(inputs, pool_blocks, &present, &mut claims);
    let bootstrapping = present.iter().all(|disk| disk.state == DiskState::New);
    let allocation = if bootstrapping && config.measures() {
        bootstrap(pool_blocks, config.first_blocks, &claims)
    } else if matches!(config.allocator, AllocatorRule::Utility { .. }) && newcomer::is_among(&present) {
        newcomer::reserve(pool_blocks, config.first_blocks, &claims, &present)
    } else {
        for (claim, disk) in claims.iter_mut().zip(&present) {
            if disk.state == DiskState::New && config.measures() {
                claim.limit_blocks =
                    claim.limit_blocks.min(config.first_blocks.max(claim.reservation_blocks));
                claim.demand_blocks = claim.demand_blocks.max(config.first_blocks.min(claim.limit_blocks));
            }
        }
        allocator(config).allocate(pool_blocks, &claims)
    };
    let mut allocation = allocation.map_err(|error| with_locked(error, locked_blocks, inputs.pool_blocks))?;
    tenants.cap(pool_blocks, &claims, &mut allocation);
    if config.allocator.spare() == Spare::Idle {
        cap(&mut allocation, &present);
    }
    Ok(plan(config, model.as_ref(), inputs, &present, &claims, &allocation))
}

/// Caps disks so that spare space stays idle. A disk that was not measured yet may use it.
fn cap(allocation: &mut Allocation, present: &[&DiskInput]) {
    for (target, disk) in allocation.targets.iter_mut().zip(present) {
        if disk.state != DiskState::New {
            *target = target.capped();
        }
    }
}

/// Checks every disk, including gone and locked ones.
fn check(inputs: &Inputs) -> Result<(), PolicyError> {
    let mut names = BTreeSet::new();
    for disk in &inputs.disks {
        if !names.insert(&disk.name) {
            return Err(PolicyError::TwiceThere { disk: disk.name.clone() });
        }
        if disk.limit_blocks < disk.reservation_blocks {
            return Err(PolicyError::LimitBelowReservation {
                disk: disk.name.clone(),
                limit_blocks: disk.limit_blocks,
                reservation_blocks: disk.reservation_blocks,
            });
        }
        if let Some(window) = &disk.window {
            window.check(&disk.name)?;
        }
    }
    Ok(())
}

/// Adds the locked blocks to the error of an oversubscribed pool.
fn with_locked(error: PolicyError, locked_blocks: u64, pool_blocks: u64) -> PolicyError {
    match error {
        PolicyError::Oversubscribed { promised_blocks, .. } => PolicyError::Oversubscribed {
            promised_blocks: promised_blocks.saturating_add(locked_blocks),
            pool_blocks,
        },
        other => other,
    }
}

fn demand_blocks(model: &dyn Demand, disk: &DiskInput) -> u64 {
    let measured = |window| disk.forecast_blocks.unwrap_or_else(|| model.blocks(window));
    disk.window.as_ref().map_or(0, measured)
}

fn claims(config: &Config, model: &dyn Demand, present: &[&DiskInput], pool_blocks: u64) -> Vec<Claim> {
    let intensity = |disk: &&DiskInput| disk.window.as_ref().map_or(0.0, |w| reuse_intensity(&w.intensity));
    let largest = present.iter().map(intensity).fold(0.0, f64::max);
    let claim = |disk: &&DiskInput| {
        // A limit above the pool's size limits nothing; a reservation above it is refused by the allocator.
        let limit_blocks = disk.limit_blocks.min(pool_blocks.max(disk.reservation_blocks));
        let relative_intensity = if largest > 0.0 { intensity(disk) / largest } else { 0.0 };
        let measured = disk.window.as_ref().filter(|_| disk.state != DiskState::Idle);
        Claim {
            disk: disk.name.clone(),
            vm: disk.vm.clone(),
            tenant: disk.tenant.clone(),
            reservation_blocks: disk.reservation_blocks.max(config.least_blocks.min(disk.limit_blocks)),
            limit_blocks,
            demand_blocks: match &disk.history {
                _ if config.demand == DemandRule::All => limit_blocks,
                Some(history) => history.demand_blocks,
                None => demand_blocks(model, disk),
            },
            fixed_blocks: disk.fixed_blocks,
            priority: disk.priority,
            worth: measured.map_or(Vec::new(), |window| worth(config, model, window, relative_intensity)),
            counts: match &disk.history {
                Some(history) => Counts::over(disk.priority, history),
                None => Counts::of(disk.priority, disk.window.as_ref()),
            },
        }
    };
    present.iter().map(claim).collect()
}

/// Returns the worth of sizes to a disk, in microseconds per access.
fn worth(
    config: &Config,
    model: &dyn Demand,
    window: &DiskWindow,
    relative_intensity: f64,
) -> Vec<(u64, f64)> {
    let origin_us = window.origin_latency_us.unwrap_or(config.origin_latency_us);
    let cache_us = window.cache_latency_us.unwrap_or(config.cache_latency_us);
    match config.allocator {
        AllocatorRule::Utility { alpha, reading, .. } => {
            let utility = Utility { origin_latency_us: origin_us, alpha, relative_intensity, reading };
            let sizes = ReadOnly.curve(window).points().iter().map(|point| point.0);
            std::iter::once(0).chain(sizes).map(|blocks| (blocks, utility.at(window, blocks))).collect()
        }
        AllocatorRule::MinimumLatency { .. } => {
            let gained_us = (origin_us - cache_us).max(0.0);
            model.curve(window).points().iter().map(|(blocks, hits)| (*blocks, hits * gained_us)).collect()
        }
        _ => Vec::new(),
    }
}

fn allocator(config: &Config) -> Box<dyn Allocator> {
    let granularity = config.granularity;
    let solver = SolverRule::solver;
    match config.allocator {
        AllocatorRule::None => Box::new(Global),
        AllocatorRule::Equal => Box::new(Equal),
        AllocatorRule::Static => Box::new(Static),
        AllocatorRule::Proportional { spare } => Box::new(Proportional { spare }),
        AllocatorRule::Utility { solver: rule, spare, .. } => {
            Box::new(UtilityMaximum { solver: solver(rule), granularity, spare })
        }
        AllocatorRule::MinimumLatency { solver: rule, .. } => {
            Box::new(MinimumLatency { solver: solver(rule), granularity })
        }
        AllocatorRule::MaxMin { weighting, chunk_blocks, spare } => {
            Box::new(MaxMin { weighting, chunk_blocks, spare })
        }
    }
}

/// Divides a pool without measurements: reservations, and the rest by priority, or the configured first share
/// of every disk.
fn bootstrap(pool_blocks: u64, first_blocks: u64, claims: &[Claim]) -> Result<Allocation, PolicyError> {
    let reservations: u64 = claims.iter().map(|claim| claim.reservation_blocks).fold(0, u64::saturating_add);
    let rest = |claim: &Claim| Claim {
        reservation_blocks: 0,
        limit_blocks: match first_blocks {
            0 => claim.limit_blocks - claim.reservation_blocks,
            first => first.min(claim.limit_blocks).saturating_sub(claim.reservation_blocks),
        },
        ..claim.clone()
    };
    let promised = PolicyError::Oversubscribed { promised_blocks: reservations, pool_blocks };
    let left = pool_blocks.checked_sub(reservations).ok_or(promised)?;
    let mut allocation = Equal.allocate(left, &claims.iter().map(rest).collect::<Vec<_>>())?;
    for (target, claim) in allocation.targets.iter_mut().zip(claims) {
        *target = Target::Blocks(target.promised_blocks() + claim.reservation_blocks);
    }
    allocation.reason = "nothing is measured yet: reservations, the rest by priority".into();
    Ok(allocation)
}

fn plan(
    config: &Config,
    model: &dyn Demand,
    inputs: &Inputs,
    present: &[&DiskInput],
    claims: &[Claim],
    allocation: &Allocation,
) -> Plan {
    let given: BTreeMap<&str, (&Claim, Target)> = present
        .iter()
        .zip(claims.iter().zip(&allocation.targets))
        .map(|(disk, (claim, target))| (disk.name.as_str(), (claim, *target)))
        .collect();
    let admits = admits(config, inputs, &given);
    let mut disks = BTreeMap::new();
    for (disk, admission) in inputs.disks.iter().zip(admits) {
        let demand_blocks = given.get(disk.name.as_str()).map_or(0, |(claim, _)| claim.demand_blocks);
        let target = target_of(disk, &given);
        let (write_mode, mode_reason) = write_mode(config, disk);
        let why = target_reason(model, disk, demand_blocks, target);
        let reason = format!("{why}{}{mode_reason}", knee_reason(disk));
        let plan = DiskPlan { target, write_mode, admission, demand_blocks, reason };
        disks.insert(disk.name.clone(), plan);
    }
    let (gap, reason) = (allocation.gap.clone(), allocation.reason.clone());
    Plan { time_us: inputs.time_us, disks, gap, reason }
}

fn target_of(disk: &DiskInput, given: &BTreeMap<&str, (&Claim, Target)>) -> Target {
    match given.get(disk.name.as_str()) {
        Some((_, target)) => *target,
        None if disk.state.locked() => Target::Blocks(disk.target_blocks),
        None => Target::Blocks(0),
    }
}

/// Returns the filter of each disk, sized by its share.
fn admits(config: &Config, inputs: &Inputs, given: &BTreeMap<&str, (&Claim, Target)>) -> Vec<Admit> {
    let pool_bytes = inputs.pool_blocks.saturating_mul(BLOCK_BYTES as u64);
    let staging_bytes = config.admission.staging_bytes(pool_bytes);
    // Disks without parts of their own divide the memory as they divide the cache: by the size to which each
    // may grow.
    let cache_blocks: Vec<u64> = inputs
        .disks
        .iter()
        .map(|disk| match target_of(disk, given) {
            Target::Blocks(blocks) | Target::Capped(blocks) => blocks,
            Target::Shared { at_most_blocks, .. } => at_most_blocks,
        })
        .collect();
    let bytes = admission::divide(staging_bytes, &cache_blocks);
    let sized = |(bytes, blocks): (&u64, &u64)| config.admission.sized(*bytes, *blocks);
    bytes.iter().zip(&cache_blocks).map(sized).collect()
}

fn write_mode(config: &Config, disk: &DiskInput) -> (haversack_model::WriteMode, String) {
    let measured = disk.window.as_ref().filter(|window| window.accesses() > 0);
    if let Some(mode) = config.fixed_mode.filter(|_| !disk.state.locked() && !disk.state.gone()) {
        return (mode, format!("; {mode} as for all disks"));
    }
    match (&config.write_mode, measured) {
        (Some(choice), Some(window)) if !disk.state.locked() && !disk.state.gone() => {
            let (mode, why) = choice.choose(disk.write_mode, window.overwrite_ratio());
            (mode, format!("; {why}"))
        }
        _ => (disk.write_mode, String::new()),
    }
}

fn knee_reason(disk: &DiskInput) -> String {
    let length = |knee: &Knee| format!("; window of {} s at the knee", knee.length_us as f64 / 1e6);
    disk.knee.as_ref().map_or(String::new(), length)
}

fn target_reason(model: &dyn Demand, disk: &DiskInput, demand_blocks: u64, target: Target) -> String {
    let state = disk.state.name();
    match (disk.state, target) {
        (state, _) if state.gone() => format!("{}: nothing", state.name()),
        (state, target) if state.locked() => format!("{}: {target} locked", state.name()),
        (_, Target::Shared { .. }) => format!("{state}: shares the pool"),
        (DiskState::New, target) => format!("new, nothing measured yet: {target}"),
        (_, Target::Blocks(_) | Target::Capped(_)) => {
            let by = disk.forecast_by.as_deref().map_or(String::new(), |by| format!(" forecast by {by}"));
            format!("{state}: {target}, demand {demand_blocks} by {}{by}", model.name())
        }
    }
}
