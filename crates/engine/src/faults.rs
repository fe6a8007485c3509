//! Cache devices that fail on demand, for tests of failure handling.
//!
//! A device named `faulty:PATH` is the device at PATH. While a file `PATH.fault` exists, the I/Os named by its
//! words fail: `read`, `write` or `flush` with an I/O error, or `gone` for all of them, as if the device had
//! been pulled.

use std::path::{Path, PathBuf};

const PREFIX: &str = "faulty:";

/// A kind of I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DeviceOp {
    Read,
    Write,
    Flush,
}

/// The injected faults of a device.
#[derive(Clone)]
pub(crate) struct Faults {
    file: PathBuf,
}

impl Faults {
    /// Returns the path that a device name stands for, and its faults if it has some.
    pub fn of(name: &Path) -> (PathBuf, Option<Faults>) {
        let Some(path) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
            return (name.to_path_buf(), None);
        };
        (PathBuf::from(path), Some(Faults { file: PathBuf::from(format!("{path}.fault")) }))
    }

    /// Returns the error number with which an I/O fails now, if it fails.
    pub fn strike(&self, op: DeviceOp) -> Option<i32> {
        let words = std::fs::read_to_string(&self.file).ok()?;
        let word = match op {
            DeviceOp::Read => "read",
            DeviceOp::Write => "write",
            DeviceOp::Flush => "flush",
        };
        let says = |wanted| words.split_whitespace().any(|word| word == wanted);
        if says("gone") {
            return Some(libc::ENODEV);
        }
        says(word).then_some(libc::EIO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_faulty_devices_fail_and_only_as_configured() {
        let path = std::env::temp_dir().join(format!("haversack-faults-{}", std::process::id()));
        assert!(Faults::of(&path).1.is_none());
        let (device, faults) = Faults::of(Path::new(&format!("faulty:{}", path.display())));
        let faults = faults.expect("it is faulty");
        assert_eq!((device, faults.strike(DeviceOp::Read)), (path, None));
        std::fs::write(&faults.file, "read flush\n").unwrap();
        assert_eq!(faults.strike(DeviceOp::Read), Some(libc::EIO));
        assert_eq!(faults.strike(DeviceOp::Write), None);
        std::fs::write(&faults.file, "gone").unwrap();
        assert_eq!(faults.strike(DeviceOp::Write), Some(libc::ENODEV));
        std::fs::remove_file(&faults.file).unwrap();
    }
}
