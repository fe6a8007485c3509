//! A block device in memory, of the kernel's zram driver. The thread that submits an I/O also carries it out. With a file on
//! a memory file system io_uring hands each I/O to a thread of the kernel. Needs root.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const CONTROL: &str = "/sys/class/zram-control";

/// A device. Dropping it removes it.
pub struct Zram {
    number: u32,
}

impl Zram {
    /// Makes a device of this size.
    pub fn new(bytes: u64) -> io::Result<Zram> {
        let text = fs::read_to_string(Path::new(CONTROL).join("hot_add")).map_err(|error| {
            io::Error::new(error.kind(), format!("no zram device: {error} (as root, modprobe zram)"))
        })?;
        let number =
            text.trim().parse().map_err(|_| io::Error::other(format!("zram device '{}'", text.trim())))?;
        let device = Zram { number };
        fs::write(device.setting("disksize"), bytes.to_string())?;
        Ok(device)
    }

    /// Its path.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/zram{}", self.number))
    }

    fn setting(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/sys/block/zram{}/{name}", self.number))
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        let _ = fs::write(self.setting("reset"), "1");
        let _ = fs::write(Path::new(CONTROL).join("hot_remove"), self.number.to_string());
    }
}
