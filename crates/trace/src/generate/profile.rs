//! The figures that a generated volume should have: counts, footprint, sizes, reuse distances, time.

use serde::Serialize;

use super::error::GenerateError;
use super::stack::Extent;

/// The unit of references, footprints and distances.
pub(super) const BLOCK_BYTES: u64 = 4096;
/// Distances up to this many blocks depend on the order of requests, not on the size of the footprint: they are not
/// scaled with a profile. Blocks.
pub(super) const SHORT_DISTANCE: u64 = 64;

/// Reads or writes of a profile.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Kind {
    /// Requests.
    pub requests: u64,
    /// Blocks of 4 KiB accessed, counted each time.
    pub refs: u64,
    /// Bytes; `None` if all requests begin and end on a block boundary.
    pub bytes: Option<u64>,
    /// Sizes in blocks, with weights: the shape of the mix, scaled to the mean that the counts require.
    pub sizes: Vec<(f64, f64)>,
}

impl Kind {
    /// Returns the mean blocks per request.
    pub fn mean_blocks(&self) -> f64 {
        self.refs as f64 / self.requests.max(1) as f64
    }

    fn scaled(&self, scale: f64) -> Self {
        let requests = scaled(self.requests, scale);
        if requests == 0 {
            return Kind { sizes: self.sizes.clone(), ..Kind::default() };
        }
        let bytes = self.bytes.map(|bytes| scaled(bytes, scale));
        Kind { requests, refs: scaled(self.refs, scale).max(requests), bytes, sizes: self.sizes.clone() }
    }
}

/// A range of reuse distances.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Distances {
    /// The longest distance of the range, in blocks; it begins after the previous range, the first at 0.
    pub upto: u64,
    /// The share of all references to known blocks with such a distance.
    pub share: f64,
}

/// The figures that a generated volume should have.
///
/// A reuse distance is the number of different blocks that were accessed, by reads or writes, since the last access
/// to the block.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Profile {
    /// The volume's name.
    pub name: String,
    /// Reads.
    pub reads: Kind,
    /// Writes.
    pub writes: Kind,
    /// Different blocks.
    pub unique: u64,
    /// Different blocks read.
    pub unique_read: u64,
    /// Different blocks written.
    pub unique_write: u64,
    /// Blocks from the lowest to the highest accessed.
    pub span_blocks: u64,
    /// Seconds from the first request to the last.
    pub span_s: f64,
    /// The median time between requests in seconds, if it is known: gaps are then lognormal, otherwise exponential.
    pub median_gap_s: Option<f64>,
    /// Reuse distances, shortest first; shares are relative.
    pub distances: Vec<Distances>,
    /// The fraction of new data that directly follows the previous new data.
    pub sequential: f64,
    /// Whether each size should be as frequent as in the mix, not only the mean. Counts are then less exact in small
    /// traces of few blocks.
    pub keep_mix: bool,
}

impl Profile {
    /// All requests.
    pub fn requests(&self) -> u64 {
        self.reads.requests + self.writes.requests
    }

    /// All references.
    pub fn refs(&self) -> u64 {
        self.reads.refs + self.writes.refs
    }

    /// Blocks that are both read and written.
    pub fn shared(&self) -> u64 {
        (self.unique_read + self.unique_write).saturating_sub(self.unique)
    }

    /// Returns the same load, scaled up or down. Requests, references, bytes, footprint, address span, time and long
    /// reuse distances are multiplied; the mix, sizes, the rate and the shares of distances stay the same, and so do
    /// distances of at most 64 blocks: they come from neighbouring requests, which scaling does not change.
    pub fn scaled(&self, scale: f64) -> Self {
        let (reads, writes) = (self.reads.scaled(scale), self.writes.scaled(scale));
        // A request accesses at least one block.
        let footprint =
            |unique: u64, kind: &Kind| scaled(unique, scale).max(u64::from(unique > 0)).min(kind.refs);
        let unique_read = footprint(self.unique_read, &reads);
        let unique_write = footprint(self.unique_write, &writes);
        let most = (unique_read + unique_write).max(1);
        let unique = scaled(self.unique, scale).clamp(unique_read.max(unique_write).max(1), most);
        let distance = |range: &Distances| {
            let upto = match range.upto {
                short if short <= SHORT_DISTANCE => short,
                long => scaled(long, scale).max(SHORT_DISTANCE),
            };
            Distances { upto: upto.min(unique - 1), share: range.share }
        };
        Profile {
            unique,
            unique_read,
            unique_write,
            span_blocks: scaled(self.span_blocks, scale).max(unique),
            span_s: self.span_s * scale,
            distances: self.distances.iter().map(distance).collect(),
            reads,
            writes,
            ..self.clone()
        }
    }

    /// Checks whether a trace can be made from it.
    ///
    /// # Errors
    /// The figures that contradict each other.
    pub fn check(&self) -> Result<(), GenerateError> {
        let wrong = |what, found: String, expected| Err(GenerateError::Parameter { what, found, expected });
        if self.requests() == 0 {
            return wrong("requests", "0".into(), "at least 1");
        }
        for (kind, unique) in [(&self.reads, self.unique_read), (&self.writes, self.unique_write)] {
            if kind.refs < kind.requests || kind.refs > kind.requests * u64::from(Extent::LIMIT) {
                let found = format!("{} references of {} requests", kind.refs, kind.requests);
                return wrong("references", found, "1 to 65535 for each request");
            }
            if unique > kind.refs {
                let found = format!("{unique} different blocks in {} references", kind.refs);
                return wrong("footprint", found, "no more different blocks than references");
            }
            if kind.sizes.iter().any(|(blocks, weight)| !(*blocks > 0.0 && *weight >= 0.0)) {
                return wrong(
                    "sizes",
                    format!("{:?}", kind.sizes),
                    "sizes above 0 and weights of at least 0",
                );
            }
        }
        let (least, most) = (self.unique_read.max(self.unique_write), self.unique_read + self.unique_write);
        if self.unique == 0 || !(least..=most).contains(&self.unique) {
            let found =
                format!("{} blocks, {} read, {} written", self.unique, self.unique_read, self.unique_write);
            return wrong("footprint", found, "at least 1 block, and every block read or written");
        }
        if self.span_blocks < self.unique || self.span_blocks > Extent::VOLUME_LIMIT {
            return wrong(
                "address span",
                self.span_blocks.to_string(),
                "at least the footprint and at most 2^46 blocks",
            );
        }
        if self.unique > u64::from(u32::MAX) {
            return wrong("footprint", self.unique.to_string(), "less than 2^32 blocks; scale it down");
        }
        if !(self.span_s.is_finite() && self.span_s >= 0.0) {
            return wrong("time", self.span_s.to_string(), "at least 0 seconds");
        }
        if !(0.0..=1.0).contains(&self.sequential) {
            return wrong("sequential share", self.sequential.to_string(), "0 to 1");
        }
        self.check_distances()
    }

    fn check_distances(&self) -> Result<(), GenerateError> {
        let what = "reuse distances";
        let found = || format!("{:?}", self.distances);
        let shares = self.distances.iter().map(|range| range.share);
        if !self.distances.is_sorted_by_key(|range| range.upto) {
            return Err(GenerateError::Parameter { what, found: found(), expected: "short distances first" });
        }
        let sum: f64 = shares.clone().sum();
        if shares.clone().any(|share| share.is_nan() || share < 0.0) || !(sum.is_finite() && sum > 0.0) {
            return Err(GenerateError::Parameter {
                what,
                found: found(),
                expected: "shares with a sum above 0",
            });
        }
        Ok(())
    }
}

fn scaled(count: u64, scale: f64) -> u64 {
    (count as f64 * scale).round() as u64
}
