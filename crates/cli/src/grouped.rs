//! The command line as clap knows it, with the commands in groups.

use std::fmt::Write;

use clap::CommandFactory;
use clap::builder::Styles;

use crate::arguments::Arguments;

/// The groups of commands, in the order of the help.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Pools and disks", &["pool", "disk", "flush-offline"]),
    ("Hosts", &["migrate", "host", "cluster", "tenant", "loan"]),
    ("The daemon", &["status", "top", "events", "policy", "support-bundle", "stop"]),
    (
        "Traces and simulations, without the daemon",
        &["trace", "analyze", "sim", "advise", "compare", "compare-migration", "compare-cluster", "paper"],
    ),
    ("Other commands", &["completions", "man", "help"]),
];

/// Returns the command line, with a help text in which the commands are grouped.
pub fn command() -> clap::Command {
    let command = Arguments::command();
    let template = template(&command);
    command.help_template(template)
}

fn template(command: &clap::Command) -> String {
    let styles = Styles::styled();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let mut out = "{before-help}{about-with-newline}\n{usage-heading} {usage}\n\n".to_owned();
    for (title, names) in GROUPS {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{header}{title}:{header:#}");
        for name in names {
            let _ = writeln!(out, "  {literal}{name:<18}{literal:#}{}", purpose(command, name));
        }
        out.push('\n');
    }
    let _ = write!(out, "{header}Options:{header:#}\n{{options}}{{after-help}}");
    out
}

/// Returns the first part of a command's description, which fits a line.
fn purpose(command: &clap::Command, name: &str) -> String {
    let about = command.find_subcommand(name).and_then(clap::Command::get_about);
    let about =
        about.map_or_else(|| "Print this message or the help of a command".into(), ToString::to_string);
    let sentence = about.split(". ").next().unwrap_or_default();
    let short = sentence.split(": ").next().unwrap_or_default();
    short.trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_command_is_in_a_group() {
        let command = Arguments::command();
        let known: BTreeSet<&str> =
            command.get_subcommands().filter(|one| !one.is_hide_set()).map(clap::Command::get_name).collect();
        let grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let all: BTreeSet<&str> = grouped.iter().copied().filter(|name| *name != "help").collect();
        assert_eq!(all, known);
        assert_eq!(grouped.len(), known.len() + 1, "a command is in two groups");
    }

    #[test]
    fn the_help_has_groups_and_options() {
        let help = command().render_help().to_string();
        for text in [
            "Pools and disks:\n  pool ",
            "flush-offline     Write ",
            "Usage: haversack",
            "--socket",
            "help  ",
        ] {
            assert!(help.contains(text), "no '{text}' in:\n{help}");
        }
    }
}
