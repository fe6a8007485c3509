//! Searches for loads on which the default admission loses most against `always`, which admits everything.
//!
//! `cargo run --release -p haversack-sim --example adversary -- SECONDS [SEED]`: random mixes of two or three generated
//! loads, then changes of the worst ones found so far. It prints the result of each mix that is worse than all before
//! it, and finally the worst mix as TOML, for `haversack compare FILE --allocators none --admissions always --latency`.

use std::path::Path;
use std::time::{Duration, Instant};

use haversack_core::AdmissionConfig;
use haversack_model::random::Random;
use haversack_sim::latency::LatencyModel;
use haversack_sim::mix::{Load, Mix};
use haversack_sim::{Settings, SimError, run};
use haversack_trace::Source;
use haversack_trace::generate::{self, Generator, Pattern};

/// Requests of each load.
const REQUESTS: u64 = 50_000;
/// One mix of this many is new; the others are changes of the worst known.
const NEW_ONE_IN: u64 = 3;
/// Mixes that are changed further.
const KEPT: usize = 6;
/// Smaller pools are not tried: what they make of a mix depends on how their few segments are divided.
const LEAST_SEGMENTS: u64 = 10;

fn pattern(random: &mut Random, blocks: u64) -> Pattern {
    let theta = random.pick(&[0.0, 0.3, 0.6, 0.8, 0.9, 1.0, 1.2]);
    match random.below(6) {
        0 => Pattern::Zipf { theta },
        1 => Pattern::Scan { stride: None },
        2 => Pattern::Backup { theta, share: random.pick(&[0.2, 0.5, 0.8]) },
        3 => Pattern::Uniform,
        _ => Pattern::Phases {
            phases: random.pick(&[2, 3, 5, 10, 20, 50, 100, 300]),
            working_set: (blocks / random.pick(&[2, 4, 8, 16, 32])).max(1),
            theta,
        },
    }
}

fn load(random: &mut Random, number: usize) -> Load {
    let blocks = random.pick(&[2_000, 5_000, 10_000, 20_000, 40_000, 80_000]);
    let small = random.pick(&[0.0, 0.5, 0.9, 1.0]);
    let large = random.pick(&[16 << 10, 64 << 10, 256 << 10]);
    let sizes =
        [(4096, small), (large, 1.0 - small)].into_iter().filter(|(_, weight)| *weight > 0.0).collect();
    Load {
        generator: Some(Generator {
            pattern: pattern(random, blocks),
            blocks,
            mix: generate::Mix { read: random.pick(&[0.0, 0.3, 0.7, 0.9, 1.0]), sizes },
            volumes: 1,
            requests: REQUESTS,
            rate: random.pick(&[50.0, 200.0, 500.0, 1000.0]),
            seed: random.below(1 << 32),
        }),
        ..Load::named(&format!("load{number}"))
    }
}

fn new_mix(random: &mut Random) -> Mix {
    let loads = 2 + random.below(2) as usize;
    Mix {
        title: "Worst for the default admission".into(),
        fractions: vec![random.pick(&[0.02, 0.05, 0.1, 0.2, 0.4])],
        window_s: None,
        speed_up: 1.0,
        policies: Vec::new(),
        disks: (0..loads).map(|number| load(random, number)).collect(),
        events: Vec::new(),
        migration: None,
        cluster: None,
    }
}

/// Replaces one load, or one number of one load, or the size of the pool.
fn changed(random: &mut Random, mix: &Mix) -> Mix {
    let mut mix = mix.clone();
    let at = random.below(mix.disks.len() as u64) as usize;
    let other = load(random, at);
    let (Some(ours), Some(new)) = (&mut mix.disks[at].generator, other.generator) else { return mix };
    match random.below(7) {
        0 => mix.fractions = vec![(mix.fractions[0] * random.pick(&[0.5, 0.8, 1.25, 2.0])).clamp(0.005, 0.6)],
        1 => ours.rate = new.rate,
        2 => ours.mix.read = new.mix.read,
        3 => ours.mix.sizes = new.mix.sizes,
        4 => ours.pattern = new.pattern,
        5 => ours.seed = new.seed,
        _ => *ours = new,
    }
    mix
}

/// What one admission makes of a mix.
struct Outcome {
    mean_us: f64,
    hits: f64,
    flash: f64,
    segments: u64,
}

fn outcome(mix: &Mix, admission: AdmissionConfig) -> Result<Outcome, SimError> {
    let mut settings = Settings { latency: Some(LatencyModel::default()), threads: 1, ..mix.settings(None)? };
    settings.pool.admission = admission;
    let opener = || -> Result<Box<dyn Source>, SimError> { mix.open(Path::new(".")) };
    let report = run(&opener, &settings, &|_, _| {})?;
    let row = report.policies().next().expect("one cache is simulated");
    let latency = row.latency.as_ref().expect("there is a model of time");
    let segments = row.production.as_ref().map_or(0, |production| production.segments);
    let (mean_us, hits, flash) =
        (latency.all.mean_us, 1.0 - row.miss_ratio.unwrap_or(1.0), row.flash_write_ratio);
    Ok(Outcome { mean_us, hits, flash, segments })
}

/// The mix as a file, without the settings that a simulation has no use for.
fn text(mix: &Mix) -> String {
    let mut text = format!("title = {:?}\nfractions = {:?}\n", mix.title, mix.fractions);
    for load in &mix.disks {
        let generator = toml::Value::try_from(&load.generator).expect("a generator can be written");
        text += &format!("\n[[disk]]\nname = {:?}\ngenerator = {generator}\n", load.name());
    }
    text
}

fn main() -> Result<(), SimError> {
    let number = |at: usize, otherwise: u64| match std::env::args().nth(at).map(|text| text.parse()) {
        None => Ok(otherwise),
        Some(Ok(number)) => Ok(number),
        Some(Err(_)) => Err(SimError::Settings("expected SECONDS [SEED], two numbers".into())),
    };
    let (seconds, seed) = (number(1, 60)?, number(2, 1)?);
    let (mut random, end) = (Random::new(seed), Instant::now() + Duration::from_secs(seconds));
    let mut worst: Vec<(f64, Mix)> = Vec::new();
    let (mut tried, mut ratios) = (0, Vec::new());
    while Instant::now() < end {
        let is_new = worst.len() < KEPT || random.one_in(NEW_ONE_IN);
        let mix = if is_new {
            new_mix(&mut random)
        } else {
            let at = random.below(worst.len() as u64) as usize;
            changed(&mut random, &worst[at].1)
        };
        // A load that does not fit its volume is invalid: skip the mix.
        let Ok(always) = outcome(&mix, AdmissionConfig::Always) else { continue };
        if always.segments < LEAST_SEGMENTS {
            continue;
        }
        let learned = outcome(&mix, AdmissionConfig::Learned)?;
        let ratio = learned.mean_us / always.mean_us;
        tried += 1;
        if is_new {
            ratios.push(ratio);
        }
        if worst.first().is_none_or(|(most, _)| ratio > *most) {
            println!(
                "{tried}: latency {ratio:.3} of that of always ({:.0} us), hits {:.3} / {:.3}, flash writes {:.2} / {:.2}",
                always.mean_us, learned.hits, always.hits, learned.flash, always.flash
            );
        }
        worst.push((ratio, mix));
        worst.sort_by(|a, b| b.0.total_cmp(&a.0));
        worst.truncate(KEPT);
    }
    ratios.sort_by(f64::total_cmp);
    if let (Some(median), Some((ratio, mix))) = (ratios.get(ratios.len() / 2), worst.first()) {
        let above = ratios.iter().filter(|ratio| **ratio > 1.03).count();
        println!(
            "{tried} mixes; of {} new ones the median is {median:.3}, {above} are above 1.03",
            ratios.len()
        );
        println!("# The worst of a search: mean latency {ratio:.3} of that of letting everything in.");
        print!("{}", text(mix));
    }
    Ok(())
}
