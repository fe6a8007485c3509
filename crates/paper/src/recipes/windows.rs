//! Lengths of windows: hits of each disk if its cache has the size of its reuse working set in windows of each length,
//! and the knee (CloudCache, section 3.4.1 and figure 3.3).

use std::collections::BTreeMap;
use std::path::Path;

use haversack_api::Span;
use haversack_model::{BLOCK_BYTES, Micros};
use haversack_policy::demand::knee::{choose_length, try_length};
use haversack_sim::mix::Mix;
use haversack_sim::{Progress, Stage};
use haversack_trace::Op;

use crate::error::Failure;
use crate::measure::Quantity;
use crate::outcome::{Outcome, Point};
use crate::recipe::Windows;

/// Distinct blocks of a window that are counted; more are estimated.
const PLACES: u32 = 1 << 20;

/// Tries the lengths.
pub(crate) fn run(
    recipe: &Windows,
    mix: &Mix,
    is_real: bool,
    progress: &Progress<'_>,
) -> Result<Outcome, Failure> {
    let mut source = mix.open(Path::new("."))?;
    let mut of_volumes: BTreeMap<u32, Vec<(Micros, u64)>> = BTreeMap::new();
    let mut batch = Vec::new();
    while source.read(&mut batch).map_err(haversack_sim::SimError::from)? > 0 {
        for access in batch.drain(..).filter(|access| matches!(access.op, Op::Read | Op::Write)) {
            let accesses = of_volumes.entry(access.volume.0).or_default();
            accesses.extend(access.blocks(BLOCK_BYTES as u64).map(|block| (access.time_ns / 1000, block)));
        }
        progress(Stage::Survey, source.progress().unwrap_or(0.0));
    }
    let lengths = if is_real { &recipe.real_lengths } else { &recipe.lengths };
    let mut points = Vec::new();
    let count = of_volumes.len();
    for (done, (volume, accesses)) in of_volumes.into_iter().enumerate() {
        let name = source.volumes().get(volume as usize).cloned().unwrap_or_default();
        points.extend(of_volume(&name, &accesses, lengths, recipe.reuses)?);
        progress(Stage::Play, (done + 1) as f64 / count as f64);
    }
    Ok(Outcome { points, ..Outcome::default() })
}

fn of_volume(
    name: &str,
    accesses: &[(Micros, u64)],
    lengths: &[Span],
    reuses: u8,
) -> Result<Vec<Point>, Failure> {
    let tried: Vec<_> = lengths
        .iter()
        .map(|length| try_length(accesses, length.as_micros(), reuses, PLACES))
        .collect::<Result<_, _>>()?;
    let mut knee = Point::new(name, None);
    knee.set(Quantity::Knee, choose_length(&tried).map(|length_us| length_us as f64 / 1e6));
    let mut points = vec![knee];
    for length in &tried {
        let mut point = Point::new(name, Some(length.length_us as f64 / 1e6));
        point.set(Quantity::Hits, length.hit_ratio);
        point.set(Quantity::Allocated, length.mean_blocks * BLOCK_BYTES as f64);
        points.push(point);
    }
    Ok(points)
}
