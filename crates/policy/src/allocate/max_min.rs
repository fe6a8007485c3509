//! Weighted max-min fairness from tenants to VMs to disks, in chunks.
//!
//! The pool is divided among tenants by weight, each tenant's part among its VMs, and each VM's part among
//! its disks. None gets more than its demand while others have less than theirs; space that is not demanded
//! is spare. Above its reservation a part consists of whole chunks, unless it ends at a demand or limit. In a
//! pool of few chunks the chunks are smaller, so that parts are not rounded to zero. Reservations of disks
//! hold at every level.
//!
//! Source: Liu, Ge, Du and Huang, "SSD as a Cloud Cache? Carefully Design about It", 2015, sections 3.3 and
//! 4.2, figure 7, equation 3. The paper's C_i = w_i / sum w * C is the result if all demand more than they get, as with
//! `demand = "all"`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::share::{Share, share};
use super::{Allocation, Allocator, Claim, Spare, check, targets};
use crate::demand::weight::{Beta, Counts, weights};
use crate::error::PolicyError;

/// What the weights are based on.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weighting {
    /// Liu's four factors; those of a tenant are computed from all its disks.
    FourFactors(Beta),
    /// The configured priority; that of a tenant is the highest of its disks.
    Priority,
    /// Demand times priority, summed over disks.
    Demand,
}

/// See the module documentation.
#[derive(Clone, Copy, Debug)]
pub struct MaxMin {
    /// What the weights are based on.
    pub weighting: Weighting,
    /// Size of a chunk in blocks.
    pub chunk_blocks: u64,
    /// What happens to space that is not demanded.
    pub spare: Spare,
}

/// The minimum number of chunks per disk.
const CHUNKS_A_DISK: u64 = 4;

/// The levels, from the pool down.
const LEVELS: [&str; 3] = ["tenants", "VMs", "disks"];

/// The parameters of one pass: the minimum and maximum of each disk.
struct Pass<'a> {
    rule: &'a MaxMin,
    chunk_blocks: u64,
    claims: &'a [Claim],
    least: Vec<u64>,
    most: Vec<u64>,
    shares: Vec<u64>,
}

impl Pass<'_> {
    /// Divides `whole` among the members at a level, then each part at the level below.
    fn divide(&mut self, level: usize, whole: u64, members: &[usize]) -> Result<(), PolicyError> {
        let Some(whose) = LEVELS.get(level).copied() else {
            members.iter().for_each(|at| self.shares[*at] = whole);
            return Ok(());
        };
        let mut groups: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for &at in members {
            let claim = &self.claims[at];
            let name = [&claim.tenant, &claim.vm, &claim.disk][level];
            groups.entry(name).or_default().push(at);
        }
        let groups: Vec<Vec<usize>> = groups.into_values().collect();
        let weights = self.weights(&groups);
        let sum = |of: &[u64], group: &[usize]| group.iter().map(|at| of[*at]).fold(0, u64::saturating_add);
        let all: Vec<Share> = groups
            .iter()
            .zip(&weights)
            .map(|(group, weight)| Share {
                weight: *weight,
                least: sum(&self.least, group),
                most: sum(&self.most, group),
            })
            .collect();
        let open = all.iter().any(|share| share.most > share.least);
        let more = whole > all.iter().map(|share| share.least).sum();
        if open && more && weights.iter().sum::<f64>() == 0.0 {
            return Err(PolicyError::NoWeight { what: "weights", count: groups.len(), whose });
        }
        for (group, part) in groups.iter().zip(share(whole, self.chunk_blocks, &all)) {
            self.divide(level + 1, part, group)?;
        }
        Ok(())
    }

    fn weights(&self, groups: &[Vec<usize>]) -> Vec<f64> {
        let counts = groups
            .iter()
            .map(|group| group.iter().map(|at| self.claims[*at].counts).fold(Counts::default(), Counts::and));
        let priority = |at: &usize| self.claims[*at].priority;
        match self.rule.weighting {
            Weighting::FourFactors(beta) => {
                weights(&beta, &counts.map(|counts| counts.factors()).collect::<Vec<_>>())
            }
            Weighting::Priority => {
                groups.iter().map(|group| group.iter().map(priority).fold(0.0, f64::max)).collect()
            }
            Weighting::Demand => {
                let weight = |at: &usize| priority(at) * self.claims[*at].demand_blocks as f64;
                groups.iter().map(|group| group.iter().map(weight).sum()).collect()
            }
        }
    }
}

impl MaxMin {
    fn pass(
        &self,
        whole: u64,
        chunk_blocks: u64,
        claims: &[Claim],
        least: Vec<u64>,
        most: Vec<u64>,
    ) -> Result<Vec<u64>, PolicyError> {
        let shares = least.clone();
        let mut pass = Pass { rule: self, chunk_blocks, claims, least, most, shares };
        pass.divide(0, whole, &(0..claims.len()).collect::<Vec<_>>())?;
        Ok(pass.shares)
    }
}

impl Allocator for MaxMin {
    fn name(&self) -> &'static str {
        "max-min"
    }

    fn allocate(&self, pool_blocks: u64, claims: &[Claim]) -> Result<Allocation, PolicyError> {
        check(pool_blocks, claims)?;
        if let Weighting::FourFactors(beta) = &self.weighting {
            beta.check()?;
        }
        let least: Vec<u64> = claims.iter().map(|claim| claim.reservation_blocks).collect();
        let wanted = claims
            .iter()
            .map(|claim| claim.demand_blocks.clamp(claim.reservation_blocks, claim.limit_blocks))
            .collect();
        let smallest_blocks = pool_blocks / (CHUNKS_A_DISK * (claims.len() as u64).max(1));
        let chunk_blocks = self.chunk_blocks.min(smallest_blocks).max(1);
        let mut blocks = self.pass(pool_blocks, chunk_blocks, claims, least, wanted)?;
        let spare = pool_blocks - blocks.iter().sum::<u64>();
        if self.spare == Spare::Shared && spare > 0 {
            let room = claims.iter().zip(&blocks).map(|(claim, got)| claim.limit_blocks - got).collect();
            let more = self.pass(spare, chunk_blocks, claims, vec![0; claims.len()], room)?;
            blocks.iter_mut().zip(more).for_each(|(got, more)| *got += more);
        }
        let reason = format!("weighted max-min by tenant, VM and disk, {}", self.spare.words());
        Ok(Allocation { targets: targets(blocks), gap: None, reason })
    }
}
