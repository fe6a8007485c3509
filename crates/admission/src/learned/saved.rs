//! What a filter has learned as bytes, so that it can continue after a restart. docs/format.md describes them.
//!
//! Accesses whose outcome is not known yet are not part of it.

use super::memory::Memory;
use super::outlooks::{COARSE, Count, FINE, Outlook, Outlooks};

/// Bytes before the counts: shifts, buckets, sums of the uses.
const HEAD_BYTES: usize = 16;
const COUNT_BYTES: usize = 12;
const COUNTS: usize = COARSE + COARSE * FINE;

/// The bytes are not what a filter has saved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("not what an admission filter has saved")
    }
}

impl std::error::Error for Malformed {}

/// Returns the bytes at this time.
pub(super) fn encode(outlooks: &Outlooks, memory: Option<&Memory>, now: u64) -> Vec<u8> {
    let memory_bytes = memory.map_or(0, Memory::bytes);
    let mut bytes = Vec::with_capacity(HEAD_BYTES + COUNTS * COUNT_BYTES + memory_bytes);
    let (sample_shift, uses) = (outlooks.shift(), outlooks.uses());
    bytes.extend([sample_shift as u8, memory.map_or(0, Memory::shift) as u8, 0, 0]);
    bytes.extend((memory.map_or(0, Memory::buckets) as u32).to_le_bytes());
    bytes.extend([uses.again, uses.saved_us].map(f32::to_le_bytes).concat());
    for count in outlooks.counts() {
        let numbers = [count.all, count.sum.again, count.sum.saved_us];
        bytes.extend(numbers.map(f32::to_le_bytes).concat());
    }
    for entry in memory.into_iter().flat_map(|memory| memory.entries_by_age(now)) {
        bytes.extend(entry.to_le_bytes());
    }
    bytes
}

/// Takes over what the bytes say, at this time. The memory is taken over if it is of the same size.
///
/// # Errors
/// The bytes are malformed; nothing was changed.
pub(super) fn decode(
    bytes: &[u8],
    outlooks: &mut Outlooks,
    memory: &mut Memory,
    now: u64,
) -> Result<(), Malformed> {
    let (head, rest) = bytes.split_at_checked(HEAD_BYTES).ok_or(Malformed)?;
    let (counts, entries) = rest.split_at_checked(COUNTS * COUNT_BYTES).ok_or(Malformed)?;
    let (sample_shift, memory_shift) = (u32::from(head[0]), u32::from(head[1]));
    let buckets = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
    let uses = outlook(&head[8..]).ok_or(Malformed)?;
    let counts: Option<Vec<Count>> = counts.chunks_exact(COUNT_BYTES).map(count).collect();
    let counts = counts.ok_or(Malformed)?;
    let fits = entries.len() == Memory::bytes_of(buckets) && memory_shift < 64;
    if !fits || !outlooks.resume(sample_shift, uses, &counts) {
        return Err(Malformed);
    }
    if buckets == memory.buckets() {
        let entries =
            entries.chunks_exact(4).map(|entry| u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]));
        memory.resume(memory_shift, entries, now);
    }
    Ok(())
}

fn number(bytes: &[u8]) -> Option<f32> {
    let number = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    (number.is_finite() && number >= 0.0).then_some(number)
}

fn outlook(bytes: &[u8]) -> Option<Outlook> {
    Some(Outlook { again: number(bytes)?, saved_us: number(&bytes[4..])? })
}

fn count(bytes: &[u8]) -> Option<Count> {
    let count = Count { all: number(bytes)?, sum: outlook(&bytes[4..])? };
    (count.sum.again <= count.all).then_some(count)
}
