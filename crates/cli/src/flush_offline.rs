//! `haversack flush-offline`: writes the dirty blocks on a dead host's devices to their origins, and nowhere
//! else.
//!
//! Invariants
//! - Nothing is written before the user has typed the disk's name.
//! - An origin that is not known to be the disk's is written only if that was also requested by name.

use std::path::PathBuf;

use haversack_api::Size;
use haversack_engine::label::Label;
use haversack_engine::pool::{self, DiskReport};
use haversack_engine::{OriginSpec, TlsFiles};
use haversack_model::{BLOCK_BYTES, DiskId, SECTOR_BYTES};
use indicatif::ProgressBar;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::arguments::{FlushOffline, OriginTls};
use crate::error::{CliError, Result};
use crate::offline;
use crate::output::{self, Style, counted};
use crate::place;
use crate::run::ask;

fn failed(error: impl std::fmt::Display) -> CliError {
    CliError::Failed(error.to_string())
}

/// A disk on the devices.
struct Found {
    report: DiskReport,
    label: Option<Label>,
}

impl Found {
    fn name(&self) -> String {
        self.label.as_ref().map_or_else(|| self.report.id.to_string(), |label| label.name.clone())
    }

    fn dirty_bytes(&self) -> u64 {
        (self.report.dirty_blocks.len() * BLOCK_BYTES) as u64
    }

    fn json(&self) -> Value {
        json!({
            "name": self.label.as_ref().map(|label| label.name.clone()),
            "id": self.report.id.to_string(),
            "size_bytes": self.report.sectors * SECTOR_BYTES as u64,
            "dirty_bytes": self.dirty_bytes(),
            "owned": self.report.owned,
            "moved": offline::moved(self.report.moved),
            "damaged": self.report.damaged,
            "origin": self.label.as_ref().map(|label| label.place.clone()),
        })
    }
}

/// Lists the disks, or writes the dirty blocks of one to its origin.
pub fn run(arguments: &FlushOffline, style: Style) -> Result<()> {
    let (disk, devices) = match (&arguments.disk_and_devices[..], arguments.list) {
        (devices, true) => (None, devices),
        ([disk, devices @ ..], false) if !devices.is_empty() => (Some(disk), devices),
        _ => {
            return Err(CliError::Usage(
                "name the disk and then the pool's devices, or --list and the devices".into(),
            ));
        }
    };
    let devices: Vec<PathBuf> = devices.iter().map(PathBuf::from).collect();
    let disks = pool::disks(&devices).map_err(failed)?;
    let disks: Vec<Found> = disks.into_iter().map(|(report, label)| Found { report, label }).collect();
    match disk {
        None => list(&disks, style.as_json),
        Some(disk) => flush(arguments, disk, &devices, &disks, style),
    }
}

fn list(disks: &[Found], as_json: bool) -> Result<()> {
    let mut text = format!("{:<20} {:<36} {:>10} {:>10}  {}\n", "DISK", "ID", "SIZE", "DIRTY", "ORIGIN");
    for disk in disks {
        let size = Size(disk.report.sectors * SECTOR_BYTES as u64).rounded();
        let origin = disk.label.as_ref().map_or("not noted", |label| label.place.as_str());
        let (name, id) = (disk.name(), disk.report.id);
        text +=
            &format!("{name:<20} {id:<36} {size:>10} {:>10}  {origin}\n", Size(disk.dirty_bytes()).rounded());
        if let Some(moved) = offline::moved(disk.report.moved) {
            text += &format!("  {moved}\n");
        }
    }
    output::print(as_json, &disks.iter().map(Found::json).collect::<Vec<_>>(), &text)
}

fn flush(
    arguments: &FlushOffline,
    wanted: &str,
    devices: &[PathBuf],
    disks: &[Found],
    style: Style,
) -> Result<()> {
    let disk = find(wanted, disks)?;
    disk.report.check_owner().map_err(failed)?;
    let name = disk.name();
    let uri = origin_of(arguments, disk)?;
    let origin = origin(&uri, &arguments.tls)?;
    let blocks = disk.report.dirty_blocks.len();
    let (count, size) = (counted(blocks as u64, "block"), Size(disk.dirty_bytes()).rounded());
    let what = format!("{count} ({size}) of disk '{name}' to {uri}");
    if arguments.dry_run {
        let planned = json!({ "disk": name, "origin": uri, "blocks": blocks, "dry_run": true });
        return output::print(style.as_json, &planned, &format!("would write {what}\n"));
    }
    let typed = match &arguments.confirm {
        Some(typed) => typed.clone(),
        None => ask(&format!("this writes {what}\ntype '{name}' to continue: "))?,
    };
    if typed != name && typed != wanted {
        return Err(CliError::NotConfirmed(name));
    }
    let bar = ProgressBar::new(0);
    let written = pool::flush_offline(devices, disk.report.id, &origin, |progress| {
        bar.set_length(progress.total_blocks);
        bar.set_position(progress.done_blocks);
    });
    bar.finish_and_clear();
    let blocks = written.map_err(failed)?;
    let text = format!("{} of disk '{name}' written to {uri}\n", counted(blocks, "block"));
    style.print(&json!({ "disk": name, "origin": uri, "blocks": blocks }), &text)
}

/// Finds a disk by its name, its identity, or the name from which its identity is derived.
fn find<'a>(wanted: &str, disks: &'a [Found]) -> Result<&'a Found> {
    let id = Uuid::parse_str(wanted)
        .unwrap_or_else(|_| Uuid::new_v5(&haversack_api::DISK_NAMESPACE, wanted.as_bytes()));
    let named = disks.iter().find(|disk| disk.label.as_ref().is_some_and(|label| label.name == wanted));
    let found = named.or_else(|| disks.iter().find(|disk| disk.report.id == DiskId(id.into_bytes())));
    found.ok_or_else(|| {
        let names: Vec<String> = disks.iter().map(Found::name).collect();
        CliError::Failed(format!("the pool does not know disk '{wanted}'; it knows: {}", names.join(", ")))
    })
}

/// Returns the origin to write to: the recorded one, or another one that was requested by the disk's name.
fn origin_of(arguments: &FlushOffline, disk: &Found) -> Result<String> {
    let name = disk.name();
    let (uri, label) = match (&arguments.origin, &disk.label) {
        (Some(uri), label) => (place::origin(uri)?, label.as_ref()),
        (None, Some(label)) => (label.place.clone(), Some(label)),
        (None, None) => {
            return Err(CliError::Usage(format!(
                "the pool has no recorded origin for disk '{name}': give --origin"
            )));
        }
    };
    if label.is_none_or(|label| label.is_of(&uri)) || arguments.different_origin.as_ref() == Some(&name) {
        return Ok(uri);
    }
    let before = label.map_or("", |label| label.place.as_str());
    Err(CliError::Failed(format!(
        "disk '{name}' was attached with the origin {before}; {uri} is another one, or another file of that name: name the \
         disk's own origin, or give --different-origin {name}"
    )))
}

fn origin(text: &str, tls: &OriginTls) -> Result<OriginSpec> {
    let tls = TlsFiles {
        ca: tls.origin_ca.clone(),
        certificate: tls.origin_certificate.clone(),
        key: tls.origin_key.clone(),
    };
    match text.split_once(':') {
        None => Ok(OriginSpec::File { path: text.into() }),
        Some(("file", path)) => Ok(OriginSpec::File { path: path.into() }),
        Some(("nbd" | "nbds" | "nbd+unix" | "nbds+unix", _)) => {
            Ok(OriginSpec::Nbd { uri: text.into(), connections: 1, tls })
        }
        Some(_) if text.starts_with('/') => Ok(OriginSpec::File { path: text.into() }),
        Some(_) => Err(CliError::Usage(format!(
            "origin '{text}': expected a path or an NBD URI; export other stores with qemu-storage-daemon"
        ))),
    }
}
