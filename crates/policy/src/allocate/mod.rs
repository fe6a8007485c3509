//! Dividing a pool among claims: one rule a file.
//!
//! A claim holds what a disk must have, what it may have, what it could use, and what carries its weight. Whatever the
//! rule, all targets lie between reservation and limit, and their sum is never above the pool. A pool that
//! cannot keep all reservations is refused.

pub mod annealing;
mod equal;
pub mod exact;
mod global;
pub mod hull;
mod max_min;
mod minimum_latency;
pub mod problem;
mod proportional;
mod share;
mod spare;
mod statically;
mod utility;

pub use equal::Equal;
pub use global::Global;
pub use max_min::{MaxMin, Weighting};
pub use minimum_latency::MinimumLatency;
pub use proportional::Proportional;
pub use share::share;
pub use spare::Spare;
pub use statically::Static;
pub use utility::UtilityMaximum;

use serde::{Deserialize, Serialize};

use crate::demand::weight::Counts;
use crate::error::PolicyError;

/// What a disk claims. Sizes are in blocks.
#[derive(Clone, PartialEq, Debug)]
pub struct Claim {
    /// The disk, for reasons and errors.
    pub disk: String,
    /// The VM that it belongs to.
    pub vm: String,
    /// The tenant that the VM belongs to.
    pub tenant: String,
    /// What it must have.
    pub reservation_blocks: u64,
    /// What it may have; not below the reservation.
    pub limit_blocks: u64,
    /// What it could use.
    pub demand_blocks: u64,
    /// What the operator gave it, for the static rule.
    pub fixed_blocks: Option<u64>,
    /// How much it counts: 1 unless configured.
    pub priority: f64,
    /// What is gained by sizes: rising points of blocks and worth, without the priority.
    pub worth: Vec<(u64, f64)>,
    /// What the four factors are made of.
    pub counts: Counts,
}

/// What a disk gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// A part of the pool of its own.
    Blocks(u64),
    /// A place in what all others with this target share, never driven below the one nor let above the other.
    Shared {
        /// The reservation.
        at_least_blocks: u64,
        /// The limit.
        at_most_blocks: u64,
    },
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::Blocks(blocks) => write!(f, "{blocks} blocks"),
            Target::Shared { at_least_blocks, at_most_blocks } => {
                write!(f, "{at_least_blocks} to {at_most_blocks} blocks of what is shared")
            }
        }
    }
}

impl Target {
    /// What is promised to the disk.
    pub fn promised_blocks(self) -> u64 {
        match self {
            Target::Blocks(blocks) => blocks,
            Target::Shared { at_least_blocks, .. } => at_least_blocks,
        }
    }
}

/// How near to the best a solver came, in the problem's own terms.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Gap {
    /// The solver.
    pub solver: String,
    /// What its division is worth.
    pub worth: f64,
    /// What no division can exceed.
    pub bound: f64,
    /// How much of the bound is missed, from 0 to 1.
    pub relative: f64,
}

/// A divided pool.
#[derive(Clone, PartialEq, Debug)]
pub struct Allocation {
    /// A target for each claim, in their order.
    pub targets: Vec<Target>,
    /// Where something was optimised.
    pub gap: Option<Gap>,
    /// What decided, in words.
    pub reason: String,
}

/// A rule of dividing.
pub trait Allocator {
    /// What it is called in a configuration and in reasons.
    fn name(&self) -> &'static str;

    /// Divides a pool of so many blocks.
    ///
    /// # Errors
    /// A claim that contradicts itself, reservations beyond the pool, nothing to weigh by.
    fn allocate(&self, pool_blocks: u64, claims: &[Claim]) -> Result<Allocation, PolicyError>;
}

/// Refuses claims that no division can meet or weigh, as every rule does first.
pub(crate) fn check(pool_blocks: u64, claims: &[Claim]) -> Result<(), PolicyError> {
    for claim in claims {
        if claim.limit_blocks < claim.reservation_blocks {
            return Err(PolicyError::LimitBelowReservation {
                disk: claim.disk.clone(),
                limit_blocks: claim.limit_blocks,
                reservation_blocks: claim.reservation_blocks,
            });
        }
        let what = || format!("disk '{}': its priority", claim.disk);
        crate::error::check_range(what, claim.priority, 0.0..=1e6, "a number from 0 to a million")?;
    }
    let promised_blocks = claims.iter().fold(0u64, |sum, claim| sum.saturating_add(claim.reservation_blocks));
    if promised_blocks > pool_blocks {
        return Err(PolicyError::Oversubscribed { promised_blocks, pool_blocks });
    }
    let weightless = claims.iter().all(|claim| claim.priority == 0.0);
    if weightless && !claims.is_empty() {
        return Err(PolicyError::NoWeight { what: "priorities", count: claims.len(), whose: "disks" });
    }
    Ok(())
}

/// Targets of so many blocks each.
fn targets(blocks: Vec<u64>) -> Vec<Target> {
    blocks.into_iter().map(Target::Blocks).collect()
}
