//! Constants and layouts of the kernel's ublk driver, from Linux' include/uapi/linux/ublk_cmd.h.
//!
//! Invariant: every struct has the size and the offsets that the kernel expects; the tests check them. Each consists
//! only of integers without padding between them, so all its bytes are initialized.

use std::mem::size_of;

/// The device for commands that manage devices.
pub const CONTROL_PATH: &str = "/dev/ublk-control";

/// The request codes of ioctl(2) that carry data in both directions, and from the kernel only.
const READ_WRITE: u32 = 3;
const READ: u32 = 2;

const fn encoded(direction: u32, number: u32, bytes: usize) -> u32 {
    direction << 30 | (bytes as u32) << 16 | (b'u' as u32) << 8 | number
}

/// A command on [`CONTROL_PATH`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ControlCommand {
    /// Describes a device.
    GetDevInfo,
    /// Creates a device.
    AddDev,
    /// Removes a device.
    DelDev,
    /// Makes the block device available; waits until all queues fetch requests.
    StartDev,
    /// Removes the block device; waits until no request is in flight.
    StopDev,
    /// Sets the properties of the block device.
    SetParams,
    /// Returns the properties of the block device.
    GetParams,
    /// Begins the recovery of a device whose server has ended.
    StartUserRecovery,
    /// Ends the recovery; waits until all queues fetch requests.
    EndUserRecovery,
    /// Returns what the driver can do.
    GetFeatures,
}

impl ControlCommand {
    /// Returns its name in the kernel's documentation.
    pub const fn name(self) -> &'static str {
        match self {
            Self::GetDevInfo => "GET_DEV_INFO",
            Self::AddDev => "ADD_DEV",
            Self::DelDev => "DEL_DEV",
            Self::StartDev => "START_DEV",
            Self::StopDev => "STOP_DEV",
            Self::SetParams => "SET_PARAMS",
            Self::GetParams => "GET_PARAMS",
            Self::StartUserRecovery => "START_USER_RECOVERY",
            Self::EndUserRecovery => "END_USER_RECOVERY",
            Self::GetFeatures => "GET_FEATURES",
        }
    }

    /// Returns its number: `UBLK_U_CMD_*`.
    pub const fn number(self) -> u32 {
        let (direction, number) = match self {
            Self::GetDevInfo => (READ, 0x02),
            Self::AddDev => (READ_WRITE, 0x04),
            Self::DelDev => (READ_WRITE, 0x05),
            Self::StartDev => (READ_WRITE, 0x06),
            Self::StopDev => (READ_WRITE, 0x07),
            Self::SetParams => (READ_WRITE, 0x08),
            Self::GetParams => (READ, 0x09),
            Self::StartUserRecovery => (READ_WRITE, 0x10),
            Self::EndUserRecovery => (READ_WRITE, 0x11),
            Self::GetFeatures => (READ, 0x13),
        };
        encoded(direction, number, size_of::<ControlBody>())
    }
}

/// `UBLK_U_IO_FETCH_REQ`: wait for the first request with a tag.
pub const FETCH: u32 = encoded(READ_WRITE, 0x20, size_of::<IoBody>());
/// `UBLK_U_IO_COMMIT_AND_FETCH_REQ`: answer a request, and wait for the next one with its tag.
pub const COMMIT_AND_FETCH: u32 = encoded(READ_WRITE, 0x21, size_of::<IoBody>());

/// `UBLK_IO_RES_OK`: there is a request.
pub const RESULT_OK: i32 = 0;

/// `UBLK_MAX_QUEUE_DEPTH`. The kernel reserves space for this many descriptors per queue, whatever the queue's depth.
pub const MAX_DEPTH: usize = 4096;

/// `UBLK_F_USER_RECOVERY`: the device stays when its server ends; requests wait for the next server.
pub const F_USER_RECOVERY: u64 = 1 << 3;
/// `UBLK_F_USER_RECOVERY_REISSUE`: requests that were in progress when the server died are sent to the next one.
pub const F_USER_RECOVERY_REISSUE: u64 = 1 << 4;

/// `UBLK_S_DEV_DEAD`: there is no block device.
pub const STATE_DEAD: u16 = 0;
/// `UBLK_S_DEV_LIVE`: there is a block device with a server.
pub const STATE_LIVE: u16 = 1;

/// `UBLK_IO_OP_READ`
pub const OP_READ: u8 = 0;
/// `UBLK_IO_OP_WRITE`
pub const OP_WRITE: u8 = 1;
/// `UBLK_IO_OP_FLUSH`
pub const OP_FLUSH: u8 = 2;
/// `UBLK_IO_OP_DISCARD`
pub const OP_DISCARD: u8 = 3;
/// `UBLK_IO_OP_WRITE_ZEROES`
pub const OP_WRITE_ZEROES: u8 = 5;
/// `UBLK_IO_F_FUA`
pub const IO_FUA: u32 = 1 << 13;
/// `UBLK_IO_F_NOUNMAP`
pub const IO_NO_UNMAP: u32 = 1 << 15;

/// `UBLK_ATTR_READ_ONLY`
pub const ATTR_READ_ONLY: u32 = 1 << 0;
/// `UBLK_ATTR_ROTATIONAL`
pub const ATTR_ROTATIONAL: u32 = 1 << 1;
/// `UBLK_ATTR_VOLATILE_CACHE`
pub const ATTR_VOLATILE_CACHE: u32 = 1 << 2;
/// `UBLK_ATTR_FUA`
pub const ATTR_FUA: u32 = 1 << 3;

/// `UBLK_PARAM_TYPE_BASIC`
pub const PARAM_BASIC: u32 = 1 << 0;
/// `UBLK_PARAM_TYPE_DISCARD`
pub const PARAM_DISCARD: u32 = 1 << 1;

/// How many bytes of [`Params`] the driver takes and returns.
pub const PARAMS_BYTES: u32 = 60;

/// The queue number of commands that concern no queue.
pub const NO_QUEUE: u16 = u16::MAX;
/// The number that asks for any free device number.
pub const ANY_DEVICE: u32 = u32::MAX;

/// `struct ublksrv_ctrl_cmd`, in the submission entry.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C)]
pub struct ControlBody {
    pub device: u32,
    pub queue: u16,
    pub len: u16,
    pub addr: u64,
    pub data: u64,
    pub path_len: u16,
    pub pad: u16,
    pub reserved: u32,
}

impl ControlBody {
    /// Returns its bytes, padded to the 80 bytes of a submission entry.
    pub fn bytes(&self) -> [u8; 80] {
        let mut bytes = [0; 80];
        bytes[..4].copy_from_slice(&self.device.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.queue.to_ne_bytes());
        bytes[6..8].copy_from_slice(&self.len.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.addr.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.data.to_ne_bytes());
        bytes
    }
}

/// `struct ublksrv_ctrl_dev_info`.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C)]
pub struct DeviceInfo {
    pub queues: u16,
    pub depth: u16,
    pub state: u16,
    pub pad0: u16,
    pub max_io_bytes: u32,
    pub device: u32,
    pub server_pid: i32,
    pub pad1: u32,
    pub flags: u64,
    /// The server's own; the driver only keeps it.
    pub server_flags: u64,
    pub owner_uid: u32,
    pub owner_gid: u32,
    pub reserved1: u64,
    pub reserved2: u64,
}

/// `struct ublksrv_io_desc`: a request, in memory shared with the kernel.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C)]
pub struct Descriptor {
    /// The operation in bits 0 to 7, flags above.
    pub op_flags: u32,
    pub sectors: u32,
    pub start_sector: u64,
    pub addr: u64,
}

/// `struct ublksrv_io_cmd`, in the submission entry.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C)]
pub struct IoBody {
    pub queue: u16,
    pub tag: u16,
    pub result: i32,
    pub addr: u64,
}

impl IoBody {
    /// Returns its bytes as those of a submission entry.
    pub fn bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&self.queue.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.tag.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.result.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.addr.to_ne_bytes());
        bytes
    }
}

/// `struct ublk_params` with `struct ublk_param_basic` and `struct ublk_param_discard`; the driver takes a part of the
/// whole, of `len` bytes.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C)]
pub struct Params {
    pub len: u32,
    pub types: u32,
    pub attributes: u32,
    pub logical_shift: u8,
    pub physical_shift: u8,
    pub optimal_shift: u8,
    pub minimum_shift: u8,
    pub max_sectors: u32,
    pub chunk_sectors: u32,
    pub device_sectors: u64,
    pub boundary_mask: u64,
    pub discard_alignment: u32,
    pub discard_granularity: u32,
    pub max_discard_sectors: u32,
    pub max_zeroes_sectors: u32,
    pub max_discard_segments: u16,
    pub reserved0: u16,
    /// Not part of [`PARAMS_BYTES`]; later kernels have more structs from here on.
    pub pad: u32,
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn layouts_are_those_of_the_kernel() {
        assert_eq!(size_of::<ControlBody>(), 32);
        assert_eq!(size_of::<DeviceInfo>(), 64);
        assert_eq!(size_of::<Descriptor>(), 24);
        assert_eq!(size_of::<IoBody>(), 16);
        assert_eq!(size_of::<Params>(), 64);
        assert_eq!(offset_of!(ControlBody, data), 16);
        assert_eq!(offset_of!(DeviceInfo, server_pid), 16);
        assert_eq!(offset_of!(DeviceInfo, server_flags), 32);
        assert_eq!(offset_of!(Params, attributes), 8);
        assert_eq!(offset_of!(Params, device_sectors), 24);
        assert_eq!(offset_of!(Params, discard_alignment), 40);
    }

    #[test]
    fn bodies_are_their_memory() {
        let body = ControlBody { device: 1, queue: 2, len: 3, addr: 4, data: 5, ..ControlBody::default() };
        // SAFETY: integers without padding.
        let memory: [u8; 32] = unsafe { std::mem::transmute(body) };
        assert_eq!(body.bytes()[..32], memory);
        let body = IoBody { queue: 1, tag: 2, result: -5, addr: 4 };
        // SAFETY: integers without padding.
        let memory: [u8; 16] = unsafe { std::mem::transmute(body) };
        assert_eq!(body.bytes(), memory);
    }

    /// Calculated by hand from the header's `_IOR` and `_IOWR`.
    #[test]
    fn numbers_are_those_of_the_kernel() {
        assert_eq!(ControlCommand::AddDev.number(), 0xc020_7504);
        assert_eq!(ControlCommand::GetDevInfo.number(), 0x8020_7502);
        assert_eq!(ControlCommand::GetFeatures.number(), 0x8020_7513);
        assert_eq!(FETCH, 0xc010_7520);
        assert_eq!(COMMIT_AND_FETCH, 0xc010_7521);
    }
}
