//! What may be opened, and how.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::error::SandboxError;

/// Bits of a mode: somebody else than the owner may write.
const OTHERS_WRITE: u32 = 0o022;

/// What is allowed with a file, or with everything below a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Reading and listing.
    Read,
    /// The same, and running programs.
    Run,
    /// Reading and writing, and in directories creating, renaming and removing. Not running programs.
    Write,
    /// Creating and removing sockets in a directory.
    Sockets,
}

impl Access {
    /// Returns whether this access includes the other one.
    fn includes(self, other: Access) -> bool {
        self == other
            || matches!(
                (self, other),
                (Access::Write, Access::Read | Access::Sockets) | (Access::Run, Access::Read)
            )
    }
}

/// A file or directory as it was when its rule was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Rule {
    /// Without symbolic links.
    pub path: PathBuf,
    pub access: Access,
    pub is_directory: bool,
    /// Device and inode.
    identity: (u64, u64),
}

impl Rule {
    fn of(path: &Path, access: Access) -> io::Result<Rule> {
        let path = fs::canonicalize(path)?;
        let found = fs::metadata(&path)?;
        let identity = (found.dev(), found.ino());
        Ok(Rule { path, access, is_directory: found.is_dir(), identity })
    }

    /// Returns whether its path still leads to what the rule is of.
    fn is_in_force(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.identity)
    }
}

/// A list of what is allowed.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Rules {
    rules: Vec<Rule>,
}

impl Rules {
    /// Allows access to a file, or to everything below a directory, which must exist.
    ///
    /// A directory of links to devices, such as a volume group's, stands for those devices, too, as they are now: the
    /// kernel looks at where a device is, not at the links. Only directories that nobody but root can change are taken
    /// for such.
    ///
    /// # Errors
    /// It does not exist.
    pub fn allow(&mut self, path: &Path, access: Access) -> Result<(), SandboxError> {
        let failed = |source| SandboxError::NotThere { path: path.to_path_buf(), source };
        let rule = Rule::of(path, access).map_err(failed)?;
        if rule.is_directory && rule.path.starts_with("/dev") {
            self.rules.extend(linked_devices(&rule.path, access));
        }
        if !self.rules.contains(&rule) {
            self.rules.push(rule);
        }
        Ok(())
    }

    /// Like [`Rules::allow`], for a path that may not exist. Returns whether it exists.
    pub fn allow_if_there(&mut self, path: &Path, access: Access) -> bool {
        self.allow(path, access).is_ok()
    }

    /// Adds the rules of another list.
    pub fn add(&mut self, other: &Rules) {
        self.rules.extend(other.rules.iter().cloned());
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter()
    }

    /// Returns the files and directories with this access, for people.
    pub fn paths(&self, access: Access) -> impl Iterator<Item = &Path> {
        self.rules.iter().filter(move |rule| rule.access == access).map(|rule| rule.path.as_path())
    }

    /// Checks that access to a path is allowed. A path that does not exist is judged by its directory. If the directory
    /// does not exist either, nothing is checked: opening the path reports the error.
    ///
    /// # Errors
    /// It is outside.
    pub fn check(&self, path: &Path, access: Access) -> Result<(), SandboxError> {
        let Some(real) = real_path(path) else { return Ok(()) };
        let covers = |rule: &&Rule| {
            rule.access.includes(access)
                && real.starts_with(&rule.path)
                && (rule.is_directory || real == rule.path)
        };
        let mut covering = self.rules.iter().filter(covers).peekable();
        let Some(first) = covering.peek().copied() else {
            return Err(SandboxError::Outside { path: path.to_path_buf(), real });
        };
        if covering.any(Rule::is_in_force) {
            return Ok(());
        }
        Err(SandboxError::Replaced { path: path.to_path_buf(), place: first.path.clone() })
    }
}

/// Returns a path without symbolic links, if it exists or could be created.
fn real_path(path: &Path) -> Option<PathBuf> {
    if let Ok(real) = fs::canonicalize(path) {
        return Some(real);
    }
    Some(fs::canonicalize(path.parent()?).ok()?.join(path.file_name()?))
}

/// Returns rules for the block devices that a directory has links to.
fn linked_devices(directory: &Path, access: Access) -> Vec<Rule> {
    let is_roots = |found: &fs::Metadata| found.uid() == 0 && found.mode() & OTHERS_WRITE == 0;
    if !fs::metadata(directory).is_ok_and(|found| is_roots(&found)) {
        return Vec::new();
    }
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let links = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()));
    let rules = links.filter_map(|link| Rule::of(&link.path(), access).ok());
    let is_device =
        |rule: &Rule| fs::metadata(&rule.path).is_ok_and(|found| found.file_type().is_block_device());
    rules.filter(is_device).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> (tempfile::TempDir, PathBuf) {
        let place = tempfile::tempdir().unwrap();
        let path = fs::canonicalize(place.path()).unwrap();
        (place, path)
    }

    #[test]
    fn what_is_below_a_directory_is_inside_whatever_its_name() {
        let (_place, path) = place();
        fs::create_dir(path.join("in")).unwrap();
        fs::write(path.join("in/a"), "").unwrap();
        fs::write(path.join("b"), "").unwrap();
        std::os::unix::fs::symlink(path.join("in/a"), path.join("link")).unwrap();
        std::os::unix::fs::symlink(path.join("b"), path.join("in/link")).unwrap();
        let mut rules = Rules::default();
        rules.allow(&path.join("in"), Access::Write).unwrap();
        for inside in ["in", "in/a", "in/new", "in/../in/a", "link", "nowhere/at/all"] {
            rules.check(&path.join(inside), Access::Write).unwrap();
            rules.check(&path.join(inside), Access::Read).unwrap();
        }
        for outside in ["b", "in/link", "in/../new", "inside"] {
            let error = rules.check(&path.join(outside), Access::Read).unwrap_err().to_string();
            assert!(
                error.contains("outside of the sandbox; add its directory to [sandbox] paths"),
                "{error}"
            );
        }
        let error = rules.check(&path.join("in/link"), Access::Read).unwrap_err().to_string();
        assert!(error.contains(&format!("in/link ({})", path.join("b").display())), "{error}");
    }

    #[test]
    fn an_access_includes_lesser_ones() {
        let (_place, path) = place();
        let check = |has, wants| {
            let mut rules = Rules::default();
            rules.allow(&path, has).unwrap();
            rules.check(&path, wants).is_ok()
        };
        let all = [Access::Read, Access::Run, Access::Write, Access::Sockets];
        let allowed: Vec<Vec<Access>> =
            all.iter().map(|has| all.iter().copied().filter(|wants| check(*has, *wants)).collect()).collect();
        assert_eq!(allowed[0], [Access::Read]);
        assert_eq!(allowed[1], [Access::Read, Access::Run]);
        assert_eq!(allowed[2], [Access::Read, Access::Write, Access::Sockets]);
        assert_eq!(allowed[3], [Access::Sockets]);
    }

    #[test]
    fn a_file_put_into_the_place_of_another_is_outside() {
        let (_place, path) = place();
        let (file, new) = (path.join("a"), path.join("new"));
        fs::write(&file, "").unwrap();
        fs::write(&new, "").unwrap();
        let mut rules = Rules::default();
        rules.allow(&file, Access::Write).unwrap();
        rules.check(&file, Access::Write).unwrap();
        fs::rename(&new, &file).unwrap();
        let error = rules.check(&file, Access::Write).unwrap_err().to_string();
        assert!(error.contains("was replaced") && error.contains("restart haversackd"), "{error}");
        rules.allow(&path, Access::Write).unwrap();
        rules.check(&file, Access::Write).unwrap();
    }

    #[test]
    fn what_is_not_there_cannot_be_allowed() {
        let (_place, path) = place();
        let mut rules = Rules::default();
        let error = rules.allow(&path.join("a"), Access::Write).unwrap_err().to_string();
        assert!(error.contains("when haversackd starts") && error.contains("directory above it"), "{error}");
        assert!(!rules.allow_if_there(&path.join("a"), Access::Write));
        assert_eq!(rules.paths(Access::Write).count(), 0);
    }

    #[test]
    fn a_directory_that_others_can_change_is_none_of_links_to_devices() {
        let (_place, path) = place();
        std::os::unix::fs::symlink("/dev/null", path.join("null")).unwrap();
        assert_eq!(linked_devices(&path, Access::Write), [], "it is no block device");
        assert_eq!(linked_devices(Path::new("/dev/shm"), Access::Write), []);
    }
}
