//! The content of a sector. It follows from the disk's key, the sector's number and the version, so that the content
//! shows to which disk and sector it belongs, and how old it is.
//!
//! A written sector is four words of header (magic, key, sector, version) and random words that follow from
//! them. Version 0 is not written: it is the sector full of zeroes.

use haversack_model::random::Random;

/// Bytes of a sector.
pub const SECTOR_BYTES: usize = 512;

/// "haversec" as a word: the start of every written sector.
const MAGIC: u64 = 0x6861_7665_7273_6563;

/// The key of a disk: a number made from its name (FNV-1a).
pub fn key_of(name: &str) -> u64 {
    digest_more(DIGEST_START, name.as_bytes())
}

/// Fills one sector's bytes.
pub fn fill_sector(bytes: &mut [u8], key: u64, sector: u64, version: u32) {
    debug_assert_eq!(bytes.len(), SECTOR_BYTES);
    if version == 0 {
        bytes.fill(0);
        return;
    }
    let header = [MAGIC, key, sector, u64::from(version)];
    let mut random = Random::new(key ^ sector.rotate_left(24) ^ u64::from(version).rotate_left(48));
    for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
        let value = header.get(at).copied().unwrap_or_else(|| random.bits());
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// Fills the bytes of neighbouring sectors, all of one version.
pub fn fill(bytes: &mut [u8], key: u64, first_sector: u64, version: u32) {
    for (sector, bytes) in (first_sector..).zip(bytes.chunks_exact_mut(SECTOR_BYTES)) {
        fill_sector(bytes, key, sector, version);
    }
}

/// What a sector's bytes turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// An untouched version of this very sector; 0 for zeroes.
    Version(u32),
    /// Anything else, described for people.
    Foreign(String),
}

impl std::fmt::Display for Found {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Version(0) => write!(out, "zeroes"),
            Self::Version(version) => write!(out, "version {version}"),
            Self::Foreign(what) => write!(out, "{what}"),
        }
    }
}

/// Returns what the bytes of the sector numbered `sector` of the disk with `key` are.
pub fn identify(bytes: &[u8], key: u64, sector: u64) -> Found {
    if bytes.iter().all(|byte| *byte == 0) {
        return Found::Version(0);
    }
    let word = |at: usize| u64::from_le_bytes(bytes[at * 8..at * 8 + 8].try_into().expect("eight bytes"));
    if word(0) != MAGIC {
        return Found::Foreign(format!("garbage that starts with {:016x}", word(0)));
    }
    if (word(1), word(2)) != (key, sector) {
        return Found::Foreign(format!("sector {} of the disk with key {:016x}", word(2), word(1)));
    }
    let Ok(version @ 1..) = u32::try_from(word(3)) else {
        return Found::Foreign(format!("a sector with version {}", word(3)));
    };
    let mut wanted = [0; SECTOR_BYTES];
    fill_sector(&mut wanted, key, sector, version);
    match bytes.iter().zip(wanted).position(|(found, wanted)| *found != wanted) {
        None => Found::Version(version),
        Some(at) => Found::Foreign(format!("version {version}, damaged from byte {at} on")),
    }
}

/// The digest of no bytes at all.
pub const DIGEST_START: u64 = 0xcbf2_9ce4_8422_2325;

/// The digest (FNV-1a, words instead of bytes where there are eight) after more bytes. If a disk is split
/// at sector boundaries, the digest does not depend on where.
pub fn digest_more(digest: u64, bytes: &[u8]) -> u64 {
    let mix = |digest: u64, value: u64| (digest ^ value).wrapping_mul(0x0100_0000_01b3);
    let words = bytes.chunks_exact(8);
    let rest = words.remainder();
    let digest = words.fold(digest, |digest, word| {
        let mixed = mix(digest, u64::from_le_bytes(word.try_into().expect("eight bytes")));
        mixed ^ (mixed >> 29)
    });
    rest.iter().fold(digest, |digest, byte| mix(digest, u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_tells_what_it_is() {
        let mut bytes = [0; SECTOR_BYTES];
        assert_eq!(identify(&bytes, 7, 3), Found::Version(0));
        fill_sector(&mut bytes, 7, 3, 9);
        assert_eq!(identify(&bytes, 7, 3), Found::Version(9));
        assert!(matches!(identify(&bytes, 8, 3), Found::Foreign(_)), "another disk's");
        assert!(matches!(identify(&bytes, 7, 4), Found::Foreign(_)), "another sector's");
        for at in 0..SECTOR_BYTES {
            bytes[at] ^= 1;
            assert_ne!(identify(&bytes, 7, 3), Found::Version(9), "byte {at} changed");
            bytes[at] ^= 1;
        }
    }

    #[test]
    fn a_digest_depends_on_every_byte_and_not_on_the_split() {
        let mut bytes = [0; 4 * SECTOR_BYTES];
        fill(&mut bytes, 7, 0, 1);
        let whole = digest_more(DIGEST_START, &bytes);
        let half = digest_more(DIGEST_START, &bytes[..SECTOR_BYTES]);
        assert_eq!(digest_more(half, &bytes[SECTOR_BYTES..]), whole);
        for at in 0..bytes.len() {
            bytes[at] ^= 0x80;
            assert_ne!(digest_more(DIGEST_START, &bytes), whole);
            bytes[at] ^= 0x80;
        }
    }
}
