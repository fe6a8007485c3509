//! The tests that safety.md and security.md name for what they promise are there, and each promise names one.

use std::path::{Path, PathBuf};

use haversack_e2e::error::check;
use haversack_e2e::{Error, Result, tools};

const DOCUMENTS: [&str; 2] = ["docs/safety.md", "docs/security.md"];
/// Where tests are.
const SOURCES: [&str; 2] = ["crates", "tests"];
/// A name with as many underscores is that of a test, and not of a setting or a type.
const UNDERSCORES_OF_A_TEST: usize = 3;
/// What a row says in place of a test, before the reason why there is none.
const WITHOUT: &str = "none: ";

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(Error::io(path.display().to_string()))
}

fn add_sources(directory: &Path, sources: &mut Vec<(PathBuf, String)>) -> Result<()> {
    let entries = std::fs::read_dir(directory).map_err(Error::io(directory.display().to_string()))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            add_sources(&path, sources)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = read(&path)?;
            sources.push((path, text));
        }
    }
    Ok(())
}

/// Returns what stands between backticks and names a test: `name`, `file::name` or `file::*`.
fn tests_of(document: &str) -> impl Iterator<Item = (Option<&str>, &str)> {
    let named = document.split('`').skip(1).step_by(2).filter_map(|code| {
        let (file, name) = code.rsplit_once("::").map_or((None, code), |(file, name)| (Some(file), name));
        let is_name =
            |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        let is_test = match file {
            Some(file) => is_name(file) && (name == "*" || is_name(name)),
            None => is_name(name) && name.matches('_').count() >= UNDERSCORES_OF_A_TEST,
        };
        is_test.then_some((file, name))
    });
    named.collect::<Vec<_>>().into_iter()
}

/// Returns the rows of all tables whose last column is that of tests, each with what is in that column.
fn tested_rows(document: &str) -> Vec<(&str, &str)> {
    let mut rows = Vec::new();
    let mut is_of_tests = false;
    for line in document.lines() {
        let cells = line.strip_prefix("| ").and_then(|line| line.trim_end().strip_suffix(" |"));
        let Some(cells) = cells else {
            is_of_tests &= line.starts_with("|-");
            continue;
        };
        let last = cells.rsplit_once(" | ").map_or(cells, |(_, last)| last);
        if is_of_tests {
            rows.push((line, last));
        }
        is_of_tests |= matches!(last, "test" | "tests");
    }
    rows
}

/// Returns whether a text names a test, or a file or directory of tests.
fn names_a_test(text: &str) -> bool {
    let is_path = |word: &str| {
        let is_of_tests = word.split('/').any(|part| part == "tests" || part == "crash");
        is_of_tests && word.contains('/') && tools::workspace().join(word).exists()
    };
    tests_of(text).next().is_some() || text.split([' ', ',', ';', '`', '(', ')']).any(is_path)
}

fn has_test(text: &str, name: &str) -> bool {
    let has_tests = ["#[test]", "#[tokio::test]"].iter().any(|attribute| text.contains(attribute));
    has_tests && (name == "*" || text.contains(&format!("fn {name}(")))
}

#[test]
fn the_tests_that_documents_name_exist() -> Result<()> {
    let mut sources = Vec::new();
    for directory in SOURCES {
        add_sources(&tools::workspace().join(directory), &mut sources)?;
    }
    let mut count = 0;
    for document in DOCUMENTS {
        let text = read(&tools::workspace().join(document))?;
        for (file, name) in tests_of(&text) {
            let is_in =
                |path: &Path| file.is_none_or(|file| path.file_stem().is_some_and(|stem| stem == file));
            let found = sources.iter().any(|(path, text)| is_in(path) && has_test(text, name));
            check(
                found,
                format!("{document} names the test {}::{name}, which is not there", file.unwrap_or("")),
            )?;
            count += 1;
        }
        for path in text.split('`').filter(|code| SOURCES.iter().any(|s| code.starts_with(&format!("{s}/"))))
        {
            check(
                tools::workspace().join(path).exists(),
                format!("{document} names {path}, which is not there"),
            )?;
        }
    }
    check(count > 50, format!("{count} names of tests are found: does the search still fit the documents?"))
}

#[test]
fn every_promise_names_its_test() -> Result<()> {
    let mut count = 0;
    for document in DOCUMENTS {
        let text = read(&tools::workspace().join(document))?;
        for (row, tests) in tested_rows(&text) {
            let is_explained = tests.strip_prefix(WITHOUT).is_some_and(|why| !why.trim().is_empty());
            let what = format!("{document}: a row names no test, nor '{WITHOUT}' and why: {row}");
            check(is_explained || names_a_test(tests), what)?;
            count += 1;
        }
    }
    check(count > 60, format!("{count} rows are found: does the search still fit the documents?"))
}
