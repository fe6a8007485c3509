//! Disk images that tell what they must contain, and judging a disk from the host.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use haversack_guest::measure;
use haversack_guest::pattern::{self, SECTOR_BYTES};

use crate::{Error, MIB, Place, Result};

/// Bytes that are made or read at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Makes a sparse image: zeroes.
///
/// # Errors
/// The operating system's.
pub fn zeroes(place: &Place, name: &str, mebibytes: u64) -> Result<PathBuf> {
    let path = place.path(name);
    let what = path.display().to_string();
    let file = File::create(&path).map_err(Error::io(what.clone()))?;
    file.set_len(mebibytes * MIB).map_err(Error::io(what))?;
    Ok(path)
}

/// Makes an image with version 1 of every sector of the disk named `disk`; the guest opens it with `pattern`.
///
/// # Errors
/// The operating system's.
pub fn pattern(place: &Place, name: &str, disk: &str, mebibytes: u64) -> Result<PathBuf> {
    let path = place.path(name);
    let what = path.display().to_string();
    let mut file = File::create(&path).map_err(Error::io(what.clone()))?;
    let mut bytes = vec![0; PIECE_BYTES];
    for piece in 0..mebibytes * MIB / PIECE_BYTES as u64 {
        pattern::fill(&mut bytes, pattern::key_of(disk), piece * (PIECE_BYTES / SECTOR_BYTES) as u64, 1);
        file.write_all(&bytes).map_err(Error::io(what.clone()))?;
    }
    Ok(path)
}

/// Makes an image whose blocks are numbered as the guest's `measure` expects them, after `skipped_bytes` of zeroes.
///
/// # Errors
/// The operating system's.
pub fn numbered(place: &Place, name: &str, mebibytes: u64, skipped_bytes: u64) -> Result<PathBuf> {
    let path = place.path(name);
    let what = path.display().to_string();
    let mut file = File::create(&path).map_err(Error::io(what.clone()))?;
    file.seek(SeekFrom::Start(skipped_bytes)).map_err(Error::io(what.clone()))?;
    let mut bytes = vec![0x5a; PIECE_BYTES];
    for piece in 0..mebibytes * MIB / PIECE_BYTES as u64 {
        measure::mark(&mut bytes, piece * (PIECE_BYTES / measure::BLOCK_BYTES) as u64);
        file.write_all(&bytes).map_err(Error::io(what.clone()))?;
    }
    file.sync_all().map_err(Error::io(what))?;
    Ok(path)
}

/// The digest of an image's bytes, as the guest's `verify` tells it for its disk.
///
/// # Errors
/// The operating system's.
pub fn digest(path: &Path) -> Result<String> {
    let what = path.display().to_string();
    let mut file = File::open(path).map_err(Error::io(what.clone()))?;
    let mut bytes = vec![0; PIECE_BYTES];
    let mut digest = pattern::DIGEST_START;
    loop {
        let length = file.read(&mut bytes).map_err(Error::io(what.clone()))?;
        if length == 0 {
            return Ok(format!("{digest:016x}"));
        }
        digest = pattern::digest_more(digest, &bytes[..length]);
    }
}

/// Copies `length_bytes` of an image out, to put them back later: data that has become stale by then.
///
/// # Errors
/// The operating system's.
pub fn take(path: &Path, offset_bytes: u64, length_bytes: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; length_bytes];
    let mut file = File::open(path).map_err(Error::io(path.display().to_string()))?;
    file.seek(SeekFrom::Start(offset_bytes))
        .and_then(|_| file.read_exact(&mut bytes))
        .map_err(Error::io(path.display().to_string()))?;
    Ok(bytes)
}

/// Puts bytes into an image.
///
/// # Errors
/// The operating system's.
pub fn put(path: &Path, offset_bytes: u64, bytes: &[u8]) -> Result<()> {
    let open = File::options().write(true).open(path);
    let mut file = open.map_err(Error::io(path.display().to_string()))?;
    file.seek(SeekFrom::Start(offset_bytes))
        .and_then(|_| file.write_all(bytes))
        .map_err(Error::io(path.display().to_string()))
}
