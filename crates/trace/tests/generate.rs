//! Generated traces have the requested properties.

use haversack_trace::generate::{
    Distances, Generator, Kind, Mix, Pattern, Profile, Workload, Zone, preset, presets,
};
mod figures;

use self::figures::{all, off};
use haversack_trace::{Access, Op};

/// Number of requests in each generated trace.
const REQUESTS: f64 = 100_000.0;

fn sample(name: &str) -> Profile {
    let profile = preset(name).unwrap();
    let scale = (REQUESTS / profile.requests() as f64).min(1.0);
    profile.scaled(scale)
}

#[test]
fn given_distances_and_sizes_come_out() {
    let kind =
        |requests| Kind { requests, refs: requests * 4, bytes: None, sizes: vec![(1.0, 0.8), (16.0, 0.2)] };
    let ranges = [(63, 0.0), (1000, 0.5), (9000, 0.3), (49_000, 0.2)];
    let profile = Profile {
        name: "given".into(),
        reads: kind(60_000),
        writes: kind(40_000),
        unique: 50_000,
        unique_read: 45_000,
        unique_write: 20_000,
        span_blocks: 100_000,
        span_s: 1000.0,
        median_gap_s: None,
        distances: ranges.map(|(upto, share)| Distances { upto, share }).to_vec(),
        sequential: 0.5,
        keep_mix: true,
    };
    let off = off(&profile, 1, true);
    assert!(off.is_empty(), "{off:?}");
    let accesses = all(&mut *profile.source(1).unwrap());
    for (blocks, wanted) in [(1, 0.8), (16, 0.2)] {
        let found = share(&accesses, |access| access.length_bytes == blocks * 4096);
        assert!((found - wanted).abs() < 0.05, "{blocks} blocks: {found}, not {wanted}");
    }
}

#[test]
fn every_preset_can_be_made_and_scaled() {
    let presets = presets();
    assert_eq!(presets.len(), 35 + 106);
    for name in &presets {
        let whole = preset(name).unwrap();
        for scale in [1e-6, 0.01, 1.0, 2.0] {
            let profile = whole.scaled(scale);
            if profile.requests() == 0 {
                assert!(profile.source(1).is_err(), "{name} x{scale}");
            } else {
                profile.check().unwrap_or_else(|error| panic!("{name} x{scale}: {error}"));
            }
        }
        let mut accesses = Vec::new();
        whole.scaled(500.0 / whole.requests() as f64).source(1).unwrap().read(&mut accesses).unwrap();
        assert!(accesses.len().abs_diff(500) <= 1, "{name}: {}", accesses.len());
    }
    let error = preset("msr:web_9").unwrap_err().to_string();
    assert!(error.contains("msr:web_0") && preset("web_0").is_err(), "{error}");
}

#[test]
fn a_seed_gives_the_same_trace_and_another_one_another() {
    let profile = sample("cloudphysics:w27");
    let trace = |seed| all(&mut *profile.source(seed).unwrap());
    assert_eq!(trace(1), trace(1));
    assert_ne!(trace(1), trace(2));
    let zipf =
        |seed| all(&mut *Generator { seed, ..generator(Pattern::Zipf { theta: 0.9 }) }.source().unwrap());
    assert_eq!(zipf(1), zipf(1));
    assert_ne!(zipf(1), zipf(2));
}

fn generator(pattern: Pattern) -> Generator {
    Generator {
        pattern,
        blocks: 10_000,
        mix: Mix { read: 0.7, sizes: vec![(4096, 0.5), (16_384, 0.5)] },
        volumes: 2,
        requests: 50_000,
        rate: 1000.0,
        seed: 1,
    }
}

fn accesses(pattern: Pattern) -> Vec<Access> {
    let accesses = all(&mut *generator(pattern).source().unwrap());
    assert!(accesses.is_sorted_by_key(|access| access.time_ns));
    let inside = |access: &Access| access.offset_bytes + u64::from(access.length_bytes) <= 10_000 * 4096;
    assert!(accesses.iter().all(inside));
    accesses
}

fn share(accesses: &[Access], good: impl Fn(&Access) -> bool) -> f64 {
    accesses.iter().filter(|access| good(access)).count() as f64 / accesses.len() as f64
}

fn near(found: f64, wanted: f64) {
    assert!((found - wanted).abs() < 0.02, "{found}, not {wanted}");
}

#[test]
fn mixes_rates_and_volumes_are_as_asked() {
    let accesses = accesses(Pattern::Uniform);
    assert_eq!(accesses.len(), 50_000);
    near(share(&accesses, |access| access.op == Op::Read), 0.7);
    near(share(&accesses, |access| access.length_bytes == 16_384), 0.5);
    near(share(&accesses, |access| access.volume.0 == 1), 0.5);
    near(accesses.last().unwrap().time_ns as f64 / 50e9, 1.0);
    near(share(&accesses, |access| access.offset_bytes < 1000 * 4096), 0.1);
}

#[test]
fn each_pattern_shows() {
    let zones = [(50.0, 5.0), (30.0, 15.0), (20.0, 80.0)];
    let zones =
        zones.map(|(requests_percent, size_percent)| Zone { requests_percent, size_percent }).to_vec();
    let zoned = accesses(Pattern::Zoned { zones });
    near(share(&zoned, |access| access.offset_bytes < 500 * 4096), 0.5);
    near(share(&zoned, |access| access.offset_bytes < 2000 * 4096), 0.8);

    let of_one: Vec<Access> = accesses(Pattern::Scan { stride: None });
    let of_one: Vec<Access> = of_one.into_iter().filter(|access| access.volume.0 == 0).collect();
    let goes_on =
        |pair: &&[Access]| pair[1].offset_bytes == pair[0].offset_bytes + u64::from(pair[0].length_bytes);
    assert!(of_one.windows(2).filter(goes_on).count() > of_one.len() * 99 / 100);

    let writes = |workload| share(&accesses(Pattern::Ycsb { workload }), |access| access.op == Op::Write);
    for (workload, wanted) in [
        (Workload::A, 0.5),
        (Workload::B, 0.05),
        (Workload::C, 0.0),
        (Workload::D, 0.05),
        (Workload::E, 0.05),
        (Workload::F, 1.0 / 3.0),
    ] {
        near(writes(workload), wanted);
    }

    // All machines read the same image.
    let boot = accesses(Pattern::BootStorm { read: 0.1, storm: 0.2 });
    let blocks = |volume| {
        let of = boot.iter().filter(|access| access.volume.0 == volume && access.op == Op::Read);
        of.map(|access| access.offset_bytes).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(blocks(0), blocks(1));

    let backup = accesses(Pattern::Backup { theta: 0.9, share: 0.5 });
    let scan = |access: &Access| access.length_bytes == 64 * 4096;
    assert!(backup[..14_000].iter().all(|access| !scan(access)) && backup[15_100..15_200].iter().any(scan));

    let phases = accesses(Pattern::Phases { phases: 4, working_set: 500, theta: 0.5 });
    for (phase, part) in phases.chunks(12_500).enumerate() {
        let set = phase as u64 * 2500 * 4096..(phase as u64 * 2500 + 500) * 4096;
        near(share(part, |access| set.contains(&access.offset_bytes)), 0.95 + 0.05 * 0.05);
    }
}

#[test]
fn bad_parameters_are_refused_with_the_reason() {
    let refused = |generator: Generator| generator.source().err().map(|error| error.to_string()).unwrap();
    let zipf = || generator(Pattern::Zipf { theta: 0.9 });
    for (generator, reason) in [
        (generator(Pattern::Zipf { theta: -0.1 }), "theta"),
        (Generator { blocks: 0, ..zipf() }, "blocks"),
        (Generator { rate: 0.0, ..zipf() }, "rate"),
        (Generator { volumes: 0, ..zipf() }, "volumes"),
        (Generator { mix: Mix { read: 1.5, ..Mix::default() }, ..zipf() }, "share of reads"),
        (Generator { mix: Mix { sizes: vec![(4096, 0.0)], ..Mix::default() }, ..zipf() }, "weights of sizes"),
        (Generator { mix: Mix { sizes: vec![(0, 1.0)], ..Mix::default() }, ..zipf() }, "sizes"),
        (generator(Pattern::Zoned { zones: vec![] }), "zones"),
        (generator(Pattern::Scan { stride: Some(0) }), "stride"),
        (generator(Pattern::Phases { phases: 0, working_set: 1, theta: 0.0 }), "phases"),
        (generator(Pattern::Diurnal { theta: 0.0, amplitude: 1.0, period_s: 1.0 }), "amplitude"),
        (generator(Pattern::BootStorm { read: 0.0, storm: 0.1 }), "image"),
    ] {
        let error = refused(generator);
        assert!(error.contains(reason), "{error}");
    }
    let whole = sample("msr:web_0");
    for profile in [
        Profile { distances: vec![Distances { upto: 9, share: 0.0 }], ..whole.clone() },
        Profile { unique: whole.unique_read - 1, ..whole.clone() },
        Profile { span_blocks: 1, ..whole.clone() },
    ] {
        assert!(profile.source(1).is_err(), "{profile:?}");
    }
}
