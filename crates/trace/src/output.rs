//! A file being written, compressed on the way if its name asks for it.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// zstd's and gzip's levels: what text gains beyond them is not worth the time.
const ZSTD_LEVEL: i32 = 6;
const XZ_LEVEL: u32 = 6;

/// An output file.
pub(crate) enum Output {
    Plain(Counted),
    Gz(flate2::write::GzEncoder<Counted>),
    Xz(liblzma::write::XzEncoder<Counted>),
    Zst(zstd::Encoder<'static, Counted>),
}

impl Output {
    /// Makes a file, `-` for standard output. A file that is there is replaced only if `replace` is set. With
    /// `compress` the last ending, gz, xz or zst, says how.
    pub fn create(path: &Path, replace: bool, compress: bool) -> io::Result<Self> {
        let file: Box<dyn Write> =
            if path == Path::new("-") { Box::new(io::stdout()) } else { Box::new(new_file(path, replace)?) };
        let file = Counted { file: BufWriter::with_capacity(256 << 10, file), bytes: 0 };
        let ending = path.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
        Ok(match ending.as_deref().filter(|_| compress) {
            Some("gz") => Output::Gz(flate2::write::GzEncoder::new(file, flate2::Compression::default())),
            Some("xz") => Output::Xz(liblzma::write::XzEncoder::new(file, XZ_LEVEL)),
            Some("zst") => Output::Zst(zstd::Encoder::new(file, ZSTD_LEVEL)?),
            _ => Output::Plain(file),
        })
    }

    /// Writes what is still held back. Returns the file's size in bytes.
    pub fn finish(self) -> io::Result<u64> {
        let mut file = match self {
            Output::Plain(file) => file,
            Output::Gz(encoder) => encoder.finish()?,
            Output::Xz(encoder) => encoder.finish()?,
            Output::Zst(encoder) => encoder.finish()?,
        };
        file.flush()?;
        Ok(file.bytes)
    }
}

fn new_file(path: &Path, replace: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true);
    if replace {
        options.create(true).truncate(true)
    } else {
        options.create_new(true)
    };
    options.open(path)
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Output::Plain(file) => file.write(bytes),
            Output::Gz(encoder) => encoder.write(bytes),
            Output::Xz(encoder) => encoder.write(bytes),
            Output::Zst(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Output::Plain(file) => file.flush(),
            Output::Gz(encoder) => encoder.flush(),
            Output::Xz(encoder) => encoder.flush(),
            Output::Zst(encoder) => encoder.flush(),
        }
    }
}

/// Counts what goes into a file.
pub(crate) struct Counted {
    file: BufWriter<Box<dyn Write>>,
    bytes: u64,
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
