//! blktrace's binary files, `DEVICE.blktrace.CPU`, or all CPUs' merged by `blkparse -d`.
//!
//! Records of 48 bytes in the byte order of the host that made them: u32 magic and version (0x65617407), u32 sequence,
//! u64 time in ns, u64 sector, u32 bytes, u32 action, u32 pid, u32 device, u32 cpu, u16 error, u16 length of what
//! follows the record. A request is taken when it is queued; the other events of its life are passed over. A write
//! that carries a flush is a flush and a write. Volumes are named major:minor.
//!
//! Source: `blktrace_api.h` of the Linux kernel and of fio.

use super::{SECTOR_BYTES, access};
use crate::access::{Access, Op, VolumeNo};
use crate::bytes::{u16_at, u32_at, u64_at};
use crate::records::RecordParser;
use crate::volumes::Volumes;

/// Magic and version.
const MAGIC: u32 = 0x6561_7407;
/// The action "queued", in the low half of the field.
const QUEUE: u32 = 1;

/// Categories, in the high half of the field.
mod category {
    pub const READ: u32 = 1 << 16;
    pub const WRITE: u32 = 1 << 17;
    pub const FLUSH: u32 = 1 << 18;
    pub const PASS_THROUGH: u32 = 1 << 25;
    pub const NOTIFY: u32 = 1 << 26;
    pub const DISCARD: u32 = 1 << 29;
}

pub(crate) struct BlkTrace {
    big_endian: bool,
}

impl BlkTrace {
    /// Returns a reader in the byte order of the first record, if it is valid.
    pub fn new(head: &[u8]) -> Option<Self> {
        let magic: [u8; 4] = head.get(..4)?.try_into().ok()?;
        let big_endian = u32::from_be_bytes(magic) == MAGIC;
        (big_endian || u32::from_le_bytes(magic) == MAGIC).then_some(BlkTrace { big_endian })
    }

    fn u16(&self, record: &[u8], at: usize) -> u16 {
        if self.big_endian { u16_at(record, at).swap_bytes() } else { u16_at(record, at) }
    }

    fn u32(&self, record: &[u8], at: usize) -> u32 {
        if self.big_endian { u32_at(record, at).swap_bytes() } else { u32_at(record, at) }
    }

    fn u64(&self, record: &[u8], at: usize) -> u64 {
        if self.big_endian { u64_at(record, at).swap_bytes() } else { u64_at(record, at) }
    }

    /// Returns the access of a queued request; its volume is filled in later.
    fn queued(&self, record: &[u8], action: u32) -> Option<Result<Access, &'static str>> {
        let length = u64::from(self.u32(record, 24));
        let op = match action {
            a if a & category::DISCARD != 0 => Op::Discard,
            a if a & category::FLUSH != 0 && length == 0 => Op::Flush,
            a if a & category::WRITE != 0 => Op::Write,
            a if a & category::READ != 0 => Op::Read,
            _ => return None,
        };
        if length == 0 && op != Op::Flush {
            return None;
        }
        let (time_ns, sector) = (self.u64(record, 8), self.u64(record, 16));
        let offset = if op == Op::Flush { Some(0) } else { sector.checked_mul(SECTOR_BYTES) };
        let made = offset.and_then(|offset| access(time_ns, VolumeNo(0), op, offset, length));
        Some(made.ok_or("a blktrace record with a sector within 64 bits of bytes"))
    }
}

impl RecordParser for BlkTrace {
    fn record_bytes(&self) -> usize {
        48
    }

    fn parse(
        &mut self,
        record: &[u8],
        volumes: &mut Volumes,
        into: &mut Vec<Access>,
    ) -> Result<usize, &'static str> {
        if self.u32(record, 0) != MAGIC {
            return Err("a blktrace record's magic and version 7");
        }
        let following = usize::from(self.u16(record, 46));
        let action = self.u32(record, 28);
        if action & 0xffff != QUEUE || action & (category::NOTIFY | category::PASS_THROUGH) != 0 {
            return Ok(following);
        }
        let Some(access) = self.queued(record, action) else { return Ok(following) };
        let device = self.u32(record, 36);
        // The kernel's dev_t: twelve bits of major number, twenty of minor.
        let name = || format!("{}:{}", device >> 20, device & 0xf_ffff);
        let access = Access { volume: volumes.number(&device.to_le_bytes(), name), ..access? };
        if action & category::FLUSH != 0 && access.op == Op::Write {
            into.push(Access { op: Op::Flush, offset_bytes: 0, length_bytes: 0, ..access });
        }
        into.push(access);
        Ok(following)
    }
}
