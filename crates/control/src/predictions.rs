//! Predicted against real hit ratios: what a decision expected of a disk's target, and what the next window showed.
//!
//! The prediction is of LRU, from the curve of the window before: of all blocks that are cached if the disk writes back
//! or through, of reads alone if writes bring nothing in. A disk that shares the pool has no target and no prediction.
//!
//! Source: vCacheShare (Meng et al., ATC'14), section 7.2 and figure 6.

use haversack_model::{Micros, WriteMode};
use haversack_policy::{DiskPlan, DiskWindow};
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
    let mut before: Option<Box<Decision>> = None;
    for (number, text) in lines.into_iter().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
        match Entry::parse(text, number + 1)? {
            Entry::Decision(decision) if decision.cause == WINDOW => {
                if let Some(before) = &before {
                    found.extend(compared(before, &decision));
                }
                before = Some(decision);
            }
            // Another decision in the midst of a window changes what the window shows.
            Entry::Decision(_) | Entry::Started { .. } | Entry::Event { .. } => before = None,
            Entry::Restored { .. } | Entry::Refused { .. } => {}
        }
    }
    Ok(found)
}

fn compared(before: &Decision, after: &Decision) -> Vec<Prediction> {
    let prediction = |input: &haversack_policy::DiskInput| {
        let plan = before.plan.disks.get(&input.name)?;
        let then = before.inputs.disks.iter().find(|disk| disk.name == input.name)?;
        let now = input.window.as_ref().filter(|window| window.reads > 0)?;
        Some(Prediction {
            time_us: after.inputs.time_us,
            disk: input.name.clone(),
            target_blocks: plan.target.own_blocks()?,
            predicted: predicted(then.window.as_ref()?, plan)?,
            real: now.hit_ratio(),
        })
    };
    after.inputs.disks.iter().filter_map(prediction).collect()
}

/// Returns the mean and the largest of the absolute errors; none of nothing.
pub fn errors(predictions: &[Prediction]) -> Option<(f64, f64)> {
    let errors = || predictions.iter().map(|one| (one.predicted - one.real).abs());
    let largest = errors().fold(0.0, f64::max);
    (!predictions.is_empty()).then(|| (errors().sum::<f64>() / predictions.len() as f64, largest))
}
