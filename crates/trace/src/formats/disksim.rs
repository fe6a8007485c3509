//! DiskSim's ASCII traces: `time device address size flags`, separated by blanks.
//!
//! In DiskSim the time is in milliseconds with a fraction, address and size are in sectors of 512 bytes, and bit 0 of
//! the flags marks a read. Many published excerpts keep the columns and change the units: whole numbers are taken as
//! nanoseconds, a time unit given by the user has priority, and if every length in the first lines is a multiple of
//! 512, addresses and sizes are bytes.
//!
//! Source: Bucy et al., "The DiskSim simulation environment version 4.0 reference manual", section 6.1.

use super::{SECTOR_BYTES, access};
use crate::access::{Access, Op};
use crate::fields::Fields;
use crate::text::{Expected, LineParser};
use crate::volumes::Volumes;

const EXPECTED: Expected = "time device address size flags (DiskSim)";
const MILLISECOND_NS: u64 = 1_000_000;

pub(crate) struct DiskSim {
    name: String,
    time_unit_ns: u64,
    address_bytes: u64,
}

impl DiskSim {
    /// Units are recognised from the file's beginning; volumes are named by the file and their device.
    pub fn new(head: &[u8], name: String, time_unit_ns: Option<u64>) -> Self {
        let whole = &head[..memchr::memrchr(b'\n', head).unwrap_or(head.len())];
        let lines = || whole.split(|b| *b == b'\n');
        let fraction =
            lines().any(|line| Fields::new(line, b' ').text().is_some_and(|time| time.contains(&b'.')));
        let mut lengths = lines().filter_map(|line| {
            let mut fields = Fields::new(line, b' ');
            fields.text()?;
            fields.text()?;
            fields.number()?;
            fields.number()
        });
        let bytes = lengths.all(|length| length.is_multiple_of(SECTOR_BYTES));
        let unit_ns = if fraction { MILLISECOND_NS } else { 1 };
        DiskSim {
            name,
            time_unit_ns: time_unit_ns.unwrap_or(unit_ns),
            address_bytes: if bytes { 1 } else { SECTOR_BYTES },
        }
    }

    fn access(&self, line: &[u8], volumes: &mut Volumes) -> Option<Access> {
        let mut fields = Fields::new(line, b' ');
        let time_ns = fields.time(self.time_unit_ns)?;
        let device = fields.text()?;
        let number = crate::fields::number(device)?;
        let offset = fields.number()?.checked_mul(self.address_bytes)?;
        let length = fields.number()?.checked_mul(self.address_bytes)?;
        let op = if fields.number()? & 1 == 1 { Op::Read } else { Op::Write };
        if fields.rest().is_some() {
            return None;
        }
        let volume = volumes.number(device, || format!("{}_{number}", self.name));
        access(time_ns, volume, op, offset, length)
    }
}

impl LineParser for DiskSim {
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes, into: &mut Vec<Access>) -> Result<(), Expected> {
        into.push(self.access(line, volumes).ok_or(EXPECTED)?);
        Ok(())
    }
}
