//! Traces with one access per line.

use std::path::Path;

use crate::access::Access;
use crate::error::{BadLine, Damage, TraceError};
use crate::input::Input;
use crate::lines::Lines;
use crate::source::{BATCH, Source};
use crate::volumes::Volumes;

/// What was expected in a line.
pub(crate) type Expected = &'static str;

/// Bytes of a damaged line that are shown.
const SHOWN_BYTES: usize = 100;

/// A parser of one format's lines.
pub(crate) trait LineParser: Send {
    /// Appends the accesses of a line: one, several if a line stands for several, none if lines of this kind are not
    /// accesses.
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes, into: &mut Vec<Access>) -> Result<(), Expected>;

    /// Whether lines have times. If not, the time of an access is its number, from 0 on.
    fn is_timed(&self) -> bool {
        true
    }
}

/// The accesses of a text file. Empty lines and comments (`#`) are skipped; a first line that begins with a letter
/// and is not an access is a heading.
pub(crate) struct TextSource {
    lines: Lines,
    parser: Box<dyn LineParser>,
    volumes: Volumes,
    damage: Damage,
    strict: bool,
    /// The damage that ends a strict source, to be returned after the accesses before it.
    end: Option<BadLine>,
}

impl TextSource {
    /// A strict source ends at the first damaged line.
    pub fn new(input: Input, parser: Box<dyn LineParser>, strict: bool) -> Self {
        let (lines, volumes, damage) = (Lines::new(input), Volumes::default(), Damage::default());
        TextSource { lines, parser, volumes, damage, strict, end: None }
    }
}

impl Source for TextSource {
    fn read(&mut self, into: &mut Vec<Access>) -> Result<usize, TraceError> {
        let before = into.len();
        while into.len() - before < BATCH && self.end.is_none() {
            let Some((number, line)) = self.lines.next()? else { break };
            if line.is_empty() || line[0] == b'#' {
                continue;
            }
            let Err(expected) = self.parser.parse(line, &mut self.volumes, into) else { continue };
            if number == 1 && line[0].is_ascii_alphabetic() {
                continue;
            }
            let found = String::from_utf8_lossy(&line[..line.len().min(SHOWN_BYTES)]).into_owned();
            let path = self.lines.input().path().to_path_buf();
            let bad = BadLine { path, line: number, expected, found };
            if self.strict {
                self.end = Some(bad);
            } else {
                self.damage.add(|| bad);
            }
        }
        match self.end.take_if(|_| into.len() == before) {
            Some(bad) => Err(TraceError::Line(bad)),
            None => Ok(into.len() - before),
        }
    }

    fn volumes(&self) -> &[String] {
        self.volumes.names()
    }

    fn progress(&self) -> Option<f64> {
        self.lines.input().progress()
    }

    fn is_timed(&self) -> bool {
        self.parser.is_timed()
    }

    fn read_once(&self) -> Option<&Path> {
        self.lines.input().read_once()
    }

    fn damage(&self) -> Damage {
        self.damage.clone()
    }
}
