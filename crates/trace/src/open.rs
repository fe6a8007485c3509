//! Opening a trace, whatever its format.

use std::path::Path;

use crate::cut::{Cut, Selection};
use crate::error::TraceError;
use crate::formats::compact::CompactSource;
use crate::formats::{self, Format, Parser};
use crate::input::Input;
use crate::records::RecordSource;
use crate::sorted::Sorted;
use crate::source::Source;
use crate::text::TextSource;

/// How to open a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenOptions {
    /// Its format; recognised if not given.
    pub format: Option<Format>,
    /// Whether the first damage ends the trace with an error. Otherwise damage is counted and skipped.
    pub strict: bool,
    /// Accesses are sorted by time if they are at most n positions from their place.
    pub sort_window: usize,
    /// The bytes per block number in formats that do not give them; by default 4096 for lists of keys, 512 for
    /// oracleGeneral.
    pub key_bytes: Option<u32>,
    /// The unit of times in formats that do not define one.
    pub time_unit_ns: Option<u64>,
    /// The volume's name in traces without names; by default the file's name.
    pub volume: Option<String>,
    /// The part of the trace to read.
    pub selection: Selection,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            format: None,
            strict: false,
            sort_window: 1 << 16,
            key_bytes: None,
            time_unit_ns: None,
            volume: None,
            selection: Selection::default(),
        }
    }
}

/// Opens a trace of any format, compressed (gz, xz, zst) or not. `-` is standard input.
///
/// # Errors
/// The file cannot be read, or no format fits it.
pub fn open(path: &Path, options: &OpenOptions) -> Result<Box<dyn Source>, TraceError> {
    let input = Input::open(path)?;
    let unknown = || TraceError::UnknownFormat {
        path: path.to_path_buf(),
        found: String::from_utf8_lossy(&input.head()[..input.head().len().min(60)]).into_owned(),
        formats: formats::names(),
    };
    if options.format.is_none_or(|format| format == Format::Csv) {
        formats::check_time_unit(&input, options)?;
    }
    let format = options.format.or_else(|| formats::recognise(input.head(), options)).ok_or_else(unknown)?;
    let name = options.volume.clone().unwrap_or_else(|| input.stem());
    let parser = format.parser(input.head(), name, options).ok_or_else(unknown)?;
    let selection = &options.selection;
    let source: Box<dyn Source> = match (parser, &selection.span_ns) {
        (Parser::Text(parser), _) => sorted(TextSource::new(input, parser, options.strict), options),
        (Parser::Binary(parser), _) => sorted(RecordSource::new(input, parser), options),
        (Parser::Parquet, _) => parquet(&input, options)?,
        (Parser::Compact, None) => Box::new(CompactSource::new(input)?),
        (Parser::Compact, Some(span_ns)) => {
            let source = CompactSource::within(input, span_ns)?;
            let first_ns = source.first_ns();
            return Ok(Box::new(Cut::new(source, selection.clone(), first_ns)));
        }
    };
    let all = *selection == Selection::default();
    Ok(if all { source } else { Box::new(Cut::new(source, selection.clone(), None)) })
}

#[cfg(feature = "parquet")]
fn parquet(input: &Input, options: &OpenOptions) -> Result<Box<dyn Source>, TraceError> {
    if !input.is_plain_file() {
        return Err(TraceError::NotPlain { path: input.path().to_path_buf() });
    }
    let name = options.volume.clone().unwrap_or_else(|| input.stem());
    let source = formats::parquet::ParquetSource::open(input.path().to_path_buf(), name, options)?;
    Ok(sorted(source, options))
}

#[cfg(not(feature = "parquet"))]
fn parquet(input: &Input, _: &OpenOptions) -> Result<Box<dyn Source>, TraceError> {
    Err(TraceError::NotBuilt { path: input.path().to_path_buf(), feature: "parquet" })
}

fn sorted(source: impl Source + 'static, options: &OpenOptions) -> Box<dyn Source> {
    Box::new(Sorted::new(source, options.sort_window, options.strict))
}
