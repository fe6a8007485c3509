//! A Linux guest in QEMU (software emulation), its disks, and its commands.
//!
//! The guest's program is `tests/guest`; its commands are listed in `haversack_guest::commands`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use haversack_qmp::Monitor;
use serde_json::json;

use crate::error::check;
use crate::process::Process;
use crate::tools::PATIENCE;
use crate::{Error, Place, Result, qmp, tools};

/// The guest's memory. With vhost-user it is shared with the server.
const MEMORY: &str = "256M";
/// QEMU's software emulation sometimes aborts with this message while a guest boots, regardless of the disks: one
/// processor looks up a device while another one changes the memory map.
const EMULATOR_FAULT: &str = "iotlb_to_section: Assertion";
/// The kernel logs this when the emulated timer of the second processor has stopped, after which it hangs.
const TIMER_FAULT: &str = "Possible timer handling issue";
/// How long a boot takes at most on a busy machine, if neither has happened.
const BOOT_TIME: Duration = Duration::from_secs(60);
/// How often a guest is booted if the emulation fails in one of these ways.
const MOST_BOOTS: usize = 3;

/// How a disk comes into the guest. The first one is `vda`, the second `vdb`.
#[derive(Debug, Clone)]
pub enum Attachment {
    /// vhost-user-blk on this socket; QEMU connects again when the server is gone.
    VhostUser(PathBuf),
    /// QEMU's NBD client on this socket, with an export's name; it connects again for `reconnect_s` seconds.
    Nbd {
        /// The server's socket.
        socket: PathBuf,
        /// The export.
        export: String,
        /// How long requests wait for a server that is gone, in seconds.
        reconnect_s: u32,
    },
    /// A file of the host, accessed past its page cache.
    File(PathBuf),
}

impl Attachment {
    /// The socket or file.
    pub fn path(&self) -> &Path {
        let (Self::VhostUser(path) | Self::Nbd { socket: path, .. } | Self::File(path)) = self;
        path
    }
}

/// A running guest.
#[derive(Debug)]
pub struct Guest {
    qemu: Qemu,
    /// The logs of the kernel, one for each QEMU that the guest has run in.
    consoles: Vec<PathBuf>,
}

/// The process that a guest runs in, or that waits for one to come.
#[derive(Debug)]
pub struct Qemu {
    process: Process,
    name: String,
    port: BufReader<UnixStream>,
    console: PathBuf,
    /// The sockets of its two monitors: one is for the test.
    monitors: [PathBuf; 2],
}

/// What the guest answered to a command.
#[derive(Debug, Clone)]
pub struct Answer {
    text: String,
    fields: BTreeMap<String, String>,
}

impl Guest {
    /// Boots a guest with these disks. The logs are `NAME.log` and the kernel's `NAME-console.log`.
    ///
    /// # Errors
    /// If QEMU does not start or the guest's program does not answer.
    pub fn boot(place: &Place, name: &str, disks: &[Attachment]) -> Result<Self> {
        Self::boot_with(place, name, disks, &[])
    }

    /// Boots a guest whose `kernel` and `initramfs` are in another directory than that of `scripts/guest-image`.
    ///
    /// # Errors
    /// As [`Guest::boot`].
    pub fn boot_image(place: &Place, name: &str, disks: &[Attachment], image: &Path) -> Result<Self> {
        Self::boot_from(place, name, image, disks, &[])
    }

    /// Boots a guest in which QEMU's guest agent runs. Returns the agent's socket, too.
    ///
    /// # Errors
    /// As [`Guest::boot`].
    pub fn boot_with_agent(place: &Place, name: &str, disks: &[Attachment]) -> Result<(Self, PathBuf)> {
        let socket = place.path(format!("{name}-agent.sock"));
        let line = format!("socket,id=agent,path={},server=on,wait=off", socket.display());
        let port = "virtserialport,chardev=agent,name=org.qemu.guest_agent.0";
        let more = ["-device", "virtio-serial-pci", "-chardev", &line, "-device", port];
        let mut guest = Self::boot_with(place, name, disks, &more)?;
        guest.ask("agent")?;
        Ok((guest, socket))
    }

    fn boot_with(place: &Place, name: &str, disks: &[Attachment], more: &[&str]) -> Result<Self> {
        Self::boot_from(place, name, image()?, disks, more)
    }

    fn boot_from(
        place: &Place,
        name: &str,
        image: &Path,
        disks: &[Attachment],
        more: &[&str],
    ) -> Result<Self> {
        let (mut boots, mut faults) = (0, 0);
        loop {
            let qemu = Qemu::start(place, name, image, disks, more)?;
            let mut guest = Self { consoles: vec![qemu.console.clone()], qemu };
            let text = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
            let has_no_timer = |guest: &Self| text(&guest.qemu.console).contains(TIMER_FAULT);
            let booted = match guest.finish("boot", BOOT_TIME) {
                Err(Error::TimedOut { .. }) if !has_no_timer(&guest) => guest.finish("boot", PATIENCE),
                booted => booted,
            };
            boots += 1;
            let faults_before = faults;
            faults = text(&place.path(format!("{name}.log"))).matches(EMULATOR_FAULT).count();
            let is_emulators_fault = faults > faults_before || has_no_timer(&guest);
            match booted {
                Ok(_) => {
                    place.say(&format!("{name} is up"));
                    return Ok(guest);
                }
                Err(_) if is_emulators_fault && boots < MOST_BOOTS => {
                    place.say(&format!("{name} boots again: QEMU's emulation of processors has failed"));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Moves the running guest to another QEMU, named `name`, with the same disks. No command may be under way.
    ///
    /// # Errors
    /// If the migration fails, or the new QEMU cannot be reached.
    pub fn migrate(&mut self, place: &Place, name: &str, disks: &[Attachment]) -> Result<()> {
        let channel = format!("unix:{}", place.path(format!("{name}-migration.sock")).display());
        let destination = Qemu::expect(place, name, disks, &[])?;
        // With `-incoming` and the channel the socket's file exists before QEMU listens there.
        destination.watch()?.execute("migrate-incoming", &json!({ "uri": channel }))?;
        let mut monitor = self.qemu.watch()?;
        let told = qmp::migrate(&mut monitor, &channel, PATIENCE)?;
        place.say(&format!(
            "{} moved to {name}: {} KiB, guest stopped for {} ms",
            self.qemu.name,
            told["ram"]["transferred"].as_u64().unwrap_or(0) >> 10,
            told["downtime"]
        ));
        qmp::wait_for_status(&mut destination.watch()?, "running", PATIENCE)?;
        monitor.execute("quit", &json!({}))?;
        self.runs_in(destination).process.wait(PATIENCE)?;
        Ok(())
    }

    /// Another program has moved the guest to another QEMU. Returns the QEMU that it was in.
    pub fn runs_in(&mut self, qemu: Qemu) -> Qemu {
        self.consoles.push(qemu.console.clone());
        std::mem::replace(&mut self.qemu, qemu)
    }

    /// The QEMU that the guest is in.
    pub fn qemu(&self) -> &Qemu {
        &self.qemu
    }

    /// Sends a command and waits for its answer.
    ///
    /// # Errors
    /// If the guest answers with an error, not in time, or not at all.
    pub fn ask(&mut self, command: &str) -> Result<Answer> {
        self.begin(command)?;
        self.finish(command, PATIENCE)
    }

    /// Sends a command whose answer is read later, with [`Guest::finish`].
    ///
    /// # Errors
    /// If the guest is gone.
    pub fn begin(&mut self, command: &str) -> Result<()> {
        self.qemu.port.get_mut().write_all(format!("{command}\n").as_bytes()).map_err(Error::io(command))
    }

    /// Waits for the answer to `command`.
    ///
    /// # Errors
    /// As [`Guest::ask`]. After a time-out the guest can no longer be used.
    pub fn finish(&mut self, command: &str, limit: Duration) -> Result<Answer> {
        let mut line = String::new();
        self.qemu.port.get_ref().set_read_timeout(Some(limit)).map_err(Error::io(command))?;
        match self.qemu.port.read_line(&mut line) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                return Err(Error::TimedOut { what: format!("guest: {command}"), limit });
            }
            Err(error) => return Err(Error::io(format!("guest: {command}"))(error)),
            Ok(0) => {
                return Err(Error::Guest { command: command.into(), answer: "the guest is gone".into() });
            }
            Ok(_) => {}
        }
        match line.trim_end().split_once(' ') {
            Some(("ok", text)) => Ok(Answer::new(text)),
            None if line.trim_end() == "ok" => Ok(Answer::new("")),
            _ => Err(Error::Guest { command: command.into(), answer: line.trim_end().into() }),
        }
    }

    /// Powers the guest off and waits until QEMU has ended.
    ///
    /// # Errors
    /// If it does not end.
    pub fn off(mut self) -> Result<()> {
        self.ask("off")?;
        let status = self.qemu.process.wait(PATIENCE)?;
        check(status.success(), format!("QEMU ended with {status}"))
    }

    /// Fails if the guest's kernel has complained of I/O errors.
    ///
    /// # Errors
    /// [`Error::Check`] with the line.
    pub fn no_complaints(&self) -> Result<()> {
        for console in &self.consoles {
            let text = std::fs::read(console).map_err(Error::io(console.display().to_string()))?;
            let text = String::from_utf8_lossy(&text);
            let complaint =
                text.lines().find(|line| line.contains("I/O error") || line.contains("Corruption"));
            if let Some(line) = complaint {
                return Err(Error::Check(format!("the guest's kernel says: {line}")));
            }
        }
        Ok(())
    }
}

impl Qemu {
    /// Starts a QEMU that waits for an incoming guest (`-incoming defer`: it is told the channel later).
    /// `more` are further arguments.
    ///
    /// # Errors
    /// If it does not start.
    pub fn expect(place: &Place, name: &str, disks: &[Attachment], more: &[&str]) -> Result<Self> {
        Self::start(place, name, image()?, disks, &[&["-incoming", "defer"], more].concat())
    }

    /// Starts QEMU and connects to its guest's port.
    fn start(place: &Place, name: &str, image: &Path, disks: &[Attachment], more: &[&str]) -> Result<Self> {
        let console = place.path(format!("{name}-console.log"));
        let socket = place.path(format!("{name}.sock"));
        let mut command = tools::tool("qemu-system-x86_64")?;
        command.args(["-machine", "q35,memory-backend=memory", "-accel", "tcg", "-cpu", "max", "-smp", "2"]);
        let memory = format!("memory-backend-memfd,id=memory,size={MEMORY},share=on");
        command.args(["-m", MEMORY, "-object", &memory]);
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        command.arg("-kernel").arg(image.join("kernel")).arg("-initrd").arg(image.join("initramfs"));
        // The guest program starts the second processor, once the disks are mapped.
        command.args(["-append", "console=ttyS0 quiet panic=-1 maxcpus=1"]);
        command.args(["-serial", &format!("file:{}", console.display())]);
        command.args(["-serial", &format!("unix:{},server=on,wait=off", socket.display())]);
        let monitors = ["qmp", "watch"].map(|kind| place.path(format!("{name}-{kind}.sock")));
        for monitor in &monitors {
            command.args(["-qmp", &format!("unix:{},server=on,wait=off", monitor.display())]);
        }
        command.args(more);
        for (number, disk) in disks.iter().enumerate() {
            attach(&mut command, number, disk)?;
        }
        // QEMU waits for a connection to the serial port. The guest reports later that it is ready.
        let mut process = Process::start(place, name, &command)?;
        let mut connected = None;
        process.wait_for(PATIENCE, || {
            connected = UnixStream::connect(&socket).ok();
            Ok(connected.is_some())
        })?;
        let port = connected.ok_or_else(|| Error::Check("a connection that succeeded is there".into()))?;
        Ok(Self { process, name: name.to_owned(), port: BufReader::new(port), console, monitors })
    }

    /// The socket of the monitor that is for programs under test.
    pub fn monitor(&self) -> &Path {
        &self.monitors[0]
    }

    /// Connects to the monitor that is for the test.
    ///
    /// # Errors
    /// If QEMU has ended.
    pub fn watch(&self) -> Result<Monitor> {
        qmp::connect(&self.monitors[1])
    }

    /// The process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// `kill -9`.
    ///
    /// # Errors
    /// If it has ended already.
    pub fn kill(self) -> Result<()> {
        self.process.kill()
    }
}

impl Answer {
    /// Parses an answer's line: words `key=value`; `first` takes the rest of the line.
    fn new(text: &str) -> Self {
        let (words, first) = match text.split_once("first=") {
            Some((words, first)) => (words, Some(first.to_owned())),
            None => (text, None),
        };
        let pairs = words.split_whitespace().filter_map(|word| word.split_once('='));
        let mut fields: BTreeMap<_, _> =
            pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        fields.extend(first.map(|first| ("first".to_owned(), first)));
        Self { text: text.to_owned(), fields }
    }

    /// A field of the answer.
    ///
    /// # Errors
    /// If it is not there.
    pub fn text(&self, field: &str) -> Result<&str> {
        let found = self.fields.get(field).map(String::as_str);
        found.ok_or_else(|| Error::Check(format!("the guest's answer has no {field}: {}", self.text)))
    }

    /// A field of the answer that is a number.
    ///
    /// # Errors
    /// If it is missing or not a number.
    pub fn number(&self, field: &str) -> Result<u64> {
        let text = self.text(field)?;
        text.parse().map_err(|_| Error::Check(format!("the guest's {field} is no number: {text}")))
    }

    /// Fails if a request failed or read wrong bytes.
    ///
    /// # Errors
    /// [`Error::Check`] with all that the guest said.
    pub fn clean(self) -> Result<Self> {
        let right = self.number("errors")? == 0 && self.number("wrong")? == 0;
        check(right, format!("the guest met errors or wrong bytes: {}", self.text))?;
        Ok(self)
    }
}

impl std::fmt::Display for Answer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.text)
    }
}

fn attach(qemu: &mut Command, number: usize, disk: &Attachment) -> Result<()> {
    match disk {
        Attachment::VhostUser(socket) => {
            let reconnect = reconnect_option()?;
            let socket = socket.display();
            qemu.args(["-chardev", &format!("socket,id=line{number},path={socket},{reconnect}")]);
            let device = format!("vhost-user-blk-pci,chardev=line{number},num-queues=2");
            qemu.args(["-device", &device]);
        }
        Attachment::Nbd { socket, export, reconnect_s } => {
            let node = serde_json::json!({
                "driver": "nbd", "node-name": format!("disk{number}"), "export": export, "discard": "unmap",
                "server": { "type": "unix", "path": socket }, "reconnect-delay": reconnect_s,
            });
            node_as_disk(qemu, number, &node);
        }
        Attachment::File(path) => {
            let node = serde_json::json!({
                "driver": "file", "node-name": format!("disk{number}"), "filename": path,
                "cache": { "direct": true }, "aio": "io_uring",
            });
            node_as_disk(qemu, number, &node);
        }
    }
    Ok(())
}

/// A block node of QEMU's as a virtio disk.
fn node_as_disk(qemu: &mut Command, number: usize, node: &serde_json::Value) {
    qemu.args(["-blockdev", &node.to_string()]);
    let device = format!("virtio-blk-pci,drive=disk{number},num-queues=2,werror=report,rerror=report");
    qemu.args(["-device", &device]);
}

/// The option that makes QEMU's socket reconnect quickly: in seconds before version 9.2, in milliseconds since.
fn reconnect_option() -> Result<&'static str> {
    let mut qemu = tools::tool("qemu-system-x86_64")?;
    qemu.arg("--version");
    let text = tools::run(qemu)?;
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    Ok(if version >= (9, 2) { "reconnect-ms=100" } else { "reconnect=1" })
}

/// The directory of the guest's kernel and initramfs; they are built once per run.
fn image() -> Result<&'static Path> {
    static IMAGE: OnceLock<PathBuf> = OnceLock::new();
    static BUILDING: Mutex<()> = Mutex::new(());
    let _building = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(image) = IMAGE.get() {
        return Ok(image);
    }
    let mut script = Command::new(tools::workspace().join("scripts/guest-image"));
    script.current_dir(tools::workspace());
    let built = PathBuf::from(tools::run_within(script, tools::BUILD_LIMIT)?.trim());
    Ok(IMAGE.get_or_init(|| built))
}
