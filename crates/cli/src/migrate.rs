//! `haversack migrate` and `haversack host`: disks that move to other hosts.

mod controller;
mod destination;
mod filling;
mod guard;
mod refusal;
mod source;
mod witness;

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use haversack_api::{
    ExpectDisk, HostStatus, Job, Method as Travels, MigrationState, MigrationStatus, Size, StartMigration,
};
use haversack_qmp::Address;
use hyper::Method;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::signal::unix::{SignalKind, signal};

use crate::client::Client;
use crate::cluster;
use crate::complete::Names;
use crate::error::{CliError, Result};
use crate::follow::{follow, is_done};
use crate::output::{Style, print};
use crate::place::absolute;
use crate::run::part;

/// How often the daemon is polled.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// `haversack migrate`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Migrate {
    /// Disks.
    #[arg(required = true, add = Names::AttachedDisks)]
    disks: Vec<String>,
    /// Name of the host that the VM will move to.
    #[arg(long, required = true, add = Names::Hosts)]
    to: Option<String>,
    /// Method [default: as the daemon is configured].
    #[arg(long, value_parser = PossibleValuesParser::new(Travels::ALL.map(Travels::name)).try_map(|name| name.parse::<Travels>()))]
    method: Option<Travels>,
    /// Wait until the VM runs on the other host, not only until the cache has been sent.
    #[arg(long)]
    wait: bool,
    /// Return at once.
    #[arg(long, conflicts_with = "wait")]
    no_wait: bool,
    #[command(flatten)]
    vm: controller::Vm,
    #[command(subcommand)]
    command: Option<MigrateCommand>,
}

/// Subcommands of `haversack migrate`.
#[derive(Subcommand)]
enum MigrateCommand {
    /// Show the progress of migrations.
    Status {
        /// Show only this disk.
        #[arg(add = Names::MovableDisks)]
        disk: Option<String>,
    },
    /// Stop sending a disk's cache. The disk stays here.
    Abort {
        /// Disk.
        #[arg(add = Names::SentDisks)]
        disk: String,
    },
    /// Attach a disk here and request it from the host that has it, because its VM is about to arrive.
    Expect {
        /// Disk.
        #[arg(required_unless_present = "vhost_user", conflicts_with = "vhost_user", add = Names::MovableDisks)]
        disk: Option<String>,
        /// The disk that is served on this vhost-user socket on the host that has it.
        #[arg(long, value_name = "PATH")]
        vhost_user: Option<PathBuf>,
    },
    /// Internal.
    #[command(hide = true)]
    Guard {
        qmp: Address,
        qmp_destination: Address,
        /// The VM was paused before it was moved.
        #[arg(long)]
        paused: bool,
    },
}

/// Commands for other hosts.
#[derive(Subcommand)]
pub enum HostCommand {
    /// List the other hosts, and the connections to them.
    List,
    /// Drain a host: the balancer moves its VMs to other hosts, and none to it.
    Drain {
        /// Host.
        #[arg(add = Names::ClusterHosts)]
        name: String,
    },
    /// Let a host accept VMs again.
    Undrain {
        /// Host.
        #[arg(add = Names::ClusterHosts)]
        name: String,
    },
    /// Remove a permanently dead host from the directory of the cluster. Requires typing the host's name.
    Forget {
        /// Host.
        #[arg(add = Names::ClusterHosts)]
        name: String,
        /// Repeat the host's name instead of typing it at the prompt.
        #[arg(long, value_name = "NAME")]
        confirm: Option<String>,
    },
}

/// Runs `haversack migrate`.
pub fn run(client: &Client, migrate: &Migrate, style: Style) -> Result<()> {
    let as_json = style.as_json;
    match (&migrate.command, &migrate.to) {
        (Some(MigrateCommand::Status { disk: Some(disk) }), _) => {
            let status = status(client, disk)?;
            print(as_json, &status, &table(std::slice::from_ref(&status)))
        }
        (Some(MigrateCommand::Status { disk: None }), _) => {
            let all: Vec<MigrationStatus> = client.get("/v1/migrations")?;
            print(as_json, &all, &table(&all))
        }
        (Some(MigrateCommand::Abort { disk }), _) => {
            client.send(Method::DELETE, &path(disk)?, None::<&()>)?;
            style.tell(&format!("{disk}: migration aborted; the disk stays here"))
        }
        (Some(MigrateCommand::Expect { disk, vhost_user }), _) => {
            let vhost_user = vhost_user.as_deref().map(absolute).transpose()?;
            let body = ExpectDisk { name: disk.clone(), vhost_user };
            let status: MigrationStatus = client.call(Method::POST, "/v1/migrations", Some(&body))?;
            style.print(&status, &table(std::slice::from_ref(&status)))
        }
        (Some(MigrateCommand::Guard { qmp, qmp_destination, paused }), _) => {
            guard::run(qmp, qmp_destination, !paused)
        }
        (None, Some(to)) if migrate.vm.qmp.is_some() => controller::run(client, migrate, to, style),
        (None, Some(to)) => start(client, migrate, to, style),
        (None, None) => Err(CliError::Usage("name the host: --to HOST".into())),
    }
}

fn path(disk: &str) -> Result<String> {
    Ok(format!("/v1/disks/{}/migration", part(disk)?))
}

fn status(client: &Client, disk: &str) -> Result<MigrationStatus> {
    client.get(&path(disk)?)
}

fn start(client: &Client, migrate: &Migrate, to: &str, style: Style) -> Result<()> {
    let body = StartMigration { to: to.into(), method: migrate.method, keep: None };
    let mut jobs = Vec::new();
    for disk in &migrate.disks {
        let job: Job = client.call(Method::POST, &path(disk)?, Some(&body))?;
        jobs.push((disk, job));
    }
    for (disk, job) in jobs {
        if migrate.wait {
            follow(client, job)?;
        } else if !migrate.no_wait {
            until_sent(client, disk, job)?;
        }
    }
    let all: Vec<MigrationStatus> =
        migrate.disks.iter().map(|disk| status(client, disk)).collect::<Result<_>>()?;
    style.print(&all, &table(&all))
}

/// Waits until a switchover would leave little to do. Ctrl-C aborts.
fn until_sent(client: &Client, disk: &str, job: Job) -> Result<()> {
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{msg} {bar:30} {bytes}/{total_bytes}");
    bar.set_style(style.map_err(|e| CliError::Failed(e.to_string()))?);
    bar.set_message(disk.to_string());
    let sent = client.block_on(poll(client, disk, job, &bar));
    bar.finish_and_clear();
    sent
}

async fn poll(client: &Client, disk: &str, mut job: Job, bar: &ProgressBar) -> Result<()> {
    let (path, job_path) = (path(disk)?, format!("/v1/jobs/{}", job.id));
    let mut interrupts = signal(SignalKind::interrupt())
        .map_err(|e| CliError::Failed(format!("cannot handle Ctrl-C: {e}")))?;
    loop {
        if is_done(&job)? {
            // The VM runs there already.
            return Ok(());
        }
        let status: MigrationStatus = client.ask(Method::GET, &path).await?;
        bar.set_length(status.sent_bytes + status.left_bytes);
        bar.set_position(status.sent_bytes);
        if status.is_ready {
            return Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => job = client.ask(Method::GET, &job_path).await?,
            Some(()) = interrupts.recv() => {
                client.ask::<Job>(Method::DELETE, &job_path).await?;
                return Err(CliError::Cancelled);
            }
        }
    }
}

fn table(all: &[MigrationStatus]) -> String {
    if all.is_empty() {
        return "No disks on this host can move.\n".into();
    }
    let mut text = format!(
        "{:<16} {:<9} {:<12} {:<19} {:<8} {:>10} {:>10} {:>10} {:>10}\n",
        "DISK", "STATE", "HOST", "METHOD", "SERVED", "SENT", "LEFT", "NEEDED", "FOLLOWING"
    );
    for one in all {
        let served = if one.is_serving { "yes" } else { "no" };
        let host = one.host.as_deref().unwrap_or("-");
        let sizes = [one.sent_bytes, one.left_bytes + one.dirty_bytes, one.needed_bytes, one.following_bytes];
        let [sent, left, needed, following] = sizes.map(|bytes| Size(bytes).to_string());
        text += &format!(
            "{:<16} {:<9} {host:<12} {:<19} {served:<8} {sent:>10} {left:>10} {needed:>10} {following:>10}\n",
            one.disk,
            one.state.to_string(),
            one.method,
        );
        if let (MigrationState::Sending, Some(rate)) = (one.state, one.sent_bytes_per_s) {
            text += &format!("  {}\n", pace(one, rate));
        }
        if let Some(error) = &one.error {
            text += &format!("  {error}\n");
        }
        if one.state == MigrationState::Sending && one.is_ready {
            let sent = one.sent_bytes > 0;
            let what =
                if sent { format!("Its cache is on host '{host}'") } else { "Nothing is sent ahead".into() };
            text += &format!("  {what}: move the VM now.\n");
        }
    }
    text
}

/// Says how fast a disk is being sent, and what a switchover would cost now.
fn pace(one: &MigrationStatus, bytes_per_s: f64) -> String {
    let mut text = format!("{}/s", Size(bytes_per_s as u64).rounded());
    if let Some(eta) = one.eta_s.filter(|_| one.left_bytes > 0) {
        text += &format!(", {eta:.0} s left");
    }
    if one.dirty_left_bytes > 0 {
        text += &format!(", at most {} of it dirty", Size(one.dirty_left_bytes).rounded());
    }
    if let Some(stall) = one.expected_stall_s {
        text += &format!(
            "; a switchover now would add {:.0} ms for messages between the hosts",
            (stall * 1e3).ceil()
        );
    }
    text
}

/// Runs `haversack host`.
pub fn host(client: &Client, command: &HostCommand, style: Style) -> Result<()> {
    match command {
        HostCommand::List => list_hosts(client, style.as_json),
        HostCommand::Drain { name } => cluster::drain(client, name, true, style),
        HostCommand::Undrain { name } => cluster::drain(client, name, false, style),
        HostCommand::Forget { name, confirm } => cluster::forget(client, name, confirm.as_deref(), style),
    }
}

fn list_hosts(client: &Client, as_json: bool) -> Result<()> {
    let hosts: Vec<HostStatus> = client.get("/v1/hosts")?;
    let mut text = String::new();
    for host in &hosts {
        let state = match (&host.error, host.round_trip_s) {
            (Some(error), _) if !host.is_connected => error.clone(),
            (_, Some(time_s)) => format!("connected, round trip {:.1} ms", time_s * 1e3),
            _ => "connected".into(),
        };
        text += &format!("{:<16} {:<24} {state}\n", host.name, host.address);
    }
    if hosts.is_empty() {
        text = "No other hosts are configured: see [migration] and [[host]] in haversackd.toml(5).\n".into();
    }
    print(as_json, &hosts, &text)
}
