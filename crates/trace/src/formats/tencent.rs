//! Tencent CBS: `Timestamp,Offset,Size,IOType,VolumeID`.
//!
//! Time is in seconds since 1970, offset and size in sectors of 512 bytes; IOType is 0 for reads and 1 for writes.
//! There is no heading.
//!
//! Source: README of the traces, SNIA IOTTA 27917; Zhang et al., "OSCA", ATC'20.

use super::{SECOND_NS, SECTOR_BYTES, access};
use crate::access::{Access, Op};
use crate::fields::{Fields, number};
use crate::text::{Expected, LineParser};
use crate::volumes::Volumes;

const EXPECTED: Expected = "Timestamp,Offset,Size,IOType,VolumeID (Tencent CBS)";

pub(crate) struct Tencent;

impl LineParser for Tencent {
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes, into: &mut Vec<Access>) -> Result<(), Expected> {
        into.push(parse(line, volumes).ok_or(EXPECTED)?);
        Ok(())
    }
}

fn parse(line: &[u8], volumes: &mut Volumes) -> Option<Access> {
    let mut fields = Fields::new(line, b',');
    let time_ns = fields.time(SECOND_NS)?;
    let offset = fields.number()?.checked_mul(SECTOR_BYTES)?;
    let length = fields.number()?.checked_mul(SECTOR_BYTES)?;
    let op = match fields.number()? {
        0 => Op::Read,
        1 => Op::Write,
        _ => return None,
    };
    let volume = fields.text().filter(|volume| number(volume).is_some())?;
    fields.rest().is_none().then(|| access(time_ns, volumes.named(volume), op, offset, length))?
}
