//! Generated traces for tests.

use haversack_model::random::Random;
use haversack_sim::tape::Opener;
use haversack_sim::{Report, Settings, SimError, run};
use haversack_trace::{Access, MemorySource, Op, Source, VolumeNo};

/// Returns these accesses as often as requested.
pub fn memory(
    accesses: &[Access],
    volumes: &[&str],
) -> impl Fn() -> Result<Box<dyn Source>, SimError> + Sync {
    let names: Vec<_> = volumes.iter().map(|name| name.to_string()).collect();
    move || Ok(Box::new(MemorySource::new(accesses.to_vec(), names.clone())))
}

/// Simulates without reporting progress.
pub fn simulate(opener: &Opener<'_>, settings: &Settings) -> Report {
    run(opener, settings, &|_, _| {}).expect("the simulation runs")
}

/// Requests of two volumes, a millisecond apart: skewed reads and writes, some long and misaligned, flushes,
/// discards, scans.
pub fn mixed(requests: u64, seed: u64) -> Vec<Access> {
    let mut rng = Random::new(seed);
    let mut scan = 0;
    let mut access = |number: u64| {
        let (volume, kind) = (VolumeNo(rng.bits().is_multiple_of(3).into()), rng.bits() % 100);
        let skewed = (rng.open_unit().powi(6) * 20_000.0) as u64;
        let op = match kind {
            0 => Op::Flush,
            1 => Op::Discard,
            2..35 => Op::Write,
            _ => Op::Read,
        };
        let (block, blocks) = match kind {
            90.. => {
                scan = (scan + 8) % 30_000;
                (scan, 8)
            }
            _ => (skewed, 1 + rng.bits() % 4),
        };
        let shift = if kind % 7 == 0 { 512 } else { 0 };
        Access {
            time_ns: number * 1_000_000,
            offset_bytes: block * 4096 + shift,
            length_bytes: if op == Op::Flush { 0 } else { (blocks * 4096) as u32 },
            volume,
            op,
        }
    };
    (0..requests).map(&mut access).collect()
}
