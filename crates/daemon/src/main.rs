//! `haversackd`: see `haversackd --help` and docs/api.md.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use haversack_api::redact;
use haversack_daemon::config::Config;
use haversack_daemon::run;
use haversack_daemon::sandbox::SandboxConfig;

/// The Haversack daemon: a flash cache for the disks of virtual machines.
#[derive(Parser)]
#[command(name = "haversackd", version)]
struct Arguments {
    /// Path of the configuration file.
    #[arg(long, default_value = "/etc/haversack/haversackd.toml")]
    config: PathBuf,
    /// Check the configuration file and exit.
    #[arg(long)]
    check_config: bool,
}

/// Formats a number with its noun in the singular or plural.
fn count(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let load = if arguments.check_config { Config::load_thoroughly } else { Config::load };
    let config = match load(&arguments.config) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("haversackd: {}", redact::text(&error.to_string()));
            return ExitCode::from(2);
        }
    };
    if arguments.check_config {
        // The rest of the sandbox is left out: it would look into the pools' devices.
        if let Some(Err(error)) = config.sandbox.as_ref().map(SandboxConfig::rules) {
            eprintln!("haversackd: {}: {}", arguments.config.display(), redact::text(&error.to_string()));
            return ExitCode::from(2);
        }
        println!(
            "{}: {}, {}",
            arguments.config.display(),
            count(config.pools.len(), "pool"),
            count(config.disks.len(), "disk")
        );
        return ExitCode::SUCCESS;
    }
    match run::run(&arguments.config, &config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            eprintln!("haversackd: {}", redact::text(&error.to_string()));
            ExitCode::FAILURE
        }
    }
}
