//! The decision log: one JSON object a line, from which every decision can be made again.
//!
//! A log begins with the configuration, and tells of it again when it changes. A log that was cut off at the front is
//! replayed from the first configuration that is left.

use haversack_model::Micros;
use haversack_policy::{Config, DiskState, Event, decide};
use serde::{Deserialize, Serialize};

use crate::control::Decision;
use crate::error::ControlError;

/// Something that the loop did.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "entry")]
pub enum Entry {
    /// It began, or goes on by another configuration.
    Started {
        /// When.
        time_us: Micros,
        /// What it decides by.
        config: Box<Config>,
    },
    /// It was told of a disk.
    Event {
        /// When.
        time_us: Micros,
        /// Which disk.
        disk: String,
        /// What has happened to it.
        event: Event,
    },
    /// It goes on with a disk where an earlier life stopped.
    Restored {
        /// When.
        time_us: Micros,
        /// Which disk.
        disk: String,
        /// Where that is in its life.
        state: DiskState,
    },
    /// It decided.
    Decision(Box<Decision>),
    /// It could not decide.
    Refused {
        /// When.
        time_us: Micros,
        /// What asked for a decision.
        cause: String,
        /// Why there is none.
        reason: String,
    },
}

impl Entry {
    /// The line of the log, without its end.
    ///
    /// # Panics
    /// Never: every entry can be written.
    pub fn line(&self) -> String {
        serde_json::to_string(self).expect("entries have text keys and finite numbers")
    }

    /// Reads a line.
    ///
    /// # Errors
    /// `BadLine`, with the number that is given.
    pub fn parse(text: &str, line: usize) -> Result<Entry, ControlError> {
        serde_json::from_str(text).map_err(|error| ControlError::BadLine { line, reason: error.to_string() })
    }
}

/// A decision that came out otherwise when it was made again.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Difference {
    /// The line of the log, from 1 on.
    pub line: usize,
    /// When it was decided.
    pub time_us: Micros,
    /// What is different, by disk: what was decided, and what is decided now.
    pub disks: Vec<(String, String, String)>,
    /// Why nothing is decided now.
    pub refused: Option<String>,
}

/// What a replay found.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Replay {
    /// Decisions made again.
    pub decisions: usize,
    /// Those that came out otherwise.
    pub differences: Vec<Difference>,
    /// The last decision of the log.
    #[serde(skip)]
    pub last: Option<Decision>,
}

/// Makes every decision of a log again, line by line, and compares.
///
/// # Errors
/// A line is no entry, or a decision comes before a configuration.
pub fn replay<'a>(lines: impl IntoIterator<Item = &'a str>) -> Result<Replay, ControlError> {
    let (mut config, mut found) = (None, Replay::default());
    for (number, text) in lines.into_iter().enumerate() {
        let line = number + 1;
        if text.trim().is_empty() {
            continue;
        }
        match Entry::parse(text, line)? {
            Entry::Started { config: by, .. } => config = Some(by),
            Entry::Decision(decision) => {
                let config = config.as_ref().ok_or(ControlError::NoConfig { line })?;
                found.decisions += 1;
                found.differences.extend(difference(config, &decision, line));
                found.last = Some(*decision);
            }
            Entry::Event { .. } | Entry::Restored { .. } | Entry::Refused { .. } => {}
        }
    }
    Ok(found)
}

fn difference(config: &Config, decision: &Decision, line: usize) -> Option<Difference> {
    let time_us = decision.inputs.time_us;
    let again = match decide(config, &decision.inputs) {
        Ok(again) if again == decision.plan => return None,
        Ok(again) => again,
        Err(error) => {
            let refused = Some(error.to_string());
            return Some(Difference { line, time_us, disks: Vec::new(), refused });
        }
    };
    let (before, after) = (&decision.plan.disks, &again.disks);
    let names: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let told = |plan: Option<&haversack_policy::DiskPlan>| {
        plan.map_or("nothing".into(), |plan| format!("{}, {}", plan.target, plan.reason))
    };
    let changed = names.into_iter().filter(|name| before.get(*name) != after.get(*name));
    let disks = changed.map(|name| (name.clone(), told(before.get(name)), told(after.get(name)))).collect();
    Some(Difference { line, time_us, disks, refused: None })
}
