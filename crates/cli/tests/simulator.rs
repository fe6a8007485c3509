//! `haversack sim` and `haversack advise` as a script uses them.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A trace in the common form: every block of a small set again and again, and some that come once.
fn trace(folder: &Path) -> PathBuf {
    let mut text = String::from("timestamp_ns,volume,op,offset_bytes,length_bytes\n");
    for number in 0..8_000u64 {
        let block = if number % 4 == 0 { 10_000 + number } else { number * 7 % 900 };
        let op = if number % 5 == 0 { 'W' } else { 'R' };
        writeln!(text, "{},vm1,{op},{},4096", number * 1_000_000, block * 4096).unwrap();
    }
    let path = folder.join("small.csv");
    std::fs::write(&path, text).unwrap();
    path
}

fn haversack(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_haversack")).args(arguments).output().unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let output = haversack(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn one_result_is_the_object_itself() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    let trace = trace.to_str().unwrap();
    for policy in ["lru", "core", "min"] {
        let found = json(&["sim", "--trace", trace, "--blocks", "1200", "--policy", policy, "--json"]);
        assert_eq!(found["accesses"], 8_000, "{policy}");
        let (hits, misses) = (found["hits"].as_u64().unwrap(), found["misses"].as_u64().unwrap());
        assert_eq!(hits + misses, 8_000, "{policy}");
        assert_eq!(found["miss_ratio"].as_f64().unwrap(), misses as f64 / 8_000.0, "{policy}");
        assert!(found["flash_writes"].as_u64().unwrap() > 0, "{policy}");
        let bounds: Vec<_> =
            found["results"].as_array().unwrap().iter().map(|row| row["policy"].clone()).collect();
        assert!(bounds.contains(&"min".into()) && bounds.contains(&"unlimited".into()), "{bounds:?}");
    }
}

#[test]
fn a_sweep_fills_table_csv_and_page() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, csv, html) =
        (trace(folder.path()), folder.path().join("out.csv"), folder.path().join("out.html"));
    let [trace, csv_path, html_path] = [&trace, &csv, &html].map(|path| path.to_str().unwrap());
    let files = ["--csv", csv_path, "--html", html_path, "--latency", "--samples", "20"];
    let sweep = ["sim", "--trace", trace, "--fractions", "0.2,0.5", "--policy", "all"];
    let output = haversack(&[&sweep[..], &files].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8(output.stdout).unwrap();
    for policy in ["core", "s3-fifo", "unlimited"] {
        assert!(table.contains(policy), "{table}");
    }
    let csv = std::fs::read_to_string(csv).unwrap();
    let columns: Vec<_> = csv.lines().map(|line| line.split(',').count()).collect();
    // Two sizes of each policy; MIN also has what the production cache holds at each.
    assert_eq!(columns.len(), 1 + 9 * 2 + 4 + 1);
    assert!(columns.iter().all(|count| *count == columns[0]), "{columns:?}");
    let html = std::fs::read_to_string(html).unwrap();
    assert!(html.contains("Miss ratio") && html.contains("Use of the cache") && html.contains("</html>"));
}

#[test]
fn advice_names_sizes_prices_and_reasons() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    let found = json(&[
        "advise",
        "--trace",
        trace.to_str().unwrap(),
        "--price-per-gib",
        "0.2",
        "--dwpd",
        "3",
        "--json",
    ]);
    let choices = found["choices"].as_array().unwrap();
    // No cache, and nine sizes, of which four are smaller than the smallest pool: it stands for them.
    assert_eq!((choices.len(), &choices[0]["size_bytes"]), (7, &0.into()));
    assert_eq!(
        (&choices[1]["size_bytes"], &choices[1]["held_bytes"]),
        (&(506 * 4096).into(), &(570 * 4096).into())
    );
    assert!(found["note"].as_str().unwrap().contains("506 blocks"), "{}", found["note"]);
    let last = &choices[choices.len() - 1];
    assert!(last["hit_ratio"].as_f64() > choices[1]["hit_ratio"].as_f64());
    assert!(last["mean_us"].as_f64() < choices[0]["mean_us"].as_f64());
    for choice in choices {
        assert!(choice["hit_ratio"].as_f64() <= choice["most_hit_ratio"].as_f64(), "{choice}");
    }
    assert!(choices.iter().filter(|choice| choice["knee"] == true).count() <= 1);
    assert!(found["reasons"].as_array().unwrap().len() >= 4);
}

#[test]
fn any_option_of_the_model_of_time_turns_it_on() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    let with = |options: &[&str]| {
        let sim =
            ["sim", "--trace", trace.to_str().unwrap(), "--blocks", "1200", "--policy", "lru", "--json"];
        json(&[&sim[..], options].concat())["latency"].clone()
    };
    assert!(with(&[]).is_null());
    let all = with(&["--latency"]);
    for default in [["--device-servers", "32"], ["--round-trip", "100us"]] {
        assert_eq!(with(&default), all, "{default:?}");
    }
}

#[test]
fn wrong_usage_says_what_was_expected() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    let trace = trace.to_str().unwrap();
    for (arguments, code, expected) in [
        (&["sim", "--trace", trace][..], 2, "--blocks"),
        (&["sim", "--trace", trace, "--blocks", "0"], 2, "at least one block"),
        (&["sim", "--trace", trace, "--blocks", "9", "--policy", "mru"], 2, "s3-fifo"),
        (
            &["sim", "--trace", trace, "--blocks", "9", "--mode", "wb", "--persistence", "none"],
            1,
            "persistence",
        ),
        (&["sim", "--trace", "/nonexistent", "--blocks", "9"], 1, "/nonexistent"),
        (&["sim", "--trace", trace, "--blocks", "9", "--key-bytes", "0"], 2, "--key-bytes"),
        (&["sim", "--trace", trace, "--blocks", "9", "--device-speed", "0"], 2, "device-speed: expected"),
        (&["advise", "--trace", trace, "--origin-servers", "0"], 2, "origin-servers: expected 1 to"),
        (
            &[
                "sim",
                "--trace",
                trace,
                "--blocks",
                "9,99",
                "--allocator",
                "none",
                "--decisions",
                "/nonexistent/d",
            ],
            2,
            "several sizes",
        ),
        (&["advise", "--trace", trace, "--samples", "9"], 2, "--samples"),
    ] {
        let output = haversack(arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(text.contains(expected), "{arguments:?}: {text}");
    }
}
