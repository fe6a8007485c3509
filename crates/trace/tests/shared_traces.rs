//! Real traces: each in its original format agrees with the common form, access by access.

use std::path::{Path, PathBuf};

use haversack_trace::{Access, OpenOptions, Source, Summaries, Target, create, open};

/// The folder of real traces.
fn folder() -> PathBuf {
    std::env::var_os("HAVERSACK_TRACES").expect("HAVERSACK_TRACES names the folder of real traces").into()
}

fn all(path: &Path, options: &OpenOptions) -> (Vec<Access>, Vec<String>) {
    let mut source = open(path, &OpenOptions { strict: true, ..options.clone() }).unwrap();
    let mut accesses = Vec::new();
    while source.read(&mut accesses).unwrap() > 0 {}
    assert!(source.damage().is_none());
    (accesses, source.volumes().to_vec())
}

/// The raw file agrees with the common form; they may name volumes differently.
fn agrees(name: &str, options: &OpenOptions) {
    let folder = folder();
    let (raw, raw_volumes) = all(&folder.join(format!("raw/{name}.orig.zst")), options);
    let (common, volumes) = all(&folder.join(format!("{name}.csv.zst")), &OpenOptions::default());
    assert_eq!(raw.len(), common.len());
    for (at, (raw, common)) in raw.iter().zip(&common).enumerate() {
        assert_eq!(raw, common, "access {at} of {name}");
    }
    assert_eq!(raw_volumes.len(), volumes.len());
}

#[test]
#[ignore = "needs real traces: see `make test-traces`"]
fn raw_and_common_forms_agree() {
    for name in [
        "msr_hm_0_native_1k",
        "systor17_vdi_traces_1k",
        "cloudphysics_cydonia_1k",
        "cloudphysics_vscsi_114k",
        "ms_tpcc_7k",
        "umass_financial1_first10k",
    ] {
        agrees(name, &OpenOptions::default());
    }
    // Its times have a unit of their own.
    let options = OpenOptions { time_unit_ns: Some(10_000_000), ..OpenOptions::default() };
    agrees("msr_hm_0_cut10k_rw_20_80_105", &options);
}

/// Converts every trace to our own form, which must have the same accesses in about 4 bytes each.
#[test]
#[ignore = "needs real traces: see `make test-traces`"]
fn all_become_compact() {
    let folder = folder();
    let scratch = tempfile::tempdir().unwrap();
    let folders = ["", "apps", "keys"].map(|sub| folder.join(sub));
    let files = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let paths = files.map(|file| file.unwrap().path());
    for path in paths.filter(|path| path.extension().is_some_and(|ending| ending == "zst")) {
        let copy = scratch.path().join("copy.hvt");
        let mut source = open(&path, &OpenOptions::default()).unwrap();
        let written = create(&copy, Target::of(&copy), true, &mut *source, &mut |_| {}).unwrap();
        let (before, names) = all(&path, &OpenOptions::default());
        let (after, same_names) = all(&copy, &OpenOptions::default());
        assert!(before == after && names == same_names, "{}", path.display());
        let bytes_an_access = written.bytes as f64 / written.accesses as f64;
        println!("{bytes_an_access:5.2} B an access: {}", path.display());
        // Small files are mostly headers.
        assert!(
            written.accesses < 20_000 || bytes_an_access < 4.5,
            "{bytes_an_access} in {}",
            path.display()
        );
    }
}

#[test]
#[ignore = "needs real traces: see `make test-traces`"]
fn keys() {
    let folder = folder();
    let of = |name: &str, key_bytes| {
        let options = OpenOptions { key_bytes: Some(key_bytes), ..OpenOptions::default() };
        all(&folder.join("keys").join(name), &options).0
    };
    let unique = |accesses: &[Access]| {
        let mut blocks: Vec<_> = accesses.iter().flat_map(|a| a.blocks(4096)).collect();
        blocks.sort_unstable();
        blocks.dedup();
        blocks.len()
    };
    let w106 = of("cloudphysics_w106.csv.zst", 4096);
    assert_eq!((w106.len(), unique(&w106)), (5_292_456, 275_171));
    let p3 = of("arc_P3.csv.zst", 512);
    assert_eq!((p3.len(), unique(&p3)), (238_578, 102_348));
    let p12 = of("arc_P12.csv.zst", 512);
    assert_eq!((p12.len(), unique(&p12)), (547_147, 401_596));
}

/// What is known of the traces: reads, writes, flushes, discards, and unique blocks of 4 KiB.
#[test]
#[ignore = "needs real traces: see `make test-traces`"]
fn summaries() {
    let folder = folder();
    for (name, counts, unique_4k) in [
        ("apps/oltp", [365_272, 245_270, 86_372, 0], 702_809),
        ("apps/files", [144_333, 53_279, 905, 5_451], 727_754),
        ("apps/mail", [174_049, 184_929, 84_472, 20_048], 290_792),
        ("apps/build", [54_520, 28_007, 614, 0], 1_143_868),
        ("apps/desktop", [100_225, 2_251, 603, 0], 99_748),
        ("apps/scanner", [112_352, 4_279, 1_483, 0], 1_132_562),
    ] {
        let (accesses, _) = all(&folder.join(format!("{name}.csv.zst")), &OpenOptions::default());
        let mut summaries = Summaries::default();
        summaries.add(&accesses);
        let found = summaries.overall();
        assert_eq!([found.reads, found.writes, found.flushes, found.discards], counts, "{name}");
        assert_eq!(found.unique_4k, unique_4k, "{name}");
    }
    for (name, requests, unique_4k) in [
        ("cloudphysics_vscsi_114k", 113_872, 269_210),
        ("msr_hm_0_native_1k", 1_000, 1_917),
        ("msr_hm_0_cut10k_rw_20_80_105", 10_000, 7_385),
        ("umass_financial1_first10k", 10_000, 7_322),
        ("ms_tpcc_7k", 6_999, 20_470),
        ("systor17_vdi_traces_1k", 999, 9_831),
        ("cloudphysics_cydonia_1k", 1_000, 298),
    ] {
        let (accesses, _) = all(&folder.join(format!("{name}.csv.zst")), &OpenOptions::default());
        let mut summaries = Summaries::default();
        summaries.add(&accesses);
        let found = summaries.overall();
        assert_eq!((found.requests, found.unique_4k), (requests, unique_4k), "{name}");
    }
}
