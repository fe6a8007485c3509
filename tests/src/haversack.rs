//! The daemon under test and its command line.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use serde_json::Value;

use crate::process::Process;
use crate::tools::PATIENCE;
use crate::{Attachment, Error, Place, Result, tools};

/// Where the daemon under test has its sockets, in the test's place.
pub(crate) const RUNTIME: &str = "run";

/// A disk of the daemon's configuration.
#[derive(Debug, Clone)]
pub struct Disk {
    /// Its name, which is also its NBD export's.
    pub name: String,
    /// Its origin's URI.
    pub origin: String,
    /// Its write mode.
    pub mode: String,
    /// More lines of its table.
    pub more: String,
    /// Whether it can be attached when the daemon starts.
    pub attachable: bool,
}

impl Disk {
    /// A disk in write-back mode.
    pub fn new(name: &str, origin: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            origin: origin.into(),
            mode: "wb".to_owned(),
            more: String::new(),
            attachable: true,
        }
    }

    /// The disk with one more line in its table.
    #[must_use]
    pub fn with(mut self, line: &str) -> Self {
        self.more += &format!("{line}\n");
        self
    }

    /// The disk, which the daemon will not be able to attach at first.
    #[must_use]
    pub fn unattachable(self) -> Self {
        Self { attachable: false, ..self }
    }
}

/// What the daemon is told by its configuration.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The size of each cache device, in MiB.
    pub cache_mib: u64,
    /// The cache devices: files in the test's place, as `cache.img`, or `faulty:cache.img` for one that can fail.
    /// Without any there is no pool.
    pub devices: Vec<String>,
    /// Whether dirty blocks are kept on two devices.
    pub redundancy: bool,
    /// The number of arenas of the pool.
    pub arenas: u8,
    /// The size of the staging area, in MiB.
    pub staging_mib: u64,
    /// The disks.
    pub disks: Vec<Disk>,
    /// More lines of `[[pool]]`.
    pub pool: String,
    /// More lines of `[daemon]`.
    pub daemon: String,
    /// More lines of `[nbd]`.
    pub nbd: String,
    /// Lines at the end of the file, in the last disk's table or beginning one of their own.
    pub more: String,
    /// A directory that is a small in-memory file system, which only the daemon sees; and its size, such as `16m`.
    pub small: Option<(PathBuf, String)>,
    /// The network namespace that the daemon runs in, if not the test's.
    pub network: Option<PathBuf>,
    /// The daemon's environment, besides the test's.
    pub environment: Vec<(String, String)>,
    /// Whether its start is over as soon as it answers and has attached the disks that it can: it may still wait for
    /// others.
    pub early: bool,
}

impl Settings {
    /// A pool of one device of `cache_mib` MiB.
    pub fn new(cache_mib: u64, disks: Vec<Disk>) -> Self {
        Self {
            cache_mib,
            devices: vec!["cache.img".to_owned()],
            redundancy: false,
            arenas: 1,
            staging_mib: 16,
            disks,
            pool: String::new(),
            daemon: String::new(),
            nbd: String::new(),
            more: String::new(),
            small: None,
            network: None,
            environment: Vec::new(),
            early: false,
        }
    }

    /// The configuration file of a daemon whose sockets are in `runtime`, a directory in the test's place. Paths
    /// in a place need no escapes in TOML.
    pub fn text(&self, place: &Place, runtime: &str) -> String {
        let runtime = place.path(runtime);
        let pool = pool_of(place);
        let mut text = format!(
            "[daemon]\nruntime_dir = \"{}\"\nstate_dir = \"{}\"\n{}\n",
            runtime.display(),
            runtime.join("state").display(),
            self.daemon,
        );
        if !self.devices.is_empty() {
            text += &format!(
                "[[pool]]\nname = \"{pool}\"\ndevices = {:?}\nstaging = \"{}MiB\"\n{}\n",
                self.device_names(place),
                self.staging_mib,
                self.pool,
            );
        }
        let listen = if self.nbd.contains("listen") {
            String::new()
        } else {
            format!("listen = [\"unix:{}\"]\n", runtime.join("nbd.sock").display())
        };
        text += &format!("[nbd]\n{listen}{}", self.nbd);
        for Disk { name, origin, mode, more, .. } in &self.disks {
            text += &format!(
                "\n[[disk]]\nname = \"{name}\"\npool = \"{pool}\"\norigin = \"{origin}\"\nmode = \"{mode}\"\n\
                 vhost_user = \"{}\"\n{more}",
                runtime.join(format!("{name}.sock")).display()
            );
        }
        text + &self.more
    }

    /// The cache devices as they are configured.
    fn device_names(&self, place: &Place) -> Vec<String> {
        let name = |device: &String| match device.strip_prefix("faulty:") {
            Some(file) => format!("faulty:{}", place.path(file).display()),
            None => place.path(device).display().to_string(),
        };
        self.devices.iter().map(name).collect()
    }

    /// The files that are the cache devices.
    pub fn device_files(&self, place: &Place) -> Vec<PathBuf> {
        let file = |device: &String| place.path(device.strip_prefix("faulty:").unwrap_or(device));
        self.devices.iter().map(file).collect()
    }
}

/// A daemon with a pool of one file, in a test's place.
#[derive(Debug)]
pub struct Haversack<'a> {
    place: &'a Place,
    settings: Settings,
    process: Option<Process>,
}

impl<'a> Haversack<'a> {
    /// Creates the pool, writes the configuration, and starts the daemon.
    ///
    /// # Errors
    /// If any of it fails.
    pub fn start(place: &'a Place, settings: Settings) -> Result<Self> {
        let mut create = tools::own("haversack")?;
        create.args(["pool", "create", &pool_of(place)]).args(settings.device_files(place));
        create.args(["--size", &format!("{}M", settings.cache_mib)]);
        create.args(settings.redundancy.then_some("--redundancy"));
        create.args(["--arenas", &settings.arenas.to_string()]);
        tools::run(create)?;
        Self::start_on_devices(place, settings)
    }

    /// Writes the configuration and starts the daemon on the devices of a pool that exists.
    ///
    /// # Errors
    /// If any of it fails.
    pub fn start_on_devices(place: &'a Place, settings: Settings) -> Result<Self> {
        let mut daemon = Self { place, settings, process: None };
        daemon.start_again()?;
        Ok(daemon)
    }

    /// The same, but attaches the disks one after the other, so that they are numbered in their order: a daemon
    /// attaches the disks in its configuration in parallel.
    ///
    /// # Errors
    /// If any of it fails.
    pub fn start_in_order(place: &'a Place, mut settings: Settings) -> Result<Self> {
        let later = settings.disks.split_off(1);
        let mut daemon = Self::start(place, settings)?;
        for disk in later {
            daemon.settings.disks.push(disk);
            daemon.reload(&daemon.configuration())?;
            tools::wait_until("the attachment of a disk", PATIENCE, || Ok(daemon.disks_are_there()))?;
        }
        Ok(daemon)
    }

    /// Starts the daemons of two hosts. The first one owns the disks that they share, so the second one is started
    /// without disks and given its own later. It must be running when the first one attaches a disk; otherwise the
    /// attach waits until its query of the second daemon times out.
    ///
    /// # Errors
    /// If any of it fails.
    pub fn start_both(places: &'a [Place; 2], [first, mut second]: [Settings; 2]) -> Result<[Self; 2]> {
        let disks = std::mem::take(&mut second.disks);
        let mut second = Self::start(&places[1], second)?;
        tools::wait_until("the second daemon", PATIENCE, || second.process()?.handles(Signal::HUP))?;
        let first = Self::start(&places[0], first)?;
        second.settings.disks = disks;
        second.reload(&second.configuration())?;
        tools::wait_until("the disks of the second daemon", PATIENCE, || Ok(second.disks_are_there()))?;
        Ok([first, second])
    }

    /// Starts the daemon on its pool, after [`Haversack::kill`] or [`Haversack::stop`].
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_again(&mut self) -> Result<()> {
        self.write_configuration(&self.configuration())?;
        self.start_unchanged()
    }

    /// The same, with the configuration file as it is.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_unchanged(&mut self) -> Result<()> {
        let mut command = tools::own("haversackd")?;
        command.arg("--config").arg(self.configuration_file());
        command.envs(self.settings.environment.iter().map(|(key, value)| (key, value)));
        if let Some((directory, size)) = &self.settings.small {
            command = tools::with_small_file_system(&command, directory, size)?;
        }
        if let Some(network) = &self.settings.network {
            command = tools::in_network(&command, network)?;
        }
        let mut process = Process::start(self.place, "haversackd", &command)?;
        let is_over =
            || self.json(&["status"]).is_ok_and(|status| self.settings.early || status["starting"] != true);
        process.wait_for(PATIENCE, || Ok(self.disks_are_there() && is_over()))?;
        self.process = Some(process);
        Ok(())
    }

    fn disks_are_there(&self) -> bool {
        let is_there = |disk: &Disk| !disk.attachable || self.socket(&format!("{}.sock", disk.name)).exists();
        let is_known = |disk: &Disk| self.command(&["disk", "show", &disk.name]).is_ok();
        self.settings.disks.iter().all(|disk| is_there(disk) && is_known(disk))
    }

    /// `kill -9`.
    ///
    /// # Errors
    /// If it is not running.
    pub fn kill(&mut self) -> Result<()> {
        self.take()?.kill()
    }

    /// `kill -9`, a moment without a daemon, and a new start.
    ///
    /// # Errors
    /// If it was not running or does not start.
    pub fn kill_and_restart(&mut self, moment: Duration) -> Result<()> {
        self.kill()?;
        std::thread::sleep(moment);
        self.start_again()
    }

    /// Ends the daemon cleanly (SIGTERM).
    ///
    /// # Errors
    /// If it does not end, or not cleanly.
    pub fn stop(&mut self) -> Result<()> {
        let status = self.take()?.terminate(PATIENCE)?;
        crate::error::check(status.success(), format!("haversackd ended with {status}"))
    }

    /// Waits until the daemon has ended by itself.
    ///
    /// # Errors
    /// If it does not end.
    pub fn ended(&mut self) -> Result<ExitStatus> {
        self.take()?.wait(PATIENCE)
    }

    /// Runs `haversack` with these arguments against the daemon and returns what it printed.
    ///
    /// # Errors
    /// The error output of the command.
    pub fn command(&self, arguments: &[&str]) -> Result<String> {
        tools::run(self.command_line(arguments)?)
    }

    /// Runs a command that must fail, and returns its error.
    ///
    /// # Errors
    /// It does not fail.
    pub fn refused(&self, arguments: &[&str]) -> Result<String> {
        match self.command(arguments) {
            Ok(text) => Err(Error::Check(format!("{arguments:?} was not refused: {text}"))),
            Err(error) => Ok(error.to_string()),
        }
    }

    /// `haversack` with these arguments against the daemon, not started yet.
    ///
    /// # Errors
    /// If it cannot be built.
    pub fn command_line(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = tools::own("haversack")?;
        command.arg("--socket").arg(self.socket("control.sock")).args(arguments);
        Ok(command)
    }

    /// What `haversack --json` prints with these arguments.
    ///
    /// # Errors
    /// The error output of the command, or that its output is not JSON.
    pub fn json(&self, arguments: &[&str]) -> Result<Value> {
        let text = self.command(&[&["--json"], arguments].concat())?;
        serde_json::from_str(&text)
            .map_err(|error| Error::Check(format!("haversack printed no JSON ({error}): {text}")))
    }

    /// Replaces the daemon's configuration file and has it reloaded (SIGHUP).
    ///
    /// # Errors
    /// If the daemon does not run.
    pub fn reload(&self, text: &str) -> Result<()> {
        self.write_configuration(text)?;
        self.process()?.hang_up()
    }

    /// Returns the daemon's settings, to change them.
    pub fn settings(&mut self) -> &mut Settings {
        &mut self.settings
    }

    /// The text of the configuration file that the settings make.
    pub fn configuration(&self) -> String {
        self.settings.text(self.place, RUNTIME)
    }

    /// The daemon's process.
    ///
    /// # Errors
    /// If it does not run.
    pub fn process(&self) -> Result<&Process> {
        self.process.as_ref().ok_or_else(not_running)
    }

    /// Returns the log of this daemon and of those before it.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.place.path("haversackd.log")).unwrap_or_default()
    }

    /// Waits until the daemon has logged a line with all of these words.
    ///
    /// # Errors
    /// If it does not.
    pub fn wait_for_log(&self, words: &[&str]) -> Result<()> {
        let has_all = |line: &str| words.iter().all(|word| line.contains(word));
        tools::wait_until(&format!("a log line with {words:?}"), PATIENCE, || {
            Ok(self.log().lines().any(has_all))
        })
    }

    /// The pool's name.
    pub fn pool(&self) -> String {
        pool_of(self.place)
    }

    /// The configuration file.
    pub fn configuration_file(&self) -> PathBuf {
        self.place.path("haversackd.toml")
    }

    fn write_configuration(&self, text: &str) -> Result<()> {
        let path = self.configuration_file();
        std::fs::write(&path, text).map_err(Error::io(path.display().to_string()))
    }

    /// Detaches a disk as soon as its last client has disconnected. When this returns, its dirty blocks are written
    /// back, and the disk is detached.
    ///
    /// # Errors
    /// The error output of the daemon.
    pub fn detach(&self, disk: &str) -> Result<()> {
        tools::wait_until("the last client's end", PATIENCE, || {
            Ok(self.json(&["disk", "show", disk])?["clients"] == 0)
        })?;
        self.command(&["disk", "detach", disk]).map(|_| ())
    }

    /// Detaches a disk although clients are connected.
    ///
    /// # Errors
    /// The error output of the daemon.
    pub fn detach_forced(&self, disk: &str) -> Result<()> {
        self.command(&["disk", "detach", disk, "--force"]).map(|_| ())
    }

    /// Attaches a disk of the settings again.
    ///
    /// # Errors
    /// If there is no such disk, or the error output of the daemon.
    pub fn attach(&self, disk: &str) -> Result<()> {
        let known = self.settings.disks.iter().find(|known| known.name == disk);
        let Disk { name, origin, mode, .. } = known.ok_or_else(|| Error::Check(format!("no disk {disk}")))?;
        let (pool, socket) = (pool_of(self.place), self.socket(&format!("{name}.sock")));
        let socket = socket.display().to_string();
        let place = ["--pool", &pool, origin, "--mode", mode, "--vhost-user", &socket];
        self.command(&[&["disk", "attach", name], &place[..]].concat()).map(|_| ())
    }

    /// Starts a second daemon on the same pool, which must fail. Returns its error output.
    ///
    /// # Errors
    /// If it does not give up.
    pub fn second_daemon(&self) -> Result<String> {
        let path = self.place.path("second.toml");
        let text = self.settings.text(self.place, "second");
        std::fs::write(&path, text).map_err(Error::io(path.display().to_string()))?;
        let mut command = tools::own("haversackd")?;
        command.arg("--config").arg(&path);
        let mut process = Process::start(self.place, "second", &command)?;
        match process.wait_for(PATIENCE, || Ok(false)) {
            Err(Error::Failed { output, .. }) => Ok(output),
            Err(error) => Err(error),
            Ok(()) => Err(Error::Check("a second daemon runs on the pool".into())),
        }
    }

    /// A disk for a guest, over vhost-user-blk.
    pub fn vhost_user(&self, disk: &str) -> Attachment {
        Attachment::VhostUser(self.socket(&format!("{disk}.sock")))
    }

    /// A disk for a guest, over NBD.
    pub fn nbd(&self, disk: &str) -> Attachment {
        Attachment::Nbd { socket: self.socket("nbd.sock"), export: disk.to_owned(), reconnect_s: 60 }
    }

    /// The URI of a disk's NBD export.
    pub fn uri(&self, disk: &str) -> String {
        format!("nbd+unix:///{disk}?socket={}", self.socket("nbd.sock").display())
    }

    /// `kill -9` of every helper process of the daemon. Returns how many there were.
    ///
    /// # Errors
    /// If the daemon is not running.
    pub fn kill_helpers(&self) -> Result<usize> {
        self.signal_helpers(Signal::KILL)
    }

    /// Stops every helper process of the daemon for a while, or has it continue.
    ///
    /// # Errors
    /// If the daemon is not running.
    pub fn pause_helpers(&self, is_paused: bool) -> Result<usize> {
        self.signal_helpers(if is_paused { Signal::STOP } else { Signal::CONT })
    }

    fn signal_helpers(&self, signal: Signal) -> Result<usize> {
        let children: Vec<Pid> = self.process()?.children()?;
        for child in &children {
            kill_process(*child, signal).map_err(|error| Error::io("signal a helper")(error.into()))?;
        }
        Ok(children.len())
    }

    fn take(&mut self) -> Result<Process> {
        self.process.take().ok_or_else(not_running)
    }

    /// A socket of the daemon.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.place.path(RUNTIME).join(name)
    }
}

impl Drop for Haversack<'_> {
    fn drop(&mut self) {
        self.process = None;
        // The staging area outlives the daemon on purpose; the test's is named after its pool.
        let pool = pool_of(self.place);
        for entry in std::fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().contains(&pool) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

/// The pool's name, which is unique to the test.
pub fn pool_of(place: &Place) -> String {
    let directory = place.path("");
    let name = directory.file_name().map(Path::new).unwrap_or(Path::new("main"));
    name.display().to_string().to_lowercase()
}

fn not_running() -> Error {
    Error::Check("haversackd is not running".into())
}
