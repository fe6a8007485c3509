//! Fencing: an operator's program ensures that a dead host can no longer write to a disk's origin.
//!
//! The program is called as `PROGRAM HOST ADDRESS DISK-ID ORIGIN`. Its standard input has the same values, the disk's
//! name and this host's name as one JSON object. Only exit code 0 means that the host is fenced. docs/migration.md
//! specifies the interface.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::program::{self, ProgramError};

/// The programs that fence.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(untagged)]
pub enum FencePrograms {
    /// One program for all origins.
    All(PathBuf),
    /// One program for each kind of origin.
    ByOrigin(BTreeMap<OriginKind, PathBuf>),
}

/// A kind of origin.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OriginKind {
    /// A file or block device.
    File,
    /// An NBD server.
    Nbd,
    /// An RBD image.
    Rbd,
}

impl FencePrograms {
    /// Returns the program for an origin, as it is configured.
    pub fn program(&self, origin: &str) -> Option<&Path> {
        let kind = match origin {
            _ if origin.starts_with("nbd") => OriginKind::Nbd,
            _ if origin.starts_with("rbd:") => OriginKind::Rbd,
            _ => OriginKind::File,
        };
        match self {
            FencePrograms::All(program) => Some(program),
            FencePrograms::ByOrigin(programs) => programs.get(&kind).map(PathBuf::as_path),
        }
    }

    /// Returns all programs.
    pub fn all(&self) -> impl Iterator<Item = &Path> {
        let (one, by_origin) = match self {
            FencePrograms::All(program) => (Some(program), None),
            FencePrograms::ByOrigin(programs) => (None, Some(programs.values())),
        };
        one.into_iter().chain(by_origin.into_iter().flatten()).map(PathBuf::as_path)
    }

    /// Checks that the programs can be run.
    ///
    /// # Errors
    /// What cannot, and why.
    pub fn check(&self) -> Result<(), String> {
        self.all().try_for_each(program::check)
    }
}

/// What is to be fenced.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct FenceTarget {
    /// The dead host's name.
    pub host: String,
    /// Its address, as this host has it configured.
    pub address: String,
    /// The disk's name.
    pub disk: String,
    /// The disk's identity.
    pub disk_id: String,
    /// The disk's origin, as this host has it configured.
    pub origin: String,
    /// The name of the host that fences.
    pub by: String,
}

/// Fences a host, and returns the program's output.
///
/// # Errors
/// The program has not said that the host is fenced.
pub fn fence(program: &Path, target: &FenceTarget, time: Duration) -> Result<String, ProgramError> {
    let arguments = [&target.host, &target.address, &target.disk_id, &target.origin].map(String::as_str);
    program::run(program, &arguments, target, time)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn target() -> FenceTarget {
        let text = |text: &str| text.to_string();
        FenceTarget {
            host: text("alpha"),
            address: text("10.0.0.1:10810"),
            disk: text("vm1"),
            disk_id: text("id"),
            origin: text("/dev/x"),
            by: text("beta"),
        }
    }

    fn program(directory: &Path, script: &str) -> PathBuf {
        let path = directory.join("fence");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn a_program_is_told_what_to_fence() {
        let directory = tempfile::tempdir().unwrap();
        let told = fence(&program(directory.path(), "echo \"$@\"; cat"), &target(), Duration::from_secs(60));
        let told = told.unwrap();
        let (arguments, json) = told.split_once('\n').unwrap();
        assert_eq!(arguments, "alpha 10.0.0.1:10810 id /dev/x");
        let json: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!((&json["host"], &json["disk"]), (&"alpha".into(), &"vm1".into()));
    }

    #[test]
    fn only_success_counts() {
        let directory = tempfile::tempdir().unwrap();
        let run = |script, time| fence(&program(directory.path(), script), &target(), time);
        let minute = Duration::from_secs(60);
        let failed = run("echo no such host >&2; exit 3", minute).unwrap_err().to_string();
        assert!(failed.contains("no such host") && failed.contains('3'), "{failed}");
        let slow = run("sleep 1000 & sleep 1000", Duration::from_millis(100)).unwrap_err();
        assert!(matches!(slow, ProgramError::Slow { .. }), "{slow}");
        let missing = fence(Path::new("/nowhere/fence"), &target(), minute).unwrap_err().to_string();
        assert!(missing.contains("/nowhere/fence"), "{missing}");
        // Processes that the program leaves running do not delay it.
        run("sleep 1000 & exit 0", minute).unwrap();
    }

    #[test]
    fn a_program_that_cannot_be_run_is_found_when_the_configuration_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = program(directory.path(), "exit 0");
        let why = |path: &Path| FencePrograms::All(path.to_path_buf()).check().unwrap_err();
        FencePrograms::All(path.clone()).check().unwrap();
        assert!(why(Path::new("fence")).contains("not an absolute path"));
        assert!(why(Path::new("/nowhere/fence")).contains("/nowhere/fence"));
        assert!(why(directory.path()).contains("not an executable file"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(why(&path).contains("not an executable file"));
    }

    #[test]
    fn a_program_is_chosen_by_origin() {
        let programs: FencePrograms = toml::from_str::<BTreeMap<String, FencePrograms>>(
            "fence = { file = \"/f\", nbd = \"/n\", rbd = \"/r\" }",
        )
        .unwrap()
        .remove("fence")
        .unwrap();
        assert_eq!(programs.program("/dev/x"), Some(Path::new("/f")));
        assert_eq!(programs.program("nbd+unix:///x?socket=/s"), Some(Path::new("/n")));
        assert_eq!(programs.program("rbd:vms/vm1"), Some(Path::new("/r")));
    }
}
