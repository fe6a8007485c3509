//! Runs the commands.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use haversack_api::{
    DiskChange, DiskConfig, DiskStatus, ForgetDisk, Job, LostData, OriginTls, ResizeDisk, Size, Status,
};
use haversack_engine::pool::{Formatting, Shape};
use hyper::Method;
use serde::Serialize;

use crate::arguments::{self, Arguments, Attach, Command, DiskCommand, PolicyCommand, PoolCommand};
use crate::client::Client;
use crate::error::{CliError, Result};
use crate::follow::follow;
use crate::output::{Style, print};
use crate::place::absolute;
use crate::trace::TraceCommand;
use crate::{
    cluster, complete, events, flush_offline, migrate, offline, output, own, place, policy, pools, quiesce,
    record, show, top, trace,
};

/// Runs a command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let daemon = || Client::new(arguments.socket.clone(), arguments.timeout.0);
    let as_json = arguments.json;
    let style = Style { as_json, is_quiet: arguments.quiet };
    match &arguments.command {
        Command::Pool(PoolCommand::Create { name, devices, size, redundancy, arenas, configure, force }) => {
            let shape = Shape { redundancy: *redundancy, arenas: *arenas };
            let formatting = Formatting { size_bytes: size.map(|size| size.0), overwrite: *force };
            let devices: Vec<PathBuf> =
                devices.iter().map(|device| absolute(device)).collect::<Result<_>>()?;
            offline::create(name, &devices, formatting, shape, configure.as_deref(), style)
        }
        Command::Pool(PoolCommand::Wipe { device, confirm }) => {
            offline::wipe(device, confirm.as_deref(), style)
        }
        Command::Pool(PoolCommand::Check { devices, thorough }) => {
            offline::check(devices, *thorough, as_json)
        }
        Command::FlushOffline(flush) => flush_offline::run(flush, style),
        Command::Complete(arguments) => complete::run(arguments),
        Command::Completions { shell } => {
            if let Some(script) = complete::script(*shell) {
                return output::write(script);
            }
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Arguments::command(), "haversack", &mut script);
            output::write(&String::from_utf8_lossy(&script))
        }
        Command::Man { directory } => man(directory, style),
        Command::Pool(command) => pools::run(&daemon()?, command, style),
        Command::Disk(command) => disk(&daemon()?, command, style),
        Command::Migrate(arguments) => migrate::run(&daemon()?, arguments, style),
        Command::Host(command) => migrate::host(&daemon()?, command, style),
        Command::Cluster(command) => cluster::run(&daemon()?, command, as_json),
        Command::Loan(command) => crate::loans::run(&daemon()?, command, as_json),
        Command::Tenant(command) => cluster::tenant(&daemon()?, command, style),
        Command::Policy(PolicyCommand::Replay { log }) => policy::replay(log, as_json),
        Command::Policy(PolicyCommand::Accuracy { log }) => policy::accuracy(log, as_json),
        Command::Policy(command) => policy::run(&daemon()?, command, style),
        Command::Status { raw } => {
            let status: Status = daemon()?.get("/v1/status")?;
            let text = if *raw { show::raw(&status) } else { show::status(&status) };
            print(as_json, &status, &text)
        }
        Command::Top { interval, count } => top::top(&daemon()?, interval.0, *count, as_json),
        Command::Events { subject, last, follow } => {
            events::run(&daemon()?, subject.as_deref(), *last, *follow, as_json)
        }
        Command::Analyze(arguments) => crate::analyze::run(arguments, as_json),
        Command::Trace(TraceCommand::Record(record)) => record::run(&daemon()?, record, as_json),
        Command::Trace(command) => trace::run(command, as_json),
        Command::Compare(arguments) => crate::compare::run(arguments, as_json),
        Command::CompareMigration(arguments) => crate::compare_migration::run(arguments, as_json),
        Command::CompareCluster(arguments) => crate::compare_cluster::run(arguments, as_json),
        Command::Paper(command) => crate::paper::run(command, as_json),
        Command::Sim(arguments) => crate::sim::run(arguments, as_json),
        Command::Advise(arguments) => crate::advise::run(arguments, as_json),
        Command::SupportBundle(arguments) => crate::support::run(&daemon()?, arguments, as_json),
        Command::Stop => {
            daemon()?.send(Method::POST, "/v1/stop", None::<&()>)?;
            style.tell("haversackd is stopping")
        }
    }
}

/// Writes the manual pages.
fn man(directory: &Path, style: Style) -> Result<()> {
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Arguments::command(), directory))
        .map_err(|e| CliError::Failed(format!("{}: {e}", directory.display())))?;
    style.tell(&format!("{}: manual pages written", directory.display()))
}

/// Makes a call that starts a job, and waits for the job. `done` says what is done then.
pub(crate) fn work(
    client: &Client,
    method: Method,
    path: &str,
    body: Option<&impl Serialize>,
    done: &str,
    style: Style,
) -> Result<()> {
    let job: Job = client.call(method, path, body)?;
    let job = follow(client, job)?;
    style.print(&job, &format!("{done}\n"))
}

/// Returns a name for use in a URL path. Valid names need no escapes, so one that does is refused.
pub(crate) fn part(name: &str) -> Result<&str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if !name.is_empty() && name.chars().all(plain) {
        return Ok(name);
    }
    Err(CliError::Usage(format!("'{name}' is not a name: expected letters, digits, '.', '_' and '-'")))
}

fn disk(client: &Client, command: &DiskCommand, style: Style) -> Result<()> {
    let as_json = style.as_json;
    let path = |name: &str| -> Result<String> { Ok(format!("/v1/disks/{}", part(name)?)) };
    match command {
        DiskCommand::Attach(attach) => {
            let pool = pools::given_or_only(client, attach.pool.as_deref())?;
            let config = config(attach, &pool)?;
            let done = format!("{}: attached to pool {}", config.name, config.pool);
            work(client, Method::POST, "/v1/disks", Some(&config), &done, style)
        }
        DiskCommand::Detach { name, force, accept_loss } => {
            let mut path = format!("{}?force={force}", path(name)?);
            if let Some(typed) = accept_loss {
                path += &format!("&accept_loss={}", part(typed)?);
            }
            work(client, Method::DELETE, &path, None::<&()>, &format!("{name}: detached"), style)
        }
        DiskCommand::Lost { name } => {
            let lost: LostData = client.get(&format!("{}/lost", path(name)?))?;
            print(as_json, &lost, &show::lost(&lost))
        }
        DiskCommand::List => {
            let disks: Vec<DiskStatus> = client.get("/v1/disks")?;
            print(as_json, &disks, &show::disks(&disks))
        }
        DiskCommand::Show { name } => {
            let disk: DiskStatus = client.get(&path(name)?)?;
            print(as_json, &disk, &show::disk(&disk))
        }
        DiskCommand::Set { name, settings } => {
            if *settings == DiskChange::default() {
                return Err(CliError::Usage(
                    "nothing to change: give a setting, see 'haversack disk set --help'".into(),
                ));
            }
            let done = format!("{name}: settings changed");
            work(client, Method::PATCH, &path(name)?, Some(settings), &done, style)
        }
        DiskCommand::Flush { name } => {
            let done = format!("{name}: flushed");
            work(client, Method::POST, &format!("{}/flush", path(name)?), None::<&()>, &done, style)
        }
        DiskCommand::Quiesce(arguments) => quiesce::run(client, arguments, style),
        DiskCommand::Guard(arguments) => quiesce::guard(client, arguments),
        DiskCommand::Resize { name, size, shrink, confirm } => {
            let shrink =
                if *shrink { Some(confirmed(client, name, *size, confirm.as_deref())?) } else { None };
            let body = ResizeDisk { size: *size, shrink };
            let done = format!("{name}: resized to {size}");
            work(client, Method::POST, &format!("{}/resize", path(name)?), Some(&body), &done, style)
        }
        DiskCommand::Event { name, event, curve } => {
            policy::event(client, part(name)?, *event, curve.as_deref(), style)
        }
        DiskCommand::Curve { name, time } => policy::curve(client, part(name)?, *time, as_json),
        DiskCommand::Own(arguments) => own::own(client, arguments, style),
        DiskCommand::Forget { name, confirm } => forget(client, name, confirm.as_deref(), style),
    }
}

/// Forgets a disk. If it has dirty data, its name must be typed.
fn forget(client: &Client, name: &str, confirm: Option<&str>, style: Style) -> Result<()> {
    let path = format!("/v1/disks/{}/forget", part(name)?);
    let body = |destroy_dirty: Option<&str>| ForgetDisk { destroy_dirty: destroy_dirty.map(String::from) };
    if confirm.is_some_and(|typed| typed != name) {
        return Err(CliError::NotConfirmed(name.into()));
    }
    let done = format!("{name}: forgotten");
    match work(client, Method::POST, &path, Some(&body(confirm)), &done, style) {
        Err(CliError::Refused(refusal)) if refusal.code == "dirty" && confirm.is_none() => {
            let typed = ask(&format!("{}\ntype '{name}' to destroy this data: ", refusal.error))?;
            if typed != name {
                return Err(CliError::NotConfirmed(name.into()));
            }
            work(client, Method::POST, &path, Some(&body(Some(name))), &done, style)
        }
        end => end,
    }
}

/// Returns the name of a disk that is to shrink, repeated by the user.
fn confirmed(client: &Client, name: &str, size: Size, confirm: Option<&str>) -> Result<String> {
    let typed = match confirm {
        Some(typed) => typed.to_string(),
        None => {
            let disk: DiskStatus = client.get(&format!("/v1/disks/{}", part(name)?))?;
            let present = Size(disk.size_bytes);
            ask(&format!(
                "disk '{name}' has {present}: data beyond {size} is lost\ntype '{name}' to shrink it: "
            ))?
        }
    };
    if typed == name { Ok(typed) } else { Err(CliError::NotConfirmed(name.into())) }
}

/// Reads a line typed by the user; an empty one without a terminal.
pub(crate) fn ask(question: &str) -> Result<String> {
    let failed = |e: std::io::Error| CliError::Failed(e.to_string());
    if !std::io::stdin().is_terminal() {
        return Ok(String::new());
    }
    eprint!("{question}");
    std::io::stderr().flush().map_err(failed)?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).map_err(failed)?;
    Ok(line.trim().to_string())
}

fn origin_tls(files: &arguments::OriginTls) -> Result<Option<OriginTls>> {
    let path = |file: &Option<PathBuf>| file.as_deref().map(absolute).transpose();
    let tls = OriginTls {
        ca: path(&files.origin_ca)?,
        certificate: path(&files.origin_certificate)?,
        key: path(&files.origin_key)?,
    };
    Ok(Some(tls).filter(|tls| *tls != OriginTls::default()))
}

fn config(attach: &Attach, pool: &str) -> Result<DiskConfig> {
    let default = DiskConfig::new(&attach.name, pool, &place::origin(&attach.origin)?);
    let config = DiskConfig {
        origin_tls: origin_tls(&attach.tls)?,
        origin_holds_pool: attach.origin_holds_pool,
        size: attach.size,
        id: attach.id.clone(),
        vhost_user: attach.vhost_user.as_deref().map(absolute).transpose()?,
        queues: attach.queues.unwrap_or(default.queues),
        from: attach.from.clone(),
        epoch: attach.epoch.unwrap_or(default.epoch),
        origin_wait: attach.origin_wait.unwrap_or(default.origin_wait),
        phase: attach.phase.unwrap_or(default.phase),
        read_only: attach.read_only,
        base: attach.base.clone(),
        nbd: !attach.no_nbd,
        accept_loss: attach.accept_loss.clone(),
        accept_origin_change: attach.accept_origin_change.clone(),
        ..default
    };
    Ok(attach.settings.applied_to(&config))
}
