//! Detects what is on a device before a pool is created on it: foreign file systems, partitions, volumes and
//! images are not overwritten unless that was requested.
//!
//! `blkid` (util-linux) knows the signatures of file systems, partition tables, RAID, LVM and LUKS, but not the
//! formats of disk images. Unknown content counts as data unless it begins with zeroes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use crate::error::{EngineError, Result, at};

/// The first bytes of a device, which are all zero on a blank one.
const BLANK_BYTES: usize = 1 << 20;
/// Exit codes of `blkid`: it found nothing, or several signatures at once.
const FOUND_NOTHING: i32 = 2;
const FOUND_SEVERAL: i32 = 8;

/// The first bytes of disk image formats.
const IMAGES: [(&[u8], &str); 6] = [
    (b"QFI\xfb", "a QCOW2 image"),
    (b"QED\0", "a QED image"),
    (b"KDMV", "a VMDK image"),
    (b"vhdxfile", "a VHDX image"),
    (b"conectix", "a VHD image"),
    (b"<<< ", "a VDI image"),
];

/// Refuses a device or file that is not blank.
pub(crate) fn refuse_data(path: &Path) -> Result<()> {
    let Some(what) = find(path)? else { return Ok(()) };
    Err(EngineError::NotBlank { path: path.to_path_buf(), what })
}

/// Describes what is on a device or file; `None` if it is blank.
fn find(path: &Path) -> Result<Option<String>> {
    let file = File::open(path).map_err(at("open", path))?;
    let mut start = vec![0; BLANK_BYTES];
    let length = read_start(&file, &mut start).map_err(at("read", path))?;
    let start = &start[..length];
    if let Some((_, image)) = IMAGES.iter().find(|(magic, _)| start.starts_with(magic)) {
        return Ok(Some((*image).to_string()));
    }
    let known = blkid(path)?;
    let unknown = || start.iter().any(|byte| *byte != 0).then(|| "data of an unknown kind".to_string());
    Ok(known.or_else(unknown))
}

fn read_start(file: &File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], done as u64)? {
            0 => break,
            count => done += count,
        }
    }
    Ok(done)
}

fn blkid(path: &Path) -> Result<Option<String>> {
    let output = Command::new("blkid").args(["--probe", "--output", "export", "--"]).arg(path).output();
    let output = match output {
        Ok(output) => output,
        // An administrator's program may not be on the search path of other users.
        Err(_) => Command::new("/usr/sbin/blkid")
            .args(["--probe", "--output", "export", "--"])
            .arg(path)
            .output()
            .map_err(at("look with blkid (package util-linux) for what is on", path))?,
    };
    match output.status.code() {
        Some(0) => Ok(Some(in_words(&String::from_utf8_lossy(&output.stdout)))),
        Some(FOUND_NOTHING) => Ok(None),
        Some(FOUND_SEVERAL) => Ok(Some("several signatures at once".into())),
        _ => {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_string();
            Err(at("look with blkid for what is on", path)(std::io::Error::other(why)))
        }
    }
}

/// Describes what `blkid` has found.
fn in_words(export: &str) -> String {
    let value = |key: &str| {
        export.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).filter(|v| !v.is_empty())
    };
    let mut words = match (value("TYPE"), value("PTTYPE")) {
        (Some(kind), _) if value("USAGE") == Some("filesystem") => format!("a file system ({kind})"),
        (Some(kind), _) => format!("a signature of {kind}"),
        (None, Some(table)) => format!("a partition table ({table})"),
        (None, None) => "a signature".to_string(),
    };
    if let Some(label) = value("LABEL") {
        words += &format!(" named '{label}'");
    }
    if let Some(uuid) = value("UUID").or(value("PTUUID")) {
        words += &format!(", UUID {uuid}");
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, start: &[u8]) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("haversack-signature-{name}-{}", std::process::id()));
        std::fs::write(&path, start).unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(16 << 20).unwrap();
        path
    }

    #[test]
    fn existing_signatures_are_named() {
        let blank = file("blank", b"");
        assert_eq!(find(&blank).unwrap(), None);
        let made = Command::new("mke2fs").args(["-q", "-L", "home"]).arg(&blank).status();
        assert!(made.expect("mke2fs is needed: install Debian's e2fsprogs").success());
        let words = find(&blank).unwrap().unwrap();
        assert!(words.contains("file system (ext") && words.contains("named 'home'"), "{words}");
        let image = file("image", b"QFI\xfb");
        assert_eq!(find(&image).unwrap().unwrap(), "a QCOW2 image");
        let other = file("other", b"\0\0\0once upon a time");
        assert_eq!(find(&other).unwrap().unwrap(), "data of an unknown kind");
        for path in [blank, image, other] {
            std::fs::remove_file(path).unwrap();
        }
    }
}
