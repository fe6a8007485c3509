//! Measures how long a decision for 128 disks takes, by system:
//! `cargo run --release -p haversack-policy --example decision`.
//!
//! Prints the shortest, the median and the longest of a hundred decisions in milliseconds, and the solver's
//! largest distance from the optimum or, if that was not found, from an upper bound of it; and how often it was found.
//! Every disk has curves of 64 points; the pool holds a third of their demand.

use std::time::Instant;

use haversack_model::WriteMode;
use haversack_policy::{
    Config, Controller, Curve, DiskFacts, DiskWindow, Event, Intensity, PolicyError, SolverRule, named,
};

const DISKS: u64 = 128;
const ROUNDS: u64 = 100;

/// Returns a pseudo-random number from 0 to 1 for a disk and a purpose, the same each time.
fn drawn(disk: u64, purpose: u64) -> f64 {
    let mixed = (disk * 31 + purpose + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 11) as f64 / (1u64 << 53) as f64
}

/// Makes a slope with a cliff somewhere on it.
fn curve(disk: u64, blocks: u64) -> Curve {
    let cliff = (drawn(disk, 2) * 64.0) as u64;
    let ratio = |point: u64| {
        let share = point as f64 / 64.0;
        let height = 0.3 + 0.3 * drawn(disk, 3);
        height * (1.0 - (1.0 - share) * (1.0 - share))
            + if point >= cliff { 0.4 * drawn(disk, 4) } else { 0.0 }
    };
    Curve::estimated((1..=64).map(|point| (blocks * point / 64, ratio(point))))
}

fn facts(disk: u64, round: u64) -> DiskFacts {
    let blocks = 100_000 + (drawn(disk, 1) * 1_000_000.0) as u64 + round * 100;
    let window = DiskWindow {
        length_us: 600_000_000,
        reads: 1_000_000,
        writes: (drawn(disk, 5) * 1_000_000.0) as u64,
        overwrites: 0,
        read_hits: (drawn(disk, 6) * 1_000_000.0) as u64,
        wss_blocks: blocks * 2,
        rwss_blocks: vec![blocks, blocks / 2],
        reused_blocks: blocks,
        touched_blocks: blocks * 3,
        trd: curve(disk, blocks * 2),
        urd: curve(disk, blocks),
        read_only: curve(disk, blocks),
        intensity: Intensity {
            length_us: 60_000_000,
            read_blocks: 100_000,
            unique_read_blocks: 1000 + (drawn(disk, 7) * 99_000.0) as u64,
        },
        sampled: Some(1.0),
        unit_blocks: None,
        origin_latency_us: Some(1000.0 + drawn(disk, 8) * 9000.0),
        cache_latency_us: Some(100.0),
    };
    DiskFacts {
        name: format!("disk{disk:03}"),
        vm: format!("vm{}", disk / 2),
        tenant: format!("tenant{}", disk / 16),
        priority: 1.0,
        reservation_blocks: 1000,
        limit_blocks: u64::MAX,
        fixed_blocks: None,
        used_blocks: 0,
        write_mode: WriteMode::WriteBack,
        own_window: None,
        knee: None,
        window: Some(window),
        goes_on: false,
    }
}

fn measure(label: &str, config: Config) -> Result<(), PolicyError> {
    let mut controller = Controller::new(config)?;
    for disk in 0..DISKS {
        controller.event(&format!("disk{disk:03}"), Event::New)?;
    }
    let (mut took_ms, mut missed, mut optima) = (Vec::new(), 0.0f64, 0);
    for round in 0..ROUNDS {
        let facts: Vec<DiskFacts> = (0..DISKS).map(|disk| facts(disk, round)).collect();
        let start = Instant::now();
        let (_, plan) = controller.close_window(round, 26_000_000, &facts)?;
        took_ms.push(start.elapsed().as_secs_f64() * 1000.0);
        optima += plan.gap.as_ref().map_or(0, |gap| u64::from(gap.is_optimum));
        missed = missed.max(plan.gap.map_or(0.0, |gap| gap.relative));
    }
    took_ms.sort_by(f64::total_cmp);
    let [shortest, median, longest] = [0, took_ms.len() / 2, took_ms.len() - 1].map(|at| took_ms[at]);
    println!(
        "{label:<22} {shortest:7.2} ms {median:7.2} ms {longest:7.2} ms {:8.3} % {optima:8}",
        missed * 100.0
    );
    Ok(())
}

fn main() -> Result<(), PolicyError> {
    println!(
        "{:<22} {:>10} {:>10} {:>10} {:>10} {:>8}",
        "system", "shortest", "median", "longest", "gap", "optima"
    );
    for name in ["none", "equal", "static", "wss", "rwss", "utility", "trd", "urd", "max-min"] {
        measure(name, named(name)?)?;
    }
    measure(
        "rwss, best forecast",
        Config { forecast: haversack_policy::forecast::Method::Best, ..named("rwss")? },
    )?;
    let solvers = [
        ("hull", SolverRule::Hull),
        ("exact", SolverRule::Exact),
        ("annealing", SolverRule::Annealing { seed: 1, moves: 20_000 }),
    ];
    for (name, solver) in solvers {
        let allocator = haversack_policy::AllocatorRule::MinimumLatency { solver, spare: Default::default() };
        measure(&format!("urd, {name}"), Config { allocator, ..named("urd")? })?;
    }
    Ok(())
}
