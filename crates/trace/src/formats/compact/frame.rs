//! Frames: a header of 48 bytes and a zstd payload, both with checksums.

use super::checksum;
use crate::bytes::{Bytes, u32_at, u64_at};
use crate::error::TraceError;

pub(super) const FRAME_HEADER_BYTES: usize = 48;
/// The longest payload that is accepted: a full block of the widest columns has 2 MiB and the names of new volumes,
/// an index 28 bytes for each 65,536 accesses and all names.
const PAYLOAD_LIMIT_BYTES: u32 = 1 << 28;
/// The zstd level: higher ones gain a few percent and take several times as long.
const LEVEL: i32 = 3;

/// The content of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Accesses.
    Block,
    /// The positions of blocks.
    Index,
}

impl Kind {
    fn tag(self) -> [u8; 4] {
        match self {
            Kind::Block => *b"BLCK",
            Kind::Index => *b"INDX",
        }
    }
}

/// The fields of a frame's header that cannot be computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FrameHeader {
    pub kind: Kind,
    /// Accesses in a block, blocks in an index.
    pub count: u32,
    pub first_ns: u64,
    pub last_ns: u64,
    /// Volumes that are known after this frame.
    pub volumes: u32,
    /// Number of names at the payload's beginning: those of the last known volumes.
    pub names: u32,
}

/// Appends a frame.
pub(super) fn write(header: &FrameHeader, raw: &[u8], into: &mut Vec<u8>) -> std::io::Result<()> {
    let start = into.len();
    let payload = zstd::bulk::compress(raw, LEVEL)?;
    into.extend_from_slice(&header.kind.tag());
    for word in [payload.len() as u32, raw.len() as u32, header.count] {
        into.extend_from_slice(&word.to_le_bytes());
    }
    for time_ns in [header.first_ns, header.last_ns] {
        into.extend_from_slice(&time_ns.to_le_bytes());
    }
    for word in [header.volumes, header.names, checksum(&payload)] {
        into.extend_from_slice(&word.to_le_bytes());
    }
    let crc = checksum(&into[start..]);
    into.extend_from_slice(&crc.to_le_bytes());
    into.extend_from_slice(&payload);
    Ok(())
}

/// Reads the next frame and uncompresses its payload into `raw`. `None` at the end of the file.
pub(super) fn read(bytes: &mut Bytes, raw: &mut Vec<u8>) -> Result<Option<FrameHeader>, TraceError> {
    let offset = bytes.offset();
    let Some(found) = bytes.take(FRAME_HEADER_BYTES, "a block's header")? else { return Ok(None) };
    let (sum, should) = (checksum(&found[..44]), u32_at(found, 44));
    let tag = [found[0], found[1], found[2], found[3]];
    let kind = [Kind::Block, Kind::Index].into_iter().find(|kind| kind.tag() == tag);
    let (payload_bytes, raw_bytes, crc) = (u32_at(found, 4), u32_at(found, 8), u32_at(found, 40));
    let (count, first_ns, last_ns) = (u32_at(found, 12), u64_at(found, 16), u64_at(found, 24));
    let (volumes, names) = (u32_at(found, 32), u32_at(found, 36));
    let Some(kind) = kind else {
        return Err(bytes.damaged(offset, "a block or an index", tag.escape_ascii().to_string()));
    };
    if sum != should {
        let found = format!("{sum:#010x} instead of {should:#010x}");
        return Err(bytes.damaged(offset, "a header that fits its checksum", found));
    }
    if raw_bytes > PAYLOAD_LIMIT_BYTES || payload_bytes > PAYLOAD_LIMIT_BYTES {
        let found = format!("{payload_bytes} and {raw_bytes} bytes");
        return Err(bytes.damaged(offset, "a payload of at most 256 MiB", found));
    }
    let Some(payload) = bytes.take(payload_bytes as usize, "a block's payload")? else {
        return Err(bytes.damaged(bytes.offset(), "a block's payload", "the file's end".into()));
    };
    let sum = checksum(payload);
    if sum != crc {
        let found = format!("{sum:#010x} instead of {crc:#010x}");
        return Err(bytes.damaged(offset, "a payload that fits its checksum", found));
    }
    raw.clear();
    raw.reserve(raw_bytes as usize);
    let uncompressed = zstd::bulk::Decompressor::new()
        .and_then(|mut decompressor| decompressor.decompress_to_buffer(payload, raw))
        .map_err(|error| error.to_string());
    match uncompressed {
        Ok(bytes) if bytes == raw_bytes as usize => {
            Ok(Some(FrameHeader { kind, count, first_ns, last_ns, volumes, names }))
        }
        Ok(other) => {
            let found = format!("{other} bytes instead of {raw_bytes}");
            Err(bytes.damaged(offset, "a payload of the size in its header", found))
        }
        Err(error) => Err(bytes.damaged(offset, "a payload that can be uncompressed", error)),
    }
}
