//! Converts records into a trace, which can be kept, analysed and replayed.

use haversack_core::Records;
use haversack_core::monitor::Kind;
use haversack_model::SECTOR_BYTES;
use haversack_trace::{Access, Op, VolumeNo};

/// Returns the recorded requests in order. Their times are accurate to a millisecond.
pub fn accesses(records: &Records, volume: VolumeNo) -> impl Iterator<Item = Access> + '_ {
    records.iter().map(move |record| Access {
        time_ns: record.time_us.saturating_mul(1000),
        offset_bytes: record.sector * SECTOR_BYTES as u64,
        length_bytes: record.sectors * SECTOR_BYTES as u32,
        volume,
        op: match record.kind {
            Kind::Read => Op::Read,
            Kind::Write => Op::Write,
            Kind::Discard => Op::Discard,
            Kind::Flush => Op::Flush,
        },
    })
}
