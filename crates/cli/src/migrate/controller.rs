//! Moves a VM: has its cache sent, then QEMU migrate it, and holds the switchover until the cache is there.

use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use haversack_api::{HostStatus, MigrationStatus, Size, Span};
use haversack_qmp::{Address, Capability, Migration, Monitor, Phase};
use indicatif::ProgressBar;
use serde::Serialize;
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::filling::Filling;
use super::guard::Guard;
use super::source::{self, Stage};
use super::{Migrate, destination, table};
use crate::client::Client;
use crate::error::{CliError, Result};
use crate::output::print;

/// How long a monitor may take to answer.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// How often everything is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The same while the VM is stopped.
const HOLD_EVERY: Duration = Duration::from_millis(10);

/// The VM, if it is to be moved as well.
#[derive(Args)]
pub struct Vm {
    /// Move the VM as well: the monitor (QMP) of the QEMU that it runs in, a path or HOST:PORT.
    #[arg(long, value_name = "SOCKET", requires = "qmp_destination")]
    pub qmp: Option<Address>,
    /// Monitor of the QEMU that the VM moves to, which was started with -incoming.
    #[arg(long, value_name = "SOCKET", requires = "qmp")]
    pub qmp_destination: Option<Address>,
    /// Where QEMU sends the VM [default: where the destination listens, or a free port of the host].
    #[arg(long, requires = "qmp")]
    pub uri: Option<String>,
    /// Have QEMU send the VM's memory at the same time as the cache is sent.
    #[arg(long, requires = "qmp")]
    pub at_once: bool,
    /// Time for the cache to be sent before the VM's memory [default: no limit].
    #[arg(long, value_name = "TIME", requires = "qmp")]
    pub fill_within: Option<Span>,
    /// Time for which the VM may wait, stopped, for the last of its cache to be sent.
    #[arg(long, value_name = "TIME", default_value = "5s")]
    pub hold: Span,
    /// What to do when one of these times is over and the cache has not been sent.
    #[arg(long, value_enum, default_value_t = OnTimeout::Continue)]
    pub on_timeout: OnTimeout,
}

/// See [`Vm`].
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnTimeout {
    /// Move the VM; what has not been sent follows.
    Continue,
    /// Leave the VM where it is.
    Cancel,
}

/// What was done.
#[derive(Serialize)]
struct Report {
    /// How long QEMU says that the VM was stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    downtime_ms: Option<u64>,
    /// How long of that it waited for the cache.
    held_ms: u64,
    disks: Vec<MigrationStatus>,
}

struct Controller<'a> {
    client: &'a Client,
    vm: &'a Vm,
    filling: Filling<'a>,
    source: Monitor,
    destination: Monitor,
    interrupts: Signal,
    bar: ProgressBar,
    is_quiet: bool,
    held: Duration,
}

/// Runs `haversack migrate --qmp`.
pub fn run(client: &Client, migrate: &Migrate, to: &str, as_json: bool) -> Result<()> {
    let vm = &migrate.vm;
    let (Some(qmp), Some(qmp_destination)) = (&vm.qmp, &vm.qmp_destination) else {
        return Err(CliError::Usage("give both --qmp and --qmp-destination".into()));
    };
    let mut filling = Filling::new(client, &migrate.disks, to, migrate.method);
    let (source, destination) =
        (Monitor::connect(qmp, PATIENCE), Monitor::connect(qmp_destination, PATIENCE));
    let (downtime_ms, held) = match (source, destination) {
        (Ok(source), Ok(destination)) => {
            let interrupts = client
                .block_on(async { signal(SignalKind::interrupt()) })
                .map_err(|e| CliError::Failed(format!("cannot handle Ctrl-C: {e}")))?;
            let bar = if as_json { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
            let (is_quiet, held) = (as_json, Duration::ZERO);
            let mut controller =
                Controller { client, vm, filling, source, destination, interrupts, bar, is_quiet, held };
            let migration = controller.move_vm(to)?;
            controller.bar.finish_and_clear();
            filling = controller.filling;
            (migration.downtime_ms, controller.held)
        }
        (Ok(source), Err(error)) => return Err(without_destination(source, error.into())),
        // An earlier run has moved the VM, and its QEMU here has ended since.
        (Err(error), Ok(mut destination)) if error.is_gone() => {
            match destination.migration()?.phase {
                Phase::Completed => destination::arrive(&mut destination, true)?,
                _ => return Err(error.into()),
            }
            (None, Duration::ZERO)
        }
        (Err(error), _) => return Err(error.into()),
    };
    match migrate.wait {
        true => filling.wait()?,
        false => filling.settle()?,
    }
    let report = Report { downtime_ms, held_ms: held.as_millis() as u64, disks: filling.status()? };
    let stopped = downtime_ms.map_or_else(String::new, |ms| format!(", after {ms} ms without running"));
    let text = format!("The VM runs on host '{to}'{stopped}.\n{}", table(&report.disks));
    print(as_json, &report, &text)
}

/// What a VM needs that an earlier run was moving to a QEMU that is gone. Returns how it ended.
fn without_destination(mut source: Monitor, error: CliError) -> CliError {
    match source::stage(&mut source) {
        Ok(Stage::Moving(_)) => match source::cancel(&mut source) {
            Ok(true) => CliError::NotMoved { why: error.to_string(), is_cancelled: false },
            Ok(false) => gone(&error),
            Err(error) => error,
        },
        Ok(Stage::Gone) => gone(&error),
        _ => error,
    }
}

fn gone(error: &CliError) -> CliError {
    CliError::Attention(format!(
        "the source has sent the VM, and the QEMU that it was sent to cannot be asked: {error}. If it has ended, start the VM \
         anew; do not continue it at the source, where its disks may have changed since"
    ))
}

impl<'a> Controller<'a> {
    /// Moves the VM, or takes up what an earlier run has left. Returns what QEMU says of it.
    fn move_vm(&mut self, to: &str) -> Result<Migration> {
        let is_running = match source::stage(&mut self.source)? {
            Stage::Waiting => {
                let what =
                    "the QEMU at --qmp waits for a VM itself: are --qmp and --qmp-destination exchanged?";
                return Err(CliError::Usage(what.into()));
            }
            Stage::Moving(Phase::PostCopy) => return Err(post_copy()),
            Stage::Gone => true,
            Stage::Moving(phase) => {
                self.say(&format!("a migration is under way already ({phase:?}): taking it up"));
                let _guard = self.guard()?;
                // The VM is moved without its cache rather than left stopped.
                let _ = self.filling.start();
                self.follow()?;
                true
            }
            Stage::Here => {
                let is_running = self.source.run_state()? == "running";
                self.begin(to)?;
                is_running
            }
        };
        let migration = self.source.migration().unwrap_or_default();
        destination::arrive(&mut self.destination, is_running)?;
        Ok(migration)
    }

    /// Moves a VM that is here.
    fn begin(&mut self, to: &str) -> Result<()> {
        if self.source.has(Capability::PostCopy)? {
            return Err(post_copy());
        }
        destination::check_waits(&mut self.destination)?;
        self.filling.start()?;
        if !self.vm.at_once {
            self.fill()?;
        }
        let host = address_of(self.client, to)?;
        let uri = destination::listen(&mut self.destination, &host, self.vm.uri.as_deref())?;
        self.source.set(Capability::Events, true)?;
        self.source.set(Capability::PauseBeforeSwitchover, true)?;
        let moved = self.guard().and_then(|_guard| {
            self.source.execute("migrate", &json!({ "uri": uri }))?;
            self.follow()
        });
        // Or whoever migrates the VM next would have to continue it.
        let _ = self.source.set(Capability::PauseBeforeSwitchover, false);
        moved.inspect_err(|_| self.filling.abort())
    }

    fn guard(&self) -> Result<Guard> {
        let (Some(source), Some(destination)) = (&self.vm.qmp, &self.vm.qmp_destination) else {
            return Err(CliError::Usage("give both --qmp and --qmp-destination".into()));
        };
        Guard::start(source, destination)
    }

    /// Waits until the cache has been sent, as far as it can while the VM runs.
    fn fill(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            let fill = self.filling.look()?;
            self.bar.set_message(fill.to_string());
            if fill.is_ready {
                self.say(&fill.to_string());
                return Ok(());
            }
            if self.is_interrupted(LOOK_EVERY) {
                self.filling.abort();
                return Err(cancelled("Ctrl-C"));
            }
            if self.vm.fill_within.is_some_and(|limit| start.elapsed() > limit.0) {
                let what = format!("time is over: {fill}");
                if self.vm.on_timeout == OnTimeout::Cancel {
                    self.filling.abort();
                    return Err(cancelled(&what));
                }
                self.say(&what);
                return Ok(());
            }
        }
    }

    /// Follows QEMU's migration until the VM has been sent.
    fn follow(&mut self) -> Result<()> {
        let mut is_continued = false;
        loop {
            let stage = match source::stage(&mut self.source) {
                Ok(stage) => stage,
                Err(error) => return self.source_gone(&error.into()),
            };
            match stage {
                Stage::Gone => return Ok(()),
                Stage::Here | Stage::Waiting => {
                    let why = self.source.migration()?.error.unwrap_or_else(|| "QEMU gives no reason".into());
                    let why = format!("QEMU's migration has failed or was cancelled: {why}");
                    return Err(CliError::NotMoved { why, is_cancelled: false });
                }
                Stage::Moving(Phase::PreSwitchover) if !is_continued => {
                    if let Err(why) = self.hold() {
                        return self.call_off(why);
                    }
                    let state = json!({ "state": "pre-switchover" });
                    // It may have failed at this moment.
                    let _ = self.source.execute("migrate-continue", &state);
                    is_continued = true;
                }
                Stage::Moving(Phase::Active | Phase::Setup) if self.is_interrupted(Duration::ZERO) => {
                    return self.call_off(cancelled("Ctrl-C"));
                }
                Stage::Moving(_) => {}
            }
            self.show_memory();
            if let Err(error) = self.source.next_event(LOOK_EVERY) {
                return self.source_gone(&error.into());
            }
        }
    }

    /// Keeps the stopped VM waiting until its cache has been sent. An error says why it is not to be continued.
    fn hold(&mut self) -> Result<()> {
        let start = Instant::now();
        let held = loop {
            // A destination that has died is not noticed by the source.
            self.destination.run_state()?;
            // What a daemon does not send now, it sends later.
            let fill = self.filling.look().unwrap_or_default();
            if fill.is_ready {
                break Ok(());
            }
            if self.is_interrupted(HOLD_EVERY) {
                break Err(cancelled("Ctrl-C"));
            }
            if start.elapsed() > self.vm.hold.0 {
                let what = format!("time is over: {fill}");
                if self.vm.on_timeout == OnTimeout::Cancel {
                    break Err(cancelled(&what));
                }
                self.say(&what);
                break Ok(());
            }
        };
        self.held += start.elapsed();
        held
    }

    /// Cancels QEMU's migration. No error if it was too late for that.
    fn call_off(&mut self, why: CliError) -> Result<()> {
        if !source::cancel(&mut self.source)? {
            return Ok(());
        }
        Err(match why {
            CliError::NotMoved { .. } => why,
            other => CliError::NotMoved { why: other.to_string(), is_cancelled: false },
        })
    }

    /// The QEMU that the VM was in does not answer: the VM runs at the destination, or nowhere.
    fn source_gone(&mut self, error: &CliError) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let Ok(migration) = self.destination.migration() else { break };
            match migration.phase {
                Phase::Completed => return Ok(()),
                Phase::Failed => break,
                _ => std::thread::sleep(LOOK_EVERY),
            }
        }
        let why = "and it has not come to the destination. If that QEMU has ended, start the VM anew";
        Err(CliError::Attention(format!(
            "the QEMU that the VM was in cannot be asked any more: {error}; {why}"
        )))
    }

    fn show_memory(&mut self) {
        if let Ok(Migration { sent_bytes, left_bytes, .. }) = self.source.migration() {
            self.bar.set_message(format!(
                "{} of the VM's memory sent, {} left",
                Size(sent_bytes).rounded(),
                Size(left_bytes).rounded()
            ));
        }
    }

    /// Returns whether Ctrl-C was pressed, now or for a moment.
    fn is_interrupted(&mut self, moment: Duration) -> bool {
        let Controller { client, interrupts, .. } = self;
        client.block_on(async { tokio::time::timeout(moment, interrupts.recv()).await.is_ok() })
    }

    fn say(&self, what: &str) {
        self.bar.suspend(|| {
            if !self.is_quiet {
                eprintln!("{what}");
            }
        });
    }
}

fn cancelled(why: &str) -> CliError {
    CliError::NotMoved { why: why.into(), is_cancelled: true }
}

fn post_copy() -> CliError {
    CliError::Usage(
        "post-copy is on in the QEMU at --qmp, and vhost-user-blk disks do not support it: a page that has not come yet is not \
         there for the daemon; switch the capability postcopy-ram off"
            .into(),
    )
}

/// Returns the address of a host, without its port.
fn address_of(client: &Client, host: &str) -> Result<String> {
    let hosts: Vec<HostStatus> = client.get("/v1/hosts")?;
    let found = hosts.into_iter().find(|known| known.name == host);
    let address = found.map_or_else(|| host.to_owned(), |found| found.address);
    Ok(address.rsplit_once(':').map_or(address.clone(), |(name, _)| name.to_owned()))
}
