//! Process 1 of the guest: mounts what the kernel offers, loads the modules of its disks, starts the other
//! processors, and answers commands on the second serial port until it is told `off`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

use haversack_guest::commands::Guest;
use haversack_guest::files;
use rustix::mount::MountFlags;
use rustix::system::RebootCommand;
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

/// The serial port of the commands; the first one is the kernel's console.
const COMMANDS: &str = "/dev/ttyS1";
/// Modules that the guest needs from the start.
const MODULES: &str = "/modules/boot";

fn main() {
    let result = start().and_then(serve);
    if let Err(error) = result {
        eprintln!("the guest program gives up: {error}");
    }
    if let Err(error) = rustix::system::reboot(RebootCommand::PowerOff) {
        eprintln!("power off: {error}");
    }
}

fn start() -> io::Result<File> {
    for (kind, target) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("tmpfs", "/tmp")] {
        fs::create_dir_all(target)?;
        rustix::mount::mount(kind, target, kind, MountFlags::empty(), None)?;
    }
    files::load_modules(Path::new(MODULES))?;
    start_processors()?;
    let port = OpenOptions::new().read(true).write(true).open(COMMANDS)?;
    let mut settings = tcgetattr(&port)?;
    settings.make_raw();
    tcsetattr(&port, OptionalActions::Now, &settings)?;
    Ok(port)
}

/// Starts the processors that the kernel has not started (`maxcpus=1`).
///
/// While the drivers map the disks' registers, no other processor runs: QEMU's software emulation of several has been
/// seen to fail at that time, with an assertion in `msix_table_mmio_write`.
fn start_processors() -> io::Result<()> {
    for entry in fs::read_dir("/sys/devices/system/cpu")? {
        let online = entry?.path().join("online");
        // The first processor has no such file, nor do directories that do not belong to a processor.
        if online.is_file() && fs::read_to_string(&online)?.trim() == "0" {
            fs::write(&online, "1")?;
        }
    }
    Ok(())
}

fn serve(port: File) -> io::Result<()> {
    let mut guest = Guest::default();
    let mut answers = port.try_clone()?;
    answers.write_all(b"ok ready\n")?;
    for line in BufReader::new(port).lines() {
        let line = line?;
        if line == "off" {
            answers.write_all(b"ok off\n")?;
            return rustix::termios::tcdrain(&answers).map_err(io::Error::from);
        }
        answers.write_all(format!("{}\n", guest.answer(&line)).as_bytes())?;
    }
    Ok(())
}
