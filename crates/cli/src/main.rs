//! `haversack`, the command line. See `haversack --help` and docs/cli.md.

mod advise;
mod analyze;
mod arguments;
mod client;
mod compare;
mod compare_migration;
mod error;
mod events;
mod flush_offline;
mod follow;
mod generate;
mod migrate;
mod mix_options;
mod offline;
mod output;
mod own;
mod paper;
#[cfg(feature = "parquet")]
mod parquet;
mod policy;
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

use clap::Parser;

use arguments::Arguments;
use error::CliError;

fn main() -> ExitCode {
    let (as_json, end) = match Arguments::try_parse() {
        Ok(arguments) => (arguments.json, run::run(&arguments)),
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

/// Returns whether the user wants JSON, if the arguments cannot be parsed.
fn wants_json() -> bool {
    std::env::args_os().any(|argument| argument == "--json")
}
