//! Predicted against real hit ratios: what was expected of a disk's targets in a window, and what the window showed.
//!
//! The prediction is of LRU, from the curve of the window before: of all blocks that are cached if the disk writes back
//! or through, of reads alone if writes bring nothing in. If the target or the mode changed in the window, it is the
//! mean of the predictions of each, by the time that each was in force. A disk that shares the pool has no target and
//! no prediction.
//!
//! Source: vCacheShare (Meng et al., ATC'14), section 7.2 and figure 6.

use std::collections::BTreeMap;

use haversack_model::{Micros, WriteMode};
use haversack_policy::{DiskInput, DiskPlan, DiskState, DiskWindow, Event, WindowStage};
use serde::Serialize;

use crate::control::Decision;
use crate::error::ControlError;
use crate::log::Entry;
use crate::recall::WINDOW;

/// A prediction, and what became of it. Ratios are of hits among the blocks read.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Prediction {
    /// When the window of the prediction ended.
    pub time_us: Micros,
    /// The disk.
    pub disk: String,
    /// The disk's target in that window; if it changed, the mean over time.
    pub target_blocks: u64,
    /// Whether the target or the write mode changed in that window.
    pub has_moved: bool,
    /// What the window before it predicted for the target.
    pub predicted: f64,
    /// What was measured when it ended.
    pub real: f64,
}

/// Returns the hits among a disk's reads that its last window predicts for a target, if it read at all.
pub fn predicted(window: &DiskWindow, plan: &DiskPlan) -> Option<f64> {
    let blocks = plan.target.own_blocks().filter(|_| window.reads > 0)?;
    Some(match plan.write_mode {
        WriteMode::WriteBack | WriteMode::WriteThrough(_) => {
            let hits = window.urd.at(blocks) * window.accesses() as f64;
            (hits / window.reads as f64).min(1.0)
        }
        WriteMode::WriteAround | WriteMode::WriteInvalidate => window.read_only.at(blocks),
        WriteMode::PassThrough => 0.0,
    })
}

/// Returns every prediction of a decision log that has a following window to compare it with.
///
/// # Errors
/// A line is not an entry.
pub fn predictions<'a>(lines: impl IntoIterator<Item = &'a str>) -> Result<Vec<Prediction>, ControlError> {
    let mut found = Vec::new();
    let mut expected: BTreeMap<String, Expected> = BTreeMap::new();
    for (number, text) in lines.into_iter().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
        match Entry::parse(text, number + 1)? {
            Entry::Decision(decision) => found.extend(decided(&mut expected, &decision)),
            // A pause changes neither the target nor what is measured.
            Entry::Event { event: Event::Stunned | Event::Resumed, .. } => {}
            Entry::Event { disk, .. } => drop(expected.remove(&disk)),
            Entry::Started { .. } => expected.clear(),
            Entry::Restored { .. } | Entry::Refused { .. } => {}
        }
    }
    Ok(found)
}

/// Compares what a decision shows with what was expected, and notes what is expected from then on.
fn decided(expected: &mut BTreeMap<String, Expected>, decision: &Decision) -> Vec<Prediction> {
    let (mut found, mut next) = (Vec::new(), BTreeMap::new());
    let time_us = decision.inputs.time_us;
    for disk in &decision.inputs.disks {
        let before = expected.remove(&disk.name).map(|before| before.until(time_us));
        let Some(plan) = decision.plan.disks.get(&disk.name).filter(|_| !disk.state.gone()) else { continue };
        let ends = has_ended(decision, disk);
        if ends && is_observed(disk) {
            found.extend(before.as_ref().and_then(|before| before.compared(disk, time_us)));
        }
        // What was measured while a disk is locked is not shown.
        let is_over = ends || decision.cause == WINDOW && disk.state.locked();
        let goes_on = before.filter(|_| !is_over).map(|before| before.then(plan));
        let begins = || (!disk.state.locked()).then(|| Expected::new(disk, plan, time_us)).flatten();
        next.extend(goes_on.or_else(begins).map(|now| (disk.name.clone(), now)));
    }
    *expected = next;
    found
}

/// Whether a decision ends the disk's own window.
pub(crate) fn has_ended(decision: &Decision, disk: &DiskInput) -> bool {
    decision.cause == WINDOW && disk.window_stage == WindowStage::Ended
}

/// Whether a disk was observed in the window that ends. In other states its figures are older.
pub(crate) fn is_observed(disk: &DiskInput) -> bool {
    matches!(disk.state, DiskState::Active | DiskState::Idle)
}

/// What is expected of a disk's current window.
struct Expected {
    /// The window before, which predicts.
    window: DiskWindow,
    /// What was decided last.
    plan: DiskPlan,
    since_us: Micros,
    has_moved: bool,
    /// The time of the window so far; target and prediction are summed over it. `None` once there was no target.
    sums: Option<Sums>,
}

#[derive(Clone, Copy, Default)]
struct Sums {
    us: f64,
    block_us: f64,
    predicted_us: f64,
}

impl Expected {
    fn new(disk: &DiskInput, plan: &DiskPlan, now_us: Micros) -> Option<Expected> {
        // Figures so far are of the window that goes on: they predict nothing of it.
        let window = disk.window.clone().filter(|_| disk.window_stage != WindowStage::SoFar)?;
        let (plan, sums) = (plan.clone(), Some(Sums::default()));
        Some(Expected { window, plan, since_us: now_us, has_moved: false, sums })
    }

    /// Adds the time in which the last decision was in force.
    fn until(self, now_us: Micros) -> Expected {
        let us = now_us.saturating_sub(self.since_us) as f64;
        let sums = self.sums.and_then(|sums| {
            let blocks = self.plan.target.own_blocks()? as f64;
            let predicted = predicted(&self.window, &self.plan)?;
            Some(Sums {
                us: sums.us + us,
                block_us: sums.block_us + blocks * us,
                predicted_us: sums.predicted_us + predicted * us,
            })
        });
        Expected { since_us: now_us, sums, ..self }
    }

    fn then(self, plan: &DiskPlan) -> Expected {
        let has_moved = (plan.target, plan.write_mode) != (self.plan.target, self.plan.write_mode);
        Expected { plan: plan.clone(), has_moved: self.has_moved || has_moved, ..self }
    }

    fn compared(&self, now: &DiskInput, time_us: Micros) -> Option<Prediction> {
        let window = now.window.as_ref().filter(|window| window.reads > 0)?;
        let sums = self.sums.filter(|sums| sums.us > 0.0)?;
        let (disk, real) = (now.name.clone(), window.hit_ratio());
        let target_blocks = (sums.block_us / sums.us).round() as u64;
        let predicted = sums.predicted_us / sums.us;
        Some(Prediction { time_us, disk, target_blocks, has_moved: self.has_moved, predicted, real })
    }
}

/// Returns the mean and the largest of the absolute errors; none of nothing.
pub fn errors(predictions: &[Prediction]) -> Option<(f64, f64)> {
    let errors = || predictions.iter().map(|one| (one.predicted - one.real).abs());
    let largest = errors().fold(0.0, f64::max);
    (!predictions.is_empty()).then(|| (errors().sum::<f64>() / predictions.len() as f64, largest))
}
