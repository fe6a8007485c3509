//! `haversack migrate --qmp` as it is typed, with QEMUs and a daemon that do what a test tells them.

mod fake;

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use fake::daemon::Daemon;
use fake::qemu::Qemu;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

struct Move {
    folder: tempfile::TempDir,
    daemon: Daemon,
    source: Qemu,
    destination: Qemu,
}

impl Move {
    /// A VM that can be moved. `state` is that of the guest.
    fn new(state: &str) -> Move {
        let folder = tempfile::tempdir().unwrap();
        let daemon = Daemon::start(folder.path().join("control.sock"));
        let source = Qemu::start(folder.path().join("source"), state);
        let destination = Qemu::start(folder.path().join("destination"), "inmigrate");
        Move { folder, daemon, source, destination }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts the command.
    fn start(&self, destination: &str, more: &[&str]) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_haversack"));
        command.arg("--socket").arg(self.path("control.sock"));
        command.args([
            "--timeout",
            "3s",
            "migrate",
            "vm1",
            "--to",
            "beta",
            "--at-once",
            "--uri",
            "unix:/vm1",
        ]);
        command.arg("--qmp").arg(self.path("source"));
        command.arg("--qmp-destination").arg(self.path(destination)).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Starts the command, and waits until the memory is being sent. The fake daemon then reports that the queues have
    /// stopped.
    fn start_to_stop(&self, more: &[&str]) -> Child {
        let child = self.start("destination", more);
        until("the migration", || self.source.has_heard("migrate"));
        self.daemon.told(|daemon| daemon.queues = 0);
        child
    }

    /// QEMU has stopped the VM, and waits.
    fn stop(&self) {
        self.source.is("finish-migrate", "pre-switchover");
    }

    /// As [`Move::start_to_stop`], until the daemon has said while the VM was stopped that the queues have stopped.
    fn start_to_hold(&self, more: &[&str]) -> Child {
        let child = self.start_to_stop(more);
        self.stop();
        // The first look may have begun earlier.
        let before = self.daemon.looks();
        until("looks at the stopped VM", || self.daemon.looks() > before + 3);
        child
    }

    fn stays(&self, output: &Output, code: i32, why: &str) {
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && text.contains(why), "{output:?}");
        assert!(!self.source.has_heard("migrate-continue"), "the VM was sent: {output:?}");
    }
}

/// Waits for something.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what} has not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_vm_goes_without_a_silent_daemon_but_not_if_that_was_restarted() {
    let vm = Move::new("running");
    let child = vm.start_to_hold(&["--hold", "2s"]);
    vm.daemon.told(|daemon| daemon.is_silent = true);
    until("the switchover", || vm.source.has_heard("migrate-continue"));
    vm.source.is("postmigrate", "completed");
    vm.destination.is("running", "completed");
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("time limit reached"), "{output:?}");

    let mut vm = Move::new("running");
    let child = vm.start_to_hold(&["--hold", "2s"]);
    vm.daemon.end();
    // It is bound long before it is served.
    let next = UnixListener::bind(vm.path("control.sock")).unwrap();
    let output = child.wait_with_output().unwrap();
    vm.stays(&output, 1, "the daemon has ended or was restarted while QEMU stopped the VM");
    drop(next);
}

#[test]
fn a_vm_does_not_go_before_the_daemon_has_said_that_its_queues_have_stopped() {
    let vm = Move::new("running");
    let child = vm.start_to_stop(&["--hold", "1s"]);
    vm.daemon.told(|daemon| daemon.is_silent = true);
    vm.stop();
    vm.stays(&child.wait_with_output().unwrap(), 1, "the daemon has not said");
}

#[test]
fn an_aborted_job_has_a_stopped_vm_go_on_at_once() {
    let vm = Move::new("running");
    let start = Instant::now();
    let child = vm.start_to_hold(&["--hold", "300s"]);
    vm.daemon.told(|daemon| (daemon.state, daemon.job) = ("here", "cancelled"));
    vm.stays(&child.wait_with_output().unwrap(), 1, "was aborted");
    assert!(start.elapsed() < Duration::from_secs(200), "the VM was held");
}

#[test]
fn a_vm_whose_command_is_killed_before_it_has_arrived_runs_there_if_it_ran_before() {
    for state in ["running", "paused"] {
        let vm = Move::new(state);
        let mut child = vm.start_to_stop(&["--hold", "10ms"]);
        vm.stop();
        until("the switchover", || vm.source.has_heard("migrate-continue"));
        vm.destination.is("inmigrate", "active");
        vm.source.is("postmigrate", "completed");
        until("the end of the pause", || !vm.source.pauses());
        let before = vm.destination.queries();
        until("looks at the destination", || vm.destination.queries() > before + 3);
        child.kill().unwrap();
        child.wait().unwrap();
        // It was started with -S.
        vm.destination.is("paused", "completed");
        until("the guard", || vm.destination.ended_connections() == 2);
        assert_eq!(vm.destination.has_heard("cont"), state == "running", "{state}");
    }
}

#[test]
fn a_migration_that_does_not_pause_is_not_cancelled_while_memory_is_sent() {
    let vm = Move::new("running");
    vm.daemon.told(|daemon| daemon.state = "sending");
    vm.source.is("running", "active");
    let child = vm.start("destination", &[]);
    until("the command to follow", || vm.source.queries() > 5);
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    vm.stays(&child.wait_with_output().unwrap(), 8, "without pause-before-switchover");
    assert!(!vm.source.has_heard("migrate_cancel"));
}

#[test]
fn a_migration_is_not_cancelled_because_the_destination_is_mistyped() {
    let vm = Move::new("running");
    vm.source.set_pauses();
    vm.source.is("running", "active");
    let output = vm.start("nowhere", &[]).wait_with_output().unwrap();
    vm.stays(&output, 8, "was left as it is");
    assert!(!vm.source.has_heard("migrate_cancel"));
}
