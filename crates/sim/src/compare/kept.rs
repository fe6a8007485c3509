//! Results of simulated pools kept in a file, one JSON object per line, so that an interrupted sweep can
//! continue.
//!
//! Invariants
//! - A line counts only for the build, the mix, its requests, the seed and the settings with which it was made.
//! - A truncated line counts as absent.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::bounds::{Bounds, PoolSize};
use super::row::Combination;
use super::system::Variant;
use crate::error::SimError;
use crate::mix::Mix;

/// The content of a line.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Held {
    Combination(Box<Combination>),
    Bounds(Bounds),
}

#[derive(Serialize, Deserialize)]
struct Line {
    key: u64,
    held: Held,
}

/// The loads of a mix: what it says, and the digest of the requests that they gave. A trace may have changed under the
/// same name.
#[derive(Clone, Copy)]
pub struct Loads<'a> {
    /// The mix.
    pub mix: &'a Mix,
    /// The digest of its requests.
    pub digest: u64,
}

/// See the module.
#[derive(Default)]
pub struct Kept {
    path: Option<PathBuf>,
    build: u64,
    held: HashMap<u64, Held>,
}

impl Kept {
    /// Keeps nothing.
    pub fn nothing() -> Kept {
        Kept::default()
    }

    /// Reads the file, which need not exist yet. `build` identifies the program: results of another one do not count.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn open(path: &Path, build: &[u8]) -> Result<Kept, SimError> {
        let mut hasher = DefaultHasher::new();
        build.hash(&mut hasher);
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(failed(path, &error)),
        };
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
        let held = lines.map(|line| (line.key, line.held)).collect();
        Ok(Kept { path: Some(path.into()), build: hasher.finish(), held })
    }

    fn key(&self, loads: Loads<'_>, what: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        // Sizes are in `what`: another list of them changes no result.
        let mix = Mix { fractions: Vec::new(), ..loads.mix.clone() };
        (self.build, format!("{mix:?}"), loads.digest, what).hash(&mut hasher);
        hasher.finish()
    }

    fn of_variant(&self, loads: Loads<'_>, variant: &Variant) -> u64 {
        let mut settings = variant.settings.clone();
        settings.threads = 0;
        self.key(loads, &format!("{:?} {settings:?}", variant.system))
    }

    /// The bounds of a size are those of what the pool can hold, which depends on the replacement.
    fn of_bounds(&self, loads: Loads<'_>, fraction: f64, held_blocks: u64) -> u64 {
        self.key(loads, &format!("bounds {fraction} {held_blocks}"))
    }

    /// Returns a pool's result.
    pub fn combination(&self, loads: Loads<'_>, variant: &Variant) -> Option<Combination> {
        match self.held.get(&self.of_variant(loads, variant)) {
            Some(Held::Combination(row)) => Some((**row).clone()),
            _ => None,
        }
    }

    /// Returns the bounds of a size. They depend on the loads alone: recorded ones have the same with every seed.
    pub fn bounds(&self, loads: Loads<'_>, size: &PoolSize, seed: u64) -> Option<Bounds> {
        match self.held.get(&self.of_bounds(loads, size.fraction, size.held_blocks)) {
            Some(Held::Bounds(bounds)) => Some(Bounds { seed, ..bounds.clone() }),
            _ => None,
        }
    }

    /// Keeps a pool's result.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep(&mut self, loads: Loads<'_>, variant: &Variant, row: &Combination) -> Result<(), SimError> {
        self.append(self.of_variant(loads, variant), Held::Combination(Box::new(row.clone())))
    }

    /// Keeps the bounds of a size.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep_bounds(&mut self, loads: Loads<'_>, bounds: &Bounds) -> Result<(), SimError> {
        let key = self.of_bounds(loads, bounds.fraction, bounds.held_blocks);
        self.append(key, Held::Bounds(bounds.clone()))
    }

    fn append(&mut self, key: u64, held: Held) -> Result<(), SimError> {
        if let Some(path) = &self.path {
            let line = serde_json::to_string(&Line { key, held: held.clone() }).expect("results are JSON");
            let written = std::fs::OpenOptions::new().create(true).append(true).open(path);
            // The line break in front ends a line that an interruption cut short.
            let written = written.and_then(|mut file| file.write_all(format!("\n{line}").as_bytes()));
            written.map_err(|error| failed(path, &error))?;
        }
        self.held.insert(key, held);
        Ok(())
    }
}

fn failed(path: &Path, error: &std::io::Error) -> SimError {
    SimError::Settings(format!("the file of results {}: {error}", path.display()))
}
