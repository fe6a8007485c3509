//! `haversack trace generate` as it is typed.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Runs it in a folder.
fn run(folder: &Path, arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_haversack"));
    command.current_dir(folder).arg("trace").args(arguments.split(' ')).output().unwrap()
}

fn json(folder: &Path, arguments: &str) -> Value {
    let output = run(folder, &format!("{arguments} --json"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn patterns_are_generated_as_asked() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for kind in [
        "uniform",
        "zipf --theta 1.1",
        "zoned",
        "zoned --zones 90/10:10/90",
        "scan",
        "scan --stride 8",
        "ycsb --workload e",
        "boot-storm",
        "backup",
        "phases --working-set 100",
        "diurnal --period 1min",
    ] {
        let asked = "--blocks 10k --requests 2k --rate 50 --volumes 3 --seed 7 -o t.hvt --force";
        let made = json(folder, &format!("generate {kind} {asked}"));
        assert_eq!((made["requests"].as_u64(), made["seed"].as_u64()), (Some(2000), Some(7)), "{kind}");
        let info = json(folder, "info t.hvt");
        assert_eq!(info["volumes"].as_array().unwrap().len(), 3, "{kind}");
        assert!(info["overall"]["span_s"].as_f64().unwrap() > 25.0, "{kind}");
    }
}

#[test]
fn real_volumes_are_generated_and_told() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let made = json(folder, "generate --like msr:web_0 --requests 20k -o w.hvt");
    assert_eq!(made["requests"].as_u64(), Some(20_000));
    let (profile, info) = (&made["profile"], json(folder, "info w.hvt"));
    for figure in ["unique", "unique_read", "unique_write"] {
        let found = info["overall"][format!("{figure}_4k")].as_f64().unwrap();
        let wanted = profile[figure].as_f64().unwrap();
        assert!((found / wanted - 1.0).abs() < 0.05, "{figure}: {found}, not {wanted}");
    }
    let presets = json(folder, "generate presets");
    assert_eq!(presets.as_array().unwrap().len(), 141);
    let what_is_not = |name: &str| {
        let preset = presets.as_array().unwrap().iter().find(|preset| preset["name"] == name).unwrap();
        preset["not_calibrated"].as_str().map(String::from)
    };
    assert_eq!(what_is_not("msr:web_0"), None);
    let said = what_is_not("cloudphysics:w23").unwrap();
    let output = run(folder, "generate --like cloudphysics:w23 --requests 1k -o w23.hvt");
    assert!(said.contains("distances") && String::from_utf8(output.stdout).unwrap().contains(&said));
    let reuse = "generate reuse --distances 100:0.5,1k:0.5 --unique 2k --requests 5k --read 0.5 -o r.hvt";
    assert_eq!(json(folder, reuse)["requests"].as_u64(), Some(5000));
}

#[test]
fn nonsense_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, reason) in [
        ("zipf --blocks 10 --requests 10 --theta=-1 -o x.hvt", "theta"),
        ("zipf --blocks 0 --requests 10 -o x.hvt", "blocks"),
        ("uniform --blocks 10 --requests 10 --size 4k:0,8k:0 -o x.hvt", "weights"),
        ("zoned --zones 50/50 --blocks 10 --requests 10 -o x.hvt", "100"),
        ("reuse --distances 10:0 --unique 10 --requests 10 -o x.hvt", "reuse distances"),
        ("--like msr:nothing -o x.hvt", "msr:web_0"),
        ("--like msr:web_0 --scale 0 -o x.hvt", "scale"),
        ("-o x.hvt", "--like"),
    ] {
        let output = run(folder.path(), &format!("generate {arguments}"));
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && error.contains(reason), "{arguments}: {error}");
        assert!(!folder.path().join("x.hvt").exists());
    }
}
