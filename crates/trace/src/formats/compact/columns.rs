//! The content of an uncompressed block: names of new volumes, two units, five columns.
//!
//! A column is a width in bytes, 0 to 8, followed by that number of planes: first the lowest byte of every value,
//! then the next one, and so on. Planes of nearly equal bytes compress to almost nothing, and decode without
//! branches. The columns are, in this order: time since the previous access, in time units; volume; operation;
//! length, in address units; distance from the end of the volume's previous access in this block, or from 0, in
//! address units, with the sign in the lowest bit.

use crate::access::{Access, Op, VolumeNo};
use crate::bytes::{u16_at, u64_at};

const COLUMNS: usize = 5;
/// The index of the column of volumes.
const VOLUME: usize = 1;
/// Values decoded at once; they fit into the processor's first-level cache.
const STRIDE: usize = 4096;

/// Appends the names and columns of a block. Accesses are in time order.
pub(super) fn encode(names: &[String], accesses: &[Access], raw: &mut Vec<u8>) {
    put_names(names, raw);
    let deltas = || {
        accesses
            .iter()
            .scan(accesses[0].time_ns, |last, a| Some(a.time_ns - std::mem::replace(last, a.time_ns)))
    };
    let time_unit = deltas().fold(0, gcd).max(1);
    let address_unit =
        accesses.iter().fold(0, |unit, a| gcd(gcd(unit, a.offset_bytes), a.length_bytes.into())).max(1);
    raw.extend_from_slice(&time_unit.to_le_bytes());
    raw.extend_from_slice(&address_unit.to_le_bytes());
    let mut values = Vec::with_capacity(accesses.len());
    let mut column = |items: &mut dyn Iterator<Item = u64>| {
        values.clear();
        values.extend(items);
        put_column(&values, raw);
    };
    column(&mut deltas().map(|delta| delta / time_unit));
    column(&mut accesses.iter().map(|a| a.volume.0.into()));
    column(&mut accesses.iter().map(|a| a.op as u64));
    column(&mut accesses.iter().map(|a| u64::from(a.length_bytes) / address_unit));
    let volumes = accesses.iter().map(|a| a.volume.0 as usize + 1).max().unwrap_or(0);
    let mut ends = vec![0u64; volumes];
    column(&mut accesses.iter().map(|a| {
        let end = &mut ends[a.volume.0 as usize];
        let address = a.offset_bytes / address_unit;
        let distance = address.wrapping_sub(*end) as i64;
        *end = address.wrapping_add(u64::from(a.length_bytes) / address_unit);
        ((distance << 1) ^ (distance >> 63)) as u64
    }));
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

fn put_column(values: &[u64], raw: &mut Vec<u8>) {
    let all = values.iter().fold(0, |all, value| all | value);
    let width = (64 - all.leading_zeros()).div_ceil(8);
    raw.push(width as u8);
    for plane in 0..width {
        raw.extend(values.iter().map(|value| (value >> (8 * plane)) as u8));
    }
}

/// A block being read.
#[derive(Default)]
pub(super) struct Columns {
    raw: Vec<u8>,
    count: usize,
    /// Accesses returned so far.
    next: usize,
    /// The offset of each column's planes, and their number.
    columns: [(usize, usize); COLUMNS],
    time_unit: u64,
    address_unit: u64,
    /// The time of the access returned last.
    time_ns: u64,
    /// For each volume, the end of its access returned last.
    ends: Vec<u64>,
    values: [Vec<u64>; COLUMNS],
}

impl Columns {
    /// The buffer into which the next block is uncompressed.
    pub fn raw(&mut self) -> &mut Vec<u8> {
        (self.count, self.next) = (0, 0);
        &mut self.raw
    }

    /// Begins the block in [`raw`](Self::raw): takes the names of new volumes and finds the columns. Returns a
    /// description of the damage if they are invalid.
    pub fn begin(
        &mut self,
        count: u32,
        first_ns: u64,
        volumes: u32,
        new_names: u32,
        names: &mut Vec<String>,
    ) -> Result<(), &'static str> {
        let mut at = read_names(&self.raw, new_names, names)?;
        let count = count as usize;
        if self.raw.len() < at + 16 {
            return Err("units of time and address");
        }
        self.time_unit = u64_at(&self.raw, at);
        self.address_unit = u64_at(&self.raw, at + 8);
        at += 16;
        for column in &mut self.columns {
            let width = usize::from(*self.raw.get(at).ok_or("five columns")?);
            *column = (at + 1, width);
            at = at.checked_add(1 + width * count).filter(|_| width <= 8).ok_or("columns of 0 to 8 bytes")?;
        }
        if at != self.raw.len() {
            return Err("columns as long as their block");
        }
        // Volumes beyond the named ones have no accesses here; a forged count must not take memory.
        let named = if self.columns[VOLUME].1 == 0 { 1 } else { volumes };
        if count > 0 && volumes == 0 {
            return Err("accesses to volumes with a name");
        }
        self.ends.clear();
        self.ends.resize(named as usize, 0);
        (self.count, self.next, self.time_ns) = (count, 0, first_ns);
        Ok(())
    }

    /// Appends the next accesses, a few thousand; returns how many, 0 at the block's end.
    pub fn next(&mut self, into: &mut Vec<Access>) -> Result<usize, &'static str> {
        let count = (self.count - self.next).min(STRIDE);
        for (values, (start, width)) in self.values.iter_mut().zip(self.columns) {
            values.clear();
            values.resize(count, 0);
            for plane in 0..width {
                let start = start + plane * self.count + self.next;
                for (value, byte) in values.iter_mut().zip(&self.raw[start..start + count]) {
                    *value |= u64::from(*byte) << (8 * plane);
                }
            }
        }
        let [times, volumes, ops, lengths, distances] = &self.values;
        into.reserve(count);
        for at in 0..count {
            self.time_ns = self.time_ns.saturating_add(times[at].saturating_mul(self.time_unit));
            let end = self.ends.get_mut(volumes[at] as usize).ok_or("accesses to volumes with a name")?;
            let distance = (distances[at] >> 1) ^ (distances[at] & 1).wrapping_neg();
            let address = end.wrapping_add(distance);
            *end = address.wrapping_add(lengths[at]);
            let length =
                lengths[at].checked_mul(self.address_unit).and_then(|length| u32::try_from(length).ok());
            into.push(Access {
                time_ns: self.time_ns,
                offset_bytes: address.wrapping_mul(self.address_unit),
                length_bytes: length.ok_or("lengths of at most 32 bits")?,
                volume: VolumeNo(volumes[at] as u32),
                op: op(ops[at]).ok_or("operations from 0 to 3")?,
            });
        }
        self.next += count;
        Ok(count)
    }
}

fn op(number: u64) -> Option<Op> {
    [Op::Read, Op::Write, Op::Flush, Op::Discard].into_iter().find(|op| *op as u64 == number)
}

/// Appends names: for each a u16 length and UTF-8. A name longer than 64 KiB is truncated.
pub(super) fn put_names(names: &[String], raw: &mut Vec<u8>) {
    for name in names {
        let name = &name.as_bytes()[..name.len().min(usize::from(u16::MAX))];
        raw.extend_from_slice(&(name.len() as u16).to_le_bytes());
        raw.extend_from_slice(name);
    }
}

/// Reads the names at the beginning of a payload; returns the offset of their end.
pub(super) fn read_names(raw: &[u8], count: u32, names: &mut Vec<String>) -> Result<usize, &'static str> {
    let mut at = 0;
    for _ in 0..count {
        if raw.len() < at + 2 {
            return Err("names of volumes");
        }
        let end = at + 2 + usize::from(u16_at(raw, at));
        let name = raw.get(at + 2..end).ok_or("names of volumes")?;
        names.push(String::from_utf8_lossy(name).into_owned());
        at = end;
    }
    Ok(at)
}
