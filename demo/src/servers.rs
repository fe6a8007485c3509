//! The origin and the daemon: started in sessions of their own, so that they outlive the demo and its terminal; stopped
//! by it or by the next one.
//!
//! Invariants
//! - Everything lies in one directory, but for the daemon's staging area in shared memory.
//! - Nothing is deleted or stopped that no demo has made: a directory without [`MARK`] is refused, and a process must
//!   name the directory on its command line.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use haversack_api::{DiskState, DiskStatus, Status};
use haversack_e2e::error::check;
use haversack_e2e::{Error, MIB, Result, tools};
use rustix::process::{Pid, Signal, kill_process};

use crate::workload::{self, DISK_MIB, WORKLOADS};

/// The file that says whose the directory is.
const MARK: &str = "made-by-the-haversack-demo";
/// The longest path of the directory: those of the sockets in it end at 107 bytes.
const LONGEST_PATH: usize = 80;
/// The pool's name.
const POOL: &str = "demo";
/// The pool's size, in MiB: a twentieth of what the disks have.
const CACHE_MIB: u64 = 104;
/// How slow the origin is: every read and write takes so long.
pub const DELAY_MS: u64 = 5;
/// How slow the origin is: all its clients together get n bytes a second.
pub const RATE_MIB: u64 = 50;
/// How long a server may take to start.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long a server may take to stop.
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// The servers, in the order in which they stop.
const SERVERS: [&str; 2] = ["haversackd", "origin"];

/// The demo's directory.
pub struct Place {
    directory: PathBuf,
    /// Where this workspace's programs are.
    programs: PathBuf,
}

impl Place {
    /// The demo's place in a directory.
    ///
    /// # Errors
    /// If the directory cannot be used, or this workspace's programs are not built.
    pub fn new(directory: PathBuf) -> Result<Self> {
        check_path(&directory)?;
        let own = std::env::current_exe().map_err(Error::io("the demo's own path"))?;
        let place = Self { directory, programs: own.parent().unwrap_or(Path::new(".")).to_owned() };
        for program in ["haversackd", "haversack"] {
            let path = place.program(program);
            check(path.is_file(), format!("{} is missing: 'make run' builds it first", path.display()))?;
        }
        Ok(place)
    }

    /// Makes the directory empty. Stops and removes what an earlier demo left in it.
    ///
    /// # Errors
    /// As [`Place::clear`].
    pub fn make(&self) -> Result<()> {
        self.clear()?;
        for name in ["", "disks", "run", "state"] {
            let path = self.path(name);
            fs::create_dir_all(&path).map_err(Error::io(path.display().to_string()))?;
        }
        self.write(MARK, "").map(drop)
    }

    /// Stops both servers, if they run, and removes the directory and the staging area.
    ///
    /// # Errors
    /// If it is no demo's, or a server does not stop.
    pub fn clear(&self) -> Result<()> {
        if fs::read_dir(&self.directory).is_ok_and(|mut entries| entries.next().is_some())
            && !self.path(MARK).exists()
        {
            let path = self.directory.display();
            return Err(Error::Check(format!(
                "{path} is not empty and no demo's: set DEMO_DIR to another directory"
            )));
        }
        for name in SERVERS {
            if let Some(id) = self.running(name) {
                stop(name, id)?;
            }
        }
        for result in [fs::remove_dir_all(&self.directory), fs::remove_file(staging())] {
            match result {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::io(format!(
                        "remove {} and {}",
                        self.directory.display(),
                        staging().display()
                    ))(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The path of something in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Writes a file and returns its path.
    ///
    /// # Errors
    /// The operating system's.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.path(name);
        fs::write(&path, text).map_err(Error::io(path.display().to_string()))?;
        Ok(path)
    }

    /// One of this workspace's programs.
    pub fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    /// The origin's socket.
    pub fn origin_socket(&self) -> PathBuf {
        self.path("origin.sock")
    }

    /// The daemon's NBD socket.
    pub fn nbd_socket(&self) -> PathBuf {
        self.path("run/nbd.sock")
    }

    /// The daemon's control socket.
    pub fn control_socket(&self) -> PathBuf {
        self.path("run/control.sock")
    }

    /// Starts the slow origin: empty disks behind nbdkit.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_origin(&self) -> Result<()> {
        for workload in &WORKLOADS {
            let path = self.path("disks").join(workload.disk);
            let sized = fs::File::create(&path).and_then(|file| file.set_len(DISK_MIB * MIB));
            sized.map_err(Error::io(path.display().to_string()))?;
        }
        // It goes to the background once it can be connected to; in the foreground it would end with the demo.
        let mut nbdkit = tools::tool("setsid")?;
        nbdkit.arg(tools::tool("nbdkit")?.get_program());
        nbdkit.arg("--pidfile").arg(self.path("origin.pid")).arg("--unix").arg(self.origin_socket());
        nbdkit.args(["--filter=delay", "--filter=rate", "file"]);
        nbdkit.arg(format!("dir={}", self.path("disks").display()));
        nbdkit.args([format!("delay-read={DELAY_MS}ms"), format!("delay-write={DELAY_MS}ms")]);
        nbdkit.arg(format!("rate={}", RATE_MIB * MIB * 8));
        tools::run(nbdkit).map(drop)
    }

    /// Makes the pool and starts the daemon, with all disks attached.
    ///
    /// # Errors
    /// If the pool cannot be made, or the daemon does not start.
    pub fn start_daemon(&self) -> Result<()> {
        let mut create = Command::new(self.program("haversack"));
        create
            .args(["pool", "create", POOL])
            .arg(self.path("cache.img"))
            .args(["--size", &format!("{CACHE_MIB}MiB")]);
        tools::run(create)?;
        let text = workload::configuration(&self.directory, POOL, &self.origin_socket());
        let config = self.write("haversackd.toml", &text)?;
        let mut daemon = tools::tool("setsid")?;
        daemon.arg(self.program("haversackd")).arg("--config").arg(config);
        let log = self.path("haversackd.log");
        let told = |error| Error::io(log.display().to_string())(error);
        let output = fs::File::create(&log).map_err(told)?;
        daemon.stdin(Stdio::null()).stderr(output.try_clone().map_err(told)?).stdout(output);
        let mut child = daemon.spawn().map_err(Error::io(tools::line_of(&daemon)))?;
        self.write("haversackd.pid", &format!("{}\n", child.id()))?;
        let is_up = |status: &Status| {
            let attached = |disk: &&DiskStatus| disk.state == DiskState::Attached;
            status.disks.iter().filter(attached).count() == WORKLOADS.len()
        };
        tools::wait_until("the start of haversackd", START_LIMIT, || {
            if let Some(status) = child.try_wait().map_err(Error::io("haversackd"))? {
                let output = fs::read_to_string(&log).unwrap_or_default();
                return Err(Error::Failed {
                    command: "haversackd".into(),
                    status: status.to_string(),
                    output,
                });
            }
            Ok(self.nbd_socket().exists() && self.status().is_ok_and(|status| is_up(&status)))
        })
    }

    /// What the daemon tells.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn status(&self) -> Result<Status> {
        let mut command = Command::new(self.program("haversack"));
        command.arg("--socket").arg(self.control_socket()).args(["--json", "status"]);
        let text = tools::run(command)?;
        serde_json::from_str(&text)
            .map_err(|error| Error::Check(format!("haversack status: {error}: {text}")))
    }

    /// The process id of a server, if it runs.
    fn running(&self, name: &str) -> Option<Pid> {
        let text = fs::read_to_string(self.path(&format!("{name}.pid"))).ok()?;
        let id: i32 = text.trim().parse().ok()?;
        let line = fs::read(format!("/proc/{id}/cmdline")).ok()?;
        let ours = String::from_utf8_lossy(&line).contains(self.directory.to_str()?);
        ours.then(|| Pid::from_raw(id)).flatten()
    }
}

/// Paths go into a configuration, a job file and URIs; none of these escapes is worth having here.
fn check_path(directory: &Path) -> Result<()> {
    let text = directory.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-');
    let holds =
        text.starts_with('/') && text.len() > 1 && text.len() <= LONGEST_PATH && text.chars().all(plain);
    check(
        holds,
        format!(
            "DEMO_DIR is '{text}': expected an absolute path of at most {LONGEST_PATH} letters, digits, '.', '_', '-', '/'"
        ),
    )
}

/// The daemon's staging area.
fn staging() -> PathBuf {
    format!("/dev/shm/haversack-{POOL}").into()
}

/// Ends a server (SIGTERM). Whose child it is does not matter.
fn stop(name: &str, id: Pid) -> Result<()> {
    kill_process(id, Signal::TERM).map_err(|error| Error::io(format!("stop {name}"))(error.into()))?;
    let number = id.as_raw_nonzero();
    tools::wait_until(&format!("the end of {name}"), STOP_LIMIT, || {
        // A child that has ended stays in the list, as a zombie, until its parent has asked for it.
        let status = fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        Ok(status.rsplit(')').next().is_none_or(|rest| rest.is_empty() || rest.starts_with(" Z")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_paths_are_refused() {
        for path in ["/tmp/haversack-demo", "/var/tmp/a_b.c"] {
            check_path(Path::new(path)).unwrap();
        }
        for path in ["", "/", "demo", "/tmp/a b", "/tmp/\"", &format!("/{}", "x".repeat(LONGEST_PATH))] {
            let error = check_path(Path::new(path)).unwrap_err().to_string();
            assert!(error.contains("DEMO_DIR"), "{error}");
        }
    }

    #[test]
    fn what_no_demo_made_is_left_alone() {
        let directory = std::env::temp_dir().join(format!("haversack-demo-test-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("precious"), "").unwrap();
        let place = Place { directory: directory.clone(), programs: PathBuf::new() };
        let error = place.clear().unwrap_err().to_string();
        assert!(error.contains("DEMO_DIR") && directory.join("precious").exists(), "{error}");
        fs::write(directory.join(MARK), "").unwrap();
        fs::write(directory.join("origin.pid"), format!("{}\n", std::process::id())).unwrap();
        assert_eq!(place.running("origin"), None, "this process does not name the directory");
        fs::remove_dir_all(&directory).unwrap();
    }
}
