//! YCSB's core workloads as block accesses: a record is a block.
//!
//! Source: Cooper et al., "Benchmarking cloud serving systems with YCSB", SoCC'10, and the files of the core workloads.

use serde::{Deserialize, Serialize};

use super::pattern::{Pattern, Step};
use super::profile::BLOCK_BYTES;
use super::random::Random;
use super::zipf::{Ranks, Spread};
use crate::access::Op;

/// The skew of YCSB's requests.
pub(super) const THETA: f64 = 0.99;
/// The longest scan of workload E, in records.
const LONGEST_SCAN: u64 = 100;
/// The share of the volume that is full before the first insert.
const LOADED: f64 = 0.8;

/// A core workload.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// Half reads, half updates.
    A,
    /// 95 % reads, 5 % updates.
    B,
    /// Reads only.
    C,
    /// 95 % reads of the latest records, 5 % inserts.
    D,
    /// 95 % scans of 1 to 100 records, 5 % inserts.
    E,
    /// Half reads, half reads followed by a write of the same record.
    F,
}

pub(super) struct Ycsb {
    workload: Workload,
    blocks: u64,
    /// Existing records, and the popularity of the initial ones.
    records: u64,
    ranks: Ranks,
    spread: Spread,
    /// The record that was read and is to be written.
    held: Option<u64>,
}

impl Ycsb {
    pub fn new(workload: Workload, blocks: u64) -> Result<Self, super::GenerateError> {
        let inserts = matches!(workload, Workload::D | Workload::E);
        let records = if inserts { ((blocks as f64 * LOADED) as u64).max(1) } else { blocks };
        let ranks = Ranks::new(records, THETA)?;
        Ok(Ycsb { workload, blocks, records, ranks, spread: Spread::new(records), held: None })
    }

    /// Returns the next new record. If the volume is full, the first ones are written again.
    fn insert(&mut self) -> u64 {
        let record = self.records % self.blocks;
        self.records += 1;
        record
    }
}

impl Pattern for Ycsb {
    fn next(&mut self, _: f64, random: &mut Random) -> Step {
        let step = |op, record: u64, records: u64| Step {
            volume: 0,
            offset_bytes: record * BLOCK_BYTES,
            length_bytes: (records * BLOCK_BYTES) as u32,
            op,
        };
        if let Some(record) = self.held.take() {
            return step(Op::Write, record, 1);
        }
        let first = match self.workload {
            Workload::A | Workload::F => 0.5,
            Workload::B | Workload::D | Workload::E => 0.95,
            Workload::C => 1.0,
        };
        let is_first = random.chance(first);
        if !is_first && matches!(self.workload, Workload::D | Workload::E) {
            return step(Op::Write, self.insert(), 1);
        }
        let rank = self.ranks.draw(random);
        let record = match self.workload {
            Workload::D => (self.records - 1 - rank) % self.blocks,
            _ => self.spread.place(rank),
        };
        match self.workload {
            Workload::A | Workload::B if !is_first => step(Op::Write, record, 1),
            Workload::F if !is_first => {
                self.held = Some(record);
                step(Op::Read, record, 1)
            }
            Workload::E => {
                let records = 1 + random.below(LONGEST_SCAN);
                step(Op::Read, record, records.min(self.blocks - record))
            }
            _ => step(Op::Read, record, 1),
        }
    }
}
