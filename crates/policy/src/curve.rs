//! Hit-ratio curves: the share of accesses that hit in a cache of a given number of blocks.
//!
//! Invariants
//! - Sizes rise strictly; ratios never decrease and are within 0 and 1.
//! - Between two points the curve is a step: it has the ratio that was measured at the smaller size.

use serde::{Deserialize, Serialize};

use crate::error::{PolicyError, check_range};

/// A hit-ratio curve.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<(u64, f64)>", into = "Vec<(u64, f64)>")]
pub struct Curve {
    points: Vec<(u64, f64)>,
}

impl Curve {
    /// Makes a curve from points of blocks and hit ratio.
    ///
    /// # Errors
    /// `BadFigure` if sizes do not rise, or ratios decrease or are not ratios.
    pub fn new(points: Vec<(u64, f64)>) -> Result<Curve, PolicyError> {
        for (_, ratio) in &points {
            check_range(|| "a hit ratio of a curve".into(), *ratio, 0.0..=1.0, "a number from 0 to 1")?;
        }
        if let Some(pair) = points.windows(2).find(|pair| pair[0].0 >= pair[1].0 || pair[0].1 > pair[1].1) {
            return Err(PolicyError::BadFigure {
                what: "a curve".into(),
                found: format!("{:?} before {:?}", pair[0], pair[1]),
                expected: "rising sizes and ratios that do not sink",
            });
        }
        Ok(Curve { points })
    }

    /// Makes a valid curve from estimates at rising sizes. An estimate that decreases is raised to the previous
    /// one, one outside 0 to 1 is clamped, and one that is not a number is left out, as are sizes that do not
    /// rise.
    pub fn estimated(samples: impl IntoIterator<Item = (u64, f64)>) -> Curve {
        let mut points: Vec<(u64, f64)> = Vec::new();
        for (blocks, ratio) in samples {
            let (before, lowest) = points.last().map_or((None, 0.0), |(size, ratio)| (Some(*size), *ratio));
            if !ratio.is_nan() && before.is_none_or(|before| before < blocks) {
                points.push((blocks, ratio.clamp(lowest, 1.0)));
            }
        }
        Curve { points }
    }

    /// Makes the curve of hits at the given reuse distances, among this many accesses. An LRU cache hits
    /// distances below its size.
    pub fn of_distances(mut distances: Vec<u64>, accesses: u64) -> Curve {
        distances.sort_unstable();
        let accesses = accesses.max(distances.len() as u64) as f64;
        let mut points: Vec<(u64, f64)> = Vec::new();
        for (place, distance) in distances.iter().enumerate() {
            let ratio = (place + 1) as f64 / accesses;
            match points.last_mut() {
                Some(last) if last.0 == distance + 1 => last.1 = ratio,
                _ => points.push((distance + 1, ratio)),
            }
        }
        Curve { points }
    }

    /// Returns the hit ratio of this many blocks.
    pub fn at(&self, blocks: u64) -> f64 {
        let place = self.points.partition_point(|point| point.0 <= blocks);
        if place == 0 { 0.0 } else { self.points[place - 1].1 }
    }

    /// Returns the hit ratio of any size that is large enough.
    pub fn highest(&self) -> f64 {
        self.points.last().map_or(0.0, |point| point.1)
    }

    /// Returns the smallest number of blocks with the highest hit ratio; 0 if there are no hits. On an exact
    /// curve this is the largest reuse distance plus one.
    pub fn blocks_needed(&self) -> u64 {
        let highest = self.highest();
        if highest <= 0.0 {
            return 0;
        }
        self.points[self.points.partition_point(|point| point.1 < highest)].0
    }

    /// Returns the points of blocks and hit ratio.
    pub fn points(&self) -> &[(u64, f64)] {
        &self.points
    }
}

impl TryFrom<Vec<(u64, f64)>> for Curve {
    type Error = PolicyError;

    fn try_from(points: Vec<(u64, f64)>) -> Result<Curve, PolicyError> {
        Curve::new(points)
    }
}

impl From<Curve> for Vec<(u64, f64)> {
    fn from(curve: Curve) -> Self {
        curve.points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_is_a_step_function() {
        let curve = Curve::of_distances(vec![4, 1, 1], 6);
        assert_eq!(curve.points(), [(2, 2.0 / 6.0), (5, 0.5)]);
        let read: Vec<f64> = [0, 1, 2, 4, 5, 99].into_iter().map(|blocks| curve.at(blocks)).collect();
        assert_eq!(read, [0.0, 0.0, 2.0 / 6.0, 2.0 / 6.0, 0.5, 0.5]);
        assert_eq!(curve.blocks_needed(), 5);
        assert_eq!(Curve::default().blocks_needed(), 0);
    }

    #[test]
    fn what_is_no_curve_is_refused_or_made_one() {
        for points in
            [vec![(1, 0.5), (2, 0.4)], vec![(2, 0.1), (2, 0.2)], vec![(1, f64::NAN)], vec![(1, 1.1)]]
        {
            assert!(matches!(Curve::new(points), Err(PolicyError::BadFigure { .. })));
        }
        let curve = Curve::estimated([(0, -0.1), (1, 0.5), (1, 0.6), (2, 0.4), (3, f64::NAN), (4, 1.5)]);
        assert_eq!(curve.points(), [(0, 0.0), (1, 0.5), (2, 0.5), (4, 1.0)]);
        assert_eq!(Curve::new(curve.points().to_vec()).unwrap(), curve);
    }
}
