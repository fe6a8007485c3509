//! The field's formats, one file each, and how a file's format is recognised: by trying.

mod csv;
mod keys;
mod msr;

use std::fmt;
use std::str::FromStr;

use crate::access::{Access, Op, VolumeNo};
use crate::open::OpenOptions;
use crate::text::LineParser;
use crate::volumes::Volumes;

/// A format of traces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// A table with named columns, or the common form.
    Csv,
    /// MSR Cambridge.
    Msr,
    /// Block numbers without time.
    Keys,
}

impl Format {
    /// Every format, in the order in which recognition prefers them.
    pub const ALL: [Format; 3] = [Format::Csv, Format::Msr, Format::Keys];

    /// Its name, as typed.
    pub fn name(self) -> &'static str {
        match self {
            Format::Csv => "csv",
            Format::Msr => "msr",
            Format::Keys => "keys",
        }
    }

    /// What knows its lines. `head` is the file's beginning, `name` the volume's name where the trace has none.
    pub(crate) fn parser(
        self,
        head: &[u8],
        name: String,
        options: &OpenOptions,
    ) -> Option<Box<dyn LineParser>> {
        let first_line = head.split(|b| *b == b'\n').next().unwrap_or_default();
        Some(match self {
            Format::Csv => Box::new(csv::Csv::new(first_line, name, options.time_unit_ns)?),
            Format::Msr => Box::new(msr::Msr),
            Format::Keys => Box::new(keys::Keys::new(options.key_bytes.unwrap_or(4096), name)),
        })
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Format::ALL
            .into_iter()
            .find(|format| format.name() == name)
            .ok_or_else(|| format!("'{name}' is no trace format; expected one of: {}", names()))
    }
}

/// The names of all formats.
pub(crate) fn names() -> String {
    Format::ALL.map(Format::name).join(", ")
}

/// Lines tried on each format.
const TRIED_LINES: usize = 64;

/// Recognises the format by a file's beginning: the first that understands most of its lines, and at least half.
pub(crate) fn recognise(head: &[u8], options: &OpenOptions) -> Option<Format> {
    let mut best = (0, None);
    for format in Format::ALL {
        let understood = understood(format, head, options);
        if understood > best.0 {
            best = (understood, Some(format));
        }
    }
    best.1
}

/// How many of the first lines a format takes for accesses; 0 if that is less than half.
fn understood(format: Format, head: &[u8], options: &OpenOptions) -> usize {
    let Some(mut parser) = format.parser(head, String::new(), options) else { return 0 };
    // The last line may be cut.
    let whole = memchr::memrchr(b'\n', head).map_or(head, |end| &head[..end]);
    let mut volumes = Volumes::default();
    let (mut good, mut bad) = (0, 0);
    for line in whole.split(|b| *b == b'\n').filter(|l| !l.is_empty() && l[0] != b'#').take(TRIED_LINES) {
        match parser.parse(line.strip_suffix(b"\r").unwrap_or(line), &mut volumes) {
            Ok(Some(_)) => good += 1,
            Ok(None) => {}
            Err(_) => bad += 1,
        }
    }
    if good >= bad { good } else { 0 }
}

/// An access, if it ends within the 64-bit address space and its length is one that accesses can have.
pub(crate) fn access(time_ns: u64, volume: VolumeNo, op: Op, offset: u64, length: u64) -> Option<Access> {
    let length_bytes = u32::try_from(length).ok()?;
    offset.checked_add(length)?;
    Some(Access { time_ns, offset_bytes: offset, length_bytes, volume, op })
}
