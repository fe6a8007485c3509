//! A curve in few points, small enough to be sent to the whole cluster.

use haversack_policy::Curve;

use crate::worth::hull;

/// Returns a curve of at most `most_points` points, but at least 2, that promises no more hits than this one. The
/// points are corners of the concave hull, which is all that the balancer uses. If there are too many corners, those
/// that change the hull the least are dropped.
pub fn outline(curve: &Curve, most_points: usize) -> Curve {
    let origin = std::iter::once((0, curve.at(0)));
    let mut corners = hull(origin.chain(curve.points().iter().copied().filter(|point| point.0 > 0)));
    // The first corner is left out at the end, unless there are hits without a cache.
    let most = most_points.max(2) + usize::from(curve.at(0) == 0.0);
    while corners.len() > most {
        let cut = |at: usize| {
            let (a, b, c) = (corners[at - 1], corners[at], corners[at + 1]);
            let part = (b.0 - a.0) as f64 / (c.0 - a.0) as f64;
            b.1 - (a.1 + (c.1 - a.1) * part)
        };
        let least = (1..corners.len() - 1).min_by(|a, b| cut(*a).total_cmp(&cut(*b)));
        corners.remove(least.unwrap_or(1));
    }
    Curve::estimated(corners.into_iter().filter(|corner| corner.1 > 0.0))
}
