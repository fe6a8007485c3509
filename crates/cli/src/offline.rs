//! Commands that work on devices directly, without a daemon.

use std::path::{Path, PathBuf};

use haversack_api::Size;
use haversack_core::Moved;
use haversack_core::offline::ranges;
use haversack_engine::pool::{self, CheckReport, Formatting, Shape};
use serde_json::json;

use crate::configure::Pool;
use crate::error::{CliError, Result};
use crate::output::{self, Style, counted};
use crate::run::ask;

fn failed(error: impl std::fmt::Display) -> CliError {
    CliError::Failed(error.to_string())
}

/// Creates a pool, and adds it to a configuration file if one is given.
pub fn create(
    name: &str,
    devices: &[PathBuf],
    formatting: Formatting,
    shape: Shape,
    configure: Option<&Path>,
    style: Style,
) -> Result<()> {
    let entry = Pool::new(name, devices)?;
    // Check this before the devices are written: a pool that is in no configuration file is easily forgotten.
    configure.map_or(Ok(()), |file| entry.check(file))?;
    let id = pool::create(devices, formatting, shape).map_err(failed)?;
    let unused = pool::unused(devices).map_err(failed)?;
    for (device, bytes) in &unused {
        eprintln!(
            "haversack: {} of {} cannot be used: see 'Limits' in docs/sizing.md; more arenas can use more",
            Size(*bytes).rounded(),
            device.display()
        );
    }
    let table = entry.table();
    let text = match configure {
        None => format!("pool {id} created. Add this to haversackd.toml:\n\n{table}"),
        Some(file) => {
            entry.add_to(file).map_err(|error| {
                failed(format!("pool {id} created, but not configured: {error}; add this:\n\n{table}"))
            })?;
            format!("pool {id} created and added to {}: restart haversackd to open it\n", file.display())
        }
    };
    let made = json!({
        "name": name, "id": id.to_string(), "devices": devices, "arenas": shape.arenas, "configuration": configure,
        "unused_bytes": unused.values().sum::<u64>()
    });
    style.print(&made, &text)
}

/// Wipes a device after its path was typed.
pub fn wipe(device: &Path, confirm: Option<&Path>, style: Style) -> Result<()> {
    let pool = pool::pool_on(device).map_err(failed)?;
    let path = device.display().to_string();
    let confirmed = match confirm {
        Some(typed) => typed == device,
        None => {
            ask(&format!("{path} belongs to pool {pool}{}\ntype '{path}' to wipe it: ", dirty(device)))?
                == path
        }
    };
    if !confirmed {
        return Err(CliError::NotConfirmed(path));
    }
    pool::wipe(device).map_err(failed)?;
    let text = format!("{path} is blank; it is no longer part of pool {pool}\n");
    style.print(&json!({ "device": path, "pool": pool.to_string() }), &text)
}

/// Describes what would be lost with a device, as far as the device alone shows it.
fn dirty(device: &Path) -> String {
    let Ok(report) = pool::check(&[device.to_path_buf()], false) else {
        return ", and its cached data cannot be read".into();
    };
    let dirty = report.disks.iter().filter(|disk| !disk.dirty_blocks.is_empty());
    let lines = dirty.map(|d| {
        let blocks = counted(d.dirty_blocks.len() as u64, "block");
        format!("\n  disk {}: {blocks} that its origin does not have", d.id)
    });
    lines.collect()
}

/// Checks a pool.
pub fn check(devices: &[PathBuf], thorough: bool, as_json: bool) -> Result<()> {
    let report = pool::check(devices, thorough).map_err(failed)?;
    let disks: Vec<_> = report
        .disks
        .iter()
        .map(|d| {
            json!({
                "id": d.id.to_string(), "sectors": d.sectors, "owned": d.owned, "epoch": d.epoch,
                "moved": moved(d.moved), "damaged": d.damaged, "cached_blocks": d.cached_blocks, "dirty_blocks": d.dirty_blocks.len(), "bad_blocks": d.bad_blocks.len(),
                "bad": ranges(&d.bad_blocks)
            })
        })
        .collect();
    let missing: Vec<u8> = report.missing.iter().map(|d| d.0).collect();
    let found = json!({
        "pool": report.arena.pool.to_string(), "devices": report.devices.len(), "missing": missing,
        "clean_stop": report.clean_stop, "damaged_segments": report.damaged_segments,
        "torn_entries": report.torn_entries, "disks": disks
    });
    output::print(as_json, &found, &text_of(&report))?;
    let is_bad =
        report.damaged_segments > 0 || report.disks.iter().any(|d| d.damaged || !d.bad_blocks.is_empty());
    if is_bad { Err(CliError::Damaged) } else { Ok(()) }
}

/// Describes what remains of a disk's last migration, as its host has recorded it.
pub fn moved(moved: Moved) -> Option<String> {
    Some(match moved {
        Moved::No => return None,
        Moved::Away { to, .. } => format!("moved to host {to}"),
        Moved::Peer { to } => format!("moved to host {to}, which needs dirty blocks from here"),
        Moved::Depends { on } => format!("needs dirty blocks of host {on}"),
        Moved::Replicates { at } => format!("may have a replica on host {at}"),
        Moved::Replica { of, is_complete: true, .. } => format!("complete replica of host {of}"),
        Moved::Replica { of, .. } => format!("incomplete replica of host {of}"),
        Moved::Overtaken { to } => format!("taken over by host {to}"),
    })
}

fn text_of(report: &CheckReport) -> String {
    let mut out = format!(
        "pool {}: {}, {} missing\n  stopped cleanly    {}\n  damaged segments   {}\n  torn entries       {}\n",
        report.arena.pool,
        counted(report.devices.len() as u64, "device"),
        report.missing.len(),
        report.clean_stop,
        report.damaged_segments,
        report.torn_entries
    );
    for d in &report.disks {
        let (dirty, bad) = (d.dirty_blocks.len(), d.bad_blocks.len());
        out += &format!(
            "  disk {}: {}, {dirty} dirty, {bad} bad, damaged: {}\n",
            d.id,
            counted(d.cached_blocks, "block"),
            d.damaged
        );
        if let Some(moved) = moved(d.moved) {
            out += &format!("    {moved}\n");
        }
        if bad > 0 {
            out += &format!("    bad: {}\n", ranges(&d.bad_blocks));
        }
    }
    out
}
