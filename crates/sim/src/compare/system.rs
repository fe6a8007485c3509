//! A system and what can be set of it: one simulated pool is a system with one setting of its parameters.

use haversack_model::{Micros, WriteMode};
use haversack_policy::write_mode::WriteModeChoice;
use haversack_policy::{AdmissionRule, AllocatorRule, Config, named};
use serde::{Deserialize, Serialize};

use super::Choices;
use crate::error::SimError;
use crate::mix::Mix;
use crate::settings::{Settings, Sizes, Traffic};

/// The word for an admission filter or a choice of write modes that a system brings along.
pub const OWN: &str = "own";

/// Intensity is measured for this part of a window at its end, but not for longer than a minute.
const MEASURED_PART: f64 = 0.25;
const LONGEST_MEASUREMENT_US: Micros = 60_000_000;

/// Who divides the pool, what may enter it, and how write modes are chosen.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct System {
    /// The allocator by its system's name.
    pub allocator: String,
    /// The admission filter by name, or `own`.
    pub admission: String,
    /// A write mode for all disks, `auto` for each as its writes ask for, or `own`.
    pub write_mode: String,
}

impl System {
    /// A system with its own admission filter and write modes.
    pub fn own(allocator: &str) -> System {
        System { allocator: allocator.into(), admission: OWN.into(), write_mode: OWN.into() }
    }

    /// Returns the name under which it is shown.
    pub fn label(&self) -> String {
        let parts = [&self.allocator, &self.admission, &self.write_mode];
        let told = parts.into_iter().filter(|part| *part != OWN).map(String::as_str);
        told.collect::<Vec<_>>().join(", ")
    }

    /// Returns its configuration, with windows of this length if any are given.
    fn config(&self, window_s: Option<f64>) -> Result<Config, SimError> {
        let base = named(&self.allocator).map_err(unfit)?;
        let admission = match self.admission.as_str() {
            OWN => base.admission.clone(),
            name => name.parse::<AdmissionRule>().map_err(unfit)?,
        };
        let write_mode = match self.write_mode.as_str() {
            OWN => base.write_mode.clone(),
            "auto" => Some(WriteModeChoice::default()),
            _ => None,
        };
        let window_us = window_s.map_or(base.window_us, |seconds| (seconds * 1e6) as Micros);
        let measured = (window_us as f64 * MEASURED_PART) as Micros;
        let measurement_us = measured.clamp(1, LONGEST_MEASUREMENT_US);
        Ok(Config { window_us, measurement_us, admission, write_mode, ..base })
    }

    /// Returns the write mode that disks begin with.
    fn first_mode(&self) -> Result<WriteMode, SimError> {
        match self.write_mode.as_str() {
            OWN | "auto" => Ok(WriteMode::WriteBack),
            name => name.parse().map_err(unfit),
        }
    }
}

/// Whether windows of another length could lead to other decisions.
fn depends_on_windows(config: &Config) -> bool {
    let fixed =
        matches!(config.allocator, AllocatorRule::None | AllocatorRule::Equal | AllocatorRule::Static);
    !fixed || config.write_mode.is_some()
}

fn unfit(error: impl std::fmt::Display) -> SimError {
    SimError::Settings(error.to_string())
}

/// One pool to be simulated.
#[derive(Clone, PartialEq, Debug)]
pub struct Variant {
    /// The system.
    pub system: System,
    /// Seconds of a window of its control loop.
    pub window_s: f64,
    /// Size of the pool as a part of the footprint.
    pub fraction: f64,
    /// Everything that the simulator needs.
    pub settings: Settings,
}

/// All systems in all settings, for a mix and a seed: the subject, which may not tune its windows, and its rivals,
/// which may.
///
/// # Errors
/// A name is not known, or settings contradict each other.
pub fn variants(mix: &Mix, choices: &Choices, seed: u64) -> Result<Vec<Variant>, SimError> {
    let windows_s = if choices.windows_s.is_empty() { vec![mix.window_s] } else { choices.windows_s.clone() };
    let mut variants = Vec::new();
    for fraction in &mix.fractions {
        if let Some(subject) = &choices.subject {
            variants.push(variant(mix, choices, subject, None, *fraction, seed)?);
        }
        for rival in rivals(choices) {
            let measured = depends_on_windows(&rival.config(Some(mix.window_s))?);
            let one = [mix.window_s];
            for window_s in if measured { &windows_s[..] } else { &one[..] } {
                variants.push(variant(mix, choices, &rival, Some(*window_s), *fraction, seed)?);
            }
        }
    }
    if variants.is_empty() {
        return Err(unfit("nothing to compare: name an allocator, an admission filter and a write mode"));
    }
    Ok(variants)
}

fn rivals(choices: &Choices) -> Vec<System> {
    let mut rivals = Vec::new();
    for allocator in &choices.allocators {
        for admission in &choices.admissions {
            for write_mode in &choices.write_modes {
                let (allocator, admission) = (allocator.clone(), admission.clone());
                rivals.push(System { allocator, admission, write_mode: write_mode.clone() });
            }
        }
    }
    rivals.retain(|rival| choices.subject.as_ref() != Some(rival));
    rivals
}

fn variant(
    mix: &Mix,
    choices: &Choices,
    system: &System,
    window_s: Option<f64>,
    fraction: f64,
    seed: u64,
) -> Result<Variant, SimError> {
    let config = system.config(window_s)?;
    let window_s = config.window_us as f64 / 1e6;
    let settings = Settings {
        sizes: Sizes::Fractions(vec![fraction]),
        mode: system.first_mode()?,
        traffic: Traffic { speed_up: mix.speed_up, ..Traffic::default() },
        control: Some(config),
        latency: Some(choices.latency.clone()),
        seed,
        threads: choices.threads,
        ..Settings::default()
    };
    settings.check()?;
    Ok(Variant { system: system.clone(), window_s, fraction, settings })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_says_only_what_it_does_not_bring_along() {
        assert_eq!(System::own("urd").label(), "urd");
        let system = System { allocator: "urd".into(), admission: "larc".into(), write_mode: "wb".into() };
        assert_eq!(system.label(), "urd, larc, wb");
        assert!(System::own("urd").config(None).unwrap().write_mode.is_some());
        assert!(system.config(Some(10.0)).unwrap().write_mode.is_none());
        assert_eq!(system.config(Some(10.0)).unwrap().window_us, 10_000_000);
    }
}
