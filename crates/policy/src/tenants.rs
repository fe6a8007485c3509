//! The bounds of tenants on this pool, from the division of the cluster: a minimum and a maximum for all disks of a
//! tenant together.
//!
//! Before a rule divides the pool, the bounds become reservations and limits of the tenants' disks, so that every rule
//! respects them. What a tenant does not demand is free for others. If a tenant has a maximum, its disks stay within
//! their limits even while space is free.
//!
//! Invariants
//! - No reservation of a disk becomes smaller, and no limit falls below it, nor below [`FLOOR_BLOCKS`].
//! - Reservations that fit into the pool still do.
//! - The limits of a tenant's disks come to no more than its bound, unless the first invariant needs more.
//! - A disk with a limit above 0 is never capped at 0.

use serde::{Deserialize, Serialize};

use crate::allocate::{Allocation, Claim, Share, Target, share};
use crate::plan::{DiskInput, Inputs};

/// What a disk keeps regardless of its tenant's bound: about a segment.
const FLOOR_BLOCKS: u64 = 256;
/// The weight of a disk without priority.
const LEAST_WEIGHT: f64 = 1e-6;

/// What a tenant has on a pool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TenantBounds {
    /// The tenant.
    pub tenant: String,
    /// What its disks get together before other tenants get more than theirs, as far as they demand it.
    pub least_blocks: u64,
    /// The most that its disks get together; none if there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most_blocks: Option<u64>,
}

/// The claims whose tenants have something.
pub(crate) struct Tenants {
    /// Whether each claim's tenant has a bound.
    is_bounded: Vec<bool>,
    is_any: bool,
}

impl Tenants {
    /// Turns what tenants have into limits and reservations of the claims, which are of these disks.
    pub(crate) fn bind(
        inputs: &Inputs,
        pool_blocks: u64,
        present: &[&DiskInput],
        claims: &mut [Claim],
    ) -> Tenants {
        let mut tenants = Tenants { is_bounded: vec![false; claims.len()], is_any: false };
        let mut raises = vec![0; claims.len()];
        for bounds in &inputs.tenants {
            let own: Vec<usize> =
                (0..claims.len()).filter(|at| claims[*at].tenant == bounds.tenant).collect();
            if own.is_empty() {
                continue;
            }
            tenants.is_any = true;
            // Locked disks keep what they have.
            let locked =
                inputs.disks.iter().filter(|disk| disk.state.locked() && disk.tenant == bounds.tenant);
            let locked_blocks = locked.map(|disk| disk.target_blocks).fold(0, u64::saturating_add);
            // What was not measured may demand anything.
            let is_measured = |at: &usize| present[*at].window.is_some();
            if let Some(most_blocks) = bounds.most_blocks {
                limit(most_blocks.saturating_sub(locked_blocks), &own, is_measured, claims);
                own.iter().for_each(|at| tenants.is_bounded[*at] = true);
            }
            let least_blocks = bounds.least_blocks.saturating_sub(locked_blocks);
            for (at, raise) in own.iter().zip(raised(least_blocks, &own, is_measured, claims)) {
                let floor = if tenants.is_bounded[*at] { floor(&claims[*at]) } else { 0 };
                raises[*at] = raise.max(floor.saturating_sub(claims[*at].reservation_blocks));
            }
        }
        reserve(pool_blocks, &raises, claims);
        tenants
    }

    /// Keeps disks of bounded tenants within their limits while space is free. A disk in the shared pool gets a part of
    /// its own: its reservation, and a share by priority of the space that is not reserved.
    pub(crate) fn cap(&self, pool_blocks: u64, claims: &[Claim], allocation: &mut Allocation) {
        if !self.is_any {
            return;
        }
        allocation.reason.push_str("; tenants have their parts of the cluster");
        let reserved = claims.iter().map(|claim| claim.reservation_blocks).fold(0, u64::saturating_add);
        let part = |claim: &Claim| Share {
            weight: weight(claim),
            least: 0,
            most: claim.limit_blocks.saturating_sub(claim.reservation_blocks),
        };
        let parts: Vec<Share> = claims.iter().map(part).collect();
        let free = share(pool_blocks.saturating_sub(reserved), 1, &parts);
        for (at, target) in allocation.targets.iter_mut().enumerate().filter(|(at, _)| self.is_bounded[*at]) {
            let capped = match *target {
                Target::Shared { at_least_blocks, at_most_blocks } => {
                    Target::Capped((at_least_blocks + free[at]).min(at_most_blocks))
                }
                own => own.capped(),
            };
            if capped != Target::Capped(0) {
                *target = capped;
            }
        }
    }
}

fn floor(claim: &Claim) -> u64 {
    claim.reservation_blocks.max(FLOOR_BLOCKS).min(claim.limit_blocks)
}

fn weight(claim: &Claim) -> f64 {
    claim.priority.max(LEAST_WEIGHT)
}

/// Divides a bound among the claims of a tenant: first up to their demands, then up to their own limits.
fn limit(most_blocks: u64, own: &[usize], is_measured: impl Fn(&usize) -> bool, claims: &mut [Claim]) {
    let least: u64 = own.iter().map(|at| floor(&claims[*at])).fold(0, u64::saturating_add);
    let whole = most_blocks.max(least);
    let demanded = |at: &usize| {
        let claim = &claims[*at];
        let least = floor(claim);
        let most = if is_measured(at) { claim.demand_blocks } else { claim.limit_blocks };
        Share { weight: weight(claim), least, most: most.clamp(least, claim.limit_blocks) }
    };
    let met = share(whole, 1, &own.iter().map(demanded).collect::<Vec<_>>());
    let room = |(at, met): (&usize, &u64)| Share {
        weight: weight(&claims[*at]),
        least: 0,
        most: claims[*at].limit_blocks - met,
    };
    let rooms: Vec<Share> = own.iter().zip(&met).map(room).collect();
    let more = share(whole.saturating_sub(met.iter().sum()), 1, &rooms);
    for (at, (met, more)) in own.iter().zip(met.into_iter().zip(more)) {
        claims[*at].limit_blocks = met + more;
    }
}

/// Returns by how much the reservations of a tenant's claims must rise so that they come to what the tenant has, as far
/// as it is demanded.
fn raised(
    least_blocks: u64,
    own: &[usize],
    is_measured: impl Fn(&usize) -> bool,
    claims: &[Claim],
) -> Vec<u64> {
    let demanded = |at: &usize| {
        let claim = &claims[*at];
        let most = if is_measured(at) { claim.demand_blocks } else { claim.limit_blocks };
        // A reservation may exceed the limit: the rule that divides refuses that.
        let most = most.min(claim.limit_blocks).max(claim.reservation_blocks);
        Share { weight: weight(claim), least: claim.reservation_blocks, most }
    };
    let all: Vec<Share> = own.iter().map(demanded).collect();
    let reserved = all.iter().map(|share| share.least).fold(0, u64::saturating_add);
    let got = share(least_blocks.max(reserved), 1, &all);
    got.iter().zip(&all).map(|(got, share)| got - share.least).collect()
}

/// Raises reservations. If the pool has too little space, all raises are reduced by the same factor.
fn reserve(pool_blocks: u64, raises: &[u64], claims: &mut [Claim]) {
    let reserved = claims.iter().map(|claim| claim.reservation_blocks).fold(0, u64::saturating_add);
    let left = u128::from(pool_blocks.saturating_sub(reserved));
    let wanted: u128 = raises.iter().map(|raise| u128::from(*raise)).sum();
    for (claim, raise) in claims.iter_mut().zip(raises) {
        let raise = if wanted > left { u128::from(*raise) * left / wanted } else { u128::from(*raise) };
        // No more than was wanted, which is 64 bits.
        claim.reservation_blocks += raise as u64;
    }
}
