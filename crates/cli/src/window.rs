//! `haversack trace window`: how long the policy's window should be for each volume, by CloudCache's rule.

use std::collections::BTreeMap;

use clap::Args;
use haversack_api::{Size, Span};
use haversack_model::{BLOCK_BYTES, Micros};
use haversack_policy::demand::knee::{LengthTried, choose_length, try_length};
use haversack_report::Table;
use haversack_trace::Op;
use serde::Serialize;

use crate::error::{CliError, Result};
use crate::output::print;
use crate::trace::{Traces, failed};

/// Distinct blocks of a window that are counted; more are estimated.
const PLACES: u32 = 1 << 20;

/// What to try.
#[derive(Args)]
pub struct Window {
    #[command(flatten)]
    traces: Traces,
    /// Lengths to try. Those that do not fit twice into the time of a volume are left out.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "10s,30s,1min,2min,5min,10min,30min,1h,2h,4h,8h,12h,24h,48h"
    )]
    lengths: Vec<Span>,
    /// Number of reuses of a block that count as demand, 1 to 4.
    #[arg(long, default_value_t = 1)]
    reuses: u8,
}

/// The result for a volume.
#[derive(Serialize)]
struct Found {
    volume: String,
    /// The length at the knee, or the shortest if there is no clear knee.
    chosen_us: Micros,
    tried: Vec<LengthTried>,
}

/// Runs the command.
pub fn run(arguments: &Window, as_json: bool) -> Result<()> {
    let mut source = arguments.traces.open()?;
    let mut of_volumes: BTreeMap<u32, Vec<(Micros, u64)>> = BTreeMap::new();
    let mut batch = Vec::new();
    while source.read(&mut batch).map_err(failed)? > 0 {
        for access in batch.drain(..).filter(|access| matches!(access.op, Op::Read | Op::Write)) {
            let blocks = access.blocks(BLOCK_BYTES as u64);
            let accesses = of_volumes.entry(access.volume.0).or_default();
            accesses.extend(blocks.map(|block| (access.time_ns / 1000, block)));
        }
    }
    let mut found = Vec::new();
    for (volume, accesses) in of_volumes {
        let name = source.volumes().get(volume as usize).cloned().unwrap_or_default();
        let tried = arguments.try_all(&accesses)?;
        if let Some(chosen_us) = choose_length(&tried) {
            found.push(Found { volume: name, chosen_us, tried });
        }
    }
    if found.is_empty() {
        let why = "no volume lasts twice as long as the shortest of --lengths: give shorter ones, or a longer trace";
        return Err(CliError::Usage(why.into()));
    }
    print(as_json, &found, &table(&found).to_text())
}

impl Window {
    /// Tries the lengths that fit twice into the time of a volume.
    fn try_all(&self, accesses: &[(Micros, u64)]) -> Result<Vec<LengthTried>> {
        let span_us = accesses.first().zip(accesses.last()).map_or(0, |(first, last)| last.0 - first.0);
        let lengths = self.lengths.iter().map(|length| length.as_micros());
        let mut lengths: Vec<Micros> = lengths.filter(|length_us| *length_us <= span_us / 2).collect();
        lengths.sort_unstable();
        lengths.dedup();
        let tried = lengths.into_iter().map(|length_us| try_length(accesses, length_us, self.reuses, PLACES));
        tried.collect::<std::result::Result<_, _>>().map_err(|error| CliError::Usage(error.to_string()))
    }
}

fn table(found: &[Found]) -> Table {
    let mut table = Table::new(["volume", "window", "hits", "mean size"]);
    for Found { volume, chosen_us, tried } in found {
        for LengthTried { length_us, hit_ratio, mean_blocks } in tried {
            let cells = [
                volume.clone(),
                Span(std::time::Duration::from_micros(*length_us)).to_string(),
                format!("{:.1} %", hit_ratio * 100.0),
                Size((mean_blocks * BLOCK_BYTES as f64) as u64).rounded(),
            ];
            if length_us == chosen_us { table.marked_row(cells) } else { table.row(cells) }
        }
    }
    table
}
