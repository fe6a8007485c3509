//! CloudPhysics vSCSI traces, versions 1 and 2: little-endian records of one VM's disk.
//!
//! | version 1, 32 bytes | version 2, 40 bytes |
//! |---|---|
//! | u32 sequence, u32 length in bytes, u32 segments, u16 command, u16 version, u64 sector, u64 time | u16 command, u16 version, u32 sequence, u32 length in bytes, u32 segments, u64 sector, u64 time, u64 response time |
//!
//! The version is in the high byte of its field, the time is in microseconds, sectors have 512 bytes. The command is
//! a SCSI operation code; codes that are not accesses are skipped.
//!
//! Source: libCacheSim, `traceReader/customizedReader/vscsi.h`; T10 SBC-4 for the operation codes; Waldspurger et
//! al., "SHARDS", FAST'15, for the traces.

use super::{SECTOR_BYTES, access};
use crate::access::Access;
use crate::bytes::{u16_at, u32_at, u64_at};
use crate::fields::scsi_op;
use crate::records::RecordParser;
use crate::volumes::Volumes;

/// The version of the records.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    One,
    Two,
}

pub(crate) struct Vscsi {
    version: Version,
    name: String,
}

impl Vscsi {
    /// A trace of one volume.
    pub fn new(version: Version, name: String) -> Self {
        Vscsi { version, name }
    }
}

impl RecordParser for Vscsi {
    fn record_bytes(&self) -> usize {
        match self.version {
            Version::One => 32,
            Version::Two => 40,
        }
    }

    fn parse(
        &mut self,
        record: &[u8],
        volumes: &mut Volumes,
        into: &mut Vec<Access>,
    ) -> Result<usize, &'static str> {
        let (command, version, length, number) = match self.version {
            Version::One => (12, 14, 4, 1),
            Version::Two => (0, 2, 8, 2),
        };
        if u16_at(record, version) >> 8 != number {
            return Err("a vSCSI record with its version");
        }
        let Some(op) = scsi_op(u16_at(record, command) as u8) else { return Ok(0) };
        let (sector, time_us) = (u64_at(record, 16), u64_at(record, 24));
        let length = u64::from(u32_at(record, length));
        let volume = volumes.only(&self.name);
        let place = sector.checked_mul(SECTOR_BYTES).zip(time_us.checked_mul(1000));
        let made = place.and_then(|(offset, time_ns)| access(time_ns, volume, op, offset, length));
        into.push(made.ok_or("a vSCSI record with a sector and a time within 64 bits")?);
        Ok(0)
    }
}
