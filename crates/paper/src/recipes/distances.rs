//! Reuse distances of each disk of a load: curves of hits over size, and the sizes that TRD and URD ask for.

use std::path::Path;

use haversack_analyze::{Analysis, Options, VolumeAnalysis, analyze};
use haversack_sim::mix::Mix;
use haversack_sim::{Progress, Stage};

use crate::error::Failure;
use crate::measure::Quantity;
use crate::outcome::{Outcome, Played, Point};
use crate::recipe::Distances;

/// The point of all disks together; its sizes are the sums of theirs.
pub const ALL: &str = "all";

/// Analyses.
pub(crate) fn run(recipe: &Distances, mix: &Mix, progress: &Progress<'_>) -> Result<Outcome, Failure> {
    let mut source = mix.open(Path::new("."))?;
    let options = Options { block_bytes: recipe.block.0, ..Options::default() };
    let analysis = analyze(source.as_mut(), &options, |part, _| progress(Stage::Play, part.unwrap_or(0.0)))?;
    let played = Played::of_analysis(&analysis, source.damage().lines);
    Ok(Outcome { played: Some(played), points: points(&analysis), courses: Vec::new() })
}

fn points(analysis: &Analysis) -> Vec<Point> {
    let block_bytes = analysis.block_bytes as f64;
    let mut all = Point::new(ALL, None);
    let mut points = Vec::new();
    let mut sums = [0.0; 3];
    for volume in &analysis.volumes {
        let sizes = sizes(volume, block_bytes);
        sums.iter_mut().zip(sizes).for_each(|(sum, size)| *sum += size);
        let mut point = Point::new(&volume.name, None);
        set_sizes(&mut point, sizes);
        points.push(point);
        for at in volume.points() {
            let mut point = Point::new(&volume.name, Some(at.bytes as f64));
            point.set(Quantity::Hits, at.miss_ratio.map(|misses| 1.0 - misses));
            point.set(Quantity::ReadHits, at.read_miss_ratio.map(|misses| 1.0 - misses));
            point.set(Quantity::ReadsAloneHits, at.reads_alone_miss_ratio.map(|misses| 1.0 - misses));
            points.push(point);
        }
    }
    set_sizes(&mut all, sums);
    points.push(all);
    points
}

/// Bytes by TRD, by URD and of the footprint.
fn sizes(volume: &VolumeAnalysis, block_bytes: f64) -> [f64; 3] {
    let blocks = [volume.all_distances.blocks, volume.useful_distances.blocks, volume.footprint_blocks];
    blocks.map(|blocks| blocks as f64 * block_bytes)
}

fn set_sizes(point: &mut Point, sizes: [f64; 3]) {
    let quantities = [Quantity::TrdSize, Quantity::UrdSize, Quantity::Footprint];
    quantities.into_iter().zip(sizes).for_each(|(quantity, size)| point.set(quantity, size));
}
