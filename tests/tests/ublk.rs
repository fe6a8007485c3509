//! A disk as a block device of the host, in a guest whose kernel has the ublk driver: this host's need not have it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use haversack_e2e::error::check;
use haversack_e2e::process::Process;
use haversack_e2e::{Error, Place, Result, test, tools};

/// How long the guest may take, on a busy machine.
const LIMIT: Duration = Duration::from_secs(240);
/// The guest's kernel logs this when QEMU's emulation of a timer has failed, after which it hangs.
const TIMER_FAULT: &str = "Possible timer handling issue";
/// How often a guest is booted if the emulation fails.
const MOST_BOOTS: usize = 3;

/// The directory of the guest's kernel and initramfs.
fn image() -> Result<PathBuf> {
    let program = tools::own("haversack-ublk")?;
    let programs = Path::new(program.get_program()).parent().unwrap_or(Path::new("."));
    let mut script = Command::new(tools::workspace().join("scripts/ublk-guest"));
    script.current_dir(tools::workspace()).arg(programs);
    Ok(tools::run_within(script, tools::BUILD_LIMIT)?.trim().into())
}

/// Runs the guest's test. Returns what it has printed, and what its kernel has.
fn run(place: &Place, image: &Path) -> Result<[String; 2]> {
    let files = ["guest.log", "console.log"].map(|name| place.path(name));
    let mut command = tools::tool("qemu-system-x86_64")?;
    command.args(["-machine", "q35", "-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", "1G"]);
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    command.arg("-kernel").arg(image.join("kernel")).arg("-initrd").arg(image.join("initramfs"));
    command.args(["-append", "console=ttyS0 quiet panic=-1"]);
    for file in [&files[1], &files[0]] {
        command.args(["-serial", &format!("file:{}", file.display())]);
    }
    let text = |path: &PathBuf| std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let mut guest = Process::start(place, "qemu", &command)?;
    let mut waited = guest.wait(LIMIT);
    if waited.is_err() && !text(&files[1]).unwrap_or_default().contains(TIMER_FAULT) {
        // It is only slow.
        waited = guest.wait(3 * LIMIT);
    }
    // What it has printed says more than that it has taken too long.
    if let Err(error) = waited
        && !matches!(error, Error::TimedOut { .. })
    {
        return Err(error);
    }
    Ok([text(&files[0]).unwrap_or_default(), text(&files[1]).unwrap_or_default()])
}

/// A file system on the device survives `kill -9` of the daemon, of `haversack-ublk` and of both while it is written
/// to; the origin has it all in the end. `scripts/ublk-guest` has the steps.
#[test]
fn a_block_device_survives_the_daemon_and_its_own_program() {
    test("ublk", |place| {
        let image = image()?;
        for boot in 1..=MOST_BOOTS {
            let [said, console] = run(place, &image)?;
            if said.lines().any(|line| line == "UBLK-TEST PASSED") {
                said.lines().filter(|line| line.starts_with('[')).for_each(|line| place.say(line));
                return Ok(());
            }
            check(
                boot < MOST_BOOTS && console.contains(TIMER_FAULT),
                format!("the guest says:\n{said}\nits kernel:\n{console}"),
            )?;
            place.say("the guest boots again: QEMU's emulation of a timer has failed");
        }
        Ok(())
    });
}
