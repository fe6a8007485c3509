//! The documentation: every page is in the book, every link leads somewhere.

use std::collections::BTreeSet;
use std::path::Path;

use haversack_e2e::error::check;
use haversack_e2e::{Error, Result, test, tools};

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
        for name in names.chain(["README.md".into(), "ARCHITECTURE.md".into()]) {
            let page = root.join(&name);
            let text = read(&page)?;
            for link in links(&text).filter(|link| !link.contains("://")) {
                let (path, part) = link.split_once('#').unwrap_or((link, ""));
                let there = if path.is_empty() { page.clone() } else { page.with_file_name("").join(path) };
                check(there.exists(), format!("{name}: {link} does not exist"))?;
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
