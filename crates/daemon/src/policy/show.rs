//! Converts measurements and decisions into what the control API reports.

use haversack_api::{DiskCurve, DiskPolicy, Measured, MissPoint, Mode};
use haversack_model::BLOCK_BYTES;
use haversack_policy::demand::utility::reuse_intensity;
use haversack_policy::{Curve, DiskPlan, DiskWindow};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Returns the figures of a window.
pub fn measured(window: &DiskWindow, lost_records: u64) -> Measured {
    Measured {
        length_us: window.length_us,
        reads: window.reads,
        writes: window.writes,
        overwrites: window.overwrites,
        wss_bytes: window.wss_blocks * BLOCK,
        rwss_bytes: window.rwss_blocks.iter().map(|blocks| blocks * BLOCK).collect(),
        intensity_per_s: reuse_intensity(&window.intensity),
        lost_records,
    }
}

/// Returns the curves of a window.
pub fn curve(disk: &str, complete: bool, window: &DiskWindow, lost_records: u64) -> DiskCurve {
    DiskCurve {
        disk: disk.into(),
        complete,
        measured: measured(window, lost_records),
        all: misses(&window.trd),
        useful: misses(&window.urd),
        reads_only: misses(&window.read_only),
        // The value has only text keys and finite numbers.
        figures: serde_json::to_value(window).unwrap_or_default(),
    }
}

/// Converts a curve of hits to misses; without a cache everything misses.
fn misses(curve: &Curve) -> Vec<MissPoint> {
    let point = |(blocks, hits): &(u64, f64)| MissPoint {
        bytes: blocks * BLOCK,
        miss_ratio: (1.0 - hits).clamp(0.0, 1.0),
    };
    let none = MissPoint { bytes: 0, miss_ratio: 1.0 };
    std::iter::once(none).chain(curve.points().iter().filter(|point| point.0 > 0).map(point)).collect()
}

/// Returns what was decided for a disk, and which parts of that were skipped.
pub fn decided(disk: &str, state: &str, plan: &DiskPlan, kept: &[String]) -> DiskPolicy {
    let notes: String = kept.iter().map(|note| format!("; {note}")).collect();
    DiskPolicy {
        disk: disk.into(),
        state: state.into(),
        demand_bytes: plan.demand_blocks.saturating_mul(BLOCK),
        target_bytes: plan.target.own_blocks().map(|blocks| blocks * BLOCK),
        mode: Mode::Fixed(plan.write_mode),
        admission: plan.admission.name().into(),
        reason: format!("{}{notes}", plan.reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_are_what_is_not_hit() {
        let hits = Curve::new(vec![(1, 0.25), (4, 1.0)]).unwrap();
        let points: Vec<_> = misses(&hits).iter().map(|point| (point.bytes, point.miss_ratio)).collect();
        assert_eq!(points, [(0, 1.0), (BLOCK, 0.75), (4 * BLOCK, 0.0)]);
    }
}
