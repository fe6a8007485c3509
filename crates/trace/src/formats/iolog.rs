//! fio's iologs of version 2 and 3, as `--write_iolog` makes them.
//!
//! Version 2: `file action [offset length]`; time advances by `wait` lines in microseconds. Version 3: a time in
//! microseconds before the other fields, and no `wait`. Offsets and lengths are in bytes; each file is a volume.
//! Lines about files (add, open, close) are not accesses; sync and datasync are flushes.
//!
//! Source: fio's HOWTO, "Trace file format v2" and "v3", and `iolog.c`.

use super::access;
use crate::access::{Access, Op};
use crate::fields::Fields;
use crate::text::{Expected, LineParser};
use crate::volumes::Volumes;

const EXPECTED_2: Expected = "file action [offset length] (fio iolog v2)";
const EXPECTED_3: Expected = "time_us file action [offset length] (fio iolog v3)";

const MICROSECOND_NS: u64 = 1000;

pub(crate) struct IoLog {
    timestamps: bool,
    time_ns: u64,
}

impl IoLog {
    /// The first line gives the version.
    pub fn new(first_line: &[u8]) -> Option<Self> {
        let timestamps = match first_line.trim_ascii_end() {
            b"fio version 2 iolog" => false,
            b"fio version 3 iolog" => true,
            _ => return None,
        };
        Some(IoLog { timestamps, time_ns: 0 })
    }

    fn access(&mut self, line: &[u8], volumes: &mut Volumes) -> Option<Option<Access>> {
        let mut fields = Fields::new(line, b' ');
        if self.timestamps {
            self.time_ns = fields.number()?.checked_mul(MICROSECOND_NS)?;
        }
        let (file, action) = (fields.text()?, fields.text()?);
        let op = match action {
            b"read" => Op::Read,
            b"write" => Op::Write,
            b"sync" | b"datasync" => Op::Flush,
            b"trim" => Op::Discard,
            b"wait" if !self.timestamps => {
                self.time_ns = self.time_ns.checked_add(fields.number()?.checked_mul(MICROSECOND_NS)?)?;
                return Some(None);
            }
            b"add" | b"open" | b"close" => return Some(None),
            _ => return None,
        };
        let mut place = || Some((fields.number()?, fields.number()?));
        let (offset, length) = if op == Op::Flush { (0, 0) } else { place()? };
        access(self.time_ns, volumes.named(file), op, offset, length).map(Some)
    }
}

impl LineParser for IoLog {
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes, into: &mut Vec<Access>) -> Result<(), Expected> {
        if line.starts_with(b"fio version ") {
            return Ok(());
        }
        let expected = if self.timestamps { EXPECTED_3 } else { EXPECTED_2 };
        into.extend(self.access(line, volumes).ok_or(expected)?);
        Ok(())
    }
}
