//! The formats in use, one file each, and how a file's format is recognised: by trying them.

mod alibaba;
mod blkparse;
mod blktrace;
pub(crate) mod compact;
pub(crate) mod csv;
mod cydonia;
mod disksim;
mod fiu;
mod iolog;
mod k5cloud;
mod keys;
mod msr;
mod oracle;
#[cfg(feature = "parquet")]
pub(crate) mod parquet;
mod spc;
mod systor;
mod tencent;
mod vscsi;

use std::fmt;
use std::str::FromStr;

use crate::access::{Access, Op, VolumeNo};
use crate::error::{BadLine, TraceError};
use crate::input::{Input, is_text};
use crate::open::OpenOptions;
use crate::records::RecordParser;
use crate::text::LineParser;
use crate::volumes::Volumes;

/// Bytes per sector, in formats that count sectors.
const SECTOR_BYTES: u64 = 512;
/// Nanoseconds per second.
const SECOND_NS: u64 = 1_000_000_000;

/// A format of traces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Our own compact form.
    Haversack,
    /// A table with named columns, or the common form.
    Csv,
    /// MSR Cambridge.
    Msr,
    /// SPC, as UMass published.
    Spc,
    /// SYSTOR'17.
    Systor,
    /// FIU's SRCMap and IODedup.
    Fiu,
    /// Alibaba block.
    Alibaba,
    /// Tencent CBS.
    Tencent,
    /// K5cloud.
    K5cloud,
    /// CloudPhysics as text.
    Cydonia,
    /// DiskSim's ASCII.
    DiskSim,
    /// blktrace's text.
    BlkParse,
    /// fio's iologs, version 2 and 3.
    IoLog,
    /// Block numbers without time.
    Keys,
    /// CloudPhysics vSCSI, version 1.
    Vscsi1,
    /// CloudPhysics vSCSI, version 2.
    Vscsi2,
    /// blktrace's binary.
    BlkTrace,
    /// libCacheSim's oracleGeneral.
    Oracle,
    /// Parquet with named columns.
    Parquet,
}

/// A reader of a format's lines or records.
pub(crate) enum Parser {
    Text(Box<dyn LineParser>),
    Binary(Box<dyn RecordParser>),
    Compact,
    Parquet,
}

impl Format {
    /// Every format, in the order in which recognition prefers them.
    pub const ALL: [Format; 19] = [
        Format::Haversack,
        Format::Csv,
        Format::Msr,
        Format::Spc,
        Format::Systor,
        Format::Fiu,
        Format::Alibaba,
        Format::Tencent,
        Format::Cydonia,
        Format::DiskSim,
        Format::BlkParse,
        Format::IoLog,
        Format::Keys,
        Format::BlkTrace,
        Format::Vscsi2,
        Format::Vscsi1,
        Format::Oracle,
        Format::Parquet,
        Format::K5cloud,
    ];

    /// Returns its name for the command line.
    pub fn name(self) -> &'static str {
        match self {
            Format::Haversack => "haversack",
            Format::Csv => "csv",
            Format::Msr => "msr",
            Format::Spc => "spc",
            Format::Systor => "systor",
            Format::Fiu => "fiu",
            Format::Alibaba => "alibaba",
            Format::Tencent => "tencent",
            Format::K5cloud => "k5cloud",
            Format::Cydonia => "cydonia",
            Format::DiskSim => "disksim",
            Format::BlkParse => "blkparse",
            Format::IoLog => "iolog",
            Format::Keys => "keys",
            Format::Vscsi1 => "vscsi1",
            Format::Vscsi2 => "vscsi2",
            Format::BlkTrace => "blktrace",
            Format::Oracle => "oracle-general",
            Format::Parquet => "parquet",
        }
    }

    /// Returns a reader of the format; `None` if the beginning of the file, `head`, rules the format out. `name` is
    /// the volume's name if the trace has none.
    pub(crate) fn parser(self, head: &[u8], name: String, options: &OpenOptions) -> Option<Parser> {
        let first_line = head.split(|b| *b == b'\n').next().unwrap_or_default();
        let (time_unit_ns, key_bytes) = (options.time_unit_ns, options.key_bytes);
        let text: Box<dyn LineParser> = match self {
            Format::Haversack => return head.starts_with(&compact::MAGIC).then_some(Parser::Compact),
            Format::Csv => Box::new(csv::Csv::new(first_line, name, time_unit_ns)?),
            Format::Msr => Box::new(msr::Msr),
            Format::Spc => Box::new(spc::Spc::new(name)),
            Format::Systor => Box::new(systor::Systor),
            Format::Fiu => Box::new(fiu::Fiu),
            Format::Alibaba => Box::new(alibaba::Alibaba),
            Format::Tencent => Box::new(tencent::Tencent),
            Format::K5cloud => Box::new(k5cloud::K5cloud),
            Format::Cydonia => Box::new(cydonia::Cydonia::new(name)),
            Format::DiskSim => Box::new(disksim::DiskSim::new(head, name, time_unit_ns)),
            Format::BlkParse => Box::new(blkparse::BlkParse::new(head)),
            Format::IoLog => Box::new(iolog::IoLog::new(first_line)?),
            Format::Keys => Box::new(keys::Keys::new(key_bytes.unwrap_or(4096), name)),
            Format::Vscsi1 => return binary(vscsi::Vscsi::new(vscsi::Version::One, name)),
            Format::Vscsi2 => return binary(vscsi::Vscsi::new(vscsi::Version::Two, name)),
            Format::BlkTrace => return binary(blktrace::BlkTrace::new(head)?),
            Format::Parquet => return head.starts_with(b"PAR1").then_some(Parser::Parquet),
            Format::Oracle => return binary(oracle::Oracle::new(key_bytes.unwrap_or(512), name)),
        };
        Some(Parser::Text(text))
    }
}

/// Refuses a table whose times have fractions but no unit: taken as nanoseconds, nearly all would be the same.
///
/// # Errors
/// [`TraceError::Line`] names the first such line.
pub(crate) fn check_time_unit(input: &Input, options: &OpenOptions) -> Result<(), TraceError> {
    let head = input.head();
    let first_line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let table = csv::Csv::new(first_line, String::new(), options.time_unit_ns);
    let Some((text, line)) = table.as_ref().and_then(|table| table.time_in_need_of_unit(head)) else {
        return Ok(());
    };
    let (path, found) = (input.path().to_path_buf(), String::from_utf8_lossy(text.trim_ascii()).into_owned());
    Err(TraceError::Line(BadLine { path, line, expected: csv::WHOLE_TIMES, found }))
}

fn binary(parser: impl RecordParser + 'static) -> Option<Parser> {
    Some(Parser::Binary(Box::new(parser)))
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let format = Format::ALL.into_iter().find(|format| format.name() == name);
        format.ok_or_else(|| format!("'{name}' is no trace format; expected one of: {}", names()))
    }
}

/// Returns the names of all formats.
pub(crate) fn names() -> String {
    Format::ALL.map(Format::name).join(", ")
}

/// Lines or records that are tried with each format.
const TRIED: usize = 64;

/// Recognises the format from a file's beginning: the first that accepts the most lines, and at least half; for
/// binary files the first that accepts all records.
pub(crate) fn recognise(head: &[u8], options: &OpenOptions) -> Option<Format> {
    let is_text = is_text(head);
    let mut best = (0, None);
    for format in Format::ALL {
        let understood = match format.parser(head, String::new(), options) {
            Some(Parser::Compact | Parser::Parquet) => return Some(format),
            Some(Parser::Text(parser)) if is_text => lines_understood(parser, head),
            Some(Parser::Binary(parser)) if !is_text => {
                let fits = format != Format::Oracle || oracle::Oracle::recognises(head);
                if fits && all_understood(parser, head) { 1 } else { 0 }
            }
            _ => 0,
        };
        if understood > best.0 {
            best = (understood, Some(format));
        }
    }
    best.1
}

/// Returns how many of the first lines are accesses; 0 if that is less than half.
fn lines_understood(mut parser: Box<dyn LineParser>, head: &[u8]) -> usize {
    // The last line may be incomplete.
    let whole = memchr::memrchr(b'\n', head).map_or(head, |end| &head[..end]);
    let (mut volumes, mut accesses) = (Volumes::default(), Vec::new());
    let (mut good, mut bad) = (0, 0);
    for line in whole.split(|b| *b == b'\n').filter(|l| !l.is_empty() && l[0] != b'#').take(TRIED) {
        let before = accesses.len();
        match parser.parse(line.strip_suffix(b"\r").unwrap_or(line), &mut volumes, &mut accesses) {
            Ok(()) => good += usize::from(accesses.len() > before),
            Err(_) => bad += 1,
        }
    }
    if good >= bad { good } else { 0 }
}

/// Returns whether the first records have this format.
fn all_understood(mut parser: Box<dyn RecordParser>, head: &[u8]) -> bool {
    let (mut volumes, mut accesses) = (Volumes::default(), Vec::new());
    let (mut rest, mut tried) = (head, 0);
    while tried < TRIED && rest.len() >= parser.record_bytes() {
        let (record, after) = rest.split_at(parser.record_bytes());
        let Ok(skipped) = parser.parse(record, &mut volumes, &mut accesses) else { return false };
        rest = &after[skipped.min(after.len())..];
        tried += 1;
    }
    tried > 0
}

/// Returns an access, if it ends within the 64-bit address space and has a possible length.
pub(crate) fn access(time_ns: u64, volume: VolumeNo, op: Op, offset: u64, length: u64) -> Option<Access> {
    let length_bytes = u32::try_from(length).ok()?;
    offset.checked_add(length)?;
    Some(Access { time_ns, offset_bytes: offset, length_bytes, volume, op })
}
