//! Measures the cost of a window: `cargo run --release -p haversack-control --example window`.
//!
//! A hundred disks with ten million block accesses in total are analysed and decided for with each system in
//! turn; then one decision for 128 disks is measured. Records are made in advance. Memory is the growth of the
//! process during the loop's life.

use std::time::{Duration, Instant};

use haversack_control::{Control, Counters, DiskReport};
use haversack_core::Records;
use haversack_core::monitor::Kind;
use haversack_model::WriteMode;
use haversack_model::place::mix;
use haversack_policy::{Config, DiskFacts, Event, named};

const DISKS: u64 = 100;
const ACCESSES: u64 = 100_000;
const WINDOWS: u64 = 4;
const SYSTEMS: [&str; 9] = ["none", "equal", "static", "wss", "rwss", "utility", "trd", "urd", "max-min"];

fn name(disk: u64) -> String {
    format!("disk{disk:03}")
}

/// Makes the records of a disk in a window: most accesses go to a hot part, the rest everywhere; each disk has
/// its own footprint.
fn records(disk: u64, window: u64, accesses: u64) -> Records {
    let mut records = Records::with_room(2 * accesses as usize);
    let footprint = 20_000 + mix(disk) % 1_000_000;
    for at in 0..accesses {
        let drawn = mix(disk << 40 | window << 32 | at);
        let part = if drawn & 3 == 0 { footprint } else { footprint / 10 };
        let kind = if drawn >> 2 & 3 == 0 { Kind::Write } else { Kind::Read };
        records.push(window * 600_000_000 + at * 6000, kind, (drawn >> 8) % part * 8, 8);
    }
    records
}

fn report(disk: u64, window: u64, accesses: u64) -> DiskReport {
    let facts = DiskFacts {
        name: name(disk),
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
        window: None,
        goes_on: false,
    };
    let (reads, writes) = (window * accesses * 3 / 4, window * accesses / 4);
    DiskReport {
        facts,
        counters: Counters {
            read_hits: reads / 2,
            read_misses: reads - reads / 2,
            writes,
            ..Counters::default()
        },
    }
}

/// Returns the process's resident memory in bytes.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

fn loop_of(config: Config, disks: u64) -> Result<Control, Box<dyn std::error::Error>> {
    let mut control = Control::new(config, 0)?;
    for disk in 0..disks {
        control.event(0, &name(disk), 1 << 24, &Counters::default(), Event::New)?;
    }
    Ok(control)
}

fn measure(system: &str) -> Result<(), Box<dyn std::error::Error>> {
    let before = resident_bytes();
    let mut control = loop_of(named(system)?, DISKS)?;
    let (mut noted, mut closed) = (Duration::ZERO, Duration::ZERO);
    for window in 0..WINDOWS {
        (noted, closed) = (Duration::ZERO, Duration::ZERO);
        for disk in 0..DISKS {
            let records = records(disk, window, ACCESSES);
            let start = Instant::now();
            control.note(&name(disk), &records);
            noted += start.elapsed();
        }
        let reports: Vec<_> = (0..DISKS).map(|disk| report(disk, window + 1, ACCESSES)).collect();
        let start = Instant::now();
        control.close((window + 1) * 600_000_000, 2_000_000, &reports)?;
        closed += start.elapsed();
        control.take_log();
    }
    let kib = resident_bytes().saturating_sub(before) / DISKS / 1024;
    println!(
        "{system:<10} {:8.0} ms analysed {:8.1} ms closed and decided {kib:6} KiB a disk",
        noted.as_secs_f64() * 1000.0,
        closed.as_secs_f64() * 1000.0,
    );
    Ok(())
}

fn decisions(system: &str) -> Result<(), Box<dyn std::error::Error>> {
    const DISKS: u64 = 128;
    let mut control = loop_of(named(system)?, DISKS)?;
    for disk in 0..DISKS {
        control.note(&name(disk), &records(disk, 0, 10_000));
    }
    let reports: Vec<_> = (0..DISKS).map(|disk| report(disk, 1, 10_000)).collect();
    control.close(600_000_000, 2_000_000, &reports)?;
    let mut took: Vec<Duration> = Vec::new();
    for at in 0..20 {
        let start = Instant::now();
        control.decide(600_000_001 + at, "again", 2_000_000, &reports)?;
        took.push(start.elapsed());
        control.take_log();
    }
    took.sort();
    println!("{system:<10} {:8.2} ms a decision for {DISKS} disks (median)", took[10].as_secs_f64() * 1000.0);
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("the last of {WINDOWS} windows of {DISKS} disks with {} accesses together", DISKS * ACCESSES);
    SYSTEMS.into_iter().try_for_each(measure)?;
    SYSTEMS.into_iter().try_for_each(decisions)
}
