//! The identity of the storage behind a path, so that one store is recognized under two names.
//!
//! A path, a symbolic link and a hard link lead to the same inode; two device nodes have the same device
//! number. A partition, a device-mapper volume and a loop device are on other storage, which must not be used
//! at the same time.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The most levels of stacked devices that are followed.
const DEEPEST: usize = 16;

/// A file or block device, independent of its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StorageIdentity {
    name: Name,
    /// The storage that it is on.
    below: Vec<Name>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Name {
    /// A file, by its file system and inode.
    File(u64, u64),
    /// A block device, by its number.
    Device(u64),
}

impl StorageIdentity {
    /// Returns the identity of what a path names.
    ///
    /// # Errors
    /// It does not exist, or access is denied.
    pub fn of(path: &Path) -> io::Result<StorageIdentity> {
        let metadata = std::fs::metadata(path)?;
        let name = Name::of(&metadata);
        let mut below = Vec::new();
        if let Name::Device(number) = name {
            find_below(number, &mut below, DEEPEST);
        }
        Ok(StorageIdentity { name, below })
    }

    /// Returns whether a write to one may change the other.
    pub fn overlaps(&self, other: &StorageIdentity) -> bool {
        self.name == other.name || self.below.contains(&other.name) || other.below.contains(&self.name)
    }
}

impl Name {
    fn of(metadata: &Metadata) -> Name {
        if metadata.file_type().is_block_device() {
            return Name::Device(metadata.rdev());
        }
        Name::File(metadata.dev(), metadata.ino())
    }
}

/// Adds what a block device is on: a partition's disk, a volume's members, a loop device's file.
fn find_below(device: u64, below: &mut Vec<Name>, depth: usize) {
    if depth == 0 {
        return;
    }
    let (major, minor) = (libc::major(device), libc::minor(device));
    let system = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    if let Ok(file) = std::fs::read_to_string(system.join("loop/backing_file"))
        && let Ok(metadata) = std::fs::metadata(file.trim_end_matches('\n'))
    {
        add(Name::of(&metadata), below, depth);
    }
    if system.join("partition").exists()
        && let Some(disk) = system.canonicalize().ok().as_deref().and_then(Path::parent)
    {
        add_device(disk, below, depth);
    }
    for member in std::fs::read_dir(system.join("slaves")).into_iter().flatten().flatten() {
        add_device(&member.path(), below, depth);
    }
}

/// Adds the device of a directory in `/sys`, and what it is on.
fn add_device(directory: &Path, below: &mut Vec<Name>, depth: usize) {
    let number = std::fs::read_to_string(directory.join("dev")).ok();
    let parts = number.as_deref().and_then(|text| text.trim().split_once(':'));
    let number =
        parts.and_then(|(major, minor)| Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?)));
    if let Some(number) = number {
        add(Name::Device(number), below, depth);
    }
}

fn add(name: Name, below: &mut Vec<Name>, depth: usize) {
    if below.contains(&name) {
        return;
    }
    below.push(name);
    if let Name::Device(number) = name {
        find_below(number, below, depth - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_the_same_file() {
        let directory = std::env::temp_dir().join(format!("haversack-identity-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let [file, symbolic, hard, other] = ["file", "symbolic", "hard", "other"].map(|n| directory.join(n));
        std::fs::write(&file, "").unwrap();
        std::fs::write(&other, "").unwrap();
        std::os::unix::fs::symlink(&file, &symbolic).unwrap();
        std::fs::hard_link(&file, &hard).unwrap();
        let of = |path: &Path| StorageIdentity::of(path).unwrap();
        assert!(of(&file).overlaps(&of(&symbolic)) && of(&file).overlaps(&of(&hard)));
        assert!(!of(&file).overlaps(&of(&other)));
        assert!(StorageIdentity::of(&directory.join("missing")).is_err());
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_volume_overlaps_its_members_and_not_its_sisters() {
        let of = |number, below: &[u64]| StorageIdentity {
            name: Name::Device(number),
            below: below.iter().map(|n| Name::Device(*n)).collect(),
        };
        let (disk, first, second) = (of(8, &[]), of(81, &[8]), of(82, &[8]));
        assert!(disk.overlaps(&first) && second.overlaps(&disk));
        assert!(!first.overlaps(&second));
    }

    #[test]
    fn a_partition_lies_on_its_disk() {
        let found = std::fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
        let Some(partition) = found.map(|entry| entry.path()).find(|path| path.join("partition").exists())
        else {
            println!("there is no partition here");
            return;
        };
        let mut below = Vec::new();
        let number = std::fs::read_to_string(partition.join("dev")).unwrap();
        let (major, minor) = number.trim().split_once(':').unwrap();
        find_below(libc::makedev(major.parse().unwrap(), minor.parse().unwrap()), &mut below, DEEPEST);
        assert!(!below.is_empty(), "{}", partition.display());
    }
}
