//! What is measured: the columns of a figure's table, and what a claim is about.

use std::fmt;
use std::str::FromStr;

use haversack_report::Unit;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! quantities {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $title:literal, $unit:expr, $fewer:literal, $more:literal;)*) => {
        /// A quantity. Its name in a recipe, its title, its unit and its comparatives are in one table.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Quantity {
            $($(#[$doc])* $variant,)*
        }

        impl Quantity {
            const ALL: &[Quantity] = &[$(Quantity::$variant,)*];

            /// Its name in a recipe.
            pub fn name(self) -> &'static str {
                match self { $(Quantity::$variant => $name,)* }
            }

            /// Its title.
            pub fn title(self) -> &'static str {
                match self { $(Quantity::$variant => $title,)* }
            }

            /// Its unit.
            pub fn unit(self) -> Unit {
                match self { $(Quantity::$variant => $unit,)* }
            }

            /// The word for less of it.
            pub fn fewer(self) -> &'static str {
                match self { $(Quantity::$variant => $fewer,)* }
            }

            /// The word for more of it.
            pub fn more(self) -> &'static str {
                match self { $(Quantity::$variant => $more,)* }
            }
        }
    };
}

quantities! {
    /// Hits among the blocks read and written.
    Hits = "hits", "hits", Unit::Share, "fewer", "more";
    /// Hits among the blocks read.
    ReadHits = "read-hits", "hits of reads", Unit::Share, "fewer", "more";
    /// Mean latency of requests, in seconds.
    MeanLatency = "mean-latency", "mean latency", Unit::Seconds, "lower", "higher";
    /// 90th percentile of latency, in seconds.
    P90Latency = "p90-latency", "90th percentile of latency", Unit::Seconds, "lower", "higher";
    /// 95th percentile of latency, in seconds.
    P95Latency = "p95-latency", "95th percentile of latency", Unit::Seconds, "lower", "higher";
    /// Blocks written to flash for each block read or written.
    FlashWrites = "flash-writes", "flash writes for each block accessed", Unit::Named(""), "fewer", "more";
    /// The same by ECI-Cache's equation 3: without fills of blocks that were cached before, and without metadata.
    CountedWrites = "counted-writes", "flash writes by equation 3, for each block accessed", Unit::Named(""), "fewer", "more";
    /// Reads from and writes to the origin.
    OriginRequests = "origin-requests", "requests to the origin", Unit::Count, "fewer", "more";
    /// Bytes in the cache: the mean over the decisions, or at the end without any.
    Usage = "usage", "cache in use", Unit::Bytes, "less", "more";
    /// Bytes of the targets, the mean over the decisions.
    Allocated = "allocated", "cache allocated", Unit::Bytes, "less", "more";
    /// Bytes of the targets by the last decision: at the end of a phase, what is allocated for what follows.
    AllocatedAtEnd = "allocated-at-end", "cache allocated at the end", Unit::Bytes, "less", "more";
    /// A disk's part of all targets, the mean over the decisions.
    Share = "share", "share of the targets", Unit::Share, "smaller", "larger";
    /// Bytes of the demand that the system computed, the mean over the decisions.
    Demand = "demand", "demand", Unit::Bytes, "less", "more";
    /// Requests per second of one client, which is one over the mean latency, for each GiB allocated.
    PerformancePerCost = "performance-per-cost", "requests/s for each GiB allocated", Unit::Named(""), "lower", "higher";
    /// |predicted - observed| / observed of a demand, the mean.
    ForecastError = "forecast-error", "error of the forecast demand", Unit::Share, "smaller", "larger";
    /// |predicted - observed| of a hit ratio, the mean.
    PredictionError = "prediction-error", "error of the predicted hit ratio", Unit::Named(""), "smaller", "larger";
    /// Part of the predicted hit ratios that are within 0.1 of those observed.
    PredictionsWithinATenth = "predictions-within-a-tenth", "predictions within 0.1", Unit::Share, "fewer", "more";
    /// Decisions by which disks were read-only.
    ReadOnly = "read-only", "disks read-only, the mean over the decisions", Unit::Named(""), "fewer", "more";
    /// Bytes of a cache for the largest reuse distance.
    TrdSize = "trd-size", "size by TRD", Unit::Bytes, "smaller", "larger";
    /// Bytes of a cache for the largest useful reuse distance.
    UrdSize = "urd-size", "size by URD", Unit::Bytes, "smaller", "larger";
    /// Bytes that are read or written at all.
    Footprint = "footprint", "footprint", Unit::Bytes, "smaller", "larger";
    /// Hits of reads in an LRU cache that only reads fill.
    ReadsAloneHits = "reads-alone-hits", "hits of reads alone", Unit::Share, "fewer", "more";
    /// The fewest hits among the blocks read in an interval.
    LeastReadHits = "least-read-hits", "hits of reads in the worst interval", Unit::Share, "fewer", "more";
    /// The most.
    MostReadHits = "most-read-hits", "hits of reads in the best interval", Unit::Share, "fewer", "more";
    /// Blocks read a second for each distinct block read (vCacheShare, section 4.3).
    ReuseIntensity = "reuse-intensity", "reuse intensity, 1/s", Unit::Named(""), "lower", "higher";
    /// The same, the mean over the intervals.
    MeanReuseIntensity = "mean-reuse-intensity", "mean reuse intensity, 1/s", Unit::Named(""), "lower", "higher";
    /// The same, of the interval that has most.
    MostReuseIntensity = "most-reuse-intensity", "largest reuse intensity, 1/s", Unit::Named(""), "lower", "higher";
    /// Bytes read or written in an interval.
    WorkingSet = "working-set", "working set", Unit::Bytes, "smaller", "larger";
    /// The same, the mean over the intervals.
    MeanWorkingSet = "mean-working-set", "mean working set", Unit::Bytes, "smaller", "larger";
    /// Length of a window at the knee, in seconds.
    Knee = "knee", "window at the knee", Unit::Seconds, "shorter", "longer";
    /// Requests completed after the stop over those of a cold cache, minus 1.
    GainOverNone = "gain-over-none", "requests over a cold cache's", Unit::Share, "smaller", "larger";
    /// The worst neighbour's 99th percentile of latency over that with a cold cache, minus 1.
    NeighbourSlowdown = "neighbour-slowdown", "slow-down of the slowest neighbour", Unit::Share, "smaller", "larger";
    /// Time that moving the cache adds to the VM's downtime, in seconds.
    Stall = "stall", "added downtime", Unit::Seconds, "shorter", "longer";
    /// Bytes sent between the hosts.
    Sent = "sent", "sent", Unit::Bytes, "less", "more";
    /// Hits in the client's memory, among its reads.
    MemoryHits = "memory-hits", "hits in memory", Unit::Share, "fewer", "more";
    /// Hits in the remote flash, among its reads.
    FlashHits = "flash-hits", "hits in the flash", Unit::Share, "fewer", "more";
    /// Queries for blocks that the flash does not have, among its reads.
    WastedTrips = "wasted-trips", "wasted trips to the flash", Unit::Share, "fewer", "more";
    /// E(C) of Liu's equation 1, in seconds.
    ExpectedLatency = "expected-latency", "E(C), without queues", Unit::Seconds, "lower", "higher";
    /// Bits of the index for each block in the flash.
    BitsAKey = "bits-a-key", "bits of the index a block", Unit::Named(""), "fewer", "more";
    /// A tenant's weight.
    Weight = "weight", "weight", Unit::Named(""), "smaller", "larger";
    /// A tenant's part of the cache, in bytes.
    Size = "size", "size", Unit::Bytes, "smaller", "larger";
}

/// The part of the results that a measure covers.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Scope {
    /// All disks together.
    All,
    /// The median of the disks.
    Median,
    /// One disk.
    Disk(String),
}

/// A quantity, of all disks (`hits`), of one (`hits:web_0`), or the median of all (`hits:median`).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Measure {
    /// The quantity.
    pub quantity: Quantity,
    /// Of what.
    pub scope: Scope,
}

impl Measure {
    /// A quantity of all disks.
    pub fn of_all(quantity: Quantity) -> Measure {
        Measure { quantity, scope: Scope::All }
    }

    /// A quantity of a disk.
    pub fn of_disk(quantity: Quantity, disk: &str) -> Measure {
        Measure { quantity, scope: Scope::Disk(disk.into()) }
    }

    /// Its title.
    pub fn title(&self) -> String {
        let title = self.quantity.title();
        match &self.scope {
            Scope::All => title.into(),
            Scope::Median => format!("{title}, median"),
            Scope::Disk(disk) => format!("{title}, {disk}"),
        }
    }

    /// A value with its unit.
    pub fn format(&self, value: f64) -> String {
        self.quantity.unit().format(value)
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.quantity.name())?;
        match &self.scope {
            Scope::All => Ok(()),
            Scope::Median => f.write_str(":median"),
            Scope::Disk(disk) => write!(f, ":{disk}"),
        }
    }
}

impl FromStr for Measure {
    type Err = String;

    fn from_str(text: &str) -> Result<Measure, String> {
        let (name, scope) = match text.split_once(':') {
            None => (text, Scope::All),
            Some((name, "median")) => (name, Scope::Median),
            Some((name, disk)) => (name, Scope::Disk(disk.into())),
        };
        let quantity = Quantity::ALL.iter().copied().find(|quantity| quantity.name() == name);
        let quantity = quantity.ok_or_else(|| {
            let known: Vec<_> = Quantity::ALL.iter().map(|quantity| quantity.name()).collect();
            format!("'{name}' is not measured: expected {}", known.join(", "))
        })?;
        Ok(Measure { quantity, scope })
    }
}

impl<'de> Deserialize<'de> for Measure {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Measure, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for Measure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for quantity in Quantity::ALL {
            for scope in ["", ":median", ":web_0"] {
                let text = format!("{}{scope}", quantity.name());
                assert_eq!(text.parse::<Measure>().unwrap().to_string(), text);
            }
        }
        assert!("colour".parse::<Measure>().unwrap_err().contains("expected hits, read-hits"));
    }
}
