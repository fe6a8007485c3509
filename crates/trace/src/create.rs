//! Writing traces.

use std::io;
use std::path::Path;

use crate::error::TraceError;
use crate::formats::{compact::CompactWriter, csv::CsvWriter};
use crate::output::Output;
use crate::source::Source;

/// A format that is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// Our own compact form.
    Haversack,
    /// The common form, a table.
    Csv,
}

impl Target {
    /// Returns the format for a file's name: the common form if one of its extensions is `csv` or it is standard
    /// output (`-`), otherwise our own.
    pub fn of(path: &Path) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let csv = name.split('.').skip(1).any(|ending| ending.eq_ignore_ascii_case("csv"));
        if csv || name == "-" { Target::Csv } else { Target::Haversack }
    }
}

/// What has been written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// Accesses.
    pub accesses: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// Writes all of a source to a file, calling `progress` from time to time. An existing file is replaced only if
/// `replace` is set. If the source has no times, the file says so: the common form then has no column for them. It is compressed according to the last extension: gz, xz or zst.
///
/// # Errors
/// The source cannot be read, or the file cannot be written.
pub fn create(
    path: &Path,
    target: Target,
    replace: bool,
    source: &mut dyn Source,
    progress: &mut dyn FnMut(&dyn Source),
) -> Result<Written, TraceError> {
    let failed = |error| TraceError::Io { path: path.to_path_buf(), error };
    let file = Output::create(path, replace, target == Target::Csv).map_err(failed)?;
    let mut writer = Writer::new(file, target, source.is_timed()).map_err(failed)?;
    let (mut batch, mut accesses) = (Vec::new(), 0);
    loop {
        if path == Path::new("-") {
            // A live trace may be read while it is recorded.
            writer.flush().map_err(failed)?;
        }
        if source.read(&mut batch)? == 0 {
            break;
        }
        accesses += batch.len() as u64;
        let written = match &mut writer {
            Writer::Compact(writer) => writer.write(&batch, source.volumes()),
            Writer::Csv(writer) => writer.write(&batch, source.volumes()),
        };
        written.map_err(failed)?;
        batch.clear();
        progress(source);
    }
    let bytes = writer.finish(source.volumes()).map_err(failed)?;
    Ok(Written { accesses, bytes })
}

enum Writer {
    Compact(CompactWriter<Output>),
    Csv(CsvWriter<Output>),
}

impl Writer {
    fn new(file: Output, target: Target, is_timed: bool) -> io::Result<Self> {
        Ok(match target {
            Target::Haversack => Writer::Compact(CompactWriter::new(file, is_timed)?),
            Target::Csv => Writer::Csv(CsvWriter::new(file, is_timed)?),
        })
    }

    /// Flushes what was written in the common form; the other form is not readable before its end.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Writer::Compact(_) => Ok(()),
            Writer::Csv(writer) => writer.flush(),
        }
    }

    fn finish(self, names: &[String]) -> io::Result<u64> {
        match self {
            Writer::Compact(writer) => writer.finish(names)?.finish(),
            Writer::Csv(writer) => writer.finish().finish(),
        }
    }
}
