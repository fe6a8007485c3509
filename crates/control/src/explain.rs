//! Explains a decision in words.

mod learned;

use std::fmt::Write;

use haversack_model::BLOCK_BYTES;
use haversack_policy::allocate::Target;
use haversack_policy::demand::knee::LengthTried;
use haversack_policy::demand::running_knee::Knee;
use haversack_policy::{DiskInput, DiskPlan, DiskWindow, WindowStage};

use crate::control::Decision;
use crate::error::ControlError;

pub use learned::admission;

/// Explains a disk's share and settings: what was measured of it, what was decided, and by which rule.
///
/// # Errors
/// `NotDecided` if the decision does not include the disk.
pub fn explain(decision: &Decision, disk: &str) -> Result<String, ControlError> {
    let input = decision.inputs.disks.iter().find(|input| input.name == disk);
    let (Some(input), Some(plan)) = (input, decision.plan.disks.get(disk)) else {
        let names: Vec<&str> = decision.plan.disks.keys().map(String::as_str).collect();
        let known = if names.is_empty() { "none".into() } else { names.join(", ") };
        return Err(ControlError::NotDecided { disk: disk.into(), known });
    };
    let mut text = format!("{disk} is {}.\n", input.state.name());
    match &input.window {
        Some(window) => text.push_str(&measured(window, input.window_stage)),
        None => text.push_str("No window has been measured yet.\n"),
    }
    text.push_str(&input.knee.as_ref().map_or(String::new(), at_knee));
    text.push_str(&decided(decision, input, plan));
    text.push_str(&more(decision, input));
    Ok(text)
}

/// Formats a size: blocks, and their size in bytes.
fn size(blocks: u64) -> String {
    let bytes = blocks as f64 * BLOCK_BYTES as f64;
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit =
        (0..units.len() - 1).find(|unit| bytes < 1024f64.powi(*unit as i32 + 1)).unwrap_or(units.len() - 1);
    format!("{blocks} blocks ({:.1} {})", bytes / 1024f64.powi(unit as i32), units[unit])
}

fn measured(window: &DiskWindow, stage: WindowStage) -> String {
    let mut text = String::new();
    let which = if stage == WindowStage::SoFar { "Window so far" } else { "Last window" };
    let seconds = window.length_us as f64 / 1e6;
    let percent = |ratio: f64| ratio * 100.0;
    let _ = writeln!(
        text,
        "{which} ({seconds:.0} s): {} blocks read, {:.1} % from the cache; {} written; {:.1} % of all accesses \
         overwrote a block accessed before.",
        window.reads,
        percent(window.hit_ratio()),
        window.writes,
        percent(window.overwrite_ratio()),
    );
    let reused = window.rwss_blocks.first().copied().unwrap_or(0);
    let _ = writeln!(text, "Distinct blocks: {}. Used again: {}.", size(window.wss_blocks), size(reused));
    let _ = writeln!(
        text,
        "Cache needed for every possible hit: {}; for read hits after reads and writes: {}; after reads alone: {}.",
        size(window.trd.blocks_needed()),
        size(window.urd.blocks_needed()),
        size(window.read_only.blocks_needed()),
    );
    text.push_str(&accuracy(window));
    text
}

/// Says how long the disk's window is, and what it was chosen from.
fn at_knee(knee: &Knee) -> String {
    let seconds = |us: u64| us as f64 / 1e6;
    let tried = |length: &LengthTried| {
        format!("{:.1} % at {} s", length.hit_ratio * 100.0, seconds(length.length_us))
    };
    let tried: Vec<String> = knee.tried.iter().map(tried).collect();
    format!("Window at the knee: {} s. Hits by length: {}.\n", seconds(knee.length_us), tried.join(", "))
}

/// Says how accurate these sizes are. Figures of earlier versions do not say.
fn accuracy(window: &DiskWindow) -> String {
    let largest = window.trd.blocks_needed().max(window.read_only.blocks_needed());
    match window.sampled.zip(window.distance_error(largest)) {
        None => String::new(),
        Some((_, 0.0)) => "Distances were measured of all blocks.\n".into(),
        Some((sampled, error)) => format!(
            "Distances were measured of one block in {:.0}: the largest has a standard error of {:.1} %, and other blocks may \
             have larger ones.\n",
            1.0 / sampled,
            error * 100.0
        ),
    }
}

/// Blocks of a GiB.
const GIB_BLOCKS: u64 = (1 << 30) / BLOCK_BYTES as u64;

/// What a GiB more would bring a disk.
struct More {
    hits_per_second: f64,
    saved_us_per_second: f64,
}

impl More {
    /// By the curve of the last window, which an LRU cache has; none if nothing was measured.
    fn of(decision: &Decision, input: &DiskInput) -> Option<More> {
        let window = input.window.as_ref().filter(|window| window.length_us > 0)?;
        // A disk cannot have more than the pool.
        let has = input.target_blocks.min(decision.inputs.pool_blocks);
        let ratio = window.trd.at(has.saturating_add(GIB_BLOCKS)) - window.trd.at(has);
        let hits_per_second = ratio * window.accesses() as f64 * 1e6 / window.length_us as f64;
        let saved_us = window.origin_latency_us.zip(window.cache_latency_us);
        let saved_us = saved_us.map_or(0.0, |(origin_us, cache_us)| (origin_us - cache_us).max(0.0));
        Some(More { hits_per_second, saved_us_per_second: hits_per_second * saved_us })
    }

    fn text(&self) -> String {
        let hits = format!("{:.1} hits a second", self.hits_per_second);
        if self.saved_us_per_second > 0.0 {
            format!("{hits}, which save {:.1} ms of latency a second", self.saved_us_per_second / 1000.0)
        } else {
            hits
        }
    }
}

/// Says what a GiB more would bring this disk, and the disk to which it would bring most.
fn more(decision: &Decision, input: &DiskInput) -> String {
    let Some(own) = More::of(decision, input) else { return String::new() };
    let mut text = format!("One GiB more would bring this disk {}.\n", own.text());
    let all = decision.inputs.disks.iter();
    let all = all.filter_map(|input| Some((&input.name, More::of(decision, input)?)));
    let most = all.max_by(|a, b| a.1.hits_per_second.total_cmp(&b.1.hits_per_second));
    if let Some((name, most)) = most {
        let _ = writeln!(text, "In this pool it would bring most to {name}: {}.", most.text());
    }
    text
}

fn decided(decision: &Decision, input: &DiskInput, plan: &DiskPlan) -> String {
    let mut text = String::new();
    let had = size(input.target_blocks);
    let limit = match input.limit_blocks {
        limit if limit >= decision.inputs.pool_blocks => "none".into(),
        limit => size(limit).to_string(),
    };
    let _ = writeln!(
        text,
        "Reservation: {}. Limit: {limit}. Priority: {}. Demand: {}.",
        if input.reservation_blocks == 0 { "none".into() } else { size(input.reservation_blocks) },
        input.priority,
        size(plan.demand_blocks),
    );
    let _ = match plan.target {
        Target::Blocks(blocks) | Target::Capped(blocks) => {
            writeln!(text, "Share: {had} before, {} now: {}.", size(blocks), plan.reason)
        }
        Target::Shared { .. } => writeln!(text, "Share: {had} before: {}.", plan.reason),
    };
    let (mode, admission) = (plan.write_mode, plan.admission.name());
    let _ = writeln!(text, "Write mode: {mode}. Admission: {admission}.");
    let (pool, cause) = (size(decision.inputs.pool_blocks), &decision.cause);
    let _ = writeln!(text, "The pool of {pool} was divided because of: {cause}. {}.", decision.plan.reason);
    if let Some(gap) = &decision.plan.gap {
        let _ = writeln!(text, "Solver '{}': {:.3} % below the bound.", gap.solver, gap.relative * 100.0);
    }
    text
}
