//! A ublk device: finding the one of a disk, creating it, taking it over from a server that has ended, and removing it.
//!
//! Invariants
//! - A device is taken over only for the URI that it was created for: its description has the URI's identity.
//! - A device that never was available is removed by the next server of its URI. Others are removed only by their own
//!   server, or if the user says so.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::abi::{
    ANY_DEVICE, ATTR_READ_ONLY, ControlCommand, DeviceInfo, F_USER_RECOVERY, F_USER_RECOVERY_REISSUE, Params,
    STATE_DEAD, STATE_LIVE,
};
use crate::control::Control;
use crate::error::UblkError;
use crate::report;
use crate::stop::Stop;

/// The kernel's list of devices.
const LIST: &str = "/sys/class/ublk-char";
/// How long the kernel takes at most to notice that a server has been killed.
const MOURNING: Duration = Duration::from_secs(3);
/// The same if the server had each request of a queue: the kernel notices when one has timed out.
const LONG_MOURNING: Duration = Duration::from_secs(40);
/// How long it takes until a new device has its file.
const BIRTH: Duration = Duration::from_secs(5);
/// How long somebody may take to unmount a device that is to be removed: at a shutdown both happen at the same time.
const PARTING: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// The properties of a new device, and limits for one that is taken over.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The name of the disk.
    pub export: String,
    /// Whether the daemon accepts several connections.
    pub takes_several: bool,
    /// Whether the user wants no writes.
    pub is_read_only: bool,
    /// The number of the device, if it matters.
    pub number: Option<u32>,
    pub queues: u16,
    pub depth: u16,
    pub max_io_bytes: u32,
    pub params: Params,
    /// See [`crate::upstream::Upstream::identity`].
    pub identity: u64,
}

/// A device that queues can fetch requests of.
#[derive(Debug)]
pub struct Device {
    pub info: DeviceInfo,
    pub params: Params,
    is_new: bool,
}

impl Device {
    /// Creates a device, or takes over the one that this disk has.
    pub fn prepare(control: &mut Control, plan: &Plan) -> Result<Self, UblkError> {
        let needed = F_USER_RECOVERY | F_USER_RECOVERY_REISSUE;
        if control.features()? & needed != needed {
            return Err(UblkError::OldDriver { missing: "USER_RECOVERY_REISSUE" });
        }
        match find(control, plan)? {
            Some(number) => Self::take_over(control, plan, number),
            None => Self::make(control, plan),
        }
    }

    fn make(control: &mut Control, plan: &Plan) -> Result<Self, UblkError> {
        let info = control.add(DeviceInfo {
            queues: plan.queues,
            depth: plan.depth,
            max_io_bytes: plan.max_io_bytes,
            device: plan.number.unwrap_or(ANY_DEVICE),
            flags: F_USER_RECOVERY | F_USER_RECOVERY_REISSUE,
            server_flags: plan.identity,
            ..DeviceInfo::default()
        })?;
        let device = Self { info, params: plan.params, is_new: true };
        match control.set_properties(info.device, plan.params) {
            Ok(()) => Ok(device),
            Err(error) => {
                device.abandon(control);
                Err(error)
            }
        }
    }

    /// Takes over a device. Whatever could prevent that is checked first: the driver accepts no second attempt.
    fn take_over(control: &mut Control, plan: &Plan, number: u32) -> Result<Self, UblkError> {
        let info = control.info(number)?.ok_or(UblkError::NoDevice { device: number })?;
        let params = control.properties(number)?;
        let unfit =
            |found: String, expected| UblkError::Unfit { export: plan.export.clone(), found, expected };
        if info.queues > 1 && !plan.takes_several {
            return Err(unfit("a single connection".to_owned(), "one for each queue of the device"));
        }
        if info.max_io_bytes > plan.max_io_bytes {
            let found = format!("a maximum payload of {} bytes", plan.max_io_bytes);
            return Err(unfit(found, "as much as when the device was made"));
        }
        if params.attributes & ATTR_READ_ONLY == 0 && plan.is_read_only {
            return Err(UblkError::Writable { device: number });
        }
        let start = Instant::now();
        // The driver accepts nobody before the files of the dead process are closed.
        while let Err(error) = control.plain(ControlCommand::StartUserRecovery, number) {
            let is_busy = matches!(&error, UblkError::Command { source, .. } if source.raw_os_error() == Some(libc::EBUSY));
            if !is_busy || start.elapsed() > MOURNING {
                return Err(error);
            }
            std::thread::sleep(PAUSE);
        }
        Ok(Self { info, params, is_new: false })
    }

    /// Opens the file that the queues use.
    pub fn open(&self) -> Result<File, UblkError> {
        let (path, start) = (PathBuf::from(format!("/dev/ublkc{}", self.info.device)), Instant::now());
        loop {
            match OpenOptions::new().read(true).write(true).open(&path) {
                Ok(file) => return Ok(file),
                Err(source) if start.elapsed() > BIRTH => return Err(UblkError::Device { path, source }),
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Returns whether it existed before.
    pub fn is_taken_over(&self) -> bool {
        !self.is_new
    }

    /// Returns the path of the block device.
    pub fn path(&self) -> String {
        format!("/dev/ublkb{}", self.info.device)
    }

    /// Makes the block device available. All queues must fetch requests.
    pub fn start(&self, control: &mut Control) -> Result<(), UblkError> {
        let command = if self.is_new { ControlCommand::StartDev } else { ControlCommand::EndUserRecovery };
        control.plain(command, self.info.device)
    }

    /// Has the kernel write what it has cached of the block device, however long the daemon needs. Waits a while for
    /// somebody who is about to unmount it. As long as the returned file is open, nobody else can mount it.
    ///
    /// # Errors
    /// It is mounted or used by the kernel in another way, or cannot be written; or `stop` was requested.
    pub fn settle(&self, stop: &Stop) -> Result<File, UblkError> {
        let (path, start) = (PathBuf::from(self.path()), Instant::now());
        loop {
            match OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(&path) {
                Ok(file) => {
                    let written = file.sync_all().map(|()| file);
                    return written.map_err(|source| UblkError::Device { path, source });
                }
                Err(source) if source.raw_os_error() != Some(libc::EBUSY) => {
                    return Err(UblkError::Device { path, source });
                }
                Err(_) if stop.wait(PAUSE) || start.elapsed() > PARTING => {
                    return Err(UblkError::Mounted { path });
                }
                Err(_) => {}
            }
        }
    }

    /// Removes the block device. The queues, which must still be served, end then.
    pub fn stop(&self, control: &mut Control) -> Result<(), UblkError> {
        control.plain(ControlCommand::StopDev, self.info.device)
    }

    /// Removes the device. Its file must be closed.
    pub fn delete(&self, control: &mut Control) -> Result<(), UblkError> {
        control.plain(ControlCommand::DelDev, self.info.device)
    }

    /// Undoes what was prepared, after an error, as far as possible. Its file must be closed.
    pub fn abandon(&self, control: &mut Control) {
        if self.is_new
            && let Err(error) = self.delete(control)
        {
            report::say(&error);
        }
    }
}

/// Removes a device that no process serves.
pub fn remove(control: &mut Control, number: u32) -> Result<(), UblkError> {
    let info = settled(control, number)?.ok_or(UblkError::NoDevice { device: number })?;
    refuse_if_used(&info)?;
    control.plain(ControlCommand::StopDev, number)?;
    control.plain(ControlCommand::DelDev, number)
}

/// Returns the number of the device to take over, if there is one. Removes what is left of one that never was
/// available.
fn find(control: &mut Control, plan: &Plan) -> Result<Option<u32>, UblkError> {
    for number in numbers(Path::new(LIST)) {
        let Some(info) = control.info(number)? else { continue };
        if info.server_flags != plan.identity {
            continue;
        }
        if info.state == STATE_DEAD {
            refuse_if_used(&info)?;
            control.plain(ControlCommand::DelDev, number)?;
        } else {
            if let Some(asked) = plan.number.filter(|&asked| asked != number) {
                return Err(UblkError::OtherDevice { found: number, asked });
            }
            let Some(info) = settled(control, number)? else { continue };
            refuse_if_used(&info)?;
            return Ok(Some(number));
        }
    }
    let Some(number) = plan.number else { return Ok(None) };
    match settled(control, number)? {
        None => Ok(None),
        Some(info) => refuse_if_used(&info).and(Err(UblkError::OtherDisk { device: number })),
    }
}

/// Describes a device, after the kernel has had time to notice that its server is gone.
fn settled(control: &mut Control, number: u32) -> Result<Option<DeviceInfo>, UblkError> {
    let start = Instant::now();
    loop {
        match control.info(number)? {
            Some(info) if info.state == STATE_LIVE && start.elapsed() < time_to_notice(&info) => {
                std::thread::sleep(PAUSE);
            }
            info => return Ok(info),
        }
    }
}

fn time_to_notice(info: &DeviceInfo) -> Duration {
    let is_dead = kill(Pid::from_raw(info.server_pid), None) == Err(Errno::ESRCH);
    if is_dead { LONG_MOURNING } else { MOURNING }
}

/// Fails if a process serves the device, or is about to.
fn refuse_if_used(info: &DeviceInfo) -> Result<(), UblkError> {
    let in_use = UblkError::InUse { device: info.device, pid: info.server_pid };
    if info.state == STATE_LIVE {
        return Err(in_use);
    }
    // The driver lets only one process have the file.
    match File::open(format!("/dev/ublkc{}", info.device)) {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Err(in_use),
        _ => Ok(()),
    }
}

/// Returns the numbers of all devices. A kernel without the list has none.
fn numbers(list: &Path) -> Vec<u32> {
    let name = |entry: io::Result<std::fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
    let number = |name: String| name.strip_prefix("ublkc")?.parse().ok();
    let entries = std::fs::read_dir(list).into_iter().flatten();
    let mut numbers: Vec<u32> = entries.filter_map(name).filter_map(number).collect();
    numbers.sort_unstable();
    numbers
}
