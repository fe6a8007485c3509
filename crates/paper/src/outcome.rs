//! What a recipe gives: points of systems with their measures, and courses over time.

use std::collections::BTreeMap;

use haversack_analyze::Analysis;
use haversack_sim::tape::Survey;
use serde::Serialize;

use crate::measure::{Measure, Quantity, Scope};

/// A system, at a place of the x axis if there is one.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Point {
    /// The system.
    pub system: String,
    /// Its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub x: Option<f64>,
    /// What was measured.
    pub values: BTreeMap<Measure, f64>,
}

/// What a course is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CourseOf {
    /// The disks' targets, in bytes.
    Targets,
    /// What the disks use, in bytes.
    Usage,
    /// Hits since the last sample.
    Hits,
}

/// A system over time.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Course {
    /// The system.
    pub system: String,
    /// What it is of.
    pub of: CourseOf,
    /// When, in seconds.
    pub times_s: Vec<f64>,
    /// The parts: a disk's name, or nothing for all together, and a value for each time.
    pub parts: Vec<(String, Vec<f64>)>,
}

/// The load that was played.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Played {
    /// Requests.
    pub requests: u64,
    /// Bytes that they access at all.
    pub footprint_bytes: u64,
    /// Seconds from the first to the last.
    pub seconds: f64,
    /// Lines of traces that were damaged and left out.
    pub damaged_lines: u64,
}

/// What a recipe gives.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Outcome {
    /// The load, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub played: Option<Played>,
    /// The points, in the order of the recipe.
    pub points: Vec<Point>,
    /// Systems over time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub courses: Vec<Course>,
}

impl Played {
    /// What a survey says.
    pub fn of(survey: &Survey, block_bytes: u64) -> Played {
        Played {
            requests: survey.requests,
            footprint_bytes: survey.footprint_blocks * block_bytes,
            seconds: survey.span_seconds,
            damaged_lines: survey.damaged_lines,
        }
    }

    /// What an analysis says.
    pub fn of_analysis(analysis: &Analysis, damaged_lines: u64) -> Played {
        let traffic = &analysis.overall.traffic;
        Played {
            requests: traffic.requests(),
            footprint_bytes: analysis.overall.footprint_blocks * analysis.block_bytes,
            seconds: (traffic.last_ns - traffic.first_ns) as f64 / 1e9,
            damaged_lines,
        }
    }
}

impl Point {
    /// A point without measures.
    pub fn new(system: &str, x: Option<f64>) -> Point {
        Point { system: system.into(), x, values: BTreeMap::new() }
    }

    /// Adds a measure of all disks, if it is known.
    pub fn set(&mut self, quantity: Quantity, value: impl Into<Option<f64>>) {
        self.set_measure(Measure::of_all(quantity), value);
    }

    /// Adds a measure of a disk, if it is known.
    pub fn set_of(&mut self, disk: &str, quantity: Quantity, value: impl Into<Option<f64>>) {
        self.set_measure(Measure::of_disk(quantity, disk), value);
    }

    fn set_measure(&mut self, measure: Measure, value: impl Into<Option<f64>>) {
        if let Some(value) = value.into().filter(|value: &f64| value.is_finite()) {
            self.values.insert(measure, value);
        }
    }

    /// Adds the medians over the disks of what was measured of disks.
    pub fn add_medians(&mut self) {
        let mut of_disks: BTreeMap<Quantity, Vec<f64>> = BTreeMap::new();
        for (measure, value) in &self.values {
            if let Scope::Disk(_) = measure.scope {
                of_disks.entry(measure.quantity).or_default().push(*value);
            }
        }
        for (quantity, mut values) in of_disks {
            values.sort_by(f64::total_cmp);
            let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
            self.values.insert(Measure { quantity, scope: Scope::Median }, low.midpoint(high));
        }
    }
}

impl Outcome {
    /// The measure of a system, at a place of the x axis: the first point of the system if none is given.
    pub fn value(&self, system: &str, x: Option<f64>, measure: &Measure) -> Option<f64> {
        let is_it = |point: &&Point| point.system == system && (x.is_none() || point.x == x);
        self.points.iter().find(is_it)?.values.get(measure).copied()
    }

    /// The systems, in the order of their first points.
    pub fn systems(&self) -> Vec<&str> {
        let mut systems: Vec<&str> = Vec::new();
        for point in &self.points {
            if !systems.contains(&point.system.as_str()) {
                systems.push(&point.system);
            }
        }
        systems
    }
}
