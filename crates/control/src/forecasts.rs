//! Forecasts against what was demanded: what a decision forecast of a disk's demand, and what the next window showed.
//!
//! Source: CloudCache (Arteaga), section 3.4.2 and figure 3.5: |predicted - observed| / observed.

use std::collections::BTreeMap;

use haversack_model::Micros;
use haversack_policy::{Config, DiskInput};
use serde::Serialize;

use crate::control::Decision;
use crate::error::ControlError;
use crate::log::Entry;
use crate::predictions::{has_ended, is_observed};
use crate::recall::WINDOW;

/// A forecast, and what became of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Forecast {
    /// When the window of the forecast ended.
    pub time_us: Micros,
    /// The disk.
    pub disk: String,
    /// The method.
    pub method: String,
    /// The demand that was forecast when the window began.
    pub forecast_blocks: u64,
    /// The demand that was observed when it ended.
    pub observed_blocks: u64,
}

impl Forecast {
    /// Returns the error relative to what was observed; none if nothing was.
    pub fn error(&self) -> Option<f64> {
        let off_blocks = self.forecast_blocks.abs_diff(self.observed_blocks) as f64;
        (self.observed_blocks > 0).then(|| off_blocks / self.observed_blocks as f64)
    }
}

/// Returns every forecast of a decision log that has a following window to compare it with.
///
/// # Errors
/// A line is not an entry.
pub fn forecasts<'a>(lines: impl IntoIterator<Item = &'a str>) -> Result<Vec<Forecast>, ControlError> {
    let mut found = Vec::new();
    let mut config = Config::default();
    let mut made: BTreeMap<String, (u64, String)> = BTreeMap::new();
    for (number, text) in lines.into_iter().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
        match Entry::parse(text, number + 1)? {
            Entry::Decision(decision) if decision.cause == WINDOW => {
                found.extend(compared(&config, &made, &decision));
                made = forecast_in(&decision);
            }
            Entry::Event { disk, .. } => drop(made.remove(&disk)),
            Entry::Started { config: new, .. } => {
                config = *new;
                made.clear();
            }
            Entry::Decision(_) | Entry::Restored { .. } | Entry::Refused { .. } => {}
        }
    }
    Ok(found)
}

/// The forecasts that a decision was made with, and their methods, by disk.
fn forecast_in(decision: &Decision) -> BTreeMap<String, (u64, String)> {
    let disks = decision.inputs.disks.iter();
    let made = disks.filter_map(|disk| {
        Some((disk.name.clone(), (disk.forecast_blocks?, disk.forecast_by.clone().unwrap_or_default())))
    });
    made.collect()
}

fn compared(config: &Config, made: &BTreeMap<String, (u64, String)>, after: &Decision) -> Vec<Forecast> {
    let model = config.demand.model();
    let ended = after.inputs.disks.iter().filter(|disk| has_ended(after, disk));
    let forecast = |disk: &DiskInput| {
        let (forecast_blocks, method) = made.get(&disk.name)?.clone();
        Some(Forecast {
            time_us: after.inputs.time_us,
            disk: disk.name.clone(),
            method,
            forecast_blocks,
            observed_blocks: model.blocks(disk.window.as_ref()?),
        })
    };
    ended.filter(|disk| is_observed(disk)).filter_map(forecast).collect()
}

/// Returns the mean of the relative errors; none of nothing.
pub fn mean_error(forecasts: &[Forecast]) -> Option<f64> {
    let errors: Vec<f64> = forecasts.iter().filter_map(Forecast::error).collect();
    (!errors.is_empty()).then(|| errors.iter().sum::<f64>() / errors.len() as f64)
}
