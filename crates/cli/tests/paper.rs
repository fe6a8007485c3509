//! `haversack paper` from the outside.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn haversack(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_haversack")).args(arguments).output().unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let output = haversack(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text(folder: &Path) -> &str {
    folder.to_str().unwrap()
}

#[test]
fn every_paper_has_figures() {
    let listed = json(&["--json", "paper", "list"]);
    let names: Vec<&str> =
        listed.as_array().unwrap().iter().map(|figure| figure["name"].as_str().unwrap()).collect();
    for name in ["cloudcache/3.2", "vcacheshare/5", "eci-cache/C.1", "firepanif/table-1", "liu/10"] {
        assert!(names.contains(&name), "{names:?}");
    }
}

#[test]
fn a_figure_is_made_and_has_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let made = json(&["--json", "paper", "run", "liu/table-2", "--output", text(folder.path())]);
    let figure = &made[0]["figures"][0];
    assert_eq!(figure["name"], "liu/table-2");
    assert_eq!(figure["points"].as_array().unwrap().len(), 4);
    assert!(figure["claims"].as_array().unwrap().iter().all(|claim| claim["verdict"] == "same"), "{figure}");
    // A page of one figure does not replace that of its paper.
    let page = std::fs::read_to_string(folder.path().join("liu-table-2.html")).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("<svg"));
    assert!(!folder.path().join("liu.html").exists());
}

#[test]
fn wrong_usage_says_what_was_expected() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, expected) in [
        (&["paper", "run", "liu/11"][..], "expected cloudcache, vcacheshare, eci-cache, firepanif, liu"),
        (&["paper", "run", "vcacheshare/5", "--msr", text(folder.path())][..], "src1_0, prxy_1"),
    ] {
        let output = haversack(arguments);
        let why = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{why}");
        assert!(why.contains(expected), "{why}");
    }
}
