//! The default output of blkparse: `major,minor cpu sequence seconds.nanoseconds pid action RWBS sector + sectors
//! [process]`.
//!
//! A request is counted when it is queued (action Q); its other events are skipped, and so are the summaries at the
//! end. Some traces were filtered before they were published and have no such event: there a request is counted when
//! it is issued to the driver (D) or, without that event, when it is completed (C). A write that carries a flush is a
//! flush and a write. Volumes are named major:minor.
//!
//! Times are relative to the first event in blkparse's input. An earlier event on another CPU has a negative time,
//! which blkparse prints as 1266874889 seconds and a fraction; here it is 0.
//!
//! Source: blktrace 1.2, `blkparse_fmt.c` (default formats) and blkparse(1).

use super::{SECOND_NS, SECTOR_BYTES, access};
use crate::access::{Access, Op};
use crate::fields::{Fields, number};
use crate::text::{Expected, LineParser};
use crate::volumes::Volumes;

const EXPECTED: Expected =
    "major,minor cpu sequence time pid action RWBS sector + sectors [process] (blkparse)";

/// Printed for the last nanosecond before time 0: the high half of the seconds is lost.
const BEFORE_ZERO_NS: u64 = (u64::MAX / SECOND_NS) % (1 << 32) * SECOND_NS + u64::MAX % SECOND_NS;
/// How far before 0 a time can be.
const HOUR_NS: u64 = 3600 * SECOND_NS;

pub(crate) struct BlkParse {
    /// The event at which a request is counted.
    action: u8,
}

impl BlkParse {
    /// The beginning of the file shows which events there are.
    pub fn new(head: &[u8]) -> Self {
        let actions: Vec<_> = head.split(|b| *b == b'\n').filter_map(action).collect();
        let is_there = |action: &u8| actions.contains(&&[*action][..]);
        BlkParse { action: [b'Q', b'D', b'C'].into_iter().find(is_there).unwrap_or(b'Q') }
    }
}

impl LineParser for BlkParse {
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes, into: &mut Vec<Access>) -> Result<(), Expected> {
        let mut fields = Fields::new(line, b' ');
        let device = fields.text().unwrap_or_default();
        let is_event = device.split(|b| *b == b',').filter(|part| number(part).is_some()).count() == 2;
        // Summaries are indented or begin with a name.
        if !is_event && !line[0].is_ascii_digit() {
            return Ok(());
        }
        let event = is_event.then(|| event(&mut fields, self.action)).flatten().ok_or(EXPECTED)?;
        let Some(mut access) = event.access else { return Ok(()) };
        access.volume = volumes.number(device, || String::from_utf8_lossy(device).replace(',', ":"));
        if event.flushes_first {
            into.push(Access { op: Op::Flush, offset_bytes: 0, length_bytes: 0, ..access });
        }
        into.push(access);
        Ok(())
    }
}

/// Returns a line's action.
fn action(line: &[u8]) -> Option<&[u8]> {
    let mut fields = Fields::new(line, b' ');
    (0..5).try_for_each(|_| fields.text().map(|_| ()))?;
    fields.text()
}

#[derive(Default)]
struct Event {
    access: Option<Access>,
    flushes_first: bool,
}

/// Parses the next field as a time.
fn time_ns(fields: &mut Fields<'_>) -> Option<u64> {
    let time_ns = fields.time(SECOND_NS)?;
    let is_negative = (BEFORE_ZERO_NS - HOUR_NS..=BEFORE_ZERO_NS).contains(&time_ns);
    Some(if is_negative { 0 } else { time_ns })
}

/// Parses the rest of the line after the device.
fn event(fields: &mut Fields<'_>, taken: u8) -> Option<Event> {
    let (_cpu, _sequence) = (fields.number()?, fields.number()?);
    let (time_ns, _pid, action) = (time_ns(fields)?, fields.number()?, fields.text()?);
    if action != [taken] {
        return Some(Event::default());
    }
    let rwbs = fields.text()?;
    let Some(sector) = fields.text().and_then(number) else {
        // Without an address: a flush without data, or something that is not an access.
        let flush = Access { time_ns, op: Op::Flush, ..Access::default() };
        return Some(Event { access: rwbs.starts_with(b"F").then_some(flush), flushes_first: false });
    };
    let sectors = match fields.text() {
        Some(b"+") => fields.number()?,
        _ => 0,
    };
    let flushes_first = rwbs.starts_with(b"F") && sectors > 0;
    // A leading F is the flush, one after the operation means FUA.
    let op = match rwbs.strip_prefix(b"F").filter(|_| sectors > 0).unwrap_or(rwbs).first()? {
        b'R' => Op::Read,
        b'W' => Op::Write,
        b'D' => Op::Discard,
        b'F' => Op::Flush,
        _ => return Some(Event::default()),
    };
    if op == Op::Flush {
        return Some(Event {
            access: Some(Access { time_ns, op, ..Access::default() }),
            flushes_first: false,
        });
    }
    let length = sectors.checked_mul(SECTOR_BYTES)?;
    let access = access(time_ns, Default::default(), op, sector.checked_mul(SECTOR_BYTES)?, length)?;
    Some(Event { access: (length > 0).then_some(access), flushes_first })
}
