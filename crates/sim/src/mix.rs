//! A mix: several disks' loads that share a pool, from traces, presets of real volumes, and generators.
//!
//! Each load becomes a disk of the mix's name for it; one with several volumes becomes a disk for each. All begin at
//! time 0.

use std::path::{Path, PathBuf};

use haversack_trace::generate::{self, GenerateError, Generator};
use haversack_trace::{Access, Damage, MergeOptions, Merged, OpenOptions, Source, TraceError, open};
use serde::{Deserialize, Serialize};

use crate::error::SimError;

/// Several loads, and how they are to be looked at.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Mix {
    /// What it shows.
    pub title: String,
    /// Sizes of the pool, as parts of the blocks that all loads together touch.
    #[serde(default = "default_fractions")]
    pub fractions: Vec<f64>,
    /// Seconds of a window of the control loop.
    pub window_s: f64,
    /// Time runs n times faster.
    #[serde(default = "default_speed_up")]
    pub speed_up: f64,
    /// The loads.
    #[serde(rename = "disk")]
    pub disks: Vec<Load>,
}

/// A disk's load. Exactly one of `trace`, `like` and `generator` says what it is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Load {
    /// The disk.
    pub name: String,
    /// A trace file, seen from the mix's folder.
    pub trace: Option<PathBuf>,
    /// A preset of a real volume: `msr:web_0`, `cloudphysics:w27`.
    pub like: Option<String>,
    /// So many requests of the preset; its footprint shrinks with them.
    pub requests: Option<u64>,
    /// So many seconds, into which the preset's requests are brought; as long as they really took if not given.
    pub seconds: Option<f64>,
    /// A generator.
    pub generator: Option<Generator>,
    /// Another seed gives another load like the preset.
    #[serde(default = "default_seed")]
    pub seed: u64,
}

/// Distance of the seeds of a load under consecutive seeds of the mix, so that no two loads meet.
const SEED_STRIDE: u64 = 1_000_003;

fn default_fractions() -> Vec<f64> {
    vec![0.1]
}

fn default_speed_up() -> f64 {
    1.0
}

fn default_seed() -> u64 {
    1
}

fn wrong(disk: &str, why: impl std::fmt::Display) -> SimError {
    SimError::Settings(format!("disk '{disk}' of the mix: {why}"))
}

impl Mix {
    /// Checks what can be checked without reading a trace.
    ///
    /// # Errors
    /// What is wrong, what was expected.
    pub fn check(&self) -> Result<(), SimError> {
        let refused = |why: &str| Err(SimError::Settings(format!("the mix '{}': {why}", self.title)));
        if self.disks.is_empty() {
            return refused("there is no disk in it");
        }
        if !(self.window_s.is_finite() && self.window_s >= 1e-3) {
            return refused("a window takes at least a millisecond");
        }
        for disk in &self.disks {
            let kinds = [disk.trace.is_some(), disk.like.is_some(), disk.generator.is_some()];
            if kinds.into_iter().filter(|given| *given).count() != 1 {
                return Err(wrong(&disk.name, "give one of 'trace', 'like' and 'generator'"));
            }
            if self.disks.iter().filter(|other| other.name == disk.name).count() > 1 {
                return Err(wrong(&disk.name, "there are two of this name"));
            }
        }
        Ok(())
    }

    /// Returns the mix with other random numbers in its generated loads. Seed 1 gives the mix itself.
    #[must_use]
    pub fn with_seed(&self, seed: u64) -> Mix {
        let added = seed.wrapping_sub(1).wrapping_mul(SEED_STRIDE);
        let mut mix = self.clone();
        for disk in &mut mix.disks {
            disk.seed = disk.seed.wrapping_add(added);
            if let Some(generator) = &mut disk.generator {
                generator.seed = generator.seed.wrapping_add(added);
            }
        }
        mix
    }

    /// Opens all loads as one trace. Paths are seen from `folder`.
    ///
    /// # Errors
    /// A trace cannot be opened, or a load is invalid.
    pub fn open(&self, folder: &Path) -> Result<Box<dyn Source>, SimError> {
        let sources = self.disks.iter().map(|disk| disk.open(folder));
        let sources = sources.collect::<Result<Vec<_>, _>>()?;
        Ok(Box::new(Merged::new(sources, MergeOptions { align: true, separate: true })))
    }
}

impl Load {
    fn open(&self, folder: &Path) -> Result<Box<dyn Source>, SimError> {
        let refused = |error: GenerateError| wrong(&self.name, error);
        let source = if let Some(path) = &self.trace {
            open(&folder.join(path), &OpenOptions::default())?
        } else if let Some(name) = &self.like {
            let mut profile = generate::preset(name).map_err(refused)?;
            if let Some(requests) = self.requests {
                profile = profile.scaled(requests as f64 / profile.requests().max(1) as f64);
            }
            if let Some(seconds) = self.seconds {
                profile.median_gap_s = profile.median_gap_s.map(|gap| gap * seconds / profile.span_s);
                profile.span_s = seconds;
            }
            profile.source(self.seed).map_err(refused)?
        } else if let Some(generator) = &self.generator {
            generator.source().map_err(refused)?
        } else {
            return Err(wrong(&self.name, "give one of 'trace', 'like' and 'generator'"));
        };
        Ok(Box::new(Named { name: self.name.clone(), source, names: Vec::new() }))
    }
}

/// A source whose volumes have the disk's name.
struct Named {
    name: String,
    source: Box<dyn Source>,
    names: Vec<String>,
}

impl Source for Named {
    fn read(&mut self, into: &mut Vec<Access>) -> Result<usize, TraceError> {
        let read = self.source.read(into)?;
        let volumes = self.source.volumes();
        if volumes.len() > self.names.len() {
            let named = |volume: &String| format!("{}/{volume}", self.name);
            self.names = match volumes {
                [_] => vec![self.name.clone()],
                // A name that was told of stays: the first volume may have been alone.
                several if self.names.is_empty() => several.iter().map(named).collect(),
                several => {
                    self.names.iter().cloned().chain(several[self.names.len()..].iter().map(named)).collect()
                }
            };
        }
        Ok(read)
    }

    fn volumes(&self) -> &[String] {
        &self.names
    }

    fn progress(&self) -> Option<f64> {
        self.source.progress()
    }

    fn damage(&self) -> Damage {
        self.source.damage()
    }
}
