//! A binary file's bytes, in pieces of known size.

use crate::error::TraceError;
use crate::input::Input;

const BUFFER_BYTES: usize = 256 << 10;

/// Pieces of a file.
pub(crate) struct Bytes {
    input: Input,
    buffer: Vec<u8>,
    /// The part of the buffer that has not been returned yet.
    start: usize,
    end: usize,
    /// The offset of `start` in the file.
    offset: u64,
}

impl Bytes {
    pub fn new(input: Input) -> Self {
        Self::at(input, 0)
    }

    /// Pieces of a file that was opened at an offset.
    pub fn at(input: Input, offset: u64) -> Self {
        Bytes { input, buffer: vec![0; BUFFER_BYTES], start: 0, end: 0, offset }
    }

    pub fn input(&self) -> &Input {
        &self.input
    }

    /// Returns the offset of the next piece.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the next piece; `None` at the end of the file.
    ///
    /// # Errors
    /// The file ends within the piece.
    pub fn take(&mut self, bytes: usize, expected: &'static str) -> Result<Option<&[u8]>, TraceError> {
        while self.end - self.start < bytes {
            if !self.fill(bytes)? {
                let found = self.end - self.start;
                if found == 0 {
                    return Ok(None);
                }
                return Err(self.damaged(
                    self.offset,
                    expected,
                    format!("the file's end after {found} bytes"),
                ));
            }
        }
        let start = self.start;
        self.start += bytes;
        self.offset += bytes as u64;
        Ok(Some(&self.buffer[start..start + bytes]))
    }

    /// Skips bytes.
    ///
    /// # Errors
    /// The file ends before that.
    pub fn skip(&mut self, mut bytes: usize, expected: &'static str) -> Result<(), TraceError> {
        while bytes > 0 {
            let piece = bytes.min(BUFFER_BYTES);
            if self.take(piece, expected)?.is_none() {
                return Err(self.damaged(self.offset, expected, "the file's end".into()));
            }
            bytes -= piece;
        }
        Ok(())
    }

    /// Makes an error for damage at an offset of this file.
    pub fn damaged(&self, offset_bytes: u64, expected: &'static str, found: String) -> TraceError {
        TraceError::Binary { path: self.input.path().to_path_buf(), offset_bytes, expected, found }
    }

    /// Reads more, making room for a piece of n bytes; false at the end of the file.
    fn fill(&mut self, piece: usize) -> Result<bool, TraceError> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        // A damaged length must not take more memory than the file has bytes: grow only by what has been read.
        if self.end == self.buffer.len() {
            self.buffer.resize((2 * self.end).min(piece), 0);
        }
        let read = self.input.read(&mut self.buffer[self.end..])?;
        self.end += read;
        Ok(read > 0)
    }
}

/// Returns `N` bytes at an offset of a record that is known to be long enough.
fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

/// Returns the little-endian number at an offset of a record that is known to be long enough.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array_at(bytes, at))
}

/// As [`u16_at`].
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

/// As [`u16_at`].
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}
