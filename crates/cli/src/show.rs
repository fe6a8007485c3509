//! Status as tables for people, and as lines for scripts.

use std::fmt::Write;

use haversack_api::{
    DiskStatus, Elsewhere, EnduranceStatus, LatencyByKind, LostData, PoolStatus, ReplicaStatus,
    SandboxStatus, Size, Status,
};

use crate::output::{counted, plural};
use crate::policy::measured_rows;

fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".into() } else { format!("{:.1} %", part as f64 * 100.0 / whole as f64) }
}

fn word(value: impl std::fmt::Debug) -> String {
    format!("{value:?}").to_lowercase()
}

/// What is shown in place of pools.
const NO_POOL: &str = "no pool is configured: create one with 'haversack pool create'\n";

/// Formats pools and their devices.
pub fn whole_pools(pools: &[PoolStatus]) -> String {
    if pools.is_empty() { NO_POOL.into() } else { pools.iter().map(pool).collect() }
}

/// Formats a pool and its devices.
pub fn pool(pool: &PoolStatus) -> String {
    let mut out = String::new();
    let (used, dirty) =
        (percent(pool.usage_bytes, pool.capacity_bytes), percent(pool.dirty_bytes, pool.capacity_bytes));
    let capacity = Size(pool.capacity_bytes).rounded();
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "pool {:<20} {:<9} {capacity:>10}  used {used:>7}  dirty {dirty:>7}",
        pool.name,
        word(pool.state)
    );
    if let Some(error) = &pool.error {
        let _ = writeln!(out, "  not open: {error}");
    }
    for missing in &pool.missing {
        let _ = writeln!(out, "  missing: {missing}");
    }
    for warning in &pool.warnings {
        let _ = writeln!(out, "  warning: {warning}");
    }
    if let Some(endurance) = &pool.endurance {
        let _ = writeln!(out, "  {}", budget(endurance));
    }
    for device in &pool.devices {
        let size = Size(device.capacity_bytes).rounded();
        let _ = writeln!(
            out,
            "  device {} {:<40} {size:>10}  errors {}",
            device.number, device.path, device.errors
        );
    }
    out
}

/// Formats the pools as a table.
pub fn pools(pools: &[PoolStatus]) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "{:<20} {:<10} {:>7} {:>10} {:>10} {:>10}",
        "POOL", "STATE", "DEVICES", "SIZE", "USED", "DIRTY"
    );
    for p in pools {
        let _ = writeln!(
            out,
            "{:<20} {:<10} {:>7} {:>10} {:>10} {:>10}",
            p.name,
            word(p.state),
            p.devices.len(),
            Size(p.capacity_bytes).rounded(),
            Size(p.usage_bytes).rounded(),
            Size(p.dirty_bytes).rounded(),
        );
        if let Some(error) = &p.error {
            let _ = writeln!(out, "  {error}");
        }
    }
    out
}

/// Formats how a budget of flash writes stands.
fn budget(endurance: &EnduranceStatus) -> String {
    let bytes = |bytes: f64| Size(bytes.abs() as u64).rounded();
    let left = match endurance.balance_bytes {
        balance if balance < 0.0 => format!("overdrawn by {}", bytes(balance)),
        balance => format!("{} left for a burst", bytes(balance)),
    };
    let written = endurance.written_bytes_per_day;
    let written =
        written.map_or_else(|| "nothing known yet".into(), |mean| format!("{} per day so far", bytes(mean)));
    format!(
        "flash writes: budget {} per day, {written}, {left}; a block must save {:.0} us, {:.1} % may be filled",
        bytes(endurance.budget_bytes_per_day),
        endurance.price_us,
        endurance.fill_share * 100.0,
    )
}

/// Formats where data of a disk is lost.
pub fn lost(lost: &LostData) -> String {
    let mut out = String::new();
    if lost.bytes == 0 {
        return "nothing is lost\n".into();
    }
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{:>20} {:>20}  {} lost", "FIRST BYTE", "LAST BYTE", Size(lost.bytes).rounded());
    for range in &lost.ranges {
        let _ =
            writeln!(out, "{:>20} {:>20}", range.offset_bytes, range.offset_bytes + range.length_bytes - 1);
    }
    if lost.more_ranges > 0 {
        let _ = writeln!(out, "and {} more {}", lost.more_ranges, plural(lost.more_ranges, "range"));
    }
    out
}

/// Formats the disks as a table.
pub fn disks(disks: &[DiskStatus]) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{:<20} {:<10} {:<10} {:<8} {:>10} {:>10} {:>10} {:>7}",
        "DISK", "POOL", "STATE", "MODE", "SIZE", "CACHED", "DIRTY", "HITS"
    );
    for d in disks {
        let configured = d.config.as_ref().map(|config| config.mode);
        let mode = d.mode.or(configured).map_or("-".into(), |mode| mode.to_string());
        let hits = percent(d.requests.read_hits, d.requests.read_hits + d.requests.read_misses);
        let _ = writeln!(
            out,
            "{:<20} {:<10} {:<10} {mode:<8} {:>10} {:>10} {:>10} {hits:>7}",
            d.name,
            d.pool,
            word(d.state),
            Size(d.size_bytes).rounded(),
            Size(d.usage.usage_bytes).rounded(),
            Size(d.usage.dirty_bytes).rounded(),
        );
        if let Some(error) = &d.error {
            let _ = writeln!(out, "  {error}");
        }
        if let Some(there) = &d.elsewhere {
            let _ = writeln!(out, "  {}", elsewhere(d, there));
        }
    }
    out
}

/// Describes the location of a disk that is also attached here but that another host has, and the consequence for this
/// host.
fn elsewhere(disk: &DiskStatus, there: &Elsewhere) -> String {
    let (name, host) = (&disk.name, &there.host);
    match there {
        Elsewhere { is_by_force: true, .. } => format!(
            "host '{host}' has taken it over by force: 'haversack disk forget {name}' drops what is left of it here"
        ),
        Elsewhere { needs_blocks: true, .. } => {
            format!("is on host '{host}', which still needs dirty blocks that are here: keep this host up")
        }
        _ if disk.kept_replica.is_some() => format!("is on host '{host}', and has its replica here"),
        _ => format!(
            "is on host '{host}', and is only prepared here for its VM: if that is not to come, 'haversack disk detach {name}'"
        ),
    }
}

fn replica_row(replica: &ReplicaStatus) -> String {
    let mut text = format!("on host '{}': {} for {:.0} s", replica.host, replica.state, replica.since_s);
    if replica.behind_bytes > 0 {
        let _ = write!(text, ", {} behind", Size(replica.behind_bytes).rounded());
    }
    if replica.writes_through {
        text += ", writes through";
    }
    if let Some(error) = &replica.error {
        let _ = write!(text, ": {error}");
    }
    text
}

/// Formats a disk in sections: usage, requests, blocks, errors, latencies.
pub fn disk(d: &DiskStatus) -> String {
    let mut out = format!("disk {} ({})\n", d.name, d.id);
    let mut row = |name: &str, value: String| {
        let _ = writeln!(out, "  {name:<26} {value}");
    };
    row("pool", d.pool.clone());
    row("state", word(d.state));
    if let Some(error) = &d.error {
        row("error", error.clone());
    }
    row("size", Size(d.size_bytes).rounded());
    if let Some(config) = &d.config {
        row("origin", format!("{} ({})", config.origin, if d.origin_up { "up" } else { "away" }));
        row(
            "mode",
            match d.mode {
                Some(mode) if mode != config.mode => format!("{mode} ({})", config.mode),
                _ => config.mode.to_string(),
            },
        );
        row("target", config.target.to_string());
        row("admission", config.admission.to_string());
    }
    if let Some(base) = &d.base {
        let shared = format!("{}: {} shared", base.name, Size(base.shared_bytes).rounded());
        row("base", base.problem.clone().map_or(shared, |problem| format!("{}: {problem}", base.name)));
    }
    if let Some(replica) = &d.replica {
        row("replica", replica_row(replica));
    }
    if let Some(there) = &d.elsewhere {
        row("elsewhere", elsewhere(d, there));
    }
    if let Some(kept) = &d.kept_replica {
        let what = match (kept.is_complete, kept.is_certain) {
            (_, true) => "complete",
            (true, false) => "was complete when the owner was last heard",
            (false, false) => "not complete",
        };
        row("replica here", format!("of host '{}': {}, {what}", kept.of, Size(kept.bytes).rounded()));
    }
    row("clients", d.clients.to_string());
    if let Some(policy) = &d.policy {
        row("policy", policy.reason.clone());
    }
    if let Some(measured) = &d.measured {
        row("[measured]", format!("in a window of {:.1} s", measured.length_us as f64 / 1e6));
        for (key, value) in measured_rows(measured) {
            row(key, value);
        }
    }
    row("[usage]", String::new());
    row("target", Size(d.usage.target_bytes).rounded());
    row(
        "cached",
        format!(
            "{} ({})",
            Size(d.usage.usage_bytes).rounded(),
            percent(d.usage.usage_bytes, d.usage.target_bytes)
        ),
    );
    row(
        "dirty",
        format!(
            "{} ({})",
            Size(d.usage.dirty_bytes).rounded(),
            percent(d.usage.dirty_bytes, d.usage.usage_bytes)
        ),
    );
    row("dirty for", format!("{:.1} s", d.usage.oldest_dirty_us as f64 / 1e6));
    if let Some(in_order) = d.usage.origin_in_order {
        row(
            "origin order",
            if in_order { "as a flush left it" } else { "not known to be as a flush left it" }.into(),
        );
    }
    let r = &d.requests;
    row("[requests]", String::new());
    row("reads", r.reads.to_string());
    row("writes", r.writes.to_string());
    row("flushes", r.flushes.to_string());
    row("discards and zeroes", r.zeroes.to_string());
    row("read hits", format!("{} ({})", r.read_hits, percent(r.read_hits, r.read_hits + r.read_misses)));
    if r.data_stage_hits > 0 {
        row("read hits not yet admitted", r.data_stage_hits.to_string());
    }
    row("write hits", format!("{} ({})", r.write_hits, percent(r.write_hits, r.write_hits + r.write_misses)));
    row("kept out", r.not_admitted.to_string());
    if r.overflowed > 0 {
        row("written past the dirty limit", r.overflowed.to_string());
    }
    row("best phase", r.best_phase.to_string());
    let b = &d.blocks;
    row("[blocks]", String::new());
    row("read by clients", Size(b.read_bytes).rounded());
    row("written by clients", Size(b.written_bytes).rounded());
    if let Some(base) = &d.base {
        row("read from base", Size(base.read_bytes).rounded());
    }
    row("read from origin", Size(b.origin_read_bytes).rounded());
    row("written to origin", Size(b.origin_written_bytes).rounded());
    row("cleaned", Size(b.cleaned_bytes).rounded());
    row("flash: writes", Size(b.flash.write_bytes).rounded());
    row("flash: fills", Size(b.flash.fill_bytes).rounded());
    row("flash: second copies", Size(b.flash.mirror_bytes).rounded());
    let metadata = b.flash.batch_page_bytes + b.flash.rewrite_page_bytes + b.flash.intent_page_bytes;
    row("flash: metadata", Size(metadata).rounded());
    row("[errors]", String::new());
    row("failed requests", d.errors.failed_requests.to_string());
    row("origin", d.errors.origin_errors.to_string());
    row("corrupt blocks", d.errors.corrupt_blocks.to_string());
    if d.errors.crash_dropped_blocks > 0 {
        row("dropped after a crash", counted(d.errors.crash_dropped_blocks, "block"));
    }
    row("lost blocks", d.errors.lost_blocks.to_string());
    row("[latency]", String::new());
    for (name, latency) in
        [("vhost-user", &d.vhost_user_latency), ("nbd", &d.nbd_latency), ("origin", &d.origin_latency)]
    {
        latencies(&mut row, name, latency);
    }
    out
}

fn latencies(row: &mut impl FnMut(&str, String), name: &str, by_kind: &LatencyByKind) {
    for (kind, l) in [("read", by_kind.read), ("write", by_kind.write), ("flush", by_kind.flush)] {
        if l.count > 0 {
            let text = format!(
                "mean {:.0} us, p50 {} us, p99 {} us, p99.9 {} us",
                l.mean_us, l.p50_us, l.p99_us, l.p999_us
            );
            row(&format!("{name} {kind}"), text);
        }
    }
}

/// Formats how the daemon is confined.
fn sandbox(sandbox: Option<&SandboxStatus>) -> String {
    let Some(sandbox) = sandbox else { return "sandbox: none\n".into() };
    let paths = if sandbox.paths.is_empty() { "nothing else".into() } else { sandbox.paths.join(", ") };
    let enforced = match sandbox.landlock {
        0 => "NOT ENFORCED: this kernel has no Landlock".into(),
        version => format!("Landlock version {version}"),
    };
    let mut out = format!("sandbox: configured disks and {paths} ({enforced})\n");
    if !sandbox.unrestricted.is_empty() {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "  this kernel does not restrict {}", sandbox.unrestricted.join(", "));
    }
    out
}

/// Formats a tree of pools and disks, followed by each disk's sections.
pub fn status(status: &Status) -> String {
    let starting = if status.starting { ", starting" } else { "" };
    let mut out = format!("haversackd {}, up {} s{starting}\n", status.version, status.uptime_s);
    out += &sandbox(status.sandbox.as_ref());
    out += &status.directory.as_ref().map_or_else(String::new, crate::cluster::directory);
    if status.pools.is_empty() {
        out += NO_POOL;
    }
    for p in &status.pools {
        out += &pool(p);
        for d in status.disks.iter().filter(|d| d.pool == p.name) {
            let size = Size(d.size_bytes).rounded();
            let _ = writeln!(out, "  disk {:<27} {:<10} {size:>10}", d.name, word(d.state));
        }
    }
    for d in &status.disks {
        out += "\n";
        out += &disk(d);
    }
    out
}

/// Formats one line per disk; new keys are only ever appended.
pub fn raw(status: &Status) -> String {
    let line = |d: &DiskStatus| {
        let (u, r, b, e, m) = (&d.usage, &d.requests, &d.blocks, &d.errors, d.measured.as_ref());
        format!(
            "disk={} pool={} state={} size_bytes={} target_bytes={} usage_bytes={} dirty_bytes={} oldest_dirty_us={} \
             reads={} writes={} flushes={} zeroes={} read_hits={} read_misses={} write_hits={} write_misses={} \
             read_bytes={} written_bytes={} origin_read_bytes={} origin_written_bytes={} cleaned_bytes={} \
             origin_up={} clients={} failed_requests={} origin_errors={} corrupt_blocks={} lost_blocks={} \
             wss_bytes={} rwss_bytes={} intensity_per_s={:.3} crash_dropped_blocks={}\n",
            d.name,
            d.pool,
            word(d.state),
            d.size_bytes,
            u.target_bytes,
            u.usage_bytes,
            u.dirty_bytes,
            u.oldest_dirty_us,
            r.reads,
            r.writes,
            r.flushes,
            r.zeroes,
            r.read_hits,
            r.read_misses,
            r.write_hits,
            r.write_misses,
            b.read_bytes,
            b.written_bytes,
            b.origin_read_bytes,
            b.origin_written_bytes,
            b.cleaned_bytes,
            d.origin_up,
            d.clients,
            e.failed_requests,
            e.origin_errors,
            e.corrupt_blocks,
            e.lost_blocks,
            m.map_or(0, |m| m.wss_bytes),
            m.and_then(|m| m.rwss_bytes.first().copied()).unwrap_or(0),
            m.map_or(0.0, |m| m.intensity_per_s),
            e.crash_dropped_blocks
        )
    };
    status.disks.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer of the daemon, as documented for its API.
    const STATUS: &str = include_str!("../tests/status.json");

    #[test]
    fn status_for_people_and_scripts() {
        let answer: Status = serde_json::from_str(STATUS).unwrap();
        insta::assert_snapshot!("status", status(&answer));
        insta::assert_snapshot!("raw", raw(&answer));
        insta::assert_snapshot!("disks", disks(&answer.disks));
        insta::assert_snapshot!("pools", pools(&answer.pools));
    }
}
