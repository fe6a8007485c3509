//! A trace's bytes: a file, decompressed while it is read if it is gz, xz or zst.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::TraceError;

/// Bytes examined to recognise a format.
const HEAD_BYTES: u64 = 64 << 10;
/// The byte-order mark with which some programs begin text.
const TEXT_MARK: &[u8] = b"\xef\xbb\xbf";
/// Bytes requested from the file system at once.
const READ_BYTES: usize = 256 << 10;

/// An open trace file.
pub(crate) struct Input {
    path: PathBuf,
    head: Vec<u8>,
    bytes: Box<dyn Read + Send>,
    read_bytes: Arc<AtomicU64>,
    file_bytes: u64,
    plain_file: bool,
    regular: bool,
}

impl Input {
    /// Opens a file and recognises its compression by its first bytes; `-` is standard input.
    ///
    /// # Errors
    /// The file cannot be read, or its beginning cannot be decompressed.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        Self::open_at(path, 0)
    }

    /// Opens a file at an offset, as if it began there.
    ///
    /// # Errors
    /// See [`open`](Self::open).
    pub fn open_at(path: &Path, offset_bytes: u64) -> Result<Self, TraceError> {
        Self::start(path, offset_bytes).map_err(|error| TraceError::Io { path: path.to_path_buf(), error })
    }

    fn start(path: &Path, offset_bytes: u64) -> io::Result<Self> {
        let is_file = path != Path::new("-");
        let (file, file_bytes, regular): (Box<dyn Read + Send>, u64, bool) = if is_file {
            let mut file = File::open(path)?;
            file.seek(SeekFrom::Start(offset_bytes)).or_else(|error| match offset_bytes {
                0 => Ok(0),
                _ => Err(error),
            })?;
            let found = file.metadata()?;
            (Box::new(file), found.len(), found.is_file())
        } else {
            (Box::new(io::stdin()), 0, false)
        };
        let read_bytes = Arc::new(AtomicU64::new(offset_bytes));
        let counted = Counted { file, read_bytes: read_bytes.clone() };
        let (compressed, mut bytes) = uncompressed(BufReader::with_capacity(READ_BYTES, counted))?;
        let mut head = Vec::new();
        bytes.by_ref().take(HEAD_BYTES).read_to_end(&mut head)?;
        if offset_bytes == 0 && is_text(&head) && head.starts_with(TEXT_MARK) {
            head.drain(..TEXT_MARK.len());
        }
        let bytes = Box::new(Cursor::new(head.clone()).chain(bytes));
        let plain_file = is_file && !compressed && file_bytes > 0;
        Ok(Input { path: path.to_path_buf(), head, bytes, read_bytes, file_bytes, plain_file, regular })
    }

    /// Returns whether the file can be opened at an offset: it is a regular file, and not compressed.
    pub fn is_plain_file(&self) -> bool {
        self.plain_file
    }

    /// Returns the file's name if it can be read only once: it is not a regular file.
    pub fn read_once(&self) -> Option<&Path> {
        (!self.regular).then_some(&self.path)
    }

    /// Returns the file's name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file's name without directories and the extensions for format and compression.
    pub fn stem(&self) -> String {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let stem = name.split('.').next().unwrap_or_default();
        if stem.is_empty() { name.into_owned() } else { stem.to_string() }
    }

    /// Returns the first bytes, without the byte-order mark of a text. They are read again later.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// Returns the fraction of the file that has been read, if its size is known.
    pub fn progress(&self) -> Option<f64> {
        let read = self.read_bytes.load(Ordering::Relaxed) as f64;
        (self.file_bytes > 0).then(|| (read / self.file_bytes as f64).min(1.0))
    }

    /// Reads more; 0 bytes at the end.
    ///
    /// # Errors
    /// The file cannot be read or decompressed.
    pub fn read(&mut self, into: &mut [u8]) -> Result<usize, TraceError> {
        loop {
            match self.bytes.read(into) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map_err(|error| TraceError::Io { path: self.path.clone(), error }),
            }
        }
    }
}

/// Returns whether a file with these first bytes is text.
pub(crate) fn is_text(head: &[u8]) -> bool {
    !head.contains(&0)
}

/// Counts the bytes read from a file.
struct Counted {
    file: Box<dyn Read + Send>,
    read_bytes: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.file.read(into)?;
        self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}

/// Wraps a file in the right decoder, and returns whether there is one. Files with several members or frames are read
/// to the end.
fn uncompressed(mut file: BufReader<Counted>) -> io::Result<(bool, Box<dyn Read + Send>)> {
    let decoder: Box<dyn Read + Send> = match file.fill_buf()? {
        [0x1f, 0x8b, 8, ..] => Box::new(flate2::bufread::MultiGzDecoder::new(file)),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => {
            Box::new(liblzma::bufread::XzDecoder::new_multi_decoder(file))
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let mut decoder = zstd::Decoder::with_buffer(file)?;
            decoder.window_log_max(31)?;
            Box::new(decoder)
        }
        _ => return Ok((false, Box::new(file))),
    };
    Ok((true, decoder))
}
