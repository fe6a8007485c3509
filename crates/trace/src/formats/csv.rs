//! Tables with named columns, and the common form `timestamp_ns,volume,op,offset_bytes,length_bytes`.
//!
//! The heading names the columns, in any order and either case; unknown columns are ignored. Without a time column,
//! time counts accesses; without an operation column, every access is a read; without a volume column, the file is
//! one volume. A time without a unit is a whole number of nanoseconds, unless a unit is given: with fractions it is
//! refused, since it can hardly be in nanoseconds.

use std::io::{self, Write};

use super::access;
use super::k5cloud::K5cloud;
use crate::access::{Access, Op, VolumeNo};
use crate::fields::{Fields, number, op, scsi_op_text, time};
use crate::text::{Expected, LineParser};
use crate::volumes::Volumes;

/// What a time without a unit must be.
pub(super) const WHOLE_TIMES: Expected = "whole nanoseconds in a time column without a unit; times with fractions need --time-unit, such as 1s (in a mix: time-unit)";
const EXPECTED: Expected = "as many fields as the heading, with a time, an operation and numbers in them";

/// The heading of the common form.
pub(crate) const HEADING: &str = "timestamp_ns,volume,op,offset_bytes,length_bytes";
/// The heading of a trace without times.
const UNTIMED_HEADING: &str = "volume,op,offset_bytes,length_bytes";

/// Headings of other formats, whose column names do not give their units.
const FOREIGN: [&str; 5] = [
    "timestamp,hostname,disknumber,type,offset,size,responsetime",
    "timestamp,response,iotype,lun,offset,size",
    "device_id,opcode,offset,length,timestamp",
    "timestamp,offset,size,iotype,volumeid",
    "id,timestamp,type,offset,length",
];

/// The meaning of a column; numbers are bytes or nanoseconds per unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Column {
    Time(u64),
    /// Whole nanoseconds.
    TimeWithoutUnit,
    Volume,
    Op,
    Offset(u64),
    Length(u64),
    Other,
}

impl Column {
    /// Returns whether it holds times.
    pub fn is_time(&self) -> bool {
        matches!(self, Column::Time(_) | Column::TimeWithoutUnit)
    }

    /// Returns the meaning of a column's name. A time without a unit has the given unit, if there is one.
    pub fn named(name: &str, time_unit_ns: Option<u64>) -> Self {
        match name.trim_matches(['"', ' ']).to_ascii_lowercase().as_str() {
            "timestamp" | "time" | "ts" => time_unit_ns.map_or(Column::TimeWithoutUnit, Column::Time),
            "timestamp_ns" | "time_ns" | "ts_ns" => Column::Time(1),
            "timestamp_us" | "time_us" | "ts_us" => Column::Time(1000),
            "timestamp_ms" | "time_ms" | "ts_ms" => Column::Time(1_000_000),
            "timestamp_s" | "time_s" | "ts_s" => Column::Time(1_000_000_000),
            "volume" | "volume_id" | "device" | "device_id" | "disk" | "lun" | "vm" => Column::Volume,
            "op" | "opcode" | "operation" | "type" | "iotype" | "rw" => Column::Op,
            "offset_bytes" | "offset" => Column::Offset(1),
            "offset_sectors" | "sector" | "lba" | "lbn" => Column::Offset(512),
            "length_bytes" | "length" | "size_bytes" | "size" | "bytes" => Column::Length(1),
            "length_sectors" | "size_sectors" | "sectors" => Column::Length(512),
            _ => Column::Other,
        }
    }
}

/// A table.
pub(crate) struct Csv {
    columns: Vec<Column>,
    separator: u8,
    name: String,
    heading: bool,
    /// Whether operations may be SCSI codes: not without a heading, where too many lines would look like rows.
    scsi_codes: bool,
    count: u64,
}

impl Csv {
    /// Returns a table with this heading; `None` if the line is not a heading: it must name an offset and a length.
    /// Rows of the common form are also accepted without a heading.
    pub fn new(first_line: &[u8], name: String, time_unit_ns: Option<u64>) -> Option<Self> {
        let line = std::str::from_utf8(first_line).ok()?.trim();
        if FOREIGN.contains(&line.to_ascii_lowercase().as_str()) {
            return None;
        }
        let separator = [b',', b';', b'\t'].into_iter().find(|s| first_line.contains(s))?;
        let columns = |line: &str| -> Vec<_> {
            line.split(separator as char).map(|name| Column::named(name, time_unit_ns)).collect()
        };
        let named = columns(line);
        let has = |is: fn(&Column) -> bool| named.iter().filter(|c| is(c)).count() == 1;
        let table = Csv { columns: Vec::new(), separator, name, heading: true, scsi_codes: true, count: 0 };
        if has(|c| matches!(c, Column::Offset(_))) && has(|c| matches!(c, Column::Length(_))) {
            return Some(Csv { columns: named, ..table });
        }
        // Their rows have the fields of the common form in the same order, but a time in place of the volume.
        if K5cloud::recognises(first_line) {
            return None;
        }
        let mut bare = Csv { columns: columns(HEADING), heading: false, scsi_codes: false, ..table };
        bare.access(first_line, &mut Volumes::default())?;
        bare.count = 0;
        Some(bare)
    }

    /// Returns the first line with a time that needs a unit, among the first lines of a file, with its number from 1.
    pub fn time_in_need_of_unit<'a>(&self, head: &'a [u8]) -> Option<(&'a [u8], u64)> {
        let mut lines = head.split(|byte| *byte == b'\n').zip(1..).skip(usize::from(self.heading));
        lines.find(|(line, _)| self.needs_unit(line))
    }

    fn needs_unit(&self, line: &[u8]) -> bool {
        let Some(place) = self.columns.iter().position(|column| *column == Column::TimeWithoutUnit) else {
            return false;
        };
        let mut fields = Fields::new(line, self.separator);
        let field = (0..=place).map(|_| fields.text()).last().flatten();
        field.is_some_and(|field| field.contains(&b'.') && time(field, 1).is_some())
    }

    fn access(&mut self, line: &[u8], volumes: &mut Volumes) -> Option<Access> {
        let mut fields = Fields::new(line, self.separator);
        let (mut time_ns, mut kind, mut offset, mut length) = (self.count, Op::Read, 0, 0);
        let mut volume = None;
        for column in &self.columns {
            let field = fields.text()?;
            match column {
                Column::Time(unit_ns) => time_ns = time(field, *unit_ns)?,
                Column::TimeWithoutUnit => time_ns = number(field)?,
                Column::Op if self.scsi_codes => kind = op(field).or_else(|| scsi_op_text(field))?,
                Column::Op => kind = op(field)?,
                Column::Offset(unit) => offset = number(field)?.checked_mul(*unit)?,
                Column::Length(unit) => length = number(field)?.checked_mul(*unit)?,
                Column::Volume => volume = Some(field),
                Column::Other => {}
            }
        }
        if fields.rest().is_some() {
            return None;
        }
        let mut access = access(time_ns, VolumeNo(0), kind, offset, length)?;
        access.volume = match volume {
            Some(name) => volumes.named(name),
            None => volumes.only(&self.name),
        };
        self.count += 1;
        Some(access)
    }
}

impl LineParser for Csv {
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes, into: &mut Vec<Access>) -> Result<(), Expected> {
        if std::mem::take(&mut self.heading) {
            return Ok(());
        }
        match self.access(line, volumes) {
            Some(access) => into.push(access),
            None if self.needs_unit(line) => return Err(WHOLE_TIMES),
            None => return Err(EXPECTED),
        }
        Ok(())
    }

    fn is_timed(&self) -> bool {
        self.columns.iter().any(Column::is_time)
    }
}

/// The common form being written.
pub(crate) struct CsvWriter<W> {
    file: W,
    is_timed: bool,
    lines: Vec<u8>,
}

impl<W: Write> CsvWriter<W> {
    /// Writes the heading, which names a column of times only if there are any.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn new(mut file: W, is_timed: bool) -> io::Result<Self> {
        writeln!(file, "{}", if is_timed { HEADING } else { UNTIMED_HEADING })?;
        Ok(CsvWriter { file, is_timed, lines: Vec::new() })
    }

    /// Appends accesses; `names` are their volumes' names. Separators within names become `_`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&mut self, accesses: &[Access], names: &[String]) -> io::Result<()> {
        self.lines.clear();
        for access in accesses {
            if self.is_timed {
                put_number(&mut self.lines, access.time_ns);
                self.lines.push(b',');
            }
            let name = names[access.volume.0 as usize].bytes();
            self.lines.extend(name.map(|b| if matches!(b, b',' | b'\n' | b'\r') { b'_' } else { b }));
            self.lines.extend([b',', access.op.letter() as u8, b',']);
            put_number(&mut self.lines, access.offset_bytes);
            self.lines.push(b',');
            put_number(&mut self.lines, access.length_bytes.into());
            self.lines.push(b'\n');
        }
        self.file.write_all(&self.lines)
    }

    /// Flushes what was written so far.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }

    /// The file.
    pub fn finish(self) -> W {
        self.file
    }
}

fn put_number(line: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    line.extend_from_slice(&digits[at..]);
}
