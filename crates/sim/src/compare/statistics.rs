//! Means with their confidence intervals, and medians.

use serde::Serialize;

/// A mean over seeds with its confidence interval.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Half the width of its 95 % confidence interval; `None` with a single seed.
    pub half_width: Option<f64>,
}

/// Quantiles 0.975 of Student's t distribution for 1 to 30 degrees of freedom.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];
/// The same for more degrees of freedom.
const NORMAL: f64 = 1.96;

impl Estimate {
    /// The estimate from a sample with at least one value.
    pub fn of(values: &[f64]) -> Estimate {
        let count = values.len().max(1) as f64;
        let mean = values.iter().sum::<f64>() / count;
        let half_width = (values.len() > 1).then(|| {
            let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
            let error = (squares / (count - 1.0) / count).sqrt();
            STUDENT.get(values.len() - 2).unwrap_or(&NORMAL) * error
        });
        Estimate { mean, half_width }
    }

    /// The mean and its interval, times a factor: `25.2` or `25.2 ±0.3`.
    pub fn text(&self, factor: f64, decimals: usize) -> String {
        let mean = format!("{:.decimals$}", self.mean * factor);
        match self.half_width {
            Some(half_width) => format!("{mean} ±{:.decimals$}", half_width * factor),
            None => mean,
        }
    }
}

/// The median; `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_by_students_distribution() {
        let estimate = Estimate::of(&[1.0, 2.0, 3.0]);
        assert_eq!(estimate.mean, 2.0);
        // 4.303 * 1 / sqrt(3)
        assert!((estimate.half_width.unwrap() - 2.4843).abs() < 1e-3);
        assert_eq!(Estimate::of(&[0.25]).text(100.0, 1), "25.0");
        assert_eq!(Estimate::of(&[0.25, 0.25]).text(100.0, 1), "25.0 ±0.0");
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }
}
