//! The commands that the documents show: the lines of blocks of code that are typed, each with the output shown for it.

use std::path::Path;

use crate::{Error, Result, tools};

/// What a typed line begins with where output is shown as well. A shell's own prompts are no part of the command.
const SHELL_PROMPTS: [&str; 2] = ["$ ", "# "];
/// The prompts of a guest's shell and of QEMU's monitor, which stay with the command: it is typed elsewhere.
const OTHER_PROMPTS: [&str; 2] = ["guest# ", "(qemu) "];

/// A command that a document shows.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The document, from the workspace's root.
    pub page: String,
    /// The line that it begins in, from 1.
    pub line: usize,
    /// The command as it is printed, with all its lines.
    pub text: String,
    /// The lines of output that are shown for it.
    pub output: Vec<String>,
}

impl Shown {
    /// Returns whether the document shows that the command fails: the last it prints is a program's complaint.
    pub fn fails(&self) -> bool {
        let programs = ["haversack: ", "haversackd: ", "haversack-ublk: "];
        self.output.last().is_some_and(|line| programs.iter().any(|program| line.starts_with(program)))
    }
}

/// Returns the documents with commands for users: the README and the pages, from the workspace's root.
///
/// # Errors
/// If they cannot be listed.
pub fn pages() -> Result<Vec<String>> {
    let entries = std::fs::read_dir(tools::workspace().join("docs")).map_err(Error::io("docs"))?.flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut pages: Vec<String> =
        names.filter(|name| name.ends_with(".md")).map(|name| format!("docs/{name}")).collect();
    pages.push("README.md".to_owned());
    pages.sort();
    Ok(pages)
}

/// Returns the commands that a document shows, in their order.
///
/// # Errors
/// If it cannot be read.
pub fn commands(page: &str) -> Result<Vec<Shown>> {
    let path = tools::workspace().join(Path::new(page));
    let text = std::fs::read_to_string(&path).map_err(Error::io(path.display().to_string()))?;
    Ok(commands_in(page, &text))
}

fn commands_in(page: &str, text: &str) -> Vec<Shown> {
    let mut found: Vec<Shown> = Vec::new();
    let mut language = None;
    // Whether the lines that come are output of the last command.
    let mut is_shown = false;
    let mut lines = text.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        if let Some(name) = line.trim_start().strip_prefix("```") {
            language = if language.is_some() { None } else { Some(name) };
            is_shown = false;
            continue;
        }
        let Some(typed) = typed(language, line) else {
            if let Some(last) =
                found.last_mut().filter(|_| is_shown && language != Some("sh") && !line.is_empty())
            {
                last.output.push(line.to_owned());
            }
            continue;
        };
        let mut text = typed.to_owned();
        while is_open(&text) {
            let Some((more, _)) = lines.next() else { break };
            text = text + "\n" + more;
        }
        found.push(Shown { page: page.to_owned(), line: number, text, output: Vec::new() });
        is_shown = true;
    }
    found
}

/// Returns what is typed in a line of a block of code. Blocks that also show output mark it with a prompt, scripts do
/// not.
fn typed<'a>(language: Option<&str>, line: &'a str) -> Option<&'a str> {
    match language? {
        "sh" => Some(line).filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#')),
        "console" | "" => SHELL_PROMPTS
            .iter()
            .find_map(|prompt| line.strip_prefix(prompt))
            .or_else(|| OTHER_PROMPTS.iter().any(|prompt| line.starts_with(prompt)).then_some(line)),
        _ => None,
    }
}

/// Returns whether a shell would wait for another line: in quotes, or after a backslash.
fn is_open(command: &str) -> bool {
    let mut quote = None;
    let mut before = ' ';
    let mut chars = command.chars().peekable();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(open), _) if open == c => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None | Some('"'), '\\') => {
                let Some(_) = chars.next() else { return true };
            }
            (None, '#') if before.is_whitespace() => while chars.next_if(|c| *c != '\n').is_some() {},
            _ => {}
        }
        before = c;
    }
    quote.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_with_their_output() {
        let document = "$ no\n```sh\n# no\na 'b\nc' \\\n  d   # it's\n\ne\n```\n```console\n# f\nout\n$ g\n\nhaversack: no\n\
                        guest# h\n```\n```toml\n$ no\n```\n```\n$ i\n```\n";
        let found = commands_in("x.md", document);
        let texts: Vec<&str> = found.iter().map(|shown| shown.text.as_str()).collect();
        assert_eq!(texts, ["a 'b\nc' \\\n  d   # it's", "e", "f", "g", "guest# h", "i"]);
        let lines: Vec<usize> = found.iter().map(|shown| shown.line).collect();
        assert_eq!(lines, [4, 8, 11, 13, 16, 22]);
        assert_eq!(found[2].output, ["out"]);
        let failing: Vec<bool> = found.iter().map(Shown::fails).collect();
        assert_eq!(failing, [false, false, false, true, false, false]);
    }
}
