//! Hits of one pool shared by many disks (allocator `none`), against the same accesses to a single disk.
//!
//! `cargo run --release -p haversack-sim --example one_pool -- DISKS [TRACE...]`: with traces, each disk plays one of
//! them, copies shifted in time; without, Zipf loads of different skew and size, and scans beside local loads. The pool
//! has ten segments for each disk, or with traces also 5, 10 and 20 % of the footprint.

use haversack_core::Target;
use haversack_core::format::geometry::SLOTS_PER_SEGMENT;
use haversack_model::random::Random;
use haversack_sim::{PolicyName, Pool, Settings, SimError, Sizes, Traffic, run};
use haversack_trace::{Access, MemorySource, Op, OpenOptions, Source, VolumeNo, open};

/// Accesses played at most.
const ACCESSES: u64 = 2_000_000;
/// Distance of two disks' blocks on the one disk, in bytes.
const APART: u64 = 64 << 30;

fn zipf(disks: u64) -> Vec<Access> {
    let mut rng = Random::new(1);
    let access = |number: u64| {
        let disk = (rng.unit().powi(2) * disks as f64) as u64;
        let size = 1500.0 * (2 + disk % 7) as f64;
        let block = (rng.unit().powi(1 + (disk % 5) as i32) * size) as u64;
        of(number, disk, block, rng.bits().is_multiple_of(4))
    };
    (0..ACCESSES).map(access).collect()
}

/// Every second disk scans, and makes four of five accesses.
fn scans(disks: u64) -> Vec<Access> {
    let mut rng = Random::new(2);
    let mut next = vec![0; disks as usize];
    let access = |number: u64| {
        let disk = rng.below(disks / 2) * 2 + u64::from(!number.is_multiple_of(5));
        let block = if disk % 2 == 1 {
            next[disk as usize] += 1;
            next[disk as usize]
        } else {
            (rng.unit().powi(2) * 4000.0) as u64
        };
        of(number, disk, block, false)
    };
    (0..ACCESSES).map(access).collect()
}

fn of(number: u64, disk: u64, block: u64, writes: bool) -> Access {
    Access {
        time_ns: number * 200_000,
        offset_bytes: block * 4096,
        length_bytes: 4096,
        volume: VolumeNo(disk as u32),
        op: if writes { Op::Write } else { Op::Read },
    }
}

fn traces(disks: u64, paths: &[String]) -> Result<Vec<Access>, SimError> {
    let mut played = Vec::new();
    for path in paths {
        let (mut source, mut all) = (open(path.as_ref(), &OpenOptions::default())?, Vec::new());
        while source.read(&mut all)? > 0 {}
        played.push(all);
    }
    let mut merged = Vec::new();
    for disk in 0..disks {
        let all = &played[disk as usize % played.len()];
        let (first, last) = (all[0].time_ns, all[all.len() - 1].time_ns);
        let shift = (last - first) / 8 * (disk / played.len() as u64);
        merged.extend(all.iter().map(|access| Access {
            time_ns: access.time_ns - first + shift,
            volume: VolumeNo(disk as u32),
            ..*access
        }));
    }
    merged.sort_by_key(|access| access.time_ns);
    Ok(merged)
}

fn hits(accesses: &[Access], disks: u64, sizes: Sizes, others: Target) -> Result<Vec<f64>, SimError> {
    let settings = Settings {
        policies: vec![PolicyName::Core],
        sizes,
        traffic: Traffic { warm_up: 0.2, ..Traffic::default() },
        pool: Pool { others, ..Pool::default() },
        ..Settings::default()
    };
    let names: Vec<String> = (0..disks).map(|disk| format!("disk{disk}")).collect();
    let opener = || -> Result<Box<dyn Source>, SimError> {
        Ok(Box::new(MemorySource::new(accesses.to_vec(), names.clone())))
    };
    let report = run(&opener, &settings, &|_, _| {})?;
    Ok(report.of(PolicyName::Core).map(|row| 1.0 - row.miss_ratio.unwrap_or(1.0)).collect())
}

fn compare(load: &str, disks: u64, accesses: &[Access], sizes: &Sizes) -> Result<(), SimError> {
    let moved = |access: &Access| Access {
        volume: VolumeNo(0),
        offset_bytes: access.offset_bytes + u64::from(access.volume.0) * APART,
        ..*access
    };
    let on_one: Vec<Access> = accesses.iter().map(moved).collect();
    let shared = Target::Shared { at_least_blocks: 0, at_most_blocks: u64::MAX };
    let one = hits(&on_one, 1, sizes.clone(), Target::Equal)?;
    let many = hits(accesses, disks, sizes.clone(), shared)?;
    for (at, (one, many)) in one.iter().zip(&many).enumerate() {
        let (one, many) = (one * 100.0, many * 100.0);
        println!(
            "{load:14} {disks:5} disks, size {at}: {one:5.1} % on one disk, {many:5.1} % shared, {:+.1}",
            many - one
        );
    }
    Ok(())
}

fn main() -> Result<(), SimError> {
    let mut arguments = std::env::args().skip(1);
    let disks: u64 = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(10);
    let paths: Vec<String> = arguments.collect();
    let ten_segments = Sizes::Blocks(vec![10 * u64::from(SLOTS_PER_SEGMENT) * disks]);
    if paths.is_empty() {
        compare("zipf", disks, &zipf(disks), &ten_segments)?;
        return compare("scan, local", disks, &scans(disks), &ten_segments);
    }
    compare("traces", disks, &traces(disks, &paths)?, &Sizes::Fractions(vec![0.05, 0.1, 0.2]))
}
