//! Each disk of a load, interval by interval: hits of reads in an LRU cache, reuse intensity, and the working set.
//!
//! Sources: vCacheShare (Meng et al., ATC'14), figures 4 and 7; CloudCache (Arteaga), figure 2.7.

use std::path::Path;

use haversack_analyze::{Options, VolumeAnalysis, analyze};
use haversack_sim::mix::Mix;
use haversack_sim::{Progress, Stage};

use crate::error::Failure;
use crate::measure::Quantity;
use crate::outcome::{Outcome, Played, Point};
use crate::recipe::Intervals;

/// Analyses.
pub(crate) fn run(
    recipe: &Intervals,
    mix: &Mix,
    is_real: bool,
    progress: &Progress<'_>,
) -> Result<Outcome, Failure> {
    let length = recipe.real_length.filter(|_| is_real).unwrap_or(recipe.length);
    let size = recipe.real_size.filter(|_| is_real).unwrap_or(recipe.size);
    let length_ns = length.as_micros().saturating_mul(1_000);
    let mut source = mix.open(Path::new("."))?;
    let plain = Options::default();
    let options = Options {
        window_ns: length_ns,
        interval_ns: Some(length_ns),
        sizes: vec![(size.0 / plain.block_bytes).max(1)],
        ..plain
    };
    let analysis = analyze(source.as_mut(), &options, |part, _| progress(Stage::Play, part.unwrap_or(0.0)))?;
    let played = Played::of_analysis(&analysis, source.damage().lines);
    let points = analysis.volumes.iter().flat_map(|volume| points(volume, analysis.block_bytes)).collect();
    Ok(Outcome { played: Some(played), points, courses: Vec::new() })
}

/// The point of a disk, and one for each of its intervals. Hits are given where there are reads.
fn points(volume: &VolumeAnalysis, block_bytes: u64) -> Vec<Point> {
    let bytes = |blocks: u64| (blocks * block_bytes) as f64;
    let mut whole = Point::new(&volume.name, None);
    whole.set(Quantity::Footprint, bytes(volume.footprint_blocks));
    let mut points = Vec::new();
    let (mut hits, mut intensities, mut working_sets) = (Vec::new(), Vec::new(), Vec::new());
    for interval in &volume.intervals {
        let mut point = Point::new(&volume.name, Some(interval.start_ns as f64 / 1e9));
        let missed = interval.asked.first().and_then(|asked| asked.read_miss_ratio);
        let hit = missed.map(|misses| 1.0 - misses);
        point.set(Quantity::ReadHits, hit);
        point.set(Quantity::ReuseIntensity, interval.intensity_per_s);
        hits.extend(hit);
        intensities.push(interval.intensity_per_s);
        points.push(point);
    }
    for (point, window) in points.iter_mut().zip(&volume.windows) {
        point.set(Quantity::WorkingSet, bytes(window.blocks));
        working_sets.push(bytes(window.blocks));
    }
    whole.set(Quantity::LeastReadHits, hits.iter().copied().reduce(f64::min));
    whole.set(Quantity::MostReadHits, hits.iter().copied().reduce(f64::max));
    whole.set(Quantity::MeanReuseIntensity, mean(&intensities));
    whole.set(Quantity::MostReuseIntensity, intensities.iter().copied().reduce(f64::max));
    whole.set(Quantity::MeanWorkingSet, mean(&working_sets));
    points.insert(0, whole);
    points
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Measure;

    /// A disk that reads 100 blocks again and again for a while, and then blocks that it never reads again.
    #[test]
    fn a_disk_that_changes_is_told_interval_by_interval() {
        let mix = r#"
            title = "loop and scan"
            window-s = 1.0

            [[disk]]
            name = "vm"
            generator = { pattern = { kind = "scan" }, blocks = 100, mix = { read = 1.0, sizes = [[4096, 1.0]] }, volumes = 1, requests = 1000, rate = 100.0, seed = 1 }
            then = [{ pattern = { kind = "scan" }, blocks = 100000, mix = { read = 1.0, sizes = [[4096, 1.0]] }, volumes = 1, requests = 1000, rate = 100.0, seed = 2 }]
        "#;
        let mix: Mix = toml::from_str(mix).unwrap();
        let recipe: Intervals = toml::from_str("length = \"1s\"\nsize = \"4MiB\"\n").unwrap();
        let outcome = run(&recipe, &mix, false, &|_, _| {}).unwrap();
        let all = |quantity: Quantity| -> Vec<f64> {
            let of = |point: &Point| point.values.get(&Measure::of_all(quantity)).copied();
            outcome.points.iter().filter_map(of).collect()
        };
        let hits = all(Quantity::ReadHits);
        assert!((19..=21).contains(&hits.len()), "{hits:?}");
        assert!(hits[0] < 0.1 && hits[3] > 0.95 && hits[hits.len() - 3] < 0.2, "{hits:?}");
        // Requests come at random times, about 100 a second.
        let blocks: Vec<f64> = all(Quantity::WorkingSet).iter().map(|bytes| bytes / 4096.0).collect();
        assert!(blocks[1..8].iter().all(|blocks| (70.0..=100.0).contains(blocks)), "{blocks:?}");
        assert_eq!(all(Quantity::MostReadHits).len(), 1);
        let intensities = all(Quantity::ReuseIntensity);
        assert!(intensities[1..8].iter().all(|intensity| (1.0..1.4).contains(intensity)), "{intensities:?}");
    }
}
