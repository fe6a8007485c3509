//! Comparisons as CSV: a line for each simulated pool.

use std::fmt::Write;

use super::Comparison;

const COLUMNS: &str = "mix,allocator,admission,write_mode,window_s,seed,fraction,write_budget,blocks,read_hit_ratio,hit_ratio,mean_us,\
                       p95_us,flash_writes,flash_write_ratio,origin_bytes,usage_blocks,decision_ms";

/// All pools of all mixes.
pub fn csv(comparisons: &[Comparison]) -> String {
    let mut text = format!("{COLUMNS}\n");
    for comparison in comparisons {
        for row in &comparison.combinations {
            let system = &row.system;
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}",
                quoted(&comparison.mix.title),
                system.allocator,
                system.admission,
                system.write_mode,
                row.window_s,
                row.seed,
                row.fraction,
                row.write_budget.map_or_else(String::new, |blocks| blocks.to_string()),
                row.blocks,
                row.read_hit_ratio.map_or_else(String::new, |hits| hits.to_string()),
                row.hit_ratio,
                row.mean_us,
                row.p95_us,
                row.flash_writes,
                row.flash_write_ratio,
                row.origin_bytes,
                row.usage_blocks,
                row.decision_ms,
            );
        }
    }
    text
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}
