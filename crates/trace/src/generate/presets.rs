//! Presets: the figures of whole real volumes, as profiles.
//!
//! The tables have numbers measured on the real traces; docs/generators.md says which, and what is assumed where
//! nothing was measured.

use super::error::GenerateError;
use super::profile::{BLOCK_BYTES, Distances, Kind, Profile};

const MSR: &str = include_str!("presets/msr.csv");
const CLOUDPHYSICS: &str = include_str!("presets/cloudphysics.csv");

/// The shortest reuse distance assumed if none was measured, in blocks: shorter ones are absorbed by the caches above
/// the disk.
const ASSUMED_SHORTEST: f64 = 64.0;
/// How often new data directly follows the previous new data.
const ASSUMED_SEQUENTIAL: f64 = 0.5;
/// The MSR traces cover one week.
const WEEK_S: f64 = 7.0 * 86_400.0;

/// Numeric columns of a table before those of distances and sizes.
const COUNTS: usize = 13;
const DECILES: usize = 10;
const SIZES: usize = 10;

/// Returns the profile of a preset, such as `msr:web_0` or `cloudphysics:w27`.
///
/// # Errors
/// There is no preset of this name.
pub fn preset(name: &str) -> Result<Profile, GenerateError> {
    let fields = row(name)?.split(',').skip(1);
    Ok(profile(name, &fields.map(|field| field.parse().ok()).collect::<Vec<_>>()))
}

/// Returns which figures of a preset contradict its other figures, so that they are not calibrated, and why; `None`
/// if all are.
pub fn not_calibrated(name: &str) -> Option<&'static str> {
    match row(name).ok()?.rsplit(',').next()? {
        "write_share" => Some("reuse distances, which are of a load with more writes than its counts tell"),
        "room" => Some("reuse distances, for which too few of its blocks are written"),
        _ => None,
    }
}

/// Returns the row of a preset.
fn row(name: &str) -> Result<&'static str, GenerateError> {
    let unknown = |known| GenerateError::UnknownPreset { name: name.to_string(), known };
    let collections = || unknown("msr:VOLUME and cloudphysics:VM".into());
    let (collection, volume) = name.split_once(':').ok_or_else(collections)?;
    let table = match collection {
        "msr" => MSR,
        "cloudphysics" => CLOUDPHYSICS,
        _ => return Err(collections()),
    };
    let row = table.lines().skip(1).find(|line| line.split(',').next() == Some(volume));
    row.ok_or_else(|| unknown(names(collection, table).collect::<Vec<_>>().join(", ")))
}

/// Returns the names of all presets.
pub fn presets() -> Vec<String> {
    names("msr", MSR).chain(names("cloudphysics", CLOUDPHYSICS)).collect()
}

fn names<'a>(collection: &'a str, table: &'a str) -> impl Iterator<Item = String> + 'a {
    let volumes = table.lines().skip(1).filter_map(|line| line.split(',').next());
    volumes.map(move |volume| format!("{collection}:{volume}"))
}

/// Returns the profile of a row; columns that the collection does not have are empty.
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
    let distances = if deciles.is_empty() {
        assumed_distances(unique, [(count(2), count(7)), (count(3), count(8))])
    } else {
        let again = (count(2) + count(3)).saturating_sub(unique);
        measured_distances(&deciles, unique, again as f64, count(12) as f64)
    };
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
        distances,
        sequential: ASSUMED_SEQUENTIAL,
        keep_mix: false,
    }
}

/// Returns the distances of `again` references to known blocks, from the deciles of those and of the `added` reads
/// that the source inserts before unaligned writes. Each inserted read gives the write after it a distance of 0, and
/// is removed again; a decile may then be empty.
fn measured_distances(deciles: &[u64], unique: u64, again: f64, added: f64) -> Vec<Distances> {
    let mut before = 0.0;
    let range = |(at, blocks): (usize, &u64)| {
        let hits = (at + 1) as f64 / DECILES as f64 * (again + added) - added;
        let share = (hits.max(0.0) - before) / again;
        before = hits.max(0.0);
        Distances { upto: (*blocks).min(unique - 1), share }
    };
    deciles.iter().enumerate().map(range).collect()
}

/// Returns distances of references to known blocks: for reads and for writes uniform on a logarithmic scale, from the
/// shortest to the footprint of their kind. `kinds` are references and footprints.
fn assumed_distances(unique: u64, kinds: [(u64, u64); 2]) -> Vec<Distances> {
    let longest = unique.saturating_sub(1) as f64;
    let shortest = ASSUMED_SHORTEST.min(longest);
    let within = |distance: f64| -> f64 {
        let kind = |(refs, footprint): (u64, u64)| {
            let scale = (footprint as f64 / shortest.max(1.0)).max(2.0).ln();
            let again = refs.saturating_sub(footprint).max(1) as f64;
            again * ((distance + 1.0) / (shortest + 1.0)).ln().clamp(0.0, scale) / scale
        };
        kinds.into_iter().map(kind).sum()
    };
    let mut distances = vec![Distances { upto: shortest as u64, share: 0.0 }];
    for step in 1..=DECILES {
        let before = distances[step - 1].upto;
        let upto = shortest * (longest / shortest.max(1.0)).max(1.0).powf(step as f64 / DECILES as f64);
        let upto = (upto.round() as u64).max(before);
        distances.push(Distances { upto, share: within(upto as f64) - within(before as f64) });
    }
    // The footprint is too small to distinguish distances.
    if distances.iter().all(|range| range.share <= 0.0) {
        distances[0].share = 1.0;
    }
    distances
}
