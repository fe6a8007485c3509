//! Binary traces of fixed-size records, each perhaps followed by bytes that are ignored here.

use std::path::Path;

use crate::access::Access;
use crate::bytes::Bytes;
use crate::error::TraceError;
use crate::input::Input;
use crate::source::{BATCH, Source};
use crate::volumes::Volumes;

/// A parser of one format's records.
pub(crate) trait RecordParser: Send {
    /// The size of a record.
    fn record_bytes(&self) -> usize;

    /// Appends the accesses of a record of that size: one, several, or none if records of this kind are not accesses.
    /// Returns how many bytes after it are to be skipped.
    ///
    /// # Errors
    /// What was expected.
    fn parse(
        &mut self,
        record: &[u8],
        volumes: &mut Volumes,
        into: &mut Vec<Access>,
    ) -> Result<usize, &'static str>;
}

/// The accesses of a binary file. The first damage ends it, because the start of the next record is unknown.
pub(crate) struct RecordSource {
    bytes: Bytes,
    parser: Box<dyn RecordParser>,
    volumes: Volumes,
    /// The damage that ends the source, to be returned after the accesses before it.
    end: Option<TraceError>,
}

impl RecordSource {
    pub fn new(input: Input, parser: Box<dyn RecordParser>) -> Self {
        RecordSource { bytes: Bytes::new(input), parser, volumes: Volumes::default(), end: None }
    }

    /// Reads one record; false at the end.
    fn record(&mut self, into: &mut Vec<Access>) -> Result<bool, TraceError> {
        let offset = self.bytes.offset();
        let Some(record) = self.bytes.take(self.parser.record_bytes(), "a whole record")? else {
            return Ok(false);
        };
        match self.parser.parse(record, &mut self.volumes, into) {
            Ok(0) => Ok(true),
            Ok(skipped) => self.bytes.skip(skipped, "what follows a record").map(|()| true),
            Err(expected) => {
                let found = record[..record.len().min(16)].escape_ascii().to_string();
                Err(self.bytes.damaged(offset, expected, found))
            }
        }
    }
}

impl Source for RecordSource {
    fn read(&mut self, into: &mut Vec<Access>) -> Result<usize, TraceError> {
        let before = into.len();
        while into.len() - before < BATCH && self.end.is_none() {
            match self.record(into) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => self.end = Some(error),
            }
        }
        match self.end.take_if(|_| into.len() == before) {
            Some(error) => Err(error),
            None => Ok(into.len() - before),
        }
    }

    fn volumes(&self) -> &[String] {
        self.volumes.names()
    }

    fn read_once(&self) -> Option<&Path> {
        self.bytes.input().read_once()
    }

    fn progress(&self) -> Option<f64> {
        self.bytes.input().progress()
    }
}
