//! `haversack trace` as it is typed.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Runs it in a folder, with something on standard input.
fn run(folder: &Path, arguments: &str, input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_haversack"));
    command.current_dir(folder).args(["trace"]).args(arguments.split(' '));
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn json(folder: &Path, arguments: &str) -> Value {
    let output = run(folder, &format!("{arguments} --json"), "");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Requests to two volumes, one each millisecond.
fn trace(count: u64) -> String {
    let mut text = String::from("timestamp_ns,volume,op,offset_bytes,length_bytes\n");
    for at in 0..count {
        let (volume, op) = (if at % 3 == 0 { "a" } else { "b" }, if at % 2 == 0 { "R" } else { "W" });
        writeln!(text, "{},{volume},{op},{},4096", (at + 5) * 1_000_000, at % 100 * 4096).unwrap();
    }
    text
}

#[test]
fn traces_are_converted_cut_merged_and_told() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let text = trace(3000);
    assert!(run(folder, "convert - one.hvt", &text).status.success());
    let back = run(folder, "convert one.hvt -", "");
    assert_eq!(String::from_utf8(back.stdout).unwrap(), text);

    let info = json(folder, "info one.hvt");
    assert_eq!(
        (info["overall"]["requests"].as_u64(), info["overall"]["unique_4k"].as_u64()),
        (Some(3000), Some(200))
    );
    assert_eq!(info["volumes"].as_array().unwrap().len(), 2);

    let cut = json(folder, "cut one.hvt part.csv.zst --from 1s --to 2s --volume b");
    assert_eq!((cut["requests"].as_u64(), &cut["volumes"]), (Some(667), &serde_json::json!(["b"])));
    let merged = json(folder, "merge one.hvt part.csv.zst --align --separate --output two.hvt");
    assert_eq!(
        (merged["requests"].as_u64(), &merged["volumes"]),
        (Some(3667), &serde_json::json!(["a", "b", "b#2"]))
    );
    let head = json(folder, "head -n 2 part.csv.zst");
    assert_eq!((head.as_array().unwrap().len(), head[0]["timestamp_ns"].as_u64()), (2, Some(1_005_000_000)));

    let again = run(folder, "convert one.hvt two.hvt", "");
    assert_eq!(again.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&again.stderr).contains("--force"));
    assert!(run(folder, "convert --force one.hvt two.hvt", "").status.success());
}

#[test]
fn a_trace_without_times_has_no_rates() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    assert!(
        run(folder, "convert - keys.hvt", "volume,offset,length\na,0,512\nb,0,512\nb,512,512\n")
            .status
            .success()
    );
    let told = String::from_utf8(run(folder, "info keys.hvt", "").stdout).unwrap();
    assert!(told.starts_with("3 requests to 2 volumes without times\n"), "{told}");
    assert!(!told.contains("per second"), "{told}");
    let overall = &json(folder, "info keys.hvt")["overall"];
    assert!(overall["span_s"].is_null() && overall["requests_per_s"].is_null(), "{overall}");
    let analyze = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_haversack"));
        command.current_dir(folder).args(["analyze", "keys.hvt"]).args(arguments).output().unwrap()
    };
    let told = String::from_utf8(analyze(&[]).stdout).unwrap();
    assert!(told.contains("Requests") && !told.contains("per second"), "{told}");
    let refused = analyze(&["--interval", "1s"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("the trace has no times"));
}

#[test]
fn damage_is_told_and_strictness_stops_at_it() {
    let folder = tempfile::tempdir().unwrap();
    let text = trace(10) + "what is this?\n";
    std::fs::write(folder.path().join("t.csv"), text).unwrap();
    let output = run(folder.path(), "info t.csv", "");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success()
            && told.contains("skipped 1 damaged line:")
            && told.contains("t.csv:12: expected"),
        "{told}"
    );
    assert_eq!(json(folder.path(), "info t.csv")["damage"]["lines"].as_u64(), Some(1));
    let output = run(folder.path(), "convert t.csv t.hvt --strict", "");
    assert_eq!(output.status.code(), Some(1));
    // What could not be finished does not stay.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}
