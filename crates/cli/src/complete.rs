//! Completes command lines for shells: commands, options and paths, and the names that the daemon has.
//!
//! The script of a shell calls the hidden command `haversack complete` with the words up to the cursor. clap's own
//! scripts and `CompleteEnv` are not used: the one for zsh offers nothing at the first TAB when zsh loads it on demand,
//! the one for bash does not complete `--pool=ma`, and all offer options among the names.
//!
//! Invariants
//! - Only matches are written, and the command always succeeds, whatever happens.
//! - Options are offered only after '-': otherwise the name of the only disk would be one of many matches, and not
//!   completed.

mod names;

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::{Args, ValueEnum};
use clap_complete::engine::{self, CompletionCandidate, PathCompleter, ValueCompleter};

use crate::error::Result;
use crate::{grouped, output};

pub use names::Names;

/// Schemes of origins that a path follows.
const PATH_SCHEMES: [&str; 2] = ["file:", "qcow2:"];

/// `haversack complete`, which is for the scripts of [`Shell`].
#[derive(Args)]
pub struct Complete {
    /// The shell.
    shell: Shell,
    /// The words of the command line up to the cursor. The last one is to be completed, and may be empty.
    #[arg(last = true, required = true)]
    words: Vec<OsString>,
}

/// A shell in which names are completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Shell {
    /// Formats the matches, one per line, with a description where the shell can show one.
    fn lines(self, found: &[CompletionCandidate]) -> String {
        let line = |one: &CompletionCandidate| {
            let value = one.get_value().to_string_lossy();
            let help = one.get_help().map(ToString::to_string).unwrap_or_default();
            match (self, help.lines().next()) {
                (Shell::Zsh, None) => zsh_value(&value),
                (Shell::Zsh, Some(help)) => format!("{}:{}", zsh_value(&value), help.replace('\\', "\\\\")),
                (Shell::Fish, Some(help)) => format!("{value}\t{help}"),
                (Shell::Bash, _) | (Shell::Fish, None) => value.into_owned(),
            }
        };
        // A line break in a file name would split it into two matches.
        let lines = found.iter().filter(|one| !one.get_value().to_string_lossy().contains(['\n', '\t']));
        lines.map(|one| line(one) + "\n").collect()
    }
}

/// In zsh, a colon ends the value.
fn zsh_value(value: &str) -> String {
    value.replace('\\', "\\\\").replace(':', "\\:")
}

/// Returns the completion script of a shell, or `None` for a shell that gets clap's.
pub fn script(shell: clap_complete::Shell) -> Option<&'static str> {
    match shell {
        clap_complete::Shell::Bash => Some(include_str!("complete/haversack.bash")),
        clap_complete::Shell::Zsh => Some(include_str!("complete/haversack.zsh")),
        clap_complete::Shell::Fish => Some(include_str!("complete/haversack.fish")),
        _ => None,
    }
}

/// Writes the completions of the last word.
pub fn run(complete: &Complete) -> Result<()> {
    let words = complete.words.clone();
    let found = match complete.shell {
        Shell::Bash => {
            let (words, prefix) = joined(words);
            without_prefix(&fitting(words), &prefix)
        }
        Shell::Zsh | Shell::Fish => fitting(words),
    };
    output::write(&complete.shell.lines(&found))
}

/// Returns the completions of the last word.
fn fitting(words: Vec<OsString>) -> Vec<CompletionCandidate> {
    let Some(last) = words.len().checked_sub(1) else { return Vec::new() };
    let begins_option = words[last].to_string_lossy().starts_with('-');
    let mut command = names::answered(grouped::command(), &words[..last]);
    let here = std::env::current_dir().ok();
    let found = engine::complete(&mut command, words, last, here.as_deref());
    let mut found = found.unwrap_or_default();
    if !begins_option {
        found.retain(|one| !one.get_value().to_string_lossy().starts_with('-'));
    }
    found
}

/// Joins what bash has split at '=', ':' and '@', which it treats as word breaks. Returns the words, and the
/// part of the last one that bash does not expect in a completion.
fn joined(split: Vec<OsString>) -> (Vec<OsString>, String) {
    let is_joint = |word: &OsStr| {
        word.to_str().is_some_and(|word| !word.is_empty() && word.chars().all(|c| "=:@".contains(c)))
    };
    let mut words: Vec<OsString> = Vec::new();
    let mut prefix = OsString::new();
    let mut continues = false;
    for word in split {
        let joint = is_joint(&word);
        match words.last_mut().filter(|_| joint || continues) {
            Some(last) => {
                prefix.clone_from(last);
                last.push(&word);
            }
            None => {
                prefix.clear();
                words.push(word);
            }
        }
        continues = joint;
    }
    (words, prefix.to_string_lossy().into_owned())
}

/// Removes the prefix that bash does not expect in a completion.
fn without_prefix(found: &[CompletionCandidate], prefix: &str) -> Vec<CompletionCandidate> {
    let rest = |one: &CompletionCandidate| {
        let value = one.get_value().to_string_lossy().into_owned();
        value.strip_prefix(prefix).map(CompletionCandidate::new)
    };
    found.iter().filter_map(rest).collect()
}

/// Completes an origin: a path, also after a scheme that a path follows.
pub fn origin(current: &OsStr) -> Vec<CompletionCandidate> {
    let text = current.to_string_lossy();
    let scheme = PATH_SCHEMES.into_iter().find(|scheme| text.starts_with(scheme)).unwrap_or_default();
    let paths = paths(Path::new(&text[scheme.len()..]).as_os_str());
    paths.into_iter().map(|path| path.add_prefix(scheme)).collect()
}

/// Completes a path.
fn paths(current: &OsStr) -> Vec<CompletionCandidate> {
    PathCompleter::any().complete(current)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    fn values(found: &[CompletionCandidate]) -> Vec<String> {
        found.iter().map(|one| one.get_value().to_string_lossy().into_owned()).collect()
    }

    /// A command line without a daemon.
    fn fitting_alone(text: &str) -> Vec<String> {
        values(&fitting(words(&text.replacen("haversack", "haversack --socket /nowhere/control.sock", 1))))
    }

    #[test]
    fn commands_and_options_are_completed() {
        assert_eq!(fitting_alone("haversack mig"), ["migrate"]);
        assert_eq!(fitting_alone("haversack pool wi"), ["wipe"]);
        assert_eq!(fitting_alone("haversack disk attach --accept-l"), ["--accept-loss"]);
        let commands = fitting_alone("haversack ");
        assert!(commands.contains(&"flush-offline".into()), "{commands:?}");
        assert!(!commands.iter().any(|one| one.starts_with('-') || one == "complete"), "{commands:?}");
    }

    #[test]
    fn without_a_daemon_nothing_fits_a_name() {
        for text in
            ["haversack disk show ", "haversack disk attach vm1 /x --pool ", "haversack migrate vm1 --to "]
        {
            assert!(fitting_alone(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn paths_of_devices_and_origins_are_completed() {
        // The crate's directory, in which its tests run, has this file.
        for (text, fits) in [
            ("haversack pool wipe Carg", "Cargo.toml"),
            ("haversack pool add Carg", "Cargo.toml"),
            ("haversack disk attach vm1 Carg", "Cargo.toml"),
            ("haversack disk attach vm1 file:Carg", "file:Cargo.toml"),
            ("haversack disk attach vm1 qcow2:./sr", "qcow2:./src/"),
            ("haversack flush-offline vm1 /x --origin Carg", "Cargo.toml"),
        ] {
            assert_eq!(fitting_alone(text), [fits], "{text}");
        }
    }

    #[test]
    fn what_bash_splits_is_joined() {
        for (split, whole, prefix) in [
            ("a b", "a b", ""),
            ("a --pool = ma", "a --pool=ma", "--pool="),
            ("a --pool = ", "a --pool=", "--pool="),
            ("a --socket = /x disk show v", "a --socket=/x disk show v", ""),
            ("a attach vm1 nbd : //host : 10", "a attach vm1 nbd://host:10", "nbd://host:"),
            ("a rbd : vms/vm1 @ monday x", "a rbd:vms/vm1@monday x", ""),
        ] {
            let (joined, not_repeated) = joined(words(split));
            assert_eq!((joined, not_repeated.as_str()), (words(whole), prefix), "{split}");
        }
        let found = ["--pool=main", "--pool=fast"].map(CompletionCandidate::new);
        assert_eq!(values(&without_prefix(&found, "--pool=")), ["main", "fast"]);
    }

    #[test]
    fn each_shell_gets_lines_that_it_understands() {
        let found = [
            CompletionCandidate::new("pci-0:1").help(Some("a\\b\nmore".into())),
            CompletionCandidate::new("vm1"),
            CompletionCandidate::new("two\nlines"),
        ];
        assert_eq!(Shell::Bash.lines(&found), "pci-0:1\nvm1\n");
        assert_eq!(Shell::Zsh.lines(&found), "pci-0\\:1:a\\\\b\nvm1\n");
        assert_eq!(Shell::Fish.lines(&found), "pci-0:1\ta\\b\nvm1\n");
    }
}
