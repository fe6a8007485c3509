//! Data about a disk, encoded so that damage is detected: a header with kind, version, checksum and the disk's
//! identity, then a body. docs/format.md describes it.

use crc_fast::{CrcAlgorithm, checksum};
use haversack_model::DiskId;

const HEADER_BYTES: usize = 32;

/// What the body is.
#[derive(Clone, Copy)]
pub struct Kind {
    /// The first bytes.
    pub magic: &'static [u8; 8],
    /// The version of the body.
    pub version: u32,
}

/// Returns the bytes of a body.
pub fn seal(kind: Kind, disk: DiskId, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend(kind.magic);
    bytes.extend(kind.version.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(disk.0);
    bytes.extend(body);
    let sum = checksum(CrcAlgorithm::Crc32Iscsi, &bytes) as u32;
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Checks bytes made by [`seal`], and returns the body.
///
/// # Errors
/// The bytes are damaged, of another kind or version, or of another disk.
pub fn unseal(kind: Kind, disk: DiskId, mut bytes: Vec<u8>) -> Result<Vec<u8>, &'static str> {
    let header: [u8; HEADER_BYTES] = *bytes.first_chunk().ok_or("it is too short")?;
    if header[..8] != *kind.magic {
        return Err("it is not a file of this kind");
    }
    if header[8..12] != kind.version.to_le_bytes() {
        return Err("it has another version");
    }
    bytes[12..16].fill(0);
    let sum = checksum(CrcAlgorithm::Crc32Iscsi, &bytes) as u32;
    if header[12..16] != sum.to_le_bytes() {
        return Err("its checksum is wrong");
    }
    if header[16..] != disk.0 {
        return Err("it is of another disk");
    }
    Ok(bytes.split_off(HEADER_BYTES))
}
