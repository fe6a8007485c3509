//! `haversack cluster`, `haversack host drain`, `haversack host forget` and `haversack tenant`: the cluster as the
//! directory has it.

use std::fmt::Write;

use clap::{Args, Subcommand};
use haversack_api::{
    ClusterDisk, ClusterHost, ClusterMove, ClusterPlan, ClusterStatus, DirectoryStatus, ForgetHost,
    HostState, Size, TenantSettings, TenantStatus,
};
use hyper::Method;

use crate::client::Client;
use crate::complete::Names;
use crate::error::{CliError, Result};
use crate::output::{Style, counted, print};
use crate::run::{ask, part};

/// Data that is older than this is marked as old.
const OLD_S: f64 = 10.0;

/// Commands for the cluster.
#[derive(Subcommand)]
pub enum ClusterCommand {
    /// Show the hosts of the cluster, their pools, the disks, and the moves under way.
    Status {
        /// Show the disks as well.
        #[arg(long)]
        disks: bool,
    },
    /// Show which VMs the balancer would move, and why. Nothing is moved.
    Plan,
}

/// Commands for tenants.
#[derive(Subcommand)]
pub enum TenantCommand {
    /// Set what a tenant may use of the caches of all hosts.
    Set(SetTenant),
    /// Show the tenants, and what each would get of all caches.
    Show {
        /// Show only this tenant.
        #[arg(add = Names::Tenants)]
        name: Option<String>,
    },
    /// Remove what was set for a tenant.
    Remove {
        /// Tenant.
        #[arg(add = Names::Tenants)]
        name: String,
    },
}

/// Everything that a tenant may use. Options that are not given get their defaults.
#[derive(Args)]
pub struct SetTenant {
    /// Tenant.
    #[arg(add = Names::Tenants)]
    name: String,
    /// Weight against other tenants, above 0.
    #[arg(long, default_value_t = 1.0)]
    weight: f64,
    /// What its disks on all hosts get together before others get more than their reservations.
    #[arg(long, default_value = "0")]
    reservation: Size,
    /// The most that its disks on all hosts get together [default: no limit].
    #[arg(long)]
    limit: Option<Size>,
}

/// Runs `haversack cluster`.
pub fn run(client: &Client, command: &ClusterCommand, as_json: bool) -> Result<()> {
    match command {
        ClusterCommand::Status { disks } => {
            let status: ClusterStatus = client.get("/v1/cluster")?;
            print(as_json, &status, &plain(&show(&status, *disks)))
        }
        ClusterCommand::Plan => {
            let plan: ClusterPlan = client.get("/v1/cluster/plan")?;
            print(as_json, &plan, &plain(&show_plan(&plan)))
        }
    }
}

/// Replaces control characters, which a terminal could interpret: names come from other hosts.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Runs `haversack tenant`.
pub fn tenant(client: &Client, command: &TenantCommand, style: Style) -> Result<()> {
    let path = |name: &str| -> Result<String> { Ok(format!("/v1/cluster/tenants/{}", part(name)?)) };
    match command {
        TenantCommand::Set(SetTenant { name, weight, reservation, limit }) => {
            let body = TenantSettings { weight: *weight, reservation: *reservation, limit: *limit };
            client.send(Method::PUT, &path(name)?, Some(&body))?;
            let limit = limit.map_or("no limit".into(), |limit| format!("limit {limit}"));
            style.tell(&format!("{name}: weight {weight}, reservation {reservation}, {limit}"))
        }
        TenantCommand::Show { name } => {
            let mut tenants: Vec<TenantStatus> = client.get("/v1/cluster/tenants")?;
            if let Some(name) = name {
                tenants.retain(|tenant| tenant.name == *name);
                if tenants.is_empty() {
                    return Err(CliError::Failed(format!(
                        "there is no tenant '{name}': see 'haversack tenant show'"
                    )));
                }
            }
            print(style.as_json, &tenants, &plain(&show_tenants(&tenants)))
        }
        TenantCommand::Remove { name } => {
            client.send(Method::DELETE, &path(name)?, None::<&()>)?;
            style.tell(&format!("{name}: removed"))
        }
    }
}

/// Marks a host as draining, or removes the mark.
pub fn drain(client: &Client, host: &str, is_drained: bool, style: Style) -> Result<()> {
    let path = format!("/v1/cluster/hosts/{}/drain", part(host)?);
    let method = if is_drained { Method::PUT } else { Method::DELETE };
    client.send(method, &path, None::<&()>)?;
    style.tell(&if is_drained {
        format!("{host}: draining; 'haversack cluster plan' shows the moves")
    } else {
        format!("{host}: accepts VMs again")
    })
}

/// Shows what the directory lists for a permanently dead host, asks for its name as a confirmation, and removes it.
pub fn forget(client: &Client, host: &str, confirm: Option<&str>, style: Style) -> Result<()> {
    let not_confirmed = || CliError::NotConfirmed(host.into());
    if confirm.is_some_and(|typed| typed != host) {
        return Err(not_confirmed());
    }
    let path = format!("/v1/cluster/hosts/{}/forget", part(host)?);
    let forget =
        |confirm: &str| client.send(Method::POST, &path, Some(&ForgetHost { confirm: confirm.into() }));
    if confirm.is_none() {
        let status: ClusterStatus = client.get("/v1/cluster")?;
        let is_it = |one: &&ClusterHost| one.name.eq_ignore_ascii_case(host);
        if status.hosts.iter().find(is_it).is_none_or(|one| one.state != HostState::Away) {
            // The daemon says why, and forgets nothing that was not confirmed.
            forget("")?;
        }
        if ask(&format!("{}type '{host}' to forget it: ", plain(&what_is_forgotten(&status, host))))? != host
        {
            return Err(not_confirmed());
        }
    }
    forget(host)?;
    style.tell(&format!("{host}: forgotten"))
}

fn what_is_forgotten(status: &ClusterStatus, host: &str) -> String {
    let disks: Vec<&ClusterDisk> =
        status.disks.iter().filter(|disk| disk.host.eq_ignore_ascii_case(host)).collect();
    let mut text = String::new();
    if disks.is_empty() {
        text += "The directory lists no disks of this host.\n";
    } else {
        let dirty = Size(disks.iter().map(|disk| disk.dirty_bytes).fold(0, u64::saturating_add)).rounded();
        let _ = writeln!(
            text,
            "The directory lists {} of this host, with {dirty} dirty when it last reported. Forgetting the host gives them to no \
             other host: see 'haversack disk own'.",
            counted(disks.len() as u64, "disk")
        );
    }
    for disk in disks {
        let _ = writeln!(text, "  {}: {} dirty", disk.name, Size(disk.dirty_bytes).rounded());
    }
    text
}

/// Describes the state of the directory, and the age of the data that is printed below it.
pub fn directory(directory: &DirectoryStatus) -> String {
    let mut text = match (&directory.endpoint, directory.age_s) {
        (Some(endpoint), _) => format!("directory: etcd at {endpoint}, this host is '{}'\n", directory.name),
        (None, Some(age)) => format!(
            "directory: etcd has been away for {}; the data below is {} old. Guests and disks continue, nothing is balanced\n",
            seconds(directory.since_s),
            seconds(age)
        ),
        (None, None) => {
            format!("directory: etcd has not been reached for {} so far\n", seconds(directory.since_s))
        }
    };
    for problem in &directory.problems {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {problem}");
    }
    text
}

fn show(status: &ClusterStatus, with_disks: bool) -> String {
    let mut text = directory(&status.directory);
    if let Some(leader) = &status.leader {
        let _ = writeln!(text, "balanced by host '{leader}'");
    }
    text += &hosts(&status.hosts);
    if with_disks {
        text += &disks(&status.disks);
    }
    text += &moves(&status.moves);
    text
}

fn hosts(hosts: &[ClusterHost]) -> String {
    let mut text = format!(
        "{:<16} {:<9} {:>7} {:>6} {:<12} {:<9} {:>10} {:>7} {:>7} {:>10} {:>9} {:>9}\n",
        "HOST",
        "STATE",
        "HEARD",
        "DISKS",
        "POOL",
        "STATE",
        "CAPACITY",
        "DEMAND",
        "USED",
        "DIRTY",
        "REQ/S",
        "LATENCY"
    );
    for host in hosts {
        let heard = host.age_s.map_or("-".into(), seconds);
        let state = match host.state {
            HostState::Away if host.is_drained => "away, draining".into(),
            state => state.to_string(),
        };
        let head = format!("{:<16} {state:<9} {heard:>7} {:>6}", host.name, host.disks);
        if host.pools.is_empty() {
            let _ = writeln!(text, "{head} -");
        }
        for (number, pool) in host.pools.iter().enumerate() {
            let head = if number == 0 { head.clone() } else { " ".repeat(head.chars().count()) };
            let _ = writeln!(
                text,
                "{head} {:<12} {:<9} {:>10} {:>7} {:>7} {:>10} {:>9.0} {:>9}",
                pool.name,
                pool.state,
                Size(pool.capacity_bytes).rounded(),
                percent(pool.demand_bytes, pool.capacity_bytes),
                percent(pool.usage_bytes, pool.capacity_bytes),
                Size(pool.dirty_bytes).rounded(),
                pool.requests_per_s,
                if pool.latency_us > 0.0 { format!("{:.2}ms", pool.latency_us / 1e3) } else { "-".into() },
            );
        }
    }
    text
}

fn disks(disks: &[ClusterDisk]) -> String {
    let mut text = format!(
        "{:<20} {:<16} {:>6} {:<12} {:<9} {:>10} {:>10} {:>10} {:>10}\n",
        "DISK", "HOST", "EPOCH", "POOL", "STATE", "SIZE", "DEMAND", "USED", "DIRTY"
    );
    for disk in disks {
        let host = if disk.is_host_alive { disk.host.clone() } else { format!("{} (away)", disk.host) };
        let size = |bytes| Size(bytes).rounded();
        let _ = writeln!(
            text,
            "{:<20} {host:<16} {:>6} {:<12} {:<9} {:>10} {:>10} {:>10} {:>10}{}",
            disk.name,
            disk.epoch,
            disk.pool,
            disk.state,
            size(disk.size_bytes),
            size(disk.demand_bytes),
            size(disk.usage_bytes),
            size(disk.dirty_bytes),
            disk.moving_to.as_ref().map_or(String::new(), |to| format!("  to {to}")),
        );
        if !disk.is_host_alive {
            let replica = match (&disk.replica_at, disk.is_replicated) {
                (None, _) => "no replica".to_owned(),
                (Some(at), true) => format!("a complete replica on host '{at}'"),
                (Some(at), false) => format!("an incomplete replica on host '{at}'"),
            };
            let _ = writeln!(
                text,
                "  last changed {} ago: {} dirty, {replica}",
                seconds(disk.age_s),
                size(disk.dirty_bytes)
            );
        }
    }
    text
}

fn moves(moves: &[ClusterMove]) -> String {
    let mut text = String::new();
    for one in moves {
        let _ = writeln!(
            text,
            "move of {} from {} to {}: {}, begun by {} {} ago: {}",
            one.disk,
            one.from,
            one.to,
            one.state,
            one.by,
            seconds(one.age_s),
            one.reason
        );
    }
    text
}

fn show_plan(plan: &ClusterPlan) -> String {
    let mut text = String::new();
    let is_old = plan.directory.age_s.is_none_or(|age| age > OLD_S);
    if plan.directory.endpoint.is_none() || is_old {
        text += &directory(&plan.directory);
    }
    if plan.moves.is_empty() {
        let windows = counted(plan.windows, "window");
        let _ = writeln!(text, "No moves are proposed; this host has watched for {windows}.");
    }
    for one in &plan.moves {
        let disks = if one.disks == [one.vm.clone()] {
            String::new()
        } else {
            format!(" ({})", one.disks.join(", "))
        };
        let _ = writeln!(text, "{}{disks}: {} -> {}\n  {}", one.vm, one.from, one.to, one.reason);
    }
    for held in &plan.held {
        let _ = writeln!(text, "{held}");
    }
    for loan in &plan.loans {
        let _ = writeln!(text, "{}", loan.reason);
    }
    if !plan.moves.is_empty() {
        let _ = writeln!(
            text,
            "variance of load: {:.4} now, {:.4} then",
            plan.variance_before, plan.variance_after
        );
    }
    text
}

fn show_tenants(tenants: &[TenantStatus]) -> String {
    if tenants.is_empty() {
        return "There are no tenants: 'haversack tenant set' creates one, and 'tenant' of a disk names it.\n"
            .into();
    }
    let mut text = format!(
        "{:<20} {:>7} {:>11} {:>10} {:>6} {:>10} {:>10} {:>10} {:>10}\n",
        "TENANT", "WEIGHT", "RESERVATION", "LIMIT", "DISKS", "DEMAND", "USED", "SHARE", "MISSING"
    );
    for tenant in tenants {
        let size = |bytes: Option<u64>| bytes.map_or("-".into(), |bytes| Size(bytes).rounded().to_string());
        let name = if tenant.name.is_empty() { "(none)" } else { &tenant.name };
        let settings = tenant.settings.as_ref();
        let _ = writeln!(
            text,
            "{name:<20} {:>7} {:>11} {:>10} {:>6} {:>10} {:>10} {:>10} {:>10}",
            settings.map_or("-".into(), |settings| settings.weight.to_string()),
            size(settings.map(|settings| settings.reservation.0)),
            size(settings.and_then(|settings| settings.limit).map(|limit| limit.0)),
            tenant.disks,
            size(Some(tenant.demand_bytes)),
            size(Some(tenant.usage_bytes)),
            size(tenant.share_bytes),
            size(tenant.missing_bytes),
        );
    }
    text
}

/// Formats a time in a few characters.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 10.0 => format!("{s:.1}s"),
        s if s < 600.0 => format!("{s:.0}s"),
        s if s < 36_000.0 => format!("{:.0}min", s / 60.0),
        s => format!("{:.0}h", s / 3600.0),
    }
}

/// Formats a part of a whole as a percentage.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".into() } else { format!("{:.0}%", part as f64 * 100.0 / whole as f64) }
}

#[cfg(test)]
mod tests {
    use haversack_api::{ClusterPool, PlannedLoan, PlannedMove};

    use super::*;

    fn there(endpoint: Option<&str>) -> DirectoryStatus {
        DirectoryStatus {
            name: "alpha".into(),
            endpoint: endpoint.map(Into::into),
            since_s: 75.0,
            age_s: Some(if endpoint.is_some() { 0.4 } else { 75.0 }),
            lease_left_s: endpoint.map(|_| 12.0),
            is_reported: endpoint.is_some(),
            problems: if endpoint.is_some() {
                Vec::new()
            } else {
                vec!["etcd at http://e:2379: connecting: refused".into()]
            },
        }
    }

    fn host(name: &str, state: HostState, pools: Vec<ClusterPool>) -> ClusterHost {
        ClusterHost {
            name: name.into(),
            state,
            is_drained: state == HostState::Draining,
            age_s: Some(3.2),
            version: None,
            disks: 1,
            pools,
        }
    }

    fn pool(name: &str) -> ClusterPool {
        ClusterPool {
            name: name.into(),
            state: "ok".into(),
            capacity_bytes: 100 << 30,
            demand_bytes: 50 << 30,
            usage_bytes: 25 << 30,
            dirty_bytes: 1 << 30,
            requests_per_s: 1234.0,
            bytes_per_s: 1e6,
            latency_us: 210.0,
        }
    }

    #[test]
    fn a_cluster_is_a_table_of_hosts_disks_and_moves() {
        let disk = ClusterDisk {
            name: "vm1".into(),
            id: "0c6b".into(),
            host: "beta".into(),
            is_host_alive: false,
            epoch: 7,
            pool: "fast".into(),
            state: "attached".into(),
            vm: None,
            tenant: None,
            can_move: true,
            moving_to: Some("alpha".into()),
            size_bytes: 10 << 30,
            demand_bytes: 1 << 30,
            usage_bytes: 1 << 30,
            dirty_bytes: 1 << 20,
            replica_at: Some("alpha".into()),
            is_replicated: true,
            requests_per_s: 10.0,
            age_s: 3.0,
        };
        let one = ClusterMove {
            disk: "vm1".into(),
            id: "0c6b".into(),
            from: "beta".into(),
            to: "alpha".into(),
            by: "beta".into(),
            reason: "an operator's order".into(),
            state: "sending".into(),
            age_s: 61.0,
        };
        let status = ClusterStatus {
            directory: there(Some("http://e:2379")),
            leader: Some("alpha".into()),
            hosts: vec![
                host("alpha", HostState::Alive, vec![pool("fast"), pool("slow")]),
                host("beta", HostState::Away, vec![pool("fast")]),
                host("gamma", HostState::Draining, Vec::new()),
            ],
            disks: vec![disk],
            moves: vec![one],
        };
        insta::assert_snapshot!(show(&status, true));
    }

    #[test]
    fn an_absent_directory_is_said_before_a_plan() {
        let moved = PlannedMove {
            vm: "web".into(),
            disks: vec!["vm1".into(), "vm2".into()],
            from: "beta".into(),
            to: "alpha".into(),
            reason: "move web from beta to alpha: beta is draining".into(),
            copied_bytes: 1 << 30,
            copy_s: 3.0,
        };
        let loan = PlannedLoan {
            borrower: "beta".into(),
            lender: "alpha".into(),
            size_bytes: 64 << 20,
            is_begun: false,
            reason: "beta is to borrow 64 MiB of flash of alpha".into(),
        };
        let plan = ClusterPlan {
            directory: there(None),
            windows: 5,
            moves: vec![moved],
            held: vec!["vm3 stays on beta: no other host has room".into()],
            loans: vec![loan],
            variance_before: 0.25,
            variance_after: 0.01,
        };
        insta::assert_snapshot!(show_plan(&plan));
        let nothing = ClusterPlan {
            directory: there(Some("http://e:2379")),
            windows: 1,
            moves: Vec::new(),
            held: Vec::new(),
            loans: Vec::new(),
            ..plan
        };
        assert_eq!(show_plan(&nothing), "No moves are proposed; this host has watched for 1 window.\n");
    }

    #[test]
    fn tenants_are_a_table() {
        let tenant = |name: &str, settings| TenantStatus {
            name: name.into(),
            settings,
            disks: 2,
            demand_bytes: 1 << 30,
            usage_bytes: 1 << 29,
            share_bytes: Some(1 << 30),
            missing_bytes: Some(0),
        };
        let settings = TenantSettings { weight: 2.5, reservation: Size(1 << 30), limit: None };
        insta::assert_snapshot!(show_tenants(&[tenant("", None), tenant("shop", Some(settings))]));
    }
}
