//! `haversack policy`, and the policy's input and output for a disk.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use haversack_api::{
    DiskCurve, DiskEvent, DiskEventKind, DiskPolicy, Explanation, Measured, PolicySettings, PolicyStatus,
    Size, Span,
};
use haversack_control::forecasts::{self, Forecast};
use haversack_control::predictions::{self, Prediction};
use haversack_control::{Decision, Entry};
use haversack_model::BLOCK_BYTES;
use haversack_policy::{AllocatorRule, Config, OwnWindow};
use hyper::Method;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::arguments::PolicyCommand;
use crate::client::Client;
use crate::error::{CliError, Result};
use crate::output::{Style, counted, print};
use crate::run::part;

/// What 'off' means where there is always a policy.
const OFF_IN_CLUSTER: &str = "This host is in a cluster, which needs to know the demand of its disks: 'off' means the policy 'auto' here.\n";

/// Runs a command that needs the daemon.
pub fn run(client: &Client, command: &PolicyCommand, style: Style) -> Result<()> {
    let as_json = style.as_json;
    match command {
        PolicyCommand::Show => {
            let status: PolicyStatus = client.get("/v1/policy")?;
            print(as_json, &status, &show_text(&status))
        }
        PolicyCommand::Set { allocator, settings } if allocator == "off" => match settings.as_slice() {
            [] => {
                let status: PolicyStatus = client.call(Method::DELETE, "/v1/policy", None::<&()>)?;
                let in_cluster = if status.settings.is_some() { OFF_IN_CLUSTER } else { "" };
                style.print(&status, &format!("{in_cluster}{}", show_text(&status)))
            }
            [first, ..] => Err(CliError::Usage(format!("'{first}': 'off' takes no settings"))),
        },
        PolicyCommand::Set { allocator, settings } => {
            let settings = settings_of(allocator, settings)?;
            let status: PolicyStatus = client.call(Method::PUT, "/v1/policy", Some(&settings))?;
            style.print(&status, &show_text(&status))
        }
        PolicyCommand::Log { pool, count } => {
            let pool = pool.as_deref().map(part).transpose()?;
            let of_pool = pool.map_or(String::new(), |pool| format!("&pool={pool}"));
            let lines: Vec<Value> = client.get(&format!("/v1/policy/log?last={count}{of_pool}"))?;
            print(as_json, &lines, &log_text(&lines))
        }
        PolicyCommand::Explain { disk } => {
            let why: Explanation = client.get(&format!("/v1/disks/{}/explain", part(disk)?))?;
            print(as_json, &why, &why.text)
        }
        PolicyCommand::Replay { .. } | PolicyCommand::Accuracy { .. } => Ok(()),
    }
}

/// Parses `KEY=VALUE` pairs as settings: a value is a number, true, false, a list in brackets, or a word.
fn settings_of(allocator: &str, pairs: &[String]) -> Result<PolicySettings> {
    changed(&PolicySettings::named(allocator), pairs)
}

/// Returns settings with `KEY=VALUE` pairs applied.
pub fn changed(settings: &PolicySettings, pairs: &[String]) -> Result<PolicySettings> {
    let settings = serde_json::to_value(settings).map_err(|error| CliError::Failed(error.to_string()))?;
    let mut object = if let Value::Object(object) = settings { object } else { Map::new() };
    for pair in pairs {
        let (key, value) = pair.split_once('=').ok_or_else(|| {
            CliError::Usage(format!("'{pair}': expected KEY=VALUE, such as window=5min or spare=idle"))
        })?;
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
        object.insert(key.to_owned(), value);
    }
    serde_json::from_value(Value::Object(object)).map_err(|error| CliError::Usage(error.to_string()))
}

fn show_text(status: &PolicyStatus) -> String {
    let Some(settings) = &status.settings else {
        return "no policy: disks use their configured shares, modes and admission filters\n".into();
    };
    let mut out = format!("policy {}\n", settings.allocator);
    // Writing to a string cannot fail.
    if let Some(Value::Object(effective)) = &status.effective {
        for (key, value) in effective {
            let _ = writeln!(out, "  {key:<20} {value}");
        }
    }
    for pool in &status.pools {
        let left = pool.window_left_s.map_or(String::new(), |s| format!(", the window ends in {s:.0} s"));
        let _ = writeln!(
            out,
            "pool {}: {}, {} refused{left}; log {}",
            pool.pool,
            counted(pool.decisions, "decision"),
            pool.refusals,
            pool.log
        );
        if let Some(why) = &pool.refused {
            let _ = writeln!(out, "  refused: {why}");
        }
        if !pool.disks.is_empty() {
            let _ = writeln!(
                out,
                "  {:<20} {:<17} {:>10} {:>10} {:<8} REASON",
                "DISK", "STATE", "DEMAND", "TARGET", "MODE"
            );
        }
        pool.disks.iter().for_each(|disk| out += &disk_line(disk));
    }
    out
}

fn disk_line(disk: &DiskPolicy) -> String {
    let target = disk.target_bytes.map_or("shared".into(), |bytes| Size(bytes).rounded());
    format!(
        "  {:<20} {:<17} {:>10} {target:>10} {:<8} {}\n",
        disk.disk,
        disk.state,
        Size(disk.demand_bytes).rounded(),
        disk.mode.to_string(),
        disk.reason
    )
}

/// Formats a rule for people: `utility alpha 1.0, spare idle`.
fn rule(rule: AllocatorRule) -> String {
    let text = serde_json::to_string(&rule).unwrap_or_default();
    text.replace(['{', '}', '"'], "").replace(':', " ").replace(',', ", ")
}

/// Formats entries of the log: one line each, and one for each disk of a decision.
fn log_text(entries: &[Value]) -> String {
    let mut out = String::new();
    for value in entries {
        let pool = value.get("pool").and_then(Value::as_str).unwrap_or_default();
        let (time_us, what) = match serde_json::from_value(value.clone()) {
            Ok(Entry::Started { time_us, config }) => {
                (time_us, format!("by {}, {}", rule(config.allocator), windows(&config)))
            }
            Ok(Entry::Event { time_us, disk, event }) => (time_us, format!("{disk} is {}", event.name())),
            Ok(Entry::Restored { time_us, disk, state }) => {
                (time_us, format!("{disk} is {} as before the restart", state.name()))
            }
            Ok(Entry::Refused { time_us, cause, reason }) => {
                (time_us, format!("refused ({cause}): {reason}"))
            }
            Ok(Entry::Decision(decision)) => (decision.inputs.time_us, decision_text(&decision)),
            Err(error) => (0, format!("an entry of another version: {error}")),
        };
        let _ = writeln!(out, "{:>12.3} s  {pool}: {what}", time_us as f64 / 1e6);
    }
    out
}

/// Formats the lengths of windows: `windows of 60 s, of disks 600 s`.
fn windows(config: &Config) -> String {
    let seconds = |us: u64| us / 1_000_000;
    let own = match config.window_of_disk(None) {
        OwnWindow::AtKnee => ", of disks at the knee".into(),
        OwnWindow::Length(length_us) => match config.whole_windows(length_us) {
            1 => String::new(),
            windows => format!(", of disks {} s", seconds(windows * config.window_us)),
        },
    };
    format!("windows of {} s{own}", seconds(config.window_us))
}

fn decision_text(decision: &Decision) -> String {
    let mut text = format!("decided ({}): {}", decision.cause, decision.plan.reason);
    for (name, disk) in &decision.plan.disks {
        let _ = write!(text, "\n{:>16}{name:<20} {}", "", disk.reason);
    }
    text
}

/// What decisions expected, and what followed.
#[derive(Serialize)]
struct Accuracy {
    hit_ratios: Vec<Prediction>,
    demands: Vec<Forecast>,
}

/// Compares what the decisions of a log expected with what followed.
pub fn accuracy(log: &Path, as_json: bool) -> Result<()> {
    let failed = |why: String| CliError::Failed(format!("{}: {why}", log.display()));
    let text = std::fs::read_to_string(log).map_err(|error| failed(error.to_string()))?;
    let hit_ratios = predictions::predictions(text.lines()).map_err(|error| failed(error.to_string()))?;
    let demands = forecasts::forecasts(text.lines()).map_err(|error| failed(error.to_string()))?;
    if hit_ratios.is_empty() && demands.is_empty() {
        let why = "nothing to compare: two consecutive windows are needed, of disks that are measured";
        return Err(failed(why.into()));
    }
    let out = hit_ratio_text(&hit_ratios) + &demand_text(&demands);
    print(as_json, &Accuracy { hit_ratios, demands }, &out)
}

fn hit_ratio_text(found: &[Prediction]) -> String {
    let Some((mean, largest)) = predictions::errors(found) else {
        return "no hit ratio was predicted: disks without targets have no prediction\n".into();
    };
    let moved = found.iter().filter(|one| one.has_moved).count();
    let moved = if moved == 0 {
        String::new()
    } else {
        format!("* {moved} in windows in which the target or the mode changed: means over time\n")
    };
    let mut out = format!(
        "{}: off by {:.3} on average, by {largest:.3} at most\n{moved}{:>12} {:<20} {:>10}  {:>9} {:>9}\n",
        counted(found.len() as u64, "prediction"),
        mean,
        "WINDOW END s",
        "DISK",
        "TARGET",
        "PREDICTED",
        "REAL"
    );
    for one in found {
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "{:>12.3} {:<20} {:>10}{} {:>9.3} {:>9.3}",
            one.time_us as f64 / 1e6,
            one.disk,
            Size(one.target_blocks * BLOCK_BYTES as u64).rounded(),
            if one.has_moved { '*' } else { ' ' },
            one.predicted,
            one.real
        );
    }
    out
}

/// A line for each method by which demand was forecast.
fn demand_text(found: &[Forecast]) -> String {
    let mut by_method: BTreeMap<&str, Vec<Forecast>> = BTreeMap::new();
    for one in found {
        by_method.entry(&one.method).or_default().push(one.clone());
    }
    let line = |(method, all): (&&str, &Vec<Forecast>)| {
        let mean = forecasts::mean_error(all);
        let off =
            mean.map_or("of no demand".into(), |mean| format!("off by {:.1} % on average", mean * 100.0));
        format!("{} of demand by {method}: {off}\n", counted(all.len() as u64, "forecast"))
    };
    by_method.iter().map(line).collect()
}

/// Replays a log, and fails if any decision has a different result.
pub fn replay(log: &Path, as_json: bool) -> Result<()> {
    let failed = |why: String| CliError::Failed(format!("{}: {why}", log.display()));
    let text = std::fs::read_to_string(log).map_err(|error| failed(error.to_string()))?;
    let found = haversack_control::log::replay(text.lines()).map_err(|error| failed(error.to_string()))?;
    let mut out =
        format!("{}, {} different\n", counted(found.decisions as u64, "decision"), found.differences.len());
    for difference in &found.differences {
        let _ = writeln!(out, "line {}, {} s:", difference.line, difference.time_us as f64 / 1e6);
        if let Some(why) = &difference.refused {
            let _ = writeln!(out, "  refused now: {why}");
        }
        for (disk, before, after) in &difference.disks {
            let _ = writeln!(out, "  {disk}\n    decided: {before}\n    now:     {after}");
        }
    }
    print(as_json, &found, &out)?;
    if found.differences.is_empty() { Ok(()) } else { Err(CliError::Different(found.differences.len())) }
}

/// Reports an event of a disk to the policy.
pub fn event(
    client: &Client,
    disk: &str,
    event: DiskEventKind,
    curve: Option<&Path>,
    style: Style,
) -> Result<()> {
    let figures = curve.map(figures).transpose()?;
    let body = DiskEvent { event, figures };
    let decided: DiskPolicy = client.call(Method::POST, &format!("/v1/disks/{disk}/event"), Some(&body))?;
    style.print(&decided, &format!("{disk}: {}\n", decided.reason))
}

fn figures(path: &Path) -> Result<Value> {
    let failed = |why: String| CliError::Failed(format!("{}: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    let curve: DiskCurve = serde_json::from_str(&text)
        .map_err(|error| failed(format!("{error}; expected what 'haversack --json disk curve' prints")))?;
    Ok(curve.figures)
}

/// Shows a disk's curve; measures first if requested.
pub fn curve(client: &Client, disk: &str, time: Option<Span>, as_json: bool) -> Result<()> {
    let path = format!("/v1/disks/{disk}/curve");
    if let Some(time) = time {
        client.send(Method::POST, &format!("/v1/disks/{disk}/measure?for={time}"), None::<&()>)?;
        std::thread::sleep(time.0);
    }
    let curve: DiskCurve = client.get(&path)?;
    print(as_json, &curve, &curve_text(&curve))
}

/// The most rows of a curve that are printed.
const ROWS: usize = 24;

fn curve_text(curve: &DiskCurve) -> String {
    let m = &curve.measured;
    let mut out = format!(
        "disk {}: {} of {:.1} s\n",
        curve.disk,
        if curve.complete { "a window" } else { "the current window so far," },
        m.length_us as f64 / 1e6
    );
    for (key, value) in measured_rows(m) {
        let _ = writeln!(out, "  {key:<20} {value}");
    }
    let _ = writeln!(out, "  {:>10} {:>10} {:>10} {:>12}", "SIZE", "MISSES", "USEFUL", "OF READS");
    let mut sizes: Vec<u64> = [&curve.all, &curve.useful, &curve.reads_only]
        .iter()
        .flat_map(|points| points.iter().map(|point| point.bytes))
        .collect();
    sizes.sort_unstable();
    sizes.dedup();
    let step = sizes.len().div_ceil(ROWS).max(1);
    let last = sizes.last().copied();
    let shown = sizes.iter().copied().step_by(step).filter(|size| Some(*size) != last);
    for size in shown.chain(last) {
        let at = |points: &[haversack_api::MissPoint]| {
            let miss = points.iter().rev().find(|point| point.bytes <= size).map_or(1.0, |p| p.miss_ratio);
            format!("{:.1} %", miss * 100.0)
        };
        let _ = writeln!(
            out,
            "  {:>10} {:>10} {:>10} {:>12}",
            Size(size).rounded(),
            at(&curve.all),
            at(&curve.useful),
            at(&curve.reads_only)
        );
    }
    out
}

/// Returns the measured figures, one row each.
pub fn measured_rows(m: &Measured) -> Vec<(&'static str, String)> {
    let mut rows = vec![
        ("blocks read", m.reads.to_string()),
        ("blocks written", format!("{} ({} overwrites)", m.writes, m.overwrites)),
        ("working set", Size(m.wss_bytes).rounded()),
    ];
    let reused = m.rwss_bytes.iter().map(|bytes| Size(*bytes).rounded()).collect::<Vec<_>>().join(", ");
    rows.push(("of it reused", reused));
    rows.push(("reuse intensity", format!("{:.3}/s", m.intensity_per_s)));
    if m.lost_records > 0 {
        rows.push(("not recorded", m.lost_records.to_string()));
    }
    rows
}
