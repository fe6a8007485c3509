//! Results as Parquet files, read back.
#![cfg(feature = "parquet")]

use std::fmt::Write;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use parquet::file::reader::{FileReader, SerializedFileReader};
use serde_json::{Map, Value};

/// Equal, but for the last digit of a number that was written as text.
fn same(left: &Value, right: &Value) -> bool {
    match (left.as_f64(), right.as_f64()) {
        (Some(left), Some(right)) => (left - right).abs() <= 1e-12 * right.abs(),
        _ => left == right,
    }
}

fn trace(folder: &Path) -> PathBuf {
    let mut text = String::from("timestamp_ns,volume,op,offset_bytes,length_bytes\n");
    for number in 0..6_000u64 {
        let op = if number % 5 == 0 { 'W' } else { 'R' };
        let (volume, block) = (number % 2, number * 7 % 900);
        writeln!(text, "{},vm{volume},{op},{},4096", number * 1_000_000, block * 4096).unwrap();
    }
    let path = folder.join("small.csv");
    std::fs::write(&path, text).unwrap();
    path
}

/// Runs the command, and returns its JSON and the rows of the Parquet file that it wrote.
fn found(arguments: &[&str], file: &Path) -> (Value, Vec<Map<String, Value>>) {
    let output = Command::new(env!("CARGO_BIN_EXE_haversack"))
        .args(arguments)
        .args(["--json", "--parquet", file.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    let reader = SerializedFileReader::new(File::open(file).unwrap()).unwrap();
    let rows = reader.get_row_iter(None).unwrap().map(|row| match row.unwrap().to_json_value() {
        Value::Object(row) => row,
        other => panic!("{other}"),
    });
    (serde_json::from_slice(&output.stdout).unwrap(), rows.collect())
}

#[test]
fn a_simulation_has_a_row_for_each_cache_and_volume() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    let sweep = [
        "sim",
        "--trace",
        trace.to_str().unwrap(),
        "--blocks",
        "600,1200",
        "--policy",
        "core,lru",
        "--latency",
    ];
    let (json, rows) = found(&sweep, &folder.path().join("sim.parquet"));
    let caches: Vec<_> = rows.iter().filter(|row| row["volume"].is_null()).collect();
    let results = json["results"].as_array().unwrap();
    assert_eq!(caches.len(), results.len());
    for (row, result) in caches.iter().zip(results) {
        for figure in ["policy", "blocks", "hits", "miss_ratio", "flash_writes", "footprint_fraction"] {
            assert!(same(&row[figure], &result[figure]), "{figure} of {result}");
        }
        assert_eq!(row["counts_read_misses"], result["counts"]["read_misses"]);
        if let Some(latency) = result["latency"].as_object() {
            assert!(same(&row["latency_all_p95_us"], &latency["all"]["p95_us"]));
        }
    }
    assert!(caches.iter().any(|row| row["latency_all_p95_us"].as_f64() > Some(0.0)));
    let of_volumes = rows.iter().filter(|row| row["volume"] == "vm1" && row["policy"] == "lru");
    let misses: Vec<_> = of_volumes.map(|row| row["counts_read_misses"].clone()).collect();
    let lru = results.iter().filter(|result| result["policy"] == "lru");
    let expected: Vec<_> = lru.map(|result| result["volumes"][1]["read_misses"].clone()).collect();
    assert_eq!((misses.len(), misses), (2, expected));
}

#[test]
fn an_analysis_has_a_row_for_each_point_of_a_curve() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    let (json, rows) = found(
        &["analyze", trace.to_str().unwrap(), "--blocks", "333"],
        &folder.path().join("analysis.parquet"),
    );
    for volume in json["volumes"].as_array().unwrap().iter().chain([&json["overall"]]) {
        let points: Vec<_> = rows.iter().filter(|row| row["volume"] == volume["name"]).collect();
        let curve = volume["curve"].as_array().unwrap();
        assert!(points.len() >= curve.len());
        for point in curve.iter().chain(volume["asked"].as_array().unwrap()) {
            let row = points.iter().find(|row| row["blocks"] == point["blocks"]).unwrap();
            for (figure, value) in point.as_object().unwrap() {
                assert!(same(&row[figure], value), "{figure}: {} and {value}", row[figure]);
            }
        }
    }
}

#[test]
fn a_file_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    let output = Command::new(env!("CARGO_BIN_EXE_haversack"))
        .args(["analyze", trace.to_str().unwrap(), "--parquet", "/nonexistent/x.parquet"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nonexistent/x.parquet"));
}
