//! Runs the commands.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use haversack_api::{
    AddDevice, DiskChange, DiskConfig, DiskStatus, ForgetDisk, Job, LostData, OriginTls, PoolStatus,
    ResizeDisk, Size, Status,
};
use haversack_engine::pool::{Formatting, Shape};
use hyper::Method;
use serde::Serialize;

use crate::arguments::{self, Arguments, Attach, Command, DiskCommand, PolicyCommand, PoolCommand};
use crate::client::Client;
use crate::error::{CliError, Result};
use crate::follow::follow;
use crate::output::print;
use crate::trace::TraceCommand;
use crate::{
    events, flush_offline, migrate, offline, output, own, policy, quiesce, record, show, top, trace,
};

/// Runs a command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let daemon = || Client::new(arguments.socket.clone(), arguments.timeout.0);
    let as_json = arguments.json;
    match &arguments.command {
        Command::Pool(PoolCommand::Create { name, devices, size, redundancy, arenas, force }) => {
            let shape = Shape { redundancy: *redundancy, arenas: *arenas };
            let formatting = Formatting { size_bytes: size.map(|size| size.0), overwrite: *force };
            offline::create(name, devices, formatting, shape, as_json)
        }
        Command::Pool(PoolCommand::Wipe { device, confirm }) => {
            offline::wipe(device, confirm.as_deref(), as_json)
        }
        Command::Pool(PoolCommand::Check { devices, thorough }) => {
            offline::check(devices, *thorough, as_json)
        }
        Command::FlushOffline(flush) => flush_offline::run(flush, as_json),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Arguments::command(), "haversack", &mut script);
            output::write(&String::from_utf8_lossy(&script))
        }
        Command::Man { directory } => std::fs::create_dir_all(directory)
            .and_then(|()| clap_mangen::generate_to(Arguments::command(), directory))
            .map_err(|e| CliError::Failed(format!("{}: {e}", directory.display()))),
        Command::Pool(command) => pool(&daemon()?, command, as_json),
        Command::Disk(command) => disk(&daemon()?, command, as_json),
        Command::Migrate(arguments) => migrate::run(&daemon()?, arguments, as_json),
        Command::Host(command) => migrate::host(&daemon()?, command, as_json),
        Command::Policy(PolicyCommand::Replay { log }) => policy::replay(log, as_json),
        Command::Policy(PolicyCommand::Accuracy { log }) => policy::accuracy(log, as_json),
        Command::Policy(command) => policy::run(&daemon()?, command, as_json),
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
        Command::Paper(command) => crate::paper::run(command, as_json),
        Command::Sim(arguments) => crate::sim::run(arguments, as_json),
        Command::Advise(arguments) => crate::advise::run(arguments, as_json),
        Command::SupportBundle(arguments) => crate::support::run(&daemon()?, arguments, as_json),
        Command::Stop => daemon()?.send(Method::POST, "/v1/stop", None::<&()>).map(drop),
    }
}

/// Makes a call that starts a job, and waits for the job.
pub(crate) fn work(
    client: &Client,
    method: Method,
    path: &str,
    body: Option<&impl Serialize>,
    as_json: bool,
) -> Result<()> {
    let job: Job = client.call(method, path, body)?;
    let job = follow(client, job)?;
    if as_json { print(true, &job, "") } else { Ok(()) }
}

fn pool(client: &Client, command: &PoolCommand, as_json: bool) -> Result<()> {
    match command {
        PoolCommand::Add { pool, device, size, force } => {
            let path = absolute(device)?;
            let body = AddDevice { path: path.display().to_string(), size: *size, force: *force };
            work(client, Method::POST, &format!("/v1/pools/{}/devices", part(pool)?), Some(&body), as_json)
        }
        PoolCommand::Remove { pool, device } => {
            let status: PoolStatus = client.get(&format!("/v1/pools/{}", part(pool)?))?;
            let found = status.devices.iter().find(|d| d.path == *device || d.number.to_string() == *device);
            let number = found.map(|d| d.number).ok_or_else(|| {
                let paths: Vec<_> = status.devices.iter().map(|d| d.path.as_str()).collect();
                CliError::Usage(format!(
                    "pool '{pool}' has no device '{device}'; it has: {}",
                    paths.join(", ")
                ))
            })?;
            work(client, Method::DELETE, &format!("/v1/pools/{pool}/devices/{number}"), None::<&()>, as_json)
        }
        PoolCommand::Status { pool: Some(name) } => {
            let status: PoolStatus = client.get(&format!("/v1/pools/{}", part(name)?))?;
            print(as_json, &status, &show::pool(&status))
        }
        PoolCommand::Status { pool: None } => {
            let pools: Vec<PoolStatus> = client.get("/v1/pools")?;
            print(as_json, &pools, &pools.iter().map(show::pool).collect::<String>())
        }
        PoolCommand::Create { .. } | PoolCommand::Check { .. } | PoolCommand::Wipe { .. } => Ok(()),
    }
}

/// Returns a name for use in a URL path. Valid names need no escapes, so one that does is refused.
pub(crate) fn part(name: &str) -> Result<&str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if !name.is_empty() && name.chars().all(plain) {
        return Ok(name);
    }
    Err(CliError::Usage(format!("'{name}' is not a name: expected letters, digits, '.', '_' and '-'")))
}

fn disk(client: &Client, command: &DiskCommand, as_json: bool) -> Result<()> {
    let path = |name: &str| -> Result<String> { Ok(format!("/v1/disks/{}", part(name)?)) };
    match command {
        DiskCommand::Attach(attach) => {
            work(client, Method::POST, "/v1/disks", Some(&config(attach)?), as_json)
        }
        DiskCommand::Detach { name, force, accept_loss } => {
            let mut path = format!("{}?force={force}", path(name)?);
            if let Some(typed) = accept_loss {
                path += &format!("&accept_loss={}", part(typed)?);
            }
            work(client, Method::DELETE, &path, None::<&()>, as_json)
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
            work(client, Method::PATCH, &path(name)?, Some(settings), as_json)
        }
        DiskCommand::Flush { name } => {
            work(client, Method::POST, &format!("{}/flush", path(name)?), None::<&()>, as_json)
        }
        DiskCommand::Quiesce(arguments) => quiesce::run(client, arguments, as_json),
        DiskCommand::Guard(arguments) => quiesce::guard(client, arguments),
        DiskCommand::Resize { name, size, shrink, confirm } => {
            let shrink =
                if *shrink { Some(confirmed(client, name, *size, confirm.as_deref())?) } else { None };
            let body = ResizeDisk { size: *size, shrink };
            work(client, Method::POST, &format!("{}/resize", path(name)?), Some(&body), as_json)
        }
        DiskCommand::Event { name, event, curve } => {
            policy::event(client, part(name)?, *event, curve.as_deref(), as_json)
        }
        DiskCommand::Curve { name, time } => policy::curve(client, part(name)?, *time, as_json),
        DiskCommand::Own(arguments) => own::own(client, arguments, as_json),
        DiskCommand::Forget { name, confirm } => forget(client, name, confirm.as_deref(), as_json),
    }
}

/// Forgets a disk. If it has dirty data, its name must be typed.
fn forget(client: &Client, name: &str, confirm: Option<&str>, as_json: bool) -> Result<()> {
    let path = format!("/v1/disks/{}/forget", part(name)?);
    let body = |destroy_dirty: Option<&str>| ForgetDisk { destroy_dirty: destroy_dirty.map(String::from) };
    if confirm.is_some_and(|typed| typed != name) {
        return Err(CliError::NotConfirmed(name.into()));
    }
    match work(client, Method::POST, &path, Some(&body(confirm)), as_json) {
        Err(CliError::Refused(refusal)) if refusal.code == "dirty" && confirm.is_none() => {
            let typed = ask(&format!("{}\ntype '{name}' to destroy this data: ", refusal.error))?;
            if typed != name {
                return Err(CliError::NotConfirmed(name.into()));
            }
            work(client, Method::POST, &path, Some(&body(Some(name))), as_json)
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

/// Makes a path absolute: the daemon has another working directory.
fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|e| CliError::Failed(format!("{}: {e}", path.display())))
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

fn config(attach: &Attach) -> Result<DiskConfig> {
    let default = DiskConfig::new(&attach.name, &attach.pool, &attach.origin);
    let config = DiskConfig {
        origin_tls: origin_tls(&attach.tls)?,
        origin_holds_pool: attach.origin_holds_pool,
        size: attach.size,
        id: attach.id.clone(),
        vhost_user: attach.vhost_user.clone(),
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
