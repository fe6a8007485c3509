//! `haversack`, the command line. See `haversack --help` and docs/cli.md.

mod advise;
mod analyze;
mod arguments;
mod client;
mod cluster;
mod compare;
mod compare_cluster;
mod compare_migration;
mod complete;
mod configure;
#[cfg(test)]
mod documented;
mod error;
mod events;
mod flush_offline;
mod follow;
mod generate;
mod grouped;
mod loans;
mod migrate;
mod mix_options;
mod offline;
mod output;
mod own;
mod paper;
#[cfg(feature = "parquet")]
mod parquet;
mod place;
mod policy;
mod pools;
mod quiesce;
mod record;
mod run;
mod show;
mod sim;
mod support;
mod top;
mod trace;
mod window;

use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory, FromArgMatches};

use arguments::Arguments;
use error::CliError;

fn main() -> ExitCode {
    let (as_json, end) = match parsed() {
        Ok((arguments, name)) => {
            let end = run::run(&arguments).map_err(|error| error.of_command(&name));
            (arguments.json, end)
        }
        // Requested help and version texts are not errors.
        Err(error) if error.use_stderr() && wants_json() => {
            (true, Err(CliError::Usage(error.to_string().trim_end().to_owned())))
        }
        Err(error) => error.exit(),
    };
    match end {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(as_json, &error);
            ExitCode::from(error.exit_code())
        }
    }
}

/// Returns what the user has typed, and the name of the command: `disk attach`.
fn parsed() -> Result<(Arguments, String), clap::Error> {
    let mut matches = grouped::command().try_get_matches()?;
    let name = command_name(&matches);
    let arguments = Arguments::from_arg_matches_mut(&mut matches)
        .map_err(|error| error.format(&mut Arguments::command()))?;
    Ok((arguments, name))
}

fn command_name(matches: &ArgMatches) -> String {
    let mut names = Vec::new();
    let mut inner = matches.subcommand();
    while let Some((name, matches)) = inner {
        names.push(name);
        inner = matches.subcommand();
    }
    names.join(" ")
}

/// Returns whether the user wants JSON, if the arguments cannot be parsed.
fn wants_json() -> bool {
    std::env::args_os().any(|argument| argument == "--json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_named_with_its_subcommands() {
        for (typed, name) in [
            ("haversack disk attach vm1 /srv/vm1.raw", "disk attach"),
            ("haversack --json migrate vm1 --to beta", "migrate"),
            ("haversack stop --quiet", "stop"),
        ] {
            let matches = grouped::command().try_get_matches_from(typed.split(' ')).unwrap();
            assert_eq!(command_name(&matches), name);
        }
    }
}
