//! FIU traces (SRCMap, IODedup): `time pid process address size W|R major minor [MD5]`, separated by blanks.
//!
//! Time is in nanoseconds, address and size in sectors of 512 bytes. Process names can contain blanks, so the letter
//! W or R is used to find the fields after them. Each device is a volume, named major:minor.
//!
//! Source: README of the traces, SNIA IOTTA 391 and 411; Verma et al., "SRCMap", FAST'10; Koller and Rangaswami,
//! "I/O deduplication", FAST'10.

use super::{SECTOR_BYTES, access};
use crate::access::{Access, Op};
use crate::fields::{Fields, number};
use crate::text::{Expected, LineParser};
use crate::volumes::Volumes;

const EXPECTED: Expected = "time pid process address size W|R major minor [MD5] (FIU)";

pub(crate) struct Fiu;

impl LineParser for Fiu {
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes, into: &mut Vec<Access>) -> Result<(), Expected> {
        into.push(parse(line, volumes).ok_or(EXPECTED)?);
        Ok(())
    }
}

fn parse(line: &[u8], volumes: &mut Volumes) -> Option<Access> {
    let mut fields = Fields::new(line, b' ');
    let time_ns = fields.number()?;
    fields.number()?;
    // The two words before the letter; the process is at least one more.
    let (mut words, mut address, mut size) = (0, &b""[..], &b""[..]);
    let op = loop {
        let word = fields.text()?;
        match word {
            b"R" | b"W" if words >= 3 && number(address).is_some() && number(size).is_some() => {
                break if word == b"R" { Op::Read } else { Op::Write };
            }
            _ => (address, size) = (size, word),
        }
        words += 1;
    };
    let device = fields.rest()?;
    let (major, minor) = (fields.number()?, fields.number()?);
    let key = &device[..device.len() - fields.rest().map_or(0, <[u8]>::len)];
    let volume = volumes.number(key.trim_ascii(), || format!("{major}:{minor}"));
    let (offset, length) = (number(address)?, number(size)?);
    access(time_ns, volume, op, offset.checked_mul(SECTOR_BYTES)?, length.checked_mul(SECTOR_BYTES)?)
}
