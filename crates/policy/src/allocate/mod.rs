//! Dividing a pool among claims: one rule per file.
//!
//! A claim holds a disk's reservation, its limit, its demand, and what its weight is based on. With every rule,
//! all targets are between reservation and limit, and their sum never exceeds the pool. A pool that cannot
//! satisfy all reservations is refused.

pub mod annealing;
mod equal;
pub mod exact;
mod global;
pub mod hull;
mod max_min;
mod minimum_latency;
mod optimum;
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
pub use share::{Share, share};
pub use spare::Spare;
pub use statically::Static;
pub use utility::UtilityMaximum;

use serde::{Deserialize, Serialize};

use crate::demand::weight::Counts;
use crate::error::PolicyError;

/// What a disk claims. Sizes are in blocks.
#[derive(Clone, PartialEq, Debug)]
pub struct Claim {
    /// The disk, for explanations and errors.
    pub disk: String,
    /// The VM that it belongs to.
    pub vm: String,
    /// The tenant that the VM belongs to.
    pub tenant: String,
    /// The reservation.
    pub reservation_blocks: u64,
    /// The limit; not below the reservation.
    pub limit_blocks: u64,
    /// The demand.
    pub demand_blocks: u64,
    /// The size set by the operator, for the static rule.
    pub fixed_blocks: Option<u64>,
    /// The priority; 1 unless configured.
    pub priority: f64,
    /// The worth of sizes: rising points of blocks and worth, without the priority.
    pub worth: Vec<(u64, f64)>,
    /// The counts from which the four factors are computed.
    pub counts: Counts,
}

/// What a disk gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// Its own part of the pool, and more while no other disk needs the space.
    Blocks(u64),
    /// Its own part of the pool, and no more: the rest stays idle.
    Capped(u64),
    /// A place in the part shared by all disks with this kind of target, never evicted below the first size nor
    /// grown above the second.
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
            Target::Capped(blocks) => write!(f, "at most {blocks} blocks"),
            Target::Shared { at_least_blocks, at_most_blocks } => {
                write!(f, "{at_least_blocks} to {at_most_blocks} blocks of what is shared")
            }
        }
    }
}

impl Target {
    /// Returns the size of the disk's own part, if it has one.
    pub fn own_blocks(self) -> Option<u64> {
        match self {
            Target::Blocks(blocks) | Target::Capped(blocks) => Some(blocks),
            Target::Shared { .. } => None,
        }
    }

    /// Returns the same target as a cap, if the disk has its own part.
    #[must_use]
    pub fn capped(self) -> Target {
        self.own_blocks().map_or(self, Target::Capped)
    }

    /// Returns the space promised to the disk.
    pub fn promised_blocks(self) -> u64 {
        match self {
            Target::Blocks(blocks) | Target::Capped(blocks) => blocks,
            Target::Shared { at_least_blocks, .. } => at_least_blocks,
        }
    }
}

/// How close a solver came to the optimum, in the problem's own terms.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Gap {
    /// The solver.
    pub solver: String,
    /// The worth of its division.
    pub worth: f64,
    /// The worth that no division in blocks can exceed.
    pub bound: f64,
    /// Whether a division reaches the bound: it is the optimum then. Logs of earlier versions do not say.
    #[serde(default)]
    pub is_optimum: bool,
    /// The missing part of the bound, from 0 to 1.
    pub relative: f64,
}

impl std::fmt::Display for Gap {
    /// Says how far the division is from the best.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let most = if self.is_optimum { "" } else { "at most " };
        write!(f, "solver {}, {most}{:.2} % from the best", self.solver, self.relative * 100.0)
    }
}

/// A divided pool.
#[derive(Clone, PartialEq, Debug)]
pub struct Allocation {
    /// A target for each claim, in order.
    pub targets: Vec<Target>,
    /// The gap, if something was optimised.
    pub gap: Option<Gap>,
    /// The rule that decided, in words.
    pub reason: String,
}

/// An allocation rule.
pub trait Allocator {
    /// Returns its name in configurations and explanations.
    fn name(&self) -> &'static str;

    /// Divides a pool of this many blocks.
    ///
    /// # Errors
    /// A claim is inconsistent, reservations exceed the pool, or there are no weights.
    fn allocate(&self, pool_blocks: u64, claims: &[Claim]) -> Result<Allocation, PolicyError>;
}

/// Refuses claims that no division can satisfy or weigh, as every rule does first.
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

/// Returns targets of this many blocks each.
fn targets(blocks: Vec<u64>) -> Vec<Target> {
    blocks.into_iter().map(Target::Blocks).collect()
}
