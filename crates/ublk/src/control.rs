//! The driver's control device: one command at a time, each waited for.
//!
//! Invariant: memory that a command reads or writes lives until it has completed, because the caller waits for that.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;

use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode, squeue};

use crate::abi::{
    ANY_DEVICE, CONTROL_PATH, ControlBody, ControlCommand, DeviceInfo, NO_QUEUE, PARAMS_BYTES, Params,
};
use crate::error::UblkError;
use crate::report;

/// The first kernel whose driver has commands with these numbers, and reports its features.
pub const OLDEST_KERNEL: &str = "6.5";

/// See the module documentation.
pub struct Control {
    file: File,
    uring: IoUring<squeue::Entry128, cqueue::Entry>,
}

impl Control {
    /// Opens the control device.
    pub fn open() -> Result<Self, UblkError> {
        let file =
            OpenOptions::new().read(true).write(true).open(CONTROL_PATH).map_err(|source| {
                match source.kind() {
                    io::ErrorKind::PermissionDenied => UblkError::NotAllowed { path: CONTROL_PATH, source },
                    _ => UblkError::NoDriver { path: CONTROL_PATH, source },
                }
            })?;
        let uring = IoUring::builder().build(4).map_err(UblkError::system("io_uring"))?;
        Ok(Self { file, uring })
    }

    /// Executes a command on memory of `len` bytes; null for none.
    fn run(
        &mut self,
        command: ControlCommand,
        device: u32,
        data: u64,
        addr: *mut u8,
        len: usize,
    ) -> io::Result<()> {
        let body = ControlBody {
            device,
            queue: NO_QUEUE,
            // No struct of the driver is longer than 64 KiB.
            len: len as u16,
            addr: addr as u64,
            data,
            ..ControlBody::default()
        };
        let fd = Fd(self.file.as_raw_fd());
        let entry = opcode::UringCmd80::new(fd, command.number()).cmd(body.bytes()).build();
        // SAFETY: the memory is the caller's, who waits below until the command has completed.
        unsafe { self.uring.submission().push(&entry) }.map_err(io::Error::other)?;
        loop {
            // Only the completion ends the loop: until then the kernel may use the memory.
            let waited = self.uring.submit_and_wait(1);
            if let Some(completion) = self.uring.completion().next() {
                return match completion.result() {
                    0.. => Ok(()),
                    error => Err(io::Error::from_raw_os_error(-error)),
                };
            }
            if let Err(error) = waited
                && error.kind() != io::ErrorKind::Interrupted
            {
                // The kernel may still write to the caller's memory, so it must not be freed.
                report::say(format_args!("io_uring: {error}"));
                std::process::abort();
            }
        }
    }

    fn command<T>(
        &mut self,
        command: ControlCommand,
        device: u32,
        data: u64,
        memory: Option<&mut T>,
    ) -> Result<(), UblkError> {
        let (addr, len) = memory
            .map_or((std::ptr::null_mut(), 0), |memory| (std::ptr::from_mut(memory).cast(), size_of::<T>()));
        self.run(command, device, data, addr, len).map_err(|source| match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => UblkError::NotAllowed { path: CONTROL_PATH, source },
            Some(libc::EOPNOTSUPP) => UblkError::OldDriver { missing: command.name() },
            _ => UblkError::Command { command, device, source },
        })
    }

    /// Returns the driver's feature flags.
    pub fn features(&mut self) -> Result<u64, UblkError> {
        let mut features = 0_u64;
        self.command(ControlCommand::GetFeatures, ANY_DEVICE, 0, Some(&mut features))?;
        Ok(features)
    }

    /// Describes a device, if there is one with this number.
    pub fn info(&mut self, device: u32) -> Result<Option<DeviceInfo>, UblkError> {
        let mut info = DeviceInfo::default();
        match self.command(ControlCommand::GetDevInfo, device, 0, Some(&mut info)) {
            Ok(()) => Ok(Some(info)),
            Err(UblkError::Command { source, .. }) if source.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates a device as described. Returns the description as the driver has changed it.
    pub fn add(&mut self, mut info: DeviceInfo) -> Result<DeviceInfo, UblkError> {
        self.command(ControlCommand::AddDev, info.device, 0, Some(&mut info))?;
        Ok(info)
    }

    /// Sets the properties of a block device.
    pub fn set_properties(&mut self, device: u32, mut params: Params) -> Result<(), UblkError> {
        self.command(ControlCommand::SetParams, device, 0, Some(&mut params))
    }

    /// Returns the properties of a block device.
    pub fn properties(&mut self, device: u32) -> Result<Params, UblkError> {
        let mut params = Params { len: PARAMS_BYTES, ..Params::default() };
        self.command(ControlCommand::GetParams, device, 0, Some(&mut params))?;
        Ok(params)
    }

    /// Executes a command without memory; some take the id of the process that serves the device.
    pub fn plain(&mut self, command: ControlCommand, device: u32) -> Result<(), UblkError> {
        let data = match command {
            ControlCommand::StartDev | ControlCommand::EndUserRecovery => u64::from(std::process::id()),
            _ => 0,
        };
        self.command::<u8>(command, device, data, None)
    }
}
