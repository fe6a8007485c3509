//! Presets: the figures of whole real volumes, as profiles.
//!
//! The tables hold numbers that were measured on the real traces; docs/generators.md tells which, and what is assumed
//! where nothing was measured.

use super::error::GenerateError;
use super::profile::{BLOCK_BYTES, Distances, Kind, Profile};

const MSR: &str = include_str!("presets/msr.csv");
const CLOUDPHYSICS: &str = include_str!("presets/cloudphysics.csv");

/// The shortest reuse distance that is assumed where none was measured, in blocks: shorter ones are caught by the
/// caches above the disk.
const ASSUMED_SHORTEST: f64 = 64.0;
/// How often new data lies behind the new data before it.
const ASSUMED_SEQUENTIAL: f64 = 0.5;
/// The MSR traces were taken over one week.
const WEEK_S: f64 = 7.0 * 86_400.0;

/// Columns of a table before those of distances and sizes.
const COUNTS: usize = 12;
const DECILES: usize = 10;
const SIZES: usize = 10;

/// The profile of a preset, such as `msr:web_0` or `cloudphysics:w27`.
///
/// # Errors
/// There is none of this name.
pub fn preset(name: &str) -> Result<Profile, GenerateError> {
    let unknown = |known| GenerateError::UnknownPreset { name: name.to_string(), known };
    let Some((collection, volume)) = name.split_once(':') else {
        return Err(unknown("msr:VOLUME and cloudphysics:VM".into()));
    };
    let table = match collection {
        "msr" => MSR,
        "cloudphysics" => CLOUDPHYSICS,
        _ => return Err(unknown("msr:VOLUME and cloudphysics:VM".into())),
    };
    let row = table.lines().skip(1).find(|line| line.split(',').next() == Some(volume));
    let row = row.ok_or_else(|| unknown(names(collection, table).collect::<Vec<_>>().join(", ")))?;
    Ok(profile(name, &row.split(',').skip(1).map(|field| field.parse().ok()).collect::<Vec<_>>()))
}

/// The names of all presets.
pub fn presets() -> Vec<String> {
    names("msr", MSR).chain(names("cloudphysics", CLOUDPHYSICS)).collect()
}

fn names<'a>(collection: &'a str, table: &'a str) -> impl Iterator<Item = String> + 'a {
    let volumes = table.lines().skip(1).filter_map(|line| line.split(',').next());
    volumes.map(move |volume| format!("{collection}:{volume}"))
}

/// The profile of a row; columns that the collection does not tell are empty.
fn profile(name: &str, row: &[Option<f64>]) -> Profile {
    let known = |column: usize| row.get(column).copied().flatten();
    let count = |column: usize| known(column).unwrap_or_default() as u64;
    let sizes = |first: usize| {
        let sizes = (first..first + SIZES).filter_map(known).filter(|bytes| *bytes > 0.0);
        sizes.map(|bytes| (bytes / BLOCK_BYTES as f64, 1.0)).collect()
    };
    let kind = |op: usize| Kind {
        requests: count(op),
        refs: count(2 + op),
        bytes: known(4 + op).map(|bytes| bytes as u64),
        sizes: sizes(COUNTS + DECILES + op * SIZES),
    };
    let unique = count(6);
    let deciles: Vec<u64> =
        (COUNTS..COUNTS + DECILES).filter_map(known).map(|blocks| blocks as u64).collect();
    let upto = if deciles.is_empty() { assumed_deciles(unique) } else { deciles };
    Profile {
        name: name.to_string(),
        reads: kind(0),
        writes: kind(1),
        unique,
        unique_read: count(7),
        unique_write: count(8),
        span_blocks: count(9),
        span_s: known(10).unwrap_or(WEEK_S),
        median_gap_s: known(11).map(|median_us| median_us / 1e6).filter(|median_s| *median_s > 0.0),
        distances: upto.iter().map(|upto| Distances { upto: (*upto).min(unique - 1), share: 0.1 }).collect(),
        sequential: ASSUMED_SEQUENTIAL,
    }
}

/// Distances even on a logarithmic scale, from the shortest to the footprint.
fn assumed_deciles(unique: u64) -> Vec<u64> {
    let longest = unique.saturating_sub(1) as f64;
    let decile = |tenth: i32| {
        ASSUMED_SHORTEST.min(longest) * (longest / ASSUMED_SHORTEST).max(1.0).powf(f64::from(tenth) / 10.0)
    };
    (1..=10).map(|tenth| decile(tenth).round() as u64).collect()
}
