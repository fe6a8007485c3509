//! The content of a sector: its disk, its address and the write that made it, spread over all 512 bytes.
//!
//! A sector that mixes two writes, comes from another disk or from another address is detected.

use std::fmt;

use haversack_model::SECTOR_BYTES;

/// Identifies a write to a disk; assigned by the oracle.
pub type Version = u32;

const MARK: u64 = 0xA5C3 << 48;
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
const WORDS: usize = SECTOR_BYTES / 8;

/// What 512 bytes were recognised as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// All zero.
    Zero,
    /// An intact sector of some write.
    Data {
        /// The disk it was written to.
        disk: u16,
        /// The sector it was written to.
        sector: u64,
        /// The write.
        version: Version,
    },
    /// A sector of that write with a rest that does not match its start.
    Torn {
        /// The disk named at the start.
        disk: u16,
        /// The sector named at the start.
        sector: u64,
        /// The write named at the start.
        version: Version,
    },
    /// Data that was never written.
    Garbage(u64),
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Content::Zero => write!(f, "zeroes"),
            Content::Data { disk, sector, version } => {
                write!(f, "write {version} of disk {disk} sector {sector}")
            }
            Content::Torn { disk, sector, version } => {
                write!(f, "a sector torn inside, starting as write {version} of disk {disk} sector {sector}")
            }
            Content::Garbage(word) => write!(f, "garbage starting with {word:#018x}"),
        }
    }
}

fn words(disk: u16, sector: u64, version: Version) -> impl Fn(usize) -> u64 {
    let head = MARK | u64::from(version) << 16 | u64::from(disk);
    let step = (head ^ sector.rotate_left(32)).wrapping_mul(SPREAD) | 1;
    move |i| match i {
        0 => head,
        1 => sector,
        _ => step.wrapping_mul(i as u64) ^ head,
    }
}

/// Fills one sector.
pub fn fill(disk: u16, sector: u64, version: Version, bytes: &mut [u8]) {
    let word = words(disk, sector, version);
    for (i, chunk) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *chunk = word(i).to_le_bytes();
    }
}

/// Recognises one sector.
pub fn recognise(bytes: &[u8]) -> Content {
    let chunks = bytes.as_chunks::<8>().0;
    let at = |i: usize| u64::from_le_bytes(chunks[i]);
    let head = at(0);
    if head == 0 {
        let any = chunks.iter().fold(0, |all, c| all | u64::from_le_bytes(*c));
        return if any == 0 { Content::Zero } else { Content::Garbage(any) };
    }
    if head >> 48 != MARK >> 48 {
        return Content::Garbage(head);
    }
    let (disk, sector, version) = (head as u16, at(1), (head >> 16) as u32);
    let word = words(disk, sector, version);
    let differs = (2..WORDS).fold(0, |all, i| all | (at(i) ^ word(i)));
    if differs == 0 {
        Content::Data { disk, sector, version }
    } else {
        Content::Torn { disk, sector, version }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_is_recognised_and_any_changed_byte_is_seen() {
        let mut bytes = [0u8; SECTOR_BYTES];
        assert_eq!(recognise(&bytes), Content::Zero);
        fill(3, 77, 12_345, &mut bytes);
        let whole = Content::Data { disk: 3, sector: 77, version: 12_345 };
        assert_eq!(recognise(&bytes), whole);
        for i in 0..SECTOR_BYTES {
            bytes[i] ^= 0x10;
            assert_ne!(recognise(&bytes), whole);
            bytes[i] ^= 0x10;
        }
    }
}
