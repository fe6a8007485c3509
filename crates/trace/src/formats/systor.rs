//! SYSTOR'17 (VDI of an enterprise): `Timestamp,Response,IOType,LUN,Offset,Size`.
//!
//! Time is in seconds since 1970 with a fraction, offset and size in bytes. Rows are not in time order. A request
//! without a recorded response has a blank type, and is skipped.
//!
//! Source: README of the traces, SNIA IOTTA 4928; Lee et al., "Understanding storage traffic characteristics on
//! enterprise virtual desktop infrastructure", SYSTOR'17.

use super::{SECOND_NS, access};
use crate::access::Access;
use crate::fields::{Fields, op};
use crate::text::{Expected, LineParser};
use crate::volumes::Volumes;

const EXPECTED: Expected = "Timestamp,Response,IOType,LUN,Offset,Size (SYSTOR'17)";

pub(crate) struct Systor;

impl LineParser for Systor {
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes, into: &mut Vec<Access>) -> Result<(), Expected> {
        into.extend(parse(line, volumes).ok_or(EXPECTED)?);
        Ok(())
    }
}

/// Returns the access; `None` if the type is blank.
fn parse(line: &[u8], volumes: &mut Volumes) -> Option<Option<Access>> {
    let mut fields = Fields::new(line, b',');
    let time_ns = fields.time(SECOND_NS)?;
    let (_response, kind, lun) = (fields.text()?, fields.text()?, fields.text()?);
    let (offset, length) = (fields.number()?, fields.number()?);
    if fields.rest().is_some() {
        return None;
    }
    if kind.is_empty() {
        return Some(None);
    }
    let name = || format!("LUN{}", String::from_utf8_lossy(lun));
    access(time_ns, volumes.number(lun, name), op(kind)?, offset, length).map(Some)
}
