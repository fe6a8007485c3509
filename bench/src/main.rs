//! `haversack-bench`: the core's figures beside its goals.

mod alloc;
mod driver;
mod hits;
mod media;
mod memory;
mod rng;
mod table;
mod traces;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: alloc::Counting = alloc::Counting;

const USAGE: &str = "\
usage: haversack-bench [memory|hits|traces|all] [--traces DIR] [--staging N]

  memory        RAM per cached block with 10 million cached blocks
  hits          read hits a second through the core alone
  traces        miss ratios and metadata writes on traces
  all           all of these (the default)
  --traces DIR  where the traces are (default ../shared/traces beside the repository)
  --staging N   staging frames for the traces (default 256, at least 64)";

struct Arguments {
    what: String,
    traces: PathBuf,
    staging: u32,
}

fn arguments() -> Result<Arguments, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut parsed = Arguments {
        what: "all".into(),
        traces: root.join("../shared/traces"),
        staging: traces::STAGING_FRAMES,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "memory" | "hits" | "traces" | "all" => parsed.what = word,
            "--traces" => parsed.traces = value()?.into(),
            "--staging" => {
                let text = value()?;
                let number = text.parse().ok().filter(|n| *n >= 64);
                parsed.staging = number.ok_or(format!("'{text}' is not a number of 64 or more"))?;
            }
            other => return Err(format!("unknown argument '{other}'")),
        }
    }
    Ok(parsed)
}

fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    let wants = |part: &str| arguments.what == part || arguments.what == "all";
    if wants("memory") {
        memory::run();
    }
    if wants("hits") {
        hits::run();
    }
    if wants("traces") {
        traces::run(&arguments.traces, arguments.staging);
    }
    ExitCode::SUCCESS
}
