//! Programs of the system and of this workspace, and running them to their end.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// Timeout for operations that end without being stopped. On a busy disk, a flush can take half a minute.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// How long a build may take, on a busy machine.
pub const BUILD_LIMIT: Duration = Duration::from_secs(1200);

/// The tools that tests use and the Debian packages that have them.
const PACKAGES: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("qemu-storage-daemon", "qemu-utils (or qemu-system-common before QEMU 8)"),
    ("qemu-img", "qemu-utils"),
    ("qemu-io", "qemu-utils"),
    ("nbdkit", "nbdkit"),
    ("nbdinfo", "libnbd-bin"),
    ("nbdcopy", "libnbd-bin"),
    ("fio", "fio"),
    ("tgtd", "tgt"),
    ("tgtadm", "tgt"),
    ("ceph", "ceph-common"),
    ("rbd", "ceph-common"),
    ("monmaptool", "ceph-common"),
    ("ceph-mon", "ceph-mon"),
    ("ceph-osd", "ceph-osd"),
    ("etcd", "etcd-server"),
    ("setpriv", "util-linux"),
    ("flock", "util-linux"),
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("curl", "curl"),
    ("xz", "xz-utils"),
    ("script", "bsdutils"),
    ("systemd-analyze", "systemd"),
    ("ansible-playbook", "ansible-core"),
    ("promtool", "prometheus"),
    ("chromium", "chromium"),
];

/// A command that runs `tool`, wherever Debian keeps it.
///
/// # Errors
/// [`Error::MissingTool`] with the package to install.
pub fn tool(tool: &str) -> Result<Command> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let found = directories.map(|directory| directory.join(tool)).find(|path| path.is_file());
    found.map(Command::new).ok_or_else(|| Error::MissingTool {
        tool: tool.to_owned(),
        package: PACKAGES
            .iter()
            .find(|(name, _)| *name == tool)
            .map_or(tool, |(_, package)| *package)
            .to_owned(),
    })
}

/// A command that runs a program of this workspace, newly built; or the one in the directory that
/// `HAVERSACK_PROGRAMS` names, to test what is installed.
///
/// # Errors
/// The error output of the compiler.
pub fn own(program: &str) -> Result<Command> {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    if let Some(directory) = DIRECTORY.get() {
        return Ok(Command::new(directory.join(program)));
    }
    let directory = std::env::var_os("HAVERSACK_PROGRAMS").map_or_else(build, |path| Ok(path.into()))?;
    Ok(Command::new(DIRECTORY.get_or_init(|| directory).join(program)))
}

/// Builds the programs with the caller's own profile, so that no test runs an old one. Returns their directory.
fn build() -> Result<PathBuf> {
    let own = std::env::current_exe().map_err(Error::io("the program's own path"))?;
    // A test is in `target/PROFILE/deps`, a program in `target/PROFILE`.
    let profile = own.ancestors().skip(1).find(|directory| !directory.ends_with("deps"));
    let directory = profile.unwrap_or(Path::new(".")).to_owned();
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(workspace()).args([
        "build",
        "--quiet",
        "--bin",
        "haversackd",
        "--bin",
        "haversack",
        "--bin",
        "haversack-ublk",
    ]);
    cargo.arg("--target-dir").arg(directory.parent().unwrap_or(&directory));
    if directory.ends_with("release") {
        cargo.arg("--release");
    }
    run_within(cargo, BUILD_LIMIT)?;
    Ok(directory)
}

/// The command, in a mount namespace of its own in which a file system in memory is at `directory`. Its size is
/// written like `4k` or `16m`.
///
/// # Errors
/// [`Error::MissingTool`].
pub fn with_small_file_system(command: &Command, directory: &Path, size: &str) -> Result<Command> {
    let mut wrapped = tool("unshare")?;
    if !rustix::process::geteuid().is_root() {
        wrapped.args(["--user", "--map-root-user"]);
    }
    wrapped.args(["--mount", "sh", "-c", "mount -t tmpfs -o size=$1 none $0 && shift && exec \"$@\""]);
    wrapped.arg(directory).arg(size).arg(command.get_program()).args(command.get_args());
    wrapped.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    Ok(wrapped)
}

/// The command, in a network namespace.
///
/// # Errors
/// [`Error::MissingTool`].
pub fn in_network(command: &Command, namespace: &Path) -> Result<Command> {
    let mut wrapped = tool("nsenter")?;
    wrapped.arg(format!("--net={}", namespace.display())).arg("--");
    wrapped.arg(command.get_program()).args(command.get_args());
    wrapped.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    Ok(wrapped)
}

/// The number in an environment variable, or `default` if it is not set.
///
/// # Errors
/// If it is no number.
pub fn number_from(variable: &str, default: u64) -> Result<u64> {
    match std::env::var(variable) {
        Ok(text) => text.parse().map_err(|_| Error::Check(format!("{variable}={text} is no number"))),
        Err(std::env::VarError::NotPresent) => Ok(default),
        Err(error) => Err(Error::Check(format!("{variable}: {error}"))),
    }
}

/// A TCP port of the loopback interface that nobody listens on at the moment. No two tests get the same one.
///
/// # Errors
/// If there is none.
pub fn free_port() -> Result<u16> {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(Error::io("a free port"))?;
        let port = listener.local_addr().map_err(Error::io("a free port"))?.port();
        if GIVEN.lock().unwrap_or_else(PoisonError::into_inner).insert(port) {
            return Ok(port);
        }
    }
}

/// The workspace's root.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are in the workspace").to_owned()
}

/// Runs a program to its end and returns what it wrote to stdout.
///
/// # Errors
/// [`Error::Failed`] with all that it printed, or [`Error::TimedOut`].
pub fn run(command: Command) -> Result<String> {
    run_within(command, PATIENCE)
}

/// As [`run`], with a limit of one's own.
///
/// # Errors
/// As [`run`].
pub fn run_within(command: Command, limit: Duration) -> Result<String> {
    let line = line_of(&command);
    let Output { status, stdout, stderr } = output_within(command, limit)?;
    if status.success() {
        Ok(stdout)
    } else {
        Err(Error::Failed { command: line, status: status.to_string(), output: stdout + &stderr })
    }
}

/// How a program ended and what it printed.
#[derive(Debug)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote to stdout.
    pub stdout: String,
    /// What it wrote to stderr.
    pub stderr: String,
}

/// Runs a program to its end, however that is.
///
/// # Errors
/// [`Error::TimedOut`], or it cannot be started.
pub fn output(command: Command) -> Result<Output> {
    output_within(command, PATIENCE)
}

/// As [`output`], with a file as its stdin.
///
/// # Errors
/// As [`output`].
pub fn output_from(command: Command, stdin: std::fs::File) -> Result<Output> {
    output_to_end(command, stdin.into(), PATIENCE)
}

/// As [`output`], with a limit of one's own.
///
/// # Errors
/// As [`output`].
pub fn output_within(command: Command, limit: Duration) -> Result<Output> {
    output_to_end(command, Stdio::null(), limit)
}

fn output_to_end(mut command: Command, stdin: Stdio, limit: Duration) -> Result<Output> {
    let line = line_of(&command);
    let output = tempfile::tempfile().map_err(Error::io("a temporary file"))?;
    let errors = tempfile::tempfile().map_err(Error::io("a temporary file"))?;
    let clone = |file: &std::fs::File| file.try_clone().map_err(Error::io("a temporary file"));
    command.stdin(stdin).stdout(clone(&output)?).stderr(clone(&errors)?);
    let mut child = command.spawn().map_err(Error::io(line.clone()))?;
    let waited = wait_until(&line, limit, || Ok(child.try_wait().map_err(Error::io("wait"))?.is_some()));
    if let Err(error) = waited {
        // It may end by itself at this very moment; either way it is gone after the wait.
        let _ = child.kill();
        let _ = child.wait();
        return Err(error);
    }
    let status = child.wait().map_err(Error::io(line))?;
    Ok(Output { status, stdout: whole(output)?, stderr: whole(errors)? })
}

/// A command line as one would type it, nearly.
pub fn line_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Polls a condition until it is true.
///
/// # Errors
/// The question's own, or [`Error::TimedOut`].
pub fn wait_until(what: &str, limit: Duration, mut question: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !question()? {
        if start.elapsed() > limit {
            return Err(Error::TimedOut { what: what.to_owned(), limit });
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn whole(mut file: std::fs::File) -> Result<String> {
    use std::io::{Read, Seek};
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).map_err(Error::io("a temporary file"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
