//! Predicted against real hit ratios: what a decision expected of a disk's target, and what the next window showed.
//!
//! The prediction is of LRU, from the curve of the window before: of all blocks that are cached if the disk writes back
//! or through, of reads alone if writes bring nothing in. A disk that shares the pool has no target and no prediction.
//!
//! Source: vCacheShare (Meng et al., ATC'14), section 7.2 and figure 6.

use std::collections::BTreeMap;

use haversack_model::{Micros, WriteMode};
use haversack_policy::{DiskInput, DiskPlan, DiskWindow, WindowStage};
use serde::Serialize;

use crate::control::Decision;
use crate::error::ControlError;
use crate::log::Entry;
use crate::recall::WINDOW;

/// A prediction, and what became of it. Ratios are of hits among the blocks read.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Prediction {
    /// When the window ended that it was about.
    pub time_us: Micros,
    /// The disk.
    pub disk: String,
    /// The disk's target in that window.
    pub target_blocks: u64,
    /// What was predicted when the window began.
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

/// Returns every prediction of a decision log that a following window can be compared with.
///
/// # Errors
/// A line is not an entry.
pub fn predictions<'a>(lines: impl IntoIterator<Item = &'a str>) -> Result<Vec<Prediction>, ControlError> {
    let mut found = Vec::new();
    let mut expected: BTreeMap<String, Expected> = BTreeMap::new();
    for (number, text) in lines.into_iter().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
        match Entry::parse(text, number + 1)? {
            Entry::Decision(decision) => {
                let ended = || decision.inputs.disks.iter().filter(|disk| has_ended(&decision, disk));
                found.extend(ended().filter_map(|now| compared(expected.get(&now.name)?, now, &decision)));
                // In the midst of a window: what is decided otherwise from then on cannot be compared.
                expected.retain(|disk, before| {
                    let now = decision.plan.disks.get(disk);
                    now.is_some_and(|now| {
                        (now.target, now.write_mode) == (before.plan.target, before.plan.write_mode)
                    })
                });
                for disk in ended() {
                    expected.remove(&disk.name);
                    expected.extend(expectation(&decision, disk));
                }
            }
            Entry::Event { disk, .. } => drop(expected.remove(&disk)),
            Entry::Started { .. } => expected.clear(),
            Entry::Restored { .. } | Entry::Refused { .. } => {}
        }
    }
    Ok(found)
}

/// What a decision expected of a disk.
struct Expected {
    plan: DiskPlan,
    predicted: f64,
}

/// Whether a decision ends the disk's own window.
pub(crate) fn has_ended(decision: &Decision, disk: &DiskInput) -> bool {
    decision.cause == WINDOW && disk.window_stage == WindowStage::Ended
}

fn compared(expected: &Expected, now: &DiskInput, decision: &Decision) -> Option<Prediction> {
    let window = now.window.as_ref().filter(|window| window.reads > 0)?;
    Some(Prediction {
        time_us: decision.inputs.time_us,
        disk: now.name.clone(),
        target_blocks: expected.plan.target.own_blocks()?,
        predicted: expected.predicted,
        real: window.hit_ratio(),
    })
}

fn expectation(decision: &Decision, input: &DiskInput) -> Option<(String, Expected)> {
    let plan = decision.plan.disks.get(&input.name)?;
    let predicted = predicted(input.window.as_ref()?, plan)?;
    Some((input.name.clone(), Expected { plan: plan.clone(), predicted }))
}

/// Returns the mean and the largest of the absolute errors; none of nothing.
pub fn errors(predictions: &[Prediction]) -> Option<(f64, f64)> {
    let errors = || predictions.iter().map(|one| (one.predicted - one.real).abs());
    let largest = errors().fold(0.0, f64::max);
    (!predictions.is_empty()).then(|| (errors().sum::<f64>() / predictions.len() as f64, largest))
}
