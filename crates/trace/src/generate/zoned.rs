//! Zoned: shares of the requests go to consecutive shares of the volume.
//!
//! Source: fio's `random_distribution=zoned:50/5:30/15:20/`.

use serde::{Deserialize, Serialize};

use super::error::{GenerateError, require};
use super::mix::Place;
use super::random::Random;

/// A part of the volume.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Zone {
    /// Percent of the requests.
    pub requests_percent: f64,
    /// Percent of the volume.
    pub size_percent: f64,
}

/// The end of each zone, as a share of all requests and in blocks.
pub(super) struct Zoned {
    ends: Vec<(f64, u64)>,
}

impl Zoned {
    pub fn new(blocks: u64, zones: &[Zone]) -> Result<Self, GenerateError> {
        let sum = |figure: fn(&Zone) -> f64| zones.iter().map(figure).sum::<f64>();
        let good = |percent: f64| percent.is_finite() && percent >= 0.0;
        let all_good = zones.iter().all(|zone| good(zone.requests_percent) && good(zone.size_percent));
        let whole = |sum: f64| (sum - 100.0).abs() < 0.01;
        let is_whole = whole(sum(|zone| zone.requests_percent)) && whole(sum(|zone| zone.size_percent));
        let shown = || format!("{zones:?}");
        require(
            all_good && is_whole,
            "zones",
            &shown(),
            "percents of requests and of size that each sum to 100",
        )?;
        let (mut requests, mut size) = (0.0, 0.0);
        let mut ends = Vec::new();
        for zone in zones.iter().filter(|zone| zone.requests_percent > 0.0) {
            let begin = ends.last().map_or(0, |end: &(f64, u64)| end.1);
            requests += zone.requests_percent / 100.0;
            size += zone.size_percent / 100.0;
            let end = ((blocks as f64 * size).round() as u64).min(blocks);
            require(end > begin, "zones", &shown(), "at least one block in each zone that has requests")?;
            ends.push((requests, end));
        }
        Ok(Zoned { ends })
    }
}

impl Place for Zoned {
    fn place(&mut self, _: u32, _: f64, random: &mut Random) -> u64 {
        let at = random.unit();
        let zone = self.ends.iter().position(|end| at < end.0).unwrap_or(self.ends.len() - 1);
        let begin = zone.checked_sub(1).map_or(0, |before| self.ends[before].1);
        begin + random.below(self.ends[zone].1 - begin)
    }
}
