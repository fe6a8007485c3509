//! Methods of moving a VM with its cache to another host.

use std::path::Path;

use haversack_api::Size;
use haversack_model::BLOCK_BYTES;
use haversack_sim::Progress;
use haversack_sim::compare_migration::{MigrationChoices, compare_migration, summaries};
use haversack_sim::mix::Mix;

use crate::error::Failure;
use crate::measure::Quantity;
use crate::outcome::{Outcome, Played, Point};
use crate::recipe::Moves;

/// Simulates.
pub(crate) fn run(recipe: &Moves, mix: &Mix, progress: &Progress<'_>) -> Result<Outcome, Failure> {
    let mut mix = mix.clone();
    if let (Some(window), Some(table)) = (recipe.window, &mut mix.migration) {
        table.window = window;
    }
    if !recipe.targets.is_empty() && !recipe.rates.is_empty() {
        return Err(Failure::Recipe("targets and rates: only one of them can be the x axis".into()));
    }
    if recipe.targets.is_empty() && recipe.rates.is_empty() {
        return of_mix(recipe, &mix, None, progress);
    }
    let of_targets = recipe.targets.iter().map(|target| Ok((*target, with_target(&mix, *target)?)));
    let of_rates = recipe.rates.iter().map(|rate| Ok((*rate, with_rate(&mix, *rate))));
    let mixes = of_targets.chain(of_rates).collect::<Result<Vec<_>, Failure>>()?;
    let mut outcome = Outcome::default();
    for (done, (x, mix)) in mixes.iter().enumerate() {
        let part = |stage, part: f64| progress(stage, (done as f64 + part) / mixes.len() as f64);
        let one = of_mix(recipe, mix, Some(x.0 as f64), &part)?;
        outcome.played = outcome.played.or(one.played);
        outcome.points.extend(one.points);
    }
    Ok(outcome)
}

/// The mix with a limit to what is fetched from the source.
fn with_rate(mix: &Mix, rate: Size) -> Mix {
    let mut mix = mix.clone();
    mix.migration.iter_mut().for_each(|table| table.rate = rate);
    mix
}

/// The mix with another target for all disks, and pools larger in proportion.
fn with_target(mix: &Mix, target: Size) -> Result<Mix, Failure> {
    let refused = || Failure::Recipe("targets need disks that all have the same target".into());
    let mut mix = mix.clone();
    let mut before = None;
    for load in &mut mix.disks {
        let haversack_api::Target::Bytes(own) = load.config.target else { return Err(refused()) };
        if before.replace(own).is_some_and(|other| other != own) {
            return Err(refused());
        }
        load.config.target = haversack_api::Target::Bytes(target);
    }
    let before = before.ok_or_else(refused)?;
    mix.fractions.iter_mut().for_each(|fraction| *fraction *= target.0 as f64 / before.0 as f64);
    Ok(mix)
}

fn of_mix(recipe: &Moves, mix: &Mix, x: Option<f64>, progress: &Progress<'_>) -> Result<Outcome, Failure> {
    let methods = recipe.methods.iter().map(|named| named.method).collect();
    let choices = MigrationChoices { methods, ..MigrationChoices::default() };
    let comparison = compare_migration(mix, Path::new("."), &choices, progress)?;
    let played = Some(Played::of(&comparison.trace, BLOCK_BYTES as u64));
    let found = summaries(&comparison);
    let mut points = Vec::new();
    for named in &recipe.methods {
        let Some(one) = found.iter().find(|one| one.method == named.method) else { continue };
        let mut point = Point::new(&named.name, x);
        let none = 0.0;
        let is_none = named.method == haversack_sim::migration::Method::None;
        let gain = one.iops_over_none.map(|gain| gain.mean);
        point.set(Quantity::GainOverNone, if is_none { gain.map(|_| none) } else { gain });
        point.set(Quantity::Hits, one.hits_after.mean);
        point.set(Quantity::MeanLatency, one.mean_us.mean / 1e6);
        point.set(Quantity::P90Latency, one.p90_us.mean / 1e6);
        point.set(Quantity::Stall, one.stall_ms.mean / 1e3);
        point.set(Quantity::Sent, one.wire_bytes.mean);
        let neighbours = one.neighbours_ahead.iter().chain(&one.neighbours_after).flatten();
        let worst = neighbours.map(|rise| rise.mean).max_by(f64::total_cmp);
        point.set(Quantity::NeighbourSlowdown, worst);
        points.push(point);
    }
    Ok(Outcome { played, points, courses: Vec::new() })
}
