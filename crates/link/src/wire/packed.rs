//! Frames that are sent together, compressed with zstd.
//!
//! Invariants
//! - A packed frame is shorter than the frames in it, and contains no packed frames.
//! - Unpacking takes no more memory than [`MOST_PACKED_BYTES`], whatever the peer sends.

use std::fmt;

use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::find_frame_compressed_size;

use super::packet::Header;
use super::{HEADER_BYTES, MOST_BODY_BYTES, MOST_PACKED_BYTES, WireError};

/// Fast; higher levels take several times as long for a tenth fewer bytes.
const LEVEL: i32 = 1;
/// Bytes of a body before the compressed ones: the length of the frames in it.
const LENGTH_BYTES: usize = 4;
/// The first bytes of a zstd frame. The library also reads frames of versions before the first stable one.
const MAGIC: [u8; 4] = 0xfd2f_b528_u32.to_le_bytes();

/// Packs frames.
pub struct Packer {
    compressor: Compressor<'static>,
    body: Vec<u8>,
}

impl fmt::Debug for Packer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packer").finish_non_exhaustive()
    }
}

impl Default for Packer {
    fn default() -> Packer {
        let compressor = Compressor::new(LEVEL).expect("the level is valid, and memory does not run out");
        Packer { compressor, body: Vec::new() }
    }
}

impl Packer {
    /// Appends encoded frames as one packed frame, if that is shorter by an eighth or more. Returns whether it is.
    pub fn pack(&mut self, frames: &[u8], to: &mut Vec<u8>) -> bool {
        let most = (frames.len() - frames.len() / 8).saturating_sub(HEADER_BYTES).min(MOST_BODY_BYTES);
        if frames.len() > MOST_PACKED_BYTES || most <= LENGTH_BYTES {
            return false;
        }
        self.body.resize(most, 0);
        let (length, packed) = self.body.split_at_mut(LENGTH_BYTES);
        length.copy_from_slice(&(frames.len() as u32).to_le_bytes());
        // It fails if the frames do not become short enough.
        let Ok(bytes) = self.compressor.compress_to_buffer(frames, packed) else { return false };
        let body = &self.body[..LENGTH_BYTES + bytes];
        to.extend_from_slice(&Header::of_packed(body));
        to.extend_from_slice(body);
        true
    }
}

/// Unpacks frames.
pub struct Unpacker {
    decompressor: Decompressor<'static>,
    frames: Vec<u8>,
}

impl fmt::Debug for Unpacker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unpacker").finish_non_exhaustive()
    }
}

impl Default for Unpacker {
    fn default() -> Unpacker {
        let decompressor = Decompressor::new().expect("memory does not run out");
        Unpacker { decompressor, frames: Vec::new() }
    }
}

impl Unpacker {
    /// Returns the encoded frames in the body of a packed one.
    ///
    /// # Errors
    /// The body is not what a [`Packer`] makes.
    pub fn unpack(&mut self, header: &Header, body: &[u8]) -> Result<&[u8], WireError> {
        header.check(body)?;
        let (length, packed) = body.split_first_chunk::<LENGTH_BYTES>().ok_or(WireError::Short)?;
        let length = u32::from_le_bytes(*length) as usize;
        if length > MOST_PACKED_BYTES {
            return Err(WireError::Packed(format!("{length} bytes, expected at most {MOST_PACKED_BYTES}")));
        }
        if !packed.starts_with(&MAGIC) || find_frame_compressed_size(packed) != Ok(packed.len()) {
            return Err(WireError::Packed("expected one zstd frame".into()));
        }
        self.frames.resize(length, 0);
        let bytes = self.decompressor.decompress_to_buffer(packed, &mut self.frames[..]);
        match bytes.map_err(|error| WireError::Packed(error.to_string()))? {
            bytes if bytes == length => Ok(&self.frames),
            bytes => Err(WireError::Packed(format!("{bytes} bytes, expected {length}"))),
        }
    }
}
