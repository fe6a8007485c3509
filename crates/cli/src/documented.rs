//! The commands that the documents show are accepted by the command line.

use std::path::{Path, PathBuf};

use clap::Parser;
use clap::error::ErrorKind;

use crate::arguments::Arguments;

/// If fewer commands than this are found, the search no longer fits the documents.
const LEAST_COMMANDS: usize = 80;

/// Returns the documents: the README, the pages, the manual pages.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = |directory: &str| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(root.join(directory)).unwrap();
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect()
    };
    let pages = files("docs").into_iter().filter(|path| path.extension().is_some_and(|end| end == "md"));
    std::iter::once(root.join("README.md")).chain(pages).chain(files("packaging/man")).collect()
}

/// Returns the lines with commands in the blocks of code of a document, joined where they end with a backslash. Blocks
/// that also show output mark commands with a prompt, scripts do not.
fn command_lines(document: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut language = None;
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        if let Some(name) = line.trim_start().strip_prefix("```") {
            language = if language.is_some() { None } else { Some(name) };
            continue;
        }
        let command = match language {
            Some("sh") => Some(line.strip_prefix("$ ").unwrap_or(line)),
            Some("console" | "") => line.strip_prefix("$ ").or_else(|| line.strip_prefix("# ")),
            _ => None,
        };
        let Some(command) = command else { continue };
        let mut command = command.strip_prefix("sudo ").unwrap_or(command).to_owned();
        if !command.starts_with("haversack ") {
            continue;
        }
        while let Some(begun) = command.strip_suffix('\\') {
            command = format!("{begun} {}", lines.next().unwrap_or_default());
        }
        found.push(command);
    }
    found
}

/// Splits a command into words as a shell does, up to a comment, a redirection, or the next command.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = command.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None | Some('"'), '\\') => word.get_or_insert_default().extend(chars.next()),
            (None, '#') if word.is_none() => break,
            (None, '>') if word.as_deref() == Some("2") => return words,
            (None, '>' | '<' | '|' | ';' | '&') => break,
            (None, _) if c.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// Returns whether a command has a placeholder, or an argument that a shell computes.
fn is_pattern(command: &str, words: &[String]) -> bool {
    let is_placeholder =
        |rest: &str| rest.split_once('>').is_some_and(|(name, _)| !name.is_empty() && !name.contains(' '));
    command.split('<').skip(1).any(is_placeholder)
        || words.iter().any(|word| word.contains("...") || word.contains("$("))
}

#[test]
fn documented_commands_are_accepted() {
    let mut refused = Vec::new();
    let mut count = 0;
    for path in documents() {
        let text = std::fs::read_to_string(&path).unwrap();
        for command in command_lines(&text) {
            let words = words(&command);
            if is_pattern(&command, &words) {
                continue;
            }
            count += 1;
            match Arguments::try_parse_from(&words) {
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {}
                Err(error) => refused.push(format!("{}: {command}\n{error}", path.display())),
            }
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert!(count >= LEAST_COMMANDS, "only {count} commands were found");
}

#[test]
fn commands_are_split_as_by_a_shell() {
    for (command, expected) in [
        ("haversack disk list   # all of them", &["haversack", "disk", "list"][..]),
        ("haversack a 'b c' \"d 'e'\" f\\ g ''", &["haversack", "a", "b c", "d 'e'", "f g", ""][..]),
        ("haversack disk curve vm1 > vm1.json", &["haversack", "disk", "curve", "vm1"][..]),
        ("haversack status 2>/dev/null", &["haversack", "status"][..]),
        ("haversack status | less", &["haversack", "status"][..]),
        ("haversack x vms/vm1#1; rm y", &["haversack", "x", "vms/vm1#1"][..]),
    ] {
        assert_eq!(words(command), expected, "{command}");
    }
}

#[test]
fn commands_are_found_in_blocks_of_code() {
    let document = "haversack no\n```sh\nsudo haversack stop\n# haversack comment\nhaversack pool \\\n  list\n```\n\
                    ```console\n# haversack top\nhaversack output\n$ haversack status\n```\n```toml\nhaversack no\n```\n";
    let expected = ["haversack stop", "haversack pool    list", "haversack top", "haversack status"];
    assert_eq!(command_lines(document), expected);
    assert!(is_pattern("haversack disk show <NAME>", &[]));
}
