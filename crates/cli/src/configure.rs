//! Adds a new pool to the daemon's configuration file.
//!
//! Invariants
//! - The file is replaced as a whole, or stays as it was. It keeps its owner, group and mode.
//! - Its present content stays, byte for byte: the pool's table is appended.
//! - A file is refused if it is not TOML, is incomplete, or already has the pool or one of its devices.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use crate::error::{CliError, Result};
use crate::place::absolute;
use crate::run;

/// Where the packages have the file.
pub const DEFAULT_FILE: &str = "/etc/haversack/haversackd.toml";

/// A pool as the configuration file has it.
pub struct Pool {
    name: String,
    devices: Vec<String>,
}

impl Pool {
    /// Makes the entry of a pool. Its devices get absolute paths, because the daemon has another working directory.
    ///
    /// # Errors
    /// The name is not one, or a path is not UTF-8.
    pub fn new(name: &str, devices: &[PathBuf]) -> Result<Pool> {
        let name = run::part(name)?.to_string();
        let path = |device: &PathBuf| {
            let path = absolute(device)?;
            let utf8 = path.to_str().map(str::to_string);
            utf8.ok_or_else(|| CliError::Usage(format!("{}: the path is not UTF-8", path.display())))
        };
        Ok(Pool { name, devices: devices.iter().map(path).collect::<Result<_>>()? })
    }

    /// Returns its table.
    pub fn table(&self) -> String {
        let devices = self.devices.iter().cloned().map(Value::String).collect();
        format!(
            "[[pool]]\nname = {}\ndevices = {}\n",
            Value::String(self.name.clone()),
            Value::Array(devices)
        )
    }

    /// Checks that a file can have the pool.
    ///
    /// # Errors
    /// The file cannot be read, or see the module.
    pub fn check(&self, file: &Path) -> Result<()> {
        let text = fs::read_to_string(file).map_err(|error| failed(file, &error))?;
        self.added_to(&text).map(drop).map_err(|why| failed(file, &why))
    }

    /// Appends the pool to a file.
    ///
    /// # Errors
    /// As [`Pool::check`], or the file cannot be replaced.
    pub fn add_to(&self, file: &Path) -> Result<()> {
        let add = || {
            // If the path is a symbolic link, replace its target, not the link.
            let file = fs::canonicalize(file)?;
            let text = self.added_to(&fs::read_to_string(&file)?).map_err(io::Error::other)?;
            replace(&file, &text)
        };
        add().map_err(|error| failed(file, &error))
    }

    /// Returns the text of a file with the pool at its end, or what is wrong with the file.
    fn added_to(&self, text: &str) -> std::result::Result<String, String> {
        if !text.is_empty() && !text.ends_with('\n') {
            return Err("it ends in the middle of a line: is it complete? End its last line".into());
        }
        let before: Table = toml::from_str(text).map_err(|error| error.to_string())?;
        let pools = before.get("pool").and_then(Value::as_array).into_iter().flatten();
        for pool in pools {
            self.check_other(pool)?;
        }
        let blank = if text.is_empty() { "" } else { "\n" };
        let after = format!("{text}{blank}{}", self.table());
        toml::from_str::<Table>(&after).map_err(|error| error.to_string())?;
        Ok(after)
    }

    /// Checks that a pool of the file is another one.
    fn check_other(&self, pool: &Value) -> std::result::Result<(), String> {
        let name = pool.get("name").and_then(Value::as_str).unwrap_or_default();
        if name == self.name {
            return Err(format!("it already has a pool '{name}': choose another name"));
        }
        let devices = pool.get("devices").and_then(Value::as_array).into_iter().flatten();
        match devices.filter_map(Value::as_str).find(|device| self.devices.iter().any(|own| own == device)) {
            None => Ok(()),
            Some(device) => Err(format!("its pool '{name}' already has the device {device}")),
        }
    }
}

fn failed(file: &Path, why: &dyn std::fmt::Display) -> CliError {
    CliError::Failed(format!("{}: {why}", file.display()))
}

/// Replaces a file, durably.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    let old = fs::metadata(file)?;
    let mut name = file.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let written = write_new(&new, text, &old).and_then(|()| fs::rename(&new, file));
    if let Err(error) = written {
        // If the file already existed, another process has created it, so it is not removed.
        if error.kind() != io::ErrorKind::AlreadyExists {
            let _ = fs::remove_file(&new);
        }
        return Err(io::Error::new(error.kind(), format!("{}: {error}", new.display())));
    }
    File::open(file.parent().unwrap_or(Path::new("/")))?.sync_all()
}

/// Writes a file that does not exist, with the owner, group and mode of another one.
fn write_new(path: &Path, text: &str, like: &fs::Metadata) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let created = file.metadata()?;
    if (created.uid(), created.gid()) != (like.uid(), like.gid()) {
        fchown(&file, Some(like.uid()), Some(like.gid()))?;
    }
    file.set_permissions(Permissions::from_mode(like.mode() & 0o7777))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(name: &str, devices: &[&str]) -> Pool {
        Pool::new(name, &devices.iter().map(PathBuf::from).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn a_pool_is_appended_and_nothing_else_changes() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("haversackd.toml");
        let before = "# mine\n[nbd]\nlisten = [\"unix:/run/n.sock\"]  # kept\n";
        fs::write(&file, before).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        pool("main", &["/dev/a", "/dev/b \"c\""]).add_to(&file).unwrap();
        let after = fs::read_to_string(&file).unwrap();
        assert!(after.starts_with(&format!("{before}\n[[pool]]\nname = \"main\"\n")), "{after}");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o640);
        pool("other", &["/dev/d"]).add_to(&file).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        let table: Table = toml::from_str(&text).unwrap();
        let pools = table["pool"].as_array().unwrap();
        assert_eq!(pools.len(), 2, "{text}");
        assert_eq!(pools[0]["devices"].as_array().unwrap()[1].as_str(), Some("/dev/b \"c\""));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_cannot_have_the_pool_is_refused() {
        let main = pool("main", &["/dev/a"]);
        for (text, word) in [
            ("[[pool]]\nname = \"main\"\ndevices = [\"/dev/b\"]\n", "already has a pool 'main'"),
            ("[[pool]]\nname = \"x\"\ndevices = [\"/dev/a\"]\n", "already has the device /dev/a"),
            ("[nbd]\nlisten", "complete"),
            ("[nbd\n", "line 1"),
            ("pool = []\n", "pool"),
        ] {
            let why = main.added_to(text).unwrap_err();
            assert!(why.contains(word), "{text}: {why}");
        }
        assert_eq!(main.added_to("").unwrap(), main.table());
        assert!(Pool::new("a/b", &[]).is_err());
    }
}
