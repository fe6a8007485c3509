//! Lists of block numbers without time: one per line, or `start,count`, or the four columns of the ARC paper's traces
//! (`start count 0 number`). Fields are separated by commas or blanks. Every access is a read; time counts accesses.
//!
//! Source: Megiddo and Modha, "ARC", FAST'03, and the traces published with it (blocks of 512 bytes).

use super::access;
use crate::access::{Access, Op};
use crate::fields::Fields;
use crate::text::{Expected, LineParser};
use crate::volumes::Volumes;

const EXPECTED: Expected = "a block number, or a first block and a count of blocks";

pub(crate) struct Keys {
    key_bytes: u64,
    name: String,
    count: u64,
}

impl Keys {
    /// `key_bytes` is the number of bytes that a block number stands for.
    pub fn new(key_bytes: u32, name: String) -> Self {
        Keys { key_bytes: u64::from(key_bytes), name, count: 0 }
    }

    fn access(&mut self, line: &[u8], volumes: &mut Volumes) -> Option<Access> {
        let separator = if line.contains(&b',') { b',' } else { b' ' };
        let mut fields = Fields::new(line, separator);
        let start = fields.number()?;
        let blocks = match fields.text() {
            Some(count) => crate::fields::number(count)?,
            None => 1,
        };
        if fields.rest().is_some()
            && (fields.number()? != 0 || fields.number().is_none() || fields.rest().is_some())
        {
            return None;
        }
        let (offset, length) = (start.checked_mul(self.key_bytes)?, blocks.checked_mul(self.key_bytes)?);
        let volume = volumes.only(&self.name);
        let access = access(self.count, volume, Op::Read, offset, length)?;
        self.count += 1;
        Some(access)
    }
}

impl LineParser for Keys {
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes, into: &mut Vec<Access>) -> Result<(), Expected> {
        into.push(self.access(line, volumes).ok_or(EXPECTED)?);
        Ok(())
    }

    fn is_timed(&self) -> bool {
        false
    }
}
