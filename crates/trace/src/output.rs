//! A file being written, compressed if its name requires it.
//!
//! A file appears under its name when it is complete; until then it is `NAME.part` in the same directory, and is
//! removed if writing fails. Standard output and devices are written directly.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Compression levels: beyond them the gain for text is not worth the time.
const ZSTD_LEVEL: i32 = 6;
const XZ_LEVEL: u32 = 6;

/// An output file.
pub(crate) enum Output {
    Plain(Sink),
    Gz(flate2::write::GzEncoder<Sink>),
    Xz(liblzma::write::XzEncoder<Sink>),
    Zst(zstd::Encoder<'static, Sink>),
}

impl Output {
    /// Creates a file, `-` for standard output. An existing file is replaced only if `replace` is set. With
    /// `compress` the last extension, gz, xz or zst, selects the compression.
    pub fn create(path: &Path, replace: bool, compress: bool) -> io::Result<Self> {
        let sink = Sink::create(path, replace)?;
        let ending = path.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
        Ok(match ending.as_deref().filter(|_| compress) {
            Some("gz") => Output::Gz(flate2::write::GzEncoder::new(sink, flate2::Compression::default())),
            Some("xz") => Output::Xz(liblzma::write::XzEncoder::new(sink, XZ_LEVEL)),
            Some("zst") => Output::Zst(zstd::Encoder::new(sink, ZSTD_LEVEL)?),
            _ => Output::Plain(sink),
        })
    }

    /// Writes what is still buffered and gives the file its name. Returns its size in bytes.
    pub fn finish(self) -> io::Result<u64> {
        match self {
            Output::Plain(sink) => sink,
            Output::Gz(encoder) => encoder.finish()?,
            Output::Xz(encoder) => encoder.finish()?,
            Output::Zst(encoder) => encoder.finish()?,
        }
        .finish()
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Output::Plain(sink) => sink.write(bytes),
            Output::Gz(encoder) => encoder.write(bytes),
            Output::Xz(encoder) => encoder.write(bytes),
            Output::Zst(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Output::Plain(sink) => sink.flush(),
            Output::Gz(encoder) => encoder.flush(),
            Output::Xz(encoder) => encoder.flush(),
            Output::Zst(encoder) => encoder.flush(),
        }
    }
}

/// The destination of the bytes, and their number.
pub(crate) struct Sink {
    file: BufWriter<Box<dyn Write>>,
    bytes: u64,
    part: Option<Part>,
}

impl Sink {
    fn create(path: &Path, replace: bool) -> io::Result<Self> {
        let there = fs::metadata(path);
        let (file, part): (Box<dyn Write>, _) = if path == Path::new("-") {
            (Box::new(io::stdout()), None)
        } else if there.as_ref().is_ok_and(|there| !there.is_file()) {
            (Box::new(fs::OpenOptions::new().write(true).open(path)?), None)
        } else if there.is_ok() && !replace {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file already exists"));
        } else {
            let part = Part::beside(path);
            (Box::new(File::create(&part.part)?), Some(part))
        };
        Ok(Sink { file: BufWriter::with_capacity(256 << 10, file), bytes: 0, part })
    }

    fn finish(mut self) -> io::Result<u64> {
        self.file.flush()?;
        match self.part.take() {
            Some(part) => part.rename().map(|()| self.bytes),
            None => Ok(self.bytes),
        }
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A file without its final name; it is removed if it never gets it.
struct Part {
    part: PathBuf,
    path: PathBuf,
}

impl Part {
    fn beside(path: &Path) -> Self {
        let mut part = OsString::from(path);
        part.push(".part");
        Part { part: part.into(), path: path.to_path_buf() }
    }

    fn rename(self) -> io::Result<()> {
        fs::rename(&self.part, &self.path)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // After the rename it does not exist, and if removing fails nothing else can be done.
        let _ = fs::remove_file(&self.part);
    }
}
