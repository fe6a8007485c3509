//! Alibaba block traces: `device_id,opcode,offset,length,timestamp`.
//!
//! Opcode R or W, offset and length in bytes, time in microseconds since 1970; no heading.
//!
//! Source: README of the repository alibaba/block-traces.

use super::access;
use crate::access::{Access, Op};
use crate::fields::{Fields, number};
use crate::text::{Expected, LineParser};
use crate::volumes::Volumes;

const EXPECTED: Expected = "device_id,opcode,offset,length,timestamp (Alibaba block)";

pub(crate) struct Alibaba;

impl LineParser for Alibaba {
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes, into: &mut Vec<Access>) -> Result<(), Expected> {
        into.push(parse(line, volumes).ok_or(EXPECTED)?);
        Ok(())
    }
}

fn parse(line: &[u8], volumes: &mut Volumes) -> Option<Access> {
    let mut fields = Fields::new(line, b',');
    let device = fields.text().filter(|device| number(device).is_some())?;
    let op = fields.op().filter(|op| matches!(op, Op::Read | Op::Write))?;
    let (offset, length, time_us) = (fields.number()?, fields.number()?, fields.number()?);
    if fields.rest().is_some() {
        return None;
    }
    access(time_us.checked_mul(1000)?, volumes.named(device), op, offset, length)
}
