//! A file system on a disk: made, filled with files that are known, read back, checked by its own tools.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{MountFlags, UnmountFlags};

use crate::pattern::{self, SECTOR_BYTES};
use haversack_model::random::Random;

/// Where the file system is mounted.
pub(crate) const MOUNT_POINT: &str = "/mnt";
/// The longest file in sectors: 1 MiB.
const LONGEST_FILE_SECTORS: u64 = 2048;
/// Modules that are loaded when they are needed, as `scripts/guest-image` and `scripts/peer-guest` lay them out.
pub(crate) const MODULES: &str = "/modules";

/// The file systems that the guest knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// ext4, built into the kernel.
    Ext4,
    /// XFS, a module.
    Xfs,
}

impl std::str::FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "ext4" => Ok(Self::Ext4),
            "xfs" => Ok(Self::Xfs),
            _ => Err(format!("the file system {name} is not known; ext4 and xfs are")),
        }
    }
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }
}

/// Makes a file system on `/dev/DISK`.
///
/// # Errors
/// What the tool printed.
pub fn make(disk: &str, kind: Kind) -> Result<(), String> {
    match kind {
        Kind::Ext4 => tool("mkfs.ext4", &["-q", "-F", &device(disk)]),
        Kind::Xfs => tool("mkfs.xfs", &["-q", "-f", &device(disk)]),
    }
    .map(drop)
}

/// Has the file system's own tool check it, without repairs.
///
/// # Errors
/// What the tool printed.
pub fn check(disk: &str, kind: Kind) -> Result<(), String> {
    match kind {
        Kind::Ext4 => tool("e2fsck", &["-f", "-n", &device(disk)]),
        Kind::Xfs => tool("xfs_repair", &["-n", &device(disk)]),
    }
    .map(drop)
}

/// Mounts it.
///
/// # Errors
/// The kernel's.
pub fn mount(disk: &str, kind: Kind) -> Result<(), String> {
    let modules = Path::new(MODULES).join(kind.name());
    if modules.exists() {
        load_modules(&modules).map_err(|error| format!("modules of {}: {error}", kind.name()))?;
    }
    fs::create_dir_all(MOUNT_POINT).map_err(|error| error.to_string())?;
    rustix::mount::mount(device(disk), MOUNT_POINT, kind.name(), MountFlags::NOATIME, None)
        .map_err(|error| format!("mount of {disk}: {error}"))
}

/// Unmounts it.
///
/// # Errors
/// The kernel's.
pub fn unmount() -> Result<(), String> {
    rustix::mount::unmount(MOUNT_POINT, UnmountFlags::empty()).map_err(|error| format!("unmount: {error}"))
}

/// The files that a seed stands for: name, length in sectors, and whether it is removed in the end.
fn plan(seed: u64, mebibytes: u64) -> impl Iterator<Item = (PathBuf, u64, u64, bool)> {
    let mut random = Random::new(seed);
    let mut left = mebibytes * 2048;
    (0..).map_while(move |number| {
        let sectors = (1 + random.below(LONGEST_FILE_SECTORS)).min(left);
        left -= sectors;
        let path = Path::new(MOUNT_POINT).join(format!("{}/{number}", number % 7));
        (sectors > 0).then(|| (path, number, sectors, random.below(5) == 0))
    })
}

/// Writes files of `mebibytes` in all, then removes a fifth of them; everything is synced.
///
/// # Errors
/// The first that the kernel gave, with the file.
pub fn fill(seed: u64, mebibytes: u64) -> Result<u64, String> {
    let mut files = 0;
    for (path, number, sectors, _) in plan(seed, mebibytes) {
        write(&path, seed ^ number, sectors).map_err(|error| format!("write {}: {error}", path.display()))?;
        files += 1;
    }
    for (path, _, _, removed) in plan(seed, mebibytes) {
        if removed {
            fs::remove_file(&path).map_err(|error| format!("remove {}: {error}", path.display()))?;
        }
    }
    let root = File::open(MOUNT_POINT).map_err(|error| error.to_string())?;
    rustix::fs::syncfs(root).map_err(|error| format!("sync: {error}"))?;
    Ok(files)
}

fn write(path: &Path, key: u64, sectors: u64) -> io::Result<()> {
    fs::create_dir_all(path.parent().expect("a file in a directory"))?;
    let mut file = File::create(path)?;
    let mut bytes = vec![0; sectors as usize * SECTOR_BYTES];
    pattern::fill(&mut bytes, key, 0, 1);
    file.write_all(&bytes)
}

/// Reads all files of [`fill`] back past the page cache. Returns how many there are.
///
/// # Errors
/// The first file that is missing, too short or too long, wrong, or there although it was removed.
pub fn verify(seed: u64, mebibytes: u64) -> Result<u64, String> {
    fs::write("/proc/sys/vm/drop_caches", "3").map_err(|error| format!("drop caches: {error}"))?;
    let mut files = 0;
    for (path, number, sectors, removed) in plan(seed, mebibytes) {
        let name = path.display();
        if removed {
            if path.exists() {
                return Err(format!("{name} was removed and is there again"));
            }
            continue;
        }
        let mut bytes = Vec::new();
        File::open(&path)
            .and_then(|mut file| file.read_to_end(&mut bytes))
            .map_err(|e| format!("{name}: {e}"))?;
        let mut wanted = vec![0; sectors as usize * SECTOR_BYTES];
        pattern::fill(&mut wanted, seed ^ number, 0, 1);
        if bytes != wanted {
            let at =
                bytes.iter().zip(&wanted).position(|(a, b)| a != b).unwrap_or(bytes.len().min(wanted.len()));
            return Err(format!(
                "{name} is wrong from byte {at} on ({} of {} bytes)",
                bytes.len(),
                wanted.len()
            ));
        }
        files += 1;
    }
    Ok(files)
}

/// Loads every module of a directory, in the order of their names.
///
/// # Errors
/// The kernel's, with the module; one that is loaded already is none.
pub fn load_modules(directory: &Path) -> io::Result<()> {
    let mut modules =
        fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    modules.sort();
    for module in modules {
        match rustix::system::finit_module(File::open(&module)?, c"", 0) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(io::Error::other(format!("{}: {error}", module.display()))),
        }
    }
    Ok(())
}

fn device(disk: &str) -> String {
    format!("/dev/{disk}")
}

/// Runs a program to its end. Returns what it printed, in one line.
///
/// # Errors
/// What it printed.
pub fn tool(name: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(name).args(arguments).output().map_err(|error| format!("{name}: {error}"))?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).trim().replace('\n', " | ");
    if output.status.success() { Ok(text) } else { Err(format!("{name}: {}: {text}", output.status)) }
}
