//! Our own form: compact, checksummed, indexed by time. docs/trace-format.md specifies every byte.
//!
//! A file is a header, blocks of up to 65,536 accesses, an index and a trailer. A block is a frame: a frame header
//! and columns compressed with zstd; the index is a frame as well. Frames are independent: a reader may begin at any
//! frame in the index. Everything is little-endian, and every byte is covered by a CRC-32C.

mod columns;
mod frame;
mod index;
mod reader;
mod writer;

pub(crate) use reader::CompactSource;
pub(crate) use writer::CompactWriter;

/// The first bytes of a file.
pub(crate) const MAGIC: [u8; 8] = *b"HVTRACE\0";
/// The first bytes of a file's trailer.
const TRAILER_MAGIC: [u8; 8] = *b"HVTREND\0";
/// The version of the form that is written, and the only one that is accepted.
const VERSION: u16 = 1;
/// Bytes of the file's header and of its trailer.
const HEADER_BYTES: usize = 32;
/// Accesses in a full block.
pub(crate) const BLOCK_ACCESSES: usize = 1 << 16;

/// Returns the CRC-32C of bytes.
fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Where the header says whether accesses have times.
const UNTIMED_AT: usize = 10;

/// The file's header.
fn header(is_timed: bool) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..10].copy_from_slice(&VERSION.to_le_bytes());
    header[UNTIMED_AT] = u8::from(!is_timed);
    let crc = checksum(&header[..28]);
    header[28..].copy_from_slice(&crc.to_le_bytes());
    header
}
