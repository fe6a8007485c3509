//! K5cloud (virtual disks of Fujitsu's K5): `ID,Timestamp,Type,Offset,Length`.
//!
//! Time is in seconds since the collection's first request, with nine digits of fraction; offset and length are bytes.
//! There is no heading. Each storage ID is a volume.
//!
//! Source: the traces' description, SNIA IOTTA 26663, as quoted with rows of it in Diaconu, "Exploring public storage
//! traces", Towards Data Science, 2024.

use super::{SECOND_NS, access};
use crate::access::{Access, Op};
use crate::fields::{Fields, number};
use crate::text::{Expected, LineParser};
use crate::volumes::Volumes;

const EXPECTED: Expected = "ID,Timestamp,Type,Offset,Length (K5cloud)";

pub(crate) struct K5cloud;

impl K5cloud {
    /// Returns whether a line has this format: it has a fraction where the common form has a volume.
    pub fn recognises(line: &[u8]) -> bool {
        parse(line, &mut Volumes::default()).is_some()
    }
}

impl LineParser for K5cloud {
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes, into: &mut Vec<Access>) -> Result<(), Expected> {
        into.push(parse(line, volumes).ok_or(EXPECTED)?);
        Ok(())
    }
}

fn parse(line: &[u8], volumes: &mut Volumes) -> Option<Access> {
    let mut fields = Fields::new(line, b',');
    let id = fields.text().filter(|id| number(id).is_some())?;
    let time = fields.text().filter(|time| time.contains(&b'.'))?;
    let time_ns = crate::fields::time(time, SECOND_NS)?;
    let op = fields.op().filter(|op| matches!(op, Op::Read | Op::Write))?;
    let (offset, length) = (fields.number()?, fields.number()?);
    fields.rest().is_none().then(|| access(time_ns, volumes.named(id), op, offset, length))?
}
