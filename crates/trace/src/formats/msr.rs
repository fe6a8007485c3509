//! MSR Cambridge: `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`.
//!
//! The time is a Windows FILETIME, 100 ns ticks since 1601; it becomes nanoseconds since 1970. Offset and size are
//! bytes. A volume is named host_disk, as the files are.
//!
//! Source: README of the MSR Cambridge traces, SNIA IOTTA 388; Narayanan et al., "Write off-loading", FAST'08.

use super::access;
use crate::access::Access;
use crate::fields::Fields;
use crate::text::{Expected, LineParser};
use crate::volumes::Volumes;

const EXPECTED: Expected = "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime (MSR Cambridge)";

/// Ticks of a FILETIME between 1601 and 1970.
const UNIX_EPOCH_TICKS: u64 = 116_444_736_000_000_000;

pub(crate) struct Msr;

impl LineParser for Msr {
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes, into: &mut Vec<Access>) -> Result<(), Expected> {
        into.push(parse(line, volumes).ok_or(EXPECTED)?);
        Ok(())
    }
}

fn parse(line: &[u8], volumes: &mut Volumes) -> Option<Access> {
    let mut fields = Fields::new(line, b',');
    let time_ns = fields.number()?.checked_sub(UNIX_EPOCH_TICKS)?.checked_mul(100)?;
    let key = fields.rest()?;
    let (host, disk) = (fields.text()?, fields.text()?);
    let key = &key[..key.len() - fields.rest()?.len()];
    let (op, offset_bytes, length_bytes) = (fields.op()?, fields.number()?, fields.number()?);
    fields.number()?;
    let name = || format!("{}_{}", String::from_utf8_lossy(host), String::from_utf8_lossy(disk));
    access(time_ns, volumes.number(key, name), op, offset_bytes, length_bytes)
}
