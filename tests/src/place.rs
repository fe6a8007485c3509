//! A test's own directory, and its turn.
//!
//! Tests are heavy but mostly wait, so few run at a time. A test that fails keeps its directory and prints the end of
//! every log in it.

use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tempfile::TempDir;

use crate::{Error, Result, process};

/// How many tests may run at the same time, if the test harness has that many threads.
const MOST_TURNS: usize = 3;
/// How many tests run.
static TURNS: Mutex<usize> = Mutex::new(0);
/// Signals that a test has ended.
static ENDED: Condvar = Condvar::new();
/// What a directory's name begins with. Short: a Unix socket's path has 107 bytes at most.
const PREFIX: &str = "haversack-";
/// How much of a log is printed.
const LINES_OF_A_LOG: usize = 40;

/// The directory of a running test.
#[derive(Debug)]
pub struct Place {
    directory: Option<TempDir>,
    passed: bool,
    path: PathBuf,
    start: Instant,
    is_quiet: bool,
}

/// The turn of a test that runs, and how many it takes.
struct Turn(usize);

impl Turn {
    /// Waits until this test can run: at most [`MOST_TURNS`] turns are taken, including its own `count`.
    fn take(count: usize) -> Turn {
        let must_wait = |turns: &mut usize| *turns + count > MOST_TURNS;
        let mut turns = ENDED.wait_while(turns(), must_wait).unwrap_or_else(PoisonError::into_inner);
        *turns += count;
        Turn(count)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *turns() -= self.0;
        ENDED.notify_all();
    }
}

fn turns() -> MutexGuard<'static, usize> {
    TURNS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a test: waits for its turn, makes its place, and fails with the error and the logs.
///
/// # Panics
/// If the test fails; Rust's test harness expects that.
pub fn test(name: &str, body: impl FnOnce(&Place) -> Result<()>) {
    in_turn(name, 1, body);
}

/// As [`test()`], but no other test runs at the same time: for servers that consider slow clients dead.
///
/// # Panics
/// As [`test()`].
pub fn test_alone(name: &str, body: impl FnOnce(&Place) -> Result<()>) {
    in_turn(name, MOST_TURNS, body);
}

fn in_turn(name: &str, turns: usize, body: impl FnOnce(&Place) -> Result<()>) {
    let _turn = Turn::take(turns);
    let mut place = Place::new(name).unwrap_or_else(|error| panic!("{name}: {error}"));
    if let Err(error) = body(&place) {
        drop(place);
        panic!("{name}: {error}");
    }
    place.say("passed");
    place.passed = true;
}

impl Place {
    /// A place for a program that is not a test. It is always removed.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn scratch() -> Result<Self> {
        let directory = TempDir::with_prefix(PREFIX).map_err(Error::io("a temporary directory"))?;
        let path = directory.path().to_owned();
        Ok(Self { directory: Some(directory), passed: true, path, start: Instant::now(), is_quiet: false })
    }

    fn new(name: &str) -> Result<Self> {
        let mut place = Self::scratch()?;
        place.passed = false;
        place.say(&format!("--- {name}"));
        Ok(place)
    }

    /// A place of its own within this one, for a part of the test that is another host.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn host(&self, name: &str) -> Result<Self> {
        let own = self.path("").file_name().map(|own| own.to_string_lossy().into_owned()).unwrap_or_default();
        let path = self.path(format!("{own}-{name}"));
        std::fs::create_dir(&path).map_err(Error::io(path.display().to_string()))?;
        Ok(Self { path, directory: None, passed: true, start: self.start, is_quiet: self.is_quiet })
    }

    /// The path of something in the directory.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// The place of a program whose output is only its own: [`Place::say`] prints nothing.
    #[must_use]
    pub fn quiet(mut self) -> Self {
        self.is_quiet = true;
        self
    }

    /// Prints what the test does, with the time since it started.
    pub fn say(&self, what: &str) {
        if self.is_quiet {
            return;
        }
        println!("{:7.2} s  {what}", self.start.elapsed().as_secs_f64());
    }

    /// Prints the end of every log.
    pub fn print_logs(&self) {
        print_logs_in(&self.path);
        let entries = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        let own = self.path.file_name().map(|own| own.to_string_lossy().into_owned()).unwrap_or_default();
        let is_host = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with(&own);
        entries.filter(is_host).for_each(|host| print_logs_in(&host.path()));
    }
}

fn print_logs_in(directory: &Path) {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let is_log = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "log");
    for path in entries.map(|entry| entry.path()).filter(is_log) {
        let text = std::fs::read(&path).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        println!("--- the end of {}", path.display());
        for line in &lines[lines.len().saturating_sub(LINES_OF_A_LOG)..] {
            println!("{line}");
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        process::kill_all_of(&self.path(""));
        let directory = self.directory.take();
        if let Some(directory) = directory.filter(|_| !self.passed) {
            self.print_logs();
            println!("--- everything is kept in {}", directory.keep().display());
        }
    }
}
