//! The number of this start among all starts of the daemon, kept in the state directory.
//!
//! Invariant
//! - No two starts have the same number, and a later one has a greater one, also if the clock was set back in between.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// The file in the state directory.
const FILE: &str = "incarnation";
/// Numbers that one start may use.
const NUMBERS: u64 = 1 << 32;

/// Returns the first of 2^32 numbers that belong to this start alone.
///
/// # Errors
/// The file cannot be read or written, or does not contain a number.
pub fn next(state_dir: &Path) -> std::io::Result<u64> {
    let path = state_dir.join(FILE);
    let last = match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse::<u64>().map_err(|error| {
            let what = format!("{}: expected a number, found {:?}: {error}", path.display(), text.trim());
            std::io::Error::new(std::io::ErrorKind::InvalidData, what)
        })?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    // Should the file be lost, the time still makes the number greater than any before.
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let count = (last + 1).max(seconds);
    let new = state_dir.join(format!("{FILE}.new"));
    let mut options = fs::File::options();
    options.write(true).create(true).truncate(true).mode(0o640);
    // A start that was killed may have left one with another mode.
    let _ = fs::remove_file(&new);
    let mut file = options.open(&new)?;
    writeln!(file, "{count}")?;
    file.sync_all()?;
    fs::rename(&new, &path)?;
    fs::File::open(state_dir)?.sync_all()?;
    Ok(count.saturating_mul(NUMBERS))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn every_start_has_a_greater_number() {
        let directory = tempfile::tempdir().unwrap();
        let first = next(directory.path()).unwrap();
        let second = next(directory.path()).unwrap();
        assert!(second >= first + NUMBERS);
        let mode = fs::metadata(directory.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o137, 0, "{mode:o}");
        // The clock was set back by a year.
        let later = second / NUMBERS + 31_536_000;
        fs::write(directory.path().join(FILE), later.to_string()).unwrap();
        assert_eq!(next(directory.path()).unwrap(), (later + 1) * NUMBERS);
        fs::write(directory.path().join(FILE), "x").unwrap();
        assert!(next(directory.path()).unwrap_err().to_string().contains("expected a number"));
    }
}
