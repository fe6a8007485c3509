//! Moves a VM: has its cache sent, then has QEMU migrate it, and delays the switchover until the cache has
//! arrived.

use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use haversack_api::{HostStatus, MigrationStatus, Size, Span};
use haversack_qmp::{Address, Capability, Migration, Monitor, Phase, QmpError};
use indicatif::ProgressBar;
use serde::Serialize;
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::destination::{self, Arrival};
use super::filling::{Fill, Filling};
use super::guard::Guard;
use super::source::{self, Stage};
use super::witness::Witness;
use super::{Migrate, refusal, table};
use crate::client::Client;
use crate::error::{CliError, Result};
use crate::output::{Style, say};

/// How long a monitor may take to answer.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// How long the source may take to answer while the VM is being sent, before it is asked again.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How often the state of QEMU and the daemon is polled.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The same while the VM is stopped.
const HOLD_EVERY: Duration = Duration::from_millis(10);
/// How long a stopped VM's queues may be reported as running: a daemon's answer may be slightly out of date.
const STOPPED_WITHIN: Duration = Duration::from_secs(1);
/// How long to check whether Ctrl-C was pressed.
const MOMENT: Duration = Duration::from_millis(1);
/// The minimum time that the destination has to respond, and the daemon to report the progress of the caches, however
/// little time is left.
const LEAST_PATIENCE: Duration = Duration::from_secs(1);

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
    /// Send the VM's memory together with the cache, not after it.
    #[arg(long, requires = "qmp")]
    pub at_once: bool,
    /// How long to wait for the cache before sending the VM's memory [default: no limit].
    #[arg(long, value_name = "TIME", requires = "qmp")]
    pub fill_within: Option<Span>,
    /// How long the stopped VM may wait for the rest of its cache.
    #[arg(long, value_name = "TIME", default_value = "5s")]
    pub hold: Span,
    /// What to do if the cache has not been sent in time.
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

/// How far the caches were when the daemon answered, and whether that process still runs.
struct Seen {
    fill: Fill,
    witness: Witness,
}

impl Seen {
    /// Returns whether the VM may go.
    fn is_ready(&self) -> bool {
        self.fill.is_ready && self.fill.running.is_none() && self.witness.is_alive()
    }
}

struct Controller<'a> {
    client: &'a Client,
    vm: &'a Vm,
    filling: Filling<'a>,
    /// The monitors of the source and the destination, for the guard.
    addresses: [&'a Address; 2],
    source: Monitor,
    destination: Monitor,
    interrupts: Signal,
    bar: ProgressBar,
    /// No messages are printed. (The hidden bar does not tell: it is also hidden if stderr is a file, where messages
    /// are wanted.)
    is_quiet: bool,
    held: Duration,
}

/// Runs `haversack migrate --qmp`.
pub fn run(client: &Client, migrate: &Migrate, to: &str, style: Style) -> Result<()> {
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
            let (is_quiet, held) = (style.as_json || style.is_quiet, Duration::ZERO);
            let bar = if is_quiet { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
            let addresses = [qmp, qmp_destination];
            let mut controller = Controller {
                client,
                vm,
                filling,
                addresses,
                source,
                destination,
                interrupts,
                bar,
                is_quiet,
                held,
            };
            let migration = controller.move_vm(to)?;
            controller.bar.finish_and_clear();
            filling = controller.filling;
            client.block_on(filling.let_go());
            (migration.downtime_ms, controller.held)
        }
        (Ok(source), Err(error)) => return Err(without_destination(source, &error)),
        // An earlier run has moved the VM, and the VM's QEMU here has ended since.
        (Err(error), Ok(mut destination)) if error.is_gone() => {
            match destination.migration() {
                Ok(Migration { phase: Phase::Completed, .. }) => {
                    match destination::arrive(&mut destination, true)? {
                        Arrival::Arrived => {}
                        Arrival::Refused(_) => return Err(unknown(&error)),
                    }
                }
                _ => return Err(unknown(&error)),
            }
            (None, Duration::ZERO)
        }
        (Err(error), _) if error.is_gone() || matches!(error, QmpError::Silent { .. }) => {
            return Err(unknown(&error));
        }
        (Err(error), _) => return Err(error.into()),
    };
    // From here on the VM has moved; errors about its disks no longer change that.
    let settled = if migrate.wait { filling.wait() } else { filling.settle() };
    let status = filling.status();
    if let Some(error) = settled.as_ref().err().or(status.as_ref().err()) {
        say(&format!("haversack: the VM runs on host '{to}', but its disks could not be followed: {error}"));
    }
    let disks = status.unwrap_or_default();
    let stopped = downtime_ms.map_or_else(String::new, |ms| format!("; it was stopped for {ms} ms"));
    let mut text = format!("The VM runs on host '{to}'{stopped}.\n");
    if !disks.is_empty() {
        text += &table(&disks);
    }
    let report = Report { downtime_ms, held_ms: held.as_millis() as u64, disks };
    style.print(&report, &text)
}

fn unknown(error: &QmpError) -> CliError {
    CliError::Attention(format!("cannot determine where the VM is running: {error}"))
}

/// The destination's QEMU does not answer: cancels an earlier run's move, or leaves it as it is. Returns the outcome.
fn without_destination(mut source: Monitor, error: &QmpError) -> CliError {
    let is_sent = if error.is_gone() && !may_be_mistyped(error) {
        source::end(&mut source)
    } else {
        match source::stage(&mut source) {
            // The VM may still reach the destination.
            Ok(Stage::Moving(phase)) => {
                return CliError::Attention(format!(
                    "a migration is under way ({phase:?}), and was left as it is, since the QEMU at --qmp-destination does not \
                     answer: {error}. Run the command again when it answers; if that QEMU has ended, 'migrate_cancel' of the \
                     monitor at --qmp has the VM go on here"
                ));
            }
            stage => stage.map(|stage| stage == Stage::Gone).map_err(CliError::from),
        }
    };
    match is_sent {
        Ok(false) => CliError::NotMoved { why: error.to_string(), is_cancelled: false },
        Ok(true) => gone(error),
        Err(other) => {
            CliError::Attention(format!("cannot determine where the VM is running: {error}; {other}"))
        }
    }
}

/// There is no such socket: nothing shows that a QEMU was there.
fn may_be_mistyped(error: &QmpError) -> bool {
    matches!(error, QmpError::Unreachable { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
}

fn gone(error: &QmpError) -> CliError {
    CliError::Attention(format!(
        "the source has sent the VM, and the QEMU that it was sent to does not answer: {error}. If that QEMU has ended, restart the \
         VM on its host; do not continue it at the source, where its disks may have changed since"
    ))
}

impl<'a> Controller<'a> {
    /// Moves the VM, or continues the move of an earlier run. Returns QEMU's report of the migration.
    fn move_vm(&mut self, to: &str) -> Result<Migration> {
        let stage = source::stage(&mut self.source).map_err(|error| unknown(&error))?;
        // The source may have sent the VM to another QEMU.
        let mut may_be_elsewhere = stage == Stage::Gone;
        let (is_running, guard) = match stage {
            Stage::Waiting => {
                let what =
                    "the QEMU at --qmp waits for a VM itself: have --qmp and --qmp-destination been swapped?";
                return Err(CliError::Usage(what.into()));
            }
            Stage::Moving(Phase::PostCopy) => return Err(post_copy()),
            // Whether it was paused before is not known.
            Stage::Gone => (true, None),
            Stage::Moving(phase) => {
                self.say(&format!("a migration is already in progress ({phase:?}): following it"));
                may_be_elsewhere = self.destination.migration()?.phase == Phase::Failed;
                // Once QEMU has stopped the VM, its state no longer shows whether it was paused.
                let is_running = self.source.run_state().map_err(|error| unknown(&error))? != "paused";
                let moved = self.guarded(is_running, |controller| {
                    if may_be_elsewhere {
                        let why = "a migration to the QEMU at --qmp-destination has failed before, and it accepts no other";
                        return controller.call_off(CliError::NotMoved { why: why.into(), is_cancelled: false });
                    }
                    // While the VM is stopped, [`Controller::hold`] starts them.
                    if phase != Phase::PreSwitchover
                        && let Err(why @ CliError::NotMoved { .. }) = controller.look(LEAST_PATIENCE)
                    {
                        return controller.call_off(why);
                    }
                    controller.follow()
                });
                (is_running, Some(moved.inspect_err(|error| self.stop_filling(error))?))
            }
            Stage::Here => {
                let is_running = self.source.run_state()? == "running";
                (is_running, Some(self.begin(to, is_running)?))
            }
        };
        let migration = self.source.migration().unwrap_or_default();
        let arrived = self.arrive(is_running, may_be_elsewhere);
        if let Some(guard) = guard {
            guard.dismiss();
        }
        arrived.map(|()| migration)
    }

    /// Waits until a VM that was sent runs at the destination. If the destination refuses the VM, the VM continues
    /// where it was.
    fn arrive(&mut self, is_running: bool, may_be_elsewhere: bool) -> Result<()> {
        match destination::arrive(&mut self.destination, is_running)? {
            Arrival::Arrived => Ok(()),
            Arrival::Refused(why) if may_be_elsewhere => Err(refusal::unknown_whether_sent(&why)),
            Arrival::Refused(why) => {
                let error = refusal::bring_back(&mut self.source, &mut self.destination, &why, is_running);
                self.stop_filling(&error);
                Err(error)
            }
        }
    }

    /// Sends a VM that is here. Returns its guard.
    fn begin(&mut self, to: &str, is_running: bool) -> Result<Guard> {
        if self.source.has(Capability::PostCopy)? {
            return Err(post_copy());
        }
        destination::check_waits(&mut self.destination)?;
        let moved = self.filling.start().and_then(|()| self.send(to, is_running));
        moved.inspect_err(|error| self.stop_filling(error))
    }

    /// Stops sending the caches if the VM stays here. If it is not known whether it stays, a guard has taken over and
    /// waits for the monitor.
    fn stop_filling(&self, error: &CliError) {
        if !matches!(error, CliError::Attention(_)) {
            self.filling.abort();
        }
    }

    /// Sends a VM whose caches are on their way. Returns its guard.
    fn send(&mut self, to: &str, is_running: bool) -> Result<Guard> {
        let uri = self.vm.uri.as_deref();
        // An unknown address must fail here, before the cache is sent.
        let host = if uri.is_none() { address_of(self.client, to)? } else { String::new() };
        if !self.vm.at_once {
            self.fill()?;
        }
        let uri = destination::listen(&mut self.destination, &host, uri)?;
        self.guarded(is_running, |controller| {
            let source = &mut controller.source;
            let told = source
                .set(Capability::Events, true)
                .and_then(|()| source.set(Capability::PauseBeforeSwitchover, true))
                .and_then(|()| source.execute("migrate", &json!({ "uri": uri })));
            match told {
                Err(error @ QmpError::Refused { .. }) => {
                    Err(CliError::NotMoved { why: error.to_string(), is_cancelled: false })
                }
                // Without an answer, the next query shows whether QEMU has begun.
                _ => controller.follow(),
            }
        })
    }

    /// Runs `work`, during which QEMU may stop the VM. If this process ends before `work` does, a guard takes
    /// over. Returns the guard if the VM has been sent: it may be stopped until it has arrived.
    fn guarded(&mut self, is_running: bool, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<Guard> {
        let guard = Guard::start(self.addresses[0], self.addresses[1], is_running)?;
        let outcome = work(self);
        self.source.set_patience(PATIENCE);
        match outcome {
            Ok(()) => {
                source::dont_pause(&mut self.source);
                Ok(guard)
            }
            Err(stays @ CliError::NotMoved { .. }) => {
                source::dont_pause(&mut self.source);
                guard.dismiss();
                refusal::discard(&mut self.destination);
                Err(stays)
            }
            Err(attention @ CliError::Attention(_)) => Err(attention),
            Err(error) => Err(CliError::Attention(format!(
                "cannot determine where the VM is running: {error}; a process in the background cancels the migration when QEMU \
                 answers, unless the VM has been sent. Run the command again to see how that has ended"
            ))),
        }
    }

    /// Waits until the cache has been sent, as far as it can while the VM runs.
    fn fill(&mut self) -> Result<()> {
        let limit = self.vm.fill_within.map_or(Duration::MAX, |limit| limit.0);
        let start = Instant::now();
        let mut known = None;
        loop {
            if let Some(fill) = self.look(limit.saturating_sub(start.elapsed()))? {
                self.bar.set_message(fill.to_string());
                if fill.is_ready {
                    self.say(&fill.to_string());
                    return Ok(());
                }
                known = Some(fill);
            }
            if start.elapsed() >= limit {
                return self.give_up(known);
            }
            if self.is_interrupted(LOOK_EVERY) {
                return Err(cancelled("Ctrl-C"));
            }
        }
    }

    /// Returns how far the caches are, or `None` if that is not known within the limit, or [`LEAST_PATIENCE`] if that
    /// is longer. An error also if Ctrl-C is pressed.
    fn look(&mut self, limit: Duration) -> Result<Option<Fill>> {
        let Controller { client, filling, interrupts, .. } = self;
        client.block_on(async {
            tokio::select! {
                fill = filling.look() => fill.map(Some),
                Some(()) = interrupts.recv() => Err(cancelled("Ctrl-C")),
                () = tokio::time::sleep(limit.max(LEAST_PATIENCE)) => Ok(None),
            }
        })
    }

    /// As [`Controller::look`]. The witness shows whether the process that has answered still runs.
    fn look_with_witness(&mut self, limit: Duration) -> Result<Option<Seen>> {
        let start = Instant::now();
        let Controller { client, .. } = self;
        let witness = client.block_on(Witness::connect(client))?;
        let fill = self.look(limit.saturating_sub(start.elapsed()))?;
        Ok(fill.map(|fill| Seen { fill, witness }))
    }

    /// The time limit for the cache is reached. An error if the VM is not to be moved then.
    fn give_up(&self, known: Option<Fill>) -> Result<()> {
        let how_far = known.map_or_else(|| "the daemon has not answered".into(), |fill| fill.to_string());
        let what = format!("time limit reached: {how_far}");
        if self.vm.on_timeout == OnTimeout::Cancel {
            return Err(cancelled(&what));
        }
        self.say(&what);
        Ok(())
    }

    /// Follows QEMU's migration until the VM has been sent.
    fn follow(&mut self) -> Result<()> {
        let (mut is_continued, mut has_said) = (false, false);
        self.source.set_patience(ASK_AGAIN_AFTER);
        loop {
            self.keep();
            let stage = match source::stage(&mut self.source) {
                Ok(stage) => stage,
                Err(error) if error.is_gone() => return self.source_gone(&error.into()),
                // QEMU's main thread is blocked, for example by a disk whose origin is unreachable.
                Err(error @ QmpError::Silent { .. }) if !self.is_interrupted(MOMENT) => {
                    if !has_said {
                        self.say(&format!("{error}. Retrying until it answers"));
                        has_said = true;
                    }
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            match stage {
                Stage::Gone => return Ok(()),
                Stage::Here | Stage::Waiting => {
                    let why = self.source.migration().ok().and_then(|migration| migration.error);
                    let why = why.unwrap_or_else(|| "QEMU gives no reason".into());
                    let why = format!("QEMU's migration has failed or was cancelled: {why}");
                    return Err(CliError::NotMoved { why, is_cancelled: false });
                }
                Stage::Moving(Phase::PreSwitchover) if !is_continued => {
                    if let Err(why) = self.hold() {
                        return self.call_off(why);
                    }
                    self.let_go();
                    let state = json!({ "state": "pre-switchover" });
                    // The migration may have failed at this moment.
                    let _ = self.source.execute("migrate-continue", &state);
                    is_continued = true;
                }
                Stage::Moving(Phase::Active | Phase::Setup) if self.is_interrupted(MOMENT) => {
                    return self.call_off(cancelled("Ctrl-C"));
                }
                Stage::Moving(_) => {}
            }
            self.show_memory();
            // The next query reports an error.
            let _ = self.source.next_event(LOOK_EVERY);
        }
    }

    /// Keeps the stopped VM waiting until its cache has been sent. The error says why the migration must not continue.
    fn hold(&mut self) -> Result<()> {
        let start = Instant::now();
        let limit = self.vm.hold.0;
        let held = self.hold_while(|| limit.saturating_sub(start.elapsed()));
        self.held += start.elapsed();
        self.destination.set_patience(PATIENCE);
        held
    }

    /// As [`Controller::hold`], while time is `left`.
    ///
    /// The migration does not continue either if a daemon was restarted since the VM ran. If the connection breaks
    /// while QEMU stops a vhost-user queue, QEMU assumes that the last requests of the queue are the uncompleted ones,
    /// which may be wrong. When QEMU has connected again, it starts the queue although the VM is stopped, and sends an
    /// outdated index.
    fn hold_while(&mut self, left: impl Fn() -> Duration) -> Result<()> {
        let (mut known, start): (Option<Seen>, _) = (None, Instant::now());
        loop {
            // The source does not notice that the destination has died.
            self.destination.set_patience(left().clamp(LEAST_PATIENCE, PATIENCE));
            self.destination.run_state()?;
            let (mut is_down, mut silence) = (false, "it has not answered".to_owned());
            match self.look_with_witness(left()) {
                Ok(Some(seen)) if seen.is_ready() => return Ok(()),
                Ok(seen) => known = seen.or(known),
                Err(why @ (CliError::NotMoved { .. } | CliError::Job(_))) => return Err(why),
                Err(CliError::Unreachable { .. }) => is_down = true,
                // What a daemon does not send now, it sends later.
                Err(error) => silence = error.to_string(),
            }
            let running = known.as_ref().and_then(|seen| seen.fill.running.as_deref());
            if let Some(disk) = running.filter(|_| start.elapsed() >= STOPPED_WITHIN) {
                return Err(restarted(&format!("disk '{disk}' is in use although the VM is stopped")));
            }
            if left().is_zero() {
                match known {
                    _ if is_down => return Err(restarted("the daemon is down")),
                    None => return Err(unheard(&silence)),
                    Some(Seen { fill: Fill { running: Some(_), .. }, .. }) => {}
                    // Another process may have taken over, and then the queues run again.
                    Some(seen) if !seen.witness.is_alive() => {
                        return Err(restarted("the daemon does not answer, and its connection has ended"));
                    }
                    Some(seen) => return self.give_up(Some(seen.fill)),
                }
            }
            if self.is_interrupted(HOLD_EVERY) {
                return Err(cancelled("Ctrl-C"));
            }
        }
    }

    /// Has the daemon continue to send the caches. A daemon that does not answer does not delay the VM.
    fn keep(&mut self) {
        let Controller { client, filling, .. } = self;
        let _ = client.block_on(async { tokio::time::timeout(LEAST_PATIENCE, filling.keep()).await });
    }

    /// Has the daemon send the caches until the disks have followed the VM, even if this process ends. This
    /// must be called before the VM is continued: a guest whose disk is no longer being sent would wait for it
    /// forever.
    fn let_go(&mut self) {
        let Controller { client, filling, .. } = self;
        let _ = client.block_on(async { tokio::time::timeout(LEAST_PATIENCE, filling.let_go()).await });
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

    /// Handles a source QEMU that does not answer: the VM runs at the destination, or nowhere.
    fn source_gone(&mut self, error: &CliError) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            match self.destination.migration() {
                Ok(Migration { phase: Phase::Completed, .. }) => return Ok(()),
                Ok(Migration { phase: Phase::Failed, .. }) => {
                    refusal::discard(&mut self.destination);
                    break;
                }
                Err(error) if error.is_gone() => break,
                _ => std::thread::sleep(LOOK_EVERY),
            }
        }
        Err(CliError::Attention(format!(
            "the QEMU that the VM was in no longer answers: {error}; and the VM has not arrived at the destination. If \
             that QEMU has ended, restart the VM on this host"
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
                say(what);
            }
        });
    }
}

fn cancelled(why: &str) -> CliError {
    CliError::NotMoved { why: why.into(), is_cancelled: true }
}

fn restarted(what: &str) -> CliError {
    let why = format!(
        "{what}: the daemon has ended or was restarted while QEMU stopped the VM, and QEMU does not know which of its requests are \
         completed. Run the command again when the daemon runs"
    );
    CliError::NotMoved { why, is_cancelled: false }
}

/// The daemon has said nothing since QEMU stopped the VM.
fn unheard(why: &str) -> CliError {
    let why = format!(
        "the daemon has not said, while the VM was stopped, whether its disks are still in use: {why}. See the daemon's log, and run the \
         command again when the daemon answers"
    );
    CliError::NotMoved { why, is_cancelled: false }
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
