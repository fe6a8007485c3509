//! Applies a changed configuration file to a running daemon.
//!
//! Invariants
//! - New disks are attached, removed ones are cleaned and detached, and changed settings are applied to disks
//!   in use. Settings that cannot be changed in use are refused with a log line and take effect at the next
//!   attach or start.
//! - Disks attached through the API are not affected by the file.
//! - A file is not applied if its last table is a disk's and has lost keys: the file may have been truncated,
//!   and the disk would get defaults.
//! - A file that leaves out disks is not applied at all, unless it names them as removed and nobody uses them:
//!   an empty or truncated file must not take disks away from their guests.

use std::sync::Arc;

use haversack_api::{DiskChange, DiskConfig, DiskState};
use haversack_engine::EngineError;

use crate::config::{Config, DaemonConfig};
use crate::daemon::{Daemon, Disk};
use crate::error::{DaemonError, Result};

/// Applies a new configuration.
///
/// # Errors
/// The file leaves out disks, keys of its last disk, or all pools, without permission. Nothing is applied then.
pub fn apply(daemon: &Arc<Daemon>, old: &Config, new: &Config) -> Result<()> {
    check_pools(old, new)?;
    check_end(old, new)?;
    let left_out = left_out(daemon, new)?;
    check_removal(&left_out, new)?;
    for line in needs_restart(old, new) {
        tracing::warn!("{line}: takes effect at the next start of the daemon");
    }
    for (name, _) in left_out {
        tracing::info!(disk = name, "no longer configured, detaching");
        if let Err(error) = daemon.detach(&name, false, None) {
            tracing::error!(disk = name, "cannot detach: {error}");
        }
    }
    let mut attach = Vec::new();
    for config in &new.disks {
        match daemon.disk(&config.name) {
            Ok(disk) if disk.with(|inner| inner.state == DiskState::Attached) => {
                let before = old.disks.iter().find(|d| d.name == config.name).cloned();
                change(daemon, &before.unwrap_or_else(|| disk.config()), config);
            }
            Ok(disk) if disk.with(|inner| inner.state != DiskState::Detached) => {
                tracing::warn!(
                    disk = config.name,
                    "not attached: changed settings take effect at the next start"
                );
            }
            _ => attach.push((config.clone(), false)),
        }
    }
    let (_, errors) = daemon.begin_attaching(attach);
    for error in errors {
        tracing::error!("{error}");
    }
    if new.policy != old.policy
        && let Err(error) = daemon.set_policy(new.policy.clone())
    {
        tracing::error!("cannot change the policy: {error}");
    }
    Ok(())
}

/// Refuses a file that has lost all its pools.
fn check_pools(old: &Config, new: &Config) -> Result<()> {
    if new.pools.is_empty() && !old.pools.is_empty() {
        let what = "it no longer has a [[pool]]: is it complete?";
        return Err(DaemonError::conflict(what, "put the pools back, or restart the daemon without them"));
    }
    Ok(())
}

/// Refuses a file whose last table is a disk's and has fewer keys than before.
fn check_end(old: &Config, new: &Config) -> Result<()> {
    let Some((name, before)) = new.last.as_ref().and_then(|name| old.keys.get_key_value(name)) else {
        return Ok(());
    };
    // Users remove the keys `accept_*` once they have taken effect.
    let lost: Vec<_> = before.difference(&new.keys[name]).filter(|key| !key.starts_with("accept_")).collect();
    if lost.is_empty() {
        return Ok(());
    }
    let lost: Vec<&str> = lost.into_iter().map(String::as_str).collect();
    let what = format!(
        "its last table, of disk '{name}', has no {} any more: is it complete? Give the keys their defaults, or let \
         another table follow",
        lost.join(", no ")
    );
    Err(DaemonError::conflict(what, "give the keys their defaults, or let another table follow"))
}

/// Returns the disks in use that a configuration leaves out, and their users.
fn left_out(daemon: &Daemon, new: &Config) -> Result<Vec<(String, Vec<String>)>> {
    let is_left_out = |name: &str, disk: &Disk| {
        let in_use = disk.with(|inner| inner.state != DiskState::Detached);
        in_use && !disk.by_api && !new.disks.iter().any(|d| d.name == name)
    };
    let disks = daemon.disks().into_iter().filter(|(name, disk)| is_left_out(name, disk));
    disks.map(|(name, disk)| Ok((name, daemon.users_of(&disk)?))).collect()
}

fn check_removal(left_out: &[(String, Vec<String>)], new: &Config) -> Result<()> {
    let names = left_out.iter().map(|(name, _)| name);
    let unlisted: Vec<_> = names
        .filter(|name| !new.daemon.remove_disks.contains(name))
        .map(|name| format!("'{name}'"))
        .collect();
    if !unlisted.is_empty() {
        let what = format!(
            "it leaves out attached disks: {}; is it complete? Put them back, or name those that are to be detached in \
             [daemon] remove_disks",
            unlisted.join(", ")
        );
        return Err(DaemonError::conflict(what, "put them back, or name them in [daemon] remove_disks"));
    }
    match left_out.iter().find(|(_, clients)| !clients.is_empty()) {
        None => Ok(()),
        Some((name, clients)) => {
            let what = format!("it removes disk '{name}', which is in use by {}", clients.join(", "));
            Err(DaemonError::conflict(what, "disconnect them first"))
        }
    }
}

/// Returns the part of `[daemon]` that is fixed at the start.
fn fixed(config: &DaemonConfig) -> DaemonConfig {
    DaemonConfig { remove_disks: Vec::new(), ..config.clone() }
}

/// Returns what differs and cannot be changed while the daemon runs.
fn needs_restart(old: &Config, new: &Config) -> Vec<&'static str> {
    let differs = [
        (fixed(&old.daemon) != fixed(&new.daemon), "[daemon] has changed"),
        (old.api != new.api, "[api] has changed"),
        (old.access != new.access, "[access] has changed"),
        (old.sandbox != new.sandbox, "[sandbox] has changed"),
        (old.nbd != new.nbd, "[nbd] has changed"),
        (old.migration != new.migration, "[migration] has changed"),
        (old.cluster != new.cluster, "[cluster] has changed"),
        (old.lend != new.lend, "[lend] has changed"),
        (old.borrow != new.borrow, "[borrow] has changed"),
        (old.hosts != new.hosts, "[[host]] has changed"),
        (old.pools != new.pools, "[[pool]] has changed"),
    ];
    differs.into_iter().filter_map(|(differs, what)| differs.then_some(what)).collect()
}

/// Applies changed settings to a disk in use.
fn change(daemon: &Arc<Daemon>, old: &DiskConfig, new: &DiskConfig) {
    let name = &new.name;
    for key in fixed_keys(old, new) {
        tracing::warn!(
            disk = name,
            "'{key}' cannot be changed while the disk is attached: detach and attach it"
        );
    }
    let change = DiskChange::between(old, new);
    if change != DiskChange::default()
        && let Err(error) = daemon.change(name, &change)
    {
        tracing::error!(disk = name, "cannot change settings: {error}");
    }
    if let Some(size) = new.size.filter(|size| Some(*size) != old.size) {
        match daemon.resize(name, size, None) {
            Ok(_) => {}
            Err(error @ DaemonError::Engine(EngineError::Shrinks { .. })) => {
                tracing::warn!(disk = name, "a reload does not shrink a disk: {error}; use 'disk resize'");
                daemon.events.add("not-shrunk", name, error.to_string());
            }
            Err(error) => tracing::error!(disk = name, "cannot resize: {error}"),
        }
    }
}

/// Returns the keys that differ and are fixed while a disk is attached.
fn fixed_keys(old: &DiskConfig, new: &DiskConfig) -> Vec<&'static str> {
    let differs = [
        (old.pool != new.pool, "pool"),
        (old.origin != new.origin, "origin"),
        (old.origin_tls != new.origin_tls, "origin_tls"),
        (old.origin_holds_pool != new.origin_holds_pool, "origin_holds_pool"),
        (old.id != new.id, "id"),
        (old.persistence != new.persistence, "persistence"),
        (old.phase != new.phase, "phase"),
        (old.vhost_user != new.vhost_user, "vhost_user"),
        (old.queues != new.queues, "queues"),
        (old.epoch != new.epoch, "epoch"),
        (old.origin_wait != new.origin_wait, "origin_wait"),
        (old.connections != new.connections, "connections"),
        (old.read_only != new.read_only, "read_only"),
        (old.base != new.base, "base"),
        (old.borrow != new.borrow, "borrow"),
    ];
    differs.into_iter().filter_map(|(differs, key)| differs.then_some(key)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_last_disk_that_lost_keys_is_no_complete_file() {
        let parse = |more: &str| {
            let disk = "[[disk]]\nname = \"vm1\"\npool = \"main\"\norigin = \"/b\"\n";
            let text = format!("[[pool]]\nname = \"main\"\ndevices = [\"/dev/a\"]\n{disk}{more}");
            Config::parse(std::path::Path::new("c.toml"), &text).unwrap()
        };
        let old = parse("mode = \"wt\"\naccept_loss = \"vm1\"\nnbd = false\n");
        let why = check_end(&old, &parse("mode = \"wt\"\n")).unwrap_err().to_string();
        assert!(why.contains("'vm1'") && why.contains("no nbd any more"), "{why}");
        for fine in ["nbd = true\nmode = \"auto\"\n", "[daemon]\n"] {
            check_end(&old, &parse(fine)).unwrap();
        }
        check_end(&parse(""), &old).unwrap();
    }

    #[test]
    fn a_file_without_pools_is_no_complete_file_if_there_were_some() {
        let parse = |text: &str| Config::parse(std::path::Path::new("c.toml"), text).unwrap();
        let without = parse("[nbd]\nlisten = [\"unix:/run/n.sock\"]\n");
        let with = parse("[[pool]]\nname = \"main\"\ndevices = [\"/dev/a\"]\n");
        let why = check_pools(&with, &without).unwrap_err().to_string();
        assert!(why.contains("[[pool]]") && why.contains("complete"), "{why}");
        for (old, new) in [(&without, &with), (&without, &without), (&with, &with)] {
            check_pools(old, new).unwrap();
        }
    }

    #[test]
    fn only_what_differs_is_changed() {
        let old = DiskConfig::new("vm1", "main", "/a");
        assert_eq!(DiskChange::between(&old, &old), DiskChange::default());
        let new = DiskConfig { mode: "wt".parse().unwrap(), origin: "/b".into(), ..old.clone() };
        assert_eq!(
            DiskChange::between(&old, &new),
            DiskChange { mode: Some(new.mode), ..DiskChange::default() }
        );
        assert_eq!(fixed_keys(&old, &new), ["origin"]);
    }
}
