//! The decision log: one JSON object per line, from which every decision can be repeated.
//!
//! A log begins with the configuration and contains it again whenever it changes. A log whose beginning was cut
//! off is replayed from the first configuration that is left.

use haversack_model::Micros;
use haversack_policy::{Config, DiskState, Event, decide};
use serde::{Deserialize, Serialize};

use crate::control::Decision;
use crate::error::ControlError;

/// Something that the loop did.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "entry")]
pub enum Entry {
    /// It started, or continues with another configuration.
    Started {
        /// When.
        time_us: Micros,
        /// The configuration.
        config: Box<Config>,
    },
    /// It was notified of an event of a disk.
    Event {
        /// When.
        time_us: Micros,
        /// The disk.
        disk: String,
        /// The event.
        event: Event,
    },
    /// It continues with a disk from where it was before a restart.
    Restored {
        /// When.
        time_us: Micros,
        /// The disk.
        disk: String,
        /// The disk's state.
        state: DiskState,
    },
    /// It made a decision.
    Decision(Box<Decision>),
    /// It could not decide.
    Refused {
        /// When.
        time_us: Micros,
        /// What triggered the decision.
        cause: String,
        /// Why there is no decision.
        reason: String,
    },
}

impl Entry {
    /// Returns the line of the log, without a newline.
    ///
    /// # Panics
    /// Never: every entry can be serialized.
    pub fn line(&self) -> String {
        serde_json::to_string(self).expect("entries have text keys and finite numbers")
    }

    /// Parses a line.
    ///
    /// # Errors
    /// `BadLine`, with the given number.
    pub fn parse(text: &str, line: usize) -> Result<Entry, ControlError> {
        serde_json::from_str(text).map_err(|error| ControlError::BadLine { line, reason: error.to_string() })
    }
}

/// A decision with a different result when it was repeated.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Difference {
    /// The line of the log, counted from 1.
    pub line: usize,
    /// When the decision was made.
    pub time_us: Micros,
    /// The differences: disk, what was decided, and what is decided now.
    pub disks: Vec<(String, String, String)>,
    /// Why the decision is refused now, if it is.
    pub refused: Option<String>,
}

/// The result of a replay.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Replay {
    /// Number of decisions repeated.
    pub decisions: usize,
    /// Those with a different result.
    pub differences: Vec<Difference>,
    /// The last decision of the log.
    #[serde(skip)]
    pub last: Option<Decision>,
}

/// Repeats every decision of a log, line by line, and compares the results.
///
/// # Errors
/// A line is not an entry, or a decision precedes the configuration.
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
