//! `haversack`: what a person types. See `haversack --help` and docs/cli.md.

mod arguments;
mod client;
mod error;
mod follow;
mod offline;
mod run;
mod show;
mod top;
mod trace;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let arguments = arguments::Arguments::parse();
    match run::run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("haversack: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
