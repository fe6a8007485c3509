//! The daemon's lifecycle: start, signals, stop.
//!
//! Order of the start: directories, the sandbox, pools, sockets, then disks begin to be attached, while NBD and the API are
//! served; when the first attempt to attach each disk has ended, policy, then READY. A daemon that drops privileges waits
//! for the disks before it serves the API. A disk that cannot be attached, or a pool that cannot be opened while others
//! can, does not delay the start: it is retried in the background.
//!
//! Invariants
//! - One daemon at a time uses a state directory.
//! - The process is confined before it starts threads: threads that already run would not be confined.
//! - The API is served only after privileges are dropped: its callers name files, which the daemon opens.
//! - Anything that the daemon reopens after switching users belongs to that user before it is needed.
//! - The watchdog is fed only while every reactor responds, and from READY on. Nothing else delays it.
//! - When the pools are stopped, nothing of the start goes on.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use haversack_api::DiskConfig;
use haversack_core::{CheckpointUse, CoreConfig, OpenReport, ReadProgress};
use haversack_directory::DirectoryError;
use haversack_engine::error::EngineError;
use haversack_engine::{OpenPool, PoolSettings, VoidArena};
use haversack_link::LinkError;
use nix::unistd::Uid;
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::MissedTickBehavior;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

use crate::backend::Backend;
use crate::closed::{self, OpenPools};
use crate::cluster::{self, Cluster};
use crate::config::{Config, DaemonConfig, LogFormat, NbdConfig, PoolConfig};
use crate::control::{self, ListenError};
use crate::daemon::Daemon;
use crate::error::DaemonError;
use crate::hosts::{Hosts, incarnation};
use crate::locked::Locked;
use crate::redacted_log::Lines;
use crate::sandbox::{Sandbox, SandboxError};
use crate::start::Start;
use crate::state::{State, StateError};
use crate::state_lock::{StateLock, StateLockError};
use crate::system::{self, SystemError};
use crate::{descriptors, events, history, learned, nbd_listener, pool, reload, settings, state_lock, uses};

/// The beginning of the names of checkpoints in the state directory; the pool's name follows.
const CHECKPOINT_PREFIX: &str = "checkpoint-";

/// Why the daemon ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The log filter is malformed.
    #[error(
        "[daemon] log = '{filter}': {why}; expected a level such as info, or info,haversack_engine=debug"
    )]
    Log {
        /// The filter.
        filter: String,
        /// What is wrong.
        why: String,
    },
    /// A directory cannot be created.
    #[error("{path}: cannot create: {source}")]
    Directory {
        /// The directory.
        path: std::path::PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A pool cannot be opened.
    #[error("pool '{pool}': {source}")]
    Pool {
        /// The pool.
        pool: String,
        /// The engine's error.
        source: EngineError,
    },
    /// A pool's settings are wrong.
    #[error("pool '{pool}': {what}")]
    PoolSettings {
        /// The pool.
        pool: String,
        /// What is wrong.
        what: String,
    },
    /// No pool is configured, and disks were attached when the daemon ran last.
    #[error(
        "no [[pool]] is configured, but these disks are attached: {disks}; is the file complete? Put the pools back, or name the \
         disks in [daemon] remove_disks"
    )]
    NoPool {
        /// The disks.
        disks: String,
    },
    /// See [`StateError`].
    #[error(transparent)]
    State(#[from] StateError),
    /// See `StateLockError`.
    #[error(transparent)]
    StateLock(#[from] StateLockError),
    /// See [`SystemError`].
    #[error(transparent)]
    System(#[from] SystemError),
    /// The connections to other hosts cannot be set up.
    #[error("[migration]: {0}")]
    Hosts(#[from] LinkError),
    /// The directory of the cluster cannot be used.
    #[error("[cluster] {0}")]
    Cluster(#[from] DirectoryError),
    /// See [`ListenError`].
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// See [`SandboxError`].
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// See [`DaemonError`].
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// The system refused something that every daemon needs.
    #[error("cannot start: {0}")]
    Io(#[from] std::io::Error),
}

/// Sets up the log. A second call changes nothing.
///
/// # Errors
/// The filter is malformed.
pub fn start_log(config: &DaemonConfig) -> Result<(), RunError> {
    let filter: Targets =
        config.log.parse().map_err(|e| RunError::Log { filter: config.log.clone(), why: format!("{e}") })?;
    let format = config.log_format;
    let lines = tracing_subscriber::fmt::layer().with_writer(move || Lines(format));
    let registry = tracing_subscriber::registry();
    // This fails only if a log is already set up.
    let _ = match config.log_format {
        LogFormat::Text => registry.with(lines.with_ansi(false).with_filter(filter)).try_init(),
        LogFormat::Json => registry.with(lines.json().flatten_event(true).with_filter(filter)).try_init(),
    };
    Ok(())
}

/// Runs until stopped by a signal or a request.
///
/// # Errors
/// The daemon cannot start; what was opened is closed.
pub fn run(config_path: &Path, config: &Config) -> Result<(), RunError> {
    start_log(&config.daemon)?;
    let descriptors = descriptors::places_for_clients();
    make_directory(&config.daemon.runtime_dir)?;
    let user = config.daemon.user.as_deref().map(system::find_user).transpose()?.flatten();
    let run_as = user.as_ref().map(|user| (user.uid.as_raw(), user.gid.as_raw()));
    let _state_lock = StateLock::take(&config.daemon.state_dir)?;
    let state = State::open(&config.daemon.state_dir)?;
    give(run_as, [&config.daemon.runtime_dir, &config.daemon.state_dir, state.path()])?;
    give(
        run_as,
        [history::FILE, events::FILE, learned::DIRECTORY, uses::FILE, state_lock::FILE]
            .map(|name| config.daemon.state_dir.join(name)),
    )?;
    remove_others_checkpoints(config);
    let sandbox = Sandbox::enter(config_path, config)?;
    let (opened_pools, daemon) = open_pools(config, state, run_as, sandbox)?;
    let (listeners, control_socket) =
        control::bind(config, user.as_ref().map_or_else(Uid::effective, |user| user.uid))?;
    let nbd = config.nbd.as_ref().map(nbd_listener::bind).transpose()?;
    give(run_as, [config.daemon.control_socket().as_path()])?;
    give(run_as, config.nbd.iter().flat_map(NbdConfig::sockets))?;
    start_hosts(config, &daemon)?;
    keep_opening(config, &daemon, &opened_pools);
    if let Some(cluster) = &config.cluster {
        cluster::connect(&daemon, cluster, config.migration.as_ref())?;
    }
    let mut start = Start::begin(&daemon, disks_to_attach(&daemon, config));
    if let Some(nbd) = nbd {
        nbd.serve(&daemon, &descriptors);
    }
    if let Some(user) = user {
        // Disks are opened with the privileges that the daemon was started with.
        start.wait(&daemon);
        system::become_user(&user)?;
        tracing::info!(user = user.name, "privileges dropped");
    }
    if let Err(error) = daemon.events.keep(config.daemon.state_dir.join(events::FILE)) {
        tracing::warn!("events are not kept across restarts: {error}");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        let (stop, stopped) = mpsc::channel(1);
        let signals = Signals::catch()?;
        listeners.serve(&daemon, &stop, &descriptors)?;
        let mut finishing = Some(finish(start, config, &daemon));
        let ended = serve((config_path, config), &daemon, (signals, stopped), &mut finishing).await;
        daemon.begin_stop();
        if let Some(finishing) = finishing {
            finished(finishing.await)?;
        }
        ended
    });
    notify(&[NotifyState::Stopping]);
    tracing::info!("stopping");
    daemon.stop();
    // This host serves nothing any more: tell the other hosts.
    daemon.cluster().into_iter().for_each(Cluster::leave);
    runtime.shutdown_background();
    end(&opened_pools);
    daemon.close();
    // Nothing serves the control socket any more.
    control_socket.remove();
    ended
}

/// Removes checkpoints of pools that are no longer configured: nothing else removes them, and they are large. Keeps all
/// checkpoints if the file has no pool, because that may be a mistake.
fn remove_others_checkpoints(config: &Config) {
    if config.pools.is_empty() {
        return;
    }
    let Ok(entries) = std::fs::read_dir(&config.daemon.state_dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(of) = name.to_str().and_then(|name| name.strip_prefix(CHECKPOINT_PREFIX)) else { continue };
        let is_configured = |pool: &PoolConfig| of == pool.name || of.starts_with(&format!("{}#", pool.name));
        if !config.pools.iter().any(is_configured) {
            let result = std::fs::remove_file(entry.path());
            tracing::info!(path = %entry.path().display(), ?result, "removing the checkpoint of a pool that is not configured");
        }
    }
}

/// Ends the reactors of all pools. Those that leave checkpoints do so at the same time.
fn end(opened_pools: &OpenPools) {
    let pools = std::mem::take(&mut *opened_pools.locked());
    pools.iter().for_each(OpenPool::end);
}

/// Connects to the other hosts. Must be called before disks are attached, because they may belong to those hosts.
fn start_hosts(config: &Config, daemon: &Arc<Daemon>) -> Result<(), RunError> {
    let Some(migration) = &config.migration else { return Ok(()) };
    let incarnation = incarnation::next(&config.daemon.state_dir)?;
    let lending = (config.lend.as_ref(), config.borrow.as_ref());
    daemon.set_hosts(Hosts::start(daemon, migration, &config.hosts, lending, incarnation)?);
    daemon.pools().for_each(|pool| daemon.join_hosts(pool));
    Ok(())
}

fn make_directory(path: &Path) -> Result<(), RunError> {
    std::fs::create_dir_all(path).map_err(|source| RunError::Directory { path: path.to_path_buf(), source })
}

fn notify(states: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("cannot notify systemd: {error}");
    }
}

/// Gives existing paths to the user and group that the daemon will run as, if different.
fn give(
    run_as: Option<(u32, u32)>,
    paths: impl IntoIterator<Item = impl AsRef<Path>>,
) -> Result<(), RunError> {
    let Some((user, group)) = run_as else { return Ok(()) };
    for path in paths {
        if path.as_ref().exists() {
            system::give(path.as_ref(), user, group)?;
        }
    }
    Ok(())
}

/// Logs that no pool is configured, as after the installation. Returns an error if disks were attached: the file has
/// lost its pools.
fn check_pools(config: &Config, state: &State) -> Result<(), RunError> {
    if !config.pools.is_empty() {
        return Ok(());
    }
    let attached = state.disks().into_iter().filter(|(_, disk)| disk.attached).map(|(name, _)| name);
    let kept = attached.filter(|name| !config.daemon.remove_disks.contains(name));
    let disks = kept.map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
    if !disks.is_empty() {
        return Err(RunError::NoPool { disks });
    }
    tracing::info!("no pool is configured: create one with 'haversack pool create', and restart haversackd");
    Ok(())
}

/// Opens the pools. One that cannot be opened is retried later, see [`keep_opening`], unless none can.
fn open_pools(
    config: &Config,
    state: State,
    run_as: Option<(u32, u32)>,
    sandbox: Option<Sandbox>,
) -> Result<(OpenPools, Arc<Daemon>), RunError> {
    check_pools(config, &state)?;
    let (mut opened_pools, mut pools, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for pool in &config.pools {
        match open_pool(pool, &state, sandbox.as_ref()) {
            Ok((opened, report)) => {
                let backend: Arc<dyn Backend> = Arc::new(opened.handle());
                pools.push((pool.name.clone(), backend, report));
                opened_pools.push(opened);
            }
            Err(error) => failed.push((pool, error)),
        }
    }
    if opened_pools.is_empty() && !failed.is_empty() {
        return Err(failed.swap_remove(0).1);
    }
    let daemon = Daemon::new(config.daemon.clone(), state, pools, run_as);
    if let Some(sandbox) = sandbox {
        daemon.set_sandbox(sandbox);
    }
    daemon.closed.set(failed.iter().map(|(pool, error)| (pool.name.clone(), error.to_string())));
    for pool in daemon.pools() {
        pool::watch(&daemon, &pool.name, pool::join(&daemon, pool)?);
        pool::tell_refused(&daemon, pool);
    }
    for (pool, error) in failed {
        tracing::error!(pool = pool.name, "cannot open the pool, its disks wait: {error}");
        daemon.events.add("pool-failed", &pool.name, error.to_string());
    }
    Ok((OpenPools::new(opened_pools.into()), daemon))
}

/// Retries in the background to open the pools that could not be opened. Must be called after [`start_hosts`]: a pool
/// is connected with the other hosts when it opens.
fn keep_opening(config: &Config, daemon: &Arc<Daemon>, opened_pools: &OpenPools) {
    for pool in config.pools.iter().filter(|pool| daemon.pool(&pool.name).is_err()) {
        let config = pool.clone();
        let open = move |daemon: &Daemon| {
            open_pool(&config, &daemon.state, daemon.sandbox()).map_err(|error| error.to_string())
        };
        closed::keep_opening(daemon, opened_pools, &pool.name, open);
    }
}

fn open_pool(
    pool: &PoolConfig,
    state: &State,
    sandbox: Option<&Sandbox>,
) -> Result<(OpenPool, OpenReport), RunError> {
    let begin = Instant::now();
    let opened = OpenPool::start(&pool_settings(pool, state.dir(), state.void_arenas(&pool.name))?);
    let (opened, report) = opened.map_err(|source| {
        // Prefer the sandbox's error: it tells that a device has appeared after the start, not only that it cannot be
        // opened.
        let outside = sandbox.and_then(|sandbox| sandbox.check_pool(&pool.name, &pool.devices).err());
        outside.map_or_else(|| RunError::Pool { pool: pool.name.clone(), source }, RunError::Sandbox)
    })?;
    if report.checkpoint == CheckpointUse::Loaded {
        let ms = begin.elapsed().as_millis();
        tracing::info!(pool = pool.name, "opened from the checkpoint of a clean stop in {ms} ms");
    }
    if state.opened(&pool.name, report.arena.pool)? {
        tracing::warn!(pool = pool.name, "all cache devices were lost: cached blocks are invalid");
    }
    Ok((opened, report))
}

/// Logs the progress of opening a pool, and extends the time that systemd allows for the start.
fn tell_opening(progress: ReadProgress) {
    const MORE: Duration = Duration::from_secs(60);
    let percent = progress.done_segments * 100 / progress.total_segments.max(1);
    tracing::info!("opening a pool: {percent} % of its metadata read");
    notify(&[NotifyState::ExtendTimeoutUsec(MORE.as_micros() as u32)]);
}

/// Logs the progress of writing a checkpoint, and extends the time that systemd allows for the stop.
fn tell_saving(done_bytes: u64, total_bytes: u64) {
    const MORE: Duration = Duration::from_secs(60);
    let percent = done_bytes * 100 / total_bytes.max(1);
    tracing::info!("stopping a pool: {percent} % of its tables written");
    notify(&[NotifyState::ExtendTimeoutUsec(MORE.as_micros() as u32)]);
}

fn pool_settings(
    pool: &PoolConfig,
    state_dir: &Path,
    void_arenas: Vec<VoidArena>,
) -> Result<PoolSettings, RunError> {
    let wrong = |what| RunError::PoolSettings { pool: pool.name.clone(), what };
    let accept_missing = pool.accept_missing.as_ref() == Some(&pool.name);
    Ok(PoolSettings {
        staging_blocks: settings::blocks(pool.staging).map_err(wrong)?,
        transfer_blocks: settings::blocks(pool.transfer).map_err(wrong)?,
        client_bytes: usize::try_from(pool.client_memory.0).unwrap_or(usize::MAX),
        core: CoreConfig { share_spare: pool.share_spare, ..CoreConfig::default() },
        accept_missing,
        void_arenas,
        poll_us: pool.poll_us,
        clock_file: pool.clock_file.clone(),
        io_times: pool.io_times,
        on_progress: tell_opening,
        checkpoint_path: Some(state_dir.join(format!("{CHECKPOINT_PREFIX}{}", pool.name))),
        on_saving: tell_saving,
        ..PoolSettings::new(&pool.name, pool.devices.clone())
    })
}

/// Returns the configured disks and those attached through the API. Other remembered disks are only listed by name, and
/// so are disks that may be removed together with the last pool, see [`check_pools`].
fn disks_to_attach(daemon: &Daemon, config: &Config) -> Vec<(DiskConfig, bool)> {
    let is_given_up = |name: &String| config.pools.is_empty() && config.daemon.remove_disks.contains(name);
    let mut disks: Vec<_> = config.disks.iter().map(|disk| (disk.clone(), false)).collect();
    for (name, remembered) in daemon.state.disks() {
        if let Some(disk) = config.disks.iter().find(|disk| disk.name == name) {
            tell_other_mode(disk, &remembered.config);
            continue;
        }
        if remembered.by_api && remembered.attached && !is_given_up(&name) {
            disks.push((remembered.config, true));
        } else {
            daemon.know_detached(remembered);
        }
    }
    disks
}

/// Warns of a changed write mode: a file that lacks a disk's mode, for example a truncated one, sets the
/// default.
fn tell_other_mode(disk: &DiskConfig, before: &DiskConfig) {
    if disk.mode != before.mode {
        tracing::warn!(disk = disk.name, mode = %disk.mode, before = %before.mode, "write mode differs from the last start");
    }
}

/// The rest of a start, which goes on while the daemon serves.
type Finishing = JoinHandle<Result<(), RunError>>;

/// Finishes the start on a thread of its own, because it waits for origins.
fn finish(start: Start, config: &Config, daemon: &Arc<Daemon>) -> Finishing {
    let (config, daemon) = (config.clone(), daemon.clone());
    tokio::task::spawn_blocking(move || start.finish(&daemon, &config))
}

/// Returns how the start has ended.
fn finished(joined: Result<Result<(), RunError>, JoinError>) -> Result<(), RunError> {
    joined.map_err(std::io::Error::from)?
}

/// The signals that the daemon handles. Until they are caught, each of them ends the process.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn catch() -> std::io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }
}

/// Handles signals until one of them, or a request, stops the daemon, or until the start fails.
async fn serve(
    (config_path, config): (&Path, &Config),
    daemon: &Arc<Daemon>,
    (mut signals, mut stopped): (Signals, mpsc::Receiver<()>),
    finishing: &mut Option<Finishing>,
) -> Result<(), RunError> {
    let mut config = config.clone();
    // Twice as often as systemd requires.
    let watchdog = sd_notify::watchdog_enabled().map(|time| time / 2);
    let mut alive = tokio::time::interval(watchdog.unwrap_or(Duration::from_secs(3600)));
    alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reload: Option<JoinHandle<Config>> = None;
    loop {
        tokio::select! {
            _ = signals.terminate.recv() => return Ok(()),
            _ = signals.interrupt.recv() => return Ok(()),
            Some(()) = stopped.recv() => return Ok(()),
            joined = async { finishing.as_mut().expect("there is one").await }, if finishing.is_some() => {
                *finishing = None;
                finished(joined)?;
                notify(&[NotifyState::Ready]);
                tracing::info!(socket = %config.daemon.control_socket().display(), "ready");
            }
            // A signal that comes during the start or a reload is handled after it.
            _ = signals.hang_up.recv(), if finishing.is_none() && reload.is_none() => {
                let (path, old, daemon) = (config_path.to_path_buf(), config.clone(), daemon.clone());
                reload = Some(tokio::task::spawn_blocking(move || reload_from(&path, old, &daemon)));
            }
            reloaded = async { reload.as_mut().expect("there is one").await }, if reload.is_some() => {
                reload = None;
                // A panic has been logged already.
                config = reloaded.unwrap_or(config);
            }
            _ = alive.tick(), if watchdog.is_some() && finishing.is_none() => feed_watchdog(daemon.clone()),
        }
    }
}

/// Runs on a thread of its own, because a stuck reactor does not answer.
fn feed_watchdog(daemon: Arc<Daemon>) {
    tokio::task::spawn_blocking(move || {
        if daemon.is_alive() {
            notify(&[NotifyState::Watchdog]);
        }
    });
}

/// Returns the configuration that applies from now on. Runs on a thread of its own, because it may wait for file systems
/// and reactors.
fn reload_from(path: &Path, old: Config, daemon: &Arc<Daemon>) -> Config {
    let new = match Config::load(path) {
        Ok(new) => new,
        Err(error) => {
            refuse_reload(daemon, &error.to_string());
            return old;
        }
    };
    tracing::info!("reloading");
    match reload::apply(daemon, &old, &new) {
        Err(error) => {
            refuse_reload(daemon, &format!("{}: {error}", path.display()));
            old
        }
        Ok(()) => new,
    }
}

fn refuse_reload(daemon: &Daemon, why: &str) {
    tracing::error!("reload refused, the old configuration stays in effect: {why}");
    daemon.events.add("reload-refused", "daemon", why);
}
