//! Helpers: supervised `qemu-storage-daemon` processes that export, as NBD on a private Unix socket, the stores
//! which the engine does not access itself.
//!
//! Invariants
//! - A helper ends with the daemon: the kernel asks it to exit when the thread that started it ends, and that thread
//!   lives as long as the [`Helper`]. The helper is asked, not killed, so that it closes its store. For half a minute,
//!   a Ceph cluster treats a killed client as still using its image, and delays the next client's writes for as long.
//! - A disk has one helper at a time, even across a restart of the daemon (see the module `lock`).
//! - A helper that dies is restarted, each time after a longer pause, until the [`Helper`] is dropped. The engine's
//!   requests wait until it is back.
//! - Nobody can connect to a helper before its [`Gate`] has admitted it: until then, its socket has another name. After
//!   a final refusal, no other helper is started.
//! - A helper that its gate has not confirmed for half a day is stopped.
//! - If a helper answers every request with an error that it is shutting down, the store has cut off its client
//!   permanently. The helper is then replaced like one that has died: only if its gate admits the next one.
//! - If the daemon is confined, a helper is confined further before it runs (see [`crate::sandbox`]).
//! - What a helper opens is not in its command line, since it may contain passwords (see the module `setup`).
//! - A flush writes all data that a helper holds to the store (see [`crate::origin`]).

mod gate;
mod lock;
mod setup;

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use haversack_api::redact;
use haversack_engine::socket::{SocketError, remove_stale};
use haversack_sandbox::{Rules, SandboxError, confine_child};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use self::gate::Confirmation;
pub use self::gate::{CONFIRM_EVERY, Gate, Refusal};
use self::lock::HelperLock;
use self::setup::Setup;
use crate::locked::Locked;
use crate::origin::{BlockDevice, DISK_NODE};

/// The first pause before a helper is restarted; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause before a helper is restarted.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// A helper that has run for this long is restarted with the first pause.
const RAN_WELL: Duration = Duration::from_secs(30);
/// How often a running helper is checked.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long a helper may take to start.
const START_TIME: Duration = Duration::from_secs(20);
/// How long a helper may take to exit by itself.
const STOP_TIME: Duration = Duration::from_secs(10);
/// Why a helper is not available.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    /// The program cannot be started.
    #[error(
        "{program}: cannot start: {source}; install Debian's qemu-utils, or set [daemon] qemu_storage_daemon"
    )]
    Start {
        /// The program.
        program: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The path of its socket is taken.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// It exited by itself.
    #[error("the helper of disk '{disk}' ended ({status}): {last_line}")]
    Ended {
        /// The disk.
        disk: String,
        /// Its exit status.
        status: String,
        /// The last line of its output.
        last_line: String,
    },
    /// It does not open its store.
    #[error("the helper of disk '{disk}' cannot open its store: {why}")]
    Store {
        /// The disk.
        disk: String,
        /// QEMU's message.
        why: String,
    },
    /// It runs, but its store has permanently cut off its client.
    #[error(
        "the helper of disk '{disk}' answers that it is shutting down: the store has cut its client off, as a Ceph cluster does \
         with one that is blocklisted"
    )]
    CutOff {
        /// The disk.
        disk: String,
    },
    /// It cannot be confined.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// Its lock file cannot be used.
    #[error("{}: cannot lock it for a helper: {source}", .path.display())]
    Lock {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The helper of a daemon that died does not end.
    #[error(
        "the helper that an earlier haversackd started for disk '{disk}' is still running; find it with 'fuser {}' and end it",
        .lock.display()
    )]
    Left {
        /// The disk.
        disk: String,
        /// The file that it has locked.
        lock: PathBuf,
    },
    /// Its gate has not admitted it.
    #[error("the helper of disk '{disk}' is not used: {}", .refusal.why)]
    Refused {
        /// The disk.
        disk: String,
        /// Why.
        refusal: Refusal,
    },
    /// It does not answer.
    #[error("the helper of disk '{disk}' has not answered on {socket} within {} s", START_TIME.as_secs())]
    Silent {
        /// The disk.
        disk: String,
        /// Its socket.
        socket: PathBuf,
    },
}

/// The parameters of a helper.
#[derive(Clone, Debug)]
pub struct HelperSpec {
    /// The program, normally `qemu-storage-daemon`.
    pub program: PathBuf,
    /// The disk, for messages.
    pub disk: String,
    /// The private socket.
    pub socket: PathBuf,
    /// What to export.
    pub device: BlockDevice,
    /// Export it read-only.
    pub read_only: bool,
    /// Let clients query which layer of an image's chain holds its data.
    pub tells_depth: bool,
    /// User and group to run as; the daemon's if not set.
    pub run_as: Option<(u32, u32)>,
    /// What the helper may open if the daemon is confined. If not set, the same as the daemon.
    pub confined_to: Option<Rules>,
    /// Decides whether the helper may be used. If not set, it always may.
    pub gate: Option<Arc<dyn Gate>>,
    /// How often the gate confirms the helper: [`CONFIRM_EVERY`].
    pub confirm_every: Duration,
}

impl HelperSpec {
    /// Returns the URI under which the engine finds the export.
    pub fn uri(&self) -> String {
        uri(&self.socket)
    }

    /// Returns where the helper listens until it is admitted.
    fn closed_socket(&self) -> PathBuf {
        let mut path = self.socket.clone().into_os_string();
        path.push(".new");
        path.into()
    }

    fn refused(&self, refusal: Refusal) -> HelperError {
        HelperError::Refused { disk: self.disk.clone(), refusal }
    }

    /// Lets the engine connect to a helper that listens, if its gate agrees.
    fn admit(&self) -> Result<(), HelperError> {
        if let Some(gate) = &self.gate {
            gate.admit().map_err(|refusal| self.refused(refusal))?;
        }
        // Whoever connects to the new name reaches the same socket.
        std::fs::rename(self.closed_socket(), &self.socket).map_err(|error| {
            let why = format!("{}: cannot rename its socket: {error}", self.closed_socket().display());
            self.refused(Refusal { why, is_final: false })
        })
    }

    /// Starts the program. Returns it, and the setup that it still needs.
    fn spawn(&self) -> Result<(Child, Setup), HelperError> {
        let failed = |source| HelperError::Start { program: self.program.clone(), source };
        let lock = HelperLock::take(&self.disk, &self.socket, self.run_as)?;
        if let Some(gate) = &self.gate {
            gate.prepare().map_err(|refusal| self.refused(refusal))?;
        }
        // A socket left behind by a killed helper prevents the next one from listening.
        remove_stale(&self.closed_socket())?;
        remove_stale(&self.socket)?;
        let mut command = Command::new(&self.program);
        command.stdin(lock.for_helper()?).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Signals that a terminal sends to the daemon's group are for the daemon only.
        command.process_group(0);
        if let Some((user, group)) = self.run_as {
            command.uid(user).gid(group);
        }
        crate::system::end_with_parent(&mut command, Signal::SIGTERM);
        let setup = Setup::prepare(self, &mut command).map_err(failed)?;
        if let Some(rules) = &self.confined_to {
            confine_child(&mut command, &[rules])?;
        }
        let child = command.spawn().map_err(failed)?;
        lock.leave_to(child.id());
        Ok((child, setup))
    }
}

/// Returns the private socket of a disk's helper.
pub fn socket(runtime_dir: &Path, disk: &str) -> PathBuf {
    runtime_dir.join(format!("helper-{disk}.sock"))
}

/// Returns the URI of a helper's export.
pub fn uri(socket: &Path) -> String {
    format!("nbd+unix:///{DISK_NODE}?socket={}", percent_encoded(socket))
}

/// Encodes the characters that a URI's query cannot contain.
fn percent_encoded(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'.' | b'_' | b'-');
    let encode = |b: &u8| if plain(*b) { char::from(*b).to_string() } else { format!("%{b:02X}") };
    path.as_os_str().as_bytes().iter().map(encode).collect()
}

/// A supervised helper. Dropping it stops the helper.
pub struct Helper {
    stop: Option<mpsc::Sender<()>>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What a helper's thread shares with its owner.
#[derive(Debug, Default)]
struct Shared {
    /// The current process.
    pid: Mutex<Option<u32>>,
    /// The current process answers that it is shutting down.
    is_cut_off: AtomicBool,
    /// Why no other helper is started.
    refusal: Mutex<Option<String>>,
}

impl Helper {
    /// Starts a helper and waits until it answers.
    ///
    /// # Errors
    /// It cannot be started, exits or does not answer; it is not left running.
    pub fn start(spec: HelperSpec) -> Result<Helper, HelperError> {
        let (stop, stopped) = mpsc::channel();
        let (ready, first_start) = mpsc::channel();
        let shared = Arc::<Shared>::default();
        let supervisor = Supervisor { spec, shared: shared.clone(), stopped, last_line: Arc::default() };
        let (disk, socket) = (supervisor.spec.disk.clone(), supervisor.spec.socket.clone());
        let thread = std::thread::Builder::new()
            .name(format!("helper-{disk}"))
            .spawn(move || supervisor.run(&ready))
            .map_err(|source| HelperError::Start { program: "thread".into(), source })?;
        let helper = Helper { stop: Some(stop), shared, thread: Some(thread) };
        match first_start.recv_timeout(START_TIME) {
            Ok(Ok(())) => Ok(helper),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(HelperError::Silent { disk, socket }),
        }
    }

    /// Returns the current process, if one runs.
    pub fn pid(&self) -> Option<u32> {
        *self.shared.pid.locked()
    }

    /// Requests that the current process be replaced, because it answers that it is shutting down but keeps running.
    /// Returns false if this was requested already.
    pub fn replace(&self) -> bool {
        !self.shared.is_cut_off.swap(true, Ordering::Relaxed)
    }

    /// Returns why no process is started any more, if starting one was refused permanently.
    pub fn refusal(&self) -> Option<String> {
        self.shared.refusal.locked().clone()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The state of the helper's thread.
struct Supervisor {
    spec: HelperSpec,
    shared: Arc<Shared>,
    stopped: mpsc::Receiver<()>,
    last_line: Arc<Mutex<String>>,
}

/// How a process has ended.
enum End {
    /// By itself.
    Exited(ExitStatus),
    /// It was stopped, since it does not open its store, or was not admitted.
    Refused(HelperError),
    /// It was stopped to be replaced.
    CutOff,
    /// It was stopped on request.
    Stopped,
}

/// Reports the result of the first start.
type Ready = mpsc::Sender<Result<(), HelperError>>;

impl Supervisor {
    fn run(self, ready: &Ready) {
        let disk = &self.spec.disk;
        let mut pause = FIRST_PAUSE;
        let mut was_ready = false;
        loop {
            let started = Instant::now();
            let error = match self.spec.spawn() {
                Ok((child, setup)) => match self.watch(child, setup, ready, &mut was_ready) {
                    End::Exited(status) => HelperError::Ended {
                        disk: disk.clone(),
                        status: status.to_string(),
                        last_line: self.last_line.locked().clone(),
                    },
                    End::Refused(error) => error,
                    End::CutOff => HelperError::CutOff { disk: disk.clone() },
                    End::Stopped => break,
                },
                Err(error) => error,
            };
            if !was_ready {
                let _ = ready.send(Err(error));
                break;
            }
            if matches!(&error, HelperError::Refused { refusal, .. } if refusal.is_final) {
                tracing::error!(%disk, "{error}");
                *self.shared.refusal.locked() = Some(error.to_string());
                break;
            }
            pause = if started.elapsed() >= RAN_WELL { FIRST_PAUSE } else { pause };
            tracing::warn!(%disk, pause_ms = pause.as_millis() as u64, "{error}; restarting the helper");
            if self.is_stopped_within(pause) {
                break;
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        // Anything else at these paths is left alone.
        let _ = remove_stale(&self.spec.closed_socket());
        let _ = remove_stale(&self.spec.socket);
    }

    /// Waits for the request to stop. Returns true if it came within the time.
    fn is_stopped_within(&self, time: Duration) -> bool {
        !matches!(self.stopped.recv_timeout(time), Err(mpsc::RecvTimeoutError::Timeout))
    }

    /// Watches a process until it exits, or stops it on request or because it is not admitted.
    fn watch(&self, mut child: Child, setup: Setup, ready: &Ready, was_ready: &mut bool) -> End {
        *self.shared.pid.locked() = Some(child.id());
        let readers = self.forward_output(&mut child);
        let set_up = setup.begin();
        let (mut is_set_up, mut answers) = (false, false);
        let mut confirmation = Confirmation::new(&self.spec.disk, self.spec.confirm_every);
        let end = loop {
            match set_up.as_ref().map(mpsc::Receiver::try_recv) {
                Ok(Ok(Ok(()))) => is_set_up = true,
                // No result: the setup has not ended yet, or its result was received before.
                Ok(Err(_)) => {}
                Ok(Ok(Err(why))) => {
                    stop(&mut child);
                    break End::Refused(HelperError::Store { disk: self.spec.disk.clone(), why });
                }
                Err(error) => {
                    stop(&mut child);
                    let why = format!("no thread can be started: {error}");
                    break End::Refused(HelperError::Store { disk: self.spec.disk.clone(), why });
                }
            }
            if is_set_up && !answers && UnixStream::connect(self.spec.closed_socket()).is_ok() {
                if let Err(error) = self.spec.admit() {
                    stop(&mut child);
                    break End::Refused(error);
                }
                // A report about an earlier process does not count.
                self.shared.is_cut_off.store(false, Ordering::Relaxed);
                (answers, *was_ready) = (true, true);
                tracing::info!(disk = %self.spec.disk, pid = child.id(), "the helper is running");
                let _ = ready.send(Ok(()));
            }
            if let Some(gate) = self.spec.gate.as_ref().filter(|_| answers)
                && let Err(refusal) = confirmation.check(gate.as_ref())
            {
                stop(&mut child);
                break End::Refused(self.spec.refused(refusal));
            }
            if answers && self.shared.is_cut_off.load(Ordering::Relaxed) {
                stop(&mut child);
                break End::CutOff;
            }
            match child.try_wait() {
                Ok(Some(status)) => break End::Exited(status),
                Ok(None) => {}
                Err(error) => tracing::error!(disk = %self.spec.disk, "cannot wait for the helper: {error}"),
            }
            if self.is_stopped_within(if answers { LOOK_EVERY * 10 } else { LOOK_EVERY }) {
                stop(&mut child);
                break End::Stopped;
            }
        };
        *self.shared.pid.locked() = None;
        for reader in readers {
            let _ = reader.join();
        }
        end
    }

    /// Forwards a helper's output to the log.
    fn forward_output(&self, child: &mut Child) -> Vec<JoinHandle<()>> {
        let out = child.stdout.take().map(|s| Box::new(s) as Box<dyn std::io::Read + Send>);
        let err = child.stderr.take().map(|s| Box::new(s) as Box<dyn std::io::Read + Send>);
        let forward = |stream| {
            let (disk, last_line) = (self.spec.disk.clone(), self.last_line.clone());
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    let line = redact::text(&line);
                    tracing::warn!(%disk, "helper: {line}");
                    // QEMU ends some messages with an empty line.
                    if !line.trim().is_empty() {
                        *last_line.locked() = line;
                    }
                }
            })
        };
        out.into_iter().chain(err).map(forward).collect()
    }
}

/// Asks a helper to exit, and kills it if it does not.
fn stop(child: &mut Child) {
    let asked = kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM);
    let deadline = Instant::now() + STOP_TIME;
    while asked.is_ok() && Instant::now() < deadline {
        if matches!(child.try_wait(), Ok(Some(_)) | Err(_)) {
            return;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::process::ExitStatusExt;
    use std::sync::atomic::AtomicU32;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::origin::Origin;

    pub fn spec(dir: &Path, origin: &str) -> HelperSpec {
        let Ok(Origin::Helper(device)) = Origin::parse(origin) else { panic!("{origin} needs a helper") };
        HelperSpec {
            program: "qemu-storage-daemon".into(),
            disk: "vm1".into(),
            socket: dir.join("a b.sock"),
            device,
            read_only: false,
            tells_depth: false,
            run_as: None,
            confined_to: None,
            gate: None,
            confirm_every: CONFIRM_EVERY,
        }
    }

    #[test]
    fn a_missing_program_and_a_missing_image_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let mut spec = spec(dir.path(), "qcow2:/nonexistent.qcow2");
        let error = Helper::start(spec.clone()).map(drop).unwrap_err().to_string();
        assert!(error.contains("nonexistent.qcow2") && error.contains("vm1"), "{error}");
        spec.program = "/nonexistent".into();
        let error = Helper::start(spec).map(drop).unwrap_err().to_string();
        assert!(error.contains("qemu-utils"), "{error}");
    }

    #[test]
    fn a_file_that_is_not_a_socket_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let spec = spec(dir.path(), "qcow2:/nonexistent.qcow2");
        std::fs::write(&spec.socket, "precious").unwrap();
        let error = Helper::start(spec.clone()).map(drop).unwrap_err().to_string();
        assert!(error.contains("a b.sock") && error.contains("not a socket"), "{error}");
        assert_eq!(std::fs::read(&spec.socket).unwrap(), b"precious");
    }

    #[test]
    fn an_unreachable_iscsi_server_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let spec = spec(dir.path(), "iscsi://127.0.0.1:1/iqn.2020-01.org.example:x/1");
        let error = Helper::start(spec).map(drop).unwrap_err().to_string();
        assert!(error.contains("vm1") && error.contains("iSCSI: Failed to connect"), "{error}");
    }

    fn qcow2(dir: &Path) -> HelperSpec {
        let image = dir.join("a.qcow2");
        let made =
            Command::new("qemu-img").args(["create", "-q", "-f", "qcow2"]).arg(&image).arg("8M").status();
        assert!(made.expect("qemu-img is needed: install Debian's qemu-utils").success());
        spec(dir, &format!("qcow2:{}", image.display()))
    }

    /// A daemon started by root starts the first helper before it switches to this user, and later helpers afterwards.
    #[test]
    fn the_lock_is_of_the_helpers_user() {
        let dir = tempfile::tempdir().unwrap();
        let nobody = if nix::unistd::geteuid().is_root() { 65_534 } else { nix::unistd::geteuid().as_raw() };
        let group = if nix::unistd::geteuid().is_root() { 65_534 } else { nix::unistd::getegid().as_raw() };
        let socket = dir.path().join("vm1.sock");
        drop(HelperLock::take("vm1", &socket, Some((nobody, group))).unwrap());
        let lock = std::fs::metadata(dir.path().join("vm1.sock.lock")).unwrap();
        assert_eq!((lock.uid(), lock.mode() & 0o777), (nobody, 0o600));
    }

    /// The earlier daemon was killed and has left its helper, which hangs.
    #[test]
    fn a_helper_that_an_earlier_daemon_has_left_is_ended_before_the_next_one_starts() {
        let dir = tempfile::tempdir().unwrap();
        let spec = qcow2(dir.path());
        let (mut left, _setup) = spec.spawn().unwrap();
        kill(Pid::from_raw(left.id() as i32), Signal::SIGSTOP).unwrap();
        let helper = Helper::start(spec).unwrap();
        assert_eq!(left.wait().unwrap().signal(), Some(Signal::SIGKILL as i32));
        drop(helper);
    }

    #[test]
    fn a_killed_helper_is_restarted_and_a_dropped_one_ends() {
        let dir = tempfile::tempdir().unwrap();
        let spec = qcow2(dir.path());
        let helper = Helper::start(spec.clone()).unwrap();
        let first = helper.pid().unwrap();
        kill(Pid::from_raw(first as i32), Signal::SIGKILL).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let second = loop {
            assert!(Instant::now() < deadline, "the helper was not started again");
            std::thread::sleep(Duration::from_millis(20));
            match helper.pid() {
                Some(pid) if pid != first && UnixStream::connect(&spec.socket).is_ok() => break pid,
                _ => {}
            }
        };
        drop(helper);
        assert!(kill(Pid::from_raw(second as i32), None).is_err(), "the helper outlived its owner");
        assert!(!spec.socket.exists());
    }

    /// A gate that admits and confirms a helper while it is open. Checks that a helper cannot be reached before it is
    /// admitted.
    #[derive(Debug)]
    struct Door {
        socket: PathBuf,
        is_open: AtomicBool,
        is_final: bool,
    }

    impl Door {
        fn pass(&self) -> Result<(), Refusal> {
            match self.is_open.load(Relaxed) {
                true => Ok(()),
                false => Err(Refusal { why: "the door is closed".into(), is_final: self.is_final }),
            }
        }
    }

    impl Gate for Door {
        fn prepare(&self) -> Result<(), Refusal> {
            Ok(())
        }

        fn admit(&self) -> Result<(), Refusal> {
            assert!(UnixStream::connect(&self.socket).is_err(), "it can be reached before it is admitted");
            self.pass()
        }

        fn confirm(&self) -> Result<(), Refusal> {
            self.pass()
        }
    }

    fn behind_a_door(dir: &Path, is_final: bool) -> (Arc<Door>, HelperSpec) {
        let mut spec = qcow2(dir);
        let door = Arc::new(Door { socket: spec.socket.clone(), is_open: true.into(), is_final });
        spec.gate = Some(door.clone());
        (door, spec)
    }

    fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn a_helper_that_is_refused_for_good_is_not_started_again() {
        let dir = tempfile::tempdir().unwrap();
        let (door, spec) = behind_a_door(dir.path(), true);
        let helper = Helper::start(spec.clone()).unwrap();
        door.is_open.store(false, Relaxed);
        kill(Pid::from_raw(helper.pid().unwrap() as i32), Signal::SIGKILL).unwrap();
        wait_until("it is still being started", || helper.thread.as_ref().unwrap().is_finished());
        assert_eq!(helper.pid(), None);
        assert!(UnixStream::connect(&spec.socket).is_err(), "something answers");
        drop(helper);
        let error = Helper::start(spec).map(drop).unwrap_err().to_string();
        assert!(error.contains("the door is closed"), "{error}");
    }

    #[test]
    fn a_helper_that_is_cut_off_is_replaced_only_if_the_next_one_is_admitted() {
        for is_open in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let (door, spec) = behind_a_door(dir.path(), true);
            let helper = Helper::start(spec.clone()).unwrap();
            let first = helper.pid().unwrap();
            door.is_open.store(is_open, Relaxed);
            assert!(helper.replace());
            wait_until("it still runs", || kill(Pid::from_raw(first as i32), None).is_err());
            if is_open {
                wait_until("no other one is used", || {
                    helper.pid().is_some_and(|pid| pid != first) && UnixStream::connect(&spec.socket).is_ok()
                });
                assert_eq!(helper.refusal(), None);
            } else {
                wait_until("another one is started", || helper.thread.as_ref().unwrap().is_finished());
                assert!(helper.refusal().unwrap().contains("the door is closed"));
            }
        }
    }

    /// A gate that admits every helper. While it admits the second one, a late report arrives that the first is cut
    /// off.
    #[derive(Debug, Default)]
    struct LateWord {
        helper: Mutex<Option<Arc<Shared>>>,
        admitted: AtomicU32,
        confirmed: AtomicU32,
    }

    impl Gate for LateWord {
        fn prepare(&self) -> Result<(), Refusal> {
            Ok(())
        }

        fn admit(&self) -> Result<(), Refusal> {
            if self.admitted.fetch_add(1, Relaxed) == 1 {
                self.helper.locked().as_ref().unwrap().is_cut_off.store(true, Relaxed);
            }
            Ok(())
        }

        fn confirm(&self) -> Result<(), Refusal> {
            self.confirmed.fetch_add(1, Relaxed);
            Ok(())
        }
    }

    #[test]
    fn what_is_said_of_a_helper_that_was_cut_off_does_not_stop_its_successor() {
        let dir = tempfile::tempdir().unwrap();
        let gate = Arc::<LateWord>::default();
        let spec = HelperSpec {
            gate: Some(gate.clone()),
            confirm_every: Duration::from_millis(500),
            ..qcow2(dir.path())
        };
        let helper = Helper::start(spec).unwrap();
        *gate.helper.locked() = Some(helper.shared.clone());
        let first = helper.pid().unwrap();
        assert!(helper.replace());
        wait_until("it still runs", || kill(Pid::from_raw(first as i32), None).is_err());
        wait_until("no other one is admitted", || gate.admitted.load(Relaxed) == 2);
        // The supervisor checks for reports after each confirmation.
        let confirmed = gate.confirmed.load(Relaxed);
        wait_until("it is not confirmed", || gate.confirmed.load(Relaxed) >= confirmed + 3);
        assert_eq!(gate.admitted.load(Relaxed), 2, "another one was started");
        assert_eq!(helper.refusal(), None);
    }

    #[test]
    fn a_helper_that_is_not_confirmed_is_stopped() {
        for is_final in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let (door, mut spec) = behind_a_door(dir.path(), is_final);
            spec.confirm_every = Duration::from_millis(20);
            let helper = Helper::start(spec.clone()).unwrap();
            let first = helper.pid().unwrap();
            door.is_open.store(false, Relaxed);
            wait_until("it still runs", || helper.pid() != Some(first));
            if is_final {
                wait_until("another one is started", || helper.thread.as_ref().unwrap().is_finished());
            } else {
                door.is_open.store(true, Relaxed);
                wait_until("no other one is used", || UnixStream::connect(&spec.socket).is_ok());
            }
        }
    }
}
