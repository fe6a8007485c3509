//! A system and its parameters: one simulated pool is a system with one setting of its parameters.

use haversack_control::budget::DAY_US;
use haversack_control::endurance::Endurance;
use haversack_model::{BLOCK_BYTES, Micros, WriteMode};
use haversack_policy::{AdmissionRule, AllocatorRule, Config};
use serde::{Deserialize, Serialize};

use super::Choices;
use crate::error::SimError;
use crate::mix::{Mix, with_windows};
use crate::settings::{Pool, Settings, Sizes};
use crate::tape::Survey;

/// The name for a system's own admission filter or choice of write modes.
pub const OWN: &str = "own";

/// The part of a budget that a burst may use, as a fraction of the trace.
const BURST_PART: f64 = 0.02;

/// How the pool is divided, what is admitted, and how write modes are chosen.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct System {
    /// The allocator by its system's name.
    pub allocator: String,
    /// The admission filter by name, or `own`.
    pub admission: String,
    /// A write mode for all disks, `auto` for a choice per disk by its writes, or `own`.
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

    /// Returns its allocator's configuration with its admission filter and write modes, and with windows of this length
    /// if any are given.
    fn config(&self, own: &Config, window_s: Option<f64>) -> Result<Config, SimError> {
        let mut config = own.clone();
        if self.admission != OWN {
            config.admission = self.admission.parse::<AdmissionRule>().map_err(unfit)?;
        }
        if self.write_mode != OWN {
            let auto = self.write_mode == "auto";
            config.write_mode = auto.then(|| own.write_mode.unwrap_or_default());
            config.fixed_mode = None;
        }
        Ok(match window_s {
            Some(seconds) => with_windows(&config, seconds),
            None => config,
        })
    }

    /// Returns the initial write mode of disks.
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
    /// Length of a window of its control loop in seconds.
    pub window_s: f64,
    /// Size of the pool as a fraction of the footprint.
    pub fraction: f64,
    /// Its budget of flash writes, in blocks per block accessed.
    pub write_budget: Option<f64>,
    /// Everything that the simulator needs.
    pub settings: Settings,
}

impl Variant {
    /// Adapts the budget to a trace: the writes per access become bytes per day, and a burst is a fraction of
    /// the trace.
    pub fn fit(&mut self, survey: &Survey) {
        let pool = &mut self.settings.pool;
        let span_us = (survey.span_seconds * 1e6).max(1.0);
        pool.burst_us = (span_us * BURST_PART).ceil() as Micros;
        if let Some(blocks) = self.write_budget {
            let bytes = blocks * survey.block_accesses as f64 * BLOCK_BYTES as f64;
            pool.endurance = Some(Endurance::BytesPerDay(bytes / span_us * DAY_US as f64));
        }
    }
}

/// The subject with budgets of flash writes: for each size, in blocks per block accessed.
///
/// # Errors
/// As for [`variants`].
pub fn budgeted(
    mix: &Mix,
    choices: &Choices,
    seed: u64,
    budgets: &[(f64, f64)],
) -> Result<Vec<Variant>, SimError> {
    let Some(subject) = &choices.subject else { return Ok(Vec::new()) };
    let own = subject_config(mix, subject)?;
    let of = |(fraction, blocks): &(f64, f64)| {
        let free = variant(mix, choices, subject, own.clone(), *fraction, seed)?;
        Ok(Variant { write_budget: Some(*blocks), ..free })
    };
    budgets.iter().map(of).collect()
}

/// All systems in all settings, for a mix and a seed: the subject, which may not tune its windows, and its rivals,
/// which may.
///
/// # Errors
/// A name is unknown, or settings contradict each other.
pub fn variants(mix: &Mix, choices: &Choices, seed: u64) -> Result<Vec<Variant>, SimError> {
    let own_windows = [None];
    let windows_s: Vec<Option<f64>> = choices.windows_s.iter().copied().map(Some).collect();
    let mut variants = Vec::new();
    for fraction in &mix.fractions {
        if let Some(subject) = &choices.subject {
            let own = subject_config(mix, subject)?;
            variants.push(variant(mix, choices, subject, own, *fraction, seed)?);
        }
        for (rival, own) in rivals(mix, choices)? {
            let measured = depends_on_windows(&rival.config(&own, None)?);
            let tried = if measured && !windows_s.is_empty() { &windows_s[..] } else { &own_windows[..] };
            for window_s in tried {
                let config = rival.config(&own, *window_s)?;
                variants.push(variant(mix, choices, &rival, config, *fraction, seed)?);
            }
        }
    }
    if variants.is_empty() {
        return Err(unfit("nothing to compare: name an allocator, an admission filter and a write mode"));
    }
    Ok(variants)
}

/// The subject's configuration, with its own windows rather than the mix's.
fn subject_config(mix: &Mix, subject: &System) -> Result<Config, SimError> {
    let unhurried = Mix { window_s: None, ..mix.clone() };
    let (_, own) = unhurried.configs(&subject.allocator)?.swap_remove(0);
    subject.config(&own, None)
}

/// The rivals, each with the configuration of its allocator: of each policy of the mix that names it, or the system's.
fn rivals(mix: &Mix, choices: &Choices) -> Result<Vec<(System, Config)>, SimError> {
    let mut rivals = Vec::new();
    for allocator in &choices.allocators {
        for (allocator, config) in mix.configs(allocator)? {
            for admission in &choices.admissions {
                for write_mode in &choices.write_modes {
                    let (allocator, admission) = (allocator.clone(), admission.clone());
                    let rival = System { allocator, admission, write_mode: write_mode.clone() };
                    rivals.push((rival, config.clone()));
                }
            }
        }
    }
    rivals.retain(|(rival, _)| choices.subject.as_ref() != Some(rival));
    Ok(rivals)
}

fn variant(
    mix: &Mix,
    choices: &Choices,
    system: &System,
    config: Config,
    fraction: f64,
    seed: u64,
) -> Result<Variant, SimError> {
    let window_s = config.window_us as f64 / 1e6;
    let of_mix = mix.settings(Some(config))?;
    let pool = Pool { endurance: choices.write_budget, ..of_mix.pool };
    let settings = Settings {
        sizes: Sizes::Fractions(vec![fraction]),
        mode: system.first_mode()?,
        replacement: choices.replacement,
        latency: Some(choices.latency.clone()),
        seed,
        threads: choices.threads,
        pool,
        ..of_mix
    };
    settings.check()?;
    Ok(Variant { system: system.clone(), window_s, fraction, write_budget: None, settings })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_says_only_what_it_does_not_bring_along() {
        assert_eq!(System::own("urd").label(), "urd");
        let system = System { allocator: "urd".into(), admission: "larc".into(), write_mode: "wb".into() };
        assert_eq!(system.label(), "urd, larc, wb");
        let urd = haversack_policy::named("urd").unwrap();
        assert!(System::own("urd").config(&urd, None).unwrap().write_mode.is_some());
        assert!(system.config(&urd, Some(10.0)).unwrap().write_mode.is_none());
        assert_eq!(system.config(&urd, Some(10.0)).unwrap().window_us, 10_000_000);
    }

    /// vCacheShare has a curve of ten windows, whatever their length.
    #[test]
    fn windows_of_another_length_keep_the_windows_of_disks_in_proportion() {
        let of = |allocator: &str, seconds| {
            let own = haversack_policy::named(allocator).unwrap();
            let config = System::own(allocator).config(&own, Some(seconds)).unwrap();
            (config.window_us, config.most_windows_of_disk(None))
        };
        assert_eq!(of("vcacheshare", 10.0), (10_000_000, 10));
        assert_eq!(of("vcacheshare", 0.5), (500_000, 10));
        assert_eq!(of("utility", 10.0), (10_000_000, 1));
    }
}
