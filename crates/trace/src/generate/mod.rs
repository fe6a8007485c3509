//! Generated traces: the same settings and seed always give the same accesses.
//!
//! A pattern determines the requests, a clock their times. Simple patterns choose places for a mix of requests;
//! others make requests of their own. A [`Profile`] reproduces the figures of a whole volume; a [`preset`] is the
//! profile of a real volume.

mod backup;
mod boot;
mod clock;
mod course;
mod error;
mod mix;
mod pattern;
mod phases;
mod plan;
mod presets;
mod profile;
mod random;
mod reuse;
mod scan;
mod sizes;
mod space;
mod stack;
mod uniform;
mod ycsb;
mod zipf;
mod zoned;

use serde::{Deserialize, Serialize};

use self::backup::Backup;
use self::boot::Boot;
use self::clock::{Clock, Wave};
use self::error::require;
use self::mix::{Mixed, Place};
use self::pattern::{Generated, Volumes};
use self::phases::Phases;
use self::reuse::Reuse;
use self::scan::Scan;
use self::uniform::Uniform;
use self::ycsb::Ycsb;
use self::zipf::{Ranks, Spread, Zipf};
use self::zoned::Zoned;
use crate::source::Source;

pub use self::error::GenerateError;
pub use self::mix::Mix;
pub use self::presets::{not_calibrated, preset, presets};
pub use self::profile::{Distances, Kind, Profile};
pub use self::ycsb::Workload;
pub use self::zoned::Zone;

/// A trace to be generated.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Generator {
    /// The pattern.
    pub pattern: Pattern,
    /// Blocks of 4 KiB of each volume.
    pub blocks: u64,
    /// Reads, writes and sizes, unless the pattern determines them.
    #[serde(default)]
    pub mix: Mix,
    /// Number of volumes; each request goes to a random one.
    pub volumes: u32,
    /// Total number of requests.
    pub requests: u64,
    /// Mean requests per second in total; arrival times are random.
    pub rate: f64,
    /// Another seed gives another trace of the same kind.
    pub seed: u64,
}

/// A pattern of accesses.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Pattern {
    /// Every block is equally likely.
    Uniform,
    /// The block of rank k is accessed in proportion to 1 / k^theta.
    Zipf {
        /// The skew; 0 is uniform.
        theta: f64,
    },
    /// Shares of the requests for shares of the volume.
    Zoned {
        /// They sum to 100 percent.
        zones: Vec<Zone>,
    },
    /// Sequentially from the first block to the last, repeatedly.
    Scan {
        /// Blocks between the starts of two requests; `None` to continue where the last request ended.
        stride: Option<u64>,
    },
    /// A core workload of YCSB.
    Ycsb {
        /// Its name.
        workload: Workload,
    },
    /// Machines of one image that start within a short time.
    BootStorm {
        /// The share of the image that a boot reads.
        read: f64,
        /// The share of the trace within which all machines have started.
        storm: f64,
    },
    /// A Zipf load with a scan of the whole volume for part of the time.
    Backup {
        /// The skew of the load.
        theta: f64,
        /// The share of requests that the scan makes while it runs.
        share: f64,
    },
    /// Working sets that follow each other.
    Phases {
        /// Their number.
        phases: u32,
        /// Blocks of each.
        working_set: u64,
        /// The skew within it.
        theta: f64,
    },
    /// A Zipf load with a rate that varies periodically.
    Diurnal {
        /// The skew.
        theta: f64,
        /// The amplitude of the rate, as a fraction of its mean.
        amplitude: f64,
        /// Seconds between two peaks.
        period_s: f64,
    },
}

impl Generator {
    /// The trace.
    ///
    /// # Errors
    /// A parameter is invalid.
    pub fn source(&self) -> Result<Box<dyn Source>, GenerateError> {
        self.mix.check(self.blocks)?;
        require((1..=65_536).contains(&self.volumes), "volumes", &self.volumes, "1 to 65536")?;
        let mut clock = Clock::of_rate(self.rate)?;
        if let Pattern::Diurnal { amplitude, period_s, .. } = self.pattern {
            require((0.0..1.0).contains(&amplitude), "amplitude", &amplitude, "0 to less than 1")?;
            require(period_s.is_finite() && period_s > 0.0, "period", &period_s, "more than 0 seconds")?;
            clock = clock.with_wave(Wave { amplitude, period_s });
        }
        let pattern: Box<dyn pattern::Pattern> = match self.pattern {
            Pattern::BootStorm { read, storm } => {
                require(
                    read > 0.0 && read <= 1.0,
                    "share of the image read",
                    &read,
                    "more than 0, at most 1",
                )?;
                require((0.0..=1.0).contains(&storm), "share of the storm", &storm, "0 to 1")?;
                Box::new(Boot::new(self.volumes, self.blocks, read, storm, self.seed))
            }
            _ => Box::new(Volumes((0..self.volumes).map(|_| self.volume()).collect::<Result<_, _>>()?)),
        };
        let names = (0..self.volumes).map(|volume| format!("vol{volume}")).collect();
        Ok(Box::new(Generated::new(pattern, clock, names, self.requests, self.seed)))
    }

    /// Makes one volume's pattern.
    fn volume(&self) -> Result<Box<dyn pattern::Pattern>, GenerateError> {
        let blocks = self.blocks;
        Ok(match &self.pattern {
            Pattern::Uniform => self.mixed(Uniform { blocks }),
            Pattern::Zipf { theta } | Pattern::Diurnal { theta, .. } => {
                self.mixed(Zipf::new(blocks, *theta)?)
            }
            Pattern::Zoned { zones } => self.mixed(Zoned::new(blocks, zones)?),
            Pattern::Scan { stride } => {
                require(*stride != Some(0), "stride", &0, "at least 1 block")?;
                self.mixed(Scan { blocks, next: 0, stride: *stride })
            }
            Pattern::Ycsb { workload } => Box::new(Ycsb::new(*workload, blocks)?),
            Pattern::Backup { theta, share } => {
                require((0.0..=1.0).contains(share), "share of the backup", &share, "0 to 1")?;
                let base = Mixed::new(Zipf::new(blocks, *theta)?, self.mix.clone(), blocks);
                Box::new(Backup { base, blocks, next: 0, share: *share })
            }
            Pattern::Phases { phases, working_set, theta } => {
                let set = *working_set;
                require(*phases > 0, "phases", &phases, "at least 1")?;
                require(
                    (1..=blocks).contains(&set),
                    "working set",
                    &set,
                    "from 1 block to the volume's blocks",
                )?;
                let (ranks, spread) = (Ranks::new(set, *theta)?, Spread::new(set));
                self.mixed(Phases { blocks, phases: *phases, ranks, spread })
            }
            Pattern::BootStorm { .. } => unreachable!("its volumes are made together"),
        })
    }

    fn mixed(&self, place: impl Place + 'static) -> Box<dyn pattern::Pattern> {
        Box::new(Mixed::new(place, self.mix.clone(), self.blocks))
    }
}

impl Profile {
    /// Makes a trace with this profile.
    ///
    /// # Errors
    /// Its figures contradict each other.
    pub fn source(&self, seed: u64) -> Result<Box<dyn Source>, GenerateError> {
        self.check()?;
        let gaps = self.requests().saturating_sub(1).max(1);
        let clock = Clock::new(self.span_s / gaps as f64, self.median_gap_s, gaps);
        let pattern = Box::new(Reuse::new(self));
        Ok(Box::new(Generated::new(pattern, clock, vec![self.name.clone()], self.requests(), seed)))
    }
}
