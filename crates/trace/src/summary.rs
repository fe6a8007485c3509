//! Statistics of a trace: counts, bytes, blocks, sizes, rates, for each volume and in total.
//!
//! Unique blocks are counted exactly, with 24 bytes for each group of 64 adjacent blocks that has one.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use serde::Serialize;

use crate::access::{Access, Op};

/// The block size in which references and unique blocks are counted.
const BLOCK_BYTES: u64 = 4096;
const SECTOR_BYTES: u64 = 512;
const SECOND_NS: u64 = 1_000_000_000;

/// Statistics of a volume, or of a whole trace.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Summary {
    /// The volume's name.
    pub volume: String,
    /// Requests of every kind.
    pub requests: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Bytes discarded.
    pub discard_bytes: u64,
    /// Blocks of 4 KiB that reads and writes access, counted each time.
    pub refs_4k: u64,
    /// Those of reads.
    pub read_refs_4k: u64,
    /// Those of writes.
    pub write_refs_4k: u64,
    /// Different blocks of 4 KiB that reads and writes access.
    pub unique_4k: u64,
    /// Those of reads.
    pub unique_read_4k: u64,
    /// Those of writes.
    pub unique_write_4k: u64,
    /// Blocks of 4 KiB from the lowest to the highest that reads and writes access; summed over volumes.
    pub address_span_4k: u64,
    /// Time of the first request, ns on the trace's clock.
    pub first_ns: u64,
    /// Time of the last request, ns on the trace's clock.
    pub last_ns: u64,
    /// Seconds between them; `None` if the trace has no times.
    pub span_s: Option<f64>,
    /// Mean requests per second.
    pub requests_per_s: Option<f64>,
    /// The most requests in one second of the trace's clock.
    pub peak_requests_per_s: Option<u64>,
    /// Sizes of reads.
    pub read_size: Sizes,
    /// Sizes of writes.
    pub write_size: Sizes,
    /// Share of reads and writes that begin and end on a block of 4 KiB.
    pub aligned_4k_ratio: f64,
    /// Reads and writes by the sector of a 4 KiB block in which they begin: an unaligned partition shows as a peak at
    /// another sector than 0.
    pub first_sectors: [u64; 8],
}

/// Sizes of requests, in bytes.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Sizes {
    /// The mean.
    pub mean_bytes: f64,
    /// The smallest.
    pub min_bytes: u32,
    /// The median.
    pub p50_bytes: u32,
    /// The 90th percentile.
    pub p90_bytes: u32,
    /// The 99th percentile.
    pub p99_bytes: u32,
    /// The largest.
    pub max_bytes: u32,
}

impl Sizes {
    fn of(lengths: &BTreeMap<u32, u64>) -> Self {
        let count: u64 = lengths.values().sum();
        if count == 0 {
            return Sizes::default();
        }
        let total: u128 = lengths.iter().map(|(length, n)| u128::from(*length) * u128::from(*n)).sum();
        let percentile = |percent: u64| {
            let rank = (count * percent).div_ceil(100).max(1);
            let mut below = 0;
            let mut reached = lengths.iter().skip_while(|(_, n)| {
                below += **n;
                below < rank
            });
            reached.next().map_or(0, |(length, _)| *length)
        };
        Sizes {
            mean_bytes: total as f64 / count as f64,
            min_bytes: percentile(0),
            p50_bytes: percentile(50),
            p90_bytes: percentile(90),
            p99_bytes: percentile(99),
            max_bytes: percentile(100),
        }
    }
}

/// Counts requests within each second, and the most of them. Requests come in time order.
#[derive(Default)]
struct Rate {
    second: u64,
    count: u64,
    peak: u64,
}

impl Rate {
    fn add(&mut self, time_ns: u64) {
        let second = time_ns / SECOND_NS;
        self.count = if second == self.second { self.count + 1 } else { 1 };
        self.second = second;
        self.peak = self.peak.max(self.count);
    }
}

/// Counters of reads, or of writes.
#[derive(Default)]
struct Kind {
    requests: u64,
    bytes: u64,
    refs: u64,
    lengths: BTreeMap<u32, u64>,
}

/// Hashes the numbers of groups of blocks: the halves of a product with an odd constant, folded.
#[derive(Default)]
struct GroupHasher(u64);

impl Hasher for GroupHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        let product = u128::from(self.0 ^ number) * 0x9e37_79b9_7f4a_7c15;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}

/// Counters of a volume.
#[derive(Default)]
struct Tally {
    /// Reads and writes.
    kinds: [Kind; 2],
    flushes: u64,
    discards: u64,
    discard_bytes: u64,
    /// For each group of 64 blocks, which of them were read and which were written.
    touched: HashMap<u64, [u64; 2], BuildHasherDefault<GroupHasher>>,
    /// The lowest and highest block.
    blocks: Option<(u64, u64)>,
    times: Option<(u64, u64)>,
    rate: Rate,
    aligned: u64,
    first_sectors: [u64; 8],
}

impl Tally {
    fn add(&mut self, access: &Access) {
        let first_ns = self.times.map_or(access.time_ns, |times| times.0);
        self.times = Some((first_ns, access.time_ns));
        self.rate.add(access.time_ns);
        let length = u64::from(access.length_bytes);
        let kind = match access.op {
            Op::Read => 0,
            Op::Write => 1,
            Op::Flush => {
                self.flushes += 1;
                return;
            }
            Op::Discard => {
                self.discards += 1;
                self.discard_bytes += length;
                return;
            }
        };
        let blocks = access.blocks(BLOCK_BYTES);
        let (low, high) = self.blocks.unwrap_or((u64::MAX, 0));
        self.blocks = Some((low.min(*blocks.start()), high.max(*blocks.end())));
        let counts = &mut self.kinds[kind];
        counts.requests += 1;
        counts.bytes += length;
        counts.refs += blocks.end() - blocks.start() + 1;
        *counts.lengths.entry(access.length_bytes).or_default() += 1;
        self.aligned += u64::from((access.offset_bytes | length).is_multiple_of(BLOCK_BYTES));
        self.first_sectors[(access.offset_bytes % BLOCK_BYTES / SECTOR_BYTES) as usize] += 1;
        self.touch(*blocks.start(), *blocks.end(), kind);
    }

    fn touch(&mut self, first: u64, last: u64, kind: usize) {
        for group in first / 64..=last / 64 {
            let from = first.max(group * 64) % 64;
            let to = last.min(group * 64 + 63) % 64;
            let bits = (u64::MAX << from) & (u64::MAX >> (63 - to));
            self.touched.entry(group).or_default()[kind] |= bits;
        }
    }

    /// Returns the unique blocks of reads and writes, of reads, and of writes.
    fn unique(&self) -> [u64; 3] {
        let mut unique = [0; 3];
        for [read, write] in self.touched.values() {
            for (count, bits) in unique.iter_mut().zip([read | write, *read, *write]) {
                *count += u64::from(bits.count_ones());
            }
        }
        unique
    }

    fn summary(&self, name: &str) -> Summary {
        let [reads, writes] = &self.kinds;
        let [unique_4k, unique_read_4k, unique_write_4k] = self.unique();
        let (first_ns, last_ns) = self.times.unwrap_or_default();
        let mut summary = Summary {
            volume: name.to_string(),
            requests: reads.requests + writes.requests + self.flushes + self.discards,
            reads: reads.requests,
            writes: writes.requests,
            flushes: self.flushes,
            discards: self.discards,
            read_bytes: reads.bytes,
            write_bytes: writes.bytes,
            discard_bytes: self.discard_bytes,
            refs_4k: reads.refs + writes.refs,
            read_refs_4k: reads.refs,
            write_refs_4k: writes.refs,
            unique_4k,
            unique_read_4k,
            unique_write_4k,
            address_span_4k: self.blocks.map_or(0, |(low, high)| high - low + 1),
            first_ns,
            last_ns,
            span_s: None,
            requests_per_s: None,
            peak_requests_per_s: Some(self.rate.peak),
            read_size: Sizes::of(&reads.lengths),
            write_size: Sizes::of(&writes.lengths),
            aligned_4k_ratio: 0.0,
            first_sectors: self.first_sectors,
        };
        summary.derive(self.aligned);
        summary
    }
}

impl Summary {
    /// Leaves out what follows from times, which the trace does not have.
    #[must_use]
    pub fn without_times(self) -> Summary {
        Summary { span_s: None, requests_per_s: None, peak_requests_per_s: None, ..self }
    }

    /// Computes the figures that follow from the counts.
    fn derive(&mut self, aligned: u64) {
        let accesses = self.reads + self.writes;
        let span_s = (self.last_ns - self.first_ns) as f64 / SECOND_NS as f64;
        self.span_s = Some(span_s);
        self.requests_per_s = Some(if span_s > 0.0 { self.requests as f64 / span_s } else { 0.0 });
        self.aligned_4k_ratio = if accesses > 0 { aligned as f64 / accesses as f64 } else { 0.0 };
    }
}

/// Computes the statistics of a trace.
#[derive(Default)]
pub struct Summaries {
    volumes: Vec<Tally>,
    rate: Rate,
}

impl Summaries {
    /// Counts accesses, which come in time order.
    pub fn add(&mut self, accesses: &[Access]) {
        for access in accesses {
            let volume = access.volume.0 as usize;
            if self.volumes.len() <= volume {
                self.volumes.resize_with(volume + 1, Tally::default);
            }
            self.volumes[volume].add(access);
            self.rate.add(access.time_ns);
        }
    }

    /// Returns the statistics of each volume; `names` are all of the trace's.
    pub fn volumes(&self, names: &[String]) -> Vec<Summary> {
        self.volumes.iter().zip(names).map(|(tally, name)| tally.summary(name)).collect()
    }

    /// Returns the statistics of all volumes together. Blocks of different volumes are different.
    pub fn overall(&self) -> Summary {
        let mut all = Tally { rate: Rate { peak: self.rate.peak, ..Rate::default() }, ..Tally::default() };
        let mut sums = [0; 4];
        for tally in &self.volumes {
            for (all, kind) in all.kinds.iter_mut().zip(&tally.kinds) {
                all.requests += kind.requests;
                all.bytes += kind.bytes;
                all.refs += kind.refs;
                kind.lengths.iter().for_each(|(length, n)| *all.lengths.entry(*length).or_default() += n);
            }
            all.flushes += tally.flushes;
            all.discards += tally.discards;
            all.discard_bytes += tally.discard_bytes;
            all.aligned += tally.aligned;
            for (all, count) in all.first_sectors.iter_mut().zip(tally.first_sectors) {
                *all += count;
            }
            if let Some((first, last)) = tally.times {
                let (from, to) = all.times.unwrap_or((u64::MAX, 0));
                all.times = Some((from.min(first), to.max(last)));
            }
            let [unique, unique_read, unique_write] = tally.unique();
            let span = tally.blocks.map_or(0, |(low, high)| high - low + 1);
            for (sum, part) in sums.iter_mut().zip([unique, unique_read, unique_write, span]) {
                *sum += part;
            }
        }
        let [unique_4k, unique_read_4k, unique_write_4k, address_span_4k] = sums;
        Summary { unique_4k, unique_read_4k, unique_write_4k, address_span_4k, ..all.summary("all") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::VolumeNo;

    #[test]
    fn every_figure_of_a_small_trace() {
        let access = |time_s: u64, volume, op, offset_bytes, length_bytes| Access {
            time_ns: time_s * SECOND_NS,
            offset_bytes,
            length_bytes,
            volume: VolumeNo(volume),
            op,
        };
        let mut summaries = Summaries::default();
        summaries.add(&[
            access(10, 0, Op::Read, 0, 8192),
            access(10, 1, Op::Write, 62 * 4096, 4 * 4096),
            access(10, 0, Op::Write, 4096 + 512, 512),
            access(11, 0, Op::Flush, 9 << 40, 0),
            access(12, 1, Op::Discard, 0, 1 << 20),
            access(14, 0, Op::Read, 4095, 2),
        ]);
        let [zero, one] = summaries.volumes(&["zero".into(), "one".into()]).try_into().unwrap();
        assert_eq!(
            (zero.volume.as_str(), zero.requests, zero.reads, zero.writes, zero.flushes),
            ("zero", 4, 2, 1, 1)
        );
        assert_eq!((zero.refs_4k, zero.read_refs_4k, zero.write_refs_4k), (5, 4, 1));
        assert_eq!(
            (zero.unique_4k, zero.unique_read_4k, zero.unique_write_4k, zero.address_span_4k),
            (2, 2, 1, 2)
        );
        assert_eq!((zero.first_ns, zero.span_s, zero.requests_per_s), (10 * SECOND_NS, Some(4.0), Some(1.0)));
        assert_eq!((zero.peak_requests_per_s, zero.first_sectors), (Some(2), [1, 1, 0, 0, 0, 0, 0, 1]));
        assert!((zero.aligned_4k_ratio - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(
            (zero.read_size.mean_bytes, zero.read_size.p50_bytes, zero.read_size.max_bytes),
            (4097.0, 2, 8192)
        );
        assert_eq!((one.unique_4k, one.address_span_4k, one.discards, one.discard_bytes), (4, 4, 1, 1 << 20));
        let all = summaries.overall();
        assert_eq!(
            (all.requests, all.unique_4k, all.address_span_4k, all.peak_requests_per_s),
            (6, 6, 6, Some(3))
        );
        assert_eq!((all.write_size.min_bytes, all.write_size.max_bytes), (512, 16384));
        assert_eq!((all.span_s, all.requests_per_s), (Some(4.0), Some(1.5)));
        let without = all.clone().without_times();
        assert_eq!((without.span_s, without.requests_per_s, without.peak_requests_per_s), (None, None, None));
        assert_eq!(Summary { span_s: all.span_s, ..without }.requests, all.requests);
    }
}
