//! The bytes of frames. docs/host-protocol.md documents every byte.
//!
//! Invariants
//! - Decoding never panics, and allocates no more than the frame is long, times two; unpacking, no more
//!   than [`MOST_PACKED_BYTES`].
//! - A frame has one encoding: what decodes encodes to the same bytes. Packed frames are an exception.
//! - What [`Frame::check`] accepts can be encoded.

mod error;
mod fields;
mod frame;
mod grant;
mod lend;
mod message;
mod packed;
mod packet;

pub use error::WireError;
pub use frame::{Frame, ObserveError};
pub use packed::{Packer, Unpacker};
pub(crate) use packet::PACKED;
pub use packet::{Header, Packet};

/// The version of the protocol, checked before anything else.
pub const VERSION: u32 = 4;
/// Peers of this version and later take packed frames, and are told whether copies were reused.
pub(crate) const PACKED_SINCE: u32 = 3;
/// Peers of this version and later know about replicas and loans, and say whether they are busy.
pub(crate) const REPLICAS_AND_LOANS_SINCE: u32 = 4;
/// The oldest version that is used with a peer that has no newer one. It has no packed frames, does not say whether
/// copies were reused or it is busy, and has neither replicas nor loans.
pub const OLDEST_VERSION: u32 = 2;
/// The most entries of a list in one frame.
pub const MOST_ENTRIES: usize = 4_096;
/// The most sectors of an observer's read: 256 KiB.
pub const MOST_OBSERVED_SECTORS: u32 = 512;
/// The most bytes of a note.
pub const MOST_NOTE_BYTES: usize = 16 << 10;
/// Bytes before a frame's body.
pub const HEADER_BYTES: usize = 12;
/// The most bytes of a frame's body: an observed read of the greatest length, and its head.
pub const MOST_BODY_BYTES: usize = (256 << 10) + 64;
/// The most bytes of the frames in a packed one.
pub const MOST_PACKED_BYTES: usize = 2 * (HEADER_BYTES + MOST_BODY_BYTES);

/// Returns the CRC-32C of two pieces, one after the other.
pub(crate) fn crc32c(first: &[u8], second: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(first);
    digest.update(second);
    digest.finalize() as u32
}
