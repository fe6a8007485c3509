//! `haversack advise`: how much flash to buy for a trace, and why.

use std::path::PathBuf;

use clap::Args;
use haversack_api::Size;
use haversack_sim::Sizes;
use haversack_sim::advise::{self, Flash};

use crate::error::{CliError, Result};
use crate::sim::{Bar, Common, refused, write};

/// The cache sizes tried if none are given, as parts of the footprint.
const PARTS: [f64; 9] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0];

/// What to weigh.
#[derive(Args)]
pub struct Advise {
    /// Price of a GiB of flash, in your currency.
    #[arg(long, default_value_t = 0.1)]
    pub price_per_gib: f64,
    /// Endurance in drive writes per day over the warranty period.
    #[arg(long, default_value_t = 1.0, conflicts_with = "tbw")]
    pub dwpd: f64,
    /// Warranty period in years for the drive writes per day.
    #[arg(long, default_value_t = 5.0)]
    pub warranty_years: f64,
    /// Endurance of a device of --device-size in terabytes written.
    #[arg(long, requires = "device_size")]
    pub tbw: Option<f64>,
    /// Size of the device that --tbw refers to.
    #[arg(long, requires = "tbw")]
    pub device_size: Option<Size>,
    /// Internal write amplification of the device.
    #[arg(long, default_value_t = 1.5)]
    pub write_amplification: f64,
    /// Write an HTML page with curves to this file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    #[command(flatten)]
    pub common: Common,
}

/// Runs the command.
pub fn run(arguments: &Advise, as_json: bool) -> Result<()> {
    let failed = |error: serde_json::Error| CliError::Failed(error.to_string());
    let full_writes = match (arguments.tbw, arguments.device_size) {
        (Some(terabytes), Some(size)) => Flash::full_writes_of_tbw(terabytes, size.0),
        _ => Flash::full_writes_of_dwpd(arguments.dwpd, arguments.warranty_years),
    };
    let flash = Flash {
        price_per_gib: arguments.price_per_gib,
        full_writes,
        write_amplification: arguments.write_amplification,
    };
    let common = &arguments.common;
    if common.samples > 0 {
        let why = "--samples: advice has no series over time; leave it out, or use 'haversack sim'";
        return Err(CliError::Usage(why.into()));
    }
    let settings = match common.settings()? {
        Some(settings) => settings,
        None => common.settings_of(Sizes::Fractions(PARTS.to_vec()))?,
    };
    let bar = Bar::new()?;
    let advice = advise::advise(&|| common.open(), &settings, flash, &|stage, part| bar.show(stage, part));
    bar.end();
    let advice = advice.map_err(refused)?;
    let title = format!("Flash for {}", common.title());
    write(arguments.html.as_ref(), || advise::page(&advice, &title).to_html())?;
    if as_json {
        println!("{}", serde_json::to_string_pretty(&advice).map_err(failed)?);
        return Ok(());
    }
    println!("{}\n", advice.trace);
    println!("{}", advise::table(&advice).to_text());
    for reason in &advice.reasons {
        println!("{reason}");
    }
    Ok(())
}
