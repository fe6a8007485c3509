//! Traces with one access a line.

use crate::access::Access;
use crate::error::{BadLine, Damage, TraceError};
use crate::input::Input;
use crate::lines::Lines;
use crate::source::{BATCH, Source};
use crate::volumes::Volumes;

/// What a line should have been.
pub(crate) type Expected = &'static str;

/// Knows one format's lines.
pub(crate) trait LineParser: Send {
    /// The access of a line, or nothing where lines of this kind are no access.
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes) -> Result<Option<Access>, Expected>;
}

/// Accesses of a text file. Empty lines and comments (`#`) are passed over, and a first line that begins with a
/// letter and is no access is a heading.
pub(crate) struct TextSource {
    lines: Lines,
    parser: Box<dyn LineParser>,
    volumes: Volumes,
    damage: Damage,
    strict: bool,
}

impl TextSource {
    /// Strict sources end at the first damaged line.
    pub fn new(input: Input, parser: Box<dyn LineParser>, strict: bool) -> Self {
        let (lines, volumes, damage) = (Lines::new(input), Volumes::default(), Damage::default());
        TextSource { lines, parser, volumes, damage, strict }
    }
}

impl Source for TextSource {
    fn read(&mut self, into: &mut Vec<Access>) -> Result<usize, TraceError> {
        let before = into.len();
        while into.len() - before < BATCH {
            let Some(line) = self.lines.next()? else { break };
            if line.is_empty() || line[0] == b'#' {
                continue;
            }
            match self.parser.parse(line, &mut self.volumes) {
                Ok(access) => into.extend(access),
                Err(expected) => {
                    let found = String::from_utf8_lossy(&line[..line.len().min(100)]).into_owned();
                    let heading = line[0].is_ascii_alphabetic();
                    let (path, line) = (self.lines.input().path().to_path_buf(), self.lines.number());
                    if line == 1 && heading {
                        continue;
                    }
                    let bad = BadLine { path, line, expected, found };
                    if self.strict {
                        return Err(TraceError::Line(bad));
                    }
                    self.damage.add(|| bad);
                }
            }
        }
        Ok(into.len() - before)
    }

    fn volumes(&self) -> &[String] {
        self.volumes.names()
    }

    fn progress(&self) -> Option<f64> {
        self.lines.input().progress()
    }

    fn damage(&self) -> Damage {
        self.damage.clone()
    }
}
