//! A log for programs, such as that of decisions: a file of JSON lines that is rotated when it has grown large.
//!
//! Invariants
//! - A line is written by a single call. A line torn by a crash is ended before the next one is written.
//! - Each file begins with the heading, so it can be read on its own.
//! - The files together never exceed the size limit times the number of files kept, plus one line.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::state::StateError;

/// The number of logs kept: the current one and the rotated ones, of which `.1` is the newest.
const KEPT_LOGS: u32 = 4;

/// See the module documentation.
pub struct LineLog {
    path: PathBuf,
    limit_bytes: u64,
    file: Option<File>,
    bytes: u64,
}

fn at(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> StateError {
    let path = path.to_path_buf();
    move |source| StateError::Io { action, path, source }
}

impl LineLog {
    /// Makes a log that is opened when the first line is written.
    pub fn new(path: PathBuf, limit_bytes: u64) -> LineLog {
        LineLog { path, limit_bytes, file: None, bytes: 0 }
    }

    /// Returns an object that reads the same files while this one writes them. If they are rotated meanwhile, lines may
    /// be missing or repeated.
    pub fn to_read(&self) -> LineLog {
        LineLog::new(self.path.clone(), self.limit_bytes)
    }

    /// Returns the path of the current log.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a line, preceded by the heading if it is the first one of a file.
    ///
    /// # Errors
    /// The file cannot be written; the next line tries again.
    pub fn append(&mut self, line: &str, heading: &str) -> Result<(), StateError> {
        if self.file.is_some() && self.bytes >= self.limit_bytes {
            self.file = None;
            self.put_aside()?;
        }
        let mut file = match self.file.take() {
            Some(file) => file,
            None => self.open()?,
        };
        let begins = self.bytes == 0 && heading != line;
        let text = if begins { format!("{heading}\n{line}\n") } else { format!("{line}\n") };
        file.write_all(text.as_bytes()).map_err(at("write", &self.path))?;
        self.bytes += text.len() as u64;
        self.file = Some(file);
        Ok(())
    }

    fn open(&mut self) -> Result<File, StateError> {
        if std::fs::metadata(&self.path).is_ok_and(|data| data.len() >= self.limit_bytes) {
            self.put_aside()?;
        }
        let options = File::options().read(true).append(true).create(true).mode(0o640).clone();
        let mut file = options.open(&self.path).map_err(at("open", &self.path))?;
        self.bytes = file.seek(SeekFrom::End(0)).map_err(at("read", &self.path))?;
        if self.bytes > 0 && !ends_with_newline(&mut file).map_err(at("read", &self.path))? {
            file.write_all(b"\n").map_err(at("write", &self.path))?;
        }
        Ok(file)
    }

    fn aside(&self, number: u32) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }

    fn put_aside(&self) -> Result<(), StateError> {
        for number in (1..KEPT_LOGS - 1).rev() {
            let (from, to) = (self.aside(number), self.aside(number + 1));
            if from.exists() {
                std::fs::rename(&from, &to).map_err(at("rename", &from))?;
            }
        }
        std::fs::rename(&self.path, self.aside(1)).map_err(at("rename", &self.path))
    }

    /// Returns the newest wanted lines, at most `most`, oldest first; includes rotated logs.
    ///
    /// # Errors
    /// An existing file cannot be read.
    pub fn newest(&self, most: usize, wanted: impl Fn(&str) -> bool) -> Result<Vec<String>, StateError> {
        self.newest_lines(most, wanted)?.collect()
    }

    /// As [`LineLog::newest`], but returns the lines one at a time, so that they need not all be in memory.
    ///
    /// # Errors
    /// An existing file cannot be read. The error is returned immediately, or as the last item if it occurs later.
    pub fn newest_lines(
        &self,
        most: usize,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<impl Iterator<Item = Result<String, StateError>>, StateError> {
        let (mut files, mut count) = (VecDeque::new(), 0);
        for path in std::iter::once(self.path.clone()).chain((1..KEPT_LOGS).map(|number| self.aside(number)))
        {
            if count >= most {
                break;
            }
            for line in lines_of(path.clone()) {
                count += usize::from(wanted(&line?));
            }
            files.push_front(path);
        }
        let is_shown =
            move |line: &Result<String, StateError>| line.as_ref().map_or(true, |line| wanted(line));
        Ok(files.into_iter().flat_map(lines_of).filter(is_shown).skip(count.saturating_sub(most)))
    }
}

/// Returns the lines of a file, if it exists. If it cannot be opened, the error is the only item.
fn lines_of(path: PathBuf) -> impl Iterator<Item = Result<String, StateError>> {
    let (file, failed) = match File::open(&path) {
        Ok(file) => (Some(file), None),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => (None, None),
        Err(error) => (None, Some(at("open", &path)(error))),
    };
    let lines = file.into_iter().flat_map(|file| BufReader::new(file).lines());
    failed.into_iter().map(Err).chain(lines.map(move |line| line.map_err(at("read", &path))))
}

fn ends_with_newline(file: &mut File) -> std::io::Result<bool> {
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_log_is_put_aside_and_the_oldest_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("policy.log");
        let mut log = LineLog::new(path.clone(), 40);
        for number in 0..100 {
            log.append(&format!("line {number:04}"), "head").unwrap();
        }
        let names = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(names, KEPT_LOGS as usize);
        for entry in std::fs::read_dir(dir.path()).unwrap() {
            assert!(std::fs::read_to_string(entry.unwrap().path()).unwrap().starts_with("head\nline"));
        }
        let all = log.newest(usize::MAX, |line| line != "head").unwrap();
        assert!(all.is_sorted() && all.len() >= 10 && all.last().unwrap() == "line 0099", "{all:?}");
        assert_eq!(log.newest(2, |line| line.ends_with('7')).unwrap(), ["line 0087", "line 0097"]);
        let again = LineLog::new(path, 40).newest(3, |_| true).unwrap();
        assert_eq!(again, ["line 0097", "line 0098", "line 0099"]);
    }

    #[test]
    fn a_torn_line_stays_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("policy.log");
        std::fs::write(&path, "{\"torn").unwrap();
        let mut log = LineLog::new(path, 1 << 20);
        log.append("whole", "head").unwrap();
        assert_eq!(log.newest(9, |_| true).unwrap(), ["{\"torn", "whole"]);
    }
}
