//! The lines of a file, without an allocation per line.

use crate::error::TraceError;
use crate::input::Input;

/// The buffer size; also the longest line that is not split.
const BUFFER_BYTES: usize = 256 << 10;

/// Lines of a file.
pub(crate) struct Lines {
    input: Input,
    buffer: Vec<u8>,
    /// The part of the buffer that has not been returned yet.
    start: usize,
    end: usize,
    at_end: bool,
    /// Lines returned so far.
    number: u64,
}

impl Lines {
    pub fn new(input: Input) -> Self {
        Lines { input, buffer: vec![0; BUFFER_BYTES], start: 0, end: 0, at_end: false, number: 0 }
    }

    pub fn input(&self) -> &Input {
        &self.input
    }

    /// Returns the next line without its end, and its number from 1; `None` at the end of the file. A line longer
    /// than the buffer is returned in pieces, each as a line of its own.
    pub fn next(&mut self) -> Result<Option<(u64, &[u8])>, TraceError> {
        loop {
            let rest = &self.buffer[self.start..self.end];
            let (length, skip) = match memchr::memchr(b'\n', rest) {
                Some(length) => (length, 1),
                None if rest.len() == BUFFER_BYTES || (self.at_end && !rest.is_empty()) => (rest.len(), 0),
                None if self.at_end => return Ok(None),
                None => {
                    self.fill()?;
                    continue;
                }
            };
            let start = self.start;
            self.start += length + skip;
            self.number += 1;
            let line = &self.buffer[start..start + length];
            return Ok(Some((self.number, line.strip_suffix(b"\r").unwrap_or(line))));
        }
    }

    fn fill(&mut self) -> Result<(), TraceError> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let read = self.input.read(&mut self.buffer[self.end..])?;
        self.end += read;
        self.at_end = read == 0;
        Ok(())
    }
}
