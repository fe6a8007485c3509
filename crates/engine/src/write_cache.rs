//! Whether a block device keeps what was written in a volatile cache. If it does not, what it has completed is durable, and
//! a flush would only cost time: io_uring hands each one to a thread of the kernel, which finds out the same.
//!
//! The kernel has this setting for each device, `queue/write_cache`, and drops flushes accordingly. It can change at any
//! time, so it is read for every flush, which takes about a microsecond.

use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

/// What the setting says if nothing volatile is between the device and its medium.
const WRITE_THROUGH: &[u8] = b"write through\n";

/// The setting of a device.
#[derive(Clone, Debug)]
pub(crate) struct WriteCache {
    /// The open setting. `None` if the device is a file, or the system does not say.
    setting: Option<Arc<File>>,
}

impl WriteCache {
    /// Of an open device.
    pub fn of(device: &File) -> WriteCache {
        let about = device.metadata().ok().filter(|about| about.file_type().is_block_device());
        let setting = about.and_then(|about| {
            let (major, minor) = (rustix::fs::major(about.rdev()), rustix::fs::minor(about.rdev()));
            open(Path::new(&format!("/sys/dev/block/{major}:{minor}")))
        });
        WriteCache { setting: setting.map(Arc::new) }
    }

    /// Whether what the device has completed is durable without a flush. The setting of a device that is gone cannot be
    /// read, so its flushes fail as they did.
    pub fn is_durable(&self) -> bool {
        let Some(setting) = &self.setting else { return false };
        let mut text = [0; 32];
        setting.read_at(&mut text, 0).is_ok_and(|len| &text[..len] == WRITE_THROUGH)
    }
}

/// Opens the setting in a device's directory; a partition has that of its disk.
fn open(directory: &Path) -> Option<File> {
    ["queue/write_cache", "../queue/write_cache"]
        .iter()
        .find_map(|name| File::open(directory.join(name)).ok())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn of_directory(directory: &Path) -> WriteCache {
        WriteCache { setting: open(directory).map(Arc::new) }
    }

    #[test]
    fn a_flush_is_left_out_only_where_the_system_says_that_nothing_is_volatile() {
        let place = tempfile::tempdir().unwrap();
        let disk = place.path().to_path_buf();
        let partition = disk.join("part1");
        fs::create_dir_all(disk.join("queue")).unwrap();
        fs::create_dir_all(&partition).unwrap();
        assert!(!of_directory(&disk).is_durable(), "there is no setting");
        let setting = disk.join("queue/write_cache");
        fs::write(&setting, "write through\n").unwrap();
        let (whole, part) = (of_directory(&disk), of_directory(&partition));
        assert!(whole.is_durable() && part.is_durable());
        for other in ["write back\n", "write through of a kind\n", ""] {
            fs::write(&setting, other).unwrap();
            assert!(!whole.is_durable() && !part.is_durable(), "changed to '{other}'");
        }
    }

    #[test]
    fn a_file_is_flushed() {
        let file = File::open("/proc/self/exe").unwrap();
        assert!(!WriteCache::of(&file).is_durable());
    }
}
