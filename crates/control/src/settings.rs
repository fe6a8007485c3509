//! Converts a policy's settings and events of disks, as users write them, into those of decisions: the same in the
//! daemon and in the simulator.
//!
//! Invariants
//! - A key that the allocator does not use is refused, because the user expects it to have an effect.
//! - Checks made here apply to the configuration file, the control API and the simulator's mixes alike.

use haversack_api::{DiskConfig, DiskEvent, DiskEventKind, PolicySettings, Size, Span, WindowSetting};
use haversack_model::BLOCK_BYTES;
use haversack_policy::allocate::{Spare, Weighting};
use haversack_policy::demand::utility::Reading;
use haversack_policy::demand::weight::Beta;
use haversack_policy::forecast::Method;
use haversack_policy::{
    AdmissionRule, AllocatorRule, Config, DemandRule, Event, PolicyError, SolverRule, Staging, Unaligned,
    named,
};

use crate::wishes::measures;

/// The number of moves of the annealing if not set.
const MOVES: u32 = 100_000;

/// Returns the configuration of decisions.
///
/// # Errors
/// A setting is invalid; the text says what was expected.
pub fn config(settings: &PolicySettings) -> Result<Config, String> {
    let mut config = named(&settings.allocator).map_err(|e| e.to_string())?;
    if let Some(name) = &settings.demand {
        config.demand = demand(name)?;
    }
    if let Some(name) = &settings.forecast {
        config.forecast = forecast(name)?;
    }
    config.filter_outliers = settings.filter_outliers.unwrap_or(config.filter_outliers);
    config.history_windows = settings.history.unwrap_or(config.history_windows);
    config.sample_blocks = settings.sample_blocks.unwrap_or(config.sample_blocks);
    config.unit_blocks = settings.block.map_or(Ok(config.unit_blocks), |size| whole_blocks("block", size))?;
    config.unaligned = settings.unaligned.as_deref().map_or(Ok(config.unaligned), unaligned)?;
    config.granularity = settings.granularity.unwrap_or(config.granularity);
    windows(settings, &mut config)?;
    config.allocator = allocator(settings, config.allocator)?;
    config.admission = admission(settings, config.admission)?;
    write_mode(settings, &mut config)?;
    let blocks = |size: Option<Size>, own: u64| size.map_or(own, |size| size.0 / BLOCK_BYTES as u64);
    config.least_blocks = blocks(settings.least, config.least_blocks);
    config.first_blocks = blocks(settings.first, config.first_blocks);
    config.check().map_err(|e| e.to_string())?;
    Ok(config)
}

/// Returns the configuration of decisions on a host of a cluster, whose balancer has to know what disks demand. If the
/// decisions do not need measurements, demand is the predicted size of the reused working set, and the window is that
/// of the balancer, where the settings do not say something else.
///
/// # Errors
/// As [`config`].
pub fn in_cluster(settings: &PolicySettings, balance_window_us: u64) -> Result<Config, String> {
    let own = config(settings)?;
    if measures(&own) {
        return Ok(own);
    }
    let window_us = settings.window.map_or(balance_window_us.max(SHORTEST_WINDOW_US), Span::as_micros);
    let measured = Config {
        measures_anyway: true,
        demand: settings.demand.as_ref().map_or(DemandRule::Rwss { reuses: 1 }, |_| own.demand),
        forecast: settings.forecast.as_ref().map_or(Method::ExpSelf, |_| own.forecast),
        filter_outliers: settings.filter_outliers.unwrap_or(true),
        window_us,
        measurement_us: own.measurement_us.min(window_us),
        ..own
    };
    measured.check().map_err(|e| e.to_string())?;
    Ok(measured)
}

fn windows(settings: &PolicySettings, config: &mut Config) -> Result<(), String> {
    let us = |span: Option<Span>, default: u64| span.map_or(default, Span::as_micros);
    config.window_us = us(settings.window, config.window_us);
    match settings.disk_window {
        Some(WindowSetting::Knee) => config.disk_window_at_knee = true,
        Some(WindowSetting::Length(length)) => config.disk_window_us = length.as_micros(),
        None => {}
    }
    // A shorter window gets a shorter measurement, unless that is set explicitly: otherwise both would be
    // refused.
    let measurement_us = config.measurement_us.min(config.window_us);
    config.measurement_us = us(settings.measurement, measurement_us);
    if config.window_us < SHORTEST_WINDOW_US {
        return Err(format!("window: {} us, expected at least {SHORTEST_WINDOW_US} us", config.window_us));
    }
    let latency = |span: Option<Span>, default: f64| span.map_or(default, |span| span.as_micros() as f64);
    config.origin_latency_us = latency(settings.origin_latency, config.origin_latency_us);
    config.cache_latency_us = latency(settings.cache_latency, config.cache_latency_us);
    Ok(())
}

/// Shorter windows show only noise.
const SHORTEST_WINDOW_US: u64 = 100_000;

/// Splits `name(A, B)` into its name and what is in brackets.
fn call(text: &str) -> (&str, Option<Vec<&str>>) {
    match text.strip_suffix(')').and_then(|text| text.split_once('(')) {
        Some((name, inside)) => (name.trim(), Some(inside.split(',').map(str::trim).collect())),
        None => (text, None),
    }
}

fn demand(text: &str) -> Result<DemandRule, String> {
    let wrong = || {
        format!(
            "demand '{text}': expected wss, rwss, rwss(N), trd, urd, read-only, touch-count, reused-addresses or all"
        )
    };
    match call(text) {
        ("wss", None) => Ok(DemandRule::Wss),
        ("rwss", None) => Ok(DemandRule::Rwss { reuses: 1 }),
        ("rwss", Some(n)) if n.len() == 1 => {
            n[0].parse().map(|reuses| DemandRule::Rwss { reuses }).map_err(|_| wrong())
        }
        ("trd", None) => Ok(DemandRule::Trd),
        ("urd", None) => Ok(DemandRule::Urd),
        ("read-only", None) => Ok(DemandRule::ReadOnly),
        ("touch-count", None) => Ok(DemandRule::TouchCount),
        ("reused-addresses", None) => Ok(DemandRule::ReusedAddresses),
        ("all", None) => Ok(DemandRule::All),
        _ => Err(wrong()),
    }
}

fn forecast(name: &str) -> Result<Method, String> {
    let all = || Method::SINGLE.into_iter().chain([Method::Best]);
    let names = || all().map(Method::name).collect::<Vec<_>>().join(", ");
    all()
        .find(|method| method.name() == name)
        .ok_or_else(|| format!("forecast '{name}': expected one of {}", names()))
}

fn solver(text: &str) -> Result<SolverRule, String> {
    let wrong = || format!("solver '{text}': expected exact, hull, annealing or annealing(SEED, MOVES)");
    match call(text) {
        ("exact", None) => Ok(SolverRule::Exact),
        ("hull", None) => Ok(SolverRule::Hull),
        ("annealing", None) => Ok(SolverRule::Annealing { seed: 1, moves: MOVES }),
        ("annealing", Some(n)) if n.len() == 2 => {
            let (seed, moves) = (n[0].parse().map_err(|_| wrong())?, n[1].parse().map_err(|_| wrong())?);
            Ok(SolverRule::Annealing { seed, moves })
        }
        _ => Err(wrong()),
    }
}

fn spare(text: &str) -> Result<Spare, String> {
    match text {
        "shared" => Ok(Spare::Shared),
        "idle" => Ok(Spare::Idle),
        _ => Err(format!("spare '{text}': expected shared or idle")),
    }
}

fn unaligned(text: &str) -> Result<Unaligned, String> {
    match text {
        "counted" => Ok(Unaligned::Counted),
        "discarded" => Ok(Unaligned::Discarded),
        _ => Err(format!("unaligned '{text}': expected counted or discarded")),
    }
}

fn reading(text: &str) -> Result<Reading, String> {
    match text {
        "scaled" => Ok(Reading::Scaled),
        "as-printed" => Ok(Reading::AsPrinted),
        _ => Err(format!("reading '{text}': expected scaled or as-printed")),
    }
}

fn weighting(settings: &PolicySettings, present: Weighting) -> Result<Weighting, String> {
    let beta = settings.beta.map(Beta);
    let named = match settings.weighting.as_deref() {
        None => present,
        Some("four-factors") => Weighting::FourFactors(Beta::default()),
        Some("priority") => Weighting::Priority,
        Some("demand") => Weighting::Demand,
        Some(text) => {
            return Err(format!("weighting '{text}': expected four-factors, priority or demand"));
        }
    };
    match (named, beta) {
        (Weighting::FourFactors(_), Some(beta)) => Ok(Weighting::FourFactors(beta)),
        (_, Some(_)) => Err("beta belongs to weighting = \"four-factors\": leave one of them out".into()),
        (named, None) => Ok(named),
    }
}

/// Returns the allocator with its settings.
fn allocator(settings: &PolicySettings, system: AllocatorRule) -> Result<AllocatorRule, String> {
    let new_solver = |old| settings.solver.as_deref().map_or(Ok(old), solver);
    let new_spare = |old| settings.spare.as_deref().map_or(Ok(old), spare);
    let (rule, keys): (_, &[&str]) = match system {
        AllocatorRule::Proportional { spare } => {
            (AllocatorRule::Proportional { spare: new_spare(spare)? }, &["spare"])
        }
        AllocatorRule::Utility { alpha, reading: old, solver, spare } => {
            let rule = AllocatorRule::Utility {
                alpha: settings.alpha.unwrap_or(alpha),
                reading: settings.reading.as_deref().map_or(Ok(old), reading)?,
                solver: new_solver(solver)?,
                spare: new_spare(spare)?,
            };
            (rule, &["spare", "solver", "granularity", "alpha", "reading"])
        }
        AllocatorRule::MinimumLatency { solver, spare } => {
            let rule =
                AllocatorRule::MinimumLatency { solver: new_solver(solver)?, spare: new_spare(spare)? };
            (rule, &["spare", "solver", "granularity"])
        }
        AllocatorRule::MaxMin { weighting: old, chunk_blocks, spare } => {
            let rule = AllocatorRule::MaxMin {
                weighting: weighting(settings, old)?,
                chunk_blocks: settings.chunk.map_or(Ok(chunk_blocks), |size| whole_blocks("chunk", size))?,
                spare: new_spare(spare)?,
            };
            (rule, &["spare", "weighting", "beta", "chunk", "history"])
        }
        fixed => (fixed, &[]),
    };
    refuse_others(settings, keys)?;
    Ok(rule)
}

fn whole_blocks(key: &str, size: Size) -> Result<u64, String> {
    let block = BLOCK_BYTES as u64;
    let whole = size.0 > 0 && size.0.is_multiple_of(block);
    whole
        .then_some(size.0 / block)
        .ok_or_else(|| format!("{key}: {size}, expected a multiple of {block} bytes above 0"))
}

/// Refuses keys that the allocator does not use.
fn refuse_others(settings: &PolicySettings, keys: &[&str]) -> Result<(), String> {
    let given = [
        ("solver", settings.solver.is_some()),
        ("granularity", settings.granularity.is_some()),
        ("spare", settings.spare.is_some()),
        ("alpha", settings.alpha.is_some()),
        ("reading", settings.reading.is_some()),
        ("weighting", settings.weighting.is_some()),
        ("beta", settings.beta.is_some()),
        ("chunk", settings.chunk.is_some()),
        ("history", settings.history.is_some()),
    ];
    match given.into_iter().find(|(key, given)| *given && !keys.contains(key)) {
        None => Ok(()),
        Some((key, _)) => {
            let has = if keys.is_empty() { "none".to_owned() } else { keys.join(", ") };
            let allocator = &settings.allocator;
            Err(format!("allocator '{allocator}' has no '{key}': leave it out; it has: {has}"))
        }
    }
}

fn admission(settings: &PolicySettings, system: AdmissionRule) -> Result<AdmissionRule, String> {
    let rule = match &settings.admission {
        Some(text) => text.parse().map_err(|error: PolicyError| error.to_string())?,
        None => system,
    };
    match (rule, settings.staging_share) {
        (AdmissionRule::Staging(staging), Some(share_of_pool)) => {
            Ok(AdmissionRule::Staging(Staging { share_of_pool, ..staging }))
        }
        (rule, None) => Ok(rule),
        (_, Some(_)) => {
            Err("staging_share belongs to admission = \"address(N)\", \"data(N)\" or \"hybrid(N)\"; \
                             give one of them or leave it out"
                .into())
        }
    }
}

fn write_mode(settings: &PolicySettings, config: &mut Config) -> Result<(), String> {
    let system = config.write_mode;
    match settings.write_mode.as_deref() {
        None => {}
        Some("keep") => (config.write_mode, config.fixed_mode) = (None, None),
        Some("auto") => (config.write_mode, config.fixed_mode) = (Some(system.unwrap_or_default()), None),
        Some(text) => {
            let mode = text.parse().map_err(|_| {
                format!("write_mode '{text}': expected keep, auto, or a mode for all disks: wb, wt, wt-cache, wa, wi or pt")
            })?;
            (config.write_mode, config.fixed_mode) = (None, Some(mode));
        }
    }
    let given = settings.write_threshold.is_some() || settings.write_hysteresis.is_some();
    match &mut config.write_mode {
        Some(choice) => {
            choice.threshold = settings.write_threshold.unwrap_or(choice.threshold);
            choice.hysteresis = settings.write_hysteresis.unwrap_or(choice.hysteresis);
            Ok(())
        }
        None if given => {
            Err("write_threshold and write_hysteresis belong to write_mode = \"auto\"; give that too".into())
        }
        None => Ok(()),
    }
}

/// Checks a disk's settings for the policy.
///
/// # Errors
/// A setting is invalid; the text says what was expected.
pub fn check_disk(disk: &DiskConfig) -> Result<(), String> {
    if !(0.0..=1e6).contains(&disk.priority) {
        return Err(format!("priority is {}; expected a number from 0 to a million", disk.priority));
    }
    if disk.window.is_some_and(|window| window == WindowSetting::Length(Span::default())) {
        let expected = "expected a time above 0, or knee, or leave it out for that of the policy";
        return Err(format!("window is 0; {expected}"));
    }
    match disk.limit {
        Some(limit) if limit < disk.reservation => Err(format!(
            "its limit of {limit} is below its reservation of {}; raise the limit or lower the reservation",
            disk.reservation
        )),
        _ => Ok(()),
    }
}

/// Checks that the disks of a pool can be weighed against each other.
///
/// # Errors
/// All of them have a priority of zero.
pub fn check_weights<'a>(pool: &str, disks: impl Iterator<Item = &'a DiskConfig>) -> Result<(), String> {
    let priorities: Vec<f64> = disks.map(|disk| disk.priority).collect();
    if priorities.is_empty() || priorities.iter().any(|priority| *priority > 0.0) {
        return Ok(());
    }
    Err(format!(
        "the priorities of all {} disks of pool '{pool}' sum to zero; give at least one of them more than zero",
        priorities.len()
    ))
}

/// Converts an event of a disk.
///
/// # Errors
/// Figures come with another event than `migrating-in`, or are not those of a disk's curve.
pub fn event(event: DiskEvent) -> Result<Event, String> {
    let DiskEvent { event, figures } = event;
    if figures.is_some() && event != DiskEventKind::MigratingIn {
        return Err("figures are only for migrating-in: leave them out".into());
    }
    Ok(match event {
        DiskEventKind::New => Event::New,
        DiskEventKind::Ended => Event::Ended,
        DiskEventKind::Suspended => Event::Suspended,
        DiskEventKind::Resumed => Event::Resumed,
        DiskEventKind::Stunned => Event::Stunned,
        DiskEventKind::MigratingIn => {
            let window = figures.map(serde_json::from_value).transpose();
            Event::MigratingIn(window.map_err(|error| format!("figures: {error}"))?)
        }
        DiskEventKind::MigratingOut => Event::MigratingOut,
        DiskEventKind::StorageMigrating => Event::StorageMigrating,
        DiskEventKind::StorageMigrated => Event::StorageMigrated,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use haversack_admission::StagingKind;

    fn parse(text: &str) -> Result<Config, String> {
        config(&toml::from_str::<PolicySettings>(text).map_err(|e| e.to_string())?)
    }

    #[test]
    fn a_systems_name_selects_its_settings_and_each_can_be_changed() {
        for name in haversack_policy::SYSTEMS {
            assert_eq!(config(&PolicySettings::named(name)), named(name).map_err(|e| e.to_string()));
        }
        let changed = parse(
            "allocator = \"utility\"\nsolver = \"annealing(7, 1000)\"\nspare = \"idle\"\nalpha = 0.5\n\
             forecast = \"best\"\nwindow = \"5s\"\nwrite_mode = \"auto\"\nwrite_threshold = 0.3\n\
             admission = \"data(2)\"\nstaging_share = 0.01\n",
        )
        .unwrap();
        let (solver, spare) = (SolverRule::Annealing { seed: 7, moves: 1000 }, Spare::Idle);
        let rule = AllocatorRule::Utility { alpha: 0.5, reading: Reading::Scaled, solver, spare };
        assert_eq!((changed.allocator, changed.forecast), (rule, Method::Best));
        assert_eq!((changed.window_us, changed.measurement_us), (5_000_000, 5_000_000));
        assert_eq!(changed.write_mode.map(|choice| choice.threshold), Some(0.3));
        let staging = Staging { kind: StagingKind::Data, reuses: 2, share_of_pool: 0.01 };
        assert_eq!(changed.admission, AdmissionRule::Staging(staging));
        let demand = |text: &str| parse(text).map(|config| config.demand);
        assert_eq!(demand("allocator = \"max-min\"\ndemand = \"all\""), Ok(DemandRule::All));
        assert_eq!(demand("allocator = \"liu\"\ndemand = \"wss\""), Ok(DemandRule::Wss));
        assert_eq!(
            (demand("allocator = \"max-min\""), demand("allocator = \"liu\"")),
            (Ok(DemandRule::Wss), Ok(DemandRule::All))
        );
        assert!(measures(&changed) && !measures(&named("equal").unwrap()));
    }

    #[test]
    fn in_a_cluster_every_policy_measures() {
        let balance_window_us = 300_000_000;
        for name in haversack_policy::SYSTEMS {
            let (settings, alone) = (PolicySettings::named(name), named(name).unwrap());
            let config = in_cluster(&settings, balance_window_us).unwrap();
            assert!(measures(&config), "{name}");
            if measures(&alone) {
                assert_eq!(config, alone);
                continue;
            }
            let found = (config.demand, config.forecast, config.window_us, config.measurement_us);
            assert_eq!(found, (DemandRule::Rwss { reuses: 1 }, Method::ExpSelf, 300_000_000, 60_000_000));
            // What disks get does not depend on it.
            assert_eq!((config.allocator, config.admission), (alone.allocator, alone.admission));
        }
        let set: PolicySettings =
            toml::from_str("allocator = \"none\"\ndemand = \"wss\"\nwindow = \"5s\"").unwrap();
        let config = in_cluster(&set, 1_000_000).unwrap();
        assert_eq!(
            (config.demand, config.window_us, config.measures_anyway),
            (DemandRule::Wss, 5_000_000, true)
        );
    }

    /// Each wrong text and a word that the refusal must contain.
    #[test]
    fn invalid_settings_are_refused_with_the_reason() {
        let cases = [
            ("allocator = \"fair\"", "max-min"),
            ("allocator = \"wss\"\nsolver = \"exact\"", "has no 'solver'"),
            ("allocator = \"equal\"\nspare = \"idle\"", "it has: none"),
            ("allocator = \"rwss\"\ndemand = \"rwss(9)\"", "1 to 4"),
            ("allocator = \"rwss\"\ndemand = \"size\"", "touch-count"),
            ("allocator = \"rwss\"\nforecast = \"crystal\"", "double-exp-self"),
            ("allocator = \"rwss\"\nwindow = \"5s\"\nmeasurement = \"6s\"", "shorter than its measurement"),
            ("allocator = \"rwss\"\nwindow = \"5ms\"", "at least"),
            ("allocator = \"trd\"\nsample_blocks = 3", "or 0 for all"),
            ("allocator = \"trd\"\nhistory = 3", "has no 'history'"),
            ("allocator = \"max-min\"\nbeta = [0.0, 0.0, 0.0, 0.0]", "sum to zero"),
            ("allocator = \"max-min\"\nweighting = \"demand\"\nbeta = [1.0, 0.0, 0.0, 0.0]", "four-factors"),
            ("allocator = \"max-min\"\nchunk = 1000", "multiple of 4096"),
            ("allocator = \"urd\"\nwrite_threshold = 1.5", "0 to 1"),
            ("allocator = \"wss\"\nwrite_threshold = 0.5", "write_mode"),
            ("allocator = \"wss\"\nstaging_share = 0.5", "staging_share belongs"),
            ("allocator = \"rwss\"\nstaging_share = 0.5", "0 to 0.1"),
            ("allocator = \"rwss\"\nadmission = \"hybrid\"", "hybrid(N)"),
        ];
        for (text, word) in cases {
            let refused = parse(text).unwrap_err();
            assert!(refused.contains(word), "{text}: {refused}");
        }
    }

    #[test]
    fn disks_must_have_a_weight_and_room_for_their_reservation() {
        let disk = DiskConfig::new("vm1", "main", "/a");
        let moment = DiskConfig { window: Some("0s".parse().unwrap()), ..disk.clone() };
        assert!(check_disk(&moment).unwrap_err().contains("window is 0"));
        let none = DiskConfig { priority: 0.0, ..disk.clone() };
        assert!(check_weights("main", [&disk, &none].into_iter()).is_ok());
        assert!(check_weights("main", [&none].into_iter()).unwrap_err().contains("sum to zero"));
        let narrow = DiskConfig { reservation: Size(8 << 20), limit: Some(Size(4 << 20)), ..disk.clone() };
        assert!(check_disk(&narrow).unwrap_err().contains("below its reservation of 8MiB"));
        assert!(check_disk(&DiskConfig { priority: f64::NAN, ..disk }).is_err());
    }
}
