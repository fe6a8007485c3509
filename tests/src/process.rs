//! A server that runs beside the test.
//!
//! The server is killed when the value is dropped. If the test's thread ends without dropping it, the kernel kills the
//! server (`PR_SET_PDEATHSIG`, through setpriv): so start servers from the test's own thread. The server's children are
//! found by an environment variable that names the test's place, and are killed together with the place.

use std::fs::OpenOptions;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};

use crate::tools::{self, PATIENCE, line_of, wait_until};
use crate::{Error, Place, Result};

/// The environment variable that names the place of a process.
const PLACE_VARIABLE: &str = "HAVERSACK_TEST_PLACE";

/// A running server.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a server. What it prints is appended to `NAME.log` in the test's place.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(place: &Place, name: &str, command: &Command) -> Result<Self> {
        let log = place.path(format!("{name}.log"));
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .map_err(Error::io(log.display().to_string()))?;
        let errors = file.try_clone().map_err(Error::io(log.display().to_string()))?;
        let mut wrapped = tools::tool("setpriv")?;
        wrapped.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program()).args(command.get_args());
        wrapped.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
        wrapped.env(PLACE_VARIABLE, place.path(""));
        wrapped.stdin(Stdio::null()).stdout(file).stderr(errors).process_group(0);
        let child = wrapped.spawn().map_err(Error::io(line_of(command)))?;
        Ok(Self { name: name.to_owned(), child, log })
    }

    /// Waits until `question` is answered with yes.
    ///
    /// # Errors
    /// If the server ends before, or after `limit`.
    pub fn wait_for(&mut self, limit: Duration, mut question: impl FnMut() -> Result<bool>) -> Result<()> {
        let what = format!("the start of {}", self.name);
        wait_until(&what, limit, || {
            if let Some(status) = self.child.try_wait().map_err(Error::io("wait"))? {
                return Err(Error::Failed {
                    command: self.name.clone(),
                    status: status.to_string(),
                    output: std::fs::read_to_string(&self.log).unwrap_or_default(),
                });
            }
            question()
        })
    }

    /// Waits until the server has made a file, such as its PID file.
    ///
    /// # Errors
    /// As [`Process::wait_for`].
    pub fn wait_for_file(&mut self, path: &Path) -> Result<()> {
        self.wait_for(PATIENCE, || Ok(path.exists()))
    }

    /// Waits until the server has printed a text.
    ///
    /// # Errors
    /// If it does not.
    pub fn wait_for_text(&self, text: &str) -> Result<()> {
        wait_until(&format!("'{text}' from {}", self.name), PATIENCE, || {
            Ok(std::fs::read_to_string(&self.log).unwrap_or_default().contains(text))
        })
    }

    /// `kill -9` of the server alone; its children live on, if they can.
    ///
    /// # Errors
    /// If it is gone already.
    pub fn kill(mut self) -> Result<()> {
        self.signal(Signal::KILL)?;
        self.child.wait().map_err(Error::io("wait"))?;
        Ok(())
    }

    /// Asks the server to end (SIGTERM) and waits for it.
    ///
    /// # Errors
    /// If it does not end within `limit`, or is gone already.
    pub fn terminate(mut self, limit: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.wait(limit)
    }

    /// Waits for the end of a server that was told to stop in another way.
    ///
    /// # Errors
    /// If it does not end within `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let what = format!("the end of {}", self.name);
        wait_until(&what, limit, || Ok(self.child.try_wait().map_err(Error::io("wait"))?.is_some()))?;
        self.child.wait().map_err(Error::io("wait"))
    }

    /// Stops the server where it is: its sockets stay open and nobody answers. Returns when it has stopped: on a busy
    /// machine, its threads run on for a while after the signal.
    ///
    /// # Errors
    /// If it is gone.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)?;
        wait_until(&format!("the pause of {}", self.name), PATIENCE, || self.is_stopped())
    }

    /// Returns whether none of its threads runs user code any more. A thread that waits for a device stops when the
    /// device has answered.
    fn is_stopped(&self) -> Result<bool> {
        let tasks = format!("/proc/{}/task", self.pid().as_raw_nonzero());
        for task in std::fs::read_dir(&tasks).map_err(Error::io(tasks.clone()))? {
            let path = task.map_err(Error::io(tasks.clone()))?.path().join("stat");
            // A thread may have ended meanwhile.
            let Ok(stat) = std::fs::read_to_string(path) else { continue };
            let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
            if !matches!(state, Some('T' | 't' | 'D' | 'Z' | 'X')) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Undoes [`Process::pause`].
    ///
    /// # Errors
    /// If it is gone.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// SIGHUP: what servers take for "read your configuration again".
    ///
    /// # Errors
    /// If it is gone.
    pub fn hang_up(&self) -> Result<()> {
        self.signal(Signal::HUP)
    }

    /// Ctrl-C (SIGINT).
    ///
    /// # Errors
    /// If it is gone.
    pub fn interrupt(&self) -> Result<()> {
        self.signal(Signal::INT)
    }

    /// Returns whether the server has a handler for a signal.
    ///
    /// # Errors
    /// If it is gone.
    pub fn handles(&self, signal: Signal) -> Result<bool> {
        let path = format!("/proc/{}/status", self.id());
        let status = std::fs::read_to_string(&path).map_err(Error::io(path))?;
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
        Ok(caught >> (signal.as_raw() - 1) & 1 == 1)
    }

    /// Limits the number of file descriptors of the server. Those that are open stay open.
    ///
    /// # Errors
    /// If it is gone.
    pub fn limit_descriptors(&self, most: u64) -> Result<()> {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        prlimit(Some(self.pid()), Resource::Nofile, limit)
            .map_err(|error| Error::io(self.name.clone())(error.into()))?;
        Ok(())
    }

    /// Bytes of memory that the server has for itself alone: not those of files that it maps.
    ///
    /// # Errors
    /// If it is gone.
    pub fn memory_bytes(&self) -> Result<u64> {
        let path = format!("/proc/{}/status", self.id());
        let status = std::fs::read_to_string(&path).map_err(Error::io(path.clone()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib: Option<u64> = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
        kib.map(|kib| kib << 10).ok_or_else(|| Error::Check(format!("{path} does not tell RssAnon")))
    }

    /// The server's process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The process ids of the server's children.
    ///
    /// # Errors
    /// If the server is gone.
    pub fn children(&self) -> Result<Vec<Pid>> {
        let threads = format!("/proc/{}/task", self.id());
        let mut children = Vec::new();
        for thread in std::fs::read_dir(&threads).map_err(Error::io(threads.clone()))?.flatten() {
            let list = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            children.extend(list.split_whitespace().filter_map(|id| Pid::from_raw(id.parse().ok()?)));
        }
        Ok(children)
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(self.pid(), signal).map_err(|error| Error::io(self.name.clone())(error.into()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already; no other error is possible for a child process.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Kills what is left of a place's processes: children of servers that were killed.
pub fn kill_all_of(place: &Path) {
    let wanted = [PLACE_VARIABLE.as_bytes(), b"=", place.as_os_str().as_encoded_bytes()].concat();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // Other users' processes cannot be read, and are not ours.
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment.split(|byte| *byte == 0).any(|variable| variable == wanted) {
            let _ = Pid::from_raw(id).map(|id| kill_process(id, Signal::KILL));
        }
    }
}
