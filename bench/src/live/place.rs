//! A directory with what a run needs: sockets, the disk's image, the cache.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::load::{BLOCK_BYTES, fill_block};

/// The longest path of a Unix socket.
const SOCKET_PATH_BYTES: usize = 100;

/// The image of a disk, given that of the first one; no two disks may have the same. The others have sparse ones beside it.
pub fn image_of_disk(first: &Path, disk: u16, disk_bytes: u64) -> io::Result<PathBuf> {
    if disk == 0 {
        return Ok(first.to_path_buf());
    }
    let path = PathBuf::from(format!("{}-{disk}", first.display()));
    File::create(&path)?.set_len(disk_bytes)?;
    Ok(path)
}

/// See the module. Dropping it removes the directory.
pub struct Place {
    directory: PathBuf,
}

impl Place {
    /// Makes a new directory inside of another. One that an interrupted run left is not used again.
    pub fn new(inside: &Path) -> io::Result<Place> {
        std::fs::create_dir_all(inside)?;
        for number in 0.. {
            let directory = inside.join(format!("haversack-bench-{}-{number}", std::process::id()));
            if directory.as_os_str().len() > SOCKET_PATH_BYTES / 2 {
                return Err(io::Error::other(format!("{} is too long for sockets", directory.display())));
            }
            match std::fs::create_dir(&directory) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => return made.map(|()| Place { directory }),
            }
        }
        unreachable!("some number is free")
    }

    /// The path of something in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Makes an image of n blocks, all of them written, and on the device.
    pub fn image(&self, name: &str, blocks: u64) -> io::Result<PathBuf> {
        let path = self.path(name);
        let mut file = File::create(&path)?;
        let mut bytes = vec![0; 1 << 20];
        let at_a_time = (bytes.len() / BLOCK_BYTES) as u64;
        for first in (0..blocks).step_by(at_a_time as usize) {
            for (at, block) in bytes.chunks_mut(BLOCK_BYTES).enumerate() {
                fill_block(first + at as u64, block);
            }
            let count = at_a_time.min(blocks - first) as usize;
            file.write_all(&bytes[..count * BLOCK_BYTES])?;
        }
        file.sync_all()?;
        Ok(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
