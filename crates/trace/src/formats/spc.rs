//! SPC trace files (UMass Financial and WebSearch): `ASU,LBA,Size,Opcode,Timestamp`.
//!
//! The address is in sectors of 512 bytes, the size in bytes, the opcode r or w in either case, the time in seconds
//! since the beginning. Further fields are allowed and ignored. Each application storage unit is a volume.
//!
//! Source: Storage Performance Council, "SPC trace file format specification", revision 1.0.1, section 3.

use super::{SECOND_NS, SECTOR_BYTES, access};
use crate::access::Access;
use crate::fields::Fields;
use crate::text::{Expected, LineParser};
use crate::volumes::Volumes;

const EXPECTED: Expected = "ASU,LBA,Size,Opcode,Timestamp (SPC)";

pub(crate) struct Spc {
    name: String,
}

impl Spc {
    /// Volumes are named by the file and their unit's number.
    pub fn new(name: String) -> Self {
        Spc { name }
    }

    fn access(&self, line: &[u8], volumes: &mut Volumes) -> Option<Access> {
        let mut fields = Fields::new(line, b',');
        let unit = fields.text()?;
        let number = crate::fields::number(unit)?;
        let (offset, length) = (fields.number()?.checked_mul(SECTOR_BYTES)?, fields.number()?);
        let (op, time_ns) = (fields.op()?, fields.time(SECOND_NS)?);
        let volume = volumes.number(unit, || format!("{}_ASU{number}", self.name));
        access(time_ns, volume, op, offset, length)
    }
}

impl LineParser for Spc {
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes, into: &mut Vec<Access>) -> Result<(), Expected> {
        into.push(self.access(line, volumes).ok_or(EXPECTED)?);
        Ok(())
    }
}
