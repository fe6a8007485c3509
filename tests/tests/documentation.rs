//! The documentation: every page is in the book, every link leads somewhere.

use std::collections::BTreeSet;
use std::path::Path;

use haversack_e2e::error::check;
use haversack_e2e::{Error, Result, test, tools};

/// The pages that are not in `docs`.
const OTHERS: [&str; 4] = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "tests/pools/README.md"];

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(Error::io(path.display().to_string()))
}

/// The pages in `docs`.
fn pages() -> Result<BTreeSet<String>> {
    let directory = tools::workspace().join("docs");
    let entries = std::fs::read_dir(&directory).map_err(Error::io("docs"))?.flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names.filter(|name| name.ends_with(".md")).collect())
}

/// What a page links to: its text between `](` and `)`.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link)
}

/// A heading as GitHub and mdBook make an anchor of it.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[test]
fn every_page_is_in_the_book() {
    test("the book", |_| {
        let summary = read(&tools::workspace().join("docs/SUMMARY.md"))?;
        let listed: BTreeSet<String> = links(&summary).map(str::to_owned).collect();
        let mut pages = pages()?;
        pages.remove("SUMMARY.md");
        check(listed == pages, format!("docs/SUMMARY.md has {listed:?}, the pages are {pages:?}"))
    });
}

#[test]
fn every_link_leads_somewhere() {
    test("links", |place| {
        let root = tools::workspace();
        let names = pages()?.into_iter().map(|name| format!("docs/{name}"));
        let mut checked = 0;
        for name in names.chain(OTHERS.map(String::from)) {
            let page = root.join(&name);
            let text = read(&page)?;
            for link in links(&text).filter(|link| !link.contains("://")) {
                let (path, part) = link.split_once('#').unwrap_or((link, ""));
                let there = if path.is_empty() { page.clone() } else { page.with_file_name("").join(path) };
                check(there.exists(), format!("{name}: {link} does not exist"))?;
                // `make docs` copies what is outside of the book; a page would get another name there.
                let is_outside = name.starts_with("docs/") && path.starts_with("../");
                check(
                    !(is_outside && path.ends_with(".md")),
                    format!("{name}: {link} is no page of the book"),
                )?;
                if !part.is_empty() && there.extension().is_some_and(|extension| extension == "md") {
                    let headings = read(&there)?;
                    let found = headings.lines().any(|line| line.starts_with('#') && anchor(line) == part);
                    check(found, format!("{name}: {link}: no such heading"))?;
                }
                checked += 1;
            }
        }
        place.say(&format!("{checked} links"));
        check(checked > 50, "too few links were found")
    });
}

#[test]
fn the_version_has_release_notes() -> Result<()> {
    let manifest = read(&tools::workspace().join("Cargo.toml"))?;
    let package = manifest.split_once("[workspace.package]").map_or("", |(_, rest)| rest);
    let version = package.lines().find_map(|line| line.strip_prefix("version = "));
    let version = version.unwrap_or_default().trim_matches('"');
    check(!version.is_empty(), "Cargo.toml has no version")?;
    let notes = read(&tools::workspace().join("CHANGELOG.md"))?;
    let mut entries = notes.lines().filter_map(|line| line.strip_prefix("## "));
    check(entries.next() == Some("Unreleased"), "CHANGELOG.md does not begin with what is unreleased")?;
    let is_it = |entry: &str| entry.split_whitespace().next() == Some(version);
    check(entries.any(is_it), format!("CHANGELOG.md has no entry for {version}"))
}
